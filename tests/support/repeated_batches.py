"""Fills topics fast: produces the same encoded record batches repeatedly, so that Python encodes them once."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

from headrace_broker.protocol.apis import API
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.produce import ProduceRequest
from support.raw_client import RawClient, batch, produce_request

_VERSION = 9
_IN_FLIGHT_MAX = 4


def repeat_batches(
    address: str, topic: str, batches: Sequence[Sequence[bytes]], repeats: int, partition: int = 0, **options: Any
) -> int:
    """Produce one batch for each list of values, and all of them `repeats` times. Return the number of records.

    `options` are those of `headrace_broker.records.builder.build_batch`.
    """
    encoded = [bytes(batch(*values, **options)) for values in batches]
    with RawClient(address) as client:
        frames = [client.frame(produce_request(topic, each, partition=partition), _VERSION) for each in encoded]
        in_flight = 0
        for _ in range(repeats):
            for frame in frames:
                client.socket.sendall(frame)
                in_flight += 1
                if in_flight == _IN_FLIGHT_MAX:
                    _check(client)
                    in_flight -= 1
        for _ in range(in_flight):
            _check(client)
    return repeats * sum(map(len, batches))


def _check(client: RawClient) -> None:
    _, response = client.receive(ProduceRequest, _VERSION, API[ProduceRequest.__api_key__].response)
    code = response.responses[0].partition_responses[0].error_code
    assert code == ErrorCode.NONE, ErrorCode(code)


def random_batches(batches: int, rows: int, text_bytes: int) -> list[list[bytes]]:
    """Return batches of JSON objects with a number and a text that compression cannot shrink much."""
    rng = random.Random(batches)
    texts = iter(lambda: rng.randbytes(text_bytes // 2).hex(), None)
    return [[json.dumps({"n": n, "text": next(texts)}).encode() for n in range(rows)] for _ in range(batches)]
