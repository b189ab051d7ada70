"""The time and memory of one answer, from the start of the process: `python -m benchmarks.experiments.startup`.

A label tree of the embedded WordNet data answers one line and `FEW_ROWS` lines of text, with `treemax.light` and with the
whole library, and fastText one line. The processes take turns, in one thread; each keeps its best time.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import treemax
from benchmarks.harness.environments import EnvironmentFailed, python_of
from benchmarks.harness.output import help_if_asked, number, store, table
from treemax.cli.few_rows import FEW_ROWS
from treemax.datasets import Split, load_wordnet

REPEATS = 9
WHOLE = ("--jobs", "1")  # an option that only the whole library has
MEASURES = """
import resource, subprocess, sys, time
start = time.perf_counter()
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
seconds = time.perf_counter() - start
print(seconds, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024, file=sys.stderr)
"""  # in a small process: the peak memory of a process is at least that of the one that started it
FASTTEXT_TRAINS = """
import sys, fasttext
fasttext.train_supervised(sys.argv[1], loss="hs", epoch=25, lr=0.5, thread=1, verbose=0).save_model(sys.argv[2])
"""
FASTTEXT_ANSWERS = """
import sys, fasttext
print(fasttext.load_model(sys.argv[1]).predict(open(sys.argv[2]).readline().strip(), k=5))
"""


def prepare(folder: Path, data: Split) -> dict[str, list[str]]:
    """Train the models; return the commands by name."""
    texts = data.test.texts or []
    for n in (1, FEW_ROWS):
        (folder / f"{n}.txt").write_text("".join(f"{text}\n" for text in texts[:n]))
    model, python = str(folder / "model.treemax"), sys.executable
    treemax.TextModel(estimator=treemax.LabelTree(verbose=0)).fit(data.train.texts, data.train.y).save(model)
    answer = [python, "-m", "treemax", "predict", model]
    commands = {
        "`import treemax`": [python, "-c", "import treemax"],
        "`import treemax.light`": [python, "-c", "import treemax.light"],
        "`treemax --help`": [python, "-m", "treemax", "--help"],
        "one line": [*answer, str(folder / "1.txt")],
        "one line, whole library": [*answer, str(folder / "1.txt"), *WHOLE],
        f"{FEW_ROWS} lines": [*answer, str(folder / f"{FEW_ROWS}.txt")],
        f"{FEW_ROWS} lines, whole library": [*answer, str(folder / f"{FEW_ROWS}.txt"), *WHOLE],
    }
    try:
        return commands | {"one line, fastText": prepare_fasttext(folder, data, python_of("fasttext"))}
    except EnvironmentFailed as failed:
        print(f"benchmarks: fastText {failed}", file=sys.stderr)
        return commands


def prepare_fasttext(folder: Path, data: Split, python: Path) -> list[str]:
    """Train fastText on the same texts; return the command of its answer."""
    lines = (f"__label__{label} {text}\n" for label, text in zip(data.train.y, data.train.texts or []))
    (folder / "train.txt").write_text("".join(lines))
    trained = [str(folder / "train.txt"), str(folder / "model.bin")]
    subprocess.run([str(python), "-c", FASTTEXT_TRAINS, *trained], check=True)
    return [str(python), "-c", FASTTEXT_ANSWERS, trained[1], str(folder / "1.txt")]


def measured(command: list[str]) -> tuple[float, float]:
    """The seconds of a process, and the megabytes that it takes at most."""
    done = subprocess.run([sys.executable, "-c", MEASURES, *command], capture_output=True, text=True, check=True)
    seconds, megabytes = map(float, done.stderr.split()[-2:])
    return seconds, megabytes


def main() -> None:
    help_if_asked(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        commands = prepare(Path(folder), load_wordnet())
        best: dict[str, tuple[float, float]] = {}
        for _ in range(REPEATS):
            for name, command in commands.items():
                found = measured(command)
                best[name] = min(best.get(name, found), found)
    rows = [[name, seconds, megabytes] for name, (seconds, megabytes) in best.items()]
    print(table(["process", "s", "MB"], [[name, number(seconds), number(mb)] for name, seconds, mb in rows]))
    store(
        "systems",
        "startup",
        title="The first answer of a process",
        shows="The whole process, best of nine: imports, a `LabelTree` of WordNet's 20,217 labels from its file, and the answers "
        "of `treemax predict`. Up to a hundred rows are answered without the imports of the whole library. fastText is "
        "its Python module, with the hierarchical softmax.",
        columns=["process", {"name": "seconds", "decimals": 2}, {"name": "peak MB", "decimals": 0}],
        rows=rows,
    )


if __name__ == "__main__":
    main()
