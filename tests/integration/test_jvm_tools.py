"""Tests Kafka's own tools with headrace's broker and files, and compares their output with that of headrace's tools."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import apache
from support.broker import BrokerProcess, running_broker

pytestmark = [
    pytest.mark.integration,
    pytest.mark.jvm,
    pytest.mark.skipif(apache.unavailable_reason() is not None, reason=apache.unavailable_reason() or ""),
]

TOOLS = "org.apache.kafka.tools"
JAVA = {
    "topics": f"{TOOLS}.TopicCommand",
    "get_offsets": f"{TOOLS}.GetOffsetShell",
    "broker_api_versions": f"{TOOLS}.BrokerApiVersionsCommand",
    "consumer_groups": f"{TOOLS}.consumer.group.ConsumerGroupCommand",
    "configs": "kafka.admin.ConfigCommand",
    "dump_log": f"{TOOLS}.DumpLogSegments",
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with running_broker(tmp_path_factory.mktemp("jvm"), offsets_topic_num_partitions="3") as running:
        yield running


def run_kafka_tool(main_class: str, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    done = apache.run_tool(main_class, *arguments, stdin=stdin, timeout_s=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def run_our_tool(tool: str, *arguments: str) -> str:
    command = [sys.executable, "-m", f"headrace_broker.tools.{tool}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def produce(broker: BrokerProcess, topic: str, text: str, *arguments: str) -> None:
    server = ("--bootstrap-server", broker.address, "--topic", topic)
    done = run_kafka_tool(f"{TOOLS}.ConsoleProducer", *server, *arguments, stdin=text)
    assert "ERROR" not in done.stderr


def consume(broker: BrokerProcess, topic: str, count: int, *arguments: str) -> str:
    server = ("--bootstrap-server", broker.address, "--topic", topic, "--from-beginning", "--timeout-ms", "30000")
    done = run_kafka_tool(f"{TOOLS}.consumer.ConsoleConsumer", *server, "--max-messages", str(count), *arguments)
    assert f"Processed a total of {count} messages" in done.stderr
    return done.stdout


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_kafkas_console_tools_produce_and_consume_with_a_headrace_broker(broker: BrokerProcess, codec: str) -> None:
    topic = f"console-{codec}"
    text = "".join(f"h:{number}\tkey-{number}\tvalue {number} é\n" for number in range(500))
    reading = ("--reader-property", "parse.key=true", "--reader-property", "parse.headers=true")
    produce(broker, topic, text, "--compression-codec", codec, *reading)
    printing = ("--formatter-property", "print.key=true", "--formatter-property", "print.headers=true")
    assert consume(broker, topic, 500, "--group", f"group-{codec}", *printing) == text
    described = run_our_tool(
        "consumer_groups", "--bootstrap-server", broker.address, "--describe", "--group", f"group-{codec}"
    )
    assert described.splitlines()[2].split()[3:6] == ["500", "500", "0"]


def test_headrace_and_kafka_console_tools_read_each_others_records(broker: BrokerProcess) -> None:
    server = ("--bootstrap-server", broker.address, "--topic", "both-consoles")
    produce(broker, "both-consoles", "from java\n")
    command = [sys.executable, "-m", "headrace_broker.tools.console_producer", *server, "--compression-codec", "zstd"]
    subprocess.run(command, input="from python\n", text=True, check=True, timeout=120)
    both = "from java\nfrom python\n"
    assert consume(broker, "both-consoles", 2) == both
    assert run_our_tool("console_consumer", *server, "--from-beginning", "--max-messages", "2") == both


@pytest.mark.parametrize("acks", ["1", "all"])
def test_kafkas_producer_performance_tool_sends_all_records(broker: BrokerProcess, acks: str) -> None:
    topic = f"performance-{acks}"
    arguments = ("--topic", topic, "--num-records", "100000", "--record-size", "100", "--throughput", "-1")
    properties = ("--producer-props", f"bootstrap.servers={broker.address}", f"acks={acks}")
    done = run_kafka_tool(f"{TOOLS}.ProducerPerformance", *arguments, *properties)
    assert re.search(r"^100000 records sent, [\d.]+ records/sec \([\d.]+ MB/sec\), .* ms 99\.9th\.$", done.stdout, re.M)
    offsets = run_kafka_tool(f"{TOOLS}.GetOffsetShell", "--bootstrap-server", broker.address, "--topic", topic)
    assert offsets.stdout == f"{topic}:0:100000\n"


def test_kafkas_consumer_performance_tool_reads_all_records(broker: BrokerProcess) -> None:
    produce(broker, "consumer-performance", "x\n" * 5000)
    server = ("--bootstrap-server", broker.address, "--topic", "consumer-performance")
    done = run_kafka_tool(f"{TOOLS}.ConsumerPerformance", *server, "--num-records", "5000", "--timeout", "30000")
    assert done.stdout.splitlines()[-1].split(", ")[4] == "5000"


# -- our tools and Kafka's tools print the same ----------------------------------------------------------------------


@pytest.fixture(scope="module")
def filled(broker: BrokerProcess) -> BrokerProcess:
    """Return a broker with a topic of three partitions and a group that has read some of the topic's records."""
    server = ("--bootstrap-server", broker.address)
    configs = ("--config", "retention.ms=86400000", "--config", "cleanup.policy=compact")
    run_kafka_tool(JAVA["topics"], *server, "--create", "--topic", "filled", "--partitions", "3", *configs)
    produce(broker, "filled", "".join(f"{number}:v\n" for number in range(50)), *_keys_separated_by_colon())
    consume(broker, "filled", 20, "--group", "filled-group")
    return broker


