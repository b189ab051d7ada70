"""Validation of parameters: what is accepted, what is rejected, and the error messages.

The check at every use is switched off to save a file with an invalid parameter, and the lock is held from outside.
"""

from __future__ import annotations

import inspect
import io
import re
import threading

import numpy as np
import pytest

import treemax
from treemax.parallel.progress import progress_bar
from treemax.parameters import check_choice, check_number


@pytest.mark.parametrize("value", [0, 1, 2.5, np.float32(0.5), np.int64(7), 10])
def test_numbers_within_bounds_pass(value):
    check_number("rate", value, least=0, most=10)


@pytest.mark.parametrize("value", [-1, 10.5, float("nan"), float("inf"), "1", None, True, [1], 1j])
def test_other_things_do_not(value):
    with pytest.raises(ValueError, match="rate must be a number at least 0 and at most 10, got") as caught:
        check_number("rate", value, least=0, most=10)
    assert repr(value) in str(caught.value)


def test_whole_numbers():
    check_number("passes", np.int8(3), whole=True, least=1)
    for value in (1.0, np.float64(2), 0, "3", False):
        with pytest.raises(ValueError, match="passes must be an integer at least 1, got"):
            check_number("passes", value, whole=True, least=1)


def test_a_bound_that_is_not_reached():
    check_number("rate", 1e-30, above=0)
    with pytest.raises(ValueError, match="rate must be a number above 0, got 0"):
        check_number("rate", 0, above=0)


def test_without_bounds_the_message_is_still_a_sentence():
    with pytest.raises(ValueError, match=r"^rate must be a number, got 'x'\.$"):
        check_number("rate", "x")


def test_huge_integers_are_numbers():
    with pytest.raises(ValueError, match="at most 10, got 1000"):
        check_number("rate", 10**400, most=10)
    with pytest.raises(ValueError, match="got an integer of about"):
        check_number("rate", 10**5000, most=10)


@pytest.mark.parametrize(
    ("value", "whole", "words"),
    [(2**31, True, "at most 2147483647"), (1e39, False, "at most 3.4e"), (10**400, False, "at most 3.4e"),
     (1e-300, False, "above 1.2e-38"), (np.float16(0), False, "above 0, got 0.0")],
)  # fmt: skip
def test_numbers_that_kernels_cannot_hold(value, whole, words):
    with pytest.raises(ValueError, match=words):
        check_number("rate", value, whole=whole, above=0)


def test_auto_is_a_word_where_it_is_allowed():
    check_number("rate", "auto", auto=True)
    check_choice("loss", "auto", ("hinge",), auto=True)
    with pytest.raises(ValueError, match="loss must be 'auto' or one of hinge, got 'x'"):
        check_choice("loss", "x", ("hinge",), auto=True)
    with pytest.raises(ValueError, match="loss must be one of hinge, got 'auto'"):
        check_choice("loss", "auto", ("hinge",))


def test_numbers_of_numpy_become_those_of_python():
    X, y = np.eye(4, dtype=np.float32), [0, 1, 2, 3]
    model = treemax.RecallTree(
        beam=np.int8(100), prior=np.float16(0.5), scale=np.bool_(True), n_candidates=np.uint8(200)
    )
    model.fit(X, y)
    assert [type(model.get_params()[name]) for name in ("beam", "prior", "scale")] == [int, float, bool]
    assert model.set_params(beam=np.int16(3)).predict(X).shape == (4,)


def test_parameters_are_checked_once():
    checks = []

    class Counting(treemax.OneVsAll):
        def _check_parameters(self):
            checks.append(1)
            super()._check_parameters()

    X = np.eye(4, dtype=np.float32)
    model = Counting().fit(X, [0, 1, 2, 3])
    for _ in range(3):
        model.predict(X)
    assert len(checks) == 1
    model.set_params(batch_size=8).predict(X)
    checked = len(checks)
    assert checked > 1
    model.predict(X)
    assert len(checks) == checked
    model.batch_size = 0
    for _ in range(2):
        with pytest.raises(ValueError, match="batch_size must be an integer at least 1"):
            model.predict(X)


@pytest.mark.parametrize("name", ["beam", "n_jobs", "random_state"])
def test_a_file_with_a_bad_parameter_is_refused(tmp_path, monkeypatch, name):
    model = treemax.OnlineLabelTree().fit(np.eye(4), [0, 1, 2, 3])
    path = tmp_path / "model.treemax"
    model.save(path)
    setattr(model, name, "x")
    for refused in (lambda: model.save(path), model.describe):
        with pytest.raises(ValueError, match=f"{name} must be"):
            refused()
    assert treemax.load(path).predict(np.eye(4)).shape == (4,)  # the file from before is still there
    with monkeypatch.context() as unchecked:
        unchecked.setattr(treemax.OnlineLabelTree, "_check_when_used", lambda self: False)
        model.save(path)
    with pytest.raises(
        treemax.ModelFileError, match=r"model\.treemax: is damaged: its parts are not those of a Online"
    ):
        treemax.load(path)


