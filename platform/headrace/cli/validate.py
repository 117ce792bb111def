"""The command `headrace validate FILE…`, which shows errors and warnings of connector and worker files.

The command needs no broker. A file is a worker file if it contains a worker's key, such as `group.id` or `listeners`,
and no `connector.class`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import click

from headrace.api.errors import ConnectError
from headrace.cli.files import FileError, read_connector_to_check, read_properties
from headrace.metrics import logs
from headrace.metrics.logged_warnings import logged_warnings
from headrace.runtime.worker_config import WorkerConfig, is_distributed


def validate_files(paths: Sequence[Path], worker_file: Path | None) -> bool:
    """Print the errors of each file; return whether all files are valid.

    Connector files are validated with the settings of the worker in `worker_file`, if it is not None.
    """
    try:
        worker = {} if worker_file is None else read_properties(worker_file)
    except FileError as error:
        click.echo(str(error), err=True)
        return False
    outcomes = [_validate_worker(path) if _is_worker_file(path) else _validate_file(path, worker) for path in paths]
    return all(outcomes)


_WORKER_KEYS = ("group.id", "bootstrap.servers", "listeners", "plugin.path")


def _is_worker_file(path: Path) -> bool:
    if path.suffix == ".json":
        return False
    try:
        properties = read_properties(path)
    except FileError:
        return False
    if "connector.class" in properties:
        return False
    return any(key in _WORKER_KEYS or ".storage." in key for key in properties)


def _validate_worker(path: Path) -> bool:
    """Print the errors and warnings that a worker with this file would log when it starts.

    Return whether there are no errors.
    """
    from headrace.cli.worker_process import resolve_variables
    from headrace.runtime.converter_check import check
    from headrace.runtime.worker_checks import check_worker

    properties = read_properties(path)
    if "process.roles" in properties or "node.id" in properties:
        click.echo(f"{path}: this is a broker's file; `headrace broker start` checks it", err=True)
        return False
    is_group = is_distributed(properties)
    try:
        with _print_logged_warnings(path):
            originals = properties
            properties, unresolved = resolve_variables(originals)
            logs.mask_secrets_of(properties)
            parse = WorkerConfig.distributed if is_group else WorkerConfig.standalone
            result = check_worker(properties, parse, originals, unresolved)
            plugin_errors = [
                error for error in check(properties, originals) if properties.get(error.partition("=")[0], "").strip()
            ]
    except ConnectError as error:
        click.echo(f"{path}: {error}", err=True)
        return False
    _print_warnings(path, result.warnings)
    errors = [*result.errors, *plugin_errors]
    for message in errors:
        click.echo(f"{path}: {logs.secrets.mask(message)}", err=True)
    if not errors:
        click.echo(f"{path}: valid configuration of a {'distributed' if is_group else 'standalone'} worker")
    return not errors


def _validate_file(path: Path, worker: dict[str, str]) -> bool:
    from headrace.runtime.worker_connector import validate_config

    with logged_warnings() as logged:
        try:
            connector = read_connector_to_check(path)
            result = validate_config(connector.config, worker, None)
        except FileError as error:
            click.echo(str(error), err=True)
            return False
        except ConnectError as error:
            _print_warnings(path, logged)
            click.echo(f"{path}: {error}", err=True)
            return False
    # An error about two keys is reported for both. Print it once, after the first key unless it names this key.
    errors: dict[str, str] = {}
    for item in result["configs"]:
        for message in item["value"]["errors"]:
            errors.setdefault(message, "" if item["value"]["name"] in message else f"{item['value']['name']}: ")
    _print_warnings(path, [*logged, *result["warnings"], *result["connector_warnings"]])
    for message, key in errors.items():
        click.echo(f"{path}: {key}{logs.secrets.mask(message)}", err=True)
    if not errors:
        click.echo(f"{path}: {connector.name} is valid")
    return not errors


def _print_warnings(path: Path, warnings: Iterable[str]) -> None:
    for warning in dict.fromkeys(map(logs.secrets.mask, warnings)):
        click.echo(f"{path}: warning: {warning}", err=True)


@contextmanager
def _print_logged_warnings(path: Path) -> Iterator[None]:
    """Print the warnings and errors that plug-ins log while they validate the file `path`."""
    with logged_warnings() as logged:
        try:
            yield
        finally:
            _print_warnings(path, logged)
