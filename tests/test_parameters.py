"""Checks of parameters: what passes, what does not, and what the error says."""

from __future__ import annotations

import io

import numpy as np
import pytest

from treemax.parameters import check_number
from treemax.progress import progress_bar


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
    check_number("rate", 1e-300, above=0)
    with pytest.raises(ValueError, match="rate must be a number above 0, got 0"):
        check_number("rate", 0, above=0)


def test_without_bounds_the_message_is_still_a_sentence():
    with pytest.raises(ValueError, match=r"^rate must be a number, got 'x'\.$"):
        check_number("rate", "x")


def test_huge_integers_are_numbers():
    with pytest.raises(ValueError, match="at most 10, got 1000"):
        check_number("rate", 10**400, most=10)


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
