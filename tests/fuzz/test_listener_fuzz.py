"""Tests that a listener which receives malformed bytes disconnects only their sender.

Other clients are not affected, and the broker's memory does not grow.
"""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Iterator

import pytest

from headrace_broker.protocol.apis import API
from headrace_broker.protocol.framing import encode_request
from support.broker import BrokerProcess, running_broker
from support.random_messages import random_message
from support.raw_client import RawClient, batch, create_topic, fetch_request, produce_request

pytestmark = [pytest.mark.integration, pytest.mark.cold_start]

NODE_ID = 5771
"""Random requests contain only small node ids, so no UnregisterBroker request unregisters this node."""
MEMORY_GROWTH_MAX = 48 * 1024 * 1024


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with running_broker(
        tmp_path_factory.mktemp("fuzz"), node_id=str(NODE_ID), socket_request_max_bytes="10000000"
    ) as process:
        yield process


class ValidClient:
    """A client with its own connection that sends valid requests.

    Malformed requests from other clients must not affect this client.
    """

    def __init__(self, broker: BrokerProcess, topic: str) -> None:
        self.client = RawClient(broker.address)
        self.topic = topic
        self.offset = 0
        create_topic(self.client, topic)

    def check(self) -> None:
        response = self.client.call(produce_request(self.topic, batch(b"hello")), 9).responses[0].partition_responses[0]
        assert (response.error_code, response.base_offset) == (0, self.offset)
        found = self.client.call(fetch_request(self.topic, self.offset), 12).responses[0].partitions[0]
        assert found.error_code == 0
        assert b"hello" in bytes(found.records)
        self.offset += 1


@pytest.fixture
def neighbour(broker: BrokerProcess, request: pytest.FixtureRequest) -> Iterator[ValidClient]:
    topic = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    neighbour = ValidClient(broker, topic)
    neighbour.check()
    yield neighbour
    neighbour.client.socket.close()


def send_bytes(broker: BrokerProcess, data: bytes) -> None:
    """Send bytes over a new connection, read the start of the response, and disconnect."""
    host, port = broker.host, broker.port
    with socket.create_connection((host, port), timeout=60) as connection:
        connection.settimeout(0.02)
        try:
            connection.sendall(data)
            connection.recv(4096)
        except OSError:
            return


def mutated(rng: random.Random) -> bytes:
    """Encode a random request. A few bytes may be changed, and the frame may be truncated or sent twice."""
    api = API[rng.choice(sorted(API))]
    version = rng.randint(api.min_version, api.max_version)
    request = random_message(api.request, version, rng)
    frame = bytearray(b"".join(encode_request(rng.getrandbits(31), "fuzz", request, version)))
    for _ in range(rng.choice((0, 1, 1, 2, 5))):
        frame[rng.randrange(len(frame))] = rng.getrandbits(8)
    kind = rng.random()
    if kind < 0.15:
        frame = frame[: rng.randrange(len(frame))]
    elif kind < 0.3:
        frame = frame * 2
    if rng.random() < 0.7:
        frame[:4] = struct.pack(">i", len(frame) - 4)
    return bytes(frame)


def random_frame(rng: random.Random) -> bytes:
    body = rng.randbytes(rng.choice((0, 1, 7, 8, 20, 200, 5000)))
    size = rng.choice((len(body), len(body) + 3, -1, 2**31 - 1, 10_000_001, rng.getrandbits(32) - 2**31))
    header = struct.pack(">hhi", rng.choice(sorted(API)), rng.randint(-1, 20), 1) if rng.random() < 0.5 else b""
    return struct.pack(">i", size) + header + body


@pytest.mark.parametrize("make", [mutated, random_frame])
def test_malformed_frames_do_not_affect_other_clients(
    broker: BrokerProcess, neighbour: ValidClient, make: object
) -> None:
    before = broker.resident_bytes
    rng = random.Random(2026)
    for number in range(600):
        send_bytes(broker, make(rng))  # type: ignore[operator]
        if number % 20 == 0:
            neighbour.check()
    neighbour.check()
    assert broker.resident_bytes - before < MEMORY_GROWTH_MAX
    assert "Traceback" not in broker.log, broker.log[broker.log.index("Traceback") - 300 :][:3000]


def test_broker_does_not_allocate_memory_for_request_bytes_before_they_arrive(
    broker: BrokerProcess, neighbour: ValidClient
) -> None:
    before = broker.resident_bytes
    connections = [socket.create_connection((broker.host, broker.port)) for _ in range(100)]
    for connection in connections:
        connection.sendall(struct.pack(">i", 9_999_999) + b"\0\0\0\x07" + bytes(1000))
    neighbour.check()
    assert broker.resident_bytes - before < MEMORY_GROWTH_MAX
    for connection in connections:
        connection.close()


def test_broker_memory_does_not_grow_while_clients_send_requests_and_never_read_responses(
    broker: BrokerProcess, neighbour: ValidClient
) -> None:
    with RawClient(broker.address) as filler:
        create_topic(filler, "large")
        for _ in range(20):
            filler.call(produce_request("large", batch(bytes(1_000_000))), 9)
    before = broker.resident_bytes
    deaf = [RawClient(broker.address) for _ in range(10)]
    request = b"".join(encode_request(1, "deaf", fetch_request("large", max_bytes=1 << 20), 12))
    for client in deaf:
        client.socket.setblocking(False)
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sent = 0
        try:
            while sent < 50_000_000:
                sent += client.socket.send(request * 100)
        except BlockingIOError:
            pass  # the broker has stopped reading, which bounds its memory
        assert sent < 50_000_000
    for _ in range(50):  # while it serves these requests, the broker also handles the connections of the other clients
        neighbour.check()
    assert broker.resident_bytes - before < MEMORY_GROWTH_MAX
    for client in deaf:
        client.socket.close()
    neighbour.check()


def test_total_memory_of_large_fetch_responses_that_clients_never_read_is_limited(
    broker: BrokerProcess, neighbour: ValidClient
) -> None:
    with RawClient(broker.address) as filler:
        create_topic(filler, "much")
        for _ in range(20):
            filler.call(produce_request("much", batch(bytes(900_000))), 9)
    before = broker.resident_bytes
    request = fetch_request("much", max_bytes=1 << 30, partition_max_bytes=1 << 30)
    deaf = [RawClient(broker.address) for _ in range(40)]
    for client in deaf:
        client.send(request, 12)
    for _ in range(50):  # while it serves these requests, the broker also handles the connections of the other clients
        neighbour.check()
    assert broker.resident_bytes - before < 250 * 1024 * 1024  # all responses share 128 MB, plus one batch per client
    for client in deaf:
        client.socket.close()
    neighbour.check()
    with RawClient(broker.address) as client:
        assert len(client.call(request, 12).responses[0].partitions[0].records) > 15_000_000


def test_oversized_request_is_logged_in_one_line_with_client_address_and_size(broker: BrokerProcess) -> None:
    before = len(broker.log)  # earlier log lines may contain the same port
    with RawClient(broker.address) as client:
        port = client.socket.getsockname()[1]
        client.socket.sendall(struct.pack(">i", 10_000_001))
        assert client.is_closed()
    lines = [line for line in broker.log[before:].splitlines() if f":{port}" in line]
    assert len(lines) == 1
    assert "request size 10000001" in lines[0]
