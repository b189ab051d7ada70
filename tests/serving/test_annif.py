"""The requests of Annif's `http` backend."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.serving.service import client_of, static_model

pytest.importorskip("starlette")


def test_suggestions(tmp_path: Path) -> None:
    model = static_model(tmp_path / "model.treemax")
    with client_of(models={"model": str(tmp_path / "model.treemax")}, api="annif") as client:
        assert client.get("/v1/projects").json()["projects"][0]["project_id"] == "model"
        assert client.get("/v1/projects/model").json()["is_trained"]
        data = {"text": "apple bird & river", "limit": "3", "project": "model", "metadata_title": "x"}
        found = client.post("/v1/projects/model/suggest", data=data).json()["results"]
        expected = model.predict_topk([data["text"]], 3)
        assert [hit["uri"] for hit in found] == expected.labels[0].tolist()
        assert [hit["score"] for hit in found] == pytest.approx(expected.scores[0].tolist())
        assert client.post("/v1/projects/model/suggest", data={"limit": "x", "text": "a"}).status_code == 400
        assert client.post("/v1/projects/model/suggest", data={}).status_code == 400
        assert client.post("/v1/projects/other/suggest", data=data).status_code == 404
