"""A LiteRT model written as an ONNX model, so that whatever reads, simulates or changes ONNX models works on it.

Every operator becomes one node under the name of its result. Activations keep their names and have their channels last;
weights are laid out as ONNX wants them. An integer tensor T with a grid is the float tensor T that its operator writes,
its codes ``T:codes`` and what they stand for, ``T:values``.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import onnx
from numpy.typing import ArrayLike, NDArray
from onnx import TensorProto, helper, numpy_helper

from quantmedic.collectors.from_litert.file import LiteModel, LiteOperator, LiteTensor
from quantmedic.collectors.from_litert.functions import DOMAIN, OPSET, functions_of
from quantmedic.collectors.from_litert.operators import OPERATORS
from quantmedic.collectors.from_litert.site import Integers, Node, Untranslatable, Value
from quantmedic.collectors.from_onnx.names import unique_name
from quantmedic.collectors.from_onnx.translated import StoredCodes
from quantmedic.collectors.pair.graph import Shape
from quantmedic.collectors.pair.quantizer import Quantizer

Array = NDArray[np.generic]
#: Domain of operators that have no counterpart: they are read and measured, but cannot be simulated or changed.
UNTRANSLATED = "litert.untranslated"
#: The first version of the format that has this opset.
_IR_VERSION = 10
#: The first opset with scales per block. Models without them stay below it: onnxruntime, which makes uint8 of int8
#: codes, leaves the ``output_dtype`` as it was that the quantizers of this opset may have, and then refuses the model.
_BLOCK_OPSET = 21
#: Domain of onnxruntime's own quantizers, which take codes of 4 and 16 bits in any opset.
_MICROSOFT = "com.microsoft"
_WIDE_OR_NARROW = frozenset({TensorProto.INT4, TensorProto.UINT4, TensorProto.INT16, TensorProto.UINT16})
_INT32 = np.iinfo(np.int32)
#: Schema's types in ONNX's; codes of 2 bits have no type in this opset and are stored in 4.
_TYPES = {
    "FLOAT32": TensorProto.FLOAT,
    "FLOAT16": TensorProto.FLOAT16,
    "FLOAT64": TensorProto.DOUBLE,
    "BFLOAT16": TensorProto.FLOAT,
    "INT2": TensorProto.INT4,
    "INT4": TensorProto.INT4,
    "UINT4": TensorProto.UINT4,
    "BOOL": TensorProto.BOOL,
    "STRING": TensorProto.STRING,
    "COMPLEX64": TensorProto.COMPLEX64,
    "COMPLEX128": TensorProto.COMPLEX128,
    **{
        f"{sign}INT{bits}": TensorProto.DataType.Value(f"{sign}INT{bits}")
        for sign in ("", "U")
        for bits in (8, 16, 32, 64)
    },
}
#: Types of the codes of quantized activations.
_CODES = frozenset({"INT2", "INT4", "UINT4", "INT8", "UINT8", "INT16", "UINT16"})
#: Operators that round float inputs to 8 bits at run time where their weights are codes.
_HYBRID = frozenset({"CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "BATCH_MATMUL"})
#: Prefix of custom operators that have the name of an operator of ONNX.
_MARK = "CUSTOM:"


@dataclass(frozen=True)
class Translation:
    """A LiteRT model in ONNX.

    Attributes:
        model: The ONNX model.
        places: The interpreter's number of every tensor of it that the interpreter has.
        untranslated: Operators without a counterpart, by the schema's or their own name.
        hybrid: Tensors that are rounded at run time, for they meet weights that are codes.
        grids: Grids of constants that ONNX has no types for, by the tensor that holds their values.
        held: Which constant of the file each initializer holds, and in which order of axes.
    """

    model: onnx.ModelProto
    places: Mapping[str, int]
    untranslated: tuple[str, ...]
    hybrid: tuple[str, ...] = ()
    grids: Mapping[str, StoredCodes] = field(default_factory=dict)
    held: Mapping[str, "Held"] = field(default_factory=dict)


class Held(NamedTuple):
    """Place of a constant in the file, and the order of its axes."""

    place: int
    order: tuple[int, ...]


def translate(model: LiteModel) -> Translation:
    """Write a model in ONNX."""
    return _Translator(model).run()


class _Translator:
    """An ONNX model in the making."""

    def __init__(self, model: LiteModel) -> None:
        self.file = model
        self.tensors = model.tensors
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.values: list[onnx.ValueInfoProto] = []
        self.places: dict[str, int] = {}
        self.untranslated: list[str] = []
        self.hybrid: list[str] = []
        self.grids: dict[str, StoredCodes] = {}
        self._functions: set[str] = set()
        self._taken = {tensor.name for tensor in model.tensors}
        self._writers = {place: op for op in model.operators for place in op.outputs if place >= 0}
        self._read: dict[int, str] = {}
        self._codes: dict[int, str] = {}
        self._constants: dict[tuple[int, tuple[int, ...]], str] = {}
        self._held: dict[str, Held] = {}
        self._named: set[str] = set()

    def run(self) -> Translation:
        inputs = [self._input(place) for place in self.file.inputs]
        for op in self.file.operators:
            self._operator(op)
        outputs = [self._output(place) for place in dict.fromkeys(self.file.outputs)]
        graph = helper.make_graph(
            self.nodes, "main", inputs, outputs, self.initializers, value_info=self._values(inputs, outputs)
        )
        blocks = any(t.quantizer is not None and t.quantizer.block_size for t in self.tensors if t.data is not None)
        opset = _BLOCK_OPSET if blocks else OPSET
        domains = [("", opset), *((name, 1) for name in sorted({node.domain for node in self.nodes} - {""}))]
        model = helper.make_model(
            graph,
            functions=functions_of(self._functions, opset),
            opset_imports=[helper.make_opsetid(*each) for each in domains],
            ir_version=_IR_VERSION,
            producer_name="LiteRT",
            doc_string=self.file.description,
        )
        return Translation(model, self.places, tuple(self.untranslated), tuple(self.hybrid), self.grids, self._held)

    def _values(
        self, inputs: Iterable[onnx.ValueInfoProto], outputs: Iterable[onnx.ValueInfoProto]
    ) -> list[onnx.ValueInfoProto]:
        ends = {value.name for value in (*inputs, *outputs)}
        return list({value.name: value for value in self.values if value.name not in ends}.values())

    # Tensors

    def _input(self, place: int) -> onnx.ValueInfoProto:
        tensor = self.tensors[place]
        if self.is_coded(place):
            # The application rounds its inputs by their parameters: as a quantizer in the graph, others can be tried.
            self._quantize(place, tensor.name)
            return _value_info(tensor.name, "FLOAT32", tensor.shape, batch="N")
        self.places[tensor.name] = place
        self._read[place] = tensor.name
        return _value_info(tensor.name, tensor.kind, tensor.shape, batch="N")

    def _output(self, place: int) -> onnx.ValueInfoProto:
        tensor, name = self.tensors[place], self.values_of(place)
        if name in self._named or self.constant_of(place) is not None or place in self.file.inputs:
            source, name = name, self.fresh(f"{name}:output")
            self.nodes.append(helper.make_node("Identity", [source], [name], name=name))
        self._named.add(name)
        return _value_info(name, "FLOAT32" if self.is_coded(place) else tensor.kind, tensor.shape)

    def is_coded(self, place: int) -> bool:
        """A tensor holds codes on a grid."""
        tensor = self.tensors[place]
        return tensor.quantizer is not None and tensor.kind in _CODES

    def constant_of(self, place: int) -> LiteTensor | None:
        """The constant that a tensor is, or that it is dequantized from; None where it is computed."""
        source = self.tensors[place]
        while source.data is None:
            op = self._writers.get(source.index)
            if op is None or op.is_custom or op.kind != "DEQUANTIZE" or min(op.inputs, default=-1) < 0:
                return None
            source = self.tensors[op.inputs[0]]
        is_real = source.quantizer is not None or source.data.dtype.kind == "f"
        return source if is_real or source.index == place else None

    def values_of(self, place: int, order: Sequence[int] | None = None) -> str:
        """Name of the real values of a tensor; of a constant, with its axes in this order.

        Raises:
            Untranslatable: Another order is asked of what is computed.
        """
        constant = self.constant_of(place)
        if constant is not None:
            plain = tuple(range(constant.data.ndim if constant.data is not None else 0))
            return self._constant_values(constant, plain if order is None else tuple(order))
        if order is not None and list(order) != list(range(len(order))):
            raise Untranslatable
        if place not in self._read:
            codes = self._codes.get(place)
            self._read[place] = self._unknown(place) if codes is None else self._dequantize(place, codes)
        return self._read[place]

    def _unknown(self, place: int) -> str:
        """Add a tensor of unknown values, such as a state or a constant in another file, as an empty Boolean."""
        name = self.tensors[place].name
        self.initializers.append(helper.make_tensor(name, TensorProto.BOOL, [0], []))
        return name

    def is_unknown(self, place: int) -> bool:
        """A tensor is neither computed, nor an input, nor a constant that was read."""
        there = place in self.file.inputs or place in self._writers
        return not there and self.tensors[place].data is None

    def _dequantize(self, place: int, codes: str, target: str | None = None) -> str:
        tensor = self.tensors[place]
        target = target or self.fresh(f"{tensor.name}:values")
        self._grid_node("DequantizeLinear", codes, target, tensor)
        self.values.append(_value_info(target, "FLOAT32", tensor.shape))
        return target

    def _quantize(self, place: int, source: str) -> None:
        tensor = self.tensors[place]
        codes = self.fresh(f"{tensor.name}:codes")
        self._grid_node("QuantizeLinear", source, codes, tensor)
        self._codes[place] = codes
        self.places[codes] = place
        self.values.append(_value_info(codes, tensor.kind, tensor.shape))

    def _grid_node(self, kind: str, source: str, target: str, tensor: LiteTensor) -> None:
        quantizer = tensor.quantizer
        assert quantizer is not None  # is_coded
        self._add_grid(kind, source, target, tensor.name, quantizer, _TYPES[tensor.kind])

    def _add_grid(self, kind: str, source: str, target: str, base: str, quantizer: Quantizer, codes: int) -> None:
        """Add a quantizer, or what reads its codes, which are of this type; codes of 32 bits have no zero point."""
        inputs = [source, self.initializer(f"{base}:scale", np.asarray(quantizer.scale, np.float32))]
        if codes != TensorProto.INT32:
            zero = np.broadcast_to(quantizer.zero_point, quantizer.scale.shape)
            inputs.append(self.initializer(f"{base}:zero_point", zero, codes))
        domain = _MICROSOFT if codes in _WIDE_OR_NARROW and not quantizer.block_size else ""
        self.nodes.append(_make_node(kind, inputs, [target], target, domain, _attributes_of(quantizer)))

    def fresh(self, base: str) -> str:
        """A name that nothing has yet."""
        return unique_name(base, self._taken)

    def initializer(self, base: str, values: Array, kind: int | None = None) -> str:
        """Name of a new constant; ``kind`` is its type in ONNX's numbers, else numpy's type decides."""
        return self._initializer(self.fresh(base), values, kind)

    def _initializer(self, name: str, values: Array, kind: int | None = None) -> str:
        if kind is not None:
            values = np.asarray(values).astype(helper.tensor_dtype_to_np_dtype(kind))
        self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(values).reshape(values.shape), name))
        return name

    def _constant_values(self, tensor: LiteTensor, order: tuple[int, ...]) -> str:
        """Real values of a constant; the first order that is asked for has its name."""
        key = (tensor.index, order)
        if key not in self._constants:
            assert tensor.data is not None
            first = not any(index == tensor.index for index, _ in self._constants)
            name = tensor.name if first else self.fresh(tensor.name)
            self._held[name] = Held(*key)
            self._constants[key] = self._add_constant(tensor, name, tensor.data.transpose(order), order)
        return self._constants[key]

    def _add_constant(self, tensor: LiteTensor, name: str, data: Array, order: tuple[int, ...]) -> str:
        quantizer = None if tensor.quantizer is None else _with_order(tensor.quantizer, order)
        if quantizer is not None:
            return self._dequantized_constant(name, tensor.kind, data, quantizer)
        if tensor.kind != "FLOAT16":
            return self._initializer(name, data, _TYPES[tensor.kind] if data.dtype.kind != "O" else None)
        source, target = self._initializer(name, data), self.fresh(f"{name}:values")
        self.nodes.append(helper.make_node("Cast", [source], [target], name=target, to=TensorProto.FLOAT))
        return target

    def _dequantized_constant(self, name: str, kind: str, codes: Array, quantizer: Quantizer) -> str:
        """Codes and what they stand for; codes that ONNX cannot dequantize as the numbers themselves."""
        stored_as = _stored_as(kind, codes, quantizer)
        if stored_as is None:
            self._initializer(name, quantizer.dequantize(codes))
            self.grids[name] = StoredCodes(codes, quantizer)
            return name
        self._initializer(name, codes, stored_as)
        target = self.fresh(f"{name}:values")
        self._add_grid("DequantizeLinear", name, target, name, quantizer, stored_as)
        self.values.append(_value_info(target, "FLOAT32", codes.shape))
        if kind in ("INT2", "INT64"):
            self.grids[target] = StoredCodes(codes, quantizer)
        return target

    def bias(self, op: LiteOperator, place: int) -> str:
        """Values of a bias; codes without a grid of their own lie on that of the product."""
        tensor = self.constant_of(op.inputs[place])
        if tensor is None or tensor.data is None or tensor.quantizer is not None or tensor.data.dtype.kind == "f":
            return self.values_of(op.inputs[place])
        factors = [self.tensors[each].quantizer for each in op.inputs[:2]]
        scales = [np.asarray(q.scale, np.float32) for q in factors if q is not None and not q.block_size]
        if len(scales) < 2:
            raise Untranslatable
        scale = np.asarray(scales[0] * scales[1], np.float32)
        shape = () if scale.size == 1 else (-1,)
        quantizer = Quantizer(
            scale.reshape(shape), np.zeros(scale.reshape(shape).shape, np.int64), 32, True, 0 if shape else None
        )
        return self._constant_values(replace(tensor, quantizer=quantizer), (0,))

    # Operators

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
        self._quantize(target, self.values_of(source))
        return True

    def _is_dequantized(self, op: LiteOperator) -> bool:
        """Make codes or halves the float tensor that a DEQUANTIZE writes; constants are read where they lie."""
        source, target = op.inputs[0], op.outputs[0]
        name = self.tensors[target].name
        if self.constant_of(target) is not None:
            return True
        if source in self._codes:
            self._read[target] = self._dequantize(source, self._codes[source], name)
        elif self.tensors[source].kind == "FLOAT16" and not self.is_unknown(source):
            read = self.values_of(source)
            self.nodes.append(helper.make_node("Cast", [read], [name], name=name, to=TensorProto.FLOAT))
            self._read[target] = name
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
            found = make(_Site(self, op))
            node = self._node(op, found, DOMAIN if found.is_function else "")
        except (Untranslatable, ValueError, LookupError, TypeError, ArithmeticError):
            # Options and shapes that contradict each other or the documentation of the operator.
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
        return _make_node(node.kind, node.inputs, outputs, name, domain, node.attributes)

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
            self.values.append(_value_info(tensor.name, "FLOAT32", tensor.shape))
            self._quantize(place, tensor.name)
            return
        self.values.append(_value_info(tensor.name, tensor.kind, tensor.shape))
        self._read[place] = tensor.name
        self.places[tensor.name] = place

    def _is_hybrid(self, op: LiteOperator) -> bool:
        if op.kind not in _HYBRID or op.is_custom or min(op.inputs[:2], default=-1) < 0:
            return False
        data, weight = (self.tensors[place] for place in op.inputs[:2])
        return data.kind == "FLOAT32" and data.data is None and weight.quantizer is not None and weight.kind in _CODES


@dataclass(frozen=True)
class _Site:
    """An operator in the model that is being translated."""

    translator: _Translator
    op: LiteOperator

    def _place(self, place: int) -> int:
        if not self.has(place):
            raise Untranslatable
        return self.op.inputs[place]

    def has(self, place: int) -> bool:
        return place < len(self.op.inputs) and self.op.inputs[place] >= 0

    def value(self, place: int, order: Sequence[int] | None = None) -> str:
        return self.translator.values_of(self._place(place), order)

    def bias(self, place: int) -> str:
        return self.translator.bias(self.op, place)

    def integers(self, place: int) -> Integers | None:
        constant = self.translator.constant_of(self._place(place))
        if constant is None or constant.data is None or constant.data.dtype.kind not in "iu":
            return None
        return constant.data.astype(np.int64)

    def constant(self, values: ArrayLike, kind: type = np.int64) -> str:
        name = self.translator.tensors[self.op.outputs[0]].name
        return self.translator.initializer(f"{name}:constant", np.asarray(values, kind))

    def shape(self, place: int) -> Shape:
        return self.translator.tensors[self._place(place)].shape

    def result(self, place: int) -> Shape:
        return self.translator.tensors[self.op.outputs[place]].shape

    def kind(self, place: int) -> str:
        tensor = self.translator.tensors[self._place(place)]
        return "FLOAT32" if tensor.quantizer is not None else tensor.kind

    def onnx_kind(self, place: int) -> int:
        tensor = self.translator.tensors[self.op.outputs[place]]
        coded = self.translator.is_coded(tensor.index)
        return TensorProto.FLOAT if coded else _TYPES[tensor.kind]


def _value_info(name: str, kind: str, shape: Shape, batch: str | None = None) -> onnx.ValueInfoProto:
    """Type and shape; sides that depend on the data are left open, the first of an input under a name."""
    sides: list[int | str | None] = list(shape)
    if sides and sides[0] is None:
        sides[0] = batch
    return helper.make_tensor_value_info(name, _TYPES.get(kind, TensorProto.UNDEFINED), sides)


def _make_node(
    kind: str, inputs: Sequence[str], outputs: Sequence[str], name: str, domain: str, attributes: Mapping[str, Value]
) -> onnx.NodeProto:
    node = helper.make_node(kind, inputs, outputs, name=name, domain=domain)
    node.attribute.extend(helper.make_attribute(key, value) for key, value in sorted(attributes.items()))
    return node


def _attributes_of(quantizer: Quantizer) -> dict[str, int]:
    """Attributes of a node that quantizes along an axis."""
    found = {} if quantizer.axis is None else {"axis": quantizer.axis}
    return found | ({"block_size": quantizer.block_size} if quantizer.block_size else {})


def _with_order(quantizer: Quantizer, order: tuple[int, ...]) -> Quantizer:
    """The grid of a constant whose axes are put in another order."""
    if quantizer.axis is None:
        return quantizer
    axis = order.index(quantizer.axis % len(order))
    if not quantizer.block_size:
        return replace(quantizer, axis=axis)
    scale, zero_point = quantizer.scale.transpose(order), quantizer.zero_point.transpose(order)
    return replace(quantizer, scale=scale, zero_point=zero_point, axis=axis)


def _stored_as(kind: str, codes: Array, quantizer: Quantizer) -> int | None:
    """The type in which ONNX can dequantize these codes; None where there is none."""
    if kind in _CODES:
        return int(_TYPES[kind])
    fits = codes.size == 0 or (codes.min() >= _INT32.min and codes.max() <= _INT32.max)
    return int(TensorProto.INT32) if fits and kind in ("INT32", "INT64") and not quantizer.zero_point.any() else None
