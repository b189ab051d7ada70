"""Classify dense embeddings: let Treemax choose a model, and compare it with others.

    python examples/embeddings.py

The rows are 100 singular vectors of tf-idf (latent semantic analysis) of WordNet definitions, of the 1,000 most frequent
labels; embeddings of a neural network are used in the same way. About a minute.
"""

from __future__ import annotations

import time
from collections import Counter

import numpy as np
from sklearn.decomposition import TruncatedSVD

import treemax
from treemax.datasets import load_wordnet

train, test = load_wordnet()
frequent = {label for label, _ in Counter(train.y.tolist()).most_common(1000)}

vectorizer, reduction = treemax.TfidfText(), TruncatedSVD(100, random_state=0)
X = reduction.fit_transform(vectorizer.fit_transform(train.texts)).astype(np.float32)
X_test = reduction.transform(vectorizer.transform(test.texts)).astype(np.float32)
rows, test_rows = (np.array([label in frequent for label in part.y]) for part in (train, test))
X, y, X_test, y_test = X[rows], train.y[rows], X_test[test_rows], test.y[test_rows]
print(f"{len(X):,} rows of {X.shape[1]} numbers, {len(frequent):,} labels")

chosen = treemax.choose_model(X, y)
for model in (chosen, treemax.OneVsAll(random_state=0), treemax.LabelTree(random_state=0)):
    start = time.perf_counter()
    model.fit(X, y)
    seconds = time.perf_counter() - start
    print(f"{type(model).__name__:<12} {model.score(X_test, y_test):.3f} right, trained in {seconds:.1f} s")
