"""Answer at the level of a taxonomy that a model is sure of, and judge such answers.

    python examples/taxonomy.py

The taxonomy has the parts of speech of WordNet's labels above them. About ten seconds.
"""

from __future__ import annotations

import treemax
from treemax.datasets import load_wordnet
from treemax.metrics import HierarchicalScores

train, test = load_wordnet()
pairs = [(label.split(":")[0], label) for label in sorted(set(train.y.tolist()))]  # (parent, child)
taxonomy = treemax.Taxonomy(pairs)
print(taxonomy, taxonomy.level(1))

own = treemax.TextModel(treemax.TfidfText(), treemax.LabelTree(tree=taxonomy, random_state=0))
learned = treemax.TextModel(treemax.TfidfText(), treemax.LabelTree(random_state=0))
for name, model in (("own taxonomy", own), ("clustered labels", learned)):
    model.fit(train.texts, train.y)
    print(f"{name}: {model.score(test.texts, test.y):.3f} right")

learned.set_taxonomy(taxonomy)  # whatever its own tree is
texts, y = test.texts[:1000], test.y[:1000]
for confidence in (0.0, 0.5, 0.9):
    scores = HierarchicalScores(taxonomy)
    scores.update(y, learned.predict_backoff(texts, confidence).labels)
    print(confidence, {name: round(value, 3) for name, value in scores.result().items()})

for text in ("to move very fast on foot", "a person who plays the violin", "it is"):
    parts = learned.predict_levels([text], k=1)
    answer = learned.predict_backoff([text], confidence=0.3).labels[0]
    print(f"{text}: {parts[0].labels[0, 0]}, {answer}")
