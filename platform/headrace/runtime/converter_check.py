"""Checks the converters and config providers of a worker in a separate process.

    python -m headrace.runtime.converter_check WORKER_PID < properties.json

With a separate process, the worker needs no memory for plug-in code, and the check does not delay the worker's start.
The process writes its response to standard output: a JSON list of error messages, each of which names the invalid key.
Then, while the worker is already running, the process imports the plug-ins of other distributions, logs the plug-ins
that cannot be imported, and exits.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from headrace.runtime.group_signals import withheld

if TYPE_CHECKING:
    from headrace.runtime.worker_config import WorkerConfig

PLUGIN_IMPORTS_MAX_S = 120


class ConverterCheck:
    """A check in a child process. It starts immediately, and runs in parallel with the worker's start."""

    def __init__(self, config: WorkerConfig) -> None:
        command = [sys.executable, "-m", __name__, str(os.getpid())]
        with withheld():  # signals are blocked, so that none interrupts the write to the child
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            given, self._process.stdin = self._process.stdin, None
            assert given is not None
            with contextlib.suppress(BrokenPipeError), given:  # `errors` reports the exit of the child
                given.write(json.dumps([config.properties, config.originals]).encode())

    @property
    def pid(self) -> int:
        """The process id of the check."""
        return self._process.pid

    async def errors(self, timeout_s: float) -> list[str]:
        """Wait for the check. Return one error message for each converter that cannot be used."""
        import asyncio  # a late import, because the child process does not need it

        try:
            answer = await asyncio.wait_for(asyncio.to_thread(self._read), timeout_s)
        except TimeoutError:
            self.kill()
            return [
                "key.converter, value.converter or header.converter: a converter hangs, its configuration did not "
                f"complete within connector.validation.timeout.ms={timeout_s * 1000:.0f}"
            ]
        except asyncio.CancelledError:
            self.kill()  # otherwise a cancelled worker would wait for the thread that waits for the child
            raise
        threading.Thread(target=self._process.wait, daemon=True).start()  # removes the process after its exit
        if not answer:
            return [
                "key.converter, value.converter or header.converter cannot be used: the process that validates them "
                f"exited unexpectedly (exit status {self._process.wait()})"
            ]
        return [str(line) for line in json.loads(answer)]

    def _read(self) -> bytes:
        assert self._process.stdout is not None
        with self._process.stdout as stream:
            return stream.read()

    def kill(self) -> None:
        """Kill the process if it still runs."""
        self._process.kill()


def check(worker: Mapping[str, str], originals: Mapping[str, str] | None = None) -> list[str]:
    """Return the errors of the converters and config providers in a worker's properties, one line each.

    `originals` contains the properties with variables. Errors contain the variables, not their values.
    """
    from headrace.metrics import logs
    from headrace.plugins import registry
    from headrace.plugins.plugin_sections import CONVERTER_KEYS, create_converter_of
    from headrace.plugins.variables import ConfigResolver, variable_replacer

    registry.use_plugin_path(worker.get("plugin.path"))
    errors: list[str] = []
    for key in CONVERTER_KEYS:
        try:
            create_converter_of(key, worker)
        except Exception as error:  # noqa: BLE001 - plug-in code raises what it likes
            errors.append(f"{key}={worker.get(key)}: {error}")
    try:
        ConfigResolver.from_worker(worker).close()
    except Exception as error:  # noqa: BLE001
        errors.append(f"config.providers={worker.get('config.providers')}: {error}")
    replacer = variable_replacer(worker if originals is None else originals, worker)
    return [logs.secrets.mask(replacer.replace(error)) for error in errors]


def main() -> None:
    """Run the check in the child process. Write the response to stdout, and all output of plug-ins to stderr."""
    from headrace.metrics import logs
    from headrace.plugins import registry
    from headrace.runtime import process_tree

    process_tree.signal_at_death_of(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C signals the whole group; the worker stops this process
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    answer = os.dup(1)
    os.dup2(2, 1)
    logs.configure_logging()
    properties, originals = json.load(sys.stdin)
    logs.mask_secrets_of(properties)
    with open(answer, "w", encoding="utf-8") as stream:
        json.dump(check(properties, originals), stream)
    signal.alarm(PLUGIN_IMPORTS_MAX_S)  # ends the process
    registry.default().report_problems()
    sys.stderr.flush()
    os._exit(0)  # exits without waiting for threads that a plug-in may have started


if __name__ == "__main__":
    main()
