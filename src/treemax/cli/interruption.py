"""Ctrl-C on the command line: the first interrupts the work, later ones do not interrupt saving."""

from __future__ import annotations

import signal
import threading
import time

GRACE = 10.0  # seconds after Ctrl-C in which further ones are ignored


class Interruption:
    """Handler of Ctrl-C while a command runs, used as a context manager.

    The first raises `KeyboardInterrupt`. Others within the next seconds are ignored, because the command is about to
    save the model; after `hold`, all are ignored.
    """

    def __init__(self) -> None:
        self._held = False
        self._last: float | None = None
        self._installed = False

    def __enter__(self) -> Interruption:
        self._held, self._last = False, None
        in_main = threading.current_thread() is threading.main_thread()
        self._installed = in_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if self._installed:
            signal.signal(signal.SIGINT, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, signal.default_int_handler)

    def hold(self) -> None:
        """Ignore Ctrl-C from here on, while files are written."""
        self._held = True

    def _handle(self, number: int, frame: object) -> None:
        now = time.monotonic()
        if self._held or (self._last is not None and now - self._last < GRACE):
            return
        self._last = now
        raise KeyboardInterrupt


interruption = Interruption()
