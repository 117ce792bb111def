"""Tests of the REST API with clients of other projects: kafka-connect-py, kafkaconnect, curl and a Java client.

The curl commands are those of Kafka's and Confluent's documentation of Kafka Connect.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from kafka_connect import KafkaConnect
from kafkaconnect.connect import Connect

from headrace_broker.protocol import KAFKA_VERSION
from support import apache
from support.broker import BrokerProcess, running_broker
from support.distributed import DistributedWorker, owners, worker_group
from support.worker import wait_for

pytestmark = pytest.mark.integration

FILE_SOURCE = "org.apache.kafka.connect.file.FileStreamSourceConnector"
TIMEOUT_S = 60
needs_curl = pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not on the path")
JAVA_CLIENT = "org.sourcelab:kafka-connect-client:4.0.4"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with running_broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture(scope="module")
def group(broker: BrokerProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[DistributedWorker]]:
    with worker_group(tmp_path_factory.mktemp("workers"), broker.address, 2) as running:
        yield running


@pytest.fixture
def follower(group: list[DistributedWorker]) -> Iterator[DistributedWorker]:
    """Yield the worker that forwards changes to the leader. The connectors are deleted after the test."""
    worker = group[1]
    yield worker
    for name in worker.request("GET", "/connectors"):
        worker.request("DELETE", f"/connectors/{name}")


def file_source(directory: Path, **more: str) -> dict[str, str]:
    (directory / "lines.txt").write_text("a\nb\n")
    config = {"connector.class": FILE_SOURCE, "file": str(directory / "lines.txt"), "topic": "lines"}
    return {**config, "tasks.max": "1", "value.converter": "org.apache.kafka.connect.storage.StringConverter", **more}


def wait_for_states(worker: DistributedWorker, name: str, state: str) -> None:
    def states() -> list[str]:
        return [each for each, _ in owners(worker, name).values()]

    wait_for(lambda: len(states()) == 2 and set(states()) == {state}, f"{name} is {state}", TIMEOUT_S, states)


# PyPI: kafka-connect-py


def test_kafka_connect_py_client_manages_a_connector(follower: DistributedWorker, tmp_path: Path) -> None:
    client = KafkaConnect(url=follower.url)
    assert client.get_cluster_info()["version"] == KAFKA_VERSION
    config = file_source(tmp_path)
    assert client.create_connector({"name": "c", "config": config})["config"] == {**config, "name": "c"}
    wait_for_states(follower, "c", "RUNNING")
    assert client.list_connectors() == ["c"]
    assert client.list_connectors(pattern="x") == []
    assert client.list_connectors(expand="status")["c"]["status"]["connector"]["state"] == "RUNNING"
    assert client.list_connectors(expand="info")["c"]["info"]["type"] == "source"
    assert client.list_connectors(state="RUNNING") == ["c"]
    assert client.get_connector("c")["tasks"] == [{"connector": "c", "task": 0}]
    assert client.get_connector_config("c")["topic"] == "lines"
    assert client.get_connector_status("c")["tasks"][0]["state"] == "RUNNING"
    assert client.list_connector_tasks("c")[0]["id"] == {"connector": "c", "task": 0}
    assert client.get_connector_task_status("c", 0)["state"] == "RUNNING"
    client.restart_connector_task("c", 0)
    client.restart_connector("c", include_tasks=True, only_failed=True)
    client.pause_connector("c")
    wait_for_states(follower, "c", "PAUSED")
    client.resume_all_connectors()
    wait_for_states(follower, "c", "RUNNING")
    wait_for(lambda: client.list_connector_topics("c") == {"c": {"topics": ["lines"]}}, "the topic is tracked")
    client.reset_connector_topics("c")
    assert client.update_connector("c", {**config, "batch.size": "5"})["config"]["batch.size"] == "5"
    client.stop_connector("c")
    wait_for(lambda: client.get_connector_status("c")["connector"]["state"] == "STOPPED", "c is stopped")
    assert FILE_SOURCE in {plugin["class"] for plugin in client.list_connector_plugins()}
    result = client.validate_connector_config("FileStreamSourceConnector", {"connector.class": FILE_SOURCE})
    invalid = {each["value"]["name"] for each in result["configs"] if each["value"]["errors"]}
    assert (result["error_count"], invalid) == (2, {"name", "topic"})
    client.delete_connector("c")
    with pytest.raises(requests.HTTPError, match="404"):
        client.get_connector("c")
    assert client.list_connectors() == []


def test_command_line_of_kafka_connect_py_manages_a_connector(follower: DistributedWorker, tmp_path: Path) -> None:
    def kc(*arguments: str) -> Any:
        program = "from kafka_connect.cli import cli; cli()"
        command = [sys.executable, "-c", program, "--url", follower.url, *arguments]
        result = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
        return json.loads(result.stdout) if result.stdout else None

    file = tmp_path / "c.json"
    file.write_text(json.dumps({"name": "c", "config": file_source(tmp_path)}))
    assert kc("create", "--config-file", str(file))["name"] == "c"
    wait_for_states(follower, "c", "RUNNING")
    assert kc("list") == ["c"]
    assert kc("status", "c")["type"] == "source"
    kc("delete", "c")
    assert kc("list") == []


def test_responses_of_a_worker_that_forwards_requests_contain_the_warnings_about_a_configuration(
    follower: DistributedWorker, tmp_path: Path
) -> None:
    """Responses to changes contain the warnings in a header. The response to a validation contains them in a field."""
    client = KafkaConnect(url=follower.url)
    config = file_source(tmp_path, topicc="lines")
    text = "Unknown configuration key topicc is ignored; did you mean topic?"
    header = f'299 headrace "{text}"'
    result = client.validate_connector_config("FileStreamSourceConnector", {**config, "name": "c"})
    assert (result["error_count"], result["warnings"]) == (0, [text])
    created = requests.post(f"{follower.url}/connectors", json={"name": "c", "config": config}, timeout=TIMEOUT_S)
    assert (created.status_code, created.headers["Warning"]) == (201, header)
    assert created.json().keys() == {"name", "config", "tasks", "type"}
    changed = requests.put(f"{follower.url}/connectors/c/config", json=config, timeout=TIMEOUT_S)
    assert (changed.status_code, changed.headers["Warning"]) == (200, header)
    assert client.update_connector("c", config)["config"]["topicc"] == "lines"
    del config["topic"]
    refused = requests.put(f"{follower.url}/connectors/c/config", json=config, timeout=TIMEOUT_S)
    assert (refused.status_code, refused.json()["message"].splitlines()[2]) == (400, f"Warning: {text}")


# PyPI: kafkaconnect


def test_kafkaconnect_client_manages_a_connector(follower: DistributedWorker, tmp_path: Path) -> None:
    client = Connect(follower.url)
    config = json.dumps(file_source(tmp_path))
    assert json.loads(client.list()) == []
    assert json.loads(client.validate_and_create("c", json.dumps({"connector.class": FILE_SOURCE})))["error_count"] > 0
    assert json.loads(client.validate_and_create("c", json.dumps({**json.loads(config), "name": "c"})))["name"] == "c"
    wait_for_states(follower, "c", "RUNNING")
    assert json.loads(client.create_or_update("c", config))["config"]["topic"] == "lines"
    wait_for_states(follower, "c", "RUNNING")
    assert json.loads(client.info("c"))["type"] == "source"
    assert json.loads(client.config("c"))["name"] == "c"
    assert json.loads(client.tasks("c"))[0]["config"]["topic"] == "lines"
    assert client.restart("c") == ""
    wait_for_states(follower, "c", "RUNNING")
    assert client.pause("c") == ""
    wait_for_states(follower, "c", "PAUSED")
    assert client.resume("c") == ""
    wait_for(lambda: json.loads(client.status("c"))["connector"]["state"] == "RUNNING", "c is running", TIMEOUT_S)
    assert {"class", "type", "version"} <= json.loads(client.plugins())[0].keys()
    assert client.remove("c") == ""
    assert client.info("c") == f"Resource {follower.url}/connectors/c not found."


# curl


class Curl:
    """Runs the curl commands of the documentation with a worker's address instead of localhost:8083."""

    def __init__(self, worker: DistributedWorker, directory: Path) -> None:
        self._worker = worker
        self._directory = directory

    def __call__(self, command: str) -> tuple[int, Any]:
        """Run a command. Return the status and the JSON value of the response."""
        arguments = shlex.split(command.replace("\\\n", " "))
        arguments = [argument.replace("http://localhost:8083", self._worker.url) for argument in arguments]
        arguments = [
            argument.replace("localhost:8083", self._worker.url.removeprefix("http://")) for argument in arguments
        ]
        assert arguments[0] == "curl"
        options = ["--silent", "--show-error", "--max-time", str(TIMEOUT_S), "--write-out", "\n%{http_code}"]
        result = subprocess.run(
            ["curl", *options, "--output", "-", *arguments[1:]],
            capture_output=True,
            text=True,
            check=True,
            timeout=2 * TIMEOUT_S,
            cwd=self._directory,
        )
        body, _, status = result.stdout.rpartition("\n")
        return int(status), json.loads(body) if body else None


