"""A LiteRT model written as an ONNX model, so that whatever reads, simulates or changes ONNX models works on it.

Every operator becomes one node under the name of its result. Activations keep their names and have their channels last;
weights are laid out as ONNX wants them. An integer tensor T with a grid is the float tensor T that its operator writes,
its codes ``T:codes`` and what they stand for, ``T:values``.
"""

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from quantmedic.collectors.from_litert.flatbuffer import CODES, LiteOperator
from quantmedic.collectors.from_litert.functions import DOMAIN, OPSET, functions_of
from quantmedic.collectors.from_litert.litert_file import LiteModel
from quantmedic.collectors.from_litert.litert_operators import OPERATORS
from quantmedic.collectors.from_litert.litert_site import (
    Node,
    Site,
    TensorWriter,
    value_info,
)
from quantmedic.collectors.from_translation.onnx_writer import UNTRANSLATABLE, Value, make_node

Array = NDArray[np.generic]
#: Domain of operators that have no counterpart: they are read and measured, but cannot be simulated or changed.
UNTRANSLATED = "litert.untranslated"
#: The first opset with scales per block. Models without them stay below it: onnxruntime, which makes uint8 of int8
#: codes, leaves the ``output_dtype`` as it was that the quantizers of this opset may have, and then refuses the model.
_BLOCK_OPSET = 21
#: Operators that round float inputs to 8 bits at run time where their weights are codes.
_HYBRID = frozenset({"CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "BATCH_MATMUL"})
#: Prefix of custom operators that have the name of an operator of ONNX.
_MARK = "CUSTOM:"


class Translation(TensorWriter):
    """A LiteRT model in ONNX, written operator by operator.

    Attributes:
        model: The ONNX model.
        untranslated: Operators without a counterpart, by the schema's or their own name.
        hybrid: Tensors that are rounded at run time, for they meet weights that are codes.
    """

    def __init__(self, model: LiteModel) -> None:
        super().__init__(model)
        self.untranslated: list[str] = []
        self.hybrid: list[str] = []
        self._functions: set[str] = set()
        self._outputs: set[str] = set()
        self.model = self._translate_all()

    def _translate_all(self) -> onnx.ModelProto:
        inputs = [self._input(place) for place in self.file.inputs]
        for op in self.file.operators:
            self._operator(op)
        outputs = [self._output(place) for place in dict.fromkeys(self.file.outputs)]
        blocks = any(t.quantizer is not None and t.quantizer.block_size for t in self.tensors if t.data is not None)
        opset = _BLOCK_OPSET if blocks else OPSET
        functions = functions_of(self._functions, opset)
        return self.write(inputs, outputs, opset, "LiteRT", functions=functions, description=self.file.description)

    def _input(self, place: int) -> onnx.ValueInfoProto:
        tensor = self.tensors[place]
        if self.is_coded(place):
            # The application rounds its inputs by their parameters: as a quantizer in the graph, others can be tried.
            self.quantize(place, tensor.name)
            return value_info(tensor.name, "FLOAT32", tensor.shape, batch="N")
        self.places[tensor.name] = place
        self.read[place] = tensor.name
        return value_info(tensor.name, tensor.kind, tensor.shape, batch="N")

    def _output(self, place: int) -> onnx.ValueInfoProto:
        tensor, name = self.tensors[place], self.values_of(place)
        if name in self._outputs or self.constant_of(place) is not None or place in self.file.inputs:
            source, name = name, self.fresh(f"{name}:output")
            self.nodes.append(make_node("Identity", [source], [name], name))
        self._outputs.add(name)
        return value_info(name, "FLOAT32" if self.is_coded(place) else tensor.kind, tensor.shape)

    def _operator(self, op: LiteOperator) -> None:
        is_single = not op.is_custom and len(op.inputs) == len(op.outputs) == 1 and min(*op.inputs, *op.outputs) >= 0
        if is_single and op.kind == "QUANTIZE" and self._is_quantized(op):
            return
        if is_single and op.kind == "DEQUANTIZE" and self._is_dequantized(op):
            return
        node = self._translate(op)
        self._append(op, self._foreign(op) if node is None else node)

    def _is_quantized(self, op: LiteOperator) -> bool:
        """Put real values on the grid of the tensor that a QUANTIZE writes."""
        source, target = op.inputs[0], op.outputs[0]
        if not self.is_coded(target) or self.is_unknown(source):
            return False
        self.quantize(target, self.values_of(source))
        return True

    def _is_dequantized(self, op: LiteOperator) -> bool:
        """Make codes or halves the float tensor that a DEQUANTIZE writes; constants are read where they lie."""
        source, target = op.inputs[0], op.outputs[0]
        name = self.tensors[target].name
        if self.constant_of(target) is not None:
            return True
        if source in self.codes:
            self.read[target] = self.dequantize(source, self.codes[source], name)
        elif self.tensors[source].kind == "FLOAT16" and not self.is_unknown(source):
            read = self.values_of(source)
            self.nodes.append(make_node("Cast", [read], [name], name, attributes={"to": TensorProto.FLOAT}))
            self.read[target] = name
        else:
            return False
        self.places[name] = target
        return True

    def _translate(self, op: LiteOperator) -> onnx.NodeProto | None:
        """The node of an operator; None where it has no counterpart."""
        unknown = any(self.is_unknown(place) for place in op.inputs if place >= 0)
        make = None if op.is_custom or unknown else OPERATORS.get(op.kind)
        if make is None:
            return None
        try:
            found = make(Site(self, op))
            node = self._node(op, found, DOMAIN if found.is_function else "")
        except UNTRANSLATABLE:
            return None
        if found.is_function:
            self._functions.add(found.kind)
        return node

    def _foreign(self, op: LiteOperator) -> onnx.NodeProto:
        self.untranslated.append(op.kind)
        inputs = [self.values_of(place) if place >= 0 else "" for place in op.inputs]
        known: dict[str, Value] = {name: value for name, value in op.options.items() if isinstance(value, int | float)}
        kind = f"{_MARK}{op.kind}" if op.is_custom and onnx.defs.has(op.kind) else op.kind
        return self._node(op, Node(kind, inputs, known), UNTRANSLATED)

    def _node(self, op: LiteOperator, node: Node, domain: str) -> onnx.NodeProto:
        outputs = [self.tensors[place].name if place >= 0 else "" for place in op.outputs]
        name = next((name for name in outputs if name), f"{op.kind}:{op.index}")
        return make_node(node.kind, node.inputs, outputs, name, domain, node.attributes)

    def _append(self, op: LiteOperator, node: onnx.NodeProto) -> None:
        self.nodes.append(node)
        if self._is_hybrid(op):
            self.hybrid.append(node.input[0])
        for place in op.outputs:
            if place >= 0:
                self._add_result(place)

    def _add_result(self, place: int) -> None:
        tensor = self.tensors[place]
        if self.is_coded(place):
            self.values.append(value_info(tensor.name, "FLOAT32", tensor.shape))
            self.quantize(place, tensor.name)
            return
        self.values.append(value_info(tensor.name, tensor.kind, tensor.shape))
        self.read[place] = tensor.name
        self.places[tensor.name] = place

    def _is_hybrid(self, op: LiteOperator) -> bool:
        if op.kind not in _HYBRID or op.is_custom or min(op.inputs[:2], default=-1) < 0:
            return False
        data, weight = (self.tensors[place] for place in op.inputs[:2])
        return data.kind == "FLOAT32" and data.data is None and weight.quantizer is not None and weight.kind in CODES
