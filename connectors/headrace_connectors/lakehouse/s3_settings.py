"""The S3 credentials of the driver and the executors.

The sink has the configuration keys of the S3 connectors (`S3AccessConfig`), and their code finds the credentials. The
driver resolves them once and passes them to executors, which have neither its configuration nor its environment. They
are never part of Spark's configuration, and no log line contains them.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from typing import Any

from headrace.api.errors import ConnectError
from headrace_connectors.lakehouse.files.stores import omit_additional_checksums
from headrace_connectors.lakehouse.s3_access import S3Access
from headrace_connectors.s3.connection import S3AccessConfig

logger = logging.getLogger(__name__)

_RESOLVE_AGAIN_S = 300.0
"""Credentials that boto3 found may be replaced at any time, for example in a file. So it searches again."""


class AccessProvider:
    """The current S3 credentials. Renews temporary credentials. Use it on one thread.

    `clock` returns the time in seconds since 1970.
    """

    def __init__(self, config: S3AccessConfig, clock: Callable[[], float] = time.time) -> None:
        self._config = config
        self._clock = clock
        self._access: S3Access | None = None
        self._resolved_s = 0.0

    def current(self, valid_for_s: float = 0.0, *, required: bool = True) -> S3Access:
        """Return credentials that are valid for at least `valid_for_s` seconds, if the provider issues such.

        Returns an equal object as long as the credentials do not change. If there are none, raises ConnectError, or
        returns an object without credentials if they are not `required`.
        """
        now = self._clock()
        if self._access is None or self._is_old(now) or self._remaining_s(self._access, now) < valid_for_s:
            self._access = self._resolve(required)
            self._resolved_s = now
            remaining = self._remaining_s(self._access, now)
            if remaining <= 0:
                raise ConnectError("the S3 credentials have expired, and the provider returned no new ones")
            if remaining < valid_for_s:
                logger.warning("S3 credentials expire in %.0f s, and the next job may take longer", remaining)
        return self._access

    def _is_old(self, now: float) -> bool:
        return self._config.access_key_id is None and now - self._resolved_s >= _RESOLVE_AGAIN_S

    @staticmethod
    def _remaining_s(access: S3Access, now: float) -> float:
        return float("inf") if access.expires_ms is None else access.expires_ms / 1000 - now

    def _resolve(self, required: bool) -> S3Access:
        from botocore.exceptions import BotoCoreError, ClientError

        from headrace_connectors.s3.bucket import create_session, proxy_url, uses_path_style

        omit_additional_checksums()  # also for the file systems that pyiceberg creates
        config = self._config
        try:
            found = create_session(config).get_credentials()
            credentials = found.get_frozen_credentials() if found is not None else None
        except (BotoCoreError, ClientError) as error:
            raise ConnectError(f"S3 credentials cannot be obtained: {error}; {_ADVICE}") from error
        if credentials is None and required:
            raise ConnectError(f"there are no S3 credentials; {_ADVICE}")
        return S3Access(
            access_key=credentials.access_key if credentials is not None else "",
            secret_key=credentials.secret_key if credentials is not None else "",
            session_token=credentials.token if credentials is not None else None,
            expires_ms=_expiry_ms(found),
            region=config.region,
            endpoint=config.store_url or None,
            path_style=uses_path_style(config),
            ca_file=os.environ.get("AWS_CA_BUNDLE") or None,
            proxy=proxy_url(config) or None,
        )


_ADVICE = (
    "set aws.access.key.id and aws.secret.access.key, or configure s3.credentials.provider.class or the environment"
)


def _expiry_ms(credentials: Any) -> int | None:
    """Return when temporary credentials expire. boto3 has no public attribute for it."""
    expiry = getattr(credentials, "_expiry_time", None)
    return None if expiry is None else int(expiry.timestamp() * 1000)
