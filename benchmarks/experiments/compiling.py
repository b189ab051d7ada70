"""What a first training and prediction of `LabelTree` compiles, and how long each kernel takes, in processor seconds:
`python -m benchmarks.experiments.compiling`.

A process with an empty cache of kernels, in one thread, fits sparse rows of 2,000 classes, with one label a row or two,
and ranks five labels for a hundred rows. Processes take turns; each case keeps its best time. One more process attributes
the time to kernels.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

from benchmarks.harness.output import help_if_asked, number, store, table

REPEATS = 5
CASES = {"one": "one label a row", "two": "two labels a row"}
N_CLASSES, ROWS_A_CLASS, WORDS = 2_000, 2, 5
SHOWN = 20  # kernels
STAGES = ("types", "lowering", "LLVM", "other")


class StageTimes:
    """Processor seconds of the stages of every kernel, without those of the kernels compiled in between."""

    def __init__(self) -> None:
        self.seconds: dict[str, dict[str, float]] = defaultdict(lambda: dict.fromkeys(STAGES, 0.0))
        self.versions: dict[str, int] = defaultdict(int)
        self._running: list[float] = []  # seconds of the stages inside of each running one
        self._kernels: list[str] = []

    @contextmanager
    def _measured(self, stage: str) -> Iterator[None]:
        self._running.append(0.0)
        start = time.process_time()
        try:
            yield
        finally:
            spent = time.process_time() - start
            self.seconds[self._kernels[-1]][stage] += spent - self._running.pop()
            if self._running:
                self._running[-1] += spent

    def _measure(self, owner: type, method: str, stage: str) -> None:
        original: Callable[..., Any] = getattr(owner, method)

        def measured(*arguments: Any, **named: Any) -> Any:
            if not self._kernels:
                return original(*arguments, **named)
            with self._measured(stage):
                return original(*arguments, **named)

        setattr(owner, method, measured)

    def install(self) -> None:
        """Measure all that Numba compiles from now on."""
        from numba.core.codegen import CPUCodeLibrary
        from numba.core.compiler import CompilerBase
        from numba.core.typed_passes import NativeLowering, NopythonTypeInference

        self._measure(NopythonTypeInference, "run_pass", "types")
        self._measure(NativeLowering, "run_pass", "lowering")
        self._measure(CPUCodeLibrary, "add_ir_module", "LLVM")
        self._measure(CPUCodeLibrary, "finalize", "LLVM")
        compile_extra = CompilerBase.compile_extra

        def compiled(compiler: Any, function: Any) -> Any:
            name = f"{function.__module__.removeprefix('treemax.')}.{function.__name__}"
            self.versions[name] += 1
            self._kernels.append(name)
            try:
                with self._measured("other"):
                    return compile_extra(compiler, function)
            finally:
                self._kernels.pop()

        CompilerBase.compile_extra = compiled


def fit_and_predict(case: str, stages: StageTimes | None) -> float:
    """Return the processor seconds of a training and prediction in this process."""
    from treemax import LabelTree

    if stages is not None:
        stages.install()
    labels = np.repeat(np.arange(N_CLASSES), ROWS_A_CLASS)
    words = (labels[:, np.newaxis] + np.arange(WORDS)) % N_CLASSES
    starts = np.arange(0, words.size + 1, WORDS)
    X = csr_matrix((np.ones(words.size, dtype=np.float32), words.ravel(), starts))
    y: Any = labels.astype(str) if case == "one" else [[str(label), str(label // 2)] for label in labels]
    start = time.process_time()
    LabelTree(random_state=0, n_jobs=1, verbose=0).fit(X, y).predict_topk(X[:100], 5)
    return time.process_time() - start


def measure_here(case: str, in_detail: bool) -> None:
    """Print the seconds of this process, and those of the stages of each kernel, as JSON."""
    stages = StageTimes() if in_detail else None
    seconds = fit_and_predict(case, stages)
    kernels = [] if stages is None else [[k, stages.versions[k], *s.values()] for k, s in stages.seconds.items()]
    print(json.dumps([seconds, kernels]))


def measured(case: str, in_detail: bool = False) -> tuple[float, list[list[Any]]]:
    """Return what a process with an empty cache of kernels measures."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.experiments.compiling", case, *["detail"] * in_detail]
        environment = {**os.environ, "NUMBA_CACHE_DIR": folder}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    seconds, kernels = json.loads(done.stdout)
    return seconds, kernels


def main() -> None:
    help_if_asked(__doc__)
    if sys.argv[1:]:
        measure_here(sys.argv[1], "detail" in sys.argv[2:])
        return
    best = dict.fromkeys(CASES, float("inf"))
    for _ in range(REPEATS):
        for case in CASES:
            best[case] = min(best[case], measured(case)[0])
    _, kernels = measured("one", in_detail=True)
    kernels.sort(key=lambda kernel: -sum(kernel[2:]))
    rest = np.array([kernel[1:] for kernel in kernels[SHOWN:]]).sum(axis=0).tolist()
    rows: list[list[Any]] = [[f"all, {CASES[case]}", None, *[None] * 4, seconds] for case, seconds in best.items()]
    for name, versions, *seconds in [*kernels[:SHOWN], ["others", *rest]]:
        rows.append([name, int(versions), *seconds, sum(seconds)])
    cells = [[row[0], *("" if cell is None else number(cell) for cell in row[1:])] for row in rows]
    print(table(["kernel", "versions", *STAGES, "s"], cells))
    store(
        "systems",
        "compiling",
        title="The first training and prediction",
        shows=f"Processor seconds, best of {REPEATS}, of `fit` and `predict_topk` of a `LabelTree` in a process with an empty "
        "cache of kernels, in one thread, on sparse rows of 2,000 classes: nearly all is compiling. Then the kernels that "
        "take longest, once, with one label a row.",
        columns=["kernel", "versions", *[{"name": name, "decimals": 2} for name in (*STAGES, "seconds")]],
        rows=rows,
    )


if __name__ == "__main__":
    main()
