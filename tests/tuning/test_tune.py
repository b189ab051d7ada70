"""The search over models and settings: candidates, limits, Ctrl-C, resuming, and the command."""

from __future__ import annotations

import itertools
import json
import signal
import sys
import threading
import time
from contextlib import suppress
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.sparse as sp
from click.testing import CliRunner

import treemax
from treemax import tuning
from treemax.cli.main import commands
from treemax.extras import MissingExtra
from treemax.models import MODELS
from treemax.text.vectorizers import holds_texts
from treemax.tuning import parse_metric
from treemax.tuning import search as search_module
from treemax.tuning.data import TuningData, sample_sizes
from treemax.tuning.result import Record, table_lines
from treemax.tuning.spaces import (
    COMMON_CHANGES,
    SMALLER_CHANGES,
    SPACES,
    TEXT_CHANGES,
    TEXT_SPACES,
    VECTORIZERS,
    Setting,
    applicable,
    as_trial,
    choices,
    neighbour,
    suggest,
)
from treemax.tuning.training import Trainer
from treemax.tuning.watch import SearchInterrupted, TimeLimitExceeded, Watch

optuna = pytest.importorskip("optuna")

WORDS = {"fruit": "apple pear plum ripe", "car": "wheel motor road fast", "sea": "wave salt fish deep"}


def some_texts(n_rows: int = 150, noise: float = 0.3) -> tuple[list[str], list[str]]:
    """Texts of three classes, with words of the others in them, so that no model is perfect."""
    random = np.random.default_rng(0)
    texts, labels = [], []
    for _ in range(n_rows):
        label = str(random.choice(list(WORDS)))
        sources = [str(random.choice(list(WORDS))) if random.random() < noise else label for _ in range(3)]
        texts.append(" ".join(str(random.choice(WORDS[source].split())) for source in sources))
        labels.append(label)
    return texts, labels


def some_rows(n_rows: int = 150) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(1)
    y = random.integers(4, size=n_rows)
    return (np.eye(4)[y] + 0.5 * random.normal(size=(n_rows, 4))).astype(np.float32), y


@pytest.fixture(autouse=True)
def one_comparison(request, monkeypatch):
    """What wins on the first rows held out wins, but for the tests of the comparison at the end."""
    if "confirm" not in request.node.name:
        monkeypatch.setattr(search_module, "FOLDS", 0)


def quick(X, y, **options):
    """A search of few trials that ends for no other reason."""
    return treemax.tune(X, y, **{"max_trials": 3, "models": ["label-tree"], "verbose": 0, **options})


# --- what is tried -------------------------------------------------------------------------------------


def test_defaults_come_first_and_nothing_below_the_best_of_them_wins():
    X, y = some_rows()
    result = treemax.tune(X, y, max_trials=8, verbose=0)
    lines = [(line["model"], line["parameters"]) for line in result.table]
    assert lines[: len(SPACES)] == [(name, {}) for name in SPACES]  # dense rows, one label each: all of them
    assert len(lines) == 8 and lines[-1][1] != {}
    values = [line["value"] for line in result.table]
    assert result.best["value"] == max(values) and result.best in result.table
    assert result.refitted and not result.interrupted
    assert result.model.n_examples_ == len(X)
    assert type(result.model) is MODELS[result.best["model"]]
    for name, value in result.best["parameters"].items():
        assert result.model.get_params()[name] == value


def test_the_best_are_confirmed_on_other_rows_together_with_the_best_default(monkeypatch):
    """Results on other rows are made up: there, the best default is better than what won in the search."""
    fitted = Trainer.fitted
    searched = TuningData(*some_rows(), 0).held.tolist()

    def made_up(self, setting, size):
        found = fitted(self, setting, size)
        if self.data.held.tolist() == searched:
            return found._replace(value=len(str(setting)) / 1000)
        assert not set(self.data.held) & set(searched)
        return found._replace(value=0.5 if setting.is_default else 0.25)

    monkeypatch.setattr(Trainer, "fitted", made_up)
    result = quick(*some_rows(), max_trials=7)
    assert result.best["parameters"] == {} and result.best["confirmed"] == 0.5 and result.refitted
    by_value = sorted(result.table, key=lambda line: line["value"], reverse=True)
    compared = [line for line in result.table if line["confirmed"] is not None]
    assert [line["number"] for line in by_value[:3]] + [0] == sorted(
        (line["number"] for line in compared), key=lambda number: -result.table[number]["value"]
    )
    assert "0.5000" in list(table_lines(result.table, result.metric))[1]


