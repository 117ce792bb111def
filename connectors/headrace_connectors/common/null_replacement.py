"""Reads the converter's setting for null fields that have a default, for sinks that serialize structs themselves."""

from __future__ import annotations

from headrace.api.config import Config


def replaces_null_with_default(config: Config, converter: str) -> bool:
    """Whether a sink writes the default of a field that is null.

    `converter` is ``value.converter`` or ``key.converter``. If its ``replace.null.with.default`` is false, the
    converter returns null for such a field, and the sink must not replace the null. If the connector does not set the
    converter, the originals of the task's configuration contain the settings of the worker's converter.
    """
    text = config.originals.get(f"{converter}.replace.null.with.default", "true")
    return text.strip().lower() != "false"
