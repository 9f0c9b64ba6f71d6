"""What Python's callers write and read: keyword arguments, their signatures and docstrings, errors that name them."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from difflib import get_close_matches
from functools import wraps
from inspect import Parameter, Signature, signature
from textwrap import fill
from typing import Any, ParamSpec, TypeVar, get_args, get_type_hints

from quantmedic.api.arguments import CollectArguments, SearchArguments
from quantmedic.api.options import CollectOptions, DataSource, SearchOptions, declared_options
from quantmedic.collectors.data.preprocessing import Preprocessing, preprocessing_by_role
from quantmedic.engine.errors import QuantmedicError

Options = TypeVar("Options", bound=CollectOptions)


def group_arguments(
    representative: DataSource | None, validation: DataSource | None, arguments: CollectArguments
) -> CollectOptions:
    """The arguments of ``collect``; those that are missing or None have their defaults.

    Raises:
        DataError: ``preprocessing`` is none, and no mapping of roles to it.
        TypeError: An argument has no such name.
    """
    for name in arguments.keys() - CollectArguments.__annotations__.keys():
        raise TypeError(f"there is no argument {name!r}{_hint(name)}")
    return _fill(CollectOptions, {"representative": representative, "validation": validation, **arguments})


def group_search_arguments(arguments: SearchArguments) -> SearchOptions:
    """The same of ``search``, whose names are known."""
    return _fill(SearchOptions, arguments)


def _fill(kind: type[Options], given: Mapping[str, Any]) -> Options:
    known = {**given, "preprocessing": preprocessing_by_role(given.get("preprocessing"))}
    return kind(**{name: value for name, value in known.items() if value is not None})


def _hint(name: str) -> str:
    """What a name that is no argument may have meant; options of the command line may be fields of another one."""
    if name in Preprocessing.__dataclass_fields__:
        return f": give preprocessing=quantmedic.Preprocessing({name}=…), for both data sets or by role"
    close = get_close_matches(name, CollectArguments.__annotations__, 1)
    return f"; is it {close[0]!r}?" if close else ""


#: The line of a docstring that the entries of all options replace.
_EVERY_OPTION = "        **options: See ``quantmedic.api.options``.\n"


def spelled_out(function: Callable[..., object]) -> Signature:
    """The signature with each option in place of ``**options``, and with its default."""
    known = signature(function)
    shown = list(known.parameters.values())
    if not shown or shown[-1].kind is not Parameter.VAR_KEYWORD or not get_args(shown[-1].annotation):
        return known
    (arguments,) = get_args(shown.pop().annotation)
    defaults = {each.name: None if each.default is MISSING else each.default for each in fields(SearchOptions)}
    taken = {each.name for each in shown}
    options = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=defaults.get(name), annotation=kind)
        for name, kind in get_type_hints(arguments, localns={"Preprocessing": Preprocessing}).items()
        if name not in taken
    ]
    return known.replace(parameters=[*shown, *options])


def docstring(function: Callable[..., object]) -> str | None:
    """The docstring with what each option means in place of ``**options``, where it has that line."""
    text = function.__doc__
    if text is None or _EVERY_OPTION not in text:
        return text
    (arguments,) = get_args(list(signature(function).parameters.values())[-1].annotation)
    names = [name for name in arguments.__annotations__ if f"\n        {name}: " not in text]
    return text.replace(_EVERY_OPTION, "".join(_entries(names)))


def _entries(names: Iterable[str]) -> Iterator[str]:
    declared = declared_options(SearchOptions)
    for name in names:
        entry = f"{name}: {declared[name].python or declared[name].help}"
        yield fill(entry, 120, initial_indent=" " * 8, subsequent_indent=" " * 12) + "\n"


P = ParamSpec("P")
R = TypeVar("R")
#: Parameters of functions that take no group of options, by the names of the options.
_OTHERS = {
    "budget": "prove",
    "max-drop": "max_drop",
    "min-sqnr": "min_sqnr_db",
    "previous": "previous",
    "rules": "folders",
    "toolchain": "toolchain",
}


def _list_options() -> Iterator[tuple[str, str, object]]:
    """Each option of a measurement without its dashes, its parameter, and the type of that."""
    defaults = {each.name: each.default for each in fields(CollectOptions)}
    for name, option in declared_options(CollectOptions).items():
        for flag in option.typed_as(name):
            yield flag.removeprefix("--"), name, defaults[name]


#: Parameters by the names of their options, and the options that are switched on.
NAMES = {**{flag: name for flag, name, _ in _list_options()}, **_OTHERS}
FLAGS = frozenset({*(flag for flag, _, default in _list_options() if default is False), "prove"})
#: Keys of ``--metric-option`` that are parameters of their own.
_OF_THE_METRIC = {"direction": "metric_direction", "output": "metric_output"}
WORDS = "higher|lower|direction|output|fast|exact|cer|wer|NHWC|NCHW"
#: A whole command, which stays as it is, steps of preprocessing, or an option with what looks like its value.
_OPTION = re.compile(
    r"(?P<command>quantmedic [a-z-]+ .*)"
    r"|(?P<steps>-p [\w.]+=[^\s;,)]+(?: -p [\w.]+=[^\s;,)]+)*)"
    rf"|--(?P<name>[a-z][a-z-]*)(?:[ =](?P<value>(?:{WORDS})\b(?!=)|[^\s;,]*[A-Z0-9=:'][^\s;,]*))?"
)


def with_parameters(text: str) -> str:
    """The text with parameters in place of options: ``metric="top1"`` for ``--metric top1``."""
    return _OPTION.sub(_parameter, text)


def _parameter(match: re.Match[str]) -> str:
    name, value = match["name"], match["value"]
    if match["command"] is not None:
        return match[0]
    if match["steps"] is not None:
        return _preprocessing(match["steps"].removeprefix("-p ").split(" -p "))
    if name in FLAGS:
        return f"{name.replace('-', '_')}=True" + (f" {value}" if value else "")
    if name == "static":
        return "collect_static" + (f" {value}" if value else "")
    if name == "preprocess" and value is not None:
        return _preprocessing([value])
    if name not in NAMES:
        return match[0]
    parameter = NAMES[name]
    key, equals, given = (value or "").partition("=")
    if parameter == "metric_options" and key in _OF_THE_METRIC:
        return f"{_OF_THE_METRIC[key]}{f'={_literal(given)}' if equals else ''}"
    if equals:
        return f'{parameter}={{"{key}": {_literal(given)}}}'
    return f"{parameter}={_literal(value) if value else '…'}"


def _preprocessing(steps: Sequence[str]) -> str:
    """Steps of one data set, or of both."""
    role, dot, _ = steps[0].partition("=")[0].rpartition(".")
    own = [step.removeprefix(f"{role}.").partition("=") for step in steps]
    made = f"quantmedic.Preprocessing({', '.join(f'{key}={_literal(given)}' for key, _, given in own)})"
    return f'preprocessing={{"{role}": {made}}}' if dot else f"preprocessing={made}"


def _literal(text: str) -> str:
    """Numbers, seconds without their unit, and placeholders as they are; other texts in quotes."""
    if re.fullmatch(r"-?[\d.]+s?", text):
        return text.removesuffix("s")
    return text if text.isupper() or text.startswith(("'", '"', "…")) else f'"{text}"'


def for_python(function: Callable[P, R]) -> Callable[P, R]:
    """The function with errors that name its parameters, not options of the command line."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except QuantmedicError as error:
            error.translate = with_parameters
            raise

    return call
