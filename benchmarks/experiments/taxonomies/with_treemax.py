"""One of our systems for `taxonomies.py`: `python with_treemax.py SYSTEM FOLDER`."""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

import numpy as np
import scipy.sparse as sp

import treemax

CONFIDENCES = (0.5, 0.8, 0.9)


def main(system: str, folder: Path) -> None:
    facts = json.loads((folder / "facts.json").read_text())
    X, X_test, y = sp.load_npz(folder / "train.npz"), sp.load_npz(folder / "test.npz"), np.array(facts["y"])
    name, _, own = system.partition(":")
    options = {"tree": [tuple(edge) for edge in facts["edges"]]} if own else {}
    treemax.MODELS[name](verbose=0, n_jobs=1).fit(X[:300], y[:300]).predict(X_test[:2])  # compiles
    model = treemax.MODELS[name](verbose=0, n_jobs=1, random_state=0, **options)
    start = time.process_time()
    model.fit(X, y)
    fit_s = time.process_time() - start
    start = time.process_time()
    answers = model.predict(X_test)
    predict_s = time.process_time() - start
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    model.set_taxonomy([tuple(edge) for edge in facts["edges"]])
    backoff = {}
    for confidence in CONFIDENCES:
        start = time.process_time()
        backoff[confidence] = model.predict_backoff(X_test, confidence).labels.tolist()
        print(system, confidence, "backoff", time.process_time() - start, "s", file=sys.stderr)
    found = {
        "answers": answers.tolist(),
        "fit_s": fit_s,
        "predict_s": predict_s,
        "peak_mb": peak_mb,
        "backoff": backoff,
    }
    (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
