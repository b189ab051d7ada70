"""The files of the page: no inline scripts or styles, nothing from other hosts, and colours with enough contrast."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import treemax.serving

PAGE = Path(treemax.serving.__file__).parent / "page"
ON_CARD = ("ink", "quiet", "accent", "warm")


def colours(dark: bool) -> dict[str, tuple[float, ...]]:
    """The variables of the style sheet as red, green and blue."""
    light, _, rest = (PAGE / "page.css").read_text().partition("@media (prefers-color-scheme: dark)")
    texts = [light, rest.partition("\n}\n")[0]] if dark else [light]
    found = {}
    for text in texts:
        for name, value in re.findall(r"--([\w-]+): (#[0-9a-f]{6}|\d+, \d+, \d+);", text):
            parts = [int(value[i : i + 2], 16) for i in (1, 3, 5)] if value[0] == "#" else map(int, value.split(", "))
            found[name] = tuple(parts)
    return found


def luminance(colour: tuple[float, ...]) -> float:
    parts = [c / 255 for c in colour]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    lower, higher = sorted((luminance(a), luminance(b)))
    return (higher + 0.05) / (lower + 0.05)


@pytest.mark.parametrize("dark", [False, True])
def test_text_has_enough_contrast(dark):
    own = colours(dark)
    pairs = [
        (name, ground) for name in ON_CARD for ground in ("card", "accent-soft") if name != "warm" or ground == "card"
    ]
    pairs += [
        ("quiet", "ground"),
        ("quiet", "soft"),
        ("accent-ink", "accent"),
        ("cell-ink", "cell"),
        ("cell-ink", "cell-2"),
    ]
    for text, ground in pairs:
        assert contrast(own[text], own[ground]) >= 4.5, (text, ground, contrast(own[text], own[ground]))
    for tint in ("for", "against"):  # the strongest colour behind a word
        mixed = tuple(0.7 * a + 0.3 * b for a, b in zip(own[tint], own["card"]))
        assert contrast(own["ink"], mixed) >= 4.5, (tint, contrast(own["ink"], mixed))


def test_the_page_keeps_to_its_content_security_policy():
    html = (PAGE / "index.html").read_text()
    assert re.findall(r"<script(?![^>]*\bsrc=)", html) == [] and "<style" not in html
    assert re.findall(r"\s(?:style|on\w+)=", html) == []
    script = (PAGE / "page.js").read_text()
    for forbidden in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
        assert forbidden not in script


def test_nothing_comes_from_elsewhere():
    for file in PAGE.iterdir():
        found = re.findall(r"https?://[^\s\"'`)]+|url\(|@import", file.read_text())
        assert set(found) <= {"http://www.w3.org/2000/svg"}, file.name
