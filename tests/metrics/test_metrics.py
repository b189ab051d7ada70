"""Metrics against slow loops written from the definitions, against scikit-learn, and on awkward input."""

import math

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import f1_score, ndcg_score, top_k_accuracy_score

from treemax import metrics
from treemax.inputs.labels import LabelIndex, Targets
from treemax.metrics import DensityScores, IdEncoder, Scores, evaluate, hits
from treemax.numpy_only.topk import TopK

# ---- slow references: one row, one label at a time, from the definitions in docs/metrics.md


def slow_row_means(rows, rankings, k):
    """P, recall, nDCG and error at k of lists of true labels and of predicted labels (None for none)."""
    sums = dict.fromkeys(("P", "recall", "nDCG", "error"), 0.0)
    for true, ranking in zip(rows, rankings):
        top = ranking[:k]
        correct = [label is not None and label in true for label in top]
        sums["P"] += sum(correct) / k
        sums["error"] += 0 if any(correct) else 1
        if true:
            sums["recall"] += sum(correct) / len(true)
            gain = sum(1 / math.log2(place + 2) for place, hit in enumerate(correct) if hit)
            ideal = sum(1 / math.log2(place + 2) for place in range(min(k, len(true))))
            sums["nDCG"] += gain / ideal
    return {f"{name}@{k}": total / len(rows) for name, total in sums.items()}


def slow_f1_and_coverage(rows, rankings, k):
    true = {(i, label) for i, row in enumerate(rows) for label in row}
    predicted = {(i, label) for i, row in enumerate(rankings) for label in row[:k] if label is not None}
    correct = true & predicted

    def f1(label):
        counts = [sum(other == label for _, other in pairs) for pairs in (correct, predicted, true)]
        return 2 * counts[0] / (counts[1] + counts[2])

    labels = {label for _, label in true | predicted}
    true_labels, found_labels = {label for _, label in true}, {label for _, label in correct}
    return {
        f"micro_F1@{k}": 2 * len(correct) / max(len(true) + len(predicted), 1),
        f"macro_F1@{k}": sum(map(f1, labels)) / max(len(labels), 1),
        f"label_coverage@{k}": len(found_labels) / max(len(true_labels), 1),
    }


def slow_weight(count, n_train, a, b):
    scale = max(math.log(n_train) - 1, 0) * (b + 1) ** a
    return 1 + scale * (count + b) ** (-a)


def slow_propensity_scored(rows, rankings, k, counts, n_train, a, b):
    """(total, best) of PSP and of PSnDCG at k, summed over the rows."""
    psp, ndcg = np.zeros(2), np.zeros(2)
    for true, ranking in zip(rows, rankings):
        if not true:
            continue
        weights = {label: slow_weight(counts.get(label, 0), n_train, a, b) for label in true}
        got = [weights.get(label, 0) for label in ranking[:k]]
        best = sorted(weights.values(), reverse=True)[:k]
        ideal = sum(1 / math.log2(place + 2) for place in range(min(k, len(true))))
        for which, gains in enumerate((got, best)):
            psp[which] += sum(gains) / k
            ndcg[which] += sum(gain / math.log2(place + 2) for place, gain in enumerate(gains)) / ideal
    return psp, ndcg


@st.composite
def problems(draw):
    """True label lists (some empty) and rankings without duplicates (some places empty)."""
    n, n_labels, width = draw(st.integers(1, 12)), draw(st.integers(2, 9)), draw(st.integers(1, 7))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    rows = [rng.permutation(n_labels)[: rng.integers(0, n_labels)].tolist() for _ in range(n)]
    rankings = []
    for _ in range(n):
        ranking = rng.permutation(n_labels + 2)[:width].tolist()
        ranking += [None] * (width - len(ranking))
        rankings.append([None if rng.random() < 0.15 else label for label in ranking])
    return rows, rankings, width


def as_strings(rows):
    return [[None if label is None else f"l{label}" for label in row] for row in rows]


@settings(max_examples=60, deadline=None)
@given(problems(), st.booleans())
def test_evaluate_agrees_with_the_definitions(problem, strings):
    rows, rankings, width = problem
    if strings:
        rows, rankings = as_strings(rows), as_strings(rankings)
    ks = range(1, width + 1)
    result = evaluate(rows, rankings, ks=ks)
    assert result["n"] == len(rows)
    assert result["n_unlabelled"] == sum(not row for row in rows)
    for k in ks:
        expected = slow_row_means(rows, rankings, k) | slow_f1_and_coverage(rows, rankings, k)
        for name, value in expected.items():
            assert result[name] == pytest.approx(value, abs=1e-12), name


