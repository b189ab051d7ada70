"""Saving of the classifiers: an estimator as a JSON-able header and named arrays, and back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

import treemax
from treemax import modelfile
from treemax.inputs.labels import Form, LabelIndex
from treemax.inputs.limits import MAX_FEATURES
from treemax.inputs.numbering import FeatureNumbers
from treemax.models.base import thresholds
from treemax.models.base.empty_rows import EmptyRows
from treemax.models.base.label_changes import LabelChanges
from treemax.models.base.predicting import PredictingEstimator
from treemax.models.base.thread_safety import snapshot_access
from treemax.models.calibration import Calibration
from treemax.models.trained.parts import MOST_COUNTED, expect_counts, truth, whole_number

Self = TypeVar("Self", bound="SavedEstimator")


class SavedEstimator(PredictingEstimator, BaseEstimator):
    """Mixin of the classifiers: `save`, and the conversion to and from the parts of a model file."""

    STARTS_WITHOUT_LABELS = False  # whether a stream may begin with rows that have no labels
    reading_: dict[str, Any]  # reader options of the command line for the training data, reused for other data
    _check_trained: Callable[[], None]  # of the classifier

    def _model_parts(self, resume: bool) -> tuple[dict[str, Any], modelfile.Arrays]:
        """Return the model as a JSON-able header and arrays; with `resume`, including the optimiser state."""
        return self.model_.to_parts(resume)

    def _model_from_parts(self, header: dict[str, Any], arrays: modelfile.Arrays) -> Any:
        """Restore the model from its parts; raise ValueError if they are invalid."""
        raise NotImplementedError

    def _parameter_parts(self) -> tuple[dict[str, Any], modelfile.Arrays]:
        """Return the parameters as a JSON-able dictionary, and as arrays those that are large."""
        return saved_parameters(self.get_params(deep=False)), {}

    @classmethod
    def _parameters_from_parts(cls, saved: dict[str, Any], arrays: modelfile.Arrays) -> dict[str, Any]:
        """Restore the parameters from their parts."""
        return restored_parameters(saved)

    def save(self, path: str | Path, resume: bool = False) -> None:
        """Save the model to one `.treemax` file, without pickle; `treemax.load` restores it.

        With `resume` the file includes the optimiser state, to continue training as if it had not been interrupted.
        """
        check_is_fitted(self, "model_")
        modelfile.save(self, path, resume=resume)

    @snapshot_access
    def to_parts(self, resume: bool = False) -> tuple[dict[str, Any], modelfile.Arrays]:
        """Return the estimator as a JSON-able header and named arrays, without forgotten labels."""
        self._check_trained()  # a file with invalid parameters could not be loaded
        if self._changes.forgotten:
            self = self._compacted()
        header, arrays = self._model_parts(resume)
        parameters, parameter_arrays = self._parameter_parts()
        decision, decision_arrays = ({}, {}) if self.decision_ is None else self.decision_.to_parts()
        index_dtype = self.label_index_.dtype
        return {
            "treemax": treemax.__version__,
            "parameters": parameters,
            "label_dtype": None if index_dtype is None else index_dtype.str.replace("<U0", "<U"),
            "label_form": self._label_form,
            "n_features": self.n_features_in_,
            "direct_features": None if self._feature_numbers is None else self._feature_numbers.direct,
            "n_examples": self.n_examples_,
            "sparse_input": self.sparse_input_,
            "calibration": list(self.calibration_),
            "threshold_was_set": self._threshold_was_set,
            "reading": self.reading_,
            **({"decision": decision} if decision else {}),
            "feature_names": list(map(str, getattr(self, "feature_names_in_", []))),
            **self._changes.header(),
            "model": header,
        }, {
            **modelfile.prefixed("labels", self.label_index_.arrays()),
            "label_counts": self.label_counts_,
            **(
                {}
                if self.label_weights_ is None
                else {"label_weights": np.append(self.label_weights_, self._total_weight)}
            ),
            **({} if self._empty_rows is None else {"empty_rows": self._empty_rows.array(len(self.label_index_))}),
            **decision_arrays,
            **modelfile.prefixed("taxonomy", self._taxonomy_arrays()),
            **modelfile.prefixed("model", arrays),
            **modelfile.prefixed("parameters", parameter_arrays),
            **({} if self._feature_numbers is None else {"feature_ids": self._feature_numbers.ids}),
        }

    @classmethod
    def from_parts(cls: type[Self], header: dict[str, Any], arrays: modelfile.Arrays) -> Self:
        """Restore the estimator from its parts."""
        parameters = modelfile.part("parameters", arrays)
        estimator = cls(**cls._parameters_from_parts(header["parameters"], parameters))
        estimator._check_when_used()
        index = LabelIndex.from_arrays(modelfile.part("labels", arrays), header["label_dtype"])
        form, names = header["label_form"], header["feature_names"]
        may_be_empty = cls.STARTS_WITHOUT_LABELS and form == "lists"
        if (len(index) == 0 and not may_be_empty) or form not in get_args(Form):
            raise ValueError(f"it has {len(index)} labels, in the form {form!r:.40}")
        changes = estimator._changes = LabelChanges.from_header(header, len(index))
        if form.endswith("indicator") and not _are_columns(index.classes, changes.n_columns):
            raise ValueError("the labels are not the columns of an indicator matrix")
        estimator.label_index_ = index
        n_examples = estimator.n_examples_ = whole_number(
            "n_examples", header["n_examples"], most=MOST_COUNTED // max(1, len(index))
        )
        counts = expect_counts(arrays, "label_counts", np.int64, (len(index),), most=n_examples)
        estimator.label_counts_ = np.array(counts)
        if "label_weights" in arrays:
            totals = expect_counts(arrays, "label_weights", np.float64, (len(index) + 1,), most=MOST_COUNTED)
            estimator.label_weights_, estimator._total_weight = np.array(totals[:-1]), float(totals[-1])
        if "empty_rows" in arrays:
            estimator._empty_rows = EmptyRows.checked(
                expect_counts(arrays, "empty_rows", np.float64, (len(index) + 1,), most=MOST_COUNTED)
            )
        estimator.n_features_in_ = whole_number("n_features", header["n_features"], most=MAX_FEATURES)
        if header.get("direct_features") is not None:
            estimator._feature_numbers = FeatureNumbers.checked(
                header["direct_features"], arrays["feature_ids"], estimator.n_features_in_
            )
        estimator.sparse_input_ = truth("sparse_input", header["sparse_input"])
        estimator.calibration_ = Calibration.checked(header["calibration"])
        estimator._threshold_was_set = truth("threshold_was_set", header["threshold_was_set"])
        if "decision" in header:
            estimator.decision_ = thresholds.Decision.from_parts(header["decision"], arrays, len(index))
        estimator._set_taxonomy_from(modelfile.part("taxonomy", arrays))
        estimator.multi_label_ = form != "vector"
        estimator._label_form = form
        estimator.reading_ = dict(header["reading"])
        if not isinstance(names, list) or not all(type(name) is str for name in names):
            raise ValueError("the names of the features are not strings")
        if names and len(names) != estimator.n_features_in_:
            raise ValueError(f"it has {len(names)} names for {estimator.n_features_in_} features")
        if names:
            estimator.feature_names_in_ = np.array(names, dtype=object)
        model = estimator._model_from_parts(header["model"], modelfile.part("model", arrays))
        if getattr(model, "n_features", estimator.n_features_in_) != estimator.n_features_in_:
            raise ValueError("the weights do not fit the features")
        estimator.model_ = model
        return estimator


def _are_columns(labels: NDArray[Any], n_columns: int | None) -> bool:
    """Return whether labels are the columns of an indicator matrix; with `n_columns`, some were removed."""
    if n_columns is None:
        return np.array_equal(labels, np.arange(len(labels)))
    return labels[0] >= 0 and labels[-1] < n_columns and bool((np.diff(labels) > 0).all())


def saved_parameters(given: dict[str, Any]) -> dict[str, Any]:
    """Return parameters for the header of a model file; class weights are stored as pairs, and only if they are given."""
    saved = {name: jsonable(name, value) for name, value in given.items() if name != "class_weight"}
    class_weight = given.get("class_weight")
    if isinstance(class_weight, Mapping):
        saved["class_weight"] = [[jsonable("class_weight", part) for part in pair] for pair in class_weight.items()]
    elif class_weight is not None:
        saved["class_weight"] = class_weight
    return saved


def restored_parameters(saved: dict[str, Any]) -> dict[str, Any]:
    """Restore the parameters that `saved_parameters` returned."""
    pairs = saved.get("class_weight")
    if not isinstance(pairs, list):
        return saved
    if not all(isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str | int) for pair in pairs):
        raise ValueError(f"class_weight is {pairs!r:.40}, expected pairs of a label and a weight")
    return {**saved, "class_weight": dict(pairs)}


def jsonable(name: str, value: Any) -> Any:
    """Return a parameter for the header of a model file; raise ValueError if it cannot be stored."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, np.random.RandomState):
        return None  # its state is not stored; a loaded model draws a new sequence
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(f"Parameter {name}={value!r} cannot be saved; use a number, a string, True, False or None.")
