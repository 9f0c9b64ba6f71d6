"""What is measured of two models: tensor pairs, channel axes and grids, settled once on a first batch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.data.model_inputs import shapes_agree
from quantmedic.collectors.measure.models import Models
from quantmedic.collectors.pair.channels import MAX_CHANNELS, channel_axes
from quantmedic.collectors.pair.graph import COMPUTE, Graph, Shape, Tap
from quantmedic.collectors.pair.output_parts import Joint, joints_of
from quantmedic.collectors.pair.quantizer import Quantizer, Rounding
from quantmedic.collectors.pair.tensor_pairs import Pair
from quantmedic.engine.case.records import Case
from quantmedic.engine.errors import ModelError

Array = NDArray[np.generic]
Float32 = NDArray[np.float32]
#: Samples of a batch that is thought of, not run: a number that few other axes have.
SAMPLES = 2
#: Output columns whose codes are counted one by one.
MAX_COLUMNS = 1024
_HALF = "the float model computes in float16: give the float32 one that both came from"


@dataclass
class PlannedTensor:
    """A tensor that is measured.

    Attributes:
        pair: It in both models.
        number: Its position among the pairs of the models.
        axis: Its channel axis; None where it is unknown or not measured channel by channel.
        channels: Its channels, 1 without an axis.
        bucketed: Whether its first axis has counted samples so far.
        elements: Elements in the first batch; 0 where none was run.
    """

    pair: Pair
    number: int
    axis: int | None
    channels: int
    bucketed: bool = True
    elements: int = 0

    @cached_property
    def rounding(self) -> Rounding | None:
        """Its grid per channel; None without a fixed quantizer."""
        grid = fixed_grid(self.pair.tap.quantizer)
        if grid is None:
            return None
        zero = per_channel(grid.zero_point, self.channels)
        return Rounding(per_channel(grid.scale, self.channels), grid.qmin - zero, grid.qmax - zero)


@dataclass
class Plan:
    """What is measured.

    Attributes:
        models: Both models.
        tensors: The tensors that are measured.
        output_grids: (tensor, quantizer, columns) of every network output that ends on a grid of 8 bits or less.
        input_pair: The network's input among the tensors.
        image: The first float input and its channel axis, 0 where it has none; None without a float input.
        feature: The tensor that the last compute operator reads: what the network thinks before it decides.
        strangers: Pairs that were dropped, for their shapes differ.
        joints: Where the columns of each matched network output stand, and what they are joined of.
    """

    models: Models
    tensors: list[PlannedTensor] = field(default_factory=list)
    output_grids: list[tuple[int, Quantizer, int]] = field(default_factory=list)
    input_pair: int | None = None
    image: tuple[str, int] | None = None
    feature: str | None = None
    strangers: list[str] = field(default_factory=list)
    joints: list[Joint] = field(default_factory=list)

    @property
    def pairs(self) -> list[Pair]:
        """The tensors in both models."""
        return [tensor.pair for tensor in self.tensors]

    @property
    def all(self) -> set[int]:
        """Everything that is measured."""
        return set(range(len(self.tensors)))

    @property
    def always(self) -> set[int]:
        """Network inputs and outputs: seen on every sample, whatever else is."""
        quantized = self.models.quantized
        ends = {*quantized.inputs, *quantized.output_roots}
        return {i for i, pair in enumerate(self.pairs) if pair.root in ends}

    @property
    def input_channels(self) -> int:
        """Channels of the network's input; 0 where it is not measured."""
        return self.tensors[self.input_pair].channels if self.input_pair is not None else 0

    def keep(self, number: int, shape: Shape | None, code: Shape | None, axis: int | None) -> PlannedTensor | None:
        """Add a pair to what is measured; None where its shapes differ, as far as both are known.

        Args:
            number: Its position among the pairs of the models.
            shape: Shape of the float tensor.
            code: Shape of what the quantized model shows of it.
            axis: Its channel axis, unless its grid has channels of its own.
        """
        pair = self.models.pairs[number]
        if shape is not None and code is not None and not shapes_agree(shape, code):
            self.strangers.append(f"{pair.root} {_dimensions(code)} against {pair.twin} {_dimensions(shape)}")
            return None
        if axis is not None and (shape is None or not _is_channel_axis(axis, shape, self.models.shapes.get(pair.twin))):
            axis = None
        grid = fixed_grid(pair.tap.quantizer)
        if grid is not None and grid.scale.size > 1:  # its own channels, whatever the operators' are
            axis = (grid.axis or 0) % len(shape) if shape else grid.axis or 0
        size = shape[axis] if axis is not None and shape else None
        self.tensors.append(PlannedTensor(pair, number, axis, size or (grid.scale.size if grid is not None else 1)))
        return self.tensors[-1]

    def settle_ends(
        self,
        codes: Mapping[int, Shape | None],
        inputs: Mapping[str, Shape],
        axes: Mapping[str, int],
        joints: list[Joint],
    ) -> "Plan":
        """The plan with what follows from the tensors that are kept.

        Args:
            codes: Shapes of what the quantized model shows, by tensor.
            inputs: Shapes of the inputs.
            axes: Channel axes of the float model.
            joints: Where the columns of each matched output stand.
        """
        self.output_grids, self.joints = _output_grids(self, codes), joints
        self.input_pair = next(
            (i for i, pair in enumerate(self.pairs) if pair.root in self.models.quantized.inputs), None
        )
        self.image = _image_axis(self.models, inputs, axes)
        return self


