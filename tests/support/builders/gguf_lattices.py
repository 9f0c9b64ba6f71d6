"""IQ2_S of llama.cpp as ``llama-quantize`` lays it out: the nearest point of the lattice for every 8 weights."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
#: The largest number of a point stands for so many root mean squares of a run; and that number.
_REACH, _LARGEST = 2.2, 43


def iq2_s(values: Array, points: Array) -> bytes:
    """Blocks of 256 weights; ``points`` are those of the lattice, ``[1024, 8]``."""
    lattice = np.abs(points).astype(np.float32)
    x = values.reshape(-1, 16, 16).astype(np.float32)
    wanted = np.sqrt((x**2).mean(axis=2)) * _REACH / _LARGEST
    whole = (wanted.max(axis=1, keepdims=True) / 15.5 * 4).astype(np.float16)
    codes = np.clip(np.rint(wanted / whole.astype(np.float32) * 4 - 0.5), 0, 15).astype(np.uint8)
    scales = whole.astype(np.float32) * (0.5 + codes) / 4
    runs = (np.abs(x) / scales[:, :, None]).reshape(-1, 8)
    norms = (lattice**2).sum(axis=1)
    places = np.concatenate([(norms - 2 * part @ lattice.T).argmin(axis=1) for part in np.array_split(runs, 8)])
    places = places.reshape(len(x), 32)
    bits = np.arange(8, dtype=np.uint8)
    signs = ((x.reshape(len(x), 32, 8) < 0).astype(np.uint8) << bits).sum(axis=2).astype(np.uint8)
    high = ((places >> 8).astype(np.uint8).reshape(len(x), 8, 4) << bits[:8:2]).sum(axis=2).astype(np.uint8)
    parts = (whole.view(np.uint8), (places & 255).astype(np.uint8), signs, high, codes[:, 0::2] | codes[:, 1::2] << 4)
    return np.hstack(parts).tobytes()
