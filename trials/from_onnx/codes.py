"""Weights as codes on symmetric grids."""

from dataclasses import dataclass
from typing import assert_never

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from quantmedic.collectors.pair.graph import Operator
from quantmedic.collectors.pair.originals import output_axis
from quantmedic.collectors.pair.weight_forms import encode_on_best_grid, encode_on_grid
from quantmedic.engine.formulas.change import WeightForm

Float32 = NDArray[np.float32]


@dataclass(frozen=True)
class Codes:
    """Weights on symmetric grids.

    Attributes:
        floats: The values that they encode.
        bits: Bits of a code.
        axis: Axis of the scales; None for one scale.
        scale: One, or one per index of the axis.
    """

    floats: Float32
    bits: int
    axis: int | None
    scale: Float32

    @property
    def codes(self) -> Float32:
        """Whole numbers."""
        shape = [1] * self.floats.ndim
        if self.axis is not None:
            shape[self.axis] = self.scale.size
        high = 2 ** (self.bits - 1) - 1
        low = -high if self.bits >= 8 else -high - 1
        return np.clip(np.rint(self.floats / self.scale.reshape(shape)), low, high)

    @property
    def kind(self) -> int:
        """Type that the codes are stored in."""
        return int(TensorProto.DataType.Value(f"INT{self.bits}"))


def codes_in_form(op: Operator, weight: Float32, bits: int, form: WeightForm, *, per_tensor: bool) -> Codes:
    """The weights of an operator in another form of codes.

    Args:
        op: The operator.
        weight: Its float weights.
        bits: Bits that it has now.
        form: The form; ``float`` is none of codes.
        per_tensor: The best range is one for all weights, like the present one.
    """
    axis = output_axis(op)
    axis = None if axis is None else axis % weight.ndim
    match form:
        case "best-range":
            axis = None if per_tensor else axis
            _, step = encode_on_best_grid(weight, bits, axis)
        case "per-channel" | "float":
            _, step = encode_on_grid(weight, bits, axis)
        case "eight-bit":
            bits = 8
            _, step = encode_on_grid(weight, bits, axis)
        case _:
            assert_never(form)
    return Codes(weight, bits, axis, step.astype(np.float32).reshape(() if axis is None else -1))
