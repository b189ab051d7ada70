"""An explanation as HTML: no scripts, nothing fetched, everything that comes from the data escaped.

Colours are transparent, so that they suit light and dark pages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from treemax.explanations.as_text import PATHS, headline, place
from treemax.explanations.explanation import Explanation, Path, Step, others, plain, shown_labels

FOR, AGAINST = "20,150,140", "225,95,35"  # red, green, blue
STYLE = """<style>
.tm-why{font:14px/1.5 system-ui,sans-serif;max-width:60em;overflow-wrap:anywhere}
.tm-why p{margin:.4em 0}
.tm-why .tm-b{display:table;border-collapse:collapse;width:100%;margin:.3em 0;font-size:inherit}
.tm-why th,.tm-why td{text-align:left;vertical-align:top;padding:.2em .6em .2em 0;border-bottom:1px solid rgba(128,128,128,.35)}
.tm-why th{font-weight:bold;overflow-wrap:normal}
.tm-why td.tm-n{white-space:nowrap;font-variant-numeric:tabular-nums}
.tm-why .tm-w{border-radius:3px;padding:0 .25em;margin:0 .1em .1em 0;display:inline-block}
.tm-why .tm-t span{border-radius:2px}
.tm-why .tm-q{opacity:.75}
</style>"""


def explanation_html(explanation: Explanation, features: int) -> str:
    """Return the explanation as a fragment of HTML."""
    return f'{STYLE}\n<div class="tm-why">\n' + "\n".join(_parts(explanation, features)) + "\n</div>"


def html_page(fragments: Sequence[str]) -> str:
    """Return fragments as one page, light or dark as the browser prefers."""
    head = '<meta charset="utf-8"><meta name="color-scheme" content="light dark"><title>Explanation</title>'
    return (
        f"<!DOCTYPE html>\n<html>\n<head>{head}</head>\n<body>\n" + "\n<hr>\n".join(fragments) + "\n</body>\n</html>\n"
    )


def _parts(explanation: Explanation, features: int) -> Iterator[str]:
    yield f"<p><b>{_escaped(headline(explanation))}</b></p>"
    for note in explanation.notes:
        yield f"<p>{_escaped(note)}</p>"
    if explanation.text is not None:
        yield f'<p class="tm-t">{_coloured_text(explanation)}</p>'
    if len(explanation.columns):
        yield f"<p>In all: {_words({}, explanation.ranked(), features)}</p>"
    for title, paths in (("Route", explanation.routes), ("Path", explanation.paths)):
        for number, path in enumerate(paths[:PATHS]):
            yield _path_table(explanation, title, number, path, len(paths), features)
    yield _candidates(explanation)
    yield from _alternative(explanation, features)
    if explanation.weights:
        yield f'<p class="tm-q">Weights: {_escaped(explanation.weights)}</p>'


def _path_table(explanation: Explanation, title: str, number: int, path: Path, n_paths: int, features: int) -> str:
    name = title if n_paths == 1 else f"{title} {number + 1} of {n_paths}, weight {path.weight:.3f}"
    head = f"<tr><th>{name}</th><th>probability</th><th>score</th><th>what added to it</th></tr>"
    rows = "\n".join(_step_row(explanation, place, step, features) for place, step in enumerate(path.steps, 1))
    return f'<table class="tm-b">\n{head}\n{rows}\n</table>'


def _step_row(explanation: Explanation, number: int, step: Step, features: int) -> str:
    labels = shown_labels(step)
    leads = f"{number}. {_escaped(step.branch)}" + (
        f'<br><span class="tm-q">{_escaped(labels)}</span>' if labels else ""
    )
    score, words = "", ""
    if step.logit is not None:
        score, words = f"{step.logit:+.2f}", _words(step.terms, explanation.ranked(step.added), features)
    cells = f'<td class="tm-n">{step.probability:.3f}</td><td class="tm-n">{score}</td><td>{words}</td>'
    return f"<tr><td>{leads}</td>{cells}</tr>"


def _candidates(explanation: Explanation) -> str:
    head = "<tr><th>Candidate</th><th>probability</th><th>score before calibration</th></tr>"
    rows = [
        f'<tr><td>{_escaped(label)}</td><td class="tm-n">{probability:.3f}</td><td class="tm-n">{score:.3f}</td></tr>'
        for label, score, probability in explanation.candidates
    ]
    return f'<table class="tm-b">\n{head}\n' + "\n".join(rows) + "\n</table>"


def _alternative(explanation: Explanation, features: int) -> Iterator[str]:
    other = explanation.alternative
    if other is None:
        return
    ranked = explanation.ranked(other.added) if len(other.added) else []
    words = _words(other.terms, ranked, features)
    more = f"<br>More for {_escaped(explanation.label)}: {words}" if words else ""
    where = f"probability {other.probability:.3f}{place(explanation)}"
    yield f"<p>Otherwise: <b>{_escaped(other.label)}</b>, {_escaped(where)}{more}</p>"


def _words(terms: Mapping[str, float], ranked: Sequence[tuple[Any, float]], features: int) -> str:
    """Return terms and features, each coloured by its contribution."""
    most = max((abs(value) for _, value in ranked), default=0.0)
    parts = [f'<span class="tm-w tm-q">{_escaped(name)} {value:+.2f}</span>' for name, value in terms.items()]
    for name, value in ranked[:features]:
        parts.append(f'<span class="tm-w" style="{_colour(value, most)}">{_escaped(name)} {value:+.2f}</span>')
    rest = ranked[features:]
    if rest:
        parts.append(f'<span class="tm-w tm-q">{others(len(rest))} {sum(value for _, value in rest):+.2f}</span>')
    return " ".join(parts)


def _coloured_text(explanation: Explanation) -> str:
    """Return the text, each character coloured by the contribution of its features."""
    assert explanation.text is not None
    shown = character_weights(explanation)
    most = float(np.abs(shown).max(initial=0.0))
    pieces = []
    for value, group in groupby(zip(explanation.text, shown.tolist()), key=lambda pair: pair[1]):
        words = _escaped("".join(character for character, _ in group))
        if value:
            words = f'<span style="{_colour(value, most)}" title="{value:+.3f}">{words}</span>'
        pieces.append(words)
    return "".join(pieces)


def character_weights(explanation: Explanation) -> NDArray[np.float64]:
    """Return the contribution of the features at each character of the text."""
    shown = np.zeros(len(explanation.text or ""))
    added = explanation.added
    for span in explanation.spans:
        shown[span.start : span.end] += span.share * added[span.feature]
    return shown


def _colour(value: float, most: float) -> str:
    strength = 0.08 + 0.72 * min(1.0, abs(value) / most) if most else 0.0
    return f"background:rgba({FOR if value > 0 else AGAINST},{strength:.2f})"


def _escaped(value: Any) -> str:
    return escape(str(plain(value)))
