"""A simulated cluster: machines with disks and clocks, each running the real `Node`, and the network between them.

A machine outlives its processes. A killed process is restarted with the current contents of its disk. A failed start is
retried, as a process supervisor would do. `SimulatedCluster` also determines which faults a Kafka cluster must
tolerate. `may_kill` and `may_lose_power` return whether the cluster must tolerate one more fault. KIP-966 guarantees
that committed records are not lost, provided that at least one in-sync replica had no unclean shutdown.
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

from headrace_broker.log.checkpoints import CLEAN_SHUTDOWN_FILE
from headrace_broker.log.directory import LogDirectory
from headrace_broker.metadata.image import MetadataImage, PartitionImage
from headrace_broker.server.config import BrokerConfig
from headrace_broker.server.data_dirs import StartError
from headrace_broker.server.node import Environment, Node
from headrace_broker.simulation.disk import SimulatedDisk, SimulatedStorage
from headrace_broker.simulation.loop import Clock, SimulatedLoop, SimulatedNode
from headrace_broker.simulation.network import SimulatedNetwork, SimulatedSocketServer
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
    """An invariant of the cluster does not hold."""


class Machine:
    """A machine with a disk and a clock, on which one node runs at a time."""

    def __init__(self, node_id: int, disk: SimulatedDisk, clock: Clock) -> None:
        self.node_id = node_id
        self.name = f"n{node_id}"
        self.disk = disk
        self.clock = clock
        self.process: SimulatedNode | None = None
        self.storage: SimulatedStorage | None = None
        self.node: Node | None = None
        """The running node, from its creation until its process ends; otherwise None."""
        self.should_run = True
        self.is_serving = False
        self.is_stopping = False
        """Whether a controlled shutdown is in progress, which removes the machine's replicas from the ISR."""
        self.starts = 0
        self.unclean_shutdown_epoch: int | None = None
        """The broker epoch of an unclean shutdown, until the broker is registered again; otherwise None."""
        self.lost_power = False

    @property
    def is_up(self) -> bool:
        return self.process is not None


