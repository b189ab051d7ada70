"""The benchmark harness without peers: statistics, data recipes, and the runner with synthetic drivers.

`environments._call` is replaced to simulate a failed installation.
"""

from __future__ import annotations

import doctest
import gzip
import importlib
import json
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks import FOLDER
from benchmarks import __main__ as command
from benchmarks.experiments import compare, sizes, tao_reference, time_of_choices
from benchmarks.harness import accuracy, environments, measure, recipes, report, runner, suites, systems
from benchmarks.make_data import kconfig, manuals, parameters, splits, verses

DRIVER_FUNCTIONS = ("load", "train", "save", "restore", "rows", "single", "predict_one", "predict_batch", "labels")

FAKE_DRIVER = """
import json, os, time

ENVIRONMENT = "project"
SYSTEMS = {"fake": {"mood": "good"}}

def prepare(data, settings):
    data.write_lines("fake.txt", (f"{label}\\n" for label in data.labels("train")[0]))

def load(data, settings):
    return (data.folder / "fake.txt").read_text().split()

def train(inputs, settings, folder):
    if settings["mood"] == "error":
        raise RuntimeError("no wish to learn")
    if settings["mood"] == "crash":
        os.abort()
    if settings["mood"] == "slow":
        time.sleep(60)
    return max(set(inputs), key=inputs.count)

def save(model, folder):
    (folder / "model.json").write_text(json.dumps(int(model)))

def restore(folder, data, settings):
    return json.loads((folder / "model.json").read_text())

def rows(model, data, settings):
    return list(data.pairs("test"))

def single(rows, i):
    return rows[i]

def predict_one(model, row, k):
    return [model]

def predict_batch(model, rows, k):
    return [[model] for _ in rows]

def labels(answers):
    return answers

def scores(answers):
    return [0.75 for _ in answers]

def chosen(model, rows):
    return [[] if i == 0 else [model] for i in range(len(rows))]
"""


@pytest.mark.parametrize("module", [accuracy, systems, report])
def test_examples_in_the_docstrings_hold(module):
    assert doctest.testmod(module).failed == 0


# Names on the command line


def test_settings_belong_to_the_system_before_them():
    parsed = systems.split("one-vs-all:loss=softmax,passes=3,eta=.5,label-tree,recall-tree:routers=4")
    assert [base for _, base, _ in parsed] == ["one-vs-all", "label-tree", "recall-tree"]
    assert parsed[0][2] == {"loss": "softmax", "passes": 3, "eta": 0.5}
    assert systems.split("none") == [] and systems.split("") == []


@pytest.mark.parametrize(
    ("text", "message"), [("passes=3", "follows no system"), ("vw-oaa:passes", "has no value"), ("wv", "no peer 'wv'")]
)
def test_a_wrong_name_says_what_to_write(text, message):
    with pytest.raises(ValueError, match=message):
        systems.peers(text)


def test_defaults_of_the_suites_are_known_peers():
    for suite in suites.SUITES.values():
        assert systems.peers(suite.peers)


def test_every_driver_has_the_functions_and_pinned_requirements():
    for path in sorted(systems.DRIVERS.glob("*.py")):
        driver = measure.load_driver(path)
        assert all(callable(getattr(driver, name)) for name in DRIVER_FUNCTIONS), path
        if driver.ENVIRONMENT != "project":
            lines = (environments.REQUIREMENTS / f"{driver.ENVIRONMENT}.txt").read_text().splitlines()
            assert all("==" in line or line.startswith("#") for line in lines), path


# Accuracy


def slow_psp(ranked, lists, weights, k):
    gained = sum(weights[label] for row, true in zip(ranked, lists) for label in row[:k] if label in true)
    possible = sum(sum(sorted((weights[label] for label in true), reverse=True)[:k]) for true in lists)
    return gained / possible


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(5, 9))
def test_accuracies_agree_with_the_definitions(seed, n_rows, n_labels):
    random = np.random.default_rng(seed)
    lists = [sorted(random.choice(n_labels, random.integers(1, 5), replace=False)) for _ in range(n_rows)]
    ranked = np.array([random.permutation(n_labels)[:5] for _ in range(n_rows)])
    labels = np.concatenate(lists)
    starts = np.concatenate([[0], np.cumsum([len(row) for row in lists])])
    weights = accuracy.inverse_propensities(labels, n_labels, 100)
    found = accuracy.accuracies(ranked, labels, starts, weights, multi_label=True, dense=False)
    for k in (1, 3, 5):
        hits = [len(set(row[:k]) & set(true)) for row, true in zip(ranked.tolist(), lists)]
        assert found[f"P@{k}"] == pytest.approx(np.mean(hits) / k)
        assert found[f"PSP@{k}"] == pytest.approx(slow_psp(ranked, lists, weights, k))
    dense = accuracy.accuracies(ranked, labels, starts, weights, multi_label=False, dense=True)
    missed = [not set(row) & set(true) for row, true in zip(ranked.tolist(), lists)]
    assert dense["error@5"] == pytest.approx(100 * np.mean(missed))


