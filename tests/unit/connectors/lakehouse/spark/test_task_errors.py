"""Tests that the message of a task's exception is found in Spark's errors."""

from __future__ import annotations

import pytest

from headrace_connectors.lakehouse.spark.task_errors import job_error, python_exception

_JAVA = """
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.handlePythonException(PythonRunner.scala:1)
\tat java.base/java.lang.Thread.run(Thread.java:840)
"""
CLASSIC = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collectAndServe.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 3.0 failed 4 times, most recent \
failure: Lost task 0.3 in stage 3.0 (TID 9) (127.0.0.1 executor 1): org.apache.spark.api.python.PythonException: \
Traceback (most recent call last):
  File "/x/worker.py", line 3622, in main
    process()
    ~~~~~~~^^
  File "/x/spark_work.py", line 22, in fail
    raise ValueError(f"topic t, task {task}:")
%s
"""


@pytest.mark.parametrize(
    ("raised", "name", "message"),
    [
        ("ValueError: topic t, task 0", "ValueError", "topic t, task 0"),
        ("headrace.api.errors.ConnectError: one\ntwo: three", "ConnectError", "one\ntwo: three"),
        ("builtins.ValueError: a\n\n  indented", "ValueError", "a\n\n  indented"),
        ("AssertionError", "AssertionError", "AssertionError"),
        ("ValueError: bad\n SQLSTATE: 38000", "ValueError", "bad"),
    ],
)
def test_message_and_class_of_the_python_exception_are_found(raised: str, name: str, message: str) -> None:
    error = job_error(Exception(CLASSIC % raised + _JAVA + "\nDriver stacktrace:\n\tat x.Y(Z.java:1)"))
    assert (error.error_class, str(error)) == (name, message)


def test_last_exception_of_a_chain_is_reported() -> None:
    first = "Traceback (most recent call last):\n  File 'a', line 1, in f\nKeyError: 'x'\n\n"
    cause = "The above exception was the direct cause of the following exception:\n\n"
    second = "Traceback (most recent call last):\n  File 'b', line 1, in g\nConnectError: no field x\n"
    assert python_exception(first + cause + second + _JAVA) == ("ConnectError", "no field x")


def test_failure_without_a_python_exception_is_reported_in_one_line() -> None:
    text = (
        "Job aborted: Task 0 failed 4 times, most recent failure: Lost task 0.3 (TID 3): worker crashed\nDriver stack"
    )
    error = job_error(Exception(text))
    assert (error.error_class, str(error)) == ("", "Lost task 0.3 (TID 3): worker crashed")
    assert str(job_error(Exception(" something else\n"))) == "something else"


def test_exception_of_a_python_process_that_does_not_start_is_found() -> None:
    text = """org.apache.spark.SparkException:
Error from python worker:
  Traceback (most recent call last):
    File "<frozen runpy>", line 198, in _run_module_as_main
  ModuleNotFoundError: No module named 'pyspark'
PYTHONPATH was:
  /spark/python
org.apache.spark.SparkException: EOFException occurred while reading the port number
"""
    assert python_exception(text + _JAVA) == ("ModuleNotFoundError", "No module named 'pyspark'")
