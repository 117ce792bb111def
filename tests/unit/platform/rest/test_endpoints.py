"""Tests of the REST API over HTTP, with a herder whose worker starts no connectors or tasks."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from headrace.rest.server import RestServer
from support.herder import make_herder

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[httpx.AsyncClient]:
    herder, _ = await make_herder(tmp_path)
    application = RestServer(herder.config).application(herder)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(application), base_url="http://worker") as client:
        await client.put("/connectors/c/config", json={"connector.class": "C"})
        yield client


async def test_status_response_contains_the_versions_of_connector_and_tasks(client: httpx.AsyncClient) -> None:
    assert (await client.get("/connectors/c/status")).json() == {
        "name": "c",
        "connector": {"state": "RUNNING", "worker_id": "worker:1", "version": "1.2.3"},
        "tasks": [
            {"id": number, "state": "UNASSIGNED", "worker_id": "worker:1", "version": "1.2.3"} for number in (0, 1)
        ],
        "type": "source",
    }


async def test_request_with_a_content_type_other_than_json_is_rejected_with_status_415(
    client: httpx.AsyncClient,
) -> None:
    for method, path in (("POST", "/connectors"), ("PUT", "/connectors/c/config"), ("PATCH", "/connectors/c/offsets")):
        response = await client.request(method, path, content="name=c", headers={"Content-Type": "text/plain"})
        assert response.status_code == 415
        assert response.json()["error_code"] == 415
        assert "Content-Type: application/json" in response.json()["message"]


@pytest.mark.parametrize("name", [["a"], True, {"a": "b"}])
async def test_connector_name_that_is_not_a_string_is_rejected(client: httpx.AsyncClient, name: object) -> None:
    response = await client.post("/connectors", json={"name": name, "config": {"connector.class": "C"}})
    assert response.status_code == 400
    assert "The name of the connector must be a string" in response.json()["message"]
    assert (await client.get("/connectors")).json() == ["c"]


@pytest.mark.parametrize("digits", [19, 5_000])
async def test_request_path_with_a_very_long_task_number_returns_status_404(
    client: httpx.AsyncClient, digits: int
) -> None:
    response = await client.get(f"/connectors/c/tasks/{'9' * digits}/status")
    assert (response.status_code, response.json()["error_code"]) == (404, 404)


async def test_request_without_a_body_is_accepted_with_any_content_type(client: httpx.AsyncClient) -> None:
    assert (await client.put("/connectors/c/pause")).status_code == 202
    assert (await client.put("/connectors/c/stop", headers={"Content-Type": "text/plain"})).status_code == 204
    assert (await client.get("/connectors/c/status")).json()["connector"]["state"] == "STOPPED"


async def test_metrics_page_counts_the_running_connector_and_its_tasks(client: httpx.AsyncClient) -> None:
    response = await client.get("/metrics")
    assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
    families = {family.name: family.samples for family in text_string_to_metric_families(response.text)}
    assert [sample.value for sample in families["kafka_connect_worker_connector_count"]] == [1]
    assert [sample.value for sample in families["kafka_connect_worker_task_startup_success"]] == [2]


async def test_put_of_the_root_log_level_changes_only_the_root_logger(client: httpx.AsyncClient) -> None:
    level = (await client.get("/admin/loggers/root")).json()["level"]
    assert (await client.put("/admin/loggers/root", json={"level": level})).json() == ["root"]
    assert (await client.put("/admin/loggers/root", json={"level": "LOUD"})).status_code == 404
    assert (await client.put("/admin/loggers/root", json={})).status_code == 400


async def test_level_of_a_logger_of_apache_kafka_is_that_of_the_corresponding_loggers(
    client: httpx.AsyncClient,
) -> None:
    path = "/admin/loggers/org.apache.kafka.connect.transforms"
    changed = await client.put(path, json={"level": "ERROR"})
    try:
        assert "headrace_transforms" in changed.json()
        assert (await client.get(path)).json()["level"] == "ERROR"
        assert (await client.get("/admin/loggers")).json()["headrace_transforms"]["level"] == "ERROR"
    finally:
        for name in changed.json():
            logging.getLogger(name).setLevel(logging.NOTSET)


@pytest.mark.parametrize("scope", ["worker", "cluster"])
async def test_put_of_an_unknown_logger_returns_status_404_with_the_known_names(
    client: httpx.AsyncClient, scope: str
) -> None:
    response = await client.put(f"/admin/loggers/org.reflections?scope={scope}", json={"level": "DEBUG"})
    assert response.status_code == 404
    assert response.json()["message"].startswith("Logger org.reflections not found. Set the level of root, headrace,")
    assert "org.reflections" not in (await client.get("/admin/loggers")).json()


async def test_request_path_may_end_with_one_slash(client: httpx.AsyncClient) -> None:
    assert (await client.get("/connectors/")).json() == ["c"]
    assert (await client.get("/connectors/c/")).json()["name"] == "c"
    assert (await client.post("/connectors/c/tasks/", json=[])).status_code != 307
    assert (await client.get("/connectors/c//")).status_code == 404


async def test_options_request_lists_the_methods_of_the_path(client: httpx.AsyncClient) -> None:
    """The responses are those of Kafka Connect 4.3.1, except for the order of the methods."""
    for path, methods in {
        "/connectors": {"HEAD", "POST", "GET", "OPTIONS"},
        "/connectors/c/config": {"HEAD", "GET", "OPTIONS", "PUT", "PATCH"},
    }.items():
        response = await client.options(path)
        assert response.status_code == 200
        assert response.headers["Content-Type"] == "text/plain"
        assert set(response.headers["Allow"].split(",")) == methods
        assert set(response.text.split(", ")) == methods
    assert (await client.options("/nothing")).json() == {"error_code": 404, "message": "HTTP 404 Not Found"}
