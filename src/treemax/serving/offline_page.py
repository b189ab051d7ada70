"""The page as one file without a server: the tree, the labels, and stored examples with their explanations.

Everything that comes from the model or the data is compressed JSON in base64, in pieces that the page reads when it
needs them. So a large tree opens at once, and no label can be mistaken for HTML.
"""

from __future__ import annotations

import base64
import gzip
import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from treemax.explanations.explanation import plain
from treemax.formats import Examples
from treemax.inputs.conversions import sparsified
from treemax.serving.outline import MOST_CHILDREN, has_tree, node_outline, path_of

PAGE = Path(__file__).parent / "page"
PIECE = 2**18  # characters of JSON
ANSWERS = 8  # predictions shown per example
WORST = 20  # number of worst nodes, and of confusions, that are listed
LEAST_ROWS = 5  # minimum number of rows of a node listed among the worst
ENTRIES_SHOWN = 40  # maximum number of entries shown of a vector
LEAF_WORDS = 3  # most nodes are leaves, and most of the file is theirs
DIGITS = 4


class Offline(NamedTuple):
    """A page, and how many nodes of the tree were left out for its size."""

    html: bytes
    n_left_out: int


def offline_page(
    model: Any, name: str, examples: Iterable[Examples] = (), n_examples: int = 200, size: int = 50 * 2**20
) -> Offline:
    """Return the page of a model, with `n_examples` of labelled or unlabelled examples, in about `size` bytes at most.

    The upper levels of the tree come first; what does not fit is left out.
    """
    report = _Report(model, n_examples)
    for chunk in examples:
        report.add(chunk)
    stored = report.stored()
    pieces: dict[str, str] = {"examples": _packed(stored)} if stored else {}
    left_out, root = 0, None
    if has_tree(model):
        room = size - sum(map(len, pieces.values()))
        tree, left_out, root = _tree_pieces(model, room)
        pieces |= tree
    about = {
        "model": _described(model, name), "root": root, "examples": len(stored), "left_out": left_out,
        "errors": report.errors(), "report": report.summary(),
    }  # fmt: skip
    pieces["about"] = _packed(about)
    return Offline(_html(pieces), left_out)


def node_errors(model: Any, examples: Iterable[Examples]) -> dict[str, list[int]]:
    """Return the labelled examples at each node of the tree, and how many of them take the wrong child there."""
    report = _Report(model, 0)
    for chunk in examples:
        report.add(chunk)
    return report.errors()


def _described(model: Any, name: str) -> dict[str, Any]:
    estimator = getattr(model, "estimator", model)
    return {
        "name": name, "model": type(estimator).__name__, "n_labels": len(estimator.label_index_),
        "input": "text" if estimator is not model else "vectors", "multi_label": bool(estimator.multi_label_),
        "learns": False, "tree": has_tree(model), "version": "",
    }  # fmt: skip


def _packed(content: Any) -> str:
    text = json.dumps(content, ensure_ascii=False, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode("utf-8", "surrogatepass"), 6, mtime=0)).decode()


def _html(pieces: dict[str, str]) -> bytes:
    """Put style, script and pieces into the page."""
    html, style, script = ((PAGE / file).read_text(encoding="utf-8") for file in ("index.html", "page.css", "page.js"))
    data = "\n".join(f'<script type="text/plain" id="piece-{key}">{value}</script>' for key, value in pieces.items())
    for tag, inline in (
        ('<link rel="stylesheet" href="static/page.css">', f"<style>\n{style}</style>"),
        ('<script src="static/page.js" defer></script>', f"{data}\n<script>\n{script}</script>"),
    ):
        assert html.count(tag) == 1
        html = html.replace(tag, inline)
    return html.encode()


# --- the tree --------------------------------------------------------------------------------------------


