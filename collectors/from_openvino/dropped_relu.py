"""Relu that OpenVINO dropped when it converted a model, for the FakeQuantize behind it begins at 0."""

from typing import TYPE_CHECKING

import numpy as np

from quantmedic.collectors.from_openvino.grids import FakeGrid

if TYPE_CHECKING:
    import openvino


def stands_for_relu(op: "openvino.Node", grid: FakeGrid) -> bool:
    """A FakeQuantize reads another one, and cuts off what that has below 0.

    There are two in a row where a Relu read a quantizer and its result is quantized from 0 on. Each of them rounds what
    another operator of the float model writes, so that the Relu has to be between them again.
    """
    before = op.input_value(0).get_node()
    if before.get_type_name() != "FakeQuantize" or grid.encoder.signed or np.any(grid.encoder.zero_point):
        return False
    lowest = before.input_value(3).get_node()
    return lowest.get_type_name() == "Constant" and bool((lowest.get_data() < 0).any())
