"""Invalid and malicious requests: malformed and huge bodies, slow clients, other origins, wrong tokens."""

from __future__ import annotations

import json
import socket
import time
from pathlib import Path
from typing import Any

import pytest

from tests.serving.service import Server, client_of, online_model, static_model
from treemax.serving.guard import Guard, hash_of_token, is_hash, is_loopback, read_token_file
from treemax.serving.running import Settings

pytest.importorskip("starlette")

TOKEN = "a token of more than sixteen characters"


@pytest.fixture(scope="module")
def client(tmp_path_factory: Any) -> Any:
    path = tmp_path_factory.mktemp("models") / "model.treemax"
    static_model(path)
    with client_of(models={"model": str(path)}, body_bytes=100_000, rows=50) as client:
        yield client


BAD_BODIES = [
    b"", b"{", b"[]", b"null", b'"texts"', b"\xff\xfe", b"{}", b'{"texts": []}', b'{"texts": "a"}', b'{"texts": [1]}',
    b'{"texts": [null]}', b'{"texts": [["a"]]}', b'{"texts": {"a": 1}}', b'{"vectors": [[1, 2]]}',
    b'{"texts": ["a"], "vectors": [[1]]}', b'{"texts": ["a"], "k": 0}', b'{"texts": ["a"], "k": 1.5}',
    b'{"texts": ["a"], "k": true}', b'{"texts": ["a"], "k": "5"}', b'{"texts": ["a"], "k": 100000000000000000000}',
    b'{"texts": ["a"], "threshold": 2}', b'{"texts": ["a"], "threshold": NaN}', b'{"texts": ["a"], "threshold": "x"}',
    b'{"texts": ["a"], "labels": ["unknown"]}', b'{"texts": ["a"], "labels": [1]}', b'{"texts": ["a"], "labels": []}',
    b'{"texts": ["a"], "labels": "about bird"}', b'{"texts": ["a"], "exclude": [null]}', b'{"texts": ["a"], "texst": 1}',
    b'{"texts": ["\\ud800"]}', b'{"texts": ["a"], "model": 7}', b'{"texts": ["a"], "model": {"a": []}}',
    b"[" * 50_000, b'{"texts":' * 5000, b'{"texts": [' + b"9" * 5000 + b"]}", b'{"a": Infinity}',
]  # fmt: skip


@pytest.mark.parametrize("body", BAD_BODIES, ids=lambda body: repr(body[:40]))
def test_bad_bodies_are_refused_in_plain_words(client: Any, body: bytes) -> None:
    for path in ("/predict", "/explain"):
        reply = client.post(path, content=body, headers={"content-type": "application/json"})
        assert reply.status_code in (400, 404), reply.text
        assert len(reply.json()["error"]) < 400


def test_texts_of_any_characters_are_answered(client: Any) -> None:
    texts = [
        "",
        "\0",
        "\n",
        "𝄞" * 10,
        "a" * 50_000,
        "'; DROP TABLE examples; --",
        "\u202e",
        "%s%n{0}",
        "../../etc/passwd",
    ]
    assert len(client.post("/predict", json={"texts": texts}).json()["predictions"]) == len(texts)


def test_limits_of_size_and_kind(client: Any) -> None:
    assert client.post("/predict", json={"texts": ["a" * 200_000]}).status_code == 413
    assert client.post("/predict", json={"texts": ["a"] * 51}).status_code == 400
    assert client.post("/explain", json={"texts": ["a"] * 21}).status_code == 400
    chunks = (b'{"texts": ["' + b"a" * 50_000 for _ in range(4))  # without a length
    assert client.post("/predict", content=chunks, headers={"content-type": "application/json"}).status_code == 413
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        assert client.post("/predict", content=b'{"texts": ["a"]}', headers={"content-type": kind}).status_code == 415
    assert client.get("/predict").status_code == 405 and client.get("/predict").headers["allow"] == "POST"
    assert client.delete("/models").status_code == 405
    assert client.head("/models").status_code == 200 and client.head("/models").content == b""
    for query in (
        "limit=-1",
        "limit=x",
        "limit=100000",
        "offset=1e9",
        "limit=٣",
        "q=%ff",
        "&".join("a=1" for _ in range(60)),
    ):
        assert client.get("/labels?" + query).status_code == 400, query
    assert client.post("/predict", json={"texts": ["a"]}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:9999"},
        {"origin": "http://localhost:8000.evil.example"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
        {"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"},
        {"host": "evil.example"},
        {"host": "evil.example:8000"},
        {"host": "localhost.evil.example"},
        {"host": "localhost:8000@evil.example"},
        {"host": ""},
    ],
    ids=str,
)
def test_foreign_pages_are_refused(client: Any, headers: dict[str, str]) -> None:
    for method, path in (("GET", "/models"), ("POST", "/predict"), ("GET", "/"), ("OPTIONS", "/predict")):
        reply = client.request(method, path, headers=headers)
        assert reply.status_code in (403, 421), (method, path)
        assert not any(name.startswith("access-control") for name in reply.headers)


