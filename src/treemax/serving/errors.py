"""Errors that clients see, with their HTTP status."""

from __future__ import annotations


class RequestError(ValueError):
    """A request that cannot be answered; the message is for the client."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status
