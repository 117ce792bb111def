"""The file systems that contain tables: local directories, and S3 through PyArrow, without jars.

A `FileStore` is picklable and has the credentials with it, because executors do not have the driver's configuration.
It connects when it is first used in a process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from io import FileIO, RawIOBase
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import fs

from headrace_connectors.lakehouse.s3_access import S3Access, arrow_arguments
from headrace_connectors.lakehouse.table_uri import TableUri

SMALL_FILE_BYTES = 5 << 20
"""A file in S3 up to this size is one request, which is sent when the file is closed."""
UPLOAD_BUFFER_BYTES = 10 << 20
"""The memory that PyArrow allocates for each open upload of a larger file."""


class StoredFile(NamedTuple):
    """A file in a location. `path` is relative to the location, and `modified_ms` is in ms since 1970."""

    path: str
    size: int
    modified_ms: int


@dataclass(frozen=True, slots=True)
class FileStore:
    """Reads and writes the files of tables. `access` is necessary for locations in S3.

    `accesses` has the locations for which a catalog has vended other credentials. A location is a local directory or a
    URI with the scheme file, s3 or s3a, and a path is relative to it. All methods raise OSError.
    """

    access: S3Access | None = None
    accesses: Mapping[str, S3Access] = field(default_factory=dict)

    def open_output(self, location: str, path: str) -> Any:
        """Return a PyArrow output stream to a new file. Creates the file's directory.

        Closing the stream syncs a local file to disk, so that a commit never mentions a file that a power failure
        removes. A file in S3 exists only after its stream was closed.
        """
        uri = TableUri.parse(location) / path
        if uri.is_s3:
            return pa.PythonFile(_UploadedFile(self._s3(location), _s3_path(uri)), mode="w")
        _make_directories(uri.local.parent)
        return pa.PythonFile(_SyncedFile(uri.local), mode="w")

    def open_input(self, location: str, path: str) -> Any:
        """Return a PyArrow input file."""
        filesystem, full_path = self._resolve(location, path)
        return filesystem.open_input_file(full_path)

    def exists(self, location: str, path: str) -> bool:
        """Whether the file exists."""
        return bool(self._info(location, path).type == fs.FileType.File)

    def size(self, location: str, path: str) -> int:
        """Return the size of an existing file in bytes."""
        info = self._info(location, path)
        if info.type != fs.FileType.File:
            raise FileNotFoundError(f"{TableUri.parse(location) / path} does not exist")
        return int(info.size)

    def delete(self, location: str, path: str) -> None:
        """Delete a file. Does nothing if it does not exist.

        If it was the last file of its directory in S3, PyArrow creates an empty object with the directory's name.
        """
        filesystem, full_path = self._resolve(location, path)
        try:
            filesystem.delete_file(full_path)
        except FileNotFoundError:
            return

    def list(self, location: str) -> Iterator[StoredFile]:
        """Yield all files below the location, or nothing if it does not exist."""
        filesystem, base = self._resolve(location, "")
        for info in filesystem.get_file_info(fs.FileSelector(base, allow_not_found=True, recursive=True)):
            if info.type == fs.FileType.File:
                yield StoredFile(
                    info.path[len(base) :].lstrip("/"), int(info.size), int(info.mtime_ns or 0) // 1_000_000
                )

    def directories(self, location: str) -> tuple[str, ...]:
        """Return the names of the directories in the location, or nothing if it does not exist."""
        filesystem, base = self._resolve(location, "")
        found = filesystem.get_file_info(fs.FileSelector(base, allow_not_found=True))
        return tuple(sorted(info.base_name for info in found if info.type == fs.FileType.Directory))

    def _info(self, location: str, path: str) -> fs.FileInfo:
        filesystem, full_path = self._resolve(location, path)
        return filesystem.get_file_info(full_path)

    def _resolve(self, location: str, path: str) -> tuple[fs.FileSystem, str]:
        uri = TableUri.parse(location)
        uri = uri / path if path else uri
        return (self._s3(location), _s3_path(uri)) if uri.is_s3 else (fs.LocalFileSystem(), uri.path)

    def _s3(self, location: str) -> fs.S3FileSystem:
        access = self.accesses.get(location, self.access)
        if access is None or not access.has_credentials:
            raise OSError("there are no S3 credentials for this location")
        return s3_file_system(access)


_file_systems: dict[S3Access, fs.S3FileSystem] = {}
"""The file systems of this process. An entry per access, because renewed credentials need a new file system."""
_FILE_SYSTEMS_MAX = 4


def s3_file_system(access: S3Access) -> fs.S3FileSystem:
    """Return the file system with these credentials. A process has one of them for all tables."""
    found = _file_systems.get(access)
    if found is None:
        while len(_file_systems) >= _FILE_SYSTEMS_MAX:
            del _file_systems[next(iter(_file_systems))]
        omit_additional_checksums()
        arguments = arrow_arguments(access)
        if access.ca_file and not os.path.exists(access.ca_file):  # an executor may have its certificates elsewhere
            del arguments["tls_ca_file_path"]
        found = _file_systems[access] = fs.S3FileSystem(**arguments)
    return found


def omit_additional_checksums() -> None:
    """Let PyArrow's S3 file systems of this process add no checksums to uploads, because some stores reject them.

    The signature protects the content. PyArrow has no other setting than the environment variables of AWS's SDK.
    """
    for name in ("AWS_REQUEST_CHECKSUM_CALCULATION", "AWS_RESPONSE_CHECKSUM_VALIDATION"):
        os.environ.setdefault(name, "when_required")


def _s3_path(uri: TableUri) -> str:
    return f"{uri.bucket}/{uri.path}".rstrip("/")


class _UploadedFile(RawIOBase):
    """A new file in S3. Its first bytes stay in memory, so that a small file needs no more memory than its size."""

    def __init__(self, filesystem: fs.S3FileSystem, path: str) -> None:
        self._filesystem = filesystem
        self._path = path
        self._start: list[bytes] = []
        self._size = 0
        self._stream: Any = None

    def writable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._size

    def write(self, data: Any) -> int:
        content = bytes(data)
        self._size += len(content)
        self._start.append(content)
        if self._stream is not None or self._size > SMALL_FILE_BYTES:
            self._upload()
        return len(content)

    def flush(self) -> None:
        """Wait until the uploads of complete parts have ended."""
        if self._stream is not None and not self.closed:
            self._stream.flush()

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._upload()
            self._stream.close()

    def _upload(self) -> None:
        if self._stream is None:
            self._stream = self._filesystem.open_output_stream(self._path)
        for content in self._start:
            self._stream.write(content)
        self._start.clear()


class _SyncedFile(FileIO):
    """A new file, which is synced to disk when it is closed. Its directory entry is synced too."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, "x")
        self._directory = path.parent

    def close(self) -> None:
        if not self.closed:
            try:
                os.fsync(self.fileno())
            finally:
                super().close()
            sync(self._directory)


def _make_directories(directory: Path) -> None:
    """Create a directory and its parents, and sync the entries of the created ones."""
    missing = []
    while not directory.is_dir():
        missing.append(directory)
        directory = directory.parent
    for created in reversed(missing):
        created.mkdir(exist_ok=True)
        sync(created.parent)


def sync(path: Path) -> None:
    """Sync a file's data or a directory's entries to disk, so that they survive a power failure."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
