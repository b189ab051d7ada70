"""Vowpal Wabbit: its multi-class reductions and its label tree.

It reads its own text format, so parsing is part of its training time (several passes go through its binary
cache). In prediction the batch is parsed beforehand, and one at a time is a line of text, as its users do it.
"""

from __future__ import annotations

import math

ENVIRONMENT = "vowpalwabbit"
SYSTEMS = {
    "vw-oaa": {"reduction": "oaa", "passes": 1},
    "vw-recall-tree": {"reduction": "recall_tree", "passes": 1},
    "vw-log-multi": {"reduction": "log_multi", "passes": 1},
    "vw-memory-tree": {"reduction": "memory_tree", "passes": 1},
    "vw-plt": {"reduction": "plt", "passes": 3, "kary": 16},
}
MOST_BITS = 27  # 2^27 weights are 2 GB, of which only what is used is taken


def prepare(data, settings):
    if settings["reduction"] == "plt":
        labels = (",".join(map(str, row)) for row in data.label_lists("train"))
        data.write_lines("train.plt.vw", _lines(labels, data, "train"))
    else:
        labels = (str(label + 1) for label in data.classes("train"))
        data.write_lines("train.vw", _lines(labels, data, "train"))
    # No labels in the test file: some reductions would peep at them.
    data.write_lines("test.vw", _lines(("" for _ in range(data.n_rows("test"))), data, "test"))


def _lines(labels, data, part):
    for label, pairs in zip(labels, data.pairs(part)):
        yield f"{label} | " + " ".join(f"{index}:{value:.6g}" for index, value in pairs if value) + "\n"


def load(data, settings):
    return data


def train(data, settings, folder):
    import vowpalwabbit

    file = "train.plt.vw" if settings["reduction"] == "plt" else "train.vw"
    options = [*_options(data, settings), "-d", data.path(file), "-f", str(folder / "model.vw"), "--quiet"]
    cache = folder / "cache"
    if settings["passes"] > 1:
        options += ["--passes", str(settings["passes"]), "--cache_file", str(cache), "--holdout_off"]
    workspace = vowpalwabbit.Workspace(arg_list=options)
    workspace.finish()
    cache.unlink(missing_ok=True)


def _options(data, settings):
    """The command line of a reduction, with the settings VW's documentation gives for it."""
    reduction, n_labels = settings["reduction"], data.n_labels
    options = {
        "oaa": ["--oaa", n_labels],
        "recall_tree": ["--recall_tree", n_labels],
        "log_multi": ["--log_multi", n_labels],
        "memory_tree": [
            *("--memory_tree", max(2, n_labels), "--max_number_of_labels", n_labels),
            *("--leaf_example_multiplier", 4, "--online", "--dream_repeats", 3),
        ],
        "plt": ["--plt", n_labels, "--kary_tree", settings.get("kary", 2), "--loss_function", "logistic"],
    }[reduction]
    bits = math.ceil(math.log2((data.n_features + 1) * n_labels)) + 2
    options += ["-b", settings.get("bits", max(18, min(MOST_BITS, bits)))]
    extra = settings.get("options", "")  # e.g. vw-recall-tree:options=--learning_rate 2
    return [str(option) for option in options] + extra.split()


def save(model, folder):
    """`-f` has done it."""


def restore(folder, data, settings):
    import vowpalwabbit

    options = ["-i", str(folder / "model.vw"), "--quiet"]
    if settings["reduction"] != "memory_tree":  # reloaded with -t it predicts nonsense
        options.append("-t")
    if settings["reduction"] == "plt":
        options += ["--loss_function", "logistic", "--top_k", "5"]  # the model file does not keep the loss
    return vowpalwabbit.Workspace(arg_list=options)


def rows(workspace, data, settings):
    lines = (data.folder / "test.vw").read_text().splitlines()
    return lines, [workspace.parse(line) for line in lines]


def single(rows, i):
    lines, _ = rows
    return lines[i]


def predict_one(workspace, line, k):
    return workspace.predict(line)


def predict_batch(workspace, rows, k):
    _, examples = rows
    return [workspace.predict(example) for example in examples]


def labels(answers):
    """Classes count from 1, the labels of the tree from 0."""
    return [answer if isinstance(answer, list) else [answer - 1] for answer in answers]
