"""Data and models of the tests of the command line."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.cli.commands import FEATURE_FORMATS, TEXT_FORMATS, WORDS, done
from treemax.formats import read_examples, write_examples


@pytest.fixture(scope="session")
def folder(tmp_path_factory) -> Path:
    """Small data in every format, one- and multi-label, and a model of texts and one of features."""
    folder = tmp_path_factory.mktemp("cli")
    draw = random.Random(0)
    lines, multi, features = [], [], ["100 9 3"]
    for _ in range(100):
        name, other = draw.sample(list(WORDS), 2)
        lines.append(f"__label__{name} " + " ".join(draw.choices(WORDS[name], k=4)))
        multi.append(f"__label__{name} __label__{other} " + " ".join(draw.choices(WORDS[name] + WORDS[other], k=6)))
        label = draw.randrange(3)
        features.append(f"{label} {label + 1}:1 {draw.randrange(5, 9)}:0.5")
    (folder / "train.txt").write_text("\n".join(lines) + "\n")
    (folder / "multi.txt").write_text("\n".join(multi) + "\n")
    (folder / "data.xmc").write_text("\n".join(features) + "\n")
    examples = read_examples(folder / "data.xmc")
    for name in set(FEATURE_FORMATS.values()) - {"data.xmc"}:
        write_examples(folder / name, examples)
    texts = read_examples(folder / "train.txt")
    for name in TEXT_FORMATS.values():
        write_examples(folder / name, texts)
    done("fit", folder / "train.txt", "-o", folder / "text.treemax")
    done("fit", folder / "data.svm", "-o", folder / "features.treemax")
    return folder