def test_interrupt_while_the_best_are_confirmed_keeps_the_best_so_far(monkeypatch):
    interrupt_at(monkeypatch, 5)  # one to compile, and four settings
    result = quick(*some_rows(), max_trials=4)
    assert result.interrupted and not result.refitted
    assert result.best["value"] == max(line["value"] for line in result.table)


def test_texts_give_a_model_of_texts_and_search_the_vectoriser(tmp_path):
    texts, y = some_texts()
    result = quick(texts, y, max_trials=8)
    assert isinstance(result.model, treemax.TextModel)
    assert {"tfidf", "hashing"} == {line["text"] for line in result.table}
    assert any(line["text_parameters"] for line in result.table)
    result.model.save(tmp_path / "model.treemax")
    loaded = treemax.load(tmp_path / "model.treemax")
    assert loaded.predict(texts[:5]).tolist() == result.model.predict(texts[:5]).tolist()


@pytest.mark.parametrize("kind", ["list", "array", "objects", "pandas", "polars", "pyarrow"])
def test_texts_come_in_many_forms(kind):
    texts, _ = some_texts()
    if kind in ("pandas", "polars"):
        module = pytest.importorskip(kind)
        forms = {kind: module.Series(texts)}
        assert not holds_texts(module.DataFrame({"number": [1.0, 2.0]}))
    elif kind == "pyarrow":
        module = pytest.importorskip(kind)
        forms = {kind: module.array(texts)}
        assert not holds_texts(module.table({"number": [1.0, 2.0]}))
    else:
        forms = {"list": texts, "array": np.array(texts), "objects": np.array(texts, dtype=object)}
    assert holds_texts(forms[kind])
    assert TuningData(forms[kind], some_texts()[1], 0).texts == texts


@pytest.mark.parametrize("kind", ["lists", "indicator", "sparse rows"])
def test_several_labels_a_row(kind):
    X, y = some_rows()
    lists = [[int(label), 4] for label in y]
    indicator = sp.csr_matrix(np.eye(5, dtype=int)[y] + np.eye(5, dtype=int)[np.full(len(y), 4)])
    result = quick(
        sp.csr_matrix(X) if kind == "sparse rows" else X,
        indicator if kind == "indicator" else lists,
        models=["label-tree", "one-vs-all"],
    )
    assert result.metric == "P@5"
    assert result.best["value"] == pytest.approx(0.4)  # two of five places, when both labels are found
    assert sp.issparse(result.model.predict(X[:3])) == (kind == "indicator")


def test_metric_is_that_of_the_rows_held_out():
    texts, y = some_texts()
    result = quick(texts, y, max_trials=1, metric="p@1")
    data = TuningData(texts, y, 0)
    X, labels = data.sample(data.n_train)
    model = treemax.TextModel(treemax.TfidfText(), treemax.LabelTree(verbose=0)).fit(X, labels)
    assert result.metric == "P@1"
    assert result.best["value"] == pytest.approx(model.score(data.held_X, data.held_labels))


@pytest.mark.parametrize("metric", ["PSP@3", "ndcg@2", "MACRO-f1", "micro-F1", "macro_f1@1"])
def test_every_metric_can_be_maximised(metric):
    X, y = some_rows()
    for labels in (y, [[label, label + 4] for label in y.tolist()]):
        result = quick(X, labels, metric=metric, max_trials=2)
        assert 0 < result.best["value"] <= 1


def test_macro_f1_is_of_what_predict_answers():
    X, y = some_rows()
    lists = [[int(label)] for label in y]
    result = quick(X, lists, metric="macro-F1", max_trials=1)
    data = TuningData(X, lists, 0)
    model = treemax.LabelTree(verbose=0).fit(*data.sample(data.n_train))
    answers = model.predict(data.held_X)
    per_label = []
    for label in range(4):
        true = np.array([label in row for row in data.held_labels])
        found = np.array([label in row for row in answers])
        per_label.append(2 * (true & found).sum() / (true.sum() + found.sum()))
    assert result.best["value"] == pytest.approx(np.mean(per_label))


