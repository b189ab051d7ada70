"""The systems that can be compared: names from the command line made into a driver, its environment, its settings."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.measure import load_driver

DRIVERS = Path(__file__).parent / "drivers"


@dataclass(frozen=True)
class System:
    name: str  # as on the command line, settings included
    driver: Path
    environment: str
    settings: dict[str, Any]
    ours: bool = False


def peer_names(folder: Path = DRIVERS) -> dict[str, tuple[Path, str, dict[str, Any]]]:
    """Every peer: its driver, environment and default settings. A driver is found by being there."""
    found = {}
    for path in sorted(folder.glob("*.py")):
        driver = load_driver(path)
        for name, settings in driver.SYSTEMS.items():
            found[name] = (path, driver.ENVIRONMENT, settings)
    return found


def our_names() -> list[str]:
    """The models of the library, by their names on the command line."""
    return load_driver(DRIVERS / "treemax.py").models()


def peers(text: str, folder: Path = DRIVERS) -> list[System]:
    """
    >>> [(peer.name, peer.settings["passes"]) for peer in peers("vw-oaa,vw-plt:passes=5")]
    [('vw-oaa', 1), ('vw-plt:passes=5', 5)]
    """
    known = peer_names(folder)
    systems = []
    for name, base, settings in split(text):
        if base not in known:
            raise ValueError(f"There is no peer {base!r}. Known are: {', '.join(known)}.")
        driver, environment, defaults = known[base]
        systems.append(System(name, driver, environment, {**defaults, **settings}))
    return systems


def ours(text: str) -> list[System]:
    """Models of the library; whether a name or a setting exists is for the library to say."""
    driver = DRIVERS / "treemax.py"
    return [
        System(name, driver, "project", {"model": base, **settings}, ours=True) for name, base, settings in split(text)
    ]


def split(text: str) -> list[tuple[str, str, dict[str, Any]]]:
    """`name:setting=value,setting=value,name` as (name with settings, name alone, settings) each.

    >>> split("one-vs-all:loss=softmax,passes=3,label-tree")
    [('one-vs-all:loss=softmax,passes=3', 'one-vs-all', {'loss': 'softmax', 'passes': 3}), ('label-tree', 'label-tree', {})]
    """
    texts: list[str] = []
    for piece in filter(None, (piece.strip() for piece in text.split(","))):
        if "=" in piece and ":" not in piece.split("=")[0]:
            if not texts:
                raise ValueError(f"The setting {piece!r} follows no system: write NAME:{piece}.")
            texts[-1] += ("," if ":" in texts[-1] else ":") + piece
        else:
            texts.append(piece)
    return [(whole, *_settings(whole)) for whole in texts if whole != "none"]


def _settings(whole: str) -> tuple[str, dict[str, Any]]:
    base, _, rest = whole.partition(":")
    settings = {}
    for piece in filter(None, rest.split(",")):
        key, equals, value = piece.partition("=")
        if not equals:
            raise ValueError(f"The setting {piece!r} of {base} has no value: write {piece}=VALUE.")
        try:
            settings[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            settings[key] = value  # a word
    return base, settings
