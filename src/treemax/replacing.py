"""Files that appear under their name when they are whole, and what is left of those that never were.

A file is written under a temporary name in the folder of its target, and renamed at the end. Its writer holds a lock on
it, so that whoever comes later can tell what a killed process has left behind from what is still being written.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from treemax.memory import in_words

try:
    import fcntl
except ImportError:  # not there on Windows, where nothing is cleaned up then
    fcntl = None  # type: ignore[assignment]

_TEMPORARY = re.compile(r"\.treemax-[0-9a-f]{16}\.tmp")
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def replacing(
    path: str | os.PathLike[str], check: Callable[[Path, Path], object] | None = None
) -> Iterator[BinaryIO]:
    """A file to write that takes the place of `path` when it is complete and on disk, and vanishes if it never is.

    `check` is called with the temporary file and the target before the one replaces the other. What other writers left
    in the folder when they were killed is removed.
    """
    target = Path(os.path.realpath(path))  # through a symbolic link: the link stays, its target is replaced
    mode = _existing_mode(target)
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "The folder to write to does not exist", str(target.parent))
    remove_strays(target.parent)
    descriptor, temporary = _locked_file(target.parent)
    size = 0
    try:
        with os.fdopen(descriptor, "wb") as file:
            try:
                yield file
                file.flush()
                if mode is not None:
                    temporary.chmod(mode)
                os.fsync(file.fileno())
            except OSError:
                size = os.fstat(file.fileno()).st_size
                _drop_buffer(file)
                raise
            if fcntl is None:  # Windows: no lock to keep, and no renaming of open files
                file.close()
            if check is not None:
                check(temporary, target)
            temporary.replace(target)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:
            raise OSError(error.errno, _told(error, size, target.parent), str(target)) from error
        raise
    _sync_folder(target.parent)


@contextlib.contextmanager
def temporary_room(folder: str | os.PathLike[str] | None = None) -> Iterator[None]:
    """Writing to temporary files inside, in `folder` or where the system has them: without room, the error says where."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno not in _NO_ROOM:
            raise
        advice = "name another folder for it" + (
            " in the environment variable TMPDIR" if folder is None else ""
        )
        what = f"{error.strerror} for a temporary file; {advice}"
        raise OSError(error.errno, what, str(folder or tempfile.gettempdir())) from error


def remove_strays(folder: str | os.PathLike[str]) -> None:
    """Remove the temporary files in a folder that nobody writes to any more, where that is possible."""
    if fcntl is None:
        return
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for name in [entry.name for entry in entries if _TEMPORARY.fullmatch(entry.name)]:
            with contextlib.suppress(OSError):
                _remove_stray(Path(folder, name))


def claim(folder: str | os.PathLike[str]) -> Callable[[], None]:
    """Have a folder to oneself until the process ends, or what is returned is called; a BlockingIOError if another has it."""
    if fcntl is None:
        return lambda: None
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    except OSError:  # a file system without locks
        pass
    return lambda: os.close(descriptor)


def _remove_stray(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails while its writer lives
            path.unlink()
    finally:
        os.close(descriptor)


def _locked_file(folder: Path) -> tuple[int, Path]:
    """A new temporary file, which is locked while its descriptor is open."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    while True:
        temporary = folder / f".treemax-{secrets.token_hex(8)}.tmp"
        descriptor = os.open(temporary, flags, 0o666)
        if fcntl is None:
            return descriptor, temporary
        with contextlib.suppress(OSError):  # a file system without locks: nothing is ever cleaned up there
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_nlink:
            return descriptor, temporary
        os.close(descriptor)  # taken for a stray before it was locked


def _drop_buffer(file: BinaryIO) -> None:
    """Close a file whose last bytes cannot be written, which closing would try once more."""
    with contextlib.suppress(OSError):
        file.close()


def _told(error: OSError, size: int, folder: Path) -> str:
    """What the system says, and how much room is needed and how much there is."""
    what = error.strerror or "Cannot be written"
    if error.errno not in _NO_ROOM:
        return what
    if error.errno == errno.EFBIG:
        return (
            f"{what}: more than the file system, or a limit of this process (ulimit -f), allows for one file"
        )
    free = shutil.disk_usage(folder).free
    return f"{what}: it needs {in_words(size)} at least, and {in_words(free)} is free in that folder"


def _existing_mode(target: Path) -> int | None:
    """Permissions of the file about to be replaced; a rename must not do what writing to it could not."""
    try:
        mode = target.stat().st_mode
    except FileNotFoundError:
        return None
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "Cannot write a file in place of a folder", str(target))
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "Not a regular file, and cannot be replaced by one", str(target))
    if not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, "The file to replace is write-protected", str(target))
    return stat.S_IMODE(mode)


def _sync_folder(folder: Path) -> None:
    """Make the new name durable. The file is whole by now, so a file system that cannot is no failure."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
