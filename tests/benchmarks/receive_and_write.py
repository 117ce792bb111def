"""Measures the throughput of a process that only receives data over loopback and writes it to a new file.

The process runs this file as a program: `python receive_and_write.py PORT PATH` prints MB/s and CPU ms per MB.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

CHUNK_BYTES = 1024 * 1024
_TIMEOUT_S = 120.0


def warm_page_cache(megabytes: int, path: str) -> None:
    """Write a file of `megabytes` MB and remove it, so that later writes use pages that the kernel already has.

    A write to a page that the hypervisor must first allocate costs up to six times as much. Such writes would slow down
    one of the two compared measurements at random.
    """
    chunk = os.urandom(CHUNK_BYTES)
    with open(path, "wb", buffering=0) as file:
        for _ in range(megabytes):
            file.write(chunk)
    os.unlink(path)


def receive_and_write(megabytes: int, path: str) -> tuple[float, float]:
    """Send `megabytes` MB to a new process that writes them to the file `path`.

    Return the MB/s and the CPU ms per MB of the process.
    """
    warm_page_cache(megabytes * 5 // 4, f"{path}.pages")
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(_TIMEOUT_S)
        port = server.getsockname()[1]
        command = [sys.executable, __file__, str(port), path]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            connection, _ = server.accept()
            chunk = os.urandom(CHUNK_BYTES)
            for _ in range(max(1, megabytes * 1_000_000 // CHUNK_BYTES)):
                connection.sendall(chunk)
            connection.close()
            output, _ = process.communicate(timeout=_TIMEOUT_S)
    rate, cpu = map(float, output.split())
    return rate, cpu


def _receive(port: int, path: str) -> None:
    buffer = bytearray(CHUNK_BYTES)
    view = memoryview(buffer)
    connection = socket.create_connection(("127.0.0.1", port))
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    received, started, cpu = 0, time.perf_counter(), time.process_time()
    while size := connection.recv_into(buffer):
        os.write(file, view[:size])
        received += size
    megabytes = received / 1e6
    print(megabytes / (time.perf_counter() - started), (time.process_time() - cpu) * 1000 / megabytes)


if __name__ == "__main__":
    _receive(int(sys.argv[1]), sys.argv[2])
