"""Learn from a stream in which new labels keep appearing, and plot the accuracy while it runs.

    python examples/stream.py                  writes stream.png at the end
    python examples/stream.py --live           also shows the plot while the model learns

Each WordNet definition is predicted before it is learned. Needs the extra `plot`. About ten seconds.
"""

from __future__ import annotations

import sys

from matplotlib import pyplot

import treemax
from treemax.datasets import load_wordnet
from treemax.metrics.progressive import ProgressivePoint

LIVE = "--live" in sys.argv[1:]
if not LIVE:
    pyplot.switch_backend("Agg")

train, _ = load_wordnet()
stream = train[:20_000]
model = treemax.TextModel(treemax.HashingText(), treemax.OnlineLabelTree(random_state=0))

figure, (accuracy, labels) = pyplot.subplots(1, 2, figsize=(9, 3.5))
points: list[tuple[int, float, float, int]] = []


def draw() -> None:
    examples, progressive, recent, known = zip(*points)
    for axis, title in ((accuracy, "progressive P@1"), (labels, "labels known")):
        axis.clear()
        axis.set(xlabel="examples", title=title)
        axis.grid(alpha=0.3)
    accuracy.plot(examples, progressive, "o-", label="all examples")
    accuracy.plot(examples, recent, "s--", label="since the last point")
    accuracy.legend()
    labels.plot(examples, known, "o-")
    figure.tight_layout()


def report(point: ProgressivePoint) -> None:
    """Called after 1, 2, 4, 8, ... examples."""
    print(f"{point.examples:>7,} examples, P@1 {point.precision:.3f}, {point.labels_known:,} labels")
    points.append((point.examples, point.precision, point.window_precision, point.labels_known))
    if LIVE:
        draw()
        pyplot.pause(0.01)


treemax.progressive_validation(model, stream.texts, stream.y, chunk_rows=10, report=report)
draw()
figure.savefig("stream.png", dpi=120)
print("wrote stream.png")
