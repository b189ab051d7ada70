"""For the pages of models: the parameters whose published values differ from the defaults, from the code.

The table replaces the comment `<!-- published: NAME -->`, with the name of a model in `treemax`.
"""

from __future__ import annotations

import json
import re
from typing import Any

import treemax

MARK = re.compile(r"^<!-- published: (\w+) -->$", re.MULTILINE)


def on_page_markdown(markdown: str, **others: Any) -> str:
    """Called by MkDocs for every page."""
    return MARK.sub(lambda mark: table(mark[1]), markdown)


def table(name: str) -> str:
    """Return parameters, defaults and published values of a model as a table."""
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
