"""Integer operators written as float ones between DequantizeLinear and QuantizeLinear, which runtimes fuse again.

What the reader of integer operators knows (``collectors.from_onnx.integer.INTEGER_OPS``) is rewritten.
"""

from collections.abc import Iterator, Sequence

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from quantmedic.collectors.from_onnx.integer import INTEGER_OPS, Layout
from quantmedic.collectors.from_onnx.unsigned import OFFSET
from quantmedic.collectors.pair.graph import Graph
from quantmedic.collectors.pair.quantizer import Quantizer
from quantmedic.engine.operator_types import LAYOUTS, RESAMPLING, SELECTIONS
from quantmedic.trials.from_onnx.draft import Attributes, Draft

#: Operators that hand on codes of their first input as they are: one grid holds before and behind them.
MOVERS = (LAYOUTS - {"Identity"}) | SELECTIONS | RESAMPLING | {"ReduceMax", "ReduceMin"}
#: Operators whose constants are weights, which stay signed.
WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
#: First opsets in which Softmax works on one axis alone, and in which the axes of ReduceMean are an input.
_SOFTMAX_OPSET, _REDUCE_OPSET = 13, 18
#: Attributes of integer operators that their float counterparts do not have.
_OWN = ("channels_last", "opset")


def to_qdq(draft: Draft, graph: Graph) -> None:
    """Rewrite the integer operators of a draft whose grids are constants, and what moves codes between them.

    Others stay as they are: those on grids that are computed at run time, and channels-last poolings.
    """
    _Rewriter(draft, graph).run()


