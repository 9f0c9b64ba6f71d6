"""Float weights of one layer against the stored ones, a slice of output channels at a time, and sums over a slice."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.from_checkpoint.layers.group_sums import group_sums
from quantmedic.collectors.from_checkpoint.layers.weight_fields import FIELDS, Floats, Grid, Values
from quantmedic.collectors.from_checkpoint.packed.packed_layer import (
    Block,
    PackedLayer,
    Reading,
    UnreadableLayerError,
    restore_order,
)
from quantmedic.collectors.pair.weight_grids import MIN_WEIGHTS, input_gains, outlier_ratios, power_of

#: Weights of one slice: few enough that two of them as float32 stay small, and enough to be worth a call.
SLICE = 1 << 20
#: Index of each field of the sums.
F = {name: index for index, name in enumerate(FIELDS)}
#: Gives some output channels of the float weights, ``[rows, inputs]``.
Source = Callable[[slice], Values]
#: Gives the same of the stored ones.
StoredSource = Callable[[slice], "Part"]


@dataclass(frozen=True)
class Part:
    """Some output channels as stored, inputs sorted by group; ``grid`` is NaN where there are no even steps."""

    values: Values
    grid: Grid
    starts: NDArray[np.int64]
    order: NDArray[np.int64] | None = None
    scale: Values | None = None
    zero: Values | None = None


def slices(rows: int, inputs: int, unit: int) -> Iterator[slice]:
    """Output channels in slices of about ``SLICE`` weights, multiples of ``unit``."""
    height = max(SLICE // max(inputs, 1) // unit, 1) * unit
    for start in range(0, rows, height):
        yield slice(start, min(start + height, rows))


@dataclass(frozen=True)
class Sides:
    """Both sides of a layer.

    Attributes:
        floats: Its float weights.
        stored: Its stored ones.
        shape: Output and input channels.
        unit: Output channels are read in multiples of it.
        groups: Groups of an output channel.
        columns: What stored weights are multiplied with against the float ones, per input channel; then gains of output
            channels are taken out as well.
    """

    floats: Source
    stored: StoredSource
    shape: tuple[int, int]
    unit: int = 1
    groups: int = 1
    columns: Values | None = None

    @classmethod
    def of_layer(cls, layer: PackedLayer, floats: Source, reading: Reading | None = None) -> "Sides":
        """Of a layer whose codes are read as its format asks for, or in another way."""
        stored = partial(_read_part, layer, reading or layer.declared)
        return cls(floats, stored, layer.shape, layer.unit, layer.groups)

    def first_rows(self, most: int) -> slice:
        """So many output channels, or all."""
        return slice(0, min(self.shape[0], most))

    def load(self, rows: slice) -> tuple[Values, Part]:
        """Float weights with the gains of inputs, in the order of the stored ones, and these.

        Raises:
            UnreadableLayerError: The two have different shapes.
        """
        x, part = self.floats(rows), self.stored(rows)
        if x.shape != part.values.shape:
            raise UnreadableLayerError(f"float weights {list(x.shape)} against stored {list(part.values.shape)}")
        x = x if self.columns is None else x * self.columns
        return (x if part.order is None else np.ascontiguousarray(x[:, part.order])), part

    def load_finite(self, rows: slice) -> tuple[Values, Values]:
        """The values of both, with 0 for those that are not finite."""
        x, part = self.load(rows)
        return finite_or_zero(x), finite_or_zero(part.values)

    def balance(self, x: Values, y: Values) -> tuple[Values, Values | None]:
        """Float weights with the gains of output channels, and these; None where they are left in."""
        if self.columns is None:
            return x, None
        gains = row_gains(x, y)
        return x * gains, gains


def _read_part(layer: PackedLayer, reading: Reading, rows: slice) -> Part:
    block = _without_empty(layer.read(rows, reading))
    if not layer.even:
        nothing = np.full_like(block.scale, np.nan)
        grid = Grid(nothing, nothing, nothing)
    else:
        with np.errstate(invalid="ignore", over="ignore"):  # a damaged file has scales that are not finite
            ends = [(end - block.zero) * block.step for end in layer.ends]
        grid = Grid(np.abs(block.step), np.minimum(*ends), np.maximum(*ends))
    return Part(block.values(), grid, block.starts, block.order, block.scale, block.zero)


def _without_empty(block: Block) -> Block:
    """A block without groups that ``g_idx`` gives no input."""
    kept = np.diff(block.starts) > 0
    if kept.all():
        return block
    starts = np.append(block.starts[:-1][kept], block.starts[-1])
    return replace(block, scale=block.scale[:, kept], zero=block.zero[:, kept], starts=starts)


@dataclass
class SliceSums:
    """Sums of one slice."""

    groups: Floats
    starts: NDArray[np.int64]
    tops: Values
    scale: Values | None
    zero: Values | None
    outliers: Floats | None
    nonfinite: int
    gains: Values | None = None
    """Gains of output channels that were taken out; None where none were."""


def sum_slice(rows: slice, sides: Sides, common: Values | None) -> SliceSums:
    """Sums of one slice; values that are not finite count as 0 and are counted.

    Args:
        rows: Output channels.
        sides: Of the layer.
        common: ``common_gains`` of the layer, which are divided out where outliers of channels are looked for; None
            where they are not.
    """
    x, part = sides.load(rows)
    y = part.values
    x, gains = sides.balance(x, y)
    tops = np.zeros(x.shape[1], np.float32)
    sums, bad = group_sums(x, y, part.grid, part.starts, tops), 0
    if not np.isfinite(sums[:, :, : F["low"]]).all():
        bad = int((~np.isfinite(x)).sum())
        x, y = finite_or_zero(x), finite_or_zero(y)
        tops[:] = 0
        sums = group_sums(x, y, part.grid, part.starts, tops)
    outliers = None
    if common is not None and x.shape[1] >= MIN_WEIGHTS:
        outliers = outlier_ratios(x[:, :, None], common)
    return SliceSums(sums, part.starts, restore_order(tops, part.order), part.scale, part.zero, outliers, bad, gains)


def common_gains(rows: slice, sides: Sides) -> Values:
    """``input_gains`` of a layer by some of its output channels, in the order of the stored weights.

    Medians are dear: of a layer of 14 336 outputs, 256 tell them to some percent.
    """
    x, part = sides.load(rows)
    return input_gains(finite_or_zero(sides.balance(x, part.values)[0])[:, :, None])


def finite_or_zero(values: Values) -> Values:
    """The values, with 0 for those that are not finite."""
    return np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)


def row_gains(x: Values, y: Values) -> Values:
    """Least-squares factor of each row, ``[rows, 1]``; 1 where there is none."""
    power = power_of(x)
    product = np.einsum("ij,ij->i", x, y, dtype=np.float64)
    gains: Values = np.divide(product, power, out=np.ones(len(x)), where=power > 0).astype(np.float32)[:, None]
    return gains
