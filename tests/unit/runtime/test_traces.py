"""Tests that long stack traces are shortened, and that the line with the exception is found in a stack trace."""

from __future__ import annotations

import traceback

import pytest

from headrace.runtime.traces import TRACE_LENGTH_MAX, exception_line, trace_of
from headrace.stores.status_records import encode_status
from headrace.stores.status_store import State, Status

SQL_MESSAGE = 'syntax error at or near "FROMM"\nLINE 1: SELECT * FROMM orders\n                 ^\nHINT:  Check it.'


def python_trace(error: Exception, cause: Exception | None = None) -> str:
    try:
        try:
            if cause is not None:
                raise cause
        except Exception as first:
            raise error from first
        raise error
    except Exception:  # noqa: BLE001 - the test raises any error
        return traceback.format_exc()


def test_exception_line_contains_only_the_first_line_of_a_message() -> None:
    assert exception_line(python_trace(ValueError(SQL_MESSAGE))) == 'ValueError: syntax error at or near "FROMM"'


def test_exception_line_contains_the_last_exception_of_an_exception_chain() -> None:
    trace = python_trace(RuntimeError("the query failed"), ValueError(SQL_MESSAGE))
    assert exception_line(trace) == "RuntimeError: the query failed"


def test_exception_line_of_an_exception_without_a_message_is_its_class_name() -> None:
    assert exception_line(python_trace(ValueError())) == "ValueError"


def test_exception_line_of_a_text_without_stack_frames_is_the_text() -> None:
    assert exception_line("the process exited with code 9\n") == "the process exited with code 9"
    assert exception_line("") == ""


@pytest.mark.parametrize("character", ["x", "\x01", "\U0001f600", "\udc80"])
def test_status_with_the_stack_trace_of_a_very_long_error_message_fits_into_a_status_record(character: str) -> None:
    trace = trace_of(ValueError(f"cannot insert {character * 2_000_000}"))
    assert len(encode_status(Status(State.FAILED, "host:8083", 1, trace))) < 500_000


def test_long_trace_keeps_the_beginning_and_the_end() -> None:
    trace = trace_of(ValueError(f"cannot insert {'x' * 100_000} into orders"))
    assert exception_line(trace).startswith("ValueError: cannot insert xxx")
    assert "characters omitted" in trace
    assert trace.endswith("xxx into orders\n")
    assert len(trace) < TRACE_LENGTH_MAX + 100
