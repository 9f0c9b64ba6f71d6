"""Compiled loops whose machine code is kept between runs, and where."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numba

from quantmedic.collectors.data.cache_folder import cache_folder

#: What a loop takes and returns is settled by numba when it is called, not by annotations.
Loop = Callable[..., Any]


def cached_njit(*, forceinline: bool = False, fastmath: bool | set[str] = False) -> Callable[[Loop], Loop]:
    """``numba.njit`` without the interpreter's lock, with numpy's division, and with its code kept between runs.

    numba looks the folder up when it decorates a function; its configuration is left as it was.

    Args:
        forceinline: The loop becomes a part of the loops that call it.
        fastmath: Which liberties LLVM may take with floating-point numbers.
    """

    def decorate(function: Loop) -> Loop:
        chosen = numba.config.CACHE_DIR  # type: ignore[attr-defined]  # numba sets its options at run time
        numba.config.CACHE_DIR = chosen or str(_kernel_folder())  # type: ignore[attr-defined]
        try:
            return numba.njit(
                function, cache=True, nogil=True, error_model="numpy", forceinline=forceinline, fastmath=fastmath
            )
        finally:
            numba.config.CACHE_DIR = chosen  # type: ignore[attr-defined]

    return decorate


@cache
def _kernel_folder() -> Path:
    """Where compiled code is kept where the user names no folder."""
    return cache_folder("kernels")
