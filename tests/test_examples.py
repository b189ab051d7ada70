"""The scripts in examples/ run as they are."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
NEED_EXTRAS = {"lstm_language_model.py"}  # tests/extras runs these
PRINTS = {
    "deploy.py": "both processes answer as the trained model does",
    "embeddings.py": "OneVsAll",
    "language_model.py": "a person who ...",
    "own_model.py": "saved and loaded",
    "stream.py": "wrote stream.png",
    "tags.py": "a river in Africa: noun, river",
    "taxonomy.py": "to move very fast on foot: verb, verb:01835473:move",
}


def test_every_example_is_run():
    assert {path.name for path in EXAMPLES.glob("*.py")} == {*PRINTS, *NEED_EXTRAS}


@pytest.mark.parametrize("name", PRINTS)
def test_an_example_is_shown_on_the_page(name):
    assert f'--8<-- "examples/{name}"' in (EXAMPLES.parent / "docs" / "examples.md").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("name", PRINTS)
def test_an_example_runs(name, tmp_path):
    if name == "stream.py":
        pytest.importorskip("matplotlib")
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)],
        cwd=tmp_path, env=os.environ, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert PRINTS[name] in done.stdout
