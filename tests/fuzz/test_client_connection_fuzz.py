"""Tests of a client that receives arbitrary bytes: it raises only ClientError and allocates little memory."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_broker.client.connection import BrokerConnection
from headrace_broker.client.errors import ClientError
from headrace_broker.client.fetch_core import FetchCore, RequestedPartition
from headrace_broker.protocol.messages.fetch import FetchRequest
from headrace_broker.protocol.messages.metadata import MetadataRequest
from headrace_broker.records.batch import CorruptBatchError
from headrace_broker.records.builder import build_batch
from headrace_broker.records.columns import RecordColumns


class Sink(asyncio.Transport):
    def writelines(self, list_of_data: Any) -> None:
        pass

    def abort(self) -> None:
        pass


SIZES = st.one_of(st.integers(-5, 40), st.sampled_from([2**31 - 1, -(2**31), 2**30]))
FRAMES = st.lists(
    st.tuples(SIZES, st.integers(0, 3), st.binary(max_size=60)).map(
        lambda item: item[0].to_bytes(4, "big", signed=True) + item[1].to_bytes(4, "big") + item[2]
    ),
    min_size=1,
    max_size=4,
)


# Threads of clients that other tests of this process have created may use `random` while Hypothesis draws an example.
@pytest.mark.filterwarnings("ignore:Do not use the `random` module")
@settings(max_examples=300, deadline=None)
@given(frames=FRAMES, exact=st.booleans())
def test_requests_fail_only_with_client_errors_if_the_client_receives_random_responses(
    frames: list[bytes], exact: bool
) -> None:
    async def run() -> None:
        connection = BrokerConnection("broker", "me", 30_000)
        connection.connection_made(Sink())
        requests = [MetadataRequest(), FetchRequest(max_wait_ms=0, min_bytes=0)]
        futures = [connection.request(request, version=12) for request in requests]
        for frame in frames:
            data = (len(frame) - 4).to_bytes(4, "big") + frame[4:] if exact else frame
            while data and connection.is_open:
                buffer = connection.get_buffer(-1)
                size = min(len(buffer), len(data))
                buffer[:size] = data[:size]
                connection.buffer_updated(size)
                data = data[size:]
        connection.close()
        results = await asyncio.gather(*futures, return_exceptions=True)
        assert all(isinstance(result, ClientError) or not isinstance(result, BaseException) for result in results)

    asyncio.run(run())


BATCH = bytes(build_batch(RecordColumns([b"value"] * 3, timestamps=1)))


@settings(max_examples=300, deadline=None)
@given(
    position=st.integers(0, len(BATCH) - 1),
    byte=st.integers(0, 255),
    extra_bytes=st.integers(0, len(BATCH)),
    committed=st.booleans(),
)
def test_consumer_that_receives_corrupt_records_raises_only_corrupt_batch_error(
    position: int, byte: int, extra_bytes: int, committed: bool
) -> None:
    core = FetchCore(partition_bytes_max=1000, read_committed=committed, backoff_ms=lambda attempts: 1)
    core.assign([("t", 0)])
    core.seek(("t", 0), 0)
    records = bytearray(BATCH + BATCH)
    records[position] = byte
    requested = RequestedPartition("t", 0, 0, 0, 1000)
    try:
        core.receive(1, requested, memoryview(records)[: len(BATCH) + extra_bytes], high_watermark=6, aborted=[(1, 0)])
    except CorruptBatchError:
        return
    chunk = core.next_chunk()
    assert chunk is None or chunk.next_offset > 0
