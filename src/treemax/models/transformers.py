"""Transformers of scikit-learn in model files: parameters and fitted arrays of an allow-list of classes, without pickle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import TruncatedSVD
from sklearn.feature_extraction.text import CountVectorizer, HashingVectorizer, TfidfTransformer, TfidfVectorizer
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, Normalizer, StandardScaler
from sklearn.utils.validation import check_is_fitted

from treemax.inputs.labels import LabelIndex
from treemax.inputs.limits import MAX_FEATURES
from treemax.modelfile import Arrays, ModelFileError, object_from_parts, object_parts, part, prefixed, saved_by
from treemax.models.trained.parts import MOST_COUNTED, whole_number

_DTYPES = {np.dtype(kind).name: kind for kind in (np.float32, np.float64, np.int32, np.int64, np.uint8, bool)}


class _Saved:
    """How a transformer is saved: its parameters, and the fitted arrays with these names and dimensions."""

    def __init__(self, cls: type, **arrays: int) -> None:
        self.cls = cls
        self.arrays = arrays
        saved_by(self, cls, f"sklearn.{cls.__name__}")

    def to_parts(self, transformer: Any) -> tuple[dict[str, Any], Arrays]:
        """Return the header and the arrays of a fitted transformer."""
        check_is_fitted(transformer)
        header = {
            "parameters": _plain_parameters(transformer),
            "n_features": getattr(transformer, "n_features_in_", None),
            "n_samples_seen": int(np.max(getattr(transformer, "n_samples_seen_", 0))),
        }
        found = {name: getattr(transformer, name, None) for name in self.arrays}
        return header, {name.rstrip("_"): np.asarray(array) for name, array in found.items() if array is not None}

    def from_parts(self, header: dict[str, Any], arrays: Arrays) -> Any:
        """Restore a transformer; raises if an array does not fit the number of features."""
        transformer = self.cls(**_restored_parameters(header["parameters"]))
        transformer._validate_params()
        if header["n_features"] is not None:
            n_features = whole_number("n_features", header["n_features"], most=MAX_FEATURES)
            transformer.n_features_in_ = n_features
        if hasattr(transformer, "partial_fit") and self.arrays:
            transformer.n_samples_seen_ = whole_number("n_samples_seen", header["n_samples_seen"], most=MOST_COUNTED)
        for name, dimensions in self.arrays.items():
            if name.rstrip("_") in arrays or not _may_be_absent(transformer, name):
                array = arrays[name.rstrip("_")]
                setattr(transformer, name, _checked(name, array, dimensions, transformer.n_features_in_))
            elif isinstance(transformer, StandardScaler):
                setattr(transformer, name, None)
        check_is_fitted(transformer)
        return transformer


def _may_be_absent(transformer: Any, name: str) -> bool:
    """Return whether a fitted transformer with these parameters may have no such array."""
    if isinstance(transformer, StandardScaler):
        return not (transformer.with_mean if name == "mean_" else transformer.with_std)
    return isinstance(transformer, TfidfTransformer) and not transformer.use_idf


class _SavedVocabulary(_Saved):
    """How `CountVectorizer` and `TfidfVectorizer` are saved: as above, with the words in the order of their columns."""

    def to_parts(self, transformer: Any) -> tuple[dict[str, Any], Arrays]:
        check_is_fitted(transformer)
        fixed = transformer.vocabulary is not None
        header = {"parameters": _plain_parameters(transformer, vocabulary=None), "own_vocabulary": fixed}
        terms = sorted(transformer.vocabulary_, key=transformer.vocabulary_.get)
        arrays = prefixed("terms", LabelIndex(np.array(terms, dtype=object)).arrays())
        weighted = getattr(transformer, "use_idf", False)
        return header, {**arrays, "idf": np.asarray(transformer.idf_)} if weighted else arrays

    def from_parts(self, header: dict[str, Any], arrays: Arrays) -> Any:
        terms = LabelIndex.from_arrays(part("terms", arrays), "O").classes.tolist()
        parameters = _restored_parameters(header["parameters"])
        transformer = self.cls(**{**parameters, "vocabulary": terms}).fit([""])
        if "idf" in arrays:
            transformer.idf_ = _checked("idf", arrays["idf"], 1, len(terms))
        return transformer if header["own_vocabulary"] else transformer.set_params(vocabulary=None)


class _SavedSteps(_Saved):
    """How `Pipeline` and `FeatureUnion` are saved: each step as itself."""

    def __init__(self, cls: type, steps: str) -> None:
        super().__init__(cls)
        self.steps = steps

    def to_parts(self, transformer: Any) -> tuple[dict[str, Any], Arrays]:
        steps, arrays = [], {}
        for number, (name, step) in enumerate(getattr(transformer, self.steps)):
            if isinstance(step, str):  # "passthrough" or "drop"
                steps.append([name, step])
                continue
            header, part_arrays = object_parts(step)
            steps.append([name, header])
            arrays.update(prefixed(str(number), part_arrays))
        given = {self.steps: None} | ({"memory": None} if hasattr(transformer, "memory") else {})
        return {"parameters": _plain_parameters(transformer, **given), "steps": steps}, arrays

    def from_parts(self, header: dict[str, Any], arrays: Arrays) -> Any:
        steps = [
            (str(name), step if isinstance(step, str) else object_from_parts(step, part(str(number), arrays)))
            for number, (name, step) in enumerate(header["steps"])
        ]
        if not all(step in ("passthrough", "drop") or hasattr(step, "transform") for _, step in steps):
            raise ValueError("a step is not a transformer")
        parameters = _restored_parameters(header["parameters"])
        return self.cls(**{**parameters, self.steps: steps})


def _plain_parameters(transformer: Any, **replaced: Any) -> dict[str, Any]:
    """Return the parameters for the header of a model file; raises for one that it cannot hold."""
    given = {**transformer.get_params(deep=False), **replaced}
    kind = type(transformer).__name__
    if given.get("input", "content") != "content":
        raise ModelFileError(f"A {kind} that reads files (input={given['input']!r}) cannot be saved.")
    return {name: _plain(value, f"{kind}({name}={value!r:.60})") for name, value in given.items()}


def _plain(value: Any, where: str) -> Any:
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return {type(value).__name__: [_plain(entry, where) for entry in value]}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {"dict": {key: _plain(entry, where) for key, entry in value.items()}}
    if isinstance(value, type | np.dtype) and np.dtype(value).name in _DTYPES:
        return {"dtype": np.dtype(value).name}
    raise ModelFileError(
        f"{where} cannot be saved: a model file holds numbers, strings and lists of them, but no code. Use parameters "
        "that are such values, or save the estimator alone."
    )


def _restored_parameters(parameters: dict[str, Any]) -> dict[str, Any]:
    restored = {name: _restored(value) for name, value in parameters.items()}
    if restored.get("input", "content") != "content":
        raise ValueError("it reads files")
    return restored


def _restored(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "dtype":
        return _DTYPES[content]
    if kind == "dict":
        return {key: _restored(entry) for key, entry in content.items()}
    return {"list": list, "tuple": tuple}[kind](map(_restored, content))


def _checked(name: str, array: NDArray[Any], dimensions: int, n_features: int) -> NDArray[Any]:
    if array.ndim != dimensions or array.shape[-1] != n_features or array.dtype.kind != "f":
        raise ValueError(f"{name} does not fit the {n_features} features")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} has NaN or infinity")
    return array


_Saved(HashingVectorizer)
_Saved(Normalizer)
_Saved(TfidfTransformer, idf_=1)
_Saved(StandardScaler, mean_=1, var_=1, scale_=1)
_Saved(MaxAbsScaler, max_abs_=1, scale_=1)
_Saved(MinMaxScaler, min_=1, scale_=1, data_min_=1, data_max_=1, data_range_=1)
_Saved(TruncatedSVD, components_=2)
_SavedVocabulary(CountVectorizer)
_SavedVocabulary(TfidfVectorizer)
_SavedSteps(Pipeline, "steps")
_SavedSteps(FeatureUnion, "transformer_list")
