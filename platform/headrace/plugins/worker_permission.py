"""Checks whether a worker permits a plug-in.

Some plug-ins must be enabled by a property of the worker's configuration, such as `python.transform.enable`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.api.config_def import ConfigType, parse_value


def refusal(plugin: Any, worker: Mapping[str, str]) -> str | None:
    """Return the reason why a worker with these properties does not permit the plug-in, or None if it does."""
    name = plugin.required_worker_key
    if not name:
        return None
    from headrace.runtime.worker_config import is_distributed  # runtime imports this package
    from headrace.runtime.worker_keys import DISTRIBUTED, STANDALONE

    mode = "distributed" if is_distributed(worker) else "standalone"
    definition = (DISTRIBUTED if mode == "distributed" else STANDALONE).keys.get(name)
    text = worker.get(name)
    default = definition is not None and bool(definition.default)
    if default if text is None else parse_value(name, text, ConfigType.BOOLEAN):
        return None
    state = f"is {text}" if text is not None else f"is not set, and false by default in a {mode} worker"
    return (
        f"{plugin.__name__} runs code from the connector's configuration, which this worker does not permit: the "
        f"worker's key {name} {state}. Set {name}=true in the file of every worker, if everybody who may create "
        "connectors may run code on the workers"
    )
