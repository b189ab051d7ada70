"""Output layers for PyTorch. Needs the extra: `pip install 'treemax[torch]'`.

Importing `treemax` imports neither this package nor PyTorch.
"""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("torch") is None:
    raise ImportError("treemax.torch needs PyTorch, which is not installed: pip install 'treemax[torch]'")

from treemax.torch.tree_sigmoid import TreeSigmoid
from treemax.torch.tree_softmax import TreeSoftmax

__all__ = ["TreeSigmoid", "TreeSoftmax"]
