"""A peer for benchmarks.experiments.serving: omikuji behind FastAPI, with scikit-learn's tf-idf.

INTERPRETER omikuji_service.py FOLDER PORT: trains one tree on wordnet into FOLDER, then answers POST /predict.
"""

from __future__ import annotations

import gzip
import sys
from pathlib import Path
from typing import Any

import omikuji
import uvicorn
from fastapi import FastAPI
from pydantic import BaseModel
from sklearn.feature_extraction.text import TfidfVectorizer

TRAIN = Path(__file__).parents[2] / "src" / "treemax" / "data" / "wordnet" / "train.txt.gz"


class Asked(BaseModel):
    """A request."""

    texts: list[str]
    k: int = 5


def main() -> None:
    folder, port = Path(sys.argv[1]), int(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    with gzip.open(TRAIN, "rt", encoding="utf-8") as file:
        pairs = [line.rstrip("\n").split(" ", 1) for line in file]
    names = sorted({label for label, _ in pairs})
    ids = {name: i for i, name in enumerate(names)}
    vectorizer = TfidfVectorizer(dtype="float32", sublinear_tf=True)
    X = vectorizer.fit_transform(text for _, text in pairs)
    with (folder / "train.txt").open("w") as out:
        out.write(f"{X.shape[0]} {X.shape[1]} {len(names)}\n")
        for i, (label, _) in enumerate(pairs):
            row = slice(X.indptr[i], X.indptr[i + 1])
            features = " ".join(f"{j}:{v:.5g}" for j, v in sorted(zip(X.indices[row], X.data[row])))
            out.write(f"{ids[label]} {features}\n")
    hyper = omikuji.Model.default_hyper_param()
    hyper.n_trees = 1
    model = omikuji.Model.train_on_data(str(folder / "train.txt"), hyper, n_threads=1)
    app = FastAPI()

    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.post("/predict")
    async def predict(asked: Asked) -> dict[str, Any]:
        rows = vectorizer.transform(asked.texts)
        predictions = []
        for i in range(rows.shape[0]):
            row = slice(rows.indptr[i], rows.indptr[i + 1])
            best = model.predict(list(zip(rows.indices[row].tolist(), rows.data[row].tolist())), top_k=asked.k)
            predictions.append([{"label": names[label], "probability": score} for label, score in best])
        return {"predictions": predictions}

    uvicorn.run(app, port=port, log_level="warning")


if __name__ == "__main__":
    main()
