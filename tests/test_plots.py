"""Plots show what the model recorded."""

import numpy as np
import pytest

import treemax

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")


@pytest.fixture(scope="module")
def forest():
    random = np.random.RandomState(0)
    y = random.randint(12, size=300)
    X = random.normal(size=(12, 5))[y] + 0.5 * random.normal(size=(300, 5))
    return treemax.SoftmaxForest(n_trees=2, depth=2, leaf_classes=4, iterations=3, verbose=0).fit(X, y)


def test_the_history_has_a_line_a_tree_and_a_point_a_depth(forest):
    axes = treemax.plot_history(forest)
    assert len(axes.lines) == 2
    for line, state in zip(axes.lines, forest.states_):
        assert np.array_equal(line.get_ydata(), [r.objective for r in state.history], equal_nan=True)
        assert (np.diff(line.get_xdata()) > 0).all()
    errors = axes.figure.axes[1].lines[0]
    whole = [r.error for r in forest.states_[0].history if r.depth == 0]
    assert np.allclose(errors.get_ydata(), 100 * np.array(whole)) and list(errors.get_xdata()) == [1, 2, 3]


def test_it_is_drawn_where_one_wants_it(forest):
    from matplotlib import pyplot

    _, axes = pyplot.subplots()
    assert treemax.plot_history(forest, axes) is axes


def test_what_has_no_history_says_so(forest, tmp_path):
    with pytest.raises(TypeError, match="SoftmaxTree or SoftmaxForest, got LabelTree"):
        treemax.plot_history(treemax.LabelTree())
    with pytest.raises(ValueError, match="fit first"):
        treemax.plot_history(treemax.SoftmaxTree())
    forest.save(tmp_path / "model")
    with pytest.raises(ValueError, match="resume=True"):
        treemax.plot_history(treemax.load(tmp_path / "model"))
