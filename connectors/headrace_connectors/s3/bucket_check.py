"""Validates that a configured bucket can be accessed, and reports an error for the configuration key that causes it."""

from __future__ import annotations

from headrace.api.config_def import ConfigValue
from headrace.api.errors import ConnectError
from headrace_connectors.s3.connection import S3ConnectionConfig


def check_bucket(config: S3ConnectionConfig, values: dict[str, ConfigValue]) -> None:
    """Add an error to `values`, a validation result, if the bucket does not exist or cannot be accessed."""
    from headrace_connectors.s3.bucket import AccessDeniedError, Bucket, ProxyError, TemporaryError

    if config.assumed_role is not None and not config.assumed_role.get("sts.role.arn"):
        message = "s3.credentials.provider.sts.role.arn must be set for AwsAssumeRoleCredentialsProvider"
        values["s3.credentials.provider.class"].errors.append(message)
        return
    try:
        Bucket(config).check()
    except TemporaryError as error:
        values["store.url" if config.store_url else "s3.region"].errors.append(str(error))
    except AccessDeniedError as error:
        key = "aws.access.key.id" if config.access_key_id else "s3.credentials.provider.class"
        values[key].errors.append(f"{error}; check the credentials and that they permit access to the bucket")
    except ProxyError as error:
        values["s3.proxy.url"].errors.append(str(error))
    except ConnectError as error:
        values["s3.bucket.name"].errors.append(str(error))
    except ValueError as error:  # boto3 rejects an endpoint that is not a URL
        values["store.url" if config.store_url else "s3.bucket.name"].errors.append(str(error))
