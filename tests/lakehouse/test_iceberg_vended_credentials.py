"""S3 credentials that an Iceberg REST catalog vends for a table, with an S3 server that checks signatures."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

pytest.importorskip("pyiceberg")
import pyarrow as pa
import pyarrow.parquet as pq

from headrace.api.errors import ConnectError
from headrace_connectors.lakehouse.committers.base import Commit
from headrace_connectors.lakehouse.driver.table_access import TableAccess
from headrace_connectors.lakehouse.files.field_ids import with_field_ids
from headrace_connectors.lakehouse.files.layout import FileLayout
from headrace_connectors.lakehouse.files.settings import WriterSettings
from headrace_connectors.lakehouse.files.table_target import TableTarget
from headrace_connectors.lakehouse.files.writers import FileWriters
from headrace_connectors.lakehouse.sink_config import LakehouseSinkConfig
from headrace_connectors.lakehouse.validation import check_environment
from support import iceberg_catalog, versitygw
from support.iceberg_catalog import RestCatalogServer
from support.lakehouse_committers import COLUMNS, SCHEMA, identity, offsets
from support.s3 import S3Server
from support.s3_faults import FaultyS3, faulty

pytestmark = pytest.mark.jvm
_REASON = iceberg_catalog.unavailable_reason() or versitygw.unavailable_reason()
if _REASON is not None:
    pytest.skip(_REASON, allow_module_level=True)


@dataclass
class Catalog:
    """A REST catalog behind a proxy that adds `config` to each loaded table, as catalogs that vend credentials do."""

    server: RestCatalogServer
    storage: S3Server
    proxy: FaultyS3
    config: dict[str, str] = field(default_factory=dict)
    loads: int = 0

    def add_config(self, method: str, path: str, body: bytes) -> bytes:
        """Change the response to a request that loads or creates a table."""
        if "/tables" not in path or b"metadata-location" not in body:
            return body
        self.loads += 1
        return json.dumps({**json.loads(body), "config": self.config}).encode()

    def vend(self, valid_s: float) -> None:
        """Vend valid credentials."""
        self.config = {
            "s3.access-key-id": self.storage.access_key,
            "s3.secret-access-key": self.storage.secret,
            "s3.endpoint": self.storage.url,
            "client.region": "us-east-1",
            "s3.path-style-access": "true",
            "s3.session-token-expires-at-ms": str(int((time.time() + valid_s) * 1000)),
        }

    def sink(self, **keys: str) -> LakehouseSinkConfig:
        """Return the configuration of a sink."""
        props = {"lakehouse.format": "iceberg", "iceberg.catalog.uri": self.proxy.server.url}
        return LakehouseSinkConfig.parse({**props, **{name.replace("__", "."): text for name, text in keys.items()}})


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[S3Server, RestCatalogServer]]:
    directory = tmp_path_factory.mktemp("catalog")
    with (
        versitygw.running(directory / "buckets") as storage,
        iceberg_catalog.running(directory, storage, "s3://lake/warehouse") as server,
    ):
        yield storage, server


@pytest.fixture
def catalog(
    servers: tuple[S3Server, RestCatalogServer], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Catalog]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    with faulty(S3Server(servers[1].url)) as proxy:
        running = Catalog(servers[1], servers[0], proxy)
        proxy.rewrite = running.add_config
        yield running


@pytest.mark.parametrize("keys", [{}, {"s3__region": "us-east-1"}], ids=["no keys", "with a region"])
def test_executors_write_with_the_credentials_that_the_catalog_vends(catalog: Catalog, keys: dict[str, str]) -> None:
    catalog.vend(3600)
    config = catalog.sink(**keys)
    assert [error for error in check_environment(config) if error.key.startswith(("iceberg", "aws"))] == []
    access = TableAccess(config, "sink")
    assert access.store().accesses == {}
    name = f"t{len(keys)}"
    committer = access.open(name)
    committer.load()
    committer.create(COLUMNS, FileLayout())
    store = access.store()
    with FileWriters(store, WriterSettings(), "part") as writers:
        target = TableTarget(name, committer.data_location(), COLUMNS, field_ids=committer.field_ids())
        schema = with_field_ids(SCHEMA, target.field_ids)
        rows = pa.RecordBatch.from_pylist([{"n": 1, "text": "a"}], SCHEMA)
        writers.write(target, schema, rows)
        files = list(writers.finish())
    committer.commit(Commit(identity(0), offsets(t=1), files))
    assert catalog.server.read(f"default.{name}") == [{"n": 1, "text": "a"}]
    location = str(committer.data_location())
    with store.open_input(location, files[0].path) as stream:
        assert pq.read_table(stream).num_rows == 1


def test_vended_credentials_are_renewed_before_they_expire(catalog: Catalog) -> None:
    catalog.vend(3600)
    access = TableAccess(catalog.sink(), "sink")
    access.store()
    committer = access.open("renewed")
    committer.load()
    committer.create(COLUMNS, FileLayout())
    location = str(committer.data_location())
    first, loads = access.store().accesses[location], catalog.loads
    assert access.store().accesses[location] == first
    assert catalog.loads == loads
    catalog.vend(100)  # a shorter time than a job may take
    committer.load()
    short = access.store().accesses[location]
    assert short.expires_ms is not None
    assert short.expires_ms < time.time() * 1000 + 101_000
    loads = catalog.loads
    assert access.store().accesses[location] == short  # the catalog does not vend others, so it is not asked each time
    assert catalog.loads == loads
    catalog.vend(-1)
    committer.load()
    catalog.vend(7200)
    assert (access.store().accesses[location].expires_ms or 0) > time.time() * 1000 + 7_000_000
    access.close()
    assert access.store().accesses == {}  # the committers of an earlier run of the task are not used any more


def test_table_on_s3_without_credentials_is_an_error_that_says_what_to_do(catalog: Catalog) -> None:
    catalog.vend(3600)
    access = TableAccess(catalog.sink(), "sink")
    committer = access.open("none")
    committer.load()
    committer.create(COLUMNS, FileLayout())
    catalog.config = {"client.region": "us-east-1"}
    committer.load()
    with pytest.raises(ConnectError, match=r"table default\.none is at s3://lake/.*: there are no .* vends none; let"):
        access.store()
    catalog.config = {"client.region": "us-east-1", "s3.remote-signing-enabled": "true"}
    committer.load()
    with pytest.raises(ConnectError, match=r"signs requests \(remote signing\), which is not supported; let"):
        access.store()
    static = {"aws__access__key__id": "key", "aws__secret__access__key": "secret", "store__url": catalog.storage.url}
    other = TableAccess(catalog.sink(**static), "sink")
    other.store()
    other.open("none").load()
    assert other.store().accesses == {}
