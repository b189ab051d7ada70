"""Taxonomies on the command line: levels, backing off, metrics, and models that remember theirs."""

import json

import pytest

import treemax
from tests.cli.commands import done, refused

WORDS = {"apple": "red sweet", "pear": "green sweet", "car": "fast road", "train": "fast rail", "food": "sweet meal"}


@pytest.fixture
def files(tmp_path):
    data, edges, model = tmp_path / "train.txt", tmp_path / "edges.tsv", tmp_path / "model.treemax"
    data.write_text("".join(f"__label__{label} {words}\n" for label, words in WORDS.items()) * 20)
    edges.write_text("food\tapple\nfood\tpear\nvehicle\tcar\nvehicle\ttrain\nthing\tvehicle\nred\tapple\n")
    done("fit", data, "-o", model, "--model", "one-vs-all")
    return data, edges, model


def lines(text):
    return [json.loads(line) for line in text.splitlines()]


def test_predict(files, tmp_path):
    _, edges, model = files
    texts = tmp_path / "texts.txt"
    texts.write_text("red sweet\nfast\nsweet\n")
    backed = lines(done("predict", model, texts, "--hierarchy", edges, "--backoff", 0.7))
    assert [row["labels"] for row in backed] == [["apple"], ["vehicle"], ["food"]]
    assert all(score >= 0.7 for row in backed for score in row["scores"])
    assert lines(done("predict", model, texts, "--hierarchy", edges, "--backoff", 1))[1] == {"labels": [], "scores": []}
    [first, *_] = lines(done("predict", model, texts, "--hierarchy", edges, "--levels", "--top", 2))
    assert [level["labels"][0] for level in first["levels"]][:2] == ["food", "apple"]
    assert [len(level["labels"]) for level in first["levels"]] == [2, 2, 2]
    assert "has no taxonomy of its labels: give --hierarchy" in refused(
        "predict", model, texts, "--backoff", 0.5, code=2
    )
    for wrong in (("--backoff", 0.5, "--levels"), ("--levels", "--threshold", 0.1), ("--levels", "--labels", texts)):
        assert "cannot be combined" in refused("predict", model, texts, *wrong, code=2)
    assert "needs --backoff or --levels" in refused("predict", model, texts, "--hierarchy", edges, code=2)
    edges.write_text("a\tb\n")
    assert "none of the 5 labels" in refused("predict", model, texts, "--hierarchy", edges, "--levels")


def test_eval(files, tmp_path):
    data, edges, model = files
    assert "hF" not in json.loads(done("eval", model, data, "--json"))
    found = json.loads(done("eval", model, data, "--hierarchy", edges, "--json"))
    assert found["hP"] == found["hR"] == found["hF"] == found["answered"] == 1 and found["distance"] == 0
    backed = json.loads(done("eval", model, data, "--hierarchy", edges, "--backoff", 1, "--json"))
    assert backed["answered"] == backed["hF"] == 0 and backed["distance"] > 1
    assert "distance 0.0000" in done("eval", model, data, "--hierarchy", edges)
    assert "--hierarchy" in refused("eval", model, data, "--backoff", 0.5, code=2)


def test_models_remember_their_taxonomy(files, tmp_path):
    data, edges, model = files
    kept, nested = tmp_path / "kept.treemax", tmp_path / "nested.json"
    done("labels", model, "--hierarchy", edges, "-o", kept)
    assert treemax.load(kept).taxonomy_.ancestors("apple") == ["food", "red"]
    assert json.loads(done("eval", kept, data, "--json"))["hF"] == 1
    nested.write_text(json.dumps({"food": ["apple", "pear"], "vehicle": ["car", "train"]}))
    for options in (
        ("--model", "one-vs-all"),
        ("--model", "label-tree"),
        ("--model", "label-tree", "--set", "tree=kmeans"),
    ):
        done("fit", data, "-o", kept, "--hierarchy", nested, *options)
        assert json.loads(done("eval", kept, data, "--json"))["hF"] == 1
    nested.write_text("[")
    assert "is not JSON" in refused("fit", data, "-o", kept, "--hierarchy", nested)


def test_several_labels(tmp_path):
    data, edges, model = tmp_path / "train.txt", tmp_path / "edges.tsv", tmp_path / "model.treemax"
    data.write_text("__label__a __label__b one two\n__label__a one\n__label__c three\n__label__b two\n" * 25)
    edges.write_text("x\ta\nx\tb\ny\tc\n")
    done("fit", data, "-o", model, "--model", "one-vs-all")
    rows = lines(done("predict", model, data, "--hierarchy", edges, "--backoff", 0.6))
    assert [sorted(row["labels"]) for row in rows[:4]] == [["a", "b"], ["a"], ["c"], ["b"]]
    assert json.loads(done("eval", model, data, "--hierarchy", edges, "--json"))["hF"] > 0.95
    assert json.loads(done("eval", model, data, "--hierarchy", edges, "--backoff", 0.6, "--json"))["hF"] > 0.95