def test_repeated_unknown_and_missing_answers_gain_nothing():
    labels, starts, weights = np.array([1, 2, 0]), np.array([0, 2, 2, 3]), np.ones(3)
    ranked = np.array([[1, 1, 1, 2, -1], [4, -1, -1, -1, -1], [3, 1, 2, -1, -1]])
    hits = accuracy.correct(np.where(ranked < 3, ranked, -1), labels, starts, 3)
    assert hits.sum() == 2 and hits[0, 0] and hits[0, 3]
    found = accuracy.accuracies(ranked, labels, starts, weights, multi_label=False, dense=False)
    assert found["P@1"] == pytest.approx(1 / 3) and found["P@5"] is None


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 9))
def test_micro_f1_agrees_with_the_definition(seed, n_rows, n_labels):
    random = np.random.default_rng(seed)
    true, chosen = (
        [random.choice(n_labels, random.integers(0, n_labels + 1), replace=False) for _ in range(n_rows)]
        for _ in range(2)
    )
    both = sum(len(set(a) & set(b)) for a, b in zip(true, chosen))
    total = sum(map(len, true)) + sum(map(len, chosen))
    flat = [np.concatenate(chosen).astype(int), recipes.starts_of(chosen)]
    flat += [np.concatenate(true).astype(int), recipes.starts_of(true)]
    assert accuracy.micro_f1(*flat, n_labels) == pytest.approx(2 * both / total if total else 0)


def test_answers_of_any_form_become_one_table():
    assert measure.as_table([[3, 1], [2]], 2, 3).tolist() == [[3, 1, -1], [2, -1, -1]]
    assert measure.as_table(np.array([[3, 1, 2, 0], [1, 2, 3, 0]]), 2, 3).tolist() == [[3, 1, 2], [1, 2, 3]]
    assert measure.as_table(np.array([4, 5]), 2, 2).tolist() == [[4, -1], [5, -1]]
    with pytest.raises(ValueError, match="1 answers for 2 rows"):
        measure.as_table([[1]], 2, 3)


# Table and ratios


def outcome(name, ours, runs, error=None):
    system = systems.System(name, Path("driver.py"), "project", {}, ours)
    return runner.Outcome(system, runs, error)


def run(p, seconds, memory, one=10.0):
    return {"P@1": p, "P@3": None, "train_seconds": seconds, "peak_mb": memory, "one_microseconds": one}


def test_summary_takes_best_time_mean_accuracy_and_largest_memory():
    row = report.summary(outcome("a", True, [run(0.5, 3.0, 10.0), run(0.7, 2.0, 12.0)]))
    assert row["P@1"] == pytest.approx(0.6) and row["train_seconds"] == 2.0 and row["peak_mb"] == 12.0
    assert row["P@3"] is None


def counted(**hits):
    """A run of which the rows are known: a digit a row."""
    return {"P@1": 0.5, "train_seconds": 1.0, "hits": {name.replace("_", "@"): row for name, row in hits.items()}}


def test_standard_errors_are_over_rows_and_differences_are_paired():
    runs = [counted(P_1="1100", P_3="3102"), counted(P_1="1000", P_3="3102")]
    row = report.summary(outcome("tree", True, runs))
    assert row["standard_errors"]["P@1"] == pytest.approx(np.std([1, 0.5, 0, 0], ddof=1) / 2)
    assert row["standard_errors"]["P@3"] == pytest.approx(np.std([3, 1, 0, 2], ddof=1) / 3 / 2)
    found = report.differences([outcome("tree", True, runs), outcome("peer", False, [counted(P_1="1001")])])
    assert [(line["ours"], line["peer"]) for line in found] == [("tree", "peer")]
    paired = np.array([0, 0.5, 0, -1])
    assert found[0]["P@1"] == pytest.approx({"value": paired.mean(), "error": paired.std(ddof=1) / 2})
    assert "P@3" not in found[0]


