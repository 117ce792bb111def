"""Uploads files to a bucket: small files with one request, large files in parts while they are still open.

With enable.conditional.writes, an upload does not overwrite an existing object. It reads the object's metadata instead,
so that the task can write only the records that the object does not contain.
"""

from __future__ import annotations

import base64
import hashlib
import logging
from collections.abc import Mapping
from typing import Any

from headrace.api.errors import ConnectError
from headrace_connectors.s3.bucket import (
    AccessDeniedError,
    Bucket,
    MissingObjectError,
    NotImplementedByStoreError,
    ObjectExistsError,
    TemporaryError,
    UploadLostError,
)
from headrace_connectors.s3.sink_config import S3SinkConfig
from headrace_connectors.s3.spool import Spool, SpoolReader
from headrace_connectors.s3.stored_records import ObjectRange

logger = logging.getLogger(__name__)

_DIGEST_BLOCK_BYTES = 1 << 20
_NO_METADATA: Mapping[str, str] = {}


class SinkBucket(Bucket):
    """A bucket to which objects can be written. Its methods may be called from several threads."""

    def __init__(self, config: S3SinkConfig) -> None:
        super().__init__(config)
        self._config = config
        self._attributes = _object_attributes(config, self.customer_key)
        self._conditions = {"IfNoneMatch": "*"} if config.keeps_existing_objects else {}

    def put(self, key: str, data: SpoolReader, metadata: Mapping[str, str] = _NO_METADATA) -> None:
        """Upload a whole object."""
        arguments = self._digest(data) | self._attributes | self._conditions | _metadata_argument(metadata)
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

    def begin_upload(self, key: str, metadata: Mapping[str, str] = _NO_METADATA) -> str:
        """Begin a multipart upload, and return its id."""
        arguments = self._attributes | _metadata_argument(metadata)
        response = self.request("create_multipart_upload", f"write {key}", Key=key, **arguments)
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

    def read_range(self, key: str, first_offset: int) -> ObjectRange:
        """Return which records an existing object contains.

        Only the first record is known if the metadata is missing or may not be read, or if the clock determines the
        directories, because the same records may be in other directories when they are read again.
        """
        if self._config.directories_depend_on_clock:
            return ObjectRange(key, first_offset, first_offset)
        try:
            return ObjectRange.from_metadata(key, first_offset, self.metadata(key))
        except AccessDeniedError as error:
            logger.warning("%s; the records after the object's first record are written again", error)
            return ObjectRange(key, first_offset, first_offset)
        except MissingObjectError as error:
            raise UploadLostError(f"{error}; the object was deleted in the meantime") from error

    def _digest(self, data: SpoolReader) -> dict[str, str]:
        if not self._config.send_digest:
            return {}
        digest = hashlib.md5(usedforsecurity=False)
        while block := data.read(_DIGEST_BLOCK_BYTES):
            digest.update(block)
        data.seek(0)
        return {"ContentMD5": base64.b64encode(digest.digest()).decode()}


class ExistingObjectError(ObjectExistsError):
    """An object was not written, because an object with this key exists. `content` is the range of its records."""

    def __init__(self, bucket: Bucket, content: ObjectRange) -> None:
        records = f"the records of its directory from offset {content.first_offset} to {content.last_offset}"
        super().__init__(f"{content.key} exists in {bucket.address} and contains {records}")
        self.content = content


def _metadata_argument(metadata: Mapping[str, str]) -> dict[str, Any]:
    return {"Metadata": dict(metadata)} if metadata else {}


def _object_attributes(config: S3SinkConfig, customer_key: Mapping[str, Any]) -> dict[str, Any]:
    encryption = {"ServerSideEncryption": config.storage_encryption, "SSEKMSKeyId": config.kms_key_id}
    attributes = {"ACL": config.acl, **(customer_key or encryption)}
    return {name: value for name, value in attributes.items() if value}


class ObjectUpload:
    """The upload of one object from a spool. A failed step can be repeated."""

    def __init__(
        self, bucket: SinkBucket, key: str, spool: Spool, part_size: int, *, uploads_parts_early: bool = True
    ) -> None:
        """Create the upload.

        With `uploads_parts_early`, complete parts are uploaded while the file is open. Otherwise, the upload begins
        when the file is complete, so that the object's metadata is known.
        """
        self.key = key
        self.spool = spool
        self._bucket = bucket
        self._part_size = part_size
        self._uploads_parts_early = uploads_parts_early
        self._metadata = _NO_METADATA
        self._id: str | None = None
        self._tags: list[str] = []
        self._is_done = False

    @property
    def full_parts(self) -> int:
        """The number of complete parts that can be uploaded while the file is open."""
        return self.spool.size // self._part_size if self._uploads_parts_early else 0

    def upload_full_parts(self) -> None:
        """Upload the parts that are complete. The rest of the file is uploaded later."""
        while self.spool.size >= self._part_size:
            self._upload_part(self._part_size)

    def finish(self, content: ObjectRange | None = None) -> None:
        """Upload the rest of the file, so that the object appears. After an error, call `finish` again.

        `content` is the range of the records if existing objects are kept. It becomes the object's metadata. In this
        case, raises ExistingObjectError if the object exists.
        """
        if self._is_done:
            return
        self._metadata = _NO_METADATA if content is None else content.to_metadata()
        try:
            self._finish()
        except ObjectExistsError as error:
            if content is None:
                raise
            existing = self._bucket.read_range(self.key, content.first_offset)
            raise ExistingObjectError(self._bucket, existing) from error
        except NotImplementedByStoreError as error:
            if content is None:
                raise
            raise ConnectError(
                f"{error}. If the store does not support the header If-None-Match, set enable.conditional.writes=false"
            ) from error
        self._is_done = True
        self.spool.close()

    def _finish(self) -> None:
        self.upload_full_parts()
        if self._id is None:
            self._bucket.put(self.key, SpoolReader(self.spool, self.spool.size), self._metadata)
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
            self._id = self._bucket.begin_upload(self.key, self._metadata)
        part = SpoolReader(self.spool, size)
        self._tags.append(self._bucket.put_part(self.key, self._id, len(self._tags) + 1, part))
        self.spool.remove(size)
