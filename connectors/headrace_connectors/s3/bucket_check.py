"""Validates that a configured bucket can be accessed, and reports an error for the configuration key that causes it."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.api.errors import ConfigError, ConnectError
from headrace_connectors.s3.connection import S3AccessConfig, S3ConnectionConfig


def bucket_errors(config: S3ConnectionConfig) -> Iterator[ConfigError]:
    """Yield an error if the bucket does not exist or cannot be accessed."""
    from headrace_connectors.s3.bucket import Bucket, TemporaryError

    if (missing_role := role_error(config)) is not None:
        yield missing_role
        return
    try:
        Bucket(config).check()
    except (ConnectError, TemporaryError, ValueError) as error:
        yield request_error(config, error)


def role_error(config: S3AccessConfig) -> ConfigError | None:
    """Return an error if the role to assume is not set."""
    if config.assumed_role is None or config.assumed_role.get("sts.role.arn"):
        return None
    message = "s3.credentials.provider.sts.role.arn must be set for AwsAssumeRoleCredentialsProvider"
    return ConfigError.with_text("s3.credentials.provider.class", message)


def request_error(config: S3AccessConfig, error: Exception, bucket_key: str = "s3.bucket.name") -> ConfigError:
    """Return the error for the configuration key that made a request fail. `bucket_key` contains the bucket's name."""
    from headrace_connectors.s3.bucket import AccessDeniedError, ProxyError, TemporaryError

    if isinstance(error, TemporaryError):
        return ConfigError.with_text("store.url" if config.store_url else "s3.region", str(error))
    if isinstance(error, AccessDeniedError):
        key = "aws.access.key.id" if config.access_key_id else "s3.credentials.provider.class"
        return ConfigError.with_text(key, f"{error}; check the credentials and that they permit access to the bucket")
    if isinstance(error, ProxyError):
        return ConfigError.with_text("s3.proxy.url", str(error))
    if isinstance(error, ConnectError):
        return ConfigError.with_text(bucket_key, str(error))
    # boto3 rejects an endpoint that is not a URL
    return ConfigError.with_text("store.url" if config.store_url else bucket_key, str(error))
