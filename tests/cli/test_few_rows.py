"""`treemax predict` answers few rows without the whole library, and as with it."""

import gzip
import json
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp
from click.testing import CliRunner

import treemax
import treemax.cli.data
from treemax.cli.few_rows import FEW_ROWS
from treemax.cli.main import commands

WORDS = [f"w{i}" for i in range(12)]
ESTIMATORS = [
    treemax.LabelTree(verbose=0),
    treemax.LabelTree(verbose=0, n_trees=2, precision="int8"),
    treemax.OneVsAll(verbose=0),
    treemax.OnlineLabelTree(),
    treemax.LearnedTree(verbose=0, dimension=8),
]
TEXTS = ["w1 w2", "__label__4 w3", "", "no known word", "__label__a __label__b W5, w5! w5", " \t", "w7 é日本"]
WHOLE = ("--jobs", 1)  # an option that only the whole library has


def predict(*arguments, stdin=None):
    """Return the exit code, the output and the errors of the command."""
    result = CliRunner().invoke(commands, ["predict", *map(str, arguments)], input=stdin)
    return result.exit_code, result.stdout, result.stderr


def same_answers(one: str, other: str) -> bool:
    rows = [[json.loads(line) for line in text.splitlines()] for text in (one, other)]
    assert [list(row) for row in rows[0]] == [["labels", "scores"]] * len(rows[1])
    scores = [[score for row in part for score in row["scores"]] for part in rows]
    np.testing.assert_allclose(*scores, atol=2e-6)
    return [row["labels"] for row in rows[0]] == [row["labels"] for row in rows[1]]


@pytest.fixture
def light_only(monkeypatch):
    """A function after which commands may not load the whole library."""

    def refuse(*arguments):
        raise AssertionError("the whole library was loaded")

    return lambda: monkeypatch.setattr(treemax.cli.data, "load_model", refuse)


def text_model(path, estimator, several):
    y = [f"l{i % 9}" for i in range(180)]
    texts = [f"{WORDS[i % 9]} {WORDS[(i * 7) % 12]} x" if i % 20 else "" for i in range(180)]
    lists = [[label, f"group {i % 3}"][: 1 + i % 2] for i, label in enumerate(y)]
    treemax.TextModel(estimator=estimator).fit(texts, lists if several else y).save(path)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("several", [False, True], ids=["one-label", "several-labels"])
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_texts(estimator, several, tmp_path, light_only):
    model = text_model(tmp_path / "model.treemax", estimator, several)
    (tmp_path / "texts").write_text("\n".join(TEXTS))  # without a newline at the end
    (tmp_path / "windows.txt").write_bytes(b"\xef\xbb\xbf" + "\r\n".join([*TEXTS, ""]).encode())
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": t, "labels": ["a"]}) + "\n\n" for t in TEXTS))
    (tmp_path / "texts.gz").write_bytes(gzip.compress("\n".join(TEXTS).encode()))
    asked = [(tmp_path / name,) for name in ("texts", "windows.txt", "texts.jsonl", "texts.gz")]
    asked += [(tmp_path / "texts", "--top", 1), (tmp_path / "texts", "--top", 100), (tmp_path / "texts", "--chunk", 2)]
    expected = [predict(model, *arguments, *WHOLE) for arguments in asked]
    light_only()
    for arguments, (code, output, errors) in zip(asked, expected):
        found = predict(model, *arguments)
        assert (code, errors) == (0, "") == (found[0], found[2])
        assert same_answers(found[1], output)
    stdin = "\n".join(TEXTS).encode()
    assert predict(model, "-", stdin=stdin)[1] == predict(model, tmp_path / "texts")[1]


