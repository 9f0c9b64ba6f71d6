"""Memory that nobody uses: Python's collector kept out of the way of work, and what the allocator keeps given back."""

import ctypes
import gc
import os
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
#: Objects, and collections of younger ones, that ``with_rare_garbage_collection`` waits for.
RARELY = (50_000, 10, 10)


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


def with_rare_garbage_collection(function: Callable[P, T]) -> Callable[P, T]:
    """Run a function that makes many objects, and some garbage, with a collector that looks for it seldom.

    Measuring a network of 5000 nodes has the collector walk through all objects a dozen times, and finds next to none.
    """

    @wraps(function)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        usual = gc.get_threshold()
        gc.set_threshold(*RARELY)
        try:
            return function(*args, **kwargs)
        finally:
            gc.set_threshold(*usual)

    return wrapper


def give_back_freed_memory() -> None:
    """Return what glibc's allocator keeps of freed memory to the system; elsewhere do nothing.

    It keeps an arena for each thread, in which the holes between large arrays of many sizes add up.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)
