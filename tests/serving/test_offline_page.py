"""`treemax explore`: one file with the page, the tree, and examples with explanations."""

from __future__ import annotations

import base64
import gzip
import json
import re

import pytest
from click.testing import CliRunner

import treemax
from tests.serving.test_outline import THINGS, texts_and_labels
from treemax.cli.main import commands
from treemax.formats import read_examples
from treemax.serving.offline_page import offline_page

HOSTILE = ("</script><img src=x onerror=alert(1)>", "<!--<script>", "a&b\"'`${1}", "]]>", "\u2028line")


def pieces(html: bytes) -> dict[str, object]:
    found = re.findall(rb'<script type="text/plain" id="piece-([\w-]+)">([A-Za-z0-9+/=]*)</script>', html)
    return {name.decode(): json.loads(gzip.decompress(base64.b64decode(value))) for name, value in found}


@pytest.fixture(scope="module")
def model():
    return treemax.TextModel(estimator=treemax.LabelTree(random_state=0, max_leaf=3)).fit(*texts_and_labels())


@pytest.fixture
def data(tmp_path):
    texts, labels = texts_and_labels(1)
    rows = [{"text": text, "labels": [label]} for text, label in zip(texts, labels)]
    rows.append({"text": "apple fruit appleish", "labels": ["pear"]})  # a mistake
    path = tmp_path / "data.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_whole_tree_is_in_the_page(model):
    page = offline_page(model, "things")
    found = pieces(page.html)
    assert page.n_left_out == 0 and found["about"]["model"]["n_labels"] == len(THINGS)
    nodes = {}
    for node, piece in found["index"].items():
        nodes[node] = found[f"tree-{piece}"][node]
    assert found["about"]["root"] in nodes
    leaves = {
        label for node in nodes.values() for child in node["children"] if child["leaf"] for label in child["labels"]
    }
    assert leaves == set(THINGS) == set(found["labels"])
    for label, home in zip(found["labels"], found["homes"]):
        assert any(label in child["labels"] for child in nodes[home]["children"] if child["leaf"])


def test_nothing_is_fetched_and_nothing_is_left_to_replace(model):
    html = offline_page(model, "things").html.decode()
    assert "static/" not in html
    outside = re.findall(r"(?:src|href)=\"(?!#|data:)([^\"]*)\"", html.partition("<script")[0])
    assert outside == []


def test_errors_and_confusions_come_from_data(model, data):
    examples = read_examples(data)
    found = pieces(offline_page(model, "things", [examples], n_examples=6).html)
    report = found["about"]["report"]
    answers = model.predict_topk(examples.texts, 1).labels[:, 0]
    right = [answer in truth for answer, truth in zip(answers, examples.labels)]
    assert report["rows"] == len(examples) and report["accuracy"] == sum(right) / len(right)
    assert {"truth": "pear", "answer": "apple", "n": 1, "example": 0} in report["confusions"]
    rows, wrong = (sum(pair[i] for pair in found["about"]["errors"].values()) for i in (0, 1))
    assert wrong == len(right) - sum(right) and rows >= len(examples)
    assert found["about"]["errors"]["0"][0] == len(examples)  # all rows are at the root
    stored = found["examples"]
    assert len(stored) == 6 and [each["right"] for each in stored].count(False) == min(3, len(right) - sum(right))
    mistake = stored[0]
    assert mistake["truth"] == ["pear"] and [told["label"] for told in mistake["explanations"]] == ["apple", "pear"]
    assert mistake["predictions"][0]["label"] == "apple"


def test_a_small_page_keeps_the_top_of_the_tree(model):
    page = offline_page(model, "things", size=1)
    found = pieces(page.html)
    assert page.n_left_out > 0 or len(found["index"]) >= 1
    assert found["labels"] == sorted(THINGS)


def test_hostile_labels_and_texts_stay_data():
    texts = [f"word{i} other{i} {name}" for i, name in enumerate(HOSTILE)] * 3
    model = treemax.TextModel().fit(texts, list(HOSTILE) * 3)
    examples = treemax.formats.Examples(
        treemax.inputs.labels.read_labels([[name] for name in HOSTILE]), texts=texts[:5]
    )
    html = offline_page(model, HOSTILE[0], [examples]).html
    for name in HOSTILE:
        assert name.encode() not in html or name in ("]]>", "\u2028line")
    assert html.count(b"<script") == html.count(b"</script>") == len(pieces(html)) + 1
    assert set(pieces(html)["labels"]) == set(HOSTILE)


def test_models_of_vectors_and_without_a_tree():
    X, y = [[1.0, 0.0, 0.5], [0.0, 1.0, 0.5], [0.5, 0.5, 0.0]] * 3, ["a", "b", "c"] * 3
    examples = treemax.formats.Examples(treemax.inputs.labels.read_labels(y), treemax.inputs.rows.as_rows(X))
    found = pieces(offline_page(treemax.OneVsAll().fit(X, y), "flat", [examples]).html)
    assert found["about"]["model"]["tree"] is False and "index" not in found
    assert found["examples"][0]["text"] == "0:1 2:0.5"


def test_several_trees_and_routing_trees_are_whole():
    for estimator in (treemax.LabelTree(n_trees=2), treemax.SoftmaxTree(depth=2, random_state=0)):
        found = pieces(offline_page(treemax.TextModel(estimator=estimator).fit(*texts_and_labels()), "m").html)
        assert None not in found["homes"]
        trees = {node["tree"] for name, piece in found.items() if name.startswith("tree-") for node in piece.values()}
        assert len(trees) == getattr(estimator, "n_trees", 1)


def test_the_command_writes_the_page(model, data, tmp_path):
    model.save(tmp_path / "m.treemax")
    page = tmp_path / "page.html"
    run = CliRunner().invoke(
        commands, ["explore", str(tmp_path / "m.treemax"), str(data), "-o", str(page), "--examples", "3"]
    )
    assert run.exit_code == 0, run.output
    assert "page.html: 0.1 MB; open it in a browser" in run.stderr
    found = pieces(page.read_bytes())
    assert found["about"]["model"]["name"] == "m" and len(found["examples"]) == 3
    run = CliRunner().invoke(commands, ["explore", str(tmp_path / "m.treemax"), "-o", str(page)])
    assert run.exit_code == 0 and "examples" not in pieces(page.read_bytes())


def test_the_command_says_what_is_wrong(tmp_path):
    treemax.OneVsAll().fit([[1.0], [0.0]], ["a", "b"]).save(tmp_path / "flat.treemax")
    run = CliRunner().invoke(commands, ["explore", str(tmp_path / "flat.treemax"), "-o", str(tmp_path / "p.html")])
    assert run.exit_code != 0 and "has no tree: give DATA" in run.output
    assert not (tmp_path / "p.html").exists()
