"""Command groups that import the module of a command when the command is called: ``--help`` stays cheap."""

from collections.abc import Mapping
from importlib import import_module
from typing import NamedTuple

import click
from click.shell_completion import CompletionItem

#: Settings of every command.
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class LazyCommand(NamedTuple):
    """Where a command is defined, as ``module:function``, and its line in the help of the group."""

    place: str
    help: str


class LazyGroup(click.Group):
    """Shows commands in the order of their table, and loads one by its name."""

    def __init__(self, *arguments: object, table: Mapping[str, LazyCommand], **settings: object) -> None:
        super().__init__(*arguments, **settings)  # type: ignore[arg-type]  # click's own arguments, passed on
        self.table = table

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.table:
            return None
        module, _, function = self.table[cmd_name].place.partition(":")
        command = getattr(import_module(module), function)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, command.help) for name, command in self.table.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        commands = [
            CompletionItem(name, help=command.help)
            for name, command in self.table.items()
            if name.startswith(incomplete)
        ]
        return [*commands, *click.Command.shell_complete(self, ctx, incomplete)]
