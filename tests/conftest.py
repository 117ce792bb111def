"""Plugins for all tests."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

from support.examples import examples

# Other programs use the processors too, so no example has a deadline.
settings.register_profile("headrace", settings.default, max_examples=examples(100), deadline=None)
settings.load_profile("headrace")

# A shell's background jobs ignore both signals, and the processes that tests start would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGQUIT) is signal.SIG_IGN:
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Pause garbage collection, and then exclude the modules and tests from it, because they exist until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_unconfigure() -> None:
    """Let Python release all objects when it exits. Otherwise DuckDB reports leaks."""
    gc.unfreeze()
