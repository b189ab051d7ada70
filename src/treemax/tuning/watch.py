"""Time limits of trials, and Ctrl-C to end a search."""

from __future__ import annotations

import _thread
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

from treemax.kernels.jit import is_compiling, seconds_of_compiling
from treemax.parallel.threads import interruptible

Answer = TypeVar("Answer")
AGAIN = 1.0  # seconds after which a trial is interrupted again if it ignored the first
SHORTEST_WAIT = 0.01  # seconds; while kernels are compiled, the time that is left does not get less


class TimeLimitExceeded(Exception):
    """A trial exceeded its time limit."""


class SearchInterrupted(BaseException):
    """Ctrl-C ends the search. Like `KeyboardInterrupt`, not an `Exception`."""


def _seconds_without_compiling() -> float:
    return time.monotonic() - seconds_of_compiling()


class Watch:
    """The clock of a search, used as a context manager. It stops while kernels are compiled, once on a machine.

    `run` calls a function that a timer or Ctrl-C may interrupt. Outside it Ctrl-C only sets `stopped`, so that nothing
    is left half written; a second Ctrl-C interrupts immediately. Only the main thread receives Ctrl-C and can be
    interrupted; other threads run to completion.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.stopped = False
        self._start = _seconds_without_compiling()
        self._lock = threading.Lock()
        self._working = False
        self._alarm_rang = False  # until the handler is called
        self._over_time = False
        self._in_main = threading.current_thread() is threading.main_thread()
        self._handler: Any = None
        self._unraisable_hook = sys.unraisablehook

    def __enter__(self) -> Watch:
        if self._in_main:
            self._handler = signal.signal(signal.SIGINT, self._interrupted)
            sys.unraisablehook = self._lost
        return self

    def __exit__(self, *_: object) -> None:
        if self._handler is not None:
            signal.signal(signal.SIGINT, self._handler)
            sys.unraisablehook = self._unraisable_hook

    @property
    def elapsed(self) -> float:
        return _seconds_without_compiling() - self._start

    @property
    def remaining(self) -> float:
        return self.seconds - self.elapsed

    def run(self, work: Callable[[], Answer], limit: float | None = None) -> Answer:
        """Return the result of `work`; raise `TimeLimitExceeded` after `limit` seconds, `SearchInterrupted` after Ctrl-C."""
        if self.stopped:
            raise SearchInterrupted
        done = threading.Event()
        self._over_time = False
        if limit is not None and self._in_main:
            threading.Thread(target=self._alarm, args=(limit, done), daemon=True).start()
        try:
            self._working = True
            with interruptible():
                return work()
        except KeyboardInterrupt:
            self._working = False
            if self._over_time:
                raise TimeLimitExceeded from None
            self.stopped = True
            raise SearchInterrupted from None
        except Exception:
            if self.stopped:  # Ctrl-C in a callback of the compiler, which then fails in its own way
                raise SearchInterrupted from None
            raise
        finally:
            self._working = False
            with self._lock:
                done.set()

    def _alarm(self, limit: float, done: threading.Event) -> None:
        """Interrupt the main thread after `limit` seconds, and again if the exception was lost in a callback."""
        end = _seconds_without_compiling() + limit
        wait = max(limit, 0.0)
        while not done.wait(wait):
            wait = end - _seconds_without_compiling()
            if wait > 0:  # kernels were compiled meanwhile
                wait = max(wait, SHORTEST_WAIT)
                continue
            with self._lock:
                if not done.is_set():
                    self._alarm_rang = True
                    _thread.interrupt_main()
            wait = AGAIN

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        """Handle the timer and Ctrl-C; Python calls it in the main thread between two instructions."""
        if self._alarm_rang:
            self._alarm_rang = False
            if self._working and not is_compiling():  # an interrupted compiler may fail later; the alarm rings again
                self._over_time = True
                raise KeyboardInterrupt
            return
        second, self.stopped = self.stopped, True
        if second or self._working:
            raise KeyboardInterrupt

    def _lost(self, lost: Any) -> None:
        """Do not print a traceback for an interrupt that was lost in a callback: the alarm repeats it."""
        if not (self._over_time and issubclass(lost.exc_type, KeyboardInterrupt)):
            self._unraisable_hook(lost)
