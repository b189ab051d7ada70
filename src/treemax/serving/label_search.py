"""Search for labels that contain a text, in milliseconds among hundreds of thousands."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

MANY = 2000  # occurrences from which they are found with NumPy instead of one after the other
RENEW_AFTER = 1000  # new labels after which the search is built again


class LabelSearch:
    """The labels of a model in lower case, in one string of bytes.

    >>> search = LabelSearch(["Pear", "apple", "pineapple"])
    >>> search.all_matches("apple").tolist()
    [1, 2]
    """

    def __init__(self, labels: list[Any]) -> None:
        lowered = [str(label).lower().replace("\n", " ").encode("utf-8", "surrogatepass") for label in labels]
        self.text = b"\n".join([b"", *lowered, b""])
        lengths = np.fromiter(map(len, lowered), np.int64, len(lowered))
        self.starts = np.concatenate([[1], 1 + np.cumsum(lengths + 1)])[:-1]

    def __len__(self) -> int:
        return len(self.starts)

    def all_matches(self, wanted: str) -> NDArray[np.int64]:
        """Return the positions of all labels that contain a text, those that begin with it first."""
        key = wanted.lower().replace("\n", " ").encode("utf-8", "surrogatepass")
        if not key:
            return np.arange(len(self))
        places = self._places(key)
        rows = np.searchsorted(self.starts, places, side="right") - 1
        begins = np.zeros(len(self), dtype=bool)
        begins[rows[places == self.starts[rows]]] = True
        rows = rows[np.diff(rows, prepend=-1) > 0]
        return np.concatenate([rows[begins[rows]], rows[~begins[rows]]])

    def _places(self, key: bytes) -> NDArray[np.int64]:
        """Return where the bytes occur."""
        if self.text.count(key) > MANY:
            text = np.frombuffer(self.text, dtype=np.uint8)
            matches = text[: len(text) - len(key) + 1] == key[0]
            for shift, byte in enumerate(key[1:], 1):
                matches &= text[shift : shift + len(matches)] == byte
            return np.flatnonzero(matches)
        places, place = [], self.text.find(key)
        while place >= 0:
            places.append(place)
            place = self.text.find(key, place + 1)
        return np.array(places, dtype=np.int64)


class GrowingSearch:
    """The search among the labels of a model that may learn more: new ones are searched one by one until it is renewed."""

    def __init__(self) -> None:
        self._of: Any = None
        self._search: LabelSearch | None = None

    def find(self, model: Any, wanted: str, offset: int, limit: int) -> tuple[int, list[Any]]:
        """Return the number of labels that contain a text, and some of them."""
        index = model.label_index_
        search = self._search
        if search is None or self._of is not index or len(index) - len(search) > RENEW_AFTER:
            search = LabelSearch(model.classes_.tolist())
            self._of, self._search = index, search
        found = search.all_matches(wanted)
        n_known = len(search)
        if len(index) > n_known:
            key = wanted.lower()
            new = index.labels(np.arange(n_known, len(index))).tolist()
            later = [n_known + i for i, label in enumerate(new) if key in str(label).lower()]
            found = np.concatenate([found, np.array(later, dtype=np.int64)])
        shown = found[offset : offset + limit]
        return len(found), index.labels(shown).tolist()