class SimulatedCluster:
    """The simulated cluster of one run.

    `nodes` is the number of machines with a broker and a controller. `observers` is the number of machines with only a
    broker.
    """

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
        """The newest committed metadata image that any node has."""
        self.uncommitted_images: list[MetadataImage] = []
        """Newer metadata images of controllers. The records of these images may be committed even after the
        controller has died."""
        self.properties = dict(NODE_PROPERTIES)
        """The configuration that all nodes share."""
        if seed % 4 == 3:  # small fetch responses make a lagging follower pipeline its fetches
            self.properties["replica.fetch.max.bytes"] = "500"
        self.events: list[str] = []
        self.verbose = False
        self.on_start: list[Callable[[Machine], None]] = []

    def _clock(self) -> Clock:
        rng = self.rng
        return Clock(rng.choice((1.0, 1.0, 0.97, 1.03)), rng.choice((0, 0, -90_000_000, 1_200_000_000)))

    # -- running -----------------------------------------------------------------------------------------------------

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the simulation until `work` is done and return its result.

        The `random` module is seeded during the run. Raises Violation if an invariant does not hold.
        """
        state, was_collecting = random.getstate(), gc.isenabled()
        random.seed(self.seed)
        gc.disable()  # the times of garbage collections would depend on earlier runs
        logged_errors = _LoggedErrors(self)
        try:
            result = self.loop.run(work)
            logged_errors.check()
            self._check_failures()
            return result
        finally:
            logged_errors.close()
            for machine in self.machines.values():
                self._kill(machine)
            self.loop.close()
            random.setstate(state)
            self.collect_garbage()
            if was_collecting:
                gc.enable()

    @staticmethod
    def collect_garbage() -> None:
        """Garbage-collect the dead nodes without logging the errors that this causes.

        The `finally` blocks of these nodes raise errors, because their disks and the event loop are closed.
        """
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

    def log_event(self, text: str) -> None:
        """Store an event of the run. The events are printed if the run fails."""
        line = f"{self.loop.now_us / 1e6:9.4f} {text}"
        self.events.append(line)
        if self.verbose:
            print(line, file=sys.stderr)

    @property
    def now_s(self) -> float:
        return self.loop.now_us / 1e6

    async def wait_until(self, condition: Callable[[], bool], timeout_s: float, describe: Callable[[], str]) -> None:
        """Wait until `condition` is true. `describe` returns a description of the condition.

        Raises Violation after `timeout_s`, or if a callback has failed.
        """
        end_s = self.now_s + timeout_s
        while not condition():
            self._check_failures()
            if self.now_s > end_s:
                raise Violation(f"timed out after {timeout_s:g} s while waiting until {describe()}")
            await asyncio.sleep(0.02)

    # -- machines ----------------------------------------------------------------------------------------------------

    def nodes(self) -> Iterator[tuple[Machine, Node]]:
        """Iterate over the running nodes, including those that are starting."""
        for machine in self.machines.values():
            if machine.node is not None:
                yield machine, machine.node

    def boot(self, machine: Machine) -> None:
        """Start a process on the machine. If the process exits, restart it, until the machine is stopped or killed."""
        machine.should_run = True
        if machine.process is not None:
            return
        process = machine.process = SimulatedNode(machine.name, machine.clock)
        storage = machine.storage = machine.disk.mount()
        process.on_crash.append(lambda: setattr(storage, "is_dead", True))
        machine.starts += 1
        self.network.powered_off.discard(machine.name)
        self.network.on_machine_started(machine.name)
        self.loop.run_in_node(process, lambda: self.loop.create_task(self._run_node(machine, process, storage)))

    async def _run_node(self, machine: Machine, process: SimulatedNode, storage: SimulatedStorage) -> None:
        rng = Random(f"{self.seed} {machine.name} {machine.starts}")
        environment = Environment(
            storage=storage,
            now_ms=self.loop.wall_ms,
            rng=rng,
            new_id=lambda: rng.randbytes(16),
            listening=SimulatedSocketServer(self.network),  # type: ignore[arg-type]
            processors=1,
        )
        try:
            config = self._config(machine)
            self._format(machine, storage)
            node = Node(config, environment)
            machine.node = node
            for listener in self.on_start:
                listener(machine)
            await node.open(CLUSTER_ID)
        except (StartError, OSError) as error:
            self.log_event(f"{machine.name} failed to start: {error}")
            self.loop.call_after_us(0, self.loop.harness, self._on_process_exit, machine, process)
            return
        except Exception as error:
            self.loop.failures.append({"node": machine.name, "message": "failed to start", "exception": error})
            raise
        self.log_event(f"{machine.name} is started")
        machine.is_serving = True
        reason = await node.failed
        self.log_event(f"{machine.name} shuts down after a failure: {reason}")
        self.loop.call_after_us(0, self.loop.harness, self._on_process_exit, machine, process)

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
        """Format the log directory as kafka-storage does, with a fixed directory id."""
        directory = LogDirectory(storage, _DIRECTORY)
        if not storage.exists(f"{_DIRECTORY}/meta.properties"):
            storage.makedirs(_DIRECTORY)
            directory.format(CLUSTER_ID, machine.node_id, f"{'A' * 20}{machine.node_id}A")
            storage.sync_directory(_DIRECTORY)

    def _on_process_exit(self, machine: Machine, process: SimulatedNode) -> None:
        """Restart a machine's process that has exited, unless the machine was stopped."""
        if machine.process is process:
            if machine.is_serving:
                self._mark_unclean(machine)
            self._kill(machine)
            if machine.should_run:
                self.loop.call_later(_RESTART_S, self._restart, machine)

    def _restart(self, machine: Machine) -> None:
        if machine.should_run:
            self.boot(machine)

    def _kill(self, machine: Machine, *, silently: bool = False) -> None:
        process, machine.process, machine.node, machine.is_serving = machine.process, None, None, False
        if process is not None:
            self.loop.crash(process)
            self.network.on_process_exit(process, silently=silently)

    def run_on_machine(self, machine: Machine, work: Coroutine[Any, Any, None]) -> None:
        """Start a task in the machine's process. The task's result is ignored."""
        assert machine.process is not None
        self.loop.run_in_node(machine.process, lambda: self.loop.create_task(work))

    # -- faults ------------------------------------------------------------------------------------------------------

    def _broker_epoch(self, machine: Machine) -> int:
        broker = self.image.brokers.get(machine.node_id)
        return -1 if broker is None else broker.epoch

    def record_committed_image(self, image: MetadataImage) -> None:
        """Store a node's committed image if it is newer than the stored image.

        If a machine had an unclean shutdown, and its broker has registered again in this image, the machine no longer
        counts as uncleanly shut down.
        """
        if image.offset <= self.image.offset:
            return
        before, self.image = self.image, image
        self.uncommitted_images = [newer for newer in self.uncommitted_images if newer.offset > image.offset]
        if image.topics is not before.topics:
            self._log_partition_changes(before)
        for machine in self.machines.values():
            if (
                machine.unclean_shutdown_epoch is not None
                and self._broker_epoch(machine) > machine.unclean_shutdown_epoch
            ):
                machine.unclean_shutdown_epoch, machine.lost_power = None, False

    def record_uncommitted_image(self, image: MetadataImage) -> None:
        """Store a controller's image. The controller has started to append the image's changes to the log."""
        if image.offset > self.image.offset:
            self.uncommitted_images.append(image)

    def _log_partition_changes(self, before: MetadataImage) -> None:
        for name, topic in self.image.topics.items():
            known = before.topics.get(name)
            for index, new in enumerate(topic.partitions):
                if known is None or index >= len(known.partitions) or known.partitions[index] != new:
                    elr = f", eligible {new.eligible_leader_replicas}" if new.eligible_leader_replicas else ""
                    last = f", last known {new.last_known_elr}" if new.last_known_elr else ""
                    self.log_event(
                        f"  {name}-{index}: leader {new.leader}, epoch {new.leader_epoch}, isr {new.isr}{elr}{last}"
                    )

    def _count_members(self, partition: PartitionImage) -> tuple[int, int]:
        """Return two counts of ISR and ELR members: members without an unclean shutdown, and members that lost power.

        A member that was only killed is in neither count, because SIGKILL is an unclean shutdown too. The first count
        also excludes members in a controlled shutdown.
        """
        members = {*partition.isr, *partition.eligible_leader_replicas, *partition.last_known_elr}
        machines = [self.machines[replica] for replica in members]
        clean = sum(machine.unclean_shutdown_epoch is None and not machine.is_stopping for machine in machines)
        return clean, sum(machine.lost_power for machine in machines)

    def _is_tolerable(self) -> bool:
        """Return whether the cluster tolerates the current faults.

        If an ISR or ELR member of a partition lost power, another ISR or ELR member must have had no unclean shutdown.
        This must hold in the committed image and in the uncommitted images, because any of these images may become the
        current image. This rule does not apply to the topic with unclean leader election, because the topic's records
        may be lost.
        """
        for image in (self.image, *self.uncommitted_images):
            for topic in image.topics.values():
                for partition in topic.partitions if topic.name != UNCLEAN else ():
                    clean, lost_power = self._count_members(partition)
                    if lost_power and not clean:
                        return False
        return True

    def _must_tolerate(self, machine: Machine, *, power: bool) -> bool:
        before = machine.unclean_shutdown_epoch, machine.lost_power
        if machine.unclean_shutdown_epoch is None:
            machine.unclean_shutdown_epoch = self._broker_epoch(machine)
        machine.lost_power = machine.lost_power or power
        is_tolerable = self._is_tolerable()
        machine.unclean_shutdown_epoch, machine.lost_power = before
        return is_tolerable

    def may_kill(self, machine: Machine) -> bool:
        """Return whether the machine is running and the cluster must tolerate a SIGKILL of its process."""
        return machine.is_up and self._must_tolerate(machine, power=False)

    def may_lose_power(self, machine: Machine) -> bool:
        """Return whether the cluster must tolerate a power failure of the machine."""
        return self._must_tolerate(machine, power=True)

    def kill(self, machine: Machine) -> None:
        """Kill the process with SIGKILL: no cleanup runs, and the page cache keeps the written data."""
        self.log_event(f"{machine.name} is killed")
        machine.should_run = False
        self._mark_unclean(machine)
        self._kill(machine)

    def cut_power(self, machine: Machine) -> None:
        """Cut the machine's power: its peers are not notified, and unsynced data is lost."""
        self.log_event(f"{machine.name} loses power")
        machine.should_run = False
        self._mark_unclean(machine)
        machine.lost_power = True
        self.network.powered_off.add(machine.name)
        self._kill(machine, silently=True)
        machine.disk.lose_power()

    def _mark_unclean(self, machine: Machine) -> None:
        if machine.unclean_shutdown_epoch is None:
            machine.unclean_shutdown_epoch = self._broker_epoch(machine)

    def pause(self, machine: Machine) -> None:
        """Pause the machine's process with SIGSTOP."""
        if machine.process is not None:
            self.log_event(f"{machine.name} is paused (SIGSTOP)")
            self.loop.pause(machine.process)

    def resume(self, machine: Machine) -> None:
        """Resume the machine's process with SIGCONT."""
        if machine.process is not None and machine.process.is_paused:
            self.log_event(f"{machine.name} is resumed (SIGCONT)")
            self.loop.resume(machine.process)

    async def stop(self, machine: Machine) -> None:
        """Stop the machine's process with SIGTERM, or with SIGKILL after a timeout."""
        node, process = machine.node, machine.process
        if node is None or process is None or not machine.is_serving:
            return
        self.log_event(f"{machine.name} is stopping")
        machine.should_run = False
        stopping = self.loop.run_in_node(process, lambda: self.loop.create_task(node.stop()))
        machine.is_stopping = True
        end_s = self.now_s + _STOP_TIMEOUT_S
        while not stopping.done() and machine.process is process and self.now_s < end_s:
            await asyncio.sleep(0.02)
        machine.is_stopping = False
        if machine.process is not process:
            return
        if stopping.done():
            if stopping.exception() is not None:
                raise Violation(f"{machine.name} failed to stop: {stopping.exception()!r}")
            self.log_event(f"{machine.name} has stopped")
            if not machine.disk.files.exists(f"{_DIRECTORY}/{CLEAN_SHUTDOWN_FILE}"):  # it could not sync its logs
                self._mark_unclean(machine)
            self._kill(machine)
        else:
            self.kill(machine)


