"""What can go wrong in a client: each error carries its protocol error code (or None), and whether a retry may help."""

from __future__ import annotations

from collections.abc import Sequence

from headrace_broker.protocol.errors import ErrorCode


class ClientError(Exception):
    """The root of all client errors; `retriable` = the same call may succeed later."""

    code: ErrorCode | None = None
    retriable = False


class ClientConfigError(ClientError):
    """Settings that cannot be; `errors` holds one line for each."""

    def __init__(self, kind: str, errors: Sequence[str]) -> None:
        super().__init__(f"{kind} configuration: " + "; ".join(errors))
        self.errors = tuple(errors)


class BrokerError(ClientError):
    """A broker answered with an error code; `subject` says what it was about (topic-partition, group, broker)."""

    code: ErrorCode

    def __init__(self, code: int, subject: str, message: str | None = None) -> None:
        self.code = ErrorCode.of(code)
        self.retriable = self.code.is_retriable
        self.subject = subject
        self.message = message or self.code.message
        super().__init__(f"{subject}: {self.code.name}: {self.message}")

    def in_doubt(self) -> BrokerError:
        """Return the same error of records that an earlier attempt may have left in the log."""
        doubt = "what became of an earlier attempt is not known: the records may be in the log"
        return BrokerError(self.code, self.subject, f"{self.message.rstrip('.')}; {doubt}")


def error_of(code: int, subject: str, message: str | None) -> BrokerError | None:
    """Return what a broker's code says of `subject`, None when it is no error."""
    return None if code == ErrorCode.NONE else BrokerError(code, subject, message)


class ConnectionLostError(ClientError):
    """The connection broke, or could not be made; a request in flight may or may not have been carried out."""

    retriable = True


class RequestTimeoutError(ConnectionLostError):
    """A broker did not answer in time; its connection was closed."""


class NoBrokerError(ClientError):
    """None of the known brokers answered within the time given."""

    retriable = True


class UnsupportedVersionError(ClientError):
    """The broker and this client have no version of an API in common."""

    code = ErrorCode.UNSUPPORTED_VERSION


class ProtocolViolationError(ClientError):
    """The peer sent bytes that are no answer to what was asked."""


class ClosedError(ClientError):
    """The client was closed."""


class TimedOutError(ClientError):
    """An operation, with all its retries, did not end in time."""

    code = ErrorCode.REQUEST_TIMED_OUT
    retriable = True


class DeliveryTimeoutError(TimedOutError):
    """A batch was not acknowledged within delivery.timeout.ms; it may or may not be in the log."""


class BufferExhaustedError(TimedOutError):
    """buffer.memory stayed full for max.block.ms."""


class RecordTooLargeError(ClientError):
    """A single record is larger than max.request.size or the topic's max.message.bytes."""

    code = ErrorCode.MESSAGE_TOO_LARGE


class OffsetOutOfRangeError(ClientError):
    """A position is outside the log and auto.offset.reset is none."""

    code = ErrorCode.OFFSET_OUT_OF_RANGE


class NoOffsetError(ClientError):
    """No committed offset, and auto.offset.reset is none."""


class CorruptRecordsError(ClientError):
    """Fetched bytes are no sound record batches."""

    code = ErrorCode.CORRUPT_MESSAGE


class CommitFailedError(ClientError):
    """The group went on without this member: its partitions may belong to another one now."""