def feature_of(graph: Graph) -> str | None:
    """The first input of the last compute operator, unless it is a network input."""
    heads = [op for op in graph.operators if op.op_type in COMPUTE]
    names = [n for op in heads[-1:] for n in op.inputs[:1] if n not in graph.constants and n not in graph.inputs]
    return names[0] if names else None


def settle(models: Models, first: Batch, floats: Mapping[str, Array], codes: Mapping[int, Array]) -> Plan:
    """Keep the pairs that are float tensors of equal shape, and find their channels.

    Args:
        models: Both models.
        first: A batch.
        floats: What the float model makes of it, by tensor.
        codes: What the quantized model shows of it, by number of the pair.

    Raises:
        ModelError: No tensor of the two can be compared.
    """
    plan = Plan(models, feature=feature_of(models.float_graph))
    axes = channel_axes(models.float_graph, {p.twin: floats[p.twin].shape for p in models.pairs}, models.shapes)
    for number, pair in enumerate(models.pairs):
        x, code = floats[pair.twin], codes.get(number)
        if x.dtype != np.float32 or not x.size or not x.ndim:
            continue
        kept = plan.keep(number, x.shape, None if code is None else code.shape, axes.get(pair.twin))
        if kept is not None:
            kept.bucketed, kept.elements = x.shape[0] == first.samples, x.size
    if not plan.tensors:
        raise ModelError(
            "no tensor of the two models can be compared",
            where=[str(models.float_graph.path), str(models.quantized.path)],
            help=_HALF if any(x.dtype == np.float16 for x in floats.values()) else None,
        )
    shown: dict[int, Shape | None] = {
        i: codes[tensor.number].shape for i, tensor in enumerate(plan.tensors) if tensor.number in codes
    }
    inputs: dict[str, Shape] = {name: array.shape for name, array in first.inputs.items()}
    found = shapes_of_samples({name: array.shape for name, array in floats.items() if array.ndim}, first.samples)
    return plan.settle_ends(shown, inputs, axes, joints_of(models, found))


