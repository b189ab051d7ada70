"""A peer for benchmarks.experiments.serving: Vowpal Wabbit's daemon with a probabilistic label tree of wordnet.

INTERPRETER vw_daemon.py FOLDER PORT CONNECTIONS: trains into FOLDER, then answers lines of text on a plain TCP socket,
with one process for each connection.
"""

from __future__ import annotations

import gzip
import re
import sys
from pathlib import Path

import vowpalwabbit

TRAIN = Path(__file__).parents[2] / "src" / "treemax" / "data" / "wordnet" / "train.txt.gz"


def main() -> None:
    folder, port, connections = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    folder.mkdir(parents=True, exist_ok=True)
    with gzip.open(TRAIN, "rt", encoding="utf-8") as file:
        pairs = [line.rstrip("\n").split(" ", 1) for line in file]
    ids = {name: i for i, name in enumerate(sorted({label for label, _ in pairs}))}
    with (folder / "train.vw").open("w") as out:
        for label, text in pairs:
            out.write(f"{ids[label]} | {re.sub('[:|]', ' ', text.lower())}\n")
    tree = ["--plt", str(len(ids)), "--loss_function", "logistic", "-b", "22"]
    files = ["--data", str(folder / "train.vw"), "-f", str(folder / "model.vw")]
    vowpalwabbit.Workspace(arg_list=[*tree, *files, "--quiet"]).finish()
    answering = ["-t", "-i", str(folder / "model.vw"), "--loss_function", "logistic", "--top_k", "5", "--quiet"]
    daemon = ["--daemon", "--foreground", "--port", port, "--num_children", connections]
    vowpalwabbit.Workspace(arg_list=[*answering, *daemon]).run_parser()


if __name__ == "__main__":
    main()
