"""Byte streams: files, standard input and output, gzip, blocks of whole lines."""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from treemax.formats.errors import FormatError
from treemax.replacing import replacing, temporary_files

BLOCK_BYTES = 512 * 1024  # large enough to amortise the cost per block, small enough for the cache
MAX_LINE_BYTES = 256 * 1024 * 1024
_GZIP_MAGIC = b"\x1f\x8b"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class _Prepended(io.RawIOBase):
    """A stream with `head` before it. Closing it leaves the underlying stream open."""

    def __init__(self, head: bytes, stream: Any) -> None:
        self._head = head
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self._head:
            size = min(len(buffer), len(self._head))
            buffer[:size] = self._head[:size]
            self._head = self._head[size:]
            return size
        if not hasattr(self._stream, "read1"):  # a file, unbuffered
            return self._stream.readinto(buffer) or 0
        # Not `readinto1`, which blocks for more although it has data.
        data = self._stream.read1(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _first_bytes(stream: Any, size: int) -> bytes:
    head = b""
    while len(head) < size and (more := stream.read(size - len(head))):
        head += more
    return head


class LineReader:
    """A reader of a file, decompressed, in blocks of whole lines.

    A missing newline at the end is added, and a byte order mark at the start dropped. Standard input (`-`) is
    read without waiting for full blocks: a block has the whole lines that have arrived.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.live = str(path) == "-"
        self.name = "standard input" if self.live else str(path)
        self.path = None if self.live else Path(path)
        if self.live and sys.stdin is None:
            raise OSError(errno.EBADF, "The stream is closed", self.name)
        self._file: Any = sys.stdin.buffer if self.live else Path(path).open("rb", buffering=0)  # noqa: SIM115
        self.line = 1  # number of the next line
        self._buffer = bytearray(BLOCK_BYTES)
        self._start = self._stop = 0
        self._ended = False
        try:
            head = _first_bytes(self._file, len(_GZIP_MAGIC))
            self.compressed = head == _GZIP_MAGIC
            stream: Any = io.BufferedReader(_Prepended(head, self._file), 128 * 1024)
            self._stream = gzip.GzipFile(fileobj=stream) if self.compressed else stream
            self._fill()
        except BaseException:
            self.close()
            raise
        if self._buffer[:3] == _BYTE_ORDER_MARK:
            self._start = 3

    def close(self) -> None:
        """Close the file; standard input stays open."""
        if not self.live:
            self._file.close()

    @property
    def size(self) -> int | None:
        """Size of the file on disk in bytes, or None for a stream."""
        if self.live:
            return None
        return os.fstat(self._file.fileno()).st_size or None

    @property
    def position(self) -> int:
        """Number of bytes read so far, of `size`."""
        return 0 if self.live or self._file.closed else self._file.tell()

    def peek(self) -> bytes:
        """Return the first block without consuming it; it has the first line, unless that is very long."""
        return bytes(memoryview(self._buffer)[self._start : self._stop])

    def peek_lines(self, most: int) -> list[bytes] | None:
        """Return all lines without consuming them; None if there are more than `most`, or more than a block of a file."""
        with contextlib.suppress(FormatError):  # it is raised again after the lines before it are read
            while self.live and not self._ended and self._buffer.count(b"\n", self._start, self._stop) <= most:
                self._fill()
        block = self.peek()
        lines = _split_lines(block.removesuffix(b"\n")) if block else []
        return lines if self._ended and len(lines) <= most else None

    def take_line(self) -> bytes | None:
        """Consume and return the next line without its newline; None at the end of the file."""
        block_stop = self._whole_lines()
        if block_stop is None:
            return None
        stop = self._buffer.index(b"\n", self._start, block_stop)
        line = bytes(memoryview(self._buffer)[self._start : stop])
        self._start = stop + 1
        self.line += 1
        return line.removesuffix(b"\r")

    def blocks(self) -> Iterator[tuple[int, NDArray[np.uint8]]]:
        """Yield blocks of whole lines with the number of their first line; valid until the next block."""
        while (stop := self._whole_lines()) is not None:
            block = np.frombuffer(self._buffer, dtype=np.uint8)[self._start : stop]
            first = self.line
            self._start = stop
            self.line += int(np.count_nonzero(block == 10))
            yield first, block

    def text_blocks(self) -> Iterator[tuple[int, list[bytes]]]:
        """Yield lists of lines without newlines, with the number of their first line."""
        for first, block in self.blocks():
            yield first, _split_lines(block[:-1].tobytes())

    def copy_to(self, target: IO[bytes]) -> None:
        """Copy the bytes not consumed yet to `target`."""
        while self._stop > self._start or not self._ended:
            target.write(memoryview(self._buffer)[self._start : self._stop])
            self._start = self._stop = 0
            self._fill()

    def _whole_lines(self) -> int | None:
        """Return where the last whole line in the buffer ends; None at the end of the file."""
        while True:
            stop = self._buffer.rfind(b"\n", self._start, self._stop) + 1
            if stop:
                return stop
            if self._ended:
                return self._finish_line()
            self._fill()

    def _finish_line(self) -> int | None:
        if self._start == self._stop:
            return None
        if self._stop == len(self._buffer):
            self._buffer = self._buffer + b"\n"
        self._buffer[self._stop] = 10
        self._stop += 1
        return self._stop

    def _fill(self) -> None:
        """Read until the buffer is full or (live) has a whole line; it grows for long lines."""
        kept = self._stop - self._start
        if kept > MAX_LINE_BYTES:
            raise FormatError.at(self.name, self.line, f"the line is longer than {MAX_LINE_BYTES:,} bytes")
        room = self._buffer if kept <= len(self._buffer) // 2 else bytearray(2 * len(self._buffer))
        room[:kept] = self._buffer[self._start : self._stop]
        self._buffer, self._start, self._stop = room, 0, kept
        view = memoryview(self._buffer)
        while self._stop < len(self._buffer) and not self._ended:
            size = self._read(view[self._stop :])
            if size == 0:
                self._ended = True
            elif self.live and self._buffer.find(b"\n", self._stop, self._stop + size) >= 0:
                self._stop += size
                break
            self._stop += size

    def _read(self, view: memoryview) -> int:
        try:
            if not self.live:
                return self._stream.readinto(view)
            data = self._stream.read1(len(view))
            view[: len(data)] = data
            return len(data)
        except (EOFError, zlib.error, gzip.BadGzipFile) as error:
            line = self.line + self._buffer.count(b"\n", self._start, self._stop)
            what = "is truncated" if isinstance(error, EOFError) else f"is damaged ({error})"
            raise FormatError.at(self.name, line, f"the gzip data {what}; the file is incomplete") from None
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.name) from error


def _split_lines(block: bytes) -> list[bytes]:
    lines = block.split(b"\n")
    return [line.removesuffix(b"\r") for line in lines] if b"\r" in block else lines


@contextlib.contextmanager
def seekable(source: LineReader) -> Iterator[Any]:
    """Open the file for random access; standard input and gzip are copied to a temporary file."""
    if not (source.live or source.compressed or source.path is None):
        with source.path.open("rb") as file:
            yield file
        return
    with tempfile.TemporaryFile() as copy:
        with temporary_files():
            source.copy_to(copy)
            copy.seek(0)
        yield copy


def shards_of(folder: str | os.PathLike[str]) -> list[Path]:
    """Return the files below a folder, sorted, without hidden ones and markers such as `_SUCCESS`."""
    found = [
        path
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file() and not any(part[0] in "._" for part in path.relative_to(folder).parts)
    ]
    if not found:
        raise FormatError.at(str(folder), None, "there are no files in this folder")
    return found


@contextlib.contextmanager
def open_target(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a file for writing that appears under its name once complete; `.gz` files are compressed.

    Standard output (`-`), pipes and devices are written directly.
    """
    if str(path) == "-":
        if sys.stdout is None:
            raise OSError(errno.EBADF, "The stream is closed", "standard output")
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    target = Path(path).resolve()
    if target.exists() and not target.is_file() and not target.is_dir():
        with target.open("wb") as stream:
            yield stream
        return
    with replacing(path) as stream:
        if target.suffix == ".gz":
            # No name and time inside, so that equal examples give equal files.
            with gzip.GzipFile("", "wb", 6, stream, mtime=0) as compressed:
                yield compressed  # type: ignore[misc]
        else:
            yield stream


def append(target: IO[bytes], part: IO[bytes]) -> None:
    """Append a temporary file to `target`."""
    part.seek(0)
    shutil.copyfileobj(part, target, 1024 * 1024)
