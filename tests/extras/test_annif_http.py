"""`treemax serve --api annif` with Annif's own `http` backend as the client, in Python and by its command."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace

import annif.backend
import pytest
from annif.corpus import Document
from annif.exception import OperationFailedException
from annif.vocab import AnnifVocabulary, VocabFileTSV

import treemax
from tests.extras.test_annif import DOCUMENTS, SUBJECTS, uri, write_documents, write_subjects
from tests.serving.service import Server

pytestmark = pytest.mark.slow

TEXTS = ["apples and plums", "a fast train & other vehicles; 100% new?", "grüne Äpfel\nand pears"]
PROJECT = "[p]\nname=P\nlanguage=en\nbackend=http\nanalyzer=simple\nvocab=v\nendpoint={endpoint}\nlimit=3\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model whose labels are URIs, and its file."""
    path = tmp_path_factory.mktemp("model") / "subjects.treemax"
    labels = [[uri(name) for name in names] for _, names in DOCUMENTS]
    trained = treemax.TextModel().fit([text for text, _ in DOCUMENTS], labels)
    trained.save(path)
    return SimpleNamespace(trained=trained, path=path)


@pytest.fixture(scope="module")
def endpoint(model):
    """The address that the configuration of Annif names."""
    with Server(str(model.path), "--api", "annif") as server:
        yield f"{server.url}/v1/projects/subjects/suggest"


@pytest.fixture
def backend(tmp_path, endpoint):
    vocabulary = AnnifVocabulary("v", str(tmp_path))
    vocabulary.load_vocabulary(VocabFileTSV(str(write_subjects(tmp_path / "subjects.tsv")), "en"))
    project = SimpleNamespace(subjects=vocabulary.subjects, datadir=str(tmp_path))
    return annif.backend.get_backend("http")("http", {"endpoint": endpoint, "limit": 3, "project": "p"}, project)


def test_the_backend_suggests_what_the_model_predicts(backend, model):
    documents = [Document(text, metadata={"title": "of a book"}) for text in TEXTS]
    found = backend.suggest(documents)
    expected = model.trained.predict_topk(TEXTS, 3)
    for suggestions, labels, scores in zip(found, expected.labels, expected.scores):
        assert [backend.project.subjects[each.subject_id].uri for each in suggestions] == labels.tolist()
        assert [each.score for each in suggestions] == pytest.approx(scores.tolist(), rel=1e-5)


def test_the_backend_asks_about_the_project(backend):
    assert backend.is_trained is True
    age = datetime.now(timezone.utc) - backend.modification_time
    assert timedelta(0) < age < timedelta(hours=1)


def test_another_project_is_an_error_of_annif(backend):
    backend.config_params["endpoint"] = backend.config_params["endpoint"].replace("/subjects/", "/other/")
    with pytest.raises(OperationFailedException, match="404"):
        assert backend.is_trained
    assert len(backend.suggest([Document("apples")])[0]) == 0  # with a warning, as Annif does


def test_the_command_of_annif_asks_the_server(tmp_path, endpoint):
    (tmp_path / "projects.cfg").write_text(PROJECT.format(endpoint=endpoint))
    documents = write_documents(tmp_path / "documents.tsv")

    def run(*arguments: str, **options) -> str:
        command = [str(Path(sys.executable).parent / "annif"), *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=os.environ, capture_output=True, text=True, **options)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("load-vocab", "v", str(write_subjects(tmp_path / "subjects.tsv")), "--language", "en")
    suggested = [line.split("\t") for line in run("suggest", "p", input="plums and apples").splitlines()]
    assert suggested[0][:2] == [f"<{uri('fruit')}>", "fruit"]
    assert len(suggested) == 3 < len(SUBJECTS)
    ndcg = [line for line in run("eval", "p", str(documents)).splitlines() if line.startswith("NDCG:")]
    assert float(ndcg[0].split()[-1]) > 0.9
    assert "True" in run("show-project", "p")
