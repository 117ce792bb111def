"""Runs an S3-compatible server for tests (moto), with the bucket `lake`."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import boto3
from botocore.exceptions import BotoCoreError

from support.certificates import Certificates
from support.ports import free_port

BUCKET = "lake"
_START_S = 60.0


@dataclass(frozen=True, slots=True)
class S3Server:
    """A running S3-compatible server."""

    url: str
    access_key: str = "key"
    secret: str = "secret"
    ca_file: str | None = None
    """The file with the certificate authority of a server with TLS."""

    def client(self) -> Any:
        """Return a boto3 client of the server."""
        return boto3.client("s3", endpoint_url=self.url, region_name="us-east-1",
                            aws_access_key_id=self.access_key, aws_secret_access_key=self.secret,
                            verify=self.ca_file)  # fmt: skip

    def props(self) -> dict[str, str]:
        """Return the configuration of a sink that writes to the bucket."""
        return {
            "s3.bucket.name": BUCKET,
            "s3.region": "us-east-1",
            "store.url": self.url,
            "aws.access.key.id": self.access_key,
            "aws.secret.access.key": self.secret,
            "storage.class": "io.confluent.connect.s3.storage.S3Storage",
            "retry.backoff.ms": "100",
        }

    def objects(self) -> dict[str, bytes]:
        """Return the contents of all objects by key."""
        client = self.client()
        pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
        keys = [item["Key"] for page in pages for item in page.get("Contents", ())]
        return {key: client.get_object(Bucket=BUCKET, Key=key)["Body"].read() for key in keys}

    def download(self, prefix: str, directory: Path) -> None:
        """Write the objects whose keys start with `prefix` to files with the names of the keys."""
        client = self.client()
        for page in client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=prefix):
            for item in page.get("Contents", ()):
                file = directory / item["Key"]
                file.parent.mkdir(parents=True, exist_ok=True)
                client.download_file(BUCKET, item["Key"], str(file))

    def clear(self) -> None:
        """Remove all objects and uploads, and create the bucket if it is missing."""
        client = self.client()
        if BUCKET not in [bucket["Name"] for bucket in client.list_buckets()["Buckets"]]:
            client.create_bucket(Bucket=BUCKET)
        for key in self.objects():
            client.delete_object(Bucket=BUCKET, Key=key)
        for upload in client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", ()):
            client.abort_multipart_upload(Bucket=BUCKET, Key=upload["Key"], UploadId=upload["UploadId"])


@contextmanager
def running(port: int | None = None, certificates: Certificates | None = None) -> Iterator[S3Server]:
    """Run a server on `port`, or on a free port if `port` is None. Stop the server at the end.

    With `certificates`, the server has TLS.
    """
    port = port or free_port()
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    if certificates is not None:
        command += ["-s", "-c", str(certificates.server), "-k", str(certificates.server)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    server = S3Server(f"http://127.0.0.1:{port}")
    if certificates is not None:
        server = S3Server(f"https://127.0.0.1:{port}", ca_file=str(certificates.authority))
    yield from serve(process, server)


def serve(process: subprocess.Popen[bytes], server: S3Server) -> Iterator[S3Server]:
    """Wait until the bucket exists on the server that `process` runs. Yield the server, and then end the process."""
    try:
        deadline = time.monotonic() + _START_S
        while True:
            try:
                if BUCKET not in [bucket["Name"] for bucket in server.client().list_buckets()["Buckets"]]:
                    server.client().create_bucket(Bucket=BUCKET)
                break
            except BotoCoreError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
        yield server
    finally:
        process.kill()
        process.wait()
