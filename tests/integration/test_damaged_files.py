"""Files that something has damaged: the node says which and where, starts with what is sound, and fetches the rest.

After a clean stop files are trusted as far as they fit together and nobody has written to them since; after a crash
all is checked.
A voter's metadata is another matter: what it has promised to hold may not go silently, so it does not start, and says
how to have it fetched anew.
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

TOPIC = "damaged"
CUT = r"Cutting {path} at byte [1-9]\d* \(offset [1-9]\d*\), \d+ bytes behind it are lost"


class Victim:
    """The node that leads the load's partition by preference, and whose files are damaged."""

    def __init__(self, cluster: ClusterProcess, load: Load, node: int) -> None:
        self.cluster = cluster
        self.load = load
        self.node = node
        self._seen = 0

    def down(self, how: str) -> None:
        """Stop or kill it."""
        if how == "killed":
            self.cluster.kill(self.node)
            died = f"node {self.node} died: killed by SIGKILL\n"
            self.cluster.await_output(lambda text: text.endswith(died))
        else:
            stopped = self.cluster.ask("stop-node", self.node)
            # Who has found by then that its files are gone leaves by itself, and says why.
            left = "headrace broker: cannot write" in self.cluster.log(self.node)[self._seen :]
            assert stopped.returncode == 0 or left, stopped.stderr + self.cluster.logs()
        self._seen = len(self.cluster.log(self.node))

    def file(self, pattern: str) -> Path:
        """The last file of its directory with such a name."""
        return max((self.cluster.directory / f"node-{self.node}").rglob(pattern))

    def said(self) -> str:
        """What it has printed since it went down."""
        return self.cluster.log(self.node)[self._seen :]

    def is_whole_again(self) -> None:
        """It leads, and has every record of the load."""
        await_in_sync(self.cluster.bootstrap_servers, TOPIC, 3)
        elect_preferred(self.cluster.bootstrap_servers, TOPIC)
        self.load.verify()


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    directory = tmp_path_factory.mktemp("damage") / "c"
    with running_cluster(directory, metadata_log_max_record_bytes_between_snapshots="50000") as cluster:
        servers = cluster.bootstrap_servers
        with running_load(servers, TOPIC, partitions=1) as load:
            load.await_acknowledged(500)
        yield Victim(cluster, load, leader_of(servers, TOPIC))


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 0x40
    path.write_bytes(data)


def size_of_records(path: Path) -> int:
    """How long a file is without the zeros at the end of a preallocated one."""
    return len(path.read_bytes().rstrip(b"\0"))


def in_the_middle(path: Path) -> None:
    """In the records of the batch there: offset and leader epoch of a batch are outside its checksum."""
    data, middle, start = path.read_bytes(), size_of_records(path) // 2, 0
    while (end := start + 12 + int.from_bytes(data[start + 8 : start + 12], "big")) <= middle:
        start = end
    flip(path, end - 5)


def near_the_end(path: Path) -> None:
    flip(path, size_of_records(path) - 5)


def torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: size_of_records(path) - 5])


def garbage(path: Path) -> None:
    path.write_bytes(b"\xff" * 37)


@pytest.mark.parametrize(
    ("how", "name", "damage", "words"),
    [
        ("killed", "*0.log", in_the_middle, CUT),
        ("killed", "*0.log", near_the_end, CUT),
        ("stopped", "*0.log", torn, CUT),
        ("stopped", "*0.log", in_the_middle, CUT),
        ("stopped", "*0.index", garbage, r"Rebuilding the indexes of {log}: 37 bytes are no multiple of 8"),
        ("stopped", "leader-epoch-checkpoint", garbage, "Rebuilding {path} from the records: line 1"),
        ("stopped", "*.snapshot", garbage, "Skipping {path}: version -1 is not 1"),
    ],
)
def test_a_replica_fetches_what_it_has_lost(
    victim: Victim, how: str, name: str, damage: Callable[[Path], None], words: str
) -> None:
    victim.down(how)
    path = victim.file(f"{TOPIC}-0/{name}")
    damage(path)
    victim.cluster.start_node(victim.node)
    expected = words.format(path=re.escape(str(path)), log=re.escape(str(path.with_suffix(".log"))))
    assert re.search(expected, victim.said()), victim.said()
    victim.is_whole_again()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "stopped"])
@pytest.mark.parametrize("what", ["{topic}-0", "{topic}-0/*.log"])
def test_a_replica_fetches_what_was_removed_while_it_ran(victim: Victim, how: str, what: str) -> None:
    """It goes on writing to files that have no name any more, and must not count as having what was in them."""
    path = victim.file(what.format(topic=TOPIC))
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    victim.down(how)
    victim.cluster.start_node(victim.node)
    victim.is_whole_again()
    assert "Traceback" not in victim.said()


def refuses_to_start(victim: Victim) -> str:
    """The line with which the victim says why it does not start."""
    started = victim.cluster.ask("start-node", victim.node)
    assert started.returncode == 1, started.stdout
    (line,) = [line for line in victim.said().splitlines() if line.startswith("headrace broker: ")]
    return line


def test_a_torn_end_of_the_metadata_is_fetched_again(victim: Victim) -> None:
    victim.down("killed")
    path = victim.file("__cluster_metadata-0/*.log")
    near_the_end(path)
    victim.cluster.start_node(victim.node)
    assert re.search(CUT.format(path=re.escape(str(path))), victim.said()), victim.said()
    victim.is_whole_again()


@pytest.mark.parametrize("name", ["*.log", "quorum-state"])
def test_a_voter_whose_metadata_is_damaged_says_how_to_have_it_again(victim: Victim, name: str) -> None:
    victim.down("killed")
    path = victim.file(f"__cluster_metadata-0/{name}")
    (in_the_middle if name == "*.log" else garbage)(path)
    line = refuses_to_start(victim)
    assert str(path) in line
    assert "put back a copy of it; or, while the other voters have a leader, remove " in line
    for file in path.parent.iterdir() if name == "*.log" else [path]:
        if file.name != "quorum-state" or file == path:
            file.unlink()
    victim.cluster.start_node(victim.node)
    victim.is_whole_again()


def with_a_snapshot(victim: Victim) -> None:
    """Kill the victim when it has a snapshot of the metadata."""
    directory = victim.cluster.directory / f"node-{victim.node}"
    for index in range(20):
        if any(directory.rglob("*.checkpoint")):
            break
        create_topic(victim.cluster.bootstrap_servers, f"filler-{index}", 100, replication=1)
    victim.down("killed")


def test_a_damaged_snapshot_of_the_metadata_is_done_without(victim: Victim) -> None:
    with_a_snapshot(victim)
    path = victim.file("*.checkpoint")
    in_the_middle(path)
    victim.cluster.start_node(victim.node)
    assert f"{path} is damaged and not used" in victim.said()
    victim.is_whole_again()
