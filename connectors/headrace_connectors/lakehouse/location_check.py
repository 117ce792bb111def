"""Validates the location of tables: a local directory must be writable, and a bucket must be safe for the format."""

from __future__ import annotations

import logging
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.api.errors import ConfigError, ConnectError
from headrace_connectors.lakehouse.files.stores import FileStore
from headrace_connectors.lakehouse.s3_settings import AccessProvider
from headrace_connectors.lakehouse.table_uri import TableUri
from headrace_connectors.s3.bucket_check import request_error, role_error
from headrace_connectors.s3.connection import S3AccessConfig, S3ConnectionConfig

if TYPE_CHECKING:  # boto3 is imported only if a table is in S3
    from headrace_connectors.s3.bucket import Bucket

PATH_KEY = "lakehouse.path"
logger = logging.getLogger(__name__)

_PROBE_BYTES = 1 << 20
_PROBE = b"headrace checks whether it can write tables here"
_REGION_ERRORS = ("Malformed", "MALFORMED", "PermanentRedirect", "HTTP status 301", "HTTP status 400")
_UNSAFE = (
    "Two writers of a Delta table could overwrite each other's commits; use a store that supports conditional writes,"
    " or lakehouse.format=iceberg"
)


def check_location(
    config: S3AccessConfig, uri: TableUri, *, conditional_writes: bool, path_key: str = PATH_KEY
) -> Iterator[ConfigError]:
    """Yield an error if the sink cannot write tables below `uri`. See `check_directory` and `check_bucket`."""
    if uri.is_s3:
        yield from check_bucket(config, uri, conditional_writes=conditional_writes, path_key=path_key)
    else:
        yield from check_directory(uri.local, path_key)


def check_directory(directory: Path, key: str = PATH_KEY) -> Iterator[ConfigError]:
    """Create a directory if it does not exist. Yield an error in key `key` if files cannot be written into it."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory) as file:
            file.write(bytes(_PROBE_BYTES))  # on a full disk, Spark's JVM would hang while starting
    except OSError as error:
        yield ConfigError(key, str(directory), f"the directory is not writable: {error.strerror}")


def check_bucket(
    config: S3AccessConfig, uri: TableUri, *, conditional_writes: bool, path_key: str = PATH_KEY
) -> Iterator[ConfigError]:
    """Yield an error if the sink cannot write tables below `uri`. Each error names the configuration key at fault.

    Writes and deletes a small object. If `conditional_writes` is true, as Delta needs it, the store must reject a
    second object with the same key and the header If-None-Match: otherwise two writers could overwrite each other's
    commits. `path_key` is the configuration key that contains `uri`.
    """
    if (missing_role := role_error(config)) is not None:
        yield missing_role
        return
    from headrace_connectors.s3.bucket import TemporaryError

    try:
        yield from _probe(config, uri, conditional_writes, path_key)
    except (ConnectError, TemporaryError, ValueError) as error:
        yield request_error(config, error, path_key)


def _probe(config: S3AccessConfig, uri: TableUri, conditional_writes: bool, path_key: str) -> Iterator[ConfigError]:
    from headrace_connectors.s3.bucket import Bucket, NotImplementedByStoreError

    bucket = Bucket(_connection(config, uri.bucket))
    name = f"_headrace_probe-{uuid.uuid4()}"
    key = f"{uri.path}/{name}".lstrip("/")
    try:
        _create(bucket, key, conditional_writes)
        yield from _check_access(config, uri, name)
        if conditional_writes and _create(bucket, key, conditional=True):
            yield ConfigError.with_text(path_key, f"The store of {uri} ignores the header If-None-Match. {_UNSAFE}")
    except NotImplementedByStoreError as error:
        yield ConfigError.with_text(path_key, f"{error}. {_UNSAFE}")
    else:
        _delete_probe(bucket, key)


def _create(bucket: Bucket, key: str, conditional: bool) -> bool:
    """Write an object. Return false if the store rejects it because the object exists."""
    from headrace_connectors.s3.bucket import ObjectExistsError, UploadLostError

    condition = {"IfNoneMatch": "*"} if conditional else {}
    try:
        bucket.request("put_object", f"write {key}", Key=key, Body=_PROBE, **condition)
    except (ObjectExistsError, UploadLostError):
        return False
    return True


def _check_access(config: S3AccessConfig, uri: TableUri, name: str) -> Iterator[ConfigError]:
    """Yield an error if the executors' S3 client, which is PyArrow's, cannot overwrite the object that boto3 wrote."""
    try:
        with FileStore(AccessProvider(config).current()).open_output(str(uri), name) as stream:
            stream.write(_PROBE)
    except OSError as error:
        # boto3 finds a bucket's region by itself, PyArrow does not.
        is_region = any(code in str(error) for code in _REGION_ERRORS)
        key = "s3.region" if is_region or not config.store_url else "store.url"
        hint = f"; check that the bucket is in the region {config.region}" if key == "s3.region" else ""
        text = f"PyArrow, with which the executors access S3, cannot write to {uri}: {error}{hint}"
        yield ConfigError.with_text(key, text)


def _delete_probe(bucket: Bucket, key: str) -> None:
    from headrace_connectors.s3.bucket import TemporaryError

    try:
        bucket.request("delete_object", f"delete {key}", Key=key)
    except (ConnectError, TemporaryError) as error:
        logger.warning("%s. Files of failed micro-batches cannot be deleted either; permit s3:DeleteObject", error)


def _connection(config: S3AccessConfig, bucket: str) -> S3ConnectionConfig:
    """Return the configuration of an S3 connector for the bucket. A request that fails is not repeated often."""
    names = {name for name in config.originals if name.startswith(("s3.", "aws.", "store.url"))}
    properties: dict[str, str | None] = {name: config.originals[name] for name in names}
    return S3ConnectionConfig.parse({**properties, "s3.bucket.name": bucket, "s3.part.retries": "1"})
