"""Tables on an S3 server, and in a REST catalog, whose certificates a private authority has signed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import certifi
import pytest

pytest.importorskip("deltalake")
pytest.importorskip("pyiceberg")
from headrace.api.errors import ConnectError
from headrace_connectors.lakehouse.committers.iceberg_catalog import check_catalog
from headrace_connectors.lakehouse.committers.iceberg_config import parse_catalog
from headrace_connectors.lakehouse.files.stores import FileStore
from headrace_connectors.lakehouse.table_uri import TableUri
from support import iceberg_committers, s3
from support.certificates import Certificates, create_certificates
from support.lakehouse_committers import append, numbers, offsets, open_new, s3_access, s3_filesystem

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

DELTA = """
import sys
sys.path.insert(0, sys.argv[1])
from support import s3
from support.lakehouse_committers import append, delta_s3, offsets, open_new

table = delta_s3(s3.S3Server(sys.argv[2], ca_file=sys.argv[3]), "delta")
append(table, open_new(table), 0, [1, 2], offsets(t=2))
print(sorted(table.read("t")["n"].to_pylist()))
"""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return create_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def server(certificates: Certificates) -> Iterator[s3.S3Server]:
    with s3.running(certificates=certificates) as running:
        yield running


def test_executors_write_files(server: s3.S3Server) -> None:
    store = FileStore(s3_access(server))
    with store.open_output("s3://lake/files", "f") as stream:
        stream.write(b"x")
    assert store.size("s3://lake/files", "f") == 1


def test_iceberg_table_is_created_and_committed_to(server: s3.S3Server, tmp_path: Path) -> None:
    config = {"iceberg.catalog.type": "sql", "iceberg.catalog.uri": f"sqlite:///{tmp_path / 'catalog.db'}"}
    root = iceberg_committers.s3_root("iceberg")
    tables = iceberg_committers.combination(
        "iceberg-tls", iceberg_committers.connect(root, config, server), s3_filesystem(server)
    )
    committer = open_new(tables)
    append(tables, committer, 0, [1, 2], offsets(t=2))
    assert numbers(tables.read("t")) == [1, 2]
    untrusted = s3.S3Server(server.url)
    other = iceberg_committers.connect(root, config, untrusted)
    with pytest.raises(ConnectError, match=r"SSL|certificate|curlCode: 60"):
        iceberg_committers.combination("iceberg-untrusted", other).make("t", "sink").load([("t", 0)])


def test_delta_table_is_created_and_committed_to(server: s3.S3Server) -> None:
    tests = Path(__file__).parent.parent
    command = [sys.executable, "-c", DELTA, str(tests), server.url, str(server.ca_file)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SSL_CERT_")}
    # In a process of its own, because the certificates that delta-rs trusts are a setting of the process.
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert done.stdout == "[1, 2]\n", done.stderr


def test_rest_catalog_with_a_private_authority_is_trusted_with_ssl_cabundle(
    server: s3.S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", certifi.where())  # a setting of the environment has lower priority
    # The S3 server is no catalog: its response to /v1/config is an error, but one that came over TLS.
    keys = {"type": "rest", "uri": server.url, "credential": "id:x", "oauth2-server-uri": f"{server.url}/lake/token"}
    config = {f"iceberg.catalog.{name}": text for name, text in keys.items()}
    (untrusted,) = check_catalog(parse_catalog(config, TableUri("/not-used")))
    assert "certificate verify failed" in str(untrusted)
    trusting = {**config, "iceberg.catalog.ssl.cabundle": str(server.ca_file)}
    (error,) = check_catalog(parse_catalog(trusting, TableUri("/not-used")))
    assert "certificate" not in str(error)
