"""A model that learns from the log of examples: one process learns, in order, and writes snapshots for the others.

The model is always what its file gives, with one `partial_fit` for each example of the log that was not undone, in
order. A snapshot is a model file to resume from; its name has the generation of the log and the number of the last
example that it has learned. After a crash, or when examples are undone, the model is restored from the last valid
snapshot and learns the rest of the log again.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import treemax
from treemax.replacing import lock_folder
from treemax.serving.example_log import Change, Example, ExampleLog, Outcome
from treemax.serving.log_writer import LogWriter
from treemax.serving.model_files import LoadedFile, WatchedModel, copy_of, load_copy, remove_copies
from treemax.serving.request_bodies import Inputs, joined, read_vectors
from treemax.serving.served_model import ServedModel

log = logging.getLogger("treemax.serve")

AT_ONCE = 256  # examples read from the log at a time
POLL_SECONDS = 0.2  # interval at which the log is checked for examples of other workers
WAIT_SECONDS = 2.0  # for which an acknowledgement waits until the example is learned
SNAPSHOT_SECONDS = 60.0  # between snapshots, or
SHARED_SNAPSHOT_SECONDS = 1.0  # with several workers, which answer from them
SNAPSHOT_SHARE = 0.1  # maximum fraction of the time spent on writing snapshots
KEPT_BEHIND = (0, 100, 1000, 10_000, 100_000)  # examples by which snapshots that are kept are older than the newest
_SNAPSHOT = re.compile(r"snapshot-(\d{8})-(\d{12})\.treemax")


class _NotLearned(Exception):
    """Raised if an example cannot be learned; the log records it, and the model is restored, since it may have changed."""


class Snapshot(NamedTuple):
    """A snapshot file, of a generation of the log, which has learned the examples up to `sequence`."""

    sequence: int
    generation: int
    path: Path


def snapshots(folder: Path) -> Iterator[Snapshot]:
    """Yield the snapshots of a folder."""
    for path in folder.glob("snapshot-*.treemax"):
        found = _SNAPSHOT.fullmatch(path.name)
        if found is not None:
            yield Snapshot(int(found[2]), int(found[1]), path)


def valid_snapshots(folder: Path, changes: list[Change]) -> list[Snapshot]:
    """Return the snapshots of the current model file without examples that were undone later, newest first."""

    def is_valid(snapshot: Snapshot) -> bool:
        if snapshot.generation < changes[0].generation:
            return False
        return all(
            snapshot.sequence < change.first for change in changes[1:] if change.generation > snapshot.generation
        )

    return sorted(filter(is_valid, snapshots(folder)), reverse=True)


class LearningModel(WatchedModel):
    """A model that learns from requests.

    The process that holds the lock of the folder learns; others answer from its snapshots, and take over when it ends.
    """

    def __init__(self, name: str, path: Path, folder: Path, loaded: LoadedFile, shared: bool = False) -> None:
        super().__init__(name, path, folder, loaded)
        self._learning_error: str | None = None
        self.learned_until = 0
        self.examples = ExampleLog(folder / "log.sqlite")
        self._snapshot_seconds = SHARED_SNAPSHOT_SECONDS if shared else SNAPSHOT_SECONDS
        self.examples.start_file(self.served.fingerprint)
        self.writer = LogWriter(self.examples)
        self._stop, self._wake = threading.Event(), threading.Event()
        self._waiting: list[tuple[int, asyncio.AbstractEventLoop, asyncio.Future[bool]]] = []
        self._waiting_lock = threading.Lock()
        self._release: Callable[[], None] | None = None
        self._generation = 0
        self._unchanged: ServedModel | None = self.served  # as loaded: it has learned nothing
        self.served.warm_up_learning()
        self._become_learner()
        while self.is_learner and self._generation == 0:
            with contextlib.suppress(_NotLearned):
                self._restore()
        if not self.is_learner:
            self._load_newest_snapshot()
        self._thread = threading.Thread(target=self._run, name="treemax-learner", daemon=True)
        self._thread.start()

    @property
    def is_learner(self) -> bool:
        """Whether this process learns."""
        return self._release is not None

    @property
    def problem(self) -> str | None:
        """The error that /health reports."""
        return self.error or self._learning_error or self.writer.error

    def _become_learner(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._release = lock_folder(self.folder)

    # --- the learner ----------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                if self.is_learner:
                    self._learn_and_wait()
                else:
                    self._become_learner()
                    if self.is_learner:
                        self._restore()
                    else:
                        self._load_newest_snapshot()
                        self._stop.wait(1.0)
            except _NotLearned:
                self._generation = 0
            except Exception as error:
                self._learning_error = f"learning failed: {error}"
                log.exception("%s: learning failed", self.name)
                self._stop.wait(5.0)
                self._generation = 0  # restore, and try again

    def _learn_and_wait(self) -> None:
        self._wake.clear()
        found = (
            None
            if self._generation == 0
            else self.examples.next_examples(self.learned_until, AT_ONCE, self._generation)
        )
        if found is None:
            self._restore()
            return
        self._learn(self.served, found)
        if self._snapshot_is_due():
            self._write_snapshot()
        if len(found) < AT_ONCE:
            self._wake.wait(POLL_SECONDS)

    def _restore(self) -> None:
        """Load the last valid snapshot and learn what follows; the model before is served meanwhile."""
        changes = self.examples.changes()
        generation = changes[-1].generation
        served, start = self._last_valid(changes)
        self._last_snapshot = served.sequence
        self._snapshot_at, self._snapshot_took = time.monotonic(), 0.0
        scored = self.examples.last_outcome()
        while found := self.examples.next_examples(served.sequence, AT_ONCE, generation):
            self._learn(served, found, scored)
            if self._stop.is_set():
                return
        if found is None:  # there was a change meanwhile
            return
        self.served, self._generation, self._learning_error = served, generation, None
        self._set_learned(served.sequence)
        remove_copies(self.folder, {changes[0].file or ""})
        self._remove_snapshots()
        log.info("%s: restored from example %d, learned until %d", self.name, start, served.sequence)

    def _last_valid(self, changes: list[Change]) -> tuple[ServedModel, int]:
        base, unchanged = changes[0], self._unchanged
        self._unchanged = None  # it may learn from now on
        assert base.file is not None
        for snapshot in valid_snapshots(self.folder, changes):
            try:
                served = ServedModel(self.name, treemax.load(snapshot.path), base.file, True, snapshot.sequence)
                return served, snapshot.sequence
            except (ValueError, OSError) as error:
                log.error("%s: %s cannot be used, an older one is: %s", self.name, snapshot.path, error)
        if unchanged is not None and unchanged.fingerprint == base.file:
            model = unchanged.model
        else:
            model = treemax.load(copy_of(self.folder, base.file))
        return ServedModel(self.name, model, base.file, True, base.first - 1), base.first - 1

    def _learn(self, served: ServedModel, examples: list[Example], scored: int = 0) -> None:
        """Learn examples in order; before each, predict it, unless that was done before a restart."""
        outcomes = []
        for example in examples:
            if self._stop.is_set():
                break
            outcome = learn(served, example, predict=example.sequence > scored)
            if outcome is not None:
                outcomes.append(outcome)
                if outcome.error is not None:
                    log.error("%s: example %d cannot be learned: %s", self.name, example.sequence, outcome.error)
                    self.writer.add_outcomes(outcomes, flush=True)
                    raise _NotLearned
            served.sequence = example.sequence
            if served is self.served:
                self._set_learned(example.sequence)
        self.writer.add_outcomes(outcomes)

    def _snapshot_is_due(self) -> bool:
        elapsed = time.monotonic() - self._snapshot_at
        wanted = max(self._snapshot_seconds, self._snapshot_took / SNAPSHOT_SHARE)
        return self.learned_until > self._last_snapshot and elapsed > wanted

    def _write_snapshot(self) -> None:
        """Write a snapshot of the model; its name has the number of the last example learned."""
        start = time.monotonic()
        self.writer.add_outcomes([], flush=True)
        sequence = self.served.sequence
        self.served.model.save(self.folder / f"snapshot-{self._generation:08d}-{sequence:012d}.treemax", resume=True)
        self._last_snapshot = sequence
        self._snapshot_at = time.monotonic()
        self._snapshot_took = self._snapshot_at - start
        self._remove_snapshots()

    def _remove_snapshots(self) -> None:
        """Keep the newest snapshot and a few older ones, to undo examples without learning the whole log again."""
        valid = valid_snapshots(self.folder, self.examples.changes())
        kept = {
            next((each.path for each in valid if each.sequence <= valid[0].sequence - behind), None)
            for behind in KEPT_BEHIND
            if valid
        }
        for snapshot in snapshots(self.folder):
            if snapshot.path not in kept:
                with contextlib.suppress(OSError):
                    snapshot.path.unlink()

    # --- other workers --------------------------------------------------------------------------------------

    def _load_newest_snapshot(self) -> None:
        """Serve the newest snapshot of the learning process."""
        changes = self.examples.changes()
        newest = next(iter(valid_snapshots(self.folder, changes)), None)
        sequence = changes[0].first - 1 if newest is None else newest.sequence
        generation = changes[-1].generation
        if (generation, sequence) != (self._generation, self.served.sequence):
            self.served, _ = self._last_valid(changes)
            self._generation = generation
        self.learned_until = self.served.sequence

    # --- requests -------------------------------------------------------------------------------------------

    async def append(self, examples: list[tuple[str, str]], wait: bool) -> tuple[int, bool]:
        """Return the number of the last example, once all are on disk, and whether they were learned too."""
        last = await self.writer.append(examples)
        self._wake.set()
        if not wait or not self.is_learner:
            return last, self.learned_until >= last
        learned = self._when_learned(last)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(learned, WAIT_SECONDS)
        return last, self.learned_until >= last

    def _when_learned(self, sequence: int) -> asyncio.Future[bool]:
        loop = asyncio.get_running_loop()
        learned: asyncio.Future[bool] = loop.create_future()
        with self._waiting_lock:
            if self.learned_until >= sequence:
                learned.set_result(True)
            else:
                self._waiting.append((sequence, loop, learned))
        return learned

    def _set_learned(self, sequence: int) -> None:
        with self._waiting_lock:
            self.learned_until = sequence
            ready = [each for each in self._waiting if each[0] <= sequence]
            if ready:
                self._waiting = [each for each in self._waiting if each[0] > sequence]
        for _, loop, learned in ready:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(_set_true, learned)

    def undo(self, n: int) -> list[int]:
        """Undo the last n examples; return their numbers. The model without them is served once it is restored."""
        numbers = self.examples.undo(n)
        self._wake.set()
        return numbers

    def wait_for_generation(self, seconds: float) -> bool:
        """Wait until the model has all changes of the log; return whether it has."""
        end, wanted = time.monotonic() + seconds, self.examples.generation()
        while self._generation < wanted and time.monotonic() < end:
            time.sleep(0.01)
        return self._generation >= wanted

    def _load(self) -> ServedModel:
        new = load_copy(self.name, self.path, self.folder, learns=True)
        if not new.learns:
            raise ValueError(f"{type(new.estimator).__name__} does not learn online; restart to serve it.")
        return new

    def _serve(self, new: ServedModel) -> None:
        """Let the learner restore the model from its new file; it learns what comes from now on."""
        self.examples.start_file(new.fingerprint)
        self._wake.set()

    def close(self) -> None:
        """Stop learning, and write a last snapshot."""
        self._stop.set()
        self._wake.set()
        self._thread.join()
        if self.is_learner and self._generation and self.learned_until > self._last_snapshot:
            self._write_snapshot()
        self.writer.close()
        self.examples.close()
        if self._release is not None:
            self._release()


def _set_true(learned: asyncio.Future[bool]) -> None:
    if not learned.done():
        learned.set_result(True)


def learn(served: ServedModel, example: Example, predict: bool = True) -> Outcome | None:
    """Learn one example; return whether its label was predicted before, or why it cannot be learned."""
    labels = json.loads(example.labels)
    try:
        X = row_of(served, json.loads(example.input))
        correct = None
        if predict and len(served.estimator.label_index_):
            correct = bool(served.model.predict_topk(X, 1).labels[0, 0] in labels)
        served.model.partial_fit(X, served.targets(labels))
    except (ValueError, MemoryError) as error:
        return Outcome(example.sequence, None, str(error))
    return Outcome(example.sequence, correct) if predict else None


def row_of(served: ServedModel, given: Any) -> Any:
    """Return the input of one example as X for the model."""
    inputs: Inputs = [given] if served.is_text else read_vectors([given], served)
    return joined([inputs], served.n_features)
