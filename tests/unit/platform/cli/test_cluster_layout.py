"""Tests of a local cluster's files, and of the errors for invalid cluster directories and options."""

from __future__ import annotations

import errno
import shutil
import socket
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.cli.cluster.formatting import check_enough_other_nodes, describe_data_loss, format_node
from headrace.cli.cluster.layout import (
    ClusterError,
    ClusterLayout,
    open_layout,
    read_layout,
    set_values,
    write_cluster_file,
    write_node_files,
    write_unfinished_file,
)
from headrace.cli.cluster.ports import check_ports
from headrace.cli.cluster.running import _check_overrides


def test_ports_and_addresses_of_cluster_nodes_are_derived_from_the_base_port(tmp_path: Path) -> None:
    layout = ClusterLayout(tmp_path, 3, 9092, "id")
    assert layout.bootstrap_servers == "127.0.0.1:9092,127.0.0.1:9093,127.0.0.1:9094"
    assert [layout.controller_port(node) for node in layout.node_ids] == [10092, 10093, 10094]
    properties = layout.node_properties(2)
    assert properties["listeners"] == "PLAINTEXT://127.0.0.1:9093,CONTROLLER://127.0.0.1:10093"
    assert properties["controller.quorum.voters"] == "1@127.0.0.1:10092,2@127.0.0.1:10093,3@127.0.0.1:10094"


@pytest.mark.parametrize(("nodes", "replicas", "min_isr"), [(1, "1", "1"), (2, "2", "1"), (3, "3", "2"), (5, "3", "2")])
def test_default_replication_factor_equals_the_number_of_nodes_but_is_at_most_three(
    tmp_path: Path, nodes: int, replicas: str, min_isr: str
) -> None:
    properties = ClusterLayout(tmp_path, nodes, 9092, "id").node_properties(1)
    assert properties["default.replication.factor"] == properties["offsets.topic.replication.factor"] == replicas
    assert properties["min.insync.replicas"] == min_isr


def test_cluster_restart_keeps_changes_that_users_made_in_properties_files(tmp_path: Path) -> None:
    layout = open_layout(tmp_path / "c", 2, 9192, "id")
    write_node_files(layout, {"num.partitions": "4"})
    write_cluster_file(layout)
    file = layout.node_file(1)
    file.write_text(file.read_text().replace("num.partitions=4", "# mine\nnum.partitions=5"))
    found = open_layout(tmp_path / "c", None, None, "other")
    assert replace(found, original_directory="") == layout
    write_node_files(found, {})
    assert "# mine\nnum.partitions=5\n" in file.read_text()
    write_node_files(found, {"num.partitions": "6"})
    assert "# mine\nnum.partitions=6\n" in file.read_text()


@pytest.mark.parametrize(
    ("nodes", "base_port", "message"),
    [
        (0, 9092, "--nodes 0: expected 1..1000"),
        (1001, 9092, "--nodes 1001: expected 1..1000"),
        (3, 65000, "--base-port 65000: expected 1..64533"),
    ],
)
def test_invalid_cluster_size_or_base_port_is_rejected(
    tmp_path: Path, nodes: int, base_port: int, message: str
) -> None:
    with pytest.raises(ClusterError) as raised:
        open_layout(tmp_path, nodes, base_port, "id")
    assert str(raised.value) == message


def test_invalid_cluster_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "cluster.properties").write_text("nodes=three\n")
    with pytest.raises(ClusterError, match=r"lacks a valid value of nodes, base\.port or cluster\.id"):
        read_layout(tmp_path)


def test_next_cluster_start_completes_an_interrupted_cluster_creation(tmp_path: Path) -> None:
    layout = open_layout(tmp_path, 2, 9192, "WkDQmJ7pRZyhcmIYWd0H0A")
    write_unfinished_file(layout)
    write_node_files(layout, {})
    format_node(layout, 1)  # the start of the cluster is killed after node 1 has been formatted
    assert read_layout(tmp_path) is None
    again = open_layout(tmp_path, None, None, "another")
    assert replace(again, original_directory="") == layout
    for node_id in again.node_ids:
        format_node(again, node_id)
    write_cluster_file(again)
    assert read_layout(tmp_path) == open_layout(tmp_path, 2, 9192, "another")
    assert sorted(item.name for item in tmp_path.iterdir()) == ["cluster.properties", "node-1", "node-2"]


def test_failed_write_of_cluster_files_on_a_full_disk_leaves_existing_files_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = open_layout(tmp_path, 2, 9192, "id")

    def write_partially(path: Path, text: str, encoding: str) -> None:
        path.write_bytes(text[:3].encode(encoding))
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full_disk:
        full_disk.setattr(Path, "write_text", write_partially)
        with pytest.raises(OSError, match="No space left"):
            write_unfinished_file(layout)
    assert open_layout(tmp_path, 3, 9392, "id").nodes == 3  # the cluster directory is still empty
    write_node_files(layout, {})
    before = layout.node_file(1).read_text()
    with monkeypatch.context() as full_disk:
        full_disk.setattr(Path, "write_text", write_partially)
        with pytest.raises(OSError, match="No space left"):
            write_node_files(layout, {"num.partitions": "3"})
    assert layout.node_file(1).read_text() == before