def test_errors_in_per_cent_have_standard_errors_in_per_cent():
    row = report.summary(outcome("tree", True, [counted(error_1="1101")]))
    assert row["standard_errors"]["error@1"] == pytest.approx(100 * np.std([1, 1, 0, 1], ddof=1) / 2)


def test_ratios_are_ours_over_peer_and_leave_out_what_failed():
    ours = outcome("tree", True, [run(0.6, 1.0, 50.0)])
    peer = outcome("peer", False, [run(0.5, 4.0, 100.0)])
    broken = outcome("broken", False, [], "train: crashed (SIGSEGV)")
    result = report.report(
        "toy",
        dict.fromkeys(("train_rows", "test_rows", "features", "labels"), 1),
        [ours, peer, broken],
        {"threads": 1, "repeat": 1},
    )
    (line,) = result["ratios"]
    assert (line["ours"], line["peer"]) == ("tree", "peer")
    assert line["P@1"] == pytest.approx(1.2) and line["train_seconds"] == 0.25 and line["peak_mb"] == 0.5
    assert line["P@3"] is None and line["model_mb"] is None
    page = report.markdown(result)
    assert "broken failed: train: crashed (SIGSEGV)" in page and "| failed |" in page and "| **tree** |" in page
    json.dumps(result)


def test_report_is_stored_beside_earlier_ones(tmp_path):
    facts = dict.fromkeys(("train_rows", "test_rows", "features", "labels"), 1)
    result = report.report("toy", facts, [outcome("a", True, [run(0.5, 3.0, 10.0)])], {"threads": 1, "repeat": 1})
    page = report.store(result, tmp_path / "new" / "folder")
    assert page.read_text().startswith("# toy")
    assert json.loads(page.with_suffix(".json").read_text())["rows"][0]["P@1"] == 0.5


# Several suites


@pytest.fixture
def suite_runs(tmp_path, monkeypatch):
    """Runs of two suites made up from what their rows count; says which suites were run."""
    rows = {"kinc": ("1111", "1000"), "icd": ("0011", "0001"), "icons": ("1100", "1100")}
    facts = dict.fromkeys(("train_rows", "test_rows", "features", "labels"), 1)
    ran = []

    def run_suite(name, options):
        figure, percent = ("error_1", 100) if name == "icons" else ("P_1", 1)
        chosen = compare.systems_of(name, options)
        outcomes = [runner.Outcome(system, [counted(**{figure: row})]) for system, row in zip(chosen, rows[name])]
        for done, row in zip(outcomes, rows[name]):
            done.runs[0][figure.replace("_", "@")] = percent * np.mean([int(digit) for digit in row])
            done.runs[0]["train_seconds"] = 1.0 if done.system.ours else 4.0
        result = report.report(name, facts, outcomes, compare.settings_of(options))
        report.store(result, options.out)
        ran.append(name)
        return result

    monkeypatch.setattr(compare, "run_suite", run_suite)
    return lambda *more: (
        compare.main(["kinc,icd,icons", "--ours", "label-tree", "--peers", *more, "--out", str(tmp_path)]),
        ran,
    )


def test_suites_are_compared_figure_by_figure(suite_runs, tmp_path, capsys):
    status, ran = suite_runs("pecos")
    assert status == 0 and ran == ["kinc", "icd", "icons"]
    page = capsys.readouterr().out
    kinc, mean = (next(line for line in page.splitlines() if line.startswith(f"| {name}")) for name in ("kinc", "mean"))
    assert ".2500 ±.2500" in kinc and "1.0000 ±.0000" in kinc
    assert mean.startswith("| mean ") and ".7500 ±.1443" in mean and ".2500 ±.1768" in mean
    found = json.loads(next(tmp_path.glob("compare-*.json")).read_text())
    assert found["behind, within, ahead"]["P@1"] == [{"ours": "label-tree", "peer": "pecos", "found": [1, 1, 0]}]
    assert found["behind, within, ahead"]["error@1"][0]["found"] == [0, 1, 0]
    (times,) = found["train_seconds, ours / peer"]
    assert times["found"] == {"kinc": 0.25, "icd": 0.25, "icons": 0.25}


