"""What the herder refuses, each with the HTTP status that REST answers."""

from __future__ import annotations

from typing import ClassVar


class HerderError(Exception):
    """The base: an internal error."""

    status: ClassVar[int] = 500


class NotFoundError(HerderError):
    """No such connector, task, logger or plug-in."""

    status = 404


class AlreadyExistsError(HerderError):
    """The name is taken."""

    status = 409


class BadRequestError(HerderError):
    """The request cannot be served as it stands."""

    status = 400


class ForbiddenError(HerderError):
    """The worker's configuration forbids it."""

    status = 403


class ConflictError(HerderError):
    """Not now; the client may try again."""

    status = 409


class PayloadTooLargeError(HerderError):
    """The request is larger than any that makes sense."""

    status = 413


class RequestTimeoutError(HerderError):
    """It took too long."""

    status = 500
