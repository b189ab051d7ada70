"""Errors of malformed files."""

from __future__ import annotations

MAX_MESSAGES = 10  # kept of skipped lines; all are counted
MAX_MESSAGE_LENGTH = 400  # characters after the name of the file: messages quote names of any length
QUOTED = 40  # characters of a piece of a file in a message


class FormatError(ValueError):
    """A file is malformed; the message begins with the file and the line, if any."""

    @classmethod
    def at(cls, name: str, line: int | None, what: str) -> FormatError:
        """Return the error for line `line` of the file `name`."""
        what = what if len(what) <= MAX_MESSAGE_LENGTH else what[:MAX_MESSAGE_LENGTH] + "..."
        return cls(f"{name}: {what}" if line is None else f"{name}:{line}: {what}")


class BadLines:
    """Handler of malformed lines: raises at the first, or with `skip` counts all and keeps a few messages.

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
        """Report that line `line` is malformed because of `what`."""
        error = FormatError.at(self.name, line, what)
        if not self.skip:
            raise error
        self.count += 1
        if len(self.messages) < MAX_MESSAGES:
            self.messages.append(str(error))

    def count_more(self, lines: int) -> None:
        """Count `lines` more malformed lines, without messages."""
        self.count += lines


def reason(error: BaseException) -> str:
    """Return the first line of an error's message, or its type if there is none."""
    if isinstance(error, MemoryError):
        return "out of memory: a size in it is wrong, or it needs more memory than there is"
    return next(iter(str(error).splitlines()), "") or type(error).__name__


def quoted(text: str | bytes) -> str:
    """Quote a piece of a file for an error message, truncated to `QUOTED` characters."""
    if isinstance(text, bytes):
        text = text[: 4 * QUOTED + 4].decode("utf-8", "backslashreplace")
    return repr(text) if len(text) <= QUOTED else repr(text[:QUOTED]) + "..."
