"""The command `headrace`, which runs brokers, clusters and workers, and validates and generates files.

headrace broker start FILE | broker format FILE | cluster start … | connect standalone WORKER CONNECTOR… |
connect distributed WORKER | init [DIRECTORY] | validate FILE… | new KIND NAME | version

Other distributions can add commands (`headrace.cli.plugin_commands`).
"""

from __future__ import annotations

import sys
from importlib.metadata import version as distribution_version
from pathlib import Path

import click

from headrace.cli.cluster.commands import cluster
from headrace.cli.new_package import ENTRY_POINT_GROUPS
from headrace.cli.plugin_commands import CommandsWithPlugins
from headrace_broker.help_epilog import read_on

_PATH = click.Path(path_type=Path)
_BROKER_DOCUMENTS = read_on("docs/examples.md", "docs/broker.md", "docs/reference/broker.md")


@click.group(
    cls=CommandsWithPlugins,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=read_on("README.md", "docs/examples.md", "docs/features.md", "docs/reference"),
)
@click.version_option(package_name="headrace", prog_name="headrace", message="%(prog)s %(version)s")
def headrace() -> None:
    """Kafka-compatible brokers, Kafka Connect workers and lakehouse loading."""


@headrace.group(epilog=_BROKER_DOCUMENTS)
def broker() -> None:
    """Run brokers and format their storage."""


_PASS_THROUGH = {"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []}


@broker.command("start", context_settings=_PASS_THROUGH)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def broker_start(arguments: tuple[str, ...]) -> None:
    """Run one broker until it is stopped by a signal."""
    from headrace_broker.server.main import main

    sys.exit(main(list(arguments)))


@broker.command("format", epilog=_BROKER_DOCUMENTS)
@click.argument("file", type=_PATH)
@click.option("--cluster-id", help="the cluster id (default: a new random id)")
def broker_format(file: Path, cluster_id: str | None) -> None:
    """Format the empty data directories of a node."""
    from headrace_broker.server.config import ConfigError
    from headrace_broker.server.data_dirs import StartError
    from headrace_broker.server.main import format_storage, load_properties

    try:
        lines = format_storage(load_properties(str(file)), cluster_id)
    except ConfigError as error:
        _fail([f"headrace broker: {line}" for line in (*error.warnings, *error.errors)])
    except (StartError, OSError) as error:
        _fail([f"headrace broker: {error}"])
    for line in lines:
        click.echo(line)


headrace.add_command(cluster)


@headrace.group(epilog=read_on("docs/examples.md", "docs/connect.md", "docs/reference/worker.md"))
def connect() -> None:
    """Run Connect workers."""


@connect.command("standalone", context_settings=_PASS_THROUGH)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def connect_standalone(arguments: tuple[str, ...]) -> None:
    """Run a standalone worker; arguments are the worker file and connector files."""
    from headrace.cli.connect_standalone import main

    sys.exit(main(list(arguments)))


@connect.command("distributed", context_settings=_PASS_THROUGH)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def connect_distributed(arguments: tuple[str, ...]) -> None:
    """Run a worker of a group; the argument is the worker file."""
    from headrace.cli.connect_distributed import main

    sys.exit(main(list(arguments)))


@headrace.command(epilog=read_on("docs/examples.md", "docs/reference/connectors.md"))
@click.argument("directory", type=_PATH, default=Path())
def init(directory: Path) -> None:
    """Write an example with files of connectors, workers and a broker to an empty directory.

    The default is the current directory.
    """
    from headrace.cli.new_directory import RUN, DirectoryError, write_files

    try:
        paths = write_files(directory)
    except DirectoryError as error:
        _fail([f"headrace init: {error}"])
    click.echo(f"created {', '.join(paths)}")
    click.echo(f"next: {RUN if directory == Path() else f'cd {directory} && {RUN}'}")
    click.echo("then, in another shell: cat orders.txt")


@headrace.command(epilog=read_on("docs/examples.md", "docs/reference/worker.md", "docs/reference/connectors.md"))
@click.argument("files", nargs=-1, required=True, type=_PATH)
@click.option("--worker", type=_PATH, help="the worker file that sets config providers, plugin.path and converters")
def validate(files: tuple[Path, ...], worker: Path | None) -> None:
    """Validate connector files and worker files, and show all errors.

    No connector is started, but the validation of a JDBC source queries the tables and columns of its database. The
    exit code is 1 if there is an error.
    """
    from headrace.cli.validate import validate_files

    sys.exit(0 if validate_files(files, worker) else 1)


@headrace.command(epilog=read_on("docs/plugins.md", "docs/testing.md"))
@click.argument("kind", type=click.Choice(list(ENTRY_POINT_GROUPS)))
@click.argument("name")
@click.option("--dir", "directory", type=_PATH, default=Path(), help="parent directory (default: the current one)")
def new(kind: str, name: str, directory: Path) -> None:
    """Generate a package with a plug-in: its configuration, tests, entry point and README."""
    from headrace.cli.new_package import PackageError, create_package

    try:
        root = create_package(kind, name, directory)
    except PackageError as error:
        _fail([f"headrace new: {error}"])
    click.echo(f"created {root}; next: cd {root} && pip install --editable '.[test]' && pytest")


@headrace.command(epilog=read_on("CHANGELOG.md"))
def version() -> None:
    """Show the version."""
    click.echo(f"headrace {distribution_version('headrace')}")


def _fail(lines: list[str]) -> None:
    for line in lines:
        click.echo(line, err=True)
    sys.exit(1)


def entry() -> None:
    """Run the command `headrace` as a console script."""
    headrace(prog_name="headrace")


if __name__ == "__main__":
    entry()
