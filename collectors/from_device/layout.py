"""How the values of a dumped tensor become those of the model's: type, codes, shape and order of axes."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.arrays import Array
from quantmedic.collectors.data.messages import shape_text
from quantmedic.collectors.from_device.dump import DumpedTensor
from quantmedic.collectors.pair.quantizer import Quantizer

Float32 = NDArray[np.float32]
#: Orders of axes that are tried.
ORDERS = 3
#: Axes of a sample of the model, in the order in which the device holds them.
Order = tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """How a dumped tensor is read.

    Attributes:
        dtype: Type of its values.
        shape: Sides of a sample of the model.
        order: Axes of such a sample in the order of the dump.
        grid: Grid of its codes; None where it holds real values.
        shift: What its codes exceed the model's by: half of the codes where one counts from 0 and the other does not.
    """

    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    order: Order
    grid: Quantizer | None = None
    shift: int = 0

    def values(self, block: Array) -> Float32:
        """Real values ``[samples, ...]`` in the model's order of axes, of a block of the dump."""
        stored = np.ascontiguousarray(block).reshape(len(block), -1)
        stored = stored if stored.dtype == self.dtype else stored.view(self.dtype)
        held = stored.reshape(len(block), *(self.shape[axis] for axis in self.order))
        placed = held.transpose(0, *(1 + self.order.index(axis) for axis in range(len(self.order))))
        if self.grid is None:
            return np.ascontiguousarray(placed, np.float32)
        return self.grid.dequantize(placed.astype(np.int64) - self.shift)


class LayoutError(ValueError):
    """A dumped tensor is not of the model's type or shape; says how."""


@dataclass(frozen=True)
class Choice:
    """A layout that fits, and how like the model's tensor it makes the device's: their correlation."""

    layout: Layout
    likeness: float


#: Layouts that fit a tensor by how they order its axes: 0 as the model does, 1 channels last, 2 channels first.
Choices = Mapping[int, Choice]
#: One order holds for a whole dump, but for tensors that are like the model's in another one alone.
ALIKE, UNLIKE = 0.9, 0.5


def choices_of(tensor: DumpedTensor, block: Array, here: Float32, grid: Quantizer | None) -> Choices:
    """How a tensor may be read.

    Args:
        tensor: The tensor of the dump.
        block: Its first samples.
        here: What the deployed model makes of these samples, real values ``[samples, ...]``.
        grid: The fixed grid of this tensor; None without one.

    Raises:
        LayoutError: No type or shape fits.
    """
    shape = here.shape[1:]
    dtype = _dtype_of(tensor, math.prod(shape), grid)
    sides = None if tensor.raw else _without_ones(tensor.shape)
    orders = {k: o for k, o in enumerate(_orders(len(shape))) if _fits_sides(sides, [shape[axis] for axis in o])}
    if not orders or (sides is not None and math.prod(sides) != math.prod(shape)):
        whole = tensor.column.info.shape
        hint = "; its first axis has to count samples" if whole == shape else ""
        raise LayoutError(f"a sample has {shape_text(tensor.shape)} where the model has {shape_text(shape)}{hint}")
    codes = dtype.kind in "iu"
    shift = 0 if not codes or grid is None else ((dtype.kind == "u") - (not grid.signed)) * (1 << (grid.bits - 1))
    layouts = {kind: Layout(dtype, shape, order, grid if codes else None, shift) for kind, order in orders.items()}
    return {kind: Choice(layout, _likeness(layout.values(block), here)) for kind, layout in layouts.items()}


def choose_layouts(choices: Mapping[int, Choices]) -> dict[int, Layout]:
    """The layout of each tensor: in the order of axes that makes most tensors like the model's, where it fits.

    What the device computes otherwise may look most like the model's in a wrong order, and is no evidence by itself.
    """
    votes = [sum(max(own[k].likeness, 0.0) for own in choices.values() if k in own) for k in range(ORDERS)]
    usual = max(range(ORDERS), key=lambda kind: votes[kind])
    return {i: _choose_layout(own, usual) for i, own in choices.items()}


def _choose_layout(own: Choices, usual: int) -> Layout:
    best = max(own.values(), key=lambda choice: choice.likeness)
    if usual not in own or (best.likeness > ALIKE and own[usual].likeness < UNLIKE):
        return best.layout
    return own[usual].layout


def _dtype_of(tensor: DumpedTensor, elements: int, grid: Quantizer | None) -> np.dtype[np.generic]:
    """Type of the values; of raw bytes by how many each element has: float32, the codes' own type, or float16."""
    dtype = tensor.column.info.dtype
    if tensor.raw:
        size, rest = divmod(tensor.shape[0], max(elements, 1))
        signed = "i" if grid is not None and grid.signed else "u"
        known = {4: "<f4", 2: "<f2" if grid is None or grid.bits <= 8 else f"<{signed}2"}
        known |= {} if grid is None or grid.bits > 8 else {1: f"{signed}1"}
        if rest or size not in known:
            raise LayoutError(f"a sample has {tensor.shape[0]} bytes, where {elements} float32 have {4 * elements}")
        return np.dtype(known[size])
    if dtype.kind in "iu" and grid is None:
        raise LayoutError(f"it holds integers ({dtype}), and the model has no fixed grid here that tells their values")
    return dtype


def _orders(rank: int) -> Iterator[Order]:
    """As the model has the axes of a sample, channels last, channels first."""
    axes = tuple(range(rank))
    yield from (axes, (*axes[1:], *axes[:1]), (*axes[-1:], *axes[:-1]))


def _fits_sides(sides: Sequence[int] | None, wanted: Sequence[int]) -> bool:
    """A sample of these sides may be one of those wanted: the same but for sides of 1, or all in one row."""
    return sides is None or len(sides) <= 1 or list(sides) == _without_ones(wanted)


def _without_ones(sides: Sequence[int]) -> list[int]:
    return [side for side in sides if side != 1]


def _likeness(values: Float32, here: Float32) -> float:
    """Correlation of the values, with those that are not finite left out."""
    x, y = (array.astype(np.float64).ravel() for array in (values, here))
    known = np.isfinite(x) & np.isfinite(y)
    if not known.any():
        return 0.0
    x, y = (array[known] - array[known].mean() for array in (x, y))
    return float(x @ y) / max(math.sqrt(float(x @ x) * float(y @ y)), float(np.finfo(np.float64).tiny))
