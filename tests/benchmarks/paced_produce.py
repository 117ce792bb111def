"""Measures the latency of acks=all under a low load: one request at a time, to each partition of a topic in turn.

The program prints one JSON object. It runs for SECONDS. If SECONDS is "-", it runs until its standard input is closed:
`python paced_produce.py BOOTSTRAP TOPIC SECONDS|- PACE_S`.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from one_in_flight import percentiles, request, round_trip

_WARM_UP_REQUESTS = 200


class _LeaderConnections:
    """Connections to the leaders of all partitions of a topic."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        from confluent_kafka.admin import AdminClient

        found = AdminClient({"bootstrap.servers": bootstrap}).list_topics(topic, 30)
        partitions = found.topics[topic].partitions
        leaders = [found.brokers[item] for item in {partition.leader for partition in partitions.values()}]
        sockets = {leader.id: _connect(leader.host, leader.port) for leader in leaders}
        self._error_at = 4 + 4 + 2 + len(topic.encode()) + 4 + 4
        self._requests = [
            (sockets[partitions[index].leader], request(topic, b"x" * 100, -1, index)) for index in sorted(partitions)
        ]
        self._next = 0

    def produce(self) -> None:
        """Send one record to the next partition and wait for its acknowledgement."""
        connection, message = self._requests[self._next % len(self._requests)]
        self._next += 1
        (error,) = struct.unpack_from(">h", round_trip(connection, message), self._error_at)
        if error:
            raise RuntimeError(f"the broker responded with error {error}")


def _connect(host: str, port: int) -> socket.socket:
    connection = socket.create_connection((host, port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def measure(bootstrap: str, topic: str, seconds: float | None, pace_s: float) -> dict[str, float]:
    """Send requests, each `pace_s` after the previous response. Return latency percentiles in microseconds.

    If `seconds` is None, measure until standard input is closed.
    """
    leaders = _LeaderConnections(bootstrap, topic)
    for _ in range(_WARM_UP_REQUESTS):
        leaders.produce()
    print("ready", flush=True)
    samples_ns: list[int] = []
    end = None if seconds is None else time.perf_counter() + seconds
    while time.perf_counter() < end if end is not None else not select.select([sys.stdin], [], [], 0)[0]:
        started = time.perf_counter_ns()
        leaders.produce()
        samples_ns.append(time.perf_counter_ns() - started)
        time.sleep(pace_s)  # the pause keeps the load low
    return percentiles(samples_ns) | {"max_us": max(samples_ns) / 1000}


def paced(bootstrap: str, topic: str, seconds: float, pace_s: float) -> dict[str, float]:
    """Run `measure` for `seconds` in a separate process."""
    command = [sys.executable, __file__, bootstrap, topic, str(seconds), str(pace_s)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return _parse_output(done.stdout)


@contextmanager
def paced_in_background(bootstrap: str, topic: str, pace_s: float) -> Iterator[dict[str, float]]:
    """Run `measure` in a separate process while the block runs.

    The yielded dictionary is filled when the block ends.
    """
    found: dict[str, float] = {}
    command = [sys.executable, __file__, bootstrap, topic, "-", str(pace_s)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            yield found
            output, _ = process.communicate(timeout=60)
            found.update(_parse_output(output))
        finally:
            process.kill()


def _parse_output(output: str) -> dict[str, float]:
    found: dict[str, float] = json.loads(output.splitlines()[-1])
    return found


if __name__ == "__main__":
    duration_s = None if sys.argv[3] == "-" else float(sys.argv[3])
    print(json.dumps(measure(sys.argv[1], sys.argv[2], duration_s, float(sys.argv[4]))))
