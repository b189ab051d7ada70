"""Thread safety of estimators: each call sees one state of the model."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from treemax.parameters import CheckedParameters

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")
Own = TypeVar("Own", bound="SharedEstimator")


class SharedEstimator(CheckedParameters):
    """An estimator whose model is replaced by `fit`, and never changed in place.

    Calls work on a shallow copy of the estimator, and training replaces its attributes atomically, so that calls during
    `fit` see the old model or the new one. `OnlineLabelClassifier`, which changes its model in place, adds a lock.
    """

    def _snapshot(self: Own) -> Own:
        """Return a shallow copy of the estimator."""
        snapshot: Own = object.__new__(type(self))
        snapshot.__dict__.update(self.__dict__)
        return snapshot

    def _frozen(self: Own) -> Own:
        """Return a copy that no training changes."""
        return self._snapshot()

    def _update_from(self, trained: SharedEstimator, before: dict[str, Any]) -> None:
        """Set, atomically, the attributes that training changed in a snapshot that had the attributes `before`."""
        after = trained.__dict__
        kept = {name: value for name, value in self.__dict__.items() if name in after or name not in before}
        changed = {name: value for name, value in after.items() if before.get(name, before) is not value}
        self.__dict__ = {**kept, **changed}

    def _with_read_access(self: Own, work: Callable[..., Result], *args: Any, **options: Any) -> Result:
        """Call `work` with a snapshot of the estimator, whose model does not change during the call."""
        # Not `self._snapshot()`, which takes the lock of an online model once more.
        snapshot = SharedEstimator._snapshot(self)
        if "model_" in snapshot.__dict__ and snapshot._check_when_used():
            self._check_when_used()  # the next call need not; but another thread may have set parameters
        return work(snapshot, *args, **options)

    def _with_snapshot(self: Own, work: Callable[..., Result], *args: Any, **options: Any) -> Result:
        """Call `work` in the same way, where it may take long."""
        return work(self._snapshot(), *args, **options)

    def _with_write_access(self, work: Callable[..., Result], *args: Any, **options: Any) -> Result:
        """Call `work`, which changes the model in place."""
        return work(self, *args, **options)

    def _with_exclusive_access(self, work: Callable[..., Result], *args: Any, **options: Any) -> Result:
        """Call `work`, which changes the model in place, while no other thread trains it."""
        return work(self, *args, **options)

    def _with_read_access_by_rows(self: Own, work: Callable[..., Result], X: Any, *args: Any, **options: Any) -> Result:
        """Call `work`, which predicts each row of X independently, with read access."""
        return self._with_read_access(work, X, *args, **options)


def read_access(method: Callable[Concatenate[Own, Arguments], Result]) -> Callable[Concatenate[Own, Arguments], Result]:
    """Decorate a method that reads the model; any number of threads may call it while another trains."""

    @wraps(method)
    def call(self: Own, /, *args: Arguments.args, **options: Arguments.kwargs) -> Result:
        return self._with_read_access(method, *args, **options)

    return call


def read_access_by_rows(
    method: Callable[Concatenate[Own, Any, Arguments], Result],
) -> Callable[Concatenate[Own, Any, Arguments], Result]:
    """Decorate a method that predicts each row of X independently, so that rows can be predicted in blocks."""

    @wraps(method)
    def call(self: Own, X: Any, *args: Arguments.args, **options: Arguments.kwargs) -> Result:
        return self._with_read_access_by_rows(method, X, *args, **options)

    return call  # type: ignore[return-value]  # X may be given by name


def snapshot_access(
    method: Callable[Concatenate[Own, Arguments], Result],
) -> Callable[Concatenate[Own, Arguments], Result]:
    """Decorate a method that reads the whole model: training waits until it is done, other readers do not."""

    @wraps(method)
    def call(self: Own, /, *args: Arguments.args, **options: Arguments.kwargs) -> Result:
        return self._with_snapshot(method, *args, **options)

    return call
