"""Validates that a configured bucket can be accessed, and reports an error for the configuration key that causes it."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.api.errors import ConfigError, ConnectError
from headrace_connectors.s3.connection import S3ConnectionConfig


def bucket_errors(config: S3ConnectionConfig) -> Iterator[ConfigError]:
    """Yield an error if the bucket does not exist or cannot be accessed."""
    from headrace_connectors.s3.bucket import AccessDeniedError, Bucket, ProxyError, TemporaryError

    if config.assumed_role is not None and not config.assumed_role.get("sts.role.arn"):
        message = "s3.credentials.provider.sts.role.arn must be set for AwsAssumeRoleCredentialsProvider"
        yield ConfigError.with_text("s3.credentials.provider.class", message)
        return
    try:
        Bucket(config).check()
    except TemporaryError as error:
        yield ConfigError.with_text("store.url" if config.store_url else "s3.region", str(error))
    except AccessDeniedError as error:
        key = "aws.access.key.id" if config.access_key_id else "s3.credentials.provider.class"
        yield ConfigError.with_text(key, f"{error}; check the credentials and that they permit access to the bucket")
    except ProxyError as error:
        yield ConfigError.with_text("s3.proxy.url", str(error))
    except ConnectError as error:
        yield ConfigError.with_text("s3.bucket.name", str(error))
    except ValueError as error:  # boto3 rejects an endpoint that is not a URL
        yield ConfigError.with_text("store.url" if config.store_url else "s3.bucket.name", str(error))
