"""Threads for kernels: they release the GIL, so plain Python threads use every core."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np
import threadpoolctl
from threadpoolctl import ThreadpoolController

from treemax.parallel.locks import fork_safe

Piece = TypeVar("Piece")
MOST_THREADS = 1024  # limit of n_jobs


def thread_count(n_jobs: int | None) -> int:
    """Return the number of threads for `n_jobs`: None is one, -1 all cores, -2 all but one.

    >>> thread_count(None), thread_count(3)
    (1, 3)
    """
    if n_jobs is None:
        return 1
    if isinstance(n_jobs, bool) or not isinstance(n_jobs, int | np.integer) or n_jobs == 0:
        raise ValueError(f"n_jobs must be None or an integer other than zero, got {n_jobs!r}.")
    if n_jobs > MOST_THREADS:
        raise ValueError(f"n_jobs must be at most {MOST_THREADS}, got {n_jobs!r:.60}.")
    if n_jobs > 0:
        return int(n_jobs)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores + 1 + int(n_jobs))


def for_each(pieces: Iterable[Piece], work: Callable[[Piece], object], threads: int) -> Iterator[Piece]:
    """Call `work` on every piece, in order with one thread, and yield each piece when done.

    At most two pieces per thread are submitted, so that an interruption takes effect after one piece.
    """
    if threads == 1:
        for piece in pieces:
            with interruptible():
                work(piece)
            yield piece
        return
    pending: dict[Future[object], Piece] = {}
    pool = ThreadPoolExecutor(threads)
    try:
        for piece in pieces:
            with delayed_interrupt():
                pending[pool.submit(work, piece)] = piece
            while len(pending) >= 2 * threads:
                yield from _finished(pending)
        while pending:
            yield from _finished(pending)
    finally:
        with delayed_interrupt():
            pool.shutdown(wait=True, cancel_futures=True)
            del pool


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise `KeyboardInterrupt` for Ctrl-C, even while a kernel that returns arrays is running.

    Numba calls Python to create the arrays, where Ctrl-C raises; Numba ignores the exception and returns the arrays,
    and Python raises a SystemError caused by the KeyboardInterrupt.
    """
    try:
        yield
    except SystemError as error:
        cause: BaseException | None = error
        while isinstance(cause, SystemError):
            cause = cause.__cause__
        if isinstance(cause, KeyboardInterrupt):
            raise KeyboardInterrupt from None
        raise


class delayed_interrupt:
    """Delay Ctrl-C until the end of the block.

    For code that must not be interrupted: an interruption inside Python's queues and conditions leaves them locked, or
    unlocks them twice. Only the main thread receives Ctrl-C; in other threads this does nothing.

    >>> with delayed_interrupt():
    ...     pass
    """

    def __enter__(self) -> None:
        self._pressed = False
        in_main = threading.current_thread() is threading.main_thread()
        handler: Any = signal.getsignal(signal.SIGINT) if in_main else None
        self._handler = handler if callable(handler) else None
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._note)

    def __exit__(self, *_: object) -> None:
        if self._handler is None:
            return
        signal.signal(signal.SIGINT, self._handler)
        if self._pressed:
            self._handler(signal.SIGINT, None)

    def _note(self, number: int, frame: object) -> None:
        self._pressed = True


def run_all(pieces: Iterable[Piece], work: Callable[[Piece], object], threads: int) -> None:
    """Call `work` on every piece and wait for all."""
    for _ in for_each(pieces, work, threads):
        pass


def _finished(pending: dict[Future[object], Piece]) -> Iterator[Piece]:
    with delayed_interrupt():
        done, _ = wait(pending, return_when=FIRST_COMPLETED)
    for future in done:
        piece = pending.pop(future)
        future.result()
        yield piece


class _SingleThreadedBlas:
    """Limit BLAS to one thread while any of our threads calls it.

    The limit is global to the process: the first user sets it, the last one restores it.
    """

    def __init__(self) -> None:
        self._lock = fork_safe(threading.Lock())
        self._users = 0
        self._controller: ThreadpoolController | None = None
        self._limit: Any = None

    @contextmanager
    def __call__(self) -> Iterator[None]:
        with self._lock:
            if self._users == 0:
                self._controller = self._controller or ThreadpoolController()
                self._limit = self._controller.limit(limits=1, user_api="blas")  # takes effect immediately
            self._users += 1
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0:
                    _let_any_thread_set_limits()
                    self._limit.restore_original_limits()
                    _let_any_thread_set_limits()


def _let_any_thread_set_limits() -> None:
    """Let threads other than the one that set a limit restore it, which threadpoolctl 3.8 ignores otherwise."""
    release = getattr(getattr(threadpoolctl, "OpenBLASController", None), "clear_controlling_thread", None)
    if release is not None:
        release(force=True)


one_blas_thread = _SingleThreadedBlas()
