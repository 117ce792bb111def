"""The id of the local directory of a connector's tables, with which a task detects that it runs on another machine.

If a transform may change topics, the position of a task is the offset that its group has committed. On a machine
without the tables, the task would continue there with new tables. So the group's offsets are committed with the id of
the directory, and a task fails if its directory has another one.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from pathlib import Path

from headrace.api.errors import ConnectError
from headrace_connectors.lakehouse.offsets import TopicPartition

_PREFIX = "headrace.location="
_FILE = Path("_headrace") / "location"


def check_location_id(
    directory: Path, group: str, committed: Mapping[TopicPartition, int], metadata: Mapping[TopicPartition, str]
) -> str:
    """Return the metadata for the group's offsets: the id of `directory`, which gets one if it has none.

    Offsets without an id are accepted: those of earlier versions, and those that were set over REST. Raises
    ConnectError if an offset above 0 was committed with the id of another directory.
    """
    id_ = _read(directory)
    for key, text in sorted(metadata.items()):
        if text.startswith(_PREFIX) and text != id_ and committed.get(key, 0) > 0:
            raise ConnectError(
                f"the tables of the connector are missing in {directory}, but group {group} has committed offset"
                f" {committed[key]} of topic {key[0]}, partition {key[1]}, for tables in another directory; move the"
                f" directory here with its file {_FILE}, use a path that all workers share, or reset the connector's"
                " offsets to load the topics again"
            )
    return id_ or _create(directory)


def _read(directory: Path) -> str | None:
    try:
        return _PREFIX + (directory / _FILE).read_text(encoding="utf-8")
    except FileNotFoundError:
        return None


def _create(directory: Path) -> str:
    """Write the file with a new id, unless another connector has written it meanwhile. Return the id."""
    path, id_ = directory / _FILE, uuid.uuid4().hex
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f"{path.name}.{id_}")
    temporary.write_text(id_, encoding="utf-8")
    try:
        os.link(temporary, path)  # unlike a rename, it replaces no file
    except FileExistsError:
        pass
    finally:
        temporary.unlink()
    return _PREFIX + path.read_text(encoding="utf-8")
