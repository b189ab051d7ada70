"""For the API reference: sections of docstrings that the numpy style of griffe does not know.

It knows code only under "Examples"; elsewhere `>>>` would be set as a quotation of a quotation. Parameters under
"For reproducing the paper" become a list.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

PAPER = re.compile(r"(For reproducing the paper\n-+\n)((?:\S.*\n(?:    .*\n?)+)+)")
PARAMETER = re.compile(r"(\S.*?) : (.*)\n((?:    .*\n?)+)")


class DoctestSections(griffe.Extension):
    """Puts the heading in front of the first `>>>` of each docstring that lacks it, and lists the paper's parameters."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is None:
            return
        obj.docstring.value = PAPER.sub(_as_list, obj.docstring.value)
        lines = obj.docstring.value.split("\n")
        first = next((i for i, line in enumerate(lines) if line.startswith(">>> ")), None)
        if first is not None and "Examples" not in lines[:first]:
            obj.docstring.value = "\n".join([*lines[:first], "Examples", "--------", *lines[first:]])


def _as_list(section: re.Match[str]) -> str:
    items = [
        f"- **`{name}`** (`{kind}`): {' '.join(text.split())}\n" for name, kind, text in PARAMETER.findall(section[2])
    ]
    return section[1] + "".join(items)