@settings(max_examples=40, deadline=None)
@given(problems(), st.integers(1, 500), st.floats(0.1, 2), st.floats(0.1, 5))
def test_propensity_scored_metrics_agree_with_the_definitions(problem, n_train, a, b):
    rows, rankings, width = problem
    counts = {label: (label * 7919) % (n_train + 1) for label in range(6)}  # the others were never seen
    given_counts = {"counts": counts, "n_train": n_train, "a": a, "b": b}
    result = evaluate(rows, rankings, range(1, width + 1), counts, n_train, a, b)
    seen = {label for label, count in counts.items() if count}
    assert result["n_unseen"] == sum(bool(row) and not seen & set(row) for row in rows)
    for k in range(1, width + 1):
        psp, ndcg = slow_propensity_scored(rows, rankings, k, **given_counts)
        for name, function, (total, best) in (("PSP", metrics.psp_at_k, psp), ("PSnDCG", metrics.psndcg_at_k, ndcg)):
            normalised = total / best if best else 0.0
            plain = function(rows, rankings, k, counts, n_train, a, b, normalize=False)
            assert result[f"{name}@{k}"] == pytest.approx(normalised, abs=1e-12)
            assert function(rows, rankings, k, counts, n_train, a, b) == pytest.approx(normalised, abs=1e-12)
            assert plain == pytest.approx(total / len(rows), abs=1e-12)


@settings(max_examples=25, deadline=None)
@given(problems())
def test_each_function_gives_what_evaluate_gives(problem):
    rows, rankings, k = problem
    result = evaluate(rows, rankings, ks=[k])
    functions = {
        "P": metrics.precision_at_k,
        "recall": metrics.recall_at_k,
        "nDCG": metrics.ndcg_at_k,
        "error": metrics.error_at_k,
        "micro_F1": metrics.micro_f1_at_k,
        "macro_F1": metrics.macro_f1_at_k,
        "label_coverage": metrics.label_coverage,
    }
    for name, function in functions.items():
        assert function(rows, rankings, k) == pytest.approx(result[f"{name}@{k}"], abs=1e-12)
    assert metrics.constant_accuracy(rows) == result["constant_P@1"]


@settings(max_examples=30, deadline=None)
@given(problems(), st.integers(1, 5))
def test_chunks_give_what_the_whole_gives(problem, chunk):
    rows, rankings, width = problem
    ks = range(1, width + 1)
    counts = np.arange(7)
    whole = evaluate(rows, rankings, ks, counts, 50)
    encoder = IdEncoder(LabelIndex(range(7)))
    scores = Scores(ks, counts, 50)
    for start in range(0, len(rows), chunk):
        part = slice(start, start + chunk)
        scores.update(encoder.targets(rows[part]), encoder.ranking(rankings[part]))
    result = scores.result()
    assert result.keys() == whole.keys()
    for name, value in whole.items():
        assert result[name] == pytest.approx(value, abs=1e-12), name


# ---- against scikit-learn


def random_ranking(n, n_labels, width, seed=0):
    rng = np.random.default_rng(seed)
    scores = rng.random((n, n_labels))
    return scores, np.argsort(-scores, axis=1)[:, :width], rng


@pytest.mark.parametrize("k", [1, 3, 5])
def test_ndcg_and_f1_agree_with_scikit_learn(k):
    scores, ranking, rng = random_ranking(200, 30, 5)
    truth = (rng.random((200, 30)) < 0.1).astype(int)
    assert (truth.sum(axis=1) == 0).any()  # rows without labels count as zero there as well
    assert metrics.ndcg_at_k(truth, ranking, k) == pytest.approx(ndcg_score(truth, scores, k=k))
    predicted = np.zeros_like(truth)
    np.put_along_axis(predicted, ranking[:, :k], 1, axis=1)
    for average, function in (("micro", metrics.micro_f1_at_k), ("macro", metrics.macro_f1_at_k)):
        assert function(truth, ranking, k) == pytest.approx(f1_score(truth, predicted, average=average))


