"""The files of a local cluster: what is written, kept and refused."""

from __future__ import annotations

import errno
import shutil
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.cli.cluster.formatting import check_others_have_everything, format_node, loss
from headrace.cli.cluster.layout import (
    ClusterError,
    Layout,
    open_layout,
    read_layout,
    with_values,
    write_cluster_file,
    write_node_files,
    write_unfinished_file,
)
from headrace.cli.cluster.ports import check_ports
from headrace.cli.cluster.running import _check


def test_ports_and_addresses(tmp_path: Path) -> None:
    layout = Layout(tmp_path, 3, 9092, "id")
    assert layout.bootstrap_servers == "127.0.0.1:9092,127.0.0.1:9093,127.0.0.1:9094"
    assert [layout.controller_port(node) for node in layout.node_ids] == [10092, 10093, 10094]
    properties = layout.node_properties(2)
    assert properties["listeners"] == "PLAINTEXT://127.0.0.1:9093,CONTROLLER://127.0.0.1:10093"
    assert properties["controller.quorum.voters"] == "1@127.0.0.1:10092,2@127.0.0.1:10093,3@127.0.0.1:10094"


@pytest.mark.parametrize(("nodes", "replicas", "least"), [(1, "1", "1"), (2, "2", "1"), (3, "3", "2"), (5, "3", "2")])
def test_defaults_fit_the_size(tmp_path: Path, nodes: int, replicas: str, least: str) -> None:
    properties = Layout(tmp_path, nodes, 9092, "id").node_properties(1)
    assert properties["default.replication.factor"] == properties["offsets.topic.replication.factor"] == replicas
    assert properties["min.insync.replicas"] == least


def test_a_cluster_is_found_again_with_what_was_changed(tmp_path: Path) -> None:
    layout = open_layout(tmp_path / "c", 2, 9192, "id")
    write_node_files(layout, {"num.partitions": "4"})
    write_cluster_file(layout)
    file = layout.node_file(1)
    file.write_text(file.read_text().replace("num.partitions=4", "# mine\nnum.partitions=5"))
    found = open_layout(tmp_path / "c", None, None, "other")
    assert replace(found, made_as="") == layout
    write_node_files(found, {})
    assert "# mine\nnum.partitions=5\n" in file.read_text()
    write_node_files(found, {"num.partitions": "6"})
    assert "# mine\nnum.partitions=6\n" in file.read_text()


@pytest.mark.parametrize(
    ("nodes", "base_port", "fault"),
    [
        (0, 9092, "--nodes 0: expected 1..1000"),
        (1001, 9092, "--nodes 1001: expected 1..1000"),
        (3, 65000, "--base-port 65000: expected 1..64533"),
    ],
)
def test_sizes_that_cannot_be_are_refused(tmp_path: Path, nodes: int, base_port: int, fault: str) -> None:
    with pytest.raises(ClusterError) as refusal:
        open_layout(tmp_path, nodes, base_port, "id")
    assert str(refusal.value) == fault


def test_a_broken_cluster_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cluster.properties").write_text("nodes=three\n")
    with pytest.raises(ClusterError, match=r"does not tell nodes, base\.port and cluster\.id"):
        read_layout(tmp_path)


def test_a_cluster_that_a_start_was_interrupted_in_making_is_gone_on_with(tmp_path: Path) -> None:
    layout = open_layout(tmp_path, 2, 9192, "WkDQmJ7pRZyhcmIYWd0H0A")
    write_unfinished_file(layout)
    write_node_files(layout, {})
    format_node(layout, 1)  # here it was killed
    assert read_layout(tmp_path) is None
    again = open_layout(tmp_path, None, None, "another")
    assert replace(again, made_as="") == layout
    for node_id in again.node_ids:
        format_node(again, node_id)
    write_cluster_file(again)
    assert read_layout(tmp_path) == open_layout(tmp_path, 2, 9192, "another")
    assert sorted(item.name for item in tmp_path.iterdir()) == ["cluster.properties", "node-1", "node-2"]


def test_a_full_disk_leaves_every_file_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = open_layout(tmp_path, 2, 9192, "id")

    def torn(path: Path, text: str, encoding: str) -> None:
        path.write_bytes(text[:3].encode(encoding))
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(Path, "write_text", torn)
        with pytest.raises(OSError, match="No space left"):
            write_unfinished_file(layout)
    assert open_layout(tmp_path, 3, 9392, "id").nodes == 3  # nothing is there yet
    write_node_files(layout, {})
    before = layout.node_file(1).read_text()
    with monkeypatch.context() as full:
        full.setattr(Path, "write_text", torn)
        with pytest.raises(OSError, match="No space left"):
            write_node_files(layout, {"num.partitions": "3"})
    assert layout.node_file(1).read_text() == before


