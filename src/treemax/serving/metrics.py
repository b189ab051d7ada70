"""Counters in the text format of Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from typing import Any

from treemax.memory import used_bytes

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 5.0)


class Metrics:
    """Counters of one worker since its start."""

    def __init__(self, worker: int) -> None:
        self.worker = worker
        self.in_flight = 0
        self.batches = self.batched_requests = self.batched_rows = 0
        self._requests: dict[tuple[str, int], int] = {}
        self._seconds: dict[str, list[int]] = {}
        self._total: dict[str, float] = {}

    def count_request(self, path: str, status: int, seconds: float) -> None:
        """Count a completed request."""
        key = path, status
        self._requests[key] = self._requests.get(key, 0) + 1
        if path not in self._seconds:
            self._seconds[path], self._total[path] = [0] * (len(SECONDS) + 1), 0.0
        self._seconds[path][bisect_left(SECONDS, seconds)] += 1
        self._total[path] += seconds

    def count_batch(self, requests: int, rows: int) -> None:
        """Count a batch of requests."""
        self.batches += 1
        self.batched_requests += requests
        self.batched_rows += rows

    def text(self, models: list[dict[str, Any]], logs: dict[str, dict[str, Any]]) -> str:
        """Return all counters; models are those of /models, logs have the numbers of examples."""
        out: list[str] = []
        self._add(out, "requests_total", "counter", "Requests by path and status.", [
            ({"path": path, "status": status}, count) for (path, status), count in sorted(self._requests.items())
        ])  # fmt: skip
        name = "request_seconds"
        out += [f"# HELP treemax_{name} Time to answer.", f"# TYPE treemax_{name} histogram"]
        for path, counts in sorted(self._seconds.items()):
            below = 0
            for bound, count in zip((*map(str, SECONDS), "+Inf"), counts):
                below += count
                out.append(self._line(f"{name}_bucket", {"path": path, "le": bound}, below))
            out.append(self._line(f"{name}_sum", {"path": path}, self._total[path]))
            out.append(self._line(f"{name}_count", {"path": path}, below))
        for name, kind, what, value in (
            ("requests_in_flight", "gauge", "Requests that are being answered.", self.in_flight),
            ("batches_total", "counter", "Calls of a model.", self.batches),
            ("batched_requests_total", "counter", "Requests in these calls.", self.batched_requests),
            ("rows_total", "counter", "Rows in these calls.", self.batched_rows),
            ("resident_bytes", "gauge", "Memory of the worker, with files that are mapped.", used_bytes()),
        ):
            self._add(out, name, kind, what, [({}, value)])
        self._add(out, "labels", "gauge", "Labels of each model.", [
            ({"model": each["name"], "version": each["version"]}, each["n_labels"]) for each in models
        ])  # fmt: skip
        for name, what in (
            ("logged", "Examples in the log."),
            ("learned", "Number of the last example that was learned."),
        ):
            self._add(
                out, f"examples_{name}", "gauge", what, [({"model": model}, log[name]) for model, log in logs.items()]
            )
        return "\n".join(out) + "\n"

    def _add(self, out: list[str], name: str, kind: str, what: str, values: list[tuple[dict[str, Any], float]]) -> None:
        if values:
            out += [f"# HELP treemax_{name} {what}", f"# TYPE treemax_{name} {kind}"]
            out += [self._line(name, labels, value) for labels, value in values]

    def _line(self, name: str, labels: dict[str, Any], value: float) -> str:
        pairs = ",".join(f'{key}="{_escaped(str(text))}"' for key, text in {"worker": self.worker, **labels}.items())
        return f"treemax_{name}{{{pairs}}} {value:.9g}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