def test_a_peer_with_the_lower_error_is_ahead():
    difference = {"ours": "tree", "peer": "peer", "error@1": {"value": 2.0, "error": 1.0}}
    standings = compare.standings_of([{"differences": [difference]}], "error@1")
    assert standings == {("tree", "peer"): [0, 0, 1]}


def test_a_suite_that_was_run_with_the_same_settings_is_not_run_again(suite_runs):
    for more, wanted in (
        (("pecos",), 3),
        (("pecos",), 3),
        (("pecos", "--repeat", "2"), 6),
        (("omikuji",), 9),
        (("pecos", "--again"), 12),
    ):
        _, ran = suite_runs(*more)
        assert len(ran) == wanted, more


# Runner


@pytest.fixture
def data(tmp_path):
    """Ten rows of class 0 and five of class 1; four test rows, one of a class that train lacks."""
    folder = tmp_path / "cache" / "toy"
    folder.mkdir(parents=True)
    X = np.arange(45, dtype=np.float32).reshape(15, 3)
    train = recipes.Part(X, [["a"]] * 10 + [["b"]] * 5)
    test = recipes.Part(X[:4], [["a"], ["b"], ["new"], ["a"]])
    suites.write(train, test, False, folder)
    return folder


@pytest.fixture
def fakes(tmp_path):
    """Systems of a driver made up for the test, each in another mood."""
    folder = tmp_path / "drivers"
    folder.mkdir()
    (folder / "fake.py").write_text(FAKE_DRIVER)
    return lambda *moods: systems.peers(",".join(f"fake:mood={mood}" for mood in moods), folder)


def test_every_way_of_choosing_is_timed(data, monkeypatch):
    monkeypatch.setattr(suites, "prepared", lambda name, validation: data)
    (line,) = time_of_choices.lines(["toy"])
    assert line[0] == "toy" and len(line) == len(time_of_choices.COLUMNS)
    assert time_of_choices.seconds(measure.Data(data), calibrated=False, cost=0.5)[1] == 0.5


def test_prepared_data_reads_back(data):
    read = measure.Data(data)
    assert read.n_labels == 2 and read.n_rows("test") == 4 and not read.sparse
    assert read.label_lists("test") == [[0], [1], [], [0]]
    assert list(read.pairs("test"))[1] == [(0, 3.0), (1, 4.0), (2, 5.0)]
    (values, indices, starts), shape = read.csr("train")
    assert shape == (15, 3) and len(values) == len(indices) == starts[-1] == 45


def test_a_system_is_trained_and_measured_in_fresh_processes(data, fakes):
    (done,) = runner.run_all(fakes("good"), data, repeat=2)
    assert done.error is None and len(done.runs) == 2
    first = done.runs[0]
    assert first["error@1"] == pytest.approx(50.0) and first["error@5"] is None
    assert first["peak_mb"] > 5 and first["model_mb"] > 0 and first["train_seconds"] >= 0
    assert first["batch_microseconds"] > 0 and first["one_microseconds"] > 0
    assert first["one_cpu_microseconds"] >= 0
    assert first["hits"] == {"error@1": "0110"} and first["ECE"] == pytest.approx(0.5)
    assert "micro-F1" not in first, "one class a row"
    assert not list(data.parent.glob("run-*")), "models of finished runs are thrown away"


def test_the_labels_that_predict_chooses_are_judged(tmp_path, fakes):
    """Three true labels; of the two that the fake chooses, one is right."""
    X = np.ones((3, 2), dtype=np.float32)
    folder = tmp_path / "cache" / "toy"
    folder.mkdir(parents=True)
    suites.write(recipes.Part(X, [["a"], ["a"], ["b"]]), recipes.Part(X, [["a"], ["a"], ["b"]]), True, folder)
    (done,) = runner.run_all(fakes("good"), folder)
    assert done.error is None
    assert done.runs[0]["micro-F1"] == pytest.approx(2 / 5) and done.runs[0]["empty"] == pytest.approx(1 / 3)


def test_our_models_run_by_their_command_line_names(data, monkeypatch):
    monkeypatch.setattr(runner, "cores", lambda threads: [])  # compiling on one core, and a busy one, is slow
    (name, *_) = systems.our_names()
    good, unknown = runner.run_all(systems.ours(f"{name},no-tree"), data)
    assert good.error is None and good.runs[0]["error@1"] <= 100 and good.system.ours
    assert "no model 'no-tree'" in unknown.error


