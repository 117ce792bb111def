"""Tools for tests of code that uses Kafka or Connect: plug-ins in memory, a broker with faults, a Connect worker.

The fixtures `kafka_broker` and `connect_worker` are available in every pytest run without an import. The names in this
module are imported on first use, so that a test without a broker does not load the broker's code.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.testing.broker import ConsumerRecord as ConsumerRecord
    from headrace.testing.broker import KafkaBroker as KafkaBroker
    from headrace.testing.broker_faults import Fault as Fault
    from headrace.testing.plugins import Converted as Converted
    from headrace.testing.plugins import apply as apply
    from headrace.testing.plugins import convert as convert
    from headrace.testing.self_reading_sink import SelfReadingSinkContext as SelfReadingSinkContext
    from headrace.testing.self_reading_sink import SelfReadingSinkRun as SelfReadingSinkRun
    from headrace.testing.sink_run import LostPartitions as LostPartitions
    from headrace.testing.sink_run import LostPut as LostPut
    from headrace.testing.sink_run import Pause as Pause
    from headrace.testing.sink_run import Rebalance as Rebalance
    from headrace.testing.sink_run import Restart as Restart
    from headrace.testing.sink_run import SinkRun as SinkRun
    from headrace.testing.sink_run import run_sink as run_sink
    from headrace.testing.source_run import LostAcknowledgement as LostAcknowledgement
    from headrace.testing.source_run import PauseSource as PauseSource
    from headrace.testing.source_run import RestartSource as RestartSource
    from headrace.testing.source_run import SourceRun as SourceRun
    from headrace.testing.source_run import run_source as run_source
    from headrace.testing.virtual_time import RepeatedRetriableError as RepeatedRetriableError
    from headrace.testing.worker import ConnectWorker as ConnectWorker
    from headrace.testing.worker import ConnectWorkerError as ConnectWorkerError

_MODULES = {
    "Converted": "plugins",
    "apply": "plugins",
    "convert": "plugins",
    "SelfReadingSinkContext": "self_reading_sink",
    "SelfReadingSinkRun": "self_reading_sink",
    "LostPartitions": "sink_run",
    "LostPut": "sink_run",
    "Pause": "sink_run",
    "Rebalance": "sink_run",
    "Restart": "sink_run",
    "SinkRun": "sink_run",
    "run_sink": "sink_run",
    "LostAcknowledgement": "source_run",
    "PauseSource": "source_run",
    "RestartSource": "source_run",
    "SourceRun": "source_run",
    "run_source": "source_run",
    "RepeatedRetriableError": "virtual_time",
    "ConsumerRecord": "broker",
    "KafkaBroker": "broker",
    "Fault": "broker_faults",
    "ConnectWorker": "worker",
    "ConnectWorkerError": "worker",
}

__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_MODULES)
