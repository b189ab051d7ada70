"""One model, eight threads that ask, one that learns and one that saves; run as a program, because it may crash.

    python tests/faults/stress_threads.py recall-dense 60

prints what was done as JSON, or fails.
"""

from __future__ import annotations

import copy
import json
import pickle
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import scipy.sparse as sp

import treemax
from treemax import modelfile

N_ASKERS = 8
FEATURES = 40
SIZES = (1, 7, 1, 300, 2500, 1, 60)  # rows of the calls that learn; the longest are learned in several blocks
ASKED = ["topk", "topk", "topk", "predict", "above", "of", "proba", "classes"]
LOOKED = ["save", "save", "pickle", "deepcopy", "describe", "parts", "tree"]
warnings.simplefilter("ignore")


def online(kind: str):
    return {
        "one-vs-all": treemax.OneVsAll,
        "recall": treemax.RecallTree,
        "paper": lambda **own: treemax.RecallTree(algorithm="paper", **own),
        "lom": treemax.LOMTree,
        "online-label-tree": treemax.OnlineLabelTree,
        "learned-tree": lambda **own: treemax.LearnedTree(dimension=8, **own),
    }[kind](verbose=0)


class Stream:
    """Chunks that are a function of their number: labels and, in sparse rows, features keep arriving."""

    def __init__(self, form: str) -> None:
        self.form = form

    def rows(self, number: int, n: int, seed: int = 0):
        random = np.random.default_rng([number, n, seed])
        y = random.integers(0, 5 + 3 * number, n) % 3000
        if self.form == "dense":
            return np.cos(np.outer(y + 1, np.arange(1, FEATURES + 1))).astype(np.float32), y
        n_columns = 200 + 50 * min(number, 1000)
        columns = (y[:, None] * np.array([7, 13, 29]) + random.integers(0, 3, (n, 3))) % n_columns
        values = random.random((n, 3), dtype=np.float32) + 0.1
        X = sp.csr_matrix((values.ravel(), columns.ravel(), np.arange(0, 3 * n + 1, 3)), (n, n_columns))
        if self.form == "lists":
            return X, [[f"label {label}", f"label {label // 10}"] for label in y.tolist()]
        if self.form == "texts":
            return [f"word{a} word{b} thing{c}" for a, b, c in columns.tolist()], y
        return X, y

    def chunk(self, number: int):
        return self.rows(number, SIZES[number % len(SIZES)])


def check_answer(labels, scores, n_rows: int) -> None:
    assert len(labels) == len(scores) == n_rows
    assert np.isfinite(scores).all() and (scores >= 0).all() and (scores <= 1.0001).all()


def ask(model, stream: Stream, random, counts: Counter) -> None:
    n = int(random.choice([1, 1, 1, 30, 3000]))
    X, _ = stream.rows(int(random.integers(0, 40)), n, seed=1)
    what = random.choice(ASKED)
    if what == "topk":
        check_answer(*model.predict_topk(X, int(random.integers(1, 8))), n)
    elif what == "predict":
        assert len(model.predict(X)) == n
    elif what == "above":
        assert len(model.predict_above(X, 0.3)) == n
    elif what == "of":
        scores = model.predict_proba_of(X, model.classes_[:3].tolist())
        check_answer(scores, scores, n)
    elif what == "proba" and n < 100:
        scores = model.predict_proba(X)
        check_answer(scores, scores, n)
    else:
        assert len(model.classes_) > 0
    counts[f"asked {what}"] += 1


def check_whole(model) -> None:
    """What the parts of an online model say of the rows seen must agree: nothing was taken halfway."""
    own = getattr(model, "estimator", model)
    assert len(own.label_counts_) == len(own.label_index_)
    if not own.multi_label_:
        assert own.label_counts_.sum() == own.n_examples_
    if hasattr(own.model_, "found"):
        assert own.model_.found[-1] == own.n_examples_
    if hasattr(own.model_, "stream"):
        assert own.model_.stream.rows == own.n_examples_


