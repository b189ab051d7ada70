"""The search: defaults first, then a few ideas, then what a sampler proposes, on growing samples of rows."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from statistics import median
from typing import Any, NamedTuple

from treemax.modelfile import AnyPath, saved_bytes
from treemax.parameters import check_number
from treemax.text import TextModel
from treemax.tuning.data import TuningData
from treemax.tuning.metric import Metric, Objective, default_metric, parse_metric
from treemax.tuning.result import DONE, Record, TuneResult
from treemax.tuning.spaces import Setting, applicable, first_ideas
from treemax.tuning.study import Study, load_optuna
from treemax.tuning.watch import OutOfTime, Stopped, Watch

REFIT = 1.2  # how much longer than expected training on all rows may take
MOST_OF_BUDGET = 0.25  # for one training, once there is a model
FIRST_SAMPLE_OF_BUDGET = 0.1  # for the first sample of a default
FAR_BEHIND = 0.5  # a default with less than this share of the best on the first sample is not trained further
MOST_REPEATS = 20  # proposals in a row that were tried already, or do not fit, until the search ends
WARM_UP_ROWS = 300
TIMED_SECONDS = 0.3  # how long answers are timed


class Limits(NamedTuple):
    """What a model may take at most: megabytes of its file, microseconds to answer a row."""

    mb: float | None
    us: float | None


@dataclass
class Candidate:
    """A setting under trial."""

    trial: Any
    record: Record
    runs: list[tuple[int, float]] = field(default_factory=list)  # rows and seconds of each sample
    excess: float = 0.0
    open: bool = True


class Fitted(NamedTuple):
    """A trained model, and what it took and reached."""

    model: Any
    seconds: float
    value: float
    mb: float
    us: float


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
) -> TuneResult:
    """Search over models and their settings by validation, and train the best on all rows.

    The defaults of all models that suit the data are tried first, then a few changes that often help, then what
    optuna's sampler proposes from what was tried. Settings are compared on growing samples of the rows, and only the best
    third goes on to the next. A tenth of the rows, 5,000 at most, is held out for the comparison. Ctrl-C ends the search
    and gives the best so far. Needs the extra `tune`.

    Parameters
    ----------
    X : matrix, data frame, any SciPy sparse format, or list of texts
        With texts the vectoriser is part of the search, and the result is a `TextModel`.
    y : vector, list of label lists, or indicator matrix
        As in `fit`.
    minutes : float
        For all of it: the search, and the training on all rows at the end.
    metric : str or None
        What is maximised: "P@k", "PSP@k", "nDCG@k" with a number for k, "macro-F1" or "micro-F1" (of what `predict`
        answers; with @k, of the k best labels). None is "P@1", and "P@5" where rows have several labels.
    models : list of str or None
        Names as in `treemax.MODELS`. None is all that suit the data, without baselines.
    max_mb : float or None
        Limit on the size of the model file, in megabytes.
    max_us : float or None
        Limit on the time to answer a row, in microseconds, when many are asked for at once; with texts that
        includes the vectoriser.
    max_trials : int or None
        Settings to try at most in this call.
    n_jobs : int or None
        Threads of each model, -1 for all cores.
    random_state : int
        Seed of the split, of the models and of the proposals.
    study : path or None
        A file that keeps what was tried. If it is there, the search goes on from it; one of other data is refused.
    verbose : int
        0 for silence, 1 for a line whenever a better setting is found, 2 for a line about every setting.
    report : callable or None
        Gets the lines in place of `print`.

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
    for name, limit in (("max_mb", max_mb), ("max_us", max_us)):
        if limit is not None:
            check_number(name, limit, above=0)
    if max_trials is not None:
        check_number("max_trials", max_trials, whole=True, least=1)
    with Watch(60 * minutes) as watch:
        data = TuningData(X, y, random_state)
        names = applicable(models, data.rows, data.multi_label)
        goal = chosen or default_metric(data.multi_label)
        facts = {
            "data": data.fingerprint(), "metric": str(goal), "models": names, "random state": random_state,
        }  # fmt: skip
        kept = Study(study, facts, names, data.texts is not None, random_state)
        search = Search(data, goal, kept, watch, names, Limits(max_mb, max_us), n_jobs, random_state)
        search.report, search.verbose = report or print, verbose
        search.run(max_trials)
        return search.result()


