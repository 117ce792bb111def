"""Tests of the tools' command lines: option parsing as in Kafka, client properties and console scripts.

They also test how kafka-server-stop finds broker processes.
"""

from __future__ import annotations

import importlib
import subprocess
import sys
import tomllib
from collections.abc import Coroutine
from pathlib import Path

import pytest

from headrace_broker.protocol import KAFKA_VERSION
from headrace_broker.protocol.messages.describe_configs import DescribeConfigsResourceResult, DescribeConfigsSynonym
from headrace_broker.tools import configs, console_consumer, console_producer, consumer_groups, topics
from headrace_broker.tools.command_line import key_values, load_properties
from headrace_broker.tools.server_stop import BrokerCommand, parse_command
from headrace_broker.tools.tool_error import ToolError

ROOT = Path(__file__).resolve().parents[4]
SERVER = ["--bootstrap-server", "h:1"]
SCRIPTS = {
    name: target.partition(":")
    for name, target in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"].items()
    if name.startswith("kafka-")
}
TOOLS = {module.rpartition(".")[2]: importlib.import_module(module) for module, _, _ in SCRIPTS.values()}
WITHOUT_BOOTSTRAP_SERVER = {"dump_log", "server_start", "server_stop", "storage"}


@pytest.mark.parametrize("tool", TOOLS)
def test_help_and_version_options_of_each_tool_exit_with_status_0(
    tool: str, capsys: pytest.CaptureFixture[str]
) -> None:
    main = TOOLS[tool].main
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    assert ("--bootstrap-server" in capsys.readouterr().out) == (tool not in WITHOUT_BOOTSTRAP_SERVER)
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.split()[0] == KAFKA_VERSION