@needs_curl
def test_curl_commands_of_kafkas_and_confluents_documentation_receive_the_documented_responses(
    follower: DistributedWorker, tmp_path: Path
) -> None:
    curl = Curl(follower, tmp_path)
    config = file_source(tmp_path)
    (tmp_path / "connector.json").write_text(json.dumps({"name": "local-file-source", "config": config}))
    status, info = curl(
        'curl -X POST -H "Content-Type: application/json" --data @connector.json http://localhost:8083/connectors'
    )
    assert (status, info["name"]) == (201, "local-file-source")
    wait_for_states(follower, "local-file-source", "RUNNING")
    assert curl("curl http://localhost:8083/")[1]["version"] == KAFKA_VERSION
    assert curl("curl localhost:8083/health")[1]["status"] == "healthy"
    assert curl("curl localhost:8083/connectors") == (200, ["local-file-source"])
    status, both = curl("curl 'localhost:8083/connectors?expand=status&expand=info'")
    assert (status, both["local-file-source"].keys()) == (200, {"status", "info"})
    assert curl("curl localhost:8083/connectors/local-file-source")[1]["type"] == "source"
    assert curl("curl localhost:8083/connectors/local-file-source/config")[1]["topic"] == "lines"
    assert curl("curl -s localhost:8083/connectors/local-file-source/tasks")[0] == 200
    assert curl("curl localhost:8083/connectors/local-file-source/tasks/0/status")[1]["state"] == "RUNNING"
    assert curl("curl -X PUT localhost:8083/connectors/local-file-source/pause") == (202, None)
    wait_for_states(follower, "local-file-source", "PAUSED")
    assert curl("curl -X PUT localhost:8083/connectors/local-file-source/resume") == (202, None)
    wait_for_states(follower, "local-file-source", "RUNNING")
    assert curl("curl -X POST localhost:8083/connectors/local-file-source/restart") == (204, None)
    wait_for_states(follower, "local-file-source", "RUNNING")
    status, restarted = curl(
        "curl -X POST 'localhost:8083/connectors/local-file-source/restart?includeTasks=true&onlyFailed=false'"
    )
    assert (status, restarted["connector"]["state"]) == (202, "RESTARTING")
    wait_for_states(follower, "local-file-source", "RUNNING")
    assert curl("curl -X POST localhost:8083/connectors/local-file-source/tasks/0/restart") == (204, None)
    path = "localhost:8083/connectors/local-file-source"
    wait_for(lambda: curl(f"curl {path}/topics") == (200, {"local-file-source": {"topics": ["lines"]}}), "the topic")
    assert curl(f"curl -X PUT {path}/topics/reset") == (202, None)
    status, info = curl(
        'curl -i -X PUT -H "Accept:application/json" -H "Content-Type:application/json" '
        f"http://{path}/config -d '{json.dumps({**config, 'batch.size': '7'})}'".replace("curl -i", "curl")
    )
    assert (status, info["config"]["batch.size"]) == (200, "7")
    status, info = curl(
        f"""curl -X PATCH -H "Content-Type: application/json" {path}/config -d '{{"batch.size": "8"}}'"""
    )
    assert (status, info["config"]["batch.size"]) == (200, "8")
    wait_for(lambda: len(curl(f"curl {path}/offsets")[1]["offsets"]) == 1, "the offset", TIMEOUT_S)
    assert curl(f"curl -X PUT {path}/stop") == (204, None)
    status, message = curl(
        f"""curl -X PATCH -H "Content-Type: application/json" {path}/offsets \\
        -d '{{"offsets": [{{"partition": {{"filename": "{config["file"]}"}}, "offset": {{"position": 2}}}}]}}'"""
    )
    assert status == 200
    assert "altered successfully" in message["message"]
    assert curl(f"curl {path}/offsets")[1]["offsets"][0]["offset"] == {"position": 2}
    status, message = curl(f"curl -X DELETE {path}/offsets")
    assert status == 200
    assert "reset successfully" in message["message"]
    plugins = curl("curl localhost:8083/connector-plugins")[1]
    assert FILE_SOURCE in {plugin["class"] for plugin in plugins}
    everything = curl("curl 'localhost:8083/connector-plugins?connectorsOnly=false'")[1]
    assert {"transformation", "converter", "predicate"} <= {plugin["type"] for plugin in everything}
    keys = curl("curl localhost:8083/connector-plugins/FileStreamSourceConnector/config")[1]
    assert {"file", "topic", "batch.size"} <= {key["name"] for key in keys}
    status, result = curl(
        'curl -X PUT -H "Content-Type: application/json" '
        "http://localhost:8083/connector-plugins/FileStreamSourceConnector/config/validate "
        f"-d '{json.dumps({**config, 'name': 'x'})}'"
    )
    assert (status, result["error_count"]) == (200, 0)
    assert curl("curl -s http://localhost:8083/admin/loggers/")[0] == 200
    status, names = curl(
        "curl -s -X PUT -H 'Content-Type:application/json' "
        """http://localhost:8083/admin/loggers/headrace.cli.files -d '{"level": "DEBUG"}'"""
    )
    assert (status, names) == (200, ["headrace.cli.files"])
    assert curl("curl -s http://localhost:8083/admin/loggers/headrace.cli.files")[1]["level"] == "DEBUG"
    assert curl("curl -X DELETE localhost:8083/connectors/local-file-source") == (204, None)
    assert curl("curl localhost:8083/connectors/local-file-source") == (
        404,
        {"error_code": 404, "message": "Connector local-file-source not found"},
    )


