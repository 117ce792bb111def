"""Determines the outcome of each operation of a bulk request from the server's response. This module does no I/O.

- If the document has the same external version as the record, the record is already stored. The server reports a
  version conflict in this case.
- If a document with the id of a `create` operation exists, the server reports a version conflict, too. The document was
  created from this record, or from another record with the same key.
- If the document has a higher version than the record, the server reports a version conflict, too. The record is not
  stored.
- An `update` with a version conflict is repeated.
- An operation with the status 429, 502, 503 or 504 is repeated, because these statuses are temporary.
- The error types in `MALFORMED` are errors in the document. `behavior.on.malformed.documents` determines what happens.
- Every other error causes the task to fail.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

from headrace_connectors.elasticsearch.rejected_fields import RejectedField, rejected_field

TEMPORARY_STATUSES = frozenset({429, 502, 503, 504})
MALFORMED = frozenset(
    {
        "strict_dynamic_mapping_exception",
        "mapper_parsing_exception",
        "illegal_argument_exception",
        "action_request_validation_exception",
        "document_parsing_exception",
    }
)
_CONFLICT = "version_conflict_engine_exception"
MAX_BACKOFF_MS = 24 * 60 * 60 * 1000


class Verdict(Enum):
    """The result of an operation of a bulk request. It determines what the writer does next."""

    STORED = 0
    NEWER = 1
    """The document has a higher version. A later record of the key was stored first, or other records wrote it."""
    EXISTS = 2
    """A `create` operation has found a document with its id."""
    RETRY = 3
    MALFORMED = 4
    FATAL = 5


class Outcome(NamedTuple):
    """The verdict on one operation of a bulk request. `reason` is the server's error or an empty string."""

    verdict: Verdict
    reason: str = ""
    field: RejectedField | None = None
    """The field because of which the server rejects the document, if the server's error names it."""


_STORED = Outcome(Verdict.STORED)
_VERSIONS = re.compile(r"current version \[(\d+)\] is higher or equal to the one provided \[(\d+)\]")


def outcomes_of(response: Any, count: int, shows_reason: bool) -> list[Outcome]:
    """Return one outcome for each of the `count` operations of a bulk request.

    If `shows_reason` is true, the error of a rejected document contains the server's reason, which may include
    sensitive data. Raises ValueError if the response is not an object with `count` items.
    """
    if not isinstance(response, Mapping):
        raise ValueError(f"the response to a bulk request is not a JSON object: {response!r:.100}")
    if response.get("errors") is False:
        return [_STORED] * count
    items = response.get("items")
    if not isinstance(items, list) or len(items) != count:
        raise ValueError(f"the response to a bulk request with {count} operations does not have {count} items")
    return [_outcome(action, result, shows_reason) for item in items for action, result in item.items()]


def _outcome(action: str, item: Mapping[str, Any], shows_reason: bool) -> Outcome:
    error = item.get("error")
    if not error:
        return _STORED
    type_, status = str(error.get("type")), int(item.get("status", 0))
    if type_ == _CONFLICT or status == 409:
        return _conflict(action, type_, str(error.get("reason")))
    index = f", index {error['index']}" if "index" in error else ""
    reason = f"{type_}, status {status}{index}"
    if status in TEMPORARY_STATUSES:
        return Outcome(Verdict.RETRY, f"{reason}: {error.get('reason')}")
    if type_ in MALFORMED:
        details = str(error.get("reason"))
        shown = f"{reason}: {details}" if shows_reason else reason
        return Outcome(Verdict.MALFORMED, shown, rejected_field(details))
    return Outcome(Verdict.FATAL, f"{reason}: {error.get('reason')}")


def _conflict(action: str, type_: str, reason: str) -> Outcome:
    if action == "update":
        return Outcome(Verdict.RETRY, type_)
    if action == "create":
        return Outcome(Verdict.EXISTS, reason)
    versions = _VERSIONS.search(reason)
    if versions is None or versions[1] == versions[2]:
        return _STORED
    return Outcome(Verdict.NEWER, reason)


def indexes_to_retry(outcomes: Sequence[Outcome], ids: Sequence[str | None], is_ordered: bool) -> list[int]:
    """Return the indexes of the operations to repeat, in ascending order.

    `is_ordered` is true for operations without versions, because the server cannot restore their order. If such an
    operation is repeated, the later operations on the same document are repeated after it.
    """
    again: list[int] = []
    repeated: set[str] = set()
    for at, (outcome, document_id) in enumerate(zip(outcomes, ids, strict=True)):
        if outcome.verdict is Verdict.RETRY or (
            is_ordered and document_id in repeated and outcome.verdict is Verdict.STORED
        ):
            again.append(at)
            if document_id is not None:
                repeated.add(document_id)
    return again


def backoff_ms(retry_backoff_ms: int, attempt: int, random: Callable[[float, float], float]) -> float:
    """Return a random pause in ms before a retry.

    The maximum pause is `retry_backoff_ms` * 2^`attempt`, but not more than MAX_BACKOFF_MS. For the first retry,
    `attempt` is 1.
    """
    return random(0, min(retry_backoff_ms << min(attempt, 40), MAX_BACKOFF_MS))
