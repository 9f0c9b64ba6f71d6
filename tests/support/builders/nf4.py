"""Layers of NF4 and FP4 as bitsandbytes stores them, written here by plain formulas in float64."""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from builders.checkpoints import Tensors

Array = NDArray[Any]
BLOCK, NESTED = 64, 256
#: NF4: quantiles of the normal distribution, as its paper gives them; FP4: by sign, exponent and mantissa over 12.
TABLES: Mapping[str, Array] = {
    "nf4": np.array([
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
        -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
        0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
    ]),
    "fp4": np.array([*(s * x / 12 for s in (1, -1) for x in (0, 0.0625, 8, 12, 4, 6, 2, 3))]),
}  # fmt: skip


def nf4(name: str, values: Array, kind: str = "nf4", *, nested: bool = False, seed: int = 0) -> tuple[Tensors, Array]:
    """Tensors of a layer, and what they stand for."""
    table = TABLES[kind].astype(np.float32)
    blocks = values.reshape(-1, BLOCK).astype(np.float64)
    largest = np.abs(blocks).max(axis=1).astype(np.float32)
    state: dict[str, Any] = {"quant_type": kind, "blocksize": BLOCK, "dtype": "bfloat16", "shape": list(values.shape)}
    more: Tensors = {f"{name}.weight.absmax": ("F32", largest)}
    if nested:
        offset = float(largest.mean(dtype=np.float64))
        rest = np.pad(largest - offset, (0, -len(largest) % NESTED)).reshape(-1, NESTED)
        steps = np.abs(rest).max(axis=1).astype(np.float32)
        levels = np.sort(np.random.default_rng(seed).uniform(-1, 1, 256)).astype(np.float32)
        shares = rest / np.where(steps == 0, 1, steps)[:, None]
        codes = np.abs(shares[..., None] - levels).argmin(axis=-1).astype(np.uint8)
        largest = (levels[codes] * steps[:, None] + np.float32(offset)).ravel()[: len(largest)]
        state |= {"nested_blocksize": NESTED, "nested_dtype": "float32", "nested_offset": offset}
        more = {
            f"{name}.weight.absmax": ("U8", codes.ravel()[: len(largest)]),
            f"{name}.weight.nested_absmax": ("F32", steps),
            f"{name}.weight.nested_quant_map": ("F32", levels),
        }
    wanted = blocks / largest.astype(np.float64)[:, None]
    codes = np.abs(wanted[..., None] - table).argmin(axis=-1).astype(np.uint8).ravel()
    text = np.frombuffer(json.dumps(state).encode(), np.uint8)
    tensors: Tensors = {
        f"{name}.weight": ("U8", (codes[0::2] << 4 | codes[1::2]).reshape(-1, 1)),
        f"{name}.weight.quant_map": ("F32", table),
        f"{name}.weight.quant_state.bitsandbytes__{kind}": ("U8", text),
        **more,
    }
    stored = table[codes].reshape(-1, BLOCK).astype(np.float64) * largest.astype(np.float64)[:, None]
    return tensors, stored.reshape(values.shape)
