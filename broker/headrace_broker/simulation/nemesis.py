"""What goes wrong: faults drawn from the seed, one after the other or several at once, each undone in the end.

A seed first draws which kinds of fault its run knows (a few kinds often find what all kinds together hide), then when
and where.  Some wait for a moment that is worth it: a crash in the middle of an append, a power failure right after a
vote was written.  Nothing here goes beyond what a cluster promises to survive (`World.may_kill`, `may_lose_power`).
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
from headrace_broker.simulation.operators import CHANGES
from headrace_broker.simulation.world import Machine, World

Fault = Callable[["Nemesis"], Awaitable[None]]

_ROOM_BYTES = 3000


class Nemesis:
    """The faults of one run."""

    def __init__(self, world: World, *, only: tuple[str, ...] = ()) -> None:
        self.world = world
        self.rng = Random(f"{world.seed} nemesis")
        known = FAULTS | CHANGES
        names = sorted(only or self.rng.sample(sorted(known), self.rng.randint(2, len(known))))
        self.faults = [known[name] for name in names]
        self.lanes = self.rng.choice((1, 1, 2, 3))
        self.pause_s = self.rng.choice((0.1, 0.4, 0.8))
        self._is_over = False
        world.say(f"faults: {', '.join(names)}; {self.lanes} at once, about every {self.pause_s} s")

    async def torment(self, duration_s: float) -> None:
        """Let things go wrong for so long, then mend everything."""
        end_s = self.world.now_s + duration_s
        await asyncio.gather(*(self._lane(end_s) for _ in range(self.lanes)))
        self._is_over = True
        self.mend()

    async def _lane(self, end_s: float) -> None:
        while self.world.now_s < end_s:
            await asyncio.sleep(self.rng.uniform(0.2, 1.8) * self.pause_s)
            await self.rng.choice(self.faults)(self)

    def mend(self) -> None:
        """Everything works again, and every machine is started that is not up."""
        world = self.world
        world.say("everything is mended")
        world.network.slow.clear()
        world.network.latency_us = (50, 500)
        world.network.heal()
        for machine in world.machines.values():
            disk = machine.disk
            disk.on_append = disk.on_appended = disk.on_write = None
            disk.sync_error = disk.write_error = disk.free_bytes = None
            if machine.process is not None:
                machine.process.file_work_us = (50, 5_000)
            world.resume(machine)
            world.boot(machine)

    # -- choosing ----------------------------------------------------------------------------------------------------

    def machine(self) -> Machine:
        """Any machine, rather one that leads something."""
        machines = list(self.world.machines.values())
        leading = [machine for machine in machines if self._leads(machine)]
        return self.rng.choice(leading if leading and self.rng.random() < 0.5 else machines)

    def _leads(self, machine: Machine) -> bool:
        node = machine.node
        if node is None or not machine.is_serving:
            return False
        return node.quorum.leads or any(
            partition.leader == machine.node_id
            for topic in self.world.image.topics.values()
            for partition in topic.partitions
        )

    def names(self) -> list[str]:
        return [machine.name for machine in self.world.machines.values()]

    async def some_time(self, longest_s: float) -> None:
        await asyncio.sleep(self.rng.random() ** 2 * longest_s)

    async def boot_later(self, machine: Machine) -> None:
        """Start it again after a while, unless somebody else has."""
        await self.some_time(2.0)
        if not machine.is_up:
            self.world.say(f"{machine.name} is started")
        self.world.boot(machine)


# -- processes and machines ------------------------------------------------------------------------------------------


async def kill(nemesis: Nemesis) -> None:
    """kill -9, sometimes of several at once."""
    world, rng = nemesis.world, nemesis.rng
    victims = [nemesis.machine()]
    if rng.random() < 0.2:
        victims = list(world.machines.values())
    killed = [machine for machine in victims if world.may_kill(machine)]
    for machine in killed:
        if world.may_kill(machine):
            world.kill(machine)
    await asyncio.gather(*(nemesis.boot_later(machine) for machine in killed))


async def power_loss(nemesis: Nemesis) -> None:
    """A machine vanishes with what it had not synced."""
    machine = nemesis.machine()
    if nemesis.world.may_lose_power(machine):
        nemesis.world.cut_power(machine)
        await nemesis.boot_later(machine)


async def power_loss_after_vote(nemesis: Nemesis) -> None:
    """A machine vanishes as soon as it has written a vote or an epoch, and is back at once."""
    machine = nemesis.machine()
    fail = _fails_soon(nemesis, machine, FILE_NAME)
    machine.disk.on_write = fail
    await nemesis.some_time(1.5)
    if machine.disk.on_write is fail:
        machine.disk.on_write = None


async def power_loss_after_append(nemesis: Nemesis) -> None:
    """A machine vanishes as soon as it has appended to the metadata log or another, and is back at once."""
    machine = nemesis.machine()
    log = nemesis.rng.choice((CLUSTER_METADATA_TOPIC, "/t-", GROUP_METADATA_TOPIC))
    fail = _fails_soon(nemesis, machine, log)
    machine.disk.on_appended = fail
    await nemesis.some_time(1.5)
    if machine.disk.on_appended is fail:
        machine.disk.on_appended = None


def _fails_soon(nemesis: Nemesis, machine: Machine, wanted: str) -> Callable[[str], None]:
    """Cuts the power, for a moment, a little after a file is touched whose path holds `wanted`."""
    world, disk = nemesis.world, machine.disk
    delay_us = nemesis.rng.choice((0, 300, 1_000, 3_000, 10_000))

    def touched(path: str) -> None:
        if wanted in path:
            disk.on_write = disk.on_appended = None
            world.loop.after_us(delay_us, world.loop.world, fail)

    def fail() -> None:
        if machine.is_up and world.may_lose_power(machine):
            world.cut_power(machine)
            world.boot(machine)

    return touched


async def torn_append(nemesis: Nemesis) -> None:
    """A process is killed in the middle of writing to a log."""
    world, machine = nemesis.world, nemesis.machine()

    def torn(path: str) -> None:
        world.say(f"{machine.name} writes a part of {path}")
        world.kill(machine)

    if machine.is_up:
        disk = machine.disk
        disk.on_append, disk.may_tear = torn, lambda: world.may_kill(machine)
        await nemesis.some_time(0.5)
        disk.on_append = None
        await nemesis.boot_later(machine)


async def stop(nemesis: Nemesis) -> None:
    """A controlled shutdown."""
    machine = nemesis.machine()
    if nemesis.world.may_kill(machine):
        await nemesis.world.stop(machine)
        await nemesis.boot_later(machine)


async def pause(nemesis: Nemesis) -> None:
    """SIGSTOP, for less or more than a session."""
    machine = nemesis.machine()
    nemesis.world.pause(machine)
    await nemesis.some_time(3.0)
    nemesis.world.resume(machine)


async def move_leaders(nemesis: Nemesis) -> None:
    """Partitions go back to the replicas that should lead them."""
    for machine, node in list(nemesis.world.nodes()):
        if machine.process is not None and node.controller is not None and node.controller.is_active:
            nemesis.world.say(f"{machine.name} gives partitions back to their preferred leaders")
            nemesis.world.within(machine, _balance(node.controller))


async def _balance(controller: ControllerService) -> None:
    try:
        await controller.balance_leaders()
    except ApiError:
        pass  # it is no controller any more


async def move_controller(nemesis: Nemesis) -> None:
    """The active controller hands over without need."""
    for machine, node in list(nemesis.world.nodes()):
        if machine.process is not None and machine.is_serving and node.quorum.leads:
            nemesis.world.say(f"{machine.name} resigns as controller")
            nemesis.world.loop.within(machine.process, node.quorum.resign)


# -- the network -----------------------------------------------------------------------------------------------------


async def partition(nemesis: Nemesis) -> None:
    """One machine, or one and some clients, are cut off from the rest: both ways or one way."""
    world, rng = nemesis.world, nemesis.rng
    clients = ["writer-1", "writer-2", "reader", "member-1", "member-2", "admin", "visitor"]
    side = {nemesis.machine().name, *rng.sample(clients, rng.randint(0, 3))}
    others = {*nemesis.names(), *clients} - side
    if rng.random() < 0.3:
        side, others = others, side
    one_way = rng.random() < 0.4
    world.say(f"cut {sorted(side)} from {sorted(others)}{', one way' if one_way else ''}")
    world.network.isolate(side, others, one_way=one_way)
    await _heal_later(nemesis)


async def isolate_from_brokers(nemesis: Nemesis) -> None:
    """A machine cannot reach some other machine, and clients reach both."""
    names = nemesis.names()
    first, second = nemesis.rng.sample(names, 2)
    nemesis.world.say(f"cut {first} from {second}")
    nemesis.world.network.isolate({first}, {second}, one_way=nemesis.rng.random() < 0.4)
    await _heal_later(nemesis)


async def isolate_from_controller(nemesis: Nemesis) -> None:
    """A broker loses the active controller only."""
    world = nemesis.world
    active = [machine.name for machine, node in world.nodes() if machine.is_serving and node.quorum.leads]
    others = [name for name in nemesis.names() if name not in active]
    if active and others:
        victim = nemesis.rng.choice(others)
        world.say(f"cut {victim} from the controller {active[0]}")
        world.network.isolate({victim}, {active[0]}, one_way=nemesis.rng.random() < 0.4)
        await _heal_later(nemesis)


async def _heal_later(nemesis: Nemesis) -> None:
    await nemesis.some_time(3.0)
    nemesis.world.say("the network is whole")
    nemesis.world.network.heal()


async def reset(nemesis: Nemesis) -> None:
    """The connections between two nodes break, with what is under way on them."""
    clients = ["writer-1", "writer-2", "reader", "member-1", "member-2"]
    first, second = nemesis.machine().name, nemesis.rng.choice(nemesis.names() + clients)
    nemesis.world.network.break_connections(first, second)
    nemesis.world.network.break_connections(second, first)


async def late_delivery(nemesis: Nemesis) -> None:
    """What is under way between two nodes is stuck until long after they have connected anew, and arrives then."""
    clients = ["writer-1", "writer-2", "member-1", "member-2", "admin", "visitor"]
    first, second = nemesis.machine().name, nemesis.rng.choice(nemesis.names() + clients)
    nemesis.world.say(f"what is under way from {second} to {first} is stuck")
    nemesis.world.network.stall(second, first, nemesis.rng.randint(1_000_000, 3_500_000))


async def slow_network(nemesis: Nemesis) -> None:
    """Messages of one node, or of all, take long."""
    network, name = nemesis.world.network, nemesis.machine().name
    if nemesis.rng.random() < 0.5:
        network.slow[name] = nemesis.rng.choice((5_000, 50_000, 200_000))
    else:
        network.latency_us = nemesis.rng.choice(((50, 20_000), (1_000, 100_000)))
    await nemesis.some_time(2.0)
    network.slow.pop(name, None)
    network.latency_us = (50, 500)


# -- disks and clocks ------------------------------------------------------------------------------------------------


async def slow_disk(nemesis: Nemesis) -> None:
    """A disk takes long to sync."""
    process = nemesis.machine().process
    if process is not None:
        process.file_work_us = nemesis.rng.choice(((5_000, 50_000), (50_000, 400_000)))
        await nemesis.some_time(2.0)
        process.file_work_us = (50, 5_000)


async def full_disk(nemesis: Nemesis) -> None:
    """A disk is full, at some point within a write; the machine is started again with more room."""
    world, machine = nemesis.world, nemesis.machine()
    if not machine.is_up or not world.may_kill(machine):
        return
    machine.disk.free_bytes = nemesis.rng.randint(0, _ROOM_BYTES)
    world.say(f"{machine.name} has room for {machine.disk.free_bytes} bytes")
    await nemesis.some_time(2.0)
    await _get_well(nemesis, machine)


async def restart_on_full_disk(nemesis: Nemesis) -> None:
    """A machine without room is killed and started again and again, until it has some."""
    world, machine = nemesis.world, nemesis.machine()
    if machine.is_up and world.may_kill(machine):
        machine.disk.free_bytes = nemesis.rng.choice((0, 100, 1000))
        world.say(f"{machine.name} has room for {machine.disk.free_bytes} bytes, and is started again")
        world.kill(machine)
        world.boot(machine)
        await nemesis.some_time(2.0)
        await _get_well(nemesis, machine)


async def failing_write(nemesis: Nemesis) -> None:
    """A disk fails in the middle of an append, once or from then on; the machine is started again with another."""
    world, machine = nemesis.world, nemesis.machine()
    if not machine.is_up or not world.may_kill(machine):
        return
    error = OSError(errno.EIO, os.strerror(errno.EIO))
    is_once, disk = nemesis.rng.random() < 0.5, machine.disk

    def failed(path: str) -> None:
        world.say(f"{machine.name} cannot write to {path}")
        disk.write_error = None if is_once else error

    disk.on_append, disk.may_tear = failed, lambda: world.may_kill(machine)
    await nemesis.some_time(2.0)
    await _get_well(nemesis, machine)


async def failing_sync(nemesis: Nemesis) -> None:
    """A disk can no longer sync; the machine is started again with another."""
    world, machine = nemesis.world, nemesis.machine()
    if not machine.is_up or not world.may_kill(machine):
        return
    world.say(f"{machine.name} cannot sync")
    machine.disk.sync_error = OSError(errno.EIO, os.strerror(errno.EIO))
    await nemesis.some_time(2.0)
    await _get_well(nemesis, machine)


async def _get_well(nemesis: Nemesis, machine: Machine) -> None:
    disk = machine.disk
    disk.on_append = disk.free_bytes = disk.sync_error = disk.write_error = None
    while machine.is_up and not nemesis.world.may_kill(machine):
        await asyncio.sleep(0.1)
    if machine.is_up:
        nemesis.world.kill(machine)
    await nemesis.boot_later(machine)


async def set_clock(nemesis: Nemesis) -> None:
    """Somebody sets a machine's clock."""
    clock = nemesis.machine().clock
    clock.wall_ahead_us = nemesis.rng.choice((0, -1_200_000_000, 60_000_000, 1_200_000_000))


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
