"""What a reader says of a file that is not what it should be."""

from __future__ import annotations

REMEMBERED = 10  # messages of skipped lines; the count goes on
LONGEST = 400  # characters of what a message says after the name: files may bring names of any length along


class FormatError(ValueError):
    """A file is malformed; the message begins with the file and, where there is one, the line."""

    @classmethod
    def at(cls, name: str, line: int | None, what: str) -> FormatError:
        """The error for line `line` of the file `name`."""
        what = what if len(what) <= LONGEST else what[:LONGEST] + "..."
        return cls(f"{name}: {what}" if line is None else f"{name}:{line}: {what}")


class BadLines:
    """What becomes of malformed lines: the first raises, or (`skip`) all are counted and a few remembered.

    >>> bad = BadLines("data.svm", skip=True)
    >>> bad.report(3, "the label is not an integer, got 'x'")
    >>> bad.count, bad.messages
    (1, ["data.svm:3: the label is not an integer, got 'x'"])
    """

    def __init__(self, name: str, skip: bool) -> None:
        self.name = name
        self.skip = skip
        self.count = 0
        self.messages: list[str] = []

    def report(self, line: int | None, what: str) -> None:
        """Line `line` is malformed because of `what`."""
        error = FormatError.at(self.name, line, what)
        if not self.skip:
            raise error
        self.count += 1
        if len(self.messages) < REMEMBERED:
            self.messages.append(str(error))

    def count_more(self, lines: int) -> None:
        """`lines` more are malformed, of which no more is known."""
        self.count += lines


def reason(error: BaseException) -> str:
    """What a library says of a file that it cannot read: the first line, or the kind of error where there is none."""
    if isinstance(error, MemoryError):
        return "out of memory: a size in it is wrong, or it needs more memory than there is"
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def shown(text: str | bytes, limit: int = 40) -> str:
    """A piece of a file as an error message shows it: quoted, and cut where it is long."""
    if isinstance(text, bytes):
        text = text[: 4 * limit + 4].decode("utf-8", "backslashreplace")
    return repr(text) if len(text) <= limit else repr(text[:limit]) + "..."
