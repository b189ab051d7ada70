"""The outline of the tree for the page: node by node, the same for all models, with the nodes of explanations.

`_errors` is what `treemax serve` passes to the service.
"""

from __future__ import annotations

import json

import click
import numpy as np
import pytest

import treemax
from treemax.serving.outline import has_tree, node_outline, path_of

THINGS = ("apple", "pear", "plum", "car", "bus", "tram", "oak", "elm", "ash", "cat", "dog", "cow")
KINDS = {"fruit": THINGS[:3], "vehicle": THINGS[3:6], "tree": THINGS[6:9], "animal": THINGS[9:]}


def texts_and_labels(n_times: int = 6) -> tuple[list[str], list[str]]:
    random = np.random.default_rng(0)
    texts, labels = [], []
    for _ in range(n_times):
        for kind, things in KINDS.items():
            for thing in things:
                texts.append(f"{thing} {kind} {thing}ish {random.choice(['red', 'old', 'big'])}")
                labels.append(thing)
    return texts, labels


MODELS = {
    "label tree": lambda: treemax.LabelTree(random_state=0),
    "three label trees": lambda: treemax.LabelTree(n_trees=3, random_state=0),
    "online label tree": lambda: treemax.OnlineLabelTree(random_state=0),
    "learned tree": lambda: treemax.LearnedTree(random_state=0),
    "softmax tree": lambda: treemax.SoftmaxTree(random_state=0, depth=2),
    "softmax forest": lambda: treemax.SoftmaxForest(random_state=0, depth=2, n_trees=2),
    "recall tree": lambda: treemax.RecallTree(random_state=0, depth=2, arity=2, n_candidates=4),
    "recall tree of the paper": lambda: treemax.RecallTree(algorithm="paper", random_state=0),
    "LOM tree": lambda: treemax.LOMTree(random_state=0),
    "memory tree": lambda: treemax.ContextualMemoryTree(random_state=0),
}


@pytest.fixture(scope="module", params=MODELS)
def model(request):
    return treemax.TextModel(treemax.TfidfText(), MODELS[request.param]()).fit(*texts_and_labels())


def all_nodes(model, root="root", limit=3):
    """Every node of one tree with all its children, page by page."""
    found, waiting = {}, [root]
    for name in waiting:
        node = node_outline(model, name, 0, limit)
        while len(node["children"]) < node["n_children"]:
            more = node_outline(model, name, len(node["children"]), limit)["children"]
            assert more
            node["children"] += more
        while not node["children"] and (more := node_outline(model, name, len(node["labels"]), limit)["labels"]):
            node["labels"] += more
        found[node["id"]] = node
        waiting += [child["id"] for child in node["children"]]
    return found


def same_words(one, other):
    """Whether the words are equal, and their weights but for the rounding of sums in another order."""
    if one is None or other is None:
        return one is other
    return [word for word, _ in one] == [word for word, _ in other] and np.allclose(
        [weight for _, weight in one], [weight for _, weight in other], rtol=0, atol=2e-4
    )


def test_every_label_is_found_from_the_root(model):
    nodes = all_nodes(model)
    root = node_outline(model, "root")
    assert root["parent"] is None and root["path"] == []
    assert root["n_labels"] == len(THINGS) or isinstance(model.estimator, treemax.RecallTree)
    at_leaves = {label for node in nodes.values() if not node["children"] for label in node["labels"]}
    if isinstance(model.estimator, treemax.RecallTree):  # leaves keep the most frequent labels only
        assert at_leaves < set(THINGS)
    else:
        assert at_leaves == set(THINGS)
    for node in nodes.values():
        assert len(set(node["labels"])) == len(node["labels"]) <= node["n_labels"]
        for child in node["children"]:
            below = nodes[child["id"]]
            assert below["parent"] == node["id"] and below["path"] == [*node["path"], node["id"]]
            assert (below["n_labels"], below["rows"]) == (child["n_labels"], child["rows"])
            assert same_words(below["words"], child["words"])
            assert set(below["labels"]) <= set(node["labels"]) or node["n_labels"] > len(node["labels"])
            assert [pair[0] for pair in child["children"]] == [c["id"] for c in below["children"]][:32]


