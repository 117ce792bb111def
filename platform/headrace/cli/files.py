"""Reads worker and connector files: Java properties, and the two JSON formats of connector files (KIP-980)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from headrace.data.java import trim
from headrace.stores.config_store import TargetState


class FileError(Exception):
    """A file is invalid or cannot be read. The message names the file and the reason."""


@dataclass(frozen=True, slots=True)
class ConnectorFile:
    """The contents of a connector file: the connector's name, configuration and initial state."""

    path: Path
    name: str
    config: dict[str, str]
    initial_state: TargetState | None = None


def read_properties(path: Path) -> dict[str, str]:
    """Read a Java properties file. Raises FileError."""
    import javaproperties

    try:
        return {trim(key): trim(value) for key, value in javaproperties.loads(_read(path)).items()}
    except javaproperties.InvalidUEscapeError as error:
        raise FileError(f"{path}: invalid \\u escape: {error}") from None


def read_connector(path: Path) -> ConnectorFile:
    """Read a connector file, which contains properties or JSON in one of the two formats of Kafka Connect.

    Raises FileError.
    """
    connector = read_connector_to_check(path)
    if not connector.name:
        raise FileError(f"{path}: the connector has no name; add the key `name`")
    return connector


def read_connector_to_check(path: Path) -> ConnectorFile:
    """Read a connector file for validation. A missing name is not an error here. Raises FileError."""
    text = _read(path)
    parsed: object = None
    if text.lstrip().startswith("{"):
        try:
            parsed = json.loads(text)
        except json.JSONDecodeError as error:
            if path.suffix == ".json":
                raise FileError(f"{path}, line {error.lineno}: invalid JSON: {error.msg}") from None
    state: TargetState | None = None
    if isinstance(parsed, dict):
        config, state = _from_json(path, parsed)
    else:
        config = read_properties(path)
    return ConnectorFile(path, config.get("name", "").strip(), config, state)


def _from_json(path: Path, parsed: dict[str, object]) -> tuple[dict[str, str], TargetState | None]:
    config = parsed.get("config")
    if not isinstance(config, dict):
        return _as_texts(path, parsed), None
    unknown = parsed.keys() - {"name", "config", "initial_state", "initial_offsets"}
    if unknown:
        raise FileError(f"{path}: unknown key {sorted(unknown)[0]}; only name, config and initial_state are supported")
    settings = _as_texts(path, config)
    name = parsed.get("name")
    if isinstance(name, str) and settings.setdefault("name", name.strip()) != name.strip():
        raise FileError(f"{path}: name is {name.strip()!r}, but config.name is {settings['name']!r}")
    return settings, _state(path, parsed.get("initial_state"))


def _state(path: Path, text: object) -> TargetState | None:
    if text is None:
        return None
    try:
        return TargetState.from_initial_state(str(text))
    except ValueError as error:
        raise FileError(f"{path}: {error}") from None


def _as_texts(path: Path, mapping: dict[str, object]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for key, value in mapping.items():
        if isinstance(value, (dict, list)) or value is None:
            raise FileError(f"{path}: the value of {key} is not a string, number or boolean")
        texts[key] = ("true" if value else "false") if isinstance(value, bool) else str(value)
    return texts


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise FileError(f"{path}: no such file") from None
    except UnicodeDecodeError:
        return path.read_text(encoding="latin-1")  # the encoding of java.util.Properties
    except OSError as error:
        raise FileError(f"{path}: {error.strerror}") from None
