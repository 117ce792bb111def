"""Uploads files to a bucket: small files with one request, large files in parts while they are still open.

With enable.conditional.writes, an upload does not overwrite an existing object. It reads the object's records instead,
so that the task can write only the records that the object does not contain.
"""

from __future__ import annotations

import base64
import hashlib
import logging
import sys
from typing import Any

from headrace.api.errors import ConnectError, DataError
from headrace_connectors.s3.bucket import (
    AccessDeniedError,
    Bucket,
    MissingObjectError,
    ObjectExistsError,
    TemporaryError,
    UploadLostError,
)
from headrace_connectors.s3.config import S3SinkConfig, format_name
from headrace_connectors.s3.existing_objects import ExistingRecords, read_first_value, read_lines, read_rows
from headrace_connectors.s3.spool import Spool, SpoolReader

logger = logging.getLogger(__name__)

_DIGEST_BLOCK_BYTES = 1 << 20


class SinkBucket(Bucket):
    """A bucket to which objects can be written. Its methods may be called from several threads."""

    def __init__(self, config: S3SinkConfig) -> None:
        super().__init__(config)
        self._config = config
        self._attributes = _object_attributes(config) | self.customer_key
        self._conditions = {"IfNoneMatch": "*"} if config.keeps_existing_objects else {}

    def put(self, key: str, data: SpoolReader) -> None:
        """Upload a whole object."""
        arguments = self._digest(data) | self._attributes | self._conditions
        self.request("put_object", f"write {key}", Key=key, Body=data, **arguments)

    def tag(self, key: str, tags: dict[str, str]) -> None:
        """Set the tags of an object. With s3.object.behavior.on.tagging.error=ignore, an error is only logged."""
        pairs = [{"Key": name, "Value": value} for name, value in tags.items()]
        try:
            self.request("put_object_tagging", f"tag {key}", Key=key, Tagging={"TagSet": pairs})
        except (ConnectError, TemporaryError) as error:
            if self._config.on_tagging_error.lower() == "fail":
                raise
            logger.warning("%s; ignoring the error, because s3.object.behavior.on.tagging.error=ignore", error)

    def begin_upload(self, key: str) -> str:
        """Begin a multipart upload, and return its id."""
        response = self.request("create_multipart_upload", f"write {key}", Key=key, **self._attributes)
        return str(response["UploadId"])

    def put_part(self, key: str, upload_id: str, number: int, data: SpoolReader) -> str:
        """Upload a part, and return its ETag."""
        part: dict[str, Any] = {"Key": key, "UploadId": upload_id, "PartNumber": number, "Body": data}
        part |= self._digest(data) | self.customer_key
        return str(self.request("upload_part", f"write part {number} of {key}", **part)["ETag"])

    def complete_upload(self, key: str, upload_id: str, tags: list[str]) -> None:
        """Complete a multipart upload, so that the object appears in the bucket."""
        parts = [{"PartNumber": number, "ETag": tag} for number, tag in enumerate(tags, 1)]
        upload = {"Key": key, "UploadId": upload_id, "MultipartUpload": {"Parts": parts}}
        self.request("complete_multipart_upload", f"complete {key}", **upload, **self._conditions)

    def abort_upload(self, key: str, upload_id: str) -> None:
        """Discard the parts of an upload. An error is only logged: a lifecycle rule can remove the parts later."""
        try:
            self.request("abort_multipart_upload", f"discard the parts of {key}", Key=key, UploadId=upload_id)
        except (ConnectError, TemporaryError, UploadLostError) as error:
            logger.warning("%s", error)

    def read_existing(self, key: str) -> ExistingRecords:
        """Read the records of an existing object.

        Only the first record is known if values can contain the separator (ByteArrayFormat), if the clock determines
        the directories, because the same records may be in other directories when they are read again, or if records
        may have been projected to the schema of the object.
        """
        config = self._config
        name = format_name(config.format_class)
        is_projected = config.schema_compatibility.upper() != "NONE"
        limit = 1 if config.directories_depend_on_clock or is_projected else sys.maxsize
        try:
            if name == "bytearray":
                return read_first_value(self.open(key), key)
            read = read_rows if name == "parquet" else read_lines
            return read(self.open(key), key, limit)
        except AccessDeniedError as error:
            logger.warning("%s; the records after the object's first record are written again", error)
            return ExistingRecords(key, 1)
        except MissingObjectError as error:
            raise UploadLostError(f"{error}; the object was deleted in the meantime") from error
        except DataError as error:
            raise ConnectError(
                f"The object {key} of {self.address} exists, but cannot be read: {error}. Delete the object, or set "
                "enable.conditional.writes=false to overwrite it"
            ) from error

    def _digest(self, data: SpoolReader) -> dict[str, str]:
        if not self._config.send_digest:
            return {}
        digest = hashlib.md5(usedforsecurity=False)
        while block := data.read(_DIGEST_BLOCK_BYTES):
            digest.update(block)
        data.seek(0)
        return {"ContentMD5": base64.b64encode(digest.digest()).decode()}


class ExistingObjectError(ObjectExistsError):
    """An object was not written, because an object with this key exists and contains `records`."""

    def __init__(self, bucket: Bucket, records: ExistingRecords) -> None:
        super().__init__(
            f"{records.key} exists in {bucket.address} and contains at least the first {records.count} records"
        )
        self.records = records


def _object_attributes(config: S3SinkConfig) -> dict[str, Any]:
    attributes = {
        "ACL": config.acl,
        "ServerSideEncryption": config.storage_encryption,
        "SSEKMSKeyId": config.kms_key_id,
    }
    return {name: value for name, value in attributes.items() if value}


class ObjectUpload:
    """The upload of one object from a spool. A failed step can be repeated."""

    def __init__(self, bucket: SinkBucket, key: str, spool: Spool, part_size: int) -> None:
        self.key = key
        self.spool = spool
        self._bucket = bucket
        self._part_size = part_size
        self._id: str | None = None
        self._tags: list[str] = []
        self._is_done = False

    @property
    def full_parts(self) -> int:
        """The number of complete parts that are not uploaded."""
        return self.spool.size // self._part_size

    def upload_full_parts(self) -> None:
        """Upload the parts that are complete. The rest of the file is uploaded later."""
        while self.spool.size >= self._part_size:
            self._upload_part(self._part_size)

    def finish(self) -> None:
        """Upload the rest of the file, so that the object appears. After an error, call `finish` again.

        Raises ExistingObjectError if the object exists and must not be overwritten.
        """
        if self._is_done:
            return
        try:
            self._finish()
        except ObjectExistsError as error:
            raise ExistingObjectError(self._bucket, self._bucket.read_existing(self.key)) from error
        self._is_done = True
        self.spool.close()

    def _finish(self) -> None:
        self.upload_full_parts()
        if self._id is None:
            self._bucket.put(self.key, SpoolReader(self.spool, self.spool.size))
        else:
            if self.spool.size:
                self._upload_part(self.spool.size)
            self._bucket.complete_upload(self.key, self._id, self._tags)

    def discard(self) -> None:
        """Discard the data, and the parts that were uploaded."""
        if self._id is not None and not self._is_done:
            self._bucket.abort_upload(self.key, self._id)
        self.spool.close()

    def _upload_part(self, size: int) -> None:
        if self._id is None:
            self._id = self._bucket.begin_upload(self.key)
        part = SpoolReader(self.spool, size)
        self._tags.append(self._bucket.put_part(self.key, self._id, len(self._tags) + 1, part))
        self.spool.remove(size)
