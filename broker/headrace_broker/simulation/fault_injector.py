"""Injects faults that the seed determines, one or several at a time, and repairs all of them at the end.

The seed first chooses the kinds of fault for the run, and then when and where each fault occurs. A run with a few kinds
of fault often finds bugs that a run with all kinds hides. Some faults wait for a critical moment: for example, a
machine crashes in the middle of an append, or loses power right after it wrote a vote. `SimulatedCluster.may_kill` and
`SimulatedCluster.may_lose_power` exclude faults that a cluster need not tolerate.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Awaitable, Callable
from random import Random

from headrace_broker.protocol.errors import ApiError
from headrace_broker.protocol.topic_names import CLUSTER_METADATA_TOPIC, GROUP_METADATA_TOPIC
from headrace_broker.raft.quorum_state import FILE_NAME
from headrace_broker.server.controller import ControllerService
from headrace_broker.simulation.operators import ADMIN_CHANGES
from headrace_broker.simulation.simulated_cluster import Machine, SimulatedCluster

Fault = Callable[["FaultInjector"], Awaitable[None]]

_FREE_BYTES_MAX = 3000


class FaultInjector:
    """Injects the faults of one simulation run."""

    def __init__(self, cluster: SimulatedCluster, *, only: tuple[str, ...] = ()) -> None:
        self.cluster = cluster
        self.rng = Random(f"{cluster.seed} nemesis")
        available = FAULTS | ADMIN_CHANGES
        names = sorted(only or self.rng.sample(sorted(available), self.rng.randint(2, len(available))))
        self.faults = [available[name] for name in names]
        self.concurrency = self.rng.choice((1, 1, 2, 3))
        self.pause_s = self.rng.choice((0.1, 0.4, 0.8))
        self._is_over = False
        cluster.log_event(f"faults: {', '.join(names)}; {self.concurrency} at once, about every {self.pause_s} s")

    async def inject_faults(self, duration_s: float) -> None:
        """Inject faults for `duration_s`, then repair all faults."""
        end_s = self.cluster.now_s + duration_s
        await asyncio.gather(*(self._inject_faults_serially(end_s) for _ in range(self.concurrency)))
        self._is_over = True
        self.repair_everything()

    async def _inject_faults_serially(self, end_s: float) -> None:
        while self.cluster.now_s < end_s:
            await asyncio.sleep(self.rng.uniform(0.2, 1.8) * self.pause_s)
            await self.rng.choice(self.faults)(self)

    def repair_everything(self) -> None:
        """Undo all faults and start every machine that is not running."""
        cluster = self.cluster
        cluster.log_event("all faults are repaired")
        cluster.network.extra_latency_us.clear()
        cluster.network.latency_us = (50, 500)
        cluster.network.heal()
        for machine in cluster.machines.values():
            disk = machine.disk
            disk.on_append = disk.on_appended = disk.on_write = None
            disk.sync_error = disk.write_error = disk.free_bytes = None
            if machine.process is not None:
                machine.process.file_work_us = (50, 5_000)
            cluster.resume(machine)
            cluster.boot(machine)

    # -- choosing ----------------------------------------------------------------------------------------------------

    def choose_machine(self) -> Machine:
        """Return a random machine.

        In half of the cases, choose among the machines that lead the quorum or a partition.
        """
        machines = list(self.cluster.machines.values())
        leading = [machine for machine in machines if self._leads(machine)]
        return self.rng.choice(leading if leading and self.rng.random() < 0.5 else machines)

    def _leads(self, machine: Machine) -> bool:
        node = machine.node
        if node is None or not machine.is_serving:
            return False
        return node.quorum.is_active_leader or any(
            partition.leader == machine.node_id
            for topic in self.cluster.image.topics.values()
            for partition in topic.partitions
        )

    def machine_names(self) -> list[str]:
        return [machine.name for machine in self.cluster.machines.values()]

    async def sleep_up_to(self, longest_s: float) -> None:
        await asyncio.sleep(self.rng.random() ** 2 * longest_s)

    async def boot_later(self, machine: Machine) -> None:
        """Start the machine after a random delay, unless it is already running by then."""
        await self.sleep_up_to(2.0)
        if not machine.is_up:
            self.cluster.log_event(f"{machine.name} is started")
        self.cluster.boot(machine)


# -- processes and machines ------------------------------------------------------------------------------------------


async def kill(injector: FaultInjector) -> None:
    """Kill the process of one machine, sometimes of all machines, with SIGKILL. Restart the machines later."""
    cluster, rng = injector.cluster, injector.rng
    victims = [injector.choose_machine()]
    if rng.random() < 0.2:
        victims = list(cluster.machines.values())
    killed = [machine for machine in victims if cluster.may_kill(machine)]
    for machine in killed:
        if cluster.may_kill(machine):
            cluster.kill(machine)
    await asyncio.gather(*(injector.boot_later(machine) for machine in killed))


async def power_loss(injector: FaultInjector) -> None:
    """Cut the power of a machine, so that its unsynced data is lost. Start the machine again later."""
    machine = injector.choose_machine()
    if injector.cluster.may_lose_power(machine):
        injector.cluster.cut_power(machine)
        await injector.boot_later(machine)


async def power_loss_after_vote(injector: FaultInjector) -> None:
    """Cut the power of a machine right after it has written its quorum state. Start the machine again immediately."""
    machine = injector.choose_machine()
    fail = _power_loss_after_write(injector, machine, FILE_NAME)
    machine.disk.on_write = fail
    await injector.sleep_up_to(1.5)
    if machine.disk.on_write is fail:
        machine.disk.on_write = None


async def power_loss_after_append(injector: FaultInjector) -> None:
    """Cut the power of a machine right after it has appended to a log, and start the machine again immediately."""
    machine = injector.choose_machine()
    log = injector.rng.choice((CLUSTER_METADATA_TOPIC, "/t-", GROUP_METADATA_TOPIC))
    fail = _power_loss_after_write(injector, machine, log)
    machine.disk.on_appended = fail
    await injector.sleep_up_to(1.5)
    if machine.disk.on_appended is fail:
        machine.disk.on_appended = None


def _power_loss_after_write(injector: FaultInjector, machine: Machine, path_part: str) -> Callable[[str], None]:
    """Return a disk callback that cuts the power shortly after a write to a path that contains `path_part`.

    The machine is started again immediately.
    """
    cluster, disk = injector.cluster, machine.disk
    delay_us = injector.rng.choice((0, 300, 1_000, 3_000, 10_000))

    def written(path: str) -> None:
        if path_part in path:
            disk.on_write = disk.on_appended = None
            cluster.loop.call_after_us(delay_us, cluster.loop.harness, fail)

    def fail() -> None:
        if machine.is_up and cluster.may_lose_power(machine):
            cluster.cut_power(machine)
            cluster.boot(machine)

    return written


async def torn_append(injector: FaultInjector) -> None:
    """Kill a process in the middle of an append to a log, and restart it."""
    cluster, machine = injector.cluster, injector.choose_machine()

    def torn(path: str) -> None:
        cluster.log_event(f"{machine.name} writes only a part of its data to {path}")
        cluster.kill(machine)

    if machine.is_up:
        disk = machine.disk
        disk.on_append, disk.may_tear = torn, lambda: cluster.may_kill(machine)
        await injector.sleep_up_to(0.5)
        disk.on_append = None
        await injector.boot_later(machine)


async def stop(injector: FaultInjector) -> None:
    """Stop a process with a controlled shutdown and restart it."""
    machine = injector.choose_machine()
    if injector.cluster.may_kill(machine):
        await injector.cluster.stop(machine)
        await injector.boot_later(machine)


async def pause(injector: FaultInjector) -> None:
    """Pause a process with SIGSTOP for a time that may exceed broker.session.timeout.ms, then resume it."""
    machine = injector.choose_machine()
    injector.cluster.pause(machine)
    await injector.sleep_up_to(3.0)
    injector.cluster.resume(machine)


async def move_leaders(injector: FaultInjector) -> None:
    """Make the active controller elect the preferred leaders."""
    for machine, node in list(injector.cluster.nodes()):
        if machine.process is not None and node.controller is not None and node.controller.is_active:
            injector.cluster.log_event(f"{machine.name} elects the preferred leaders")
            injector.cluster.run_on_machine(machine, _balance(node.controller))


async def _balance(controller: ControllerService) -> None:
    try:
        await controller.balance_leaders()
    except ApiError:
        pass  # the node is no longer the active controller


async def move_controller(injector: FaultInjector) -> None:
    """Make the active controller resign."""
    for machine, node in list(injector.cluster.nodes()):
        if machine.process is not None and machine.is_serving and node.quorum.is_active_leader:
            injector.cluster.log_event(f"{machine.name} resigns as controller")
            injector.cluster.loop.run_in_node(machine.process, node.quorum.resign)


# -- the network -----------------------------------------------------------------------------------------------------


async def partition(injector: FaultInjector) -> None:
    """Isolate a machine and up to three clients from all other nodes, in one or both directions."""
    cluster, rng = injector.cluster, injector.rng
    clients = ["producer-1", "producer-2", "consumer", "member-1", "member-2", "admin", "visitor"]
    isolated = {injector.choose_machine().name, *rng.sample(clients, rng.randint(0, 3))}
    others = {*injector.machine_names(), *clients} - isolated
    if rng.random() < 0.3:
        isolated, others = others, isolated
    one_way = rng.random() < 0.4
    cluster.log_event(f"isolate {sorted(isolated)} from {sorted(others)}{', one way' if one_way else ''}")
    cluster.network.isolate(isolated, others, one_way=one_way)
    await _heal_later(injector)


async def isolate_from_brokers(injector: FaultInjector) -> None:
    """Block the link between two machines in one or both directions. Clients can still reach both machines."""
    names = injector.machine_names()
    first, second = injector.rng.sample(names, 2)
    injector.cluster.log_event(f"isolate {first} from {second}")
    injector.cluster.network.isolate({first}, {second}, one_way=injector.rng.random() < 0.4)
    await _heal_later(injector)


async def isolate_from_controller(injector: FaultInjector) -> None:
    """Block the link between a broker and the active controller. Other machines can still reach the broker."""
    cluster = injector.cluster
    active = [machine.name for machine, node in cluster.nodes() if machine.is_serving and node.quorum.is_active_leader]
    others = [name for name in injector.machine_names() if name not in active]
    if active and others:
        victim = injector.rng.choice(others)
        cluster.log_event(f"isolate {victim} from the active controller {active[0]}")
        cluster.network.isolate({victim}, {active[0]}, one_way=injector.rng.random() < 0.4)
        await _heal_later(injector)


async def _heal_later(injector: FaultInjector) -> None:
    await injector.sleep_up_to(3.0)
    injector.cluster.log_event("the network is healed")
    injector.cluster.network.heal()


async def reset(injector: FaultInjector) -> None:
    """Reset all connections between two randomly chosen nodes. In-flight data is lost."""
    clients = ["producer-1", "producer-2", "consumer", "member-1", "member-2"]
    first, second = injector.choose_machine().name, injector.rng.choice(injector.machine_names() + clients)
    injector.cluster.network.reset_connections(first, second)
    injector.cluster.network.reset_connections(second, first)


async def late_delivery(injector: FaultInjector) -> None:
    """Delay in-flight data between two randomly chosen nodes until long after the nodes have reconnected."""
    clients = ["producer-1", "producer-2", "member-1", "member-2", "admin", "visitor"]
    first, second = injector.choose_machine().name, injector.rng.choice(injector.machine_names() + clients)
    injector.cluster.log_event(f"delay in-flight data from {second} to {first}")
    injector.cluster.network.stall(second, first, injector.rng.randint(1_000_000, 3_500_000))


async def slow_network(injector: FaultInjector) -> None:
    """Increase the network latency of one node, or of all nodes, for a while."""
    network, name = injector.cluster.network, injector.choose_machine().name
    if injector.rng.random() < 0.5:
        network.extra_latency_us[name] = injector.rng.choice((5_000, 50_000, 200_000))
    else:
        network.latency_us = injector.rng.choice(((50, 20_000), (1_000, 100_000)))
    await injector.sleep_up_to(2.0)
    network.extra_latency_us.pop(name, None)
    network.latency_us = (50, 500)


# -- disks and clocks ------------------------------------------------------------------------------------------------


async def slow_disk(injector: FaultInjector) -> None:
    """Slow down a machine's disk for a while."""
    process = injector.choose_machine().process
    if process is not None:
        process.file_work_us = injector.rng.choice(((5_000, 50_000), (50_000, 400_000)))
        await injector.sleep_up_to(2.0)
        process.file_work_us = (50, 5_000)


