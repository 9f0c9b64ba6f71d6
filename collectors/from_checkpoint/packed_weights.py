"""How quantized checkpoints store linear weights: codes, scales and zero points, by format.

In every format a weight is (code - zero point) · scale of its group; a group is a run of input channels of one output
channel (or those that ``g_idx`` gives one number). All functions give ``[output channels, input channels]``, whatever
way round the file has them. The layouts follow the public documentation and sources of the tools:

* GPTQ (AutoGPTQ, GPTQModel): ``qweight`` int32 ``[inputs · bits / 32, outputs]`` packs codes along the inputs,
  ``qzeros`` ``[groups, outputs · bits / 32]`` along the outputs, ``scales`` ``[groups, outputs]``, ``g_idx``
  ``[inputs]``. The v1 format stores zero points less 1; v2 (``checkpoint_format: gptq_v2``) as they are.
* AWQ (AutoAWQ, GEMM version): ``qweight`` int32 ``[inputs, outputs · bits / 32]`` and ``qzeros`` pack along the
  outputs, eight 4-bit codes per word in the order 0 2 4 6 1 3 5 7.
* compressed-tensors: ``weight_packed`` int32 ``[outputs, inputs · bits / 32]``, codes plus 2^(bits-1);
  ``weight_zero_point`` in the same way, packed along the outputs; or ``weight`` int8 or float8 with ``weight_scale``.
* torchao: ``_weight_qdata`` int8 (one code per byte, whatever the bits) or float8, ``_weight_scale``,
  ``_weight_zero_point``. bitsandbytes: ``weight`` int8 and ``SCB``, the largest magnitude of each row; 127 codes.

Codes lie in a word from its lowest bits up; where bits do not divide 32, one may reach into the next word.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.from_checkpoint.safetensors_file import (
    EIGHT_BIT_FLOATS,
    INTEGERS,
    Array,
    Stored,
    Values,
    as_floats,
)

Codes = NDArray[np.uint8]
Integers = NDArray[np.int64]

#: Column that the k-th code of a word of AWQ belongs to.
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
REVERSED_ORDER = (7, 6, 5, 4, 3, 2, 1, 0)
WORD = 32
#: Edge of the blocks that share a scale in float8 checkpoints.
_FP8_BLOCK = 128
#: Names behind a layer's own that belong to its quantization and are no weights by themselves.
_PARTS = (
    "qweight",
    "qzeros",
    "scales",
    "g_idx",
    "weight_packed",
    "weight_scale",
    "weight_scale_inv",
    "weight_zero_point",
    "weight_shape",
    "weight_g_idx",
    "_weight_qdata",
    "_weight_scale",
    "_weight_zero_point",
    "SCB",
    "weight_format",
    "scale",
    "zero_point",
    "weight_scales",
    "weight_zeros",
    "input_scale",
    "input_zero_point",
    "input_global_scale",
    "output_scale",
    "output_zero_point",
    "k_scale",
    "v_scale",
    "q_scale",
)
_INT8_SCALES = ("weight_scale", "weight_scale_inv", "SCB", "weight_scales", "scales", "scale")
_INT8_ZEROS = ("weight_zero_point", "weight_zeros", "zero_point")


class Unreadable(Exception):
    """A layer's tensors do not fit together; the text says why."""


@dataclass(frozen=True)
class Reading:
    """One way to read the codes of a format.

    ``order`` is the column of the k-th code of each word (None: from the lowest bits up), ``zero_order`` the same of
    packed zero points, ``zero_shift`` is added to all zero points, ``wraps`` leaves as many bits of the sum as a code
    has, ``in_sequence`` ignores ``g_idx``, ``flipped`` has the highest bit of each code turned.
    """

    order: tuple[int, ...] | None = None
    zero_order: tuple[int, ...] | None = None
    zero_shift: int = 0
    wraps: bool = False
    in_sequence: bool = False
    flipped: bool = False


_AWQ = Reading(order=AWQ_ORDER, zero_order=AWQ_ORDER)


