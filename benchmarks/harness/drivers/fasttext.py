"""fastText with a hierarchical softmax over a Huffman tree.

It gets the words of a text as the tf-idf recipe sees them (lower case, no punctuation), for it splits at spaces
only; the names of the features where there is no text. It trains from a file, so reading it is part of the time. Settings go to `train_supervised`.
"""

from __future__ import annotations

import re

ENVIRONMENT = "fasttext"
SYSTEMS = {"fasttext": {"loss": "hs", "dim": 100, "lr": 0.5, "epoch": 25}}
PREFIX = "__label__"
WORD = re.compile(r"\b\w\w+\b")


def prepare(data, settings):
    labels = (" ".join(f"{PREFIX}{label}" for label in row) for row in data.label_lists("train"))
    data.write_lines("train.fasttext", (f"{row} {text}\n" for row, text in zip(labels, _texts(data, "train"))))


def _texts(data, part):
    if data.has_text:
        return [" ".join(WORD.findall(text.lower())) for text in data.texts(part)]
    if not data.sparse:
        raise ValueError("fastText takes words, and this data set is dense")
    return [" ".join(f"f{index}" for index, _ in row) for row in data.pairs(part)]


def load(data, settings):
    return data.path("train.fasttext")


def train(path, settings, folder):
    import fasttext

    arguments = {name: value for name, value in settings.items() if name != "threads"}
    return fasttext.train_supervised(path, thread=settings["threads"], verbose=0, **arguments)


def save(model, folder):
    model.save_model(str(folder / "model.bin"))


def restore(folder, data, settings):
    import fasttext

    return fasttext.load_model(str(folder / "model.bin"))


def rows(model, data, settings):
    return _texts(data, "test")


def single(rows, i):
    return rows[i]


def predict_one(model, row, k):
    return model.predict(row, k=k)


def predict_batch(model, rows, k):
    return model.predict(rows, k=k)


def labels(answers):
    ranked, _ = answers
    return [[int(label.removeprefix(PREFIX)) for label in row] for row in ranked]


def scores(answers):
    _, probabilities = answers
    return [row[0] if len(row) else 0.0 for row in probabilities]
