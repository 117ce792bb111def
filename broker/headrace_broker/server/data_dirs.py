"""The data directories of a node.

Each directory is used by only one process at a time, and has a `meta.properties` (version 1) that identifies it.

In a cluster with one node, the node formats an empty directory when it starts. In a larger cluster, an operator must
format the directory (kafka-storage format) for two reasons. First, a generated cluster id would differ from the id of
the other nodes. Second, a voter with an empty disk does not know its last vote and may vote twice in an epoch.

The node rejects a directory that belongs to another cluster or to another node, or that another process uses. The
error text says how to correct the mistake.
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
    """The broker cannot start. The message is one line that says what is wrong and how to correct it."""


def random_uuid() -> bytes:
    """Return a new id. Its base64 form does not begin with a dash, because tools would parse that as an option."""
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
    must_be_formatted: str | None = None,
) -> str:
    """Lock every directory, format the empty ones, and return the cluster id.

    `must_be_formatted` is the metadata directory of a node in a cluster with several nodes. This directory must be
    formatted already. On an error, unlock all directories and raise StartError.
    """
    opened: list[LogDirectory] = []
    try:
        for directory in directories:
            directory.open()
            opened.append(directory)
        if cluster_id is None:
            _check_formatted(directories, must_be_formatted)
        return _identify(storage, directories, node_id, cluster_id)
    except (LogDirectoryError, OSError, StartError) as error:
        for directory in opened:
            directory.release()
        raise StartError(_error_text(error)) from None


def _check_formatted(directories: Sequence[LogDirectory], metadata_dir: str | None) -> None:
    if any(item.path == metadata_dir and not item.is_formatted for item in directories):
        raise StartError(
            f"{metadata_dir} is not formatted: run kafka-storage format -t ID -c FILE. If the cluster already "
            "exists, ID is the output of kafka-cluster cluster-id. For a new cluster, generate an ID with "
            "kafka-storage random-uuid, and use the same ID on all nodes"
        )


def _error_text(error: Exception) -> str:
    if isinstance(error, LogDirectoryError) and "in use" in str(error):
        return f"{error}: stop that broker, or configure another directory in log.dirs"
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
            "configure another directory in log.dirs, or empty this directory"
        )
    cluster_id = ours or wanted or encode_uuid(random_uuid())
    for directory in directories:
        _check_owner(storage, directory, node_id)
    for directory in directories:
        if not directory.is_formatted:
            if ours is not None:
                logger.warning(
                    "Log directory %s is empty, formatting it. If it contained replicas, they are lost on this node "
                    "and are fetched again from other brokers",
                    directory.path,
                )
            directory.format(cluster_id, node_id, encode_uuid(random_uuid()))
    return cluster_id


def _check_owner(storage: Storage, directory: LogDirectory, node_id: int) -> None:
    if directory.is_formatted:
        if directory.meta.get("node.id") != str(node_id):
            raise StartError(
                f"{directory.path} belongs to node {directory.meta.get('node.id')}, not {node_id}: "
                "correct node.id, or configure another directory in log.dirs"
            )
        return
    names = storage.listdir(directory.path)
    unknown = sorted(name for name in names if not name.startswith(".") and name != "lost+found")
    if unknown:
        raise StartError(
            f"{directory.path} contains files ({unknown[0]}, ...) but no {META_PROPERTIES_FILE}: "
            "configure an empty directory in log.dirs, or restore that file"
        )


def directory_id(meta: Mapping[str, str]) -> bytes:
    """Return the directory id in meta.properties, or zeros if the file has an older format without a directory id."""
    try:
        return decode_uuid(meta["directory.id"])
    except (KeyError, ValueError):
        return bytes(16)


def is_formatted(path: str) -> bool:
    """Return whether the directory has a meta.properties."""
    return os.path.exists(os.path.join(path, META_PROPERTIES_FILE))


def format_directories(
    storage: Storage, paths: Sequence[str], node_id: int, cluster_id: str | None = None
) -> list[tuple[str, bool]]:
    """Format the unformatted directories. Raises StartError.

    If `cluster_id` is None, use the cluster id of the formatted directories, or a new id if none is formatted. Return
    (path, whether this call formatted the directory) for each directory.
    """
    directories = [LogDirectory(storage, path) for path in paths]
    before = [storage.exists(f"{item.path}/{META_PROPERTIES_FILE}") for item in directories]
    open_directories(storage, directories, node_id, cluster_id)
    for item in directories:
        item.release()
    return [(item.path, not formatted) for item, formatted in zip(directories, before, strict=True)]
