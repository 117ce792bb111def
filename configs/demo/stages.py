"""Counts the rows of the connectors' demo at each stage after PostgreSQL: topics, S3, OpenSearch and SQLite."""

from __future__ import annotations

import json
import sqlite3
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import boto3
from confluent_kafka import Consumer, KafkaException, TopicPartition
from prepare_database import TABLES
from servers import BUCKET

PREFIX = "nyc-"
_TIMEOUT_S = 5.0

Counts = dict[str, int]
"""The number of rows by table."""
Count = Callable[[], Counts]


class Topics:
    """Counts the records of each topic. A topic has only one partition, and its end offset is the number of records."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "demo", "log_level": 0})

    def count(self) -> Counts:
        """Return the number of records by table."""
        try:
            existing = self._consumer.list_topics(timeout=_TIMEOUT_S).topics
            return {table: self._end_offset(PREFIX + table) for table in TABLES if PREFIX + table in existing}
        except KafkaException:
            return {}  # the broker is starting

    def _end_offset(self, topic: str) -> int:
        return int(self._consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=_TIMEOUT_S)[1])

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()


class Objects:
    """Counts the JSON lines in the objects of a bucket. Each object is read only once."""

    def __init__(self, port: int) -> None:
        self._client: Any = boto3.client(
            "s3", endpoint_url=f"http://127.0.0.1:{port}", region_name="us-east-1", aws_access_key_id="key",
            aws_secret_access_key="secret",
        )  # fmt: skip
        self._lines: dict[str, int] = {}

    @property
    def objects(self) -> int:
        """The number of objects."""
        return len(self._lines)

    def count(self) -> Counts:
        """Return the number of lines by table."""
        for page in self._client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET):
            for item in page.get("Contents", ()):
                if item["Key"] not in self._lines:
                    body = self._client.get_object(Bucket=BUCKET, Key=item["Key"])["Body"].read()
                    self._lines[item["Key"]] = body.count(b"\n")
        counts: Counts = {}
        for key, lines in self._lines.items():
            table = key.split("/")[1].removeprefix(PREFIX)
            counts[table] = counts.get(table, 0) + lines
        return counts


def count_documents(port: int) -> Counts:
    """Return the number of documents in each index of OpenSearch."""
    url = f"http://127.0.0.1:{port}"
    try:
        with urllib.request.urlopen(urllib.request.Request(f"{url}/{PREFIX}*/_refresh", method="POST"), timeout=30):
            pass
        with urllib.request.urlopen(f"{url}/_cat/indices/{PREFIX}*?format=json", timeout=30) as response:
            return {each["index"].removeprefix(PREFIX): int(each["docs.count"] or 0) for each in json.load(response)}
    except urllib.error.HTTPError:
        return {}  # the indexes do not exist yet


def count_sqlite(file: Path) -> Counts:
    """Return the number of rows in each table of the SQLite database."""
    if not file.exists():
        return {}
    connection = sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=_TIMEOUT_S)
    try:
        found = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        tables = [table for table in TABLES if PREFIX + table in found]
        return {table: connection.execute(f'SELECT count(*) FROM "{PREFIX}{table}"').fetchone()[0] for table in tables}
    except sqlite3.OperationalError:
        return {}  # the sink is writing
    finally:
        connection.close()


def is_complete(rows: Mapping[str, int], counts: Mapping[str, Counts]) -> bool:
    """Whether each stage has all rows of all tables."""
    return all(stage.get(table, 0) >= count for stage in counts.values() for table, count in rows.items())


def incomplete_stages(rows: Mapping[str, int], counts: Mapping[str, Counts]) -> dict[str, int]:
    """Return each stage that lacks rows of its previous stage, with the number of rows of the previous stage.

    PostgreSQL is the previous stage of the topics. The topics are the previous stage of S3, OpenSearch and SQLite.
    """
    sent = {table: min(count, counts["topic"].get(table, 0)) for table, count in rows.items()}
    previous = {name: rows if name == "topic" else sent for name in counts}
    return {
        name: sum(previous[name].values())
        for name, found in counts.items()
        if not is_complete(previous[name], {name: found})
    }
