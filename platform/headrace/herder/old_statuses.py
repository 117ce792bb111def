"""Replaces statuses of workers that are not in the group, for example of a group that had another name.

A new group starts with generation 1. Such a status may therefore have a later generation than this worker's statuses,
which would then not replace it.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator, Set

from headrace.herder.assignment import Assignment
from headrace.herder.instances import Instances
from headrace.stores.kafka_status_store import KafkaStatusStore
from headrace.stores.status_store import Status

log = logging.getLogger(__name__)


class OldStatuses:
    """Finds and replaces the old statuses of the connectors and tasks that this worker runs."""

    def __init__(self, statuses: KafkaStatusStore, instances: Instances) -> None:
        self._statuses = statuses
        self._instances = instances
        self._reported = set[str]()

    def exist(self, assignment: Assignment, generation: int) -> bool:
        """Whether other workers have written later statuses for connectors or tasks that this worker runs."""
        return any(True for _ in self._later(assignment, generation))

    async def replace(
        self, assignment: Assignment, generation: int, worker_ids: Callable[[], Awaitable[Set[str]]]
    ) -> None:
        """Write this worker's statuses, unless a member of the group (`worker_ids`) has written a later status."""
        members = await worker_ids()
        for name, task, status in list(self._later(assignment, generation)):
            if status.worker_id in members:
                continue
            self._report(status.worker_id)
            log.info(
                "Connector %s: replacing the status of %s that worker %s wrote in generation %d, because that "
                "worker is not a member of the group",
                name,
                "the connector" if task is None else f"task {task}",
                status.worker_id,
                status.generation,
            )
            self._statuses.adopt(name, task, self._instances.worker_id)
            self._instances.carry_out(self._instances.core.status_replaced(name, task))

    def _report(self, worker_id: str) -> None:
        """Log once that this worker replaces the statuses of a worker, which may be running in another group."""
        if worker_id not in self._reported:
            self._reported.add(worker_id)
            log.warning(
                "Status topic: worker %s, which is not a member of the group, has written statuses of this worker's "
                "connectors; this worker replaces them. If that worker is running, another group uses the same "
                "internal topics, and both groups run the same connectors: stop one of the groups, and set another "
                "status.storage.topic, config.storage.topic and offset.storage.topic for it",
                worker_id,
            )

    def _later(self, assignment: Assignment, generation: int) -> Iterator[tuple[str, int | None, Status]]:
        for name, task in [*((name, None) for name in assignment.connectors), *assignment.tasks]:
            statuses = self._statuses.get(name)
            status = statuses.connector if task is None else statuses.tasks.get(task)
            if status is not None and status.worker_id != self._instances.worker_id and status.generation > generation:
                yield name, task, status
