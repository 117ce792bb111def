"""Tests of config providers in a distributed worker: secrets must not appear in logs, statuses or topics."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.broker import running_broker
from support.distributed import DistributedWorker, worker_group
from support.topics import read_topic
from support.worker import RestError, wait_for

pytestmark = pytest.mark.integration

SECRET = "s3cret-of-the-database"
PROVIDER = "org.apache.kafka.common.config.provider."
PLUGINS = """
import logging
from pathlib import Path
from headrace.api import Config, ConfigData, ConfigProvider, ConnectError, Password, SourceConnector, SourceTask, key

class LeaseConfig(Config):
    lease_ms: int = key("lease.ms", doc="Time to live.")

class LeaseConfigProvider(ConfigProvider[LeaseConfig]):
    def get(self, path, key):
        return ConfigData((Path(path) / key).read_text(), self.config.lease_ms)

class ProbeConfig(Config):
    db_password: Password = key("db.password", doc="The password.")
    url: str = key("url", default="", doc="Set by the connector.")
    starts: str = key("starts", doc="The file to which each start of a task appends the password.")
    fails: bool = key("fails", default=False, doc="Fail with the password in the message.")

class ProbeTask(SourceTask[ProbeConfig]):
    def start(self, config):
        logging.getLogger("probe").warning("connecting to %s with %s", config.url, config.db_password.value)
        if config.fails:
            raise ConnectError("cannot connect with " + config.db_password.value)
        with open(config.starts, "a") as file:
            file.write(config.url + "\\n")

    def poll(self):
        return None

class ProbeConnector(SourceConnector[ProbeConfig]):
    task_class = ProbeTask

    def task_configs(self, maximum):
        password = self.config.db_password.value
        return [{**self.context.props, "url": "db://user:" + password + "@host", "again": password}]
