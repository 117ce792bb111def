"""Tests of nodes with corrupt files.

A node logs the corrupt file and the position of the damage, keeps the valid records, and fetches the corrupt records
again. After a clean shutdown, a node trusts files that are consistent and were not modified after the shutdown. After a
crash, a node checks all records.

A voter must not lose metadata records that it has acknowledged. A voter with a corrupt metadata log therefore refuses
to start, and its error explains how to fetch the metadata again.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.cluster import ClusterProcess, running_cluster
from support.cluster_load import Load, await_in_sync, create_topic, elect_preferred, leader_of, running_load

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

TOPIC = "corrupt"
TRUNCATING = r"Truncating segment {path} to [1-9]\d* bytes \(log end offset [1-9]\d*\), the last \d+ bytes are lost"


class NodeWithCorruptFiles:
    """The node whose files the tests corrupt. It is the preferred leader of the partition that `load` writes to."""

    def __init__(self, cluster: ClusterProcess, load: Load, node_id: int) -> None:
        self.cluster = cluster
        self.load = load
        self.node_id = node_id
        self._log_size = 0

    def shut_down(self, how: str) -> None:
        """Kill the node if `how` is "killed", else stop the node with a controlled shutdown."""
        if how == "killed":
            self.cluster.kill(self.node_id)
            died = f"node {self.node_id} died: killed by SIGKILL\n"
            self.cluster.await_output(lambda text: text.endswith(died))
        else:
            stopped = self.cluster.run_cli("stop-node", self.node_id)
            # The node may already have exited because files are missing.
            has_exited = "headrace broker: cannot write" in self.cluster.log(self.node_id)[self._log_size :]
            assert stopped.returncode == 0 or has_exited, stopped.stderr + self.cluster.logs()
        self._log_size = len(self.cluster.log(self.node_id))

    def file(self, pattern: str) -> Path:
        """Find the node's files that match `pattern`, and return the last path in alphabetical order."""
        return max((self.cluster.directory / f"node-{self.node_id}").rglob(pattern))

    def output(self) -> str:
        """Return the node's output since the shutdown or kill."""
        return self.cluster.log(self.node_id)[self._log_size :]

    def verify_all_records(self) -> None:
        """Make the node the leader, and check that it has every record of the load."""
        await_in_sync(self.cluster.bootstrap_servers, TOPIC, 3)
        elect_preferred(self.cluster.bootstrap_servers, TOPIC)
        self.load.verify()


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeWithCorruptFiles]:
    directory = tmp_path_factory.mktemp("corrupt") / "c"
    with running_cluster(directory, metadata_log_max_record_bytes_between_snapshots="50000") as cluster:
        servers = cluster.bootstrap_servers
        with running_load(servers, TOPIC, partitions=1) as load:
            load.await_acknowledged(500)
        yield NodeWithCorruptFiles(cluster, load, leader_of(servers, TOPIC))


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x40
    path.write_bytes(data)


def size_of_records(path: Path) -> int:
    """Return the size of a log file's records, without the zeros at the end of a preallocated file."""
    return len(path.read_bytes().rstrip(b"\0"))


def flip_in_middle(path: Path) -> None:
    """Flip a bit in the records of the middle batch.

    The CRC of a batch covers the records. It covers neither the base offset nor the leader epoch of the batch.
    """
    data, middle, start = path.read_bytes(), size_of_records(path) // 2, 0
    while (end := start + 12 + int.from_bytes(data[start + 8 : start + 12], "big")) <= middle:
        start = end
    flip(path, end - 5)


def flip_near_end(path: Path) -> None:
    flip(path, size_of_records(path) - 5)


def truncate_file(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: size_of_records(path) - 5])


def overwrite(path: Path) -> None:
    path.write_bytes(b"\xff" * 37)