def test_bad_metrics_are_refused_with_the_good_ones():
    for metric in ("accuracy", "P", "P@0", "P@x", "", "@5", "F1"):
        with pytest.raises(ValueError, match=r"metric must be P@k, PSP@k, nDCG@k, macro-F1 or micro-F1"):
            parse_metric(metric)


def test_the_same_trials_give_the_same_table_and_model(monkeypatch):
    """What takes less time is tried first, so that the clock has to be the same, too."""
    ticks = itertools.count()
    for module in (tuning.training, tuning.data):
        monkeypatch.setattr(module, "time", SimpleNamespace(perf_counter=lambda: next(ticks) / 1024))
    texts, y = some_texts()
    first, second = (quick(texts, y, models=None, max_trials=12) for _ in range(2))
    for timed in ("seconds", "us"):
        for line in first.table + second.table:
            del line[timed]
    assert first.table == second.table
    probabilities = (result.model.predict_proba(texts[:10]) for result in (first, second))
    assert np.array_equal(*probabilities)
    other = quick(texts, y, models=None, max_trials=12, random_state=1)
    assert [line["value"] for line in other.table] != [line["value"] for line in first.table]


def test_no_setting_is_tried_twice_and_the_search_ends_when_all_are(monkeypatch):
    monkeypatch.setitem(SPACES, "label-tree", {"n_trees": (1, 2), "beam": (10, 20)})
    monkeypatch.setitem(COMMON_CHANGES, "label-tree", ())
    X, y = some_rows()
    result = quick(X, y, max_trials=None, minutes=5)
    settings = [json.dumps(line["parameters"], sort_keys=True) for line in result.table]
    assert len(settings) == len(set(settings)) == 4


def test_samples_grow_and_poor_settings_stop_early(monkeypatch):
    monkeypatch.setattr("treemax.tuning.data.LEAST_SAMPLE", 10)
    monkeypatch.setattr(search_module, "CHEAP", 0.0)
    X, y = some_rows(300)
    result = quick(X, y, models=["one-vs-all"], max_trials=10)
    sizes = sample_sizes(240)
    assert sizes == [26, 80, 240] and len(TuningData(X, y, 0).held) == 60
    assert {line["rows"] for line in result.table} <= set(sizes)
    stopped = [line for line in result.table if line["status"] == "stopped early"]
    assert stopped and all(line["rows"] < 240 for line in stopped)
    assert result.table[0]["status"] == "done" and result.table[0]["rows"] == 240  # a default is not stopped


def test_rows_held_out_are_in_no_sample():
    _, y = some_rows()
    data = TuningData(np.arange(len(y), dtype=np.float32)[:, None], y, 0)
    rows, labels = data.sample(data.n_train)
    assert sorted([*rows[:, 0], *data.held_X[:, 0]]) == list(range(len(y)))
    assert np.asarray(labels).tolist() == y[rows[:, 0].astype(int)].tolist()
    smaller, _ = data.sample(20)
    assert set(smaller[:, 0]) < set(rows[:, 0])


@pytest.mark.parametrize("kind", ["texts", "rows"])
def test_weights_are_those_of_training(kind):
    X, y = some_texts() if kind == "texts" else some_rows()
    weights = np.random.default_rng(0).choice([0.0, 1.0, 3.0], len(y))
    kept = np.flatnonzero(weights)
    data = TuningData(X, y, 0, weights)
    assert data.n_rows == len(kept), "rows of weight zero are neither trained on nor held out"
    own = {str(X[i]): weights[i] for i in kept} if kind == "rows" else None
    rows, _ = data.sample(30)
    if own is not None:
        assert [own[str(row)] for row in rows] == data.sample_weights(30).tolist()
    options = {"models": ["one-vs-all"], "max_trials": 1}
    found = quick(X, y, sample_weight=weights, **options)
    expected = type(found.model)(**found.model.get_params(deep=False)).fit(X, y, sample_weight=weights)
    np.testing.assert_array_equal(found.model.predict_proba(X[:9]), expected.predict_proba(X[:9]))
    unweighted = quick(X, y, **options)
    assert not np.array_equal(found.model.predict_proba(X[:9]), unweighted.model.predict_proba(X[:9]))


