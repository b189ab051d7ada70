"""The Python blocks of the pages that need extras run."""

from __future__ import annotations

import pytest

from tests.test_documentation import DOCS, run_python_blocks


@pytest.mark.parametrize(
    ("name", "package"), [("clusters", "ray"), ("river-and-annif", "river"), ("tree-softmax", "torch")]
)
def test_python_blocks_run_in_order(name, package, tmp_path, monkeypatch):
    pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    run_python_blocks(DOCS / f"{name}.md")
