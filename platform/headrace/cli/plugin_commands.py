"""The commands of other distributions, which the command `headrace` finds by the entry points in `headrace.commands`.

The name of an entry point is the name of the command, and its object is a `click.Command` or `click.Group`. A command
is imported when it is run, and for the help of `headrace`. A command that cannot be used does not affect the others:
the help lists it with the reason.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points

import click

GROUP = "headrace.commands"


class CommandError(Exception):
    """A command cannot be used. The message says why."""


class CommandsWithPlugins(click.Group):
    """A group with its own commands and those of the entry points. Its own commands take precedence."""

    @cached_property
    def _points(self) -> dict[str, list[EntryPoint]]:
        points: dict[str, list[EntryPoint]] = {}
        for point in entry_points(group=GROUP):
            points.setdefault(point.name, []).append(point)
        return points

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands that can be used."""
        own = super().list_commands(ctx)
        unusable = dict(self._unusable())
        return sorted({*own, *(name for name in self._points if name not in unusable)})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a command, or None if its name is unknown. A command that cannot be used prints the reason."""
        own = super().get_command(ctx, cmd_name)
        if own is not None or cmd_name not in self._points:
            return own
        try:
            return _load(self._points[cmd_name])
        except CommandError as error:
            return _failing_command(cmd_name, str(error))

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands to the help, and then those that cannot be used."""
        super().format_commands(ctx, formatter)
        unusable = sorted(self._unusable())
        if unusable:
            with formatter.section("Commands that cannot be used"):
                formatter.write_dl(unusable)

    def _unusable(self) -> Iterator[tuple[str, str]]:
        """Yield the name of each command of an entry point that cannot be used, and the reason."""
        for name, points in self._points.items():
            try:
                if name in self.commands:
                    raise CommandError(f"headrace has another command of this name, which hides {_origins(points)}")
                _load(points)
            except CommandError as error:
                yield name, str(error)


def _load(points: Sequence[EntryPoint]) -> click.Command:
    """Import the command of the entry points with one name. Raises CommandError."""
    if len({point.value for point in points}) > 1:
        raise CommandError(f"several distributions define this command: {_origins(points)}; uninstall all but one")
    try:
        command = points[0].load()
    except (Exception, SystemExit) as error:
        raise CommandError(f"{_origins(points)} cannot be imported: {type(error).__name__}: {error}") from error
    if not isinstance(command, click.Command):
        raise CommandError(f"{_origins(points)} is not a click.Command")
    return command


def _origins(points: Sequence[EntryPoint]) -> str:
    return ", ".join(
        point.value if point.dist is None else f"{point.value} (distribution {point.dist.name})" for point in points
    )


def _failing_command(name: str, reason: str) -> click.Command:
    """Return a command that accepts any arguments, prints the reason and exits with status 1."""

    def fail(arguments: Sequence[str]) -> None:
        click.echo(f"headrace {name}: {reason}", err=True)
        sys.exit(1)

    return click.Command(
        name,
        callback=fail,
        params=[click.Argument(["arguments"], nargs=-1, type=click.UNPROCESSED)],
        context_settings={"ignore_unknown_options": True},
        add_help_option=False,
    )