def test_class_weights_of_training():
    texts, labels = some_texts()
    first = labels[0]
    for class_weight in ("balanced", {first: 40.0}):
        found = quick(texts, labels, class_weight=class_weight, models=["one-vs-all"], max_trials=1).model
        expected = treemax.TextModel(estimator=treemax.OneVsAll(verbose=0, class_weight=class_weight)).fit(
            texts, labels
        )
        np.testing.assert_array_equal(found.predict_proba(texts[:9]), expected.predict_proba(texts[:9]))
    assert found.predict_proba_of([""], [first])[0, 0] > 0.5, "frequencies are not weighted"
    with pytest.raises(ValueError, match="'unknown', which is not in y"):
        quick(texts, labels, class_weight={"unknown": 2.0}, models=["one-vs-all"])
    with pytest.raises(ValueError, match="class_weight"):
        quick(texts, labels, class_weight=3, models=["one-vs-all"], max_trials=1)


def test_class_weights_of_samples_and_of_studies():
    """A small sample may lack labels that have a weight, and a study resumes only with the same weights."""
    X, y = np.eye(60), [["often"]] * 58 + [["seldom"], ["once", "often"]]
    data = [TuningData(X, y, 0, None, weights) for weights in (None, "balanced", {"once": 2.0}, {"once": 3.0})]
    assert len({each.fingerprint() for each in data}) == 4
    few = data[2].sample(3)[1]
    assert few.values.tolist() == ["often"] * 3 and data[2].class_weight_of(few) == {}
    assert data[2].class_weight_of(data[2].labels) == {"once": 2.0} == data[2].class_weight
    found = Trainer(data[2], SimpleNamespace(top=1, value=lambda *_: 1.0), 1, 0).fitted(Setting("one-vs-all"), 3)
    assert found.model.classes_.tolist() == ["often"]


# --- spaces --------------------------------------------------------------------------------------------


def test_spaces_name_parameters_and_values_that_models_take():
    for name, space in SPACES.items():
        for parameter, values in choices(MODELS[name], space).items():
            assert values[0] == MODELS[name]().get_params()[parameter]
            for value in values:
                MODELS[name](**{parameter: value})._check_parameters()
    for name, space in TEXT_SPACES.items():
        for parameter, values in space.items():
            for value in values:
                VECTORIZERS[name](**{parameter: value}).fit(["a text of words"] * 9)
    known = [*COMMON_CHANGES.items(), *SMALLER_CHANGES.items()]
    tried = [(SPACES[name], change) for name, changes in known for change in changes]
    tried += [(TEXT_SPACES[kind], change) for kind, change in TEXT_CHANGES]
    assert all(value in space[name] for space, change in tried for name, value in change.items())


def test_settings_go_through_optuna_and_json_unchanged():
    random = np.random.default_rng(0)
    setting = Setting("label-tree", {}, "hashing")
    for _ in range(50):
        setting = neighbour(setting, random)
        again = suggest(optuna.trial.FixedTrial(as_trial(setting)), list(SPACES), texts=True)
        line = json.loads(json.dumps(Record(again).line(0)))
        assert Record.from_line(line).setting == again
        assert suggest(optuna.trial.FixedTrial(as_trial(again)), list(SPACES), texts=True).key == again.key


def test_models_suit_the_data():
    dense = np.zeros((1, 1), dtype=np.float32)
    assert set(applicable(None, dense, multi_label=False)) == set(SPACES)
    assert not {"softmax-tree", "softmax-forest"} & set(applicable(None, None, multi_label=False))
    assert not {"recall-tree", "softmax-tree"} & set(applicable(None, dense, multi_label=True))
    assert applicable(["lom-tree"], None, multi_label=False) == ["lom-tree"]
    with pytest.raises(ValueError, match="unknown model forest; choose from label-tree"):
        applicable(["forest"], dense, multi_label=False)
    with pytest.raises(ValueError, match="recall-tree support one label per row"):
        applicable(["recall-tree"], dense, multi_label=True)


# --- limits, failures, time ----------------------------------------------------------------------------


