"""Accuracy of TreeSigmoid beside a flat layer: `python -m benchmarks.experiments.tree_sigmoid_accuracy`.

A small network reads tf-idf rows: the weighted sum of the embeddings of their words, ReLU, dropout and the output layer.
All layers get the same network, batches, seeds and rate, and as many passes as give the best P@1 on a tenth of the
training rows, which is held out. `--prepare` writes the data to one file, with k-means clusters of the labels (balanced,
of the sums of their training rows). Training needs a GPU.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks import FOLDER
from benchmarks.experiments.tree_sigmoid import MACHINE, FlatSparse
from benchmarks.harness.output import help_if_asked, keep, store
from treemax.torch import TreeSigmoid

FILE = FOLDER / ".cache" / "labels-of-texts.npz"
SUITES = ("gcc", "builddeps")
SIZE, BATCH, PASSES = 512, 512, 10
RATE = 2e-3
SEEDS = (0, 1)
EVERY = 5  # passes between two looks at the held-out rows
MOST_LABELS = 2**20  # of a suite
METRICS = ("P@1", "P@3", "P@5")


def prepare(file: Path) -> None:
    """Write rows, labels and clusters of labels of the suites."""
    from benchmarks.harness.measure import Data
    from benchmarks.harness.suites import prepared
    from treemax.inputs.labels import Targets
    from treemax.inputs.rows import SparseRows
    from treemax.trees import kmeans_tree
    from treemax.trees.kmeans import label_vectors

    arrays: dict[str, Any] = {}
    for suite in SUITES:
        data = Data(prepared(suite))
        for part in ("train", "test"):
            (values, indices, starts), _ = data.csr(part)
            labels, label_starts = data.labels(part)
            arrays |= {f"{suite}/{part}/values": values.astype(np.float16), f"{suite}/{part}/columns": indices}
            arrays |= {f"{suite}/{part}/starts": starts, f"{suite}/{part}/labels": labels}
            arrays[f"{suite}/{part}/label_starts"] = label_starts
        (values, indices, starts), shape = data.csr("train")
        labels, label_starts = data.labels("train")
        rows = SparseRows(starts.astype(np.int64), indices.astype(np.uint32), values, shape[1])
        targets = Targets(label_starts.astype(np.int64), labels.astype(np.uint32))
        arity = math.isqrt(data.n_labels - 1) + 1
        tree = kmeans_tree(label_vectors(rows, targets, data.n_labels), arity=arity, max_leaf=arity)
        arrays[f"{suite}/sizes"] = np.array([data.n_features, data.n_labels])
        arrays[f"{suite}/clusters"] = tree.parent[np.argsort(tree.label)[-data.n_labels :]]
    file.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(file, **arrays)


class Part:
    """Rows on the GPU: their words, weights and labels, as flat arrays."""

    def __init__(self, stored: Any, name: str) -> None:
        def tensor(array: str, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.from_numpy(
                stored[f"{name}/{array}"].astype(np.float32 if dtype.is_floating_point else np.int64)
            ).cuda()

        self.columns, self.values = tensor("columns"), tensor("values", torch.float32)
        self.starts, self.labels, self.label_starts = tensor("starts"), tensor("labels"), tensor("label_starts")

    def __len__(self) -> int:
        return len(self.starts) - 1

    def words(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Words, where rows begin among them, and weights, as `nn.EmbeddingBag` takes them."""
        at, starts = gathered(self.starts, rows)
        return self.columns[at], starts, self.values[at]

    def labels_of(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Labels, and where rows begin among them, as `TreeSigmoid` takes them."""
        at, starts = gathered(self.label_starts, rows)
        return self.labels[at], starts


def gathered(starts: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Where the entries of some rows are, and where each row begins among them."""
    counts = starts[rows + 1] - starts[rows]
    first = counts.cumsum(0) - counts
    at = torch.arange(int(counts.sum()), device=rows.device)
    return at + torch.repeat_interleave(starts[rows] - first, counts), first


def rows_of(labels: Tensor, starts: Tensor) -> Tensor:
    """The row of each label."""
    return torch.searchsorted(starts, torch.arange(len(labels), device=labels.device), right=True) - 1


class Flat(FlatSparse):
    """The flat layer, whose biases begin at the log-odds of the labels."""

    def __init__(self, n_labels: int, odds: Tensor) -> None:
        super().__init__(SIZE, n_labels)
        self.linear.bias.data.copy_(odds)

    def forward(self, hidden: Tensor, target: tuple[Tensor, Tensor]) -> Tensor:
        logits, (labels, starts) = self.linear(hidden), target
        of_labels = logits[rows_of(labels, starts), labels].sum(dtype=torch.float32)
        return (nn.functional.softplus(logits).sum(dtype=torch.float32) - of_labels) / len(hidden)

    def top5(self, hidden: Tensor) -> Tensor:
        return self.topk(hidden, 5)


class Tree(TreeSigmoid):
    def top5(self, hidden: Tensor) -> Tensor:
        return self.topk(hidden, 5)[1]


class Network(nn.Module):
    """Embeddings of words, and an output layer that gives the loss."""

    def __init__(self, n_features: int, output: nn.Module) -> None:
        super().__init__()
        self.embedding = nn.EmbeddingBag(n_features, SIZE, mode="sum")
        nn.init.normal_(self.embedding.weight, std=0.1)
        self.dropout, self.output = nn.Dropout(0.3), output

    def hidden(self, part: Part, rows: Tensor) -> Tensor:
        words, starts, weights = part.words(rows)
        return self.dropout(torch.relu(self.embedding(words, starts, per_sample_weights=weights)))

    def forward(self, part: Part, rows: Tensor) -> Tensor:
        return self.output(self.hidden(part, rows), part.labels_of(rows))


@torch.no_grad()
def precision(model: Network, part: Part, rows: Tensor) -> dict[str, float]:
    """P@1, P@3 and P@5 of some rows."""
    model.eval()
    hits = []
    for some in rows.split(1_000):
        labels, starts = part.labels_of(some)
        row = rows_of(labels, starts)
        answers = model.output.top5(model.hidden(part, some))
        of_row = torch.arange(len(some), device=labels.device)[:, None] * MOST_LABELS
        hits.append(torch.isin(of_row + answers, row * MOST_LABELS + labels).float())
    model.train()
    found = torch.cat(hits)
    return {f"P@{k}": float(found[:, :k].mean()) for k in (1, 3, 5)}


def trained(output: Callable[[], nn.Module], n_features: int, parts: dict[str, Part], seed: int) -> Any:
    """The figures after every `EVERY` passes, with the seconds of training until then and the most memory."""
    torch.manual_seed(seed)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    model = Network(n_features, output()).cuda()
    order = torch.from_numpy(np.random.default_rng(0).permutation(len(parts["train"]))).cuda()
    held_out, rows = order[: len(order) // 10], order[len(order) // 10 :]
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE, fused=True)
    found, seconds = [], 0.0
    steps = PASSES * math.ceil(len(rows) / BATCH)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / 100) * (1 - step / steps))
    for done in range(1, PASSES + 1):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for some in rows[torch.randperm(len(rows), device="cuda")].split(BATCH):
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = model(parts["train"], some)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
            schedule.step()
        torch.cuda.synchronize()
        seconds += time.perf_counter() - began
        if done % EVERY == 0:
            everything = torch.arange(len(parts["test"]), device="cuda")
            test = precision(model, parts["test"], everything)
            found.append(
                {"passes": done, "seconds": seconds, "held-out": precision(model, parts["train"], held_out), **test}
            )
    return {"gb": torch.cuda.max_memory_allocated() / 2**30, "marks": found}


