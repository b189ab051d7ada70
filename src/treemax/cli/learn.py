"""The command fit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import click

from treemax.cli.interruption import interruption
from treemax.cli.options import (
    Reading,
    check_output,
    choose_model,
    data_options,
    make_model,
    make_vectorizer,
    model_options,
    read_size,
)
from treemax.cli.saving import check_disk_space, finish, save_model

LABEL_SHARE = 0.5  # weight of the texts of labels in their similarity; the examples have the rest
CHOSEN = ("loss", "cost", "learning_rate", "passes", "threshold")  # settings that a model may choose from the data


@click.command(short_help="Train a model on a file.")
@click.argument("data", is_eager=True)  # known when MODEL is checked
@click.option("-o", "--output", required=True, metavar="MODEL", callback=check_output, help="Where to write the model.")
@model_options
@click.option(
    "--text", type=click.Choice(["tfidf", "hashing"]), default="tfidf", show_default=True, help="Vectoriser of texts."
)
@click.option(
    "--hierarchy",
    type=click.Path(exists=True, dir_okay=False),
    help="File with the hierarchy of the labels: lines of parent, tab, child, or JSON. It is the tree of models that take "
    "one, unless --set tree=..., and the taxonomy of predict --backoff.",
)
@click.option("--label-texts", metavar="FILE",
              help="File of lines of a label, a tab and its name or description. Labels are grouped by these texts and "
              "by the examples, with equal weight (label-tree on text).")  # fmt: skip
@click.option("--add-unseen", is_flag=True, help="Also predict labels that occur only in --label-texts.")
@click.option("--resume", is_flag=True, help="Store the optimiser state in MODEL, so that training can continue.")
@click.option(
    "--cluster",
    metavar="ADDRESS",
    help="Train on a Ray cluster: auto, local or ray://host:10001 (label-tree, softmax-tree, softmax-forest).",
)
@click.option(
    "--checkpoint",
    metavar="FOLDER",
    help="Write checkpoints to FOLDER until MODEL is written; the same command resumes from them.",
)
@click.option(
    "--memory",
    metavar="SIZE",
    callback=read_size,
    help="Train on data larger than memory, within this limit, such as 2GB (label-tree).",
)
@click.option(
    "--scratch",
    metavar="FOLDER",
    type=click.Path(exists=True, file_okay=False, writable=True),
    help="Folder for the temporary files of --memory; that of MODEL by default.",
)
@data_options
def fit(
    data: str, output: str, model_name: str, as_published: bool, settings: tuple[str, ...],
    text_settings: tuple[str, ...], jobs: int, text: str, hierarchy: str | None, label_texts: str | None, add_unseen: bool, resume: bool, cluster: str | None, checkpoint: str | None,
    memory: int | None, scratch: str | None, reading: Reading,
) -> None:  # fmt: skip
    """Train a model on DATA and write it to MODEL."""
    from treemax.cli.data import store_reading_options
    from treemax.cli.language import fit_language_model, is_language_model
    from treemax.kernels.jit import seconds_of_compiling
    from treemax.models import TrainingInterrupted

    places = {"--cluster": cluster, "--checkpoint": checkpoint}
    if add_unseen and label_texts is None:
        raise click.UsageError("--add-unseen needs --label-texts.")
    if label_texts is not None and memory is not None:
        raise click.UsageError("--label-texts cannot be combined with --memory.")
    special = {"--hierarchy": hierarchy, "--label-texts": label_texts, "--memory": memory, **places}
    needing = [option for option, value in special.items() if value is not None]
    if model_name == "auto" and needing:
        model_name = "label-tree"  # supports all of them
        click.echo(f"Model: LabelTree, for {', '.join(needing)} (--model label-tree)", err=True)
    model = make_model(model_name, settings, jobs, as_published)
    if is_language_model(model):
        _check_language_options(memory, places, resume, text_settings)
        fit_language_model(model, data, hierarchy, output, reading)
        return
    _check_options(model, model_name, data, memory, scratch, places)
    is_tree = hierarchy is not None and not any(setting.startswith("tree=") for setting in settings)
    vectorizer = make_vectorizer(text, text_settings)
    with _training_contexts(cluster, checkpoint):  # connects before reading the data
        if memory is None:
            names = LabelTexts(label_texts, add_unseen)
            model, train = _in_memory(model, jobs, vectorizer, data, hierarchy, is_tree, names, reading, output)
        else:
            model, train = _from_disk(model, vectorizer, data, hierarchy, is_tree, reading, memory, scratch or output)
        start, compiled, interrupted = time.perf_counter(), seconds_of_compiling(), None
        try:
            train()
            interruption.hold()
        except KeyboardInterrupt as stop:  # save what was learned until then
            interrupted = stop
            if not getattr(model, "estimator", model).__sklearn_is_fitted__():
                raise
        seconds, compiled = time.perf_counter() - start, seconds_of_compiling() - compiled
        store_reading_options(model, reading)
        place = save_model(model, output, resume=resume)
        finish(output, place)
        if interrupted is not None:
            done = interrupted.done if isinstance(interrupted, TrainingInterrupted) else 1.0
            raise TrainingInterrupted(None, done)
    facts = model.describe()
    chosen = "".join(f"{name.replace('_', ' ')} {facts[name]}, " for name in CHOSEN if name in facts)
    click.echo(
        f"{output}: {facts['model']}, labels {facts['labels']:,}, features {facts['features']:,}, "
        f"examples {facts['examples']:,}, {chosen}trained in {seconds:.1f} s"
        + (f", of which {compiled:.1f} s compiling for the first use" if compiled > 1 else ""),
        err=True,
    )


class LabelTexts(NamedTuple):
    """The options --label-texts and --add-unseen."""

    path: str | None
    add_unseen: bool


def _check_language_options(
    memory: int | None, places: dict[str, str | None], resume: bool, text_settings: tuple[str, ...]
) -> None:
    """Raise for options that a language model does not support."""
    given = {"--memory": memory is not None, **{option: place is not None for option, place in places.items()}}
    given |= {"--resume": resume, "--text-set": bool(text_settings)}
    for option in (option for option, is_given in given.items() if is_given):
        raise click.UsageError(f"{option} is not for tree-language-model.")


def _check_options(
    model: Any, name: str, data: str, memory: int | None, scratch: str | None, places: dict[str, str | None]
) -> None:
    """Raise for options that the model or DATA does not support, or that exclude each other."""
    from treemax.models import MODELS

    if scratch is not None and memory is None:
        raise click.UsageError("--scratch needs --memory.")
    if memory is not None and not hasattr(model, "fit_file"):
        able = ", ".join(other for other, kind in MODELS.items() if hasattr(kind, "fit_file"))
        raise click.UsageError(f"--memory is for {able}, not for {name}.")
    if memory is not None and data == "-":
        raise click.UsageError("--memory reads DATA more than once, but standard input can be read once: use a file.")
    for option in (option for option, place in places.items() if place is not None):
        if memory is not None:
            raise click.UsageError(f"{option} cannot be combined with --memory.")
        if not model.supports_distributed:
            able = ", ".join(other for other, kind in MODELS.items() if kind.supports_distributed)
            raise click.UsageError(f"{option} is for {able}, not for {name}.")


def _in_memory(
    model: Any, jobs: int, vectorizer: Any, data: str, hierarchy: str | None, is_tree: bool, names: LabelTexts, reading: Reading,
    output: str,
) -> tuple[Any, Callable[[], object]]:  # fmt: skip
    """Read all of DATA; return the model, chosen if it is None, and the function that trains it."""
    from treemax.cli.data import open_data, read_training_rows
    from treemax.cli.label_files import read_label_texts
    from treemax.inputs.labels import LabelIndex
    from treemax.models.text_model import TextModel

    with open_data(data, reading) as reader:
        examples = read_training_rows(reader)
    model = choose_model(examples, jobs) if model is None else model
    check_disk_space(output, examples, model)
    _set_hierarchy(model, hierarchy, is_tree, examples)
    if examples.texts is not None:
        model = TextModel(vectorizer, model)
    options: dict[str, Any] = {} if examples.weights is None else {"sample_weight": examples.weights}
    if names.path is not None:
        if examples.texts is None or not hasattr(model.estimator, "fit_file"):
            raise click.UsageError("--label-texts is for label-tree on text.")
        index = LabelIndex(examples.labels.values[:1].tolist())
        options |= {"label_texts": read_label_texts(names.path, index), "label_share": LABEL_SHARE}
        options["add_unseen"] = names.add_unseen
    return model, lambda: model.fit(examples.features, examples.targets, **options)


def _from_disk(
    model: Any, vectorizer: Any, data: str, hierarchy: str | None, is_tree: bool, reading: Reading, memory: int, place: str
) -> tuple[Any, Callable[[], object]]:  # fmt: skip
    """Read the beginning of DATA; return the model and the function that trains it with bounded memory."""
    from treemax.cli.data import BITS, first_labelled, open_data
    from treemax.formats.options import COLUMN_OPTIONS
    from treemax.models.text_model import TextModel

    with open_data(data, reading) as reader:
        examples = first_labelled(reader)
    _set_hierarchy(model, hierarchy, is_tree, examples)
    if examples.texts is not None:
        model = TextModel(vectorizer, model)
    options = {
        "format": reader.format, "skip_bad": reading.skip_bad, "bits": reading.bits or BITS, "zero_based": True,
        **{name: getattr(reading, name) for name in COLUMN_OPTIONS},
    }  # fmt: skip
    folder = Path(place) if Path(place).is_dir() else Path(place).absolute().parent
    return model, lambda: model.fit_file(data, memory=memory, folder=folder, **options)


def _set_hierarchy(model: Any, path: str | None, is_tree: bool, examples: Any) -> None:
    """Read the file of --hierarchy; it is the tree of the model if it takes one, and else only its taxonomy."""
    from treemax.trees import Taxonomy

    if path is None:
        return
    taxonomy = Taxonomy.from_file(path, integers=examples.labels.dtype.kind in "iu")
    if is_tree and "tree" in model.get_params():
        model.set_params(tree=taxonomy)
    else:
        model.set_taxonomy(taxonomy)


@contextmanager
def _training_contexts(address: str | None, folder: str | None) -> Iterator[None]:
    """Enter the contexts of the cluster and of the checkpoints."""
    import treemax

    with ExitStack() as stack:
        if folder is not None:
            stack.enter_context(treemax.checkpoint(folder))
        if address is not None:
            stack.enter_context(treemax.cluster(address))
        yield
