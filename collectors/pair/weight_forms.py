"""The forms in which weights can be stored: float, as they are, on a better range, per channel, in eight bits."""

from dataclasses import dataclass, field
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.pair.originals import OperatorPair, Original, output_axis
from quantmedic.engine.formulas.change import WeightForm
from quantmedic.engine.formulas.simulate import SHRINK

Float32 = NDArray[np.float32]


@dataclass
class WeightForms:
    """The weights of one operator as stored, what they stand for, and what other storage would make of them.

    ``turned``: the float operator holds them transposed; the forms are handed out so too.
    """

    original: Original
    stored: Float32
    bits: int
    per_tensor: bool
    axis: int | None
    turned: bool
    stored_bias: Float32 | None
    forms: dict[WeightForm | None, Float32] = field(default_factory=dict)

    def weight(self, form: WeightForm | None) -> Float32:
        """The weights in a form, the stored one without, as the float operator wants them."""
        if form not in self.forms:
            values = self.own(form)
            self.forms[form] = np.ascontiguousarray(values.T if self.turned else values, np.float32)
        return self.forms[form]

    def own(self, form: WeightForm | None) -> Float32:
        """The weights in a form, as the quantized operator holds them."""
        return self.stored if form is None else self._in_form(form)

    def bias(self, is_float: bool) -> Float32:
        """The bias as it was, or as it is stored."""
        values = self.original.bias if is_float else self.stored_bias
        return np.ascontiguousarray(values, np.float32)

    def _in_form(self, form: WeightForm) -> Float32:
        weight = self.original.weight
        assert weight is not None
        match form:
            case "float":
                return weight
            case "best-range":
                return round_to_best_grid(weight, self.bits, None if self.per_tensor else self.axis)
            case "per-channel":
                return round_to_grid(weight, self.bits, self.axis)
            case "eight-bit":
                return round_to_grid(weight, 8, self.axis)
            case _:
                assert_never(form)


def forms_of(pair: OperatorPair) -> WeightForms | None:
    """The forms of an operator's weights; None where what is stored, or what it stands for, is not known."""
    stored, own, original = pair.weight, pair.twin_weight, pair.original
    if own is None or own.values is None or stored is None or stored.values is None:
        return None
    if stored.quantizer is None or original.weight is None or original.weight.shape != stored.values.shape:
        return None
    stored_bias = _stored_bias(pair)
    if original.folded and stored_bias is None:
        return None
    return WeightForms(
        original=original,
        stored=stored.values,
        bits=stored.quantizer.bits,
        per_tensor=stored.quantizer.scale.size == 1,
        axis=output_axis(pair.op),
        turned=pair.is_turned,
        stored_bias=stored_bias,
    )


def _stored_bias(pair: OperatorPair) -> Float32 | None:
    """The bias as it is stored, where the float one is known too."""
    stored, own = pair.bias, pair.original.bias
    if stored is None or stored.values is None or own is None or stored.values.shape != own.shape:
        return None
    return stored.values


def round_to_grid(weight: Float32, bits: int, axis: int | None, shrink: float = 1.0) -> Float32:
    """Weights after a round trip through the grid of ``encode_on_grid``."""
    codes, step = encode_on_grid(weight, bits, axis, shrink)
    return np.asarray(codes * step, np.float32)


def encode_on_grid(weight: Float32, bits: int, axis: int | None, shrink: float = 1.0) -> tuple[Float32, Float32]:
    """Codes of weights on a symmetric grid, one per channel of ``axis`` or one in all, and its steps.

    Args:
        weight: Float weights.
        bits: Bits of a code. As in onnxruntime, 8 bits and more use ``±(2**(bits-1) - 1)``, fewer bits all codes.
        axis: Channel axis; None for one scale.
        shrink: The grid's reach over the largest magnitude.

    Returns:
        Whole numbers in the shape of the weights, and steps that broadcast to it.
    """
    top = np.abs(weight).max(axis=_other_axes(weight, axis), keepdims=True) * shrink
    high = 2 ** (bits - 1) - 1
    low = -high if bits >= 8 else -high - 1
    step = np.where(top > 0, 2 * top / (high - low), 1.0)
    return np.clip(np.rint(weight / step), low, high), step


def round_to_best_grid(weight: Float32, bits: int, axis: int | None) -> Float32:
    """Weights after a round trip through the grid of ``encode_on_best_grid``."""
    codes, step = encode_on_best_grid(weight, bits, axis)
    return np.asarray(codes * step, np.float32)


def encode_on_best_grid(weight: Float32, bits: int, axis: int | None) -> tuple[Float32, Float32]:
    """``encode_on_grid`` on the least noisy of some shrunken grids, chosen for each scale by itself."""
    others = _other_axes(weight, axis)
    codes, step = encode_on_grid(weight, bits, axis)
    least = ((np.asarray(codes * step, np.float32) - weight) ** 2).sum(axis=others, keepdims=True)
    for shrink in SHRINK[1:]:
        tried, width = encode_on_grid(weight, bits, axis, float(shrink))
        noise = ((np.asarray(tried * width, np.float32) - weight) ** 2).sum(axis=others, keepdims=True)
        better = noise < least
        codes, step = np.where(better, tried, codes), np.where(better, width, step)
        least = np.minimum(noise, least)
    return codes, step


def _other_axes(weight: Float32, axis: int | None) -> tuple[int, ...] | None:
    return None if axis is None else tuple(i for i in range(weight.ndim) if i != axis % weight.ndim)
