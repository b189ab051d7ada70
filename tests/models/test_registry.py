"""The automatic choice of a model."""

import numpy as np
import pytest
import scipy.sparse as sp
from click.testing import CliRunner

import treemax
from treemax.cli.main import commands
from treemax.formats import Examples, write_examples
from treemax.inputs.labels import read_labels
from treemax.inputs.rows import SparseRows, as_rows
from treemax.models import registry
from treemax.models.registry import DataFacts, choose

DENSE = np.random.default_rng(0).standard_normal((30, 4)).astype(np.float32)
SPARSE = sp.csr_matrix(np.where(DENSE > 0, DENSE, 0))
TEXTS = [f"word{number % 7} word{number % 3}" for number in range(30)]
ONE = [f"label {number % 3}" for number in range(30)]
SEVERAL = [[label, "other"] for label in ONE]


@pytest.mark.parametrize("y", [ONE, SEVERAL], ids=["one label", "several labels"])
@pytest.mark.parametrize(
    ("X", "stream", "expected"),
    [
        (TEXTS, False, "TextModel of LabelTree(n_trees=3)"),
        (TEXTS, True, "TextModel of OnlineLabelTree()"),
        (SPARSE, False, "LabelTree(n_trees=3)"),
        (SPARSE, True, "OnlineLabelTree()"),
        (DENSE, False, "OneVsAll()"),
        (DENSE, True, "OneVsAll()"),
    ],
    ids=["texts", "texts, stream", "sparse", "sparse, stream", "dense", "dense, stream"],
)
def test_the_choice_can_be_trained(X, y, stream, expected, capsys):
    model = treemax.choose_model(X, y, stream=stream)
    chosen = getattr(model, "estimator", model)
    wrapped = isinstance(model, treemax.TextModel)
    assert f"{'TextModel of ' if wrapped else ''}{chosen}" == expected
    says = capsys.readouterr().err
    assert says.startswith(f"Model: {chosen}, for ") and says.count("\n") == 1
    (model.partial_fit if stream else model.fit)(X, y)
    assert len(model.predict(X)) == len(y)
    if wrapped:
        assert isinstance(model.vectorizer, treemax.HashingText if stream else treemax.TfidfText)


def test_many_labels_are_not_compared_one_by_one():
    facts = DataFacts(sparse=False, multi_label=False, stream=False, n_rows=200_000, n_features=256, n_labels=5000)
    assert isinstance(choose(facts)[0], treemax.RecallTree)
    assert isinstance(choose(facts._replace(n_rows=20_000))[0], treemax.RecallTree)
    assert isinstance(choose(facts._replace(n_rows=20_000, n_labels=999))[0], treemax.OneVsAll)
    assert isinstance(choose(facts._replace(n_rows=2_000_000, n_labels=999))[0], treemax.RecallTree)
    assert isinstance(choose(facts._replace(multi_label=True))[0], treemax.LabelTree)
    assert isinstance(choose(facts._replace(multi_label=True, n_rows=20_000))[0], treemax.OneVsAll)
    assert isinstance(choose(facts._replace(stream=True, n_labels=100_000))[0], treemax.RecallTree)
    assert isinstance(choose(facts._replace(stream=True, n_labels=100_000, multi_label=True))[0], treemax.OneVsAll)


def test_a_choice_without_words_and_with_bad_input(capsys):
    treemax.choose_model(DENSE, ONE, verbose=0)
    assert capsys.readouterr().err == ""
    with pytest.raises(ValueError, match="inconsistent numbers of samples: X has 30 rows, y has 29"):
        treemax.choose_model(DENSE, ONE[:29])
    with pytest.raises(ValueError, match="NaN"):
        treemax.choose_model(np.full((30, 4), np.nan), ONE)


@pytest.mark.parametrize(
    ("X", "model"), [(TEXTS, "LabelTree"), (SPARSE, "LabelTree"), (DENSE, "OneVsAll")], ids=["texts", "sparse", "dense"]
)
def test_the_command_line_chooses_too(X, model, tmp_path):
    texts, rows = (X, None) if X is TEXTS else (None, as_rows(X))
    assert texts or isinstance(rows, SparseRows) is (X is SPARSE)
    data, file = (tmp_path / "data.npz" if rows is not None else tmp_path / "data.jsonl", tmp_path / "m.treemax")
    write_examples(data, Examples(read_labels(ONE), rows, texts))
    done = CliRunner().invoke(commands, ["fit", str(data), "-o", str(file), "--jobs", "2"])
    assert done.exit_code == 0 and f"Model: {model}(" in done.stderr, done.stderr
    loaded = treemax.load(file)
    assert type(getattr(loaded, "estimator", loaded)).__name__ == model
    streamed = CliRunner().invoke(commands, ["stream", str(data)])
    assert streamed.exit_code == 0 and "a stream of" in streamed.stderr, streamed.stderr


def test_settings_need_a_model(tmp_path):
    data = tmp_path / "data.txt"
    data.write_text("__label__a b\n")
    for option in (["--set", "passes=3"], ["--as-published"]):
        done = CliRunner().invoke(commands, ["fit", str(data), "-o", str(tmp_path / "m"), *option])
        assert done.exit_code == 2 and f"{option[0]} needs --model, one of label-tree" in done.stderr


def test_every_rule_names_a_model_and_one_always_applies():
    assert {rule.model for rule in registry.RULES} <= set(treemax.MODELS)
    assert registry.RULES[-1].applies(DataFacts(False, True, False))
