"""Options of the command line as parameters of the Python functions, in the texts of errors.

Errors name options. Who called a function of Python reads what that function takes instead.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import fields
from functools import wraps
from typing import ParamSpec, TypeVar

from quantmedic.api.options import CollectOptions, declared_options
from quantmedic.engine.errors import QuantmedicError

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
        for flag in option.flags.split() or [f"--{name.replace('_', '-')}"]:
            yield flag.removeprefix("--"), name, defaults[name]


#: Parameters by the names of their options, and the options that are switched on.
NAMES = {**{flag: name for flag, name, _ in _list_options()}, **_OTHERS}
FLAGS = frozenset({*(flag for flag, _, default in _list_options() if default is False), "prove"})
#: Keys of ``--metric-option`` that are parameters of their own.
_OF_THE_METRIC = {"direction": "metric_direction", "output": "metric_output"}
WORDS = "higher|lower|direction|output|fast|exact|cer|wer|NHWC|NCHW"
#: A whole command, which stays as it is, or an option with what looks like its value.
_OPTION = re.compile(
    r"(?P<command>quantmedic [a-z-]+ .*)"
    rf"|--(?P<name>[a-z][a-z-]*)(?:[ =](?P<value>(?:{WORDS})\b(?!=)|[^\s;,]*[A-Z0-9=:'][^\s;,]*))?"
)


def with_parameters(text: str) -> str:
    """The text with parameters in place of options: ``metric="top1"`` for ``--metric top1``."""
    return _OPTION.sub(_parameter, text)


def _parameter(match: re.Match[str]) -> str:
    name, value = match["name"], match["value"]
    if match["command"] is not None:
        return match[0]
    if name in FLAGS:
        return f"{name.replace('-', '_')}=True" + (f" {value}" if value else "")
    if name == "static":
        return "collect_static" + (f" {value}" if value else "")
    if name == "preprocess" and value is not None:
        head, _, given = value.partition("=")
        role, dot, key = head.rpartition(".")
        made = f"quantmedic.Preprocessing({key}={_literal(given)})"
        return f'preprocessing={{"{role}": {made}}}' if dot else f"preprocessing={made}"
    if name not in NAMES:
        return match[0]
    parameter = NAMES[name]
    key, equals, given = (value or "").partition("=")
    if parameter == "metric_options" and key in _OF_THE_METRIC:
        return f"{_OF_THE_METRIC[key]}{f'={_literal(given)}' if equals else ''}"
    if equals:
        return f'{parameter}={{"{key}": {_literal(given)}}}'
    return f"{parameter}={_literal(value) if value else '…'}"


def _literal(text: str) -> str:
    """Numbers, seconds without their unit, and placeholders as they are; other texts in quotes."""
    if re.fullmatch(r"-?[\d.]+s?", text):
        return text.removesuffix("s")
    return text if text.isupper() or text.startswith(("'", '"')) else f'"{text}"'


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
