"""The optuna study of a search: proposes settings, stops poor ones early, and can be stored in a file."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from treemax.extras import import_extra
from treemax.modelfile import AnyPath
from treemax.tuning.data import STEP
from treemax.tuning.result import DONE, INTERRUPTED, Record
from treemax.tuning.spaces import Setting, as_trial, suggest

NAME = "treemax"
RANDOM_TRIALS = 5  # before the sampler uses the trials


def load_optuna() -> Any:
    """Import optuna, or raise with the command to install it."""
    return import_extra("optuna", "tune", "tune")


class Study:
    """Proposals by optuna's tree-structured Parzen estimator, and early stopping by successive halving."""

    def __init__(
        self, path: AnyPath | None, facts: dict[str, Any], models: list[str], texts: bool, random_state: int
    ) -> None:
        self._optuna = load_optuna()
        self._models, self._texts = models, texts
        with self._quiet():
            self._study = self._opened(path, random_state)
            self._check(path, facts)
        self._records = {
            trial.number: Record.from_line(json.loads(trial.user_attrs["record"]))
            for trial in self._study.trials
            if "record" in trial.user_attrs
        }

    @property
    def records(self) -> list[Record]:
        """The trials, in order of start."""
        return [record for _, record in sorted(self._records.items(), key=lambda item: item[0])]

    def propose(self, setting: Setting | None = None) -> tuple[Any, Setting]:
        """Return a trial and its setting: the given one, or a proposal of the sampler."""
        with self._quiet():
            if setting is not None:
                self._study.enqueue_trial(as_trial(setting))
            trial = self._study.ask()
            return trial, suggest(trial, self._models, self._texts)

    def is_below_best_third(self, trial: Any, value: float, sample: int) -> bool:
        """Return whether a value is not among the best third on this sample (0 is the smallest sample)."""
        with self._quiet():
            trial.report(value, sample)
            trials = self._study.get_trials(deepcopy=False)
        values = [trial.intermediate_values[sample] for trial in trials if sample in trial.intermediate_values]
        return value < sorted(values, reverse=True)[max(len(values) // STEP, 1) - 1]

    def close(self, trial: Any, record: Record, excess: float) -> None:
        """Store the result; `excess` is by how much it exceeds the limits, relative to them."""
        states = self._optuna.trial.TrialState
        with self._quiet():
            trial.set_user_attr("record", json.dumps(record.line(trial.number)))
            trial.set_constraint("excess", excess)
            if record.status == DONE:
                self._study.tell(trial, record.value)
            else:  # failures are PRUNED too: the sampler uses them, but not trials with the state FAIL
                self._study.tell(trial, state=states.FAIL if record.status == INTERRUPTED else states.PRUNED)
        self._records[trial.number] = record

    def drop(self, trial: Any) -> None:
        """Discard a proposal that was not tried."""
        with self._quiet():
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)

    def _opened(self, path: AnyPath | None, random_state: int) -> Any:
        optuna, storage = self._optuna, None
        try:
            if path is not None:
                journal = optuna.storages.journal
                lock = journal.JournalFileOpenLock(str(path))
                storage = journal.JournalStorage(journal.JournalFileBackend(str(path), lock_obj=lock))
            study = optuna.create_study(storage=storage, study_name=NAME, direction="maximize", load_if_exists=True)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is not the study of a search ({error}).") from None
        unfinished = optuna.trial.TrialState.RUNNING, optuna.trial.TrialState.WAITING
        for trial in study.get_trials(deepcopy=False, states=unfinished):  # from a killed process
            study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
        study.sampler = optuna.samplers.TPESampler(
            seed=random_state + len(study.trials), n_startup_trials=RANDOM_TRIALS
        )
        return study

    def _check(self, path: AnyPath | None, facts: dict[str, Any]) -> None:
        """Raise for the study of another search."""
        known = self._study.user_attrs
        for name, value in facts.items():
            if known.get(name, value) != value:
                raise ValueError(
                    f"{path} is the study of a search with other {name} ({known[name]!r:.80}, now {value!r:.80}): "
                    "use another file, or delete this one."
                )
            if name not in known:
                self._study.set_user_attr(name, value)

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        """Silence the messages of optuna."""
        logging = self._optuna.logging
        before = logging.get_verbosity()
        logging.set_verbosity(logging.ERROR)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", self._optuna.exceptions.ExperimentalWarning)
                yield
        finally:
            logging.set_verbosity(before)


def study_exists(path: AnyPath) -> bool:
    """Return whether the file has a study."""
    return Path(path).exists() and Path(path).stat().st_size > 0
