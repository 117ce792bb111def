"""Tests of the OpenAPI document: it is valid, and it describes exactly the routes of the server."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from openapi_spec_validator import OpenAPIV31SpecValidator
from starlette.applications import Starlette
from starlette.routing import Route

from headrace.rest.openapi_schemas import PATH_PARAMETERS, QUERY_PARAMETERS, SCHEMAS
from headrace.rest.operations import OPERATIONS
from headrace.rest.server import RestServer
from headrace.runtime.worker_config import WorkerConfig
from support.herder import make_herder

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def served(tmp_path: Path, settings: dict[str, str]) -> tuple[Starlette, dict[str, Any]]:
    """Return the application of a worker with the configuration `settings`, and the application's OpenAPI document."""
    herder, _ = await make_herder(tmp_path)
    properties = {"key.converter": "K", "value.converter": "V", **settings}
    application = RestServer(WorkerConfig.standalone(properties)).application(herder)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(application), base_url="http://worker") as client:
        response = await client.get("/openapi.json")
    assert response.status_code == 200
    assert response.headers["content-type"] == "application/json"
    return application, response.json()


def documented(document: dict[str, Any]) -> set[tuple[str, str]]:
    return {(method.upper(), path) for path, methods in document["paths"].items() for method in methods}


def routed(application: Starlette) -> set[tuple[str, str]]:
    found = set()
    for route in application.routes:
        assert isinstance(route, Route), f"{route} has no operation in the document"
        path = re.sub(r":\w+\}", "}", route.path)
        found |= {(method, path) for method in (route.methods or set()) - {"HEAD"}}
    return found


@pytest.mark.parametrize(
    ("settings", "has_loggers"),
    [({}, True), ({"admin.listeners": ""}, False), ({"admin.listeners": "http://127.0.0.1:1"}, False)],
)
async def test_openapi_document_of_a_listener_describes_exactly_the_routes_of_this_listener(
    tmp_path: Path, settings: dict[str, str], has_loggers: bool
) -> None:
    application, document = await served(tmp_path, settings)
    assert documented(document) == routed(application)
    assert (("PUT", "/admin/loggers/{logger}") in documented(document)) is has_loggers


async def test_every_operation_that_is_defined_for_the_openapi_document_has_a_route(tmp_path: Path) -> None:
    application, document = await served(tmp_path, {})
    assert len(routed(application)) == len(OPERATIONS)
    ids = [each["operationId"] for methods in document["paths"].values() for each in methods.values()]
    assert sorted(ids) == sorted(OPERATIONS)


async def test_openapi_yaml_document_equals_the_openapi_json_document(tmp_path: Path) -> None:
    application, document = await served(tmp_path, {})
    async with httpx.AsyncClient(transport=httpx.ASGITransport(application), base_url="http://worker") as client:
        response = await client.get("/openapi.yaml")
    assert response.headers["content-type"] == "application/yaml"
    assert yaml.safe_load(response.text) == document


async def test_openapi_document_is_valid(tmp_path: Path) -> None:
    _, document = await served(tmp_path, {})
    OpenAPIV31SpecValidator(document).validate()


async def test_openapi_document_uses_all_schemas_and_parameters_that_it_defines(tmp_path: Path) -> None:
    _, document = await served(tmp_path, {})
    text = str(document)
    for name in SCHEMAS:
        assert f"'#/components/schemas/{name}'" in text, name
    for name in (*PATH_PARAMETERS, *QUERY_PARAMETERS):
        assert f"'name': '{name}', 'in'" in text, name


async def test_openapi_operations_require_credentials_only_if_basic_authentication_is_enabled(tmp_path: Path) -> None:
    from headrace.rest import openapi

    _, document = await served(tmp_path, {})
    assert "security" not in str(document)
    document = openapi.document(OPERATIONS.values(), has_basic_auth=True)
    OpenAPIV31SpecValidator(document).validate()
    for methods in document["paths"].values():
        for operation in methods.values():
            is_internal = operation["operationId"] in ("putTaskConfigs", "fenceZombies")
            assert ("security" in operation) is not is_internal
            assert ("401" in operation["responses"]) is not is_internal
