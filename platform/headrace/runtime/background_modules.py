"""Runs modules that tasks request, in processes that belong to the worker and not to a task.

A module runs in a child process of a host process of its own, which the worker starts as it starts those of tasks. So
the module ends with the worker, and nothing else depends on it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Mapping

from headrace.plugins import registry
from headrace.runtime import messages
from headrace.runtime.channel import ChannelClosed, RemoteError
from headrace.runtime.processes import HostProcess
from headrace.runtime.task_plugins import split_list

log = logging.getLogger(__name__)


class BackgroundModules:
    """The modules that run now, each in a host process that `spawn` creates."""

    def __init__(self, spawn: Callable[[str], Awaitable[HostProcess]], worker: dict[str, str]) -> None:
        self._spawn = spawn
        self._worker = worker
        self._running: dict[str, asyncio.Task[None]] = {}

    def start(self, module: str) -> None:
        """Run a module, unless it is running."""
        if module not in self._running:
            self._running[module] = running = asyncio.ensure_future(self._run(module))
            running.add_done_callback(lambda _: self._running.pop(module, None))

    def close(self) -> None:
        """Wait for no module any more. The worker ends their processes."""
        for running in self._running.values():
            running.cancel()

    async def _run(self, module: str) -> None:
        try:
            host = await self._spawn(module.rpartition(".")[2])
        except OSError as error:
            log.warning("Module %s: its process did not start: %s", module, error)
            return
        try:
            await host.channel.request(messages.RunModule(self._worker, module))
        except RemoteError as error:
            log.warning("Module %s failed: %s", module, error)
        except ChannelClosed:
            log.warning("Module %s: its process (pid %s) exited unexpectedly", module, host.pid)
        else:
            log.info("Module %s has ended", module)
        host.channel.notify(messages.Exit())


async def run_module(worker: Mapping[str, str], module: str) -> None:
    """Run `python -m <module>` in a child process. Raises RuntimeError with its output if it fails.

    The module may be one in the directories of the worker's `plugin.path`.
    """
    directories = registry.plugin_directories(split_list(worker.get("plugin.path")))
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), *map(str, directories)]))
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", module],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"exit status {done.returncode}: {done.stderr.decode(errors='replace').strip()}")
