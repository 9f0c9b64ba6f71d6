"""Weights as Core ML decompresses them: codes with a scale, entries of a table, and what pruning left.

Each ``constexpr`` operator is computed as the specification of MIL states it, from what the package stores.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

import numpy as np

from quantmedic.collectors.data.arrays import Array
from quantmedic.collectors.from_checkpoint.core_ml.program import TYPES, Operation, Value, unpack_bits
from quantmedic.collectors.from_checkpoint.safetensors_file import Values

#: Operators in a row that one weight may be made by: a table, what pruning left, a scale of the table.
_DEPTH = 4


@dataclass(frozen=True)
class Decompressed:
    """One weight.

    Attributes:
        values: Real values, in the shape that the layer reads.
        kinds: How it is compressed, the first step first: linear, palettized, sparse, cast.
        bits: Bits of a code, or of a stored value.
        signed: Codes are signed.
        codes: Codes of an even grid, in the shape of the values; None where there is none.
        scale: Step of each code, in a shape of equal rank whose sides divide those of the values.
        zero: Code of 0.0, in the same shape.
    """

    values: Values
    kinds: tuple[str, ...]
    bits: int
    signed: bool = False
    codes: Array | None = None
    scale: Values | None = None
    zero: Values | None = None


@dataclass(frozen=True)
class Decompressor:
    """Computes what operators of one program make of its constants.

    Attributes:
        operations: Operators by the names of what they write.
        load: Reads a value.
    """

    operations: Mapping[str, Operation]
    load: Callable[[Value], Array]
    depth: int = field(default=0)

    def decompress(self, name: str) -> Decompressed:
        """What stands under a name.

        Raises:
            ValueError: It is made by an operator that is not known, or its parts do not fit together.
        """
        operation = self.operations.get(name)
        if operation is None or self.depth > _DEPTH:
            raise ValueError(f"{name} is made by nothing that is known")
        kind = operation.kind.removeprefix("constexpr_")
        compute = _STEPS.get(kind)
        if compute is None or not operation.kind.startswith("constexpr_"):
            raise ValueError(f"{name} is made by {operation.kind}, which is not read")
        deeper = Decompressor(self.operations, self.load, self.depth + 1)
        return compute(deeper, operation)

    def array(self, operation: Operation, operand: str) -> Array:
        """An operand as an array, computed where another operator makes it.

        Raises:
            ValueError: It is missing, or cannot be computed.
        """
        given = operation.operands.get(operand)
        if given is None:
            raise ValueError(f"{operation.kind} without {operand}")
        if isinstance(given, Value):
            return self.load(given)
        source = self.operations.get(given)
        if source is not None and source.kind == "const" and isinstance(value := source.operands.get("val"), Value):
            return self.load(value)
        if source is not None and source.kind in _MASKED and source.outputs and given == source.outputs[0]:
            return self.array(source, _MASKED[source.kind])
        return self.decompress(given).values

    def kinds(self, operation: Operation, operand: str) -> tuple[str, ...]:
        """How an operand is compressed itself."""
        given = operation.operands.get(operand)
        is_step = isinstance(given, str) and given in self.operations and self.operations[given].kind != "const"
        return self.decompress(given).kinds if is_step and isinstance(given, str) else ()

    def bits(self, operation: Operation, operand: str) -> tuple[int, bool]:
        """Bits of an operand's elements as they are stored, and whether they are signed."""
        given = operation.operands.get(operand)
        source = self.operations.get(given) if isinstance(given, str) else None
        value = source.operands.get("val") if source is not None and source.kind == "const" else given
        if not isinstance(value, Value) or value.kind not in TYPES:
            return (self.decompress(given).bits, False) if isinstance(given, str) else (0, False)
        return TYPES[value.kind][2], TYPES[value.kind][0].startswith("I")


#: Operators that write a mask before what it leaves, by the operand that it is.
_MASKED = {
    "constexpr_lut_to_sparse": "indices_mask",
    "constexpr_sparse_blockwise_shift_scale": "data_mask",
}


def _affine(own: Decompressor, operation: Operation) -> Decompressed:
    codes, scale, zero = (own.array(operation, name) for name in ("quantized_data", "scale", "zero_point"))
    axis = int(own.array(operation, "axis").reshape(-1)[0]) if "axis" in operation.operands else 0
    if not -codes.ndim <= axis < max(codes.ndim, 1):
        raise ValueError(f"axis {axis} of {codes.ndim}")
    sides = [1] * codes.ndim
    if scale.size > 1:
        sides[axis] = scale.size
    step = scale.astype(np.float32).reshape(sides)
    offset = np.broadcast_to(zero.astype(np.float32).reshape(-1 if zero.size > 1 else ()), (scale.size,)).reshape(sides)
    return _on_grid(own, operation, "quantized_data", codes, step, offset)


def _blockwise(own: Decompressor, operation: Operation) -> Decompressed:
    codes, scale = own.array(operation, "data"), own.array(operation, "scale").astype(np.float32)
    has_offset = "offset" in operation.operands
    offset = own.array(operation, "offset").astype(np.float32) if has_offset else np.zeros(scale.shape, np.float32)
    return _on_grid(own, operation, "data", codes, scale, offset)


def _on_grid(
    own: Decompressor, operation: Operation, operand: str, codes: Array, scale: Values, zero: Values
) -> Decompressed:
    steps, zeros = _repeat_blocks(scale, codes.shape), _repeat_blocks(zero, codes.shape)
    with np.errstate(invalid="ignore", over="ignore"):  # a damaged file has scales that are not finite
        values = np.asarray((codes.astype(np.float32) - zeros) * steps, np.float32)
    bits, signed = own.bits(operation, operand)
    kinds = (*own.kinds(operation, operand), "linear")
    is_grid = kinds == ("linear",)
    return Decompressed(values, kinds, bits, signed, codes if is_grid else None, scale, zero)


