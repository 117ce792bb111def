"""Tests of the JDBC source's configuration key snapshot.horizon with a real PostgreSQL server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from headrace.api.config import config_def
from headrace.api.errors import ConfigErrors, ConnectError
from headrace_connectors.jdbc.source import JdbcSourceConnector
from headrace_connectors.jdbc.source_config import JdbcSourceConfig
from support import postgres
from support.jdbc import Offsets, read_all, rows
from support.late_commits import ids_read

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.integration,
    pytest.mark.skipif(bool(postgres.unavailable_reason()), reason=postgres.unavailable_reason() or ""),
]


@pytest.fixture(scope="module")
def server() -> Iterator[postgres.Postgres]:
    with postgres.running(max_prepared_transactions="5") as running:
        yield running


@pytest.fixture
def database(server: postgres.Postgres) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        connection.execute("DROP TABLE IF EXISTS t")
        connection.execute("CREATE TABLE t (id serial PRIMARY KEY, note text, at timestamptz NOT NULL DEFAULT now())")
        yield connection


@pytest.fixture
def props(server: postgres.Postgres) -> dict[str, str]:
    return {"connection.url": server.jdbc_url, "connection.user": server.user, "incrementing.column.name": "id"}


@pytest.mark.parametrize("mode", ["timestamp", "timestamp+incrementing", "incrementing"])
def test_row_that_is_committed_after_a_row_with_a_larger_id_is_skipped_unless_snapshot_horizon_is_true(
    server: postgres.Postgres, database: psycopg.Connection[Any], props: dict[str, str], mode: str
) -> None:
    settings = {**props, "mode": mode} | ({} if mode == "incrementing" else {"timestamp.column.name": "at"})
    with psycopg.connect(server.conninfo, autocommit=True) as late:
        assert ids_read(settings, database.execute, late.execute) == [2]
        database.execute("TRUNCATE t RESTART IDENTITY")
        assert ids_read(settings | {"snapshot.horizon": "true"}, database.execute, late.execute) == [1, 2]


@pytest.mark.parametrize("mode", ["timestamp", "incrementing"])
def test_rows_inserted_after_a_prepared_transaction_are_not_read_until_the_transaction_is_committed(
    server: postgres.Postgres, database: psycopg.Connection[Any], props: dict[str, str], mode: str
) -> None:
    settings = {**props, "mode": mode, "snapshot.horizon": "true"}
    settings |= {} if mode == "incrementing" else {"timestamp.column.name": "at"}
    with psycopg.connect(server.conninfo, autocommit=True) as other:
        other.execute("BEGIN")
        other.execute("INSERT INTO t (note, at) VALUES ('prepared', now() - interval '1 minute')")
        other.execute("PREPARE TRANSACTION 'p'")
    database.execute("INSERT INTO t (note, at) VALUES ('later', now() - interval '1 minute')")
    offsets = Offsets()
    assert rows(read_all(settings, offsets)) == []
    database.execute("COMMIT PREPARED 'p'")
    assert [row[0] for row in rows(read_all(settings, offsets))] == [1, 2]


def test_source_fails_if_the_user_lacks_the_role_pg_read_all_stats(
    server: postgres.Postgres, database: psycopg.Connection[Any], props: dict[str, str]
) -> None:
    """With the setting ``snapshot.horizon=true``, the source must see the transactions of all users."""
    database.execute("DROP ROLE IF EXISTS reader")
    database.execute("CREATE ROLE reader LOGIN")
    database.execute("GRANT SELECT ON t TO reader")
    settings = {**props, "connection.user": "reader", "mode": "incrementing", "snapshot.horizon": "true"}
    with pytest.raises(ConnectError, match="needs the role pg_read_all_stats: GRANT pg_read_all_stats TO reader"):
        read_all(settings)
    database.execute("GRANT pg_read_all_stats TO reader")
    assert read_all(settings) == []
    database.execute("REVOKE ALL ON t FROM reader")


def test_source_fails_if_another_database_session_hides_its_transactions(
    server: postgres.Postgres, database: psycopg.Connection[Any], props: dict[str, str]
) -> None:
    """With ``snapshot.horizon=true``, the source must know the start time of each transaction in the database.

    If a session disables ``track_activities``, the start time of the session's transaction is unknown.
    """
    settings = {**props, "mode": "incrementing", "snapshot.horizon": "true"}
    with psycopg.connect(server.conninfo, autocommit=True) as late:
        late.execute("SET track_activities = off")
        late.execute("BEGIN")
        late.execute("INSERT INTO t (note) VALUES ('late')")
        database.execute("INSERT INTO t (note) VALUES ('early')")
        with pytest.raises(ConnectError, match="needs track_activities=on"):
            read_all(settings)
        late.execute("COMMIT")
        late.execute("SET track_activities = on")
        late.execute("SELECT 1")
        assert [row[0] for row in rows(read_all(settings))] == [1, 2]


def test_configuration_with_snapshot_horizon_true_is_rejected_in_bulk_mode_and_for_sqlite(
    props: dict[str, str], tmp_path: Any
) -> None:
    with pytest.raises(ConfigErrors, match="has no effect with mode=bulk"):
        JdbcSourceConfig.parse({**props, "mode": "bulk", "snapshot.horizon": "true"})
    (tmp_path / "shop.db").touch()
    settings = {"connection.url": f"jdbc:sqlite:{tmp_path / 'shop.db'}", "mode": "incrementing"}
    settings |= {"snapshot.horizon": "true"}
    values = config_def(JdbcSourceConfig).validate(settings)
    JdbcSourceConnector().validate(settings, values)
    assert values["snapshot.horizon"].errors == ["snapshot.horizon=true needs PostgreSQL, MySQL or MariaDB"]