def layers(n_labels: int, clusters: np.ndarray, counts: np.ndarray, n_rows: int) -> dict[str, Callable[[], nn.Module]]:
    """Name -> what makes the layer."""
    shares = torch.from_numpy((counts + 0.5) / (n_rows + 1))
    direct = np.argsort(-counts, kind="stable")[: 4 * math.isqrt(n_labels)]
    with_direct = np.unique(clusters, return_inverse=True)[1]
    with_direct[direct] = -1
    return {
        "flat": lambda: Flat(n_labels, torch.logit(shares).float()),
        "TreeSigmoid()": lambda: Tree(SIZE, n_labels),
        "TreeSigmoid(structure=clusters)": lambda: Tree(SIZE, n_labels, structure=clusters),
        "TreeSigmoid(structure=clusters, counts=...)": lambda: Tree(SIZE, n_labels, structure=clusters, counts=counts),
        "the same, frequent labels below the root": lambda: Tree(SIZE, n_labels, structure=with_direct, counts=counts),
    }


def main() -> None:
    help_if_asked(__doc__)
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--prepare", action="store_true")
    parser.add_argument("--file", type=Path, default=FILE)
    options = parser.parse_args()
    if options.prepare:
        prepare(options.file)
        return
    torch.set_float32_matmul_precision("high")
    stored = np.load(options.file)
    rows = []
    for suite in SUITES:
        parts = {part: Part(stored, f"{suite}/{part}") for part in ("train", "test")}
        n_features, n_labels = map(int, stored[f"{suite}/sizes"])
        counts = np.bincount(stored[f"{suite}/train/labels"], minlength=n_labels)
        for name, output in layers(n_labels, stored[f"{suite}/clusters"], counts, len(parts["train"])).items():
            runs = [trained(output, n_features, parts, seed) for seed in SEEDS]
            ends = [max(run["marks"], key=lambda mark: mark["held-out"]["P@1"]) for run in runs]
            means = [float(np.mean([end[metric] for end in ends])) for metric in METRICS]
            apart = float(np.ptp([end["P@1"] for end in ends]))
            seconds = float(np.mean([end["seconds"] for end in ends]))
            passes = float(np.mean([end["passes"] for end in ends]))
            rows.append([suite, name, *means, apart, passes, seconds, runs[0]["gb"]])
            print(rows[-1], flush=True)
            keep("tree_sigmoid_accuracy", rows)
    store(
        "tree-softmax",
        "several-labels-accuracy",
        title="Accuracy with several labels a row",
        shows=(
            f"A network with one hidden layer of {SIZE} on tf-idf rows, trained on nine tenths of the training rows; test rows, "
            f"means of {len(SEEDS)} seeds, and how far their P@1 are apart. The flat layer is trained with binary cross-entropy; "
            "clusters are those of k-means of the labels' rows. The number of passes is the better on the other tenth."
        ),
        columns=[
            "suite", "layer", *({"name": metric, "decimals": 4} for metric in METRICS), {"name": "P@1 apart", "decimals": 4},
            {"name": "passes", "decimals": 1}, {"name": "training s", "decimals": 1}, {"name": "peak GB", "decimals": 1},
        ],
        rows=rows,
        machine=MACHINE,
    )  # fmt: skip


if __name__ == "__main__":
    main()
