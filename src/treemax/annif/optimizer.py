"""`annif hyperopt`: the parameters of the label tree, chosen on validation documents."""

from __future__ import annotations

from typing import Any

import annif.eval
from annif.backend import hyperopt


class TreemaxObjective(hyperopt.HPObjective):
    """Trains a model with the parameters of a trial and returns its metric on the validation documents."""

    @classmethod
    def objective(cls, trial: Any, args: dict[str, Any]) -> float:
        """Return the metric of one trial."""
        chosen = {
            "cost": trial.suggest_float("cost", 0.1, 10.0, log=True),
            "loss": trial.suggest_categorical("loss", ["squared_hinge", "logistic"]),
            "threshold": trial.suggest_float("threshold", 0.02, 0.3, log=True),
            "max_leaf": trial.suggest_int("max_leaf", 20, 300, log=True),
        }
        backend = args["backend"]
        params = {**backend.params, **chosen}
        model = backend.trained_model(args["examples"], params, args["jobs"])
        batch = annif.eval.EvaluationBatch(backend.project.subjects)
        batch.evaluate_many(backend.suggestions(model, args["features"], int(params["limit"])), args["gold"])
        return float(batch.results(metrics=[args["metric"]])[args["metric"]])


class TreemaxOptimizer(hyperopt.HyperparameterOptimizer):
    """Chooses cost, loss, threshold and max_leaf; the documents of training are read from the last `annif train`."""

    def __init__(self, backend: Any, corpus: Any, metric: str) -> None:
        super().__init__(backend, corpus, metric, objective=TreemaxObjective)

    def _prepare(self, n_jobs: int = 1) -> dict[str, Any]:
        self._backend.initialize_vectorizer()
        documents = list(self._corpus.documents)
        return {
            "backend": self._backend,
            "examples": self._backend.read_train_file(),
            "features": self._backend.features(documents),
            "gold": [doc.subject_set for doc in documents],
            "metric": self._metric,
            "jobs": 0 if n_jobs == 1 else 1,
        }

    def _postprocess(self, study: Any) -> Any:
        best = study.best_params
        lines = [
            f"cost={best['cost']:.4g}",
            f"loss={best['loss']}",
            f"threshold={best['threshold']:.4g}",
            f"max_leaf={best['max_leaf']}",
        ]
        return hyperopt.HPRecommendation(lines=lines, score=study.best_value)
