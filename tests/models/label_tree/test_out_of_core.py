"""Training from disk: the same model as in memory, bounded memory, and no temporary files left.

`LargeNode._visited` is slowed down so that a signal arrives during training.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import scipy.sparse as sp
from hypothesis import given, settings
from hypothesis import strategies as st

import treemax
from treemax.formats import Examples, FormatError, read_examples, write_examples
from treemax.formats.training_rows import drop_unlabelled
from treemax.inputs.labels import Targets, read_labels
from treemax.inputs.rows import SparseRows, as_rows
from treemax.memory import parse_bytes, used_bytes
from treemax.models.label_tree import estimator as label_tree
from treemax.models.label_tree.nodes import node_problems
from treemax.models.label_tree.out_of_core import MemoryBudget, NodeRows, memory_budget, stored_label_vectors
from treemax.models.training import stored_rows
from treemax.models.training.stored_rows import Partitions, RowWriter, Spool, even_partitions
from treemax.text.vocabulary import Vocabulary
from treemax.trees import label_vectors, random_tree

QUICK = settings(max_examples=40, deadline=None)
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(Path(treemax.__file__).parents[1])}


def parts(model) -> dict[str, bytes]:
    """All bytes of a model."""
    return {name: array.tobytes() for name, array in model.to_parts()[1].items()}


def numbers(several: bool = False, n_rows: int = 1500, n_labels: int = 60) -> Examples:
    rng = np.random.default_rng(0)
    own = rng.integers(0, n_labels, n_rows)
    signs = sp.csr_matrix((np.ones(n_rows, np.float32), (np.arange(n_rows), 5 * own)), shape=(n_rows, 400))
    X = (sp.random(n_rows, 400, 0.05, "csr", np.float32, rng) + signs).astype(np.float32)
    labels = [[int(a), *([int(a + 1) % n_labels] if several and i % 3 == 0 else [])] for i, a in enumerate(own)]
    if several:
        labels[5] = []
    return Examples(read_labels(labels), as_rows(X))


def texts(n_rows: int = 800) -> Examples:
    rng = np.random.default_rng(0)
    words = rng.integers(0, 300, (n_rows, 15))
    return Examples(
        read_labels([[f"label{row[0] % 40}"] for row in words]),
        texts=[" ".join(map("word{}".format, row)) for row in words],
    )


@pytest.fixture
def little_room(monkeypatch):
    """Rows in memory are few: the root and other nodes are too large for it, and windows on the disk are small."""

    def set_room(size: int, threads: int = 1) -> None:
        monkeypatch.setattr(label_tree, "memory_budget", lambda *arguments: MemoryBudget(size, threads))

    monkeypatch.setattr(stored_rows, "WINDOW", 5000)
    set_room(200_000)
    return set_room


# --- the same model ------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"loss": "logistic", "n_trees": 2, "random_state": 3},
        {"arity": 3, "max_leaf": 4, "cost": 0.3},
        {"tree": "huffman", "passes": 1},
        {"tree": "random", "precision": "int8", "threshold": 0},
        {"tree": [("a", label) for label in range(30)] + [("b", label) for label in range(30, 60)]},
    ],
    ids=str,
)
def test_the_same_model_as_in_memory(several, parameters, little_room, tmp_path):
    examples = numbers(several)
    write_examples(tmp_path / "data.npz", examples)
    parameters = {"max_leaf": 10, "verbose": 0, **parameters}
    expected = parts(treemax.LabelTree(**parameters).fit(examples.X, examples.y))
    for size in (100_000, 600_000, 10**9):
        little_room(size)
        found = treemax.LabelTree(**parameters).fit_file(tmp_path / "data.npz", folder=tmp_path)
        assert parts(found) == expected, f"with room for {size} bytes"
    assert found.n_examples_ == len(examples) and found.multi_label_ == several
    assert list(tmp_path.iterdir()) == [tmp_path / "data.npz"]


def test_the_same_model_with_threads_and_an_l1_penalty(little_room, tmp_path):
    examples = numbers()
    write_examples(tmp_path / "data.npz", examples)
    for penalty, size in (("l2", 600_000), ("l1", 10**7)):
        little_room(size, threads=2)
        made = [treemax.LabelTree(max_leaf=10, penalty=penalty, verbose=0) for _ in range(2)]
        in_memory, from_disk = made[0].fit(examples.X, examples.y), made[1].fit_file(tmp_path / "data.npz")
        assert parts(from_disk) == parts(in_memory)
    little_room(100_000)
    with pytest.raises(MemoryError, match=r"penalty='l1' needs the rows of a node in memory"):
        made[1].fit_file(tmp_path / "data.npz")
    assert parts(made[1]) == parts(made[0])  # what it was before


@pytest.mark.parametrize(
    ("several", "class_weight"),
    [(False, None), (False, "balanced"), (False, {7: 3.0}), (True, None), (True, "balanced"), (True, {7: 3.0, 8: 0.2})],
    ids=str,
)
def test_the_same_model_with_weights(several, class_weight, little_room, tmp_path):
    examples = numbers(several)
    weights = np.random.default_rng(1).choice([0, 0.3, 1, 4], len(examples)).astype(np.float32)
    weights[np.arange(60)] = 1  # every label is learned
    examples = Examples(examples.labels, examples.rows, weights=weights)
    write_examples(tmp_path / "data.vw", examples)
    stored = read_examples(tmp_path / "data.vw")
    parameters = {"max_leaf": 10, "verbose": 0, "class_weight": class_weight}
    in_memory = treemax.LabelTree(**parameters).fit(stored.X, stored.y, sample_weight=stored.weights)
    unweighted = treemax.LabelTree(**parameters).fit(stored.X, stored.y)
    for size in (100_000, 10**9):
        little_room(size)
        from_disk = treemax.LabelTree(**parameters).fit_file(tmp_path / "data.vw", folder=tmp_path)
        assert parts(from_disk) == parts(in_memory) != parts(unweighted), f"with room for {size} bytes"
    assert from_disk.n_examples_ == np.count_nonzero(weights)
    np.testing.assert_array_equal(from_disk.label_weights_, in_memory.label_weights_)


def test_weights_of_texts_on_disk(little_room, tmp_path):
    examples = texts()
    weights = np.random.default_rng(1).choice([0, 2.5], len(examples)).astype(np.float32)
    write_examples(tmp_path / "data.jsonl", Examples(examples.labels, texts=examples.texts, weights=weights))
    made = [treemax.TextModel(estimator=treemax.LabelTree(max_leaf=10, verbose=0)) for _ in range(3)]
    made[0].fit(examples.texts, examples.targets, sample_weight=weights)
    made[1].fit_file(tmp_path / "data.jsonl")
    assert parts(made[1]) == parts(made[0])
    kept = np.flatnonzero(weights)
    y = read_labels(examples.targets).take(kept)
    made[2].fit([examples.texts[i] for i in kept], y, sample_weight=weights[kept])
    assert parts(made[2]) == parts(made[0]), "texts of weight zero are not counted by the vectoriser either"


def test_class_weight_of_several_labels(little_room, tmp_path):
    """Without weights of rows, and with more siblings than are trained together, some of them relevant in many rows."""
    write_examples(tmp_path / "data.npz", numbers(several=True))
    stored = read_examples(tmp_path / "data.npz")
    for parameters in ({"max_leaf": 100, "arity": 70}, {"max_leaf": 40, "hard_negatives": 0.0}, {"arity": 3}):
        model = treemax.LabelTree(verbose=0, class_weight={label: 0.1 + label % 5 for label in range(60)}, **parameters)
        in_memory = parts(model.fit(stored.X, stored.y))
        for size in (100_000, 10**9):
            little_room(size)
            assert parts(model.fit_file(tmp_path / "data.npz", folder=tmp_path)) == in_memory, f"room for {size} bytes"


def test_class_weights_that_are_refused(tmp_path):
    write_examples(tmp_path / "data.npz", numbers(several=True))
    with pytest.raises(ValueError, match="penalty='l1' supports weights of rows only"):
        treemax.LabelTree(class_weight="balanced", penalty="l1", verbose=0).fit_file(tmp_path / "data.npz")
    write_examples(tmp_path / "data.npz", numbers())
    with pytest.raises(ValueError, match="99, which is not in y"):
        treemax.LabelTree(class_weight={99: 2.0}, verbose=0).fit_file(tmp_path / "data.npz")


def test_dense_rows_and_features_of_labels(little_room, tmp_path):
    examples = numbers()
    dense = Examples(examples.labels, examples.rows.to_scipy().toarray())
    write_examples(tmp_path / "data.npz", dense)
    given_features = (list(range(60)), np.random.default_rng(1).normal(size=(60, 5)))
    for options in ({}, {"label_features": given_features}):
        in_memory = treemax.LabelTree(max_leaf=10, verbose=0).fit(dense.X, dense.y, **options)
        from_disk = treemax.LabelTree(max_leaf=10, verbose=0).fit_file(tmp_path / "data.npz", **options)
        assert parts(from_disk) == parts(in_memory)
        np.testing.assert_array_equal(from_disk.predict(dense.X[:9]), in_memory.predict(dense.X[:9]))


@pytest.mark.parametrize(
    "vectorizer", [treemax.TfidfText(), treemax.TfidfText(max_features=100), treemax.HashingText()]
)
@pytest.mark.parametrize("kind", ["ft.gz", "jsonl", "parquet", "table"])
def test_texts_in_every_kind_of_source(vectorizer, kind, little_room, tmp_path):
    examples = texts()
    source = tmp_path / f"data.{kind}"
    if kind == "parquet":
        source = tmp_path / "shards"
        source.mkdir()
        for start in range(0, len(examples), 300):
            write_examples(source / f"{start:04}.parquet", examples[start : start + 300])
    elif kind == "table":
        source = pa.table({"text": examples.texts, "labels": list(examples.labels)})
    else:
        write_examples(source, examples)
    expected = treemax.TextModel(vectorizer, treemax.LabelTree(max_leaf=10, verbose=0))
    expected.fit(examples.texts, examples.y)
    expected_parts = parts(expected)
    found = treemax.TextModel(vectorizer, treemax.LabelTree(max_leaf=10, verbose=0)).fit_file(source)
    assert parts(found) == expected_parts
    assert found.predict(examples.texts[:3]).tolist() == expected.predict(examples.texts[:3]).tolist()


@pytest.mark.parametrize("first", [0, 1])
def test_columns_of_svmlight_count_from_zero_or_one_as_in_memory(first, tmp_path):
    lines = [f"{number % 5} {first + number % 5}:1 {first + 6}:{number}" for number in range(60)]
    (tmp_path / "rows.svm").write_text("\n".join(lines))
    examples = read_examples(tmp_path / "rows.svm")
    in_memory = treemax.LabelTree(verbose=0, random_state=0).fit(examples.X, examples.y)
    from_disk = treemax.LabelTree(verbose=0, random_state=0).fit_file(tmp_path / "rows.svm")
    assert from_disk.n_features_in_ == in_memory.n_features_in_ == 7
    assert parts(from_disk) == parts(in_memory)


def test_rows_without_a_label_are_left_out_where_rows_have_one(tmp_path):
    path = tmp_path / "data.jsonl"
    lines = [{"text": f"word{i % 50} other{i % 7}", "labels": [i % 9] if i % 4 else []} for i in range(400)]
    path.write_text("\n".join(map(json.dumps, lines)))
    used = drop_unlabelled(read_examples(path), multi_label=False)
    expected = treemax.TextModel(treemax.TfidfText(), treemax.LabelTree(verbose=0)).fit(used.texts, used.y)
    found = treemax.TextModel(treemax.TfidfText(), treemax.LabelTree(verbose=0)).fit_file(path)
    assert parts(found) == parts(expected) and found.n_examples_ == 300


# --- pieces --------------------------------------------------------------------------------------------


def stored(examples: Examples):
    writer = RowWriter()
    for start in range(0, len(examples), 400):
        part = examples[start : start + 400]
        counts = part.labels.counts
        targets = Targets(np.concatenate([[0], np.cumsum(counts)]), part.labels.values.astype(np.uint32))
        writer.add(part.rows, targets)
    return writer.finish(1)


@QUICK
@given(data=st.data())
def test_piles_have_the_rows_that_were_dealt_to_them(data):
    lengths = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=30))
    X = sp.csr_matrix(np.arange(1.0, 10.0 * len(lengths) + 1, dtype=np.float32).reshape(-1, 10))
    X = sp.csr_matrix(
        [[x if j < length else 0 for j, x in enumerate(row)] for row, length in zip(X.toarray(), lengths)]
    )
    X = X.astype(np.float32)
    writer = RowWriter()
    writer.add(as_rows(X), Targets(np.zeros(len(lengths) + 1, dtype=np.int64), np.empty(0, dtype=np.uint32)))
    n_partitions = data.draw(st.integers(1, 5))
    pairs = sorted(data.draw(st.sets(st.tuples(st.integers(0, len(lengths) - 1), st.integers(0, n_partitions - 1)))))
    rows, partition_of = (np.array([pair[i] for pair in pairs], dtype=np.uint32) for i in range(2))
    window, stored_rows.WINDOW = stored_rows.WINDOW, data.draw(st.integers(1, 40))
    try:
        partitions = Partitions(writer.finish(10), rows, partition_of, n_partitions)
    finally:
        stored_rows.WINDOW = window
    for partition in range(n_partitions):
        members, own = partitions.load(partition)
        assert [(rows[member], partition) for member in members] == [pair for pair in pairs if pair[1] == partition]
        np.testing.assert_array_equal(own.to_scipy().toarray(), X[rows[members]].toarray())


@QUICK
@given(sizes=st.lists(st.integers(0, 20), max_size=30), most=st.integers(1, 40))
def test_even_piles_are_not_too_large(sizes, most):
    partition_of = even_partitions(np.array(sizes, dtype=np.int64), most).tolist()
    assert partition_of == sorted(partition_of) and sorted(set(partition_of)) == list(range(len(set(partition_of))))
    for partition in set(partition_of):
        own = [size for size, number in zip(sizes, partition_of) if number == partition]
        assert sum(own) <= most or len(own) == 1 or sum(own[:-1]) <= most


@pytest.mark.parametrize("several", [False, True])
def test_problems_of_nodes_are_those_in_memory(several):
    examples = numbers(several)
    rows = stored(examples)
    for arity, leaf, seed in ((2, 2, 0), (7, 12, 1), (16, 60, 2)):
        tree = random_tree(60, arity, leaf, seed)
        costs = np.linspace(0.5, 2.0, len(tree))
        node_rows = NodeRows(tree, rows, costs)
        for problem in node_problems(tree, rows.targets, costs):
            found = node_rows.problem(problem.node)
            assert found[:3] == problem[:3]
            for expected, got in zip(problem[3:], found[3:], strict=True):
                assert expected.dtype == got.dtype
                np.testing.assert_array_equal(expected, got)


@pytest.mark.parametrize("several", [False, True])
def test_label_vectors_are_those_in_memory(several, monkeypatch):
    monkeypatch.setattr(stored_rows, "WINDOW", 3000)
    examples = numbers(several)
    rows = stored(examples)
    expected = label_vectors(examples.rows, rows.targets, 60, 100)
    found = stored_label_vectors(rows, 60, MemoryBudget(50_000, 1))
    for name in ("indptr", "indices", "values"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"ngram_range": (1, 2), "min_df": 0.002, "max_df": 0.5},
        {"max_features": 50},
        {"max_features": 50, "binary": True},
        {"analyzer": "char_wb", "ngram_range": (2, 3), "norm": None, "sublinear_tf": False},
    ],
    ids=str,
)
def test_words_counted_in_chunks_are_those_counted_together(parameters):
    rng = np.random.default_rng(0)
    words = [f"w{int(1000 * number**3)}" for number in rng.random(60_000)]
    documents = [" ".join(words[start : start + 60]) for start in range(0, len(words), 60)]
    whole, chunked = treemax.TfidfText(**parameters), treemax.TfidfText(**parameters)
    expected = whole.fit_transform(documents)
    rows_of = chunked.fit_chunks(documents[start : start + 99] for start in range(0, 1000, 99))
    found = sp.vstack([rows_of(documents[start : start + 77]) for start in range(0, 1000, 77)], "csr")
    assert whole.terms_.classes.tolist() == chunked.terms_.classes.tolist()
    for ours, theirs in ((whole.idf_, chunked.idf_), (expected.data, found.data), (expected.indices, found.indices)):
        assert ours.dtype == theirs.dtype
        np.testing.assert_array_equal(ours, theirs)


def test_vocabularies_that_are_empty_or_contradict_themselves_are_refused():
    with pytest.raises(ValueError, match="No word of the 2 texts is left"):
        treemax.TfidfText().fit_chunks([["a"], ["b"]])
    for texts, options in ((["word"], {"min_df": 2}), (["word"] * 9, {"min_df": 5, "max_df": 2})):
        with pytest.raises(ValueError, match=r"No word of the . texts? is left"):
            treemax.TfidfText(**options).fit_chunks([texts])


def test_spool_gives_back_what_it_was_given(tmp_path):
    spool = Spool(tmp_path)
    assert spool.append(np.arange(5, dtype=np.int64)) == 0
    assert spool.append(np.empty(0)) == spool.append(np.ones(3, dtype=np.float32)) == 40
    spool.write(8, np.array([7, 8], dtype=np.int64))
    assert spool.read(0, 5, np.int64).tolist() == [0, 7, 8, 3, 4]
    assert spool.read(40, 3, np.float32).tolist() == [1, 1, 1]
    with pytest.raises(OSError, match="shorter"):
        spool.read(40, 4, np.float32)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("size", "expected"),
    [("2GB", 2 * 10**9), ("1.5 gb", 1_500_000_000), ("64MiB", 64 * 2**20), ("500k", 500_000), (12345, 12345), ("7", 7)],
)
def test_sizes(size, expected):
    assert parse_bytes(size) == expected


@pytest.mark.parametrize("size", ["", "GB", "-1GB", "2 apples", 0, True, None])
def test_sizes_that_are_none(size):
    with pytest.raises(ValueError, match="memory must be a size such as '2GB'"):
        parse_bytes(size)


# --- what goes wrong -----------------------------------------------------------------------------------


def test_what_cannot_be_done_is_refused_in_words(tmp_path):
    write_examples(tmp_path / "numbers.npz", numbers())
    write_examples(tmp_path / "texts.jsonl", texts())
    model = treemax.LabelTree(verbose=0)
    text_model = treemax.TextModel(treemax.HashingText(), treemax.LabelTree(verbose=0))
    with pytest.raises(ValueError, match=r"texts\.jsonl holds texts: wrap the estimator in a TextModel"):
        model.fit_file(tmp_path / "texts.jsonl")
    with pytest.raises(ValueError, match=r"numbers\.npz holds features, not texts"):
        text_model.fit_file(tmp_path / "numbers.npz")
    with pytest.raises(ValueError, match="standard input can be read only once"):
        model.fit_file("-")
    table = pa.table({"text": ["a"], "label": ["b"]})
    with pytest.raises(ValueError, match="instead of a reader"):
        text_model.fit_file(pa.RecordBatchReader.from_batches(table.schema, table.to_batches()))
    with pytest.raises(MemoryError, match=r"memory=10.0 MB is too little for 1,500 rows of 400 features"):
        model.fit_file(tmp_path / "numbers.npz", memory="10MB")
    with pytest.raises(ValueError, match="memory must be a size"):
        model.fit_file(tmp_path / "no such file", memory="lots")
    with pytest.raises(ValueError, match="folder for temporary files does not exist"):
        model.fit_file(tmp_path / "numbers.npz", folder=tmp_path / "nowhere")
    with treemax.checkpoint(tmp_path / "kept"), pytest.raises(ValueError, match="neither clusters nor checkpoints"):
        model.fit_file(tmp_path / "numbers.npz")
    assert not hasattr(treemax.TextModel(treemax.HashingText(), treemax.OneVsAll()), "fit_file")
    (tmp_path / "empty.jsonl").write_text('{"text": "a"}\n')
    with pytest.raises(FormatError, match=r"empty\.jsonl: has no labels"):
        text_model.fit_file(tmp_path / "empty.jsonl")


def test_room_is_what_is_left_of_memory():
    rows = stored(numbers())
    room = memory_budget(used_bytes() + 500_000_000, rows, 60, 1)
    assert 300_000_000 < room.bytes < 500_000_000 and room.entries == room.bytes // 16


def test_shard_that_vanishes_while_training_leaves_the_model_as_it_was(tmp_path, monkeypatch):
    shards = tmp_path / "shards"
    shards.mkdir()
    examples = texts()
    for start in range(0, 800, 200):
        write_examples(shards / f"{start}.parquet", examples[start : start + 200])
    model = treemax.TextModel(treemax.TfidfText(), treemax.LabelTree(verbose=0)).fit(examples.texts, examples.y)
    before = parts(model)
    finish = Vocabulary.finish

    def finish_and_lose(vocabulary):
        (shards / "600.parquet").unlink()
        return finish(vocabulary)

    with monkeypatch.context() as patch:
        patch.setattr(Vocabulary, "finish", finish_and_lose)
        with pytest.raises(FormatError, match="600 examples for training, but had 800 when it was first read"):
            model.fit_file(shards, folder=tmp_path)
    other = Examples(read_labels([["new"]] * 200), texts=examples.texts[:200])

    def finish_and_change(vocabulary):
        write_examples(shards / "400.parquet", other)
        return finish(vocabulary)

    with monkeypatch.context() as patch:
        patch.setattr(Vocabulary, "finish", finish_and_change)
        with pytest.raises(FormatError, match="has a new label since it was first read"):
            model.fit_file(shards, folder=tmp_path)
    (shards / "400.parquet").write_bytes((shards / "400.parquet").read_bytes()[:-50])
    with pytest.raises(FormatError, match=r"400\.parquet: not a valid Parquet file"):
        model.fit_file(shards, folder=tmp_path)
    assert parts(model) == before and list(tmp_path.iterdir()) == [shards]


def test_full_disk_leaves_the_model_as_it_was(tmp_path, monkeypatch):
    examples = numbers()
    write_examples(tmp_path / "data.npz", examples)
    model = treemax.LabelTree(verbose=0).fit_file(tmp_path / "data.npz", folder=tmp_path)
    before = parts(model)

    def full(self, start, array):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Spool, "write", full)
    with pytest.raises(OSError, match="No space left"):
        model.fit_file(tmp_path / "data.npz", folder=tmp_path)
    assert parts(model) == before and list(tmp_path.iterdir()) == [tmp_path / "data.npz"]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="kills as on Unix")
def test_killed_in_the_middle_leaves_no_files(tmp_path):
    write_examples(tmp_path / "data.npz", numbers(n_rows=3000))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    script = (
        "import sys, treemax, treemax.models.label_tree.large_nodes as large, treemax.models.label_tree.estimator as tree\n"
        "from treemax.models.label_tree.out_of_core import MemoryBudget\n"
        "tree.memory_budget = lambda *arguments: MemoryBudget(100_000, 1)\n"
        "visited = large.LargeNode._visited\n"
        "def slowly(self, *arguments):\n"
        "    print('training', flush=True)\n"
        "    import time; time.sleep(100)\n"
        "    yield from visited(self, *arguments)\n"
        "large.LargeNode._visited = slowly\n"
        "treemax.LabelTree(verbose=0).fit_file(sys.argv[1], folder=sys.argv[2])\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "data.npz"), str(scratch)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=ENVIRONMENT) as process:
        assert process.stdout.readline() == "training\n"
        process.kill()
        assert process.wait(30) == -signal.SIGKILL
    assert list(scratch.iterdir()) == []


# --- memory --------------------------------------------------------------------------------------------

SCRIPT = """
import sys, treemax
from treemax.models.label_tree import estimator as label_tree
from treemax.formats import read_examples
from treemax.models.label_tree.out_of_core import MemoryBudget
from treemax.memory import release_free_memory, used_bytes

