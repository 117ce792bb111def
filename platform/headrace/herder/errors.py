"""Errors of the herder, each with the HTTP status of the REST API's error response."""

from __future__ import annotations

from typing import ClassVar


class HerderError(Exception):
    """The base class of the herder's errors; an internal error."""

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
    """The operation is temporarily impossible; the client may retry it."""

    status = 409


class PayloadTooLargeError(HerderError):
    """The request body exceeds the maximum size."""

    status = 413


class UnsupportedMediaTypeError(HerderError):
    """The request body is not JSON, according to its content type."""

    status = 415


class RequestTimeoutError(HerderError):
    """The operation did not complete within the request timeout."""

    status = 500
