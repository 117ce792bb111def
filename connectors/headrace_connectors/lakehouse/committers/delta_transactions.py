"""Finds the transaction identifiers of all connectors in the newest checkpoint of a Delta log.

delta-rs returns a transaction identifier only if its name is known. The names of other connectors are not known.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Mapping

import pyarrow.fs as pa_fs
import pyarrow.parquet as pq
from deltalake.fs import DeltaStorageHandler

from headrace_connectors.lakehouse.offsets import TopicPartition

_PARTITION_APP_ID = re.compile(r"headrace/(.+)/([^/]+)/(\d+)", re.DOTALL)


def checkpoint_transactions(
    location: str, storage_options: Mapping[str, str]
) -> tuple[int | None, dict[str, dict[TopicPartition, int]]]:
    """Return the version of the newest checkpoint, and the next offset of each partition by connector.

    Return None and no offsets if the table has no checkpoint.
    """
    files = pa_fs.PyFileSystem(DeltaStorageHandler(location, dict(storage_options)))
    pointer = "_delta_log/_last_checkpoint"
    if files.get_file_info(pointer).type == pa_fs.FileType.NotFound:
        return None, {}
    with files.open_input_file(pointer) as stream:
        checkpoint = json.loads(stream.read())
    version = int(checkpoint["version"])
    parts = int(checkpoint.get("parts") or 1)
    names = [_file_name(version, part, parts) for part in range(1, parts + 1)]
    found: dict[str, dict[TopicPartition, int]] = defaultdict(dict)
    for name in names:
        for row in pq.read_table(name, filesystem=files, columns=["txn"])["txn"].to_pylist():
            match = _PARTITION_APP_ID.fullmatch(row["appId"]) if row and row["appId"] else None
            if match is not None:
                found[match[1]][match[2], int(match[3])] = int(row["version"])
    return version, dict(found)


def _file_name(version: int, part: int, parts: int) -> str:
    suffix = "" if parts == 1 else f".{part:010d}.{parts:010d}"
    return f"_delta_log/{version:020d}.checkpoint{suffix}.parquet"
