"""The published settings of models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, TypeVar

Model = TypeVar("Model", bound="PublishedSettings")


class PublishedSettings:
    """Mixin: `as_published` returns a model with the settings of its paper."""

    _PUBLISHED: ClassVar[Mapping[str, Any] | None] = None  # the paper's values of parameters

    @classmethod
    def as_published(cls: type[Model], **overrides: Any) -> Model:
        """Return the model with the settings of its paper in place of the defaults.

        Parameters
        ----------
        **overrides
            Parameters of the constructor, which replace those of the paper.
        """
        if cls._PUBLISHED is None:
            raise ValueError(f"{cls.__name__} does not come from a paper, so it has no published settings.")
        return cls(**{**cls._PUBLISHED, **overrides})
