"""The data directories of a node: one process each, of one cluster, told apart by `meta.properties` (version 1).

An empty directory of a single node is formatted on the way.  One of several nodes is told its cluster (kafka-storage
format): an id that it made up would be another cluster's, and a voter whose disk is gone has forgotten its votes, which
is for an operator to know.  A directory of another cluster or node, or one that another process uses, is refused with a
line that says how to mend it.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Mapping, Sequence

from headrace_broker.log.checkpoints import META_PROPERTIES_FILE
from headrace_broker.log.directory import LogDirectory, LogDirectoryError
from headrace_broker.log.storage import Storage
from headrace_broker.protocol.uuid_text import decode_uuid, encode_uuid

logger = logging.getLogger(__name__)


class StartError(Exception):
    """The broker cannot start; one line that says what is wrong and how to mend it."""


def random_uuid() -> bytes:
    """A fresh id; its text never begins with a dash, which tools would take for an option."""
    while True:
        value = uuid.uuid4().bytes
        if not encode_uuid(value).startswith("-"):
            return value


def open_directories(
    storage: Storage,
    directories: Sequence[LogDirectory],
    node_id: int,
    cluster_id: str | None = None,
    *,
    joins_by: str | None = None,
) -> str:
    """Lock every directory, format those that are empty, and return the cluster they belong to.

    `joins_by`: the metadata directory of a node that joins others, and has to be formatted for their cluster.
    Raises StartError; then none stays locked.
    """
    opened: list[LogDirectory] = []
    try:
        for directory in directories:
            directory.open()
            opened.append(directory)
        if cluster_id is None:
            _check_joins(directories, joins_by)
        return _identify(storage, directories, node_id, cluster_id)
    except (LogDirectoryError, OSError, StartError) as error:
        for directory in opened:
            directory.release()
        raise StartError(_in_words(error)) from None


def _check_joins(directories: Sequence[LogDirectory], metadata_dir: str | None) -> None:
    if any(item.path == metadata_dir and not item.is_formatted for item in directories):
        raise StartError(
            f"{metadata_dir} is not formatted, and a node that joins others makes up no cluster id: kafka-storage "
            "format -t ID -c FILE, with the id that kafka-cluster cluster-id shows, or for a new cluster the same one "
            "of kafka-storage random-uuid on every node"
        )


def _in_words(error: Exception) -> str:
    if isinstance(error, LogDirectoryError) and "in use" in str(error):
        return f"{error}: stop that broker, or name another directory in log.dirs"
    if isinstance(error, OSError):
        return f"{error.filename or 'a data directory'} cannot be used: {error.strerror or error}"
    return str(error)


def _identify(storage: Storage, directories: Sequence[LogDirectory], node_id: int, wanted: str | None) -> str:
    known = sorted({item.meta["cluster.id"] for item in directories if "cluster.id" in item.meta})
    if len(known) > 1:
        paths = ", ".join(item.path for item in directories)
        raise StartError(f"{paths} belong to different clusters ({', '.join(known)}): correct log.dirs")
    ours = known[0] if known else None
    if ours is not None and wanted is not None and ours != wanted:
        raise StartError(
            f"{directories[0].path} belongs to cluster {ours}, not {wanted}: "
            "name another directory in log.dirs, or empty this one"
        )
    cluster_id = ours or wanted or encode_uuid(random_uuid())
    for directory in directories:
        _check_owner(storage, directory, node_id)
    for directory in directories:
        if not directory.is_formatted:
            if ours is not None:
                logger.warning(
                    "%s is empty and is formatted anew: the replicas it held are gone from this node, which gets them "
                    "from the others that have them",
                    directory.path,
                )
            directory.format(cluster_id, node_id, encode_uuid(random_uuid()))
    return cluster_id


def _check_owner(storage: Storage, directory: LogDirectory, node_id: int) -> None:
    if directory.is_formatted:
        if directory.meta.get("node.id") != str(node_id):
            raise StartError(
                f"{directory.path} belongs to node {directory.meta.get('node.id')}, not {node_id}: "
                "correct node.id, or name another directory in log.dirs"
            )
        return
    names = storage.listdir(directory.path)
    strangers = sorted(name for name in names if not name.startswith(".") and name != "lost+found")
    if strangers:
        raise StartError(
            f"{directory.path} holds files ({strangers[0]}, ...) but no {META_PROPERTIES_FILE}: "
            "name an empty directory in log.dirs, or put that file back"
        )


def directory_id(meta: Mapping[str, str]) -> bytes:
    """The directory's id from its meta.properties; zeros when an old format has none."""
    try:
        return decode_uuid(meta["directory.id"])
    except (KeyError, ValueError):
        return bytes(16)


def is_formatted(path: str) -> bool:
    """Whether the directory on this disk has its meta.properties."""
    return os.path.exists(os.path.join(path, META_PROPERTIES_FILE))


def format_directories(
    storage: Storage, paths: Sequence[str], node_id: int, cluster_id: str | None = None
) -> list[tuple[str, bool]]:
    """Format what is not formatted yet: (path, whether it was formatted now); raises StartError."""
    directories = [LogDirectory(storage, path) for path in paths]
    before = [storage.exists(f"{item.path}/{META_PROPERTIES_FILE}") for item in directories]
    open_directories(storage, directories, node_id, cluster_id)
    for item in directories:
        item.release()
    return [(item.path, not formatted) for item, formatted in zip(directories, before, strict=True)]