def foresee(models: Models) -> Plan:
    """The same as far as types and shapes tell it: what ``settle`` would keep of most batches, without one.

    A tensor of unknown type is kept where it is quantized, for only floats are.
    """
    plan = Plan(models, feature=feature_of(models.float_graph))
    floats, codes = models.static_types(SAMPLES)
    twins = {pair.twin for pair in models.pairs}
    shapes = {name: found.shape for name, found in floats.items() if found.shape is not None and name in twins}
    axes = channel_axes(models.float_graph, shapes, models.shapes)
    for number, pair in enumerate(models.pairs):
        dtype, shape = floats[pair.twin].dtype if pair.twin in floats else None, shapes.get(pair.twin)
        is_float = dtype == np.float32 if dtype is not None else pair.tap.quantizer is not None
        code = codes[pair.tap.tensor].shape if pair.tap.tensor in codes else None
        if is_float and shape != ():
            plan.keep(number, shape, code, axes.get(pair.twin))
    shown = dict(enumerate(shapes.get(pair.twin) for pair in plan.pairs))
    return plan.settle_ends(shown, {spec.name: spec.shape for spec in models.input_specs}, axes, joints_of(models))


def shapes_of_samples(shapes: Mapping[str, Shape], samples: int) -> dict[str, Shape]:
    """Shapes of a batch of so many, without the number of its samples."""
    return {name: (None, *shape[1:]) if shape and shape[0] == samples else shape for name, shape in shapes.items()}


def _dimensions(shape: Shape) -> str:
    return f"[{', '.join('?' if size is None else str(size) for size in shape)}]"


def pairs_of_case(models: Models, case: Case) -> dict[int, Pair]:
    """What can be read in both models, by index into the tensors of the case."""
    index = {(tensor.name, tensor.float_name): i for i, tensor in enumerate(case.record.tensors)}
    known = ((index.get((pair.root, pair.twin)), pair) for pair in models.pairs)
    return {i: pair for i, pair in known if i is not None}


def fixed_grid(quantizer: Quantizer | None) -> Quantizer | None:
    """The quantizer, unless its scale is computed at run time."""
    return None if quantizer is None or quantizer.dynamic else quantizer


def is_coded(tap: Tap) -> bool:
    """What is read are codes on a fixed grid."""
    return not tap.decoded and fixed_grid(tap.quantizer) is not None


def per_channel(values: NDArray[np.generic] | int, channels: int) -> NDArray[np.float32]:
    """One float32 per channel."""
    return np.ascontiguousarray(np.broadcast_to(np.asarray(values, np.float32).ravel(), (channels,)))


def tap_values(tap: Tap, codes: Array) -> Float32:
    """The real values of what a tap shows."""
    if tap.quantizer is None or not is_coded(tap):
        return codes.astype(np.float32)
    return tap.quantizer.dequantize(codes)


def _is_channel_axis(axis: int, shape: Shape, static: Shape | None) -> bool:
    """The axis can be measured channel by channel: few enough, and as many in every batch."""
    size = shape[axis]
    known = static is not None and len(static) == len(shape) and size is not None and static[axis] == size
    return axis > 0 and known and size is not None and size <= MAX_CHANNELS


def _output_grids(plan: Plan, shapes: Mapping[int, Shape | None]) -> list[tuple[int, Quantizer, int]]:
    """``shapes`` are those of the codes that are seen, by tensor."""
    found = []
    for root in plan.models.quantized.output_roots:
        i = next((k for k, pair in enumerate(plan.pairs) if pair.root == root), None)
        if i is None or not is_coded(plan.pairs[i].tap):
            continue
        grid, shape = fixed_grid(plan.pairs[i].tap.quantizer), shapes.get(i)
        if grid is None or shape is None or grid.bits > 8:
            continue
        width = shape[-1] if len(shape) > 1 else None
        found.append((i, grid, width if width is not None and width <= MAX_COLUMNS else 1))
    return found


def _image_axis(models: Models, shapes: Mapping[str, Shape], axes: Mapping[str, int]) -> tuple[str, int] | None:
    name = next((s.name for s in models.input_specs if s.dtype == np.float32), None)
    if name is None:
        return None
    shape = shapes[name]
    axis = axes.get(name)
    if len(shape) == 2 or axis == len(shape) - 1 == 2:  # columns of a table are no colours
        axis = None
    if axis is None and len(shape) == 4:
        axis = next((i for i in (1, 3) if shape[i] in (1, 3, 4)), None)
    size = shape[axis] if axis is not None and axis > 0 else None
    return (name, axis) if axis is not None and size is not None and size <= 16 else (name, 0)
