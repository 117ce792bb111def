"""Tests of SimulatedDisk: a killed process loses no data, but a power failure loses unsynced data."""

from __future__ import annotations

import errno
from random import Random

import pytest

from headrace_broker.simulation.disk import ProcessIsDeadError, SimulatedDisk


def disks() -> list[SimulatedDisk]:
    created = [SimulatedDisk(Random(seed)) for seed in range(40)]
    for disk in created:
        disk.mount().makedirs("/d")
    return created


def test_dead_process_cannot_access_its_disk_and_the_next_process_reads_its_data() -> None:
    disk = disks()[0]
    storage = disk.mount()
    file = storage.open("/d/log")
    file.write(b"abc", file.size())
    storage.is_dead = True
    for access in (
        lambda: file.write(b"d", file.size()),
        lambda: storage.read("/d/log"),
        lambda: storage.sync("/d/log"),
    ):
        with pytest.raises(ProcessIsDeadError):
            access()
    assert disk.mount().read("/d/log") == b"abc"


def test_power_loss_keeps_all_synced_data_and_an_arbitrary_part_of_the_unsynced_data() -> None:
    found = set()
    for disk in disks():
        file = disk.mount().open("/d/log")
        file.write(b"safe", file.size())
        file.sync()
        file.write(b"perhaps", file.size())
        disk.lose_power()
        left = disk.mount().read("/d/log")
        found.add(left)
        assert left.startswith(b"safe")
        assert b"safeperhaps".startswith(left.rstrip(b"\0"))
    assert len(found) > 5
    assert any(left.endswith(b"\0") for left in found)


def test_power_loss_that_removes_an_unsynced_file_also_removes_all_newer_unsynced_files() -> None:
    counts = set()
    for disk in disks():
        storage = disk.mount()
        for name in ("1", "2", "3"):
            storage.open(f"/d/{name}").write(b"x", 0)
        disk.lose_power()
        left = disk.mount().listdir("/d")
        assert sorted(left) == ["1", "2", "3"][: len(left)]
        counts.add(len(left))
    assert counts == {0, 1, 2, 3}


@pytest.mark.parametrize("synced", [False, True])
def test_power_loss_may_restore_the_old_content_of_a_replaced_file_only_if_its_directory_was_not_synced(
    synced: bool,
) -> None:
    found = set()
    for disk in disks():
        storage = disk.mount()
        storage.write_atomic("/d/state", b"old")
        storage.sync_directory("/d")
        storage.write_atomic("/d/state", b"new")
        if synced:
            storage.sync_directory("/d")
        disk.lose_power()
        found.add(disk.mount().read("/d/state"))
    assert found == ({b"new"} if synced else {b"old", b"new"})


def test_removed_file_may_reappear_after_power_loss() -> None:
    found = set()
    for disk in disks():
        storage = disk.mount()
        storage.write_atomic("/d/marker", b"x")
        storage.sync_directory("/d")
        storage.remove("/d/marker")
        disk.lose_power()
        found.add(disk.mount().exists("/d/marker"))
    assert found == {False, True}


def test_append_is_lost_or_partial_or_complete_if_its_process_is_killed_during_the_append() -> None:
    lengths = set()
    for disk in disks():
        storage = disk.mount()
        file = storage.open("/d/log")
        disk.on_append = lambda path, storage=storage: setattr(storage, "is_dead", True)
        with pytest.raises(ProcessIsDeadError):
            file.write(b"0123456789", file.size())
        lengths.add(len(disk.mount().read("/d/log")))
    assert {0, 10} < lengths


def test_full_disk_and_failing_sync_raise_os_error() -> None:
    disk = disks()[0]
    storage = disk.mount()
    file = storage.open("/d/log")
    disk.free_bytes = 5
    file.write(b"abc", file.size())
    with pytest.raises(OSError, match="No space") as full:
        file.write(b"def", file.size())
    assert full.value.errno == errno.ENOSPC
    disk.sync_error = OSError(errno.EIO, "Input/output error")
    with pytest.raises(OSError, match="Input/output"):
        file.sync()


def test_power_loss_can_leave_holes_in_a_preallocated_file() -> None:
    """Unsynced sectors before the end of a file may reach the disk in any order."""
    found = set()
    for disk in disks():
        file = disk.mount().open("/d/log")
        file.allocate(4096)
        file.write(b"s" * 100, 0)
        file.sync()
        file.write(b"a" * 1000, 100)
        disk.lose_power()
        left = disk.mount().read("/d/log")
        found.add(left)
        assert len(left) == 4096
        assert left[:100] == b"s" * 100
        for start in (0, 512, 1024):
            assert left[max(100, start) : min(start + 512, 1100)].strip(b"a") in (
                b"",
                bytes(min(start + 512, 1100) - max(100, start)),
            )
        assert not left[1100:].strip(b"\0")
    assert len(found) == 8


def test_power_loss_undoes_an_unsynced_truncation_completely_or_not_at_all() -> None:
    found = set()
    for disk in disks():
        file = disk.mount().open("/d/log")
        file.allocate(2048)
        file.write(b"o" * 1500, 0)
        file.sync()
        file.truncate(600)
        file.allocate(2048)
        file.write(b"n" * 600, 600)
        disk.lose_power()
        left = disk.mount().read("/d/log")
        found.add(left)
        assert left.startswith(b"o" * 600)
        assert left[600:].strip(b"\0").strip(b"n") == b"" or left[600:].rstrip(b"\0") == b"o" * 900
    assert len(found) > 3
