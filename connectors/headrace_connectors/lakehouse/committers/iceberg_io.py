"""The access of pyiceberg to the files of tables."""

from __future__ import annotations

from pyarrow.fs import FileSystem
from pyiceberg.io.pyarrow import PyArrowFileIO

from headrace_connectors.lakehouse.files.stores import s3_file_system
from headrace_connectors.lakehouse.s3_access import CA_FILE_PROPERTY, access_of_properties


class TableFileIO(PyArrowFileIO):
    """pyiceberg's file systems of PyArrow. If S3 has a private certificate authority, it is passed to PyArrow."""

    def _initialize_s3_fs(self, netloc: str | None) -> FileSystem:
        access = access_of_properties(self.properties) if self.properties.get(CA_FILE_PROPERTY) else None
        return super()._initialize_s3_fs(netloc) if access is None else s3_file_system(access)


TABLE_FILE_IO = f"{TableFileIO.__module__}.{TableFileIO.__qualname__}"
