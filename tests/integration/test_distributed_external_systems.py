"""Copies a table through JDBC and S3 connectors in a group of two distributed workers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from support import jdbc_copy, postgres, s3
from support.broker import running_broker
from support.distributed import owners, worker_group
from support.jdbc_copy import TOPIC, copy_config, source_config
from support.topics import end_offset, read_topic
from support.worker import wait_for

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(postgres.unavailable_reason()), reason=postgres.unavailable_reason() or ""),
]

ROWS, RESTORED = 3_000, "restored"


def test_jdbc_and_s3_connectors_copy_every_row_in_a_group_of_two_workers(tmp_path: Path) -> None:
    with (
        running_broker(tmp_path, group_min_session_timeout_ms="1000") as broker,
        postgres.running() as server,
        s3.running() as store,
        worker_group(tmp_path, broker.address, 2, {"value.converter.schemas.enable": "true"}) as workers,
    ):
        database = jdbc_copy.postgresql(server)
        database.create_orders()
        database.fill(1, ROWS)
        store_props = {key: value for key, value in store.props().items() if key != "storage.class"}
        json_format = {"format.class": "JsonFormat"}
        configs = {
            "jdbc-source": source_config(database),
            "s3-sink": {
                "connector.class": "io.confluent.connect.s3.S3SinkConnector",
                "topics": TOPIC,
                "flush.size": "500",
                "consumer.override.metadata.max.age.ms": "500",
                **store.props(),
                **json_format,
            },
            "s3-source": {
                "connector.class": "io.confluent.connect.s3.source.S3SourceConnector",
                "s3.poll.interval.ms": "500",
                "transforms": "rename",
                "transforms.rename.type": "org.apache.kafka.connect.transforms.RegexRouter",
                "transforms.rename.regex": ".*",
                "transforms.rename.replacement": RESTORED,
                **store_props,
                **json_format,
            },
            "jdbc-sink": copy_config(database),
        }
        for number, (name, config) in enumerate(configs.items()):
            workers[number % 2].create(name, config)
        wait_for(lambda: database.count("copies") == ROWS, "all rows are copied", 60, lambda: database.count("copies"))
        wait_for(lambda: end_offset(broker.address, RESTORED) == ROWS, "all objects are restored", 60,
                 lambda: (end_offset(broker.address, RESTORED), owners(workers[0], "s3-source")))  # fmt: skip
        restored = [json.loads(each.value() or b"")["payload"]["id"] for each in read_topic(broker.address, RESTORED)]
        assert restored == list(range(1, ROWS + 1))
        keys = [key for key in store.objects() if key.startswith(f"topics/{TOPIC}/")]
        assert len(keys) == ROWS // 500
        assert database.orders("copies") == database.orders("orders")
        used = set()
        for name in configs:
            found = owners(workers[0], name)
            assert {state for state, _ in found.values()} == {"RUNNING"}
            used |= {worker for number, (_, worker) in found.items() if number is not None}
        assert used == {worker.worker_id for worker in workers}
