"""A simulated cluster: machines with disks and clocks, the real `Node` running on each, and clients beside them.

A machine outlives its processes.  Whoever is killed is started again with what its disk still has; a start that fails
is tried again, as a supervisor would.  `World` also knows what a Kafka cluster promises to survive: `may_kill` and
`may_lose_power` say whether one more fault is within that (KIP-966: somebody who was in sync stays unharmed).
"""

from __future__ import annotations

import asyncio
import gc
import logging
import random
import sys
from collections.abc import Callable, Coroutine, Iterator
from random import Random
from typing import Any, TypeVar

from headrace_broker.log.directory import LogDirectory
from headrace_broker.metadata.image import MetadataImage, PartitionImage
from headrace_broker.server.config import BrokerConfig
from headrace_broker.server.data_dirs import StartError
from headrace_broker.server.node import Node, Surroundings
from headrace_broker.simulation.disk import SimulatedDisk, SimulatedStorage
from headrace_broker.simulation.loop import Clock, SimulatedLoop, SimulatedNode
from headrace_broker.simulation.network import SimulatedListening, SimulatedNetwork
from headrace_broker.simulation.topics import UNCLEAN

T = TypeVar("T")

CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAA"
_DIRECTORY = "/d"
_RESTART_S = 0.2
_STOP_TIMEOUT_S = 3.0

NODE_PROPERTIES = {
    "log.dirs": _DIRECTORY,
    "controller.listener.names": "CONTROLLER",
    "min.insync.replicas": "2",
    "default.replication.factor": "3",
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "3",
    "group.initial.rebalance.delay.ms": "0",
    "group.min.session.timeout.ms": "500",
    "controller.quorum.election.timeout.ms": "300",
    "controller.quorum.election.backoff.max.ms": "200",
    "controller.quorum.fetch.timeout.ms": "600",
    "controller.quorum.request.timeout.ms": "600",
    "broker.heartbeat.interval.ms": "300",
    "broker.session.timeout.ms": "1200",
    "initial.broker.registration.timeout.ms": "4000",
    "replica.lag.time.max.ms": "1000",
    "replica.selector.class": "RackAwareReplicaSelector",
    "replica.socket.timeout.ms": "1000",
    "replica.fetch.wait.max.ms": "300",
    "replica.fetch.backoff.ms": "200",
    "log.roll.ms": "1500",
    "log.retention.check.interval.ms": "500",
    "log.cleaner.backoff.ms": "400",
    "metadata.log.max.record.bytes.between.snapshots": "1500",
}


class Violation(AssertionError):
    """Something that must never be true is."""


class Machine:
    """What a node runs on."""

    def __init__(self, node_id: int, disk: SimulatedDisk, clock: Clock) -> None:
        self.node_id = node_id
        self.name = f"n{node_id}"
        self.disk = disk
        self.clock = clock
        self.process: SimulatedNode | None = None
        self.storage: SimulatedStorage | None = None
        self.node: Node | None = None
        """The node while its process lives and has got as far as serving requests."""
        self.is_wanted = True
        self.is_serving = False
        self.is_stopping = False
        """A controlled shutdown is under way, which takes it from the in-sync replicas."""
        self.starts = 0
        self.unclean_since: int | None = None
        """The broker epoch at which it was killed, while the controller has not registered it again."""
        self.lost_power = False

    @property
    def is_up(self) -> bool:
        return self.process is not None


