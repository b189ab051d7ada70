"""The log of examples: a SQLite file in which an example is on disk before it is acknowledged."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from treemax.serving.errors import RequestError

SCHEMA = """
CREATE TABLE IF NOT EXISTS examples (
    sequence INTEGER PRIMARY KEY, at REAL NOT NULL, input TEXT NOT NULL, labels TEXT NOT NULL,
    undone INTEGER NOT NULL DEFAULT 0);
CREATE TABLE IF NOT EXISTS outcomes (sequence INTEGER PRIMARY KEY, correct INTEGER, error TEXT);
CREATE TABLE IF NOT EXISTS changes (
    generation INTEGER PRIMARY KEY, at REAL NOT NULL, file TEXT, first INTEGER NOT NULL);
"""
LEARNED = "undone = 0 AND NOT EXISTS (SELECT 1 FROM outcomes WHERE outcomes.sequence = examples.sequence AND error IS NOT NULL)"
BUSY_SECONDS = 30.0
POINTS = 100  # number of points of the curve


class Example(NamedTuple):
    """An example of the log; `input` and `labels` are JSON."""

    sequence: int
    input: str
    labels: str


class Outcome(NamedTuple):
    """Whether the best label was right before the example was learned; None with an error: it could not be learned."""

    sequence: int
    correct: bool | None
    error: str | None = None


class Change(NamedTuple):
    """A change of what is to be learned.

    With a `file`: a new model file, which learns the examples from `first` on. Without: examples from `first` on were
    undone, so that snapshots that had learned them are void.
    """

    generation: int
    file: str | None
    first: int


class ExampleLog:
    """Examples in the order in which they are learned, what was undone, and the model files that learned them.

    Any number of processes and threads may use one log.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._local = threading.local()
        self._open: list[sqlite3.Connection] = []
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._writing() as connection:
            for statement in filter(str.strip, SCHEMA.split(";")):
                connection.execute(statement)

    def _connection(self) -> sqlite3.Connection:
        """Return the connection of this thread."""
        found: sqlite3.Connection | None = getattr(self._local, "connection", None)
        if found is None:
            found = sqlite3.connect(self.path, BUSY_SECONDS, isolation_level=None, check_same_thread=False)
            found.execute("PRAGMA journal_mode=WAL")
            found.execute("PRAGMA synchronous=FULL")  # an fsync for each commit
            self._local.connection = found
            self._open.append(found)
        return found

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """Context manager for a transaction, which is on disk at its end."""
        connection = self._connection()
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")

    def close(self) -> None:
        """Close all connections."""
        for connection in self._open:
            connection.close()
        self._open.clear()

    # --- writing --------------------------------------------------------------------------------------------

    def append(self, groups: list[list[tuple[str, str]]], outcomes: Iterable[Outcome] = ()) -> list[int]:
        """Append the examples of several requests in one transaction; return the last number of each."""
        with self._writing() as connection:
            last = self._last(connection)
            ends, rows, now = [], [], time.time()
            for group in groups:
                rows += [(last + i, now, *example) for i, example in enumerate(group, 1)]
                last += len(group)
                ends.append(last)
            connection.executemany("INSERT INTO examples (sequence, at, input, labels) VALUES (?, ?, ?, ?)", rows)
            connection.executemany("INSERT OR REPLACE INTO outcomes VALUES (?, ?, ?)", outcomes)
        return ends

    def undo(self, n: int) -> list[int]:
        """Mark the last n examples of the current model file as undone; return their numbers."""
        with self._writing() as connection:
            base = self._base(connection)
            found = connection.execute(
                "SELECT sequence FROM examples WHERE undone = 0 AND sequence >= ? ORDER BY sequence DESC LIMIT ?",
                (base.first, n),
            ).fetchall()
            if len(found) < n:
                raise RequestError(f"There are {len(found):,} examples to undo, not {n:,}.", 409)
            numbers = sorted(number for (number,) in found)
            generation = self._add_change(connection, None, numbers[0])
            connection.executemany(
                "UPDATE examples SET undone = ? WHERE sequence = ?", [(generation, i) for i in numbers]
            )
        return numbers

    def start_file(self, fingerprint: str) -> None:
        """Record that a model file is served from now on, and learns the examples from now on, unless it is already."""
        if self._is_current(self._connection(), fingerprint):
            return
        with self._writing() as connection:
            if not self._is_current(connection, fingerprint):
                self._add_change(connection, fingerprint, self._last(connection) + 1)

    def _is_current(self, connection: sqlite3.Connection, fingerprint: str) -> bool:
        found = connection.execute("SELECT file FROM changes WHERE file IS NOT NULL ORDER BY generation DESC LIMIT 1")
        return found.fetchone() == (fingerprint,)

    def _add_change(self, connection: sqlite3.Connection, file: str | None, first: int) -> int:
        generation: int = connection.execute("SELECT COALESCE(MAX(generation), 0) + 1 FROM changes").fetchone()[0]
        connection.execute("INSERT INTO changes VALUES (?, ?, ?, ?)", (generation, time.time(), file, first))
        return generation

    # --- reading --------------------------------------------------------------------------------------------

    @staticmethod
    def _last(connection: sqlite3.Connection) -> int:
        last: int = connection.execute("SELECT COALESCE(MAX(sequence), 0) FROM examples").fetchone()[0]
        return last

    @staticmethod
    def _base(connection: sqlite3.Connection) -> Change:
        statement = (
            "SELECT generation, file, first FROM changes WHERE file IS NOT NULL ORDER BY generation DESC LIMIT 1"
        )
        return Change(*connection.execute(statement).fetchone())

    def last(self) -> int:
        """Return the number of the last example."""
        return self._last(self._connection())

    def last_outcome(self) -> int:
        """Return the number of the last example with an outcome."""
        found: int = self._connection().execute("SELECT COALESCE(MAX(sequence), 0) FROM outcomes").fetchone()[0]
        return found

    def changes(self) -> list[Change]:
        """Return the current model file, and what was undone since, in order."""
        connection = self._connection()
        base = self._base(connection)
        rows = connection.execute(
            "SELECT generation, file, first FROM changes WHERE generation > ? ORDER BY generation", (base.generation,)
        )
        return [base, *(Change(*row) for row in rows)]

    def generation(self) -> int:
        """Return the number of the last change."""
        found: int = self._connection().execute("SELECT COALESCE(MAX(generation), 0) FROM changes").fetchone()[0]
        return found

    def next_examples(self, after: int, limit: int, generation: int) -> list[Example] | None:
        """Return the next examples that were not undone; None if there was a change after this generation."""
        connection = self._connection()
        connection.execute("BEGIN")  # one state of the log for both statements
        try:
            if self.generation() != generation:
                return None
            rows = connection.execute(
                f"SELECT sequence, input, labels FROM examples WHERE sequence > ? AND {LEARNED} ORDER BY sequence LIMIT ?",
                (after, limit),
            )
            return [Example(*row) for row in rows]
        finally:
            connection.execute("COMMIT")

    def entries(self, after: int, limit: int) -> list[dict[str, Any]]:
        """Return examples as they are shown, undone ones too."""
        rows = self._connection().execute(
            "SELECT e.sequence, at, input, labels, undone, correct, error FROM examples e "
            "LEFT JOIN outcomes o ON o.sequence = e.sequence WHERE e.sequence > ? ORDER BY e.sequence LIMIT ?",
            (after, limit),
        )
        return [
            {
                "sequence": sequence,
                "at": at,
                **_features(json.loads(given)),
                "labels": json.loads(labels),
                "undone": bool(undone),
                "correct": None if correct is None else bool(correct),
                **({} if error is None else {"error": error}),
            }
            for sequence, at, given, labels, undone, correct, error in rows
        ]

    def export(self, after: int, limit: int) -> tuple[int, bytes]:
        """Return examples that were not undone as JSON lines, as `treemax fit` reads them, and the last number."""
        rows = self._connection().execute(
            f"SELECT sequence, input, labels FROM examples WHERE sequence > ? AND {LEARNED} ORDER BY sequence LIMIT ?",
            (after, limit),
        ).fetchall()  # fmt: skip
        lines = [
            json.dumps({**_features(json.loads(given)), "labels": json.loads(labels)}, ensure_ascii=False)
            for _, given, labels in rows
        ]
        return (rows[-1][0] if rows else after), "".join(line + "\n" for line in lines).encode()

    def progress(self) -> dict[str, Any]:
        """Return the share of examples whose label was predicted before it was learned, over the log."""
        connection = self._connection()
        known = "FROM outcomes o JOIN examples e USING (sequence) WHERE undone = 0 AND correct IS NOT NULL"
        n, right, first, last = connection.execute(
            f"SELECT COUNT(*), SUM(correct), MIN(sequence), MAX(sequence) {known}"
        ).fetchone()
        points, n_before, right_before = [], 0, 0
        if n:
            rows = connection.execute(
                f"SELECT MAX(sequence), COUNT(*), SUM(correct) {known} GROUP BY (sequence - ?) * ? / ?",
                (first, POINTS, last - first + 1),
            )
            for sequence, n_own, right_own in rows:
                n_before, right_before = n_before + n_own, right_before + right_own
                points.append({
                    "sequence": sequence,
                    "n": n_before,
                    "accuracy": right_before / n_before,
                    "recent": right_own / n_own,
                })  # fmt: skip
        return {"n": n, "accuracy": right / n if n else None, "points": points}


def _features(given: Any) -> dict[str, Any]:
    """Return the input of an example under the name that JSON lines have for it."""
    return {"text": given} if isinstance(given, str) else {"features": given}