async def full_disk(injector: FaultInjector) -> None:
    """Fill a machine's disk. Later restart the machine with free disk space."""
    cluster, machine = injector.cluster, injector.choose_machine()
    if not machine.is_up or not cluster.may_kill(machine):
        return
    machine.disk.free_bytes = injector.rng.randint(0, _FREE_BYTES_MAX)
    cluster.log_event(f"{machine.name} has {machine.disk.free_bytes} bytes of disk space left")
    await injector.sleep_up_to(2.0)
    await _repair_disk_and_restart(injector, machine)


async def restart_on_full_disk(injector: FaultInjector) -> None:
    """Fill a machine's disk and restart the machine. Later restart the machine with free disk space."""
    cluster, machine = injector.cluster, injector.choose_machine()
    if machine.is_up and cluster.may_kill(machine):
        machine.disk.free_bytes = injector.rng.choice((0, 100, 1000))
        cluster.log_event(f"{machine.name} has {machine.disk.free_bytes} bytes of disk space left, and restarts")
        cluster.kill(machine)
        cluster.boot(machine)
        await injector.sleep_up_to(2.0)
        await _repair_disk_and_restart(injector, machine)


async def failing_write(injector: FaultInjector) -> None:
    """Make an append fail after a part of it was written. Sometimes all later writes also fail.

    Later restart the machine with a working disk.
    """
    cluster, machine = injector.cluster, injector.choose_machine()
    if not machine.is_up or not cluster.may_kill(machine):
        return
    error = OSError(errno.EIO, os.strerror(errno.EIO))
    is_once, disk = injector.rng.random() < 0.5, machine.disk

    def failed(path: str) -> None:
        cluster.log_event(f"{machine.name} cannot write to {path}")
        disk.write_error = None if is_once else error

    disk.on_append, disk.may_tear = failed, lambda: cluster.may_kill(machine)
    await injector.sleep_up_to(2.0)
    await _repair_disk_and_restart(injector, machine)


