"""Tests of task configurations that workers of version 0.1.0 run during a rolling upgrade."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from headrace.api import Config, Connector, SourceRecord, connector_for, source
from headrace_connectors.file.directory_source import DirectorySourceConnector
from headrace_connectors.s3.source import S3SourceConnector


class ShardsConfig(Config):
    """A configuration without keys."""


@source(partitions=lambda config: [{"shard": number} for number in range(2)])
def shards(
    config: ShardsConfig, offset: Mapping[str, Any] | None, partition: Mapping[str, Any]
) -> Iterator[SourceRecord]:
    """Return no records."""
    yield from ()


S3 = {"s3.bucket.name": "b", "s3.region": "x", "format.class": "JsonFormat", "mode": "RESTORE_BACKUP"}


@pytest.mark.parametrize(
    ("connector", "props", "key", "shares"),
    [
        (DirectorySourceConnector, {"directory": "/in", "topic": "t", "format": "json"}, "headrace.file.share", "01"),
        (S3SourceConnector, S3, "headrace.s3.share", "01"),
        (connector_for(shards), {}, "source.function.tasks", None),
    ],
    ids=["directory", "s3", "function"],
)
def test_task_configs_contain_the_share_of_each_task_for_workers_of_version_0_1_0(
    connector: type[Connector[Any]], props: dict[str, str], key: str, shares: str | None
) -> None:
    instance = connector()
    instance.config = connector.config_model.parse(props)
    expected = ["2", "2"] if shares is None else [f"{number}/2" for number in shares]
    assert [config[key] for config in instance.task_configs(2)] == expected