def look(model, stream: Stream, random, path: Path, counts: Counter) -> None:
    what = random.choice(LOOKED)
    other = None
    if what == "save":
        model.save(path, resume=bool(random.integers(2)))
        modelfile.read_model(path, verify=True)
        other = treemax.load(path)
    elif what == "pickle":
        other = pickle.loads(pickle.dumps(model))
    elif what == "deepcopy":
        other = copy.deepcopy(model)
    elif what == "describe":
        assert model.describe()["labels"] > 0
    elif what == "parts":
        header, arrays = modelfile.object_parts(model, resume=True)
        other = modelfile.object_from_parts(json.loads(json.dumps(header)), arrays)
    elif hasattr(getattr(model, "estimator", model), "model_") and "OneVsAll" not in str(model):
        treemax.show_tree(model)
    counts[f"looked {what}"] += 1
    if other is not None:
        check_whole(other)
        check_answer(*other.predict_topk(stream.rows(3, 20)[0], 3), 20)
        if random.integers(4) == 0:
            other.partial_fit(*stream.chunk(4))
            check_answer(*other.predict_topk(stream.rows(3, 20)[0], 3), 20)


class Threads:
    """Threads that work twice at least and until time is up; the first error of any ends all."""

    def __init__(self, seconds: float) -> None:
        self.end, self.errors, self.threads = time.monotonic() + seconds, [], []

    def add(self, work) -> None:
        def run() -> None:
            rounds = 0
            try:
                while (rounds < 2 or time.monotonic() < self.end) and not self.errors:
                    work()
                    rounds += 1
            except BaseException as error:  # handed over to the main thread
                self.errors.append(error)

        self.threads.append(threading.Thread(target=run, daemon=True))

    def run(self) -> None:
        for thread in self.threads:
            thread.start()
        for thread in self.threads:
            thread.join(max(0.0, self.end - time.monotonic()) + 120)
            assert not thread.is_alive(), "a thread does not come to an end"
        if self.errors:
            raise self.errors[0]


def stress_online(kind: str, form: str, seconds: float, n_jobs: int | None) -> Counter:
    """Ask, learn and save at once; then learn the same in peace, and compare every bit."""
    stream, counts = Stream(form), Counter()

    def new():
        model = online(kind).set_params(n_jobs=n_jobs)
        return treemax.TextModel(treemax.HashingText(bits=14), model) if form == "texts" else model

    model = new()
    model.partial_fit(*stream.chunk(0))
    compile_kernels(new(), stream)

    def learn() -> None:
        counts["chunks learned"] += 1
        model.partial_fit(*stream.chunk(counts["chunks learned"]))

    def asker(number: int):
        random = np.random.default_rng(number)
        return lambda: ask(model, stream, random, counts)

    threads = Threads(seconds)
    threads.add(learn)
    for number in range(N_ASKERS):
        threads.add(asker(number))
    with tempfile.TemporaryDirectory() as folder:
        random, path = np.random.default_rng(99), Path(folder) / "model.treemax"
        threads.add(lambda: look(model, stream, random, path, counts))
        threads.run()
    check_whole(model)
    if n_jobs is None:
        in_peace = new()
        for number in range(counts["chunks learned"] + 1):
            in_peace.partial_fit(*stream.chunk(number))
        check_equal(model, in_peace)
        counts["compared with learning in peace"] += 1
    return counts


def stress_assigned(kind: str, seconds: float) -> Counter:
    """Assign bad and good values to a parameter while others use the model: an error or an answer, and no crash."""
    name, good = {
        "recall": ("beam", 4), "paper": ("n_candidates", 20), "online-label-tree": ("beam", 10),
        "lom": ("max_nodes", 500), "one-vs-all": ("batch_size", 1), "learned-tree": ("beam", 10),
    }[kind]  # fmt: skip
    stream, counts = Stream("dense" if kind in ("recall", "paper") else "sparse"), Counter()
    model = online(kind).set_params(**{name: good})
    model.partial_fit(*stream.chunk(0))
    compile_kernels(online(kind).set_params(**{name: good}), stream)

    def assign() -> None:
        for value in (0, good, -(2**62), good, None, good, 2**62, good):
            setattr(model, name, value)
            time.sleep(0.0001)
        counts["assigned"] += 8

    def tried(work):
        def work_or_error() -> None:
            try:
                work()
            except ValueError as error:
                assert f"{name} must be" in str(error), error
                counts["refused"] += 1

        return work_or_error

    def learn() -> None:
        counts["chunks learned"] += 1
        model.partial_fit(*stream.chunk(counts["chunks learned"]))

    def asker(number: int):
        random = np.random.default_rng(number)
        return tried(lambda: ask(model, stream, random, counts))

    threads = Threads(seconds)
    threads.add(assign)
    threads.add(tried(learn))
    for number in range(N_ASKERS):
        threads.add(asker(number))
    threads.run()
    setattr(model, name, good)
    check_whole(model)
    check_answer(*model.predict_topk(stream.rows(3, 20)[0], 3), 20)
    return counts


