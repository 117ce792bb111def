"""Runs headrace's commands and tools as forks of a process that has imported their modules (`preloaded`)."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence

from support.preloaded import PreloadedPopen


def run_process(
    command: Sequence[str], stdin: bytes = b"", timeout_s: int = 120, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command until it exits. If it runs longer than `timeout_s`, kill it and raise TimeoutExpired."""
    pipe = subprocess.PIPE
    with PreloadedPopen(command, stdin=pipe, stdout=pipe, stderr=pipe, env=env) as process:
        try:
            output, errors = process.communicate(stdin, timeout_s)
        except BaseException:
            process.kill()
            raise
        texts = (stream.decode("utf-8", "replace") for stream in (output, errors))
        return subprocess.CompletedProcess(command, process.returncode, *texts)


def run_command(
    module: str, *arguments: str, stdin: bytes = b"", timeout_s: int = 120
) -> subprocess.CompletedProcess[str]:
    """Run a module of headrace as a command."""
    return run_process([sys.executable, "-m", module, *arguments], stdin, timeout_s)


def run_tool(tool: str, *arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[str]:
    """Run a module of `headrace_broker.tools` as a command."""
    return run_command(f"headrace_broker.tools.{tool}", *arguments, stdin=stdin)
