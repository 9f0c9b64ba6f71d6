"""Where a LiteRT operator stands in its model, and the parts that translations to ONNX are made of."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
import onnx
from numpy.typing import ArrayLike, NDArray
from onnx import TensorProto, helper

from quantmedic.collectors.from_litert.flatbuffer import CODES, KINDS, LiteOperator, LiteTensor
from quantmedic.collectors.from_litert.litert_file import LiteModel
from quantmedic.collectors.from_translation.onnx_writer import (
    OnnxWriter,
    Untranslatable,
    Value,
    make_node,
    open_first_side,
)
from quantmedic.collectors.from_translation.translated_models import StoredCodes
from quantmedic.collectors.pair.graph import Shape
from quantmedic.collectors.pair.quantizer import Quantizer

Array = NDArray[np.generic]
Integers = NDArray[np.int64]
FLOATS = ("FLOAT32", "FLOAT16", "FLOAT64", "BFLOAT16")
#: Ends of the activations that operators have built in, by the schema's numbers; others have no counterpart.
_ACTIVATIONS: dict[int, dict[str, float]] = {
    0: {},
    1: {"low": 0.0},
    2: {"low": -1.0, "high": 1.0},
    3: {"low": 0.0, "high": 6.0},
}
_INT32 = np.iinfo(np.int32)


class Held(NamedTuple):
    """Place of a constant in the file, and the order of its axes."""

    place: int
    order: tuple[int, ...]


@dataclass(frozen=True)
class Node:
    """One ONNX node; ``is_function`` where it calls one of ``functions``. Inputs that are left out are empty."""

    kind: str
    inputs: Sequence[str]
    attributes: Mapping[str, Value] = field(default_factory=dict)
    is_function: bool = False


class TensorWriter(OnnxWriter):
    """An ONNX model in the making, as far as the tensors of a LiteRT file are concerned.

    Attributes:
        file: The file.
        tensors: Its tensors.
        places: The interpreter's number of every tensor that the interpreter has.
        grids: Grids of constants that ONNX has no types for, by the tensor that holds their values.
        held: Which constant of the file each initializer holds, and in which order of axes.
        writers: What writes a tensor, by its place.
        read: Names of the real values of tensors, by their places.
        codes: Names of the codes of tensors, by their places.
    """

    def __init__(self, model: LiteModel) -> None:
        super().__init__(tensor.name for tensor in model.tensors)
        self.file = model
        self.tensors = model.tensors
        self.places: dict[str, int] = {}
        self.grids: dict[str, StoredCodes] = {}
        self.held: dict[str, Held] = {}
        self.writers = {place: op for op in model.operators for place in op.outputs if place >= 0}
        self.read: dict[int, str] = {}
        self.codes: dict[int, str] = {}
        self._constants: dict[tuple[int, tuple[int, ...]], str] = {}

    def is_coded(self, place: int) -> bool:
        """A tensor holds codes on a grid."""
        tensor = self.tensors[place]
        return tensor.quantizer is not None and tensor.kind in CODES

    def constant_of(self, place: int) -> LiteTensor | None:
        """The constant that a tensor is, or that it is dequantized from; None where it is computed."""
        source = self.tensors[place]
        while source.data is None:
            op = self.writers.get(source.index)
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
        if place not in self.read:
            codes = self.codes.get(place)
            self.read[place] = self._unknown(place) if codes is None else self.dequantize(place, codes)
        return self.read[place]

    def _unknown(self, place: int) -> str:
        """Add a tensor of unknown values, such as a state or a constant in another file, as an empty Boolean."""
        name = self.tensors[place].name
        self.initializers.append(helper.make_tensor(name, TensorProto.BOOL, [0], []))
        return name

    def is_unknown(self, place: int) -> bool:
        """A tensor is neither computed, nor an input, nor a constant that was read."""
        there = place in self.file.inputs or place in self.writers
        return not there and self.tensors[place].data is None

    def dequantize(self, place: int, codes: str, target: str | None = None) -> str:
        """Make real values of the codes of a tensor; returns their name, a new one where none is given."""
        tensor = self.tensors[place]
        target = target or self.fresh(f"{tensor.name}:values")
        self._add_grid_of(tensor, "DequantizeLinear", codes, target)
        self.values.append(value_info(target, "FLOAT32", tensor.shape))
        return target

    def quantize(self, place: int, source: str) -> None:
        """Put real values on the grid of a tensor."""
        tensor = self.tensors[place]
        codes = self.fresh(f"{tensor.name}:codes")
        self._add_grid_of(tensor, "QuantizeLinear", source, codes)
        self.codes[place] = codes
        self.places[codes] = place
        self.values.append(value_info(codes, tensor.kind, tensor.shape))

    def _add_grid_of(self, tensor: LiteTensor, kind: str, source: str, target: str) -> None:
        assert tensor.quantizer is not None  # is_coded
        self.add_grid(kind, source, target, tensor.name, tensor.quantizer, KINDS[tensor.kind].onnx)

    def _constant_values(self, tensor: LiteTensor, order: tuple[int, ...]) -> str:
        """Real values of a constant; the first order that is asked for has its name."""
        key = (tensor.index, order)
        if key not in self._constants:
            assert tensor.data is not None
            first = not any(index == tensor.index for index, _ in self._constants)
            name = tensor.name if first else self.fresh(tensor.name)
            self.held[name] = Held(*key)
            self._constants[key] = self._add_constant(tensor, name, tensor.data.transpose(order), order)
        return self._constants[key]

    def _add_constant(self, tensor: LiteTensor, name: str, data: Array, order: tuple[int, ...]) -> str:
        quantizer = None if tensor.quantizer is None else tensor.quantizer.transpose(order)
        if quantizer is not None:
            return self._dequantize_constant(name, tensor.kind, data, quantizer)
        if tensor.kind != "FLOAT16":
            return self.store_initializer(name, data, KINDS[tensor.kind].onnx if data.dtype.kind != "O" else None)
        source, target = self.store_initializer(name, data), self.fresh(f"{name}:values")
        self.nodes.append(make_node("Cast", [source], [target], target, attributes={"to": TensorProto.FLOAT}))
        return target

    def _dequantize_constant(self, name: str, kind: str, codes: Array, quantizer: Quantizer) -> str:
        """Codes and what they stand for; codes that ONNX cannot dequantize as the numbers themselves."""
        stored_as = _stored_as(kind, codes, quantizer)
        if stored_as is None:
            self.store_initializer(name, quantizer.dequantize(codes))
            self.grids[name] = StoredCodes(codes, quantizer)
            return name
        self.store_initializer(name, codes, stored_as)
        target = self.fresh(f"{name}:values")
        self.add_grid("DequantizeLinear", name, target, name, quantizer, stored_as)
        self.values.append(value_info(target, "FLOAT32", codes.shape))
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


@dataclass(frozen=True)
class Site:
    """An operator in the model that is being translated."""

    writer: TensorWriter
    op: LiteOperator

    def _place(self, place: int) -> int:
        if not self.has(place):
            raise Untranslatable
        return self.op.inputs[place]

    def has(self, place: int) -> bool:
        """The operand is not left out."""
        return place < len(self.op.inputs) and self.op.inputs[place] >= 0

    def value(self, place: int, order: Sequence[int] | None = None) -> str:
        """Name of the real values of an operand; of a constant, with its axes in this order.

        Raises:
            Untranslatable: Another order is asked of what is computed.
        """
        return self.writer.values_of(self._place(place), order)

    def bias(self, place: int) -> str:
        """Name of the values of a bias, whose step may be that of the product of the first two operands."""
        return self.writer.bias(self.op, place)

    def integers(self, place: int) -> Integers | None:
        """What a constant operand holds, int64; None where it is computed."""
        constant = self.writer.constant_of(self._place(place))
        if constant is None or constant.data is None or constant.data.dtype.kind not in "iu":
            return None
        return constant.data.astype(np.int64)

    def constant(self, values: ArrayLike, kind: type = np.int64) -> str:
        """Name of a new constant."""
        name = self.writer.tensors[self.op.outputs[0]].name
        return self.writer.initializer(f"{name}:constant", np.asarray(values, kind))

    def shape(self, place: int) -> Shape:
        """Sides of an operand."""
        return self.writer.tensors[self._place(place)].shape

    def result(self, place: int) -> Shape:
        """Sides of a result."""
        return self.writer.tensors[self.op.outputs[place]].shape

    def kind(self, place: int) -> str:
        """Type of an operand by the schema's name; of one with a quantizer, FLOAT32."""
        tensor = self.writer.tensors[self._place(place)]
        return "FLOAT32" if tensor.quantizer is not None else tensor.kind

    def onnx_kind(self, place: int) -> int:
        """Type of a result in ONNX's numbers."""
        tensor = self.writer.tensors[self.op.outputs[place]]
        coded = self.writer.is_coded(tensor.index)
        kind = TensorProto.FLOAT if coded else KINDS[tensor.kind].onnx
        if kind == TensorProto.UNDEFINED:
            raise Untranslatable
        return kind

    def flag(self, name: str) -> bool:
        """An option that is on or off; off where the file does not have it."""
        return bool(self.op.options.integer(name))

    def constant_integers(self, place: int) -> Integers:
        """What a constant operand holds.

        Raises:
            Untranslatable: It is computed.
        """
        values = self.integers(place)
        if values is None:
            raise Untranslatable
        return values

    def operands(self) -> list[str]:
        """Names of all operands."""
        return [self.value(place) for place in range(len(self.op.inputs))]

    def integer_operand(self, place: int) -> str:
        """An operand of integers: as int64 where it is constant, else as it is."""
        values = self.integers(place)
        return self.value(place) if values is None else self.constant(values)

    def activation_bounds(self, data: int = 0) -> dict[str, float]:
        """Ends of the activation that is built in, empty without one; ``data`` is the operand that it works on.

        Raises:
            Untranslatable: The activation has no counterpart.
        """
        bounds = _ACTIVATIONS.get(self.op.options.integer("fusedActivationFunction"))
        if bounds is None or (bounds and self.kind(data) not in FLOATS):
            raise Untranslatable
        return bounds


