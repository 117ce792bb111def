"""Tests of stack traces and error messages. Frames are cached, and long texts are shortened."""

from __future__ import annotations

import linecache
import logging
import traceback

import pytest

from headrace.api.errors import ConnectError
from headrace.runtime.error_counters import ErrorCounters
from headrace.runtime.error_policy import ErrorLog, Failure, Stage, tolerance_exceeded
from headrace.runtime.traces import TRACE_LENGTH_MAX, exception_line, message_of, trace_of, traceback_of
from headrace.stores.status_records import encode_status
from headrace.stores.status_store import State, Status
from support.errors import error_policy

SQL_MESSAGE = 'syntax error at or near "FROMM"\nLINE 1: SELECT * FROMM orders\n                 ^\nHINT:  Check it.'


def raise_from(cause: Exception, error: Exception) -> Exception:
    try:
        try:
            raise cause
        except Exception as first:
            raise error from first
    except Exception as caught:  # noqa: BLE001 - the test raises any error
        return caught


def test_trace_begins_with_the_class_and_message_of_the_exception_and_then_of_its_causes() -> None:
    error = raise_from(raise_from(KeyError("orders"), ValueError(SQL_MESSAGE)), ConnectError("\nthe query failed\n"))
    error.add_note("a note")
    lines = trace_of(error).splitlines()
    assert lines[:8] == [
        "headrace.data.errors.ConnectError: the query failed",
        "a note",
        *f"Caused by: ValueError: {SQL_MESSAGE}".splitlines(),
        "Caused by: KeyError: 'orders'",
        "Traceback (most recent call last):",
    ]


def test_trace_begins_with_the_exception_and_not_with_the_exception_that_was_being_handled() -> None:
    assert trace_of(chained()).splitlines()[:5] == [
        "ValueError: context",
        "a note",
        "Raised while handling: RuntimeError: cause",
        "Caused by: KeyError: 'missing'",
        "Traceback (most recent call last):",
    ]


def test_trace_does_not_name_a_suppressed_context() -> None:
    error = raise_from(KeyError("internal"), ValueError("bad value"))
    error.__cause__ = None
    error.__suppress_context__ = True
    assert trace_of(error).splitlines()[:2] == ["ValueError: bad value", "Traceback (most recent call last):"]


def test_trace_lists_at_most_ten_causes_before_the_traceback() -> None:
    error = raised(ValueError("0"))
    for number in range(1, 15):
        error = raise_from(error, ValueError(str(number)))
    assert trace_of(error).partition("Traceback")[0].count("Caused by") == 10


def test_exception_line_contains_only_the_first_line_of_a_message() -> None:
    assert exception_line(trace_of(raised(ValueError(SQL_MESSAGE)))) == 'ValueError: syntax error at or near "FROMM"'


def test_exception_line_contains_the_last_exception_of_an_exception_chain() -> None:
    trace = trace_of(raise_from(ValueError(SQL_MESSAGE), RuntimeError("the query failed")))
    assert exception_line(trace) == "RuntimeError: the query failed"


def test_exception_line_contains_only_the_class_name_if_the_exception_has_no_message() -> None:
    assert exception_line(trace_of(raised(ValueError()))) == "ValueError"


def test_exception_line_is_the_first_line_of_a_text_without_stack_frames() -> None:
    assert exception_line("the process exited with code 9\n") == "the process exited with code 9"
    assert exception_line("") == ""


@pytest.mark.parametrize("character", ["x", "\x01", "\U0001f600", "\udc80"])
def test_status_with_the_stack_trace_of_a_very_long_error_message_fits_into_a_status_record(character: str) -> None:
    trace = trace_of(ValueError(f"cannot insert {character * 2_000_000}"))
    assert len(encode_status(Status(State.FAILED, "host:8083", 1, trace))) < 500_000


def test_long_trace_keeps_the_beginning_and_the_end() -> None:
    trace = trace_of(ValueError(f"cannot insert {'x' * 100_000} into orders"))
    assert exception_line(trace).startswith("ValueError: cannot insert xxx")
    assert trace.count("characters omitted") == 2  # in the message before the traceback, and in the traceback
    assert trace.endswith("xxx into orders\n")
    assert len(trace) < TRACE_LENGTH_MAX + 100


class RaisingStr(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")

    __repr__ = __str__


class NoneStr(Exception):
    def __str__(self) -> str:
        return None  # type: ignore[return-value]


def raised(error: Exception, depth: int = 0) -> Exception:
    def raise_at(depth: int) -> None:
        if depth:
            raise_at(depth - 1)
        raise error

    try:
        raise_at(depth)
    except Exception as caught:  # noqa: BLE001 - the test raises any error
        return caught
    raise AssertionError("unreachable")


def chained() -> Exception:
    try:
        try:
            {}["missing"]
        except KeyError as error:
            raise RuntimeError("cause") from error
    except RuntimeError:
        error = raised(ValueError("context"), 3)
        error.add_note("a note")
        return error


def cyclic() -> Exception:
    first, second = raised(ValueError("first")), raised(ValueError("second"))
    first.__cause__, second.__cause__ = second, first
    return first


@pytest.mark.parametrize(
    "error",
    [
        ValueError("never raised"),
        raised(ValueError("raised"), 2),
        raised(ValueError("many equal frames"), 50),
        chained(),
        cyclic(),
        raised(ExceptionGroup("group", [chained(), raised(ValueError("second"), 1)])),
        raised(SyntaxError("bad", ("file", 1, 2, "a b", 1, 3))),
        raised(RaisingStr()),
        raised(NoneStr()),
    ],
    ids=lambda error: type(error).__name__,
)
def test_trace_ends_with_the_text_of_pythons_traceback_module(error: Exception) -> None:
    expected = "".join(traceback.format_exception(error))
    assert [traceback_of(error), traceback_of(error)] == [expected, expected]
    assert trace_of(error).endswith(f"\n{expected}") or trace_of(error) == expected


def test_second_trace_reuses_the_formatted_frames_of_the_first_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing() -> Exception:
        return raised(ValueError("x"), 2)

    first = trace_of(failing())
    monkeypatch.setattr(linecache, "checkcache", lambda filename=None: pytest.fail("a frame was formatted again"))
    assert trace_of(failing()) == first


@pytest.mark.parametrize("error", [RaisingStr(), NoneStr()], ids=["str raises", "str returns None"])
def test_failure_is_logged_and_described_if_str_of_its_exception_fails(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    failure = Failure(Stage.TRANSFORMATION, "C", error, 1)
    with caplog.at_level(logging.ERROR):
        ErrorLog("c-0", error_policy(tolerate=True, log=True), ErrorCounters()).add(failure, "a record")
    assert message_of(error) == "<exception str() failed>"
    assert "where a record: <exception str() failed>" in caplog.text
    assert str(tolerance_exceeded(failure, "a record")).endswith(f"{type(error).__name__}: <exception str() failed>")


def test_log_line_of_a_failed_record_omits_the_middle_of_a_long_error_message(
    caplog: pytest.LogCaptureFixture,
) -> None:
    failure = Failure(Stage.TRANSFORMATION, "C", raised(ValueError("x" * 2_000_000)), 1)
    with caplog.at_level(logging.ERROR):
        ErrorLog("c-0", error_policy(tolerate=True, log=True), ErrorCounters()).add(failure, "a record")
    assert "characters omitted" in caplog.text
    assert "Traceback (most recent call last)" in caplog.text
    assert len(caplog.text) < 3 * TRACE_LENGTH_MAX
