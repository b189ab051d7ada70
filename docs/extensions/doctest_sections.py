"""For the API reference: a doctest that stands in a docstring without a heading gets one.

The numpy style knows code only under "Examples"; elsewhere `>>>` would be set as a quotation of a quotation.
"""

from __future__ import annotations

from typing import Any

import griffe


class DoctestSections(griffe.Extension):
    """Puts the heading in front of the first `>>>` of each docstring that lacks it."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is None:
            return
        lines = obj.docstring.value.split("\n")
        first = next((i for i, line in enumerate(lines) if line.startswith(">>> ")), None)
        if first is not None and "Examples" not in lines[:first]:
            obj.docstring.value = "\n".join([*lines[:first], "Examples", "--------", *lines[first:]])
