"""Every Treemax line of docs/coming-from.md works."""

from __future__ import annotations

import re
import shlex

import pytest
from click.testing import CliRunner

from tests.test_documentation import DOCS, blocks
from treemax.cli.main import commands

PAGE = DOCS / "coming-from.md"
CODE = re.compile(r"`([^`]+)`")
TEXTS = "__label__cat It purrs softly.\n__label__dog It barks aloud.\n__label__cow It gives milk.\n" * 20
VECTORS = [f"{label} {label}:1 {label + 3}:{0.1 * row}" for row in range(20) for label in range(3)]


def lines_of_ours() -> dict[str, list[str]]:
    """The code in the second column of each table, by heading."""
    sections = re.findall(r"^## (.+?)\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    found = {}
    for heading, text in sections:
        rows = [line.strip("| ").split(" | ") for line in text.split("\n") if line.startswith("| ")]
        assert all(len(row) == 2 for row in rows), heading
        found[heading] = [code for row in rows[1:] for code in CODE.findall(row[1])]
    return found


def written_data(folder) -> None:
    """Small files under the names that the page uses."""
    for name in ("train", "test", "more"):
        (folder / f"{name}.txt").write_text(TEXTS)
        (folder / f"{name}.xmc").write_text("\n".join([f"{len(VECTORS)} 6 3", *VECTORS]) + "\n")
        (folder / f"{name}.vw").write_text("".join(line.replace(" ", " | ", 1) + "\n" for line in VECTORS))


@pytest.mark.slow
@pytest.mark.parametrize("library", lines_of_ours())
def test_lines_of_ours_run(library, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    written_data(tmp_path)
    namespace: dict[str, object] = {}
    for _, code in blocks(PAGE, "python"):
        exec(code, namespace)
    for line in lines_of_ours()[library]:
        if not line.startswith("treemax "):
            eval(line, namespace)
            continue
        arguments = shlex.split(line)[1:]
        if arguments[0] == "tune":
            pytest.importorskip("optuna")
            arguments += ["--max-trials", "1", "--models", "label-tree"]
        result = CliRunner().invoke(commands, arguments)
        assert result.exit_code == 0, f"{line}: {result.output}"
