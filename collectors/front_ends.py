"""The front ends that are known, and which of them a model belongs to.

A front end is a package ``from_*`` of this folder with a module ``front_end`` that holds a ``FRONT_END``.
"""

import pkgutil
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from quantmedic import collectors
from quantmedic.collectors.measure.front_end import FrontEnd
from quantmedic.engine.errors import ModelError

_MODULE = "front_end"
_registered: list[FrontEnd] = []


def register(front_end: FrontEnd) -> None:
    """Add a front end from outside this folder; it is asked before those that take the rest."""
    _registered.append(front_end)


def front_ends() -> list[FrontEnd]:
    """All front ends in the order in which they are asked whether a model is theirs."""
    return sorted([*_own_front_ends(), *_registered], key=lambda each: each.takes_rest)


@cache
def _own_front_ends() -> tuple[FrontEnd, ...]:
    packages = [f"{collectors.__name__}.{found.name}" for found in pkgutil.iter_modules(collectors.__path__)]
    names = [f"{package}.{_MODULE}" for package in sorted(packages) if package.rpartition(".")[2].startswith("from_")]
    return tuple(import_module(name).FRONT_END for name in names if find_spec(name) is not None)


def front_end_named(name: str) -> FrontEnd:
    """The front end of a name, as in ``Models.framework``.

    Raises:
        LookupError: There is none.
    """
    return {each.name: each for each in front_ends()}[name]


def front_end_of(model: object) -> FrontEnd:
    """The front end that a model belongs to: a path, or an object such as a module."""
    return next(each for each in front_ends() if each.recognizes(model))


def front_end_of_pair(float_model: object, quantized_model: object) -> FrontEnd:
    """The front end that both models belong to.

    Raises:
        ModelError: They belong to two.
    """
    models = (float_model, quantized_model)
    if _is_path(float_model) != _is_path(quantized_model):
        raise ModelError(
            "one model is a file, the other is not",
            where=[f"float     {source_name(float_model)}", f"quantized {source_name(quantized_model)}"],
            help="give two files, or two torch modules",
        )
    # A file that is missing is named by the front end that reads the other one.
    present = [model for model in models if not _is_path(model) or Path(str(model)).exists()] or list(models)
    found = {each.name: each for each in map(front_end_of, present)}
    if len(found) == 1:
        return next(iter(found.values()))
    titles = [front_end_of(model).title for model in models]
    odd = next(each.title for each in front_ends() if each.name in found)
    raise ModelError(
        f"one model is {'an' if odd[:1] in 'AEIOU' else 'a'} {odd} file, the other is not",
        where=[f"float     {float_model}  {titles[0]}", f"quantized {quantized_model}  {titles[1]}"],
        help="give two files of one kind: the float model as the converter writes it without quantization",
    )


def source_name(model: object) -> str:
    """How messages name a model: its path, or its class."""
    return str(model) if _is_path(model) else type(model).__name__


def _is_path(model: object) -> bool:
    return isinstance(model, str | Path)
