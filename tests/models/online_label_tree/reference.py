"""Online probabilistic label trees, slowly: the pseudocode of the paper with node objects, dictionaries and
float64, every node with both of its classifiers. And streams to try them on."""

import math

import numpy as np

from treemax.inputs.labels import Targets
from treemax.inputs.rows import SparseRows

OF_RECORDS = 0.03  # how far weights and answers of a tree, with records in half precision, are from the reference


class Classifier:
    """Online logistic regression. An inverse one says 1 - p and takes every update the other way round."""

    def __init__(self):
        self.weights, self.squares, self.bias, self.bias_squares, self.inverse = {}, {}, 0.0, 0.0, False

    def copy(self, inverse=False):
        twin = Classifier()
        twin.weights, twin.squares = dict(self.weights), dict(self.squares)
        twin.bias, twin.bias_squares, twin.inverse = self.bias, self.bias_squares, self.inverse != inverse
        return twin

    def probability(self, x):
        score = self.bias + sum(value * self.weights.get(feature, 0.0) for feature, value in x)
        return 1.0 / (1.0 + math.exp(score if self.inverse else -score))

    def update(self, x, positive, rate, settings):
        gradient = self.probability(x) - positive
        if abs(gradient) <= settings.least_gradient:
            return
        if self.inverse:
            gradient = -gradient
        self.bias_squares += gradient**2
        self.bias -= self.step(gradient, self.bias_squares, rate, settings)
        for feature, value in x:
            g = gradient * value
            self.squares[feature] = self.squares.get(feature, 0.0) + g**2
            self.weights[feature] = self.weights.get(feature, 0.0) - self.step(g, self.squares[feature], rate, settings)

    def step(self, gradient, squares, rate, settings):
        if settings.schedule == "adagrad":
            return rate * gradient / math.sqrt(squares + settings.epsilon)
        return rate * gradient

    def parameters(self):
        """Weights by feature, and the bias, as an ordinary classifier has them."""
        sign = -1.0 if self.inverse else 1.0
        return {f: sign * w for f, w in self.weights.items() if w}, sign * self.bias


class Node:
    def __init__(self, parent=None, label=None):
        self.parent, self.label, self.children = parent, label, []
        self.eta, self.theta = Classifier(), Classifier()

    @property
    def is_leaf(self):
        return not self.children

    def leaves(self):
        """How many; recursion would be too deep for some trees."""
        waiting, count = [self], 0
        while waiting:
            node = waiting.pop()
            count += node.is_leaf
            waiting += node.children
        return count

    def nested(self):
        """The shape: a label, or the shapes of the children in their order."""
        return self.label if self.is_leaf else tuple(child.nested() for child in self.children)

    @classmethod
    def from_nested(cls, nested, parent=None):
        node = cls(parent)
        if isinstance(nested, tuple):
            node.children = [cls.from_nested(part, node) for part in nested]
        else:
            node.label = nested
        return node


