"""Signatures and docstrings as notebooks and ``help`` show them: options that stand as ``**options``, one by one."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import MISSING, fields
from inspect import Parameter, Signature, signature
from textwrap import fill
from typing import get_args, get_type_hints

from quantmedic.api.options import SearchOptions, declared_options
from quantmedic.collectors.data.preprocessing import Preprocessing

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
