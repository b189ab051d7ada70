"""Group commit: requests that arrive while the disk is written are written together."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import Any, NamedTuple

from treemax.serving.example_log import ExampleLog, Outcome

MOST_EXAMPLES = 5000  # maximum number in one transaction
FLUSH_SECONDS = 1.0  # after which outcomes are written, though no example arrives


class _Group(NamedTuple):
    examples: list[tuple[str, str]]
    loop: asyncio.AbstractEventLoop
    last: asyncio.Future[int]


class LogWriter:
    """The thread that appends to the log. It writes what waits in one transaction, and then acknowledges all of it."""

    def __init__(self, log: ExampleLog) -> None:
        self._log = log
        self._condition = threading.Condition()
        self._groups: deque[_Group] = deque()
        self._outcomes: list[Outcome] = []
        self._closed = False
        self._flush = False
        self.error: str | None = None
        self._thread = threading.Thread(target=self._run, name="treemax-log", daemon=True)
        self._thread.start()

    def append(self, examples: list[tuple[str, str]]) -> asyncio.Future[int]:
        """Return the number of the last example, once all are on disk."""
        loop = asyncio.get_running_loop()
        last: asyncio.Future[int] = loop.create_future()
        with self._condition:
            self._groups.append(_Group(examples, loop, last))
            self._condition.notify()
        return last

    def add_outcomes(self, outcomes: list[Outcome], flush: bool = False) -> None:
        """Write outcomes with the next transaction; with `flush`, wait until they are on disk."""
        with self._condition:
            self._outcomes += outcomes
            if flush and self._thread.is_alive():
                self._flush = True
                self._condition.notify_all()
                self._condition.wait_for(lambda: not self._flush or not self._thread.is_alive(), timeout=30)

    def close(self) -> None:
        """Write what waits, and end the thread."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._condition:
                if not (self._groups or self._flush or self._closed):
                    self._condition.wait(FLUSH_SECONDS)
                groups: list[_Group] = []
                while self._groups and sum(len(group.examples) for group in groups) < MOST_EXAMPLES:
                    groups.append(self._groups.popleft())
                outcomes, self._outcomes = self._outcomes, []
                flushing, closed = self._flush, self._closed and not self._groups
            if groups or outcomes:
                self._write(groups, outcomes)
            if flushing:
                with self._condition:
                    self._flush = False
                    self._condition.notify_all()
            if closed:
                return

    def _write(self, groups: list[_Group], outcomes: list[Outcome]) -> None:
        try:
            results: list[Any] = list(self._log.append([group.examples for group in groups], outcomes))
            self.error = None
        except Exception as error:  # such as a full disk: nothing was acknowledged
            self.error = f"the log cannot be written: {error}"
            results = [error] * len(groups)
            with self._condition:
                self._outcomes = outcomes + self._outcomes
        for loop in {group.loop for group in groups}:
            settled = [(group.last, result) for group, result in zip(groups, results) if group.loop is loop]
            loop.call_soon_threadsafe(_settle, settled)


def _settle(results: list[tuple[asyncio.Future[int], Any]]) -> None:
    for last, result in results:
        if last.done():
            continue
        if isinstance(result, Exception):
            last.set_exception(result)
        else:
            last.set_result(result)
