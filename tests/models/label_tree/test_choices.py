"""Tests of the choices on held-out rows."""

import numpy as np
import pytest

import treemax
from treemax.inputs.labels import Targets
from treemax.models.label_tree.choices import TEMPERATURES, USUAL_TEMPERATURE, choose_cost, choose_temperature
from treemax.models.label_tree.estimator import LabelTree


class Answers:
    """A model with 10 labels that answers label 0 first for some of the rows, and label 1 for the others."""

    n_labels = 10

    def __init__(self, n_right, temperature=1.0):
        self.n_right, self.temperature = n_right, temperature

    def at_temperature(self, temperature):
        return Answers(self.n_right, temperature)

    def top_k(self, rows, k, beam, threads):
        ids = np.tile(np.arange(1, k + 1), (len(rows), 1))
        ids[: self.n_right[self.temperature], 0] = 0
        return ids, np.full(ids.shape, 0.1, np.float32)


def chosen(n_right, weights=None):
    targets = Targets(np.arange(101), np.zeros(100, np.uint32), weights)
    return choose_temperature(Answers(dict(zip(TEMPERATURES, n_right))), range(100), targets, 10, 1)


@pytest.mark.parametrize("place", range(len(TEMPERATURES)))
def test_the_temperature_with_the_most_right_answers_is_chosen(place):
    n_right = [60 - 5 * abs(place - other) for other in range(len(TEMPERATURES))]
    assert chosen(n_right) == TEMPERATURES[place]


def test_equal_answers_give_the_usual_temperature():
    assert chosen([50] * len(TEMPERATURES)) == USUAL_TEMPERATURE


def test_rows_count_by_their_weights():
    weights = np.ones(100, np.float32)
    weights[50:60] = 1e-3
    assert chosen([60, 55, 50, 50]) == TEMPERATURES[0]
    assert chosen([60, 55, 50, 50], weights) == USUAL_TEMPERATURE


@pytest.mark.parametrize(("temperature", "expected"), [("auto", TEMPERATURES), (1.3, (1.3,))])
def test_a_fitted_tree_has_a_temperature_that_is_saved(temperature, expected, tmp_path):
    random = np.random.RandomState(0)
    X, y = random.rand(300, 20).astype(np.float32), random.randint(12, size=300)
    model = LabelTree(max_leaf=3, temperature=temperature, verbose=0).fit(X, y)
    assert model.temperature_ in expected and model.describe()["temperature"] == model.temperature_
    model.save(tmp_path / "model.treemax")
    assert treemax.load(tmp_path / "model.treemax").temperature_ == model.temperature_


def test_without_held_out_rows_the_temperature_is_the_usual_one():
    X, y = np.eye(6, dtype=np.float32), np.arange(6)
    assert LabelTree(passes=1, verbose=0).fit(X, y).temperature_ == USUAL_TEMPERATURE


# --- the cost ------------------------------------------------------------------------------------------


def test_the_cost_of_several_trees_is_chosen_on_the_nodes_of_all(monkeypatch):
    random = np.random.RandomState(0)
    X, y = random.rand(600, 20).astype(np.float32), random.randint(30, size=600)
    seen = []

    def watched(trees, targets, commons, run):
        seen.extend((id(tree), common.seed) for tree, common in zip(trees, commons))
        alone = [choose_cost([tree], targets, [common], run) for tree, common in zip(trees, commons)]
        found = choose_cost(trees, targets, commons, run)
        assert min(alone) <= found <= max(alone) and len(set(alone)) == 3
        return found

    monkeypatch.setattr("treemax.models.label_tree.training.choose_cost", watched)
    model = LabelTree(max_leaf=5, n_trees=3, verbose=0).fit(X, y)
    assert len(set(seen)) == 3 and 0.25 <= model.cost_ <= 4


# --- the number of labels below a node -----------------------------------------------------------------


@pytest.mark.parametrize(("settings", "most"), [({}, 150), ({"n_trees": 2}, 60), ({"n_trees": 2, "max_leaf": 80}, 80)])
def test_trees_of_a_forest_have_smaller_nodes_if_rows_have_one_label(settings, most):
    X, y = np.random.RandomState(0).rand(400, 20).astype(np.float32), np.arange(400) % 200
    labels_below = LabelTree(verbose=0, **settings).fit(X, y).label_tree().n_children.max()
    assert most / 2 < labels_below <= most
    several = LabelTree(verbose=0, n_trees=2).fit(X, [[label, (label + 1) % 200] for label in y.tolist()])
    assert several.label_tree().n_children.max() == 100
