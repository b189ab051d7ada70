"""The experiments with recall trees on synthetic data."""

from __future__ import annotations

import doctest
import json

import numpy as np
import pytest
from scipy.stats import chi2, chi2_contingency

import treemax
from benchmarks.experiments.recall import __main__ as command
from benchmarks.experiments.recall import ablation, classes, memory, negatives, reliability, stream, threads, trade_off
from benchmarks.experiments.recall.models import recall_tree
from benchmarks.experiments.reliability import expected_error
from benchmarks.harness import output
from benchmarks.harness.problem import UNKNOWN, Problem, first_labels


@pytest.fixture(scope="module")
def problem():
    """Eight classes around points in the plane; the last test row has a class of its own."""
    random = np.random.default_rng(0)
    centres = np.array([[np.cos(angle), np.sin(angle)] for angle in np.arange(8) * np.pi / 4])
    y, y_test = random.integers(0, 8, 400), random.integers(0, 8, 60)
    X, X_test = (centres[labels] + 0.1 * random.standard_normal((len(labels), 2)) for labels in (y, y_test))
    return Problem(X.astype(np.float32), y, X_test.astype(np.float32), np.append(y_test[:-1], UNKNOWN))


@pytest.fixture(autouse=True)
def folders(tmp_path, monkeypatch):
    """Nothing is written beside the results and pictures of the project."""
    monkeypatch.setattr(output, "RESULTS", tmp_path)
    monkeypatch.setattr(output, "IMAGES", tmp_path)
    return tmp_path


@pytest.fixture
def pages_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(output, "STORED", tmp_path)
    (tmp_path / "recall-tree").mkdir()
    (tmp_path / "recall-tree" / "page.json").write_text(json.dumps({"results": []}))
    return tmp_path / "recall-tree"


def test_examples_in_the_docstrings_hold():
    assert doctest.testmod(output).failed == 0


def test_an_unknown_experiment_says_what_there_is(capsys):
    assert command.main(["nonsense"]) == command.main([]) == 2
    said = capsys.readouterr().err
    assert all(f"benchmarks.experiments.recall {name}" in said for name in command.EXPERIMENTS)


def test_first_labels_of_rows_with_several_or_none():
    assert first_labels(np.array([4, 7, 2]), np.array([0, 2, 2, 3])).tolist() == [4, UNKNOWN, 2]


# --- ablation ------------------------------------------------------------------------------------------