def _keys_separated_by_colon() -> tuple[str, ...]:
    return ("--reader-property", "parse.key=true", "--reader-property", "key.separator=:")


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("topics", "--list --exclude-internal"),
        ("topics", "--describe --topic filled"),
        ("topics", "--describe --topics-with-overrides --topic fill.*"),
        ("topics", "--describe --under-min-isr-partitions"),
        ("get_offsets", "--topic filled"),
        ("get_offsets", "--topic-partitions filled:1-,:0 --time earliest"),
        ("get_offsets", "--topic filled --time max-timestamp"),
        ("consumer_groups", "--list"),
        ("consumer_groups", "--list --state --type"),
        ("consumer_groups", "--describe --group filled-group"),
        ("consumer_groups", "--describe --group filled-group --verbose"),
        ("consumer_groups", "--describe --group filled-group --members"),
        ("consumer_groups", "--describe --group filled-group --state"),
        (
            "consumer_groups",
            "--reset-offsets --group filled-group --topic filled:0 --to-earliest --dry-run",
        ),
        (
            "consumer_groups",
            "--reset-offsets --group filled-group --topic filled:2 --shift-by -1 --dry-run",
        ),
        (
            "consumer_groups",
            "--reset-offsets --group filled-group --topic filled:1 --to-latest --dry-run --export",
        ),
        ("configs", "--describe --topic filled"),
        ("configs", "--describe --topic filled --all"),
        ("configs", "--describe --broker 1"),
    ],
)
def test_headrace_tools_print_the_same_output_as_kafkas_tools(filled: BrokerProcess, tool: str, arguments: str) -> None:
    words = ("--bootstrap-server", filled.address, *arguments.split())
    expected = run_kafka_tool(JAVA[tool], *words).stdout
    assert expected.strip() or "--under-min-isr" in arguments
    found = run_our_tool(tool, *words)
    if arguments.startswith("--list"):  # Kafka's tools list names in hash table order
        found, expected = ("\n".join(sorted(text.splitlines())) for text in (found, expected))
    assert found == expected


def test_headrace_broker_api_versions_tool_prints_the_same_version_ranges_as_kafkas_tool(filled: BrokerProcess) -> None:
    """Kafka's output also shows that a Kafka 4.3 client can use at least one version of each API."""
    server = ("--bootstrap-server", filled.address)
    seen = re.findall(
        r"\t(\w+\(\d+\): [\d to]+) \[usable: \d+\]", run_kafka_tool(JAVA["broker_api_versions"], *server).stdout
    )
    assert seen == re.findall(r"\t(\w+\(\d+\): [\d to]+) \[usable: \d+\]", run_our_tool("broker_api_versions", *server))
    assert len(seen) > 25


def test_kafka_consumer_groups_tool_resets_offsets_and_deletes_groups(filled: BrokerProcess) -> None:
    server = ("--bootstrap-server", filled.address)
    produce(filled, "reset", "a\nb\nc\n")
    consume(filled, "reset", 3, "--group", "reset-group")
    target = ("--group", "reset-group", "--topic", "reset")
    done = run_kafka_tool(JAVA["consumer_groups"], *server, "--reset-offsets", *target, "--to-offset", "1", "--execute")
    assert done.stdout.splitlines()[-1].split() == ["reset-group", "reset", "0", "1"]
    assert consume(filled, "reset", 2, "--group", "reset-group") == "b\nc\n"
    done = run_kafka_tool(JAVA["consumer_groups"], *server, "--delete-offsets", *target)
    assert "Request succeeded for deleting offsets from group reset-group." in done.stdout
    run_kafka_tool(JAVA["consumer_groups"], *server, "--delete", "--group", "group-none", "--group", "reset-group")
    assert "reset-group" not in run_our_tool("consumer_groups", *server, "--list").split()