Translate = Callable[[Site], Node]


def fixed_sides(sides: Sequence[int | None]) -> list[int]:
    """The sides themselves.

    Raises:
        Untranslatable: One of them depends on the data.
    """
    found = [side for side in sides if side is not None]
    if len(found) < len(sides):
        raise Untranslatable
    return found


def onnx_node(kind: str, site: Site, **attributes: Value) -> Node:
    """An operator of ONNX with all operands."""
    return Node(kind, site.operands(), attributes)


def function_node(kind: str, site: Site, **attributes: Value) -> Node:
    """A function of ``functions`` with all operands."""
    return Node(kind, site.operands(), attributes, is_function=True)


def node_with_activation(kind: str, site: Site) -> Node:
    """An operator with all operands, and the activation that is built in."""
    bounds = site.activation_bounds()
    return Node(kind, site.operands(), {**bounds}, is_function=bool(bounds))


def node_without_activation(kind: str, site: Site, **attributes: Value) -> Node:
    """An operator with all operands.

    Raises:
        Untranslatable: It has an activation built in.
    """
    if site.activation_bounds():
        raise Untranslatable
    return Node(kind, site.operands(), attributes)


def value_info(name: str, kind: str, shape: Shape, batch: str | None = None) -> onnx.ValueInfoProto:
    """Type and shape; sides that depend on the data are left open, the first of an input under a name."""
    return helper.make_tensor_value_info(name, KINDS[kind].onnx, open_first_side(shape, batch))


def _stored_as(kind: str, codes: Array, quantizer: Quantizer) -> int | None:
    """The type in which ONNX can dequantize these codes; None where there is none."""
    if kind in CODES:
        return KINDS[kind].onnx
    fits = codes.size == 0 or (codes.min() >= _INT32.min and codes.max() <= _INT32.max)
    return int(TensorProto.INT32) if fits and kind in ("INT32", "INT64") and not quantizer.zero_point.any() else None