def test_limit_on_the_file_is_kept(tmp_path):
    X, y = some_rows()
    free = quick(X, y, max_trials=6)
    sizes = sorted(line["mb"] for line in free.table)
    limit = sizes[0] * len(X) / 120 * 1.001
    assert sizes[-1] > limit  # otherwise nothing is tested
    small = quick(X, y, max_trials=6, max_mb=limit)
    small.model.save(tmp_path / "model.treemax")
    assert (tmp_path / "model.treemax").stat().st_size <= 1e6 * limit
    assert any(line["status"] == "above the limits" for line in small.table)
    assert small.best["status"] == "done"


def test_a_limit_below_the_defaults_is_met_by_smaller_models():
    random = np.random.default_rng(0)
    X = sp.random(300, 2000, 0.05, format="csr", dtype=np.float32, random_state=0)
    y = random.integers(20, size=300)
    default = quick(X, y, max_trials=1).best["mb"]
    result = quick(X, y, max_trials=6, max_mb=default)  # and the model of all rows would be larger
    assert result.table[0]["status"] == "above the limits"
    assert result.best["parameters"] and result.best["mb"] < default and result.best["status"] == "done"


def test_size_in_the_table_is_that_of_the_file(tmp_path):
    texts, y = some_texts()
    data = TuningData(texts, y, 0)
    result = quick(texts, y, max_trials=1)
    X, labels = data.sample(data.n_train)
    model = treemax.TextModel(treemax.TfidfText(), treemax.LabelTree(verbose=0)).fit(X, labels)
    model.save(tmp_path / "model.treemax")
    assert 1e6 * result.table[0]["mb"] == (tmp_path / "model.treemax").stat().st_size


def test_a_model_that_is_too_large_after_all_is_not_given(monkeypatch):
    """The size of models of all rows is made up: the best one is too large, the next is not."""
    sizes = iter([10**9, 10])
    X, y = some_rows()
    monkeypatch.setattr(search_module, "saved_bytes", lambda model: next(sizes))
    result = quick(X, y, max_mb=1.0)
    values = sorted((line["value"] for line in result.table), reverse=True)
    assert result.refitted and result.best["value"] == values[1]
    monkeypatch.setattr(search_module, "saved_bytes", lambda model: 10**9)
    kept = quick(X, y, max_mb=1.0)
    assert not kept.refitted and kept.best["value"] == values[0] and kept.model.n_examples_ == 120


def test_limits_that_nothing_keeps_are_an_error_with_figures():
    X, y = some_rows()
    with pytest.raises(ValueError, match=r"within the limits \(max_mb=1e-06, max_us=None\): the smallest file"):
        quick(X, y, max_mb=1e-6)
    with pytest.raises(ValueError, match="the fastest prediction took"):
        quick(X, y, max_us=1e-6)


def test_a_setting_that_fails_is_recorded_and_the_search_goes_on(monkeypatch):
    fitted = Trainer.fitted

    def failing(self, setting, size):
        if setting.model == "one-vs-all":
            raise MemoryError("too many labels")
        return fitted(self, setting, size)

    monkeypatch.setattr(Trainer, "fitted", failing)
    X, y = some_rows()
    result = quick(X, y, models=["one-vs-all", "label-tree"])
    assert result.table[0]["status"] == "failed: MemoryError: too many labels"
    assert result.table[0]["value"] is None and result.best["model"] == "label-tree"
    with pytest.raises(ValueError, match=r"All settings failed; the first, one-vs-all: failed: MemoryError"):
        quick(X, y, models=["one-vs-all"])


def test_a_training_is_ended_when_its_time_is_over():
    def forever():
        while True:
            time.sleep(0.01)

    with Watch(60) as watch:
        with pytest.raises(TimeLimitExceeded):
            watch.run(forever, limit=0.05)
        assert not watch.stopped
        assert watch.run(lambda: 7, limit=60) == 7  # and the next one is not


def test_an_interrupt_lost_in_a_callback_is_repeated_without_a_traceback(capfd, monkeypatch):
    class Slow:
        def __del__(self):
            time.sleep(0.2)  # where Python prints and ignores exceptions

    def forever():
        Slow()
        while True:
            time.sleep(0.01)

    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)
    with Watch(60) as watch, pytest.raises(TimeLimitExceeded):
        watch.run(forever, limit=0.05)
    assert sys.unraisablehook is sys.__unraisablehook__ and capfd.readouterr().err == ""


