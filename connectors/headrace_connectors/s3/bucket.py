"""One bucket of an S3-compatible store: lists and reads its objects, and classifies the errors of requests.

A request raises `TemporaryError` if the same request may succeed later, for example because the connection failed or
the store is overloaded (SlowDown). Errors about the bucket, the credentials or the request are fatal and raise
ConnectError. Error messages name the object, the bucket and the store.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from ipaddress import ip_address
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit, urlunsplit

import boto3
from botocore.config import Config as ClientConfig
from botocore.credentials import AssumeRoleCredentialFetcher, DeferredRefreshableCredentials
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    ProxyConnectionError,
)
from botocore.handlers import add_expect_header
from botocore.loaders import create_loader
from botocore.session import get_session
from urllib3.exceptions import HTTPError

from headrace.api.errors import ConnectError
from headrace_connectors.s3.connection import S3AccessConfig, S3ConnectionConfig, decode_customer_key

# Errors that a repeated request cannot change. Others, such as a lost connection or SlowDown, may be temporary.
_FATAL = frozenset(
    {
        *("AccessDenied", "403", "404", "NoSuchBucket", "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken"),
        *("InvalidRequest", "InvalidArgument", "InvalidBucketName", "KeyTooLongError", "PermanentRedirect"),
        *("AccountProblem", "AllAccessDisabled", "AuthorizationHeaderMalformed", "ExpiredToken", "400", "301"),
    }
)
READ_TIMEOUT_S = 60.0
"""How long a request waits for more data of the response before it fails with a temporary error."""
_loader = create_loader()
"""Caches the description of the S3 API, which takes long to parse, for all clients of the process."""
_DENIED = frozenset({"AccessDenied", "403", "InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken"})


class TemporaryError(Exception):
    """A request failed, but the same request may succeed later."""


class AccessDeniedError(ConnectError):
    """There are no credentials, the store rejects them, or they do not permit the request."""


class NotImplementedByStoreError(ConnectError):
    """The store does not support a request or one of its headers."""


class ProxyError(ConnectError):
    """The proxy cannot be reached."""


class UploadLostError(Exception):
    """The store does not accept the rest of an upload, so the file must be written again from its first record."""


class ObjectExistsError(Exception):
    """An object was not written, because an object with this key exists."""


class MissingObjectError(Exception):
    """An object was deleted after it was listed."""


class ListedObject(NamedTuple):
    """An object in a listing of the bucket."""

    key: str
    modified_ms: int


class Page(NamedTuple):
    """One page of a listing."""

    objects: Sequence[ListedObject]
    folders: Sequence[str]
    """Prefixes that end with the delimiter."""
    token: str | None
    """The token with which the listing continues after this page, or None for the last page."""
    server_ms: int
    """When the server sent the response, by the server's clock."""