@pytest.mark.slow
@pytest.mark.parametrize("form", [np.asarray, sp.csr_matrix])
@pytest.mark.parametrize("estimator", ESTIMATORS, ids=str)
def test_vectors(estimator, form, tmp_path, light_only):
    random = np.random.default_rng(3)
    y = random.integers(8, size=200)
    X = (random.normal(size=(200, 6)) + np.eye(8, 6)[y] * 3).round(1)
    model = tmp_path / "model.treemax"
    estimator.fit(form(X), y).save(model)
    dense = [{"features": row.tolist(), "label": 3} for row in X[:4]] + [{"features": [0] * 6}]
    sparse = [{"features": {"5": 1.5, "2": -1}, "weight": 2}, {"features": {"77": 1}}, {"features": {}}]
    for name, rows in (("dense.jsonl", dense), ("sparse.jsonl", sparse), ("empty.jsonl", [{"features": {}}])):
        (tmp_path / name).write_text("\n".join(map(json.dumps, rows)))
    names = ("dense.jsonl", "sparse.jsonl", "empty.jsonl")
    expected = [predict(model, tmp_path / name, *WHOLE) for name in names]
    light_only()
    for name, (code, output, _) in zip(names, expected):
        assert code == 0
        assert same_answers(predict(model, tmp_path / name)[1], output)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A model of texts, one of features, and data that few rows are not answered for without the whole library."""
    folder = tmp_path_factory.mktemp("few")
    text_model(folder / "text.treemax", treemax.OneVsAll(verbose=0), several=False)
    treemax.OneVsAll(verbose=0).fit(np.eye(4), list("abcd")).save(folder / "features.treemax")
    treemax.RecallTree(verbose=0).fit(np.eye(4), list("abcd")).save(folder / "recall.treemax")
    (folder / "damaged.treemax").write_bytes((folder / "text.treemax").read_bytes()[:-9] + b"123456789")
    contents = {
        "empty": b"", "latin": b"caf\xe9\n", "label": b"__label__ no name\n", "text.jsonl": b'{"text": "w1"}\n',
        "features.jsonl": b'{"features": [1, 0, 0, 0]}\n', "narrow.jsonl": b'{"features": [1, 0]}\n',
        "named.jsonl": b'{"features": {"price": 2}}\n', "mixed.jsonl": b'{"text": "w1"}\n{"features": [1]}\n',
        "labels.jsonl": b'{"text": "w1", "label": 1}\n{"text": "w1", "label": "b"}\n', "not.jsonl": b'{"text": \n',
        "half.jsonl": b'{"text": "w1"}\n{"text": 3}\n', "data.svm": b"0 1:1 2:2\n", "table.csv": b"text\nw1\nw2\n",
        "half.gz": gzip.compress(b"w1\n" * 50)[:-12],
    }  # fmt: skip
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    (folder / "parts").mkdir()
    (folder / "parts" / "a.ft").write_bytes(b"w1\nw2\n")
    return folder


DATA = [
    "empty", "latin", "label", "text.jsonl", "features.jsonl", "narrow.jsonl", "named.jsonl", "mixed.jsonl",
    "labels.jsonl", "not.jsonl", "half.jsonl", "data.svm", "table.csv", "half.gz", "parts", "missing",
]  # fmt: skip


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("model", ["text", "features", "recall", "damaged", "missing"])
def test_all_else_is_as_with_the_whole_library(model, data, files):
    for options in ((), ("--skip-bad",), ("--format", "jsonl"), ("--text-column", "text")):
        asked = (files / f"{model}.treemax", files / data, *options)
        expected, found = predict(*asked, *WHOLE), predict(*asked)
        assert (found[0], found[2]) == (expected[0], expected[2])
        assert found[1] == expected[1] or same_answers(found[1], expected[1])
        if not (files / data).is_file():
            continue
        stdin = (files / data).read_bytes()
        asked = (files / f"{model}.treemax", "-", *options)
        expected, found = predict(*asked, *WHOLE, stdin=stdin), predict(*asked, stdin=stdin)
        assert (found[0], found[2]) == (expected[0], expected[2])
        assert found[1] == expected[1] or same_answers(found[1], expected[1])


@pytest.mark.parametrize("n", [FEW_ROWS, FEW_ROWS + 1, 3 * FEW_ROWS])
def test_no_row_is_lost_where_the_whole_library_takes_over(n, files, tmp_path):
    rows = [f"w{i % 9} w{i % 5}" for i in range(n)]
    (tmp_path / "rows").write_text("\n".join(rows))
    _, expected, _ = predict(files / "text.treemax", tmp_path / "rows", *WHOLE)
    for data in (tmp_path / "rows", "-"):
        code, output, _ = predict(files / "text.treemax", data, stdin="\n".join(rows).encode())
        assert code == 0 and len(output.splitlines()) == n
        assert same_answers(output, expected)


def test_rows_are_fewer_with_several_trees(tmp_path, light_only):
    model = text_model(tmp_path / "model.treemax", treemax.LabelTree(verbose=0, n_trees=2), several=False)
    few, more = "w1\n" * (FEW_ROWS // 2), "w1\n" * (FEW_ROWS // 2 + 1)
    assert len(predict(model, "-", stdin=more.encode())[1].splitlines()) == FEW_ROWS // 2 + 1
    light_only()
    assert len(predict(model, "-", stdin=few.encode())[1].splitlines()) == FEW_ROWS // 2
    assert predict(model, "-", stdin=more.encode())[0] == 1


def test_one_line_needs_numpy_only(files):
    program = """
import sys
from treemax.cli import main
try:
    main()
finally:
    print([name for name in ("numba", "scipy", "sklearn", "tqdm") if name in sys.modules], file=sys.stderr)
"""
    command = [sys.executable, "-c", program, "predict", "text.treemax"]
    for data, stdin in (("-", "w1 w2\n"), ("text.jsonl", "")):
        done = subprocess.run([*command, data], cwd=files, input=stdin, capture_output=True, text=True, check=True)
        assert done.stderr.strip() == "[]"
        assert len(json.loads(done.stdout)["labels"]) == 5


def test_imports_of_the_package_are_cheap():
    program = "import sys, treemax, treemax.cli, treemax.formats; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