def test_a_value_set_during_the_check_is_checked_the_next_time():
    class SetMeanwhile(treemax.LabelTree):
        def _check_parameters(self):
            super()._check_parameters()
            model.beam = 0  # as another thread may

    model = treemax.LabelTree().fit(np.eye(4), [0, 1, 2, 3])
    model.__class__ = SetMeanwhile
    model.set_params(beam=7)._check_when_used()
    with pytest.raises(ValueError, match="beam must be an integer at least 1, got 0"):
        model.predict(np.eye(4))


def test_a_value_set_after_the_check_is_not_used_by_the_same_call(monkeypatch):
    model = treemax.RecallTree(beam=4).fit(np.eye(4), [0, 1, 2, 3])
    check = treemax.RecallTree._check_when_used

    def check_then_set(self):
        changed = check(self)
        model.beam = -(2**62)  # as another thread may
        return changed

    monkeypatch.setattr(treemax.RecallTree, "_check_when_used", check_then_set)
    assert len(model.predict_above(np.eye(4), 0.3)) == 4


@pytest.mark.parametrize("call", ["read", "learn"])
def test_parameters_are_set_between_the_calls_of_other_threads(call):
    model = treemax.OnlineLabelTree().fit(np.eye(4), [0, 1, 2, 3])
    lock = model._lock
    setter = threading.Thread(target=lambda: model.set_params(beam=3), daemon=True)

    def work():
        setter.start()
        setter.join(0.2)
        assert setter.is_alive() and model.beam != 3

    if call == "read":
        lock.read(work)
    else:
        with lock.training:
            work()
    setter.join(30)
    assert model.beam == 3


def test_a_language_model_checks_its_parameters_too(tmp_path):
    model = treemax.TreeLanguageModel(dimension=4, passes=1).fit(["a b", "b a"])
    model.n_jobs = "x"
    for call in (model.predict, model.predict_proba, model.log_prob, model.perplexity):
        with pytest.raises(ValueError, match="n_jobs must be"):
            call(["a"])
    with pytest.raises(ValueError, match="n_jobs must be"):
        model.save(tmp_path / "model.treemax")
    assert not list(tmp_path.iterdir())


def test_a_vectoriser_checks_its_parameters_too():
    text = treemax.TfidfText().fit(["red apple", "green apple"])
    assert text.transform(["red RED"]).nnz == 1
    assert text.set_params(lowercase=False).transform(["RED"]).nnz == 0
    for name, value in (("norm", "x"), ("token_pattern", "("), ("ngram_range", 3), ("sublinear_tf", "x")):
        good = getattr(text, name)
        setattr(text, name, value)
        with pytest.raises(ValueError, match=name):
            text.transform(["red"])
        with pytest.raises(ValueError, match=name):
            text.to_parts()
        setattr(text, name, good)
        header, arrays = text.to_parts()
        with pytest.raises((ValueError, TypeError)):
            treemax.TfidfText.from_parts({**header, "parameters": {**header["parameters"], name: value}}, arrays)
    assert treemax.HashingText(bits=np.int8(20)).transform(["red"]).shape == (1, 2**20)


def test_progress_is_silent_away_from_a_terminal(capsys):
    for verbose in (0, 1):
        with progress_bar(10, "work", "rows", verbose) as bar:
            bar.update(10)
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_progress_shows_on_a_terminal_and_is_wiped_off(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with progress_bar(10, "work", "rows", 1) as bar:
        bar.update(10)
        bar.refresh()
    assert "work" in terminal.getvalue() and "10.0/10.0" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r")
    quiet = Terminal()
    monkeypatch.setattr("sys.stderr", quiet)
    with progress_bar(10, "work", "rows", 0) as bar:
        bar.update(10)
    assert quiet.getvalue() == ""


ESTIMATORS = [*treemax.MODELS.values(), treemax.TreeLanguageModel]
SECTION = re.compile(r"(Parameters|Other Parameters|For reproducing the paper)\n-+\n(.*?)(?:\n\n|$)", re.DOTALL)


def documented(estimator: type) -> dict[str, list[str]]:
    """The names of the parameters in each section of the docstring."""
    sections = SECTION.findall(inspect.getdoc(estimator))
    return {
        title: [name for names in re.findall(r"(?m)^(\w[\w, ]*?)(?: :|$)", text) for name in names.split(", ")]
        for title, text in sections
    }


@pytest.mark.parametrize("estimator", [*ESTIMATORS, treemax.HashingText, treemax.TfidfText])
def test_parameters_are_keyword_only(estimator):
    kinds = {parameter.kind for parameter in inspect.signature(estimator).parameters.values()}
    assert kinds == {inspect.Parameter.KEYWORD_ONLY}


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_all_parameters_are_documented_and_few_are_for_every_user(estimator):
    sections = documented(estimator)
    names = [name for section in sections.values() for name in section]
    if estimator is treemax.SoftmaxForest:  # documents what it adds
        names += [name for section in documented(treemax.SoftmaxTree).values() for name in section]
    assert sorted(names) == sorted(inspect.signature(estimator).parameters)
    assert len(sections["Parameters"]) <= 13


def test_the_first_parameter_of_a_recall_tree_is_its_algorithm():
    assert next(iter(inspect.signature(treemax.RecallTree).parameters)) == "algorithm"
