"""Whether loops may be compiled while this process runs."""

import os


def is_switched_off() -> bool:
    """``QUANTMEDIC_NO_JIT`` is set, or numba's own ``NUMBA_DISABLE_JIT``: numpy computes the same."""
    return bool(os.environ.get("QUANTMEDIC_NO_JIT")) or os.environ.get("NUMBA_DISABLE_JIT", "") not in ("", "0")
