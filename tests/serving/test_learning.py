"""Learning in the service: the model equals that of one `partial_fit` per example of the log, in order."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

import treemax
from tests.serving.service import client_of, online_model, same_model, texts_and_labels

pytest.importorskip("starlette")

pytestmark = pytest.mark.slow


def trained_on(path: Path, examples: list[dict[str, Any]]) -> Any:
    """The model of a file after `partial_fit` of each example."""
    return learn_all(treemax.load(path), examples)


def learn_all(model: Any, examples: list[dict[str, Any]]) -> Any:
    """`partial_fit` of each example."""
    for example in examples:
        labels = example["labels"] if not model.multi_label_ else [example["labels"]]
        model.partial_fit([example["text"]], labels)
    return model


def served_model(client: Any) -> Any:
    return client.app.models["model"].served.model


def exported(client: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in client.get("/log/export").text.splitlines()]


def teach(client: Any, texts: list[str], labels: list[str]) -> dict[str, Any]:
    reply = client.post("/learn", json={"texts": texts, "labels": [[label] for label in labels]})
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_a_model_file_is_loaded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, loaded, load = tmp_path / "model.treemax", [], treemax.load
    online_model(path)
    with client_of(models={"model": str(path)}):
        pass  # the copy of the file is made, and verified
    monkeypatch.setattr(treemax, "load", lambda path, **options: loaded.append(path) or load(path, **options))
    with client_of(models={"model": str(path)}) as client:
        assert teach(client, ["zebra"], ["a new label"])["learned"]
    assert len(loaded) == 1


def test_learned_examples_change_the_answers_and_survive_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "model.treemax"
    online_model(path)
    texts, labels = texts_and_labels(30, seed=3)
    with client_of(models={"model": str(path)}) as client:
        assert teach(client, texts[:10], labels[:10]) == {"acknowledged": 10, "sequence": 10, "learned": True}
        for i in range(10, 30):
            assert teach(client, [texts[i]], [labels[i]])["sequence"] == i + 1
        assert teach(client, ["zebra"] * 3, ["a new label"] * 3)["learned"]
        best = client.post("/predict", json={"texts": ["zebra"], "k": 1}).json()
        assert best["predictions"][0][0]["label"] == "a new label" and best["version"].endswith("+33")
        assert client.get("/labels", params={"q": "new"}).json()["labels"] == ["a new label"]
        examples = exported(client)
        assert [example["text"] for example in examples] == [*texts, *["zebra"] * 3]
        expected = trained_on(path, examples)
        assert same_model(served_model(client), expected)
    with client_of(models={"model": str(path)}) as client:
        assert same_model(served_model(client), expected)
        assert client.get("/models").json()["models"][0]["version"].endswith("+33")
        (tmp_path / "model.treemax.serve").joinpath("nothing").touch()  # strange files do not matter
        log = client.get("/log", params={"after": 30, "limit": 2}).json()
        assert log["last"] == 33 and [entry["sequence"] for entry in log["examples"]] == [31, 32]


def test_undone_examples_are_as_if_never_learned(tmp_path: Path) -> None:
    path = tmp_path / "model.treemax"
    online_model(path)
    texts, labels = texts_and_labels(12, seed=4)
    with client_of(models={"model": str(path)}) as client:
        teach(client, texts[:8], labels[:8])
        undone = client.post("/undo", json={"n": 3}).json()
        assert undone["undone"] == 3 and undone["sequences"] == [6, 7, 8] and undone["restored"]
        assert teach(client, texts[8:], labels[8:])["sequence"] == 12
        assert client.post("/undo", json={"n": 1}).json()["sequences"] == [12]
        examples = exported(client)
        assert [example["text"] for example in examples] == [*texts[:5], *texts[8:11]]
        expected = trained_on(path, examples)
        assert same_model(served_model(client), expected)
        assert client.post("/undo", json={"n": 100}).status_code == 409
    with client_of(models={"model": str(path)}) as client:
        assert same_model(served_model(client), expected)


def test_snapshots_with_undone_examples_are_not_used(tmp_path: Path) -> None:
    path = tmp_path / "model.treemax"
    online_model(path)
    texts, labels = texts_and_labels(8, seed=4)
    with client_of(models={"model": str(path)}) as client:
        teach(client, texts, labels)
    assert list((tmp_path / "model.treemax.serve").glob("snapshot-*-000000000008.treemax"))
    with client_of(models={"model": str(path)}) as client:
        client.post("/undo", json={"n": 5})
        expected = trained_on(path, exported(client))
        assert len(exported(client)) == 3 and same_model(served_model(client), expected)


def test_progress_is_the_share_predicted_before_learning(tmp_path: Path) -> None:
    path = tmp_path / "model.treemax"
    online_model(path)
    texts, labels = texts_and_labels(40, seed=5)
    model, right = treemax.load(path), 0
    for text, label in zip(texts, labels):
        right += model.predict_topk([text], 1).labels[0, 0] == label
        model.partial_fit([text], [label])
    with client_of(models={"model": str(path)}) as client:
        teach(client, texts, labels)
        end = time.monotonic() + 10
        while (progress := client.get("/progress").json())["n"] < 40:
            assert time.monotonic() < end
            time.sleep(0.05)
    assert progress["accuracy"] == pytest.approx(right / 40)
    assert progress["points"][-1]["n"] == 40 and progress["points"][-1]["accuracy"] == progress["accuracy"]


def test_a_new_file_learns_what_comes_after_it(tmp_path: Path) -> None:
    path, other = tmp_path / "model.treemax", tmp_path / "other.treemax"
    online_model(path)
    texts, labels = texts_and_labels(6, seed=6)
    with client_of(models={"model": str(path)}) as client:
        teach(client, texts[:3], labels[:3])
        version = client.get("/models").json()["models"][0]["version"]
        online_model(other, n=40)
        path.write_bytes(other.read_bytes())
        end = time.monotonic() + 20
        while client.get("/models").json()["models"][0]["version"] == version:
            assert time.monotonic() < end
            time.sleep(0.05)
        teach(client, texts[3:], labels[3:])
        expected = trained_on(other, [{"text": t, "labels": [y]} for t, y in zip(texts[3:], labels[3:])])
        assert same_model(served_model(client), expected)
        assert client.post("/undo", json={"n": 4}).status_code == 409  # only what this file has learned
    with client_of(models={"model": str(path)}) as client:
        assert same_model(served_model(client), expected)


def test_many_teachers_at_once(tmp_path: Path) -> None:
    path = tmp_path / "model.treemax"
    online_model(path)
    texts, labels = texts_and_labels(120, seed=7)
    with client_of(models={"model": str(path)}) as client:
        with ThreadPoolExecutor(12) as pool:
            replies = list(pool.map(lambda i: teach(client, [texts[i]], [labels[i]]), range(120)))
        assert sorted(reply["sequence"] for reply in replies) == list(range(1, 121))
        order = {reply["sequence"]: texts[i] for i, reply in enumerate(replies)}
        examples = exported(client)
        assert [example["text"] for example in examples] == [order[i] for i in range(1, 121)]
        assert same_model(served_model(client), trained_on(path, examples))


@pytest.mark.parametrize("form", ["vector", "lists", "indicator"])
def test_vectors_and_several_labels(form: str, tmp_path: Path) -> None:
    random, path = np.random.default_rng(0), tmp_path / "model.treemax"
    X = sp.csr_matrix(random.random((30, 8)) * (random.random((30, 8)) < 0.4), dtype=np.float32)
    y: Any = random.integers(0, 5, 30)
    y[:5] = np.arange(5)
    if form == "lists":
        y = [[int(label), 7] for label in y]
    elif form == "indicator":
        y = sp.csr_matrix(np.eye(5)[y])
    model = treemax.OneVsAll(random_state=0) if form == "indicator" else treemax.OnlineLabelTree(random_state=0)
    model.partial_fit(X, y).save(path, resume=True)
    with client_of(models={"model": str(path)}) as client:
        rows = [{"0": 0.5, "9": 1.0}, {"3": 0.25}]
        wanted = [[1], [2]] if form == "vector" else [[1, 2], [0]]
        assert client.post("/learn", json={"vectors": rows, "labels": wanted}).json()["learned"]
        for i, own in enumerate(wanted):
            row = sp.csr_matrix(
                ([*rows[i].values()], ([0] * len(rows[i]), [*map(int, rows[i])])), (1, 10 if i == 0 else 8)
            )
            target = own if form == "vector" else [own] if form == "lists" else sp.csr_matrix(np.eye(5)[own].sum(0))
            model.partial_fit(row.astype(np.float32), target)
        assert same_model(served_model(client), model)


def test_examples_that_no_model_can_learn_are_not_acknowledged(tmp_path: Path) -> None:
    path, X = tmp_path / "model.treemax", np.eye(4, dtype=np.float32)
    model = treemax.OneVsAll(random_state=0).partial_fit(X, np.eye(4))
    model.save(path, resume=True)
    with client_of(models={"model": str(path)}) as client:
        for vector in ([1e16, 0, 0, 0], {"2": -1e16}):
            reply = client.post("/learn", json={"vectors": [vector], "labels": [[1]]})
            assert reply.status_code == 400 and "1e15" in reply.text
        reply = client.post("/learn", json={"vectors": [[1e15, 0, 0, 0]], "labels": [[1, 3, 3]]})
        assert reply.json() == {"acknowledged": 1, "sequence": 1, "learned": True}


def test_health_tells_of_a_broken_file_and_a_log_that_cannot_be_written(tmp_path: Path, monkeypatch: Any) -> None:
    import sqlite3

    path = tmp_path / "model.treemax"
    online_model(path)
    texts, labels = texts_and_labels(2, seed=9)
    with client_of(models={"model": str(path)}) as client:
        teach(client, texts, labels)
        slot = client.app.models["model"]

        def full(*_: Any) -> None:
            raise sqlite3.OperationalError("database or disk is full")

        with monkeypatch.context() as patch:
            patch.setattr(slot.examples, "append", full)
            patch.setattr(slot.examples, "undo", full)
            for target, body in (("/learn", {"texts": texts, "labels": labels}), ("/undo", {"n": 1})):
                reply = client.post(target, json=body)
                assert reply.status_code == 503 and "disk is full" in reply.text
            assert "disk is full" in client.get("/health").json()["errors"]["model"]
        teach(client, texts, labels)
        assert client.get("/health").json()["errors"] == {}
        path.write_bytes(b"broken")
        slot.refresh()
        assert client.post("/undo", json={"n": 1}).json()["restored"]
        assert "not a model file" in client.get("/health").json()["errors"]["model"]


def test_an_example_that_cannot_be_learned_is_reported_and_left_out(tmp_path: Path, monkeypatch: Any) -> None:
    from treemax.serving.served_model import ServedModel

    path = tmp_path / "model.treemax"
    online_model(path)
    texts, labels = texts_and_labels(4, seed=8)
    whole = ServedModel.targets

    def failing(served: Any, own: list[Any]) -> Any:
        if own == ["trouble"]:
            raise ValueError("no such thing")
        return whole(served, own)

    monkeypatch.setattr(ServedModel, "targets", failing)
    with client_of(models={"model": str(path)}) as client:
        teach(client, texts[:2], labels[:2])
        teach(client, ["x"], ["trouble"])
        assert teach(client, texts[2:], labels[2:])["learned"]
        assert client.get("/log").json()["examples"][2]["error"] == "no such thing"
        assert same_model(served_model(client), trained_on(path, exported(client)))
        assert len(exported(client)) == 4


def test_models_that_do_not_learn_say_so(tmp_path: Path) -> None:
    path = tmp_path / "model.treemax"
    online_model(path)
    with client_of(models={"model": str(path)}, learn=False) as client:
        for method, target in (("post", "/learn"), ("post", "/undo")):
            assert getattr(client, method)(target, json={}).status_code == 409
        refused = client.get("/log")
        assert refused.status_code == 409 and "--no-learn was given" in refused.json()["error"]
        assert not client.get("/models").json()["models"][0]["learns"]
