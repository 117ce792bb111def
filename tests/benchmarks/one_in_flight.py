"""Sends produce requests over a raw socket, one at a time and without a client library, and measures their latency.

The program prints one JSON object. It runs in a separate process, which can be pinned to its own processor: `python
one_in_flight.py HOST:PORT TOPIC SECONDS PACE_S [CPU|-] [ACKS]`.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
import time

from headrace_broker.records.builder import build_batch
from headrace_broker.records.columns import RecordColumns

WARM_UP_REQUESTS = 2000
_PRODUCE, _VERSION = 0, 7


def request(topic: str, value: bytes, acks: int, partition: int = 0) -> bytes:
    """Encode a Produce v7 request with one record."""
    records = bytes(build_batch(RecordColumns(timestamps=int(time.time() * 1000), values=[value])))
    name = topic.encode()
    body = struct.pack(">hhih", _PRODUCE, _VERSION, 1, 3) + b"lat" + struct.pack(">hhi", -1, acks, 30000)
    body += struct.pack(">ih", 1, len(name)) + name + struct.pack(">iii", 1, partition, len(records)) + records
    return struct.pack(">i", len(body)) + body


def round_trip(connection: socket.socket, message: bytes) -> bytes:
    """Send a request and return its response."""
    connection.sendall(message)
    (size,) = struct.unpack(">i", _exactly(connection, 4))
    return _exactly(connection, size)


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionError("the broker closed the connection")
        data += part
    return data


def measure(address: str, topic: str, seconds: float, pace_s: float, acks: int = 1) -> dict[str, float]:
    """Send requests for `seconds`, each `pace_s` after the previous response.

    Return latency percentiles in microseconds.
    """
    host, port = address.rsplit(":", 1)
    connection = socket.create_connection((host, int(port)))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    message = request(topic, b"x" * 100, acks)
    for _ in range(WARM_UP_REQUESTS):
        response = round_trip(connection, message)
    (error,) = struct.unpack_from(">h", response, 4 + 4 + 2 + len(topic.encode()) + 4 + 4)
    if error:
        raise RuntimeError(f"the broker responded with error {error}")
    samples_ns: list[int] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        started = time.perf_counter_ns()
        round_trip(connection, message)
        samples_ns.append(time.perf_counter_ns() - started)
        if pace_s:
            time.sleep(pace_s)  # the pause keeps the load low
    return percentiles(samples_ns)


def percentiles(latencies_ns: list[int]) -> dict[str, float]:
    """Return the number of requests, and the percentiles of their latencies in microseconds."""
    samples_ns = sorted(latencies_ns)
    return {
        "requests": len(samples_ns),
        "p50_us": samples_ns[len(samples_ns) // 2] / 1000,
        "p99_us": samples_ns[int(len(samples_ns) * 0.99)] / 1000,
        "p999_us": samples_ns[int(len(samples_ns) * 0.999)] / 1000,
    }


if __name__ == "__main__":
    processor = sys.argv[5] if len(sys.argv) > 5 else "-"
    acks = sys.argv[6] if len(sys.argv) > 6 else "1"
    if processor != "-":
        os.sched_setaffinity(0, {int(processor)})
    print(json.dumps(measure(sys.argv[1], sys.argv[2], float(sys.argv[3]), float(sys.argv[4]), int(acks))))
