"""The commands `headrace lakehouse`: package headrace for executors, and run a Spark Connect server."""

from __future__ import annotations

import sys
from pathlib import Path

import click

_ARCHIVE, _ZIP = "headrace-executors.tar.gz", "headrace-executors.zip"


@click.group()
def lakehouse() -> None:
    """Prepare Spark for lakehouse sinks."""


@lakehouse.command()
@click.option("--output", type=click.Path(path_type=Path, dir_okay=False), help=f"default: {_ARCHIVE} or {_ZIP}")
@click.option("--code-only", is_flag=True, help="package only headrace, for nodes that have its dependencies")
def package(output: Path | None, code_only: bool) -> None:
    """Make the file that the executors of a cluster need (lakehouse.executors.package)."""
    from headrace_connectors.lakehouse.spark.conf import is_archive
    from headrace_connectors.lakehouse.spark.package import PackageError, write_archive, write_code

    output = output or Path(_ZIP if code_only else _ARCHIVE)
    suffix = ".zip" if code_only else ".tar.gz"
    if is_archive(output) == code_only or (code_only and output.suffix != ".zip"):
        raise click.BadParameter(f"the name must end with {suffix}", param_hint="--output")
    try:
        size = write_code(output) if code_only else write_archive(output)
    except (PackageError, OSError) as error:
        click.echo(f"headrace lakehouse package: {error}", err=True)
        sys.exit(1)
    click.echo(f"lakehouse.executors.package={output.absolute()}")
    python = "{}.{}".format(*sys.version_info[:2])
    click.echo(f"{size / 1e6:.1f} MB, for executors with Python {python}", err=True)


@lakehouse.command()
@click.option("--port", type=click.IntRange(1, 65535), default=15002, show_default=True)
@click.option("--conf", multiple=True, metavar="KEY=VALUE", help="Spark's configuration, for example spark.master=...")
def server(port: int, conf: tuple[str, ...]) -> None:
    """Run a Spark Connect server on 127.0.0.1, which several connectors can share. Ctrl-C ends it."""
    from headrace.api.errors import ConnectError
    from headrace_connectors.lakehouse.spark.connect_server import SparkConnectServer

    settings = {}
    for item in conf:
        key, found, value = item.partition("=")
        if not found or not key.startswith("spark."):
            raise click.BadParameter(f"{item} is not spark.KEY=VALUE", param_hint="--conf")
        settings[key] = value
    try:
        with SparkConnectServer(port, settings) as running:
            click.echo(f"spark.remote={running.remote}")
            status = running.wait()
            click.echo(f"headrace lakehouse server: Spark exited with status {status}\n{running.output()}", err=True)
            sys.exit(1)
    except KeyboardInterrupt:
        return
    except ConnectError as error:
        click.echo(f"headrace lakehouse server: {error}", err=True)
        sys.exit(1)
