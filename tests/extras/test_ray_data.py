"""Answers by Ray Data, from Parquet to Parquet."""

import numpy as np
import pytest

ray = pytest.importorskip("ray")
import pyarrow as pa  # noqa: E402
from pyarrow import parquet  # noqa: E402

import treemax  # noqa: E402


def test_from_parquet_to_parquet(one_machine, tmp_path):
    texts = [f"{colour} {thing}" for colour in ("red", "green", "blue") for thing in ("apple", "car", "owl")] * 40
    labels = [text.split()[1] for text in texts]
    treemax.TextModel(treemax.HashingText(bits=10), treemax.LabelTree(verbose=0)).fit(texts, labels).save(
        tmp_path / "model"
    )
    (tmp_path / "rows").mkdir()
    for part in range(3):
        own = slice(part * 120, (part + 1) * 120)
        parquet.write_table(
            pa.table({"text": texts[own], "number": np.arange(360)[own]}), tmp_path / "rows" / f"{part}.parquet"
        )
    answers = treemax.predict_dataset(tmp_path / "model", str(tmp_path / "rows"), k=2, workers=2, batch_rows=50)
    answers.write_parquet(str(tmp_path / "answers"))
    found = parquet.read_table(tmp_path / "answers").sort_by("number")
    assert found["number"].to_pylist() == list(range(360))
    assert [own[0] for own in found["predicted"].to_pylist()] == labels
    expected = treemax.load(tmp_path / "model").predict_topk(texts, 2)
    np.testing.assert_array_equal(np.array(found["scores"].to_pylist(), np.float32), expected.scores)


def test_a_model_that_is_not_there(one_machine, tmp_path):
    with pytest.raises(FileNotFoundError, match="no model file"):
        treemax.predict_dataset(tmp_path / "none", str(tmp_path))
    (tmp_path / "other").write_text("something else")
    with pytest.raises(treemax.ModelFileError, match="is not a Treemax model"):
        treemax.predict_dataset(tmp_path / "other", str(tmp_path))
