"""The report by label."""

import json
from collections import Counter

import numpy as np
import pytest
from click.testing import CliRunner
from sklearn.metrics import classification_report, f1_score
from sklearn.preprocessing import MultiLabelBinarizer

import treemax
from treemax import LabelTree
from treemax.cli.main import commands
from treemax.metrics import Confusions, IdEncoder, Scores, label_report


def test_report_equals_counting_by_hand():
    random = np.random.default_rng(0)
    true = [random.choice(8, random.integers(1, 4), replace=False).tolist() for _ in range(300)]
    top = [random.permutation(8)[:3].tolist() for _ in true]
    counts = {label: 4**label for label in range(7)}  # label 7 was never seen in training
    report = label_report(true, top, counts, ks=(1, 3))
    instead = Counter((label, row[0]) for labels, row in zip(true, top) if row[0] not in labels for label in labels)
    for row in report.labels:
        label = row["label"]
        n_true, n_first = sum(label in labels for labels in true), sum(own[0] == label for own in top)
        correct = sum(own[0] == label and label in labels for labels, own in zip(true, top))
        assert row["examples"] == n_true and row["predicted"] == n_first
        assert row["F1"] == round(2 * correct / (n_true + n_first), 3)
        assert len(row["confused_with"]) == 3
        most = sorted((count for (own, _), count in instead.items() if own == label), reverse=True)
        assert [count for _, count in row["confused_with"]] == most[:3]
        assert all(instead[label, other] == count for other, count in row["confused_with"])
    bands = {band["training_examples"]: band for band in report.by_frequency}
    assert list(bands) == ["0", "1-4", "5-19", "20-99", "100 and more"]
    assert [band["labels"] for band in bands.values()] == [1, 2, 1, 1, 3]
    by_label = {row["label"]: row for row in report.labels}
    assert bands["0"]["recall"] == by_label[7]["recall"]
    assert abs(bands["1-4"]["F1"] - np.mean([by_label[0]["F1"], by_label[1]["F1"]])) <= 0.001


def test_chunks_add_up_and_missing_answers_are_no_confusion():
    true, top = ["a", "b", "a", "c"], [["b"], ["b"], [None], ["b"]]
    whole = label_report(true, top)
    assert {row["label"]: row["confused_with"] for row in whole.labels} == {"a": [("b", 1)], "b": [], "c": [("b", 1)]}
    assert whole.by_frequency == []
    encoder, confusions = IdEncoder(), Confusions()
    for i in range(4):
        confusions.update(encoder.targets(true[i : i + 1]), encoder.ranking(top[i : i + 1]))
    assert confusions.by_label(encoder.index) == {"a": [("b", 1)], "c": [("b", 1)]}


def test_answers_may_have_no_label_and_labels_that_no_ranking_has():
    encoder, scores = IdEncoder(), Scores(ks=(1,))
    targets = encoder.targets([["a"], ["b", "c"]])
    scores.update(targets, encoder.ranking([["a"], ["b"]]))
    scores.update_answers(targets, encoder.ranking([[], []]))
    assert scores.result()["micro_F1"] == 0
    scores.update(targets, encoder.ranking([["a"], ["b"]]))
    scores.update_answers(targets, encoder.ranking([["d", "a"], ["c", "b", "e"]]))
    figures = {
        row["label"]: (row["predicted"], row["precision"], row["recall"]) for row in scores.per_label(encoder.index)
    }
    assert figures == {"a": (1, 1, 0.5), "b": (1, 1, 0.5), "c": (1, 1, 0.5), "d": (1, 0, 0), "e": (1, 0, 0)}
    assert scores.result()["micro_F1"] == pytest.approx(2 * 3 / (5 + 6))


def test_command_line(tmp_path):
    path, data = str(tmp_path / "model.treemax"), tmp_path / "data.txt"
    texts, labels = ["red apple", "green pear", "fast car"] * 10, ["apple", "pear", "car"] * 10
    treemax.TextModel(estimator=LabelTree(verbose=0)).fit(texts, labels).save(path)
    data.write_text(
        "__label__pear red apple\n__label__pear ripe apple\n__label__car fast car\n__label__plum red apple\n"
    )
    run = CliRunner().invoke
    result = run(commands, ["eval", path, str(data), "--per-label"], catch_exceptions=False)
    assert "apple 2" in result.output and "training_examples" in result.output and "5-19" in result.output
    result = run(commands, ["eval", path, str(data), "--per-label", "--json"], catch_exceptions=False)
    found = json.loads(result.stdout)
    assert [(band["training_examples"], band["labels"]) for band in found["by_training_examples"]] == [
        ("0", 1),
        ("5-19", 3),
    ]
    assert {row["label"]: row["confused_with"] for row in found["per_label"]}["pear"] == [["apple", 2]]


def test_several_labels_are_judged_by_what_predict_answers(tmp_path):
    """A second label is never the first answer; `predict` has both."""
    path, data = tmp_path / "model.treemax", tmp_path / "data.jsonl"
    texts, labels = ["red apple", "green pear", "fast car"] * 10, [["fruit", "apple"], ["fruit", "pear"], ["car"]] * 10
    model = treemax.TextModel(estimator=LabelTree(verbose=0)).fit(texts, labels)
    model.save(path)
    data.write_text("".join(json.dumps({"text": text, "labels": own}) + "\n" for text, own in zip(texts, labels)))
    found = json.loads(CliRunner().invoke(commands, ["eval", str(path), str(data), "--per-label", "--json"]).stdout)
    binarizer = MultiLabelBinarizer()
    true, answered = binarizer.fit_transform(labels), binarizer.transform(model.predict(texts))
    assert answered.sum(axis=1).tolist() == [2, 2, 1] * 10
    expected = classification_report(true, answered, target_names=binarizer.classes_, output_dict=True)
    for row in found["per_label"]:
        assert [row["precision"], row["recall"], row["F1"]] == [
            pytest.approx(expected[row["label"]][name], abs=1e-3) for name in ("precision", "recall", "f1-score")
        ]
    assert found["micro_F1"] == pytest.approx(f1_score(true, answered, average="micro"))
    assert found["macro_F1"] == pytest.approx(f1_score(true, answered, average="macro"))


def test_utility_on_the_command_line(tmp_path):
    texts = ["red apple", "green pear", "fast car"] * 10
    model = treemax.TextModel(estimator=LabelTree(verbose=0)).fit(texts, [["apple"], ["pear"], ["car"]] * 10)
    path, data = str(tmp_path / "model.treemax"), tmp_path / "data.txt"
    model.save(path)
    data.write_text("red apple\nred pear\n")
    run = CliRunner().invoke
    result = run(commands, ["predict", path, str(data), "--utility", "coverage", "--k", "1"], catch_exceptions=False)
    found = [json.loads(line)["labels"] for line in result.stdout.splitlines()]
    assert found == model.predict_for_utility(["red apple", "red pear"], 1, "coverage").labels.tolist()
    result = run(commands, ["predict", path, str(data), "--utility", "coverage", "--threshold", "0.5"])
    assert result.exit_code == 2 and "--threshold" in result.output
