"""The metadata versions and feature levels of Kafka's releases, for `kafka-storage`. This module does no I/O."""

from __future__ import annotations

from headrace_broker.tools.tool_error import ToolError

_FIRST_LEVEL = 7
_LATEST = "4.3-IV0"
"""The newest stable metadata.version. A newer version is accepted only as a level (--feature), not as a name."""
# fmt: off
_NAMES = (
    "3.3-IV3", "3.4-IV0", "3.5-IV0", "3.5-IV1", "3.5-IV2", "3.6-IV0", "3.6-IV1", "3.6-IV2",
    "3.7-IV0", "3.7-IV1", "3.7-IV2", "3.7-IV3", "3.7-IV4", "3.8-IV0", "3.9-IV0", "4.0-IV0",
    "4.0-IV1", "4.0-IV2", "4.0-IV3", "4.1-IV0", "4.1-IV1", "4.2-IV0", "4.2-IV1", "4.3-IV0", "4.4-IV0",
)
# fmt: on
_DEFAULTS = {
    "kraft.version": (21, 1),
    "transaction.version": (24, 2),
    "group.version": (22, 1),
    "eligible.leader.replicas.version": (26, 1),
    "share.version": (28, 1),
    "streams.version": (29, 1),
}
"""{feature: (the first metadata.version that enables the feature by default, the feature's newest level)}."""
_DEPENDENCIES = {("eligible.leader.replicas.version", 1): "metadata.version=23 (4.0-IV1)"}
METADATA = "metadata.version"


def metadata_level(release: str) -> int:
    """Return the metadata.version level of a release such as `4.2` or `4.2-IV1`. Raises ToolError."""
    stable = _NAMES[: _NAMES.index(_LATEST) + 1]
    found = [level for level, name in enumerate(stable, _FIRST_LEVEL) if release in (name, name.partition("-")[0])]
    if not found:
        raise ToolError(f"Unknown metadata.version '{release}'. Supported metadata.version are: {', '.join(_NAMES)}")
    return found[-1]


def version_mapping(release: str | None) -> list[str]:
    """Return the output lines of `kafka-storage version-mapping` for `release`, by default the latest release.

    Raises ToolError.
    """
    shown = release or _LATEST
    level = metadata_level(shown)
    features = [f"{name}={newest if level >= first else 0}" for name, (first, newest) in _DEFAULTS.items()]
    return [f"{METADATA}={level} ({shown})", *features]


def parse_feature(text: str) -> tuple[str, int]:
    """Parse `feature=level` into (feature, level). Raises ToolError."""
    name, equals, level = text.partition("=")
    if not equals:
        raise ToolError(f"Invalid feature format: {text}. Expected format: 'feature=version' (e.g. 'group.version=1')")
    try:
        return name, int(level)
    except ValueError:
        raise ToolError(f"Invalid version format: {level} for feature {name}") from None


def feature_dependencies(name: str, level: int) -> list[str]:
    """Return the output lines of `kafka-storage feature-dependencies` for the feature `name` at level `level`.

    Raises ToolError.
    """
    if name == METADATA:
        if not 0 <= level - _FIRST_LEVEL < len(_NAMES):
            raise ToolError(f"Unknown {METADATA} {level}")
        return [f"{METADATA}={level} ({_NAMES[level - _FIRST_LEVEL]}) has no dependencies."]
    if name not in _DEFAULTS:
        raise ToolError(f"Unknown feature: {name}")
    if not 0 <= level <= _DEFAULTS[name][1]:
        raise ToolError(f"Feature level {level} is not supported for feature {name}")
    needs = _DEPENDENCIES.get((name, level))
    return [f"{name}={level} has no dependencies."] if needs is None else [f"{name}={level} requires:", f"    {needs}"]
