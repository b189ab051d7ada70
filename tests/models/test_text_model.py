"""TextModel: defaults, and the vectorisers it takes and saves."""

from __future__ import annotations

from pathlib import Path

import pytest
from sklearn.base import clone

import treemax

TEXTS = ["red apple", "green apple", "fast car", "red car"] * 3
KINDS = ["fruit", "fruit", "vehicle", "vehicle"] * 3


def test_without_arguments_it_is_a_label_tree_on_tfidf(tmp_path: Path) -> None:
    model = treemax.TextModel()
    assert type(model.vectorizer) is treemax.TfidfText and type(model.estimator) is treemax.LabelTree
    assert treemax.TextModel().estimator is not model.estimator  # not one default for all
    model.set_params(vectorizer__min_df=1, estimator__random_state=3)
    copy = clone(model)
    assert copy.vectorizer.min_df == 1 and copy.estimator.random_state == 3
    copy.fit(TEXTS, KINDS).save(tmp_path / "m.treemax")
    loaded = treemax.load(tmp_path / "m.treemax")
    assert loaded.predict(["a green apple", "the car"]).tolist() == ["fruit", "vehicle"]


@pytest.mark.parametrize("part", ["vectorizer", "estimator"])
def test_either_part_may_be_left_out(part: str) -> None:
    given = {"vectorizer": treemax.HashingText(bits=10), "estimator": treemax.OneVsAll(passes=5)}
    del given[part]
    model = treemax.TextModel(**given).fit(TEXTS, KINDS)
    assert model.predict(["green apple"]).tolist() == ["fruit"]
