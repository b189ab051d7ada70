"""Progress bars: shown on a terminal, silent elsewhere."""

from __future__ import annotations

from typing import Any

from tqdm.auto import tqdm


def progress_bar(total: int, title: str, unit: str, verbose: int) -> Any:
    """Return a tqdm bar, a context manager; shown on a terminal unless `verbose` is 0."""
    return tqdm(
        total=total, desc=title, unit=f" {unit}", unit_scale=True, leave=False, disable=None if verbose else True
    )
