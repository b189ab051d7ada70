"""Prediction for data sets too large for one machine, with Ray Data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treemax.extras import import_extra
from treemax.modelfile import load
from treemax.parameters import check_number

BATCH_ROWS = 4096
_is_label = np.frompyfunc(lambda label: label is not None, 1, 1)


def predict_dataset(
    model: str | Path, data: Any, k: int = 5, workers: int | None = None, batch_rows: int = BATCH_ROWS
) -> Any:
    """Predict the top k labels of every row of a data set on a Ray cluster.

    Every worker memory-maps the model file, so that the workers of a machine share its memory. Columns are recognised
    by name, as in a Parquet file of examples; all are kept, and two are added: `predicted`, a list of labels, best
    first, and `scores`.

    Parameters
    ----------
    model : path
        A `.treemax` file on storage that all machines can read.
    data : ray.data.Dataset, or paths
        Paths of Parquet files or of folders of them.
    k : int
        Number of labels to predict.
    workers : int, optional
        Number of processes; by default the number of cores of the cluster minus one.
    batch_rows : int
        Number of rows to predict at a time.

    Returns
    -------
    ray.data.Dataset
        Computed lazily, for example by `write_parquet`.

    Examples
    --------
    >>> import treemax
    >>> answers = treemax.predict_dataset("model.treemax", "rows/")  # doctest: +SKIP
    >>> answers.write_parquet("answers/")  # doctest: +SKIP
    """
    ray = import_extra("ray", "predict_dataset", "ray")
    ray_data = import_extra("ray.data", "predict_dataset", "ray")
    check_number("k", k, whole=True, least=1)
    check_number("batch_rows", batch_rows, whole=True, least=1)
    check_number("workers", workers, whole=True, least=1, optional=True)
    path = Path(model)
    if not path.is_file():
        raise FileNotFoundError(f"There is no model file {path}.")
    load(path)  # raises here for an invalid model, not in every worker
    if not isinstance(data, ray_data.Dataset):
        data = ray_data.read_parquet(data)
    cores = int(ray.cluster_resources().get("CPU", 1))
    count = workers or max(1, cores - 1)
    return data.map_batches(
        Answering,
        fn_constructor_args=(str(path.absolute()), k),
        batch_format="pyarrow",
        batch_size=batch_rows,
        zero_copy_batch=True,
        num_cpus=min(1.0, (cores - 1) / count),  # one core is left for reading and writing
        compute=ray_data.ActorPoolStrategy(size=count),
    )


class Answering:
    """Callable that adds the predictions of a model to Arrow tables."""

    def __init__(self, model: str, k: int) -> None:
        import treemax

        self.model, self.k = treemax.load(model), k
        self.inner = getattr(self.model, "estimator", self.model)
        self.inner.set_params(n_jobs=None)

    def __call__(self, table: Any) -> Any:
        import pyarrow

        for name in ("predicted", "scores"):
            if name in table.column_names:
                raise ValueError(f"The data already has a column {name!r}; drop or rename it.")
        labels, scores = self._answers(table)
        known = _is_label(labels).astype(bool)  # a model may have fewer than k labels
        starts = np.concatenate([[0], np.cumsum(known.sum(axis=1))]).astype(np.int32)
        kind = pyarrow.int64() if self.inner.classes_.dtype.kind in "iu" else pyarrow.string()
        answers = {"predicted": pyarrow.array(labels[known].tolist(), kind), "scores": pyarrow.array(scores[known])}
        for name, values in answers.items():
            table = table.append_column(name, pyarrow.ListArray.from_arrays(starts, values))
        return table

    def _answers(self, table: Any) -> tuple[NDArray[np.object_], NDArray[np.float32]]:
        from treemax.formats import read_examples

        if table.num_rows == 0:
            return np.empty((0, self.k), dtype=object), np.empty((0, self.k), np.float32)
        takes_text = self.inner is not self.model
        examples = read_examples(table, n_features=None if takes_text else self.inner.n_features_in_)
        if takes_text != (examples.texts is not None):
            wanted, got = ("text", "features") if takes_text else ("features", "text")
            raise ValueError(f"The model was trained on {wanted}, but the data holds {got}.")
        found = self.model.predict_topk(examples.features, self.k)
        return found.labels.astype(object), found.scores