def _tree_pieces(model: Any, room: int) -> tuple[dict[str, str], int, str]:
    """Return the nodes of all trees, from the roots on, until `room` bytes are full; and the number of those left out."""
    index: dict[str, int] = {}
    homes: dict[Any, str] = {}
    names = getattr(model, "estimator", model).label_index_.classes.tolist()
    pieces = {"labels": _packed(names)}
    room -= len(pieces["labels"]) * 5 // 4  # and where they are
    waiting, at, current, weight = _roots(model), 0, {}, 0
    root = waiting[0]
    while at < len(waiting) and room > 0:
        node = _whole_node(model, waiting[at])
        at += 1
        current[node["id"]] = node
        index[node["id"]] = len(pieces) - 1
        for child in node["children"]:
            if child["leaf"] and child["n_labels"] == 1 and child["labels"]:
                homes.setdefault(child["labels"][0], node["id"])
            else:
                waiting.append(child["id"])
        for label in () if node["children"] else node["labels"]:
            homes.setdefault(label, node["id"])
        weight += len(json.dumps(node))
        if weight > PIECE or at == len(waiting):
            pieces[f"tree-{len(pieces) - 1}"] = packed = _packed(current)
            room -= len(packed)
            current, weight = {}, 0
    if current:
        pieces[f"tree-{len(pieces) - 1}"] = _packed(current)
    pieces |= {"index": _packed(index), "homes": _packed([homes.get(name) for name in names])}
    return pieces, len(waiting) - at, root


def _roots(model: Any) -> list[str]:
    first = node_outline(model, "root", 0, 0)
    if first["n_trees"] == 1:
        return [first["id"]]
    label = getattr(model, "estimator", model).label_index_.labels([0]).tolist()[0]
    found = {path["tree"]: path["nodes"][0]["id"] for path in path_of(model, label)["paths"]}
    return [first["id"], *(found[tree] for tree in sorted(found) if tree)]


def _whole_node(model: Any, node: str) -> dict[str, Any]:
    """Return a node with all its children, or all labels of a leaf."""
    found = node_outline(model, node, 0, MOST_CHILDREN)
    for name, n in (("children", found["n_children"]), ("labels", 0 if found["n_children"] else found["n_labels"])):
        while len(found[name]) < n:
            more = node_outline(model, node, len(found[name]), MOST_CHILDREN)[name]
            if not more:
                break
            found[name] += more
    for child in found["children"]:
        if child["leaf"] and child["words"]:
            child["words"] = child["words"][:LEAF_WORDS]
    return found


# --- examples --------------------------------------------------------------------------------------------


class _Row(NamedTuple):
    """An example with its answers."""

    features: Any  # of this row, for the model
    text: str
    truth: list[Any]
    predictions: list[dict[str, Any]]
    right: bool | None