def test_the_search_ends_in_time_with_a_model(monkeypatch):
    """A clock that runs ahead: every training seems to take a minute."""
    started, calls = time.monotonic(), []
    fitted = Trainer.fitted

    def slow(self, setting, size):
        calls.append(setting)
        return fitted(self, setting, size)._replace(seconds=60.0)

    monkeypatch.setattr(Trainer, "fitted", slow)
    monkeypatch.setattr(time, "monotonic", lambda: started + 60.0 * len(calls))
    X, y = some_rows()
    result = quick(X, y, max_trials=None, minutes=10)
    # Each of at most (10 - 1.5) trainings leaves room to train the best once more.
    assert 4 <= len(result.table) <= 9 and result.refitted


def test_tables_of_numbers_are_no_texts():
    for X in ([[1.0]], np.ones((2, 2)), sp.eye(3), np.array([]), "text", 3):
        assert not holds_texts(X)


def test_too_little_data_is_refused():
    with pytest.raises(ValueError, match="tune needs at least 20 rows, got 3"):
        quick([[1.0], [2.0], [3.0]], [0, 1, 0])
    with pytest.raises(ValueError, match="X has 150 rows, y has 149"):
        quick(some_rows()[0], some_rows()[1][1:])
    with pytest.raises(ValueError, match="no labels at all"):
        quick(some_rows()[0], [[] for _ in range(150)])
    for name, value in (("minutes", 0), ("max_mb", -1), ("max_us", 0), ("max_trials", 0), ("random_state", None)):
        with pytest.raises(ValueError, match=f"{name} must be"):
            quick(*some_rows(), **{name: value})


# --- Ctrl-C and going on -------------------------------------------------------------------------------


def interrupt_at(monkeypatch, number: int) -> None:
    """Ctrl-C during the training with this number, from 0."""
    fitted, calls = Trainer.fitted, []

    def interrupted(self, setting, size):
        calls.append(setting)
        if len(calls) == number + 1:
            signal.raise_signal(signal.SIGINT)
            time.sleep(1)
        return fitted(self, setting, size)

    monkeypatch.setattr(Trainer, "fitted", interrupted)


def test_interrupt_keeps_the_best_so_far(monkeypatch):
    X, y = some_rows()
    handler = signal.getsignal(signal.SIGINT)
    whole = quick(X, y, max_trials=4)
    interrupt_at(monkeypatch, 4)  # the first is to compile
    result = quick(X, y, max_trials=10)
    assert result.interrupted and not result.refitted
    assert [line["status"] for line in result.table] == ["done"] * 3 + ["interrupted"]
    assert result.best["value"] == max(line["value"] for line in whole.table[:3])
    assert result.model.n_examples_ == result.best["rows"] == 120
    assert signal.getsignal(signal.SIGINT) is handler


def test_interrupt_among_the_defaults_records_them_all_and_they_are_tried_again(tmp_path, monkeypatch):
    monkeypatch.setattr("treemax.tuning.data.LEAST_SAMPLE", 10)
    X, y = some_rows()
    options = {"models": ["label-tree", "one-vs-all"], "study": tmp_path / "a.study", "max_trials": 2}
    with monkeypatch.context() as patch:
        interrupt_at(patch, 3)  # each model once to compile, and once on the first sample
        first = quick(X, y, **options)
    assert first.interrupted and [line["status"] for line in first.table] == ["interrupted"] * 2
    assert first.best == first.table[0] and first.model.n_examples_ == first.best["rows"] < 120
    second = quick(X, y, **options)
    assert [(line["model"], line["status"]) for line in second.table[2:]] == [
        ("label-tree", "done"), ("one-vs-all", "done"),
    ]  # fmt: skip


def test_interrupt_before_there_is_a_model_is_an_interrupt(monkeypatch):
    interrupt_at(monkeypatch, 0)
    with pytest.raises(KeyboardInterrupt, match="before there was a model"):
        quick(*some_rows())


def test_interrupt_of_the_last_training_keeps_the_model_of_the_search(monkeypatch):
    def interrupted(self, setting, verbose):
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Trainer, "fitted_on_all", interrupted)
    result = quick(*some_rows())
    assert result.interrupted and not result.refitted and result.model.n_examples_ == 120