def test_cluster_wide_overrides_of_keys_that_must_differ_between_nodes_are_rejected(tmp_path: Path) -> None:
    for key, value in (("log.dirs", "/data"), ("metadata.log.dir", "/metadata"), ("node.id", "2")):
        with pytest.raises(
            ClusterError, match=rf"--property {key}: the value must differ between nodes; .*/node-N/server\.prop"
        ):
            _check_overrides(ClusterLayout(tmp_path, 2, 9092, "id"), {key: value})
    _check_overrides(ClusterLayout(tmp_path, 1, 9092, "id"), {"log.dirs": "/data"})
    with pytest.raises(ClusterError, match="node 2 is a controller and must be one of the voters"):
        _check_overrides(ClusterLayout(tmp_path, 2, 9092, "id"), {"controller.quorum.voters": "1@127.0.0.1:10092"})


def test_invalid_base_port_in_cluster_file_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "cluster.properties").write_text("cluster.id=x\nnodes=3\nbase.port=70000\n")
    with pytest.raises(ClusterError, match=r"base-port 70000: expected 1\.\.64533"):
        open_layout(tmp_path, None, None, "id")


def test_cluster_wide_override_that_sets_an_unsupported_protection_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match=r"--property: super.users: not supported yet"):
        _check_overrides(ClusterLayout(tmp_path, 2, 9092, "id"), {"super.users": "User:admin"})


def test_changing_values_in_a_properties_file_keeps_the_order_of_its_lines() -> None:
    text = "# a=0\na=1\nb = 2\na=3\n"
    assert set_values(text, {"a": "9", "b": "8", "c": "7"}) == "# a=0\na=9\nb=8\nc=7\n"


def test_unformatted_node_directory_of_an_existing_cluster_is_reported_as_data_loss(tmp_path: Path) -> None:
    layout = ClusterLayout(tmp_path / "a b", 3, 9092, "AAAAAAAAAAAAAAAAAAAAAQ")
    write_node_files(layout, {})
    assert f"{tmp_path}/a b/node-2/data is not formatted" in (describe_data_loss(layout, 2) or "")
    format_node(layout, 2)
    assert describe_data_loss(layout, 2) is None
    (layout.node_dir(2) / "data" / "meta.properties").unlink()
    assert f"headrace cluster start-node 2 --format --dir '{tmp_path}/a b'" in (describe_data_loss(layout, 2) or "")
    (layout.node_dir(2) / "data" / "t-0").mkdir()
    with pytest.raises(ClusterError, match=r"contains files \(t-0, \.\.\.\) but no meta\.properties"):
        format_node(layout, 2)
    layout.node_file(2).write_text("node.id=two")
    assert describe_data_loss(layout, 2) is None  # the node reports its invalid properties file when it starts


@pytest.mark.parametrize(("nodes", "needed"), [(2, 1), (3, 2), (4, 2), (5, 3)])
def test_node_without_data_may_be_formatted_again_only_if_enough_other_nodes_serve_requests(
    tmp_path: Path, nodes: int, needed: int
) -> None:
    layout = ClusterLayout(tmp_path, nodes, 9092, "id")
    check_enough_other_nodes(layout, 1, needed)
    with pytest.raises(
        ClusterError,
        match=rf"{needed} of the {nodes - 1} other nodes must serve requests \(currently: {needed - 1}\)",
    ):
        check_enough_other_nodes(layout, 1, needed - 1)


def test_data_loss_error_in_a_small_cluster_suggests_restoring_or_formatting_the_node_directory(tmp_path: Path) -> None:
    for nodes, hint in (
        (1, "Restore it, or start another cluster in another --dir"),
        (2, f"kafka-storage format -t id -c {tmp_path}/node-1/server.properties"),
    ):
        layout = ClusterLayout(tmp_path, nodes, 9092, "id")
        write_node_files(layout, {})
        assert (describe_data_loss(layout, 1) or "").endswith(hint)
    with pytest.raises(ClusterError, match=r"1 of the 0 other nodes must serve requests \(currently: 0\)"):
        check_enough_other_nodes(ClusterLayout(tmp_path, 1, 9092, "id"), 1, 0)


def test_log_dirs_of_the_nodes_in_a_copied_cluster_directory_are_inside_the_copy(tmp_path: Path) -> None:
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
    assert read_layout(copy) == ClusterLayout(copy, 2, 9192, "AAAAAAAAAAAAAAAAAAAAAQ", str(copy))


def test_node_in_a_cluster_directory_with_special_characters_in_its_name_can_be_formatted(tmp_path: Path) -> None:
    layout = ClusterLayout(tmp_path / "a =ü€\U0001f600\\u0041", 1, 9092, "AAAAAAAAAAAAAAAAAAAAAQ")
    write_node_files(layout, {})
    format_node(layout, 1)
    assert (layout.node_dir(1) / "data" / "meta.properties").exists()


def test_error_for_a_port_in_use_names_the_option_that_sets_the_port(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as occupied:
        port = occupied.getsockname()[1]
        layout = ClusterLayout(tmp_path, 1, port, "id")
        message = f"port {port} \\(node 1, for clients\\) is in use: stop the process that uses it, or use another "
        with pytest.raises(ClusterError, match=f"{message}--base-port$"):
            check_ports(layout, is_new=True)
        with pytest.raises(ClusterError, match=f"{message}--dir$"):
            check_ports(layout, is_new=False)
