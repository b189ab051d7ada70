"""Batching of prediction requests: those that arrive while the model is busy are predicted in one call."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from treemax.serving.errors import RequestError
from treemax.serving.request_bodies import Inputs, Options, joined
from treemax.serving.served_model import ServedModel

MOST_ROWS = 512  # predicted in one call
LARGE = 64  # rows of a request from which it has a queue of its own, so that small ones do not wait for it
WAIT_SECONDS = 0.001  # seconds to wait for more requests after a larger batch
LEAST_SEARCHED = 0.01  # below this threshold only the best labels are searched, since all labels would be too many

Answers = tuple[list[list[Any]], list[list[float]]]
Encode = Callable[[ServedModel, str, list[list[Any]], list[list[float]]], bytes]


class PendingRequest(NamedTuple):
    """A queued request: its rows and options, and how to encode the response."""

    served: ServedModel
    inputs: Inputs
    n_rows: int
    options: Options
    encode: Encode
    deadline: float
    answer: asyncio.Future[bytes]


class Batcher:
    """Predicts in threads: at once while the queue is idle, else in one batch with all queued requests.

    Kernels release the GIL, so that the event loop reads other requests meanwhile.
    """

    def __init__(self, count_batch: Callable[[int, int], None]) -> None:
        self._queues = [_Queue(count_batch), _Queue(count_batch)]

    def submit(
        self, served: ServedModel, inputs: Inputs, n_rows: int, options: Options, encode: Encode, seconds: float
    ) -> asyncio.Future[bytes]:
        """Queue a request; return the future of its encoded response."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bytes] = loop.create_future()
        request = PendingRequest(served, inputs, n_rows, options, encode, time.monotonic() + seconds, answer)
        self._queues[n_rows > LARGE].add(request, loop)
        return answer

    def close(self) -> None:
        """Wait until the last batches are done."""
        for queue in self._queues:
            queue.executor.shutdown()


class _Queue:
    """A queue of requests and its thread."""

    def __init__(self, count_batch: Callable[[int, int], None]) -> None:
        self.executor = ThreadPoolExecutor(1, "treemax-answers")
        self._count_batch = count_batch
        self._waiting: deque[PendingRequest] = deque()
        self._busy = False
        self._timer: asyncio.TimerHandle | None = None  # while more requests are awaited
        self._enough = 0

    def add(self, request: PendingRequest, loop: asyncio.AbstractEventLoop) -> None:
        self._waiting.append(request)
        if not self._busy:
            self._busy = True
            loop.call_soon(self._start, loop)  # after the other requests that have already arrived
        elif self._timer is not None and len(self._waiting) >= self._enough:
            self._timer.cancel()
            self._start(loop)

    def _start(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        batch: list[PendingRequest] = []
        n_rows, waiting = 0, self._waiting
        while waiting and (not batch or n_rows + waiting[0].n_rows <= MOST_ROWS):
            request = waiting.popleft()
            if request.deadline < time.monotonic():
                if not request.answer.done():
                    request.answer.set_exception(RequestError("The server is too busy; try again later.", 503))
                continue
            batch.append(request)
            n_rows += request.n_rows
        if not batch:
            self._busy = False
            return
        self._count_batch(len(batch), n_rows)
        loop.run_in_executor(self.executor, _predict_batch, batch).add_done_callback(
            lambda done: self._finish(loop, batch, done)
        )

    def _finish(self, loop: asyncio.AbstractEventLoop, batch: list[PendingRequest], done: asyncio.Future[Any]) -> None:
        error = done.exception()
        results = [error] * len(batch) if error is not None else done.result()
        for request, result in zip(batch, results):
            if request.answer.done():  # the client has disconnected
                continue
            if isinstance(result, BaseException):
                request.answer.set_exception(result)
            else:
                request.answer.set_result(result)
        n_waiting = len(self._waiting)
        if n_waiting and 2 * n_waiting < len(batch):  # clients send their next request after a response
            self._enough = (n_waiting + len(batch)) // 2
            self._timer = loop.call_later(WAIT_SECONDS, self._start, loop)
        else:
            self._start(loop)


def _predict_batch(batch: list[PendingRequest]) -> list[bytes | BaseException]:
    """Return the encoded responses; requests with the same model and options are predicted in one call."""
    groups: dict[tuple[int, Options], list[int]] = {}
    for i, request in enumerate(batch):
        groups.setdefault((id(request.served), request.options), []).append(i)
    results: list[bytes | BaseException] = [b""] * len(batch)
    for members in groups.values():
        for i, result in zip(members, _predict_group([batch[i] for i in members])):
            results[i] = result
    return results


def _predict_group(requests: list[PendingRequest]) -> list[bytes | BaseException]:
    served, options = requests[0].served, requests[0].options
    try:
        version = served.version
        X = joined([request.inputs for request in requests], served.n_features)
        labels, scores = predictions(served.model, X, options)
    except Exception as error:
        if len(requests) == 1:
            return [RequestError(str(error)) if isinstance(error, ValueError) else error]
        return [result for request in requests for result in _predict_group([request])]
    results: list[bytes | BaseException] = []
    start = 0
    for request in requests:
        end = start + request.n_rows
        results.append(request.encode(served, version, labels[start:end], scores[start:end]))
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
