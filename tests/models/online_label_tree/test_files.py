"""Online trees to a file and back, damaged on the way.

The arrays of a tree are read and written by private methods, to build damaged trees.
"""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.models.online_label_tree.reference import as_arrays, random_stream
from tests.models.online_label_tree.trees import (
    LANES,
    PLAIN,
    assert_same_classifiers,
    assert_sound,
    copied,
    grown,
    growths,
    nested,
    streams,
    taught,
)
from treemax.models.online_label_tree.model import OnlineTree
from treemax.models.online_label_tree.training import empty_tree


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(growths(), streams(), st.integers(0, 70))
def test_stopped_and_continued_is_never_stopped(how, stream, cut):
    rows, targets, one_label = stream
    whole = grown(rows, targets, how, one_label)
    tree = taught(empty_tree(one_label, how, 7), rows[:cut], targets[:cut], how)
    tree.reserve_labels(len(whole.leaf_of))
    tree = taught(copied(tree, how), rows[cut:], targets[cut:], how, seen=min(cut, len(rows)))
    assert_sound(tree, how)
    assert_same_classifiers(whole, tree)
    assert nested(whole) == nested(tree)
    assert whole.random_state == tree.random_state
    np.testing.assert_array_equal(whole.probabilities(rows), tree.probabilities(rows))


@settings(deadline=None, max_examples=20)
@given(growths(), streams())
def test_without_the_learning_state_answers_are_the_same(how, stream):
    rows, targets, one_label = stream
    tree = grown(rows, targets, how, one_label)
    light = copied(tree, how, resume=False)
    assert not light.has_squares
    np.testing.assert_array_equal(tree.probabilities(rows), light.probabilities(rows))
    assert_sound(taught(light, rows, targets, how), how)


@pytest.mark.parametrize("policy", ["best-greedy", "complete"])
def test_files_of_earlier_versions_with_sixteen_lanes_everywhere(policy):
    how = replace(PLAIN, policy=policy, arity=2, max_leaf=3)
    stream = as_arrays(random_stream(4, n_rows=60, n_labels=40))
    tree = grown(*stream, how, False)
    arrays = {name: array.copy() for name, array in tree._arrays(resume=True).items()}
    grows = arrays["lanes"] != (1 << arrays["used"]) - 1
    arrays["lanes"][grows] = 0xFFFF
    for block in np.flatnonzero(grows):  # all free lanes were alike
        for name in ("bias", "bias_squares"):
            own = arrays[name][block * LANES : (block + 1) * LANES]
            own[arrays["used"][block] :] = own[arrays["used"][block]]
    earlier = OnlineTree._from_arrays(arrays, False, len(tree.leaf_of), tree.random_state, how.growth)
    assert (earlier.blocks.width[: tree.n_blocks] == 16).any() and not (tree.blocks.width[: tree.n_blocks] == 16).any()
    assert_same_classifiers(tree, earlier)
    more = as_arrays(random_stream(5, n_rows=60, n_labels=60))
    assert_same_classifiers(taught(tree, *more, how), taught(earlier, *more, how))
    assert_sound(earlier, how)


def small_model():
    """Blocks of every kind: a chain, an open one, a closed one, one that has no child yet."""
    how = replace(PLAIN, arity=2, max_leaf=17)
    stream = [([(f, 1.0 + f) for f in range(label % 7, 12)], [label]) for label in range(18)]
    tree = grown(*as_arrays(stream + stream), how, False)
    assert tree.blocks.used[: tree.n_blocks].tolist() == [1, 16, 1, 2, 0]
    return tree, how


def changed(**changes):
    """A way to damage arrays: each named array becomes what its function makes of it."""

    def damage(arrays):
        for name, change in changes.items():
            arrays[name] = change(arrays[name].copy())

    return damage


def with_entry(at, value):
    def put(array):
        array[at] = value
        return array

    return put


def without(name):
    def damage(arrays):
        del arrays[name]

    return damage


