"""Predictions over HTTP equal those of the model."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import treemax
from tests.serving.service import WORDS, client_of, online_model, static_model, texts_and_labels
from treemax.serving.running import Settings, make_application

pytest.importorskip("starlette")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: Any) -> tuple[Path, Any]:
    path = tmp_path_factory.mktemp("models") / "fruit.treemax"
    return path, static_model(path)


@pytest.fixture(scope="module")
def client(trained: tuple[Path, Any]) -> Any:
    with client_of(models={"fruit": str(trained[0])}) as client:
        yield client


def test_predictions_are_those_of_the_model(client: Any, trained: tuple[Path, Any]) -> None:
    texts, _ = texts_and_labels(20, seed=5)
    found = client.post("/predict", json={"texts": texts, "k": 3}).json()
    expected = trained[1].predict_topk(texts, 3)
    assert found["model"] == "fruit"
    assert [[each["label"] for each in row] for row in found["predictions"]] == expected.labels.tolist()
    probabilities = [[each["probability"] for each in row] for row in found["predictions"]]
    np.testing.assert_allclose(probabilities, expected.scores, rtol=1e-6)


def test_threshold_allowed_and_excluded_labels(client: Any, trained: tuple[Path, Any]) -> None:
    texts, _ = texts_and_labels(5, seed=6)
    above = client.post("/predict", json={"texts": texts, "threshold": 0.1}).json()["predictions"]
    expected = trained[1].predict_above(texts, 0.1, scores=True)
    assert [{each["label"] for each in row} for row in above] == [{label for label, _ in row} for row in expected]
    allowed = ["about apple", "about bird"]
    only = client.post("/predict", json={"texts": texts, "labels": allowed}).json()["predictions"]
    assert all({each["label"] for each in row} == set(allowed) for row in only)
    without = client.post("/predict", json={"texts": texts, "exclude": allowed, "k": 100}).json()["predictions"]
    assert all(not {each["label"] for each in row} & set(allowed) for row in without)


def test_explanations_are_those_of_the_model(client: Any, trained: tuple[Path, Any]) -> None:
    text = "apple bird river car"
    found = client.post("/explain", json={"texts": [text], "label": "about bird", "k": 2}).json()["explanations"]
    assert found == [json.loads(trained[1].explain(text, "about bird", 2).to_json())]


def test_models_labels_health_and_metrics(client: Any, trained: tuple[Path, Any]) -> None:
    (about,) = client.get("/models").json()["models"]
    assert about["name"] == "fruit" and about["model"] == "LabelTree" and about["input"] == "text"
    assert about["n_labels"] == len(trained[1].classes_) and not about["multi_label"] and not about["learns"]
    found = client.get("/labels", params={"q": "A", "limit": 2, "offset": 1}).json()
    assert found["total"] == about["n_labels"] and found["labels"] == trained[1].classes_[1:3].tolist()
    assert client.get("/labels", params={"q": "bir"}).json() == {"total": 1, "labels": ["about bird"]}
    assert client.get("/health").json()["status"] == "ok"
    text = client.get("/metrics").text
    assert 'treemax_requests_total{worker="0",path="/health",status="200"} 1\n' in text


def test_page_has_a_policy_that_allows_own_files_only(client: Any) -> None:
    reply = client.get("/")
    assert reply.status_code == 200 and "default-src 'none'" in reply.headers["content-security-policy"]
    assert client.get("/static/index.html").status_code == 200
    for path in ("/static/../running.py", "/static/%2e%2e/running.py", "/static//etc/passwd", "/nothing"):
        assert client.get(path).status_code == 404, path


def test_concurrent_requests_are_answered_in_batches(client: Any, trained: tuple[Path, Any]) -> None:
    texts, _ = texts_and_labels(200, seed=7)

    def ask(i: int) -> Any:
        return client.post("/predict", json={"texts": [texts[i]], "k": 1 + i % 2}).json()["predictions"][0]

    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(ask, range(200)))
    expected = trained[1].predict_topk(texts, 2).labels.tolist()
    assert [[each["label"] for each in row] for row in found] == [row[: 1 + i % 2] for i, row in enumerate(expected)]


@pytest.mark.parametrize("form", ["dense", "sparse"])
def test_vectors(form: str, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    X = random.normal(size=(60, 6)).astype(np.float32) * (random.random((60, 6)) < 0.5)
    y = random.integers(0, 4, 60)
    model = treemax.LabelTree(random_state=0).fit(X if form == "dense" else sp.csr_matrix(X), y)
    model.save(tmp_path / "numbers.treemax")
    rows = [{str(j): float(v) for j, v in enumerate(row) if v} for row in X[:5]]
    with client_of(models={"numbers": str(tmp_path / "numbers.treemax")}) as client:
        for vectors in (X[:5].astype(float).tolist(), rows):
            found = client.post("/predict", json={"vectors": vectors, "k": 2}).json()["predictions"]
            expected = model.predict_topk(X[:5] if form == "dense" else sp.csr_matrix(X[:5]), 2)
            assert [[each["label"] for each in row] for row in found] == expected.labels.tolist()
        assert client.post("/predict", json={"texts": ["a"]}).status_code == 400


def test_several_models_are_chosen_by_name(tmp_path: Path) -> None:
    static_model(tmp_path / "one.treemax")
    static_model(tmp_path / "two.treemax", seed=1)
    paths = {name: str(tmp_path / f"{name}.treemax") for name in ("one", "two")}
    with client_of(models=paths, data=str(tmp_path / "data")) as client:
        assert client.post("/predict", json={"texts": ["bird"], "model": "two"}).json()["model"] == "two"
        assert client.post("/predict", json={"texts": ["bird"]}).status_code == 400
        assert client.post("/predict", json={"texts": ["bird"], "model": "three"}).status_code == 404


@pytest.mark.slow
def test_a_new_file_is_picked_up_and_a_broken_one_is_refused(tmp_path: Path) -> None:
    path, other = tmp_path / "model.treemax", tmp_path / "other.treemax"
    static_model(path)
    static_model(other, seed=1)

    def wait_for(condition: Any) -> None:
        end = time.monotonic() + 20
        while not condition():
            assert time.monotonic() < end
            assert client.post("/predict", json={"texts": [WORDS[0]]}).status_code == 200
            time.sleep(0.05)

    with client_of(models={"model": str(path)}) as client:
        first = client.get("/health").json()["models"]["model"]
        path.write_bytes(other.read_bytes())  # in place: what is mapped must not change
        wait_for(lambda: client.get("/health").json()["models"]["model"] != first)
        second = client.get("/health").json()["models"]["model"]
        path.write_bytes(other.read_bytes()[:-5000] + bytes(5000))
        wait_for(lambda: client.get("/health").json()["errors"])
        assert client.get("/health").json()["models"]["model"] == second
        path.unlink()
        static_model(path)
        wait_for(lambda: client.get("/health").json()["models"]["model"] == first)
        assert client.get("/health").json()["errors"] == {}


def test_requests_that_a_stop_interrupts_are_told_so(trained: tuple[Path, Any], caplog: Any) -> None:
    """After the time of grace, uvicorn cancels the requests that are still in progress."""
    sent: list[Any] = []
    application = make_application(Settings(models={"fruit": str(trained[0])}))
    application.batcher.submit = lambda *_: asyncio.get_running_loop().create_future()  # never answers
    scope = {"type": "http", "method": "POST", "path": "/predict", "query_string": b"",
             "headers": [(b"host", b"localhost"), (b"content-type", b"application/json")]}  # fmt: skip

    async def receive() -> Any:
        return {"type": "http.request", "body": b'{"texts": ["apple"]}', "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    async def stopped() -> None:
        request = asyncio.create_task(application(scope, receive, send))
        await asyncio.sleep(0.1)
        request.cancel()
        await request

    asyncio.run(stopped())
    application.close()
    assert sent[0]["status"] == 503 and b"stopping" in sent[1]["body"]
    assert not caplog.records


WITHOUT_COMPILATION = """
import sys
import numba.core.event as event
from tests.serving.service import client_of


