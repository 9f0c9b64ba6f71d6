"""Functions of the user: imported by name, and called so that what they raise is told."""

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from quantmedic.collectors.data.messages import cause_line, did_you_mean
from quantmedic.engine.errors import DataError, QuantmedicError

#: A function of the user: what it takes and returns is checked where it is called.
UserFunction = Callable[..., Any]
FUNCTION = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def import_function(spec: str, what: str) -> UserFunction:
    """Import ``module:function``; the working directory comes first on the module path while it is imported.

    Args:
        spec: The text the user gave.
        what: What it is for, named in errors.

    Raises:
        DataError: The module fails to import or holds no such callable.
    """
    if not FUNCTION.fullmatch(spec):
        raise DataError(f"{what} is not of the form module:function", where=spec, help="write for example loader:load")
    module_name, name = spec.split(":")

    def refusal(cause: str) -> DataError:
        help = f"run from the folder that holds the module, then try: python -c 'import {module_name}'"
        return DataError(f"the module of the {what} cannot be imported", where=[spec, cause], help=help)

    importlib.invalidate_caches()
    with working_directory_first(), failing_as(refusal):
        module = importlib.import_module(module_name)
    function = getattr(module, name, None)
    if not callable(function):
        near = did_you_mean(name, [key for key, value in vars(module).items() if callable(value)])
        raise DataError(f"the module of the {what} has no such function", where=f"{spec}{near}", help="name a function")
    imported: UserFunction = function
    return imported


@contextmanager
def working_directory_first() -> Iterator[None]:
    """Let the user's module, and what it imports, be found in the working directory; nothing else that we import is.

    What is imported already is not looked for, so that no ``numpy.py`` in that directory takes the place of ours. A
    function that imports from there when it is called finds the directory last on the path. No compiled code is left
    there: it is the user's folder, and no output.
    """
    here, before, writes_nothing = str(Path.cwd()), list(sys.path), sys.dont_write_bytecode
    sys.path[:] = [here, *(place for place in before if place not in ("", here))]
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        sys.dont_write_bytecode = writes_nothing
        added = [place for place in sys.path if place not in before and place != here]
        sys.path[:] = [*added, *(place for place in before if place not in ("", here)), here]


@contextmanager
def failing_as(refusal: Callable[[str], QuantmedicError]) -> Iterator[None]:
    """Run code of the user: whatever it raises becomes the error that is made of its cause, ``SystemExit`` too.

    Ctrl-C stays what it is, and so do errors of ours.
    """
    try:
        yield
    except (QuantmedicError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise refusal(cause_line(error)) from error


def items_of(returned: Any, refusal: Callable[[str], QuantmedicError]) -> Iterator[object]:
    """The items of an iterable of the user; what it raises becomes the error that is made of its cause."""
    with failing_as(refusal):
        iterator = iter(returned)
    end = object()
    while True:
        with failing_as(refusal):
            item = next(iterator, end)
        if item is end:
            return
        yield item
