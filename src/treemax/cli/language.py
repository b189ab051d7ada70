"""TreeLanguageModel on the command line: texts in, perplexity and next words out."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click
import numpy as np

from treemax.cli.data import open_data
from treemax.cli.interruption import interruption
from treemax.cli.options import Reading
from treemax.cli.saving import finish, save_model
from treemax.models import TrainingInterrupted, TreeLanguageModel


def is_language_model(model: Any) -> bool:
    """Return whether this is a language model, not a classifier."""
    return isinstance(model, TreeLanguageModel)


def read_texts(data: str, reading: Reading, model: TreeLanguageModel) -> list[str]:
    """Read the texts of DATA, one per line of a plain file; its labels are ignored."""
    with open_data(data, reading, model=model, labels=False) as reader:
        texts: list[str] = []
        for chunk in reader:
            if chunk.texts is None:
                raise ValueError(f"{reader.name} holds features, but a language model needs texts")
            texts += chunk.texts
    if not texts:
        raise ValueError(f"{reader.name}: has no texts")
    return texts


def fit_language_model(
    model: TreeLanguageModel, data: str, hierarchy: str | None, output: str, reading: Reading
) -> None:
    """Train on the texts of DATA and write the model; after Ctrl-C what was learned until then."""
    from treemax.trees import read_hierarchy

    texts = read_texts(data, reading, model)
    if hierarchy is not None:
        model.set_params(tree=read_hierarchy(hierarchy))
    start, interrupted = time.perf_counter(), None
    try:
        model.fit(texts)
        interruption.hold()
    except TrainingInterrupted as stop:
        interrupted = stop
    seconds = time.perf_counter() - start
    finish(output, save_model(model, output))
    if interrupted is not None:
        raise TrainingInterrupted(None, interrupted.done)
    facts = model.describe()
    click.echo(
        f"{output}: {facts['model']}, words {facts['words']:,}, texts {facts['texts']:,}, examples {facts['examples']:,}, "
        f"loss {facts['loss']}, trained in {seconds:.1f} s",
        err=True,
    )


def evaluate_language_model(model: TreeLanguageModel, path: str, data: str, reading: Reading) -> dict[str, float]:
    """Return the perplexity of the texts of DATA, and the time per word."""
    texts = read_texts(data, reading, model)
    model.log_prob(texts[:1])  # compile before timing
    start = time.perf_counter()
    found = np.concatenate(model.log_prob(texts))
    seconds = time.perf_counter() - start
    known = set(model.classes_.tolist())
    return {
        "texts": len(texts),
        "words": len(found),
        "words_unknown": sum(word not in known for text in texts for word in text.split()),
        "perplexity": float(np.exp(-found.mean(dtype=np.float64))),
        "ms_per_word": 1e3 * seconds / len(found),
        "words_known": len(known),
        "model_mb": Path(path).stat().st_size / 1e6,
    }
