"""Tag texts with several labels each: train, tag, measure, and look at single answers.

    python examples/tags.py

Each WordNet definition gets two tags: its part of speech and what it is a kind of. About ten seconds.
"""

from __future__ import annotations

import treemax
from treemax.datasets import load_wordnet
from treemax.metrics import evaluate


def tags(label: str) -> list[str]:
    """The tags of a text: 'noun:03825135:net' has the tags 'noun' and 'net'."""
    part_of_speech, _, name = label.split(":")
    return [part_of_speech, name]


train, test = load_wordnet()
y_train, y_test = ([tags(label) for label in part.y] for part in (train, test))

model = treemax.TextModel(treemax.TfidfText(), treemax.LabelTree(random_state=0))
model.fit(train.texts, y_train)

texts = ["a river in Africa", "to move very fast on foot", "having the colour of the sky"]
for text, found in zip(texts, model.predict(texts)):
    print(f"{text}: {', '.join(found)}")

# `predict` returns the tags above a threshold that was chosen on held-out rows; `predict_topk` ranks the best ones.
print(f"threshold: {model.estimator.threshold_:.2f}")
figures = evaluate(y_test, model.predict_topk(test.texts, k=5))
print(f"P@1 {figures['P@1']:.3f}, P@3 {figures['P@3']:.3f}, recall@5 {figures['recall@5']:.3f}")