@pytest.mark.parametrize(
    ("how", "name", "corrupt", "message"),
    [
        ("killed", "*0.log", flip_in_middle, TRUNCATING),
        ("killed", "*0.log", flip_near_end, TRUNCATING),
        ("stopped", "*0.log", truncate_file, TRUNCATING),
        ("stopped", "*0.log", flip_in_middle, TRUNCATING),
        (
            "stopped",
            "*0.index",
            overwrite,
            r"Rebuilding the indexes of segment {log}: the offset index has 37 bytes, not a multiple of",
        ),
        (
            "stopped",
            "leader-epoch-checkpoint",
            overwrite,
            "Rebuilding checkpoint file {path} from the record batches of the log: line 1",
        ),
        ("stopped", "*.snapshot", overwrite, "Deleting corrupt producer snapshot {path}: the snapshot has version -1"),
    ],
)
def test_replica_with_corrupt_files_fetches_the_damaged_records_again(
    node: NodeWithCorruptFiles, how: str, name: str, corrupt: Callable[[Path], None], message: str
) -> None:
    node.shut_down(how)
    path = node.file(f"{TOPIC}-0/{name}")
    corrupt(path)
    node.cluster.start_node(node.node_id)
    expected = message.format(path=re.escape(str(path)), log=re.escape(str(path.with_suffix(".log"))))
    assert re.search(expected, node.output()), node.output()
    node.verify_all_records()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "stopped"])
@pytest.mark.parametrize("what", ["{topic}-0", "{topic}-0/*.log"])
def test_replica_fetches_records_again_after_its_files_were_deleted_while_the_broker_ran(
    node: NodeWithCorruptFiles, how: str, what: str
) -> None:
    """The files that match `what` are deleted, and then the node is killed or stopped, as `how` says.

    A running node can still write to its deleted files. After a restart, the node's replica must leave the ISR.
    """
    path = node.file(what.format(topic=TOPIC))
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    node.shut_down(how)
    node.cluster.start_node(node.node_id)
    node.verify_all_records()
    assert "Traceback" not in node.output()


def start_error(node: NodeWithCorruptFiles) -> str:
    """Start the node, which must fail to start, and return its error line."""
    started = node.cluster.run_cli("start-node", node.node_id)
    assert started.returncode == 1, started.stdout
    (line,) = [line for line in node.output().splitlines() if line.startswith("headrace broker: ")]
    return line


def test_killed_voter_truncates_the_corrupt_end_of_its_metadata_log_and_fetches_the_missing_records(
    node: NodeWithCorruptFiles,
) -> None:
    node.shut_down("killed")
    path = node.file("__cluster_metadata-0/*.log")
    flip_near_end(path)
    node.cluster.start_node(node.node_id)
    assert re.search(TRUNCATING.format(path=re.escape(str(path))), node.output()), node.output()
    node.verify_all_records()


@pytest.mark.parametrize("name", ["*.log", "quorum-state"])
def test_voter_with_a_corrupt_metadata_file_refuses_to_start_and_its_error_explains_the_repair(
    node: NodeWithCorruptFiles, name: str
) -> None:
    node.shut_down("killed")
    path = node.file(f"__cluster_metadata-0/{name}")
    (flip_in_middle if name == "*.log" else overwrite)(path)
    line = start_error(node)
    assert str(path) in line
    assert "if the other voters have a leader, delete " in line
    for file in path.parent.iterdir() if name == "*.log" else [path]:
        if file.name != "quorum-state" or file == path:
            file.unlink()
    node.cluster.start_node(node.node_id)
    node.verify_all_records()


def kill_with_snapshot(node: NodeWithCorruptFiles) -> None:
    """Create topics until the node has a metadata snapshot, then kill it."""
    directory = node.cluster.directory / f"node-{node.node_id}"
    for index in range(20):
        if any(directory.rglob("*.checkpoint")):
            break
        create_topic(node.cluster.bootstrap_servers, f"filler-{index}", 100, replication=1)
    node.shut_down("killed")


def test_node_ignores_a_corrupt_metadata_snapshot_at_startup(node: NodeWithCorruptFiles) -> None:
    kill_with_snapshot(node)
    path = node.file("*.checkpoint")
    flip_in_middle(path)
    node.cluster.start_node(node.node_id)
    assert f"Snapshot {path} is corrupt and is ignored" in node.output()
    node.verify_all_records()
