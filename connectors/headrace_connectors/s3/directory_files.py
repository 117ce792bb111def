"""The files of one directory, and their upload."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from headrace_connectors.s3.files import Encoded
from headrace_connectors.s3.formats import FileFormat
from headrace_connectors.s3.stored_records import ObjectRange

if TYPE_CHECKING:
    from headrace_connectors.s3.uploads import ExistingObjectError, ObjectUpload


class File(NamedTuple):
    """A file that becomes one object of the bucket. It contains record values, record keys or record headers."""

    upload: ObjectUpload
    format: FileFormat


class DirectoryFiles:
    """The files of one directory: values, and keys and headers if configured."""

    def __init__(self, files: Sequence[File]) -> None:
        self.files = files
        self.is_uploaded = False
        self.existing: ExistingObjectError | None = None
        """The error of the upload if the object exists and must not be overwritten."""
        self._is_finished = False

    def append(self, records: Encoded) -> None:
        """Append the values, keys and headers of records to the files for values, keys and headers."""
        for file, (schema, items) in zip(self.files, records.sides, strict=True):
            file.format.append(schema, items)

    def has_full_part(self) -> bool:
        """Whether at least one part of a file is complete, and can be uploaded."""
        return any(file.upload.full_parts for file in self.files)

    def has_several_parts(self) -> bool:
        """Whether two or more parts of one file are complete."""
        return any(file.upload.full_parts > 1 for file in self.files)

    def upload_full_parts(self) -> None:
        """Upload the complete parts of the files. The files stay open."""
        for file in self.files:
            file.upload.upload_full_parts()

    def finish(self, content: ObjectRange | None = None) -> None:
        """Complete and upload the files. After an error, call `finish` again.

        `content` is the range of the records if existing objects are kept. Raises ExistingObjectError in this case.
        """
        if not self._is_finished:
            for file in self.files:
                file.format.finish()
            self._is_finished = True
        for file in reversed(self.files):  # values last: a reader that sees them can also read their keys and headers
            file.upload.finish(content)
        self.is_uploaded = True

    def discard(self) -> None:
        """Discard the files."""
        for file in self.files:
            file.format.discard()
            file.upload.discard()
