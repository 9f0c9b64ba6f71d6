"""Layers of 4 bits of bitsandbytes: NF4 and FP4, codes into a table, with a largest magnitude per block.

``weight`` bytes hold two codes each, the first in the high bits; ``weight.absmax`` has a number per block, in a row
over all outputs, or with nested statistics a byte that stands for one in ``weight.nested_quant_map``, times the number
of its own block in ``weight.nested_absmax``, plus an offset. The rest is told by JSON in ``weight.quant_state…``.
"""

import json
from collections.abc import Callable, Mapping

import numpy as np

from quantmedic.collectors.from_checkpoint.packed.packed_layer import (
    Block,
    PackedLayer,
    Parts,
    Reading,
    even_groups,
    in_column_order,
    require,
    require_parts,
    unpack_words,
)
from quantmedic.collectors.from_checkpoint.safetensors_file import Stored, Values

#: Names of the tensors with JSON, by the kind of codes.
STATES: Mapping[str, str] = {
    "nf4": "weight.quant_state.bitsandbytes__nf4",
    "fp4": "weight.quant_state.bitsandbytes__fp4",
}
#: Parts of the names of a layer's tensors.
PARTS = ("weight.absmax", "weight.quant_map", "weight.nested_absmax", "weight.nested_quant_map", *STATES.values())
#: JSON of a layer is some hundred bytes.
_MOST_BYTES = 1 << 16
_CODES, _NESTED_CODES = 16, 256


def is_bitsandbytes(parts: Parts) -> bool:
    """The layer has 4 bits of bitsandbytes."""
    return any(name in parts for name in STATES.values())


def bitsandbytes_layer(parts: Parts) -> PackedLayer:
    """A layer of NF4 or FP4; see ``packed_layers``."""
    kind = next(kind for kind, key in STATES.items() if key in parts)
    codes, absmax, table = require_parts(parts, "weight", "weight.absmax", "weight.quant_map")
    state = _state_of(parts[STATES[kind]])
    shape, length = state.get("shape"), state.get("blocksize")
    require(isinstance(shape, list) and len(shape) > 1 and all(map(_is_size, shape)), f"its shape is {shape}")
    require(_is_size(length), f"its blocksize is {length}")
    assert isinstance(shape, list) and isinstance(length, int)  # which has just been required
    outputs, inputs = int(shape[0]), int(np.prod(shape[1:], dtype=np.int64))
    require(inputs % length == 0, f"blocks of {length} reach over outputs of {inputs} inputs")
    groups = inputs // length
    fits = codes.dtype == "U8" and codes.size * 2 == outputs * inputs and codes.rows == codes.size
    require(fits, f"codes have type {codes.dtype} and shape {list(codes.shape)} for {outputs} x {inputs} weights")
    require(absmax.size == outputs * groups, f"absmax has shape {list(absmax.shape)} for {outputs} x {groups} blocks")
    values = _read_table(table, _CODES)
    magnitudes = _nested_magnitudes(parts, absmax, state) if absmax.dtype == "U8" else absmax.floats
    starts = even_groups(inputs, groups)

    def read_block(rows: slice, reading: Reading) -> Block:
        count = rows.stop - rows.start
        found = codes.load(slice(rows.start * inputs // 2, rows.stop * inputs // 2)).reshape(count, -1)
        scale = magnitudes(slice(rows.start * groups, rows.stop * groups)).reshape(count, groups)
        high_first = in_column_order(unpack_words(found, 4, inputs), (1, 0))
        return Block(values[high_first], scale, np.zeros_like(scale), starts)

    return PackedLayer(
        format=f"bitsandbytes {kind}",
        shape=(outputs, inputs),
        bits=4,
        groups=groups,
        signed=True,
        read=read_block,
        even=False,
        unit=2 if inputs % 2 else 1,
    )


def _nested_magnitudes(parts: Parts, absmax: Stored, state: Mapping[str, object]) -> Callable[[slice], Values]:
    """Gives magnitudes of some blocks that are bytes themselves."""
    table, own = require_parts(parts, "weight.nested_quant_map", "weight.nested_absmax")
    length, offset = state.get("nested_blocksize"), state.get("nested_offset")
    require(_is_size(length), f"its nested_blocksize is {length}")
    require(isinstance(offset, int | float), f"its nested_offset is {offset}")
    assert isinstance(length, int) and isinstance(offset, int | float)  # which has just been required
    require(own.is_float and own.size == -(-absmax.size // length), f"nested_absmax has shape {list(own.shape)}")
    values, scales, shift = _read_table(table, _NESTED_CODES), own.floats().ravel(), np.float32(offset)

    def read_magnitudes(blocks: slice) -> Values:
        found: Values = values[absmax.load(blocks)] * scales[np.arange(blocks.start, blocks.stop) // length] + shift
        return found

    return read_magnitudes


def _read_table(stored: Stored, size: int) -> Values:
    require(stored.is_float and stored.size == size, f"{stored.name} has shape {list(stored.shape)}, not {size}")
    return stored.floats().ravel()


def _state_of(stored: Stored) -> Mapping[str, object]:
    require(stored.dtype == "U8" and stored.size <= _MOST_BYTES, f"{stored.name} is no text")
    try:
        found = json.loads(stored.load().tobytes().decode())
    except (ValueError, RecursionError):
        found = None
    require(isinstance(found, dict), f"{stored.name} is no JSON object")
    state: Mapping[str, object] = found
    return state


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 1 << 40
