"""`headrace validate FILE…`: every error and warning of connector files, without a worker or a broker."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from headrace.api.errors import ConnectError
from headrace.cli.files import FileError, read_connector_to_check, read_properties
from headrace.metrics import logs


def validate_files(paths: Sequence[Path], worker_file: Path | None) -> bool:
    """Print what is wrong with each file; whether all are valid."""
    try:
        worker = {} if worker_file is None else read_properties(worker_file)
    except FileError as error:
        click.echo(str(error), err=True)
        return False
    outcomes = [_validate_file(path, worker) for path in paths]
    return all(outcomes)


def _validate_file(path: Path, worker: dict[str, str]) -> bool:
    from headrace.runtime.connector_unit import validate_config

    try:
        connector = read_connector_to_check(path)
        with _logged_as_warnings_of(path):
            result = validate_config(connector.config, worker, None)
    except FileError as error:
        click.echo(str(error), err=True)
        return False
    except ConnectError as error:
        click.echo(f"{path}: {error}", err=True)
        return False
    # A rule about two keys stands at both.
    errors = list(dict.fromkeys(message for item in result["configs"] for message in item["value"]["errors"]))
    for warning in result["warnings"]:
        click.echo(f"{path}: warning: {warning}", err=True)
    for message in errors:
        click.echo(f"{path}: {logs.secrets.mask(message)}", err=True)
    if not errors:
        click.echo(f"{path}: {connector.name} is valid")
    return not errors


@contextmanager
def _logged_as_warnings_of(path: Path) -> Iterator[None]:
    """Print what plug-ins log meanwhile, a database that does not answer for example, as warnings of this file."""
    handler = _Warnings(path)
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)


class _Warnings(logging.Handler):
    def __init__(self, path: Path) -> None:
        super().__init__(logging.WARNING)
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        """Print one line."""
        click.echo(f"{self._path}: warning: {logs.secrets.mask(record.getMessage())}", err=True)