def test_the_clock_of_a_search_stops_while_kernels_are_compiled(monkeypatch):
    compiled = [7.0]
    monkeypatch.setattr("treemax.tuning.watch.seconds_of_compiling", lambda: compiled[0])
    watch = Watch(60)
    compiled[0] += 50
    assert watch.elapsed < 0 and watch.remaining > 60


def test_a_trial_is_not_interrupted_while_kernels_are_compiled(monkeypatch):
    """Numba's compiler would lose the exception in a callback, and fail later."""
    start, compiling = time.monotonic(), 0.5

    def compiled():
        return min(time.monotonic() - start, compiling)

    monkeypatch.setattr("treemax.tuning.watch.seconds_of_compiling", compiled)
    monkeypatch.setattr("treemax.tuning.watch.is_compiling", lambda: compiled() < compiling)
    with Watch(60) as watch:
        watch.run(lambda: [time.sleep(0.01) for _ in range(30)], limit=0.05)
        with pytest.raises(TimeLimitExceeded):
            watch.run(lambda: [time.sleep(0.01) for _ in range(1000)], limit=0.05)
        assert compiling < time.monotonic() - start < 5


def test_an_error_after_an_interrupt_was_lost_in_a_callback_is_an_interrupt():
    def fail():
        raise RuntimeError("no compiled object yet")

    def lose_an_interrupt():
        with suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        fail()

    with Watch(60) as watch, pytest.raises(SearchInterrupted):
        watch.run(lose_an_interrupt)
    with Watch(60) as watch, pytest.raises(RuntimeError):
        watch.run(fail)


def test_interrupt_between_trainings_is_noted_and_a_second_one_ends_all():
    with Watch(60) as watch:
        signal.raise_signal(signal.SIGINT)
        assert watch.stopped
        with pytest.raises(SearchInterrupted):
            watch.run(lambda: None)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)


def test_a_search_outside_of_the_main_thread():
    found = []
    thread = threading.Thread(target=lambda: found.append(quick(*some_rows())))
    thread.start()
    thread.join()
    assert len(found) == 1 and found[0].refitted


def test_a_study_goes_on_where_it_stood(tmp_path):
    X, y = some_rows()
    path = tmp_path / "a.study"
    first = quick(X, y, study=path)
    second = quick(X, y, study=path, max_trials=2)
    assert second.table[:3] == first.table and len(second.table) == 5
    settings = [json.dumps(line["parameters"], sort_keys=True) for line in second.table]
    assert len(set(settings)) == 5
    assert second.best["value"] >= first.best["value"]


def test_a_study_of_another_search_is_refused(tmp_path):
    X, y = some_rows()
    path = tmp_path / "a.study"
    quick(X, y, study=path)
    with pytest.raises(ValueError, match="a search with other data"):
        quick(X + 1, y, study=path)
    with pytest.raises(ValueError, match="a search with other data"):
        quick(X, (y + 1) % 4, study=path)
    with pytest.raises(ValueError, match=r"a search with other metric \('P@1', now 'nDCG@3'\)"):
        quick(X, y, study=path, metric="nDCG@3")
    with pytest.raises(ValueError, match="a search with other models"):
        quick(X, y, study=path, models=["one-vs-all"])
    (tmp_path / "b.study").write_text("this is no study\n")
    with pytest.raises(ValueError, match=r"b\.study is not the study of a search"):
        quick(X, y, study=tmp_path / "b.study")


def test_interrupt_of_a_search_that_goes_on_trains_the_best_of_before(tmp_path, monkeypatch):
    X, y = some_rows()
    path = tmp_path / "a.study"
    first = quick(X, y, study=path)
    interrupt_at(monkeypatch, 0)
    second = quick(X, y, study=path)
    assert second.interrupted and second.refitted
    assert second.best == first.best and second.model.n_examples_ == len(X)


def test_missing_optuna_is_said_before_anything_else(monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingExtra, match=r"tune needs optuna: pip install 'treemax\[tune\]'"):
        treemax.tune([[1.0]], [1])


# --- lines and the command -----------------------------------------------------------------------------


