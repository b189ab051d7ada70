"""The tree of a model as text, and plots.

Plots need Matplotlib: `pip install 'treemax[plot]'`.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from treemax.explanations import Explanation
from treemax.explanations.explanation import others, plain
from treemax.modelfile import without_changes
from treemax.parameters import check_number
from treemax.trees import NodeLabels, Tree

if TYPE_CHECKING:
    from treemax.models.softmax_tree.state import Record

LINE = 0.1  # inches per line of a node's box


def plot_history(model: Any, axes: Any = None) -> Any:
    """Plot the training history of a `SoftmaxTree` or `SoftmaxForest`; returns Matplotlib axes.

    Shows the objective after the update of every depth, one line per tree, and on a second axis the training error
    after every iteration.

    Parameters
    ----------
    model : SoftmaxTree or SoftmaxForest
        A fitted model with its learning state.
    axes : matplotlib.axes.Axes, optional
        Axes to draw on; by default new ones.
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
    """Return the history of each tree."""
    if not hasattr(type(model), "history_"):
        from treemax.models import MODELS

        able = " or ".join(kind.__name__ for kind in MODELS.values() if hasattr(kind, "history_"))
        raise TypeError(f"plot_history needs a {able}, got {type(model).__name__}.")
    if "model_" not in vars(model):
        raise ValueError("plot_history needs a fitted model; call fit first.")
    if not model.states_:
        raise ValueError(
            "This model was saved without its learning state and has no history. Save it with save(path, resume=True)."
        )
    return [state.history for state in model.states_]


def plot_explanation(explanation: Explanation, axes: Any = None, features: int = 10) -> Any:
    """Plot what each feature added in all to the score of the explained label; returns Matplotlib axes.

    Parameters
    ----------
    explanation : Explanation
        From `explain` of a model.
    axes : matplotlib.axes.Axes, optional
        Axes to draw on; by default new ones.
    features : int
        Number of features to show, those that added most; the others are one bar.
    """
    check_number("features", features, whole=True, least=1)
    ranked = explanation.ranked()
    shown = [(str(name)[:40], value) for name, value in ranked[:features]]
    if ranked[features:]:
        shown.append((others(len(ranked) - features), sum(value for _, value in ranked[features:])))
    axes = _new_axes(6.0, 1.0 + 0.3 * len(shown)) if axes is None else axes
    places, values = range(len(shown)), [value for _, value in shown]
    axes.barh(places, values, color=["tab:cyan" if value > 0 else "tab:orange" for value in values])
    axes.set_yticks(places, [name.replace("$", r"\$") for name, _ in shown])  # no mathematics
    axes.invert_yaxis()
    axes.axvline(0.0, color="tab:gray", linewidth=0.8)
    axes.set_xlabel("added to the score")
    axes.set_title(f"{explanation.label}, probability {explanation.probability:.3f}".replace("$", r"\$"), fontsize=10)
    return axes


# --- the tree over the labels ----------------------------------------------------------------------------


def show_tree(model: Any, depth: int = 2, labels: int = 4, children: int = 8, form: str = "text") -> str:
    """Show the tree of a model: the most frequent labels below each node.

    Parameters
    ----------
    model : any model with a tree, or a TextModel with one of them
        A fitted model. Of several trees, the first is shown. In a SoftmaxTree, a RecallTree, a LOMTree and a ContextualMemoryTree, a label may
        be below several children; a RecallTree shows candidates. Online models count an example each time it reached a
        node.
    depth : int
        Number of levels below the root.
    labels : int
        Number of labels to show at each node, the most frequent ones in training.
    children : int
        Number of children to show of each node, those with the most training examples.
    form : "text" or "json"
        Lines of text, or a nested object: node, n_labels, examples (null in a SoftmaxTree, which does not store them),
        labels, children; in a LearnedTree and a TreeLanguageModel also quality, from `node_quality`.

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
    """Plot the tree of a model, with the root at the left: the most frequent labels below each node.

    Returns Matplotlib axes: `axes.figure.savefig("tree.svg")` writes a file. Parameters as in `show_tree`; a dotted
    line represents children that are not shown. In a LearnedTree and a TreeLanguageModel, boxes also have the quality of
    the split, from `node_quality`.
    """
    outline = _outline(model, depth, labels, children)
    if axes is None:  # large enough for the boxes
        axes = _new_axes(2.2 * (depth + 1), max(2.0, _height(outline) * LINE * (labels + 2.5 + ("quality" in outline))))
    n_leaves = _draw(axes, outline, 0, 0.0)[1]
    axes.set_xlim(-0.05, depth + 0.9)
    axes.set_ylim(-n_leaves, 1.0)
    axes.set_axis_off()
    return axes


class _Shown(NamedTuple):
    """The labels of a node, most frequent first, and its number of examples, if known."""

    labels: NDArray[np.int64]
    examples: int | None


class _LabelTree:
    """Nodes of a tree with every label at one leaf."""

    def __init__(self, tree: Tree, counts: NDArray[Any]) -> None:
        self.tree, self.counts = tree, counts

    def children(self, node: int) -> list[int]:
        return list(self.tree.children(node))

    def shown(self, node: int) -> _Shown:
        labels, _ = self.tree.below(node)
        return _Shown(_sorted(labels, self.counts[labels]), int(self.counts[labels].sum()))


class _RoutingTree:
    """Nodes of a tree that routes rows, where several leaves may have the same label."""

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
    """Sort labels by frequency, then by class order."""
    return labels[np.lexsort((labels, -counts))]


def _tree_of(model: Any) -> _LabelTree | _RoutingTree:
    """Return the nodes of a fitted model's tree."""
    if not _has_tree(model):
        from treemax.models import MODELS, TreeLanguageModel

        able = ", ".join(kind.__name__ for kind in (*MODELS.values(), TreeLanguageModel) if _has_tree(kind))
        raise TypeError(f"show_tree and plot_tree need a model with a tree ({able}), got {type(model).__name__}.")
    if "model_" not in vars(model):
        raise ValueError(f"This {type(model).__name__} has no tree yet; call fit first.")
    counts = np.asarray(model.label_counts_)
    if hasattr(model, "label_tree"):
        return _LabelTree(model.label_tree(), counts)
    return _RoutingTree(model.node_labels(), counts)


