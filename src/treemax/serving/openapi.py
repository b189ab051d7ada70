"""The OpenAPI document of the service."""

from __future__ import annotations

from typing import Any

from treemax import __version__
from treemax.serving.questions import LONGEST_LABEL, MAX_K, MOST_LABELS, Limits

JsonObject = dict[str, Any]

LABEL: JsonObject = {
    "oneOf": [{"type": "string", "minLength": 1, "maxLength": LONGEST_LABEL}, {"type": "integer", "format": "int64"}]
}
LABELS: JsonObject = {"type": "array", "items": LABEL, "maxItems": MOST_LABELS}
VECTOR: JsonObject = {
    "oneOf": [
        {"type": "array", "items": {"type": "number"}},
        {"type": "object", "additionalProperties": {"type": "number"}, "description": "From index to value."},
    ]
}
ERROR = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}
MODEL: JsonObject = {"type": "string", "description": "May be left out if one model is served."}
WHAT_FAILS = {
    400: "What was asked is not valid.",
    403: "The request comes from a page of another site.",
    404: "There is no such model, node or label.",
    405: "Another method is needed.",
    408: "The request did not arrive in time.",
    409: "The model does not learn.",
    413: "The body or the number of rows is too large.",
    415: "The body is not JSON.",
    421: "The server does not answer to this host.",
    503: "The server is too busy.",
}


def document(limits: Limits) -> JsonObject:
    """Return the OpenAPI document."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "Treemax", "version": __version__, "description": "Answers of trees over many labels."},
        "paths": {path: {method: operation} for path, method, operation in _operations(limits)},
        "components": {"schemas": {"Error": ERROR}, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def _rows(limits: Limits) -> JsonObject:
    return {
        "texts": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": limits.rows},
        "vectors": {"type": "array", "items": VECTOR, "minItems": 1, "maxItems": limits.rows},
    }


def _object(properties: JsonObject, *required: str) -> JsonObject:
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


def _body(properties: JsonObject, *required: str) -> JsonObject:
    return {"required": True, "content": {"application/json": {"schema": _object(properties, *required)}}}


def _operation(
    name: str, summary: str, answer: JsonObject, parameters: list[JsonObject] | None = None, body: Any = None,
    token: bool = False, kind: str = "application/json",
) -> JsonObject:  # fmt: skip
    responses: JsonObject = {"200": {"description": "The answer.", "content": {kind: {"schema": answer}}}}
    for status, description in {**WHAT_FAILS, **({401: "The token is missing or wrong."} if token else {})}.items():
        content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
        responses[str(status)] = {"description": description, "content": content}
    operation: JsonObject = {"operationId": name, "summary": summary, "responses": responses}
    if parameters:
        operation["parameters"] = parameters
    if body is not None:
        operation["requestBody"] = body
    if token:
        operation["security"] = [{"token": []}, {}]
    return operation


def _query(name: str, schema: JsonObject, required: bool = False) -> JsonObject:
    return {"name": name, "in": "query", "required": required, "schema": schema}


def _paging(most: int) -> list[JsonObject]:
    return [
        _query("limit", {"type": "integer", "minimum": 0, "maximum": most}),
        _query("offset", {"type": "integer", "minimum": 0, "maximum": 2**48}),
    ]


def _operations(limits: Limits) -> list[tuple[str, str, JsonObject]]:
    k = {"type": "integer", "minimum": 1, "maximum": MAX_K}
    model = _query("model", {"type": "string"})
    prediction = {
        "type": "object",
        "properties": {"label": LABEL, "probability": {"type": "number", "minimum": 0, "maximum": 1}},
        "required": ["label", "probability"],
    }
    predictions = {
        "type": "object",
        "properties": {
            "model": {"type": "string"},
            "version": {"type": "string"},
            "predictions": {"type": "array", "items": {"type": "array", "items": prediction}},
        },
        "required": ["model", "version", "predictions"],
    }
    asked = {
        "model": MODEL, **_rows(limits), "k": k,
        "threshold": {"type": "number", "minimum": 0, "maximum": 1}, "labels": LABELS, "exclude": LABELS,
    }  # fmt: skip
    any_object = {"type": "object"}
    explained = {"model": MODEL, **_rows(limits), "label": LABEL, "k": k}
    learned = {
        "model": MODEL, **_rows(limits), "wait": {"type": "boolean"},
        "labels": {"type": "array", "items": {"oneOf": [LABEL, LABELS]}, "maxItems": limits.rows},
    }  # fmt: skip
    undone = {"model": MODEL, "n": {"type": "integer", "minimum": 1, "maximum": 10**6}}
    after = _query("after", {"type": "integer", "minimum": 0, "maximum": 2**48})
    return [
        ("/predict", "post", _operation("predict", "The best labels of each row.", predictions, body=_body(asked))),
        ("/explain", "post", _operation("explain", "Why a label has its probability.", any_object, body=_body(explained))),
        ("/models", "get", _operation("models", "The models that are served.", any_object)),
        ("/labels", "get", _operation("labels", "Labels that contain a text.", any_object,
                                      [_query("q", {"type": "string"}), model, *_paging(1000)])),
        ("/tree", "get", _operation("tree", "A node of the tree, and its children.", any_object,
                                    [_query("node", {"type": "string"}), model, *_paging(1000)])),
        ("/path", "get", _operation("path", "The nodes from the root to a label.", any_object,
                                    [_query("label", {"type": "string"}, required=True), model])),
        ("/learn", "post", _operation("learn", "Learn examples; they are on disk when the answer comes.", any_object,
                                      body=_body(learned, "labels"), token=True)),
        ("/undo", "post", _operation("undo", "Undo the last examples.", any_object, body=_body(undone), token=True)),
        ("/log", "get", _operation("log", "Examples of the log.", any_object, [model, after, _paging(1000)[0]], token=True)),
        ("/log/export", "get", _operation("export", "The log as JSON lines.", {"type": "string"}, [model], token=True,
                                          kind="application/x-ndjson")),
        ("/progress", "get", _operation("progress", "Progressive accuracy over the log.", any_object, [model])),
        ("/health", "get", _operation("health", "Whether the service works.", any_object)),
        ("/metrics", "get", _operation("metrics", "Counters for Prometheus.", {"type": "string"}, kind="text/plain")),
    ]  # fmt: skip
