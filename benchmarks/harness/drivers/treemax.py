"""Every model of this library, by its name on the command line. Settings go to the model as they are.

Kernels are compiled before the clock starts: that happens once a machine, not once a training.
"""

from __future__ import annotations

import sys
from pathlib import Path

# The library beside this file, also where the interpreter has another copy of it installed.
sys.path.insert(0, str(Path(__file__).parents[3] / "src"))

ENVIRONMENT = "project"
SYSTEMS: dict = {}  # ours are named by the library, see `models`
WARM_UP_ROWS = 300


def models():
    from treemax.models import MODELS

    return list(MODELS)


def _model(settings):
    from treemax.models import MODELS

    arguments = {name: value for name, value in settings.items() if name not in ("model", "threads")}
    if settings["model"] not in MODELS:
        raise ValueError(f"treemax has no model {settings['model']!r}; it has {', '.join(MODELS)}")
    estimator = MODELS[settings["model"]](**arguments)
    if "n_jobs" in estimator.get_params() and "n_jobs" not in arguments:
        estimator.set_params(n_jobs=settings["threads"])
    return estimator


def _features(data, part):
    from scipy.sparse import csr_matrix

    if not data.sparse:
        return data.dense(part)
    arrays, shape = data.csr(part)
    return csr_matrix(arrays, shape=shape)


def prepare(data, settings):
    """Compile in a process apart, for the compiler's memory is not the training's."""
    _warm_up(_features(data, "train"), _targets(data), settings)


def _targets(data):
    return data.label_lists("train") if data.multi_label else data.classes("train")


def _warm_up(X, y, settings):
    _model(settings).fit(X[:WARM_UP_ROWS], y[:WARM_UP_ROWS]).predict_topk(X[:1], 1)


def load(data, settings):
    X, y = _features(data, "train"), _targets(data)
    _warm_up(X, y, settings)
    return X, y


def train(inputs, settings, folder):
    X, y = inputs
    return _model(settings).fit(X, y)


def save(model, folder):
    model.save(folder / "model.treemax")


def restore(folder, data, settings):
    import treemax

    return treemax.load(folder / "model.treemax")


def rows(model, data, settings):
    return _features(data, "test")


def single(rows, i):
    return rows[i : i + 1]


def predict_one(model, row, k):
    return model.predict_topk(row, k)


def predict_batch(model, rows, k):
    return model.predict_topk(rows, k)


def labels(answers):
    """The labels are the ids; None, where a model found fewer than k, becomes -1."""
    ranked, _ = answers
    return [[-1 if label is None else label for label in row] for row in ranked.tolist()]


def scores(answers):
    _, probabilities = answers
    return probabilities[:, 0]


def chosen(model, rows):
    return model.predict(rows)