# -- files written by our broker -------------------------------------------------------------------------------------


def test_kafka_and_headrace_dump_log_tools_print_the_same_output_for_log_files_of_headrace(
    tmp_path: Path,
) -> None:
    with running_broker(tmp_path, log_index_interval_bytes="512", offsets_topic_num_partitions="1") as broker:
        for codec in ("none", "lz4"):
            text = "".join(f"key-{number}:value-{number}\n" for number in range(300))
            produce(
                broker,
                "dumped",
                text,
                *_keys_separated_by_colon(),
                "--compression-codec",
                codec,
                "--batch-size",
                "1000",
            )
        consume(broker, "dumped", 600, "--group", "dumping")
        assert broker.stop() == 0
    segment = broker.data_dir / "dumped-0" / "00000000000000000000"
    (snapshot,) = segment.parent.glob("*.snapshot")
    (offsets,) = (broker.data_dir / "__consumer_offsets-0").glob("*.log")
    (metadata,) = (broker.data_dir / "__cluster_metadata-0").glob("*.log")
    log = f"{segment}.log"
    dumped = compare_dumps("--files", log, "--print-data-log")
    assert "isvalid: false" not in dumped
    assert len(re.findall(r"key: key-\d+ payload: value-\d+$", dumped, re.M)) == 600
    assert "compresscodec: lz4" in dumped
    assert len(re.findall(r"^offset: \d+ position: \d+", compare_dumps("--files", f"{segment}.index"), re.M)) > 3
    compare_dumps("--files", f"{segment}.index", "--index-sanity-check")
    assert len(re.findall(r"^timestamp: \d+ offset: \d+", compare_dumps("--files", f"{segment}.timeindex"), re.M)) > 0
    assert re.search(r"^producerId: \d+ producerEpoch: 0 ", compare_dumps("--files", str(snapshot)), re.M)
    assert '"group":"dumping"' in compare_dumps("--files", str(offsets), "--offsets-decoder")
    records = compare_dumps("--files", str(metadata), "--cluster-metadata-decoder", "--skip-record-metadata")
    types = [json.loads(found)["type"] for found in re.findall(r"payload: (\{.*\})$", records, re.M)]
    assert {"FEATURE_LEVEL_RECORD", "REGISTER_BROKER_RECORD", "TOPIC_RECORD", "PARTITION_RECORD"} <= set(types)


def compare_dumps(*arguments: str) -> str:
    """Run both dump tools and return their output, which must be equal and report no problem with the files."""
    done = run_kafka_tool(JAVA["dump_log"], *arguments)
    assert done.stderr == ""
    assert run_our_tool("dump_log", *arguments) == done.stdout
    return done.stdout


# -- our tools with Kafka's broker -----------------------------------------------------------------------------------


def test_headrace_tools_work_with_an_apache_kafka_broker() -> None:
    with apache.broker(flags=apache.SHORT_RUN_FLAGS) as kafka:
        server = ("--bootstrap-server", kafka.address)
        assert run_our_tool("topics", *server, "--create", "--topic", "t", "--partitions", "2") == "Created topic t.\n"
        command = [sys.executable, "-m", "headrace_broker.tools.console_producer", *server, "--topic", "t"]
        reading = ["--reader-property", "parse.key=true", "--compression-codec", "zstd"]
        text = "".join(f"{number}\tvalue-{number}\n" for number in range(1000))
        subprocess.run([*command, *reading], input=text, text=True, check=True, timeout=120)
        for group in ((), ("--group", "g")):
            found = run_our_tool(
                "console_consumer", *server, "--topic", "t", "--from-beginning", "--max-messages", "1000", *group
            )
            assert sorted(found.splitlines()) == sorted(line.split("\t")[1] for line in text.splitlines())
        change = ("--reset-offsets", "--group", "g", "--topic", "t:0", "--to-offset", "7", "--execute")
        assert run_our_tool("consumer_groups", *server, *change).splitlines()[-1].split() == ["g", "t", "0", "7"]
        run_our_tool("configs", *server, "--alter", "--topic", "t", "--add-config", "retention.ms=86400000")
        for tool, arguments in (
            ("topics", "--describe --topic t"),
            ("get_offsets", "--topic t"),
            ("consumer_groups", "--describe --group g"),
            ("consumer_groups", "--list --state --type"),
            ("configs", "--describe --topic t --all"),
        ):
            words = (*server, *arguments.split())
            assert run_our_tool(tool, *words) == run_kafka_tool(JAVA[tool], *words).stdout
        assert " [unusable" not in run_our_tool("broker_api_versions", *server)
        assert run_our_tool("topics", *server, "--delete", "--topic", "t") == ""
