"""napkinXC: probabilistic label trees, batch (PLT), with online node learners on a given tree (IPLT), fully online (OPLT).

It writes the model to its folder while it trains, so that is part of the time. Search is exact: its beam
search ignores top_k. Settings are the arguments of its models; `weights=propensity` ranks
by probability over propensity, which is done here: its own `labels_weights` crash it.
"""

from __future__ import annotations

ENVIRONMENT = "napkinxc"
SYSTEMS = {
    "napkinxc-plt": {"model": "plt"},
    "napkinxc-iplt": {"model": "plt", "optimizer": "adagrad", "epochs": 1},
    # The onlineKary trees crash it; so does a second fit of the same model.
    "napkinxc-oplt": {"model": "oplt", "optimizer": "adagrad", "epochs": 1, "tree_type": "onlineBestScore"},
}


def load(data, settings):
    from scipy.sparse import csr_matrix

    arrays, shape = data.csr("train")
    return csr_matrix(arrays, shape=shape), data.label_lists("train")


def train(inputs, settings, folder):
    X, Y = inputs
    _model(settings, folder).fit(X, Y)


def _model(settings, folder):
    from napkinxc.models import PLT, Model

    arguments = {**settings, "output": str(folder), "seed": 1}
    arguments.pop("weights", None)
    if arguments.pop("model") == "plt":
        return PLT(**arguments)
    return Model(model="oplt", loss="log", **arguments)


def save(model, folder):
    """`fit` has done it."""


def restore(folder, data, settings):
    model = _model(settings, folder)
    model.load()
    model.weights_of_labels = None
    if settings.get("weights") == "propensity":
        from napkinxc.metrics import Jain_et_al_inverse_propensity

        model.weights_of_labels = Jain_et_al_inverse_propensity(data.label_lists("train"))
    return model


def rows(model, data, settings):
    from scipy.sparse import csr_matrix

    arrays, shape = data.csr("test")
    return csr_matrix(arrays, shape=shape)


def single(rows, i):
    return rows[i]


def predict_one(model, row, k):
    return _best(model, row, k)


def predict_batch(model, rows, k):
    return _best(model, rows, k)


def _best(model, rows, k):
    weights = model.weights_of_labels
    if weights is None:
        return model.predict(rows, top_k=k)
    found = model.predict_proba(rows, top_k=len(weights))
    return [[label for label, _ in sorted(row, key=lambda pair: -pair[1] * weights[pair[0]])[:k]] for row in found]


def labels(answers):
    return answers