def _has_tree(model: Any) -> bool:
    return hasattr(model, "label_tree") or hasattr(model, "node_labels")


def _quality_of(model: Any) -> Any:
    """Return the quality of a model's splits; None if it is not known."""
    try:
        return model.node_quality() if hasattr(model, "node_quality") else None
    except ValueError:  # of a model without the statistics of its training
        return None


def _outline(model: Any, depth: int, labels: int, children: int) -> dict[str, Any]:
    """Return the upper levels of a model's tree as nested dictionaries."""
    for name, value in (("depth", depth), ("labels", labels), ("children", children)):
        check_number(name, value, whole=True, least=1)
    model = getattr(model, "estimator", model)  # of a TextModel
    return without_changes(model, lambda model: _outline_of(model, depth, labels, children))


def _outline_of(model: Any, depth: int, labels: int, children: int) -> dict[str, Any]:
    tree, names, quality = _tree_of(model), model.classes_, _quality_of(model)

    def outline(node: int, shown: _Shown, level: int) -> dict[str, Any]:
        found: dict[str, Any] = {
            "node": int(node), "n_labels": len(shown.labels), "examples": shown.examples,
            "labels": [plain(name) for name in names[shown.labels[:labels]]],
        }  # fmt: skip
        if quality is not None and (of_node := quality.at(node)):
            found["quality"] = of_node
        below = tree.children(node)
        if below and level < depth:
            parts = [(child, tree.shown(child)) for child in below]
            parts.sort(key=lambda part: -(part[1].examples or 0))
            found["children"] = [outline(child, part, level + 1) for child, part in parts[:children]]
            found["children_left_out"] = len(parts) - len(found["children"])
        return found

    return outline(0, tree.shown(0), 0)


def _title(outline: dict[str, Any]) -> str:
    examples = "" if outline["examples"] is None else f", {outline['examples']:,} examples"
    names = ", ".join(map(str, outline["labels"]))
    if outline["n_labels"] == 1:
        return names + examples
    more = ", ..." if outline["n_labels"] > len(outline["labels"]) else ""
    return f"{outline['n_labels']:,} labels{examples}: {names}{more}"


def _quality_text(outline: dict[str, Any]) -> list[str]:
    """Return the quality of a node's split as a line, or nothing."""
    if "quality" not in outline:
        return []
    return [", ".join(f"{name} {value:.2f}" for name, value in outline["quality"].items())]


def _lines(outline: dict[str, Any], indent: str = "") -> list[str]:
    lines = [indent + _title(outline)]
    for child in outline.get("children", []):
        lines += _lines(child, indent + "  ")
    if outline.get("children_left_out"):
        lines.append(f"{indent}  and {outline['children_left_out']} more")
    return lines


def _draw(axes: Any, outline: dict[str, Any], level: int, top: float) -> tuple[float, float]:
    """Draw a node and its descendants below `top`; return its position and the total height."""
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
    title = names
    if outline["n_labels"] > 1:
        title = "\n".join([f"{outline['n_labels']:,} labels", names, *_quality_text(outline)])
    axes.text(
        level, at, title, fontsize=6, va="center", bbox={"boxstyle": "round", "facecolor": "white", "linewidth": 0.5}
    )
    return at, max(1.0, height)


def _height(outline: dict[str, Any]) -> float:
    """Return the number of boxes in the tallest column, as `_draw` places them."""
    below = sum(_height(child) for child in outline.get("children", []))
    return max(1.0, below + bool(outline.get("children_left_out")))


def _new_axes(width: float = 7.0, height: float = 4.0) -> Any:
    try:
        from matplotlib import pyplot
    except ImportError:
        raise ImportError("Plots need Matplotlib: pip install 'treemax[plot]'.") from None
    return pyplot.subplots(figsize=(width, height), layout="constrained")[1]
