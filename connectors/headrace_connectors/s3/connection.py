"""Configuration keys that the S3 source and sink share: the bucket, the store, credentials, proxy and retries."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar
from urllib.parse import urlsplit

from headrace.api.config import Config, Importance, Password, key
from headrace.api.errors import ConfigError
from headrace.api.retries import Retries, RetryPolicy

_S3, _COMPAT = "S3", "Accepted for compatibility"
_ASSUME_ROLE = "AwsAssumeRoleCredentialsProvider"
_DEFAULT_PROVIDERS = ("DefaultAWSCredentialsProviderChain", "DefaultCredentialsProvider", "AWSCredentialsProviderChain")
_PROVIDER_PREFIX = "s3.credentials.provider."


def _check_provider(name: str) -> None:
    if name.rsplit(".", 1)[-1] not in (_ASSUME_ROLE, *_DEFAULT_PROVIDERS):
        raise ValueError(
            f"a Java class cannot be loaded; use {_DEFAULT_PROVIDERS[0]} (boto3's credential chain: environment, "
            f"files, roles), {_ASSUME_ROLE}, or aws.access.key.id and aws.secret.access.key"
        )


def _check_store_url(url: str) -> None:
    parts = urlsplit(url)
    if url and (parts.scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc):
        raise ValueError("must look like http://host:port")
    _ = parts.port  # raises ValueError for an invalid port


def _check_customer_key(secret: Password) -> None:
    if secret.value:
        decode_customer_key(secret)


def decode_customer_key(secret: Password) -> bytes:
    """Return the 256 bits of an SSE-C key. Raises ValueError if the text is not 32 bytes in base64."""
    try:
        decoded = base64.b64decode(secret.value, validate=True)
    except binascii.Error:
        decoded = b""
    if len(decoded) != 32:
        raise ValueError("must be 32 bytes in base64")
    return decoded


class S3AccessConfig(Config):
    """The configuration keys for the store and its credentials."""

    passthrough_prefixes: ClassVar[tuple[str, ...]] = (_PROVIDER_PREFIX,)

    region: str = key("s3.region", default="us-west-2", doc="The region of the bucket.", group=_S3)
    store_url: str | None = key(
        "store.url",
        default=None,
        doc="The address of an S3-compatible store, such as http://localhost:9000.",
        validator=_check_store_url,
        group=_S3,
    )
    access_key_id: str | None = key(
        "aws.access.key.id",
        default=None,
        doc="The access key. If it is not set, boto3 searches for credentials: environment, files, roles.",
        group=_S3,
    )
    secret_access_key: Password | None = key(
        "aws.secret.access.key", default=None, doc="The secret of the access key.", group=_S3
    )
    credentials_provider: str = key(
        "s3.credentials.provider.class",
        default="com.amazonaws.auth.DefaultAWSCredentialsProviderChain",
        doc="How credentials are found: DefaultAWSCredentialsProviderChain (boto3's chain) or "
        "AwsAssumeRoleCredentialsProvider, which assumes the role s3.credentials.provider.sts.role.arn with "
        "s3.credentials.provider.sts.role.session.name and s3.credentials.provider.sts.role.external.id.",
        validator=_check_provider,
        group=_S3,
    )
    path_style: bool = key(
        "s3.path.style.access.enabled",
        default=True,
        doc="Whether requests contain the bucket's name in the path instead of the host name. If the host of store.url "
        "is an IP address, the name is always in the path.",
        group=_S3,
    )
    proxy_url: str = key("s3.proxy.url", default="", doc="The proxy for requests.", group=_S3)
    proxy_user: str | None = key("s3.proxy.user", default=None, doc="The user of the proxy.", group=_S3)
    proxy_password: Password | None = key(
        "s3.proxy.password", default=None, doc="The password of the proxy.", group=_S3
    )

    @property
    def assumed_role(self) -> Mapping[str, str] | None:
        """The properties of the role to assume: sts.role.arn, sts.role.session.name, sts.role.external.id."""
        if self.credentials_provider.rsplit(".", 1)[-1] != _ASSUME_ROLE:
            return None
        return self.originals_with_prefix(_PROVIDER_PREFIX)

    @classmethod
    def errors_between(cls, values: Mapping[str, Any]) -> Iterator[ConfigError]:
        """Yield errors about invalid combinations of keys. `values` maps each key to its parsed value."""
        if (values.get("aws.access.key.id") is None) != (values.get("aws.secret.access.key") is None):
            present, missing = "aws.access.key.id", "aws.secret.access.key"
            if not values.get(present):
                present, missing = missing, present
            yield ConfigError(missing, None, f"must be set, because {present} is set")


class S3ConnectionConfig(S3AccessConfig):
    """The configuration keys for the bucket and for requests to it."""

    without_effect: ClassVar[Mapping[str, str]] = {
        "s3.retry.backoff.ms": "boto3 chooses the delay between its retries",
        "s3.http.send.expect.continue": "the connector sends no Expect header",
    }

    bucket: str = key(
        "s3.bucket.name", doc="The name of the bucket.", importance=Importance.HIGH, group=_S3, order=0, non_empty=True
    )
    wan_mode: bool = key(
        "s3.wan.mode", default=False, doc="Whether to use the bucket's S3 Transfer Acceleration endpoint.", group=_S3
    )
    customer_key: Password | None = key(
        "s3.sse.customer.key",
        default=None,
        doc="The key of server-side encryption with a customer key (SSE-C): 32 bytes in base64.",
        validator=_check_customer_key,
        group=_S3,
    )
    part_retries: int = key(
        "s3.part.retries", default=3, at_least=0, doc="Maximum number of retries of a failed request.", group=_S3
    )
    retry_backoff_ms: int = key(
        "retry.backoff.ms",
        default=5000,
        at_least=0,
        doc="Milliseconds to wait before retrying an upload or read that failed for a temporary reason.",
        group=_S3,
    )
    client_backoff_ms: int = key(
        "s3.retry.backoff.ms", default=200, doc="Has no effect: boto3 chooses the delay.", group=_COMPAT
    )
    expect_continue: bool = key(
        "s3.http.send.expect.continue",
        default=True,
        doc="Has no effect: the connector sends no Expect header.",
        group=_COMPAT,
    )

    def retries(self) -> Retries:
        """Return the unlimited retries after temporary failures of the store."""
        return Retries(RetryPolicy(self.retry_backoff_ms, logged_every=10))

    @classmethod
    def errors_between(cls, values: Mapping[str, Any]) -> Iterator[ConfigError]:
        """Yield errors about invalid combinations of keys. `values` maps each key to its parsed value."""
        yield from super().errors_between(values)
        if values.get("s3.wan.mode") and values.get("store.url"):
            yield ConfigError("s3.wan.mode", "true", "cannot be used with store.url")
