"""The backend for Annif: the interface that Annif requires, in Python and by its command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import annif.backend
import nltk
import pytest
from annif.analyzer import get_analyzer
from annif.analyzer.analyzer import Analyzer
from annif.corpus import Document, DocumentFileTSV
from annif.exception import ConfigurationException, NotInitializedException, NotSupportedException
from annif.vocab import AnnifVocabulary, VocabFileTSV

import treemax.annif
from treemax.annif.words import Words

SUBJECTS = ["fruit", "vehicle", "animal", "colour", "unused"]
DOCUMENTS = [
    ("Red apples and green pears", ["fruit", "colour"]),
    ("Fast cars and slow trains", ["vehicle"]),
    ("Grey whales, brown bears", ["animal", "colour"]),
    ("Apples, pears, plums", ["fruit"]),
    ("Cars with engines", ["vehicle"]),
    ("Bears sleep; whales swim", ["animal"]),
] * 5


def uri(subject: str) -> str:
    return f"http://example.org/{subject}"


def write_documents(path: Path, documents=DOCUMENTS) -> Path:
    lines = ("\t".join([text, " ".join(f"<{uri(name)}>" for name in names)]) for text, names in documents)
    path.write_text("\n".join(lines) + "\n")
    return path


def write_subjects(path: Path) -> Path:
    path.write_text("".join(f"<{uri(name)}>\t{name}\n" for name in SUBJECTS))
    return path


@pytest.fixture(scope="module", autouse=True)
def sentences(tmp_path_factory):
    """An empty model of NLTK's tokenizer, which Annif would download."""
    folder = tmp_path_factory.mktemp("nltk")
    model = folder / "tokenizers" / "punkt_tab" / "english"
    model.mkdir(parents=True)
    for name in ("collocations.tab", "sent_starters.txt", "abbrev_types.txt", "ortho_context.tab"):
        (model / name).touch()
    nltk.data.path.insert(0, str(folder))
    yield folder
    nltk.data.path.remove(str(folder))


@pytest.fixture
def project(tmp_path):
    """What a backend uses of a project."""
    vocabulary = AnnifVocabulary("vocabulary", str(tmp_path))
    vocabulary.load_vocabulary(VocabFileTSV(str(write_subjects(tmp_path / "subjects.tsv")), "en"))
    (tmp_path / "project").mkdir()
    return SimpleNamespace(
        analyzer=get_analyzer("snowball(english)"), subjects=vocabulary.subjects, datadir=str(tmp_path / "project")
    )


def backend(project, **params):
    treemax.annif.register()
    return annif.backend.get_backend("treemax")("treemax", params, project)


def corpus(project, tmp_path, documents=DOCUMENTS):
    return DocumentFileTSV(str(write_documents(tmp_path / "documents.tsv", documents)), project.subjects)


def subjects(found, project) -> list[str]:
    return [project.subjects[suggestion.subject_id].labels["en"] for suggestion in found]


def test_documents_are_suggested_their_subjects(project, tmp_path):
    trained = backend(project)
    trained.train(corpus(project, tmp_path))
    texts = ["apples and plums", "a train with an engine", "unknown qqqq", "12"]
    for answering in (trained, backend(project)):  # in memory, and loaded
        found = answering.suggest([Document(text) for text in texts])
        assert subjects(found[0], project)[0] == "fruit"
        assert subjects(found[1], project)[0] == "vehicle"
        assert all(0 < suggestion.score <= 1 for suggestion in found[0])
        assert len(found[2]) == len(found[3]) == 0
    assert answering.is_trained


def test_limit_and_parameters_are_those_of_the_project(project, tmp_path):
    trained = backend(
        project, limit="2", n_trees="2", max_leaf="auto", cost="0.5", loss="logistic", ngram="2", min_df="2"
    )
    trained.train(corpus(project, tmp_path), jobs=1)
    assert trained._model.n_trees == 2
    assert trained._model.cost == 0.5
    assert "red appl" in trained.vectorizer.vocabulary_
    assert len(trained.suggest([Document("apples")])[0]) == 2


def test_training_data_is_reused(project, tmp_path):
    backend(project).train(corpus(project, tmp_path))
    again = backend(project)
    again.train("cached")
    assert subjects(again.suggest([Document("apples")])[0], project)[0] == "fruit"
    stored = again.read_train_file()
    assert stored.X.shape == (len(DOCUMENTS), len(again.vectorizer.vocabulary_))
    assert [len(row) for row in stored.labels] == [len(names) for _, names in DOCUMENTS]


def test_the_corpus_is_read_once_and_the_vocabulary_saved_as_bytes(project, tmp_path):
    class Once:
        """A corpus whose documents can be read once only."""

        is_empty = staticmethod(lambda: False)

        def __init__(self):
            self.documents = iter(list(corpus(project, tmp_path).documents))

    trained, loaded = backend(project, ngram="2"), backend(project, ngram="2")
    trained.train(Once())
    loaded.initialize()
    vocabulary = trained.vectorizer.vocabulary_
    assert loaded.vectorizer.vocabulary_ == vocabulary
    assert (
        type(trained.vectorizer.__getstate__()["vocabulary_"]) is bytes and trained.vectorizer.vocabulary_ is vocabulary
    )
    texts = [Document("Red apples"), Document("slow trains")]
    assert [list(row) for row in trained.suggest(texts)] == [list(row) for row in loaded.suggest(texts)]