@pytest.mark.parametrize("k", [1, 2, 5])
def test_error_and_macro_f1_of_single_labels_agree_with_scikit_learn(k):
    scores, ranking, rng = random_ranking(300, 40, 5)
    y = rng.integers(0, 35, 300)  # five labels are never true
    accuracy = top_k_accuracy_score(y, scores, k=k, labels=np.arange(40))
    assert metrics.error_at_k(y, ranking, k) == pytest.approx(1 - accuracy)
    assert metrics.recall_at_k(y, ranking, k) == pytest.approx(accuracy)
    if k == 1:
        assert metrics.macro_f1_at_k(y, ranking, 1) == pytest.approx(f1_score(y, ranking[:, 0], average="macro"))
        assert metrics.precision_at_k(y, ranking, 1) == pytest.approx((y == ranking[:, 0]).mean())


# ---- forms of input


def test_every_form_of_labels_gives_the_same_numbers():
    lists = [[0, 2], [1], [], [2]]
    top = np.array([[2, 1], [0, 1], [0, 1], [2, 0]])
    indicator = np.zeros((4, 3), dtype=int)
    for i, row in enumerate(lists):
        indicator[i, row] = 1
    expected = evaluate(lists, top, ks=(1, 2))
    for y in (indicator, sp.csc_matrix(indicator), sp.coo_array(indicator), pd.Series(lists)):
        assert evaluate(y, top, ks=(1, 2)) == expected
    for same in (top.tolist(), top.astype(np.uint16), top.astype(float), np.asfortranarray(top)):
        assert evaluate(lists, same, ks=(1, 2)) == expected
    targets = Targets(np.array([0, 2, 3, 3, 4]), np.array([0, 2, 1, 2], dtype=np.uint32))
    assert evaluate(targets, top, ks=(1, 2)) == expected


def test_a_missing_prediction_is_a_miss_however_it_is_marked():
    masked = np.ma.masked_array([[3, 99], [4, 5]], mask=[[False, True], [False, False]])
    for top in (
        masked,
        [[3], [4, 5]],
        [[3, None], [4, 5]],
        np.array([[3, None], [4, 5]], dtype=object),
        np.array([[3, np.nan], [4, 5]]),
    ):
        result = evaluate([[3, 99], [5]], top, ks=(1, 2))
        assert (result["P@1"], result["P@2"], result["recall@2"]) == (0.5, 0.5, 0.75)
        assert result["micro_F1@2"] == pytest.approx(2 * 2 / (3 + 3))
    strings = np.array([["cat", None], ["emu", "yak"]], dtype=object)
    assert metrics.error_at_k(["cat", "dog"], strings, 2) == 0.5


def test_the_answer_of_predict_topk_is_accepted_whole():
    class TopK:
        labels = np.array([["a", "b"]])
        scores = np.array([[0.9, 0.1]])

    assert metrics.precision_at_k(["b"], TopK(), 2) == 0.5


def test_labels_never_seen_in_training_count_as_misses():
    result = evaluate(["a", "new", "b"], [["a"], ["a"], ["b"]], label_counts={"a": 5, "b": 3}, n_train=8)
    assert result["P@1"] == pytest.approx(2 / 3)
    assert result["n_unseen"] == 1
    weights = 1 / metrics.propensities([5, 3, 0], 8)
    assert result["PSP@1"] == pytest.approx((weights[0] + weights[1]) / weights.sum())


def test_unlabelled_rows_stay_in_the_means_and_are_counted():
    result = evaluate([["a"], []], [["a"], ["a"]])
    assert result["n"] == 2
    assert result["n_unlabelled"] == 1
    assert result["P@1"] == result["recall@1"] == result["nDCG@1"] == result["error@1"] == 0.5
    nothing = evaluate([[], []], [[1], [2]], label_counts=[3, 3, 3], n_train=5)
    assert nothing["P@1"] == nothing["PSP@1"] == nothing["macro_F1@1"] == nothing["label_coverage@1"] == 0
    assert nothing["entropy_reduction"] == 0


def test_default_ks_are_those_there_are_columns_for():
    ranking = np.arange(8).reshape(2, 4)
    assert {"P@1", "P@3"} <= evaluate([0, 1], ranking).keys()
    assert "P@5" not in evaluate([0, 1], ranking)
    assert "P@5" in evaluate([0, 1], np.arange(12).reshape(2, 6))


