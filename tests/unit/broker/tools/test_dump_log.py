"""Tests of kafka-dump-log. The expected output is that of Kafka 4.3's DumpLogSegments for the same files."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace_broker.log.config import LogConfig
from headrace_broker.log.log import PartitionLog
from headrace_broker.log.storage import DiskStorage
from headrace_broker.log.validator import AppendOrigin
from headrace_broker.protocol.group_records import GroupMetadataKey, GroupMetadataValue, MemberMetadata
from headrace_broker.protocol.metadata_records import PartitionRecord, encode_metadata_record
from headrace_broker.protocol.versioned import encode_key, encode_value
from headrace_broker.records.builder import build_batch
from headrace_broker.records.columns import RecordColumns
from headrace_broker.records.control import ControlType, build_control_batch, end_transaction_value
from headrace_broker.tools.dump_log import main

NOW = 1_700_000_000_000


@pytest.fixture
def log(tmp_path: Path) -> PartitionLog:
    config = LogConfig(index_interval_bytes=100)
    return PartitionLog.open(DiskStorage(), str(tmp_path / "t-0"), "t", 0, config, NOW)


def append(log: PartitionLog, batch: bytearray) -> None:
    log.append_as_leader(batch, leader_epoch=3, now_ms=NOW, origin=AppendOrigin.COORDINATOR)


def dump(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert main(arguments) == 0
    return capsys.readouterr().out.splitlines()


def test_dump_log_prints_batches_with_their_records_or_control_records(
    log: PartitionLog, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = RecordColumns(
        values=[b"value", None], keys=[None, b"k"], headers=[[], [("h", b"x"), ("i", None)]], timestamps=[NOW, NOW + 5]
    )
    append(log, build_batch(columns, producer_id=9, producer_epoch=1, base_sequence=4))
    append(
        log,
        build_control_batch(
            ControlType.ABORT, end_transaction_value(2), timestamp=NOW + 9, producer_id=11, producer_epoch=0
        ),
    )
    log.close(clean=True, now_ms=NOW)
    path = log.segments[0].path(".log")
    assert dump(capsys, "--print", "--files", path) == [
        f"Dumping {path}",
        "Log starting offset: 0",
        "baseOffset: 0 lastOffset: 1 count: 2 baseSequence: 4 lastSequence: 5 producerId: 9 producerEpoch: 1 "
        "partitionLeaderEpoch: 3 isTransactional: false isControl: false deleteHorizonMs: OptionalLong.empty "
        "position: 0 CreateTime: 1700000000005 size: 88 magic: 2 compresscodec: none crc: 1827832164 isvalid: true",
        "| offset: 0 CreateTime: 1700000000000 keySize: -1 valueSize: 5 sequence: 4 headerKeys: [] payload: value",
        "| offset: 1 CreateTime: 1700000000005 keySize: 1 valueSize: -1 sequence: 5 headerKeys: [h,i] key: k",
        "baseOffset: 2 lastOffset: 2 count: 1 baseSequence: -1 lastSequence: -1 producerId: 11 producerEpoch: 0 "
        "partitionLeaderEpoch: 3 isTransactional: true isControl: true deleteHorizonMs: OptionalLong.empty "
        "position: 88 CreateTime: 1700000000009 size: 78 magic: 2 compresscodec: none crc: 2071715551 isvalid: true",
        "| offset: 2 CreateTime: 1700000000009 keySize: 4 valueSize: 6 sequence: -1 headerKeys: [] "
        "endTxnMarker: ABORT coordinatorEpoch: 2",
    ]
    snapshot = str(Path(path).with_name(f"{3:020d}.snapshot"))
    assert dump(capsys, "--files", snapshot)[1:] == [
        "producerId: 9 producerEpoch: 1 coordinatorEpoch: -1 currentTxnFirstOffset: OptionalLong.empty "
        "lastTimestamp: 1700000000005 firstSequence: 4 lastSequence: 5 lastOffset: 1 offsetDelta: 1 "
        "timestamp: 1700000000005",
        "producerId: 11 producerEpoch: 0 coordinatorEpoch: 2 currentTxnFirstOffset: OptionalLong.empty "
        "lastTimestamp: 1700000000009",
    ]


def test_dump_log_prints_index_files_and_reports_wrong_index_entries(
    log: PartitionLog, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(6):
        append(log, build_batch(RecordColumns(values=[b"x" * 40], timestamps=NOW + number)))
    log.close(clean=True, now_ms=NOW)
    index, times = log.segments[0].path(".index"), log.segments[0].path(".timeindex")
    assert dump(capsys, "--files", f"{index},{times}") == [
        f"Dumping {index}",
        "offset: 1 position: 108",
        "offset: 2 position: 216",
        "offset: 3 position: 324",
        "offset: 4 position: 432",
        "offset: 5 position: 540",
        f"Dumping {times}",
        *[f"timestamp: {NOW + number} offset: {number}" for number in range(1, 6)],
    ]
    assert dump(capsys, "--index-sanity-check", "--files", index)[1:] == [f"{index} passed sanity check."]
    data = bytearray(Path(index).read_bytes())
    data[-5] = 9
    Path(index).write_bytes(data)
    assert main(["--verify-index-only", "--files", index]) == 0
    assert "Index offset: 9, log offset: 5" in capsys.readouterr().err


def test_dump_log_decodes_group_metadata_records_with_the_offsets_decoder_option(
    log: PartitionLog, capsys: pytest.CaptureFixture[str]
) -> None:
    member = MemberMetadata(
        member_id="m",
        client_id="c",
        client_host="/h",
        rebalance_timeout=5,
        session_timeout=6,
        subscription=b"\0\1\0\0\0\1\0\5topic\xff\xff\xff\xff\0\0\0\0",
        assignment=b"",
    )
    group = GroupMetadataValue(
        protocol_type="consumer", generation=2, protocol="range", current_state_timestamp=7, members=[member]
    )
    keys: list[bytes | None] = [encode_key(GroupMetadataKey(group="g"))] * 2
    values: list[bytes | None] = [encode_value(group, 3), None]
    append(log, build_batch(RecordColumns(values=values, keys=keys, timestamps=NOW)))
    path = log.segments[0].path(".log")
    lines = dump(capsys, "--offsets-decoder", "--skip-record-metadata", "--files", path)
    assert lines[3:] == [
        '| key: {"type":"2","data":{"group":"g"}} payload: {"version":"3","data":{"protocolType":"consumer",'
        '"generation":2,"protocol":"range","leader":"","currentStateTimestamp":7,"members":[{"memberId":"m",'
        '"groupInstanceId":null,"clientId":"c","clientHost":"/h","rebalanceTimeout":5,"sessionTimeout":6,'
        '"subscription":{"topics":["topic"],"userData":null,"ownedPartitions":[]},"assignment":""}]}}',
        '| key: {"type":"2","data":{"group":"g"}} payload: <DELETE>',
    ]


def test_dump_log_decodes_metadata_records_with_the_cluster_metadata_decoder_option(
    log: PartitionLog, capsys: pytest.CaptureFixture[str]
) -> None:
    record = PartitionRecord(partition_id=0, topic_id=bytes(16), replicas=[1], isr=[1], leader=1, leader_epoch=0)
    append(log, build_batch(RecordColumns(values=[encode_metadata_record(record, 1), b"\7"], timestamps=NOW)))
    path = log.segments[0].path(".log")
    lines = dump(capsys, "--cluster-metadata-decoder", "--skip-record-metadata", "--files", path)
    assert lines[3] == (
        '| payload: {"type":"PARTITION_RECORD","version":1,"data":{"partitionId":0,"topicId":"AAAAAAAAAAAAAAAAAAAAAA",'
        '"replicas":[1],"isr":[1],"removingReplicas":[],"addingReplicas":[],"leader":1,"leaderEpoch":0,'
        '"partitionEpoch":-1,"directories":[]}}'
    )
    assert lines[4].startswith("| payload: Error at 1, skipping.")


def test_dump_log_reports_corrupt_batches_and_rejects_missing_files_and_unsupported_decoders(
    log: PartitionLog, capsys: pytest.CaptureFixture[str]
) -> None:
    append(log, build_batch(RecordColumns(values=[b"a"], timestamps=NOW)))
    path = log.segments[0].path(".log")
    with open(path, "r+b") as file:
        file.seek(66)
        file.write(b"\x01")
        file.seek(0, 2)
        file.write(b"torn")
    lines = dump(capsys, "--files", path)
    assert lines[2].endswith("isvalid: false")
    assert lines[3] == f"Found 4 invalid bytes at the end of {Path(path).name}"
    assert main(["--files", str(Path(path).with_name("1.log"))]) == 1
    assert "No such file" in capsys.readouterr().err
    assert main(["--files", path, "--value-decoder-class", "com.example.Mine"]) == 1
    assert "com.example.Mine is not supported" in capsys.readouterr().err


def test_dump_log_does_not_report_a_closed_output_pipe_as_a_file_error(
    log: PartitionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(log, build_batch(RecordColumns(values=[b"a"], timestamps=NOW)))
    monkeypatch.setattr("headrace_broker.tools.dump_log._dump_file", _raise_broken_pipe)
    with pytest.raises(BrokenPipeError):  # the console script handles this error
        main(["--files", log.segments[0].path(".log")])


def _raise_broken_pipe(*_: object) -> None:
    raise BrokenPipeError
