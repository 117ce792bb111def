"""Tests that a node stops if its metadata log contains ACLs, SCRAM credentials, quotas or delegation tokens."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvloop

from headrace_broker.metadata.controller_result import ControllerResult
from headrace_broker.metadata.delta import apply_records
from headrace_broker.metadata.snapshots import image_records
from headrace_broker.protocol.metadata_records import (
    AccessControlEntryRecord,
    BeginTransactionRecord,
    ClientQuotaRecord,
    DelegationTokenRecord,
    EntityData,
    FeatureLevelRecord,
    MetadataRecord,
    RegisterControllerRecord,
    RemoveAccessControlEntryRecord,
    UserScramCredentialRecord,
)
from headrace_broker.server.config import BrokerConfig
from headrace_broker.server.data_dirs import StartError
from headrace_broker.server.kraft.snapshot_files import encode_snapshot
from headrace_broker.server.node import Node

ACL = AccessControlEntryRecord(id=bytes(16), resource_name="t", principal="User:a", host="*")
PROTECTIONS: list[tuple[MetadataRecord, str]] = [
    (ACL, "ACLs"),
    (UserScramCredentialRecord(name="a", salt=b"s", stored_key=b"k", server_key=b"k"), "SCRAM credentials"),
    (
        ClientQuotaRecord(entity=[EntityData(entity_type="user", entity_name=None)], key="producer_byte_rate"),
        "client quotas",
    ),
    (DelegationTokenRecord(owner="a", requester="a", token_id="t"), "delegation tokens"),
]


def run(work: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work)


async def start(directory: Path) -> Node:
    properties = {"node.id": "1", "listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(directory)}
    return await Node.start(BrokerConfig.from_properties(properties))


@asynccontextmanager
async def started(directory: Path) -> AsyncIterator[Node]:
    node = await start(directory)
    try:
        yield node
    finally:
        await node.stop()


async def write(node: Node, *records: MetadataRecord) -> None:
    """Append the records to the metadata log, as an Apache Kafka controller of the same quorum would."""
    assert node.controller is not None
    await node.controller.submit(lambda image: ControllerResult(None, list(records)))


@pytest.mark.parametrize(("record", "words"), PROTECTIONS)
def test_running_node_stops_when_a_protection_is_added_to_the_metadata_log(
    tmp_path: Path, record: MetadataRecord, words: str
) -> None:
    async def work() -> None:
        async with started(tmp_path) as node:
            await write(node, record)
            assert words in await asyncio.wait_for(asyncio.shield(node.failed), 10)

    run(work())


@pytest.mark.parametrize(("record", "words"), PROTECTIONS)
def test_node_does_not_start_if_its_metadata_log_contains_a_protection(
    tmp_path: Path, record: MetadataRecord, words: str
) -> None:
    async def work() -> None:
        async with started(tmp_path) as node:
            await write(node, record)
        with pytest.raises(StartError, match=words):
            await start(tmp_path)

    run(work())


@pytest.mark.parametrize(("record", "words"), PROTECTIONS)
def test_node_does_not_start_if_its_metadata_snapshot_contains_a_protection(
    tmp_path: Path, record: MetadataRecord, words: str
) -> None:
    async def work() -> None:
        async with started(tmp_path) as node:
            image = node.image
            data = b"".join(encode_snapshot([*image_records(image), record], image.epoch, 0))
            node.quorum.log.snapshots.write_chunk((image.offset + 1, image.epoch), 0, data)
            node.quorum.log.snapshots.finish((image.offset + 1, image.epoch))
        with pytest.raises(StartError, match=words):
            await start(tmp_path)

    run(work())


def test_node_stops_when_it_has_loaded_a_snapshot_with_a_protection_and_no_record_follows(tmp_path: Path) -> None:
    async def work() -> None:
        async with started(tmp_path) as node:
            node.committed.replace(apply_records(node.image, [ACL], node.image.offset, node.image.epoch))
            assert "ACLs" in await asyncio.wait_for(asyncio.shield(node.failed), 10)

    run(work())


def test_node_starts_again_after_the_last_protection_was_removed(tmp_path: Path) -> None:
    async def work() -> None:
        async with started(tmp_path) as node:
            await write(node, ACL)
            await write(node, RemoveAccessControlEntryRecord(id=ACL.id))
        async with started(tmp_path) as node:
            assert not node.failed.done()

    run(work())


def test_protections_are_named_even_if_the_node_cannot_replay_an_earlier_record(tmp_path: Path) -> None:
    """Every metadata log of Apache Kafka contains records that headrace cannot replay, for example of transactions."""

    async def work() -> None:
        async with started(tmp_path) as node:
            node.quorum.log.append([BeginTransactionRecord(), ACL, PROTECTIONS[1][0]], node.quorum.raft.epoch)
        with pytest.raises(StartError, match=r"BeginTransactionRecord.*contains ACLs \(1\), SCRAM credentials \(1\)"):
            await start(tmp_path)

    run(work())


def test_node_does_not_start_with_a_snapshot_that_it_cannot_replay(tmp_path: Path) -> None:
    async def work() -> None:
        async with started(tmp_path) as node:
            image = node.image
            data = b"".join(encode_snapshot([RegisterControllerRecord(controller_id=1), ACL], image.epoch, 0))
            node.quorum.log.snapshots.write_chunk((image.offset + 1, image.epoch), 0, data)
            node.quorum.log.snapshots.finish((image.offset + 1, image.epoch))
        with pytest.raises(StartError, match=r"RegisterControllerRecord.*contains ACLs \(1\)"):
            await start(tmp_path)

    run(work())


def test_node_does_not_start_in_a_directory_that_was_formatted_with_scram_credentials(tmp_path: Path) -> None:
    data = b"".join(encode_snapshot([FeatureLevelRecord(name="metadata.version"), PROTECTIONS[1][0]], 0, 0))
    (tmp_path / "bootstrap.checkpoint").write_bytes(data)
    meta = {"version": "1", "cluster.id": "MkU3OEVBNTcwNTJENDM2Qg", "node.id": "1"}
    (tmp_path / "meta.properties").write_text("".join(f"{key}={value}\n" for key, value in meta.items()))
    with pytest.raises(StartError, match=r"bootstrap.checkpoint contains SCRAM credentials \(1\)"):
        run(start_and_stop(tmp_path))
    (tmp_path / "bootstrap.checkpoint").write_bytes(data[:-1])
    with pytest.raises(StartError, match=r"bootstrap.checkpoint is corrupt"):
        run(start_and_stop(tmp_path))
    (tmp_path / "bootstrap.checkpoint").write_bytes(
        b"".join(encode_snapshot([FeatureLevelRecord(name="metadata.version")], 0, 0))
    )
    run(start_and_stop(tmp_path))


async def start_and_stop(directory: Path) -> None:
    async with started(directory):
        pass
