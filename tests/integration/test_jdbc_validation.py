"""Tests that the validation of the JDBC source reports errors that only a real server can detect."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pymysql
import pytest

from headrace.api.config import config_def
from headrace_connectors.jdbc.source import JdbcSourceConnector
from headrace_connectors.jdbc.source_config import JdbcSourceConfig
from support import mariadb, postgres
from support.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.integration]
SELECTIONS = [{"table.whitelist": "t"}, {"table.include.list": ".*t"}, {}, {"query": "SELECT * FROM t"}]


@pytest.fixture(scope="module")
def postgresql() -> Iterator[dict[str, str]]:
    if reason := postgres.unavailable_reason():
        pytest.skip(reason)
    with postgres.running() as server:
        with psycopg.connect(server.conninfo, autocommit=True) as connection:
            connection.execute("CREATE TABLE t (id serial PRIMARY KEY, note text); CREATE ROLE guest LOGIN")
            connection.execute("CREATE TABLE u (id serial PRIMARY KEY, changed timestamptz NOT NULL)")
            connection.execute("GRANT USAGE ON SCHEMA public TO guest")
        yield {"connection.url": server.jdbc_url, "connection.user": server.user}


@pytest.fixture(scope="module")
def mysql() -> Iterator[dict[str, str]]:
    if reason := mariadb.unavailable_reason():
        pytest.skip(reason)
    with mariadb.running() as server:
        connection = pymysql.connect(
            host="127.0.0.1", port=server.port, user=server.user, database="shop", autocommit=True
        )  # fmt: skip
        with connection, connection.cursor() as cursor:
            cursor.execute("CREATE TABLE t (id serial PRIMARY KEY, note text)")
            cursor.execute("CREATE USER secure@'127.0.0.1' IDENTIFIED BY 'secret'")
            cursor.execute("GRANT ALL ON shop.* TO secure@'127.0.0.1'")
        yield {"connection.url": server.jdbc_url, "connection.user": server.user}


@pytest.fixture(params=["postgresql", "mysql"])
def server(request: pytest.FixtureRequest) -> Any:
    return request.getfixturevalue(request.param)


def _errors(props: dict[str, str]) -> dict[str, list[str]]:
    props = {"mode": "incrementing", "incrementing.column.name": "id", "topic.prefix": "t", **props}
    values = config_def(JdbcSourceConfig).validate(props)
    JdbcSourceConnector().validate(props, values)
    return {name: value.errors for name, value in values.items() if value.errors}


@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("kind", ["postgresql", "mysql"])
def test_validation_reports_an_unreachable_server(kind: str, selection: dict[str, str]) -> None:
    """The error belongs to the configuration key `connection.url`."""
    errors = _errors({"connection.url": f"jdbc:{kind}://127.0.0.1:{free_port()}/shop", **selection})
    ((key, (message,)),) = errors.items()
    assert key == "connection.url"
    assert f"for configuration connection.url: cannot connect to {kind}://127.0.0.1:" in message
    assert "refused" in message


@pytest.mark.parametrize(("kind", "properties"), [("postgresql", "connectTimeout=1"), ("mysql", "connectTimeout=1000")])
def test_validation_reports_a_server_that_accepts_a_connection_and_does_not_respond(kind: str, properties: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        errors = _errors({"connection.url": f"jdbc:{kind}://127.0.0.1:{port}/shop?{properties}"})
    assert list(errors) == ["connection.url"]


def test_connect_timeout_of_mysql_does_not_limit_statements(mysql: dict[str, str]) -> None:
    query = "SELECT id, sleep(1.5) AS s FROM t UNION ALL SELECT 1, sleep(1.5)"
    props = {"connection.url": f"{mysql['connection.url']}?connectTimeout=1000", "query": query, "mode": "bulk"}
    assert _errors({**mysql, **props}) == {}


@pytest.mark.parametrize("selection", SELECTIONS)
def test_valid_configuration_has_no_errors(server: dict[str, str], selection: dict[str, str]) -> None:
    assert _errors({**server, **selection}) == {}


def test_validation_reports_a_missing_database(server: dict[str, str]) -> None:
    """The error belongs to the configuration key `connection.url`."""
    address, _, _ = server["connection.url"].rpartition("/")
    assert list(_errors({**server, "connection.url": f"{address}/missing"})) == ["connection.url"]


def test_validation_reports_an_unknown_role(postgresql: dict[str, str]) -> None:
    """The error belongs to the configuration key `connection.user`."""
    (message,) = _errors({**postgresql, "connection.user": "nobody"})["connection.user"]
    assert 'role "nobody" does not exist' in message


def test_validation_reports_a_wrong_password(mysql: dict[str, str]) -> None:
    """The error belongs to the configuration key `connection.password`."""
    secure = {**mysql, "connection.user": "secure", "connection.password": "secret"}
    assert _errors(secure) == {}
    ((key, (message,)),) = _errors({**secure, "connection.password": "wrong"}).items()
    assert key == "connection.password"
    assert message.startswith("Invalid value [hidden] for configuration connection.password: cannot connect to")


def test_validation_reports_a_table_that_the_user_may_not_read(postgresql: dict[str, str]) -> None:
    (message,) = _errors({**postgresql, "connection.user": "guest", "table.whitelist": "t"})["table.whitelist"]
    reason = "table public.t cannot be read: permission denied for table t"
    assert message == f"Invalid value t for configuration table.whitelist: {reason}"


@pytest.mark.parametrize("query", ["SELECT * FRM private", "SELECT * FROM private", "SELECT private FROM t"])
def test_validation_reports_a_query_that_the_database_rejects(server: dict[str, str], query: str) -> None:
    (message,) = _errors({**server, "query": query})["query"]
    assert message.startswith(f"Invalid value {query} for configuration query: the database rejects the query: ")
    (message,) = _errors({**server, "query.masked": query})["query.masked"]
    assert message.startswith("Invalid value [hidden] for configuration query.masked: the database rejects the query")
    assert "private" not in message


def test_validation_reports_a_query_that_does_not_contain_the_incrementing_or_timestamp_column(
    server: dict[str, str],
) -> None:
    props = {**server, "mode": "timestamp+incrementing", "timestamp.column.name": "changed"}
    props["query"] = "SELECT note FROM t"
    assert "query has no column id" in _errors(props)["incrementing.column.name"][0]
    props["query"] = "SELECT id FROM t"
    assert "query has no column changed" in _errors(props)["timestamp.column.name"][0]


@pytest.mark.parametrize("expression", ["CURRENT_DATE", "id", "'2026-01-02'"])
def test_validation_reports_a_timestamp_column_of_a_query_that_is_not_a_timestamp(
    server: dict[str, str], expression: str
) -> None:
    props = {**server, "mode": "timestamp", "timestamp.column.name": "changed"}
    props["query"] = f"SELECT * FROM (SELECT {expression} AS changed FROM t) AS q"
    (message,) = _errors(props)["timestamp.column.name"]
    assert message.startswith("Invalid value changed for configuration timestamp.column.name: query: the column's type")
    assert message.endswith("not a timestamp")


@pytest.mark.parametrize("clause", ["WHERE id > 5", "LIMIT 5"])
def test_validation_reports_a_query_to_which_no_where_clause_can_be_appended(
    server: dict[str, str], clause: str
) -> None:
    query = f"SELECT id FROM t {clause}"
    (message,) = _errors({**server, "query": query})["query"]
    assert "write the query as SELECT * FROM (SELECT ...) AS q" in message
    assert _errors({**server, "query": query, "mode": "bulk"}) == {}
    assert _errors({**server, "query": f"SELECT * FROM ({query}) AS q"}) == {}


@pytest.mark.parametrize("mode", ["incrementing", "timestamp", "timestamp+incrementing"])
def test_validation_reports_an_offset_column_that_is_ambiguous_in_the_query(
    postgresql: dict[str, str], mode: str
) -> None:
    query = "SELECT a.id, a.changed FROM u AS a JOIN u AS b ON a.id = b.id"
    props = {**postgresql, "mode": mode, "timestamp.column.name": "changed"}
    (message,) = _errors({**props, "query": query})["query"]
    assert f"for configuration query: mode={mode} appends WHERE and ORDER BY clauses" in message
    assert "is ambiguous" in message
    assert _errors({**props, "query": f"SELECT * FROM ({query}) AS q"}) == {}
    assert _errors({**props, "query": query, "mode": "bulk"}) == {}


@pytest.mark.parametrize("mode", ["bulk", "incrementing"])
def test_validation_reports_a_query_suffix_that_the_database_rejects(server: dict[str, str], mode: str) -> None:
    props = {**server, "mode": mode, "query": "SELECT id FROM t"}
    assert _errors({**props, "query.suffix": "LIMIT 5"}) == {}
    assert list(_errors({**props, "query.suffix": "LIMITED 5"})) == ["query"]


def test_validation_of_a_query_reads_no_rows(mysql: dict[str, str]) -> None:
    started_s = time.monotonic()
    query = "SELECT * FROM (SELECT id, sleep(90) AS s FROM (SELECT 1 AS id) AS one) AS q"
    assert _errors({**mysql, "query": query}) == {}
    assert time.monotonic() - started_s < 60
