"""Tests of data directories: they are formatted once, and rejected if they belong to another cluster or node."""

from __future__ import annotations

import pytest

from headrace_broker.log.directory import LogDirectory
from headrace_broker.log.storage import MemoryStorage
from headrace_broker.protocol.uuid_text import decode_uuid, encode_uuid
from headrace_broker.server.data_dirs import (
    StartError,
    directory_id,
    format_directories,
    open_directories,
    random_uuid,
)


def opened(
    storage: MemoryStorage, *paths: str, node_id: int = 1, cluster_id: str | None = None
) -> tuple[str, list[LogDirectory]]:
    directories = [LogDirectory(storage, path) for path in paths]
    return open_directories(storage, directories, node_id, cluster_id), directories


def release(directories: list[LogDirectory]) -> None:
    for directory in directories:
        directory.release()


def test_empty_log_directories_are_formatted_with_one_cluster_id_and_different_directory_ids(
    caplog: pytest.LogCaptureFixture,
) -> None:
    storage = MemoryStorage()
    cluster_id, directories = opened(storage, "/a", "/b")
    assert len(decode_uuid(cluster_id)) == 16
    assert {directory.meta["cluster.id"] for directory in directories} == {cluster_id}
    assert len({directory_id(directory.meta) for directory in directories}) == 2
    release(directories)
    assert not caplog.text
    again, directories = opened(storage, "/a", "/b", "/new")
    assert again == cluster_id
    assert "/new is empty, formatting it. If it contained replicas, they are lost on this node" in caplog.text
    assert directories[2].meta["cluster.id"] == cluster_id


def test_node_of_a_cluster_with_several_nodes_does_not_generate_a_cluster_id() -> None:
    """A node that lost its metadata directory does not know its previous votes, and could vote twice in one epoch.

    Therefore, the node must not format the directory by itself.
    """
    storage = MemoryStorage()
    cluster_id, directories = opened(storage, "/data")
    release(directories)
    directories = [LogDirectory(storage, path) for path in ("/metadata", "/data")]
    with pytest.raises(StartError, match="/metadata is not formatted"):
        open_directories(storage, directories, 1, must_be_formatted="/metadata")
    assert not storage.exists("/metadata/meta.properties")
    assert open_directories(storage, directories, 1, cluster_id, must_be_formatted="/metadata") == cluster_id


def test_log_directory_is_formatted_with_the_given_cluster_id_and_later_rejects_another_cluster_id() -> None:
    storage = MemoryStorage()
    given = encode_uuid(random_uuid())
    cluster_id, directories = opened(storage, "/a", cluster_id=given)
    assert cluster_id == given
    release(directories)
    with pytest.raises(StartError, match=f"/a belongs to cluster {given}, not other"):
        opened(storage, "/a", cluster_id="other")


def test_no_log_directory_is_locked_or_formatted_if_one_log_directory_is_invalid() -> None:
    storage = MemoryStorage()
    release(opened(storage, "/a")[1])
    with pytest.raises(StartError, match=r"/a belongs to node 1, not 2: correct node\.id"):
        opened(storage, "/b", "/a", node_id=2)
    assert not storage.exists("/b/meta.properties")
    release(opened(storage, "/a")[1])


def test_log_directories_of_two_clusters_are_rejected() -> None:
    storage = MemoryStorage()
    release(opened(storage, "/a")[1])
    release(opened(storage, "/b")[1])
    with pytest.raises(StartError, match="/a, /b belong to different clusters"):
        opened(storage, "/a", "/b")


def test_error_for_a_log_directory_in_use_says_what_to_do() -> None:
    storage = MemoryStorage()
    opened(storage, "/a")
    with pytest.raises(StartError, match=r"/a is in use by another process.*configure another directory in log.dirs"):
        opened(storage, "/a")


def test_log_directory_with_other_files_is_not_formatted() -> None:
    storage = MemoryStorage()
    storage.makedirs("/home")
    storage.write("/home/thesis.tex", b"...")
    with pytest.raises(StartError, match=r"/home contains files \(thesis.tex, ...\) but no meta.properties"):
        opened(storage, "/home")
    assert not storage.exists("/home/meta.properties")


def test_error_for_invalid_meta_properties_says_what_to_do() -> None:
    storage = MemoryStorage()
    storage.makedirs("/data")
    storage.write("/data/meta.properties", b"")
    with pytest.raises(
        StartError, match=r"^/data/meta.properties: .* has no version: restore it from a copy, or write "
    ):
        open_directories(storage, [LogDirectory(storage, "/data")], 1)
    storage.write("/data/meta.properties", b"version=1\ncluster.id=C\nnode.id=1\n")
    assert open_directories(storage, [LogDirectory(storage, "/data")], 1) == "C"


def test_function_format_directories_returns_the_directories_that_it_has_formatted() -> None:
    storage = MemoryStorage()
    assert format_directories(storage, ["/a", "/b"], 1) == [("/a", True), ("/b", True)]
    assert format_directories(storage, ["/a", "/c"], 1) == [("/a", False), ("/c", True)]


def test_generated_id_does_not_begin_with_a_dash() -> None:
    assert not any(encode_uuid(random_uuid()).startswith("-") for _ in range(500))


def test_failed_start_keeps_the_clean_shutdown_marker() -> None:
    """Without the marker, the next successful start would treat the last shutdown as unclean and recover all logs."""
    storage = MemoryStorage()
    _, (directory,) = opened(storage, "/data")
    directory.close(clean=True, broker_epoch=7)
    for wrong in ({"node_id": 2}, {"cluster_id": encode_uuid(random_uuid())}):
        with pytest.raises(StartError):
            opened(storage, "/data", **wrong)  # type: ignore[arg-type]
    format_directories(storage, ["/data"], 1)
    _, (directory,) = opened(storage, "/data")
    assert (directory.was_closed_cleanly, directory.clean_broker_epoch) == (True, 7)
    directory.mark_in_use()
    assert not storage.exists("/data/.kafka_cleanshutdown")
    directory.undo_mark_in_use()
    directory.release()
    _, (directory,) = opened(storage, "/data")
    assert (directory.was_closed_cleanly, directory.clean_broker_epoch) == (True, 7)
    directory.mark_in_use()
    directory.release()
    _, (directory,) = opened(storage, "/data")
    assert not directory.was_closed_cleanly
    directory.mark_in_use()
    directory.undo_mark_in_use()
    directory.release()
    assert not opened(storage, "/data")[1][0].was_closed_cleanly