class _Rewriter:
    def __init__(self, draft: Draft, graph: Graph) -> None:
        self._draft, self._graph = draft, graph
        self._read: dict[tuple[str, str, str], str] = {}
        self._constants: dict[str, tuple[str, str]] = {}

    def run(self) -> None:
        nodes: list[onnx.NodeProto] = []
        for node in self._draft.nodes:
            layout = INTEGER_OPS.get(node.op_type)
            if layout is not None and self._can_be_rewritten(node, layout):
                nodes += self._integer(node, layout)
            elif self._moves_codes(node):
                nodes += self._mover(node)
            else:
                nodes.append(node)
        rewritten = len(nodes) > len(self._draft.nodes)
        self._draft.nodes = nodes
        self._draft.index()
        if rewritten:
            self._make_unsigned()

    def _make_unsigned(self) -> None:
        """Move int8 codes of activations up by 128, values stay: of signed codes with several readers onnxruntime makes
        integer operators on x86 only where it finds them written so already.
        """
        for node in self._draft.nodes:
            if node.op_type != "QuantizeLinear" or len(node.input) < 3 or node.output[0] in self._draft.outputs:
                continue
            zero = self._draft.value_of(node.input[2])
            if zero is None or zero.dtype != np.int8 or zero.size > 1 or self._draft.readers_of(node.output[0]):
                continue
            moved = self._draft.add_constant(node.input[2], zero.astype(np.int16) + OFFSET, TensorProto.UINT8)
            for part in (node, *self._draft.dequantizers.get(node.output[0], [])):
                part.input[2] = moved
            self._draft.forget_type(node.output[0])
        for node in self._draft.nodes:
            if node.op_type not in WEIGHTED:
                for name in node.input:
                    self._move_constant(self._draft.writers.get(name))

    def _move_constant(self, reader: onnx.NodeProto | None) -> None:
        """An operand that is an int8 constant goes with the other operand."""
        if reader is None or reader.op_type != "DequantizeLinear" or len(reader.input) < 3:
            return
        codes, zero = (self._draft.value_of(reader.input[k]) for k in (0, 2))
        if codes is None or zero is None or zero.dtype != np.int8 or codes.dtype != np.int8:
            return
        for k, values in ((0, codes), (2, zero)):
            moved = values.astype(np.int16) + OFFSET
            reader.input[k] = self._draft.add_constant(reader.input[k], moved, TensorProto.UINT8)

    def _can_be_rewritten(self, node: onnx.NodeProto, layout: Layout) -> bool:
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        if layout.output is None or attributes.get("channels_last") or attributes.get("alpha", 1.0) != 1.0:
            return node.op_type == "QLinearLeakyRelu"
        if node.op_type == "QLinearSoftmax":
            own = attributes.get("opset", self._draft.opset)
            return (own >= _SOFTMAX_OPSET) == (self._draft.opset >= _SOFTMAX_OPSET)
        if layout.bias is not None and len(node.input) > layout.bias and node.input[layout.bias]:
            bias = self._graph.constants.get(node.input[layout.bias])
            if bias is None or bias.quantizer is None:
                return False
        return all(
            self._draft.value_of(node.input[scale]) is not None for _, scale, _ in _operand_positions(node, layout)
        )

    def _integer(self, node: onnx.NodeProto, layout: Layout) -> Iterator[onnx.NodeProto]:
        inputs = [node.input[0]] if node.op_type == "QLinearWhere" else []
        for positions in _operand_positions(node, layout):
            names = [node.input[p] if p < len(node.input) else "" for p in positions]
            yield from self._reader(names[0], names[1], names[2])
            inputs.append(self._read[names[0], names[1], names[2]])
        if layout.bias is not None and len(node.input) > layout.bias and node.input[layout.bias]:
            inputs.append(self._bias(node.input[layout.bias]))
        target = node.output[0]
        attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute if a.name not in _OWN}
        if node.op_type == "QLinearReduceMean" and self._draft.opset >= _REDUCE_OPSET and "axes" in attributes:
            axes = np.asarray(attributes.pop("axes"), np.int64)
            inputs.append(self._draft.add_constant(f"{target}_axes", axes))
        scale, zero = layout.output or (0, 0)
        grid = [node.input[p] for p in (scale, zero) if p < len(node.input)]
        if not grid or not grid[0]:
            yield self._float_node(layout.kind, inputs, target, node, attributes)
            return
        real = self._draft.fresh(f"{target}_real")
        yield self._float_node(layout.kind, inputs, real, node, attributes)
        yield helper.make_node("QuantizeLinear", [real, *grid], [target], name=self._draft.fresh(f"{target}_Quantize"))

    def _float_node(
        self, kind: str, inputs: Sequence[str], target: str, node: onnx.NodeProto, attributes: Attributes
    ) -> onnx.NodeProto:
        made = helper.make_node(kind, list(inputs), [target], name=node.name, **attributes)
        self._draft.computed[node.output[0]] = made
        return made

    def _reader(self, name: str, scale: str, zero: str) -> Iterator[onnx.NodeProto]:
        """The node that dequantizes an operand, unless there is one."""
        if (name, scale, zero) in self._read:
            return
        target = self._read[name, scale, zero] = self._draft.fresh(f"{name}_real")
        constant = self._graph.constants.get(name)
        axis = constant.quantizer.axis if constant is not None and constant.quantizer is not None else None
        steps = self._draft.value_of(scale)
        parameters = [scale, zero] if zero else [scale]
        along: Attributes = {}
        if axis is not None and steps is not None and steps.size > 1:
            along = {"axis": axis}
            parameters = self._vectors(scale, zero, steps)
        node = helper.make_node("DequantizeLinear", [name, *parameters], [target], name=target, **along)
        self._draft.settle_domain(node, TensorProto.INT8)
        yield node

    def _vectors(self, scale: str, zero: str, steps: NDArray[np.generic]) -> list[str]:
        """Scale and zero point as vectors of one length, which integer operators do not insist on."""
        if steps.ndim != 1:
            scale = self._draft.add_constant(scale, steps.ravel())
        points = self._draft.value_of(zero) if zero else None
        if points is None:
            return [scale]
        if points.shape != (steps.size,):
            kind = self._draft.type_of(zero)
            zero = self._draft.add_constant(zero, np.broadcast_to(points.ravel(), steps.size), kind)
        return [scale, zero]

    def _bias(self, name: str) -> str:
        constant = self._graph.constants[name]
        assert constant.quantizer is not None and constant.codes is not None
        scale = constant.quantizer.scale
        scale = scale.reshape(()) if scale.size == 1 else scale.ravel()
        axis = 0 if scale.ndim else None
        return self._draft.add_dequantizer(name, constant.codes, TensorProto.INT32, scale, axis=axis)

    def _moves_codes(self, node: onnx.NodeProto) -> bool:
        if node.op_type not in MOVERS or not node.input or node.input[0] in self._graph.constants:
            return False
        grids = [self._graph.codes.get(name) for name in (node.input[0], node.output[0])]
        padded = node.op_type != "Pad" or len(node.input) < 3 or not node.input[2] or self._pads_constant(node)
        return padded and all(grid is not None and grid.axis is None and not grid.dynamic for grid in grids)

    def _pads_constant(self, node: onnx.NodeProto) -> bool:
        return self._draft.value_of(node.input[2]) is not None

    def _mover(self, node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
        """An operator that only moves codes, on real values."""
        source = node.input[0]
        quantizer = self._graph.codes[source]
        assert quantizer is not None
        parameters = self._parameters(source, quantizer)
        yield from self._reader(source, *parameters)
        moved = onnx.NodeProto()
        moved.CopyFrom(node)
        moved.input[0] = self._read[(source, *parameters)]
        if node.op_type == "Pad":
            code = self._draft.value_of(node.input[2]) if len(node.input) > 2 and node.input[2] else np.zeros(())
            assert code is not None
            value = self._draft.add_constant(f"{node.output[0]}_padding", quantizer.dequantize(np.asarray(code)))
            moved.input[:] = [*moved.input[:2], value, *moved.input[3:]]
        outputs = list(node.output) if node.op_type == "Split" else list(node.output[:1])
        real = [self._draft.fresh(f"{name}_real") for name in outputs]
        moved.output[: len(real)] = real
        self._draft.computed[node.output[0]] = moved
        yield moved
        for name, target in zip(real, outputs, strict=True):
            yield helper.make_node(
                "QuantizeLinear", [name, *parameters], [target], name=self._draft.fresh(f"{target}_Quantize")
            )

    def _parameters(self, name: str, quantizer: Quantizer) -> tuple[str, str]:
        if name not in self._constants:
            kind = TensorProto.DataType.Value(f"{'' if quantizer.signed else 'U'}INT{quantizer.bits}")
            scale = self._draft.add_constant(f"{name}_scale", np.asarray(quantizer.scale, np.float32).reshape(()))
            zero = self._draft.add_constant(f"{name}_zero_point", quantizer.zero_point.reshape(()), kind)
            self._constants[name] = scale, zero
        return self._constants[name]


def _operand_positions(node: onnx.NodeProto, layout: Layout) -> tuple[tuple[int, int, int], ...]:
    """Positions of value, scale and zero point of each operand."""
    return layout.values or tuple((i, i + 1, i + 2) for i in range(2, len(node.input) - 1, 3))
