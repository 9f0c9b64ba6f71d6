"""The quantized weights of one layer, as they are read from every format: codes, scales and zero points.

In every format a weight is (code - zero point) · scale of its group; a group is a run of input channels of one output
channel (or those that ``g_idx`` gives one number). Everything is ``[output channels, input channels]``, whatever way
round the file has it. Codes of few bits lie in words of 32: from the lowest bits up, or in an order of the format.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.arrays import Array
from quantmedic.collectors.from_checkpoint.safetensors_file import Stored, Values

Codes = NDArray[np.uint8]

WORD = 32
#: Column that the k-th code of a word of AWQ belongs to.
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
REVERSED_ORDER = (7, 6, 5, 4, 3, 2, 1, 0)
Integers = NDArray[np.int64]
#: Tensors of one layer by the last part of their names.
Parts = Mapping[str, Stored]


class UnreadableLayerError(Exception):
    """The tensors of a layer do not fit together; the text says why."""


def unpack_words(words: Array, bits: int, count: int) -> Codes:
    """Codes of ``bits`` each along the last axis of int32 words or of bytes, the lowest bits first: ``[..., count]``.

    Raises:
        UnreadableLayerError: The words hold fewer codes.
    """
    stream = np.ascontiguousarray(words, None if words.dtype == np.uint8 else "<i4").view(np.uint8)
    if stream.shape[-1] * 8 < count * bits:
        raise UnreadableLayerError(f"{words.shape[-1]} words hold fewer than {count} codes of {bits} bits")
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
    values: Codes = (single << np.arange(bits, dtype=np.uint8)).sum(axis=-1, dtype=np.uint8)
    return values


def unpack_padded_words(words: Array, bits: int, count: int) -> Codes:
    """Codes of which none reaches into the next word: 32 // bits of them per word, the rest of its bits unused.

    Raises:
        UnreadableLayerError: The words hold fewer codes.
    """
    per_word = WORD // bits
    if words.shape[-1] * per_word < count:
        raise UnreadableLayerError(f"{words.shape[-1]} words hold fewer than {count} codes of {bits} bits")
    shifted = words.view(np.uint32)[..., None] >> (np.arange(per_word, dtype=np.uint32) * bits)
    codes = (shifted & np.uint32(2**bits - 1)).astype(np.uint8)
    return codes.reshape(*words.shape[:-1], -1)[..., :count]


def in_column_order(codes: Codes, order: tuple[int, ...] | None) -> Codes:
    """Codes in the order of their columns, where the k-th of each word belongs to column ``order[k]`` of it."""
    if order is None:
        return codes
    columns = np.argsort(order)
    return codes.reshape(*codes.shape[:-1], -1, len(order))[..., columns].reshape(codes.shape)


@dataclass(frozen=True)
class Reading:
    """One way to read the codes of a format.

    Attributes:
        order: Column of the k-th code of each word; None: from the lowest bits up.
        zero_order: The same of packed zero points.
        zero_shift: Added to all zero points.
        wraps: Only as many bits of the shifted zero point are kept as a code has.
        in_sequence: ``g_idx`` is ignored.
        flipped: The highest bit of each code is inverted.
    """

    order: tuple[int, ...] | None = None
    zero_order: tuple[int, ...] | None = None
    zero_shift: int = 0
    wraps: bool = False
    in_sequence: bool = False
    flipped: bool = False


@dataclass(frozen=True)
class Block:
    """Some output channels: codes ``[rows, inputs]``, scales and zero points ``[rows, groups]``.

    Attributes:
        scale: Scales; as they are stored, they may be 0.
        starts: First column of each group, and the number of columns.
        order: Sorts the inputs by group where groups are not contiguous; ``codes`` are sorted already.
        offset: Added to scale · code where the format stores no zero points; they are ``zero`` only roughly then.
        zero_is_no_step: A scale of 0 stands for weights that are 0 and is no step of a grid.
    """

    codes: Array
    scale: Values
    zero: Values
    starts: Integers
    order: Integers | None = None
    offset: Values | None = None
    zero_is_no_step: bool = False

    @property
    def step(self) -> Values:
        """Scales, where they are steps of a grid; else no numbers."""
        return np.where(self.scale == 0, np.float32(np.nan), self.scale) if self.zero_is_no_step else self.scale

    def values(self) -> Values:
        """(code - zero point) · scale, or scale · code + offset, float32."""
        sizes = np.diff(self.starts)
        scale, shift = self.scale, self.zero if self.offset is None else self.offset
        found = self.codes.astype(np.float32)
        if len(sizes) and (sizes == sizes[0]).all():
            grouped, scale, shift = found.reshape(len(found), len(sizes), -1), scale[:, :, None], shift[:, :, None]
        else:
            grouped, scale, shift = found, np.repeat(scale, sizes, axis=1), np.repeat(shift, sizes, axis=1)
        with np.errstate(invalid="ignore", over="ignore"):  # a damaged file has scales that are not finite
            if self.offset is None:
                grouped -= shift
            grouped *= scale
            if self.offset is not None:
                grouped += shift
        return found


@dataclass(frozen=True)
class PackedLayer:
    """The quantized weights of one layer, read some output channels at a time.

    Attributes:
        shape: Output and input channels.
        signed: Codes are.
        read: Takes output channels and a reading.
        even: Codes have even steps; those of small floats and of tables have not.
        declared: The reading that the format and its configuration ask for.
        alternatives: Other readings, by what they would mean.
        unit: Rows are read in multiples of it.
        block_scales: Scales per block where they are numbers of one byte themselves.
        is_turned: The float weights are ``[inputs, outputs]``, also where both are as many.
        lacks_global_scale: The scale of the whole tensor, which the format asks for, is missing.
        own_name: Of its weight in the file, where that is another than the checkpoint's.
    """

    format: str
    shape: tuple[int, int]
    bits: int
    groups: int
    signed: bool
    read: Callable[[slice, Reading], Block]
    even: bool = True
    declared: Reading = Reading()
    alternatives: Mapping[str, Reading] = field(default_factory=dict)
    unit: int = 1
    block_scales: Stored | None = None
    lacks_global_scale: bool = False
    is_turned: bool = False
    own_name: str | None = None

    @property
    def group_size(self) -> int:
        return -(-self.shape[1] // self.groups)

    @property
    def ends(self) -> tuple[int, int]:
        """Smallest and largest code."""
        low = -(2 ** (self.bits - 1)) if self.signed else 0
        return low, low + 2**self.bits - 1


@dataclass(frozen=True)
class Settings:
    """What ``quantization_config`` declares; None where it says nothing."""

    bits: int | None = None
    group_size: int | None = None
    symmetric: bool | None = None
    activation_order: bool | None = None
    zero_minus_one: bool = True

    @classmethod
    def of(cls, found: Mapping[str, object]) -> "Settings":
        """Read the keys of GPTQ, AWQ (``w_bit``, ``q_group_size``) and compressed-tensors (``config_groups``)."""
        given = next(iter((config_groups(found) or {}).values()), {}).get("weights")
        weights: Mapping[str, object] = given if isinstance(given, dict) else {}
        return cls(
            bits=integer_or_none(found.get("bits", found.get("w_bit", weights.get("num_bits")))),
            group_size=integer_or_none(found.get("group_size", found.get("q_group_size", weights.get("group_size")))),
            symmetric=_truth(found.get("sym", weights.get("symmetric"))),
            activation_order=_truth(found.get("desc_act")),
            zero_minus_one=found.get("checkpoint_format", found.get("format")) != "gptq_v2",
        )


def config_groups(settings: Mapping[str, object]) -> dict[str, Mapping[str, object]] | None:
    """Groups of layers by name, as compressed-tensors declares them; None where it declares none."""
    groups = settings.get("config_groups")
    if not isinstance(groups, Mapping):
        return None
    return {str(name): group for name, group in groups.items() if isinstance(group, Mapping)}


def _truth(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def integer_or_none(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def require(fits: bool, what: str) -> None:
    """Refuse the layer unless its tensors fit.

    Raises:
        UnreadableLayerError: They do not; it says ``what``.
    """
    if not fits:
        raise UnreadableLayerError(what)


def require_parts(parts: Parts, *names: str) -> list[Stored]:
    """Tensors that the format cannot do without.

    Raises:
        UnreadableLayerError: One is missing.
    """
    missing = [name for name in names if name not in parts]
    require(not missing, f"no {', '.join(missing)} beside its codes")
    return [parts[name] for name in names]


def matrix_shape(stored: Stored, what: str) -> tuple[int, int]:
    """Shape of a tensor that must have two axes.

    Raises:
        UnreadableLayerError: It has others, or is empty.
    """
    require(len(stored.shape) == 2 and stored.size > 0, f"{what} has shape {list(stored.shape)}, not two axes")
    return stored.shape[0], stored.shape[1]


def even_groups(inputs: int, groups: int, declared: int | None = None) -> Integers:
    """First columns of groups of one size (the declared one, where it fits), and the end."""
    fits = declared is not None and declared > 0 and -(-inputs // declared) == groups
    size = declared if declared is not None and fits else -(-inputs // groups)
    return np.minimum(np.arange(groups + 1, dtype=np.int64) * size, inputs)


def group_columns(
    index: Stored | None, inputs: int, groups: int, declared: int | None
) -> tuple[Integers, Integers | None]:
    """First columns of the groups, and the order that sorts the inputs by group where these are not contiguous.

    Raises:
        UnreadableLayerError: The index does not fit the inputs or the groups.
    """
    if index is None:
        return even_groups(inputs, groups, declared), None
    numbers = index.load().astype(np.int64).ravel()
    require(numbers.size == inputs, f"{index.name} has {numbers.size} entries for {inputs} inputs")
    require(bool(((numbers >= 0) & (numbers < groups)).all()), f"{index.name} names a group beyond {groups}")
    order = np.argsort(numbers, kind="stable")
    starts = np.searchsorted(numbers[order], np.arange(groups + 1))
    return starts, None if (np.diff(numbers) >= 0).all() else order


def sort_by_group(codes: Array, order: Integers | None) -> Array:
    """Columns in the order of their groups."""
    return codes if order is None else codes[:, order]


def restore_order(values: Array, order: Integers | None) -> Array:
    """Values whose last axis ``sort_by_group`` has sorted, in the order of the network."""
    if order is None:
        return values
    found = np.empty_like(values)
    found[..., order] = values
    return found


def group_rows(stored: Stored, rows: slice, groups: int) -> Values:
    """``[rows, groups]`` of a scale or zero point per tensor, per output or per group."""
    count = rows.stop - rows.start
    if stored.size == 1:
        return np.full((count, groups), stored.floats().ravel()[0], np.float32)
    if stored.rows == 1:
        return np.repeat(stored.floats().reshape(1, -1), count, axis=0)
    return np.ascontiguousarray(stored.floats(rows).reshape(count, -1))
