"""A model of your own: it always predicts the most frequent labels."""

from dataclasses import dataclass

import numpy as np

from treemax import modelfile
from treemax.checks.reproducing import check_save_and_load
from treemax.models import LabelClassifier
from treemax.models.trained import FromAllProbabilities


@dataclass
class Frequencies(FromAllProbabilities):
    """The share of the training rows that had each label."""

    shares: np.ndarray

    def top_k(self, rows, k, search, threads=1):
        ids = np.argsort(-self.shares, kind="stable")[:k]
        shape = (len(rows), k)
        return np.broadcast_to(ids, shape).astype(np.int64), np.broadcast_to(self.shares[ids], shape).copy()

    def probabilities(self, rows, search, threads=1):
        return np.broadcast_to(self.shares, (len(rows), len(self.shares))).copy()

    def to_parts(self, resume=False):
        return {}, {"shares": self.shares}

    @classmethod
    def from_parts(cls, header, arrays, n_labels):
        shares = arrays["shares"]
        if shares.shape != (n_labels,) or shares.dtype != np.float32:
            raise ValueError("the shares do not fit the labels")
        return cls(shares)


@modelfile.saveable
class MostFrequent(LabelClassifier):
    """The most frequent labels of the training, whatever the row."""

    def _train(self, rows, targets, index, multi_label):
        counts = np.bincount(targets.ids, minlength=len(index))
        total = len(rows) if multi_label else counts.sum()
        return Frequencies((counts / total).astype(np.float32))

    def _model_from_parts(self, header, arrays):
        return Frequencies.from_parts(header, arrays, len(self.label_index_))


if __name__ == "__main__":
    model = MostFrequent().fit([[0.0], [1.0], [2.0]], ["ant", "bee", "bee"])
    print(model.predict_topk([[5.0]], k=2).labels)
    check_save_and_load(MostFrequent())  # treemax.checks.CHECKS has more
    print("saved and loaded")
