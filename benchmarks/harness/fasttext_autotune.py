"""One training of fastText in its own environment and process: `python fasttext_autotune.py JOB.json`.

A second training in one process is unreliable with some versions. The job names the training file, the settings of
`train_supervised` (among them those of the automatic search), the file with test lines, and where the answers go.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

CHOSEN = ("lr", "dim", "epoch", "wordNgrams", "minn", "maxn", "bucket", "minCount")  # by the search
PREFIX = "__label__"


def main() -> None:
    import fasttext

    job = json.loads(Path(sys.argv[1]).read_text())
    start = time.perf_counter()
    model = fasttext.train_supervised(job["train"], verbose=0, **job["settings"])
    seconds = time.perf_counter() - start
    chosen = model.f.getArgs()
    lines = Path(job["test"]).read_text(encoding="utf-8").split("\n")[:-1]
    start = time.perf_counter()
    ranked, _ = model.predict(lines, k=job["k"])
    predict_seconds = time.perf_counter() - start
    model.save_model(job["model"])
    answer = {
        "seconds": seconds,
        "us": 1e6 * predict_seconds / len(lines),
        "mb": Path(job["model"]).stat().st_size / 1e6,
        "chosen": {"loss": chosen.loss.name, **{name: getattr(chosen, name) for name in CHOSEN}},
        "ranked": [[int(label.removeprefix(PREFIX)) for label in row] for row in ranked],
    }
    Path(job["answer"]).write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