class _LoggedErrors(logging.Handler):
    """Collects the exceptions that nodes log at ERROR or above. Any such exception is a bug."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        super().__init__(logging.DEBUG if cluster.verbose else logging.ERROR)
        self._cluster = cluster
        self._found: list[str] = []
        self._loggers = [logging.getLogger("headrace_broker"), logging.getLogger("asyncio")]
        self._before = [(logger.level, logger.propagate) for logger in self._loggers]
        for logger in self._loggers:
            logger.addHandler(self)
            logger.setLevel(self.level)
            logger.propagate = False

    def emit(self, record: logging.LogRecord) -> None:
        node = self._cluster.loop.current_node()
        if node.is_dead or self._cluster.loop.is_closed():
            return
        text = f"{node.name}: {record.getMessage()}"
        if record.levelno >= logging.ERROR and record.exc_info and record.exc_info[1] is not None:
            self._found.append(f"{text}: {record.exc_info[1]!r}")
        if self._cluster.verbose:
            print(f"{self._cluster.now_s:9.4f}   {text}", file=sys.stderr)
            if record.exc_info:
                print(logging.Formatter().formatException(record.exc_info), file=sys.stderr)

    def check(self) -> None:
        """Raise Violation for the first exception that a node logged, if any."""
        if self._found:
            raise Violation(self._found[0])

    def close(self) -> None:
        for logger, (level, propagate) in zip(self._loggers, self._before, strict=True):
            logger.removeHandler(self)
            logger.setLevel(level)
            logger.propagate = propagate
        super().close()
