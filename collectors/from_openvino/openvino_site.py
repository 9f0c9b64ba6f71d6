"""An operator of an IR where it is translated: what it reads, its attributes, and the nodes that it becomes."""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from quantmedic.collectors.from_openvino.openvino_constants import FOLDED, REAL, TYPES, Held, fold, shape_of
from quantmedic.collectors.from_translation.onnx_writer import OnnxWriter, Untranslatable, Value, make_node
from quantmedic.collectors.from_translation.translated_models import StoredCodes
from quantmedic.collectors.pair.graph import Attributes, Shape
from quantmedic.collectors.pair.quantizer import Quantizer, unpack_codes

if TYPE_CHECKING:
    import openvino

Array = NDArray[np.generic]
Float32 = NDArray[np.float32]
#: Types of codes: bits and sign.
_CODES = {f"{'i' if signed else 'u'}{bits}": (bits, signed) for bits in (4, 8, 16) for signed in (True, False)}
#: Those of biases; of 32 bits unsigned there are none.
_CODES["i32"] = (32, True)
#: Operators between the codes of a bias and the Add that reads it: Convert, Subtract, Multiply, Reshape.
MOST_STEPS = 4


class Place(NamedTuple):
    """Where OpenVINO has a tensor: the operator's place in its order of execution, and its output."""

    operator: int
    output: int


class TensorWriter(OnnxWriter):
    """An ONNX model in the making, as far as the tensors and constants of an IR are concerned.

    Attributes:
        source: OpenVINO's model.
        places: Where OpenVINO has each tensor.
        grids: Constants whose grids ONNX's quantizers do not express, by the tensor that holds their real values.
        notices: What the user should know of the model.
        names: Names of tensors, by the operator that writes them and the number of its output.
        held: Constants, and what makes weights of them, by their operator.
    """

    def __init__(self, source: "openvino.Model") -> None:
        super().__init__(op.get_friendly_name() for op in source.get_ordered_ops())
        self.source = source
        self.places: dict[str, Place] = {}
        self.grids: dict[str, StoredCodes] = {}
        self.notices: list[str] = []
        self.names: dict[tuple[str, int], str] = {}
        self.held: dict[str, Held] = {}
        self._own: set[str] = set()
        self._stored: dict[str, str] = {}
        #: Constants that an operator reads which is no part of them.
        self._read: set[str] = set()

    def name_outputs(self, op: "openvino.Node", number: int) -> None:
        base = op.get_friendly_name()
        for k in range(op.get_output_size()):
            name = base if k == 0 and base not in self._own else self.fresh(f"{base}.{k}" if k else base)
            self._own.add(name)
            self.names[op.get_name(), k] = name
            if op.get_type_name() not in ("Constant", "Result"):
                self.places[name] = Place(number, k)

    def held_of(self, source: "openvino.Output") -> Held | None:
        """The constant that a tensor is; None for one that is computed."""
        found = self.held.get(source.get_node().get_name())
        if found is not None:
            self._read.add(source.get_node().get_name())
        return found

    def value_of(self, source: "openvino.Output") -> str:
        """Name of a tensor, which is written first where it is a constant."""
        key = source.get_node().get_name()
        held = self.held.get(key)
        if held is None:
            return self.names[key, source.get_index()]
        if key not in self._stored:
            self._stored[key] = self.store(held)
        return self._stored[key]

    def store(self, held: Held) -> str:
        """Write a constant, as codes where it has a grid; returns the name of its real values."""
        quantizer = held.quantizer
        name = held.name if not any(t.name == held.name for t in self.initializers) else self.fresh(held.name)
        if quantizer is None or not _is_expressed(quantizer):
            # What reads doubles takes nothing else.
            self.store_initializer(name, held.data if held.data.dtype == np.float64 else held.values)
            if quantizer is not None:
                self.grids[name] = StoredCodes(held.data, quantizer)
            elif held.grid is not None:
                self.notices.append(f"the grid of the weights {held.name} has another form than channels or blocks")
            return name
        kind = type_of(quantizer)
        self.store_initializer(name, held.data, kind)
        target = self.fresh(f"{name}:values")
        self.add_grid("DequantizeLinear", name, target, target, quantizer, kind)
        return target

    def hold_constant(self, op: "openvino.Node") -> bool:
        """Keep a constant; False for one of a type that is not read."""
        kind, shape = op.get_element_type().get_type_name(), list(op.get_output_shape(0))
        bits, signed = _CODES.get(kind, (None, True))
        if kind in REAL - {"f64"}:
            data = np.asarray(op.get_data(dtype=np.float32))
        elif bits == 4:
            packed = np.asarray(op.get_tensor_view().data).view(np.uint8).ravel()
            data = unpack_codes(packed, bits, prod(shape), signed=signed)
        elif kind in TYPES and kind != "string":
            data = np.asarray(op.get_data())
        else:
            return False
        self.held[op.get_name()] = Held(op.get_friendly_name(), np.asarray(data).reshape(shape), bits, signed)
        return True

    def is_folded(self, op: "openvino.Node") -> bool:
        """Carry a constant through what makes weights of codes, or moves them."""
        sources = [self.held.get(op.input_value(k).get_node().get_name()) for k in range(op.get_input_size())]
        given = [held for held in sources if held is not None]
        if not sources or len(given) < len(sources):
            return False
        found = fold(op, given)
        if found is None:
            return False
        self.held[op.get_name()] = found
        return True

    def hold_ahead(self, source: "openvino.Output", steps: int = MOST_STEPS) -> Held | None:
        """A constant, or what a few operators make of constants, wherever it stands in the order of execution."""
        node = source.get_node()
        if node.get_name() not in self.held:
            if node.get_type_name() == "Constant":
                self.hold_constant(node)
            elif steps and node.get_type_name() in FOLDED:
                before = (self.hold_ahead(node.input_value(k), steps - 1) for k in range(node.get_input_size()))
                _ = all(held is not None for held in before) and self.is_folded(node)
        return self.held.get(node.get_name())

    def weights(self) -> dict[int, Float32]:
        """Real values of what is read of constants with a grid, by the place of its operator."""
        found = {}
        for number, op in enumerate(self.source.get_ordered_ops()):
            held = self.held.get(op.get_name())
            if held is not None and held.grid is not None and op.get_name() in self._read:
                found[number] = np.asarray(held.values, np.float32)
        return found


