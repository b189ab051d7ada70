"""Read DATA for a command, and report skipped lines."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click

from treemax.cli.options import Reading
from treemax.formats import Examples, FormatError, Reader, open_examples
from treemax.formats.detection import UnknownFormat, is_delimited
from treemax.formats.options import COLUMN_OPTIONS, DELIMITERS
from treemax.formats.streams import LineReader
from treemax.formats.training_rows import TrainingRows
from treemax.inputs.labels import RaggedLabels
from treemax.parallel.progress import progress_bar

_NOT_TEXT = "the model was trained on features"
_USE_TEXT = "Give it features, or train a model on text: treemax fit TEXTS -o MODEL (--text chooses the vectoriser)"
FEW_ROWS = 100  # up to which every row may have another label without advice
BITS = 18  # feature names are hashed into 2**18 columns by default


@contextmanager
def open_data(
    path: str, reading: Reading, chunk_rows: int = 1000, model: Any = None, labels: bool = True,
    lines: LineReader | None = None,
) -> Iterator[Reader]:  # fmt: skip
    """Open DATA, or read `lines` of it, in the same way for all commands; a table without its labels unless `labels`.

    The indices of svmlight are not shifted. Names are hashed, and columns of a table chosen, as for the model. A text
    model also reads plain lines."""
    trained = getattr(model, "reading_", {})
    bits = trained.get("bits")
    if None not in (reading.bits, bits) and reading.bits != bits:
        raise click.UsageError(f"--bits {reading.bits} differs from that of the model, {bits}; omit it.")
    columns = {name: value for name in COLUMN_OPTIONS if (value := getattr(reading, name)) is not None}
    if is_delimited(path, reading.format):
        columns = {**{name: trained[name] for name in COLUMN_OPTIONS if name in trained}, **columns}
        columns |= {} if labels else {"label_column": ""}
    try:
        opened = open_examples(
            path if lines is None else lines,
            reading.format,
            chunk_rows=chunk_rows,
            skip_bad=reading.skip_bad,
            bits=reading.bits or bits or BITS,
            zero_based=True,
            holds_text=model is not None and takes_text(model),
            **columns,
        )
    except UnknownFormat as error:
        if model is None or takes_text(model):
            raise
        raise FormatError(f"{error}. If it is text: {_NOT_TEXT}. {_USE_TEXT}") from None
    with opened as reader:
        try:
            yield reader
        finally:
            if reading.skip_bad and reader.bad_lines:
                noun = "line" if reader.bad_lines == 1 else "lines"
                click.echo(
                    f"Skipped {reader.bad_lines} malformed {noun}; the first: {reader.bad_messages[0]}", err=True
                )


def has_several_labels(path: str, reading: Reading, progress: bool) -> bool:
    """Return whether an example of a file or folder has several labels; False for a pipe, which can be read once.

    Malformed lines are left to the command, which reads DATA again.
    """
    if not (Path(path).is_file() or Path(path).is_dir()):
        return False
    columns = {name: getattr(reading, name) for name in COLUMN_OPTIONS}
    with suppress(FormatError), open_examples(path, reading.format, skip_bad=True, **columns) as reader:
        return any(bool((chunk.labels.counts > 1).any()) for chunk in chunks(reader, "labels", progress))
    return False


def read_whole(reader: Reader) -> Examples:
    """Read all of DATA; raises if it is empty."""
    examples = reader.read_all()
    if len(examples) == 0:
        raise FormatError(f"{reader.name}: has no examples")
    return examples


def first_labelled(reader: Reader) -> Examples:
    """Return the first chunk of DATA with a label."""
    for chunk in reader:
        if len(chunk.labels.values):
            return chunk
    raise FormatError(f"{reader.name}: has no labels")


def chunks(reader: Reader, title: str, progress: bool = True) -> Iterator[Examples]:
    """Yield chunks of DATA with a progress bar."""
    with progress_bar(reader.size or 0, title, "B", verbose=int(progress)) as bar:
        for chunk in reader:
            bar.update(reader.position - bar.n)
            yield chunk


def checked_chunks(model: Any, path: str, reading: Reading) -> Iterator[Examples]:
    """Yield chunks of DATA for a model; raises if they are of another kind."""
    with open_data(path, reading, model=model) as reader:
        for examples in chunks(reader, "answers"):
            check_kind(model, examples, reader.name)
            yield examples


def check_kind(model: Any, examples: Examples, name: str) -> None:
    """Raise if a text model gets features, or another model texts."""
    if takes_text(model) and examples.texts is None:
        raise ValueError(
            f"the model was trained on text, but {name} holds features. Give it text, or train a model on features: "
            "treemax fit FEATURES -o MODEL"
        )
    if not takes_text(model) and examples.texts is not None:
        raise ValueError(f"{_NOT_TEXT}, but {name} holds text. {_USE_TEXT}")


def store_reading_options(model: Any, reading: Reading) -> None:
    """Store the reading options in the model."""
    kept = [name for name in COLUMN_OPTIONS if name != "weight_column"]  # which only training needs
    columns = {name: value for name in kept if (value := getattr(reading, name)) is not None}
    getattr(model, "estimator", model).reading_ = {"bits": reading.bits or BITS, **columns}


def read_taxonomy(path: str, model: Any) -> Any:
    """Read the hierarchy of a model's labels, in the type of these."""
    from treemax.trees import read_hierarchy

    return read_hierarchy(path, integers=not model.label_index_.holds_strings)