def test_ablation_has_error_and_recall_of_every_setting(problem, folders, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(ablation, "SEEDS", (0, 1))
    series = {name: dict(list(ablation.SERIES[name].items())[:2]) for name in ablation.SERIES}
    found = ablation.run(problem, series)
    for name, cells in found.items():
        assert list(cells) == list(series[name])
        for cell in cells.values():
            assert all(error >= 100 - recall - 1e-9 for error, recall in zip(cell["error"], cell["recall"]))
    one, two = found["with-path"].values()
    assert one["error"] == pytest.approx([100 - recall for recall in one["recall"]]), "one candidate is the answer"
    assert np.mean(two["recall"]) >= np.mean(one["recall"])
    ablation.plot("toy", found)
    assert (folders / "recall-tree-ablation.png").stat().st_size > 5000


def test_ablation_stores_a_table_for_each_question(problem, folders, pages_folder, monkeypatch):
    cell = {"error": [20.0, 22.0], "recall": [80.0, 79.0]}
    monkeypatch.setattr(ablation.Problem, "read", lambda suite: problem)
    monkeypatch.setattr(
        ablation, "run", lambda problem, series: {name: dict.fromkeys(series[name], cell) for name in series}
    )
    ablation.main(["toy", "bound", "with-path"])
    bound = json.loads((pages_folder / "bound-toy.json").read_text())
    assert [row[0] for row in bound["rows"]] == list(ablation.SERIES["bound"])
    assert bound["rows"][0][1:] == [
        {"value": 21.0, "low": 20.0, "high": 22.0},
        {"value": 79.5, "low": 79.0, "high": 80.0},
    ]
    candidates = json.loads((pages_folder / "candidates-toy.json").read_text())
    assert [row[0] for row in candidates["rows"]] == list(ablation.CANDIDATES) and len(candidates["columns"]) == 3


# --- the stream ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["beam", "paper"])
def test_the_loss_of_a_stream_is_that_of_answering_before_learning(problem, algorithm):
    n = 120
    loss = stream.stream(problem, np.arange(n), recall_tree(algorithm=algorithm))["loss"][-1]
    by_hand, wrong = recall_tree(algorithm=algorithm), 0
    for row in range(n):
        wrong += row == 0 or by_hand.predict(problem.X[row : row + 1])[0] != problem.y[row]
        by_hand.partial_fit(problem.X[row : row + 1], problem.y[row : row + 1])
    # The rate of a stream comes from the rows of the first call, so the two models are not quite the same.
    assert loss == pytest.approx(wrong / n, abs=0.06)


def test_a_stream_is_looked_at_on_the_way(problem, monkeypatch):
    monkeypatch.setattr(stream, "FIRST_POINT", 100)
    curve = stream.stream(problem, np.arange(400), recall_tree())
    assert curve["rows"] == [100, 200, 300, 400] and all(0 <= loss <= 1 for loss in curve["loss"])


@pytest.mark.parametrize(("first", "second", "n"), [(0.746, 0.733, 1000), (0.2, 0.3, 50), (0.5, 0.5, 10)])
def test_chance_is_the_chi_squared_test(first, second, n):
    counts = [[share * n, (1 - share) * n] for share in (first, second)]
    statistic = chi2_contingency(counts, correction=False)[0] * (2 * n - 1) / (2 * n)
    assert stream.chance(first, second, n) == pytest.approx(chi2.sf(statistic, 1))
    assert stream.chance(0.0, 0.0, n) == 1.0


def test_stream_table_and_plot(problem, folders):
    pytest.importorskip("matplotlib")
    found = stream.run(problem)
    assert set(found) >= {"beam", "paper"} and all(set(runs) == set(stream.ORDERS) for runs in found.values())
    rows = stream.lines("toy", found)
    assert [row[:3] for row in rows] == [["toy", name, len(problem.y)] for name in found]
    assert all(len(row) == len(stream.COLUMNS) for row in rows)
    stream.plot({"toy": found})
    assert (folders / "recall-tree-stream.png").exists()


# --- classes -------------------------------------------------------------------------------------------


def test_generated_rows_are_near_their_class():
    made = classes.generated(50, rows_a_class=30, n_test=20)
    assert made.X.shape == (1500, classes.FEATURES) and made.X.dtype == np.float32
    assert (np.bincount(made.y) == 30).all()
    means = np.array([made.X[made.y == label].mean(axis=0) for label in range(50)])
    nearest = ((made.X_test[:, None] - means) ** 2).sum(axis=2).argmin(axis=1)
    assert (nearest == made.y_test).mean() > 0.9
    found = classes.nearest_mean(made, 50)
    assert found["error %"] == pytest.approx(100 * (nearest != made.y_test).mean())
    assert classes.lines([{"data": "toy", **found}])[0][:4] == ["toy", 50, "nearest mean", None]


def test_one_against_all_is_not_judged_by_a_few_rows(problem, monkeypatch):
    monkeypatch.setattr(classes, "FEW_ROWS", 50)
    flat = classes.models()["OneVsAll"]
    assert classes.measure("OneVsAll", flat, problem, 8)["error %"] < 50
    monkeypatch.setattr(classes, "MOST_TAUGHT", 4)
    few = classes.measure("OneVsAll", flat, problem, 8)
    assert few["error %"] is None and all(few[cost] > 0 for cost in classes.COSTS)


def costs(data, name, pairs):
    return [
        {"data": data, "model": name, "classes": n, "error %": None, **dict.fromkeys(classes.COSTS, cost)}
        for n, cost in pairs
    ]


def test_crossing_is_where_both_cost_the_same(folders):
    pytest.importorskip("matplotlib")
    found = costs("generated", "OneVsAll", [(100, 1.0), (10_000, 100.0)])
    found += costs("generated", "beam", [(100, 10.0), (10_000, 10.0)])
    found += costs("generated", "paper", [(100, 0.5), (10_000, 1.0)])
    found += costs("glyphs1k", "beam", [(1000, 7.0)])
    assert classes.crossing(found, "beam", classes.COSTS[0]) == pytest.approx(1000)
    assert classes.crossing(found, "paper", classes.COSTS[0]) == 100
    assert "| beam | 1,000 | 1,000 | 1,000 |\n| paper | at most 100 |" in classes.crossings(found)
    never = costs("generated", "OneVsAll", [(100, 1.0)]) + costs("generated", "beam", [(100, 2.0)])
    assert classes.crossing(never, "beam", classes.COSTS[0]) is None
    classes.plot(found)
    assert (folders / "recall-tree-classes.png").exists()


# --- the trade-off -------------------------------------------------------------------------------------


def test_trade_off_leaves_out_what_failed(folders):
    pytest.importorskip("matplotlib")
    figures = {"error@1": 20.0, "train_cpu_seconds": 1.0, **dict(zip(trade_off.TIMES, (5.0, 40.0)))}
    names = [name for family in trade_off.families().values() for name in family.values()]
    rows = [{"system": name, "error": None, "model_mb": 1.0, **figures} for name in names]
    rows += [{"system": "vw-oaa:passes=3", "error": None, "model_mb": 1.0, **figures}]
    rows += [{"system": "vw-log-multi:passes=3", "error": "train: crashed (SIGSEGV)"}]
    found = trade_off.located(rows)
    assert len(found["RecallTree, beam/candidates"]) == len(trade_off.BEAMS) and "vw-oaa" in found
    assert "vw-log-multi" not in found
    assert ["vw-oaa", "", 20.0, 1.0, 5.0, 40.0, 1.0] in trade_off.lines_of(found)
    trade_off.plot("toy", found)
    assert (folders / "recall-tree-trade-off.png").exists()


def test_trade_off_takes_peers_from_an_earlier_report(tmp_path, monkeypatch):
    monkeypatch.setattr(trade_off, "run_all", lambda systems, data: [])
    monkeypatch.setattr(trade_off, "prepared", lambda suite: None)
    rows = [{"system": "vw-oaa:passes=3", "ours": False}, {"system": "one-vs-all", "ours": True}]
    report = tmp_path / "report.json"
    report.write_text(json.dumps({"rows": rows}))
    assert trade_off.run("toy", str(report)) == rows[:1]


# --- reliability ---------------------------------------------------------------------------------------


def softmax(scores):
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def test_the_best_temperature_undoes_what_made_scores_too_sure():
    random = np.random.default_rng(0)
    scores = -np.sort(-2 * random.standard_normal((4000, 10)), axis=1)
    drawn = (softmax(scores).cumsum(axis=1) > random.random((4000, 1))).argmax(axis=1)
    right = np.arange(10) == drawn[:, None]
    sure = reliability.Candidates(softmax(2 * scores), right)
    assert sure.best_temperature() == pytest.approx(2.0, rel=0.1)
    assert expected_error(*sure.at(2.0).first) < 0.02 < 0.1 < expected_error(*sure.first)
    np.testing.assert_allclose(sure.at(2.0).probabilities, softmax(scores), rtol=1e-6)
    assert (sure.likely[0] >= 0.01).all() and len(sure.likely[0]) == (softmax(2 * scores) >= 0.01).sum()


def test_a_row_without_a_right_candidate_is_a_wrong_answer():
    missed = reliability.Candidates(np.array([[0.9, 0.1]]), np.array([[False, False]]))
    assert missed.loss_of_first == pytest.approx(-np.log(0.1))
    assert missed.best_temperature() == reliability.TEMPERATURES[-1]


@pytest.mark.parametrize("name", ["beam", "paper", "OneVsAll"])
def test_reliability_of_a_model(problem, name):
    answers, temperature = reliability.answers_of(problem, reliability.models(dense=True)[name])
    figures = reliability.figures_of(answers, temperature)
    assert figures["error %"] < 30 and 0 <= figures["calibration error, first answers"] <= 1
    result = reliability.result({"toy": {name: figures}})
    assert [column["name"] for column in result["columns"]] == ["data", "model", *figures]


def test_reliability_is_stored_and_drawn(problem, folders, pages_folder, monkeypatch, capsys):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(reliability.Problem, "read", lambda suite: problem)
    reliability.main(["toy"])
    assert "| toy | paper |" in capsys.readouterr().out
    rows = json.loads((pages_folder / "reliability.json").read_text())["rows"]
    assert [row[:2] for row in rows] == [["toy", name] for name in reliability.models(dense=True)]
    assert (folders / "recall-tree-reliability.png").exists()


# --- memory --------------------------------------------------------------------------------------------


def test_memory_of_a_flat_model_is_its_weights(problem):
    found = {name: memory.measure(model, problem) for name, model in memory.models().items()}
    flat = found["OneVsAll"]
    assert flat["weights"] * memory.MB == flat["AdaGrad"] * memory.MB == 8 * 3 * 4
    for name in ("beam", "paper"):
        assert found[name]["weights"] > flat["weights"] and found[name]["file"] < found[name]["file, resume"]
        assert found[name]["in memory while learning"] > found[name]["weights"] + found[name]["AdaGrad"]
    rows = memory.result({"toy": found})["rows"]
    assert [row[1] for row in rows] == list(found)
    assert rows[0][-1] == output.rounded(flat["file, resume"]) and rows[1][2]["beside"] >= 1
    assert treemax.RecallTree in {type(model) for model in memory.models().values()}


# --- negatives and threads -----------------------------------------------------------------------------


def test_negatives_are_measured_and_stored(problem, pages_folder, monkeypatch, capsys):
    monkeypatch.setattr(negatives, "NEGATIVES", (2, None))
    monkeypatch.setattr(negatives.Problem, "read", lambda suite: problem)
    negatives.main(["toy"])
    rows = json.loads((pages_folder / "negatives.json").read_text())["rows"]
    assert [row[1:3] for row in rows] == [
        ["OneVsAll, logistic", "2"], ["OneVsAll, logistic", "all"], ["OneVsAll, softmax", "all"], ["RecallTree", ""],
    ]  # fmt: skip
    assert all(row[3] < 30 and row[4] <= row[3] and row[5] > 0 and row[6] > 0 for row in rows)
    assert capsys.readouterr().out.count("| toy |") == 4


def test_threads_are_measured_beside_two_processes(problem, monkeypatch):
    monkeypatch.setattr(threads, "ROUNDS", 2)
    asked = []

    class Pair:
        def __init__(self, suite, algorithm):
            assert (suite, algorithm) == ("toy", "beam")

        def time(self):
            asked.append("pair")
            return threads.Time(1e9, 1e6)

        def close(self):
            asked.append("close")

    monkeypatch.setattr(threads, "Pair", Pair)
    alone, two, both, most, of_processes, _, of_wall, *errors = threads.run(problem, "toy", "beam")
    assert asked == ["pair", "pair", "close"] and both == 1e6
    assert most == pytest.approx(2 * alone / two, rel=0.02) and of_processes == of_wall == 0
    assert all(error < 30 for error in errors)


@pytest.mark.slow
def test_two_processes_train_at_the_same_time(problem, monkeypatch):
    monkeypatch.setattr(threads, "PASSES", 1)
    pair = threads.Pair(problem, "beam")
    found = pair.time()
    assert 0 < found.wall < 60 and found.processor > 0
    pair.close()
    assert [process.exitcode for process in pair.processes] == [0, 0]
