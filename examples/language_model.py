"""Train a language model with a learned tree over the words, and let it continue a text.

    python examples/language_model.py

The texts are WordNet definitions. About a minute.
"""

from __future__ import annotations

import treemax
from treemax.datasets import load_wordnet

train, test = load_wordnet()
model = treemax.TreeLanguageModel(random_state=0)
model.fit(train.texts[:10_000])
print(f"perplexity of new texts: {model.perplexity(test.texts[:2000]):.0f}")

for text in model.sample(3, beginning="a small", max_words=15, random_state=0):
    print(text)
labels, scores = model.predict_topk(["a person who"], k=5)
print("a person who ...", ", ".join(f"{word} {score:.2f}" for word, score in zip(labels[0], scores[0])))
