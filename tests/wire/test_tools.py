"""Tests of the output and the exit status of each command-line tool with a real broker."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psutil
import pytest

from support.broker import BrokerProcess, running_broker
from support.commands import run_tool
from support.preloaded import PreloadedPopen

pytestmark = [pytest.mark.wire, pytest.mark.timeout(300)]

Done = subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with running_broker(tmp_path_factory.mktemp("tools"), offsets_topic_num_partitions="3") as running:
        yield running


def command(tool: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", f"headrace_broker.tools.{tool}", *arguments]


def run(tool: str, broker: BrokerProcess, *arguments: str, stdin: str | bytes = "", status: int = 0) -> Done:
    given = stdin if isinstance(stdin, bytes) else stdin.encode()
    done = run_tool(tool, "--bootstrap-server", broker.address, *arguments, stdin=given)
    assert done.returncode == status, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def lines(tool: str, broker: BrokerProcess, *arguments: str, stdin: str | bytes = "") -> list[str]:
    return run(tool, broker, *arguments, stdin=stdin).stdout.splitlines()


def create(broker: BrokerProcess, topic: str, *arguments: str) -> None:
    assert lines("topics", broker, "--create", "--topic", topic, *arguments)[-1] == f"Created topic {topic}."


def produce(broker: BrokerProcess, topic: str, text: str | bytes, *arguments: str) -> None:
    run("console_producer", broker, "--topic", topic, *arguments, stdin=text)


def consume(broker: BrokerProcess, topic: str, count: int, *arguments: str) -> list[str]:
    done = run("console_consumer", broker, "--topic", topic, "--max-messages", str(count), *arguments)
    assert f"Processed a total of {count} messages" in done.stderr
    return done.stdout.splitlines()


# -- topics and configurations ---------------------------------------------------------------------------------------


def test_topics_tool_creates_describes_alters_and_deletes_topics(broker: BrokerProcess) -> None:
    done = run("topics", broker, "--create", "--topic", "life_cycle", "--partitions", "2", "--config", "retention.ms=9")
    assert done.stdout.splitlines()[0].startswith("WARNING: Due to limitations in metric names")
    assert done.stdout.endswith("Created topic life_cycle.\n")
    again = run("topics", broker, "--create", "--topic", "life_cycle", status=1)
    assert again.stdout.endswith("Error while executing topic command : Topic 'life_cycle' already exists.\n")
    run("topics", broker, "--create", "--topic", "life_cycle", "--if-not-exists")
    assert "life_cycle" in lines("topics", broker, "--list")
    first, *partitions = lines("topics", broker, "--describe", "--topic", "life.cycle")
    topic_id = re.fullmatch(
        r"Topic: life_cycle\tTopicId: (\S{22})\tPartitionCount: 2\tReplicationFactor: 1\tConfigs: retention.ms=9", first
    )
    assert topic_id is not None
    assert partitions == [
        f"\tTopic: life_cycle\tPartition: {number}\tLeader: 1\tReplicas: 1\tIsr: 1\tElr: \tLastKnownElr: "
        for number in range(2)
    ]
    assert lines("topics", broker, "--describe", "--topic-id", topic_id[1])[0] == first
    assert lines("topics", broker, "--describe", "--topics-with-overrides", "--topic", "life_cycle") == [first]
    assert lines("topics", broker, "--describe", "--under-replicated-partitions") == []
    run("topics", broker, "--alter", "--topic", "life_cycle", "--partitions", "3")
    fewer = run("topics", broker, "--alter", "--topic", "life_cycle", "--partitions", "2", status=1)
    assert "Error while executing topic command : The topic life_cycle currently has 3 partition(s)" in fewer.stdout
    run("topics", broker, "--delete", "--topic", "life_cycle")
    missing = run("topics", broker, "--delete", "--topic", "life_cycle", status=1)
    assert missing.stdout == "Error while executing topic command : Topic 'life_cycle' does not exist as expected\n"
    run("topics", broker, "--delete", "--topic", "life_cycle", "--if-exists")


def test_topics_describe_prints_the_same_output_if_responses_are_split_into_pages(broker: BrokerProcess) -> None:
    create(broker, "pages-a", "--partitions", "3")
    create(broker, "pages-b", "--partitions", "4")
    all_at_once = lines("topics", broker, "--describe", "--topic", "pages-.*")
    assert len(all_at_once) == 9
    paged = lines("topics", broker, "--describe", "--topic", "pages-.*", "--partition-size-limit-per-response", "2")
    assert paged == all_at_once


def test_topics_tool_prints_the_brokers_error_messages(broker: BrokerProcess) -> None:
    for arguments, message in (
        (["--topic", "a b"], "contains one or more characters other than ASCII alphanumerics"),
        (["--topic", "x", "--replication-factor", "3"], "1"),
        (["--topic", "x", "--config", "retention.mss=1"], "retention.mss"),
        (["--topic", "x", "--partitions", "0"], "The partitions must be greater than 0"),
    ):
        done = run("topics", broker, "--create", *arguments, status=1)
        assert done.stdout.startswith("Error while executing topic command : ")
        assert message in done.stdout
        assert len(done.stdout.splitlines()) == 1


def test_configs_tool_alters_describes_and_deletes_configs(broker: BrokerProcess) -> None:
    create(broker, "configured")
    target = ("--entity-type", "topics", "--entity-name", "configured")
    change = ("--add-config", "retention.ms=5000,cleanup.policy=[compact,delete]")
    assert lines("configs", broker, "--alter", *target, *change) == ["Completed updating config for topic configured."]
    assert lines("configs", broker, "--describe", "--topic", "configured") == [
        "Dynamic configs for topic configured are:",
        "  cleanup.policy=compact,delete sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:cleanup.policy=compact,delete, "
        "DEFAULT_CONFIG:log.cleanup.policy=delete}",
        "  retention.ms=5000 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=5000}",
    ]
    run("configs", broker, "--alter", *target, "--delete-config", "retention.ms,cleanup.policy")
    assert len(lines("configs", broker, "--describe", *target)) == 1
    assert len(lines("configs", broker, "--describe", "--broker", "1", "--all")) > 10
    refused = run("configs", broker, "--alter", *target, "--add-config", "retention.mss=1", status=1)
    assert "retention.mss" in refused.stderr
    assert len(refused.stderr.splitlines()) == 1


# -- the console -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_console_consumer_prints_lines_of_console_producer(broker: BrokerProcess, codec: str) -> None:
    topic = f"console-{codec}"
    texts = [f"{codec} {number} é" for number in range(2_000)]
    produce(broker, topic, "\n".join(texts), "--compression-codec", codec)
    assert consume(broker, topic, 2_000, "--from-beginning") == texts


def test_console_producer_keeps_order_and_bytes_of_a_large_input(broker: BrokerProcess) -> None:
    data = b"".join(b"%08d\xff%s\n" % (number, b"x" * (number % 300)) for number in range(100_000))
    produce(broker, "console-big", data)
    done = subprocess.run(
        command(
            *("console_consumer", "--bootstrap-server", broker.address, "--topic", "console-big"),
            *("--from-beginning", "--max-messages", "100000"),
        ),
        capture_output=True,
        timeout=60,
    )
    assert done.stdout == data


def test_console_tools_produce_and_print_keys_headers_nulls_and_all_record_fields(broker: BrokerProcess) -> None:
    create(broker, "console-parts", "--partitions", "1")
    reading = [f"--reader-property={pair}" for pair in ("parse.key=true", "parse.headers=true", "null.marker=NUL")]
    produce(broker, "console-parts", "h:1,i:NUL\tk\tv\nNUL\tNUL\tNUL\n", *reading)
    names = ("timestamp", "partition", "offset", "epoch", "headers", "key")
    printing = [f"--formatter-property=print.{name}=true" for name in names]
    found = consume(broker, "console-parts", 2, "--from-beginning", *printing)
    assert [re.sub(r"CreateTime:\d{13}", "CreateTime:N", line) for line in found] == [
        "CreateTime:N\tPartition:0\tOffset:0\tEpoch:NOT_PRESENT\th:1,i:null\tk\tv",
        "CreateTime:N\tPartition:0\tOffset:1\tEpoch:NOT_PRESENT\tNO_HEADERS\tnull\tnull",
    ]
    assert consume(broker, "console-parts", 1, "--partition", "0", "--offset", "1") == ["null"]
    wrong = run("console_consumer", broker, "--topic", "console-parts", "--partition", "7", status=1)
    assert "topic console-parts has no partition 7, its partition count is 1" in wrong.stderr


def test_deprecated_options_of_console_tools_work_with_a_warning(broker: BrokerProcess, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("client.id=mine\n")
    done = run(
        *("console_producer", broker, "--topic", "console-old", "--property", "parse.key=true"),
        *("--property", "key.separator=:", "--producer.config", str(file), "--producer-property", "acks=1"),
        stdin="k:v\n",
    )
    warned = re.findall(r"Warning: (\S+) is deprecated\. Use", done.stderr)
    assert sorted(warned) == ["--producer-property", "--producer.config", "--property", "--property"]
    assert consume(broker, "console-old", 1, "--from-beginning", "--property", "print.key=true") == ["k\tv"]


def test_console_producer_with_the_option_sync_does_not_wait_for_linger_ms(broker: BrokerProcess) -> None:
    started = time.monotonic()
    produce(broker, "console-sync", "a\nb\nc\n", "--sync", "--command-property", "linger.ms=60000")
    assert time.monotonic() - started < 60, "a record waited for linger.ms"
    assert consume(broker, "console-sync", 3, "--from-beginning") == ["a", "b", "c"]
    assert lines("get_offsets", broker, "--topic", "console-sync") == ["console-sync:0:3"]


def test_console_producer_sends_the_lines_before_an_invalid_line_and_exits_with_status_1(broker: BrokerProcess) -> None:
    done = run(
        *("console_producer", broker, "--topic", "console-bad", "--reader-property", "parse.key=true"),
        stdin="k\tv\nno separator\nk\tw\n",
        status=1,
    )
    assert done.stderr.splitlines() == ["No key separator found on line number 2: 'no separator'"]
    assert lines("get_offsets", broker, "--topic", "console-bad") == ["console-bad:0:1"]


def test_console_producer_reports_failed_records(broker: BrokerProcess) -> None:
    done = run(
        *("console_producer", broker, "--topic", "console-lost", "--command-property", "max.request.size=1000"),
        stdin="x" * 5_000,
        status=1,
    )
    assert "ERROR Error when sending line 1 to topic console-lost:" in done.stderr


def test_console_consumer_waits_for_topic_and_exits_after_timeout_ms(broker: BrokerProcess) -> None:
    with started("console_consumer", broker, "--topic", "console-late", "--max-messages", "2") as consumer:
        wait_for_topic(broker, "console-late")
        produce(broker, "console-late", "a\nb\n")
        assert consumer.communicate(timeout=30)[0] == b"a\nb\n"
        assert consumer.returncode == 0
    idle = run("console_consumer", broker, "--topic", "console-late", "--timeout-ms", "300")
    assert (idle.stdout, "Processed a total of 0 messages" in idle.stderr) == ("", True)


def test_include_expression_of_console_consumer_matches_topics_that_are_created_later(broker: BrokerProcess) -> None:
    produce(broker, "expr-1", "one\n")
    with started(
        "console_consumer", broker, "--include", "expr-.*", "--from-beginning", "--max-messages", "2"
    ) as consumer:
        assert read_line(consumer) == b"one\n"
        produce(broker, "expr-2", "two\n")
        assert consumer.communicate(timeout=30)[0] == b"two\n"


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_ends_console_consumer_cleanly(broker: BrokerProcess, number: signal.Signals, status: int) -> None:
    topic = f"console-signal-{number}"
    produce(broker, topic, "a\n")
    with started("console_consumer", broker, "--topic", topic, "--from-beginning") as consumer:
        assert read_line(consumer) == b"a\n"
        consumer.send_signal(number)
        _, errors = consumer.communicate(timeout=30)
    assert consumer.returncode == status
    assert errors.decode().splitlines() == ["Processed a total of 1 messages"]


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_ends_console_producer_after_it_has_sent_all_lines_that_it_has_read(
    broker: BrokerProcess, number: signal.Signals, status: int
) -> None:
    topic = f"producer-signal-{number}"
    create(broker, topic)
    with started("console_producer", broker, "--topic", topic, "--timeout", "60000") as producer:
        assert producer.stdin is not None
        for line in (b"a\n", b"b\n"):  # the tool sends the first line before it reads the second line
            producer.stdin.write(line)
            producer.stdin.flush()
            wait_until(partial(is_drained, producer.stdin.fileno()))
        producer.send_signal(number)
        assert producer.wait(30) == status
    assert consume(broker, topic, 1, "--from-beginning") == ["a"]


def test_signal_after_end_of_input_makes_console_producer_report_unacknowledged_lines(broker: BrokerProcess) -> None:
    create(broker, "producer-unsent")
    with started("console_producer", broker, "--topic", "producer-unsent", "--timeout", "1000") as producer:
        assert producer.stdin is not None
        assert producer.stderr is not None
        producer.stdin.write(b"a\n")
        producer.stdin.flush()
        wait_until(partial(is_drained, producer.stdin.fileno()))
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            producer.stdin.close()
            wait_until(lambda: has_unread_request(broker.port, producer.pid))  # the tool has sent the line
            producer.send_signal(signal.SIGINT)
            assert producer.wait(30) == 130
        finally:
            os.kill(broker.pid, signal.SIGCONT)
        assert b"ERROR Error when sending line 1 to topic producer-unsent: " in producer.stderr.read()


def has_unread_request(broker_port: int, client_pid: int) -> bool:
    """Whether a connection of the client has bytes that the broker has not read."""
    ports = {connection.laddr.port for connection in psutil.Process(client_pid).net_connections("tcp")}
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, remote, _, queues, *_ = line.split()
        local_port, remote_port, unread_bytes = (int(field.split(":")[1], 16) for field in (local, remote, queues))
        if local_port == broker_port and remote_port in ports and unread_bytes:
            return True
    return False


def test_console_consumer_exits_when_its_output_pipe_is_closed(broker: BrokerProcess) -> None:
    produce(broker, "console-pipe", "x\n" * 300_000)
    with started(
        "console_consumer", broker, "--topic", "console-pipe", "--from-beginning", "--group", "pipe"
    ) as consumer:
        assert read_line(consumer) == b"x\n"
        assert consumer.stdout is not None
        consumer.stdout.close()
        assert consumer.stderr is not None
        assert re.fullmatch(rb"Processed a total of \d+ messages\n", consumer.stderr.read())
        assert consumer.wait(30) == 0


def test_interrupt_signal_stops_a_console_consumer_that_is_blocked_by_a_full_output_pipe(broker: BrokerProcess) -> None:
    produce(broker, "console-stuck", "x" * 1000 + "\n" + "y\n" * 300_000)
    with started(
        "console_consumer", broker, "--topic", "console-stuck", "--from-beginning", "--group", "stuck"
    ) as consumer:
        assert read_line(consumer) == b"x" * 1000 + b"\n"  # the test reads no more output, so the pipe becomes full
        consumer.send_signal(signal.SIGINT)
        assert consumer.wait(30) == 130
        assert consumer.stdout is not None
        printed = 1 + consumer.stdout.read().count(b"\n")
    described = lines("consumer_groups", broker, "--describe", "--group", "stuck")[2].split()
    assert printed < 300_001
    assert int(described[3]) <= printed, "offsets of records were committed that were not printed"


def test_console_producer_prints_a_prompt_on_a_terminal(broker: BrokerProcess) -> None:
    create(broker, "console-tty")
    ours, theirs = pty.openpty()
    producer = subprocess.Popen(
        command("console_producer", "--bootstrap-server", broker.address, "--topic", "console-tty"),
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.PIPE,
    )
    os.close(theirs)
    try:
        shown = b""
        for text in (b"hello\n", b"world\n", b"\x04"):
            while not shown.endswith(b">"):
                shown += os.read(ours, 100)
            os.write(ours, text)
            shown += os.read(ours, 1) if text != b"\x04" else b""
        assert producer.wait(30) == 0
    finally:
        producer.kill()
        assert producer.stderr is not None
        assert producer.stderr.read() == b""
        producer.stderr.close()
        os.close(ours)
    assert shown.count(b">") == 3
    assert consume(broker, "console-tty", 2, "--from-beginning") == ["hello", "world"]


def test_console_tools_time_out_waiting_for_missing_topic(tmp_path: Path) -> None:
    with running_broker(tmp_path, auto_create_topics_enable="false") as broker:
        arguments = ("--topic", "absent", "--max-block-ms", "2500")
        done = run("console_producer", broker, *arguments, stdin="lost\n", status=1)
        first, last = done.stderr.splitlines()
        assert first.startswith("WARN waiting for topic absent: UNKNOWN_TOPIC_OR_PARTITION")
        assert last == "Topic absent not present in metadata after 2500 ms."
        with started("console_consumer", broker, "--topic", "absent", "--partition", "0") as consumer:
            assert consumer.stderr is not None
            assert consumer.stderr.readline().startswith(b"WARN waiting for topic absent")
            consumer.send_signal(signal.SIGINT)
            assert consumer.wait(30) == 130
        idle = run("console_consumer", broker, "--topic", "absent", "--timeout-ms", "200")
        assert "WARN topic absent: UNKNOWN_TOPIC_OR_PARTITION" in idle.stderr
        invalid = run("console_consumer", broker, "--topic", "no topic", status=1)
        assert "topic no topic: INVALID_TOPIC_EXCEPTION" in invalid.stderr


def test_console_consumer_formatters_print_consumer_offsets_records_as_json(broker: BrokerProcess) -> None:
    produce(broker, "formatted", "a\n")
    consume(broker, "formatted", 1, "--from-beginning", "--group", "formatted-group")
    reading = ("--topic", "__consumer_offsets", "--from-beginning", "--timeout-ms", "1000")
    offsets = lines("console_consumer", broker, *reading, "--formatter", "kafka.OffsetsMessageFormatter")
    mine = [record for record in map(json.loads, offsets) if record["key"]["data"]["group"] == "formatted-group"]
    assert mine[-1]["key"] == {"type": 1, "data": {"group": "formatted-group", "topic": "formatted", "partition": 0}}
    assert mine[-1]["value"]["data"]["offset"] == 1
    groups = lines("console_consumer", broker, *reading, "--formatter", "GroupMetadataMessageFormatter")
    mine = [record for record in map(json.loads, groups) if record["key"]["data"]["group"] == "formatted-group"]
    assert [len(record["value"]["data"]["members"]) for record in mine][-2:] == [1, 0]


def test_deserializer_error_fails_console_consumer_unless_skip_message_on_error_is_set(broker: BrokerProcess) -> None:
    produce(broker, "console-int", "abcd\nabc\nbbcd\n")
    reading = ("--topic", "console-int", "--from-beginning", "--value-deserializer", "IntegerDeserializer")
    failed = run("console_consumer", broker, *reading, "--timeout-ms", "2000", status=1)
    assert "console-int-0: Size of data received by IntegerDeserializer is not 4" in failed.stderr
    skipped = run("console_consumer", broker, *reading, "--max-messages", "3", "--skip-message-on-error")
    assert skipped.stdout.splitlines() == ["1633837924", "1650615140"]
    assert "ERROR console-int-0, offset 1: " in skipped.stderr


# -- groups and offsets ----------------------------------------------------------------------------------------------


def test_consumer_groups_tool_lists_describes_and_deletes_groups_and_resets_their_offsets(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    create(broker, "grouped", "--partitions", "2")
    produce(broker, "grouped", "".join(f"{number}\tv\n" for number in range(100)), "--reader-property=parse.key=true")
    consume(broker, "grouped", 100, "--from-beginning", "--group", "team")
    assert "team" in lines("consumer_groups", broker, "--list")
    assert ["team", "Classic", "Empty"] in [
        line.split() for line in lines("consumer_groups", broker, "--list", "--state", "--type", "classic")
    ]
    done = run("consumer_groups", broker, "--describe", "--group", "team")
    assert done.stderr == "\nConsumer group 'team' has no active members.\n"
    header, *rows = [line.split() for line in done.stdout.splitlines()[1:]]
    assert header[:6] == ["GROUP", "TOPIC", "PARTITION", "CURRENT-OFFSET", "LOG-END-OFFSET", "LAG"]
    assert [(row[2], row[5:]) for row in rows] == [("0", ["0", "-", "-", "-"]), ("1", ["0", "-", "-", "-"])]
    assert sum(int(row[3]) for row in rows) == 100

    def reset(*arguments: str) -> list[tuple[str, ...]]:
        done = run("consumer_groups", broker, "--reset-offsets", "--group", "team", *arguments)
        return [tuple(line.split()[2:]) for line in done.stdout.splitlines()[2:]]

    whole = ("--topic", "grouped")
    assert reset(*whole, "--to-earliest", "--dry-run") == [("0", "0"), ("1", "0")]
    assert reset("--topic", "grouped:1", "--to-offset", "3", "--execute") == [("1", "3")]
    assert reset("--topic", "grouped:1", "--shift-by", "-1", "--execute") == [("1", "2")]
    assert reset("--topic", "grouped:1", "--shift-by", "-9", "--dry-run") == [("1", "0")]
    assert reset("--all-topics", "--to-current", "--dry-run")[1] == ("1", "2")
    assert reset(*whole, "--by-duration", "P1D", "--dry-run") == [("0", "0"), ("1", "0")]
    assert reset(*whole, "--to-datetime", "2020-01-01T00:00:00.000", "--dry-run") == [("0", "0"), ("1", "0")]
    ends = reset(*whole, "--to-latest", "--dry-run")
    assert sum(int(offset) for _, offset in ends) == 100
    exported = run(
        *("consumer_groups", broker, "--reset-offsets", "--group", "team", *whole, "--to-latest"),
        *("--dry-run", "--export"),
    )
    plan = tmp_path / "plan.csv"
    plan.write_text(exported.stdout)
    assert reset("--from-file", str(plan), "--execute") == ends
    missing = run(
        *("consumer_groups", broker, "--reset-offsets", "--group", "team", "--topic", "grouped:9", "--to-latest"),
        status=1,
    )
    assert 'failed due to The partitions "grouped-9" do not exist' in missing.stdout
    deleted = lines("consumer_groups", broker, "--delete-offsets", "--group", "team", "--topic", "grouped:0")
    assert deleted[0] == "Request succeeded for deleting offsets from group team."
    assert deleted[-1].split() == ["grouped", "0", "Successful"]
    assert lines("consumer_groups", broker, "--delete", "--group", "team") == [
        "Deletion of requested consumer groups ('team') was successful."
    ]
    refused = run("consumer_groups", broker, "--delete", "--group", "team", status=1)
    assert (
        "* Group 'team' could not be deleted due to: org.apache.kafka.common.errors.GroupIdNotFound" in refused.stdout
    )
    deleted_group = run("consumer_groups", broker, "--describe", "--group", "team", status=1)
    assert deleted_group.stdout == "\nError: Consumer group 'team' does not exist.\n"


def test_consumer_groups_tool_describes_but_does_not_reset_the_offsets_of_a_group_with_active_members(
    broker: BrokerProcess,
) -> None:
    produce(broker, "living", "a\n")
    with started("console_consumer", broker, "--topic", "living", "--from-beginning", "--group", "alive") as consumer:
        assert read_line(consumer) == b"a\n"
        address = f"{broker.address}  (1)"
        state = lines("consumer_groups", broker, "--describe", "--group", "alive", "--state")
        assert address in state[2]
        assert state[2].split()[-3:] == ["range", "Stable", "1"]
        members = lines("consumer_groups", broker, "--describe", "--group", "alive", "--members", "--verbose")
        assert members[2].split()[0] == "alive"
        assert members[2].split()[-5:] == ["1", "-", "living:0", "-", "-"]
        offsets = lines("consumer_groups", broker, "--describe", "--group", "alive")[2].split()
        assert offsets[:3] == ["alive", "living", "0"]
        assert offsets[6].startswith("console-consumer-")
        assert offsets[7:] == ["/127.0.0.1", "console-consumer"]
        refused = run(
            *("consumer_groups", broker, "--reset-offsets", "--group", "alive", "--topic", "living"),
            *("--to-earliest", "--execute"),
            status=1,
        )
        assert "can only be reset if the group 'alive' is inactive, but the current state is Stable." in refused.stdout
        busy = run("consumer_groups", broker, "--delete", "--group", "alive", status=1)
        assert "GroupNotEmptyException" in busy.stdout
        consumer.send_signal(signal.SIGTERM)
        consumer.communicate(timeout=30)
    row = lines("consumer_groups", broker, "--describe", "--group", "alive")[2].split()
    assert row[3:6] == ["1", "1", "0"], "the consumer did not commit when it ended"


def test_get_offsets_tool_prints_the_offsets_of_matching_partitions(broker: BrokerProcess) -> None:
    create(broker, "offsets-a", "--partitions", "3")
    produce(broker, "offsets-b", "x\ny\n")
    assert lines("get_offsets", broker, "--topic", "offsets-.*") == [
        "offsets-a:0:0",
        "offsets-a:1:0",
        "offsets-a:2:0",
        "offsets-b:0:2",
    ]
    assert lines("get_offsets", broker, "--topic", "offsets-a", "--partitions", "0,2") == [
        "offsets-a:0:0",
        "offsets-a:2:0",
    ]
    assert lines("get_offsets", broker, "--topic-partitions", "offsets-a:1-,offsets-b", "--time", "-2") == [
        "offsets-a:1:0",
        "offsets-a:2:0",
        "offsets-b:0:0",
    ]
    assert lines("get_offsets", broker, "--topic", "offsets-b", "--time", "1") == ["offsets-b:0:0"]
    nothing = run("get_offsets", broker, "--topic", "no-such-topic", status=1)
    assert nothing.stderr == "Error occurred: Could not match any topic-partitions with the specified filters\n"


def test_broker_api_versions_tool_prints_the_versions_of_all_apis(broker: BrokerProcess) -> None:
    first, *apis, last = lines("broker_api_versions", broker)
    assert first == f"{broker.address} (id: 1 rack: null isFenced: false) -> ("
    assert last == ")"
    assert apis[0] == "\tProduce(0): 0 to 13 [usable: 13],"
    assert all(re.fullmatch(r"\t\w+\(\d+\): (UNSUPPORTED|\d+( to \d+)? \[usable: \d+\]),?", api) for api in apis)
    assert apis[-1][-1] != ","


# -- unreachable brokers ---------------------------------------------------------------------------------------------


def test_every_tool_fails_with_a_one_line_error_within_the_time_limit_if_no_broker_is_reachable() -> None:
    tools = {
        "topics": ["--list"],
        "get_offsets": [],
        "broker_api_versions": [],
        "consumer_groups": ["--list"],
        "configs": ["--describe", "--topic", "t"],
        "console_consumer": ["--topic", "t"],
        "console_producer": ["--topic", "t"],
    }
    with socket.socket() as taken:  # the socket does not listen, so its port refuses connections
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        processes = {
            tool: subprocess.Popen(
                command(tool, "--bootstrap-server", address, *arguments),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for tool, arguments in tools.items()
        }
        outputs = {tool: process.communicate(timeout=60)[0].strip() for tool, process in processes.items()}
    for tool, process in processes.items():
        assert process.returncode == 1, tool
        assert f"no broker could be reached at {address} within 5 s" in outputs[tool]
        assert "\n" not in outputs[tool]


# -- starting and stopping -------------------------------------------------------------------------------------------


def test_kafka_server_start_runs_a_broker_as_a_daemon_and_kafka_server_stop_stops_it(tmp_path: Path) -> None:
    node_id = str(os.getpid())  # no other broker on this machine has this node id
    (tmp_path / "server.properties").write_text(
        f"node.id={node_id}\nlisteners=PLAINTEXT://127.0.0.1:0\nlog.dirs={tmp_path / 'data'}\n"
    )
    start = command("server_start", "-daemon", "server.properties", "--override", "num.partitions=2")
    stop = command("server_stop", f"--node-id={node_id}")

    def call(words: list[str]) -> Done:
        return subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=120)

    done = call(start)
    try:
        assert done.returncode == 0, done.stderr
        ready = re.fullmatch(rf"headrace broker {node_id} serves (\S+) \(started in \d+ ms\)\n", done.stdout)
        assert ready is not None
        listed = subprocess.run(
            command("topics", "--bootstrap-server", ready[1], "--create", "--topic", "t"),
            capture_output=True,
            text=True,
        )
        assert listed.stdout == "Created topic t.\n"
        second = call(start)
        assert second.returncode == 1
        assert "is in use by another process" in second.stderr
        assert len(second.stderr.splitlines()) == 1
        assert call(command("server_stop", f"--node-id={node_id}0")).stdout == "No kafka server to stop\n"
    finally:
        running = [process.pid for process in psutil.process_iter(["cwd"]) if process.info["cwd"] == str(tmp_path)]
        stopped = call(stop)
    assert stopped.returncode == 0
    printed = re.fullmatch(r"Stopping process (\d+): node (\d+), directories (.+)\n", stopped.stdout)
    assert printed is not None, stopped.stdout
    assert printed.group(2, 3) == (node_id, str(tmp_path / "data"))
    assert int(printed[1]) in running
    log = tmp_path / "logs" / "kafkaServer.out"
    wait_until(lambda: f"Node {node_id} stopped" in log.read_text())
    wait_until(lambda: call(stop).returncode == 1)


# -- processes -------------------------------------------------------------------------------------------------------


@contextmanager
def started(tool: str, broker: BrokerProcess, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    process = PreloadedPopen(
        command(tool, "--bootstrap-server", broker.address, *arguments),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout, process.stderr):
            if stream is not None:
                stream.close()


def read_line(process: subprocess.Popen[bytes]) -> bytes:
    """Read the first line of a process's output byte by byte, so that the remaining output stays in the pipe."""
    assert process.stdout is not None
    descriptor = process.stdout.fileno()
    line = b""
    while not line.endswith(b"\n"):
        assert select.select([descriptor], [], [], 60)[0], f"only {line!r} received"
        byte = os.read(descriptor, 1)
        assert byte, f"the output ended after {line!r}"
        line += byte
    return line


def wait_until(condition: Callable[[], bool], timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)  # poll, because the condition depends on another process


def wait_for_topic(broker: BrokerProcess, topic: str) -> None:
    wait_until(lambda: topic in lines("topics", broker, "--list"))


def is_drained(descriptor: int) -> bool:
    """Return whether a pipe is empty because the process at its other end has read everything."""
    return fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4)) == bytes(4)
