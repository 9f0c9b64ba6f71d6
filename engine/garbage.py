"""Python's garbage collector, kept out of the way of work that makes many objects and no garbage."""

import gc
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def without_garbage_collection(function: Callable[P, T]) -> Callable[P, T]:
    """Run a function without the collector.

    The facts of a large network are half a million objects that live to the end: walking through them again and again
    in search of cycles takes a third of the time.
    """

    @wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        enabled = gc.isenabled()
        gc.disable()
        try:
            return function(*args, **kwargs)
        finally:
            if enabled:
                gc.enable()

    return wrapper