vector = {"texts": ["apple bird"]} if sys.argv[2] == "texts" else {"vectors": [[1.0, 0.0, 0.0, 2.0]]}
with client_of(models={"model": sys.argv[1]}) as client:
    listener = event.RecordingListener()
    with event.install_listener("numba:compile", listener):
        label = client.get("/labels").json()["labels"][0]
        for _ in range(2):
            for path, more in (
                ("/predict", {}), ("/predict", {"labels": [label]}), ("/predict", {"threshold": 0.2}),
                ("/explain", {}), ("/learn", {"labels": [[label]]}), ("/learn", {"labels": [[label + label]]}),
            ):
                reply = client.post(path, json=vector | more)
                assert reply.status_code == 200, reply.text
    names = [found.data["dispatcher"].py_func.__name__ for _, found in listener.buffer]
    print(sorted(set(names)))
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["texts", "vectors"])
def test_nothing_is_compiled_after_the_start(kind: str, tmp_path: Path) -> None:
    """On a machine without compiled kernels, neither the first answer nor the first example waits."""
    path = tmp_path / "model.treemax"
    if kind == "texts":
        online_model(path)
    else:
        X = np.eye(4, dtype=np.float32)
        treemax.OneVsAll(random_state=0).partial_fit(X, [1, 2, 3, 4]).save(path, resume=True)
    found = subprocess.run(
        [sys.executable, "-c", WITHOUT_COMPILATION, str(path), kind],
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "empty")}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert found.stdout == "[]\n"
