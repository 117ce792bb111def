"""Data directories: formatted once, never taken over from another cluster or node."""

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


def test_empty_directories_are_formatted_for_one_cluster_each_with_its_own_id(
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
    assert "/new is empty and is formatted anew: the replicas it held are gone from this node" in caplog.text
    assert directories[2].meta["cluster.id"] == cluster_id


def test_a_node_that_joins_others_makes_up_no_cluster() -> None:
    """One that has lost its metadata directory neither: it has forgotten how it voted."""
    storage = MemoryStorage()
    cluster_id, directories = opened(storage, "/data")
    release(directories)
    directories = [LogDirectory(storage, path) for path in ("/metadata", "/data")]
    with pytest.raises(StartError, match="/metadata is not formatted"):
        open_directories(storage, directories, 1, joins_by="/metadata")
    assert not storage.exists("/metadata/meta.properties")
    assert open_directories(storage, directories, 1, cluster_id, joins_by="/metadata") == cluster_id


def test_a_wanted_cluster_id_is_used_and_then_insisted_upon() -> None:
    storage = MemoryStorage()
    wanted = encode_uuid(random_uuid())
    cluster_id, directories = opened(storage, "/a", cluster_id=wanted)
    assert cluster_id == wanted
    release(directories)
    with pytest.raises(StartError, match=f"/a belongs to cluster {wanted}, not other"):
        opened(storage, "/a", cluster_id="other")


def test_a_refusal_leaves_nothing_locked_or_formatted() -> None:
    storage = MemoryStorage()
    release(opened(storage, "/a")[1])
    with pytest.raises(StartError, match=r"/a belongs to node 1, not 2: correct node\.id"):
        opened(storage, "/b", "/a", node_id=2)
    assert not storage.exists("/b/meta.properties")
    release(opened(storage, "/a")[1])


def test_directories_of_two_clusters_are_refused_together() -> None:
    storage = MemoryStorage()
    release(opened(storage, "/a")[1])
    release(opened(storage, "/b")[1])
    with pytest.raises(StartError, match="/a, /b belong to different clusters"):
        opened(storage, "/a", "/b")


def test_a_directory_in_use_is_refused_with_a_way_out() -> None:
    storage = MemoryStorage()
    opened(storage, "/a")
    with pytest.raises(StartError, match=r"/a is in use by another process.*name another directory in log.dirs"):
        opened(storage, "/a")


def test_a_directory_with_other_files_is_not_formatted() -> None:
    storage = MemoryStorage()
    storage.makedirs("/home")
    storage.write("/home/thesis.tex", b"...")
    with pytest.raises(StartError, match=r"/home holds files \(thesis.tex, ...\) but no meta.properties"):
        opened(storage, "/home")
    assert not storage.exists("/home/meta.properties")


def test_properties_that_cannot_be_read_are_named_and_how_to_mend_them() -> None:
    storage = MemoryStorage()
    storage.makedirs("/data")
    storage.write("/data/meta.properties", b"")
    with pytest.raises(StartError, match=r"^/data/meta.properties: .* lacks version: put back a copy of it, or write "):
        open_directories(storage, [LogDirectory(storage, "/data")], 1)
    storage.write("/data/meta.properties", b"version=1\ncluster.id=C\nnode.id=1\n")
    assert open_directories(storage, [LogDirectory(storage, "/data")], 1) == "C"


def test_formatting_says_what_was_done() -> None:
    storage = MemoryStorage()
    assert format_directories(storage, ["/a", "/b"], 1) == [("/a", True), ("/b", True)]
    assert format_directories(storage, ["/a", "/c"], 1) == [("/a", False), ("/c", True)]


def test_no_fresh_id_looks_like_an_option() -> None:
    assert not any(encode_uuid(random_uuid()).startswith("-") for _ in range(500))


def test_who_may_not_start_on_a_directory_leaves_it_closed_cleanly() -> None:
    """Else its own node would have to check it all, and count as one that may have lost something."""
    storage = MemoryStorage()
    _, (directory,) = opened(storage, "/data")
    directory.close(clean=True, broker_epoch=7)
    for refused in ({"node_id": 2}, {"cluster_id": encode_uuid(random_uuid())}):
        with pytest.raises(StartError):
            opened(storage, "/data", **refused)  # type: ignore[arg-type]
    format_directories(storage, ["/data"], 1)
    _, (directory,) = opened(storage, "/data")
    assert (directory.was_closed_cleanly, directory.clean_broker_epoch) == (True, 7)
    directory.begin()
    assert not storage.exists("/data/.kafka_cleanshutdown")
    directory.undo_begin()
    directory.release()
    _, (directory,) = opened(storage, "/data")
    assert (directory.was_closed_cleanly, directory.clean_broker_epoch) == (True, 7)
    directory.begin()
    directory.release()
    _, (directory,) = opened(storage, "/data")
    assert not directory.was_closed_cleanly
    directory.begin()
    directory.undo_begin()
    directory.release()
    assert not opened(storage, "/data")[1][0].was_closed_cleanly
