"""Commands, which never write over what they read, and groups of options, each of which is one typed value."""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields
from difflib import get_close_matches
from functools import wraps
from pathlib import Path
from types import UnionType
from typing import Any, Generic, Literal, TypeVar, Union, get_args, get_origin

import click
import cloup
from cloup.formatting import HelpSection

from quantmedic.api.options import Option, declared_options
from quantmedic.cli.successors import meant_option, refuse_option
from quantmedic.cli.values import KINDS, Output
from quantmedic.engine.errors import OutputError

Value = TypeVar("Value")
#: Titles of the groups in the order of the help.
TITLES = ("Choice", "Data", "Measuring", "Known from elsewhere", "Proof", "Judging", "Limits", "Output")
#: What ends the part of a help that is shown daily.
_FIRST_SENTENCE = re.compile(r"[.;] | \[default")
#: Entry of a context in which the help shows all options.
_ALL = "quantmedic.all_options"


class CommandOption(cloup.Option):
    """An option under the title of its group, which ``--help`` shows, or ``--help-all`` alone."""

    def __init__(self, *arguments: Any, title: str = "", daily: bool = True, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.title, self.daily = title, daily

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        record = super().get_help_record(ctx)
        if record is None or ctx.meta.get(_ALL):
            return record
        return (record[0], _FIRST_SENTENCE.split(self.help or "")[0].removesuffix(".")) if self.daily else None


class Command(cloup.Command):
    """A command with a short help and a whole one.

    It refuses to write over a file that it reads, and names what a removed or foreign option is now.
    """

    def __init__(self, *arguments: Any, params: Sequence[click.Parameter] = (), **settings: Any) -> None:
        groups = {title: cloup.OptionGroup(title) for title in TITLES}
        for each in params:
            if isinstance(each, CommandOption) and each.title:
                each.group = groups[each.title]
        super().__init__(*arguments, params=list(params), **settings)
        self.option_groups.sort(key=lambda group: TITLES.index(group.title))

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        return [*super().get_params(ctx), _help_all]

    def get_ungrouped_options(self, ctx: click.Context) -> Sequence[click.Option]:
        return [*super().get_ungrouped_options(ctx), _help_all]

    def format_params(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for group in self.option_groups:
            group.hidden = not self.make_option_group_help_section(group, ctx).definitions
        super().format_params(ctx, formatter)

    def make_option_group_help_section(self, group: cloup.OptionGroup, ctx: click.Context) -> HelpSection:
        shown = [option.get_help_record(ctx) for option in group]
        return HelpSection(group.title, [record for record in shown if record is not None])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            refuse_option(self.name or "", error.option_name)
            meant = meant_option(error.option_name)
            if any(meant in parameter.opts for parameter in self.params):
                words = f"No such option '{error.option_name}'. Did you mean '{meant}'?"
                raise click.NoSuchOption(error.option_name, words, ctx=ctx) from error
            near = get_close_matches(error.option_name, error.possibilities or (), 1)
            raise click.NoSuchOption(error.option_name, error.message, near, ctx=ctx) from error

    def invoke(self, ctx: click.Context) -> object:
        outputs = {parameter.name for parameter in self.params if isinstance(parameter.type, Output)}
        written = [path for name, path in ctx.params.items() if name in outputs and path is not None]
        read = [value for name, value in ctx.params.items() if name not in outputs]
        for path in written:
            for text in _texts(read):
                if _is_same_file(path, text):
                    raise OutputError("the output would replace what is read", where=text, help="name another file")
        return super().invoke(ctx)


def _show_all_options(ctx: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not ctx.resilient_parsing:
        ctx.meta[_ALL] = True
        click.echo(ctx.get_help(), color=ctx.color)
        ctx.exit()


_help_all = click.Option(
    ["--help-all"],
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_all_options,
    help="Show all options and exit.",
)


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
        """The group with other words for some of its options, or with more of them."""
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


def declared_group(name: str, kind: type[Value], title: str) -> OptionGroup[Value]:
    """The options that the fields of a dataclass declare, which become its value."""
    return OptionGroup(name, kind, options_of(kind, title))


def options_of(kind: type, title: str, *, inherited: bool = True) -> dict[str, Decorator]:
    """Each option that the fields of a dataclass declare for the command line, by the name of the field."""
    declared = declared_options(kind)
    return {
        field.name: _option_of(field.name, _last_type(field.type), field.default, declared[field.name], title)
        for field in fields(kind)
        if field.name in declared and declared[field.name].typed
        if inherited or field.name in kind.__annotations__
    }


def _last_type(kind: object) -> object:
    """A type, of several the last one that is not None."""
    if get_origin(kind) not in (Union, UnionType):
        return kind
    return [each for each in get_args(kind) if each is not type(None)][-1]


def _option_of(name: str, kind: object, default: object, declared: Option, title: str) -> Decorator:
    """One option as its field declares it."""
    flags = declared.typed_as(name)
    if default is True or declared.kind == "switch":
        flags = [f"{flags[0]}/--no-{flags[0].removeprefix('--')}"]
    takes = declared.takes or ("N" if kind is int else None)
    settings = {**(KINDS[declared.kind] if declared.kind else _settings_of(kind)), "metavar": takes}
    if default not in (None, (), MISSING):  # else click would hand over None in place of the field's own
        settings |= {"default": default, "show_default": not isinstance(default, bool | Path)}
    return option(*flags, name, help=declared.help, title=title, daily=declared.daily, **settings)


def _settings_of(kind: object) -> Mapping[str, Any]:
    """What click has to know of a field, by its type; texts are the rest."""
    origin = get_origin(kind)
    if origin is Literal:
        return {"type": click.Choice(get_args(kind))}
    if isinstance(origin, type) and issubclass(origin, Sequence | Mapping):
        return {"multiple": True, **_settings_of(_last_type(get_args(kind)[0]))}
    return _OF_TYPES.get(kind, {}) if isinstance(kind, type) else {}


_OF_TYPES: Mapping[type, Mapping[str, Any]] = {
    bool: {"is_flag": True},
    int: {"type": click.IntRange(1)},
    float: {"type": float},
    Path: {"type": click.Path(path_type=Path)},
}


def option(*declarations: str, **settings: Any) -> Decorator:
    """``click.option`` under a ``title`` of the help, and ``daily`` or not, typed as a decorator of commands."""
    return cloup.option(*declarations, cls=CommandOption, **settings)
