"""PECOS XR-Linear: a label tree by clustering label embeddings (the sum of their rows), linear rankers, beam search.

Training is all three steps: embeddings, clustering, rankers. Settings go to `XLinearModel.train`.
"""

from __future__ import annotations

ENVIRONMENT = "pecos"
SYSTEMS = {"pecos": {}}
BEAM = 10


def load(data, settings):
    return _matrix(data, "train"), _label_matrix(data)


def _matrix(data, part):
    import numpy as np
    from scipy.sparse import csr_matrix

    (values, indices, starts), shape = data.csr(part)
    return csr_matrix((values.astype(np.float32), indices, starts), shape=shape)


def _label_matrix(data):
    import numpy as np
    from scipy.sparse import csr_matrix

    ids, starts = data.labels("train")
    ones = np.ones(len(ids), dtype=np.float32)
    return csr_matrix((ones, ids, starts), shape=(data.n_rows("train"), data.n_labels))


def train(inputs, settings, folder):
    from pecos.xmc import Indexer, LabelEmbeddingFactory
    from pecos.xmc.xlinear.model import XLinearModel

    X, Y = inputs
    embeddings = LabelEmbeddingFactory.create(Y, X, method="pifa")
    tree = Indexer.gen(embeddings, threads=settings["threads"])
    return XLinearModel.train(X, Y.tocsc(), C=tree, **{"threshold": 0.1, **settings})


def save(model, folder):
    model.save(str(folder))


def restore(folder, data, settings):
    from pecos.xmc.xlinear.model import XLinearModel

    return XLinearModel.load(str(folder), is_predict_only=True), settings["threads"]


def rows(model, data, settings):
    return _matrix(data, "test")


def single(rows, i):
    return rows[i]


def predict_one(model, row, k):
    return predict_batch(model, row, k)


def predict_batch(model, rows, k):
    predictor, threads = model
    return predictor.predict(rows, only_topk=k, beam_size=BEAM, threads=threads)


def labels(answers):
    """The answer is a sparse matrix of scores."""
    ranked = []
    for start, stop in zip(answers.indptr[:-1], answers.indptr[1:]):
        order = (-answers.data[start:stop]).argsort(kind="stable")
        ranked.append(answers.indices[start:stop][order].tolist())
    return ranked


def scores(answers):
    return answers.max(axis=1).toarray().ravel()
