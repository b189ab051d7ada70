"""The name of a Python function and the first paragraph of its docstring -> the names of its parameters."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

from benchmarks.make_data.packages import pypi
from benchmarks.make_data.splits import TextRow, write_texts

PACKAGES = """
ansible-core==2.19.14 arviz==0.23.4 astropy==8.0.2 biopython==1.88 bokeh==3.9.2 cvxpy==1.9.3
dask==2026.8.0 django==5.2.19 gensim==4.4.0 jax==0.10.2 keras==3.15.1 librosa==0.11.0
matplotlib==3.11.2 mne==1.13.2 networkx==3.6.1 nibabel==5.4.2 nilearn==0.14.1 nltk==3.10.4
pandas==3.1.1 pymc==5.28.5 scikit-image==0.26.0 scikit-learn==1.9.1 scipy==1.17.1 sqlalchemy==2.1.8
statsmodels==0.15.0 sympy==1.14.0 transformers==4.57.6 xarray==2026.9.0
"""
MOST_WORDS, LEAST_PARAMETERS = 40, 3


def make(scratch: Path, folder: Path) -> None:
    write_texts((row for package in PACKAGES.split() for row in rows(pypi(package, scratch))), folder)


def rows(package: Path) -> Iterator[TextRow]:
    for path in sorted(package.rglob("*.py")):
        if "test" not in str(path.relative_to(package)):
            yield from functions(path.read_text(errors="replace"))


def functions(source: str) -> Iterator[TextRow]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of old escapes in strings
        tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and (text := ast.get_docstring(node)):
            given = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
            names = sorted({a.arg for a in given if a.arg not in ("self", "cls") and a.arg[0] != "_"})
            if len(names) >= LEAST_PARAMETERS:
                words = re.findall(r"[^\W_]+", node.name + " " + text.split("\n\n")[0])
                yield names, " ".join(words[:MOST_WORDS])
