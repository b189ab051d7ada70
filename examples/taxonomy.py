"""Use your own taxonomy as the tree of a model, and see which branch a text takes.

    python examples/taxonomy.py

The tree has the parts of speech of WordNet's labels below its root. About ten seconds.
"""

from __future__ import annotations

import treemax
from treemax.datasets import load_wordnet

train, test = load_wordnet()
taxonomy: dict[str, list[str]] = {}  # the name of a node, and its labels
for label in sorted(set(train.y.tolist())):
    taxonomy.setdefault(label.split(":")[0], []).append(label)
print({name: len(labels) for name, labels in taxonomy.items()})

own = treemax.TextModel(treemax.TfidfText(), treemax.LabelTree(tree=taxonomy, random_state=0))
learned = treemax.TextModel(treemax.TfidfText(), treemax.LabelTree(random_state=0))
for name, model in (("own taxonomy", own), ("clustered labels", learned)):
    model.fit(train.texts, train.y)
    print(f"{name}: {model.score(test.texts, test.y):.3f} right")

print(treemax.show_tree(own, depth=1, labels=3))
for text in ("to move very fast on foot", "a person who plays the violin"):
    label = own.predict([text])[0]
    print(f"{text}: {' > '.join(label.split(':')[::2])}")
