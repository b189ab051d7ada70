"""Interrupted training resumes from its checkpoint and gives the same model."""

import signal
import subprocess
import sys

import numpy as np
import pytest
import scipy.sparse as sp

import treemax
from tests.parallel.node_by_node import MODELS, clone, model_bytes, problem
from treemax import modelfile
from treemax.models.label_tree import nodes as label_tree
from treemax.models.softmax_tree import training as tao
from treemax.parallel import checkpoints


@pytest.mark.parametrize("number", range(len(MODELS)))
def test_what_is_in_the_folder_is_not_learned_again(number, tmp_path, monkeypatch):
    X, y = problem()
    expected = model_bytes(clone(MODELS[number]).fit(X, y), tmp_path / "expected")
    with pytest.raises(RuntimeError, match="lost"), treemax.checkpoint(tmp_path / "kept"):
        assert model_bytes(clone(MODELS[number]).fit(X, y), tmp_path / "first") == expected
        raise RuntimeError("lost")

    def never(*arguments):
        raise AssertionError("this was learned before")

    for module, name in ((label_tree, "train_node"), (tao, "train_leaf"), (tao, "train_plane")):
        monkeypatch.setattr(module, name, never)
    with treemax.checkpoint(tmp_path / "kept"):
        assert model_bytes(clone(MODELS[number]).fit(X, y), tmp_path / "second") == expected
    assert list((tmp_path / "kept").iterdir()) == [], "left without an error: nothing is kept"


def test_what_others_have_in_the_folder_stays(tmp_path):
    X, y = problem()
    with pytest.raises(RuntimeError, match="lost"), treemax.checkpoint(tmp_path):
        clone(MODELS[0]).fit(X, y)
        raise RuntimeError("lost")
    (tmp_path / "training-data").mkdir()
    (tmp_path / "training-data" / "rows.svm").write_text("1 1:1\n")
    before = sorted(tmp_path.rglob("*"))
    with treemax.checkpoint(tmp_path):
        clone(MODELS[0]).set_params(random_state=5).fit(X, y)
        clone(MODELS[2]).fit(X, y)
        assert len(list(tmp_path.glob("training-*"))) == 4
    assert sorted(tmp_path.rglob("*")) == before


def test_a_training_that_stops_in_the_middle_loses_nothing(tmp_path, monkeypatch):
    X, y = problem()
    expected = model_bytes(clone(MODELS[0]).fit(X, y), tmp_path / "expected")
    train, calls = label_tree.train_node, []

    def dies_after_a_few(*arguments):
        calls.append(arguments[-1].node)
        if len(calls) == 5:
            raise MemoryError("lost")
        return train(*arguments)

    monkeypatch.setattr(label_tree, "train_node", dies_after_a_few)
    with pytest.raises(MemoryError), treemax.checkpoint(tmp_path / "kept"):
        clone(MODELS[0]).fit(X, y)
    again = []
    monkeypatch.setattr(label_tree, "train_node", lambda *a: (again.append(a[-1].node), train(*a))[1])
    with treemax.checkpoint(tmp_path / "kept"):
        assert model_bytes(clone(MODELS[0]).fit(X, y), tmp_path / "second") == expected
    assert again and not set(again) & set(calls[:4])


@pytest.mark.parametrize("change", ["rows", "labels", "parameters", "label_features"])
def test_another_training_does_not_see_it(change, tmp_path):
    X, y = problem()
    options = {}
    make = clone(MODELS[0])
    with pytest.raises(RuntimeError), treemax.checkpoint(tmp_path / "kept"):
        clone(make).fit(X, y)
        raise RuntimeError
    if change == "rows":
        X = X + sp.eye(*X.shape, dtype=np.float32, format="csr")
    elif change == "labels":
        y = np.roll(y, 1)
    elif change == "parameters":
        make.set_params(cost=0.3)
    else:
        options = {"label_features": (np.arange(24), np.random.RandomState(5).uniform(size=(24, 4)))}
    expected = model_bytes(clone(make).fit(X, y, **options), tmp_path / "expected")
    with treemax.checkpoint(tmp_path / "kept"):
        assert model_bytes(clone(make).fit(X, y, **options), tmp_path / "second") == expected


