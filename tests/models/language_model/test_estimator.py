"""TreeLanguageModel: steps against NumPy and finite differences, predictions against plain sums, trees and errors.

Single training steps and their inputs are private: `_learn`, `_contexts`, `_word_vectors`.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

import treemax
from tests.models.learned_tree.reference import numeric_gradient
from treemax import TreeLanguageModel
from treemax.models import TrainingInterrupted
from treemax.models.language_model import kernels
from treemax.models.language_model.training import (
    INITIAL_SQUARES,
    FlatOutput,
    LanguageModelSettings,
    TokenStream,
    Training,
    TreeOutput,
)
from treemax.models.language_model.words import END, UNKNOWN, WordVocabulary, tokens
from treemax.models.learned_tree.model import padded
from treemax.models.learned_tree.steps import OPTIMIZERS
from treemax.models.learned_tree.structure import Structure
from treemax.trees import frequent_at_root_tree, random_tree

TEXTS = ["the cat sat on the mat", "the dog sat", "a cat ran to the dog", "a dog ran", ""] * 8
TREES = ("learned", "clusters", "huffman", "random", "flat")


def small_model(**given):
    defaults = {"arity": 3, "dimension": 6, "context": 2, "passes": 4, "batch_size": 16, "verbose": 0}
    return TreeLanguageModel(**{**defaults, **given})


# --- one step ------------------------------------------------------------------------------------------


def small_training(flat=False, full=True, arity=3, n_words=9, dimension=5, optimizer="sgd", dropout=0.0, seed=0):
    """A training on random words whose parameters are all random, so that no gradient is zero."""
    random = np.random.RandomState(seed)
    texts = [random.randint(n_words, size=size) for size in (1, 5, 8)]
    setting = LanguageModelSettings(
        dimension, 3, full, rate=1.0, passes=2, optimizer=optimizer, dropout=dropout, batch=7
    )
    width, number = padded(dimension), OPTIMIZERS[optimizer]
    if flat:
        output = FlatOutput(n_words, width, number)
    else:
        output = TreeOutput(Structure.of_tree(random_tree(n_words, arity, arity, random)), width, number)
    training = Training(TokenStream.of_texts(texts, n_words, 3), n_words, setting, output, random)
    for array in (output.weights, training.transitions.reshape(-1, width)):
        array[:, :dimension] = random.normal(size=(len(array), dimension))
    if full:
        training.transitions.reshape(3, width, width)[:, dimension:] = 0.0
    output.biases[:] = random.normal(size=len(output.biases))
    return training


def parameters(training):
    output = training.output
    arrays = (training.embeddings, training.transitions, output.weights, output.biases)
    return [array.astype(np.float64) for array in arrays]


def representation(embeddings, transitions, context):
    """r_x, word after word."""
    width = embeddings.shape[1]
    total = np.zeros(width)
    for place, word in enumerate(context):
        if len(transitions) == len(context):
            total += transitions[place] * embeddings[word]
        else:
            total += embeddings[word] @ transitions[place * width : (place + 1) * width]
    return total


def log_probability(training, embeddings, transitions, weights, biases, example):
    """log p of one word given its context, node after node."""
    hidden = representation(embeddings, transitions, training.stream.contexts([example])[0])
    word = int(training.stream.targets([example])[0])
    if isinstance(training.output, FlatOutput):
        scores = weights @ hidden + biases
        return scores[word] - np.log(np.exp(scores).sum())
    paths, answer = training.output.paths, 0.0
    for s in range(paths.starts[word], paths.starts[word + 1]):
        first, children, slot = int(paths.firsts[s]), int(paths.counts[s]), int(paths.slots[s])
        if children == 2:
            scores = np.array([0.0, weights[first] @ hidden + biases[first]])
        else:
            scores = weights[first : first + children] @ hidden + biases[first : first + children]
        answer += scores[slot] - np.log(np.exp(scores).sum())
    return answer


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize(
    ("flat", "arity", "n_words"), [(True, 2, 9), (False, 2, 9), (False, 3, 9), (False, 5, 7), (False, 20, 9)]
)
def test_a_step_goes_along_the_gradient(flat, arity, n_words, full):
    training = small_training(flat, full, arity, n_words)
    before = parameters(training)
    batch = np.array([0, 3, 4, 9, 9, 11, 13])

    def mean(place, array):
        arrays = [*before[:place], array, *before[place + 1 :]]
        return np.mean([log_probability(training, *arrays, example) for example in batch])

    likelihood = training._learn(batch, 0.1, 0)
    assert likelihood == pytest.approx(len(batch) * mean(0, before[0]), rel=1e-4)
    used = training.settings.dimension
    for place, after in enumerate(parameters(training)):
        moved = after - before[place]
        wanted = numeric_gradient(lambda array, place=place: mean(place, array), before[place])
        if after.ndim == 2:
            assert not moved[:, used:].any(), "what is there to fill up a vector stays zero"
            moved, wanted = moved[:, :used], wanted[:, :used]
        if place == 1 and full:  # rows that meet nothing but filling
            moved, wanted = (array.reshape(3, -1, used)[:, :used] for array in (moved, wanted))
        np.testing.assert_allclose(moved, 0.1 * wanted, atol=2e-5)


def test_adagrad_divides_by_the_length_of_what_a_vector_has_seen():
    adagrad, plain = (small_training(optimizer=name) for name in ("adagrad", "sgd"))
    before = parameters(plain)
    batch = np.arange(6)
    adagrad._learn(batch, 0.5, 0)
    plain._learn(batch, float(len(batch)), 0)  # the sum, not the mean
    for place in (0, 1):
        gradients, steps = (parameters(each)[place] - before[place] for each in (plain, adagrad))
        seen = INITIAL_SQUARES + (gradients**2).sum(axis=1, keepdims=True)
        np.testing.assert_allclose(steps, 0.5 * gradients / np.sqrt(seen), atol=1e-4)
    weights, biases = (parameters(plain)[place] - before[place] for place in (2, 3))
    seen = INITIAL_SQUARES + (weights**2).sum(axis=1) + biases**2
    moved = parameters(adagrad)[2] - before[2]
    np.testing.assert_allclose(moved, 0.5 * weights / np.sqrt(seen)[:, None], atol=1e-4)


def test_dropout_leaves_out_its_share_and_keeps_the_mean():
    numbers, mask = np.ones(100_000, dtype=np.float32), np.empty(100_000, dtype=np.float32)
    kernels.drop(numbers, 0.3, np.uint64(5), mask)
    np.testing.assert_array_equal(numbers, mask)
    assert set(np.unique(mask)) == {np.float32(0.0), np.float32(1 / 0.7)}
    assert (mask == 0).mean() == pytest.approx(0.3, abs=0.01)
    dropped, whole = (small_training(dropout=share)._learn(np.arange(9), 0.1, 7) for share in (0.5, 0.0))
    assert dropped != pytest.approx(whole, rel=1e-3)


def test_many_rows_at_a_node_are_the_sum_of_single_rows():
    """Four rows and four vectors are done at a time: all remainders must be right."""
    for n_rows in range(1, 10):
        training = small_training(arity=7, n_words=40, seed=n_rows)
        output, width = training.output, training.embeddings.shape[1]
        random = np.random.RandomState(n_rows)
        hidden = np.zeros((n_rows, width), dtype=np.float32)
        hidden[:, :5] = random.normal(size=(n_rows, 5))
        targets = random.randint(40, size=n_rows).astype(np.uint32)
        weights, biases = output.weights.copy(), output.biases.copy()
        total, moved, gradients = 0.0, np.zeros_like(weights), np.zeros_like(hidden)
        for row in range(n_rows):
            output.weights[:], output.biases[:] = weights, biases
            total += output.learn(hidden[row : row + 1].copy(), targets[row : row + 1], 1.0, gradients[row : row + 1])
            moved += output.weights - weights
        output.weights[:], output.biases[:] = weights, biases
        together = np.empty_like(hidden)
        assert output.learn(hidden, targets, 1.0, together) == pytest.approx(total, rel=1e-5)
        np.testing.assert_allclose(output.weights - weights, moved, atol=1e-5)
        np.testing.assert_allclose(together, gradients, atol=1e-5)


# --- the stream ----------------------------------------------------------------------------------------


@given(st.lists(st.lists(st.integers(0, 8), max_size=5), max_size=5), st.integers(1, 4))
def test_contexts_are_the_words_before_in_the_same_text(texts, length):
    stream = TokenStream.of_texts([np.array(text, dtype=np.int64) for text in texts], 9, length)
    expected = [
        ([*reversed(text[max(0, at - length) : at])] + [9] * length)[:length]
        for text in texts
        for at in range(len(text))
    ]
    assert stream.contexts(slice(None)).tolist() == expected
    assert stream.targets().tolist() == [word for text in texts for word in text]


def test_words_by_frequency():
    vocabulary, ids = WordVocabulary.from_texts(["b b a", ["a", "c"], ""], 1, None)
    assert vocabulary.index.classes.tolist() == [END, "a", "b", "c", UNKNOWN]
    assert vocabulary.counts.tolist() == [3, 2, 2, 1, 0]
    assert [text.tolist() for text in ids] == [[2, 2, 1, 0], [1, 3, 0], [0]]
    assert [text.tolist() for text in vocabulary.ids(["a zebra"], with_end=False)] == [[1, 4]]


def test_rare_words_are_unknown():
    for options, kept in (({"min_count": 2}, {"b", "a"}), ({"max_words": 4}, {"b", "a"})):
        vocabulary, _ = WordVocabulary.from_texts(
            ["b b a a c d <unk>"], options.get("min_count", 1), options.get("max_words")
        )
        assert set(vocabulary.index.classes) == kept | {END, UNKNOWN}
        assert vocabulary.counts[vocabulary.unknown] == 3
        assert (np.diff(vocabulary.counts) <= 0).all()


# --- answers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tree", TREES)
@pytest.mark.parametrize("transitions", ["full", "diagonal"])
def test_answers_agree_with_plain_sums(tree, transitions):
    model = small_model(tree=tree, transitions=transitions).fit(TEXTS)
    of_all = model.predict_proba(["the cat", "", "a dog ran to"])
    np.testing.assert_allclose(of_all.sum(axis=1), 1.0, atol=1e-5)
    labels, scores = model.predict_topk(["the cat", "", "a dog ran to"], 4)
    best = np.argsort(-of_all, axis=1, kind="stable")[:, :4]
    np.testing.assert_allclose(scores, np.take_along_axis(of_all, best, axis=1), rtol=1e-5)
    place = {word: number for number, word in enumerate(model.classes_)}
    found = [[of_all[row, place[word]] for word in words] for row, words in enumerate(labels)]
    np.testing.assert_allclose(found, scores, rtol=1e-5)
    text = ["the", "cat", "sat", "on", "the", "mat"]
    expected = [np.log(model.predict_proba([text[:at]])[0, place[word]]) for at, word in enumerate([*text, END])]
    (logarithms,) = model.log_prob([" ".join(text)])
    np.testing.assert_allclose(logarithms, expected, rtol=1e-4)
    assert model.perplexity([text]) == pytest.approx(np.exp(-np.mean(expected)), rel=1e-4)
    assert model.score([text]) == pytest.approx(np.mean(expected), rel=1e-4)


def test_probabilities_are_those_of_the_reference():
    training = small_training(arity=3)
    arrays = parameters(training)
    model, stream = training.model(), training.stream
    everything = np.arange(len(stream))
    found = model.log_probabilities(stream.contexts(everything), stream.targets(everything))
    wanted = [log_probability(training, *arrays, example) for example in everything]
    np.testing.assert_allclose(found, wanted, rtol=1e-4)


def test_flat_is_an_ordinary_softmax():
    model = small_model(tree="flat").fit(TEXTS)
    packed = model.model_
    contexts = model._contexts(["the", "a cat"])
    for row, context in enumerate(contexts):
        hidden = representation(packed.embeddings.astype(np.float64), packed.transitions.astype(np.float64), context)
        scores = packed.weights @ hidden + packed.biases
        shares = np.exp(scores - scores.max())
        np.testing.assert_allclose(model.predict_proba(["the", "a cat"])[row], shares / shares.sum(), rtol=1e-4)
    assert model.label_tree().depth == 1


def test_only_the_last_words_and_the_beginning_matter():
    model = small_model().fit(TEXTS)
    one, other, short = model.predict_proba(["a dog sat on the", ["cat", "on", "the"], "the"])
    np.testing.assert_array_equal(one, other)
    assert not np.allclose(one, short), "a text that has just begun is another context"


def test_unknown_words_are_one_word():
    model = small_model(min_count=9).fit(TEXTS)
    assert "mat" not in model.classes_ and UNKNOWN in model.classes_
    np.testing.assert_array_equal(model.log_prob(["the mat"])[0], model.log_prob(["the unheard-of"])[0])
    assert np.isfinite(small_model().fit(TEXTS).log_prob(["zebra zebra"])[0]).all()


def test_empty_texts_are_an_end():
    model = small_model().fit(["", []])
    assert model.classes_.tolist() == [END, UNKNOWN]
    assert [len(row) for row in model.log_prob(["", "a b"])] == [1, 3]
    assert model.log_prob([]) == []
    assert model.sample(2, random_state=0) == ["", ""] or model.perplexity([""]) < 2
    for tree in TREES:
        assert small_model(tree=tree).fit(["", "a"]).perplexity([""]) >= 1.0


def test_it_learns():
    flat, tree, learned = (
        small_model(tree=name, passes=60, dropout=0).fit(TEXTS).perplexity(TEXTS)
        for name in ("flat", "random", "learned")
    )
    assert max(flat, tree, learned) < 2.2  # some words are not determined by those before


def test_texts_in_any_form_are_the_same():
    model = small_model().fit(TEXTS)
    for texts in ((text.split() for text in TEXTS), np.array(TEXTS), tuple(TEXTS)):
        other = small_model().fit(texts)
        np.testing.assert_array_equal(other.model_.weights, model.model_.weights)
    np.testing.assert_array_equal(model.perplexity(iter(TEXTS)), model.perplexity(TEXTS))


def test_samples_are_drawn_as_likely_as_they_are():
    model = small_model(passes=30, dropout=0).fit(TEXTS)
    drawn = model.sample(2000, random_state=0)
    first = np.array([(text.split() or [END])[0] for text in drawn])
    chances = dict(zip(model.classes_, model.predict_proba([""])[0]))
    for word in ("the", "a", END):
        assert (first == word).mean() == pytest.approx(chances[word], abs=0.05)
    assert all(text.startswith("the cat") for text in model.sample(5, beginning="the cat"))
    assert max(len(text.split()) for text in model.sample(50, max_words=3)) <= 3
    assert model.sample(1, beginning="the cat sat", max_words=2) == ["the cat sat"]


# --- the tree ------------------------------------------------------------------------------------------


@settings(max_examples=20)
@given(st.integers(0, 2**31 - 1), st.integers(2, 6), st.integers(4, 60), st.data())
def test_a_learned_tree_is_a_tree_after_each_assignment(seed, arity, n_words, data):
    random = np.random.RandomState(seed)
    direct = data.draw(st.integers(0, arity - 1))
    texts = [random.randint(n_words, size=30) for _ in range(3)]
    start = frequent_at_root_tree(np.arange(n_words), direct, arity)
    output = TreeOutput(Structure.with_capacity(start, arity), 16, kernels.ADAGRAD)
    setting = LanguageModelSettings(4, 2, True, rate=0.5, passes=3, batch=8)
    training = Training(TokenStream.of_texts(texts, n_words, 2), n_words, setting, output, random)
    plain, assigned = training.assign, []

    def assign(arity):
        plain(arity)
        tree, _, _ = output.packed()
        assert sorted(tree.label[tree.label >= 0]) == list(range(n_words))
        assert tree.depth <= start.depth and tree.n_children.max() <= arity
        if n_words > arity:
            assert (tree.level[tree.leaf_of[:direct]] == 1).all()
        assigned.append(tree)

    training.assign = assign
    for _ in training.run(1, 0.5, 2.0, arity):
        pass
    assert len(assigned) == 4


@pytest.mark.parametrize("assign_by", ["difference", "gradient", "log-gradient"])
def test_words_go_where_their_contexts_are_sent(assign_by):
    output = TreeOutput(Structure.with_capacity(frequent_at_root_tree(np.arange(8), 0, 4), 4), 16, kernels.ADAGRAD)
    output.weights[:4] = 10 * np.eye(4, 16)
    groups = np.array([0, 1, 0, 1, 2, 3, 2, 3])  # the child of the root that each word's contexts are sent to
    output.assign(np.full(8, 5), output.weights[groups].copy(), 4, assign_by)
    tree, _, _ = output.packed()
    np.testing.assert_array_equal(tree.parent[tree.leaf_of], 1 + groups)


@settings(max_examples=30)
@given(st.integers(0, 2**31 - 1), st.integers(3, 5))
def test_vectors_move_with_words(seed, arity):
    random = np.random.RandomState(seed)
    n_words = arity * arity
    output = TreeOutput(
        Structure.with_capacity(frequent_at_root_tree(np.arange(n_words), 0, arity), arity), 16, kernels.ADAGRAD
    )
    output.weights[:] = random.normal(size=output.weights.shape)
    places, own = output._word_vectors()
    assert own.all()
    vectors = output.weights[places].copy()
    output.assign(random.randint(1, 9, n_words), random.normal(size=(n_words, 16)).astype(np.float32), arity)
    after, own = output._word_vectors()
    np.testing.assert_array_equal(output.weights[after[own]], vectors[own])


def test_running_sums_are_of_the_words_that_were_learned():
    """SumProbas and Counts of Algorithm 1 at nodes with inner children, from the definition; they decide the assignment."""
    random, n_words, arity = np.random.RandomState(0), 30, 3
    output = TreeOutput(
        Structure.with_capacity(frequent_at_root_tree(np.arange(n_words), 0, arity), arity), 16, kernels.ADAGRAD
    )
    texts = [random.randint(n_words, size=80)]
    setting = LanguageModelSettings(4, 2, True, rate=0.5, passes=1, batch=16, running=True)
    training = Training(TokenStream.of_texts(texts, n_words, 2), n_words, setting, output, random)
    output.weights[:, :4] = random.normal(size=(len(output.weights), 4))
    expected = {}
    for start in range(0, 80, 16):
        chosen = np.arange(start, start + 16)
        for example in chosen:
            word = int(training.stream.targets([example])[0])
            hidden = representation(training.embeddings, training.transitions, training.stream.contexts([example])[0])
            paths = output.paths
            for s in range(paths.starts[word], paths.starts[word + 1] - 1):
                first, children = int(paths.firsts[s]), int(paths.counts[s])
                scores = output.weights[first : first + children] @ hidden + output.biases[first : first + children]
                if children == 2:
                    scores = np.array([0.0, output.weights[first] @ hidden + output.biases[first]])
                shares = np.exp(scores) / np.exp(scores).sum()
                total, n = expected.get((first // 3, word), (0.0, 0))
                expected[first // 3, word] = total + shares, n + 1
        training._learn(chosen, 0.1, 0)
    assert len({node for node, _ in expected}) > 2
    for (node, word), (total, n) in expected.items():
        children = int(output.structure.n_children[node])
        (count,), (mean,) = output.running.at(node, np.array([word]), children)
        assert count == n
        np.testing.assert_allclose(mean, total / n, atol=1e-4)
    (count,), (mean,) = output.running.at(0, np.array([n_words - 1]), 3)
    assert (count > 0) == ((0, n_words - 1) in expected)
    seen = output.running.at(0, np.arange(n_words), 3)[0]
    scores = np.zeros((n_words, 3))
    for word in range(n_words):
        scores[word] = output.running.at(0, np.array([word]), 3)[1][0]
    shares = seen / seen.sum()
    best = ((shares * (1 - shares))[:, None] * (scores - shares @ scores)).argmax(axis=1)
    training.assign(arity)
    tree, _, _ = output.packed()
    level_1 = tree.leaf_of
    while (tree.parent[level_1] > 0).any():
        level_1 = np.where(tree.parent[level_1] > 0, tree.parent[level_1], level_1)
    assert (level_1 - 1 == best)[seen > 0].mean() > 0.5


def test_a_tree_is_learned_from_running_sums():
    model = small_model(arity=3, statistics="running", assign_until=1.0).fit(TEXTS)
    other = small_model(arity=3, assign_until=1.0).fit(TEXTS)
    assert model.label_tree().label.tolist() != other.label_tree().label.tolist()
    assert model.perplexity(TEXTS) < 12
    one, two = (small_model(statistics="running", random_state=3, n_jobs=jobs).fit(TEXTS) for jobs in (1, 2))
    assert one.perplexity(TEXTS) == pytest.approx(two.perplexity(TEXTS), rel=0.5)
    with pytest.raises(ValueError, match="statistics must be one of means, running"):
        small_model(statistics="rows").fit(TEXTS)


def test_output_vectors_can_be_the_embeddings():
    model = small_model(tree="flat", tied=True, passes=20, dropout=0).fit(TEXTS).model_
    np.testing.assert_array_equal(model.weights, model.embeddings[: len(model.weights)])
    free = small_model(tree="flat", passes=20, dropout=0).fit(TEXTS).model_
    assert not np.array_equal(free.weights, free.embeddings[: len(free.weights)])
    with pytest.raises(ValueError, match="tied must be False unless tree is 'flat', got tree='learned'"):
        small_model(tied=True).fit(TEXTS)


def test_a_step_on_tied_vectors_goes_along_both_gradients():
    """Of the score and of the context, to first order."""
    training = small_training(flat=True)
    training.output.weights = training.embeddings[:9]
    before = parameters(training)
    batch = np.array([0, 3, 4, 9, 11])

    def mean(embeddings):
        arrays = [embeddings, before[1], embeddings[:9], before[3]]
        return np.mean([log_probability(training, *arrays, example) for example in batch])

    training._learn(batch, 1e-3, 0)
    np.testing.assert_allclose(training.embeddings - before[0], 1e-3 * numeric_gradient(mean, before[0]), atol=2e-6)


@pytest.mark.parametrize("tree", ["random", "clusters", "learned"])
def test_frequent_words_are_children_of_the_root(tree):
    model = small_model(tree=tree, arity=4, direct=2).fit(TEXTS)
    found = model.label_tree()
    levels = found.level[found.leaf_of]
    assert (levels[:2] == 1).all() and (levels[2:] > 1).all()
    plain = small_model(tree=tree, arity=4, direct=0).fit(TEXTS).label_tree()
    assert (plain.level[plain.leaf_of] > 1).all()


def test_assignment_changes_the_tree_and_says_nothing_of_probabilities_lost():
    fixed, learned = (small_model(tree=name).fit(TEXTS).label_tree() for name in ("random", "learned"))
    assert fixed.label.tolist() != learned.label.tolist()


def test_ones_own_hierarchy():
    hierarchy = {"animal": ["cat", "dog"], "verb": ["sat", "ran"]}
    model = small_model(tree=hierarchy).fit(TEXTS)
    tree, names = model.label_tree(), model.classes_.tolist()
    leaf = {name: int(tree.leaf_of[number]) for number, name in enumerate(names)}
    assert tree.parent[leaf["cat"]] == tree.parent[leaf["dog"]] != tree.parent[leaf["sat"]]
    assert tree.parent[leaf["the"]] == 0


def test_the_tree_is_shown():
    shown = treemax.show_tree(small_model().fit(TEXTS))
    assert shown.startswith("11 labels, 184 examples: </s>, the, ")


# --- the manner of scikit-learn ------------------------------------------------------------------------


@pytest.mark.parametrize("tree", TREES)
def test_one_seed_gives_one_model(tree):
    one, other = (small_model(tree=tree, random_state=3).fit(TEXTS).model_ for _ in range(2))
    for name in ("embeddings", "transitions", "weights", "biases"):
        np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


def test_threads_give_the_same_mean_representations():
    random = np.random.RandomState(0)
    texts, n_words = [random.randint(40, size=500) for _ in range(12)], 40
    output = TreeOutput(Structure.of_tree(random_tree(n_words, 4, 4, random)), padded(5), OPTIMIZERS["sgd"])
    setting = LanguageModelSettings(5, 3, True, rate=1.0, passes=1, optimizer="sgd", dropout=0.0, batch=64)
    counts = np.bincount(np.concatenate(texts), minlength=n_words)
    found = []
    for threads in (1, 2):
        training = Training(
            TokenStream.of_texts(texts, n_words, 3),
            n_words,
            setting,
            output,
            np.random.RandomState(1),
            _threads=threads,
        )
        found.append(training._mean_representations(counts))
    np.testing.assert_allclose(*found, rtol=1e-5, atol=1e-7)
    assert found[0].any()


def test_several_threads_learn_too():
    model = small_model(n_jobs=2, passes=30, dropout=0).fit(TEXTS)
    assert model.perplexity(TEXTS) < 3.0


@pytest.mark.parametrize("tree", [*TREES, {"animal": ["cat", "dog"]}])
def test_saved_and_loaded_it_answers_the_same_bits(tree, tmp_path):
    model = small_model(tree=tree).fit(TEXTS, validation=TEXTS[:3])
    model.save(tmp_path / "model.treemax")
    loaded = treemax.load(tmp_path / "model.treemax")
    assert type(loaded) is TreeLanguageModel
    assert loaded.history_ == model.history_ and loaded.describe() == model.describe()
    assert loaded.classes_.tolist() == model.classes_.tolist()
    np.testing.assert_array_equal(loaded.predict_proba(["the"]), model.predict_proba(["the"]))
    for one, other in zip(loaded.log_prob(TEXTS), model.log_prob(TEXTS)):
        np.testing.assert_array_equal(one, other)
    if isinstance(tree, str):
        assert loaded.get_params() == model.get_params()


def test_a_damaged_model_is_refused(tmp_path):
    model = small_model().fit(TEXTS)
    header, arrays = model.to_parts()
    for change in (
        {"model/weights": arrays["model/weights"][:-1]},
        {"model/embeddings": arrays["model/embeddings"][:-1]},
        {"counts": arrays["counts"][:-1]},
    ):
        with pytest.raises(ValueError):
            TreeLanguageModel.from_parts(header, {**arrays, **change})
    with pytest.raises(ValueError):
        TreeLanguageModel.from_parts({**header, "model": {**header["model"], "length": 0}}, arrays)


def test_history_has_every_pass():
    model = small_model(passes=3).fit(TEXTS, validation=["the cat sat"])
    assert len(model.history_) == 3
    assert set(model.history_[0]) == {"loss", "seconds", "output_seconds", "validation"}
    assert model.history_[-1]["validation"] == pytest.approx(model.perplexity(["the cat sat"]))
    assert "validation" not in small_model().fit(TEXTS).history_[0]


def test_parameters_are_scikit_learns():
    model = small_model(arity=4)
    assert clone(model).get_params() == model.get_params()
    assert model.set_params(context=3).context == 3
    fitted = small_model().fit(TEXTS).set_params(context=7)
    assert fitted.predict_proba(["the cat"]).shape == (1, 11), "a fitted model keeps its own length"


def test_interrupted_training_keeps_what_was_learned(monkeypatch):
    model = small_model(passes=50)
    plain, calls = Training._learn, []

    def learn(self, *arguments):
        calls.append(1)
        if len(calls) > 25:
            raise KeyboardInterrupt
        return plain(self, *arguments)

    monkeypatch.setattr(Training, "_learn", learn)
    with pytest.raises(TrainingInterrupted, match="interrupted after 4% of the training"):
        model.fit(TEXTS)
    assert model.perplexity(TEXTS) < 11
    assert len(model.history_) == 2


# --- errors --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ("a text", "The texts are one str"),
        (b"a text", "The texts are one bytes"),
        (None, "got NoneType"),
        (7, "got int"),
        ({"a": 1}, "got dict"),
        ([], "no texts to learn from"),
        (["a", None], "Text 1 is None"),
        (["a", 3.5], "Text 1 is 3.5"),
        ([["a", 3]], "Text 0 has 3 among its words"),
        ([["a", ""]], "Text 0 has '' among its words"),
        (["a </s> b"], "marks the end of a text"),
    ],
)
def test_bad_texts_are_refused(texts, words):
    with pytest.raises(ValueError, match=words):
        small_model().fit(texts)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("tree", "kmeans"), ("tree", 3), ("direct", 3), ("direct", "all"), ("arity", 1), ("dimension", 0), ("context", 0), ("passes", 0),
        ("learning_rate", 0), ("learning_rate", "fast"), ("schedule", "cosine"), ("optimizer", "adam"), ("dropout", 1),
        ("batch_size", 0), ("assign_every", 0), ("assign_until", 2), ("assign_by", "sign"), ("min_count", 0), ("max_words", 2), ("n_jobs", 0),
        ("transitions", "none"),
    ],
)  # fmt: skip
def test_bad_parameters_are_named(name, value):
    with pytest.raises(ValueError, match=name):
        small_model(**{name: value}).fit(TEXTS)


def test_bad_questions_are_refused():
    model = small_model()
    for ask in (model.log_prob, model.perplexity, model.predict, model.predict_proba, model.predict_topk):
        with pytest.raises(NotFittedError):
            ask(["the"])
    with pytest.raises(AttributeError):
        model.classes_  # noqa: B018
    model.fit(TEXTS)
    for k in (0, -1, 2.5, True):
        with pytest.raises(ValueError, match="k must be"):
            model.predict_topk(["the"], k)
    with pytest.raises(ValueError, match="no texts to evaluate"):
        model.perplexity([])
    with pytest.raises(ValueError, match="The texts are one str"):
        model.predict("the")
    with pytest.raises(ValueError, match="no validation texts"):
        model.fit(TEXTS, validation=[])
    with pytest.raises(ValueError, match="beginning must be a string"):
        model.sample(beginning=["the"])
    assert model.predict_topk(["the"], 100).labels.shape == (1, 11)
    assert model.predict_proba([]).shape == (0, 11)
    assert list(tokens(iter(["a b"]))) == [["a", "b"]]


def test_what_does_not_fit_in_memory_is_refused(monkeypatch):
    monkeypatch.setattr("treemax.memory.available_bytes", lambda: 1000)
    with pytest.raises(MemoryError, match="11 words at dimension 6"):
        small_model().fit(TEXTS)
