"""Errors of the herder, each with the HTTP status of the REST API's error response."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, ClassVar


class HerderError(Exception):
    """The base class of the herder's errors. An instance of this class is an internal error."""

    status: ClassVar[int] = 500


class NotFoundError(HerderError):
    """The connector, task, logger or plug-in does not exist."""

    status = 404


class AlreadyExistsError(HerderError):
    """A connector with this name already exists."""

    status = 409


class BadRequestError(HerderError):
    """The request is invalid."""

    status = 400


class ForbiddenError(HerderError):
    """The worker's configuration forbids the operation."""

    status = 403


class ConflictError(HerderError):
    """The operation is temporarily impossible. The client may retry it."""

    status = 409


class PayloadTooLargeError(HerderError):
    """The request body exceeds the maximum size."""

    status = 413


class OverloadedError(HerderError):
    """Other requests use the memory for large request bodies. The client may retry the request."""

    status = 503


class UnsupportedMediaTypeError(HerderError):
    """The request body is not JSON, according to its content type."""

    status = 415


class WorkerStoppingError(HerderError):
    """The worker is shutting down and has not executed the request. Another worker of the group may execute it."""

    def __init__(self) -> None:
        super().__init__("Worker is shutting down")


class ForwardError(HerderError):
    """Only another worker can execute the request: the leader, or the worker that runs the connector or task.

    `url` is the other worker's URL, or None if it is unknown, because a rebalance is in progress. `replaced` waits
    until a rebalance has replaced the other worker. `connector_class` is the connector class whose code the request
    calls, if any.
    """

    status = 409

    def __init__(
        self,
        message: str,
        url: str | None,
        replaced: Callable[[], Coroutine[Any, Any, None]] | None = None,
        connector_class: str | None = None,
    ) -> None:
        self.url = url
        self.replaced = replaced
        self.connector_class = connector_class
        super().__init__(message)


class SignatureError(HerderError):
    """An internal request has no valid signature (KIP-507)."""

    def __init__(self, status: int, message: str) -> None:
        self.status = status  # type: ignore[misc]  # it depends on the error
        super().__init__(message)