class World:
    """The machines, the network, and the run of one seed: voters with both roles, and `observers` that are brokers."""

    def __init__(self, seed: int, *, nodes: int = 3, observers: int = 0) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.loop = SimulatedLoop(seed)  # type: ignore[abstract]
        self.network = SimulatedNetwork(self.loop)
        self.voters = tuple(range(1, nodes + 1))
        self.machines = {
            node_id: Machine(node_id, SimulatedDisk(Random(self.rng.random())), self._clock())
            for node_id in range(1, nodes + observers + 1)
        }
        self.image = MetadataImage()
        """The newest committed image that any node has had."""
        self.decided: list[MetadataImage] = []
        """What controllers have decided since: a log has it, and it may be committed even when they have ended."""
        self.properties = dict(NODE_PROPERTIES)
        """What every node's file says."""
        if seed % 4 == 3:  # short answers: who is behind asks ahead, which nobody does whose answers bring all there is
            self.properties["replica.fetch.max.bytes"] = "500"
        self.events: list[str] = []
        self.verbose = False
        self.on_start: list[Callable[[Machine], None]] = []

    def _clock(self) -> Clock:
        rng = self.rng
        return Clock(rng.choice((1.0, 1.0, 0.97, 1.03)), rng.choice((0, 0, -90_000_000, 1_200_000_000)))

    # -- running -----------------------------------------------------------------------------------------------------

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the world; whatever the real code draws by itself comes from the seed, too."""
        state, was_collecting = random.getstate(), gc.isenabled()
        random.seed(self.seed)
        gc.disable()  # when garbage is found must not depend on what ran before
        watch = _LogWatch(self)
        try:
            result = self.loop.run(work)
            watch.check()
            self._check_failures()
            return result
        finally:
            watch.close()
            for machine in self.machines.values():
                self._kill(machine)
            self.loop.close()
            random.setstate(state)
            self.bury()
            if was_collecting:
                gc.enable()

    @staticmethod
    def bury() -> None:
        """Collect what is left: its `finally` blocks find disk and loop gone, of which nobody needs to hear."""
        hook, sys.unraisablehook = sys.unraisablehook, lambda unraisable: None
        logging.disable()
        try:
            gc.collect()
        finally:
            sys.unraisablehook = hook
            logging.disable(logging.NOTSET)

    def _check_failures(self) -> None:
        for failure in self.loop.failures:
            raise Violation(f"{failure['node']}: {failure.get('message')}: {failure.get('exception')!r}")

    def say(self, text: str) -> None:
        """Note what happens, for whoever reads about a failure."""
        line = f"{self.loop.now_us / 1e6:9.4f} {text}"
        self.events.append(line)
        if self.verbose:
            print(line, file=sys.stderr)

    @property
    def now_s(self) -> float:
        return self.loop.now_us / 1e6

    async def until(self, condition: Callable[[], bool], within_s: float, what: Callable[[], str]) -> None:
        """Wait for a condition.  Raises Violation when it does not hold in time."""
        end_s = self.now_s + within_s
        while not condition():
            self._check_failures()
            if self.now_s > end_s:
                raise Violation(f"not within {within_s:g} s: {what()}")
            await asyncio.sleep(0.02)

    # -- machines ----------------------------------------------------------------------------------------------------

    def nodes(self) -> Iterator[tuple[Machine, Node]]:
        """The nodes that live, serving or starting."""
        for machine in self.machines.values():
            if machine.node is not None:
                yield machine, machine.node

    def boot(self, machine: Machine) -> None:
        """Start the machine's process, again and again until it serves or nobody wants it any more."""
        machine.is_wanted = True
        if machine.process is not None:
            return
        process = machine.process = SimulatedNode(machine.name, machine.clock)
        storage = machine.storage = machine.disk.mount()
        process.on_crash.append(lambda: setattr(storage, "is_dead", True))
        machine.starts += 1
        self.network.down.discard(machine.name)
        self.network.booted(machine.name)
        self.loop.within(process, lambda: self.loop.create_task(self._live(machine, process, storage)))

    async def _live(self, machine: Machine, process: SimulatedNode, storage: SimulatedStorage) -> None:
        rng = Random(f"{self.seed} {machine.name} {machine.starts}")
        surroundings = Surroundings(
            storage=storage,
            now_ms=self.loop.wall_ms,
            rng=rng,
            new_id=lambda: rng.randbytes(16),
            listening=SimulatedListening(self.network),  # type: ignore[arg-type]
            processors=1,
        )
        try:
            config = self._config(machine)
            self._format(machine, storage)
            node = Node(config, surroundings)
            machine.node = node
            for listener in self.on_start:
                listener(machine)
            await node.open(CLUSTER_ID)
        except (StartError, OSError) as error:
            self.say(f"{machine.name} does not start: {error}")
            self.loop.after_us(0, self.loop.world, self._ended, machine, process)
            return
        except Exception as error:
            self.loop.failures.append({"node": machine.name, "message": "does not start", "exception": error})
            raise
        self.say(f"{machine.name} serves")
        machine.is_serving = True
        reason = await node.failed
        self.say(f"{machine.name} gives up: {reason}")
        self.loop.after_us(0, self.loop.world, self._ended, machine, process)

    def _config(self, machine: Machine) -> BrokerConfig:
        name = machine.name
        is_voter = machine.node_id in self.voters
        listeners = f"PLAINTEXT://{name}:9092" + (f",CONTROLLER://{name}:9093" if is_voter else "")
        return BrokerConfig.from_properties(
            {
                **self.properties,
                "node.id": str(machine.node_id),
                "broker.rack": f"rack-{machine.node_id}",
                "process.roles": "broker,controller" if is_voter else "broker",
                "listeners": listeners,
                "advertised.listeners": f"PLAINTEXT://{name}:9092",
                "controller.quorum.voters": ",".join(f"{voter}@n{voter}:9093" for voter in self.voters),
            }
        )

    def _format(self, machine: Machine, storage: SimulatedStorage) -> None:
        """As kafka-storage would, with an id of the seed's."""
        directory = LogDirectory(storage, _DIRECTORY)
        if not storage.exists(f"{_DIRECTORY}/meta.properties"):
            storage.makedirs(_DIRECTORY)
            directory.format(CLUSTER_ID, machine.node_id, f"{'A' * 20}{machine.node_id}A")
            storage.sync_directory(_DIRECTORY)

    def _ended(self, machine: Machine, process: SimulatedNode) -> None:
        """A process ended by itself."""
        if machine.process is process:
            if machine.is_serving:
                self._note_unclean(machine)
            self._kill(machine)
            if machine.is_wanted:
                self.loop.call_later(_RESTART_S, self._boot_if_wanted, machine)

    def _boot_if_wanted(self, machine: Machine) -> None:
        if machine.is_wanted:
            self.boot(machine)

    def _kill(self, machine: Machine, *, silently: bool = False) -> None:
        process, machine.process, machine.node, machine.is_serving = machine.process, None, None, False
        if process is not None:
            self.loop.crash(process)
            self.network.killed(process, silently=silently)

    def within(self, machine: Machine, work: Coroutine[Any, Any, None]) -> None:
        """Have the machine's process do something, whatever becomes of it."""
        assert machine.process is not None
        self.loop.within(machine.process, lambda: self.loop.create_task(work))

    # -- faults ------------------------------------------------------------------------------------------------------

    def _broker_epoch(self, machine: Machine) -> int:
        broker = self.image.brokers.get(machine.node_id)
        return -1 if broker is None else broker.epoch

    def note_image(self, image: MetadataImage) -> None:
        """A node has a committed image: it may be the newest, and tell of brokers that are registered again."""
        if image.offset <= self.image.offset:
            return
        before, self.image = self.image, image
        self.decided = [decided for decided in self.decided if decided.offset > image.offset]
        if image.topics is not before.topics:
            self._say_changes(before)
        for machine in self.machines.values():
            if machine.unclean_since is not None and self._broker_epoch(machine) > machine.unclean_since:
                machine.unclean_since, machine.lost_power = None, False

    def note_decided(self, image: MetadataImage) -> None:
        """A controller has decided something, and begun to write it."""
        if image.offset > self.image.offset:
            self.decided.append(image)

    def _say_changes(self, before: MetadataImage) -> None:
        for name, topic in self.image.topics.items():
            known = before.topics.get(name)
            for index, new in enumerate(topic.partitions):
                if known is None or index >= len(known.partitions) or known.partitions[index] != new:
                    elr = f", eligible {new.eligible_leader_replicas}" if new.eligible_leader_replicas else ""
                    last = f", last known {new.last_known_elr}" if new.last_known_elr else ""
                    self.say(f"  {name}-{index}: {new.leader} leads epoch {new.leader_epoch}, isr {new.isr}{elr}{last}")

    def _harmed(self, partition: PartitionImage) -> tuple[int, int]:
        """(how many of those that must have everything are unharmed, how many may have lost something)."""
        members = {*partition.isr, *partition.eligible_leader_replicas, *partition.last_known_elr}
        machines = [self.machines[replica] for replica in members]
        unharmed = sum(machine.unclean_since is None and not machine.is_stopping for machine in machines)
        return unharmed, sum(machine.lost_power for machine in machines)

    def _is_survivable(self) -> bool:
        """Whether every partition has somebody in sync who was not harmed, or nobody who lost anything: both as it is
        committed and as it is decided, for nobody can tell yet which of them will hold.

        Of the topic that anybody may lead nothing is promised.
        """
        for image in (self.image, *self.decided):
            for topic in image.topics.values():
                for partition in topic.partitions if topic.name != UNCLEAN else ():
                    unharmed, lost = self._harmed(partition)
                    if lost and not unharmed:
                        return False
        return True

    def _would_survive(self, machine: Machine, *, power: bool) -> bool:
        before = machine.unclean_since, machine.lost_power
        if machine.unclean_since is None:
            machine.unclean_since = self._broker_epoch(machine)
        machine.lost_power = machine.lost_power or power
        survives = self._is_survivable()
        machine.unclean_since, machine.lost_power = before
        return survives

    def may_kill(self, machine: Machine) -> bool:
        """Whether a kill -9 is within what is promised to be survived."""
        return machine.is_up and self._would_survive(machine, power=False)

    def may_lose_power(self, machine: Machine) -> bool:
        """Whether a power failure is within what is promised to be survived."""
        return self._would_survive(machine, power=True)

    def kill(self, machine: Machine) -> None:
        """kill -9: nothing is cleaned up, and the system keeps what was written."""
        self.say(f"{machine.name} is killed")
        machine.is_wanted = False
        self._note_unclean(machine)
        self._kill(machine)

    def cut_power(self, machine: Machine) -> None:
        """The machine falls silent and loses what was not synced."""
        self.say(f"{machine.name} loses power")
        machine.is_wanted = False
        self._note_unclean(machine)
        machine.lost_power = True
        self.network.down.add(machine.name)
        self._kill(machine, silently=True)
        machine.disk.lose_power()

    def _note_unclean(self, machine: Machine) -> None:
        if machine.unclean_since is None:
            machine.unclean_since = self._broker_epoch(machine)

    def pause(self, machine: Machine) -> None:
        """SIGSTOP."""
        if machine.process is not None:
            self.say(f"{machine.name} is stopped (SIGSTOP)")
            self.loop.pause(machine.process)

    def resume(self, machine: Machine) -> None:
        """SIGCONT."""
        if machine.process is not None and machine.process.is_paused:
            self.say(f"{machine.name} goes on")
            self.loop.resume(machine.process)

    async def stop(self, machine: Machine) -> None:
        """SIGTERM, and kill -9 when it takes too long."""
        node, process = machine.node, machine.process
        if node is None or process is None or not machine.is_serving:
            return
        self.say(f"{machine.name} is asked to stop")
        machine.is_wanted = False
        stopping = self.loop.within(process, lambda: self.loop.create_task(node.stop()))
        machine.is_stopping = True
        end_s = self.now_s + _STOP_TIMEOUT_S
        while not stopping.done() and machine.process is process and self.now_s < end_s:
            await asyncio.sleep(0.02)
        machine.is_stopping = False
        if machine.process is not process:
            return
        if stopping.done():
            if stopping.exception() is not None:
                raise Violation(f"{machine.name} could not stop: {stopping.exception()!r}")
            self.say(f"{machine.name} has stopped")
            self._kill(machine)
        else:
            self.kill(machine)


