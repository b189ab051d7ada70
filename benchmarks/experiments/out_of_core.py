"""Training a label tree on data larger than memory, beside the same training in memory.

`python -m benchmarks.experiments.out_of_core [--megabytes 2000] [--memory 1GB] [--text hashing]` makes a text file of that size,
runs `treemax fit` on it twice, in memory and with `--memory`, and compares the two model files byte by byte. Peak
memory is what Linux says of each process (VmHWM, the maximum of its resident memory, libraries included); beside it is
the largest anonymous part of it that was seen while looking twenty times a second. `--limit` runs the
second under a hard limit of data memory (RLIMIT_DATA), where every allocation beyond it fails. `--control-group` puts it
into a control group of Linux, a folder that exists already; its limit, if it has one, holds for the files that the system keeps in memory
as well, so that what does not fit must be read from the disk again.

The data: each example belongs to a label of the embedded WordNet data, chosen as often as it has examples there, and
its text is twenty texts of that data one after the other, every second one of that label, the others of any.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from treemax.datasets import load_wordnet
from treemax.memory import parse_bytes

TEXTS = 20  # of WordNet in a text of the data
LOOK_SECONDS = 0.05


class Measured(NamedTuple):
    """What a training took."""

    way: str
    peak_mb: float
    anonymous_mb: float
    wall_seconds: float
    cpu_seconds: float
    model: Path


def examples(n_bytes: int, seed: int = 0) -> Iterator[bytes]:
    """Lines of a fastText file until there are so many bytes."""
    train, _ = load_wordnet()
    texts = [text.replace("\n", " ").encode() for text in train.texts]
    labels = [row[0] for row in train.labels]
    of_label: dict[object, list[int]] = {}
    for number, label in enumerate(labels):
        of_label.setdefault(label, []).append(number)
    rng, done = np.random.default_rng(seed), 0
    while done < n_bytes:
        numbers = rng.integers(0, len(texts), (1000, TEXTS))
        spread = rng.random((1000, TEXTS // 2))
        for row, share in zip(numbers, spread):
            label = labels[row[0]]
            own = of_label[label]
            row[::2] = [own[int(part * len(own))] for part in share]
            line = b"__label__%s %s\n" % (str(label).encode(), b" ".join(texts[number] for number in row))
            done += len(line)
            yield line


def write_data(path: Path, n_bytes: int) -> int:
    """Write the file; the number of its lines."""
    count = 0
    with path.open("wb", buffering=2**20) as file:
        for line in examples(n_bytes):
            file.write(line)
            count += 1
    return count


def measured(
    way: str, arguments: list[str], model: Path, limit: int | None = None, group: Path | None = None
) -> Measured:
    """Run `treemax fit` and watch it."""
    command = [sys.executable, "-m", "treemax", "fit", *arguments, "-o", str(model)]

    def limited() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
        if group is not None:
            (group / "cgroup.procs").write_text(str(os.getpid()))

    start = time.perf_counter()
    process = subprocess.Popen(command, preexec_fn=limited, stderr=subprocess.PIPE)
    peak = anonymous = 0
    while True:
        done, status, usage = os.wait4(process.pid, os.WNOHANG)
        if done:
            break
        peak, anonymous = max(peak, _kb("VmHWM", process.pid)), max(anonymous, _kb("RssAnon", process.pid))
        time.sleep(LOOK_SECONDS)
    assert process.stderr is not None
    message = process.stderr.read().decode()
    if os.waitstatus_to_exitcode(status):
        raise SystemExit(f"{way}: {message}")
    return Measured(
        way, peak * 1024 / 1e6, anonymous * 1024 / 1e6, time.perf_counter() - start, usage.ru_utime + usage.ru_stime, model
    )  # fmt: skip


def _kb(name: str, pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(name + ":")), 0)


def _table(results: list[Measured]) -> str:
    first = results[0]
    lines = [
        "| training | peak MB | of in memory | anonymous MB | wall s | CPU s | model MB | same file |",
        "|---|--:|--:|--:|--:|--:|--:|---|",
    ]
    for result in results:
        same = result.model.read_bytes() == first.model.read_bytes()
        lines.append(
            f"| {result.way} | {result.peak_mb:,.0f} | {result.peak_mb / first.peak_mb:.0%} | {result.anonymous_mb:,.0f} | "
            f"{result.wall_seconds:.0f} | {result.cpu_seconds:.0f} | {result.model.stat().st_size / 1e6:.1f} | "
            f"{'yes' if same else 'NO'} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=2000, help="of text")
    parser.add_argument("--memory", default="1GB", help="what treemax fit --memory is told")
    parser.add_argument("--text", default="hashing", choices=("hashing", "tfidf"))
    parser.add_argument("--limit", help="of data memory for the training with --memory")
    parser.add_argument("--control-group", type=Path, help="folder of a memory control group for the same")
    parser.add_argument("--folder", help="where there is room for the data and three times as much")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        data = Path(folder) / "data.ft"
        count = write_data(data, options.megabytes * 10**6)
        print(f"{data.stat().st_size / 1e6:,.0f} MB of text, {count:,} examples", flush=True)
        common = [str(data), "--model", "label-tree", "--text", options.text, "--set", "verbose=0"]
        disk = [*common, "--memory", options.memory]
        limit = None if options.limit is None else parse_bytes(options.limit)
        way = f"--memory {options.memory}" + (f", RLIMIT_DATA {options.limit}" if limit else "")
        way += ", in a control group" if options.control_group else ""
        results = [
            measured("in memory", common, Path(folder) / "memory.treemax"),
            measured(way, disk, Path(folder) / "disk.treemax", limit, options.control_group),
        ]
        print(_table(results))


if __name__ == "__main__":
    main()
