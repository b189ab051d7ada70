"""Requests that arrive while others are answered are answered together."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from treemax.serving.errors import RequestError
from treemax.serving.questions import Inputs, Options, joined
from treemax.serving.served_model import ServedModel

MOST_ROWS = 512  # answered in one call
LARGE = 64  # rows of a request from which it has a queue of its own, so that small ones do not wait for it
PATIENCE = 0.001  # seconds to wait for more requests after a larger batch
LEAST_SEARCHED = 0.01  # threshold below which the best labels are filtered: all labels of all rows would be too many

Answers = tuple[list[list[Any]], list[list[float]]]
Encode = Callable[[ServedModel, str, list[list[Any]], list[list[float]]], bytes]


class Question(NamedTuple):
    """A request to answer: its rows and options, and how to write the answer."""

    served: ServedModel
    inputs: Inputs
    n_rows: int
    options: Options
    encode: Encode
    deadline: float
    answer: asyncio.Future[bytes]


class Batcher:
    """Answers questions in threads: at once while nothing is being answered, else together with all that wait.

    Kernels release the global lock, so that the event loop reads other requests meanwhile.
    """

    def __init__(self, count_batch: Callable[[int, int], None]) -> None:
        self._lanes = [_Lane(count_batch), _Lane(count_batch)]

    def ask(
        self, served: ServedModel, inputs: Inputs, n_rows: int, options: Options, encode: Encode, seconds: float
    ) -> asyncio.Future[bytes]:
        """Return the answer to a question, encoded."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bytes] = loop.create_future()
        question = Question(served, inputs, n_rows, options, encode, time.monotonic() + seconds, answer)
        self._lanes[n_rows > LARGE].add(question, loop)
        return answer

    def close(self) -> None:
        """Wait until the last batches are answered."""
        for lane in self._lanes:
            lane.executor.shutdown()


class _Lane:
    """A queue and the thread that answers it."""

    def __init__(self, count_batch: Callable[[int, int], None]) -> None:
        self.executor = ThreadPoolExecutor(1, "treemax-answers")
        self._count_batch = count_batch
        self._waiting: deque[Question] = deque()
        self._busy = False
        self._patience: asyncio.TimerHandle | None = None  # while more requests are awaited
        self._enough = 0

    def add(self, question: Question, loop: asyncio.AbstractEventLoop) -> None:
        self._waiting.append(question)
        if not self._busy:
            self._busy = True
            loop.call_soon(self._start, loop)  # after the other requests that have already arrived
        elif self._patience is not None and len(self._waiting) >= self._enough:
            self._patience.cancel()
            self._start(loop)

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._patience = None
        batch: list[Question] = []
        n_rows, waiting = 0, self._waiting
        while waiting and (not batch or n_rows + waiting[0].n_rows <= MOST_ROWS):
            question = waiting.popleft()
            if question.deadline < time.monotonic():
                if not question.answer.done():
                    question.answer.set_exception(RequestError("The server is too busy; try again later.", 503))
                continue
            batch.append(question)
            n_rows += question.n_rows
        if not batch:
            self._busy = False
            return
        self._count_batch(len(batch), n_rows)
        loop.run_in_executor(self.executor, _answered, batch).add_done_callback(
            lambda done: self._finish(loop, batch, done)
        )

    def _finish(self, loop: asyncio.AbstractEventLoop, batch: list[Question], done: asyncio.Future[Any]) -> None:
        error = done.exception()
        results = [error] * len(batch) if error is not None else done.result()
        for question, result in zip(batch, results):
            if question.answer.done():  # the client has gone
                continue
            if isinstance(result, BaseException):
                question.answer.set_exception(result)
            else:
                question.answer.set_result(result)
        n_waiting = len(self._waiting)
        if n_waiting and 2 * n_waiting < len(batch):  # clients that were just answered ask again
            self._enough = (n_waiting + len(batch)) // 2
            self._patience = loop.call_later(PATIENCE, self._start, loop)
        else:
            self._start(loop)


def _answered(batch: list[Question]) -> list[bytes | BaseException]:
    """Return the answers, those with the same model and options in one call."""
    groups: dict[tuple[int, Options], list[int]] = {}
    for i, question in enumerate(batch):
        groups.setdefault((id(question.served), question.options), []).append(i)
    results: list[bytes | BaseException] = [b""] * len(batch)
    for members in groups.values():
        for i, result in zip(members, _answered_together([batch[i] for i in members])):
            results[i] = result
    return results


def _answered_together(questions: list[Question]) -> list[bytes | BaseException]:
    served, options = questions[0].served, questions[0].options
    try:
        version = served.version
        X = joined([question.inputs for question in questions], served.n_features)
        labels, scores = predictions(served.model, X, options)
    except Exception as error:
        if len(questions) == 1:
            return [RequestError(str(error)) if isinstance(error, ValueError) else error]
        return [result for question in questions for result in _answered_together([question])]
    results: list[bytes | BaseException] = []
    start = 0
    for question in questions:
        end = start + question.n_rows
        results.append(question.encode(served, version, labels[start:end], scores[start:end]))
        start = end
    return results


def predictions(model: Any, X: Any, options: Options) -> Answers:
    """Return the labels and probabilities of each row, best first."""
    everywhere = options.labels is None and options.exclude is None
    if options.threshold is not None and options.threshold >= LEAST_SEARCHED and everywhere:
        rows = [row[: options.k] for row in model.predict_above(X, options.threshold, scores=True)]
        return [[label for label, _ in row] for row in rows], [[score for _, score in row] for row in rows]
    chosen = {name: list(value) for name, value in options._asdict().items() if name in ("labels", "exclude") and value}
    found = model.predict_topk(X, options.k, **chosen)
    labels, scores = found.labels.tolist(), found.scores.tolist()
    if options.threshold is not None:
        scores = [[score for score in row if score >= options.threshold] for row in scores]
        labels = [row[: len(kept)] for row, kept in zip(labels, scores)]
    return labels, scores