"""


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("providers")
    (path / "plugins").mkdir()
    (path / "plugins" / "probe.py").write_text(PLUGINS)
    (path / "secrets.properties").write_text(f"password={SECRET}\n")
    (path / "lease").write_text("first lease")
    return path


@pytest.fixture(scope="module")
def worker(directory: Path) -> Iterator[DistributedWorker]:
    settings = {
        "plugin.path": str(directory / "plugins"),
        "config.providers": "file,directory,env,lease",
        "config.providers.file.class": PROVIDER + "FileConfigProvider",
        "config.providers.file.param.allowed.paths": str(directory),
        "config.providers.directory.class": PROVIDER + "DirectoryConfigProvider",
        "config.providers.env.class": PROVIDER + "EnvVarConfigProvider",
        "config.providers.env.param.allowlist.pattern": "HEADRACE_TEST_.*",
        "config.providers.lease.class": "LeaseConfigProvider",
        "config.providers.lease.param.lease.ms": "1000",
    }
    with running_broker(directory) as broker, worker_group(directory, broker.address, 1, settings) as [started]:
        yield started


def probe(directory: Path, name: str, password: str, **settings: str) -> dict[str, str]:
    return {
        "connector.class": "ProbeConnector",
        "db.password": password,
        "starts": str(directory / f"{name}.starts"),
        **settings,
    }


def starts(directory: Path, name: str) -> list[str]:
    file = directory / f"{name}.starts"
    return file.read_text().splitlines() if file.exists() else []


def assert_secret_is_hidden(worker: DistributedWorker) -> None:
    assert SECRET not in worker.log()
    for topic in ("connect-configs", "connect-status"):
        partitions = 1 if topic == "connect-configs" else 5
        for number in range(partitions):
            for message in read_topic(worker.bootstrap_servers(), topic, number):
                assert SECRET.encode() not in (message.value() or b""), message.key()


def test_task_configurations_contain_config_variables_instead_of_secrets(
    worker: DistributedWorker, directory: Path
) -> None:
    variable = f"${{file:{directory}/secrets.properties:password}}"
    worker.create("hidden", probe(directory, "hidden", variable))
    worker.wait_for_state("hidden", "RUNNING")
    wait_for(lambda: starts(directory, "hidden") == [f"db://user:{SECRET}@host"], "the task has the secret")
    assert worker.request("GET", "/connectors/hidden/config")["db.password"] == variable
    (task,) = worker.request("GET", "/connectors/hidden/tasks")
    assert task["config"]["db.password"] == variable
    assert task["config"]["again"] == variable
    assert task["config"]["url"] == f"db://user:{variable}@host"
    wait_for(lambda: "connecting to" in worker.log(), "the log line of the task")
    worker.request("PATCH", "/connectors/hidden/config", {"tasks.max": "2"})
    wait_for(lambda: len(starts(directory, "hidden")) == 2, "the task is started again")
    (task,) = worker.request("GET", "/connectors/hidden/tasks")
    assert (task["config"]["tasks.max"], task["config"]["again"]) == ("2", variable)
    assert_secret_is_hidden(worker)
    worker.request("DELETE", "/connectors/hidden")


def test_secret_in_the_error_of_a_task_is_masked_in_log_and_status(worker: DistributedWorker, directory: Path) -> None:
    variable = f"${{file:{directory}/secrets.properties:password}}"
    worker.create("failing", probe(directory, "failing", variable, fails="true"))
    worker.wait_for_task_state("failing", 0, "FAILED")
    assert "cannot connect with [hidden]" in worker.status("failing")["tasks"][0]["trace"]
    assert_secret_is_hidden(worker)
    worker.request("DELETE", "/connectors/failing")


def test_restarted_task_receives_the_new_contents_of_its_secret_file(
    worker: DistributedWorker, directory: Path
) -> None:
    (directory / "token").write_text("token 1")
    worker.create("rotated", probe(directory, "rotated", f"${{directory:{directory}:token}}"))
    wait_for(lambda: starts(directory, "rotated") == ["db://user:token 1@host"], "the task has the first token")
    (directory / "token").write_text("token 2")
    worker.request("POST", "/connectors/rotated/restart?includeTasks=true")
    wait_for(lambda: starts(directory, "rotated")[1:] == ["db://user:token 2@host"], "the task has the second token")
    worker.request("DELETE", "/connectors/rotated")


def test_config_variables_with_forbidden_files_forbidden_names_or_unknown_providers_stay_unresolved(
    worker: DistributedWorker,
) -> None:
    config = {"connector.class": "FileStreamSource", "topic": "t", "name": "v"}
    for variable in ("${file:/etc/hostname:x}", "${env:HOME}", "${unknown:x}"):
        result = worker.request(
            "PUT", "/connector-plugins/FileStreamSource/config/validate", {**config, "batch.size": variable}
        )
        (batch_size,) = [each["value"] for each in result["configs"] if each["value"]["name"] == "batch.size"]
        assert batch_size["errors"], result


def test_errors_of_an_invalid_configuration_include_the_unresolved_variables_and_the_reason(
    worker: DistributedWorker,
) -> None:
    config = {"connector.class": "FileStreamSource", "topic": "t", "batch.size": "none", "db.password": "${vault:x:pw}"}
    reason = "variable ${vault:x:pw} is not resolved: config.providers in the worker file does not contain vault"
    with pytest.raises(RestError) as refused:
        worker.create("unresolved", config)
    assert f"db.password: {reason}" in str(refused.value)
    assert "contains the following 2 error(s)" in str(refused.value)
    result = worker.request("PUT", "/connector-plugins/FileStreamSource/config/validate", {**config, "name": "v"})
    errors = {each["value"]["name"]: each["value"]["errors"] for each in result["configs"]}
    assert errors["db.password"] == [f"db.password: {reason}"]
    assert result["error_count"] == 2


def test_unresolved_variable_in_a_valid_configuration_is_not_an_error(worker: DistributedWorker) -> None:
    config = {"connector.class": "FileStreamSource", "topic": "t", "file": "${vault:x:file}", "name": "v"}
    result = worker.request("PUT", "/connector-plugins/FileStreamSource/config/validate", config)
    assert result["error_count"] == 0


def test_trace_of_a_failed_task_names_the_unresolved_variables(worker: DistributedWorker) -> None:
    config = {"connector.class": "FileStreamSink", "topics": "t", "file": "/proc/${vault:x:directory}/y"}
    worker.create("no-directory", config)
    reason = "file: variable ${vault:x:directory} is not resolved: config.providers in the worker file does not contain"
    wait_for(lambda: reason in str(worker.status_if_found("no-directory")), "the trace names the variable")
    worker.request("DELETE", "/connectors/no-directory")


def test_validation_error_shows_the_config_variable_instead_of_its_value(
    worker: DistributedWorker, directory: Path
) -> None:
    variable = f"${{file:{directory}/secrets.properties:password}}"
    with pytest.raises(RestError) as refused:
        worker.create("wrong", {"connector.class": "FileStreamSource", "topic": "t", "batch.size": variable})
    assert variable in str(refused.value)
    assert SECRET not in str(refused.value)


def test_expired_config_provider_value_restarts_the_connector_unless_config_action_reload_is_none(
    worker: DistributedWorker, directory: Path
) -> None:
    variable = f"${{lease:{directory}:lease}}"
    worker.create("kept", probe(directory, "kept", variable, **{"config.action.reload": "none"}))
    wait_for(lambda: len(starts(directory, "kept")) == 1, "the task that is not restarted")
    worker.create("leased", probe(directory, "leased", variable))
    wait_for(lambda: starts(directory, "leased") != [], "the task that is restarted")
    (directory / "lease").write_text("second lease")
    wait_for(lambda: starts(directory, "leased")[-1] == "db://user:second lease@host", "the new value", 60)
    wait_for(lambda: starts(directory, "leased").count("db://user:second lease@host") >= 3, "two more restarts", 60)
    assert starts(directory, "kept") == ["db://user:first lease@host"]
    assert "Connector leased: restarting, because a value from a config provider has expired" in worker.log()
    for name in ("kept", "leased"):
        worker.request("DELETE", f"/connectors/{name}")