def test_rows_add_up_where_they_are_known(model):
    for node in all_nodes(model).values():
        if node["rows"] is not None and node["children"]:
            assert sum(child["rows"] for child in node["children"]) <= node["rows"]


def test_paths_lead_to_the_label(model):
    for label in THINGS:
        answer = path_of(model, label)
        assert answer["label"] == label and answer["n_paths"] >= len(answer["paths"])
        assert answer["paths"] or isinstance(model.estimator, treemax.RecallTree)
        for path in answer["paths"]:
            ids = [node["id"] for node in path["nodes"]]
            last = node_outline(model, ids[-1])
            assert label in last["labels"]
            assert last["path"] == ids[:-1] and last["tree"] == path["tree"]


def test_steps_of_explanations_are_nodes_of_the_outline(model):
    if not hasattr(model.estimator.model_, "trace"):
        pytest.skip("cannot explain")
    told = model.explain("apple fruit")
    n_steps = 0
    for path in (*told.paths, *told.routes):
        for step in path.steps:
            if step.node < 0 or "class" in step.branch or "leaf" in step.branch:
                continue  # the ranking of candidates, and labels of a leaf
            at = f"{path.tree}.{step.node}"
            children = node_outline(model, at)["children"]
            child = next(c for c in children if c["id"].rpartition(".")[2] == str(step.child))
            if step.n_labels is not None:
                assert child["n_labels"] == step.n_labels
            n_steps += 1
    may_end_at_the_root = getattr(model.estimator, "algorithm", None) == "paper"
    assert n_steps or may_end_at_the_root or len(all_nodes(model)) == 1


def test_words_have_the_weights_of_explanations():
    model = treemax.TextModel().fit(*texts_and_labels())
    root = node_outline(model)
    words = {child["id"]: dict(map(tuple, child["words"])) for child in root["children"]}
    vectorizer = model.vectorizer
    for word in ("apple", "bus", "cow"):
        told = model.explain(word)
        step, value = told.paths[0].steps[0], vectorizer.transform([word]).max()
        assert max(words[str(step.child)], key=words[str(step.child)].get) is not None
        if word in words[str(step.child)]:
            assert words[str(step.child)][word] == pytest.approx(step.added[0] / value, abs=1e-3)
    assert any(word in own for own in words.values() for word in (*THINGS, *KINDS))


def test_several_trees_have_nodes_of_their_own():
    model = treemax.TextModel(estimator=treemax.LabelTree(n_trees=3)).fit(*texts_and_labels())
    assert node_outline(model)["n_trees"] == 3
    assert [path["tree"] for path in path_of(model, "cat")["paths"]] == [0, 1, 2]
    third = all_nodes(model, "2.0")
    assert all(name.startswith("2.") for name in third)


def test_an_online_tree_shows_what_it_learned():
    model = treemax.TextModel(treemax.HashingText(), treemax.OnlineLabelTree())
    texts, labels = texts_and_labels(2)
    model.partial_fit(texts, labels)
    before = node_outline(model, "root")
    model.partial_fit(["a very new thing"], ["novelty"])
    after = node_outline(model, "root")
    assert (after["n_labels"], after["rows"]) == (before["n_labels"] + 1, before["rows"] + 1)
    assert path_of(model, "novelty")["paths"]
    assert after["words"] is None and after["children"][0]["words"] is None  # hashes have no names


def test_forgotten_labels_are_not_shown(tmp_path):
    model = treemax.TextModel().fit(*texts_and_labels())
    model.forget(["cat"])
    assert all("cat" not in node["labels"] for node in all_nodes(model).values())
    with pytest.raises(ValueError, match="no label 'cat'"):
        path_of(model, "cat")


