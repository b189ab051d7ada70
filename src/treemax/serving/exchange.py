"""HTTP requests and responses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NamedTuple

from treemax.serving.errors import RequestError
from treemax.serving.request_bodies import read_json


class Request(NamedTuple):
    """A request whose body has been read."""

    query: dict[str, str]
    headers: dict[bytes, bytes]
    body: bytes

    def json(self) -> dict[str, Any]:
        """Return the JSON object of the body."""
        kind = self.headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if kind != b"application/json":  # also refuses forms that pages of other sites could send
            raise RequestError("The body must be JSON, with the header Content-Type: application/json.", 415)
        return read_json(self.body)

    def number(self, name: str, default: int, most: int) -> int:
        """Return a whole number of the query."""
        text = self.query.get(name, str(default))
        if not (text.isascii() and text.isdecimal() and len(text) < 19 and int(text) <= most):
            raise RequestError(f"{name} must be a whole number from 0 to {most}, got {text!r:.60}.")
        return int(text)


class Reply(NamedTuple):
    """A response: a body, or a stream of chunks."""

    body: bytes | AsyncIterator[bytes]
    status: int = 200
    kind: bytes = b"application/json"
    headers: tuple[tuple[bytes, bytes], ...] = ()


class Route(NamedTuple):
    """The handler of a path."""

    method: str
    answer: Callable[[Request], Awaitable[Reply]]
    needs_token: bool = False
