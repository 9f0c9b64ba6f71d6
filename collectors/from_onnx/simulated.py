"""The float network with simulated quantizers that can be changed from run to run, without building a session anew.

Grids of activations, weights and biases are inputs of its segments. Every quantizer of the deployed model is put on the
edges that it covers there, with an input that turns it off. Convolutions hold their weights as constants, both float
and as stored, because those are computed several times as fast as weights that are inputs.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_onnx.onnx_graph import PairedOnnxGraphs
from quantmedic.collectors.from_onnx.segments import Segments, State
from quantmedic.collectors.from_onnx.settable import (
    ROUNDER,
    RUN_TIME_OPSET,
    ActivationQuantizer,
    ChannelQuantizer,
    Fed,
    Layer,
    Operand,
    Quantizer,
    RunTimeQuantizer,
    Settable,
    Setting,
    with_constant_weights,
)
from quantmedic.collectors.from_onnx.steps import rename_inputs
from quantmedic.collectors.pair.deployed_grids import deployed_grids
from quantmedic.collectors.pair.feed import feed_of
from quantmedic.collectors.pair.graph import Operator
from quantmedic.collectors.pair.originals import OperatorPair
from quantmedic.collectors.pair.weight_forms import forms_of
from quantmedic.engine.case.records import Case
from quantmedic.engine.errors import ModelError
from quantmedic.engine.formulas.change import Change
from quantmedic.engine.formulas.simulate import AnyGrid, Grid

Array = NDArray[np.generic]
Float32 = NDArray[np.float32]
#: The simulated quantizers are made of operators of this opset, or of those that came later where the model has them.
MIN_OPSET = 9
#: Initializers need not be inputs from here on.
MIN_IR = 4
#: Bytes of weights that the network may hold as constants beside those of the float model.
CONSTANT_BYTES = 256 << 20
#: Bits of the grids that ONNX models find at run time.
RUN_TIME_BITS = 8
_ROUNDER = "quantmedic:rounder"


@dataclass(frozen=True)
class BuiltNetwork:
    """The float model with simulated quantizers as inputs.

    Attributes:
        model: The model; its nodes stand in any order.
        outputs: What to fetch for the matched outputs.
        quantizers: Of activations.
        layers: Operators whose weights are inputs.
        operands: Other constants that are inputs.
    """

    model: onnx.ModelProto
    outputs: list[str]
    quantizers: list[ActivationQuantizer]
    layers: list[Layer]
    operands: list[Operand]

    def feed(self, change: Change | None) -> Fed:
        """What to feed under a change."""
        every: Iterable[Settable] = (*self.quantizers, *self.layers, *self.operands)
        return {name: value for each in every for name, value in each.feed(change).items()}


def build_network(models: PairedOnnxGraphs, case: Case, given: Sequence[int] = ()) -> BuiltNetwork:
    """The float model with simulated quantizers.

    Args:
        models: Both models.
        case: What was measured of them.
        given: Tensors of the case whose readers read an input instead (``given_input``); what writes them stays.

    Raises:
        ModelError: The opset is too old.
    """
    graph = models.float_graph
    if graph.opset < MIN_OPSET:
        raise ModelError(
            f"opset {graph.opset} is too old for a simulation",
            where=str(graph.path),
            help=f"export the model with opset {MIN_OPSET} or later",
        )
    grids = deployed_grids(case, models.quantized)
    # Where tensors are given nothing else changes from run to run.
    builder = _Builder(models, case, room=0 if given else CONSTANT_BYTES)
    layers = [found for op in models.quantized.operators if (found := builder.open_weights(op)) is not None]
    operands = [found for op in models.quantized.operators for found in builder.open_operands(op)]
    placed = (builder.place(i, grid) for i, grid in enumerate(grids))
    quantizers = [found for found in placed if found is not None]
    outputs = [builder.output(i, j) for i, j in models.match.outputs]
    builder.cut(given)
    builder.finish()
    return BuiltNetwork(builder.model, outputs, quantizers, layers, operands)


class OnnxSimulated:
    """Runs the float network under a change of the deployed quantizers; see ``SimulatedNetwork``.

    Attributes:
        weighted: Operators whose weights can be changed, by index.
        with_constants: Operators with other constants that can be changed along with the bias, by index.
        tensors: Tensors whose quantizers can be changed, by index into the case's table.
    """

    def __init__(self, models: PairedOnnxGraphs, case: Case, threads: int) -> None:
        """Build the network.

        Raises:
            ModelError: It cannot be simulated: its opset is too old, or onnxruntime refuses the changed graph.
        """
        graph = models.float_graph
        self._graph = graph
        built = build_network(models, case)
        self._segments = Segments(built.model, built.outputs, graph.path, threads)
        self.weighted = frozenset(layer.operator for layer in built.layers)
        self.with_constants = frozenset(operand.operator for operand in built.operands)
        self.tensors = frozenset(quantizer.tensor for quantizer in built.quantizers)
        every: list[Settable] = [*built.quantizers, *built.layers, *built.operands]
        self._settable = [[each for each in every if own.intersection(each.inputs)] for own in self._segments.inputs()]
        for common in (None, Change()):
            self._segments.expect(self._settings(common))
        # Without quantizers constants take away a quarter to a third of a run, with all of them nothing.
        self._segments.hold_constant(self._settings(None))
        #: The last change, and what it puts in force.
        self._last: tuple[Change | None, State, dict[int, dict[str, Array]]]
        self._last = None, self._segments.state_of(self._settings(None)), {}

    def repeat_exactly(self) -> None:
        """From now on no run depends on those before it, not in its last bits either."""
        self._segments.choose_at_once()

    def outputs(self, batch: Batch, change: Change | None) -> list[Float32]:
        """The matched outputs; of the network without any quantizer where ``change`` is None.

        Raises:
            ModelError: The network fails on this batch.
        """
        if self._last[0] is not change:
            self._last = change, self._segments.state_of(self._settings(change)), {}
        _, state, feeds = self._last

        def feed(k: int) -> dict[str, Array]:
            if k not in feeds:
                own = {name: value for each in self._settable[k] for name, value in each.feed(change).items()}
                feeds[k] = self._segments.fill(k, own)
            return feeds[k]

        found = self._segments.run(batch, state, feed, feed_of(batch, self._graph))
        return [np.asarray(array, np.float32) for array in found]

    def _settings(self, change: Change | None) -> list[Setting]:
        """What is in force in every segment."""
        return [tuple(each.setting(change) for each in own) for own in self._settable]


class _Builder:
    """A copy of the float model in the making."""

    def __init__(self, models: PairedOnnxGraphs, case: Case, room: int) -> None:
        """``room``: bytes that weights may take as constants."""
        self._models, self._case, self._room = models, case, room
        self.model = onnx.ModelProto()
        self.model.CopyFrom(models.float_graph.model)
        self.model.ir_version = max(self.model.ir_version, MIN_IR)
        self._nodes = {node.output[0]: node for node in self.model.graph.node if node.output}
        self._writers = {name: node for node in models.quantized.model.graph.node for name in node.output if name}
        self._quantized: dict[str, str] = {}
        self._pending: list[tuple[str, str, ActivationQuantizer]] = []
        self._with_constants: list[tuple[onnx.NodeProto, Layer]] = []

    def open_weights(self, op: Operator) -> Layer | None:
        """Turn weights and bias of an operator's twin into inputs; None where nothing is known of them."""
        float_graph, pair = self._models.float_graph, OperatorPair.of(op, self._models)
        twin, forms, own = pair.twin, forms_of(pair), pair.twin_weight
        if forms is None or twin is None or own is None or own.values is None:
            return None
        node = self._nodes[twin.node.outputs[0]]
        constants = [float_graph.constants.get(float_graph.root(name)) for name in node.input]
        weight_input, bias_input = f"quantmedic:weight:{op.index}", f"quantmedic:bias:{op.index}"
        slot = next(k for k, constant in enumerate(constants) if constant is own)
        node.input[slot] = weight_input
        self._add_input(weight_input, own.values.shape)
        has_constants = slot == 1 and self._bears_constants(node, own.values)
        shape = () if forms.stored_bias is None else forms.stored_bias.shape
        # A bias that is no constant would keep a convolution from the fast kernel: it is added behind.
        shape = (*shape, 1, 1) if has_constants else shape
        own_bias = bias_input if forms.stored_bias is not None else None
        layer = Layer(forms, weight_input, own_bias, shape, has_constants, op.index)
        if forms.stored_bias is not None:
            self._add_input(bias_input, shape)
            del node.input[2:]
            node.input.append(bias_input)
        if has_constants:
            self._with_constants.append((node, layer))
        if forms.original.folded:
            self._skip_normalization(twin)
        return layer

    def _bears_constants(self, node: onnx.NodeProto, weights: Array) -> bool:
        """A convolution over two axes, where there is room for its weights as constants, in both forms."""
        size = 2 * weights.nbytes
        if node.op_type != "Conv" or node.domain or weights.ndim != 4 or size > self._room:
            return False
        self._room -= size
        return True

    def open_operands(self, op: Operator) -> Iterator[Operand]:
        """Turn other constants that are held as codes into inputs of the operator's twin."""
        float_graph, pair = self._models.float_graph, OperatorPair.of(op, self._models)
        if pair.twin is None:
            return
        node = self._nodes[pair.twin.node.outputs[0]]
        for operand in pair.other_operands():
            slots = [k for k, slot in enumerate(node.input) if slot and float_graph.root(slot) == operand.float_name]
            if not slots:
                continue
            target = f"quantmedic:operand:{op.index}:{operand.place}"
            node.input[slots[0]] = target
            self._add_input(target, operand.original_values.shape)
            values = (np.asarray(each, np.float32) for each in (operand.stored_values, operand.original_values))
            yield Operand(op.index, target, *values)

    def _add_input(self, name: str, shape: Iterable[int]) -> None:
        self.model.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)))

    def _skip_normalization(self, twin: Operator) -> None:
        """The normalization behind an operator is part of its weights."""
        reader = self._models.float_graph.consumers[twin.outputs[0]][0]
        node = self._nodes[reader.node.outputs[0]]
        del node.input[1:]
        del node.attribute[:]
        node.op_type = "Identity"

    def place(self, index: int, grid: AnyGrid | None) -> ActivationQuantizer | None:
        """Put a tensor's quantizer on every edge that it covers in the deployed model; None where there is none."""
        record = self._case.record.tensors[index]
        quantizer = self._quantizer_of(index, grid)
        if quantizer is None:
            return None
        float_graph, quantized = self._models.float_graph, self._models.quantized
        target = quantized_name(index)
        edges = [
            (self._nodes[twin.node.outputs[0]], k)
            for reader in quantized.consumers.get(record.name, [])
            if (twin := self._models.match.operators.get(reader.index)) is not None
            and any(quantized.root(n) == record.name and self._is_coded(n) for n in reader.node.inputs if n)
            for k, name in enumerate(twin.node.inputs)
            if name and float_graph.root(name) == record.float_name
        ]
        ends = [
            name
            for i, j in self._models.match.outputs
            if float_graph.root(name := float_graph.outputs[i]) == record.float_name
            and quantized.root(quantized.outputs[j]) == record.name
            and self._is_coded(quantized.outputs[j])
        ]
        for node, k in edges:
            node.input[k] = target
        self._quantized |= dict.fromkeys(ends, target)
        if not edges and not ends:
            return None
        self._pending.append((record.float_name, target, quantizer))
        return quantizer

    def _quantizer_of(self, index: int, grid: AnyGrid | None) -> ActivationQuantizer | None:
        """The quantizer of a tensor; None where there is none, or the place of its channels is not known."""
        if grid is None:
            own = self._case.record.tensors[index].quantizer
            is_known = own.dynamic and own.bits == RUN_TIME_BITS and self._models.float_graph.opset >= RUN_TIME_OPSET
            return RunTimeQuantizer(index) if is_known else None
        if isinstance(grid, Grid):
            return Quantizer(index, grid)
        shape = self._models.shapes.get(self._case.record.tensors[index].float_name)
        known = shape is not None and grid.axis < len(shape) and shape[grid.axis] in (None, len(grid.grids))
        return ChannelQuantizer(index, grid, len(shape) - grid.axis - 1) if shape is not None and known else None

    def _is_coded(self, name: str) -> bool:
        """Whether the deployed model has codes there, or what they stand for."""
        quantized = self._models.quantized
        while name not in quantized.codes:
            node = self._writers.get(name)
            if node is None or node.op_type not in ("Identity", "Dropout"):
                return node is not None and node.op_type == "DequantizeLinear"
            name = node.input[0]
        return True

    def output(self, i: int, j: int) -> str:
        """What to fetch for a matched output: quantized where the deployed one is."""
        name = self._models.float_graph.outputs[i]
        return self._quantized.get(name, name)

    def cut(self, tensors: Iterable[int]) -> None:
        """Let what reads these tensors, as they are or quantized, read inputs instead; their quantizers come later."""
        names: dict[str, str] = {}
        for i in tensors:
            names |= dict.fromkeys((self._case.record.tensors[i].float_name, quantized_name(i)), given_input(i))
        for name in sorted(rename_inputs(self.model.graph, names)):
            self.model.graph.input.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, None))

    def finish(self) -> None:
        """Add the simulated quantizers and constant weights, in any order."""
        graph = self.model.graph
        for node, layer in self._with_constants:
            self._choose_weights(node, layer)
        opset = self._models.float_graph.opset
        graph.initializer.append(helper.make_tensor(_ROUNDER, TensorProto.FLOAT, [1], [ROUNDER]))
        for source, target, quantizer in self._pending:
            graph.input.extend(quantizer.declare())
            graph.node.append(quantizer.make_node(source, target, _ROUNDER, opset))

    def _choose_weights(self, node: onnx.NodeProto, layer: Layer) -> None:
        """Give a convolution constant weights to choose from, and add its bias behind it."""
        conditions = (layer.is_stored, layer.is_float)
        graph = self.model.graph
        graph.input.extend(helper.make_tensor_value_info(name, TensorProto.BOOL, [1]) for name in conditions)
        if layer.bias_input is not None:
            result, node.output[0] = node.output[0], f"{layer.weight_input}:sum"
            del node.input[2:]
            graph.node.append(helper.make_node("Add", [node.output[0], layer.bias_input], [result]))
        node.CopyFrom(with_constant_weights(node, [layer.forms.weight(None), layer.forms.weight("float")], conditions))


def quantized_name(tensor: int) -> str:
    """What the simulated quantizer of a tensor of the case makes."""
    return f"quantmedic:quantized:{tensor}"


def given_input(tensor: int) -> str:
    """The input that stands for a tensor of the case which is given."""
    return f"quantmedic:given:{tensor}"
