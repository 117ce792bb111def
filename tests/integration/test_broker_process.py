"""Tests of a broker process: start, stop, crashes, startup errors in one line, and resource limits."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from headrace_broker.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from headrace_broker.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace_broker.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace_broker.protocol.messages.metadata import MetadataRequest
from headrace_broker.records.reader import read_columns
from support.broker import running_broker
from support.cpu_time import loop_cpu_s, not_blocked, process_cpu_s
from support.ports import has_ipv6
from support.processes import is_alive
from support.raw_client import RawClient, batch, create_topic, fetch_request, produce_request
from support.worker import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.cold_start]

# CPU times, in units of support.cpu_time
BLOCKED_LOOPS_MAX = 30
START_LOOPS_MAX = 80
START_WITH_1000_TOPICS_LOOPS_MAX = 300


def start_error(*properties: str, **environment: str) -> str:
    """Start a broker that must fail to start. Return the only line that it writes to standard error."""
    command = [sys.executable, "-m", "headrace_broker.server"]
    for item in properties:
        command += ["--property", item]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env={**os.environ, **environment})
    assert done.returncode == 1, done
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if line.startswith("headrace broker: ")]
    assert len(lines) == 1, done.stderr
    assert "Traceback" not in done.stderr
    return lines[0].removeprefix("headrace broker: ")


def topics_of(client: RawClient) -> dict[str, bytes]:
    return {item.name: item.topic_id for item in client.call(MetadataRequest(topics=None), 12).topics}


def test_broker_starts_with_little_cpu_time_and_uses_less_than_60_mib_of_memory(tmp_path: Path) -> None:
    """The limit of CPU time corresponds to 1500 ms on a machine on which a usual start takes 500 ms.

    tests/benchmarks/startup_bench.py measures the time of a start.
    """
    with running_broker(tmp_path) as broker:
        cpu_s = [process_cpu_s(broker.pid)]
        with RawClient(broker.address) as client:
            create_topic(client, "t")
        assert broker.resident_bytes < 60 * 1024 * 1024
        broker.restart()
        cpu_s.append(process_cpu_s(broker.pid))
    loops = [each / loop_cpu_s() for each in cpu_s]
    print(f"the starts used the CPU time of {loops} loops")
    assert max(loops) < START_LOOPS_MAX


def test_topics_and_records_survive_a_clean_stop_and_a_kill_of_the_broker(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        with RawClient(broker.address) as client:
            first_id = create_topic(client, "kept", partitions=3, retention_ms="100000")
            client.call(produce_request("kept", batch(b"one")), 9)
            producer = client.call(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1), 4)
            before = topics_of(client)
        for end in (broker.stop, broker.kill):
            end()
            broker.start()
            with RawClient(broker.address) as client:
                assert topics_of(client) == before == {"kept": first_id}
                found = client.call(fetch_request("kept"), 12).responses[0].partitions[0]
                assert read_columns(found.records).values == [b"one"]
                again = client.call(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1), 4)
                assert again.producer_id > producer.producer_id
                producer = again


def test_records_deleted_by_a_delete_records_request_stay_deleted_after_the_broker_is_killed(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        with RawClient(broker.address) as client:
            create_topic(client, "t")
            client.call(produce_request("t", batch(b"a", b"b", b"c")), 9)
            wanted = DeleteRecordsTopic(name="t", partitions=[DeleteRecordsPartition(partition_index=0, offset=2)])
            client.call(DeleteRecordsRequest(topics=[wanted], timeout_ms=1000), 2)
        broker.kill()
        broker.start()
        with RawClient(broker.address) as client:
            deleted = client.call(fetch_request("t", 0), 12).responses[0].partitions[0]
            assert (deleted.error_code, deleted.log_start_offset) == (1, 2)


def test_acknowledged_records_survive_repeated_kills_of_the_broker(tmp_path: Path) -> None:
    rng = random.Random(7)
    acknowledged: list[bytes] = []
    topics: set[str] = set()

    def write(address: str) -> None:
        """Produce records and create topics until the broker is killed."""
        number = len(acknowledged)
        try:
            with RawClient(address) as client:
                while True:
                    value = b"%d" % number
                    response = client.call(produce_request("kept", batch(value)), 9).responses[0].partition_responses[0]
                    assert response.error_code == 0
                    acknowledged.append(value)
                    number += 1
                    if number % 50 == 0:
                        create_topic(client, f"t{number}")
                        topics.add(f"t{number}")
        except ConnectionError:
            return

    with running_broker(tmp_path) as broker:
        with RawClient(broker.address) as client:
            create_topic(client, "kept")
        for _ in range(4):
            writer = threading.Thread(target=write, args=(broker.address,))
            writer.start()
            before_kill = len(acknowledged) + rng.randrange(30, 300)
            wait_for(lambda count=before_kill: len(acknowledged) >= count, "more acknowledged records", 60)  # type: ignore[misc]
            time.sleep(rng.uniform(0, 0.01))  # kill the broker at a random moment
            broker.kill()
            writer.join()
            broker.start()
        with RawClient(broker.address) as client:
            found: list[bytes] = []
            offset = 0
            while True:
                records = client.call(fetch_request("kept", offset), 12).responses[0].partitions[0].records
                if not records:
                    break
                columns = read_columns(records, offset)
                found += [value for value in columns.values if value is not None]
                assert columns.next_offset is not None
                offset = columns.next_offset
            assert topics <= set(topics_of(client))
    # At each kill, one record in flight may be in the log without an acknowledgement; no other record is extra or lost.
    assert len(acknowledged) > 100
    assert set(acknowledged) <= set(found)
    assert len(found) - len(acknowledged) <= 4


def test_creation_and_deletion_of_a_topic_with_2000_partitions_do_not_delay_produce_requests(tmp_path: Path) -> None:
    def produce(client: RawClient) -> None:
        client.call(produce_request("watched", batch(b"x")), 9)

    with running_broker(tmp_path) as broker, RawClient(broker.address, timeout_s=60) as client:
        create_topic(client, "watched")
        with not_blocked(broker.address, broker.pid, produce, BLOCKED_LOOPS_MAX):
            create_topic(client, "large", partitions=2000)
            # The client that created the topic can use all of its partitions at once.
            last = client.call(produce_request("large", batch(b"x"), partition=1999), 9).responses[0]
            assert last.partition_responses[0].error_code == 0
            client.call(DeleteTopicsRequest(topics=[DeleteTopicState(name="large")]), 6)
        directories = [path.name for path in broker.data_dir.iterdir() if path.name.startswith("large-")]
        assert all(name.endswith("-delete") for name in directories)


def test_broker_with_1000_topics_restarts_with_little_cpu_time(tmp_path: Path) -> None:
    from headrace_broker.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest

    with running_broker(tmp_path) as broker:
        with RawClient(broker.address, timeout_s=60) as client:
            topics = [
                CreatableTopic(name=f"t{number}", num_partitions=1, replication_factor=1) for number in range(1000)
            ]
            client.call(CreateTopicsRequest(topics=topics), 7)
        broker.restart()
        loops = process_cpu_s(broker.pid) / loop_cpu_s()
        print(f"the start used the CPU time of {loops:.0f} loops")
        assert loops < START_WITH_1000_TOPICS_LOOPS_MAX
        with RawClient(broker.address) as client:
            assert len(topics_of(client)) == 1000


def test_broker_start_on_a_port_in_use_fails_with_a_one_line_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = start_error(f"listeners=PLAINTEXT://127.0.0.1:{port}", f"log.dirs={tmp_path / 'd'}")
    assert line == (
        f"port {port} of PLAINTEXT://127.0.0.1:{port} is in use: stop the process that uses it, or set another port in"
        " listeners"
    )


def test_broker_start_fails_with_a_one_line_error_if_another_process_uses_its_log_directory(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        line = start_error("listeners=PLAINTEXT://127.0.0.1:0", f"log.dirs={broker.data_dir}")
    assert str(broker.data_dir) in line
    assert "in use by another process" in line


def test_broker_start_in_a_directory_of_another_node_or_with_unknown_files_fails_with_a_one_line_error(
    tmp_path: Path,
) -> None:
    with running_broker(tmp_path) as broker:
        pass
    line = start_error("node.id=2", "listeners=PLAINTEXT://127.0.0.1:0", f"log.dirs={broker.data_dir}")
    assert "belongs to node 1, not 2" in line
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"meow")
    line = start_error("listeners=PLAINTEXT://127.0.0.1:0", f"log.dirs={tmp_path / 'photos'}")
    assert "cat.jpg" in line
    assert not (tmp_path / "photos" / "meta.properties").exists()


def test_broker_refuses_to_start_with_an_empty_or_corrupt_metadata_log_and_starts_once_the_log_is_restored(
    tmp_path: Path,
) -> None:
    with running_broker(tmp_path) as broker, RawClient(broker.address) as client:
        create_topic(client, "kept")
        data_dir = broker.data_dir
    log = data_dir / "__cluster_metadata-0" / f"{0:020d}.log"
    valid = log.read_bytes()
    marker = data_dir / ".kafka_cleanshutdown"
    clean = marker.read_bytes()
    arguments = ("listeners=PLAINTEXT://127.0.0.1:0", f"log.dirs={data_dir}")
    for corrupt, what in (
        (b"", "is empty, but log.dirs contains 1 partitions"),
        (bytes(len(valid)), "is empty, but log.dirs contains 1 partitions"),
        (valid.replace(b"kept", b"lost"), "from a copy. Or, if the other voters have a leader"),
    ):
        log.write_bytes(corrupt)
        marker.write_bytes(clean)
        line = start_error(*arguments)
        assert what in line
        assert str(log.parent) in line
    log.write_bytes(valid)
    marker.write_bytes(clean)
    with running_broker(tmp_path) as broker, RawClient(broker.address) as client:
        assert set(topics_of(client)) == {"kept"}


def test_broker_start_with_an_invalid_property_or_without_its_properties_file_fails_with_a_one_line_error(
    tmp_path: Path,
) -> None:
    assert "num.partitions=x" in start_error("num.partitions=x", f"log.dirs={tmp_path}")
    done = subprocess.run(
        [sys.executable, "-m", "headrace_broker.server", str(tmp_path / "nothing.properties")],
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert done.returncode == 1
    assert done.stderr == f"headrace broker: {tmp_path}/nothing.properties: No such file or directory\n"


def test_broker_start_on_a_full_disk_fails_with_a_one_line_error(tmp_path: Path) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    options = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(mount)]
    if os.geteuid() != 0 or subprocess.run(options, capture_output=True).returncode != 0:
        pytest.skip("needs root, to mount a small tmpfs")
    try:
        (mount / ".filler").write_bytes(bytes(56 * 1024))
        line = start_error("listeners=PLAINTEXT://127.0.0.1:0", f"log.dirs={mount / 'd'}")
        assert "No space left" in line or "disk is full" in line
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def test_produce_to_a_full_disk_returns_kafka_storage_error_and_earlier_records_stay_readable(tmp_path: Path) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    options = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(mount)]
    if os.geteuid() != 0 or subprocess.run(options, capture_output=True).returncode != 0:
        pytest.skip("needs root, to mount a small tmpfs")
    try:
        with running_broker(mount) as broker, RawClient(broker.address) as client:
            create_topic(client, "t")
            written = 0
            for _ in range(100):
                response = client.call(produce_request("t", batch(bytes(200_000))), 9).responses[0]
                if response.partition_responses[0].error_code:
                    break
                written += 1
            assert response.partition_responses[0].error_code == 56
            assert 5 < written < 100
            found = client.call(fetch_request("t", max_bytes=1000), 12).responses[0].partitions[0]
            assert found.high_watermark == written
            assert broker.log.count("No space left") >= 1
    finally:
        subprocess.run(["umount", str(mount)], check=True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_broker_stops_cleanly_on_repeated_signals_while_a_fetch_waits_for_records(
    tmp_path: Path, number: signal.Signals
) -> None:
    with running_broker(tmp_path) as broker:
        with RawClient(broker.address) as client:
            create_topic(client, "t")
            client.send(fetch_request("t", max_wait_ms=60_000), 12)
            began = time.monotonic()
            for repeated in (number, signal.SIGTERM, signal.SIGINT):  # process supervisors send several signals, too
                os.kill(broker.pid, repeated)
                time.sleep(0.02)  # the broker handles each signal separately
            assert client.is_closed()
            while not (broker.data_dir / ".kafka_cleanshutdown").exists():
                assert time.monotonic() - began < 30
                time.sleep(0.01)
        assert "Traceback" not in broker.log
        broker.stop()


def test_broker_with_the_option_watch_fd_stops_cleanly_when_its_parent_process_is_killed(tmp_path: Path) -> None:
    script = (
        "import os, subprocess, sys\n"
        "read_fd, write_fd = os.pipe()\n"
        "child = subprocess.Popen([sys.executable, '-m', 'headrace_broker.server', '--property', "
        f"'listeners=PLAINTEXT://127.0.0.1:0', '--property', 'log.dirs={tmp_path / 'd'}', '--watch-fd', str(read_fd)], "
        "pass_fds=[read_fd], stdout=subprocess.PIPE, text=True)\n"
        "print(child.pid, child.stdout.readline(), flush=True)\n"
        "os.kill(os.getpid(), 9)\n"
    )
    parent = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert parent.returncode == -signal.SIGKILL
    pid = int(parent.stdout.split()[0])
    assert "serves 127.0.0.1:" in parent.stdout
    deadline = time.monotonic() + 30
    while is_alive(pid):
        assert time.monotonic() < deadline, "the broker outlived its parent"
        time.sleep(0.01)
    assert (tmp_path / "d" / ".kafka_cleanshutdown").exists()


def test_started_broker_writes_its_listener_address_to_the_file_descriptor_of_the_option_ready_fd(
    tmp_path: Path,
) -> None:
    read_fd, write_fd = os.pipe()
    command = [sys.executable, "-m", "headrace_broker.server", "--ready-fd", str(write_fd)]
    command += ["--property", "listeners=PLAINTEXT://localhost:0", "--property", f"log.dirs={tmp_path / 'd'}"]
    process = subprocess.Popen(command, pass_fds=[write_fd], stdout=subprocess.PIPE, text=True)
    os.close(write_fd)
    try:
        with open(read_fd, encoding="ascii") as ready:
            address = ready.read()
        found = re.fullmatch(r"localhost:(\d+)\n", address)
        assert found is not None
        for host in ("127.0.0.1", "::1"):
            if host == "::1" and not has_ipv6():
                continue
            socket.create_connection((host, int(found[1])), timeout=30).close()
    finally:
        process.terminate()
        assert process.communicate(timeout=30)[0].startswith("headrace broker 1 serves localhost:")


def test_started_controller_prints_its_listener_address(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    properties = {
        "process.roles": "controller",
        "listeners": f"CONTROLLER://127.0.0.1:{port}",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": f"1@127.0.0.1:{port}",
        "log.dirs": tmp_path / "d",
    }
    command = [sys.executable, "-m", "headrace_broker.server"]
    command += [word for key, value in properties.items() for word in ("--property", f"{key}={value}")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        assert process.stdout.readline().startswith(f"headrace controller 1 serves 127.0.0.1:{port} (started in ")
    finally:
        process.terminate()
        process.communicate(timeout=30)


def test_connection_above_max_connections_is_closed_and_earlier_connections_still_work(tmp_path: Path) -> None:
    with (
        running_broker(tmp_path, max_connections="2") as broker,
        RawClient(broker.address) as first,
        RawClient(broker.address) as second,
    ):
        create_topic(first, "a")
        create_topic(second, "b")
        with RawClient(broker.address) as third:
            assert third.is_closed()
        assert "max.connections=2" in broker.log
        assert set(topics_of(first)) == {"a", "b"}


def test_broker_near_its_file_descriptor_limit_rejects_connections_and_still_creates_logs(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "headrace_broker.server", "--property", "listeners=PLAINTEXT://127.0.0.1:0"]
    command += ["--property", f"log.dirs={tmp_path / 'd'}"]
    limited = ["sh", "-c", 'ulimit -n 160 && exec "$@"', "sh", *command]
    log = tmp_path / "log"
    with open(log, "wb") as errors:
        process = subprocess.Popen(limited, stdout=subprocess.PIPE, stderr=errors, text=True)
    assert process.stdout is not None
    flood: list[socket.socket] = []
    try:
        address = process.stdout.readline().split()[4]
        host, port = address.split(":")
        with RawClient(address) as client:
            flood += [socket.create_connection((host, int(port)), timeout=30) for _ in range(300)]
            create_topic(client, "t", partitions=3)
            for number in range(3):
                response = client.call(produce_request("t", batch(b"x"), partition=number), 9).responses[0]
                assert response.partition_responses[0].error_code == 0
    finally:
        for connection in flood:
            connection.close()
        process.terminate()
        process.communicate(timeout=30)
    assert log.read_text().count("ulimit -n allows no more") == 1
    assert "ERROR" not in log.read_text()


def test_requests_to_a_partition_return_errors_until_the_broker_can_create_the_log_of_the_partition(
    tmp_path: Path,
) -> None:
    mount = tmp_path / "small"
    mount.mkdir()
    options = ["mount", "-t", "tmpfs", "-o", "size=8m,nr_inodes=200", "tmpfs", str(mount)]
    if os.geteuid() != 0 or subprocess.run(options, capture_output=True).returncode != 0:
        pytest.skip("needs root, to mount a small tmpfs")
    try:
        with running_broker(mount) as broker, RawClient(broker.address) as client:
            create_topic(client, "kept")
            client.call(produce_request("kept", batch(b"x")), 9)
            create_topic(client, "much", partitions=60)  # the logs need more files than the disk has inodes
            create_topic(client, "other")
            kept = client.call(produce_request("kept", batch(b"x")), 9).responses[0].partition_responses[0]
            assert (kept.error_code, kept.base_offset) == (0, 1)
            missing = client.call(produce_request("other", batch(b"x")), 9).responses[0].partition_responses[0]
            assert missing.error_code == 3
            subprocess.run(["mount", "-o", "remount,nr_inodes=2000", str(mount)], check=True)
            deadline = time.monotonic() + 30
            for topic, partition in (("much", 59), ("other", 0)):
                request = produce_request(topic, batch(b"x"), partition=partition)
                while client.call(request, 9).responses[0].partition_responses[0].error_code:
                    assert time.monotonic() < deadline, broker.log
                    time.sleep(0.05)
            assert broker.log.count("cannot create a log, retrying") == 2
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def test_restarted_broker_completes_an_interrupted_topic_deletion_and_renames_logs_of_unknown_topics_to_stray(
    tmp_path: Path,
) -> None:
    with running_broker(tmp_path, log_segment_delete_delay_ms="0") as broker:
        with RawClient(broker.address) as client:
            for name in ("deleted", "kept"):
                create_topic(client, name)
                client.call(produce_request(name, batch(b"x")), 9)
        broker.kill()
        copies = {name: tmp_path / f"{name}-copy" for name in ("deleted", "kept")}
        for name, copy in copies.items():
            shutil.copytree(broker.data_dir / f"{name}-0", copy)
        broker.start()
        with RawClient(broker.address) as client:
            client.call(DeleteTopicsRequest(topic_names=["deleted"], timeout_ms=5000), 5)
        broker.kill()
        shutil.copytree(copies["deleted"], broker.data_dir / "deleted-0")
        shutil.copytree(copies["kept"], broker.data_dir / "unknown-0")
        (broker.data_dir / "unknown-0" / "partition.metadata").unlink()
        broker.start()
        deadline_s = time.monotonic() + 30
        while list(broker.data_dir.glob("deleted-0*")) and time.monotonic() < deadline_s:
            time.sleep(0.05)  # the broker removes the files in the background
        assert not list(broker.data_dir.glob("deleted-0*"))
        assert len(list(broker.data_dir.glob("unknown-0.*-stray"))) == 1
        with RawClient(broker.address) as client:
            assert client.call(fetch_request("kept"), 12).responses[0].partitions[0].high_watermark == 1
