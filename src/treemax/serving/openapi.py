"""The OpenAPI document of the service."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from treemax import __version__
from treemax.serving.request_bodies import LARGEST_VALUE, LONGEST_LABEL, MAX_K, MOST_EXPLAINED, MOST_LABELS, Limits
from treemax.serving.served_model import ServedModel

JsonObject = dict[str, Any]

NAME: JsonObject = {"type": "string", "minLength": 1, "maxLength": LONGEST_LABEL}
NUMBER: JsonObject = {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1}
VALUE: JsonObject = {"type": "number", "minimum": -LARGEST_VALUE, "maximum": LARGEST_VALUE}
INDEX = "^(0|[1-9][0-9]{0,7})$"
ERROR = {"type": "object", "properties": {"error": {"type": "string"}}, "required": ["error"]}
WHAT_FAILS = {
    400: "The request is not valid.",
    403: "The request comes from a page of another site.",
    404: "There is no such model, node or label.",
    405: "Another method is needed.",
    408: "The request did not arrive in time.",
    409: "The model does not learn this: it does not learn at all, or rows and labels do not fit.",
    413: "The body or the number of rows is too large.",
    415: "The body is not JSON.",
    421: "The server does not answer to this host.",
    503: "The server is too busy.",
}


def document(limits: Limits, models: Sequence[ServedModel]) -> JsonObject:
    """Return the OpenAPI document of the service with these models, whose inputs and labels it describes."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "Treemax", "version": __version__, "description": "Answers of trees over many labels."},
        "paths": {path: {method: operation} for path, method, operation in _operations(limits, models)},
        "components": {"schemas": {"Error": ERROR}, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def _rows(limits: Limits, models: Sequence[ServedModel]) -> JsonObject:
    """Return the properties for the rows: texts, vectors, or both if some models take texts and some vectors."""
    rows: JsonObject = {}
    if any(model.is_text for model in models):
        rows["texts"] = {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": limits.rows}
    widths = {model.n_features for model in models if not model.is_text}
    if widths:
        width = {"minItems": min(widths), "maxItems": max(widths)}
        sparse = {"type": "object", "patternProperties": {INDEX: VALUE}, "additionalProperties": False}
        vector = {"oneOf": [{"type": "array", "items": VALUE, **width}, sparse]}
        rows["vectors"] = {"type": "array", "items": vector, "minItems": 1, "maxItems": limits.rows}
    return rows


def _label(models: Sequence[ServedModel]) -> JsonObject:
    kinds = {model.estimator.label_index_.holds_strings for model in models}
    return {"oneOf": [NAME, NUMBER]} if len(kinds) > 1 else NAME if kinds == {True} else NUMBER


def _or_null(schema: JsonObject) -> JsonObject:
    return {"anyOf": [schema, {"type": "null"}]}


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


def _operations(limits: Limits, models: Sequence[ServedModel]) -> list[tuple[str, str, JsonObject]]:
    k = {"type": "integer", "minimum": 1, "maximum": MAX_K}
    names: JsonObject = {"type": "string", "enum": [model.name for model in models]}
    model = _query("model", names, required=len(models) > 1)
    name = names if len(models) > 1 else _or_null(names)
    label, rows = _label(models), _rows(limits, models)
    labels = {"type": "array", "items": label, "maxItems": MOST_LABELS}
    needed = [*(["model"] if len(models) > 1 else []), *(rows if len(rows) == 1 else [])]
    prediction = {
        "type": "object",
        "properties": {"label": label, "probability": {"type": "number", "minimum": 0, "maximum": 1}},
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
        "model": name, **rows, "k": k,
        "threshold": _or_null({"type": "number", "minimum": 0, "maximum": 1}),
        "labels": _or_null({**labels, "minItems": 1}), "exclude": _or_null(labels),
    }  # fmt: skip
    any_object = {"type": "object"}
    explained = {"model": name, **_rows(limits._replace(rows=MOST_EXPLAINED), models), "label": _or_null(label), "k": k}
    learned = {
        "model": name, **rows, "wait": {"type": "boolean"},
        "labels": {"type": "array", "items": {"anyOf": [label, labels]}, "maxItems": limits.rows},
    }  # fmt: skip
    undone = {"model": name, "n": {"type": "integer", "minimum": 1, "maximum": 10**6}}
    after = _query("after", {"type": "integer", "minimum": 0, "maximum": 2**48})
    return [
        ("/predict", "post", _operation("predict", "The best labels of each row.", predictions, body=_body(asked, *needed))),
        ("/explain", "post", _operation("explain", "Why a label has its probability.", any_object, body=_body(explained, *needed))),
        ("/models", "get", _operation("models", "The models that are served.", any_object)),
        ("/labels", "get", _operation("labels", "Labels that contain a text.", any_object,
                                      [_query("q", {"type": "string"}), model, *_paging(1000)])),
        ("/tree", "get", _operation("tree", "A node of the tree, and its children.", any_object,
                                    [_query("node", {"type": "string"}), model, *_paging(1000)])),
        ("/path", "get", _operation("path", "The nodes from the root to a label.", any_object,
                                    [_query("label", {"type": "string"}, required=True), model])),
        ("/learn", "post", _operation("learn", "Learn examples; they are on disk when the answer comes.", any_object,
                                      body=_body(learned, "labels", *needed), token=True)),
        ("/undo", "post", _operation("undo", "Undo the last examples.", any_object, body=_body(undone, *needed[: len(models) > 1]), token=True)),
        ("/log", "get", _operation("log", "Examples of the log.", any_object, [model, after, _paging(1000)[0]], token=True)),
        ("/log/export", "get", _operation("export", "The log as JSON lines.", {"type": "string"}, [model], token=True,
                                          kind="application/x-ndjson")),
        ("/progress", "get", _operation("progress", "Progressive accuracy over the log.", any_object, [model])),
        ("/health", "get", _operation("health", "Whether the service works.", any_object)),
        ("/metrics", "get", _operation("metrics", "Counters for Prometheus.", {"type": "string"}, kind="text/plain")),
    ]  # fmt: skip
