"""Signatures and docstrings as notebooks and ``help`` show them: options that stand as ``**options``, one by one."""

from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields
from inspect import Parameter, Signature, signature
from textwrap import fill
from typing import Any, get_args, get_type_hints

from quantmedic.api.options import CollectOptions, declared_options, measuring_groups
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
    defaults, taken = dict(_defaults()), {each.name for each in shown}
    options = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=defaults.get(name), annotation=kind)
        for name, kind in get_type_hints(arguments, localns={"Preprocessing": Preprocessing}).items()
        if name not in taken
    ]
    return known.replace(parameters=[*shown, *options])


def docstring(function: Callable[..., object]) -> str | None:
    """The docstring with what each option means in place of ``**options``, where it has that line."""
    text = function.__doc__
    return text and text.replace(_EVERY_OPTION, "".join(_entries()))


def _entries() -> Iterator[str]:
    taken = {"representative", "validation"}
    for kind in (*measuring_groups(), CollectOptions):
        for name, option in declared_options(kind).items():
            if name not in taken:
                entry = f"{name}: {option.python or option.help}"
                yield fill(entry, 120, initial_indent=" " * 8, subsequent_indent=" " * 12) + "\n"


def _defaults() -> Iterator[tuple[str, Any]]:
    """Defaults of the groups that options are sorted into."""
    for kind in measuring_groups():
        yield from ((field.name, None if field.default is MISSING else field.default) for field in fields(kind))
