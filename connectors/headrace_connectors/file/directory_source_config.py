"""Configuration of the directory source."""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from headrace.api.config import Config, ConfigType, Importance, key
from headrace.api.errors import ConfigError
from headrace_connectors.file.csv_columns import parse_columns

_FILES, _FORMAT, _FINISHED = "Files", "Format", "Finished files"


def _check_encoding(name: str) -> None:
    try:
        is_ascii_compatible = '\n,"'.encode(codecs.lookup(name).name) == b'\n,"'
    except LookupError:
        raise ValueError("unknown encoding; use the name of a Python encoding, for example utf-8 or latin-1") from None
    if not is_ascii_compatible:
        raise ValueError("the encoding is not compatible with ASCII; convert the files, for example to utf-8")


def character(text: str) -> str:
    """Return the character that a configuration value means. `tab` means a tab character."""
    return "\t" if text.lower() == "tab" else text


def _check_character(text: str) -> None:
    if len(character(text)) != 1:
        raise ValueError("must be a single character, or the word tab")


def _check_columns(texts: list[str]) -> None:
    parse_columns(texts)


class DirectorySourceConfig(Config):
    """Configuration of DirectorySourceConnector and its tasks."""

    directory: str = key(
        "directory", doc="The directory with the files. With several workers, all of them must see the same files.",
        importance=Importance.HIGH, group=_FILES, non_empty=True,
    )  # fmt: skip
    topic: str = key("topic", doc="The topic to write to.", importance=Importance.HIGH, group=_FILES, non_empty=True)
    format: Literal["csv", "json", "lines", "parquet"] = key(
        "format", importance=Importance.HIGH, group=_FORMAT,
        doc="The format of the files: csv, json (a JSON document per line), lines (each line is a string) or parquet. "
        "Files of the first three formats whose names end with .gz are decompressed.",
    )  # fmt: skip
    recursive: bool = key(
        "recursive", default=False, group=_FILES,
        doc="Whether to read the files of subdirectories too. Symbolic links to directories are not followed.",
    )  # fmt: skip
    patterns: list[str] = key(
        "file.pattern", default=["*"], group=_FILES, doc="Patterns of the names of the files to read, as in a shell "
        "(*, ?, [abc]); a file that matches one of them is read.",
    )  # fmt: skip
    ignored_patterns: list[str] = key(
        "file.ignore.pattern", default=[".*", "*.tmp", "*.part"], group=_FILES,
        doc="Patterns of the names of files that are not read. A program that writes a file under such a name and "
        "renames it afterwards never shows the connector an incomplete file.",
    )  # fmt: skip
    order: Literal["name", "modified"] = key(
        "file.order", default="name", group=_FILES,
        doc="The order in which a task reads its files: by name (path), or by time of modification.",
    )  # fmt: skip
    settle_ms: int = key(
        "settle.time.ms", default=1000, type=ConfigType.LONG, at_least=0, group=_FILES,
        doc="A file is read only if it has not changed for this time, in ms.",
    )  # fmt: skip
    done_marker_suffix: str | None = key(
        "done.marker.suffix", default=None, group=_FILES, non_empty=True,
        doc="If set, a file is read only when a file with this suffix exists beside it: with .done, data.csv is read "
        "when data.csv.done exists. The marker is moved or deleted with the file.",
    )  # fmt: skip
    poll_interval_ms: int = key(
        "poll.interval.ms", default=1000, type=ConfigType.LONG, at_least=1, group=_FILES,
        doc="The shortest time between two searches for new files, in ms. After a search that takes long, the time is "
        "ten times its duration.",
    )  # fmt: skip
    batch_size: int = key(
        "batch.size", default=2000, at_least=1, importance=Importance.LOW, group=_FILES,
        doc="The largest number of records that a poll returns.",
    )  # fmt: skip
    file_name_header: str | None = key(
        "file.name.header", default=None, non_empty=True, group=_FILES,
        doc="If set, each record has a header of this name, with the path of its file below the directory.",
    )  # fmt: skip
    finished_action: Literal["keep", "move", "delete"] = key(
        "finished.action", default="keep", group=_FINISHED, importance=Importance.HIGH,
        doc="What happens to a file after the offset of its last record is committed: keep, move (to "
        "finished.directory) or delete.",
    )  # fmt: skip
    finished_directory: str | None = key(
        "finished.directory", default=None, non_empty=True, group=_FINISHED,
        doc="The directory to which finished files are moved. It is created if it is missing.",
    )  # fmt: skip
    error_directory: str | None = key(
        "error.directory", default=None, non_empty=True, group=_FINISHED, doc="With errors.tolerance=all, files with "
        "records that could not be read are moved to this directory, instead of what finished.action says.",
    )  # fmt: skip
    encoding: str = key(
        "encoding", default="utf-8", validator=_check_encoding, group=_FORMAT,
        doc="The character encoding of csv and lines. JSON is always UTF-8.",
    )  # fmt: skip
    record_max_bytes: int = key(
        "record.max.bytes", default=16 * 1024 * 1024, at_least=1, group=_FORMAT, importance=Importance.LOW,
        doc="The largest size of one line or CSV record, in bytes. A longer one is an invalid record.",
    )  # fmt: skip
    csv_header: bool = key(
        "csv.header", default=True, group=_FORMAT,
        doc="Whether the first line of a CSV file contains the names of the columns.",
    )  # fmt: skip
    csv_columns: list[str] = key(
        "csv.columns", default=[], validator=_check_columns, group=_FORMAT,
        doc="The columns as `name`, `name:type` or `name:type not null`; the types are string (the default), boolean, "
        "int8, int16, int32, int64, float32, float64, decimal(scale), date, time and timestamp. With a header, they "
        "are found by name, and other columns of the file are ignored. By default, all columns are strings with the "
        "names of the header, or else column1, column2, and so on.",
    )  # fmt: skip
    csv_delimiter: str = key(
        "csv.delimiter", default=",", validator=_check_character, group=_FORMAT,
        doc="The character between two fields, or tab.",
    )  # fmt: skip
    csv_quote: str = key(
        "csv.quote", default='"', validator=_check_character, group=_FORMAT,
        doc="The quote character; inside quotes, it is doubled.",
    )  # fmt: skip
    csv_null_value: str | None = key(
        "csv.null.value", default=None, group=_FORMAT,
        doc="The text that means null, for example \\N; if the value is empty, empty fields are null. By default, no "
        "field is null.",
    )  # fmt: skip

    @classmethod
    def errors_between(cls, values: Mapping[str, Any]) -> Iterable[ConfigError]:
        """Check that the directories differ, and that the delimiter and the quote character of CSV differ."""
        if values.get("finished.action") == "move" and not values.get("finished.directory"):
            yield ConfigError("finished.directory", None, "required if finished.action=move")
        directory = os.path.realpath(values.get("directory") or "/")
        for name in ("finished.directory", "error.directory"):
            if values.get(name) and os.path.realpath(values[name]) == directory:
                yield ConfigError(name, values[name], "must be another directory than directory")
        if values.get("csv.delimiter") is not None and values.get("csv.delimiter") == values.get("csv.quote"):
            yield ConfigError("csv.quote", values["csv.quote"], "must be another character than csv.delimiter")