class Bucket:
    """One bucket of an S3-compatible store. Its methods may be called from several threads."""

    def __init__(self, config: S3ConnectionConfig) -> None:
        self.connection = config
        self.name = config.bucket
        proxy = proxy_url(config)
        self._client: Any = create_session(config).client(
            "s3",
            region_name=config.region,
            endpoint_url=config.store_url or None,
            config=ClientConfig(
                retries={"total_max_attempts": config.part_retries + 1, "mode": "standard"},
                s3={"addressing_style": _addressing_style(config), "use_accelerate_endpoint": config.wan_mode},
                proxies={"https": proxy, "http": proxy} if proxy else None,
                connect_timeout=10,
                read_timeout=READ_TIMEOUT_S,
                max_pool_connections=16,
                # The signature (or TLS) protects the content. Some stores reject the additional checksums of boto3.
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )
        # Remove "Expect: 100-continue", because each upload to a store that ignores it would wait for a second.
        self._client.meta.events.unregister("before-call.s3", add_expect_header)
        self.customer_key = _customer_key(config)

    @property
    def address(self) -> str:
        """The bucket's address for error messages."""
        return f"s3://{self.name}" + (f" at {self.connection.store_url}" if self.connection.store_url else "")

    def check(self) -> None:
        """Raise ConnectError if the bucket does not exist or is not accessible.

        Raises TemporaryError if the store does not respond.
        """
        self.request("head_bucket", "access the bucket")

    def list_page(
        self, prefix: str, delimiter: str = "", start_after: str | None = None, token: str | None = None
    ) -> Page:
        """Return up to 1000 objects whose keys begin with `prefix`, in the order of their keys.

        If `delimiter` is set, keys that contain it after the prefix are combined into folders. The listing begins after
        the key `start_after`, or continues after the page that returned `token`.
        """
        arguments = {"Prefix": prefix, "Delimiter": delimiter, "StartAfter": start_after, "ContinuationToken": token}
        given = {name: value for name, value in arguments.items() if value}
        response = self.request("list_objects_v2", f"list {prefix}", **given)
        found = [
            ListedObject(item["Key"], int(item["LastModified"].timestamp() * 1000))
            for item in response.get("Contents", ())
        ]
        folders = [item["Prefix"] for item in response.get("CommonPrefixes", ())]
        following = response.get("NextContinuationToken") if response.get("IsTruncated") else None
        date = response["ResponseMetadata"]["HTTPHeaders"].get("date")
        server_s = parsedate_to_datetime(date).timestamp() if date else time.time()
        return Page(found, folders, following, int(server_s * 1000))

    def open(self, key: str) -> ObjectBody:
        """Begin to read an object. Raises MissingObjectError, ConnectError or TemporaryError."""
        response = self.request("get_object", f"read {key}", Key=key, **self.customer_key)
        return ObjectBody(response["Body"], f"Cannot read {key} in {self.address}")

    def metadata(self, key: str) -> dict[str, str]:
        """Return the user-defined metadata of an object. Raises MissingObjectError, ConnectError or TemporaryError."""
        response = self.request("get_object", f"read the metadata of {key}", Key=key, **self.customer_key)
        response["Body"].close()
        return dict(response["Metadata"])

    def request(self, name: str, purpose: str, **arguments: Any) -> Any:
        """Call the boto3 method `name`. Error messages begin with "Cannot" and `purpose`, such as "list topics/"."""
        with _translated(f"Cannot {purpose} in {self.address}"):
            return getattr(self._client, name)(Bucket=self.name, **arguments)


class ObjectBody:
    """The content of an object, read from the network."""

    def __init__(self, body: Any, failure: str) -> None:
        self._body = body
        self._failure = failure

    def read(self, size: int) -> bytes:
        """Return up to `size` bytes, or b"" at the end. Raises TemporaryError if the connection fails."""
        with _translated(self._failure):
            return bytes(self._body.read(size))

    def close(self) -> None:
        """Close the connection."""
        self._body.close()


_FATAL_CLIENT_ERRORS: dict[type[BotoCoreError], type[ConnectError]] = {
    NoCredentialsError: AccessDeniedError,
    PartialCredentialsError: AccessDeniedError,
    ProxyConnectionError: ProxyError,
    ParamValidationError: ConnectError,
}


@contextmanager
def _translated(failure: str) -> Iterator[None]:
    """Convert boto3's exceptions in the `with` block to those of this module. Messages begin with `failure`."""
    try:
        yield
    except ClientError as error:
        details = error.response.get("Error", {})
        code, message = str(details.get("Code")), str(details.get("Message"))
        text = f"{failure}: {code}: {message}"
        if code in ("NoSuchUpload", "ConditionalRequestConflict"):  # after a conflict, S3 requires a new upload
            raise UploadLostError(text) from error
        if code in ("PreconditionFailed", "412"):
            raise ObjectExistsError(text) from error
        if code == "NoSuchKey":
            raise MissingObjectError(text) from error
        if code in ("NotImplemented", "501"):
            raise NotImplementedByStoreError(text) from error
        if code in _DENIED:
            raise AccessDeniedError(text) from error
        if code in _FATAL:
            raise ConnectError(text) from error
        raise TemporaryError(text) from error
    except BotoCoreError as error:
        for class_, fatal in _FATAL_CLIENT_ERRORS.items():
            if isinstance(error, class_):
                raise fatal(f"{failure}: {error}") from error
        raise TemporaryError(f"{failure}: {error}") from error
    except (HTTPError, OSError) as error:
        raise TemporaryError(f"{failure}: {error}") from error


def load_api_description() -> None:
    """Load the description of the S3 API into the cache that all clients of this process and its children use."""
    session = get_session()
    session.register_component("data_loader", _loader)
    session.create_client("s3", region_name="us-east-1", aws_access_key_id="none", aws_secret_access_key="none")


def create_session(config: S3AccessConfig) -> boto3.session.Session:
    """Return a session with the configured credentials, or with those that boto3 finds."""
    role = config.assumed_role
    base = get_session()
    base.register_component("data_loader", _loader)
    if config.access_key_id and config.secret_access_key:
        base.set_credentials(config.access_key_id, config.secret_access_key.value)
    if role is None:
        return boto3.session.Session(botocore_session=base)
    options = {"RoleSessionName": role.get("sts.role.session.name", "headrace")}
    if role.get("sts.role.external.id"):
        options["ExternalId"] = role["sts.role.external.id"]

    def create_client(*arguments: Any, **options: Any) -> Any:
        options |= {"region_name": config.region, "endpoint_url": config.store_url or None}
        return base.create_client(*arguments, **options)

    fetcher = AssumeRoleCredentialFetcher(
        create_client, base.get_credentials(), role.get("sts.role.arn", ""), extra_args=options
    )
    session = get_session()
    session.register_component("data_loader", _loader)
    session._credentials = DeferredRefreshableCredentials(fetcher.fetch_credentials, "assume-role")
    return boto3.session.Session(botocore_session=session)


def _addressing_style(config: S3ConnectionConfig) -> str:
    """Return where requests contain the bucket's name: path, virtual (in the host name), or auto (boto3 decides)."""
    if config.wan_mode:
        return "auto"
    return "path" if uses_path_style(config) else "virtual"


def uses_path_style(config: S3AccessConfig) -> bool:
    """Whether requests contain the bucket's name in the path."""
    return config.path_style or _is_ip_address(config.store_url)


def _is_ip_address(url: str | None) -> bool:
    """Whether the host of a URL is an IP address, which cannot have a bucket's name before it."""
    try:
        ip_address(urlsplit(url or "").hostname or "")
    except ValueError:
        return False
    return True


def proxy_url(config: S3AccessConfig) -> str:
    """Return the URL of the proxy with its user and password, or "" if there is none."""
    if not config.proxy_url or not config.proxy_user:
        return config.proxy_url
    url = urlsplit(config.proxy_url if "//" in config.proxy_url else f"http://{config.proxy_url}")
    password = config.proxy_password.value if config.proxy_password else ""
    return urlunsplit(url._replace(netloc=f"{quote(config.proxy_user, '')}:{quote(password, '')}@{url.netloc}"))


def _customer_key(config: S3ConnectionConfig) -> dict[str, Any]:
    if config.customer_key is None or not config.customer_key.value:
        return {}
    return {"SSECustomerAlgorithm": "AES256", "SSECustomerKey": decode_customer_key(config.customer_key)}
