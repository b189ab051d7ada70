"""Weights of labels that are given with a call."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from treemax.inputs.labels import LabelIndex
from treemax.models import LabelTree, OnlineLabelTree

X = np.repeat(np.eye(4, dtype=np.float32), 8, axis=0)
Y = np.repeat(list("abcd"), 8)


@pytest.fixture
def looked_up(monkeypatch):
    """The numbers of labels that were looked up, call by call."""
    calls = []
    ids = LabelIndex.ids
    monkeypatch.setattr(LabelIndex, "ids", lambda self, labels: calls.append(len(labels)) or ids(self, labels))
    return calls


@pytest.mark.parametrize("form", [list, tuple, set, frozenset, np.array])
def test_labels_of_the_last_call_are_not_looked_up_again(looked_up, form):
    model = LabelTree(verbose=0).fit(X, Y)
    del looked_up[:]
    labels = form(["a", "b"]) if form is not np.array else np.array(["a", "b"])
    for _ in range(3):
        assert set(model.predict_topk(X[:1], 2, labels=labels).labels[0]) == {"a", "b"}
        assert len(looked_up) == 1
    assert set(model.predict_topk(X[:1], 2, exclude=labels).labels[0]) == {"c", "d"}
    assert len(looked_up) == 2


def test_a_list_that_changes_is_looked_up_again():
    model = LabelTree(verbose=0).fit(X, Y)
    for labels in (["a", "b"], np.array(["a", "b"])):
        model.predict_topk(X[:1], 2, labels=labels)
        labels[0] = "c"
        assert set(model.predict_topk(X[:1], 2, labels=labels).labels[0]) == {"b", "c"}
    weights = {"a": 0.0}
    assert "a" not in model.predict_topk(X[:1], 3, exclude=["b"], label_weights=weights).labels
    weights["a"] = 1.0
    assert "a" in model.predict_topk(X[:1], 3, exclude=["b"], label_weights=weights).labels


def test_labels_that_can_be_read_once():
    model = LabelTree(verbose=0).fit(X, Y)
    for _ in range(2):
        assert set(model.predict_topk(X[:1], 2, labels=iter(["a", "b"])).labels[0]) == {"a", "b"}


def test_labels_of_the_last_call_after_the_model_changed():
    model = OnlineLabelTree(verbose=0).fit(X, Y)
    asked = ["a", "e"]
    assert model.predict_topk(X[:1], 2, labels=asked).labels.tolist() == [["a"]]
    model.partial_fit(X[:1], ["e"])
    assert set(model.predict_topk(X[:1], 2, labels=asked).labels[0]) == {"a", "e"}
    model.forget(["e"])
    assert model.predict_topk(X[:1], 2, labels=asked).labels.tolist() == [["a"]]
    twin = pickle.loads(pickle.dumps(model))
    assert twin.predict_topk(X[:1], 2, labels=asked).labels.tolist() == [["a"]]
    model.fit(X, np.repeat(list("aefg"), 8))
    assert set(model.predict_topk(X[:1], 2, labels=asked).labels[0]) == {"a", "e"}
