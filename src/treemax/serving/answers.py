"""Answers as JSON."""

from __future__ import annotations

import json
from json.encoder import encode_basestring_ascii
from typing import Any

from treemax.serving.served_model import ServedModel


def as_json(content: Any) -> bytes:
    """Return content as compact JSON."""
    return json.dumps(content, separators=(",", ":"), allow_nan=False).encode()


def label_json(label: Any) -> str:
    """Return a label as JSON."""
    return encode_basestring_ascii(label) if isinstance(label, str) else str(label)


def encode_predictions(served: ServedModel, version: str, labels: list[list[Any]], scores: list[list[float]]) -> bytes:
    """Return the answer of /predict; where fewer than k labels were found, the others are None."""
    rows = ",".join([
        "[" + ",".join([
            f'{{"label":{label_json(label)},"probability":{score:.7g}}}'
            for label, score in zip(*row) if label is not None
        ]) + "]"
        for row in zip(labels, scores)
    ])  # fmt: skip
    return f'{{"model":{label_json(served.name)},"version":"{version}","predictions":[{rows}]}}'.encode()