def test_the_most_frequent_labels_are_shown():
    random = np.random.default_rng(0)
    y = np.concatenate([np.arange(400), random.zipf(1.3, 3000).clip(1, 400) - 1])
    X = np.eye(400)[y] + 0.01 * random.random((len(y), 400))
    model = treemax.LabelTree(max_leaf=8, arity=4).fit(X, y)
    counts = np.bincount(y)
    for node in all_nodes(model, limit=100).values():
        tree = model.label_tree()
        below = tree.below(int(node["id"]))[0]
        expected = np.sort(counts[below])[::-1][: len(node["labels"])]
        assert counts[node["labels"]].tolist() == expected.tolist()
        assert len(node["labels"]) == min(24, len(below)) and node["rows"] == counts[below].sum()


def test_the_same_after_a_file(tmp_path):
    model = treemax.TextModel(estimator=treemax.LabelTree(random_state=0)).fit(*texts_and_labels())
    model.save(tmp_path / "m.treemax")
    assert all_nodes(treemax.load(tmp_path / "m.treemax")) == all_nodes(model)


def test_whole_numbers_are_labels_too():
    model = treemax.LabelTree().fit(np.eye(6), [10, 20, 30, 40, 50, 60])
    assert path_of(model, "30")["label"] == 30 == path_of(model, 30)["label"]
    assert node_outline(model)["children"][0]["words"] is None


@pytest.mark.parametrize("node", ["-1", "99999", "7.0", "x", "0.0.0", "1e3", "", None, "9" * 40])
def test_unknown_nodes_are_refused(node):
    model = treemax.LabelTree().fit(np.eye(3), ["a", "b", "c"])
    with pytest.raises(ValueError, match="node"):
        node_outline(model, node)


def test_bad_pages_and_labels_are_refused():
    model = treemax.LabelTree().fit(np.eye(3), ["a", "b", "c"])
    with pytest.raises(ValueError, match="offset must be"):
        node_outline(model, "0", -1)
    with pytest.raises(ValueError, match="limit must be"):
        node_outline(model, "0", 0, -5)
    with pytest.raises(ValueError, match="no label 'd'"):
        path_of(model, "d")
    assert node_outline(model, "0", 100)["children"] == []


def test_models_without_a_tree_say_so():
    flat = treemax.OneVsAll().fit(np.eye(3), ["a", "b", "c"])
    assert not has_tree(flat) and has_tree(treemax.LabelTree())
    with pytest.raises(ValueError, match="OneVsAll has no tree"):
        node_outline(flat)


def test_nodes_have_the_error_of_test_data(tmp_path):
    from tests.serving.service import client_of, static_model
    from tests.serving.service import texts_and_labels as small
    from treemax.cli.serve import _errors

    path, data = tmp_path / "model.treemax", tmp_path / "test.jsonl"
    model = static_model(path)
    known = [(text, label) for text, label in zip(*small(50, seed=3)) if label in model.classes_]
    texts, labels = map(list, zip(*known))
    data.write_text("".join(json.dumps({"text": t, "labels": [y]}) + "\n" for t, y in zip(texts, labels)))
    errors = _errors((str(data),), {"model": str(path)})
    with client_of(models={"model": str(path)}, errors=errors) as client:
        found, waiting = {}, ["root"]
        for node in waiting:
            own = client.get("/tree", params={"node": node}).json()
            found[own["id"]] = own
            waiting += [child["id"] for child in own["children"] if not child["leaf"]]
    root = found[min(found, key=lambda node: found[node]["path"])]
    assert root["test_rows"] == len(texts)
    wrong = sum(own["error"] * own["test_rows"] for own in found.values() if own["error"] is not None)
    assert wrong == pytest.approx((model.predict(texts) != np.array(labels)).sum())
    with pytest.raises(click.UsageError, match="no model 'other'"):
        _errors((f"other={data}",), {"model": str(path)})
    with pytest.raises(click.UsageError, match="write --test NAME="):
        _errors((str(data),), {"model": str(path), "second": str(path)})
