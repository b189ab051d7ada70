"""Search over settings: defaults, then common improvements, then proposals, all on growing samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from treemax.modelfile import AnyPath, saved_bytes
from treemax.parameters import check_number
from treemax.tuning.data import TuningData
from treemax.tuning.metric import Objective, default_metric, parse_metric
from treemax.tuning.result import ABOVE_LIMITS, DONE, INTERRUPTED, TOO_SLOW, Record, TuneResult
from treemax.tuning.spaces import Setting, applicable, common_changes, distance, neighbour
from treemax.tuning.study import Study, load_optuna
from treemax.tuning.training import Trainer
from treemax.tuning.watch import SearchInterrupted, TimeLimitExceeded, Watch

REFIT = 1.2  # safety factor of the expected time of training on all rows
MOST_OF_BUDGET = 0.25  # maximum fraction of the budget for one training, once there is a model
CHEAP = 0.015  # of the budget: smaller samples are skipped while training takes less than this,
CHEAP_CHANGE = 0.08  # for a common change: less than this
SLACK = 1.0  # second that training on any sample may take
FAR_BEHIND = 0.5  # a default with less than this share of the best on the first sample is not trained further
PROMISING = 0.9  # a model whose default has less than this share of the best default is not searched further
MODELS_TO_CHANGE = 2
BEST_TO_CHANGE = 3  # settings whose neighbours are proposed
MOST_REPEATS = 20  # consecutive proposals that are repeated or invalid, after which the search ends
MOST_REFITS = 3  # models trained on all rows, if the first exceed the limits
FINALISTS = 3  # settings compared again, with the best default, to avoid choosing by chance,
CLEARLY_WORSE = 3.0  # except those that are this many standard errors behind,
FOLDS = 4  # on this many other folds,
FINAL_OF_BUDGET = 0.2  # in this share of the budget
WARM_UP_ROWS = 300


class Limits(NamedTuple):
    """Limits of a model: file size in megabytes, prediction time per row in microseconds."""

    mb: float | None
    us: float | None


@dataclass(eq=False)
class Candidate:
    """A setting on trial."""

    trial: Any
    record: Record
    runs: list[tuple[int, float]] = field(default_factory=list)  # rows and seconds of each sample
    excess: float = 0.0  # above the limits


def tune(
    X: Any,
    y: Any,
    *,
    minutes: float = 10,
    metric: str | None = None,
    models: Iterable[str] | None = None,
    max_mb: float | None = None,
    max_us: float | None = None,
    max_trials: int | None = None,
    n_jobs: int | None = None,
    random_state: int = 0,
    study: AnyPath | None = None,
    verbose: int = 1,
    report: Callable[[str], object] | None = None,
    sample_weight: Any = None,
    class_weight: Any = None,
) -> TuneResult:
    """Search over models and settings by validation, and train the best on all rows.

    The defaults of all applicable models are tried first, then a few changes that often help, then proposals of
    optuna's sampler. Settings are compared on growing samples, and only the best third continues to the next. A tenth
    of the rows, at most 5,000, is held out for the comparison; at the end the three best settings and the best default
    are compared again on other rows. Ctrl-C ends the search and returns the best so far. Needs the extra `tune`.

    Parameters
    ----------
    X : matrix, data frame, any SciPy sparse format, or list of texts
        With texts the vectoriser is part of the search, and the result is a `TextModel`.
    y : vector, list of label lists, or indicator matrix
        As in `fit`.
    minutes : float
        Time budget, including training on all rows at the end, without compiling for the first use.
    metric : str or None
        The metric to maximise: "P@k", "PSP@k", "nDCG@k" with a number for k, "macro-F1" or "micro-F1" (of the labels
        of `predict`; with @k, of the top k). None is "P@1", and "P@5" for multi-label data.
    models : list of str or None
        Names as in `treemax.MODELS`. None is all models applicable to the data, without baselines.
    max_mb : float or None
        Limit on the size of the model file, in megabytes.
    max_us : float or None
        Limit on the prediction time per row in microseconds, for many rows at once; with texts, including the
        vectoriser.
    max_trials : int or None
        Maximum number of settings to try in this call.
    n_jobs : int or None
        Threads of each model, -1 for all cores.
    random_state : int
        Seed of the split, of the models and of the proposals.
    study : path or None
        A file for the trials. If it exists, the search resumes from it; raises if it is of other data.
    verbose : int
        0 is silent, 1 prints a line for each better setting, 2 for every setting.
    report : callable or None
        Called with each line instead of `print`.
    sample_weight : array or None
        The weight of each row in training. Validation counts every row once; rows of weight zero are left out of both.
    class_weight : None, "balanced" or dict
        Weights of labels in training, the parameter of all models; those that do not take it for this data are left out.
        A metric such as "macro-F1" goes with it.

    Returns
    -------
    TuneResult
        `model`, `best` and `table`.

    Examples
    --------
    >>> import treemax
    >>> texts = ["red apple", "green apple", "fast car", "red car"] * 25
    >>> y = ["fruit", "fruit", "vehicle", "vehicle"] * 25
    >>> result = treemax.tune(texts, y, models=["one-vs-all"], max_trials=2, verbose=0)
    >>> result.model.predict(["an apple"]).tolist(), result.best["value"], len(result.table)
    (['fruit'], 1.0, 2)
    """
    load_optuna()
    chosen = None if metric is None else parse_metric(metric)
    check_number("minutes", minutes, above=0)
    check_number("random_state", random_state, whole=True, least=0)
    check_number("max_mb", max_mb, above=0, optional=True)
    check_number("max_us", max_us, above=0, optional=True)
    check_number("max_trials", max_trials, whole=True, least=1, optional=True)
    with Watch(60 * minutes) as watch:
        data = TuningData(X, y, random_state, sample_weight, class_weight)
        names = applicable(models, data.rows, data.multi_label)
        goal = chosen or default_metric(data.multi_label)
        facts = {"data": data.fingerprint(), "metric": str(goal), "models": names, "random state": random_state}
        kept = Study(study, facts, names, data.texts is not None, random_state)
        index, counts = data.index()
        objective = Objective(goal, index, counts, data.n_rows)
        trainer = Trainer(data, objective, n_jobs, random_state)
        search = Search(trainer, kept, watch, names, Limits(max_mb, max_us), report or print, verbose)
        search.run(max_trials)
        return search.result()


class Search:
    """A search and its state."""

    def __init__(
        self, trainer: Trainer, study: Study, watch: Watch, models: list[str], limits: Limits,
        report: Callable[[str], object], verbose: int,
    ) -> None:  # fmt: skip
        self.trainer, self.data, self.metric = trainer, trainer.data, trainer.objective.metric
        self.study, self.watch, self.models, self.limits = study, watch, models, limits
        self.report, self.verbose = report, verbose
        self.tried = {r.setting.key for r in study.records if r.status not in (INTERRUPTED, TOO_SLOW)}
        self.kept: tuple[Record, Any] | None = None  # the best so far and its model, if trained in this call
        self._open: list[Candidate] = []
        self._trials_left: float = float("inf")

    # --- trials -----------------------------------------------------------------------------------------

    def run(self, max_trials: int | None) -> None:
        """Try settings until the time, the trials or the settings are exhausted, or Ctrl-C."""
        self._trials_left = float("inf") if max_trials is None else max_trials
        with suppress(SearchInterrupted):
            self._try_defaults()
            self._try_common_changes()
            self._try_proposals()
        for candidate in [*self._open]:  # several are open if Ctrl-C interrupts the defaults
            self._close(candidate, INTERRUPTED)

    def _try_defaults(self) -> None:
        """Try all defaults on the first sample, then on the others, fastest first."""
        for model in self.models:
            candidate = self._begin(Setting(model, {}, None if self.data.texts is None else "tfidf"))
            if candidate is not None:
                self._compile(candidate.record.setting)
                self._train(candidate, 0, stop_early=False)
        best = max((candidate.record.value or 0.0 for candidate in self._open), default=0.0)
        for candidate in sorted(self._open, key=lambda candidate: candidate.record.seconds):
            if (candidate.record.value or 0.0) < FAR_BEHIND * best:
                self._close(candidate, "far behind")
            else:
                self._train_on_larger_samples(candidate, 1, stop_early=False)

    def _try_common_changes(self) -> None:
        """Try changes that often help on the models with the best defaults, fastest first."""
        defaults = [r for r in self.study.records if r.setting.is_default and r.value is not None]
        promising = [default for default in defaults if self._is_promising(default.setting.model)]
        best = sorted(promising, key=_rank, reverse=True)[:MODELS_TO_CHANGE]
        for default in sorted(best, key=lambda record: record.seconds / record.rows):
            for change in common_changes(default.setting, smaller=default.status == ABOVE_LIMITS):
                same = [r for r in self._counting() if r.setting.model == default.setting.model]
                self._try(change(max(same, key=_rank, default=default).setting), common_change=True)

    def _try_proposals(self) -> None:
        """Alternate between neighbours of the best settings and proposals of the sampler."""
        repeats, number = 0, len(self.study.records)
        while repeats < MOST_REPEATS and self._trials_left > 0 and self._time_left():
            number += 1
            random = np.random.default_rng((self.trainer.random_state, number))
            best = sorted(self._counting(), key=_rank, reverse=True)[:BEST_TO_CHANGE]
            if not best:  # none is within the limits: the nearest to them
                measured = (record for record in self.study.records if record.mb is not None)
                best = sorted(measured, key=self._excess)[:BEST_TO_CHANGE]
            changed = None
            if best and number % 2:
                changed = neighbour(best[random.integers(len(best))].setting, random)
            repeats = 0 if self._try(changed) else repeats + 1

    def _try(self, setting: Setting | None, common_change: bool = False) -> bool:
        """Try a setting, or a proposal of the sampler; return False if it was tried before or is invalid.

        Common changes are not stopped early: bigrams, for example, may need more rows than a sample has.
        """
        candidate = self._begin(setting)
        if candidate is None:
            return False
        first = self._first_sample(candidate, CHEAP_CHANGE if common_change else CHEAP)
        self._train_on_larger_samples(candidate, first, stop_early=not common_change)
        return True

    def _begin(self, setting: Setting | None) -> Candidate | None:
        if self._trials_left < 1 or not self._time_left() or (setting and setting.key in self.tried):
            return None
        trial, proposed = self.study.propose(setting)
        candidate = Candidate(trial, Record(proposed))
        size = self.data.sizes[0]
        hopeless = setting is None and not self._is_promising(proposed.model)
        if hopeless or proposed.key in self.tried or self._expected(candidate, size) > self._time_for(size):
            self.study.drop(trial)
            return None
        self.tried.add(proposed.key)
        self._open.append(candidate)
        self._trials_left -= 1
        return candidate

    def _is_promising(self, model: str) -> bool:
        """Return whether the default of a model is near the best default, or exceeds a limit."""
        defaults = {r.setting.model: r for r in self.study.records if r.setting.is_default}
        best = max((r.value or 0.0 for r in defaults.values() if r.status == DONE), default=0.0)
        record = defaults.get(model)
        if record is None or record.status != DONE:
            return record is None or record.status == ABOVE_LIMITS
        return (record.value or 0.0) >= PROMISING * best

    # --- one setting ------------------------------------------------------------------------------------

    def _train_on_larger_samples(self, candidate: Candidate, first: int, stop_early: bool) -> None:
        """Train on increasing samples while the candidate is competitive and there is time."""
        for sample in range(first, len(self.data.sizes)):
            size = self.data.sizes[sample]
            if candidate in self._open and self._expected(candidate, size) > self._time_for(size):
                self._close(candidate, TOO_SLOW)
            if candidate in self._open:
                self._train(candidate, sample, stop_early)

    def _first_sample(self, candidate: Candidate, share: float) -> int:
        """Return the largest sample that takes at most a share of the budget."""
        expected = [self._expected(candidate, size) for size in self.data.sizes]
        cheap = [i for i, seconds in enumerate(expected) if 0 < seconds <= share * self.watch.seconds]
        return max(cheap, default=0)

    def _compile(self, setting: Setting) -> None:
        """Train on a few rows, so that compilation does not count as training time."""
        with suppress(TimeLimitExceeded, ValueError, MemoryError):
            rows = min(WARM_UP_ROWS, self.data.n_train)
            self.watch.run(lambda: self.trainer.fitted(setting, rows), self.watch.remaining)

    def _train(self, candidate: Candidate, sample: int, stop_early: bool) -> None:
        """Train and evaluate on one sample, and close the candidate if it does not continue."""
        size, record = self.data.sizes[sample], candidate.record
        try:
            fitted = self.watch.run(lambda: self.trainer.fitted(record.setting, size), self._time_for(size))
        except TimeLimitExceeded:
            self._close(candidate, TOO_SLOW)
            return
        except Exception as error:  # an error of one setting must not end the search
            self._close(candidate, f"failed: {type(error).__name__}: {error}"[:300])
            return
        candidate.runs.append((size, fitted.seconds))
        record.rows, record.seconds, record.value = size, fitted.seconds, fitted.value
        record.mb, record.us = fitted.mb, fitted.us
        behind = self.study.is_below_best_third(candidate.trial, fitted.value, sample)
        candidate.excess = self._excess(record)
        if candidate.excess > 0:
            self._close(candidate, ABOVE_LIMITS)
            return
        last = size == self.data.n_train
        if last or (behind and stop_early):
            self._close(candidate, DONE if last else "stopped early")
        self._keep_if_best(record, fitted.model)

    def _close(self, candidate: Candidate, status: str) -> None:
        self._open.remove(candidate)
        candidate.record.status = status
        self.study.close(candidate.trial, candidate.record, candidate.excess)
        if self.verbose > 1:
            self.report(f"{self._described(candidate.record)}  ({status})")

    def _keep_if_best(self, record: Record, model: Any) -> None:
        if self.kept is None:
            known = [other for other in self._counting() if other is not record]
            better = all(record.rank >= other.rank for other in known)
        else:
            better = record.rank > self.kept[0].rank
        if better:
            self.kept = replace(record), model  # a copy: the next sample changes the record
            if self.verbose == 1:
                self.report(self._described(record))

    def _described(self, record: Record) -> str:
        value = "-" if record.value is None else f"{record.value:.4f}"
        rows = "" if record.rows == self.data.n_train else f" on {record.rows:,} of {self.data.n_train:,} rows"
        return f"{self.watch.elapsed:6.0f} s  {self.metric} {value}{rows}  {record.setting}"

    # --- limits and time --------------------------------------------------------------------------------

    def _excess(self, record: Record) -> float:
        """Return by how much a record exceeds the limits, relative to them; 0 if it does not."""
        grows = self.data.n_rows / self.data.n_train if record.rows == self.data.n_train else 1.0
        pairs = ((record.mb, self.limits.mb, grows), (record.us, self.limits.us, 1.0))
        return max([0.0, *(have * more / limit - 1 for have, limit, more in pairs if have and limit)])

    def _counting(self) -> list[Record]:
        """Return the eligible records: trained on all training rows, and within the limits of this call."""
        records = (r for r in self.study.records if r.value is not None and r.rows == self.data.n_train)
        return [record for record in records if self._excess(record) <= 0]

    def _reserve(self) -> float:
        """Return the seconds to reserve for the final comparison and for training the best on all rows."""
        best = max(self._counting(), key=_rank, default=None)
        if best is None:
            return 0.0
        fold, share = REFIT * (FINALISTS + 1) * best.seconds, FINAL_OF_BUDGET * self.watch.seconds
        comparison = min(FOLDS * fold, share) if fold < share else 0.0  # no folds if not even one fits
        return comparison + REFIT * best.seconds * self.data.n_rows / self.data.n_train

    def _time_for(self, size: int) -> float:
        """Return the time limit of training on a sample: its share of the limit for all rows."""
        remaining = self.watch.remaining
        most = remaining / (1 + REFIT * self.data.n_rows / self.data.n_train)  # the best is trained again
        if self._counting():
            most = min(most, MOST_OF_BUDGET * self.watch.seconds)
        share = most if size == self.data.n_train else most * size / self.data.n_train + SLACK
        return min(remaining - self._reserve(), share)

    def _expected(self, candidate: Candidate, size: int) -> float:
        """Return the expected seconds of training on a sample; 0 if unknown."""
        if not candidate.runs:
            setting = candidate.record.setting
            same = [r for r in self.study.records if r.setting.model == setting.model and r.rows]
            if not same:
                return 0.0
            nearest = min(reversed(same), key=lambda record: distance(record.setting, setting))
            return nearest.seconds * size / nearest.rows
        rows, seconds = candidate.runs[-1]
        growth = size / rows
        if len(candidate.runs) > 1:
            growth = max(growth, seconds / max(candidate.runs[-2][1], 1e-9))
        return seconds * growth

    def _time_left(self) -> bool:
        return self._time_for(self.data.sizes[0]) > 0

    # --- the end ----------------------------------------------------------------------------------------

    def result(self) -> TuneResult:
        """Return the best setting, trained on all rows unless interrupted."""
        interrupted = self.watch.stopped
        best = sorted(self._counting(), key=_rank, reverse=True)
        if not best and self.kept is None:
            self._raise_no_model()
        found = None
        if best and (self.kept is None or not interrupted):
            self.watch.stopped = False  # another Ctrl-C ends this too
            with suppress(SearchInterrupted):
                found = self._refitted(best if interrupted else self._confirmed(best))
            interrupted = interrupted or self.watch.stopped
        refitted = found is not None
        found = found or self.kept
        if found is None:
            raise KeyboardInterrupt("interrupted before the best model was trained")
        record, model = found
        rows = f"all {self.data.n_rows:,}" if refitted else f"{record.rows:,} of {self.data.n_rows:,}"
        if self.verbose:
            self.report(f"The model was trained on {rows} rows: {record.setting}")
        table = [other.line(number) for number, other in enumerate(self.study.records)]
        keys = [other.setting.key for other in self.study.records]
        own = max(number for number, key in enumerate(keys) if key == record.setting.key)
        line = {**record.line(own), "status": table[own]["status"]}
        return TuneResult(model, line, table, str(self.metric), refitted, interrupted)

    def _confirmed(self, best: list[Record]) -> list[Record]:
        """Return the settings, best first, after comparing the best again on other held-out rows.

        With many trials the first is often best by chance, so it is checked on rows that did not select it.
        """
        finalists = self._finalists(best)
        slowest = max(record.seconds for record in finalists)
        last_training = REFIT * slowest * self.data.n_rows / self.data.n_train
        end = self.watch.elapsed + min(FINAL_OF_BUDGET * self.watch.seconds, self.watch.remaining - last_training)
        values: list[list[float]] = []
        with suppress(TimeLimitExceeded, ValueError, MemoryError):  # then use the folds so far
            for fold in range(1, FOLDS + 1) if len(finalists) > 1 else ():
                if self.watch.elapsed + REFIT * sum(record.seconds for record in finalists) > end:
                    break
                fit = partial(self.trainer.fold(fold).fitted, size=self.data.n_train)
                limit = self.watch.remaining - last_training
                fitted = [self.watch.run(partial(fit, record.setting), limit) for record in finalists]
                values.append([each.value for each in fitted])
        if not values:
            return best
        for record, mean in zip(finalists, np.mean(values, axis=0).tolist()):
            record.confirmed = mean
        finalists.sort(key=lambda record: record.confirmed or 0.0, reverse=True)
        return finalists + [record for record in best if record not in finalists]

    def _finalists(self, best: list[Record]) -> list[Record]:
        """Return the best settings and the best default, without those clearly worse than the first."""
        defaults = [record for record in best if record.setting.is_default]
        known = {record.setting.key: record for record in (*best[:FINALISTS], *defaults[:1])}
        top = min(max(best[0].value or 0.0, 0.0), 1.0)
        error = math.sqrt(top * (1.0 - top) / len(self.data.held))  # the largest possible for a mean of fractions
        return [record for record in known.values() if (record.value or 0.0) >= top - CLEARLY_WORSE * error]

    def _refitted(self, best: list[Record]) -> tuple[Record, Any] | None:
        """Return the best setting and its model of all rows within the limits; None to use the model kept."""
        for record in best[:MOST_REFITS]:
            try:
                train = partial(self.trainer.fitted_on_all, record.setting, min(self.verbose, 1))
                model = self.watch.run(train)
            except MemoryError:
                if self.kept is None:
                    raise
                return None
            if self.limits.mb is None or saved_bytes(model) <= 1e6 * self.limits.mb:
                return record, model
        if self.kept is None:
            raise ValueError(f"Trained on all rows, the best models are above max_mb={self.limits.mb}.")
        return None

    def _raise_no_model(self) -> None:
        """Raise the reason why there is no model."""
        if self.watch.stopped:
            raise KeyboardInterrupt("interrupted before there was a model")
        records = self.study.records
        measured = [record for record in records if record.mb is not None]
        if measured:
            mb, us = min(r.mb or 0.0 for r in measured), min(r.us or 0.0 for r in measured)
            raise ValueError(
                f"No setting was within the limits (max_mb={self.limits.mb}, max_us={self.limits.us}): the smallest "
                f"file had {mb:.2f} MB, the fastest prediction took {us:.1f} us per row."
            )
        failed = [record for record in records if record.status.startswith("failed")]
        if failed:
            raise ValueError(f"All settings failed; the first, {failed[0].setting}: {failed[0].status}.")
        raise ValueError(f"No setting could be trained in {self.watch.seconds / 60:g} minutes: increase minutes.")


def _rank(record: Record) -> tuple[int, float]:
    return record.rank
