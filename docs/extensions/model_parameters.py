"""For the pages of models: tables of parameters, from the code.

A line `<!-- parameters: NAME --> `first`, `second`` becomes a table of these parameters with their defaults and their descriptions in
the docstring of `treemax.NAME`. The line `<!-- published: NAME -->` becomes a table of the parameters whose published value is not the
default.
"""

from __future__ import annotations

import inspect
import json
import re
from typing import Any

import treemax

PARAMETERS = re.compile(r"^<!-- parameters: (\w+) --> (.+)$", re.MULTILINE)
PUBLISHED = re.compile(r"^<!-- published: (\w+) -->$", re.MULTILINE)
DESCRIPTION = r"^(?:\w+, )*{}(?:, \w+)* : .*\n((?:    .*\n|\n(?=    ))+)"


def on_page_markdown(markdown: str, **others: Any) -> str:
    """Called by MkDocs for every page."""
    markdown = PARAMETERS.sub(lambda mark: parameter_table(mark[1], re.findall(r"`(\w+)`", mark[2])), markdown)
    return PUBLISHED.sub(lambda mark: published_table(mark[1]), markdown)


def parameter_table(name: str, parameters: list[str]) -> str:
    """Return defaults and descriptions of some parameters of a model as a table."""
    model = getattr(treemax, name)
    defaults = model().get_params()
    rows = [
        f"| `{parameter}` | `{_code(defaults[parameter])}` | {description(model, parameter)} |"
        for parameter in parameters
    ]
    return "\n".join(["| parameter | default | meaning |", "|---|---|---|", *rows])


def description(model: type, parameter: str) -> str:
    """Return the description of a parameter in the docstring of its class."""
    found = re.search(DESCRIPTION.format(parameter), f"{inspect.getdoc(model)}\n", re.MULTILINE)
    if found is None:
        raise ValueError(f"The docstring of {model.__name__} does not describe {parameter}.")
    return " ".join(found[1].split()).replace("|", "\\|")


def published_table(name: str) -> str:
    """Return defaults and published values of a model, where they differ, as a table."""
    model = getattr(treemax, name)
    defaults, published = model().get_params(), model.as_published().get_params()
    rows = [
        f"| `{parameter}` | `{_code(default)}` | `{_code(published[parameter])}` |"
        for parameter, default in defaults.items()
        if published[parameter] != default
    ]
    return "\n".join(["| parameter | default | as published |", "|---|---|---|", *rows])


def _code(value: object) -> str:
    """Return a value as the code of this project writes it: strings in double quotes."""
    return json.dumps(value) if isinstance(value, str) else repr(value)
