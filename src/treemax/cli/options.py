"""Options shared by several commands, and parsers of their values."""

from __future__ import annotations

import ast
import functools
import inspect
import math
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

FORMATS = ("auto", "fasttext", "xmc", "svmlight", "vw", "jsonl", "npz", "parquet", "arrow", "csv", "tsv")


def check_output(context: click.Context, parameter: click.Parameter, path: str | None) -> str | None:
    """Raise before training if the output cannot be written."""
    if path is None:
        return None
    folder = Path(path).absolute().parent
    if Path(path).is_dir():
        raise click.BadParameter(f"{path} is a folder; use a file in it.")
    if not folder.is_dir():
        raise click.BadParameter(f"the folder {folder} does not exist.")
    if not os.access(folder, os.W_OK):
        raise click.BadParameter(f"the folder {folder} is not writable.")
    for name in ("data", "model"):  # arguments, which are eager where there is an output
        given = context.params.get(name)
        if given is not None and Path(given).exists() and Path(path).exists() and Path(given).samefile(path):
            raise click.BadParameter(f"{path} is {name.upper()} itself, which it would replace.")
    return path


def read_size(context: click.Context, parameter: click.Parameter, size: str | None) -> int | None:
    """Parse a size such as 2GB to bytes."""
    from treemax.memory import parse_bytes

    try:
        return None if size is None else parse_bytes(size)
    except ValueError:
        raise click.BadParameter(f"expected a size such as 2GB or 500MB, got {size!r}.") from None


def read_time(context: click.Context, parameter: click.Parameter, text: str) -> float:
    """Parse a time such as 30s, 5m or 1h to seconds."""
    units = {"s": 1, "m": 60, "h": 3600}
    number = text[:-1] if text[-1:] in units else text
    try:
        seconds = float(number) * units.get(text[-1:], 1)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise click.BadParameter(f"expected a time such as 30s, 5m or 1h, got {text!r}.")
    return seconds


@dataclass(frozen=True)
class Reading:
    """How to read DATA; None for the option of the model, else the default."""

    format: str = "auto"
    skip_bad: bool = False
    bits: int | None = None
    text_column: str | None = None
    label_column: str | None = None
    label_separator: str | None = None
    weight_column: str | None = None


def data_options(command: Callable[..., Any], format_option: str = "--format") -> Callable[..., Any]:
    """Add the options for reading DATA, which the command gets as `reading`."""

    @functools.wraps(command)
    def called(**arguments: Any) -> Any:
        options = {field.name: arguments.pop(f"read_{field.name}") for field in fields(Reading)}
        return command(reading=Reading(**options), **arguments)

    for option in (
        click.option("--bits", "read_bits", type=click.IntRange(1, 31),
                     help="Feature names are hashed into 2**bits columns; by default 18, or that of the model."),
        click.option("--weight-column", "read_weight_column", metavar="NAME",
                     help="Column of the weights in a CSV or TSV file; by default all rows have weight one."),
        click.option("--label-separator", "read_label_separator", metavar="TEXT",
                     help="What separates the labels of a row in a CSV or TSV file; | in a column called labels."),
        click.option("--label-column", "read_label_column", metavar="NAME",
                     help="Column of the labels in a CSV or TSV file; label or labels by default."),
        click.option("--text-column", "read_text_column", metavar="NAME",
                     help="Column of the texts in a CSV or TSV file; text by default."),
        click.option("--skip-bad", "read_skip_bad", is_flag=True, help="Skip malformed lines and report their number."),
        click.option(format_option, "read_format", type=click.Choice(FORMATS), default="auto", show_default=True,
                     help="Format of DATA; auto detects it by the name or the first lines."),
    ):  # fmt: skip
        called = option(called)
    return called


def model_options(command: Command) -> Command:
    """Add the options for the model and its parameters."""
    for option in (
        click.option("--jobs", default=1, show_default=True, help="Threads; -1 for all cores."),
        click.option("--text-set", "text_settings", multiple=True, metavar="NAME=VALUE",
                     help="A parameter of the text vectoriser; may be repeated."),
        click.option("--set", "settings", multiple=True, metavar="NAME=VALUE",
                     help="A parameter of the model; may be repeated."),
        click.option("--as-published", is_flag=True,
                     help="Use the settings of the model's paper instead of the defaults; --set changes them."),
        click.option("--model", "model_name", default="auto", show_default=True, metavar="NAME", shell_complete=_complete_model,
                     help="The model; auto chooses one by the kind of data, treemax info --models lists all."),
    ):  # fmt: skip
        command = option(command)
    return command


