"""Labels grouped by their texts and their examples, and labels predicted from their texts alone."""

import numpy as np
import pytest
import scipy.sparse as sp
from click.testing import CliRunner

import treemax
from treemax import LabelTree, TextModel
from treemax.cli.main import commands
from treemax.trees.features import combined_vectors

QUIET = {"verbose": 0}
TEXTS = [
    "red apple fruit",
    "sweet apple fruit",
    "green pear fruit",
    "ripe pear fruit",
    "fast car road",
    "old car road",
] * 5
LABELS = ["apple", "apple", "pear", "pear", "car", "car"] * 5
NAMES = {"apple": "apple", "pear": "pear", "car": "car", "bicycle": "bicycle"}


def rows(matrix):
    from treemax.inputs.rows import as_rows

    return as_rows(sp.csr_matrix(np.array(matrix, dtype=np.float32)))


def test_similarities_are_shared():
    random = np.random.default_rng(0)
    examples, given, wide = (random.uniform(size=(3, n)) for n in (4, 4, 6))
    examples, given, wide = (part / np.linalg.norm(part, axis=1, keepdims=True) for part in (examples, given, wide))
    added = combined_vectors(rows(examples), rows(given), 0.25).to_scipy().toarray()
    expected = 0.75 * examples + 0.25 * given
    np.testing.assert_allclose(added, expected / np.linalg.norm(expected, axis=1, keepdims=True), rtol=1e-5)
    beside = combined_vectors(rows(examples), rows(wide), 0.25).to_scipy().toarray()
    np.testing.assert_allclose(beside @ beside.T, 0.75 * examples @ examples.T + 0.25 * wide @ wide.T, rtol=1e-5)


def test_examples_count_beside_label_features():
    # By their features 0 and 1 belong together, by their examples 0 and 2.
    X = sp.csr_matrix(np.repeat([[1, 0, 0], [0, 1, 0], [1, 0, 0.2], [0, 1, 0.2]], 10, axis=0).astype(np.float32))
    y, features = np.repeat(np.arange(4), 10), [[1, 0], [1, 0], [0, 1], [0, 1]]

    def together(**options):
        tree = LabelTree(max_leaf=2, arity=2, **QUIET).fit(X, y, (list(range(4)), features), **options).label_tree()
        parents = tree.parent[tree.leaf_of]
        return {frozenset(np.flatnonzero(parents == node).tolist()) for node in parents}

    assert together() == together(label_share=0.9) == {frozenset({0, 1}), frozenset({2, 3})}
    assert together(label_share=0.05) == {frozenset({0, 2}), frozenset({1, 3})}


@pytest.mark.parametrize("several", [False, True])
def test_labels_without_examples_are_answered_from_their_texts(tmp_path, several):
    y = [[label] for label in LABELS] if several else LABELS
    model = TextModel(estimator=LabelTree(**QUIET)).fit(TEXTS, y, label_texts=NAMES, label_share=0.5, add_unseen=True)
    assert model.classes_.tolist() == ["apple", "car", "pear", "bicycle"]
    model.save(tmp_path / "model.treemax")
    for each in (model, treemax.load(tmp_path / "model.treemax")):
        best = each.predict_topk(["a bicycle", "ripe pear"], 1).labels[:, 0]
        assert best.tolist() == ["bicycle", "pear"]
    plain = TextModel(estimator=LabelTree(**QUIET)).fit(TEXTS, y, label_texts=NAMES)
    assert "bicycle" not in plain.classes_


def test_wrong_arguments():
    X = sp.identity(4, format="csr", dtype=np.float32)
    with pytest.raises(ValueError, match="need label_features"):
        LabelTree(**QUIET).fit(X, [0, 1, 0, 1], add_unseen=True)
    with pytest.raises(ValueError, match="label_share"):
        LabelTree(**QUIET).fit(X, [0, 1, 0, 1], ([0, 1], X[:2]), label_share=0)
    with pytest.raises(ValueError, match="label_texts must be a dictionary"):
        TextModel(estimator=LabelTree(**QUIET)).fit(TEXTS, LABELS, label_texts=["apple"])


def test_command_line(tmp_path):
    data, names, path = (str(tmp_path / name) for name in ("data.txt", "names.txt", "model.treemax"))
    (tmp_path / "data.txt").write_text("".join(f"__label__{a} {b}\n" for a, b in zip(LABELS, TEXTS)))
    (tmp_path / "names.txt").write_text("".join(f"{label}\t{name}\n" for label, name in NAMES.items()))
    run = CliRunner().invoke
    result = run(commands, ["fit", data, "-o", path, "--label-texts", names, "--add-unseen"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert treemax.load(path).predict(["bicycle"]).tolist() == ["bicycle"]
    assert "--label-texts" in run(commands, ["fit", data, "-o", path, "--add-unseen"]).output
    (tmp_path / "names.txt").write_text("apple\n")
    assert "a label, a tab and a text" in run(commands, ["fit", data, "-o", path, "--label-texts", names]).output