# Maven: org.sourcelab:kafka-connect-client

JAVA_PROGRAM = """
import java.util.*;
import org.sourcelab.kafka.connect.apiclient.*;
import org.sourcelab.kafka.connect.apiclient.request.dto.*;
import org.sourcelab.kafka.connect.apiclient.rest.exceptions.*;

public class UseClient {
    public static void main(String[] arguments) throws Exception {
        KafkaConnectClient client = new KafkaConnectClient(new Configuration(arguments[0]));
        show("version", client.getConnectServerVersion().getVersion());
        Map<String, String> config = new HashMap<>();
        config.put("connector.class", "org.apache.kafka.connect.file.FileStreamSourceConnector");
        config.put("file", arguments[1]);
        config.put("topic", "lines");
        config.put("tasks.max", "1");
        ConnectorDefinition created = client.addConnector(new NewConnectorDefinition("c", config));
        show("created", created.getName() + " " + created.getType());
        while (!isRunning(client)) Thread.sleep(50);
        show("connectors", client.getConnectors());
        show("definition", client.getConnector("c").getConfig().get("topic"));
        show("config", client.getConnectorConfig("c").get("file").equals(arguments[1]));
        show("tasks", client.getConnectorTasks("c").iterator().next().getId().getTask());
        show("task", client.getConnectorTaskStatus("c", 0).getId());
        show("metadata", client.getConnectorsWithAllExpandedMetadata().getMappedStatuses().keySet());
        config.put("batch.size", "3");
        config.put("topicc", "x"); // causes a warning
        show("updated", client.updateConnectorConfig("c", config).getConfig().get("batch.size"));
        show("paused", client.pauseConnector("c"));
        show("resumed", client.resumeConnector("c"));
        show("restarted", client.restartConnector("c"));
        show("restarted task", client.restartConnectorTask("c", 0));
        show("plugins", client.getConnectorPlugins().stream().anyMatch(p -> p.getClassName().contains("FileStream")));
        Map<String, String> invalid = new HashMap<>(config);
        invalid.remove("topic");
        invalid.put("name", "x");
        invalid.put("topicc", "x"); // causes a warning
        show("errors", client.validateConnectorPluginConfig(
            new ConnectorPluginConfigDefinition("FileStreamSourceConnector", invalid)).getErrorCount());
        show("deleted", client.deleteConnector("c"));
        try {
            client.getConnector("c");
        } catch (ResourceNotFoundException error) {
            show("missing", error.getMessage());
        }
    }

    static boolean isRunning(KafkaConnectClient client) {
        try {
            ConnectorStatus status = client.getConnectorStatus("c");
            return status.getConnector().get("state").equals("RUNNING") && status.getTasks().size() == 1;
        } catch (ResourceNotFoundException error) {
            return false; // the first status has not been written yet
        }
    }

    static void show(String name, Object value) {
        System.out.println(name + ": " + value);
    }
}
"""
POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion><groupId>headrace</groupId><artifactId>connect-client</artifactId>
  <version>1</version>
  <dependencies><dependency>
    <groupId>{0}</groupId><artifactId>{1}</artifactId><version>{2}</version>
  </dependency></dependencies>
