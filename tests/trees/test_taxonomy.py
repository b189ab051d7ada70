"""Taxonomies: labels at any node, several parents, depths, distances and files."""

import copy
import json
import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treemax import Taxonomy
from treemax.formats import FormatError
from treemax.inputs.labels import LabelIndex
from treemax.trees import complete_tree, hierarchy_arrays, hierarchy_from_arrays, tree_of, with_names

WHALES = [("animal", "mammal"), ("mammal", "whale"), ("sea", "whale"), ("sea", "kelp"), ("mammal", "cat")]


@st.composite
def graphs(draw):
    """The parents of the nodes of a DAG, in an order of nodes that says nothing."""
    n = draw(st.integers(1, 14))
    names = draw(st.permutations(range(n)))
    return {
        names[i]: [names[j] for j in sorted(draw(st.sets(st.integers(0, i - 1), max_size=3)))] if i else []
        for i in range(n)
    }


def edges_of(parents):
    return [(parent, child) for child, above in parents.items() for parent in above]


def paths(parents, node):
    """All paths from a node up to a node without parents."""
    if not parents[node]:
        return [[node]]
    return [[node, *path] for parent in parents[node] for path in paths(parents, parent)]


def distance(parents, one, other):
    """The shortest way up and down, through a root above all."""
    ways = [([*a, "root"], [*b, "root"]) for a in paths(parents, one) for b in paths(parents, other)]
    return min(a.index(x) + b.index(x) for a, b in ways for x in a if x in b)


@settings(max_examples=60, deadline=None)
@given(graphs())
def test_any_graph(parents):
    edges = edges_of(parents)
    taxonomy = Taxonomy(edges)
    known = {name for edge in edges for name in edge}
    assert set(taxonomy.names) == known and len(taxonomy) == len(known)
    for name in known:
        own = paths(parents, name)
        assert taxonomy.depth(name) == max(map(len, own))
        assert set(taxonomy.ancestors(name)) == {node for path in own for node in path[1:]}
        assert taxonomy.parents(name) == parents[name]
        assert all(taxonomy.depth(above) < taxonomy.depth(name) for above in taxonomy.ancestors(name))
        assert name in taxonomy.level(taxonomy.depth(name))
        for other in known:
            assert taxonomy.distance(name, other) == distance(parents, name, other)
    again = Taxonomy(hierarchy_from_arrays(hierarchy_arrays(taxonomy)))
    assert again.names == taxonomy.names and np.array_equal(again.edges, taxonomy.edges)


@settings(max_examples=40, deadline=None)
@given(graphs(), st.data())
def test_names_that_are_removed(parents, data):
    """Children of nodes without a name get the nearest ancestors that have one."""
    gone = data.draw(st.sets(st.sampled_from(sorted(parents))))
    found = with_names(edges_of(parents), dict.fromkeys(gone))
    taxonomy = Taxonomy(found)
    before = Taxonomy(edges_of(parents))
    assert not gone & set(taxonomy.names)
    for name in taxonomy.names:
        assert set(taxonomy.ancestors(name)) == set(before.ancestors(name)) - gone


def test_several_parents():
    taxonomy = Taxonomy(WHALES)
    assert repr(taxonomy) == "Taxonomy of 6 nodes on 3 levels"
    assert taxonomy.level(1) == ["animal", "sea"] and taxonomy.level(4) == []
    assert taxonomy.children("mammal") == ["whale", "cat"]
    assert taxonomy.parents("whale") == ["mammal", "sea"]
    assert taxonomy.distance("whale", "kelp") == 2 and taxonomy.distance("cat", "kelp") == 5
    with pytest.raises(ValueError, match="'dog' is not in the taxonomy"):
        taxonomy.depth("dog")
    nested = Taxonomy({"animal": {"mammal": ["whale", "cat"]}, "sea": ["whale", "kelp"]})
    assert set(nested.names) == set(taxonomy.names) and nested.ancestors("whale") == taxonomy.ancestors("whale")
    for twin in (copy.deepcopy(taxonomy), pickle.loads(pickle.dumps(taxonomy)), Taxonomy(taxonomy)):
        assert twin.names == taxonomy.names and twin.distance("cat", "kelp") == 5


def test_a_model_takes_the_first_parent():
    labels = LabelIndex(["cat", "kelp", "whale"])
    for hierarchy in (WHALES, Taxonomy(WHALES), {"animal": {"mammal": ["whale", "cat"]}, "sea": ["whale", "kelp"]}):
        tree = tree_of(hierarchy, labels)
        assert tree.parent[tree.leaf_of[0]] == tree.parent[tree.leaf_of[2]] != tree.parent[tree.leaf_of[1]]
    other = tree_of(sorted(WHALES, reverse=True), labels)
    assert other.parent[other.leaf_of[1]] == other.parent[other.leaf_of[2]]


@pytest.mark.parametrize(
    ("hierarchy", "words"),
    [
        ([("a", "b"), ("b", "c"), ("c", "a"), ("x", "a"), ("c", "y")], r"cycle through '[abc]'"),
        ([("a", "a")], "cycle through 'a'"),
        (complete_tree(5, 2, 2), "needs names"),
        ([("a", 1.5)], "strings or integers"),
        (7, "got int"),
    ],
)
def test_what_is_no_taxonomy(hierarchy, words):
    with pytest.raises(ValueError, match=words):
        Taxonomy(hierarchy)


def test_files(tmp_path):
    lines, nested = tmp_path / "edges.tsv", tmp_path / "nested.json"
    lines.write_text("animal\tcat\r\n\nanimal\tdog\npet\tdog\n")
    nested.write_text(json.dumps({"animal": {"cat": {}, "dog": {}}, "pet": ["dog"]}))
    for path in (lines, nested):
        assert Taxonomy.from_file(path).ancestors("dog") == ["animal", "pet"]
    nested.write_text(json.dumps([["animal", "1"], ["animal", 2]]))
    assert Taxonomy.from_file(nested).names == ["animal", "1", 2]
    assert Taxonomy.from_file(nested, integers=True).names == ["animal", 1, 2]
    nested.write_text(json.dumps({"1": "animal", "2": "animal", "-3": None}))
    assert set(Taxonomy.from_file(nested, integers=True).names) == {"animal", 1, 2, -3}
    lines.write_text("7\t1\n7\t2\n")
    assert Taxonomy.from_file(lines, integers=True).names == [7, 1, 2]
    for path, text, words in [
        (lines, "a\tb\na b\n", r"edges.tsv:2: expected parent, tab, child, got 'a b'"),
        (nested, "{", "nested.json: is not JSON"),
    ]:
        path.write_text(text)
        with pytest.raises(FormatError, match=words):
            Taxonomy.from_file(path)
    lines.write_bytes(b"\xff\xfe\t\xff\n")
    with pytest.raises(FormatError, match="UTF-8"):
        Taxonomy.from_file(lines)


def test_deep_and_wide():
    deep = Taxonomy([(i, i + 1) for i in range(1000)])
    assert deep.n_levels == 1001 and deep.distance(0, 1000) == 1000
    assert len(deep.ancestors(1000)) == 1000
    empty = Taxonomy([])
    assert len(empty) == 0 and empty.n_levels == 0 and len(empty.above.nodes) == 0
