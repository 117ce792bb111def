"""Hypothesis settings, signal handlers and pytest hooks for all tests."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Iterator

import pytest
from hypothesis import settings

from support import preloaded
from support.examples import examples
from support.slow_processes import slow_processes

LONGEST_FILES = (
    "test_lakehouse_conformance.py",
    "test_distributed_bounce.py",
    "test_cluster_faults.py",
    "test_simulated_cluster.py",
    "test_connect_distributed_jvm.py",
    "test_jvm_tools.py",
    "test_lakehouse_data_sets.py",
    "test_lakehouse_crashes.py",
    "test_lakehouse_held_commits.py",
    "test_lakehouse_bounds.py",
    "test_lakehouse_parity.py",
    "test_spark_cluster.py",
    "test_demo_kills.py",
    "test_offsets_expiry.py",
    "test_lakehouse_sink.py",
    "test_task_rules.py",
    "test_distributed_groups.py",
    "test_elasticsearch_security.py",
    "test_elasticsearch_api_key.py",
    "test_elasticsearch_sink.py",
    "test_elasticsearch_server_errors.py",
    "test_elasticsearch_distributed.py",
    "test_connector_chain.py",
    "test_connectors_demo.py",
    "test_s3_kills.py",
)
"""The files that need more than half a minute. They run first, so that no process runs one of them alone at the end."""

# Other programs use the processors too, so no example has a deadline.
settings.register_profile("headrace", settings.default, max_examples=examples(100), deadline=None)
settings.load_profile("headrace")

# Otherwise each process of pytest would rewrite all test modules, which takes several seconds of CPU time.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# A shell's background jobs ignore both signals, and the processes that tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN:
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Disable the garbage collector during the collection of tests, and then let it ignore all existing objects.

    The collected modules and tests exist until the end of the run.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Move the tests of LONGEST_FILES to the front. Makefile's `--no-loadscope-reorder` keeps this order."""
    positions = {name: position for position, name in enumerate(LONGEST_FILES)}
    items.sort(key=lambda item: positions.get(item.path.name, len(positions)))


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Iterator[object]:
    """Slow down headrace's processes if SLOW_PROCESSES is set. In a parallel run, each worker of xdist does this."""
    runs_tests = hasattr(session.config, "workerinput") or not session.config.getoption("numprocesses", None)
    if not os.environ.get("SLOW_PROCESSES") or not runs_tests:
        return (yield)
    with slow_processes():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[object]:
    """Let tests with these markers, and their fixtures, start programs with all their imports."""
    preloaded.is_enabled = not any(item.get_closest_marker(name) for name in ("timed", "cold_start"))
    return (yield)


def pytest_unconfigure() -> None:
    """Let Python release all objects when it exits. Otherwise DuckDB reports leaks."""
    gc.unfreeze()
