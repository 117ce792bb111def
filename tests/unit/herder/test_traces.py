"""Tests of `exception_line`, which extracts one line about the exception from a stack trace."""

from __future__ import annotations

import traceback

from headrace.herder.traces import exception_line

SQL_MESSAGE = 'syntax error at or near "FROMM"\nLINE 1: SELECT * FROMM orders\n                 ^\nHINT:  Check it.'


def trace_of(error: Exception, cause: Exception | None = None) -> str:
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
    assert exception_line(trace_of(ValueError(SQL_MESSAGE))) == 'ValueError: syntax error at or near "FROMM"'


def test_exception_line_contains_the_last_exception_of_an_exception_chain() -> None:
    trace = trace_of(RuntimeError("the query failed"), ValueError(SQL_MESSAGE))
    assert exception_line(trace) == "RuntimeError: the query failed"


def test_exception_line_of_an_exception_without_a_message_is_its_class_name() -> None:
    assert exception_line(trace_of(ValueError())) == "ValueError"


def test_exception_line_of_a_text_without_stack_frames_is_the_text() -> None:
    assert exception_line("the process exited with code 9\n") == "the process exited with code 9"
    assert exception_line("") == ""