def _complete_model(context: click.Context, parameter: click.Parameter, start: str) -> list[str]:
    return [name for name in ("auto", *known_models()) if name.startswith(start)]


def known_models() -> dict[str, Any]:
    """Return the models that `fit` trains: the classifiers, and the language model."""
    from treemax.models import MODELS, TreeLanguageModel

    return {**MODELS, "tree-language-model": TreeLanguageModel}


def name_of_model(name: str) -> str:
    """Return the name of a model on the command line, from this name or that of its class.

    >>> name_of_model("LabelTree"), name_of_model("label-tree"), name_of_model("forest")
    ('label-tree', 'label-tree', 'forest')
    """
    classes = {kind.__name__.lower(): known for known, kind in known_models().items()}
    return classes.get(re.sub("[-_]", "", name).lower(), name)


def make_model(name: str, settings: tuple[str, ...], jobs: int, as_published: bool = False) -> Any:
    """Return the model of this name with these parameters, and the defaults or the paper's settings for the others.

    None for auto, since the model is chosen when the data is known.
    """
    models, name = known_models(), name_of_model(name)
    if name == "auto":
        if settings or as_published:
            option = "--set" if settings else "--as-published"
            raise click.UsageError(f"{option} needs --model, one of {', '.join(models)}.")
        return None
    if name not in models:
        raise click.BadParameter(
            f"unknown model {name!r}; choose from auto, {', '.join(models)}.", param_hint="--model"
        )
    values = read_settings(models[name], settings, "--set")
    if "n_jobs" in inspect.signature(models[name]).parameters:
        values.setdefault("n_jobs", jobs)
    if not as_published:
        return models[name](**values)
    try:
        return models[name].as_published(**values)
    except ValueError as error:  # it does not come from a paper
        raise click.BadParameter(str(error), param_hint="--as-published") from None


def choose_model(examples: Any, jobs: int, stream: bool = False, multi_label: bool = False) -> Any:
    """Return the model that suits these examples best, and print which it is and why."""
    from treemax.models.registry import choose, data_facts

    facts = data_facts(examples.features, examples.targets, stream)
    model, line = choose(facts._replace(multi_label=facts.multi_label or multi_label))
    click.echo(line, err=True)
    return model.set_params(n_jobs=jobs)


def make_vectorizer(kind: str, settings: tuple[str, ...]) -> Any:
    """Return the text vectoriser of this kind with these parameters."""
    from treemax.text.vectorizers import HashingText, TfidfText

    vectorizer = {"tfidf": TfidfText, "hashing": HashingText}[kind]
    return vectorizer(**read_settings(vectorizer, settings, "--text-set"))


def read_settings(kind: type, settings: tuple[str, ...], option: str) -> dict[str, Any]:
    """Parse name=value pairs for the parameters of a class."""
    known = list(inspect.signature(kind).parameters)
    values = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise click.BadParameter(f"expected NAME=VALUE, got {setting!r}.", param_hint=option)
        if name not in known:
            raise click.BadParameter(
                f"{kind.__name__} has no parameter {name!r}; it has {', '.join(known)}.", param_hint=option
            )
        values[name] = read_value(value)
    return values


def read_value(text: str) -> Any:
    """Parse a Python literal, or else return the string.

    >>> [read_value(text) for text in ("3", "0.5", "true", "none", "softmax", "1,2", "{'rare': 2.5}")]
    [3, 0.5, True, None, 'softmax', (1, 2), {'rare': 2.5}]
    """
    words = {"true": True, "false": False, "none": None}
    if text.lower() in words:
        return words[text.lower()]
    if text.startswith("{"):
        try:
            return ast.literal_eval(text)
        except (ValueError, SyntaxError):
            return text
    if "," in text:
        return tuple(read_value(part) for part in text.split(","))
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
