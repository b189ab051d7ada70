"""hiclass for `taxonomies.py`, in the environment of hiclass: `python with_hiclass.py CLASS FOLDER`."""

from __future__ import annotations

import json
import resource
import sys
import time
from pathlib import Path

import hiclass
import numpy as np
import scipy.sparse as sp
from sklearn.linear_model import LogisticRegression


def main(system: str, folder: Path) -> None:
    facts = json.loads((folder / "facts.json").read_text())
    X, X_test = sp.load_npz(folder / "train.npz"), sp.load_npz(folder / "test.npz")
    paths = facts["paths"]
    depth = max(map(len, paths.values()))
    y = np.array([paths[label] + [""] * (depth - len(paths[label])) for label in facts["y"]])
    model = getattr(hiclass, system)(local_classifier=LogisticRegression(), n_jobs=1)
    start = time.process_time()
    model.fit(X, y)
    fit_s = time.process_time() - start
    start = time.process_time()
    found = np.asarray(model.predict(X_test)).astype(str)
    predict_s = time.process_time() - start
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    answers = [[name for name in row if name][-1] for row in found.tolist()]
    result = {"answers": answers, "fit_s": fit_s, "predict_s": predict_s, "peak_mb": peak_mb}
    (folder / "found.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
