"""Estimators that several threads use at once: each call sees one state of the model, whatever others do."""

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

    A call works on a copy of the estimator's attributes, and training replaces them all at once: whoever asks
    during a `fit` sees the old model or the new one. `OnlineLabelClassifier`, which changes its model in place, has a lock.
    """

    def _snapshot(self: Own) -> Own:
        """An estimator with the same attributes, which stays as it is when the original gets others."""
        twin: Own = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        return twin

    def _update_from(self, trained: SharedEstimator, before: dict[str, Any]) -> None:
        """Take over, all at once, what training changed in a twin that had the attributes `before`."""
        after = trained.__dict__
        kept = {name: value for name, value in self.__dict__.items() if name in after or name not in before}
        changed = {name: value for name, value in after.items() if before.get(name, before) is not value}
        self.__dict__ = {**kept, **changed}

    def _with_read_access(self: Own, work: Callable[..., Result], *args: Any, **options: Any) -> Result:
        """Call `work` with the estimator as it is, and will be until the answer is there."""
        if "model_" in self.__dict__:
            self._check_when_used()  # what the twin notes of it is lost
        return work(self._snapshot(), *args, **options)

    def _with_snapshot(self: Own, work: Callable[..., Result], *args: Any, **options: Any) -> Result:
        """The same for `work` that may take long."""
        return work(self._snapshot(), *args, **options)

    def _with_write_access(self, work: Callable[..., Result], *args: Any, **options: Any) -> Result:
        """Call `work`, which changes the model in place."""
        return work(self, *args, **options)

    def _with_read_access_by_rows(
        self: Own, work: Callable[..., Result], X: Any, *args: Any, **options: Any
    ) -> Result:
        """The same as `_with_read_access`, for `work` that answers each row of X by itself."""
        return self._with_read_access(work, X, *args, **options)


def read_access(
    method: Callable[Concatenate[Own, Arguments], Result],
) -> Callable[Concatenate[Own, Arguments], Result]:
    """A method that answers questions: any number of threads may call it, while another learns."""

    @wraps(method)
    def answer(self: Own, /, *args: Arguments.args, **options: Arguments.kwargs) -> Result:
        return self._with_read_access(method, *args, **options)

    return answer


def read_access_by_rows(
    method: Callable[Concatenate[Own, Any, Arguments], Result],
) -> Callable[Concatenate[Own, Any, Arguments], Result]:
    """The same for a method that answers each row of its X by itself, so that many rows can be answered in turns."""

    @wraps(method)
    def answer(self: Own, X: Any, *args: Arguments.args, **options: Arguments.kwargs) -> Result:
        return self._with_read_access_by_rows(method, X, *args, **options)

    return answer  # type: ignore[return-value]  # X may be given by name


def snapshot_access(
    method: Callable[Concatenate[Own, Arguments], Result],
) -> Callable[Concatenate[Own, Arguments], Result]:
    """A method that looks at the whole model: learning waits until it is done, and asking goes on."""

    @wraps(method)
    def look(self: Own, /, *args: Arguments.args, **options: Arguments.kwargs) -> Result:
        return self._with_snapshot(method, *args, **options)

    return look
