"""Which loops compute the statistics: compiled ones where numba runs, else those of numpy."""

from quantmedic.collectors.statistics.jit import is_switched_off

if is_switched_off():
    from quantmedic.collectors.statistics import numpy_loops as kernels
else:
    try:
        from quantmedic.collectors.statistics import numba_loops as kernels  # type: ignore[no-redef]  # one contract
    except ImportError:  # numba is missing or does not support this machine
        from quantmedic.collectors.statistics import numpy_loops as kernels

__all__ = ["kernels"]
