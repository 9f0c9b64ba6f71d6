"""Batch norms that OpenVINO took apart: it writes a factor and a shift for each channel, which are read as one again.

When OpenVINO converts a model it folds these into the convolution in front of them, but for a quantizer in between.
"""

from typing import TYPE_CHECKING

import numpy as np

from quantmedic.collectors.from_openvino.constants import Held
from quantmedic.collectors.from_openvino.folding import REAL
from quantmedic.collectors.from_openvino.site import Site, constant_of, shape_of

if TYPE_CHECKING:
    import openvino

_CONVOLUTIONS = frozenset(
    {"Convolution", "GroupConvolution", "ConvolutionBackpropData", "GroupConvolutionBackpropData"}
)


def is_normalization(op: "openvino.Node") -> bool:
    """A factor for each channel of what a convolution wrote, held as numbers: toolchains store others as codes."""
    shape = shape_of(op.output(0))
    if op.get_type_name() != "Multiply" or shape is None or len(shape) < 3:
        return False
    factor = op.input_value(1)
    sides = [1, shape[1], *([1] * (len(shape) - 2))]
    if factor.get_node().get_type_name() != "Constant" or shape_of(factor) != tuple(sides) or shape[1] == 1:
        return False
    return factor.get_element_type().get_type_name() in REAL and _is_of_convolution(op.input_value(0).get_node())


def _is_of_convolution(op: "openvino.Node") -> bool:
    """A convolution, with or without its bias, and behind a quantizer or not."""
    if op.get_type_name() == "FakeQuantize":
        op = op.input_value(0).get_node()
    if op.get_type_name() == "Add":
        op = op.input_value(0).get_node()
    return op.get_type_name() in _CONVOLUTIONS


def normalization(site: Site, shift: Held | None = None) -> None:
    """BatchNormalization of mean 0 and variance 1; ``shift`` is what the Add behind it adds to each channel."""
    gain = np.asarray(constant_of(site, 1), np.float32).ravel()
    added = np.zeros_like(gain) if shift is None else np.asarray(shift.values, np.float32).ravel()
    values = (gain, added, np.zeros_like(gain), np.ones_like(gain))
    site.finish(
        "BatchNormalization", [site.value(0), *(site.constant(each, np.float32) for each in values)], epsilon=0.0
    )