def test_the_accumulator_takes_short_rankings_as_misses():
    targets = Targets(np.array([0, 1]), np.array([3], dtype=np.uint32))
    scores = Scores(ks=(1, 5))
    scores.update(targets, [[7, 3]])
    scores.update(targets, np.zeros((1, 0), dtype=np.int64))
    result = scores.result()
    assert result["P@1"] == 0
    assert result["P@5"] == pytest.approx(0.1)
    assert result["nDCG@5"] == pytest.approx(0.5 / math.log2(3))


def test_a_slice_of_targets_is_read_in_its_own_bounds():
    targets = Targets(np.array([0, 2, 3, 6]), np.array([1, 4, 0, 2, 3, 9], dtype=np.uint32))
    assert hits(targets[1:], [[0, 1], [9, 4]]).tolist() == [[True, False], [True, False]]
    assert evaluate(targets[1:], [[0, 1], [9, 4]], ks=[2])["recall@2"] == pytest.approx((1 + 1 / 3) / 2)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**32 - 1), st.sampled_from([10, 10**6, 2**32 - 2]))
def test_hits_agree_with_set_membership(seed, largest):
    rng = np.random.default_rng(seed)
    rows = [np.unique(rng.integers(0, largest, rng.integers(0, 30))) for _ in range(20)]
    indptr = np.concatenate(([0], np.cumsum([len(row) for row in rows])))
    targets = Targets(indptr, np.concatenate(rows).astype(np.uint32))
    ranking = np.array([rng.permutation([*row[:3], *range(-1, 7)])[:5] for row in rows], dtype=object)
    ranking = np.array([list(dict.fromkeys(row)) + [-1] * (5 - len(set(row))) for row in ranking], dtype=np.int64)
    expected = [[int(label) in set(true.tolist()) for label in row] for true, row in zip(rows, ranking)]
    assert hits(targets, ranking).tolist() == expected


# ---- refusals


@pytest.mark.parametrize(
    ("y_true", "top_labels", "k", "message"),
    [
        ([1, 2], [[1]], 1, "y_true has 2 rows, the predictions have 1"),
        ([1], [[1, 2]], 3, r"top_labels has 2 column\(s\), but k=3"),
        ([1], [[1, 2]], 0, "k must be an integer, 1 or more; got 0"),
        ([1], [[1, 2]], 1.0, "k must be an integer"),
        ([1], [[1, 2]], True, "k must be an integer"),
        ([], np.zeros((0, 3), dtype=int), 1, "nothing to evaluate"),
        ([1, 2], [1, 2], 1, "row 0 is 1"),
        (["ab", "c"], ["ab", "c"], 1, "row 0 is 'ab'"),
        ([1, 2], np.array([1, 2]), 1, r"predictions\[:, None\]"),
        (["1"], [[1]], 1, "top_labels has labels that are integers, but the other labels are strings"),
        ([1], [["1"]], 1, "top_labels has labels that are strings, but the other labels are integers"),
        ([1, 2], [[1, 2], [3, 3]], 1, "row 1 of top_labels has the same label twice"),
        ([1], [[0.5]], 1, "continuous"),
        ([1], np.array([[1j]]), 1, "dtype complex128"),
        ([1], [[1, "a"]], 1, "mixes strings and integers"),
        (["a"], [[b"a"]], 1, "bytes"),
        (None, [[1]], 1, "y to be passed"),
        (TopK(np.array([["a"]]), np.array([[1.0]])), ["a"], 1, "the true labels come first, then the predictions"),
    ],
)
def test_bad_input_is_refused_by_name(y_true, top_labels, k, message):
    for function in (metrics.precision_at_k, metrics.macro_f1_at_k):
        with pytest.raises(ValueError, match=message):
            function(y_true, top_labels, k)