class _LogWatch(logging.Handler):
    """An exception that the code logs is one that nobody expected."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.DEBUG if world.verbose else logging.ERROR)
        self._world = world
        self._found: list[str] = []
        self._loggers = [logging.getLogger("headrace_broker"), logging.getLogger("asyncio")]
        self._before = [(logger.level, logger.propagate) for logger in self._loggers]
        for logger in self._loggers:
            logger.addHandler(self)
            logger.setLevel(self.level)
            logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        node = self._world.loop.node()
        if node.is_dead or self._world.loop.is_closed():
            return
        text = f"{node.name}: {record.getMessage()}"
        if record.levelno >= logging.ERROR and record.exc_info and record.exc_info[1] is not None:
            self._found.append(f"{text}: {record.exc_info[1]!r}")
        if self._world.verbose:
            print(f"{self._world.now_s:9.4f}   {text}", file=sys.stderr)
            if record.exc_info:
                print(logging.Formatter().formatException(record.exc_info), file=sys.stderr)

    def check(self) -> None:
        """Raises Violation for the first exception."""
        if self._found:
            raise Violation(self._found[0])

    def close(self) -> None:
        for logger, (level, propagate) in zip(self._loggers, self._before, strict=True):
            logger.removeHandler(self)
            logger.setLevel(level)
            logger.propagate = propagate
        super().close()