def test_failures_become_rows_and_the_rest_goes_on(data, fakes):
    error, crash, good = runner.run_all(fakes("error", "crash", "good"), data, repeat=2)
    assert "no wish to learn" in error.error and error.error.startswith("train:")
    assert crash.error == "train: crashed (SIGABRT)"
    assert error.runs == [] and len(good.runs) == 2


def test_a_slow_system_is_stopped(data, fakes):
    (slow,) = runner.run_all(fakes("slow"), data, timeout=1.5)
    assert "not done after 1.5 s" in slow.error


def test_an_environment_that_cannot_be_made_is_a_row_too(data, fakes, tmp_path, monkeypatch):
    (tmp_path / "absent.txt").write_text("no-such-package-anywhere==0.0.0\n")
    monkeypatch.setattr(environments, "REQUIREMENTS", tmp_path)
    monkeypatch.setattr(environments, "ENVIRONMENTS", tmp_path / "envs")

    def refuse(arguments):
        if "pip" in arguments:
            raise environments.EnvironmentFailed("cannot be installed here: no matching distribution")

    monkeypatch.setattr(environments, "_call", refuse)
    (good,) = fakes("good")
    absent = systems.System("absent", good.driver, "absent", {})
    first, second = runner.run_all([absent, good], data)
    assert "cannot be installed" in first.error and second.runs


# Data recipes

PARTS = ("train", "test")