def test_bad_counts_and_ids_are_refused():
    with pytest.raises(ValueError, match="both label_counts and n_train"):
        evaluate([1], [[1]], label_counts={1: 1})
    with pytest.raises(ValueError, match="label_counts has labels that are strings"):
        evaluate([1], [[1]], label_counts={"a": 1}, n_train=3)
    with pytest.raises(ValueError, match=r"label_counts has 9 at position 1; .* of the 5 training"):
        metrics.propensities([1, 9], 5)
    with pytest.raises(ValueError, match="label_counts has nan at position 0"):
        metrics.propensities([np.nan], 5)
    with pytest.raises(ValueError, match="must map labels to counts"):
        evaluate([1], [[1]], label_counts=[[1, 2]], n_train=3)
    with pytest.raises(ValueError, match="a and b must be positive"):
        metrics.propensities([1], 5, a=-1)
    with pytest.raises(ValueError, match="n_examples"):
        metrics.propensities([1], 0)
    targets = Targets(np.array([0, 1]), np.array([3], dtype=np.uint32))
    with pytest.raises(ValueError, match="by id"):
        evaluate(targets, [[3]], label_counts={3: 1}, n_train=3)
    with pytest.raises(ValueError, match="row 0 of the label ids has -2"):
        hits(targets, [[-2]])
    with pytest.raises(ValueError, match="matrix of integers"):
        hits(targets, [[0.5]])
    with pytest.raises(ValueError, match="sorted"):
        hits(Targets(np.array([0, 2]), np.array([3, 1], dtype=np.uint32)), [[1]])
    with pytest.raises(ValueError, match="ks is empty"):
        Scores(ks=())
    with pytest.raises(ValueError, match="nothing to evaluate"):
        Scores().result()


# ---- propensities, density, entropy reduction


def test_propensities_follow_the_paper():
    counts, n, a, b = np.array([0, 1, 10, 100]), 1000, 0.6, 2.6
    expected = [1 / slow_weight(count, n, a, b) for count in counts]
    np.testing.assert_allclose(metrics.propensities(counts, n, a, b), expected)
    assert (np.diff(metrics.propensities(counts, n)) > 0).all()
    assert metrics.propensities([0, 1, 2], 2).tolist() == [1, 1, 1]  # too few examples for anything to be missing


def test_count_labels_counts_rows():
    assert metrics.count_labels([["a", "a", "b"], [], ["a"]]) == {"a": 2, "b": 1}
    assert metrics.count_labels(np.array([3, 5, 3])) == {3: 2, 5: 1}
    assert metrics.count_labels([[], []]) == {}


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=30))
def test_perplexity_agrees_with_the_definition(probabilities):
    covered = [p for p in probabilities if p > 0]
    result = metrics.perplexity(probabilities)
    assert result.n == len(probabilities)
    assert result.coverage == len(covered) / len(probabilities)
    entropy = -sum(math.log2(p) for p in covered) / len(covered) if covered else math.inf
    with np.errstate(over="ignore"):
        assert result.perplexity == pytest.approx(np.exp2(entropy))
    with np.errstate(divide="ignore"):
        logarithms = np.log(probabilities)
    assert metrics.perplexity(logarithms, log=True) == pytest.approx(result)
    scores = DensityScores()
    for p in probabilities:
        scores.update([p])
    assert scores.result() == pytest.approx(result)


def test_perplexity_refuses_what_is_no_probability():
    for bad in (-0.1, 1.1, np.nan, np.inf):
        with pytest.raises(ValueError, match="position 1"):
            metrics.perplexity([0.5, bad])
    with pytest.raises(ValueError, match=r"position 0 has 0\.5"):
        metrics.perplexity([0.5], log=True)
    with pytest.raises(ValueError, match="shape"):
        metrics.perplexity([[0.5]])
    with pytest.raises(ValueError, match="nothing to evaluate"):
        metrics.perplexity([])
    assert metrics.perplexity([np.float32(1.0000001)]).perplexity == pytest.approx(1)


def test_entropy_reduction_compares_with_the_best_constant():
    y = ["a", "a", "a", "b"]
    result = evaluate(y, [["a"], ["a"], ["b"], ["b"]])
    assert result["constant_P@1"] == 0.75
    assert result["entropy_reduction"] == pytest.approx(math.log2(0.75) - math.log2(0.75))
    assert evaluate(y, [[label] for label in y])["entropy_reduction"] == pytest.approx(-math.log2(0.75))
    assert evaluate(y, [["c"]] * 4)["entropy_reduction"] == -math.inf
    with pytest.raises(ValueError, match="between 0 and 1"):
        metrics.entropy_reduction(1.2, 0.5)
