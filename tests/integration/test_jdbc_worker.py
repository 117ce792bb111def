"""Tests of the JDBC source in a real worker: validation errors over REST, and imports in the fork server."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import psutil
import pytest

from support.topics import end_offset, read_topic
from support.worker import RestError, Worker, wait_for

pytestmark = pytest.mark.integration

CLASS = "io.confluent.connect.jdbc.JdbcSourceConnector"


def test_misspelled_incrementing_column_is_rejected_with_a_suggestion(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "shop.db") as database:
        database.execute("CREATE TABLE orders (order_id INTEGER PRIMARY KEY, item TEXT)")
        database.executemany("INSERT INTO orders (item) VALUES (?)", [("shoe",), ("hat",)])
    database.close()
    config = {
        "connector.class": CLASS,
        "connection.url": f"jdbc:sqlite:{tmp_path}/shop.db",
        "mode": "incrementing",
        "incrementing.column.name": "orderid",
        "table.whitelist": "orders",
        "topic.prefix": "shop-",
    }
    message = "table orders has no column orderid; did you mean order_id?"
    with Worker(tmp_path) as worker:
        response = worker.request("PUT", f"/connector-plugins/{CLASS}/config/validate", {**config, "name": "shop"})
        errors = {item["value"]["name"]: item["value"]["errors"] for item in response["configs"]}
        assert (response["error_count"], message in errors["incrementing.column.name"][0]) == (1, True)
        with pytest.raises(RestError, match=r"400.*did you mean order_id"):
            worker.create("shop", config)
        worker.create("shop", {**config, "incrementing.column.name": "order_id"})
        worker.wait_for_state("shop", "RUNNING")
        broker = worker.bootstrap_servers()
        wait_for(lambda: end_offset(broker, "shop-orders") == 2, "both rows are in the topic")
        records = [json.loads(message.value() or b"") for message in read_topic(broker, "shop-orders")]
        assert records == [{"order_id": 1, "item": "shoe"}, {"order_id": 2, "item": "hat"}]
        [forks] = [child for child in psutil.Process(worker.pid).children() if "fork_server" in child.cmdline()[2]]
        libraries = {item.path for item in forks.memory_maps()}
        assert any("sqlalchemy" in path for path in libraries)
        assert not any("psycopg" in path for path in libraries)


def test_row_that_is_skipped_because_of_unmappable_values_is_sent_to_the_dead_letter_queue(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "shop.db") as database:
        database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, amount INTEGER)")
        database.executemany("INSERT INTO orders VALUES (?, ?)", [(1, 5), (2, "many"), (3, 7)])
    database.close()
    config = {
        "connector.class": CLASS,
        "connection.url": f"jdbc:sqlite:{tmp_path}/shop.db",
        "mode": "incrementing",
        "topic.prefix": "shop-",
        "unmappable.values": "skip",
        "errors.tolerance": "all",
        "errors.deadletterqueue.topic.name": "skipped-rows",
        "errors.deadletterqueue.topic.replication.factor": "1",
        "errors.deadletterqueue.context.headers.enable": "true",
    }
    with Worker(tmp_path) as worker:
        worker.create("shop", config)
        broker = worker.bootstrap_servers()
        wait_for(lambda: end_offset(broker, "shop-orders") == 2, "both valid rows are in the topic")
        wait_for(lambda: end_offset(broker, "skipped-rows") == 1, "the skipped row is in the queue")
        (message,) = read_topic(broker, "skipped-rows")
        record = json.loads(message.value() or b"")
        assert (record["topic"], record["value"]) == ("shop-orders", {"id": "2", "amount": "many"})
        assert record["source_partition"] == {"protocol": "1", "table": "orders"}
        headers = {name: value.decode() for name, value in message.headers() or []}
        assert headers["__connect.errors.stage"] == "TASK_POLL"
        assert "column amount, row id=2" in headers["__connect.errors.exception.message"]
        assert worker.status("shop")["tasks"][0]["state"] == "RUNNING"