def load_model(path: str, jobs: int | None) -> Any:
    """Load a model; with `jobs`, set its number of threads."""
    import treemax

    model = treemax.load(path)
    if jobs is not None:
        getattr(model, "estimator", model).set_params(n_jobs=jobs)
    return model


def takes_text(model: Any) -> bool:
    """Return whether the model takes raw text."""
    from treemax.models import TreeLanguageModel
    from treemax.models.text_model import TextModel

    return isinstance(model, TextModel | TreeLanguageModel)


def read_training_rows(reader: Reader) -> Examples:
    """Read the rows of DATA that a model can learn from."""
    rows = TrainingRows(reader.name)
    examples = rows.select(read_whole(reader))
    report_dropped(rows)
    if reader.format in DELIMITERS and (advice := advice_on_labels(examples.labels)):
        click.echo(advice, err=True)
    return examples


def advice_on_labels(labels: RaggedLabels) -> str | None:
    """Return a hint if the labels of a table look like several labels in one, or like row numbers.

    >>> from treemax.inputs.labels import read_labels
    >>> advice_on_labels(read_labels(["a; b", "b;c", "a;c", "a;b;c", "a", "c;b", "c; a"]))
    "Labels such as 'a; b' have a ';': if it separates labels, add --label-separator ';'."
    """
    names = list(dict.fromkeys(labels.values.tolist()))
    if bool((labels.counts > 1).any()):
        return None
    few = len(labels) < FEW_ROWS  # too few for most combinations of labels to occur
    for separator in ";|," if isinstance(names[0], str) else "":
        joined = [name for name in names if separator in name]
        parts = {part.strip() for name in names for part in name.split(separator)}
        if len(joined) > len(names) / 2 and (len(parts) < len(names) or few):
            return f"Labels such as {joined[0]!r:.80} have a {separator!r}: if it separates labels, add --label-separator {separator!r}."
    if len(names) == len(labels) >= FEW_ROWS:
        return f"Each of the {len(names):,} rows has another label: check --label-column."
    return None


def report_dropped(rows: TrainingRows) -> None:
    """Print how many rows had no label; raise if none had one."""
    if rows.n_read == rows.n_dropped:
        raise FormatError(f"{rows.name}: has no {'labels' if rows.n_read else 'examples'}")
    if rows.n_dropped:
        noun = "row" if rows.n_dropped == 1 else "rows"
        others = "before the first label" if rows.multi_label else "without a label; the others have one each"
        click.echo(f"Left out {rows.n_dropped:,} {noun} {others}.", err=True)