class Site:
    """An operator in the model that is being translated. Its nodes are kept until all are known.

    Attributes:
        kind: Its type, such as Convolution.
        attributes: Its attributes that are numbers, words or lists of them.
        outputs: How many tensors it writes.
        nodes: What it becomes.
        initializers: Constants that it adds.
        written_by: What its result is called after.
    """

    def __init__(self, writer: TensorWriter, op: "openvino.Node", written_by: "openvino.Node | None" = None) -> None:
        """``written_by`` is the Add behind it where that is its bias; else the operator itself."""
        self._writer, self._op, self.written_by = writer, op, written_by or op
        self.kind: str = op.get_type_name()
        given = {name: tuple(own) if isinstance(own, list) else own for name, own in op.get_attributes().items()}
        self.attributes = Attributes({n: own for n, own in given.items() if isinstance(own, int | float | str | tuple)})
        self.outputs: int = op.get_output_size()
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []

    def has(self, place: int) -> bool:
        """It has an input of this number."""
        return bool(place < self._op.get_input_size())

    def _source(self, place: int) -> "openvino.Output":
        if not self.has(place):
            raise Untranslatable
        return self._op.input_value(place)

    def value(self, place: int) -> str:
        """Name of what it reads there."""
        return self._writer.value_of(self._source(place))

    def find_constant(self, place: int) -> Held | None:
        """The constant that it reads there; None where it is computed."""
        return self._writer.held_of(self._source(place))

    def store(self, held: Held) -> str:
        """Name of a constant that is laid out anew."""
        return self._writer.store(held)

    def constant(self, values: object, kind: type = np.int64) -> str:
        """Name of a new constant."""
        name = self._writer.fresh(f"{self._op.get_friendly_name()}:constant")
        self.initializers.append(numpy_helper.from_array(np.asarray(values, kind), name))
        return name

    def shape(self, place: int) -> Shape | None:
        """Shape of an input; None where its rank depends on the data."""
        return shape_of(self._source(place))

    def result(self, place: int) -> Shape | None:
        """Shape of an output."""
        return shape_of(self._op.output(place))

    def is_float(self, place: int) -> bool:
        """An input holds real values."""
        return self._source(place).get_element_type().get_type_name() in REAL

    def onnx_type(self, place: int) -> int:
        """ONNX's number of the type of an output."""
        kind = self._op.get_output_element_type(place).get_type_name()
        if kind not in TYPES:
            raise Untranslatable
        return int(TYPES[kind])

    def text(self, name: str, default: str) -> str:
        """An attribute that is a word, in lower case."""
        return str(self.attributes.get(name, default)).lower()

    def flag(self, name: str, *, default: bool) -> bool:
        """An attribute that is on or off."""
        value = self.attributes.get(name, default)
        return value.lower() in ("true", "1") if isinstance(value, str) else bool(value)

    def integers(self, name: str) -> list[int]:
        """An attribute that lists whole numbers; empty without it."""
        return list(self.attributes.integers(name) or ())

    def constant_values(self, place: int) -> Array:
        """What a constant input holds.

        Raises:
            Untranslatable: It is computed.
        """
        held = self.find_constant(place)
        if held is None:
            raise Untranslatable
        return held.values

    def constant_integers(self, place: int) -> list[int]:
        """The same in one row of whole numbers."""
        return [int(entry) for entry in self.constant_values(place).ravel()]

    def rank(self, place: int) -> int:
        """Number of axes of an input.

        Raises:
            Untranslatable: It depends on the data.
        """
        shape = self.shape(place)
        if shape is None:
            raise Untranslatable
        return len(shape)

    def operands(self) -> list[str]:
        """Names of all inputs."""
        return [self.value(place) for place in range(self._op.get_input_size())]

    def integer_operand(self, place: int) -> str:
        """An input of whole numbers as int64, as ONNX wants shapes and axes; in one row where it is constant."""
        held = self.find_constant(place)
        if held is not None:
            return self.constant(held.values.ravel())
        return self.step("Cast", [self.value(place)], to=TensorProto.INT64)

    def step(self, kind: str, inputs: Sequence[str], **attributes: Value) -> str:
        """Add a node with one output, which is given a name of its own; returns it."""
        name = self._writer.fresh(f"{self._op.get_friendly_name()}:{kind.lower()}")
        self._add(kind, inputs, [name], name, attributes)
        return name

    def finish(self, kind: str, inputs: Sequence[str], **attributes: Value) -> None:
        """Add the node that writes what the operator writes."""
        names, key = self._writer.names, self.written_by.get_name()
        outputs = [names[key, k] for k in range(self.outputs)]
        if kind == "MaxPool":
            outputs = outputs[:1]
        self._add(kind, inputs, outputs, self._op.get_friendly_name(), attributes)

    def _add(
        self, kind: str, inputs: Sequence[str], outputs: Sequence[str], name: str, attributes: Mapping[str, Value]
    ) -> None:
        self.nodes.append(make_node(kind, inputs, outputs, name, attributes=attributes))


Translate = Callable[[Site], None]


def _is_expressed(quantizer: Quantizer) -> bool:
    """ONNX's quantizers have this grid."""
    fits = ((quantizer.zero_point >= quantizer.qmin) & (quantizer.zero_point <= quantizer.qmax)).all()
    return not quantizer.block_size and quantizer.bits in (4, 8, 16) and bool(fits)


def type_of(quantizer: Quantizer) -> int:
    return int(TensorProto.DataType.Value(f"{'' if quantizer.signed else 'U'}INT{quantizer.bits}"))