class Reference:
    """OPLT (Algorithms 2 to 9); with a tree that has all labels already, IPLT (Algorithm 1)."""

    def __init__(self, settings, one_label, seed=0, nested=None):
        self.settings, self.one_label, self.random_state = settings, one_label, seed
        self.root = Node() if nested is None else Node.from_nested(nested)
        self.leaf_of = {node.label: node for node in self.nodes() if node.label is not None}
        self.seen = self.regular_updates = self.auxiliary_updates = 0
        self.closest = math.inf  # two scores that were compared: what float32 cannot tell apart it may confuse

    def nodes(self):
        waiting = [self.root]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += node.children

    def learn(self, x, labels):
        """One turn of Algorithm 3."""
        self.update_tree(x, labels)
        rate = self.settings.rate
        if self.settings.schedule == "inverse-root":
            rate /= math.sqrt(1.0 + self.seen)
        self.seen += 1
        self.update_classifiers(x, labels, rate)

    def update_tree(self, x, labels):
        """Algorithm 4."""
        selected = None
        for label in labels:
            if label in self.leaf_of:
                continue
            if not self.leaf_of:
                self.root.label, self.leaf_of[label] = label, self.root
                continue
            node, insert = self.select(x, selected)
            selected = node
            if insert:
                self.insert_node(node)
            self.add_leaf(label, node)

    def insert_node(self, node):
        """Algorithm 5."""
        new = Node(node, node.label)
        if node.is_leaf:
            node.label, self.leaf_of[new.label] = None, new
        else:
            new.children = node.children
            for child in new.children:
                child.parent = new
        node.children = [new]
        new.eta, new.theta = node.theta.copy(), node.theta.copy()

    def add_leaf(self, label, node):
        """Algorithm 6."""
        leaf = Node(node, label)
        node.children.append(leaf)
        leaf.eta = node.theta.copy(inverse=True)
        self.leaf_of[label] = leaf

    def update_classifiers(self, x, labels, rate):
        """Algorithm 7, on the nodes of Algorithm 9."""
        positive, negative = [], [self.root]
        for label in labels:
            node = self.leaf_of[label]
            while node is not None and node not in positive:
                positive.append(node)
                negative = [other for other in negative if other is not node]
                negative += [child for child in node.children if child not in positive]
                node = node.parent
        for node in positive + negative:
            if node is self.root and self.one_label:
                continue  # a row has exactly one label: there is nothing to learn for the root
            node.eta.update(x, float(node in positive), rate, self.settings)
            self.regular_updates += 1
        for node in positive:
            node.theta.update(x, 1.0, rate, self.settings)
            self.auxiliary_updates += 1

    # --- policies

    def select(self, x, before):
        """A_policy: the node to extend, and whether a node is to be inserted there."""
        policy = self.settings.policy
        if policy == "one-level":
            return self.root, self.root.is_leaf
        if policy in ("complete", "complete-kary"):
            arity, level = 2 if policy == "complete" else self.settings.arity, [self.root]
            while all(len(node.children) >= arity for node in level):
                level = [child for node in level for child in node.children]
            node = next(node for node in level if len(node.children) < arity)
            return node, node.is_leaf
        if before is None or (self.is_full(before) and not self.settings.together):
            before = self.root
        elif self.only_leaf(before):
            return self.only_leaf(before), True
        node = self.descend(before, x)
        node = self.only_leaf(node) or node
        return node, node.is_leaf or self.is_full(node)

    def only_leaf(self, node):
        """The one leaf beside inner nodes."""
        leaves = [child for child in node.children if child.is_leaf]
        return leaves[0] if len(leaves) == 1 < len(node.children) else None

    def is_full(self, node):
        """Nothing but leaves, and as many as may be."""
        return len(node.children) >= self.settings.max_leaf and all(c.is_leaf for c in node.children)

    def descend(self, node, x):
        """Algorithm 8, lines 2 to 6. (A tree that was given may also have full nodes with several leaves.)"""
        while len(node.children) >= self.settings.arity and not all(c.is_leaf for c in node.children):
            if self.settings.policy == "random":
                node = node.children[self.random_below(len(node.children))]
            else:
                scores = [self.score(x, node, child) for child in node.children]
                second, first = sorted(scores)[-2:]
                self.closest = min(self.closest, first - second or math.inf)
                node = node.children[int(np.argmax(scores))]
        return node

    def score(self, x, node, child):
        alpha, share = self.settings.alpha, node.leaves() / len(node.children)
        if self.settings.policy == "best-greedy-printed":
            balance = math.log(share) / child.leaves()
        else:
            balance = math.log(share / child.leaves())
        return (1.0 - alpha) * child.eta.probability(x) + alpha * balance

    def random_below(self, n):
        self.random_state = (self.random_state * 6364136223846793005 + 1442695040888963407) % 2**64
        return ((self.random_state >> 32) * n) >> 32

    # --- answers

    def probabilities(self, x):
        """Of every label, by the products along the paths (equation 2)."""
        answer = {}
        waiting = [(self.root, 1.0 if self.one_label else self.root.eta.probability(x))]
        while waiting:
            node, above = waiting.pop()
            if node.is_leaf:
                answer[node.label] = above
                continue
            own = [child.eta.probability(x) for child in node.children]
            total = sum(own) if self.one_label and self.settings.scale_siblings else 1.0
            waiting += [(child, above * p / total) for child, p in zip(node.children, own)]
        return answer


def random_stream(seed, n_rows=60, n_labels=30, n_features=20, most_labels=4, one_label=False, density=0.3):
    """Rows as lists of (feature, value) with their labels, sorted: labels arrive little by little, some rows
    have no features, and where rows may have several labels, some have none and some very many."""
    random = np.random.RandomState(seed)
    centres = random.normal(size=(n_labels, n_features))
    stream = []
    for i in range(n_rows):
        known = 1 + (n_labels - 1) * (i + 1) // n_rows
        count = 1 if one_label else random.randint(most_labels + 1)
        if not one_label and random.uniform() < 0.05:
            count, known = min(n_labels, 10 * most_labels), n_labels
        labels = sorted(set(random.randint(known, size=count).tolist()))
        features = np.flatnonzero(random.uniform(size=n_features) < density)
        values = centres[labels].sum(axis=0) + 0.3 * random.normal(size=n_features)
        x = [(int(f), float(np.float32(values[f]))) for f in features]
        stream.append(([] if random.uniform() < 0.05 else x, labels))
    return stream


def as_arrays(stream):
    """A stream in the form that the kernels read."""
    indptr = np.cumsum([0, *(len(x) for x, _ in stream)]).astype(np.int64)
    indices = np.array([f for x, _ in stream for f, _ in x], dtype=np.uint32)
    values = np.array([v for x, _ in stream for _, v in x], dtype=np.float32)
    target_indptr = np.cumsum([0, *(len(labels) for _, labels in stream)]).astype(np.int64)
    ids = np.array([label for _, labels in stream for label in labels], dtype=np.uint32)
    n_features = int(indices.max(initial=0)) + 1
    return SparseRows(indptr, indices, values, n_features), Targets(target_indptr, ids)
