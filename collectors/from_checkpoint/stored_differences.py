"""Whether two stored tensors hold the same numbers, whatever types they are stored in."""

import math

import numpy as np

from quantmedic.collectors.from_checkpoint.safetensors_file import Stored
from quantmedic.collectors.from_checkpoint.weight_slices import slices

#: Rounding to bfloat16 changes a number by at most this share of it; float16 loses what is smaller than its least step.
_BFLOAT16, _FLOAT16_STEP = 2.0**-8, 2.0**-24


def differs(tensor: Stored, twin: Stored) -> bool:
    """Some element differs by more than a rounding to bfloat16 explains."""
    width = math.prod(tensor.shape[1:]) if tensor.shape else 1
    for rows in slices(tensor.rows, width, 1):
        part = rows if tensor.shape else None
        mine, theirs = tensor.load(part), twin.load(part)
        if tensor.dtype == twin.dtype and np.array_equal(mine.view(np.uint8), theirs.view(np.uint8)):
            continue
        a, b = tensor.floats(part), twin.floats(part)
        with np.errstate(invalid="ignore"):
            close = (np.abs(a - b) <= _BFLOAT16 * np.abs(a) + _FLOAT16_STEP) | (a == b) | (np.isnan(a) & np.isnan(b))
        if not close.all():
            return True
    return False
