"""TextModel: defaults, and the vectorisers it takes and saves."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score, train_test_split

import treemax
from treemax.inputs.labels import read_labels

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


@pytest.mark.parametrize("form", [list, read_labels])
def test_label_lists_go_through_cross_validation(form: Callable[[Any], Any]) -> None:
    tags = [["fruit", "red"], ["fruit"], ["vehicle"], ["vehicle", "red"]] * 3
    model = treemax.TextModel(treemax.HashingText(bits=10), treemax.OneVsAll(passes=5))
    folds = KFold(3, shuffle=True, random_state=0)
    scores = cross_val_score(model, TEXTS, form(tags), cv=folds)
    by_hand = []
    for train, test in folds.split(TEXTS):
        own = clone(model).fit([TEXTS[i] for i in train], [tags[i] for i in train])
        by_hand.append(own.score([TEXTS[i] for i in test], [tags[i] for i in test]))
    assert scores.tolist() == by_hand and scores.mean() > 0.8
    parts = train_test_split(TEXTS, form(tags), random_state=0)
    assert [len(part) for part in parts] == [9, 3, 9, 3]
    search = GridSearchCV(model, {"estimator__passes": [1, 5]}, cv=folds).fit(TEXTS, form(tags))
    assert search.best_estimator_.multi_label_


@pytest.mark.parametrize("part", ["vectorizer", "estimator"])
def test_either_part_may_be_left_out(part: str) -> None:
    given = {"vectorizer": treemax.HashingText(bits=10), "estimator": treemax.OneVsAll(passes=5)}
    del given[part]
    model = treemax.TextModel(**given).fit(TEXTS, KINDS)
    assert model.predict(["green apple"]).tolist() == ["fruit"]


def test_an_estimator_in_the_place_of_the_vectorizer_is_refused() -> None:
    with pytest.raises(ValueError, match=r"Write TextModel\(estimator=LabelTree\(\)\)"):
        treemax.TextModel(treemax.LabelTree()).fit(["red apple"], ["fruit"])