class _Report:
    """What the model answers for examples: which nodes and labels are confused, and some examples to show."""

    def __init__(self, model: Any, n_examples: int) -> None:
        self.model, self.most = model, n_examples
        self.kept: dict[bool | None, list[_Row]] = {True: [], False: [], None: []}
        self.confusions: Counter[tuple[Any, Any]] = Counter()
        self.n_rows = self.n_right = 0
        self.at: Counter[str] = Counter()
        self.wrong: Counter[str] = Counter()
        self.paths: dict[Any, list[str]] = {}
        self.names: dict[str, str] = {}

    def add(self, examples: Examples) -> None:
        """Answer more examples."""
        k = min(ANSWERS, len(getattr(self.model, "estimator", self.model).label_index_))
        labels, scores = self.model.predict_topk(examples.features, k)
        for i, truth in enumerate(examples.labels):
            true_labels = [plain(label) for label in truth]
            best = plain(labels[i, 0])
            right = None if not true_labels else best in true_labels
            if right is not None:
                self._count(true_labels, best, right)
            if len(self.kept[right]) < self.most:
                self.kept[right].append(self._row(examples, i, true_labels, labels[i], scores[i], right))

    def _row(self, examples: Examples, i: int, truth: list[Any], labels: Any, scores: Any, right: bool | None) -> _Row:
        predictions = [
            {"label": plain(label), "probability": round(float(score), 6)}
            for label, score in zip(labels, scores)
            if score > 0
        ]
        text = _as_text(examples, i)
        return _Row(examples[i : i + 1].features, text, truth, predictions, right)

    def _count(self, truth: list[Any], best: Any, right: bool) -> None:
        self.n_rows += 1
        self.n_right += right
        answered = self._path(best)
        paths = [best] if right else [label for label in truth if self._path(label)] or truth[:1]
        common = max((_common(self._path(label), answered) for label in paths), key=len)
        if not right:
            nearest = max(paths, key=lambda label: len(_common(self._path(label), answered)))
            self.confusions[nearest, best] += 1
            if common:
                self.wrong[common[-1]] += 1
        self.at.update(common)

    def _path(self, label: Any) -> list[str]:
        """Return the nodes to a label, where it is at one leaf; else none."""
        if label not in self.paths:
            try:
                found = path_of(self.model, label)["paths"] if has_tree(self.model) else []
            except ValueError:  # a label that the model does not know
                found = []
            of_tree = [path["nodes"] for path in found if path["tree"] == 0]
            nodes = of_tree[0] if len(of_tree) == 1 else []
            self.names.update({n["id"]: ", ".join(map(str, n["labels"])) + " …" * (n["n_labels"] > 3) for n in nodes})
            self.paths[label] = [node["id"] for node in nodes]
        return self.paths[label]

    def stored(self) -> list[dict[str, Any]]:
        """Return examples with their explanations: half of them with a wrong answer, if there are as many."""
        wrong, others = self.kept[False], [*self.kept[True], *self.kept[None]]
        n_wrong = min(len(wrong), max(self.most // 2, self.most - len(others)))
        rows = [*wrong[:n_wrong], *others[: self.most - n_wrong]]
        self.shown = rows
        return [self._explained(row) for row in rows]

    def _explained(self, row: _Row) -> dict[str, Any]:
        wanted = [None, *(label for label in row.truth[:3] if row.right is False)]
        explained = [found for label in wanted if (found := _explanation(self.model, row.features, label)) is not None]
        return {
            "text": row.text, "truth": row.truth, "right": row.right, "predictions": row.predictions, "explanations": explained,
        }  # fmt: skip

    def errors(self) -> dict[str, list[int]]:
        """Return the rows at every node, and how many of them take the wrong child there."""
        return {node: [n, self.wrong[node]] for node, n in self.at.items()}

    def summary(self) -> dict[str, Any] | None:
        """Return the worst nodes and the most frequent confusions; None without labelled examples."""
        if not self.n_rows:
            return None
        bad = [(node, n) for node, n in self.wrong.most_common() if self.at[node] >= LEAST_ROWS][:WORST]
        place = {(label, row.predictions[0]["label"]): i for i, row in enumerate(self.shown) if row.predictions
                 for label in row.truth if row.right is False}  # fmt: skip
        return {
            "rows": self.n_rows, "accuracy": self.n_right / self.n_rows,
            "worst": [{"id": node, "name": self.names[node], "rows": self.at[node], "wrong": n} for node, n in bad],
            "confusions": [
                {"truth": truth, "answer": answer, "n": n, "example": place.get((truth, answer))}
                for (truth, answer), n in self.confusions.most_common(WORST)
            ],
        }  # fmt: skip


def _explanation(model: Any, features: Any, label: Any) -> dict[str, Any] | None:
    """Return an explanation as a dictionary; None where the model cannot explain, or does not know the label."""
    if not hasattr(model, "explain"):
        return None
    try:
        found = model.explain(features, label=label)
    except ValueError:
        return None
    rounded: dict[str, Any] = _rounded((found[0] if isinstance(found, list) else found).to_dict())
    return rounded


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return round(value, DIGITS)
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value


def _as_text(examples: Examples, i: int) -> str:
    """Return the text of an example, or its features as pairs of column and value."""
    if examples.texts is not None:
        return examples.texts[i]
    row = sparsified(examples[i : i + 1].rows)  # type: ignore[arg-type]
    pairs = [f"{c}:{v:.4g}" for c, v in zip(row.indices[:ENTRIES_SHOWN], row.values[:ENTRIES_SHOWN])]
    return " ".join(pairs) + (" …" if len(row.indices) > ENTRIES_SHOWN else "")


def _common(first: list[str], second: list[str]) -> list[str]:
    """Return the nodes that both paths begin with."""
    n = next((i for i, (a, b) in enumerate(zip(first, second)) if a != b), min(len(first), len(second)))
    return first[:n]
