"""Deploy a model: save one file, load it in other processes, answer one text at a time.

    python examples/deploy.py

The file is memory-mapped, so that it opens at once and processes share its memory. About ten seconds.
"""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path

from treemax import LabelTree, TextModel, TfidfText, load
from treemax.datasets import load_wordnet

MODEL = Path("wordnet.treemax")


def answer(texts: list[str]) -> list[str]:
    """What a worker of a web server does: load once, then answer."""
    start = time.perf_counter()
    model = load(MODEL)
    model.predict(texts[:1])  # the first answer loads the compiled kernels
    ready = time.perf_counter()
    found = [str(model.predict([text])[0]) for text in texts]
    each = (time.perf_counter() - ready) / len(texts)
    print(f"ready in {1e3 * (ready - start):.0f} ms, {1e6 * each:.0f} us a text")
    return found


if __name__ == "__main__":
    train, test = load_wordnet()
    model = TextModel(TfidfText(), LabelTree(random_state=0))
    model.fit(train.texts, train.y)
    model.save(MODEL)
    print(f"{MODEL}: {MODEL.stat().st_size / 1e6:.1f} MB")
    texts = test.texts[:1000]
    with multiprocessing.get_context("spawn").Pool(2) as workers:
        for found in workers.map(answer, [texts, texts]):
            assert found == model.predict(texts).tolist()
    print("both processes answer as the trained model does")
