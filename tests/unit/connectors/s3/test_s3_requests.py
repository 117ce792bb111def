"""Tests which host, headers and signature the requests of the S3 connectors have for the configured keys.

boto3 creates and signs the requests. The tests record them instead of sending them.
"""

from __future__ import annotations

import base64
import hashlib
from typing import Any
from urllib.parse import urlsplit

import pytest
from botocore.awsrequest import AWSResponse

from headrace_connectors.s3.sink_config import S3SinkConfig
from headrace_connectors.s3.spool import MemoryLimit, Spool, SpoolReader
from headrace_connectors.s3.uploads import SinkBucket

DATA = b"x" * 100
UPLOAD = b"<InitiateMultipartUploadResult><UploadId>id</UploadId></InitiateMultipartUploadResult>"


class RecordedBucket(SinkBucket):
    """A bucket that records requests instead of sending them. Every response has the status 200."""

    def __init__(self, **props: str) -> None:
        required = {"s3.bucket.name": "lake", "format.class": "JsonFormat", "flush.size": "9",
                    "aws.access.key.id": "key", "aws.secret.access.key": "secret"}  # fmt: skip
        super().__init__(S3SinkConfig.parse(required | {key.replace("__", "."): props[key] for key in props}))
        self.requests: list[Any] = []
        self._client.meta.events.register("before-send.s3", self._record)

    def _record(self, request: Any, **_: Any) -> AWSResponse:
        self.requests.append(request)
        response = AWSResponse(request.url, 200, {"ETag": "tag"}, None)
        response._content = UPLOAD if request.url.endswith("?uploads") else b""
        return response

    def put_file(self) -> None:
        """Upload an object with one request."""
        self.put("a.json", self._data())

    def put_in_parts(self) -> None:
        """Begin a multipart upload, and upload a part."""
        self.put_part("a.json", self.begin_upload("a.json"), 1, self._data())

    def _data(self) -> SpoolReader:
        spool = Spool(MemoryLimit(1 << 20))
        spool.append(DATA)
        return SpoolReader(spool, len(DATA))

    def header(self, name: str) -> list[str | None]:
        """Return the value of a header in each request, or None for a request without it."""
        found = [request.headers.get(name) for request in self.requests]
        return [value.decode() if isinstance(value, bytes) else value for value in found]


@pytest.mark.parametrize(
    ("props", "url"),
    [
        ({}, "https://s3.us-west-2.amazonaws.com/lake/a.json"),
        ({"s3__region": "eu-central-1"}, "https://s3.eu-central-1.amazonaws.com/lake/a.json"),
        ({"s3__path__style__access__enabled": "false"}, "https://lake.s3.us-west-2.amazonaws.com/a.json"),
        ({"s3__wan__mode": "true"}, "https://lake.s3-accelerate.amazonaws.com/a.json"),
        ({"store__url": "http://store:9000"}, "http://store:9000/lake/a.json"),
        (
            {"store__url": "http://store:9000", "s3__path__style__access__enabled": "false"},
            "http://lake.store:9000/a.json",
        ),
        (
            {
                "store__url": "http://127.0.0.1:9000",
                "s3__path__style__access__enabled": "false",
                "s3__bucket__name": "my.lake",
            },
            "http://127.0.0.1:9000/my.lake/a.json",
        ),
    ],
    ids=["defaults", "region", "virtual host", "accelerated", "store", "virtual host of the store", "IP address"],
)
def test_url_of_requests_depends_on_region_store_path_style_and_wan_mode(props: dict[str, str], url: str) -> None:
    bucket = RecordedBucket(**props)
    bucket.put_file()
    assert [request.url for request in bucket.requests] == [url]


def test_requests_are_signed_for_the_configured_region() -> None:
    bucket = RecordedBucket(s3__region="eu-central-1", store__url="http://store:9000")
    bucket.put_file()
    (signature,) = bucket.header("Authorization")
    assert "/eu-central-1/s3/aws4_request" in str(signature)


@pytest.mark.parametrize(
    ("props", "headers"),
    [
        ({"s3__acl__canned": "public-read"}, {"x-amz-acl": "public-read"}),
        ({"s3__ssea__name": "AES256"}, {"x-amz-server-side-encryption": "AES256"}),
        (
            {"s3__ssea__name": "aws:kms", "s3__sse__kms__key__id": "key-7"},
            {"x-amz-server-side-encryption": "aws:kms", "x-amz-server-side-encryption-aws-kms-key-id": "key-7"},
        ),
    ],
    ids=["acl", "encryption", "kms key"],
)
def test_whole_objects_and_multipart_uploads_are_created_with_the_configured_acl_and_encryption(
    props: dict[str, str], headers: dict[str, str]
) -> None:
    bucket, plain = RecordedBucket(**props), RecordedBucket()
    for each in (bucket, plain):
        each.put_file()
        each.begin_upload("a.json")
        assert [urlsplit(request.url).query for request in each.requests] == ["", "uploads"]
    for name, value in headers.items():
        assert bucket.header(name) == [value, value]
        assert plain.header(name) == [None, None]


@pytest.mark.parametrize("enabled", [True, False])
def test_requests_with_data_contain_its_md5_digest_only_if_send_digest_is_true(enabled: bool) -> None:
    bucket = RecordedBucket(s3__send__digest=str(enabled).lower())
    bucket.put_file()
    bucket.put_in_parts()
    digest = base64.b64encode(hashlib.md5(DATA).digest()).decode() if enabled else None
    assert bucket.header("Content-MD5") == [digest, None, digest]
    for request in (bucket.requests[0], bucket.requests[2]):
        assert request.body.read() == DATA