def test_documents_without_words_or_subjects_are_left_out(project, tmp_path):
    documents = [*DOCUMENTS, ("12 34", ["fruit"]), ("Lonely text", [])]
    trained = backend(project)
    trained.train(corpus(project, tmp_path, documents))
    assert trained._model.n_examples_ == len(DOCUMENTS)


@pytest.mark.slow
def test_learned_documents_bring_new_subjects_and_are_kept(project, tmp_path):
    trained = backend(project)
    trained.train(corpus(project, tmp_path))
    before = trained.suggest([Document("green pears")])[0]
    assert "unused" not in subjects(before, project)
    trained.learn(corpus(project, tmp_path, [("green pears", ["unused"])] * 20))
    trained.learn(corpus(project, tmp_path, [("nothing to learn", [])]))
    for answering in (trained, backend(project)):
        found = answering.suggest([Document("green pears")])[0]
        assert "unused" in subjects(found, project)[:2]
        vehicles = answering.suggest([Document("cars and trains")])[0]
        assert subjects(vehicles, project)[0] == "vehicle"
    again = backend(project)
    again.learn(corpus(project, tmp_path, [("green pears", ["unused"])]))
    assert again._online.n_examples_ == len(DOCUMENTS) + 21
    again.train(corpus(project, tmp_path))  # forgets what was learned
    assert "unused" not in subjects(backend(project).suggest([Document("green pears")])[0], project)


def test_learning_needs_the_training_data(project, tmp_path):
    trained = backend(project)
    trained.train(corpus(project, tmp_path))
    (Path(project.datadir) / "treemax-train.npz").unlink()
    with pytest.raises(NotInitializedException, match="run annif train"):
        trained.learn(corpus(project, tmp_path))


def test_errors_are_those_of_annif(project, tmp_path):
    with pytest.raises(NotInitializedException):
        backend(project).suggest([Document("text")])
    with pytest.raises(NotInitializedException, match="training data"):
        backend(project).train("cached")
    with pytest.raises(NotSupportedException, match="no documents"):
        backend(project).train(DocumentFileTSV(os.devnull, project.subjects))
    with pytest.raises(NotSupportedException, match="no document has both words and subjects"):
        backend(project).train(corpus(project, tmp_path, [("a text", [])]))
    for wrong in ({"n_trees": "many"}, {"loss": "absolute"}, {"cost": "-1"}):
        with pytest.raises(ConfigurationException):
            backend(project, **wrong).train(corpus(project, tmp_path))


@pytest.mark.slow
def test_hyperopt_recommends_parameters_that_can_be_used(project, tmp_path):
    trained = backend(project)
    trained.train(corpus(project, tmp_path))
    found = trained.get_hp_optimizer(corpus(project, tmp_path), "NDCG").optimize(2, 1, None)
    assert 0.5 < found.score <= 1
    backend(project, **dict(line.split("=") for line in found.lines)).train("cached")


def test_words_are_those_of_the_analyzer():
    analyzer = get_analyzer("snowball(english)")
    assert Words(analyzer)("Running dogs, 12 of a kind") == ["run", "dog", "kind"]

    class Own(Analyzer):
        def tokenize_words(self, text, filter=True):
            return text.split("-")

    assert Words(Own())("a-b") == ["a", "b"]


@pytest.mark.slow
def test_the_command_of_annif_finds_the_backend(tmp_path, sentences):
    (tmp_path / "projects.cfg").write_text(
        "[p]\nname=P\nlanguage=en\nbackend=treemax\nanalyzer=snowball(english)\nvocab=v\nallow_learn=True\n"
    )
    documents = write_documents(tmp_path / "documents.tsv")

    def run(*arguments: str, **options) -> str:
        command = [str(Path(sys.executable).parent / "annif"), *arguments]
        environment = {**os.environ, "NLTK_DATA": str(sentences)}
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, **options)
        assert done.returncode == 0, done.stderr
        return done.stdout

    run("load-vocab", "v", str(write_subjects(tmp_path / "subjects.tsv")), "--language", "en")
    run("train", "p", str(documents), "--jobs", "1")
    run("learn", "p", str(documents))
    assert run("suggest", "p", input="plums and apples").split("\n")[0].split("\t")[1] == "fruit"
    assert "NDCG" in run("eval", "p", str(documents))


def test_the_configuration_registers_the_backend():
    code = "import annif; app = annif.create_flask_app(); print('treemax' in annif.backend._backend_fns, app.config['DATADIR'])"
    environment = {**os.environ, "ANNIF_CONFIG": "treemax.annif.ProductionConfig", "ANNIF_DATADIR": "elsewhere"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "elsewhere"]
