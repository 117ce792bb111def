"""The credentials and the endpoint with which the driver and the executors use S3. This module does no I/O."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class S3Access:
    """How to reach S3. Picklable; a job's closure contains it. `repr` does not show secrets.

    `endpoint` is a URL such as `http://127.0.0.1:9000`, or None for AWS. `expires_ms` is the time at which temporary
    credentials expire, in ms since 1970, or None.
    """

    access_key: str
    secret_key: str
    session_token: str | None = None
    expires_ms: int | None = None
    region: str | None = None
    endpoint: str | None = None
    path_style: bool = True
    ca_file: str | None = None

    def __repr__(self) -> str:
        return f"S3Access(endpoint={self.endpoint!r}, region={self.region!r}, expires_ms={self.expires_ms!r})"