def test_lines_tell_what_was_found():
    texts, y = some_texts()
    lines: list[str] = []
    result = quick(texts, y, verbose=1, report=lines.append)
    assert "P@1" in lines[0] and "label-tree text=tfidf" in lines[0]
    assert lines[-1].startswith("The model was trained on all 150 rows: label-tree")
    table = list(table_lines(result.table, result.metric, most=2))
    assert len(table) == 3 and f"{result.best['value']:.4f}" in table[1]
    every: list[str] = []
    quick(texts, y, verbose=2, report=every.append)
    assert len([line for line in every if "(done)" in line]) == 3


def command(*arguments: object):
    result = CliRunner().invoke(commands, ["tune", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
    return result


@pytest.fixture
def data(tmp_path):
    lines = [f"__label__{label} {text}" for text, label in zip(*some_texts())]
    (tmp_path / "train.txt").write_text("\n".join(lines) + "\n")
    return tmp_path / "train.txt"


def test_command_writes_an_ordinary_model_and_goes_on(data, tmp_path):
    model = tmp_path / "model.treemax"
    options = ("-o", model, "--models", "label-tree, one-vs-all", "--metric", "ndcg@3", "--max-trials", 3)
    first = command(data, *options)
    assert first.exit_code == 0, first.stderr
    assert "nDCG@3" in first.stdout and "label-tree" in first.stdout
    assert "trained on all 150 rows" in first.stderr
    assert len(treemax.load(model).predict(["a ripe apple"])) == 1

    again = command(data, *options)
    assert again.exit_code == 2 and "resume it with --resume" in again.stderr
    more = command(data, *options, "--resume", "--json", "--max-mb", 50, "--max-us", 100000)
    assert more.exit_code == 0, more.stderr
    facts = json.loads(more.stdout)
    assert len(facts["table"]) == 6 and facts["best"] in facts["table"] and facts["refitted"]

    (tmp_path / "model.treemax.study").unlink()
    nothing = command(data, *options, "--resume")
    assert nothing.exit_code == 2 and "no " in nothing.stderr


def test_command_uses_the_weights_of_the_file(tmp_path):
    texts, labels = some_texts()
    weights = [float(i % 3) for i in range(len(texts))]
    lines = [
        json.dumps({"text": t, "label": label, "weight": weight}) for t, label, weight in zip(texts, labels, weights)
    ]
    (tmp_path / "train.jsonl").write_text("\n".join(lines) + "\n")
    model = tmp_path / "model.treemax"
    found = command(tmp_path / "train.jsonl", "-o", model, "--models", "one-vs-all", "--max-trials", 1)
    assert found.exit_code == 0, found.stderr
    expected = treemax.TextModel(estimator=treemax.OneVsAll(verbose=0)).fit(texts, labels, sample_weight=weights)
    np.testing.assert_array_equal(treemax.load(model).predict_proba(texts[:9]), expected.predict_proba(texts[:9]))


def test_command_takes_class_weights(data, tmp_path):
    model = tmp_path / "model.treemax"
    options = "-o", model, "--models", "one-vs-all", "--max-trials", 1
    found = command(data, *options, "--class-weight", "balanced")
    assert found.exit_code == 0 and treemax.load(model).estimator.class_weight == "balanced", found.stderr
    refused = command(data, *options, "--class-weight", "{'none such': 2}", "--resume")
    assert refused.exit_code == 1 and "none such" in refused.stderr


def test_command_keeps_the_best_after_an_interrupt(data, tmp_path, monkeypatch):
    interrupt_at(monkeypatch, 3)
    model = tmp_path / "model.treemax"
    result = command(data, "-o", model, "--models", "label-tree", "--max-trials", 9)
    assert result.exit_code == 130
    assert "Interrupted; " in result.stderr and "is the best so far, trained on 120 rows" in result.stderr
    assert treemax.load(model).n_examples_ == 120


def test_command_refuses_in_words(data, tmp_path, monkeypatch):
    model = tmp_path / "model.treemax"
    for arguments, complaint in (
        (("--metric", "accuracy"), "metric must be P@k"),
        (("--models", "forest"), "unknown model forest"),
    ):
        result = command(data, "-o", model, *arguments)
        assert result.exit_code == 1 and complaint in result.stderr
    monkeypatch.setitem(sys.modules, "optuna", None)
    result = command(data, "-o", model)
    assert result.exit_code == 1 and "pip install 'treemax[tune]'" in result.stderr
    assert not model.exists() and [file.name for file in tmp_path.iterdir()] == ["train.txt"]