</project>
"""


@pytest.mark.jvm
@pytest.mark.skipif(apache.unavailable_reason() is not None, reason=apache.unavailable_reason() or "")
def test_java_client_manages_a_connector(follower: DistributedWorker, tmp_path: Path) -> None:
    (tmp_path / "pom.xml").write_text(POM.format(*JAVA_CLIENT.split(":")))
    libraries = tmp_path / "libraries"
    copy = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={libraries}"]
    subprocess.run(copy, cwd=tmp_path, check=True, capture_output=True, timeout=600, stdin=subprocess.DEVNULL)
    program = tmp_path / "UseClient.java"
    program.write_text(JAVA_PROGRAM)
    file = file_source(tmp_path)["file"]
    command = ["java", "-cp", f"{libraries}/*", str(program), follower.url, file]
    result = subprocess.run(command, capture_output=True, text=True, timeout=4 * TIMEOUT_S, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.splitlines() == [
        f"version: {KAFKA_VERSION}",
        "created: c source",
        "connectors: [c]",
        "definition: lines",
        "config: true",
        "tasks: 0",
        "task: 0",
        "metadata: [c]",
        "updated: 3",
        "paused: true",
        "resumed: true",
        "restarted: true",
        "restarted task: true",
        "plugins: true",
        "errors: 1",
        "deleted: true",
        "missing: Connector c not found",
    ]
