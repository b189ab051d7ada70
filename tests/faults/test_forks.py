"""Processes that are forked or spawned after a model was used predict and learn as their parent does."""

from __future__ import annotations

import multiprocessing
import os
import threading
from pathlib import Path

import joblib
import numpy as np
import pytest

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

from tests.faults.limits import ROUNDS  # noqa: E402
from tests.fuzz.saved_models import KINDS, ask, kind_of, parts  # noqa: E402
from tests.fuzz.workers import run_cases  # noqa: E402
from treemax import modelfile  # noqa: E402

SEVERAL_THREADS = {"n_jobs": 2}


def loaded(name: str, folder: Path) -> object:
    path = folder / "model.treemax"
    modelfile.write_model(path, *parts(name))
    return modelfile.load(path)


@pytest.mark.filterwarnings("ignore:This model was saved without", "ignore:This process")
@pytest.mark.parametrize("name", KINDS)
def test_forked_while_threads_ask(name: str, tmp_path: Path) -> None:
    """Children are forked while other threads of the parent are inside the model; they answer, learn and save."""
    model, (_, X, y) = loaded(name, tmp_path), kind_of(name)
    own = model.estimator if hasattr(model, "estimator") else model
    own.set_params(**SEVERAL_THREADS)
    expected, done = model.predict_proba(X), threading.Event()

    def go_on_asking() -> None:
        while not done.is_set():
            model.predict_topk(X, 2)

    def in_child(number: int) -> str:
        assert np.array_equal(model.predict_proba(X), expected)
        if hasattr(model, "partial_fit"):
            model.partial_fit(X, y)
        modelfile.save(model, tmp_path / f"{number}.treemax")
        ask(model, X)
        return "answered"

    if hasattr(model, "partial_fit"):  # what learning compiles is compiled before
        other = loaded(name, tmp_path)
        (other.estimator if hasattr(other, "estimator") else other).set_params(**SEVERAL_THREADS)
        other.partial_fit(X, y)
    ask(model, X)
    threads = [threading.Thread(target=go_on_asking) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for number in range(max(2, ROUNDS // 4)):  # a process for each, so that each is forked at another moment
            outcomes = list(run_cases([number], in_child))
            assert [outcome.what for outcome in outcomes] == ["answered"]
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert np.array_equal(model.predict_proba(X), expected)


def answers(model: object, X: object) -> np.ndarray:
    return model.predict_proba(X)


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:This process")
def test_models_go_through_multiprocessing(method: str, tmp_path: Path) -> None:
    name = "online-label-tree"
    model, X = loaded(name, tmp_path), kind_of(name)[1]
    expected = model.predict_proba(X)
    with multiprocessing.get_context(method).Pool(1) as pool:
        found = pool.apply_async(model.predict_proba, (X,)).get(timeout=120)
    assert np.array_equal(found, expected)


def test_models_go_through_joblib(tmp_path: Path) -> None:
    name = "recall-tree, paper, sparse"
    model, X = loaded(name, tmp_path), kind_of(name)[1]
    found = joblib.Parallel(n_jobs=2, backend="loky", timeout=120)(
        joblib.delayed(model.predict_proba)(X) for _ in range(2)
    )
    assert all(np.array_equal(one, model.predict_proba(X)) for one in found)
