"""Checks the converters that a worker's own file names, in a process of its own that ends with its answer.

    python -m headrace.runtime.converter_check WORKER_PID < properties.json

So a worker starts no slower and keeps nothing of it in memory, and no plug-in code runs in it. The child answers on its
standard output: a JSON list of lines, each of which names the key at fault.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping

from headrace.runtime.group_signals import withheld

SIMPLE_HEADER_CONVERTER = "org.apache.kafka.connect.storage.SimpleHeaderConverter"


class ConverterCheck:
    """A check under way: it begins at once, beside whatever the worker does meanwhile."""

    def __init__(self, properties: Mapping[str, str]) -> None:
        command = [sys.executable, "-m", __name__, str(os.getpid())]
        with withheld():  # so that the child gets the whole of it
            self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            given, self._process.stdin = self._process.stdin, None
            assert given is not None
            with contextlib.suppress(BrokenPipeError), given:  # of a child that has ended: its exit status tells
                given.write(json.dumps(dict(properties)).encode())

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    async def errors(self, timeout_s: float) -> list[str]:
        """One line for each converter that cannot be used; none when all can."""
        import asyncio  # the child does without

        try:
            answer, _ = await asyncio.to_thread(self._process.communicate, None, timeout_s)
        except subprocess.TimeoutExpired:
            return [
                "key.converter, value.converter or header.converter hangs: no answer within "
                f"connector.validation.timeout.ms={timeout_s * 1000:.0f}"
            ]
        finally:
            self.kill()  # else the thread would wait for it, and a cancelled worker for the thread
        if self._process.returncode != 0:
            return [
                "key.converter, value.converter or header.converter cannot be used: the process that was to check them "
                f"ended by itself (status {self._process.returncode})"
            ]
        return [str(line) for line in json.loads(answer)]

    def kill(self) -> None:
        """End it, if it has not ended: nobody waits for its answer any more."""
        self._process.kill()


def check(worker: Mapping[str, str]) -> list[str]:
    """What is wrong with the converters of a worker's properties, one line each."""
    from headrace.plugins import registry

    registry.use_plugin_path(worker.get("plugin.path"))
    errors: list[str] = []
    for key in ("key.converter", "value.converter", "header.converter"):
        settings = {name[len(key) + 1 :]: value for name, value in worker.items() if name.startswith(key + ".")}
        try:
            if key == "header.converter":
                registry.find("header_converter", worker.get(key) or SIMPLE_HEADER_CONVERTER)().configure(settings)
            else:
                registry.find("converter", worker[key])().configure(settings, key == "key.converter")
        except Exception as error:  # noqa: BLE001 - plug-in code raises what it likes
            errors.append(f"{key}={worker.get(key)}: {error}")
    return errors


def main() -> None:
    """The child: what plug-ins print goes to stderr, the answer alone to stdout."""
    from headrace.metrics import logs
    from headrace.runtime import process_tree

    process_tree.signal_at_death_of(int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the worker decides
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    answer = os.dup(1)
    os.dup2(2, 1)
    logs.set_up()
    properties = json.load(sys.stdin)
    logs.hide_secrets_of(properties)
    with open(answer, "w", encoding="utf-8") as stream:
        json.dump(check(properties), stream)
    sys.stderr.flush()
    os._exit(0)  # without waiting for threads that a plug-in may have left


if __name__ == "__main__":
    main()
