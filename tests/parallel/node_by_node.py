"""Models that are trained node by node, and a problem for the tests of pools, checkpoints and clusters."""

import numpy as np
import scipy.sparse as sp

import treemax

MODELS = [
    treemax.LabelTree(max_leaf=4, arity=3, verbose=0),
    treemax.LabelTree(max_leaf=4, arity=3, n_trees=2, penalty="l1", verbose=0),
    treemax.SoftmaxTree(depth=2, leaf_classes=6, iterations=2, verbose=0),
    treemax.SoftmaxTree(depth=1, leaf_classes=8, iterations=3, growth=0.02, spill=0.4, verbose=0),
    treemax.SoftmaxForest(n_trees=2, depth=2, leaf_classes=6, iterations=2, missing="drop", verbose=0),
]


def problem(n_rows=240, n_labels=24, n_features=30, seed=0, sparse=True):
    random = np.random.RandomState(seed)
    y = random.randint(n_labels, size=n_rows)
    X = random.normal(size=(n_labels, n_features))[y] + 0.5 * random.normal(size=(n_rows, n_features))
    if sparse:
        X[random.uniform(size=X.shape) < 0.7] = 0.0
        return sp.csr_matrix(X.astype(np.float32)), y
    return X.astype(np.float32), y


def model_bytes(model, path):
    model.save(path)
    return path.read_bytes()


def clone(model):
    return type(model)(**model.get_params(deep=False))
