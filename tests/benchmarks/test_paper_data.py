"""The data sets of the papers, read from small files of the form in which they are published."""

from __future__ import annotations

import bz2
import gzip

import numpy as np
import pytest

from benchmarks.harness import paper_data, suites


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("TREEMAX_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(suites, "CACHE", tmp_path / "cache")
    return tmp_path / "data"


def put(folder, name, text):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    compress = {".gz": gzip.compress, ".bz2": bz2.compress}.get(path.suffix, bytes)
    path.write_bytes(compress(text.encode()))


def parts(name, validation=False):
    return suites.raw_parts(name, suites.SUITES[name], validation)


@pytest.mark.parametrize("name", paper_data.SOURCES)
def test_missing_files_are_named_with_their_source(folder, name):
    with pytest.raises(suites.DataMissing) as error:
        parts(name)
    assert name.removesuffix("-in-order") in str(error.value) and paper_data.SOURCES[name] in str(error.value)
    assert "TREEMAX_DATA" in str(error.value)


def test_every_source_is_a_suite():
    assert set(paper_data.SOURCES) <= set(suites.SUITES)


def test_aloi_is_divided_at_random_and_centred(folder):
    lines = [f"{i % 5} 1:{i / 100} {2 + i % 3}:1 128:0.5" for i in range(200)]
    put(folder, "aloi/aloi.scale.bz2", "\n".join(lines) + "\n")
    train, test = parts("aloi")
    assert train.X.shape == (180, 128) and test.X.shape == (20, 128)
    numbers = np.concatenate([train.X[:, 0], test.X[:, 0]])
    np.testing.assert_allclose(np.sort(numbers), np.arange(200) / 100, atol=1e-6)
    assert test.labels == [[round(number * 100) % 5] for number in test.X[:, 0]]
    centred, _ = suites.SUITES["aloi"].features(train, test)
    np.testing.assert_allclose(centred.X.mean(axis=0), 0, atol=1e-6)
    again, held_out = parts("aloi", validation=True)  # no test row is read
    assert set(held_out.X[:, 0]) <= set(train.X[:, 0]) and len(again.labels) + len(held_out.labels) == 180


@pytest.mark.parametrize(
    ("name", "files"),
    [("odp", "odp/odp_{}.vw.gz"), ("ltcb", "ltcb/enwik9.{}.vw.gz"), ("ltcb-in-order", "ltcb/enwik9.inorder.{}.vw.gz")],
)
def test_files_of_vowpal_wabbit(folder, name, files):
    put(folder, files.format("train"), "7 |b the |c cat\n80001 |b a |c cat\n7 |b the |c dog\n")
    put(folder, files.format("test"), "80001 |b a |c cat\n")
    train, test = parts(name)
    assert train.labels == [[7], [80001], [7]] and test.labels == [[80001]]
    assert train.X.shape[1] == test.X.shape[1] == 2**paper_data.HASH_BITS
    assert (train.X[1] != test.X[0]).nnz == 0 and (train.X[0] != train.X[2]).nnz == 2
    np.testing.assert_allclose(train.X.power(2).sum(axis=1), 1, atol=1e-6)


def test_wiki_small_has_the_same_features_in_both_parts(folder):
    put(folder, "wiki-small/train.txt", "12 1:2 7:1\n3 2:1\n")
    put(folder, "wiki-small/test.txt", "3 1:1 9:1\n")
    train, test = parts("wiki-small")
    assert train.labels == [[12], [3]] and test.labels == [[3]]
    assert train.X.shape[1] == test.X.shape[1]
    assert (train.X[0].toarray() > 0).nonzero()[1][0] == (test.X[0].toarray() > 0).nonzero()[1][0]


@pytest.mark.parametrize("name", ["eurlex", "wiki10", "amazoncat"])
def test_files_of_the_repository(folder, name):
    put(folder, f"{name}/train.txt", "3 4 5\n0,4 0:3 3:4\n2 1:1\n1 2:1\n")
    put(folder, f"{name}/test.txt", "1 4 5\n4 3:2\n")
    train, test = parts(name)
    assert train.labels == [[0, 4], [2], [1]] and test.labels == [[4]]
    np.testing.assert_allclose(train.X[0].toarray()[0], [0.6, 0, 0, 0.8], atol=1e-6)
    assert suites.prepared(name).exists()


def test_yfcc100m_is_text(folder):
    put(folder, "yfcc100m/train.txt.gz", "__label__sea __label__sun a day out\n__label__sun a walk\n")
    put(folder, "yfcc100m/test.txt.gz", "__label__sea a swim\n")
    train, test = parts("yfcc100m")
    assert train.labels == [["__label__sea", "__label__sun"], ["__label__sun"]]
    assert train.texts == ["a day out", "a walk"] and test.texts == ["a swim"]
