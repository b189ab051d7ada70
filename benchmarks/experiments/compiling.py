"""What first trainings and predictions compile, and how long it takes, in processor seconds:
`python -m benchmarks.experiments.compiling [CASE ...]`.

Processes with an empty cache of kernels, in one thread, train on texts of WordNet and predict a hundred. Cases take turns; each
keeps its best of three runs. One more process attributes the time of `LabelTree` to kernels.
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

from benchmarks.harness.output import help_if_asked, number, store, table

REPEATS = 3
CASES = {
    "one": "LabelTree",
    "several": "LabelTree, several labels per row",
    "three": "LabelTree, three trees",
    "texts": "TextModel",
    "online": "OnlineLabelTree, partial_fit",
    "recall": "RecallTree",
}
ROWS, STREAM_ROWS, TEST_ROWS = 20_000, 1_000, 100
SHOWN = 20  # kernels
MACHINE = (
    "one core of a two-core x86-64 machine (AMD EPYC, AVX-512), shared with much other work, which makes it slower"
)
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


def seconds_of(case: str, stages: StageTimes | None) -> tuple[float, float]:
    """Return the processor seconds of a training and prediction in this process, and of the same again."""
    import treemax
    from treemax.datasets import load_wordnet

    if stages is not None:
        stages.install()
    train, test = load_wordnet()
    n_rows = STREAM_ROWS if case == "online" else ROWS
    X: Any = train.texts[:n_rows]
    y: Any = list(train.y[:n_rows])
    X_test: Any = test.texts[:TEST_ROWS]
    if case != "texts":  # features without a kernel of ours
        from sklearn.feature_extraction.text import TfidfVectorizer

        vectorizer = TfidfVectorizer(sublinear_tf=True)
        X, X_test = vectorizer.fit_transform(X), vectorizer.transform(X_test)
    if case == "several":
        y = [[label, label.split(":")[0]] for label in y]
    kind = {"online": treemax.OnlineLabelTree, "recall": treemax.RecallTree}.get(case, treemax.LabelTree)
    settings: dict[str, Any] = {"n_trees": 3} if case == "three" else {}

    def run() -> float:
        start = time.process_time()
        model: Any = kind(random_state=0, n_jobs=1, verbose=0, **settings)
        model = treemax.TextModel(treemax.TfidfText(), model) if case == "texts" else model
        (model.partial_fit if case == "online" else model.fit)(X, y)
        model.predict(X_test)
        return time.process_time() - start

    return run(), run()


def measure_here(case: str, in_detail: bool) -> None:
    """Print the seconds of this process, and those of the stages of each kernel, as JSON."""
    stages = StageTimes() if in_detail else None
    seconds = seconds_of(case, stages)
    kernels = [] if stages is None else [[k, stages.versions[k], *s.values()] for k, s in stages.seconds.items()]
    print(json.dumps([*seconds, kernels]))


def measured(case: str, in_detail: bool = False) -> tuple[float, float, list[list[Any]]]:
    """Return what a process with an empty cache of kernels measures."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.experiments.compiling", "--one", case, *["detail"] * in_detail]
        environment = {**os.environ, "NUMBA_CACHE_DIR": folder}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    first, again, kernels = json.loads(done.stdout)
    return first, again, kernels


def main() -> None:
    help_if_asked(__doc__)
    if sys.argv[1:2] == ["--one"]:
        measure_here(sys.argv[2], "detail" in sys.argv[3:])
        return
    cases = sys.argv[1:] or list(CASES)
    best: dict[str, tuple[float, float]] = {}
    for _ in range(REPEATS):
        for case in cases:
            found = measured(case)[:2]
            best[case] = min(best.get(case, found), found)
            print(case, found, file=sys.stderr, flush=True)
    publish_first_uses(best)
    if "one" in cases:
        publish_kernels(measured("one", in_detail=True)[2])


def publish_first_uses(best: dict[str, tuple[float, float]]) -> None:
    """Print and store the seconds of each case."""
    rows: list[list[Any]] = [[CASES[case], first, again] for case, (first, again) in best.items()]
    print(table(["model", "first use", "again"], [[row[0], *map(number, row[1:])] for row in rows]))
    store(
        "systems",
        "first-use",
        title="The first training and prediction",
        shows=f"Processor seconds, best of {REPEATS}, of a training on {ROWS:,} texts of WordNet as tf-idf ({STREAM_ROWS:,} for "
        f"`partial_fit`) and of `predict` for {TEST_ROWS}, in one thread: in a process with an empty cache of kernels, where "
        "nearly all is compiling, and the same again. `TextModel` also computes the features.",
        columns=["model", {"name": "first use", "decimals": 1}, {"name": "again", "decimals": 2}],
        rows=rows,
        machine=MACHINE,
    )


def publish_kernels(kernels: list[list[Any]]) -> None:
    """Print and store the seconds of the kernels that take longest."""
    kernels.sort(key=lambda kernel: -sum(kernel[2:]))
    rest = [sum(column) for column in zip(*[kernel[1:] for kernel in kernels[SHOWN:]])]
    rows: list[list[Any]] = []
    for name, versions, *seconds in [*kernels[:SHOWN], ["others", *rest]]:
        rows.append([name, int(versions), *seconds, sum(seconds)])
    print(table(["kernel", "versions", *STAGES, "s"], [[row[0], *map(number, row[1:])] for row in rows]))
    store(
        "systems",
        "compiling",
        title="Compiling by kernel",
        shows="What the first training and prediction of a `LabelTree` compiles: the functions that take longest, in processor "
        "seconds, in one run, which measuring makes slower.",
        columns=["kernel", "versions", *[{"name": name, "decimals": 2} for name in (*STAGES, "seconds")]],
        rows=rows,
        machine=MACHINE,
    )


if __name__ == "__main__":
    main()
