"""The part of Annif's REST API that its `http` backend uses, so that Annif can ask for suggestions.

The labels of the model are the URIs of the subjects.
"""

from __future__ import annotations

import functools
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl

from treemax.serving.answers import as_json
from treemax.serving.errors import RequestError
from treemax.serving.exchange import Reply, Request, Route
from treemax.serving.request_bodies import MAX_K, Options
from treemax.serving.served_model import ServedModel

if TYPE_CHECKING:
    from treemax.serving.application import Application


def annif_routes(application: Application) -> dict[str, Route]:
    """Return the routes /v1/projects, and those of each model of texts."""
    names = [name for name, slot in application.models.items() if slot.served.is_text]
    routes = {"/v1/projects": Route("GET", functools.partial(_projects, application, names))}
    for name in names:
        routes[f"/v1/projects/{name}"] = Route("GET", functools.partial(_project, application, name))
        routes[f"/v1/projects/{name}/suggest"] = Route("POST", functools.partial(_suggest, application, name))
    return routes


def _described(application: Application, name: str) -> dict[str, Any]:
    slot = application.models[name]
    changed = datetime.fromtimestamp(slot.path.stat().st_mtime, timezone.utc) if slot.path.exists() else None
    return {
        "project_id": name,
        "name": name,
        "language": None,
        "backend": {"backend_id": "treemax"},
        "is_trained": True,
        "modification_time": None if changed is None else changed.isoformat(),
    }


async def _projects(application: Application, names: list[str], request: Request) -> Reply:
    return Reply(as_json({"projects": [_described(application, name) for name in names]}))


async def _project(application: Application, name: str, request: Request) -> Reply:
    return Reply(as_json(_described(application, name)))


async def _suggest(application: Application, name: str, request: Request) -> Reply:
    try:
        form = dict(parse_qsl(request.body.decode(), True, errors="strict", max_num_fields=100))
    except (ValueError, UnicodeDecodeError) as error:
        raise RequestError(f"The body is not a form: {error}.") from None
    if "text" not in form:
        raise RequestError("text is missing.")
    limit, threshold = _number(form, "limit", 10.0, MAX_K), _number(form, "threshold", 0.0, 1)
    served: ServedModel = application.models[name].served
    options = Options(max(1, int(limit)), threshold or None)
    asked = application.batcher.submit(served, [form["text"]], 1, options, _encode, application.limits.seconds)
    return Reply(await asked)


def _number(form: dict[str, str], name: str, default: float, most: float) -> float:
    try:
        number = float(form.get(name, default))
    except ValueError:
        number = -1
    if not 0 <= number <= most:
        raise RequestError(f"{name} must be a number from 0 to {most:g}, got {form[name]!r:.60}.")
    return number


def _encode(served: ServedModel, version: str, labels: list[list[Any]], scores: list[list[float]]) -> bytes:
    found = [(str(label), score) for label, score in zip(labels[0], scores[0]) if label is not None]
    results = [{"uri": label, "label": label, "notation": None, "score": score} for label, score in found]
    return as_json({"results": results})