def zipped(path, lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt") as out:
        out.writelines(f"{line}\n" for line in lines)


def test_missing_data_is_said_clearly(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("TREEMAX_DATA", str(tmp_path))
    monkeypatch.setattr(suites, "CACHE", tmp_path / "cache")
    for name, suite in suites.SUITES.items():
        with pytest.raises(suites.DataMissing, match=f"make_data {name}" if suite.made else "TREEMAX_DATA"):
            suites.prepared(name)
    monkeypatch.setattr(sys, "argv", ["benchmarks", "delicious", "--ours", "none", "--peers", "omikuji"])
    assert command.main() == 2
    assert "delicious/train.xmc.gz" in capsys.readouterr().err


def test_wordnet_keeps_test_rows_of_unseen_classes(tmp_path):
    zipped(tmp_path / "wordnet/train.txt.gz", ["__label__a red cat", "__label__b red dog", "__label__a cat dog"])
    zipped(tmp_path / "wordnet/test.txt.gz", ["__label__c cat", "__label__b dog dog"])
    train, test = recipes.tfidf(*recipes.texts("wordnet")(tmp_path, PARTS))
    assert train.X.shape == (3, 3) and train.texts[0] == "red cat"
    assert test.labels == [["__label__c"], ["__label__b"]]


def test_gcc_splits_by_date_and_drops_rare_labels(tmp_path):
    entries = [
        ("2001-01-01", ["a", "rare"]),
        ("2017-12-31", ["a"]),
        ("2017-12-31", ["rarer"]),
        ("2018-01-01", ["a", "new"]),
        ("2019-06-01", ["new"]),
        ("2020-01-01", ["a"]),
    ]
    rows = [json.dumps({"date": date, "text": "fix the bug", "labels": labels}) for date, labels in entries]
    zipped(tmp_path / "gcc/stream.jsonl.gz", rows)
    train, test = recipes.gcc(tmp_path, PARTS)
    assert train.labels == [["a"], ["a"]] and test.labels == [["a"]]


def test_delicious_drops_rows_without_labels_and_scales(tmp_path):
    for part in ("train", "test"):
        zipped(tmp_path / f"delicious/{part}.xmc.gz", ["3 4 2", "0,1 0:3 2:4", " 1:1", "1 3:2"])
    train, _ = recipes.delicious(tmp_path, PARTS)
    assert train.labels == [[0, 1], [1]]
    np.testing.assert_allclose(train.X.toarray(), [[0.6, 0, 0.8, 0], [0, 0, 0, 1]])


def test_ptb_predicts_frequent_words_from_three_before(tmp_path):
    zipped(tmp_path / "ptb/train.txt.gz", [" a b a b a <unk> "] * 5)
    zipped(tmp_path / "ptb/test.txt.gz", [" b b unknown a rare b "])
    vectors = np.arange(200, dtype=np.float32).reshape(2, 100)
    np.savez(tmp_path / "ptb/glove100.npz", words=np.array(["a", "b"]), vectors=vectors)
    train, test = recipes.ptb(tmp_path, PARTS)
    assert len(train.labels) == 10 and train.X.shape == (10, 300)
    assert test.labels == [["a"], ["b"]]
    np.testing.assert_array_equal(test.X[0], np.concatenate([vectors[1], vectors[1], np.zeros(100)]))


def test_a_sample_keeps_rows_together_and_order():
    part = recipes.Part(np.arange(100)[:, None], [[i] for i in range(100)], [str(i) for i in range(100)])
    drawn = suites.sample(part, 10)
    picked = drawn.X[:, 0].tolist()
    assert len(picked) == 10 and picked == sorted(picked)
    assert drawn.labels == [[i] for i in picked] and drawn.texts == [str(i) for i in picked]


def text_file(folder, name, part, rows):
    zipped(folder / f"{name}/{part}.txt.gz", [f"{' '.join(f'__label__{x}' for x in row)} {text}" for row, text in rows])


@pytest.fixture
def own_data(tmp_path, monkeypatch):
    monkeypatch.setenv("TREEMAX_DATA", str(tmp_path))
    monkeypatch.setattr(suites, "CACHE", tmp_path / "cache")
    return tmp_path


def test_labels_of_a_text_end_at_its_first_word(own_data):
    text_file(own_data, "kinc", "train", [("ab", "one __label__c two")])
    (train,) = recipes.texts("kinc")(own_data, ["train"])
    assert train.labels == [["__label__a", "__label__b"]] and train.texts == ["one __label__c two"]


def test_validation_rows_come_from_the_training_rows_alone(own_data):
    """There is no test file, and words and labels are those of the rows that are left to train on."""
    text_file(own_data, "kinc", "train", [([f"l{i}", "all"], f"word{i} word{i % 20} common") for i in range(60)])
    data = measure.Data(suites.prepared("kinc", validation=True))
    assert (data.n_rows("train"), data.n_rows("test")) == (54, 6)
    train, held_out = ({text.split()[0] for text in data.texts(part)} for part in PARTS)
    assert not train & held_out and len(train | held_out) == 60
    assert data.n_labels == 55 and [len(row) for row in data.label_lists("test")] == [1] * 6
    again = suites.raw_parts("kinc", suites.SUITES["kinc"], validation=True)[1]
    assert again.texts == data.texts("test") and len({text[:6] for text in again.texts}) > 1
    with pytest.raises(suites.DataMissing, match="kinc/test"):
        suites.prepared("kinc")


def test_tfidf_is_fitted_without_the_validation_rows(own_data):
    """Each word is in two rows: it is a feature unless one of them is held out."""
    text_file(own_data, "kinc", "train", [("a", f"word{i // 2}") for i in range(40)])
    train, _ = suites.raw_parts("kinc", suites.SUITES["kinc"], validation=True)
    data = measure.Data(suites.prepared("kinc", validation=True))
    assert data.n_features == len({text for text in train.texts if train.texts.count(text) == 2}) < 20


def test_validation_rows_of_a_stream_are_its_last(own_data):
    rows = [{"date": f"20{i:02}-01-01", "text": f"fix {i}", "labels": ["a"]} for i in range(20)]
    zipped(own_data / "gcc/stream.jsonl.gz", [*map(json.dumps, rows[:-1]), "the last test row is never parsed"])
    data = measure.Data(suites.prepared("gcc", validation=True))
    assert data.texts("test") == ["fix 16", "fix 17"] and data.texts("train")[-1] == "fix 15"


def test_validation_rows_are_at_most_five_thousand_and_means_are_of_the_rest(own_data):
    images = np.arange(60_000, dtype=np.uint8)[:, None]
    (own_data / "icons").mkdir()
    np.savez(own_data / "icons/icons.npz", X_train=images, y_train=np.arange(60_000) % 7)
    data = measure.Data(suites.prepared("icons", validation=True))
    assert (data.n_rows("train"), data.n_rows("test")) == (55_000, 5_000)
    assert abs(data.dense("train").mean(dtype=float)) < 1e-6 < abs(data.dense("test").mean(dtype=float))


def test_ptb_has_a_validation_part_of_its_own(own_data):
    zipped(own_data / "ptb/train.txt.gz", [" a b a b a "] * 5)
    zipped(own_data / "ptb/valid.txt.gz", [" b b b a "])
    data = measure.Data(suites.prepared("ptb-words", validation=True))
    assert (data.n_rows("train"), data.n_rows("test")) == (10, 1)


@pytest.mark.parametrize(("name", "rows"), [("delicious", (12910, 3181, 983)), ("glyphs1k", (43200, 4800, 1000))])
def test_real_data_has_the_known_size(name, rows, tmp_path, monkeypatch):
    try:
        suites.find_files(name, suites.SUITES[name])
    except suites.DataMissing as missing:
        pytest.skip(str(missing))
    monkeypatch.setattr(suites, "CACHE", tmp_path)
    facts = json.loads((suites.prepared(name) / "facts.json").read_text())
    assert (facts["train_rows"], facts["test_rows"], facts["labels"]) == rows


# Data sets made from packages


def test_every_made_suite_has_a_script():
    for name, suite in suites.SUITES.items():
        if suite.made:
            script = importlib.import_module(f"benchmarks.make_data.{name.replace('-', '_')}")
            assert callable(script.make)


def test_made_texts_are_split_and_rare_labels_dropped(tmp_path):
    """The split does not depend on the order of the rows, and a text twice is one row."""
    rows = [(["all of them", f"pair{i // 2}", f"once{i}"], f"text number\n{i}") for i in range(40)]
    splits.write_texts([*rows, *rows[:3]], tmp_path / "one")
    splits.write_texts(rows[::-1], tmp_path / "two")
    one, two = (recipes.texts(name)(tmp_path, PARTS) for name in ("one", "two"))
    assert [part.texts for part in one] == [part.texts for part in two]
    train, test = one
    assert (len(train.labels), len(test.labels)) == (36, 4) and not set(train.texts) & set(test.texts)
    counts = Counter(label for row in train.labels for label in row)
    assert min(counts.values()) == 2 and counts["__label__all_of_them"] == 36
    assert {label for row in test.labels for label in row} <= set(counts)
    assert sorted(train.texts + test.texts)[0] == "text number 0"


def test_made_vectors_leave_out_test_rows_of_other_classes(tmp_path):
    X = {"train": np.eye(3), "test": 2 * np.eye(3)}
    splits.write_vectors(X, {"train": ["b", "a", "b"], "test": ["a", "new", "b"]}, tmp_path)
    train, test = recipes.vectors("vectors.npz")(tmp_path, PARTS)
    assert train.labels == [[1], [0], [1]] and test.labels == [[0], [1]]
    np.testing.assert_array_equal(test.X, 2 * np.eye(3)[[0, 2]])


KCONFIG = """
config PLAIN
    bool
    select OTHER

menuconfig NET_FOO
    tristate "Foo network card"
    depends on PCI && \\
        (!ARM || COMPILE_TEST)
    select CRC32 if NET
    default y
    help
      Say Y here to use it. This depends on PCI.

if NET_FOO
config LAST
"""

MANUAL_PAGE = r"""
.TH READ 2 "2022" Linux
.nh
.SH NAME
read \- read from a \fIfile\fP
.SH SEE ALSO
.BR close (2),
\fBEVP_read\fR\|(3ossl),
.Xr mmap 2
.SH COLOPHON
see other(7)
"""


def test_options_of_linux_are_parsed():
    ((labels, text),) = kconfig.rows(KCONFIG)
    assert labels == ["ARM", "COMPILE_TEST", "CRC32", "NET", "PCI"]
    assert " ".join(text.split()) == "Foo network card Say Y here to use it. This depends on PCI."


def test_manual_pages_are_parsed():
    text, references = manuals.parsed(MANUAL_PAGE)
    assert text == "NAME read - read from a file"
    assert sorted(references) == [("EVP_read", "3"), ("close", "2"), ("mmap", "2")]


def test_parameters_of_functions_are_found():
    source = '''
def fit_line(self, x, y_values, *, weights=None, _cache=None, **more):
    """Fit a line.

    And more."""
def too_few(a, b):
    "Two."
def no_docstring(a, b, c): ...
'''
    assert list(parameters.functions(source)) == [(["weights", "x", "y_values"], "fit line Fit a line")]


def test_verses_are_those_of_all_translations():
    found = list(verses.rows([{"1": "a", "2": "b"}, {"2": "c", "3": "d"}]))
    assert found == [(["2"], "b"), (["2"], "c")]


def test_sizes_of_a_suite():
    train = recipes.Part(None, [["a", "b"], ["a"]], ["one two three", "four"])
    assert sizes.sizes(train, recipes.Part(None, [["a"]], ["one"])) == ["2 / 1", "2", "1.5", "1.5", "2"]


# --- scripts of the documentation ----------------------------------------------------------------------


def test_hypernyms_by_name_and_number():
    from benchmarks.experiments.hierarchy import hypernyms

    rows = [
        ("net : a goal", "noun:0900:goal"), ("net : a trap", "noun:0110:trap"), ("net sales : money", "noun:0101:money"),
        ("tulle : fine net", "noun:0100:net"), ("trap snare : a device", "noun:0100:net"), ("net", "verb:0100:catch"),
    ]  # fmt: skip
    found = hypernyms([text for text, _ in rows], [label for _, label in rows])
    # The nearest of the nouns called "net" and nothing else; a trap is not below the net that is below it.
    assert found == {"noun:0100:net": "noun:0110:trap"}


def test_learned_trees_are_compared_with_one_schedule_for_all(monkeypatch, capsys):
    from benchmarks.experiments import learned
    from benchmarks.harness.problem import Problem

    random = np.random.RandomState(0)
    X, y = np.abs(random.normal(size=(60, 8))).astype(np.float32), np.arange(60) % 6
    problem = Problem(X, y, X, y)
    monkeypatch.setattr(learned, "SEEDS", 1)
    monkeypatch.setattr(learned, "ARITIES", (3,))
    monkeypatch.setattr(learned, "OPTIONS", {"as it is": {}, "Algorithm 1": learned.ALGORITHM_1})
    monkeypatch.setattr(learned, "DIMENSIONS", (8,))
    schedules = learned.schedule(problem)
    assert list(schedules) == [
        f"3, {name}" for name in ("adagrad, linear", "adagrad, hold", "sgd, linear", "sgd, hold")
    ]
    assert all(tuple(row) == learned.TREES for row in schedules.values())
    assert all(0 <= one["precision"] <= 1 for row in learned.options(problem).values() for one in row)
    assert set(learned.threads(problem)) == {"1", "2"}
    assert set(learned.published(problem)) == {"2, 8", "3, 8"}
    assert "| Algorithm 1 |" in capsys.readouterr().out
    assert learned.main([]) == 2


def test_reliability_of_probabilities_that_are_true():
    from benchmarks.experiments.reliability import curve, expected_error

    random = np.random.RandomState(0)
    probabilities = random.uniform(0.01, 1, 20_000)
    right = random.uniform(size=20_000) < probabilities
    assert expected_error(probabilities, right) < 0.02 < 0.2 < expected_error(probabilities**3, right)
    says, is_right = curve(probabilities, right)
    np.testing.assert_allclose(says, is_right, atol=0.1)


# The slow softmax tree


@pytest.mark.parametrize("solvers", ["scikit-learn", "ours"])
@pytest.mark.filterwarnings("ignore")  # of scikit-learn, whose names for penalties are about to change
def test_the_slow_softmax_tree_learns(solvers):
    random = np.random.RandomState(0)
    y = random.randint(0, 20, 400)
    X = (random.normal(size=(20, 8))[y] + 0.4 * random.normal(size=(400, 8))).astype(np.float32)
    tree, history = tao_reference.train(X, y, 2, 8, 0.1, 100.0, 3, solvers)
    assert history[-1]["objective"] < history[0]["objective"] and history[-1]["error"] < 0.1
    for x, label, leaf, loss in zip(X[:20], y, tree.leaf_of(X), tree.losses(X, y, 100.0)):
        node = 0
        while node < len(tree.decisions):
            decision = tree.decisions[node]
            node = 2 * node + (2 if decision.w @ x + decision.b >= 0 else 1)
        assert node - len(tree.decisions) == leaf
        own = tree.leaves[leaf]
        scores = own.W @ x + own.w
        at = np.flatnonzero(own.classes == label)
        expected = np.log(np.exp(scores).sum()) - scores[at[0]] if len(at) else 100.0
        assert loss == pytest.approx(expected, rel=1e-3, abs=1e-3)


def test_the_readme_lists_every_experiment():
    page = (FOLDER / "README.md").read_text()
    names = {path.stem for path in (FOLDER / "experiments").iterdir() if not path.name.startswith("_")}
    assert {name for name in names if f"`{name}" not in page} == set()
