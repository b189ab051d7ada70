"""The search space: models, their parameters and values."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator

from treemax.inputs.rows import Rows, SparseRows
from treemax.models import MODELS
from treemax.text.vectorizers import HashingText, TfidfText

Space = dict[str, tuple[Any, ...]]

# Values to try for each parameter. The default is always included.
SPACES: dict[str, Space] = {
    "label-tree": {
        "n_trees": (1, 2, 3, 5, 8),
        "loss": ("squared_hinge", "logistic"),
        "cost": (0.1, 0.3, 1.0, 2.0, 4.0, 8.0, 16.0),
        "max_leaf": (15, 50, 150, 400, 1000),
        "arity": (2, 8, 16, 64),
        "penalty": ("l2", "l1"),
        "temperature": (1.0, 1.25, 2.5),
        "threshold": (0.03, 0.1, 0.2, 0.3),
        "passes": (5, 10, 20),
        "hard_negatives": (0.0, 0.5, 1.5),
        "beam": (5, 10, 20, 40),
        "precision": ("bfloat16", "int8"),
    },
    "one-vs-all": {
        "loss": ("softmax", "logistic", "squared_hinge"),
        "passes": (3, 6, 12, 25),
        "learning_rate": (0.1, 0.3, 1.0, 3.0, 10.0),
        "final_rate": (0.0, 0.1, 0.3),
    },
    "online-label-tree": {
        "learning_rate": (0.25, 0.5, 1.0, 2.0, 4.0),
        "arity": (4, 16, 64),
        "max_leaf": (15, 31, 63),
        "passes": (1, 3, 6),
        "shuffle": (False, True),
        "tree": (None, "kmeans"),
        "epsilon": (0.001, 0.01, 0.1),
    },
    "learned-tree": {
        "dimension": (20, 50, 100, 200, 300),
        "passes": (5, 10, 20, 40),
        "learning_rate": (0.5, 1.0, 2.0, 4.0),
        "dropout": (0.0, 0.1, 0.3, 0.5),
        "arity": (10, 20, 50, 100),
    },
    "recall-tree": {
        "passes": (3, 6, 12, 25),
        "n_candidates": (50, 100, 200, 400),
        "beam": (8, 16, 32, 64),
        "learning_rate": (0.1, 0.3, 1.0, 3.0),
        "prior": (0.1, 0.3, 1.0),
    },
    "softmax-tree": {
        "alpha": (0.001, 0.003, 0.01, 0.03, 0.1),
        "iterations": (3, 6, 12),
        "plane_penalty": (3.0, 10.0, 30.0),
        "spill": (0.2, 0.4, 0.8),
    },
    "softmax-forest": {
        "n_trees": (2, 4, 8),
        "alpha": (0.001, 0.003, 0.01, 0.03, 0.1),
        "iterations": (3, 5, 10),
        "spill": (0.2, 0.4, 0.8),
    },
}

TEXT_SPACES: dict[str, Space] = {
    "tfidf": {"ngram_range": ((1, 1), (1, 2)), "min_df": (1, 2, 3, 5), "sublinear_tf": (True, False)},
    "hashing": {"bits": (18, 20), "ngram_range": ((1, 1), (1, 2)), "char_ngram_range": (None, (3, 3), (4, 4), (3, 5))},
}

# Changes that often help. They are tried before the proposals, each together with those that helped before.
COMMON_CHANGES: dict[str, tuple[dict[str, Any], ...]] = {
    "label-tree": ({"n_trees": 3}, {"n_trees": 8}),
    "one-vs-all": ({"passes": 12},),
    "online-label-tree": ({"passes": 3},),
    "learned-tree": ({"dimension": 200},),
    "recall-tree": ({"passes": 12},),
    "softmax-forest": ({"alpha": 0.003}, {"n_trees": 8}),
}
TEXT_CHANGES: tuple[tuple[str, dict[str, Any]], ...] = (
    ("tfidf", {"ngram_range": (1, 2)}),
    ("tfidf", {"min_df": 1}),
    ("hashing", {"char_ngram_range": (4, 4), "bits": 20}),
)

# The same if the default exceeds a limit.
SMALLER_CHANGES: dict[str, tuple[dict[str, Any], ...]] = {
    "label-tree": (
        {"precision": "int8"},
        {"precision": "int8", "threshold": 0.2, "beam": 5},
        {"precision": "int8", "penalty": "l1", "beam": 5},
        {"precision": "int8", "penalty": "l1", "threshold": 0.3, "beam": 5},
    ),
    "learned-tree": ({"dimension": 50}, {"dimension": 20}),
    "recall-tree": ({"n_candidates": 50, "beam": 8},),
}

VECTORIZERS: dict[str, type[BaseEstimator]] = {"tfidf": TfidfText, "hashing": HashingText}
DENSE_ONLY = ("softmax-tree", "softmax-forest")  # much slower than the others on sparse rows


@dataclass(frozen=True)
class Setting:
    """A point of the search space: a model, a vectoriser for texts, and the parameters that differ from defaults."""

    model: str
    parameters: dict[str, Any] = field(default_factory=dict)
    text: str | None = None
    text_parameters: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """Equal for equal settings, also after a round trip through JSON."""
        parts = (self.model, self.parameters, self.text, self.text_parameters)
        return json.dumps(parts, sort_keys=True)

    @property
    def is_default(self) -> bool:
        return not self.parameters and not self.text_parameters and self.text in (None, "tfidf")

    def __str__(self) -> str:
        words = [self.model, *_assignments(self.parameters)]
        if self.text is not None:
            words += [f"text={self.text}", *_assignments(self.text_parameters)]
        return " ".join(words)

    def estimator(self, **common: Any) -> Any:
        """Return the unfitted model, with those of the `common` parameters that it has."""
        made = MODELS[self.model](**self.parameters)
        return made.set_params(**{name: common[name] for name in common.keys() & made.get_params().keys()})

    def vectorizer(self) -> Any:
        """Return the unfitted vectoriser."""
        assert self.text is not None
        return VECTORIZERS[self.text](**self.text_parameters)


def _assignments(parameters: Mapping[str, Any]) -> Iterable[str]:
    return (f"{name}={value}".replace(" ", "") for name, value in parameters.items())


def applicable(names: Iterable[str] | None, rows: Rows | None, multi_label: bool) -> list[str]:
    """Return the models to search: those named, or all applicable to the data; `rows` is None for texts."""
    if names is not None:
        chosen = list(dict.fromkeys(names))
        unknown = [name for name in chosen if name not in MODELS]
        if unknown or not chosen:
            raise ValueError(
                f"models: unknown model {', '.join(unknown) or '(none)'}; choose from {', '.join(MODELS)}."
            )
        unfit = [name for name in chosen if multi_label and MODELS[name].ONE_LABEL_ONLY]
        if unfit:
            raise ValueError(
                f"models: {', '.join(unfit)} support one label per row, but y is multi-label; remove them."
            )
        return chosen
    sparse = rows is None or isinstance(rows, SparseRows)
    return [
        name
        for name in SPACES
        if not (multi_label and MODELS[name].ONE_LABEL_ONLY) and not (sparse and name in DENSE_ONLY)
    ]


def choices(kind: type, space: Space) -> Space:
    """Return a space with the default of each parameter first."""
    defaults = {name: parameter.default for name, parameter in inspect.signature(kind).parameters.items()}
    return {
        name: (defaults[name], *(value for value in values if value != defaults[name]))
        for name, values in space.items()
    }


def suggest(trial: Any, models: list[str], texts: bool) -> Setting:
    """Return the setting of an optuna trial."""
    model = trial.suggest_categorical("model", models)
    parameters = _suggest(trial, model, choices(MODELS[model], SPACES.get(model, {})))
    if not texts:
        return Setting(model, parameters)
    text = trial.suggest_categorical("text", list(TEXT_SPACES))
    return Setting(model, parameters, text, _suggest(trial, text, choices(VECTORIZERS[text], TEXT_SPACES[text])))


def _suggest(trial: Any, prefix: str, space: Space) -> dict[str, Any]:
    """Return the suggested values that differ from the defaults."""
    found = {}
    for name, values in space.items():
        stored = {_stored(value): value for value in values}
        value = stored[trial.suggest_categorical(f"{prefix}.{name}", list(stored))]
        if value != values[0]:
            found[name] = value
    return found


def as_trial(setting: Setting) -> dict[str, Any]:
    """Return the values of an optuna trial for this setting, the inverse of `suggest`."""
    values: dict[str, Any] = {"model": setting.model}
    parts = [(setting.model, MODELS[setting.model], SPACES.get(setting.model, {}), setting.parameters)]
    if setting.text is not None:
        values["text"] = setting.text
        text_parts = (setting.text, VECTORIZERS[setting.text], TEXT_SPACES[setting.text], setting.text_parameters)
        parts.append(text_parts)
    for prefix, kind, space, changed in parts:
        for name, known in choices(kind, space).items():
            values[f"{prefix}.{name}"] = _stored(changed.get(name, known[0]))
    return values


def _stored(value: Any) -> Any:
    """Return a value as optuna stores it, without tuples."""
    return str(value) if isinstance(value, tuple) else value


def common_changes(setting: Setting, smaller: bool) -> list[Callable[[Setting], Setting]]:
    """Return changes to try on the model of this setting, each applied to the best setting at that time."""
    shrinking = SMALLER_CHANGES.get(setting.model, ()) if smaller else ()
    of_model = COMMON_CHANGES.get(setting.model, ())
    of_text = TEXT_CHANGES if setting.text is not None else ()
    return [
        *(partial(_with_parameters, change=change) for change in (*shrinking, *of_model[:1])),
        *(partial(_with_text, kind=kind, change=change) for kind, change in of_text),
        *(partial(_with_parameters, change=change) for change in of_model[1:]),  # slower ones last
    ]


def _with_parameters(setting: Setting, change: dict[str, Any]) -> Setting:
    return replace(setting, parameters={**setting.parameters, **change})


def _with_text(setting: Setting, kind: str, change: dict[str, Any]) -> Setting:
    kept = setting.text_parameters if kind == setting.text else {}
    return replace(setting, text=kind, text_parameters={**kept, **change})


def neighbour(setting: Setting, random: np.random.Generator) -> Setting:
    """Return the setting with one or two parameters of the model or the vectoriser changed at random."""
    for _ in range(random.integers(1, 3)):
        places = [(name, values, False) for name, values in SPACES.get(setting.model, {}).items()]
        if setting.text is not None:
            places += [(name, values, True) for name, values in TEXT_SPACES[setting.text].items()]
            places.append(("text", tuple(TEXT_SPACES), True))
        if not places:
            return setting
        name, values, of_text = places[random.integers(len(places))]
        value = values[random.integers(len(values))]
        if name == "text" and of_text:
            setting = _with_text(setting, value, {})
        elif of_text:
            setting = _with_text(setting, setting.text or "", {name: value})
        else:
            setting = _with_parameters(setting, {name: value})
    return setting


def distance(one: Setting, other: Setting) -> int:
    """Return the number of parameters that differ."""
    pairs = ((one.parameters, other.parameters), (one.text_parameters, other.text_parameters))
    differ = sum(a.get(name) != b.get(name) for a, b in pairs for name in {*a, *b})
    return differ + (one.text != other.text)
