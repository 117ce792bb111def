"""Runs versitygw, an S3 server written in Go, which checks signatures and supports conditional writes.

The tools of Go download and build it. The program is in build/, so only the first run needs minutes.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support import go_and_node, s3
from support.ports import free_port

ACCESS_KEY, SECRET, REGION = "lake-user", "lake-secret", "us-east-1"
_PACKAGE = "github.com/versity/versitygw/cmd/versitygw@v1.8.0"


def unavailable_reason() -> str | None:
    """Return why versitygw cannot run on this machine, or None if it can."""
    return "go is not on the path" if go_and_node.missing_program("go") else None


@contextmanager
def running(directory: Path, port: int | None = None) -> Iterator[s3.S3Server]:
    """Run a server that stores its buckets in a directory, with the bucket `lake`. Stop it at the end."""
    directory.mkdir(parents=True, exist_ok=True)
    program, port = go_and_node.install_go_program(_PACKAGE), port or free_port()
    command = [str(program), "--port", f"127.0.0.1:{port}", "--region", REGION, "posix", str(directory)]
    environment = {**os.environ, "ROOT_ACCESS_KEY": ACCESS_KEY, "ROOT_SECRET_KEY": SECRET}
    with (directory.parent / f"{directory.name}.log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment)
        yield from s3.serve(process, s3.S3Server(f"http://127.0.0.1:{port}", ACCESS_KEY, SECRET))
