"""A language model on the command line: a text file in, perplexity and next words out."""

from __future__ import annotations

import json

import numpy as np
import pytest

import treemax
from tests.cli.commands import done, refused, treemax_command

TEXTS = ["the cat sat on the mat", "the dog sat", "a cat ran to the dog", "a dog ran"] * 25
SETTINGS = ("--model", "tree-language-model", "--set", "arity=4", "--set", "dimension=8", "--set", "passes=3")


@pytest.fixture
def files(tmp_path):
    data, model = tmp_path / "texts.txt", tmp_path / "words.treemax"
    data.write_text("\n".join(TEXTS) + "\n")
    return data, model


def test_a_language_model_is_trained_judged_and_asked(files, tmp_path):
    data, path = files
    result = treemax_command("fit", data, "-o", path, *SETTINGS)
    assert result.exit_code == 0 and "TreeLanguageModel, words 11, texts 100" in result.stderr
    model = treemax.load(path)
    twin = treemax.TreeLanguageModel(arity=4, dimension=8, passes=3, n_jobs=1, verbose=0).fit(TEXTS)
    np.testing.assert_array_equal(model.model_.weights, twin.model_.weights)
    other = tmp_path / "other.txt"
    other.write_text("a dog sat\nthe cow sat on the mat\n")
    found = json.loads(done("eval", path, other, "--json"))
    assert found["perplexity"] == pytest.approx(model.perplexity(["a dog sat", "the cow sat on the mat"]), rel=1e-5)
    assert (found["texts"], found["words"], found["words_unknown"], found["words_known"]) == (2, 11, 1, 11)
    assert "perplexity" in done("eval", path, other)
    answers = [json.loads(line) for line in done("predict", path, other, "--top", "3").splitlines()]
    top = model.predict_topk(["a dog sat", "the cow sat on the mat"], 3)
    assert [answer["labels"] for answer in answers] == top.labels.tolist()
    np.testing.assert_allclose([answer["scores"] for answer in answers], top.scores, atol=1e-6)
    assert json.loads(done("info", path, "--json"))["model"] == "TreeLanguageModel"
    assert "tree-language-model" in done("info", "--models")


def test_texts_of_labelled_files_are_read_too(files, tmp_path):
    plain, path = files
    lines = tmp_path / "texts.jsonl"
    lines.write_text("".join(json.dumps({"text": text, "label": "x"}) + "\n" for text in TEXTS))
    done("fit", plain, "-o", path, *SETTINGS)
    done("fit", lines, "-o", tmp_path / "other.treemax", *SETTINGS)
    one, other = treemax.load(path), treemax.load(tmp_path / "other.treemax")
    np.testing.assert_array_equal(one.model_.weights, other.model_.weights)


def test_a_hierarchy_and_the_published_settings(files, tmp_path):
    data, path = files
    edges = tmp_path / "edges.tsv"
    edges.write_text("animal\tcat\nanimal\tdog\nverb\tsat\nverb\tran\n")
    done("fit", data, "-o", path, *SETTINGS, "--hierarchy", edges)
    assert treemax.load(path).describe()["tree"] == "own tree"
    done("fit", data, "-o", path, "--model", "TreeLanguageModel", "--as-published", "--set", "dimension=8")
    assert treemax.load(path).statistics == "running"


def test_options_of_classifiers_are_refused(files):
    data, path = files
    for options in (
        ["--memory", "1GB"],
        ["--resume"],
        ["--text-set", "bits=8"],
        ["--checkpoint", data.parent / "kept"],
    ):
        assert f"{options[0]} is not for tree-language-model" in refused(
            "fit", data, "-o", path, *SETTINGS, *options, code=2
        )
    done("fit", data, "-o", path, *SETTINGS)
    assert "not for a language model" in refused("predict", path, data, "--threshold", "0.5", code=2)
    assert "not for a language model" in refused("eval", path, data, "--per-label", code=2)
    assert "TreeLanguageModel cannot learn from a stream" in refused("stream", data, *SETTINGS[:2])
    rows = data.with_suffix(".svm")
    rows.write_text("1 1:1\n")
    assert "holds features, but a language model needs texts" in refused("eval", path, rows)
    empty = data.with_name("empty.txt")
    empty.write_text("")
    assert "has no texts" in refused("fit", empty, "-o", path, *SETTINGS)
