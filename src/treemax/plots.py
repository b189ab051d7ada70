"""What a model has learned, for people to look at: its tree as text, and plots.

Plots need Matplotlib: `pip install 'treemax[plot]'`.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from treemax.modelfile import at_rest
from treemax.parameters import check_number
from treemax.trees import NodeLabels, Tree

if TYPE_CHECKING:
    from treemax.models.softmax_tree.training import Record

LINE = 0.1  # inches that a line of a node's box takes


def plot_history(model: Any, axes: Any = None) -> Any:
    """Draw how the training of a `SoftmaxTree` or `SoftmaxForest` went; returns Matplotlib's axes.

    The objective after every depth that was updated, iteration after iteration, one line a tree; and on an axis
    of its own, at the right, the training error after every iteration.

    Parameters
    ----------
    model : SoftmaxTree or SoftmaxForest
        A fitted one, which still has its learning state.
    axes : matplotlib.axes.Axes, optional
        Where to draw; new ones if not given.
    """
    trees = _histories(model)
    axes = _new_axes() if axes is None else axes
    errors = axes.twinx()
    for records in trees:
        n_depths = 1 + max(record.depth for record in records)
        at = [record.iteration + 1 - record.depth / n_depths for record in records]
        axes.plot(at, [record.objective for record in records], ".-", color="tab:blue", alpha=0.7)
        whole = [record for record in records if not math.isnan(record.error)]
        times = [record.iteration + 1 for record in whole]
        errors.plot(times, [100 * r.error for r in whole], "s--", color="tab:orange", alpha=0.7, markersize=4)
    axes.set_xlabel("iterations (a point for every depth, from the leaves to the root)")
    axes.set_ylabel("objective", color="tab:blue")
    errors.set_ylabel("training error %", color="tab:orange")
    errors.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    return axes


def _histories(model: Any) -> list[list[Record]]:
    """What was recorded, tree by tree."""
    if not hasattr(type(model), "history_"):
        raise TypeError(
            f"plot_history draws the training of a SoftmaxTree or SoftmaxForest, got {type(model).__name__}."
        )
    if "model_" not in vars(model):
        raise ValueError("plot_history needs a fitted model; call fit first.")
    if not model.states_:
        raise ValueError(
            "This model was saved without its learning state and has no history. Save it with save(path, resume=True)."
        )
    return [state.history for state in model.states_]


# --- the tree over the labels ----------------------------------------------------------------------------


def show_tree(model: Any, depth: int = 2, labels: int = 4, children: int = 8, form: str = "text") -> str:
    """What stands where in the tree of a model: the most frequent labels under each node.

    Parameters
    ----------
    model : any model with a tree, or a TextModel with one of them
        A fitted one. Of several trees, the first is shown. In a SoftmaxTree, a RecallTree and a LOMTree, rows of a
        label may go different ways, so that it may stand under several children; a RecallTree shows candidates. Those
        of them that learn row by row count an example as often as it came to a node.
    depth : int
        Levels below the root.
    labels : int
        Labels named at each node, the most frequent ones in training.
    children : int
        Children shown of a node, those with the most training examples.
    form : "text" or "json"
        Lines for people, or a nested object: node, n_labels, examples (null in a SoftmaxTree, which does not know
        them), labels, children.

    >>> import treemax
    >>> X = [[0.0, 1.0], [1.0, 0.0], [1.0, 0.2]] * 4
    >>> model = treemax.LabelTree(tree={"way": ["east", "north"], "stay": ["here"]})
    >>> print(treemax.show_tree(model.fit(X, ["north", "east", "here"] * 4)))
    3 labels, 12 examples: east, here, north
      2 labels, 8 examples: east, north
        east, 4 examples
        north, 4 examples
      here, 4 examples
    """
    if form not in ("text", "json"):
        raise ValueError(f"form must be text or json, got {form!r}.")
    outline = _outline(model, depth, labels, children)
    if form == "json":
        return json.dumps(outline, ensure_ascii=False)
    return "\n".join(_lines(outline))


def plot_tree(model: Any, axes: Any = None, depth: int = 2, labels: int = 4, children: int = 4) -> Any:
    """Draw the tree of a model, from the root at the left: the most frequent labels under each node.

    Returns Matplotlib's axes: `axes.figure.savefig("tree.svg")` writes a file. Parameters as in `show_tree`; a
    dotted line stands for children that are not shown.
    """
    outline = _outline(model, depth, labels, children)
    if axes is None:  # as large as the boxes need
        axes = _new_axes(2.2 * (depth + 1), max(2.0, _height(outline) * LINE * (labels + 2.5)))
    n_leaves = _draw(axes, outline, 0, 0.0)[1]
    axes.set_xlim(-0.05, depth + 0.9)
    axes.set_ylim(-n_leaves, 1.0)
    axes.set_axis_off()
    return axes


class _Shown(NamedTuple):
    """What is shown of a node: its labels, the most frequent first, and how many examples came, if that is known."""

    labels: NDArray[np.int64]
    examples: int | None


class _LabelTree:
    """The nodes of a tree that has every label at one leaf."""

    def __init__(self, tree: Tree, counts: NDArray[Any]) -> None:
        self.tree, self.counts = tree, counts

    def children(self, node: int) -> list[int]:
        return list(self.tree.children(node))

    def shown(self, node: int) -> _Shown:
        tree, found, first, stop = self.tree, [], node, node + 1
        while first < stop:  # those of a level stand side by side, and so do their children
            found.append(tree.label[first:stop])
            inner = first + np.flatnonzero(tree.n_children[first:stop])
            n_below = int(tree.n_children[first:stop].sum())
            first = int(tree.first_child[inner[0]]) if n_below else stop
            stop = first + n_below
        labels = np.concatenate(found)
        labels = labels[labels >= 0]
        return _Shown(_sorted(labels, self.counts[labels]), int(self.counts[labels].sum()))


class _RoutingTree:
    """The nodes of a tree that leads rows to leaves, of which several may have the same label."""

    def __init__(self, nodes: NodeLabels, counts: NDArray[Any]) -> None:
        self.nodes, self.counts = nodes, counts

    def children(self, node: int) -> list[int]:
        return list(self.nodes.children[node])

    def shown(self, node: int) -> _Shown:
        labels, nodes = self.nodes.labels[node], self.nodes
        counts = self.counts[labels] if nodes.counts is None else nodes.counts[node]
        examples = None if nodes.examples is None else round(nodes.examples[node])
        return _Shown(_sorted(labels, counts), examples)


def _sorted(labels: NDArray[Any], counts: NDArray[Any]) -> NDArray[np.int64]:
    """The most frequent first, among equals the first of the classes."""
    return labels[np.lexsort((labels, -counts))]


def _tree_of(model: Any) -> _LabelTree | _RoutingTree:
    """The tree of a fitted model, as it is shown."""
    if not (hasattr(model, "label_tree") or hasattr(model, "node_labels")):
        raise TypeError(
            "show_tree and plot_tree are for models with a tree (LabelTree, LearnedTree, LOMTree, OnlineLabelTree, "
            f"RecallTree, SoftmaxTree, SoftmaxForest, TreeLanguageModel), got {type(model).__name__}."
        )
    if "model_" not in vars(model):
        raise ValueError(f"This {type(model).__name__} has no tree yet; call fit first.")
    counts = np.asarray(model.label_counts_)
    if hasattr(model, "label_tree"):
        return _LabelTree(model.label_tree(), counts)
    return _RoutingTree(model.node_labels(), counts)


def _outline(model: Any, depth: int, labels: int, children: int) -> dict[str, Any]:
    """The upper levels of a model's tree, as nested dictionaries."""
    for name, value in (("depth", depth), ("labels", labels), ("children", children)):
        check_number(name, value, whole=True, least=1)
    model = getattr(model, "estimator", model)  # that of a TextModel
    return at_rest(model, lambda model: _outline_at_rest(model, depth, labels, children))


