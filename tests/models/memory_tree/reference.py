"""Reference implementation of the contextual memory tree: lists and dictionaries, in double precision."""

import numpy as np

from tests.models import adagrad
from treemax.kernels.scorers import LEAST_NEW
from treemax.models.memory_tree.kernels import DEEPEST, REGRESSORS
from treemax.models.memory_tree.training import INITIAL_BIAS, LEAST_GRADIENT


class Random:
    def __init__(self, seed):
        self.state = seed

    def uniform(self):
        self.state = (self.state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.state >> 11) * 2.0**-53


class Node:
    def __init__(self, n_features, depth):
        self.left = self.right = None
        self.depth, self.counts, self.memories = depth, [0, 0], []
        self.weights, self.squares = np.zeros((2, n_features + 1))

    def score(self, x):
        return self.weights @ np.append(x, 1.0)

    def side(self, x):
        return int(self.score(x) >= 0)

    def child(self, side):
        return self.right if side else self.left


class Regressor:
    def __init__(self, n_features):
        self.weights, self.squares = np.zeros((2, n_features + 1))
        self.weights[-1] = INITIAL_BIAS
        self.known = np.zeros(n_features + 1, bool)
        self.known[-1] = True


class Reference:
    def __init__(self, n_features, settings, options, seed, sparse):
        self.n_features, self.settings, self.options, self.sparse = n_features, settings, options, sparse
        self.root, self.random, self.n_nodes = Node(n_features, 0), Random(seed), 1
        self.rows, self.labels, self.n_right = [], [], 0
        self.weights, self.squares = np.zeros((2, n_features))
        self.regressors = {}

    # --- the tree ---

    def capacity(self):
        return max(2, int(self.options.leaf_factor * np.log2(max(2, len(self.rows)))))

    def path(self, x, node):
        found = [node]
        while node.left is not None:
            side = node.side(x)
            node = node.child(side if node.counts[side] else 1 - side)
            found.append(node)
        return found

    def update_router(self, node, x, target, weight):
        gradient = np.clip(node.score(x), -1, 1) - target
        step = -weight * gradient * np.append(x, 1.0)
        node.squares += step**2
        node.weights += adagrad.step(step, node.squares, self.settings.rate, self.settings.initial)

    def train_node(self, node, x):
        left, right = (max(0.001, count) for count in node.counts)
        score, alpha = np.clip(node.score(x), -1, 1), self.options.alpha
        objective = (1 - alpha) * np.log2(left / (right + 0.1)) + alpha * score
        self.update_router(node, x, 1 if objective >= 0 else -1, 1.0)
        side = node.side(x)
        node.counts[side] += 1
        return side

    def insert(self, memory, trains):
        x, node = self.rows[memory], self.root
        while node.left is not None:
            if trains:
                side = self.train_node(node, x)
            else:
                side = node.side(x)
                node.counts[side] += 1
            node = node.child(side)
        node.memories.insert(0, memory)
        if trains:
            self.train_node(node, x)
            if self.options.output == REGRESSORS:
                self.train_regressors(memory, node)
        self.split(node)

    def split(self, leaf):
        if len(leaf.memories) % self.capacity() or leaf.depth == DEEPEST:
            return
        sides = [leaf.side(self.rows[memory]) for memory in leaf.memories]
        if len(set(sides)) < 2:
            return
        leaf.left, leaf.right = (Node(self.n_features, leaf.depth + 1) for _ in range(2))
        self.n_nodes += 2
        leaf.counts = [sides.count(0), sides.count(1)]
        for memory, side in zip(leaf.memories, sides):
            leaf.child(side).memories.insert(0, memory)
            self.train_node(leaf.child(side), self.rows[memory])
        leaf.memories = []

    def pop(self):
        node = self.root
        while node.left is not None:
            side = int(self.random.uniform() * sum(node.counts) >= node.counts[0])
            node.counts[side] -= 1
            node = node.child(side)
        return node.memories.pop(int(self.random.uniform() * len(node.memories)))

    # --- rewards ---

    def reward(self, one, other):
        common = len(set(self.labels[one]) & set(self.labels[other]))
        total = len(self.labels[one]) + len(self.labels[other])
        return 2 * common / total if total else 0.0

    def similarity(self, x, memory):
        return float((x * self.rows[memory]) @ (1 + self.weights))

    def nearest(self, x, leaf, without):
        others = [memory for memory in leaf.memories if memory != without]
        return max(others, key=lambda memory: self.similarity(x, memory), default=None)

    def update_scorer(self, x, memory, target, weight):
        if self.options.learn_scorer:
            step = weight * (self.similarity(x, memory) - target) * x * self.rows[memory]
            self.squares += step**2
            self.weights -= self.settings.scorer_rate * step / np.sqrt(self.squares + self.settings.initial**2)

    def update_by_reward(self, own):
        x = self.rows[own]
        path = self.path(x, self.root)
        if len(path) < 2:
            return
        node, without = path[int(self.random.uniform() * len(path))], own if self.options.skip_itself else None
        if node.left is None:
            memory = node.memories[int(self.random.uniform() * len(node.memories))]
            if memory != without:
                self.update_scorer(x, memory, self.reward(own, memory), 1.0)
            return
        side = int(self.random.uniform() < 0.5)
        memory, found = self.nearest(x, self.path(x, node.child(side))[-1], without), 0.0
        left, right = (max(0.001, count) for count in node.counts)
        if memory is not None:
            found = self.reward(own, memory)
            self.update_scorer(x, memory, found, len(path) / (len(path) - 1))
        alpha = self.options.alpha
        objective = (1 - alpha) * np.log(left / right) + alpha * (found if side else -found)
        self.update_router(node, x, 1 if objective >= 0 else -1, min(100.0, max(0.01, abs(objective))))

    # --- answers ---

    def best_scores(self, x, leaf):
        found = {}
        for memory in leaf.memories:
            for label in self.labels[memory]:
                found[label] = max(found.get(label, -np.inf), self.similarity(x, memory))
        return found

    def answer(self, x):
        """The scores of the labels of a row's leaf, before they become probabilities."""
        scores = self.best_scores(x, self.path(x, self.root)[-1])
        if self.options.output != REGRESSORS:
            return scores
        return {label: self.regressors[label].weights @ np.append(x, 1.0) for label in scores}

    def train_regressors(self, own, leaf):
        x = np.append(self.rows[own], 1.0)
        for label in self.best_scores(self.rows[own], leaf):
            regressor = self.regressors.setdefault(label, Regressor(self.n_features))
            gradient = 1 / (1 + np.exp(-regressor.weights @ x)) - (label in self.labels[own])
            if abs(gradient) >= LEAST_GRADIENT:
                if not self.sparse or abs(gradient) >= LEAST_NEW:
                    regressor.known |= x != 0
                step = np.where(regressor.known, -gradient * x, 0.0)
                regressor.squares += step**2
                rate, initial = self.settings.regressor_rate, self.settings.initial
                regressor.weights += adagrad.step(step, regressor.squares, rate, initial)

    # --- learning ---

    def remember(self, x, labels):
        before = self.answer(x) if self.rows else {}
        self.n_right += bool(before) and max(before, key=before.get) in labels
        self.rows.append(x)
        self.labels.append(labels)
        own = len(self.rows) - 1
        if self.options.rewards:
            self.update_by_reward(own)
        self.insert(own, True)
        for _ in range(self.options.dreams):
            self.insert(self.pop(), True)

    def revisit(self, own):
        leaf = self.path(self.rows[own], self.root)[-1]
        self.update_by_reward(own)
        if self.options.output == REGRESSORS:
            self.train_regressors(own, leaf)
        for _ in range(self.options.dreams):
            self.insert(self.pop(), self.options.train_dreams)
