"""Signatures as notebooks and ``help`` show them: options that stand as ``**options`` in the code, one by one."""

from collections.abc import Callable, Iterator
from dataclasses import MISSING, fields, is_dataclass
from inspect import Parameter, Signature, signature
from typing import Any, get_args, get_type_hints

from quantmedic.api.options import CollectOptions
from quantmedic.collectors.data.preprocessing import Preprocessing


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


def _defaults() -> Iterator[tuple[str, Any]]:
    """Defaults of the groups that options are sorted into, and of what stands in none."""
    yield "progress", True
    for group in filter(is_dataclass, vars(CollectOptions()).values()):
        yield from ((field.name, None if field.default is MISSING else field.default) for field in fields(group))
