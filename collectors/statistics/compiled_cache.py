"""Compiled loops whose machine code is kept between runs, and where."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from quantmedic.engine.cache_folder import cache_folder
from quantmedic.engine.errors import QuantmedicError

try:
    import numba
    from numba.core.runtime import rtsys
except ImportError as error:
    raise QuantmedicError(
        "numba, which compiles what measures tensors, cannot be imported",
        where=str(error),
        help="install versions of numba and numpy that fit each other: pip install --upgrade numba",
    ) from error

#: Versions of numba whose kept code was loaded so: it reaches behind its interface.
_TRIED = (["0", "68"],)
_config: Any = numba.config  # numba sets its options at run time
# The loops here have no other form, and numba compiles its own parts only where nothing is switched off
# (``NUMBA_DISABLE_JIT``).
_config.DISABLE_JIT = 0
#: What a loop takes and returns is settled by numba when it is called, not by annotations.
Loop = Callable[..., Any]


def cached_njit(*, forceinline: bool = False, fastmath: bool | set[str] = False) -> Callable[[Loop], Loop]:
    """``numba.njit`` without the interpreter's lock, with numpy's division, and with its code kept between runs.

    numba looks its configuration up when it decorates a function; it is left as it was. Where the user has no private
    folder and named none (``NUMBA_CACHE_DIR``), nothing is kept: what is loaded from there is executed.

    Args:
        forceinline: The loop becomes a part of the loops that call it.
        fastmath: Which liberties LLVM may take with floating-point numbers.
    """

    def decorate(function: Loop) -> Loop:
        chosen = _config.CACHE_DIR
        folder = chosen or _kernel_folder()
        _config.CACHE_DIR = str(folder or "")
        try:
            compiled = numba.njit(
                function,
                cache=folder is not None,
                nogil=True,
                error_model="numpy",
                forceinline=forceinline,
                fastmath=fastmath,
            )
            if folder is not None:
                _load_without_compiler(compiled)
            return compiled
        finally:
            _config.CACHE_DIR = chosen

    return decorate


def _load_without_compiler(compiled: Any) -> None:
    """Have kept code loaded without all that numba compiles with: 25 MB and a quarter of a second of every start.

    numba loads that first in any case. It is needed only where nothing is kept, and then the compiler loads it itself.
    """
    if numba.__version__.split(".")[:2] not in _TRIED:
        return
    kept = compiled._cache

    def load_overload(signature: Any, target: Any) -> Any:
        rtsys.initialize(target)  # the one part that the code calls
        with kept._guard_against_spurious_io_errors():
            return kept._load_overload(signature, target)

    kept.load_overload = load_overload


@cache
def _kernel_folder() -> Path | None:
    """Where compiled code is kept where the user names no folder; None: nowhere."""
    return cache_folder("kernels")
