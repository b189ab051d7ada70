"""The ASGI application: reads requests within limits, authenticates and responds.

A plain ASGI application answers an ordinary request in a fraction of the time of a web framework; Starlette serves the
files of the page.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from treemax.extras import import_extra
from treemax.serving.annif import annif_routes
from treemax.serving.answers import as_json, encode_predictions
from treemax.serving.batching import Batcher
from treemax.serving.errors import RequestError
from treemax.serving.exchange import Reply, Request, Route
from treemax.serving.guard import Guard
from treemax.serving.learning import LearningModel
from treemax.serving.metrics import Metrics
from treemax.serving.openapi import document
from treemax.serving.outline import node_outline, path_of
from treemax.serving.request_bodies import (
    MOST_EXPLAINED,
    MOST_EXPLAINED_BYTES,
    Limits,
    check_keys,
    check_label,
    joined,
    read_examples,
    read_inputs,
    read_options,
    whole,
)
from treemax.serving.served_model import ServedModel

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

log = logging.getLogger("treemax.serve")

PAGE = Path(__file__).parent / "page"
REFRESH_SECONDS = 1.0
MOST_LISTED = 1000  # labels, children of a node or examples in one answer
POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    b"font-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SAFETY = [
    (b"content-security-policy", POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"x-frame-options", b"DENY"),
]
NO_STORE = [(b"cache-control", b"no-store"), (b"x-content-type-options", b"nosniff")]
PREDICT_KEYS = frozenset({"model", "texts", "vectors", "k", "threshold", "labels", "exclude"})
LEARN_KEYS = frozenset({"model", "texts", "vectors", "labels", "wait"})
EXPLAIN_KEYS = frozenset({"model", "texts", "vectors", "label", "k"})


class Application:
    """The ASGI application of `treemax serve`."""

    def __init__(
        self, models: Mapping[str, Any], guard: Guard, limits: Limits, worker: int = 0, api: str | None = None
    ) -> None:
        static_files = import_extra("starlette.staticfiles", "treemax serve", "serve").StaticFiles
        self.models = dict(models)
        self.guard, self.limits = guard, limits
        self.metrics = Metrics(worker)
        self.batcher = Batcher(self.metrics.count_batch)
        self._static = static_files(directory=PAGE, html=True)
        self._buffered = 0
        self.routes: dict[str, Route] = {
            "/predict": Route("POST", self._predict),
            "/explain": Route("POST", self._explain),
            "/models": Route("GET", self._list_models),
            "/labels": Route("GET", self._labels),
            "/tree": Route("GET", self._tree),
            "/path": Route("GET", self._path),
            "/health": Route("GET", self._health),
            "/metrics": Route("GET", self._metrics),
            "/openapi.json": Route("GET", self._openapi),
            "/learn": Route("POST", self._learn, needs_token=True),
            "/undo": Route("POST", self._undo, needs_token=True),
            "/log": Route("GET", self._log, needs_token=True),
            "/log/export": Route("GET", self._export, needs_token=True),
            "/progress": Route("GET", self._progress),
        }
        if api == "annif":
            self.routes |= annif_routes(self)

    # --- protocol -------------------------------------------------------------------------------------------

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        else:  # a web socket
            await receive()
            await send({"type": "websocket.close", "code": 1000})

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        refreshing = asyncio.create_task(self._refresh_for_ever())
        await send({"type": "lifespan.startup.complete"})
        await receive()
        refreshing.cancel()
        await asyncio.to_thread(self.close)
        await send({"type": "lifespan.shutdown.complete"})

    def close(self) -> None:
        """Finish pending work."""
        self.batcher.close()
        for model in self.models.values():
            model.close()

    async def _refresh_for_ever(self) -> None:
        """Pick up model files that change."""
        while True:
            await asyncio.sleep(REFRESH_SECONDS)
            for name, model in self.models.items():
                before = model.error
                try:
                    await asyncio.to_thread(model.refresh)
                except Exception:
                    log.exception("%s: cannot be refreshed", name)
                if model.error is not None and model.error != before:
                    log.error(
                        "%s: the new file cannot be loaded, the previous one is still served: %s", name, model.error
                    )

    async def _http(self, scope: Message, receive: Receive, send: Send) -> None:
        start, path = time.perf_counter(), scope["path"]
        self.metrics.in_flight += 1
        route = self.routes.get(path)
        status, begun = 500, False
        try:
            headers = dict(scope["headers"])
            try:
                self.guard.check_source(headers)
                if route is None:  # the page has no secrets, and asks for the token
                    status = await self._page(scope, receive, send)
                    return
                reply = await self._reply(route, scope, headers, receive)
            except RequestError as error:
                reply = _refusal(error)
            status, begun = reply.status, True
            await self._send(reply, send, scope["method"] == "HEAD")
        except asyncio.CancelledError:  # the server stops, and has waited long enough
            status = 503
            if not begun:
                await self._send(_refusal(RequestError("The server is stopping.", 503)), send)
        except Exception:
            log.exception("%s %s failed", scope["method"], path)
            status = 500
            if not begun:
                await self._send(
                    _refusal(RequestError("Internal error; the log of the server has the details.", 500)), send
                )
        finally:
            self.metrics.in_flight -= 1
            self.metrics.count_request(path if route else "page", status, time.perf_counter() - start)

    async def _reply(self, route: Route, scope: Message, headers: dict[bytes, bytes], receive: Receive) -> Reply:
        method = scope["method"]
        if method != route.method and not (method == "HEAD" and route.method == "GET"):
            allowed = (b"allow", b"GET, HEAD" if route.method == "GET" else b"POST")
            refused = _refusal(RequestError(f"Use {route.method} here, not {method!r:.20}.", 405))
            return refused._replace(headers=(*refused.headers, allowed))
        if route.needs_token or self.guard.private:
            self.guard.check_token(headers)
        body = await self._body(headers, receive) if route.method == "POST" else b""
        if not scope["query_string"]:
            return await route.answer(Request({}, headers, body))
        try:
            pairs = parse_qsl(scope["query_string"].decode("latin-1"), True, errors="strict", max_num_fields=50)
        except (ValueError, UnicodeDecodeError) as error:
            raise RequestError(f"The query cannot be read: {error}.") from None
        return await route.answer(Request(dict(pairs), headers, body))

    async def _body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        """Read a body, within the limit of size; the protocol has that of time."""
        most = self.limits.body_bytes
        length = headers.get(b"content-length", b"0")
        if length.isdigit() and int(length) > most:
            raise RequestError(f"The body has {int(length):,} bytes; at most {most:,} are allowed.", 413)
        message = await receive()
        pieces, size = [message.get("body", b"")], len(message.get("body", b""))
        self._buffered += size
        try:
            while size <= most and message.get("more_body", False):
                if self._buffered > self.limits.buffered_bytes:
                    raise RequestError("The server is busy with other large requests; try again later.", 503)
                message = await receive()
                pieces.append(message.get("body", b""))
                size += len(pieces[-1])
                self._buffered += len(pieces[-1])
        finally:
            self._buffered -= size
        if message["type"] == "http.disconnect":
            raise RequestError("The body did not arrive.")
        if size > most:
            raise RequestError(f"The body is larger than {most:,} bytes.", 413)
        return bytes(pieces[0]) if len(pieces) == 1 else b"".join(pieces)

    async def _send(self, reply: Reply, send: Send, without_body: bool = False) -> None:
        body = reply.body
        headers = [(b"content-type", reply.kind), *NO_STORE, *reply.headers]
        if isinstance(body, bytes):
            headers.append((b"content-length", str(len(body)).encode()))
        await send({"type": "http.response.start", "status": reply.status, "headers": headers})
        if isinstance(body, bytes):
            await send({"type": "http.response.body", "body": b"" if without_body else body})
            return
        if not without_body:
            async for piece in body:
                await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def _page(self, scope: Message, receive: Receive, send: Send) -> int:
        """Answer with a file of the page."""
        path = scope["path"]
        inner_scope = {**scope, "path": path.removeprefix("/static") if path.startswith("/static/") else path}
        if path != "/" and not path.startswith("/static/"):
            raise RequestError(f"Unknown path {path!r:.100}; see /openapi.json for all paths.", 404)
        inner_scope["root_path"] = ""
        status = 500

        async def send_safely(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message["headers"], *SAFETY, (b"cache-control", b"no-cache")]}
            await send(message)

        starlette_error = import_module("starlette.exceptions").HTTPException
        try:
            await self._static(inner_scope, receive, send_safely)
        except starlette_error as error:
            raise RequestError(
                "There is no such file." if error.status_code == 404 else error.detail, error.status_code
            ) from None
        return status

    # --- answers --------------------------------------------------------------------------------------------

    def slot(self, name: Any) -> Any:
        """Return a model by the name in a request; it may be left out if there is one model."""
        if name is None:
            if len(self.models) == 1:
                return next(iter(self.models.values()))
            raise RequestError(f'Several models are served; choose one with "model": {", ".join(self.models)}.')
        found = self.models.get(name) if isinstance(name, str) else None
        if found is None:
            raise RequestError(f"There is no model {name!r:.100}; served are {', '.join(self.models)}.", 404)
        return found

    async def _predict(self, request: Request) -> Reply:
        content = request.json()
        served: ServedModel = self.slot(content.get("model")).served
        check_keys(content, PREDICT_KEYS)
        inputs, n_rows = read_inputs(content, served, self.limits)
        options = read_options(content, served)
        return Reply(
            await self.batcher.submit(served, inputs, n_rows, options, encode_predictions, self.limits.seconds)
        )

    async def _explain(self, request: Request) -> Reply:
        if len(request.body) > MOST_EXPLAINED_BYTES:
            raise RequestError(f"At most {MOST_EXPLAINED_BYTES:,} bytes can be explained in one request.", 413)
        content = request.json()
        served = self.slot(content.get("model")).served
        check_keys(content, EXPLAIN_KEYS)
        inputs, _ = read_inputs(content, served, self.limits._replace(rows=MOST_EXPLAINED))
        options = read_options({"k": content.get("k", 5)}, served)
        label = content.get("label")
        if label is not None:
            read_options({"labels": [label]}, served)
        if not hasattr(served.model, "explain"):
            raise RequestError(f"{type(served.estimator).__name__} cannot explain its predictions.")

        def explained() -> bytes:
            X = joined([inputs], served.n_features)
            found = served.model.explain(X, label, options.k)
            found = found if isinstance(found, list) else [found]
            return as_json(
                {"model": served.name, "version": served.version, "explanations": [each.to_dict() for each in found]}
            )

        return Reply(await self._in_thread(explained))

    async def _in_thread(self, work: Callable[[], bytes], status: int = 400) -> bytes:
        """Return what `work` returns; a ValueError is answered with this status."""
        try:
            return await asyncio.to_thread(work)
        except RequestError:
            raise
        except ValueError as error:
            raise RequestError(str(error), status) from None
        except sqlite3.Error as error:  # such as a full disk
            log.exception("the log cannot be used")
            raise RequestError(f"The log cannot be used: {error}.", 503) from None

    async def _list_models(self, request: Request) -> Reply:
        return Reply(as_json({"models": self._descriptions()}))

    def _descriptions(self) -> list[dict[str, Any]]:
        return [slot.served.describe() for slot in self.models.values()]

    async def _labels(self, request: Request) -> Reply:
        served = self.slot(request.query.get("model")).served
        wanted = request.query.get("q", "")
        limit, offset = request.number("limit", 20, MOST_LISTED), request.number("offset", 0, 2**48)

        def found() -> bytes:
            total, labels = served.search.find(served.estimator, wanted, offset, limit)
            return as_json({"total": total, "labels": labels})

        return Reply(await self._in_thread(found))

    async def _tree(self, request: Request) -> Reply:
        served = self._with_tree(request)
        limit, offset = request.number("limit", 100, MOST_LISTED), request.number("offset", 0, 2**48)
        node = request.query.get("node", "root")

        def found() -> bytes:
            outline = node_outline(served.model, node, offset, limit)
            if outline["id"] in served.errors:
                outline["test_rows"], wrong = served.errors[outline["id"]]
                outline["error"] = wrong / outline["test_rows"]
            return as_json(outline)

        return Reply(await self._in_thread(found, 404))

    async def _path(self, request: Request) -> Reply:
        served = self._with_tree(request)
        if "label" not in request.query:
            raise RequestError("label is missing.")
        label = label_of_text(request.query["label"], served)
        return Reply(await self._in_thread(lambda: as_json(path_of(served.model, label)), 404))

    def _with_tree(self, request: Request) -> ServedModel:
        served: ServedModel = self.slot(request.query.get("model")).served
        if not served.tree:
            raise RequestError(f"The model {served.name!r} has no tree to walk through.", 404)
        return served

    async def _health(self, request: Request) -> Reply:
        errors = {name: slot.problem for name, slot in self.models.items() if slot.problem is not None}
        versions = {name: slot.served.version for name, slot in self.models.items()}
        return Reply(as_json({"status": "ok", "models": versions, "errors": errors}))

    async def _metrics(self, request: Request) -> Reply:
        learning = {name: slot for name, slot in self.models.items() if isinstance(slot, LearningModel)}
        logged = await asyncio.to_thread(lambda: {name: slot.examples.last() for name, slot in learning.items()})
        logs = {name: {"logged": logged[name], "learned": slot.learned_until} for name, slot in learning.items()}
        text = self.metrics.text(self._descriptions(), logs)
        return Reply(text.encode(), kind=b"text/plain; version=0.0.4; charset=utf-8")

    async def _openapi(self, request: Request) -> Reply:
        return Reply(as_json(document(self.limits, [slot.served for slot in self.models.values()])))

    # --- learning -------------------------------------------------------------------------------------------

    def _learning(self, name: Any) -> LearningModel:
        slot = self.slot(name)
        if not isinstance(slot, LearningModel):
            raise RequestError(
                f"The model {slot.name!r} does not learn from requests: it is not an online model that was saved with "
                "resume=True, or --no-learn was given.",
                409,
            )
        return slot

    async def _learn(self, request: Request) -> Reply:
        content = request.json()
        slot = self._learning(content.get("model"))
        check_keys(content, LEARN_KEYS)
        wait = content.get("wait", True)
        if type(wait) is not bool:
            raise RequestError(f"wait must be true or false, got {wait!r:.60}.")
        examples = read_examples(content, slot.served, self.limits)
        try:
            last, learned = await slot.append(examples, wait)
        except (sqlite3.Error, OSError) as error:
            log.exception("%s: the log cannot be written", slot.name)
            raise RequestError(f"The examples could not be stored, and are not acknowledged: {error}.", 503) from None
        return Reply(as_json({"acknowledged": len(examples), "sequence": last, "learned": learned}))

    async def _undo(self, request: Request) -> Reply:
        content = request.json()
        slot = self._learning(content.get("model"))
        check_keys(content, frozenset({"model", "n"}))
        n = whole(content.get("n", 1))
        if type(n) is not int or not 1 <= n <= 10**6:
            raise RequestError(f"n must be a whole number from 1 to 1,000,000, got {n!r:.60}.")

        def undone() -> bytes:
            numbers = slot.undo(n)
            restored = slot.is_learner and slot.wait_for_generation(self.limits.seconds)
            return as_json({"undone": len(numbers), "sequences": numbers[-MOST_LISTED:], "restored": restored})

        return Reply(await self._in_thread(undone))

    async def _log(self, request: Request) -> Reply:
        slot = self._learning(request.query.get("model"))
        after, limit = request.number("after", 0, 2**48), request.number("limit", 100, MOST_LISTED)

        def found() -> bytes:
            return as_json({"last": slot.examples.last(), "examples": slot.examples.entries(after, limit)})

        return Reply(await self._in_thread(found))

    async def _export(self, request: Request) -> Reply:
        slot = self._learning(request.query.get("model"))

        async def pieces() -> AsyncIterator[bytes]:
            after = 0
            while True:
                after, lines = await asyncio.to_thread(slot.examples.export, after, MOST_LISTED)
                if not lines:
                    return
                yield lines

        name = (b"content-disposition", b'attachment; filename="examples.jsonl"')
        return Reply(pieces(), kind=b"application/x-ndjson", headers=(name,))

    async def _progress(self, request: Request) -> Reply:
        slot = self._learning(request.query.get("model"))
        return Reply(await self._in_thread(lambda: as_json(slot.examples.progress())))


def label_of_text(text: str, served: ServedModel) -> Any:
    """Return a label of a query in the type of the model's labels."""
    index = served.estimator.label_index_
    if index.holds_strings:
        return text
    try:
        label = int(text) if len(text) < 20 else None
    except ValueError:
        label = None
    if label is None:
        raise RequestError(f"label: the labels of the model are whole numbers, got {text!r:.60}.")
    check_label(label, served, "label")
    return label


def _refusal(error: RequestError) -> Reply:
    """Return an error as an answer; a connection whose body was not read is closed."""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    if error.status in (408, 413, 503, 401, 403, 421):
        headers = ((b"connection", b"close"),)
    if error.status == 401:
        headers += ((b"www-authenticate", b"Bearer"),)
    return Reply(as_json({"error": str(error)}), error.status, headers=headers)