def test_what_no_two_nodes_can_share_is_set_in_their_files(tmp_path: Path) -> None:
    for key, value in (("log.dirs", "/data"), ("metadata.log.dir", "/metadata"), ("node.id", "2")):
        with pytest.raises(ClusterError, match=rf"--property {key}: no two nodes can share it: .*/node-N/server\.prop"):
            _check(Layout(tmp_path, 2, 9092, "id"), {key: value})
    _check(Layout(tmp_path, 1, 9092, "id"), {"log.dirs": "/data"})
    with pytest.raises(ClusterError, match="node 2 is a controller and must be one of the voters"):
        _check(Layout(tmp_path, 2, 9092, "id"), {"controller.quorum.voters": "1@127.0.0.1:10092"})


def test_ports_that_were_edited_to_what_cannot_be_are_refused(tmp_path: Path) -> None:
    (tmp_path / "cluster.properties").write_text("cluster.id=x\nnodes=3\nbase.port=70000\n")
    with pytest.raises(ClusterError, match=r"base-port 70000: expected 1\.\.64533"):
        open_layout(tmp_path, None, None, "id")


def test_values_keep_their_place() -> None:
    text = "# a=0\na=1\nb = 2\na=3\n"
    assert with_values(text, {"a": "9", "b": "8", "c": "7"}) == "# a=0\na=9\nb=8\nc=7\n"


def test_a_node_is_formatted_once_and_one_that_is_not_has_lost_what_it_held(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "a b", 3, 9092, "AAAAAAAAAAAAAAAAAAAAAQ")
    write_node_files(layout, {})
    assert f"{tmp_path}/a b/node-2/data is not formatted" in (loss(layout, 2) or "")
    format_node(layout, 2)
    assert loss(layout, 2) is None
    (layout.node_dir(2) / "data" / "meta.properties").unlink()
    assert f"headrace cluster start-node 2 --format --dir '{tmp_path}/a b'" in (loss(layout, 2) or "")
    (layout.node_dir(2) / "data" / "t-0").mkdir()
    with pytest.raises(ClusterError, match=r"holds files \(t-0, \.\.\.\) but no meta\.properties"):
        format_node(layout, 2)
    layout.node_file(2).write_text("node.id=two")
    assert loss(layout, 2) is None  # the node tells of that


@pytest.mark.parametrize(("nodes", "needed"), [(2, 1), (3, 2), (4, 2), (5, 3)])
def test_a_node_begins_anew_only_beside_enough_others(tmp_path: Path, nodes: int, needed: int) -> None:
    layout = Layout(tmp_path, nodes, 9092, "id")
    check_others_have_everything(layout, 1, needed)
    with pytest.raises(
        ClusterError, match=f"{needed} of the {nodes - 1} others have to serve first, and {needed - 1} do"
    ):
        check_others_have_everything(layout, 1, needed - 1)


def test_where_nobody_can_be_asked_to_format_another_way_is_told(tmp_path: Path) -> None:
    for nodes, remedy in (
        (1, "Put it back, or start another cluster in another --dir"),
        (2, f"kafka-storage format -t id -c {tmp_path}/node-1/server.properties"),
    ):
        layout = Layout(tmp_path, nodes, 9092, "id")
        write_node_files(layout, {})
        assert (loss(layout, 1) or "").endswith(remedy)
    with pytest.raises(ClusterError, match="1 of the 0 others have to serve first, and 0 do"):
        check_others_have_everything(Layout(tmp_path, 1, 9092, "id"), 1, 0)


def test_a_moved_or_copied_directory_uses_its_own_files(tmp_path: Path) -> None:
    layout = open_layout(tmp_path / "old", 2, 9192, "AAAAAAAAAAAAAAAAAAAAAQ")
    write_node_files(layout, {"metadata.log.dir": "/elsewhere/node-2/data"})
    write_cluster_file(layout)
    copy = tmp_path / "new"
    shutil.copytree(tmp_path / "old", copy)
    found = open_layout(copy, None, None, "")
    write_node_files(found, {})
    write_cluster_file(found)
    text = found.node_file(2).read_text()
    assert f"log.dirs={copy}/node-2/data\n" in text
    assert "metadata.log.dir=/elsewhere/node-2/data\n" in text
    assert read_layout(copy) == Layout(copy, 2, 9192, "AAAAAAAAAAAAAAAAAAAAAQ", str(copy))


def test_any_name_of_a_directory_will_do(tmp_path: Path) -> None:
    layout = Layout(tmp_path / "a =ü€\U0001f600\\u0041", 1, 9092, "AAAAAAAAAAAAAAAAAAAAAQ")
    write_node_files(layout, {})
    format_node(layout, 1)
    assert (layout.node_dir(1) / "data" / "meta.properties").exists()


def test_a_port_in_use_is_told_with_what_can_still_be_changed(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        layout = Layout(tmp_path, 1, port, "id")
        told = f"port {port} \\(node 1, for clients\\) is in use: stop whoever has it, or name another "
        with pytest.raises(ClusterError, match=f"{told}--base-port$"):
            check_ports(layout, is_new=True)
        with pytest.raises(ClusterError, match=f"{told}--dir$"):
            check_ports(layout, is_new=False)
