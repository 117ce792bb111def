"""The credentials and the endpoint with which the driver and the executors use S3. This module does no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

CA_FILE_PROPERTY = "headrace.s3.ca-file"
DELTA_RETRY_S = 60
"""delta-rs repeats a request for this time at most, by default for three minutes."""


@dataclass(frozen=True, slots=True)
class S3Access:
    """How to reach S3. Picklable; a job's closure contains it. `repr` does not show secrets.

    `endpoint` is a URL such as `http://127.0.0.1:9000`, or None for AWS. `expires_ms` is the time at which temporary
    credentials expire, in ms since 1970, or None. `proxy` is a URL, which may contain a user and a password.
    """

    access_key: str
    secret_key: str
    session_token: str | None = None
    expires_ms: int | None = None
    region: str | None = None
    endpoint: str | None = None
    path_style: bool = True
    ca_file: str | None = None
    proxy: str | None = None

    @property
    def has_credentials(self) -> bool:
        """Whether there are credentials. Without them, only a catalog can vend some for a table."""
        return bool(self.access_key)

    def __repr__(self) -> str:
        return f"S3Access(endpoint={self.endpoint!r}, region={self.region!r}, expires_ms={self.expires_ms!r})"


def arrow_arguments(access: S3Access) -> dict[str, object]:
    """Return the arguments of `pyarrow.fs.S3FileSystem`. They contain secrets."""
    arguments: dict[str, object] = {
        "access_key": access.access_key,
        "secret_key": access.secret_key,
        "session_token": access.session_token,
        "region": access.region,
        "force_virtual_addressing": not access.path_style,
        "tls_ca_file_path": access.ca_file,
        "proxy_options": access.proxy,
        "connect_timeout": 10,
        "request_timeout": 60,
        # A small file is one request instead of the three of a multipart upload.
        "allow_delayed_open": True,
    }
    if access.endpoint:
        url = urlsplit(access.endpoint)
        arguments |= {"scheme": url.scheme, "endpoint_override": url.netloc + url.path.rstrip("/")}
    return {name: value for name, value in arguments.items() if value is not None}


def delta_storage_options(access: S3Access) -> dict[str, str]:
    """Return the storage options of delta-rs. They contain secrets.

    A commit creates the log's file only if it does not exist (`If-None-Match: *`), so two writers cannot overwrite
    each other's commits. There is no option for `ca_file`: see `trust_in_delta`.
    """
    return _without_none(
        {
            "aws_access_key_id": access.access_key,
            "aws_secret_access_key": access.secret_key,
            "aws_session_token": access.session_token,
            "aws_region": access.region,
            "aws_endpoint": access.endpoint,
            "aws_allow_http": "true" if (access.endpoint or "").startswith("http:") else None,
            "aws_virtual_hosted_style_request": str(not access.path_style).lower(),
            "aws_conditional_put": "etag",
            "proxy_url": access.proxy,
            "connect_timeout": "10s",
            "retry_timeout": f"{DELTA_RETRY_S}s",
        }
    )


def iceberg_properties(access: S3Access) -> dict[str, str]:
    """Return the properties of `TableFileIO`, which are pyiceberg's and `CA_FILE_PROPERTY`. They contain secrets."""
    return _without_none(
        {
            "s3.access-key-id": access.access_key or None,
            "s3.secret-access-key": access.secret_key or None,
            "s3.session-token": access.session_token,
            "s3.region": access.region,
            "s3.endpoint": access.endpoint,
            "s3.force-virtual-addressing": str(not access.path_style).lower(),
            "s3.proxy-uri": access.proxy,
            CA_FILE_PROPERTY: access.ca_file,
            "s3.connect-timeout": "10",
        }
    )


def access_of_properties(properties: Mapping[str, str]) -> S3Access | None:
    """Return the access that the properties of a table's `FileIO` describe, or None if they contain no credentials.

    A REST catalog may have added credentials for the table. Then, the other properties of `iceberg_properties` are
    still those of the connector, unless the catalog has replaced them.
    """
    key, secret, token, region = (
        properties.get(f"s3.{name}") or properties.get(f"client.{name}")
        for name in ("access-key-id", "secret-access-key", "session-token", "region")
    )
    if not key or not secret:
        return None
    virtual = properties.get("s3.force-virtual-addressing", "false").lower() == "true"
    path_style = properties.get("s3.path-style-access", str(not virtual)).lower() == "true"
    expires_ms = properties.get("s3.session-token-expires-at-ms")
    return S3Access(
        access_key=key,
        secret_key=secret,
        session_token=token or None,
        expires_ms=int(expires_ms) if expires_ms else None,
        region=region or None,
        endpoint=properties.get("s3.endpoint") or None,
        path_style=path_style,
        ca_file=properties.get(CA_FILE_PROPERTY) or None,
        proxy=properties.get("s3.proxy-uri") or None,
    )


def _without_none(options: Mapping[str, str | None]) -> dict[str, str]:
    return {name: value for name, value in options.items() if value is not None}