@pytest.mark.parametrize("tool", sorted(TOOLS.keys() - {"server_stop"}))
def test_tool_without_arguments_prints_its_usage_to_standard_error_and_exits_with_status_1(
    tool: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        TOOLS[tool].main([])
    assert ended.value.code == 1
    output = capsys.readouterr()
    assert (output.out, "usage:" in output.err) == ("", True)


@pytest.mark.parametrize(
    ("tool", "arguments", "message"),
    [
        ("topics", ["--list"], 'Missing required argument "[bootstrap-server]"'),
        ("topics", ["--list", "--bootstrap-server", "nowhere"], "Please provide valid host:port"),
        ("topics", [*SERVER, "--list", "--create"], "Command must include exactly one action"),
        ("topics", [*SERVER, "--create"], 'Missing required argument "[topic]"'),
        ("topics", [*SERVER, "--list", "--partitions", "1"], "can't be used with option"),
        ("topics", [*SERVER, "--alter", "--topic", "t", "--config", "a=b"], "can't be used with option"),
        ("topics", [*SERVER, "--alter", "--topic", "t"], 'Missing required argument "[partitions]"'),
        ("topics", [*SERVER, "--create", "--topic", "t", "--partitions", "x"], "invalid int value: 'x'"),
        (
            "topics",
            [*SERVER, "--describe", "--unavailable-partitions", "--topics-with-overrides"],
            "can't be used with",
        ),
        ("topics", [*SERVER, "--list", "--nonsense"], "unrecognized arguments: --nonsense"),
        ("console_consumer", SERVER, "Exactly one of the following arguments is required: [topic], [include]"),
        ("console_consumer", [*SERVER, "--topic", "t", "--offset", "1"], "The partition is required when offset"),
        ("console_consumer", [*SERVER, "--include", "t", "--partition", "1"], "The topic is required when partition"),
        (
            "console_consumer",
            [*SERVER, "--topic", "t", "--partition", "1", "--offset", "-3"],
            "The provided offset value '-3' is incorrect",
        ),
        ("console_producer", SERVER, 'Missing required argument "[topic]"'),
        ("metadata_quorum", [*SERVER, "describe"], "One of --status or --replication must be specified"),
        (
            "metadata_quorum",
            [*SERVER, "describe", "--status", "--replication"],
            "Only one of --status or --replication",
        ),
        (
            "metadata_quorum",
            [*SERVER, "describe", "--status", "--human-readable"],
            "only supported along with --replica",
        ),
        ("metadata_quorum", [*SERVER, "add-controller"], "add-controller: not supported yet"),
        ("metadata_quorum", [*SERVER, "delete"], "invalid choice: 'delete'"),
        ("leader_election", SERVER, "Missing required option(s): election-type"),
        (
            "leader_election",
            [*SERVER, "--election-type", "fair"],
            "--election-type fair: expected preferred or unclean",
        ),
        ("leader_election", [*SERVER, "--election-type", "preferred"], "One and only one of the following options"),
        ("leader_election", [*SERVER, "--election-type", "unclean", "--topic", "t"], "required option(s): partition"),
        ("reassign_partitions", SERVER, "Command must include exactly one action: --generate, --execute, --verify"),
        ("reassign_partitions", [*SERVER, "--execute"], 'Missing required argument "[reassignment-json-file]"'),
        ("reassign_partitions", [*SERVER, "--list", "--throttle", "1"], "can't be used with option"),
        ("reassign_partitions", [*SERVER, "--generate", "--broker-list", "1"], '"[topics-to-move-json-file]"'),
        ("log_dirs", SERVER, 'Missing required argument "[describe]"'),
        ("delete_records", SERVER, 'Missing required argument "[offset-json-file]"'),
        ("cluster", [*SERVER, "unregister"], "argument -i/--id is required"),
        ("storage", ["format", "-c", "f"], 'Missing required argument "[cluster-id]"'),
        ("storage", ["info"], 'Missing required argument "[config]"'),
        ("storage", ["feature-dependencies"], 'Missing required argument "[feature]"'),
        (
            "configs",
            ["--bootstrap-controller", "h:1", "--describe", "--topic", "t"],
            "controllers do not describe topics",
        ),
        ("cluster", [*SERVER, "cluster-id", "-C", "h:1"], "can't be used with option"),
        ("cluster", ["list-endpoints", "-C", "h:1", "--include-fenced-brokers"], "only supported with --bootstrap-se"),
        (
            "reassign_partitions",
            ["--bootstrap-controller", "h:1", "--generate", "--broker-list", "1", "--topics-to-move-json-file", "f"],
            "can't be used with option",
        ),
        (
            "producer_perf_test",
            ["--topic", "t", "--num-records", "1", "--throughput", "-1"],
            "Exactly one of --record-size",
        ),
        (
            "producer_perf_test",
            ["--topic", "t", "--num-records", "0", "--throughput", "-1", "--record-size", "1"],
            "--num-records 0: expected 1 or more",
        ),
        (
            "producer_perf_test",
            [
                "--topic",
                "t",
                "--num-records",
                "1",
                "--throughput",
                "-1",
                "--record-size",
                "1",
                "--transactional-id",
                "x",
            ],
            "--transactional-id: not supported yet",
        ),
        ("consumer_perf_test", [*SERVER, "--num-records", "1"], "Exactly one of the following arguments is required"),
        ("consumer_perf_test", [*SERVER, "--topic", "t"], 'Missing required argument "[num-records]"'),
        ("consumer_groups", SERVER, "Command must include exactly one action: --list"),
        ("consumer_groups", [*SERVER, "--describe"], "takes one of these options: [group], [all-groups]"),
        ("consumer_groups", [*SERVER, "--describe", "--group", "g", "--all-groups"], "can't be used with option"),
        ("consumer_groups", [*SERVER, "--describe", "--group", "g", "--state", "--members"], "takes at most one of"),
        ("consumer_groups", [*SERVER, "--list", "--verbose"], "can't be used with option"),
        ("consumer_groups", [*SERVER, "--reset-offsets", "--group", "g", "--to-latest"], "One of the reset scopes"),
        (
            "consumer_groups",
            [*SERVER, "--reset-offsets", "--group", "g", "--topic", "t"],
            "one of the following scenarios",
        ),
        (
            "consumer_groups",
            [*SERVER, "--reset-offsets", "--group", "g", "--topic", "t", "--to-latest", "--shift-by", "-1"],
            "can't be used with option",
        ),
        (
            "consumer_groups",
            [*SERVER, "--delete-offsets", "--group", "g"],
            "takes the following options: [group], [topic]",
        ),
        ("configs", [*SERVER, "--describe"], "Exactly one entity must be specified"),
        ("configs", [*SERVER, "--describe", "--user", "u"], "--user: not supported yet"),
        ("configs", [*SERVER, "--alter", "--topic", "t"], "At least one of --add-config"),
    ],
)
def test_tool_with_an_invalid_command_line_prints_the_error_and_the_usage(
    tool: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        TOOLS[tool].main(arguments)
    output = capsys.readouterr()
    assert ended.value.code == 1
    assert output.out == ""
    assert message in output.err.splitlines()[0]
    assert "usage:" in output.err


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("producer_perf_test", ["--record-size", "1", "--throughput", "-1"]),
        ("consumer_perf_test", []),
    ],
)
def test_print_metrics_option_warns_that_it_has_no_effect(
    tool: str, arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def started(work: Coroutine[object, object, int], **_: object) -> int:
        work.close()
        return 0

    monkeypatch.setattr(TOOLS[tool], "run", started)
    assert TOOLS[tool].main([*SERVER, "--topic", "t", "--num-records", "1", *arguments, "--print-metrics"]) == 0
    assert "--print-metrics has no effect: this client has no metrics" in capsys.readouterr().err


def test_validate_regex_option_reports_whether_the_regex_is_valid(capsys: pytest.CaptureFixture[str]) -> None:
    assert consumer_groups.main(["--validate-regex", "a.*"]) == 0
    assert consumer_groups.main(["--validate-regex", "a("]) == 1
    valid, invalid = capsys.readouterr().out.splitlines()
    assert valid == "The regular expression `a.*` is valid."
    assert invalid.startswith("The regular expression `a(` is invalid: ")


def test_client_properties_are_read_from_files_and_from_key_value_arguments(tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("client.id = caf\\u00e9\n# comment\nacks:1\n", encoding="latin-1")
    assert load_properties(str(file)) == {"client.id": "café", "acks": "1"}
    assert key_values(["a=b=c", "d", "e="]) == {"a": "b=c", "d": "", "e": ""}
    with pytest.raises(ToolError, match=r"missing\.properties: No such file"):
        load_properties(str(tmp_path / "missing.properties"))


def test_option_values_of_the_tools_may_begin_with_a_dash() -> None:
    parse = topics._parser().parse
    assert parse([*SERVER, "--describe", "--topic-id", "-dash"]).topic_id == "-dash"
    assert parse([*SERVER, "--describe", "--topic-i", "--x"]).topic_id == "--x"
    options = console_producer._parser().parse(["--bootstrap", "h:1", "--topic", "-t", "--property", "key.separator=-"])
    assert (options.topic, options.reader_property) == ("-t", ["key.separator=-"])
    assert consumer_groups._parser().parse(["--list", "--state", "--type", "x"]).state == ""


# -- the console tools' properties -----------------------------------------------------------------------------------


def produced(*arguments: str, interactive: bool = False) -> dict[str, str]:
    options = console_producer._parser().parse([*SERVER, "--topic", "t", *arguments])
    return console_producer.producer_properties(options, interactive=interactive)


def test_console_producer_options_take_precedence_over_properties_from_files(tmp_path: Path) -> None:
    file = tmp_path / "p.properties"
    file.write_text("linger.ms=1\nbatch.size=2\nacks=1\n")
    assert produced() == {"bootstrap.servers": "h:1", "linger.ms": "1000", "client.id": "console-producer"}
    assert "linger.ms" not in produced(interactive=True)
    given = produced("--producer.config", str(file), "--producer-property", "batch.size=3", "--timeout", "4")
    assert (given["linger.ms"], given["batch.size"], given["acks"]) == ("4", "3", "1")
    assert given["enable.idempotence"] == "false"
    assert produced("--compression-codec")["compression.type"] == "gzip"
    assert produced("--compression-codec", "zstd", "--sync")["compression.type"] == "zstd"
    assert produced("--request-required-acks", "0", "--max-partition-memory-bytes", "7")["batch.size"] == "7"


def consumed(*arguments: str) -> dict[str, str]:
    parser = console_consumer._parser()
    options = parser.parse([*SERVER, "--topic", "t", *arguments])
    return console_consumer.consumer_properties(parser, options)


def test_console_consumer_sets_properties_for_its_options_and_rejects_conflicting_options(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert consumed() == {
        "bootstrap.servers": "h:1",
        "auto.offset.reset": "latest",
        "client.id": "console-consumer",
    }
    assert consumed("--from-beginning", "--group", "g")["auto.offset.reset"] == "earliest"
    assert consumed("--consumer-property", "group.id=g")["group.id"] == "g"
    for wrong, message in (
        (["--group", "a", "--consumer-property", "group.id=b"], "Detected group ids: 'a', 'b'"),
        (["--group", "a", "--partition", "0"], "Options group and partition cannot be specified together."),
        (["--from-beginning", "--consumer-property", "auto.offset.reset=latest"], "Can't simultaneously specify"),
    ):
        with pytest.raises(SystemExit):
            consumed(*wrong)
        assert message in capsys.readouterr().err


# -- kafka-configs ---------------------------------------------------------------------------------------------------


def test_add_config_option_of_kafka_configs_accepts_lists_in_brackets() -> None:
    assert configs.parse_additions("a=1,b=[x,y] , c = z,d=") == {"a": "1", "b": "x,y", "c": "z", "d": ""}
    with pytest.raises(ToolError, match='in the format "key=val"'):
        configs.parse_additions("a,b=1")


def test_kafka_configs_describe_prints_the_source_and_synonyms_of_each_config() -> None:
    own = DescribeConfigsResourceResult(
        name="retention.ms",
        value="5",
        config_source=1,
        synonyms=[
            DescribeConfigsSynonym(name="retention.ms", value="5", source=1),
            DescribeConfigsSynonym(name="log.retention.ms", value=None, source=5),
        ],
    )
    default = DescribeConfigsResourceResult(name="a", value=None, config_source=5, is_sensitive=True)
    assert configs.description("topics", "t", [own, default], shows_all=False) == [
        "Dynamic configs for topic t are:",
        "  retention.ms=5 sensitive=false synonyms={DYNAMIC_TOPIC_CONFIG:retention.ms=5, "
        "DEFAULT_CONFIG:log.retention.ms=null}",
    ]
    everything = configs.description("topics", "t", [own, default], shows_all=True)
    assert everything[:2] == ["All configs for topic t are:", "  a=null sensitive=true synonyms={}"]
    assert configs.description("brokers", "", [], shows_all=False) == [
        "Default configs for brokers in the cluster are:"
    ]


# -- finding broker processes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("python -m headrace_broker.server a.properties", BrokerCommand("a.properties", {})),
        ("python -m headrace_broker.server --property node.id=3", BrokerCommand(None, {"node.id": "3"})),
        (
            "python /venv/bin/kafka-server-start.sh a.properties --override node.id=3 --override=x=y=z",
            BrokerCommand("a.properties", {"node.id": "3", "x": "y=z"}),
        ),
        ("python /venv/bin/headrace broker start --cluster-id abc a.properties", BrokerCommand("a.properties", {})),
        ("python -m headrace_broker.server a.properties --ready-fd 5", BrokerCommand("a.properties", {})),
        ("python -m headrace_broker.server a.properties --watch-fd 5", None),
        ("python -m headrace.cli.broker_child 17 a.properties", None),
        ("python /venv/bin/kafka-server-start -daemon a.properties", None),
        ("python /venv/bin/headrace broker format a.properties", None),
        ("vim headrace_broker.server", None),
        ("java kafka.Kafka a.properties", None),
    ],
)
def test_broker_processes_are_recognized_by_their_command_lines(command: str, found: BrokerCommand | None) -> None:
    assert parse_command(command.split()) == found


def test_relative_path_to_a_properties_file_is_resolved_against_the_working_directory_of_the_broker(
    tmp_path: Path,
) -> None:
    (tmp_path / "b.properties").write_text("node.id=4\nprocess.roles=broker\n")
    command = BrokerCommand("b.properties", {"node.id": "5"})
    assert command.properties(str(tmp_path)) == {"node.id": "5", "process.roles": "broker"}


@pytest.mark.parametrize(
    ("overrides", "description"),
    [
        ({}, "node 1, directories /w/headrace-data/broker"),
        ({"broker.id": "3", "log.dirs": "a,/b", "metadata.log.dir": "m"}, "node 3, directories /w/a, /b, /w/m"),
    ],
)
def test_description_of_a_broker_without_a_properties_file_has_its_node_id_and_data_directories(
    overrides: dict[str, str], description: str
) -> None:
    assert BrokerCommand(None, overrides).describe("/w") == description


def test_description_of_a_broker_whose_properties_file_was_deleted_has_its_working_directory(tmp_path: Path) -> None:
    description = BrokerCommand("deleted.properties", {}).describe(str(tmp_path))
    assert description.startswith(f"node with an unknown id, working directory {tmp_path}: cannot read its")


# -- installation ----------------------------------------------------------------------------------------------------


def test_every_tool_is_installed_as_a_console_script_with_and_without_the_suffix_sh() -> None:
    folder = ROOT / "broker" / "headrace_broker" / "tools"
    assert TOOLS.keys() == {path.stem for path in folder.glob("*.py") if "\ndef entry()" in path.read_text()}
    for name, (module, _, function) in SCRIPTS.items():
        assert callable(getattr(importlib.import_module(module), function))
        assert SCRIPTS[f"{name.removesuffix('.sh')}.sh"] == SCRIPTS[name.removesuffix(".sh")]


def test_import_of_the_tool_modules_does_not_import_the_client() -> None:
    names = ", ".join(tool.__name__ for tool in TOOLS.values())
    code = f"import sys, {names}; print([name for name in sys.modules if name.startswith('headrace_broker.client.')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
