"""The pages of experiments are what `python -m benchmarks.pages` writes from the stored results."""

from __future__ import annotations

import doctest
import json
import sys

import pytest

from benchmarks import pages
from benchmarks.harness import output


@pytest.mark.parametrize("file", pages.pages(), ids=lambda file: file.name)
def test_pages_are_those_of_the_stored_results(file):
    assert file.read_text() == pages.pages()[file], "run python -m benchmarks.pages"


def test_every_page_of_the_folder_is_a_generated_one():
    assert set(output.STORED.parent.glob("*.md")) == set(pages.pages()) - {pages.README}


@pytest.mark.parametrize(
    "path",
    [path for path in sorted(output.STORED.rglob("*.json")) if path.name != "page.json"],
    ids=lambda path: f"{path.parent.name}/{path.stem}",
)
def test_stored_results_are_whole(path):
    result = json.loads(path.read_text())
    assert path.read_text() == output.one_row_a_line(result)
    assert all(result[name] for name in ("title", "command", "date", "machine", "shows", "rows"))
    assert {len(row) for row in result["rows"]} == {len(result["columns"])}
    for cell in (cell for row in result["rows"] for cell in row):
        assert isinstance(cell, str | int | float | None) or {"error", "low", "beside"} & set(cell), cell


def test_store_writes_a_result_and_lists_it(tmp_path, monkeypatch):
    monkeypatch.setattr(output, "STORED", tmp_path / "results")
    monkeypatch.setattr(pages, "STORED", tmp_path / "results")
    monkeypatch.setattr(pages, "README", tmp_path / "README.md")
    pages.README.write_text("Before.\n<!-- table: trees/depth -->\nold\n<!-- end -->\nAfter.\n")
    monkeypatch.setattr(sys, "argv", ["prog", "gcc"])
    folder = tmp_path / "results" / "trees"
    folder.mkdir(parents=True)
    (folder / "page.json").write_text('{"title": "Trees", "about": "All of them.", "results": []}')
    for _ in range(2):  # the second replaces the first
        output.store(
            "trees", "depth", title="Depth", shows="One number.", machine="one core",
            columns=["tree", {"name": "P@1", "decimals": 2}, "rows"], rows=[["k-means", 0.5, 1200]],
        )  # fmt: skip
    written = pages.pages()
    assert set(written) == {pages.README, tmp_path / "trees.md"}
    text = written[tmp_path / "trees.md"]
    assert json.loads((folder / "page.json").read_text())["results"] == ["depth"]
    table = "| tree | P@1 | rows |\n|---|--:|--:|\n| k-means | 0.50 | 1,200 |"
    assert table in text and "old" not in written[pages.README]
    assert f"-->\n{table}\n<!-- end -->\nAfter.\n" in written[pages.README]
    assert "gcc\n```" in text and text.startswith("# Trees\n")
    (folder / "page.json").write_text('{"title": "Trees", "about": "All of them.", "results": []}')
    (folder / "other.json").write_text((folder / "depth.json").read_text())
    (folder / "page.json").write_text('{"title": "Trees", "about": "All of them.", "results": ["other"]}')
    assert "- [Depth](results/trees/depth.json)" in pages.page(folder)


@pytest.mark.parametrize("module", [pages, output], ids=lambda module: module.__name__)
def test_doctests(module):
    assert doctest.testmod(module).attempted > 0 and doctest.testmod(module).failed == 0
