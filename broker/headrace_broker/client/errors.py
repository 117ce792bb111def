"""The client's exceptions.

Each exception has a protocol error code (or None), and states whether a retry may succeed.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace_broker.protocol.errors import ErrorCode


class ClientError(Exception):
    """Base class of all client errors. `retriable` is true if the same call may succeed later."""

    code: ErrorCode | None = None
    retriable = False


class ClientConfigError(ClientError):
    """The configuration is invalid. `errors` has one line per invalid key."""

    def __init__(self, kind: str, errors: Sequence[str]) -> None:
        super().__init__(f"{kind} configuration: " + "; ".join(errors))
        self.errors = tuple(errors)


class BrokerError(ClientError):
    """A broker responded with an error code.

    `subject` names the topic-partition, group or broker with the error, or states the operation that failed.
    """

    code: ErrorCode

    def __init__(self, code: int, subject: str, message: str | None = None) -> None:
        self.code = ErrorCode.from_code(code)
        self.retriable = self.code.is_retriable
        self.subject = subject
        self.message = message or self.code.message
        super().__init__(f"{subject}: {self.code.name}: {self.message}")

    def with_unknown_outcome(self) -> BrokerError:
        """Return this error with a note that an earlier attempt may have written the records."""
        note = "an earlier attempt has an unknown outcome, so the records may be in the log"
        return BrokerError(self.code, self.subject, f"{self.message.rstrip('.')}; {note}")


def error_or_none(code: int, subject: str, message: str | None) -> BrokerError | None:
    """Return the BrokerError for an error code, or None if the code is NONE.

    `subject` names the object with the error. `message` is the broker's error message, if the response contains one.
    """
    return None if code == ErrorCode.NONE else BrokerError(code, subject, message)


class ConnectionLostError(ClientError):
    """The connection failed or could not be established. The broker may have processed requests that were sent."""

    retriable = True


class RequestTimeoutError(ConnectionLostError):
    """A broker did not respond in time. The client has closed the connection to this broker."""


class NoBrokerError(ClientError):
    """No known broker can be reached, or no broker responded in time."""

    retriable = True


class UnsupportedVersionError(ClientError):
    """The broker and this client have no version of an API in common."""

    code = ErrorCode.UNSUPPORTED_VERSION


class ProtocolViolationError(ClientError):
    """A broker or group member sent bytes that violate the Kafka protocol."""


class ClosedError(ClientError):
    """The client was closed."""


class TimedOutError(ClientError):
    """An operation, including its retries, did not complete in time."""

    code = ErrorCode.REQUEST_TIMED_OUT
    retriable = True


class DeliveryTimeoutError(TimedOutError):
    """A batch was not acknowledged within delivery.timeout.ms. The log may or may not contain the batch."""


class BufferExhaustedError(TimedOutError):
    """The producer's buffer (buffer.memory) stayed full for max.block.ms."""


class RecordTooLargeError(ClientError):
    """A single record is larger than max.request.size or the topic's max.message.bytes."""

    code = ErrorCode.MESSAGE_TOO_LARGE


class OffsetOutOfRangeError(ClientError):
    """The position is outside the log, and auto.offset.reset is `none`."""

    code = ErrorCode.OFFSET_OUT_OF_RANGE


class NoOffsetError(ClientError):
    """The partition has no committed offset, and auto.offset.reset is `none`."""


class CorruptRecordsError(ClientError):
    """Fetched record batches are corrupt."""

    code = ErrorCode.CORRUPT_MESSAGE


class CommitFailedError(ClientError):
    """A commit failed because the group rebalanced without this member. Other members may own its partitions now."""