class Search:
    """One search: what it works on, and how it stands."""

    report: Callable[[str], object] = print
    verbose = 1

    def __init__(
        self, data: TuningData, metric: Metric, study: Study, watch: Watch, models: list[str], limits: Limits,
        n_jobs: int | None, random_state: int,
    ) -> None:  # fmt: skip
        self.data, self.metric, self.study, self.watch = data, metric, study, watch
        self.models, self.limits = models, limits
        self.n_jobs, self.random_state = n_jobs, random_state
        index, counts = data.index()
        self.objective = Objective(metric, index, data.held_labels, counts, data.n_rows)
        self.tried = {record.setting.key for record in study.records}
        self.kept: tuple[Record, Any] | None = None  # the best of this call, and its model
        self._trials_left: float = float("inf")

    # --- the search -------------------------------------------------------------------------------------

    def run(self, max_trials: int | None) -> None:
        """Try settings until the time, the trials or the settings are used up, or Ctrl-C."""
        self._trials_left = float("inf") if max_trials is None else max_trials
        try:
            self._try_defaults()
            for setting in first_ideas(self._models_by_default(), self.data.texts is not None):
                self._try(setting)
            self._try_proposals()
        except Stopped:
            pass

    def _try_defaults(self) -> None:
        """All defaults on the first sample; then the others, best first."""
        text = None if self.data.texts is None else "tfidf"
        begun = []
        for model in self.models:
            candidate = self._begin(Setting(model, {}, text))
            if candidate is not None:
                begun.append(candidate)
                self._compile(candidate.record.setting)
                limit = FIRST_SAMPLE_OF_BUDGET * self.watch.seconds
                self._train(
                    candidate, 0, limit if len(self.data.sizes) > 1 else self._time_for(self.data.n_train)
                )
        begun = [candidate for candidate in begun if candidate.open]
        begun.sort(key=lambda candidate: candidate.record.value or 0.0, reverse=True)
        for candidate in begun:
            if (candidate.record.value or 0.0) < FAR_BEHIND * (begun[0].record.value or 0.0):
                self._close(candidate, "far behind")
            else:
                self._climb(candidate, 1, stop_early=False)

    def _models_by_default(self) -> list[str]:
        """The models by how good their defaults were."""
        defaults = [record for record in self.study.records if record.setting.is_default]
        defaults = [record for record in defaults if record.value is not None]
        ordered = [record.setting.model for record in sorted(defaults, key=_rank, reverse=True)]
        return ordered or self.models

    def _try_proposals(self) -> None:
        repeats = 0
        while repeats < MOST_REPEATS and self._trials_left > 0 and self._time_left():
            repeats = 0 if self._try(None) else repeats + 1

    def _try(self, setting: Setting | None) -> bool:
        """Try a setting, or one that is proposed; False if it was tried before, or does not fit."""
        candidate = self._begin(setting)
        if candidate is None:
            return False
        self._climb(candidate, 0, stop_early=True)
        return bool(candidate.runs)

    def _begin(self, setting: Setting | None) -> Candidate | None:
        if self._trials_left < 1 or not self._time_left() or (setting and setting.key in self.tried):
            return None
        trial, proposed = self.study.propose(setting)
        if proposed.key in self.tried:
            self.study.drop(trial)
            return None
        candidate = Candidate(trial, Record(proposed))
        if self._expected(candidate, self.data.sizes[0]) > self._time_for(self.data.sizes[0]):
            self.study.drop(trial)
            return None
        self.tried.add(proposed.key)
        self._trials_left -= 1
        return candidate

    def _climb(self, candidate: Candidate, sample: int, stop_early: bool) -> None:
        """Train on one sample after the other while the candidate is good enough and there is time."""
        for number in range(sample, len(self.data.sizes)):
            size = self.data.sizes[number]
            if candidate.open and self._expected(candidate, size) > self._time_for(size):
                self._close(candidate, "too slow")
            if candidate.open:
                self._train(candidate, number, self._time_for(size), stop_early)

    def _train(
        self, candidate: Candidate, sample: int, limit: float | None, stop_early: bool = False
    ) -> None:
        """Train and measure on one sample, and close the candidate if it goes no further."""
        size, record = self.data.sizes[sample], candidate.record
        try:
            fitted = self.watch.run(lambda: self._fitted(record.setting, size), limit)
        except OutOfTime:
            self._close(candidate, "too slow")
            return
        except Stopped:
            self._close(candidate, "interrupted")
            raise
        except Exception as error:  # whatever is wrong with one setting must not end the search
            self._close(candidate, f"failed: {type(error).__name__}: {error}"[:300])
            return
        candidate.runs.append((size, fitted.seconds))
        record.rows, record.seconds, record.value = size, fitted.seconds, fitted.value
        record.mb, record.us = fitted.mb, fitted.us
        candidate.excess = self._excess(record)
        behind = self.study.falls_behind(candidate.trial, fitted.value, sample)
        last = sample == len(self.data.sizes) - 1
        if candidate.excess > 0:
            self._close(candidate, self._above_limits(record))
            return
        if last:
            self._close(candidate, DONE)
        self._keep_if_best(record, fitted.model)
        if not last and behind and stop_early:
            self._close(candidate, "stopped early")

    def _close(self, candidate: Candidate, status: str) -> None:
        candidate.record.status, candidate.open = status, False
        self.study.close(candidate.trial, candidate.record, candidate.excess)
        if self.verbose > 1:
            self.report(f"{self._described(candidate.record)}  ({status})")

    def _keep_if_best(self, record: Record, model: Any) -> None:
        best = (
            max(map(_rank, self._within_limits()), default=None) if self.kept is None else self.kept[0].rank
        )
        if best is not None and (record.rank <= best if self.kept else record.rank < best):
            return
        self.kept = record, model
        if self.verbose == 1:
            self.report(self._described(record))

    def _described(self, record: Record) -> str:
        value = "   -  " if record.value is None else f"{record.value:.4f}"
        rows = (
            "" if record.rows == self.data.n_train else f" on {record.rows:,} of {self.data.n_train:,} rows"
        )
        return f"{self.watch.elapsed:6.0f} s  {self.metric} {value}{rows}  {record.setting}"

    # --- one training -----------------------------------------------------------------------------------

    def _fitted(self, setting: Setting, size: int) -> Fitted:
        """A model trained on a sample, and what the rows held out say of it."""
        estimator = setting.estimator(self.n_jobs, self.random_state, verbose=0)
        seconds = 0.0
        X, labels = self.data.sample(size)
        if self.data.texts is not None:
            vectorised = self.data.vectorised(setting, size)
            X, seconds = vectorised.X, vectorised.seconds
        start = time.perf_counter()
        estimator.fit(X, labels)
        seconds += time.perf_counter() - start
        model = estimator if self.data.texts is None else TextModel(vectorised.vectorizer, estimator)
        top, us = self._timed(model)
        value = self.objective.value(model, self.data.held_X, top)
        return Fitted(model, seconds, value, saved_bytes(model) / 1e6, us)

    def _compile(self, setting: Setting) -> None:
        """Train on a few rows: kernels that a machine has not compiled yet must not count as time of training."""
        with suppress(OutOfTime, ValueError, MemoryError):
            self.watch.run(
                lambda: self._fitted(setting, min(WARM_UP_ROWS, self.data.n_train)), self.watch.remaining
            )

    def _timed(self, model: Any) -> tuple[Any, float]:
        """The best labels of the rows held out, and the microseconds a row; the best of a few times."""
        X, k = self.data.held_X, self.objective.top
        model.predict_topk(X[:1], k)  # compiles what is not compiled yet
        begun, least = time.perf_counter(), float("inf")
        while True:
            start = time.perf_counter()
            top = model.predict_topk(X, k)
            now = time.perf_counter()
            least = min(least, now - start)
            if now - begun > TIMED_SECONDS:
                return top, 1e6 * least / len(self.data.held)

    # --- limits -----------------------------------------------------------------------------------------

    def _excess(self, record: Record) -> float:
        """How far a record is above the limits, relative to them; at most 0 if it is within."""
        grows = self.data.n_rows / self.data.n_train if record.rows == self.data.n_train else 1.0
        pairs = ((record.mb, self.limits.mb, grows), (record.us, self.limits.us, 1.0))
        return max([0.0, *(have * more / limit - 1 for have, limit, more in pairs if have and limit)])

    def _above_limits(self, record: Record) -> str:
        over_mb = (
            self.limits.mb is not None
            and (record.mb or 0) * self.data.n_rows > self.limits.mb * self.data.n_train
        )
        return "too large" if over_mb else "answers too slowly"

    def _within_limits(self) -> list[Record]:
        """Records that count: trained on all training rows, and within the limits of this call."""
        records = (r for r in self.study.records if r.value is not None and r.rows == self.data.n_train)
        return [record for record in records if self._excess(record) <= 0]

    # --- time -------------------------------------------------------------------------------------------

    def _reserve(self) -> float:
        """Seconds to leave for training the best on all rows."""
        best = max(self._within_limits(), key=_rank, default=None)
        if best is None:
            return 0.0
        return REFIT * best.seconds * self.data.n_rows / self.data.n_train

    def _time_for(self, size: int) -> float:
        """Seconds that training on a sample may take. What is trained on all rows may have to be trained again."""
        remaining = self.watch.remaining
        limit = remaining - self._reserve()
        if size == self.data.n_train:
            limit = min(limit, remaining / (1 + REFIT * self.data.n_rows / self.data.n_train))
        return limit if self.kept is None else min(limit, MOST_OF_BUDGET * self.watch.seconds)

    def _expected(self, candidate: Candidate, size: int) -> float:
        """Seconds that training on a sample is expected to take."""
        if not candidate.runs:
            model = candidate.record.setting.model
            same = [r for r in self.study.records if r.setting.model == model and r.rows]
            return median(r.seconds * size / r.rows for r in same) if same else 0.0
        rows, seconds = candidate.runs[-1]
        growth = size / rows
        if len(candidate.runs) > 1:
            growth = max(growth, seconds / max(candidate.runs[-2][1], 1e-9))
        return seconds * growth

    def _time_left(self) -> bool:
        return self._time_for(self.data.sizes[0]) > 0

    # --- the end ----------------------------------------------------------------------------------------

    def result(self) -> TuneResult:
        """The best setting, trained on all rows unless Ctrl-C came before."""
        interrupted = self.watch.stopped
        best = sorted(self._within_limits(), key=_rank, reverse=True)
        if not best and self.kept is None:
            self._refuse()
        in_memory = self.kept is not None and (not best or self.kept[0].rank >= best[0].rank)
        refitted = None
        if best and not (interrupted and in_memory):
            self.watch.stopped = False  # a second Ctrl-C ends this, too
            refitted = self._refitted(best)
            interrupted = interrupted or self.watch.stopped
        if refitted is None and self.kept is None:
            raise KeyboardInterrupt("interrupted before there was a model; what was tried is in the study")
        record, model = refitted or self.kept  # type: ignore[misc]
        table = [record.line(number) for number, record in enumerate(self.study.records)]
        if self.verbose:
            self._report_end(record, refitted is not None)
        line = next(
            (line for line, other in zip(table, self.study.records) if other is record), record.line(-1)
        )
        return TuneResult(model, line, table, str(self.metric), refitted is not None, interrupted)

    def _refitted(self, best: list[Record]) -> tuple[Record, Any] | None:
        """The best setting whose model of all rows is within the limits; None if Ctrl-C or an error came."""
        for record in best:
            setting = record.setting
            model = setting.estimator(self.n_jobs, self.random_state, verbose=min(self.verbose, 1))
            if setting.text is not None:
                model = TextModel(setting.vectorizer(), model)
            try:
                self.watch.run(lambda model=model: model.fit(self.data.X, self.data.y))  # type: ignore[misc]
            except (Stopped, MemoryError):
                return None
            if self.limits.mb is None or saved_bytes(model) <= 1e6 * self.limits.mb:
                return record, model
        return None

    def _report_end(self, record: Record, refitted: bool) -> None:
        if refitted:
            self.report(f"Trained on all {self.data.n_rows:,} rows: {record.setting}")
        else:
            self.report(
                f"Not trained on all rows; the model is that of {record.rows:,} rows: {record.setting}"
            )

    def _refuse(self) -> None:
        """Say why there is no model."""
        if self.watch.stopped:
            raise KeyboardInterrupt("interrupted before there was a model")
        records = self.study.records
        measured = [record for record in records if record.mb is not None]
        if measured:
            mb, us = min(r.mb or 0.0 for r in measured), min(r.us or 0.0 for r in measured)
            raise ValueError(
                f"No setting was within the limits (max_mb={self.limits.mb}, max_us={self.limits.us}): the smallest "
                f"file had {mb:.2f} MB, the fastest answers took {us:.1f} us a row."
            )
        failed = [record for record in records if record.status.startswith("failed")]
        if failed:
            raise ValueError(f"All settings failed; the first, {failed[0].setting}: {failed[0].status}.")
        raise ValueError(f"No setting could be trained in {self.watch.seconds / 60:g} minutes: give it more.")


def _rank(record: Record) -> tuple[int, float]:
    return record.rank
