"""The location of a table: a local directory or an S3 prefix. This module does no I/O."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(?://)?(.*)", re.DOTALL)
_S3_SCHEMES = ("s3", "s3a", "s3n")


class TableUriError(ValueError):
    """The URI has a scheme that tables do not support, or no bucket. The message says what is wrong."""


@dataclass(frozen=True, slots=True)
class TableUri:
    """A local directory (`bucket` is "" and `path` absolute), or the prefix `path` in an S3 bucket.

    `str` returns a local path, or an `s3://` URI.
    """

    path: str
    bucket: str = ""

    @classmethod
    def parse(cls, text: str) -> TableUri:
        """Parse a local path, or a URI with the scheme file, s3 or s3a. Raises TableUriError."""
        text = text.strip()
        match = _SCHEME.fullmatch(text)
        if match is None:
            return cls(str(Path(text).expanduser().absolute()))
        scheme, rest = match[1].lower(), match[2]
        if scheme == "file":
            return cls(str(Path("/" + rest.lstrip("/") if rest.startswith("/") else rest).expanduser().absolute()))
        if scheme not in _S3_SCHEMES:
            raise TableUriError(f"the scheme {match[1]}: is not supported; use a local path, file:, s3: or s3a:")
        bucket, _, prefix = rest.partition("/")
        if not bucket:
            raise TableUriError("the URI has no bucket; use s3://<bucket>/<prefix>")
        return cls(prefix.strip("/"), bucket)

    @property
    def is_s3(self) -> bool:
        return bool(self.bucket)

    @property
    def local(self) -> Path:
        """The local directory. Only for local tables."""
        assert not self.bucket
        return Path(self.path)

    def __truediv__(self, name: str) -> TableUri:
        return TableUri(f"{self.path}/{name}".lstrip("/") if self.bucket else str(Path(self.path) / name), self.bucket)

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.path}".rstrip("/") if self.bucket else self.path