def test_own_pages_and_links_are_answered(client: Any) -> None:
    own = {"origin": "http://localhost:8000", "sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}
    assert client.post("/predict", json={"texts": ["a"]}, headers=own).status_code == 200
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert client.get("/", headers=link).status_code == 200
    for host in ("127.0.0.1:8000", "[::1]:8000", "192.168.3.4"):
        assert client.get("/models", headers={"host": host}).status_code == 200


def test_explanations_of_huge_texts_are_refused(tmp_path: Path) -> None:
    static_model(tmp_path / "model.treemax")
    with client_of(models={"model": str(tmp_path / "model.treemax")}) as client:
        huge = {"texts": ["bird " * 60_000]}
        assert client.post("/predict", json=huge).status_code == 200
        assert client.post("/explain", json=huge).status_code == 413


def test_names_that_are_allowed() -> None:
    guard = Guard(allowed_hosts=["Models.Example.org"])
    guard.check_source({b"host": b"models.example.org:443", b"origin": b"https://models.example.org:443"})


@pytest.mark.slow
def test_learning_and_the_log_need_the_token(tmp_path: Path) -> None:
    path = tmp_path / "model.treemax"
    online_model(path)
    example = {"texts": ["a bird"], "labels": [["about bird"]]}
    with client_of(models={"model": str(path)}, token_hash=hash_of_token(TOKEN)) as client:
        for given in ({}, {"authorization": "Bearer x"}, {"authorization": f"Basic {TOKEN}"}, {"authorization": TOKEN}):
            for method, target in (("POST", "/learn"), ("POST", "/undo"), ("GET", "/log"), ("GET", "/log/export")):
                assert client.request(method, target, json=example, headers=given).status_code == 401
        right = {"authorization": f"Bearer {TOKEN}"}
        assert client.post("/learn", json=example, headers=right).json()["acknowledged"] == 1
        assert client.get("/log", headers=right).json()["last"] == 1
        assert client.post("/predict", json={"texts": ["a"]}).status_code == 200
        labels = [[["a", "b"]], [[]], [[1]], [[None]], [[""]], [["x" * 2000]], [], ["a", "b"], "a", None, [{}]]
        for own in labels:
            assert client.post("/learn", json={"texts": ["a"], "labels": own}, headers=right).status_code in (
                400,
                409,
            ), own
        for n in (0, -1, 1.5, "1", None, True, 10**9):
            assert client.post("/undo", json={"n": n}, headers=right).status_code == 400
        assert client.get("/log", headers=right).json()["last"] == 1
    stored = "".join(file.read_bytes().decode("latin-1") for file in tmp_path.rglob("*") if file.is_file())
    assert TOKEN not in stored
    with client_of(models={"model": str(path)}, token_hash=hash_of_token(TOKEN), private=True) as client:
        assert client.post("/predict", json={"texts": ["a"]}).status_code == 401
        assert client.get("/").status_code == 200  # the page, which asks for the token
        assert client.post("/predict", json={"texts": ["a"]}, headers=right).status_code == 200


def test_tokens_are_hashed_and_kept_in_a_file(tmp_path: Path) -> None:
    stored, token = read_token_file(str(tmp_path / "token"))
    assert token is not None and is_hash(stored) and token not in (tmp_path / "token").read_text()
    assert (tmp_path / "token").stat().st_mode & 0o077 == 0
    assert read_token_file(str(tmp_path / "token")) == (stored, None)
    Guard(stored).check_token({b"authorization": b"Bearer " + token.encode()})
    with pytest.raises(ValueError, match="at least 16"):
        hash_of_token("short")


def test_other_addresses_need_a_token() -> None:
    for host in ("0.0.0.0", "::", "192.168.1.1", "example.org"):
        assert not is_loopback(host)
        with pytest.raises(ValueError, match="needs a token"):
            Settings(models={}, host=host).check()
        Settings(models={}, host=host, token_hash=hash_of_token(TOKEN)).check()
    assert is_loopback("127.0.0.2") and is_loopback("::1") and is_loopback("localhost")


@pytest.mark.slow
def test_slow_and_broken_clients(tmp_path: Path) -> None:
    static_model(tmp_path / "model.treemax")
    with Server(str(tmp_path / "model.treemax"), "--timeout", "1") as server:

        def connected() -> socket.socket:
            return socket.create_connection(("127.0.0.1", server.port), timeout=20)

        def received(connection: socket.socket) -> bytes:
            content = b""
            try:
                while piece := connection.recv(65536):
                    content += piece
            except ConnectionError:
                pass
            return content

        head = b"POST /predict HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        start = time.monotonic()
        silent, half_head, half_body = connected(), connected(), connected()
        half_head.sendall(head)
        half_body.sendall(head + b'content-length: 100\r\n\r\n{"texts"')
        dripping = connected()
        assert received(silent) == b""
        assert b"408" in received(half_head) and b"408" in received(half_body)
        try:
            for _ in range(100):
                dripping.sendall(b"X")
                time.sleep(0.05)
        except ConnectionError:
            pass
        assert time.monotonic() - start < 15
        endless = connected()
        try:
            endless.sendall(head)
            for i in range(2000):
                endless.sendall(b"x-%d: " % i + b"y" * 1000 + b"\r\n")
        except ConnectionError:
            pass
        large = connected()
        large.sendall(head + b"content-length: 99999999999\r\n\r\n")
        assert b"413" in received(large)
        strange = connected()
        strange.sendall(b"\x16\x03\x01\x02\x00 not http\r\n\r\n")
        assert b"400" in received(strange)
        body = json.dumps({"texts": ["a bird"]}).encode()
        good = connected()
        good.sendall(head + b"connection: close\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        assert b"200 OK" in received(good)
