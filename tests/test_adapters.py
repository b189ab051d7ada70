"""Error messages without PyTorch, river and Annif."""

from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from treemax.annif import register


@pytest.mark.parametrize(("extra", "library"), [("river", "river"), ("torch", "PyTorch")])
def test_packages_of_extras_say_what_they_need(extra, library, monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == extra else found(name, *rest))
    for name in [name for name in sys.modules if name.startswith(f"treemax.{extra}")]:
        monkeypatch.delitem(sys.modules, name)
    needs = rf"needs {library}, which is not installed: pip install 'treemax\[{extra}\]'"
    with pytest.raises(ImportError, match=needs):
        importlib.import_module(f"treemax.{extra}")


def test_the_backend_says_what_it_needs(monkeypatch):
    monkeypatch.setitem(sys.modules, "annif", None)
    monkeypatch.setitem(sys.modules, "annif.backend", None)
    with pytest.raises(ImportError, match="annif"):
        register()


def test_the_entry_point_does_not_load_annif():
    code = "import sys, treemax.annif.registration as r; print(r.command.name, 'annif' in sys.modules, 'numba' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["command", "False", "False"]
