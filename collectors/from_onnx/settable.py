"""What can be changed from run to run in the simulated network, and the inputs that it is fed by."""

from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from quantmedic.collectors.from_onnx.scalars import SCALAR
from quantmedic.collectors.from_onnx.simulated_nodes import (
    CHANNEL_ROW_TYPES,
    OFF,
    ROW_TYPES,
    ChannelRow,
    Row,
    channel_quantizer_node,
    channel_row,
    grid_row,
    quantizer_node,
)
from quantmedic.collectors.pair.weight_forms import WeightForms
from quantmedic.engine.formulas.change import Change, WeightForm
from quantmedic.engine.formulas.simulate import AnyGrid, ChannelGrid, Grid

Array = NDArray[np.generic]
Float32 = NDArray[np.float32]
#: What is fed, by input.
Fed = dict[str, Array | float]
#: What is in force at one place, so that equal settings do the same.
Setting = Hashable


@dataclass(frozen=True)
class Layer:
    """The weights of one operator, and the inputs by which its twin gets them and its bias.

    ``is_stored`` and ``is_float`` are inputs that choose constant weights, where the twin has such.
    """

    forms: WeightForms
    weight_input: str
    bias_input: str | None
    bias_shape: tuple[int, ...]
    has_constants: bool
    operator: int

    def setting(self, change: Change | None) -> tuple[WeightForm | None, bool]:
        """The form of the weights, and whether the bias is in float, where that makes a difference."""
        if change is None:
            return "float", self.rounds_bias
        return change.weights.get(self.operator), self.rounds_bias and self.operator in change.biases

    @cached_property
    def rounds_bias(self) -> bool:
        """The stored bias is another than that of the float model."""
        forms = self.forms
        return self.bias_input is not None and not np.array_equal(forms.bias(False), forms.bias(True))

    @property
    def inputs(self) -> list[str]:
        """All inputs."""
        return [name for name in (self.weight_input, self.bias_input, self.is_stored, self.is_float) if name]

    @property
    def is_stored(self) -> str:
        return f"{SCALAR}{self.operator}:is-stored"

    @property
    def is_float(self) -> str:
        return f"{SCALAR}{self.operator}:is-float"

    def feed(self, change: Change | None) -> Fed:
        """What to feed under a change."""
        form, float_bias = self.setting(change)
        float_bias = float_bias or not self.rounds_bias
        found: Fed = {self.weight_input: self.forms.weight(form)}
        if self.bias_input is not None:
            found[self.bias_input] = self.forms.bias(float_bias).reshape(self.bias_shape)
        if self.has_constants:
            found |= {self.is_stored: form is None, self.is_float: form == "float"}
        return found


@dataclass(frozen=True)
class Operand:
    """A small constant operand that the deployed model holds as codes, such as the gain of a normalization."""

    operator: int
    input: str
    stored: Float32
    original: Float32

    def setting(self, change: Change | None) -> bool:
        """Whether it is in float."""
        return change is None or self.operator in change.biases

    @property
    def inputs(self) -> list[str]:
        """All inputs."""
        return [self.input]

    def feed(self, change: Change | None) -> Fed:
        """What to feed under a change."""
        return {self.input: self.original if self.setting(change) else self.stored}


@dataclass(frozen=True)
class Quantizer:
    """The quantizer of an activation, by the index of its tensor, and its deployed grid."""

    tensor: int
    grid: Grid

    @cached_property
    def _row(self) -> Row[str]:
        return Row(*(f"{SCALAR}{self.tensor}:{field}" for field in Row._fields))

    def declare(self) -> list[onnx.ValueInfoProto]:
        """The inputs as a graph declares them."""
        pairs = zip(self._row, ROW_TYPES, strict=True)
        return [helper.make_tensor_value_info(name, kind, [1]) for name, kind in pairs]

    def make_node(self, source: str, target: str, rounder: str, opset: int) -> onnx.NodeProto:
        """What quantizes a tensor; see ``quantizer_node``."""
        return quantizer_node(source, target, self._row, rounder, opset)

    def setting(self, change: Change | None) -> AnyGrid | None:
        """The grid; None where it is off."""
        return None if change is None else change.grids.get(self.tensor, self.grid)

    @property
    def inputs(self) -> list[str]:
        """All inputs."""
        return list(self._row)

    def feed(self, change: Change | None) -> Fed:
        """What to feed under a change."""
        grid = self.setting(change)
        assert not isinstance(grid, ChannelGrid)
        return dict(zip(self._row, OFF if grid is None else grid_row(grid), strict=True))


@dataclass(frozen=True)
class ChannelQuantizer:
    """The quantizer of an activation that has a grid for each channel; ``axes`` follow that of the channels."""

    tensor: int
    grid: ChannelGrid
    axes: int

    @cached_property
    def _row(self) -> ChannelRow[str]:
        own = f"quantmedic:channels:{self.tensor}"
        return ChannelRow(f"{own}:low", f"{own}:high", f"{own}:step", f"{SCALAR}{self.tensor}:is_on")

    @property
    def _shape(self) -> tuple[int, ...]:
        """The channels, so that they broadcast."""
        return len(self.grid.grids), *[1] * self.axes

    def declare(self) -> list[onnx.ValueInfoProto]:
        """The inputs as a graph declares them."""
        shapes = ChannelRow(self._shape, self._shape, self._shape, (1,))
        parts = zip(self._row, CHANNEL_ROW_TYPES, shapes, strict=True)
        return [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in parts]

    def make_node(self, source: str, target: str, rounder: str, opset: int) -> onnx.NodeProto:
        """What quantizes a tensor; see ``channel_quantizer_node``."""
        return channel_quantizer_node(source, target, self._row, rounder, opset)

    def setting(self, change: Change | None) -> AnyGrid | None:
        """The grid; None where it is off."""
        return None if change is None else change.grids.get(self.tensor, self.grid)

    @property
    def inputs(self) -> list[str]:
        """All inputs."""
        return list(self._row)

    def feed(self, change: Change | None) -> Fed:
        """What to feed under a change; one grid for all values is that of every channel."""
        grid = self.setting(change)
        if isinstance(grid, Grid):
            grid = replace(self.grid, grids=(grid,) * len(self.grid.grids))
        row = channel_row(self.grid if grid is None else grid, self._shape)
        return dict(zip(self._row, row._replace(is_on=grid is not None), strict=True))


#: What can be changed from run to run.
Settable = Quantizer | ChannelQuantizer | Layer | Operand
