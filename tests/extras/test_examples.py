"""The examples run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "lstm_language_model.py"


@pytest.mark.parametrize("output", ["tree", "flat"])
def test_lstm_language_model(output, tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("\n".join(f"the act of counting to {i % 7} and {i % 5} again" for i in range(4000)))
    command = [sys.executable, str(EXAMPLE), "--text", str(text), "--output", output, "--size", "8", "--device", "cpu"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    perplexity = float(done.stdout.split("perplexity of the test: ")[1].split()[0])
    assert perplexity < 6  # of 18 words; at each place but two only one can follow
    assert "the act of ...: " in done.stdout
