"""Tests of warnings about a connector's configuration in responses of the REST API."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from headrace.rest.server import RestServer
from headrace.rest.warning_header import warning_header
from support.herder import CONFIG, SlowWorker, make_herder

pytestmark = pytest.mark.anyio

UNKNOWN = "Unknown configuration key topicc is ignored; did you mean topic?"
NO_INDEX = "The table has no index"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def started(directory: Path) -> tuple[httpx.AsyncClient, SlowWorker]:
    herder, worker = await make_herder(directory)
    transport = httpx.ASGITransport(RestServer(herder.config).application(herder))
    worker.warnings, worker.connector_warnings = [UNKNOWN], [NO_INDEX, UNKNOWN]
    return httpx.AsyncClient(transport=transport, base_url="http://worker"), worker


async def test_responses_to_changes_of_a_connector_contain_the_warnings_in_a_header_and_no_unknown_field(
    tmp_path: Path,
) -> None:
    client, _ = await started(tmp_path)
    for response in (
        await client.post("/connectors", json={"name": "c", "config": CONFIG}),
        await client.put("/connectors/c/config", json=CONFIG),
        await client.patch("/connectors/c/config", json={"a": "1"}),
    ):
        assert response.headers["Warning"] == f'299 headrace "{UNKNOWN}", 299 headrace "{NO_INDEX}"'
        assert response.json().keys() == {"name", "config", "tasks", "type"}
    assert "Warning" not in (await client.get("/connectors/c")).headers


async def test_response_to_a_validation_contains_the_warnings_only_if_there_are_warnings(tmp_path: Path) -> None:
    client, worker = await started(tmp_path)
    path = "/connector-plugins/C/config/validate"
    assert (await client.put(path, json=CONFIG)).json()["warnings"] == [UNKNOWN, NO_INDEX]
    worker.warnings, worker.connector_warnings = [], []
    assert (await client.put(path, json=CONFIG)).json().keys() == {"name", "error_count", "groups", "configs"}
    assert "Warning" not in (await client.put("/connectors/c/config", json=CONFIG)).headers


async def test_error_of_an_invalid_configuration_contains_the_warnings_after_the_errors(tmp_path: Path) -> None:
    client, worker = await started(tmp_path)
    worker.errors = ["Missing required configuration"]
    response = await client.put("/connectors/c/config", json=CONFIG)
    assert (response.status_code, response.json()["message"].splitlines()[:4]) == (
        400,
        [
            "Connector configuration is invalid and contains the following 1 error(s):",
            "Missing required configuration",
            f"Warning: {UNKNOWN}",
            f"Warning: {NO_INDEX}",
        ],
    )


def test_warning_header_contains_quoted_printable_ascii_characters() -> None:
    assert warning_header(['a "b" \\ c\r\nSet-Cookie: d', "größe\x7f\x00"]) == {
        "Warning": r'299 headrace "a \"b\" \\ c Set-Cookie: d", 299 headrace "gr\\xf6\\xdfe??"'
    }


def test_warning_header_omits_warnings_that_would_make_it_too_long() -> None:
    header = warning_header([f"{number} {'x' * 1_000}" for number in range(30)])["Warning"]
    assert len(header) < 2_200
    assert header.count("...") == 3
    assert header.endswith(', 299 headrace "27 more warning(s): validate the configuration to read them"')
    assert len(warning_header(["x" * 490] * 3)["Warning"].split(", ")) == 3
