"""scikit-learn: multinomial logistic regression, and one-against-all by stochastic gradient descent.

Only the weights are kept: they are what a deployment needs. Settings go to the estimator.
"""

from __future__ import annotations

ENVIRONMENT = "scikit-learn"
SYSTEMS = {
    "sklearn-logistic": {"estimator": "LogisticRegression"},
    "sklearn-sgd": {"estimator": "SGDClassifier", "loss": "log_loss", "max_iter": 5, "tol": None},
}


def _features(data, part):
    from scipy.sparse import csr_matrix

    if not data.sparse:
        return data.dense(part)
    arrays, shape = data.csr(part)
    return csr_matrix(arrays, shape=shape)


def load(data, settings):
    return _features(data, "train"), data.classes("train")


def _estimator(settings):
    from sklearn import linear_model

    arguments = {name: value for name, value in settings.items() if name not in ("estimator", "threads")}
    if settings["estimator"] == "SGDClassifier":
        arguments |= {"n_jobs": settings["threads"], "random_state": 0}
    return getattr(linear_model, settings["estimator"])(**arguments)


def train(inputs, settings, folder):
    X, y = inputs
    return _estimator(settings).fit(X, y)


def save(model, folder):
    import numpy as np

    np.savez(folder / "weights.npz", coef=model.coef_.astype(np.float32), intercept=model.intercept_.astype(np.float32))


def restore(folder, data, settings):
    import numpy as np

    model = _estimator(settings)
    with np.load(folder / "weights.npz") as weights:
        model.coef_, model.intercept_ = weights["coef"], weights["intercept"]
    model.classes_ = np.arange(data.n_labels)
    model.n_features_in_ = data.n_features
    return model


def rows(model, data, settings):
    return _features(data, "test")


def single(rows, i):
    return rows[i : i + 1]


def predict_one(model, row, k):
    return predict_batch(model, row, k)


def predict_batch(model, rows, k):
    """The k best of the decision function: scikit-learn has no call for it."""
    import numpy as np

    scores = model.decision_function(rows)
    best = np.argpartition(-scores, k, axis=1)[:, :k]
    order = np.argsort(-np.take_along_axis(scores, best, axis=1), axis=1)
    return np.take_along_axis(best, order, axis=1)


def labels(answers):
    return answers
