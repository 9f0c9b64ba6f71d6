"""Commands, which never write over what they read, and groups of options, each of which is one typed value."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Generic, TypeVar

import click

from quantmedic.cli.successors import meant_option, refuse_removed
from quantmedic.cli.values import OutputFile
from quantmedic.engine.errors import OutputError

Value = TypeVar("Value")
#: Settings of every command.
CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


class Command(click.Command):
    """A command that refuses to write over a file that it reads, and names what a removed or foreign option is now."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            refuse_removed(f"{ctx.info_name} {error.option_name}")
            meant = meant_option(error.option_name)
            if any(meant in parameter.opts for parameter in self.params):
                words = f"No such option '{error.option_name}'. Did you mean '{meant}'?"
                raise click.NoSuchOption(error.option_name, words, ctx=ctx) from error
            raise

    def invoke(self, ctx: click.Context) -> object:
        outputs = {parameter.name for parameter in self.params if isinstance(parameter.type, OutputFile)}
        written = [path for name, path in ctx.params.items() if name in outputs and path is not None]
        read = [value for name, value in ctx.params.items() if name not in outputs]
        for path in written:
            for text in _texts(read):
                if _is_same_file(path, text):
                    raise OutputError("the output would replace what is read", where=text, help="name another file")
        return super().invoke(ctx)


def _texts(values: Iterable[object]) -> Iterator[str]:
    """All texts and paths among what was given, and in lists."""
    for value in values:
        if isinstance(value, str | Path):
            yield str(value)
        elif isinstance(value, tuple | list):
            yield from _texts(value)


def _is_same_file(path: Path, text: str) -> bool:
    """A path, ``NAME=PATH`` or ``@PATH`` leads to this file."""
    for name in (text, text.partition("=")[2], text.removeprefix("@")):
        with suppress(OSError, ValueError):  # no such file, or no path at all
            if name and path.is_file() and os.path.samefile(path, name):
                return True
    return False


#: A command's function before and after an option is added.
Function = Callable[..., None]
Decorator = Callable[[Function], Function]


@dataclass(frozen=True)
class OptionGroup(Generic[Value]):
    """Options that belong together, and the value that they become.

    Attributes:
        name: Parameter of the command that receives the value.
        build: Makes the value of what click parsed; called with the names of ``options``.
        options: Each option by the name under which click hands it over.
    """

    name: str
    build: Callable[..., Value]
    options: Mapping[str, Decorator]

    def __iter__(self) -> Iterator[str]:
        return iter(self.options)

    def only(self, *names: str) -> "OptionGroup[Value]":
        """The group with these options alone; the others keep the defaults of ``build``."""
        return OptionGroup(self.name, self.build, {name: self.options[name] for name in names})

    def without(self, *names: str) -> "OptionGroup[Value]":
        """The group without these options, which keep the defaults of ``build``."""
        return self.only(*(name for name in self.options if name not in names))

    def replacing(self, **options: Decorator) -> "OptionGroup[Value]":
        """The group with other words for some of its options."""
        return OptionGroup(self.name, self.build, {**self.options, **options})

    def __call__(self, function: Function) -> Function:
        """Decorate a command: add the options, and pass their value on."""

        @wraps(function)
        def command(*arguments: object, **parsed: object) -> None:
            own = {name: parsed.pop(name) for name in self.options}
            function(*arguments, **{self.name: self.build(**own)}, **parsed)

        for option in reversed(list(self.options.values())):
            option(command)
        return command


def join_groups(name: str, build: Callable[..., Value], *groups: OptionGroup[Any]) -> OptionGroup[Value]:
    """One group of several, whose values ``build`` takes under the names of the groups."""

    def build_all(**parsed: object) -> Value:
        parts = {group.name: {key: parsed[key] for key in group if key in parsed} for group in groups}
        return build(**{group.name: group.build(**parts[group.name]) for group in groups})

    return OptionGroup(name, build_all, {key: option for group in groups for key, option in group.options.items()})


def option(*declarations: str, **settings: object) -> Decorator:
    """``click.option``, typed as a decorator of commands."""
    return click.option(*declarations, **settings)  # type: ignore[arg-type]  # click's own settings, passed on