def _repeat_blocks(blocks: Values, shape: Sequence[int]) -> Values:
    """One number per block, repeated for each element."""
    if blocks.ndim != len(shape) or any(n == 0 or side % n for n, side in zip(blocks.shape, shape, strict=True)):
        raise ValueError(f"scales of shape {list(blocks.shape)} for codes of shape {list(shape)}")
    for axis, (count, side) in enumerate(zip(blocks.shape, shape, strict=True)):
        blocks = blocks if count in (1, side) else np.repeat(blocks, side // count, axis)
    return np.broadcast_to(blocks, shape)


def _compute_palette(own: Decompressor, operation: Operation) -> Decompressed:
    table, indices = own.array(operation, "lut").astype(np.float32), own.array(operation, "indices")
    kinds = (*own.kinds(operation, "lut"), "palettized")
    if "shape" in operation.operands:  # up to iOS 17: one table, and indices of as many bits as it takes
        shape = tuple(own.array(operation, "shape").astype(np.int64).tolist())
        bits = max(int(table.size - 1).bit_length(), 1)
        codes = unpack_bits(indices.tobytes(), bits, _count_elements(shape)).reshape(shape)
        table = table.reshape(-1)
        if codes.size and codes.max() >= table.size:
            raise ValueError(f"index {codes.max()} into a table of {table.size}")
        return Decompressed(table[codes], kinds, bits)
    return Decompressed(_look_up(table, indices), kinds, own.bits(operation, "indices")[0])


def _look_up(table: Values, indices: Array) -> Values:
    """Entries of tables ``[groups along each axis, entries, 1]``."""
    if table.ndim != indices.ndim + 2:
        raise ValueError(f"a table of shape {list(table.shape)} for indices of shape {list(indices.shape)}")
    if table.shape[-1] != 1:
        raise ValueError(f"a table of vectors of {table.shape[-1]}, which is not read")
    groups, entries = table.shape[:-2], table.shape[-2]
    numbers = np.arange(prod(groups), dtype=np.int64).reshape(groups)
    flat = table.reshape(-1, entries)
    places = indices.astype(np.int64)
    if places.size and places.max() >= entries:
        raise ValueError(f"index {places.max()} into a table of {entries}")
    return flat[_repeat_blocks(numbers.astype(np.float32), indices.shape).astype(np.int64), places]


def _sparse(own: Decompressor, operation: Operation) -> Decompressed:
    kept, mask = own.array(operation, "nonzero_data"), own.array(operation, "mask")
    if "shape" in operation.operands:  # up to iOS 17
        shape = tuple(own.array(operation, "shape").astype(np.int64).tolist())
        mask = unpack_bits(mask.tobytes(), 1, _count_elements(shape)).reshape(shape)
    kinds = (*own.kinds(operation, "nonzero_data"), "sparse")
    return Decompressed(_fill_mask(mask, kept.astype(np.float32)), kinds, own.bits(operation, "nonzero_data")[0])


def _fill_mask(mask: Array, kept: Array) -> Array:
    """A tensor with these numbers where the mask is set, and 0 elsewhere."""
    places = mask.astype(bool)
    if int(places.sum()) != kept.size:
        raise ValueError(f"{kept.size} numbers for {int(places.sum())} places")
    dense = np.zeros(mask.shape, kept.dtype)
    dense[places] = kept.reshape(-1)
    return dense


def _sparse_table(own: Decompressor, operation: Operation) -> Decompressed:
    mask, table = own.array(operation, "indices_mask"), own.array(operation, "lut").astype(np.float32)
    dense = _look_up(table, _fill_mask(mask, own.array(operation, "indices_nonzero_data")))
    bits = own.bits(operation, "indices_nonzero_data")[0]
    return Decompressed(dense[mask.astype(bool)], (*own.kinds(operation, "lut"), "palettized"), bits)


def _sparse_blockwise(own: Decompressor, operation: Operation) -> Decompressed:
    mask, scale = own.array(operation, "data_mask"), own.array(operation, "scale").astype(np.float32)
    places = mask.astype(bool)
    codes = own.array(operation, "nonzero_data").astype(np.float32).reshape(-1)
    if int(places.sum()) != codes.size:
        raise ValueError(f"{codes.size} numbers for {int(places.sum())} places")
    zero = 0.0
    if "offset" in operation.operands:
        zero = _repeat_blocks(own.array(operation, "offset").astype(np.float32), mask.shape)[places]
    bits = own.bits(operation, "nonzero_data")[0]
    return Decompressed(
        np.asarray((codes - zero) * _repeat_blocks(scale, mask.shape)[places], np.float32), ("linear",), bits
    )


def _compute_cast(own: Decompressor, operation: Operation) -> Decompressed:
    values = own.array(operation, "source_val").astype(np.float32)
    return Decompressed(values, (*own.kinds(operation, "source_val"), "cast"), own.bits(operation, "source_val")[0])


def _count_elements(shape: Sequence[int]) -> int:
    if any(side < 0 for side in shape):
        raise ValueError(f"a shape of {list(shape)}")
    return prod(shape)


_STEPS: Mapping[str, Callable[[Decompressor, Operation], Decompressed]] = {
    "affine_dequantize": _affine,
    "blockwise_shift_scale": _blockwise,
    "lut_to_dense": _compute_palette,
    "sparse_to_dense": _sparse,
    "lut_to_sparse": _sparse_table,
    "sparse_blockwise_shift_scale": _sparse_blockwise,
    "cast": _compute_cast,
}