async def failing_sync(injector: FaultInjector) -> None:
    """Make every sync of a machine's disk fail. Later restart the machine with a working disk."""
    cluster, machine = injector.cluster, injector.choose_machine()
    if not machine.is_up or not cluster.may_kill(machine):
        return
    cluster.log_event(f"{machine.name} cannot sync its disk")
    machine.disk.sync_error = OSError(errno.EIO, os.strerror(errno.EIO))
    await injector.sleep_up_to(2.0)
    await _repair_disk_and_restart(injector, machine)


async def _repair_disk_and_restart(injector: FaultInjector, machine: Machine) -> None:
    disk = machine.disk
    disk.on_append = disk.free_bytes = disk.sync_error = disk.write_error = None
    while machine.is_up and not injector.cluster.may_kill(machine):
        await asyncio.sleep(0.1)
    if machine.is_up:
        injector.cluster.kill(machine)
    await injector.boot_later(machine)


async def set_clock(injector: FaultInjector) -> None:
    """Set a machine's wall clock forward or back."""
    clock = injector.choose_machine().clock
    clock.wall_ahead_us = injector.rng.choice((0, -1_200_000_000, 60_000_000, 1_200_000_000))


FAULTS: dict[str, Fault] = {
    fault.__name__: fault
    for fault in (
        kill,
        power_loss,
        power_loss_after_append,
        power_loss_after_vote,
        torn_append,
        stop,
        pause,
        move_leaders,
        move_controller,
        partition,
        isolate_from_brokers,
        isolate_from_controller,
        reset,
        late_delivery,
        slow_network,
        slow_disk,
        full_disk,
        restart_on_full_disk,
        failing_write,
        failing_sync,
        set_clock,
    )
}