@dataclass(frozen=True)
class Block:
    """Some output channels: codes ``[rows, inputs]``, scales and zero points ``[rows, groups]``.

    ``order`` sorts the inputs by group where these are no runs; ``codes`` are sorted already. ``starts`` are the first
    columns of the groups in that order, and the number of inputs behind them.
    """

    codes: Array
    scale: Values
    zero: Values
    starts: Integers
    order: Integers | None = None

    def values(self) -> Values:
        """(code - zero point) · scale, float32."""
        sizes = np.diff(self.starts)
        found = self.codes.astype(np.float32)
        with np.errstate(invalid="ignore", over="ignore"):  # scales may be no numbers
            return self._scaled(found, sizes)

    def _scaled(self, found: Values, sizes: Integers) -> Values:
        rows = len(found)
        if len(sizes) and (sizes == sizes[0]).all():
            grouped = found.reshape(rows, len(sizes), -1)
            grouped -= self.zero[:, :, None]
            grouped *= self.scale[:, :, None]
            return found
        found -= np.repeat(self.zero, sizes, axis=1)
        found *= np.repeat(self.scale, sizes, axis=1)
        return found


@dataclass(frozen=True)
class PackedLayer:
    """The quantized weights of one layer, read some output channels at a time.

    ``low`` and ``high`` are the ends of the codes, None for float8, whose steps are not even. ``read`` takes output
    channels and a reading; ``alternatives`` are other readings by what they would mean. Rows are read in multiples of
    ``unit``.
    """

    name: str
    format: str
    shape: tuple[int, int]
    bits: int
    groups: int
    low: int | None
    high: int | None
    signed: bool
    read: Callable[[slice, Reading], Block]
    declared: Reading
    alternatives: Mapping[str, Reading]
    tensors: tuple[str, ...]
    unit: int = 1

    @property
    def group_size(self) -> int:
        return -(-self.shape[1] // self.groups)


@dataclass(frozen=True)
class Settings:
    """What ``quantization_config`` declares; None where it says nothing."""

    method: str | None = None
    bits: int | None = None
    group_size: int | None = None
    symmetric: bool | None = None
    by_activation: bool | None = None
    zero_minus_one: bool = True

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> "Settings":
        """Read the keys of GPTQ, AWQ (``w_bit``, ``q_group_size``) and compressed-tensors (``config_groups``)."""
        groups = found.get("config_groups")
        nested = next((g for g in groups.values() if isinstance(g, dict)), {}) if isinstance(groups, dict) else {}
        given = nested.get("weights")
        weights: Mapping[str, Any] = given if isinstance(given, dict) else {}
        method = found.get("quant_method")
        return cls(
            method=method.lower() if isinstance(method, str) else "compressed-tensors" if weights else None,
            bits=_number(found.get("bits", found.get("w_bit", weights.get("num_bits")))),
            group_size=_number(found.get("group_size", found.get("q_group_size", weights.get("group_size")))),
            symmetric=_flag(found.get("sym", weights.get("symmetric"))),
            by_activation=_flag(found.get("desc_act")),
            zero_minus_one=found.get("checkpoint_format", found.get("format")) != "gptq_v2",
        )


def unpack(words: Array, bits: int, count: int) -> Codes:
    """Codes of ``bits`` each along the last axis of int32 words, the lowest bits first: ``[..., count]``.

    Raises:
        Unreadable: The words hold fewer codes.
    """
    stream = np.ascontiguousarray(words, "<i4").view(np.uint8)
    if stream.shape[-1] * 8 < count * bits:
        raise Unreadable(f"{words.shape[-1]} words hold no {count} codes of {bits} bits")
    if bits == 8:
        return stream[..., :count]
    if 8 % bits == 0:
        per_byte, mask = 8 // bits, np.uint8(2**bits - 1)
        codes = np.empty((*stream.shape[:-1], stream.shape[-1] * per_byte), np.uint8)
        for k in range(per_byte):
            np.bitwise_and(stream >> np.uint8(bits * k), mask, out=codes[..., k::per_byte])
        return codes[..., :count]
    single = np.unpackbits(stream, axis=-1, bitorder="little")[..., : count * bits]
    single = single.reshape(*stream.shape[:-1], count, bits)
    return (single << np.arange(bits, dtype=np.uint8)).sum(axis=-1, dtype=np.uint8)


def unpack_padded(words: Array, bits: int, count: int) -> Codes:
    """The same where no code reaches into the next word: 32 // bits of them per word, the rest of its bits unused."""
    per_word = WORD // bits
    if words.shape[-1] * per_word < count:
        raise Unreadable(f"{words.shape[-1]} words hold no {count} codes of {bits} bits")
    shifted = words.view(np.uint32)[..., None] >> (np.arange(per_word, dtype=np.uint32) * bits)
    codes = (shifted & np.uint32(2**bits - 1)).astype(np.uint8)
    return codes.reshape(*words.shape[:-1], -1)[..., :count]


def reordered(codes: Codes, order: tuple[int, ...] | None) -> Codes:
    """Codes in the order of their columns, where the k-th of each word belongs to column ``order[k]`` of it."""
    if order is None:
        return codes
    columns = np.argsort(order)
    return codes.reshape(*codes.shape[:-1], -1, len(order))[..., columns].reshape(codes.shape)


def packed_layers(tensors: Mapping[str, Stored], settings: Settings) -> tuple[dict[str, PackedLayer], dict[str, str]]:
    """Layers whose quantization is understood, by name, and why others are not.

    Args:
        tensors: All tensors of the quantized checkpoint.
        settings: What its configuration declares.
    """
    layers: dict[str, PackedLayer] = {}
    refused: dict[str, str] = {}
    for name in tensors:
        base, _, last = name.rpartition(".")
        parts = _parts(base, tensors)
        make = _FORMATS.get(last)
        if make is None or (last == "weight" and not _is_codes(parts)):
            continue
        try:
            layers[base] = make(base, parts, settings)
        except Unreadable as why:
            refused[base] = str(why)
    return layers, refused


def belongs(name: str, bases: Iterable[str]) -> bool:
    """The tensor is a part of a quantized layer and no weight by itself."""
    base, _, last = name.rpartition(".")
    return last in _PARTS or (last == "weight" and base in bases)


def _parts(base: str, tensors: Mapping[str, Stored]) -> dict[str, Stored]:
    names = ((part, f"{base}.{part}" if base else part) for part in (*_PARTS, "weight"))
    return {part: tensors[name] for part, name in names if name in tensors}


def _is_codes(parts: Mapping[str, Stored]) -> bool:
    return parts["weight"].dtype in (*INTEGERS, *EIGHT_BIT_FLOATS)


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _need(parts: Mapping[str, Stored], *names: str) -> list[Stored]:
    missing = [name for name in names if name not in parts]
    if missing:
        raise Unreadable(f"no {', '.join(missing)} beside its codes")
    return [parts[name] for name in names]


def _names(base: str, parts: Mapping[str, Stored]) -> tuple[str, ...]:
    return tuple(stored.name for stored in parts.values())


def _require(fits: bool, what: str) -> None:
    if not fits:
        raise Unreadable(what)


def _matrix(stored: Stored, what: str) -> tuple[int, int]:
    _require(len(stored.shape) == 2 and stored.size > 0, f"{what} has shape {list(stored.shape)}, not two axes")
    return stored.shape[0], stored.shape[1]


def _runs(inputs: int, groups: int, declared: int | None = None) -> Integers:
    """First columns of groups of one size (that declared, where it fits), and the end."""
    fits = declared is not None and declared > 0 and -(-inputs // declared) == groups
    size = declared if declared is not None and fits else -(-inputs // groups)
    return np.minimum(np.arange(groups + 1, dtype=np.int64) * size, inputs)


def _grouping(index: Stored | None, inputs: int, groups: int, declared: int | None) -> tuple[Integers, Integers | None]:
    """First columns of the groups, and the order that sorts the inputs by group where they are no runs."""
    if index is None:
        return _runs(inputs, groups, declared), None
    numbers = index.read().astype(np.int64).ravel()
    _require(numbers.size == inputs, f"{index.name} has {numbers.size} entries for {inputs} inputs")
    _require(bool(((numbers >= 0) & (numbers < groups)).all()), f"{index.name} names a group beyond {groups}")
    order = np.argsort(numbers, kind="stable")
    starts = np.searchsorted(numbers[order], np.arange(groups + 1))
    return starts, None if (np.diff(numbers) >= 0).all() else order


def _sorted(codes: Array, order: Integers | None) -> Array:
    return codes if order is None else codes[:, order]


def _gptq_or_awq(base: str, parts: Mapping[str, Stored], settings: Settings) -> PackedLayer:
    words, scales = _need(parts, "qweight", "scales")
    height, width = _matrix(words, "qweight")
    groups, outputs = _matrix(scales, "scales")
    if width == outputs:
        return _gptq(base, parts, settings)
    bits = width * WORD // outputs
    _require(
        bits == 4 and width * WORD == outputs * bits,
        f"qweight {list(words.shape)} fits neither GPTQ nor AWQ with scales {list(scales.shape)}",
    )
    _require(groups <= height, f"{groups} groups of {height} inputs")
    (zeros,) = _need(parts, "qzeros")
    _require(zeros.shape == (groups, width), f"qzeros has shape {list(zeros.shape)}, not {[groups, width]}")
    starts = _runs(height, groups, settings.group_size)

    def read(rows: slice, reading: Reading) -> Block:
        span = slice(rows.start * bits // WORD, -(-rows.stop * bits // WORD))
        count = (span.stop - span.start) * WORD // bits
        codes = reordered(unpack(words.read(None, span), bits, count), reading.order)
        zero = reordered(unpack(zeros.read(None, span), bits, count), reading.zero_order)
        kept = slice(0, rows.stop - rows.start)
        scale = scales.floats(None, rows)
        shifted = zero[:, kept].astype(np.float32) + reading.zero_shift
        return Block(
            np.ascontiguousarray(codes[:, kept].T),
            np.ascontiguousarray(scale.T),
            np.ascontiguousarray(shifted.T),
            starts,
        )

    return PackedLayer(
        name=base,
        format="awq",
        shape=(outputs, height),
        bits=bits,
        groups=groups,
        low=0,
        high=2**bits - 1,
        signed=False,
        read=read,
        declared=_AWQ,
        alternatives={
            "codes in the order of a word instead of AWQ's": Reading(),
            "codes in the order of a word, zero points in AWQ's": replace(_AWQ, order=None),
            "zero points in the order of a word, codes in AWQ's": replace(_AWQ, zero_order=None),
            "codes in the reverse order of a word": Reading(REVERSED_ORDER, REVERSED_ORDER),
            "zero points 1 higher, as GPTQ v1 stores them": replace(_AWQ, zero_shift=1),
            "zero points 1 lower": replace(_AWQ, zero_shift=-1),
        },
        tensors=_names(base, parts),
        unit=WORD // bits,
    )


def _gptq(base: str, parts: Mapping[str, Stored], settings: Settings) -> PackedLayer:
    words, scales = _need(parts, "qweight", "scales")
    height, outputs = _matrix(words, "qweight")
    groups, _ = _matrix(scales, "scales")
    index, zeros = parts.get("g_idx"), parts.get("qzeros")
    bits = _gptq_bits(height, outputs, index, zeros, settings)
    inputs = height * WORD // bits
    _require(groups <= inputs, f"{groups} groups of {inputs} inputs")
    starts, order = _grouping(index, inputs, groups, settings.group_size)
    if zeros is not None:
        expected = (groups, -(-outputs * bits // WORD))
        _require(zeros.shape == expected, f"qzeros has shape {list(zeros.shape)}, not {list(expected)}")
    shift = 1 if settings.zero_minus_one and zeros is not None else 0

    def read(rows: slice, reading: Reading) -> Block:
        columns = words.read(None, rows)
        codes = reordered(unpack(np.ascontiguousarray(columns.T), bits, inputs), reading.order)
        scale = np.ascontiguousarray(scales.floats(None, rows).T)
        if zeros is None:
            zero = np.full_like(scale, 2 ** (bits - 1))
        else:
            span = slice(rows.start * bits // WORD, -(-rows.stop * bits // WORD))
            found = unpack(zeros.read(None, span), bits, (span.stop - span.start) * WORD // bits)
            found = reordered(found, reading.zero_order)[:, : rows.stop - rows.start]
            whole = found.T.astype(np.int16) + reading.zero_shift
            zero = np.ascontiguousarray(whole & (2**bits - 1) if reading.wraps else whole, np.float32)
        if reading.in_sequence:
            return Block(codes, scale, zero, _runs(inputs, groups, settings.group_size))
        return Block(_sorted(codes, order), scale, zero, starts, order)

    declared = Reading(zero_shift=shift)
    other: dict[str, Reading] = {}
    if shift:
        other["zero points as stored, without the + 1 of GPTQ v1"] = Reading()
        other["zero points that wrap around to 0 after the + 1, which loaders do not agree on"] = Reading(
            zero_shift=shift, wraps=True
        )
    elif zeros is not None:
        other["zero points plus 1, as GPTQ v1 stores them"] = Reading(zero_shift=1)
    if bits == 4 and inputs % 8 == 0:
        other["codes in AWQ's order of a word"] = replace(declared, order=AWQ_ORDER)
        other["codes and zero points in AWQ's order of a word"] = replace(
            declared, order=AWQ_ORDER, zero_order=AWQ_ORDER
        )
        other["codes in the reverse order of a word"] = replace(declared, order=REVERSED_ORDER)
    if order is not None:
        other["groups in sequence, without g_idx"] = replace(declared, in_sequence=True)
    return PackedLayer(
        name=base,
        format="gptq",
        shape=(outputs, inputs),
        bits=bits,
        groups=groups,
        low=0,
        high=2**bits - 1,
        signed=False,
        read=read,
        declared=declared,
        alternatives=other,
        tensors=_names(base, parts),
        unit=WORD,
    )


def _gptq_bits(height: int, outputs: int, index: Stored | None, zeros: Stored | None, settings: Settings) -> int:
    """Bits by the shapes, which cannot be wrong; by the configuration where they leave it open."""
    if index is not None and index.size and height * WORD % index.size == 0:
        bits = height * WORD // index.size
    elif zeros is not None and len(zeros.shape) == 2 and zeros.shape[1] * WORD % outputs == 0:
        bits = zeros.shape[1] * WORD // outputs
    else:
        bits = settings.bits or 0
    _require(bits in (2, 3, 4, 8), f"{bits} bits are not known of GPTQ")
    return bits


def _pack_quantized(base: str, parts: Mapping[str, Stored], settings: Settings) -> PackedLayer:
    words, scales = _need(parts, "weight_packed", "weight_scale")
    outputs, width = _matrix(words, "weight_packed")
    rows_scaled, groups = _matrix(scales, "weight_scale") if len(scales.shape) == 2 else (scales.size, 1)
    _require(rows_scaled in (1, outputs), f"weight_scale has shape {list(scales.shape)} for {outputs} outputs")
    inputs = _packed_inputs(parts.get("weight_shape"), width, settings)
    bits = settings.bits if settings.bits and _words(inputs, settings.bits, width) else width * WORD // inputs
    _require(1 <= bits <= 8 and _words(inputs, bits, width), f"{width} words for {inputs} inputs fit no number of bits")
    dense = -(-inputs * bits // WORD) == width
    take = unpack if dense else unpack_padded
    zeros = parts.get("weight_zero_point")
    if zeros is not None and zeros.dtype == "I32":
        fits = len(zeros.shape) == 2 and zeros.shape[1] == groups and _words(outputs, bits, zeros.shape[0])
        _require(fits, f"weight_zero_point has shape {list(zeros.shape)} for {outputs} outputs in {groups} groups")
    starts, order = _grouping(parts.get("weight_g_idx"), inputs, groups, settings.group_size)
    middle = 2 ** (bits - 1)

    def read(rows: slice, reading: Reading) -> Block:
        codes = reordered(take(words.read(rows), bits, inputs), reading.order)
        codes = codes ^ np.uint8(middle) if reading.flipped else codes
        scale = _per_row(scales, rows, outputs, groups)
        zero = np.full_like(scale, middle) + reading.zero_shift
        if zeros is not None:
            zero += _packed_zeros(zeros, rows, outputs, groups, bits, take)
        return Block(_sorted(codes, order), scale, zero, starts, order)

    other = {
        "zero points 1 higher": Reading(zero_shift=1),
        "zero points 1 lower": Reading(zero_shift=-1),
        "codes in two's complement instead of plus 2^(bits-1)": Reading(flipped=True),
    }
    if bits == 4 and inputs % 8 == 0:
        other["codes in AWQ's order of a word"] = Reading(order=AWQ_ORDER)
        other["codes in the reverse order of a word"] = Reading(order=REVERSED_ORDER)
    return PackedLayer(
        name=base,
        format="pack-quantized",
        shape=(outputs, inputs),
        bits=bits,
        groups=groups,
        low=0,
        high=2**bits - 1,
        signed=False,
        read=read,
        declared=Reading(),
        alternatives=other,
        tensors=_names(base, parts),
        unit=WORD,
    )


def _words(inputs: int, bits: int, width: int) -> bool:
    return 1 <= bits <= 8 and width in (-(-inputs * bits // WORD), -(-inputs // (WORD // bits)))


def _packed_inputs(shape: Stored | None, width: int, settings: Settings) -> int:
    if shape is not None and shape.size == 2 and shape.dtype in INTEGERS:
        inputs = int(shape.read().ravel()[1])
        _require(0 < inputs <= width * WORD, f"weight_shape says {inputs} inputs in {width} words")
        return inputs
    _require(bool(settings.bits) and WORD % (settings.bits or WORD) == 0, "no weight_shape beside its codes")
    return width * WORD // (settings.bits or WORD)


def _packed_zeros(zeros: Stored, rows: slice, outputs: int, groups: int, bits: int, take: Any) -> Values:
    """Zero points ``[rows, groups]`` relative to the middle code; packed along the outputs, or one int8 each."""
    if zeros.dtype != "I32":
        return _per_row(zeros, rows, outputs, groups)
    count = rows.stop - rows.start
    # Without padding a word may begin anywhere; blocks of 32 rows begin at one.
    per_word = WORD / bits if take is unpack else WORD // bits
    span = slice(int(rows.start / per_word), math.ceil(rows.stop / per_word))
    first = round(rows.start - span.start * per_word)
    words = zeros.read(span).reshape(-1, groups)
    codes = take(np.ascontiguousarray(words.T), bits, first + count)[:, first:]
    return np.ascontiguousarray(codes.T).astype(np.float32) - 2 ** (bits - 1)


def _per_row(stored: Stored, rows: slice, outputs: int, groups: int) -> Values:
    """``[rows, groups]`` of a scale or zero point per tensor, per output or per group."""
    count = rows.stop - rows.start
    if stored.size == 1:
        return np.full((count, groups), stored.floats().ravel()[0], np.float32)
    if stored.rows == 1:
        return np.repeat(stored.floats().reshape(1, -1), count, axis=0)
    return np.ascontiguousarray(stored.floats(rows).reshape(count, -1))


def _plain(base: str, parts: Mapping[str, Stored], settings: Settings) -> PackedLayer:
    """One code per byte: compressed-tensors int8 and float8, bitsandbytes, and others whose names tell the scale."""
    scale = next((parts[name] for name in _INT8_SCALES if name in parts), None)
    zero = next((parts[name] for name in _INT8_ZEROS if name in parts), None)
    return _bytes(base, parts, parts["weight"], scale, zero, settings.bits or 8)


def _torchao(base: str, parts: Mapping[str, Stored], settings: Settings) -> PackedLayer:
    return _bytes(
        base,
        parts,
        parts["_weight_qdata"],
        parts.get("_weight_scale"),
        parts.get("_weight_zero_point"),
        None,
    )


def _bytes(
    base: str,
    parts: Mapping[str, Stored],
    codes: Stored,
    scale: Stored | None,
    zero: Stored | None,
    bits: int | None,
) -> PackedLayer:
    if scale is None:
        raise Unreadable(f"{codes.dtype} codes without a scale: known are {', '.join(_INT8_SCALES)}")
    _require(len(codes.shape) >= 2 and codes.size > 0, f"codes have shape {list(codes.shape)}")
    _require(scale.is_float, f"{scale.name} is {scale.dtype}, no number")
    outputs, inputs = codes.shape[0], math.prod(codes.shape[1:])
    groups, block = _scale_groups(scale, outputs, inputs)
    eight_bit_float = codes.dtype in EIGHT_BIT_FLOATS
    signed = codes.dtype != "U8"
    # torchao keeps codes of any number of bits in bytes; how many are used is told by the codes.
    used = 8 if eight_bit_float else bits or _bits_of(codes)
    low, high = (-(2 ** (used - 1)), 2 ** (used - 1) - 1) if signed else (0, 2**used - 1)
    share = 1 / 127 if scale.name.endswith(".SCB") or scale.name == "SCB" else 1.0
    starts = _runs(inputs, groups, _block(inputs, groups))

    def read(rows: slice, reading: Reading) -> Block:
        found = codes.read(rows).reshape(rows.stop - rows.start, -1)
        numbers = as_floats(found, codes.dtype) if eight_bit_float else found
        if block > 1:
            of_rows = np.arange(rows.start, rows.stop) // block
            scales = scale.floats()[of_rows]
        else:
            scales = _per_row(scale, rows, outputs, groups)
        zeros = np.zeros_like(scales) if zero is None else _per_row(zero, rows, outputs, groups)
        return Block(numbers, scales * np.float32(share), zeros, starts)

    kind = "fp8" if eight_bit_float else "bitsandbytes" if share != 1.0 else "int8"
    torchao = codes.name.rpartition(".")[2] == "_weight_qdata"
    return PackedLayer(
        name=base,
        format=f"torchao {kind}" if torchao else kind,
        shape=(outputs, inputs),
        bits=used,
        groups=groups,
        low=None if eight_bit_float else low,
        high=None if eight_bit_float else high,
        signed=signed,
        read=read,
        declared=Reading(),
        alternatives={},
        tensors=_names(base, parts),
    )


def _scale_groups(scale: Stored, outputs: int, inputs: int) -> tuple[int, int]:
    """Groups per output channel, and output channels that share one row of scales (blocks of float8)."""
    shape = tuple(n for n in scale.shape if n != 1) or (1,)
    if scale.size == 1 or (scale.size == outputs and scale.rows in (1, outputs)):
        return 1, 1
    _require(len(shape) == 2 and len(scale.shape) == 2, f"{scale.name} has shape {list(scale.shape)}")
    rows, groups = scale.shape
    _require(groups <= inputs, f"{scale.name} has shape {list(scale.shape)} for {inputs} inputs")
    if rows == outputs:
        return groups, 1
    block = _block(outputs, rows)
    _require(
        rows < outputs and -(-outputs // block) == rows,
        f"{scale.name} has shape {list(scale.shape)} for {outputs} outputs",
    )
    return groups, block


def _block(length: int, parts: int) -> int:
    """Length of one part; 128 where that fits, since the last block of float8 may be shorter."""
    return _FP8_BLOCK if -(-length // _FP8_BLOCK) == parts else -(-length // parts)


def _bits_of(codes: Stored) -> int:
    """The fewest bits that hold the codes of the first rows: 2, 3, 4, 5, 6, 7 or 8."""
    rows = codes.read(slice(0, min(codes.rows, 256)))
    low, high = int(rows.min()), int(rows.max())
    return next((bits for bits in range(2, 8) if -(2 ** (bits - 1)) <= low and high < 2 ** (bits - 1)), 8)


_FORMATS: Mapping[str, Callable[[str, Mapping[str, Stored], Settings], PackedLayer]] = {
    "qweight": _gptq_or_awq,
    "weight_packed": _pack_quantized,
    "_weight_qdata": _torchao,
    "weight": _plain,
}