def _outline_at_rest(model: Any, depth: int, labels: int, children: int) -> dict[str, Any]:
    tree, names = _tree_of(model), model.classes_

    def outline(node: int, shown: _Shown, level: int) -> dict[str, Any]:
        found: dict[str, Any] = {
            "node": int(node), "n_labels": len(shown.labels), "examples": shown.examples,
            "labels": [_plain(name) for name in names[shown.labels[:labels]]],
        }  # fmt: skip
        below = tree.children(node)
        if below and level < depth:
            parts = [(child, tree.shown(child)) for child in below]
            parts.sort(key=lambda part: -(part[1].examples or 0))
            found["children"] = [outline(child, part, level + 1) for child, part in parts[:children]]
            found["children_left_out"] = len(parts) - len(found["children"])
        return found

    return outline(0, tree.shown(0), 0)


def _plain(name: Any) -> Any:
    return name.item() if isinstance(name, np.generic) else name


def _title(outline: dict[str, Any]) -> str:
    examples = "" if outline["examples"] is None else f", {outline['examples']:,} examples"
    names = ", ".join(map(str, outline["labels"]))
    if outline["n_labels"] == 1:
        return names + examples
    more = ", ..." if outline["n_labels"] > len(outline["labels"]) else ""
    return f"{outline['n_labels']:,} labels{examples}: {names}{more}"


def _lines(outline: dict[str, Any], indent: str = "") -> list[str]:
    lines = [indent + _title(outline)]
    for child in outline.get("children", []):
        lines += _lines(child, indent + "  ")
    if outline.get("children_left_out"):
        lines.append(f"{indent}  and {outline['children_left_out']} more")
    return lines


def _draw(axes: Any, outline: dict[str, Any], level: int, top: float) -> tuple[float, float]:
    """Draw a node and what is below it from `top` on; where it stands, and how high it all is."""
    height, places = 0.0, []
    for child in outline.get("children", []):
        place, needed = _draw(axes, child, level + 1, top - height)
        places.append(place)
        height += needed
    at = (places[0] + places[-1]) / 2 if places else top
    for place in places:
        axes.plot([level + 0.75, level + 1], [at, place], color="tab:gray", linewidth=0.8)
    if outline.get("children_left_out"):
        axes.plot([level + 0.75, level + 1], [at, top - height], ":", color="tab:gray", linewidth=0.8)
        axes.text(level + 1, top - height, f"{outline['children_left_out']} more", fontsize=6, va="center")
        height += 1.0
    names = "\n".join(str(name)[:24] for name in outline["labels"])
    title = names if outline["n_labels"] == 1 else f"{outline['n_labels']:,} labels\n{names}"
    axes.text(
        level,
        at,
        title,
        fontsize=6,
        va="center",
        bbox={"boxstyle": "round", "facecolor": "white", "linewidth": 0.5},
    )
    return at, max(1.0, height)


def _height(outline: dict[str, Any]) -> float:
    """How many boxes stand below each other at most, as `_draw` places them."""
    below = sum(_height(child) for child in outline.get("children", []))
    return max(1.0, below + bool(outline.get("children_left_out")))


def _new_axes(width: float = 7.0, height: float = 4.0) -> Any:
    try:
        from matplotlib import pyplot
    except ImportError:
        raise ImportError("Plots need Matplotlib: pip install 'treemax[plot]'.") from None
    return pyplot.subplots(figsize=(width, height), layout="constrained")[1]