@pytest.mark.slow
def test_a_process_that_is_killed(tmp_path):
    program = """
import sys, numpy as np, treemax
from tests.parallel.node_by_node import problem
from treemax.parallel import checkpoints
from treemax.models.softmax_tree import training as tao
checkpoints.SECONDS_BETWEEN = 0.0
X, y = problem(n_rows=400, sparse=False)
train = tao.train_plane
def slowly(*arguments):
    print("plane", flush=True)
    return train(*arguments)
tao.train_plane = slowly
with treemax.checkpoint(sys.argv[1]):
    treemax.SoftmaxTree(depth=2, leaf_classes=6, iterations=4, growth=1.0, verbose=0).fit(X, y).save(sys.argv[2])
"""
    command = [sys.executable, "-c", program, str(tmp_path / "kept"), str(tmp_path / "model")]
    planes = []
    for kill_after in (5, None):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        lines = 0
        for _ in process.stdout:
            lines += 1
            if lines == kill_after:
                process.send_signal(signal.SIGKILL)
        process.wait()
        planes.append(lines)
        assert (tmp_path / "model").exists() == (kill_after is None)
    X, y = problem(n_rows=400, sparse=False)
    expected = treemax.SoftmaxTree(depth=2, leaf_classes=6, iterations=4, growth=1.0, verbose=0).fit(X, y)
    assert (tmp_path / "model").read_bytes() == model_bytes(expected, tmp_path / "expected")
    assert planes[1] <= 12 - 4, "what the first process had learned was not learned again"


def test_a_file_that_is_damaged_is_refused(tmp_path):
    X, y = problem()
    with pytest.raises(RuntimeError), treemax.checkpoint(tmp_path):
        clone(MODELS[0]).fit(X, y)
        raise RuntimeError
    path = sorted(tmp_path.glob("training-*/*.treemax"))[-1]
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with (
        pytest.raises(modelfile.ModelFileError, match=f"{path.name}.*Remove this checkpoint file"),
        treemax.checkpoint(tmp_path),
    ):
        clone(MODELS[0]).fit(X, y)
    path.unlink()
    with treemax.checkpoint(tmp_path):
        again = clone(MODELS[0]).fit(X, y)
    assert np.array_equal(again.predict(X), clone(MODELS[0]).fit(X, y).predict(X))


def test_what_cannot_be_kept_is_refused(tmp_path):
    X, y = problem()
    with treemax.checkpoint(tmp_path):
        with pytest.raises(ValueError, match="random_state"):
            treemax.LabelTree(random_state=None, verbose=0).fit(X, y)
        with pytest.raises(ValueError, match="OneVsAll cannot keep checkpoints"):
            treemax.OneVsAll(verbose=0).fit(X, y)
    model = treemax.SoftmaxTree(depth=1, iterations=1, warm_start=True, verbose=0).fit(X, y)
    with treemax.checkpoint(tmp_path), pytest.raises(ValueError, match="warm_start"):
        model.fit(X, y)
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="file"), treemax.checkpoint(tmp_path / "file"):
        pass


def test_a_generator_of_random_numbers_is_known_by_its_place(tmp_path):
    X, y = problem()
    found = []
    with treemax.checkpoint(tmp_path):
        for seed in (3, 3, 4):
            own = clone(MODELS[0]).set_params(random_state=np.random.RandomState(seed))
            found.append(model_bytes(own.fit(X, y), tmp_path / "model"))
        assert len(list(tmp_path.glob("training-*"))) == 2
    assert found[0] == found[1] != found[2]


def test_arrays_of_all_shapes_come_back(tmp_path):
    journal = checkpoints.Journal(tmp_path)
    results = {
        4: (np.zeros((0, 3), np.float32), np.arange(3)),
        0: (np.ones((2, 3), np.float32), np.arange(0)),
        2: (np.full((1, 3), 7, np.float32), np.arange(1)),
    }
    run = journal.next_run_name("table")
    journal.write(run, {4: results[4]})
    journal.write(run, {0: results[0], 2: results[2]})
    found = dict(journal.read(run))
    assert set(found) == set(results)
    for number, own in results.items():
        for array, expected in zip(found[number], own, strict=True):
            assert array.dtype == expected.dtype
            np.testing.assert_array_equal(array, expected)
    assert list(journal.read(journal.next_run_name("table"))) == []
