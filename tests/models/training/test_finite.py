"""Values that overflow: computations without them, and weights that are not finite."""

import numpy as np
import pytest
import scipy.sparse as sp

import treemax
from treemax.checks.examples import example_data
from treemax.formats import read_examples
from treemax.inputs.rows import as_rows
from treemax.models.training.finite import arrays_of, check_learned
from treemax.models.training.learning_rates import FAR_LARGER, clip_outliers, mean_squared_length


@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix])
def test_rows_far_longer_than_the_others_do_not_count(form):
    X, _ = example_data()
    usual = mean_squared_length(as_rows(form(X)))
    wrong = X.copy()
    wrong[3, 4] = wrong[7, 0] = 1e12
    found = mean_squared_length(as_rows(form(wrong)))
    assert found[0] == pytest.approx(usual[0], rel=0.02)
    assert found[1] == pytest.approx(usual[1], rel=0.02)
    assert mean_squared_length(as_rows(form(np.zeros_like(X)))) == (1.0, 1.0)


def test_rows_on_disk_have_the_same_mean(tmp_path):
    X, y = example_data()
    X[3, 4] = 1e12
    text = "".join(
        f"{label} " + " ".join(f"{j}:{v}" for j, v in enumerate(row)) + "\n"
        for label, row in zip(np.unique(y, return_inverse=True)[1], X)
    )
    (tmp_path / "data.svm").write_text(text)
    whole = read_examples(tmp_path / "data.svm")
    one = treemax.LabelTree(verbose=0).fit(whole.X, whole.y)
    other = treemax.LabelTree(verbose=0).fit_file(tmp_path / "data.svm")
    np.testing.assert_array_equal(one.predict_topk(whole.X, 3).scores, other.predict_topk(whole.X, 3).scores)
    assert one.score(whole.X, whole.y) > 0.9


@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix])
def test_values_are_cut_where_they_are_far_larger(form):
    X, _ = example_data()
    rows = as_rows(form(X))
    assert clip_outliers(rows, 1.0) is rows
    X[3, 4], X[5, 6] = -1e9, 1e9
    found = clip_outliers(as_rows(form(X)), 4.0)
    found = found if isinstance(found, np.ndarray) else found.to_scipy().toarray()
    np.testing.assert_array_equal(found, np.clip(X, -2 * FAR_LARGER, 2 * FAR_LARGER))


def test_a_training_that_overflows_leaves_the_model_before():
    X, y = example_data()
    model = treemax.LearnedTree(dimension=8, passes=2, verbose=0).fit(X, y)
    before = model.predict_topk(X, 3)
    model.set_params(optimizer="sgd", learning_rate=1000)
    with pytest.raises(ValueError, match=r"LearnedTree diverged: its weights are not finite.*learning rate"):
        model.fit(X, y)
    np.testing.assert_array_equal(model.predict_topk(X, 3).scores, before.scores)


@pytest.mark.parametrize("kind", [treemax.OneVsAll, treemax.RecallTree, treemax.LOMTree, treemax.OnlineLabelTree])
def test_a_stream_that_overflows_says_so(kind):
    X, y = example_data()
    model = kind(verbose=0).partial_fit(X, y)
    owner = (
        model.model_.blocks if kind is treemax.OnlineLabelTree else getattr(model.model_, "regressors", model.model_)
    )
    owner.bias[:] = np.nan
    with pytest.raises(
        ValueError, match=r"not finite numbers, and cannot be used any more\. Continue from the last saved model"
    ):
        model.partial_fit(X, y)


def test_all_arrays_of_a_model_are_looked_at():
    X, y = example_data()
    for model in (
        treemax.LabelTree(),
        treemax.RecallTree(),
        treemax.OnlineLabelTree(),
        treemax.SoftmaxTree(),
        treemax.OneVsAll(),
    ):
        arrays = [array for _, array in arrays_of(model.set_params(verbose=0).fit(X, y).model_)]
        found = [array for array in arrays if array.dtype == np.float32]
        assert found
        for array in found:
            if array.size and array.flags.writeable:
                kept = array.flat[-1]
                array.flat[-1] = np.inf
                with pytest.raises(ValueError, match="not finite"):
                    check_learned(model.model_, "model")
                array.flat[-1] = kept
        check_learned(model.model_, "model")