def compile_kernels(model, stream: Stream) -> None:
    """Do everything once, before time is taken."""
    random = np.random.default_rng(0)
    for number in range(len(SIZES)):
        model.partial_fit(*stream.chunk(number))
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(20):
            ask(model, stream, random, Counter())
            look(model, stream, random, Path(folder) / "model.treemax", Counter())


def check_equal(one, other) -> None:
    (header, arrays), (other_header, other_arrays) = (
        modelfile.object_parts(model, resume=True) for model in (one, other)
    )
    assert header == other_header and arrays.keys() == other_arrays.keys()
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, other_arrays[name], err_msg=name)


def stress_refit(kind: str, seconds: float) -> Counter:
    """Ask a model while it is fitted to one and then another data set: an answer is of one of the two."""
    few = {"n_jobs": 2, "verbose": 0, "random_state": 0}
    make = {
        "label-tree": lambda: treemax.LabelTree(passes=1, **few),
        "learned-tree": lambda: treemax.LearnedTree(passes=1, dimension=8, **few),
        "softmax-tree": lambda: treemax.SoftmaxTree(iterations=1, **few),
        "recall": lambda: treemax.RecallTree(passes=1, **few),
        "one-vs-all": lambda: treemax.OneVsAll(passes=1, **few),
        "text": lambda: treemax.TextModel(treemax.TfidfText(), treemax.LabelTree(passes=1, **few)),
    }[kind]
    random, counts = np.random.default_rng(0), Counter()
    data = []
    for n_labels, prefix in ((9, "a"), (60, "b")):
        y = random.integers(0, n_labels, 300)
        X = sp.csr_matrix((np.ones(900, np.float32), ((y[:, None] * 5 + np.arange(3)) % (5 * n_labels)).ravel(),
                           np.arange(0, 901, 3)), (300, 5 * n_labels))  # fmt: skip
        if kind == "text":
            X = [f"{prefix}{label} {prefix}x{label % 7} common" for label in y]
        data.append((X, np.char.add(prefix, y.astype(str))))
    model, answers = make(), []
    for X, y in data:
        answers.append(make().fit(X, y).predict_topk(data[0][0][:50], 3))
    model.fit(*data[0])

    def fit() -> None:
        counts["fitted"] += 1
        model.fit(*data[counts["fitted"] % 2])

    def question() -> None:
        labels, scores = model.predict_topk(data[0][0][:50], 3)
        of = [expected for expected in answers if labels[0, 0][0] == expected.labels[0, 0][0]]
        assert len(of) == 1
        if kind not in ("recall", "one-vs-all", "learned-tree"):  # which learn within noise in two threads
            assert (labels == of[0].labels).all() and (scores == of[0].scores).all()
        model.describe()
        pickle.loads(pickle.dumps(model)).predict(data[0][0][:5])
        counts["asked"] += 1

    threads = Threads(seconds)
    threads.add(fit)
    for _ in range(N_ASKERS):
        threads.add(question)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.treemax"

        def save() -> None:
            model.save(path)
            labels, _ = treemax.load(path).predict_topk(data[0][0][:50], 3)
            assert len({label[0] for label in labels.ravel() if label}) == 1
            counts["saved"] += 1

        threads.add(save)
        threads.run()
    return counts


def main(name: str, seconds: float) -> None:
    kind, form, *jobs = name.split("/")
    if form in ("refit", "assigned"):
        counts = {"refit": stress_refit, "assigned": stress_assigned}[form](kind, seconds)
    else:
        counts = stress_online(kind, form, seconds, int(jobs[0]) if jobs else None)
    print(json.dumps(dict(sorted(counts.items()))))


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
