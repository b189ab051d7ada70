"""What happens without PyTorch."""

from __future__ import annotations

import importlib.util
import sys

import pytest


def test_torch_layers_say_what_they_need(monkeypatch):
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "torch" else found(name, *rest)
    )
    for name in [name for name in sys.modules if name.startswith("treemax.torch")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ImportError, match=r"needs PyTorch, which is not installed: pip install 'treemax\[torch\]'"):
        importlib.import_module("treemax.torch")