def trained(path, from_disk):
    model = treemax.LabelTree(verbose=0, passes=3, max_leaf=20)
    if from_disk:
        return model.fit_file(path, memory=used_bytes() + 130_000_000)
    examples = read_examples(path)
    return model.fit(examples.X, examples.y)

from_disk = sys.argv[3] == "disk"
for room in (MemoryBudget(50_000, 1), MemoryBudget(10**9, 1)):  # compiles, and loads what is loaded once, for nodes large and small
    memory_budget, label_tree.memory_budget = label_tree.memory_budget, lambda *arguments: room
    trained(sys.argv[1], from_disk)
    label_tree.memory_budget = memory_budget
release_free_memory()
open("/proc/self/clear_refs", "w").write("5")  # the peak is that of what follows
before = used_bytes()
trained(sys.argv[2], from_disk).save(sys.argv[4])
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
print((1024 * int(peak.split()[1]) - before) / 1e6)
"""


def wide_rows(n_rows: int) -> Examples:
    rng = np.random.default_rng(0)
    indices = (np.arange(300) * 7 + rng.integers(0, 7, (n_rows, 300))).astype(np.uint32)
    starts = np.arange(0, 300 * n_rows + 1, 300)
    rows = SparseRows(starts, indices.ravel(), rng.random(300 * n_rows, dtype=np.float32), 2100)
    return Examples(read_labels(indices[:, 0] * 7 + indices[:, 1] - 7), rows)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of memory as Linux gives it")
def test_memory_is_bounded_and_the_model_the_same(tmp_path):
    """40,000 rows of 300 numbers are 96 MB; memory may grow by 130 MB, of which 64 are set aside, and
    somewhat more by what the system's allocator keeps."""
    write_examples(tmp_path / "small.npz", wide_rows(500))
    write_examples(tmp_path / "large.npz", wide_rows(40_000))
    grown = {}
    for way in ("memory", "disk"):
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT, tmp_path / "small.npz", tmp_path / "large.npz", way, tmp_path / way],
            capture_output=True, text=True, timeout=300, env=ENVIRONMENT,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        grown[way] = float(done.stdout)
    assert (tmp_path / "disk").read_bytes() == (tmp_path / "memory").read_bytes()
    assert grown["disk"] < 160 and grown["disk"] < 0.7 * grown["memory"], grown
