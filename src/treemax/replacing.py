"""Atomic replacement of files, and removal of stale temporary files.

A file is written under a temporary name in the folder of its target, and renamed at the end. Its writer holds a lock
on it, so that later writers can tell files of killed processes from those being written.
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

from treemax.memory import format_bytes

try:
    import fcntl
except ImportError:  # Windows, where stale files are not removed
    fcntl = None  # type: ignore[assignment]

_TEMPORARY = re.compile(r"\.treemax-[0-9a-f]{16}\.tmp")
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str], check: Callable[[Path, Path], object] | None = None) -> Iterator[BinaryIO]:
    """Open a file that replaces `path` once it is complete and on disk, and is removed on errors.

    `check` is called with the temporary file and the target before the replacement. Stale temporary files in the
    folder are removed.
    """
    target = Path(os.path.realpath(path))  # a symbolic link stays, its target is replaced
    mode = _existing_mode(target)
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, "The folder to write to does not exist", str(target.parent))
    remove_stale(target.parent)
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
            if fcntl is None:  # Windows has no locks, and cannot rename open files
                file.close()
            if check is not None:
                check(temporary, target)
            temporary.replace(target)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:
            raise OSError(error.errno, _message(error, size, target.parent), str(target)) from error
        raise
    _sync_folder(target.parent)


@contextlib.contextmanager
def temporary_files(folder: str | os.PathLike[str] | None = None) -> Iterator[None]:
    """Context manager for writing temporary files: if the disk is full, the error names the folder."""
    try:
        yield
    except OSError as error:
        if error.filename is not None or error.errno not in _NO_ROOM:
            raise
        advice = "use another folder" + (" by setting the environment variable TMPDIR" if folder is None else "")
        what = f"{error.strerror} for a temporary file; {advice}"
        raise OSError(error.errno, what, str(folder or tempfile.gettempdir())) from error


def remove_stale(folder: str | os.PathLike[str]) -> None:
    """Remove the temporary files of killed processes in a folder, if possible."""
    if fcntl is None:
        return
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for name in [entry.name for entry in entries if _TEMPORARY.fullmatch(entry.name)]:
            with contextlib.suppress(OSError):
                _remove_if_stale(Path(folder, name))


def lock_folder(folder: str | os.PathLike[str]) -> Callable[[], None]:
    """Lock a folder until the process ends or the returned function is called; raises BlockingIOError if locked."""
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


def _remove_if_stale(path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises while its writer is alive
            path.unlink()
    finally:
        os.close(descriptor)


def _locked_file(folder: Path) -> tuple[int, Path]:
    """Create a temporary file, locked while its descriptor is open."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    while True:
        temporary = folder / f".treemax-{secrets.token_hex(8)}.tmp"
        descriptor = os.open(temporary, flags, 0o666)
        if fcntl is None:
            return descriptor, temporary
        with contextlib.suppress(OSError):  # a file system without locks: stale files are not removed
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.fstat(descriptor).st_nlink:
            return descriptor, temporary
        os.close(descriptor)  # removed as stale before it was locked


def _drop_buffer(file: BinaryIO) -> None:
    """Close a file without writing its buffer, which failed before."""
    with contextlib.suppress(OSError):
        file.close()


def _message(error: OSError, size: int, folder: Path) -> str:
    """Return the error message with the space needed and the space free."""
    what = error.strerror or "Cannot be written"
    if error.errno not in _NO_ROOM:
        return what
    if error.errno == errno.EFBIG:
        return f"{what}: more than the file system, or a limit of this process (ulimit -f), allows for one file"
    free = shutil.disk_usage(folder).free
    return f"{what}: it needs at least {format_bytes(size)}, but {format_bytes(free)} is free in that folder"


def _existing_mode(target: Path) -> int | None:
    """Return the permissions of the file to replace; raises if it is not writable."""
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
    """Flush the rename to disk, if the file system supports it."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
