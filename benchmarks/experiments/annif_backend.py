"""The backend of Annif beside its backend omikuji, on the same documents.

    python -m benchmarks.experiments.annif_backend debtags kinc builddeps     the stored table
    python -m benchmarks.experiments.annif_backend --validate debtags         variants, on the last tenth of the training documents

Run it with an interpreter that has `treemax[annif]`, `annif[omikuji]` and NLTK's data. Documents are the lines of the text
sets, subjects their labels. Training is one job; seconds are of the processor, from the documents to the saved model.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness.output import help_if_asked, keep, store
from benchmarks.harness.suites import data_folder
from treemax.formats import read_examples

MACHINE = "one core of a two-core x86-64 machine (AMD EPYC, AVX-512), shared with other work"
METRICS = ["F1@5", "NDCG", "NDCG@5"]
SYSTEMS = {"treemax": "backend=treemax", "omikuji": "backend=omikuji"}  # with Annif's defaults
VARIANTS = {
    "treemax": "backend=treemax",
    "treemax, 2 trees": "backend=treemax\nn_trees=2",
    "treemax, 3 trees": "backend=treemax\nn_trees=3",
    "treemax, int8": "backend=treemax\nprecision=int8",
    "treemax, min_df 2": "backend=treemax\nmin_df=2",
    "omikuji": "backend=omikuji",
}
DECIMALS = [{"name": name, "decimals": 4} for name in METRICS]
LEARNED = 0.1  # share of the training documents that are learned after training, in the test of `annif learn`


def read(suite: str, part: str) -> list[tuple[str, list[str]]]:
    """Return the documents of a text set with their subjects."""
    examples = read_examples(data_folder() / suite / f"{part}.txt.gz", "fasttext")
    return list(zip(examples.texts or [], examples.labels))


def uri(subject: str) -> str:
    return "http://example.org/" + "".join(c if c.isalnum() else f"-{ord(c):x}-" for c in subject)


def write_corpus(path: Path, documents: list[tuple[str, list[str]]]) -> str:
    lines = ("\t".join([text, " ".join(f"<{uri(subject)}>" for subject in subjects)]) for text, subjects in documents)
    path.write_text("\n".join(lines) + "\n")
    return str(path)


@contextmanager
def projects(settings: dict[str, str], subjects: list[str]) -> Iterator[list[Any]]:
    """Yield projects of Annif with these settings, in a folder of their own, all with one vocabulary."""
    with tempfile.TemporaryDirectory() as folder:
        config = "\n".join(
            f"[p{i}]\nname={name}\nlanguage=en\nanalyzer=snowball(english)\nvocab=subjects\nallow_learn=True\n{lines}\n"
            for i, (name, lines) in enumerate(settings.items())
        )
        (Path(folder) / "projects.cfg").write_text(config)
        vocabulary = Path(folder) / "subjects.tsv"
        vocabulary.write_text("".join(f"<{uri(subject)}>\t{subject}\n" for subject in subjects))
        os.environ |= {"ANNIF_PROJECTS": f"{folder}/projects.cfg", "ANNIF_DATADIR": f"{folder}/data"}
        import annif
        import annif.registry
        import annif.vocab

        import treemax.annif

        treemax.annif.register()
        app = annif.create_flask_app("annif.default_config.Config")
        app.config |= {"PROJECTS_CONFIG_PATH": f"{folder}/projects.cfg", "DATADIR": f"{folder}/data"}
        with app.app_context():
            annif.registry.initialize_projects(app)
            found = [annif.registry.get_project(f"p{i}") for i in range(len(settings))]
            found[0].vocab.load_vocabulary(annif.vocab.VocabFileTSV(str(vocabulary), "en"))
            yield found


def disk(project: Any, training_data: bool = False) -> float:
    """Megabytes of a project: model and vectoriser, or the stored training data."""
    files = [path for path in Path(project.datadir).rglob("*") if path.is_file()]
    return sum(path.stat().st_size for path in files if ("-train" in path.name) == training_data) / 1e6


def scores(project: Any, path: str) -> tuple[dict[str, float], float]:
    """Metrics of Annif on a corpus, and milliseconds a document."""
    from annif.corpus import DocumentFileTSV
    from annif.eval import EvaluationBatch

    batch, seconds, n_documents = EvaluationBatch(project.subjects), 0.0, 0
    for documents in DocumentFileTSV(path, project.subjects).doc_batches:
        before = time.process_time()
        found = project.suggest(documents)
        seconds += time.process_time() - before
        n_documents += len(documents)
        batch.evaluate_many(found, [document.subject_set for document in documents])
    return {name: float(batch.results(metrics=[name])[name]) for name in METRICS}, 1000 * seconds / n_documents


def measure(suite: str, settings: dict[str, str], validate: bool) -> list[list[Any]]:
    """Train and evaluate each system on one set."""
    from annif.corpus import DocumentFileTSV

    train, test = read(suite, "train"), [] if validate else read(suite, "test")
    if validate:
        cut = len(train) * 9 // 10
        train, test = train[:cut], train[cut:]
    subjects = sorted({subject for _, own in train + test for subject in own})
    rows = []
    with tempfile.TemporaryDirectory() as folder, projects(settings, subjects) as found:
        warm_up, train_path = (
            write_corpus(Path(folder) / "few.tsv", train[:200]),
            write_corpus(Path(folder) / "train.tsv", train),
        )
        test_path = write_corpus(Path(folder) / "test.tsv", test)
        for name, project in zip(settings, found):
            project.train(DocumentFileTSV(warm_up, project.subjects), jobs=1)  # compiles, and fills caches of words
            before = time.process_time()
            project.train(DocumentFileTSV(train_path, project.subjects), jobs=1)
            seconds = time.process_time() - before
            before = time.process_time()
            project.train("cached", jobs=1)
            cached = time.process_time() - before
            metrics, milliseconds = scores(project, test_path)
            sizes = [disk(project), disk(project, training_data=True)]
            rows.append([suite, name, *metrics.values(), seconds, cached, milliseconds, *sizes])
            print(rows[-1], file=sys.stderr, flush=True)
    return rows


def learning(suite: str) -> list[list[Any]]:
    """Train on nine tenths of the training documents and learn the others; beside training on all."""
    from annif.corpus import DocumentFileTSV

    train, test = read(suite, "train"), read(suite, "test")
    subjects = sorted({subject for _, own in train + test for subject in own})
    cut, rows = int(len(train) * (1 - LEARNED)), []
    with tempfile.TemporaryDirectory() as folder, projects({"learn": "backend=treemax"}, subjects) as (project,):
        paths = [
            write_corpus(Path(folder) / f"{name}.tsv", part)
            for name, part in (("train", train[:cut]), ("later", train[cut:]), ("one", train[:1]), ("test", test))
        ]
        first, later, one, last = paths
        project.train(DocumentFileTSV(first, project.subjects), jobs=1)
        rows.append([suite, "nine tenths trained", *scores(project, last)[0].values(), None])
        project.learn(DocumentFileTSV(one, project.subjects))  # which trains the online model
        before = time.process_time()
        project.learn(DocumentFileTSV(later, project.subjects))
        each = 1000 * (time.process_time() - before) / (len(train) - cut)
        rows.append([suite, "and a tenth learned", *scores(project, last)[0].values(), each])
        project.train(DocumentFileTSV(write_corpus(Path(folder) / "all.tsv", train), project.subjects), jobs=1)
        rows.append([suite, "all trained", *scores(project, last)[0].values(), None])
    for row in rows:
        print(row, file=sys.stderr, flush=True)
    return rows


def main(arguments: list[str]) -> None:
    if arguments[:1] == ["--validate"]:
        keep("annif-validation", [row for suite in arguments[1:] for row in measure(suite, VARIANTS, validate=True)])
        return
    rows: list[list[Any]] = []
    learned: list[list[Any]] = []
    for suite in arguments:  # what is measured is stored at once
        rows += measure(suite, SYSTEMS, validate=False)
        store_suites(rows)
        learned += learning(suite)
        store_learning(learned)


def store_suites(rows: list[list[Any]]) -> None:
    times = [("train s", 1), ("train s, cached", 1), ("ms a document", 2), ("model MB", 1), ("stored documents MB", 1)]
    store(
        "adapters",
        "annif",
        title="The backend of Annif",
        shows="Annif 1.4.3 with the backends treemax and omikuji 0.5.2, both with their defaults, analyzer `snowball(english)`, evaluated by Annif on the test documents. Training is one job; seconds are of the processor, from the documents to the saved model, and `cached` without reading and stemming the documents (`annif train --cached`). NLTK's tokenizer had an empty model of abbreviations. The machine was busy with other work, which makes all of them slower.",
        columns=["documents", "backend", *DECIMALS, *({"name": name, "decimals": n} for name, n in times)],
        rows=rows,
        machine=MACHINE,
    )


def store_learning(rows: list[list[Any]]) -> None:
    store(
        "adapters",
        "annif-learn",
        title="Learning with Annif",
        shows="`annif learn` after `annif train`: nine tenths of the training documents are trained, then one tenth is learned. The first call of `learn` trains the online model and is not counted.",
        columns=["documents", "model", *DECIMALS, {"name": "learn ms a document", "decimals": 2}],
        rows=rows,
        machine=MACHINE,
    )


if __name__ == "__main__":
    help_if_asked(__doc__)
    main(sys.argv[1:])