NAMES = ("label", "owner", "used", "lanes", "child", "filled", "bias", "bias_squares", "features", "weights", "squares")
DAMAGE = {
    **{f"no {name}": without(name) for name in NAMES},
    **{f"empty {name}": changed(**{name: lambda a: a[:0]}) for name in NAMES},
    **{f"short {name}": changed(**{name: lambda a: a[:-1]}) for name in NAMES},
    **{f"long {name}": changed(**{name: lambda a: np.append(a, a[-1:])}) for name in NAMES},
    **{f"other type of {name}": changed(**{name: lambda a: a.astype(np.float64)}) for name in NAMES},
    **{f"two dimensions of {name}": changed(**{name: lambda a: a[:, None]}) for name in NAMES},
    "weights and squares empty": changed(weights=lambda a: a[:0], squares=lambda a: a[:0]),
    "counts that wrap around": changed(filled=lambda a: np.r_[[2**62] * 4, a[4:] * 0], features=lambda a: a[:0]),
    "negative counts": changed(filled=lambda a: a - a.max() * (np.arange(len(a)) == 0)),
    "a label twice": changed(label=lambda a: np.where(a == 3, 4, a)),
    "a label too many": changed(label=lambda a: np.where(a == a.max(), 10**6, a)),
    "an inner node with a label": changed(label=with_entry(0, 3)),
    "a leaf without": changed(label=lambda a: np.where(a == 3, -1, a)),
    "a child twice": changed(child=with_entry(2, 1)),
    "a child outside": changed(child=with_entry(2, 10**6)),
    "a negative child": changed(child=with_entry(2, -1)),
    "an owner outside": changed(owner=with_entry(1, 10**6)),
    "two roots": changed(owner=with_entry(1, -1)),
    "a circle": changed(owner=lambda a: np.where(a == 0, a[2], a)),
    "a block overfull": changed(used=lambda a: a + 17 * (a == 16)),
    "no lanes": changed(lanes=lambda a: a * np.uint32(0)),
    "lanes of nobody": changed(lanes=lambda a: np.where(a == 0xFFFF, a, a << np.uint32(1)).astype(np.uint32)),
    "all closed": changed(lanes=lambda a: np.full_like(a, 1)),
    "a feature twice": changed(features=lambda a: a * 0),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_arrays_are_refused(damage):
    tree, how = small_model()
    arrays = tree._arrays(resume=True)
    DAMAGE[damage](arrays)
    with pytest.raises(ValueError):
        OnlineTree._from_arrays(arrays, False, len(tree.leaf_of), 0, how.growth)


NAMES_OF_ROUNDED = ("filled", "steps", "masks", "codes", "offsets")
DAMAGE_OF_ROUNDED = {
    **{f"no {name}": without(name) for name in NAMES_OF_ROUNDED},
    **{f"empty {name}": changed(**{name: lambda a: a[:0]}) for name in NAMES_OF_ROUNDED},
    **{f"short {name}": changed(**{name: lambda a: a[:-1]}) for name in NAMES_OF_ROUNDED},
    **{f"long {name}": changed(**{name: lambda a: np.append(a, a[-1:])}) for name in NAMES_OF_ROUNDED},
    **{f"other type of {name}": changed(**{name: lambda a: a.astype(np.float64)}) for name in NAMES_OF_ROUNDED},
    "a step that does not end": changed(steps=lambda a: a | np.uint8(0x80)),
    "a feature twice": changed(steps=lambda a: a * np.uint8(0)),
    "a feature too large": changed(steps=lambda a: np.r_[np.array([255, 255, 255, 255, 15], np.uint8), a[1:]]),
    "a mask of nothing": changed(masks=with_entry(3, 0)),
    "a mask of nobody": changed(masks=lambda a: np.full_like(a, 0xFFFF)),
    "a code of zero": changed(codes=with_entry(3, 0x80)),
    "an infinite weight": changed(offsets=with_entry(1, 369)),
}


@pytest.mark.parametrize("damage", DAMAGE_OF_ROUNDED)
def test_damaged_rounded_weights_are_refused(damage):
    tree, how = small_model()
    arrays = {name.removeprefix("tree/"): array for name, array in tree.to_rounded_parts()[1].items()}
    DAMAGE_OF_ROUNDED[damage](arrays)
    with pytest.raises(ValueError):
        OnlineTree._from_arrays(arrays, False, len(tree.leaf_of), 0, how.growth)


def test_rounded_weights_are_close_and_small_ones_are_gone():
    tree, how = small_model()
    arrays = {name.removeprefix("tree/"): array for name, array in tree.to_rounded_parts()[1].items()}
    loaded = OnlineTree._from_arrays(arrays, False, len(tree.leaf_of), 0, how.growth)
    dropped = 0
    for node in range(tree.n_nodes):
        (weights, bias), (rounded, same_bias) = tree.classifier(node), loaded.classifier(node)
        assert rounded.keys() <= weights.keys() and bias == same_bias
        assert all(abs(rounded[f] - weights[f]) <= abs(weights[f]) / 32 for f in rounded)
        gone = [abs(weights[f]) for f in weights.keys() - rounded.keys()]
        dropped += len(gone)
        assert max(gone, default=0) <= max(map(abs, weights.values()), default=0)
    assert dropped > 0
    again = loaded.to_rounded_parts()[1]
    for name, array in arrays.items():
        np.testing.assert_array_equal(again[f"tree/{name}"], array)


def test_a_tree_that_another_policy_could_not_extend_is_refused():
    tree, how = small_model()
    arrays = tree._arrays(resume=True)
    for policy in ("complete", "one-level"):
        growth = replace(how, policy=policy).growth
        with pytest.raises(ValueError, match="no lane free"):
            OnlineTree._from_arrays(arrays, False, len(tree.leaf_of), 0, growth)


BOUNDS = """
import sys
from dataclasses import replace
import numpy as np
from tests.fuzz.mutations import with_changed_number
from tests.models.online_label_tree.reference import as_arrays, random_stream
from treemax.models.online_label_tree.model import OnlineTree
from treemax.models.online_label_tree.training import POLICIES, OnlineTreeSettings, empty_tree, learn, add_missing_leaves

def use(tree, rows, targets, how):
    tree.reserve_labels(int(targets.ids.max()) + 2)
    for _ in learn(tree, rows, targets, [np.arange(len(rows), dtype=np.uint32)], how, 10):
        pass
    add_missing_leaves(tree, how)
    for k in (1, 3, 200):
        for ids, _ in (tree.top_k(rows, k), tree.top_k(rows, k, 3)):
            assert ids.max() < len(tree.leaf_of)
    assert np.isfinite(tree.probabilities(rows)).all()
    return tree

random = np.random.RandomState(int(sys.argv[1]))
accepted = 0
for number in range(int(sys.argv[2])):
    how = OnlineTreeSettings(sorted(POLICIES)[number % 5], int(random.choice((2, 3, 16, 17))), int(random.choice((2, 5, 16, 17))), 0.75,
                   bool(random.randint(2)), "adagrad", 1.0, 0.01, 0.0)
    one_label = bool(random.randint(2))
    stream = random_stream(number, n_rows=20, n_labels=25 if number % 3 else 70, n_features=9, one_label=one_label)
    rows, targets = as_arrays(stream)
    tree = use(empty_tree(one_label, how, number), rows, targets, how)
    arrays = dict(tree._arrays(resume=bool(random.randint(2))))
    for _ in range(random.randint(1, 4)):
        name = sorted(arrays)[random.randint(len(arrays))]
        arrays[name] = with_changed_number(arrays[name], random)
    try:
        tree = OnlineTree._from_arrays(arrays, one_label, len(tree.leaf_of), 0, how.growth)
    except ValueError:
        continue
    accepted += 1
    with np.errstate(all="ignore"):
        use(tree, *as_arrays(random_stream(number + 1, n_rows=20, n_labels=90, n_features=30, one_label=one_label)), how)
print(accepted)
"""


@pytest.mark.slow
def test_nothing_points_outside(tmp_path):
    """Sound trees, and mutants of them that are accepted, learn, grow and answer in a process whose kernels
    check every index; records lie in whole chunks, so that the index of the chunk is all there is to check."""
    cache = os.environ.get("NUMBA_CACHE_DIR", ".numba_cache") + "-bounds"
    done = subprocess.run(
        [sys.executable, "-c", BOUNDS, "0", "250"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env={**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": cache},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) > 30, "enough of them were used"
