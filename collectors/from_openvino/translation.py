"""An OpenVINO model written as an ONNX model, so that whatever reads, simulates or changes ONNX models works on it.

Every operator becomes one node, or a few of which the last one bears its name, and the tensor that it writes is called
after it. A FakeQuantize F becomes the codes ``F:codes`` and what they stand for, ``F``. An Add that gives a convolution
its bias becomes part of that, and weights that are stored as codes are dequantized as ONNX does it. A FakeQuantize that
stands for a Relu or Clip too becomes both (``dropped_bounds.py``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from quantmedic.collectors.from_onnx.names import unique_name
from quantmedic.collectors.from_onnx.session import TRANSLATED
from quantmedic.collectors.from_onnx.translated import StoredCodes
from quantmedic.collectors.from_openvino.code_chains import code_chain
from quantmedic.collectors.from_openvino.constants import Held, unpack
from quantmedic.collectors.from_openvino.dropped_bounds import Dropped
from quantmedic.collectors.from_openvino.folding import FOLDED, REAL, TYPES, fold, round_weights, value_info
from quantmedic.collectors.from_openvino.grids import OFF_GRID, FakeGrid, Ranges, grid_of
from quantmedic.collectors.from_openvino.operators import biased_translator_of, fits_as_bias, translator_of
from quantmedic.collectors.from_openvino.site import Untranslatable, Value, shape_of
from quantmedic.collectors.pair.graph import Shape
from quantmedic.collectors.pair.quantizer import Quantizer

if TYPE_CHECKING:
    import openvino

Array = NDArray[np.generic]
Float32 = NDArray[np.float32]
#: Domain of operators that have no counterpart: they are read and measured, but cannot be simulated or changed.
UNTRANSLATED = "openvino.untranslated"
#: The first opset with Gelu, and the format of its time. Below 21 quantizers have no ``output_dtype``, which
#: onnxruntime leaves as it was where it makes uint8 of int8 codes.
OPSET, _IR_VERSION = 20, 10
#: Domain of onnxruntime's own quantizers, which take codes of 4 and 16 bits in any opset.
_MICROSOFT = "com.microsoft"
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


@dataclass(frozen=True)
class Translation:
    """An OpenVINO model in ONNX.

    Attributes:
        model: The ONNX model.
        places: Where OpenVINO has each tensor of it; of codes, what they stand for.
        decoders: Grids on which OpenVINO writes codes, by the tensor of codes.
        untranslated: Operators without a counterpart, by their own type.
        grids: Constants whose grids ONNX's quantizers do not express, by the tensor that holds their real values.
        weights: Real values of constants that are stored as codes, by the place of the operator that makes them.
        notices: What the user should know of it.
    """

    model: onnx.ModelProto
    places: Mapping[str, Place]
    decoders: Mapping[str, Quantizer]
    untranslated: tuple[str, ...]
    grids: Mapping[str, StoredCodes]
    weights: Mapping[int, Float32]
    notices: tuple[str, ...]


def translate(model: "openvino.Model", dropped: Dropped | None = None) -> Translation:
    """Write a model in ONNX, with the Relu and Clip for which a FakeQuantize stands, by the tensor that this writes.

    Raises:
        ValueError: It contradicts itself.
    """
    return _Translator(model, dropped or {}).run()


@dataclass
class _Translator:
    """An ONNX model in the making."""

    source: "openvino.Model"
    dropped: Dropped
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)
    values: list[onnx.ValueInfoProto] = field(default_factory=list)
    places: dict[str, Place] = field(default_factory=dict)
    decoders: dict[str, Quantizer] = field(default_factory=dict)
    untranslated: list[str] = field(default_factory=list)
    grids: dict[str, StoredCodes] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    _taken: set[str] = field(default_factory=set)
    _own: set[str] = field(default_factory=set)
    _names: dict[tuple[str, int], str] = field(default_factory=dict)
    _held: dict[str, Held] = field(default_factory=dict)
    _stored: dict[str, str] = field(default_factory=dict)
    #: Constants that an operator reads which is no part of them.
    _read: set[str] = field(default_factory=set)
    #: Operators whose bias follows, by the Add that has it.
    _waiting: dict[str, "openvino.Node"] = field(default_factory=dict)
    #: FakeQuantize of which the last operator behind them makes values of their codes, by that, and operators between.
    _coded: dict[str, tuple["openvino.Node", FakeGrid]] = field(default_factory=dict)
    _between: set[str] = field(default_factory=set)

    def run(self) -> Translation:
        operators = self.source.get_ordered_ops()
        self._taken = {op.get_friendly_name() for op in operators}
        for number, op in enumerate(operators):
            kind = op.get_type_name()
            self._name_outputs(op, number)
            if kind in ("Parameter", "Result") or (kind == "Constant" and self._hold_constant(op)):
                continue
            self._operator(op)
        parameters = self.source.get_parameters()
        inputs = [value_info(self._names[each.get_name(), 0], each.output(0), batch="N") for each in parameters]
        outputs = [self._output(result) for result in self.source.get_results()]
        return self._finish(inputs, outputs)

    def _finish(self, inputs: list[onnx.ValueInfoProto], outputs: list[onnx.ValueInfoProto]) -> Translation:
        ends = {value.name for value in (*inputs, *outputs)}
        known = list({value.name: value for value in self.values if value.name not in ends}.values())
        graph = helper.make_graph(self.nodes, "main", inputs, outputs, self.initializers, value_info=known)
        domains = [("", OPSET), *((name, 1) for name in sorted({node.domain for node in self.nodes} - {""}))]
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid(*each) for each in domains],
            ir_version=_IR_VERSION,
            producer_name=TRANSLATED,
        )
        return Translation(
            model,
            self.places,
            self.decoders,
            tuple(self.untranslated),
            self.grids,
            self._weights(),
            tuple(self.notices),
        )

    def _weights(self) -> dict[int, Float32]:
        """Real values of what is read of constants with a grid, by the place of its operator."""
        found = {}
        for number, op in enumerate(self.source.get_ordered_ops()):
            held = self._held.get(op.get_name())
            if held is not None and held.grid is not None and op.get_name() in self._read:
                found[number] = np.asarray(held.values, np.float32)
        return found

    # Tensors

    def _name_outputs(self, op: "openvino.Node", number: int) -> None:
        base = op.get_friendly_name()
        for k in range(op.get_output_size()):
            name = base if k == 0 and base not in self._own else self.fresh(f"{base}.{k}" if k else base)
            self._own.add(name)
            self._names[op.get_name(), k] = name
            if op.get_type_name() not in ("Constant", "Result"):
                self.places[name] = Place(number, k)

    def fresh(self, base: str) -> str:
        """A name that nothing has yet."""
        return unique_name(base, self._taken)

    def _output(self, result: "openvino.Node") -> onnx.ValueInfoProto:
        source = result.input_value(0)
        name = self.value_of(source)
        inputs = {self._names[p.get_name(), 0] for p in self.source.get_parameters()}
        again = any(name in node.input and node.op_type == "Identity" for node in self.nodes)
        if name in inputs or source.get_node().get_name() in self._held or again:
            target = self.fresh(f"{name}:output")
            self.nodes.append(helper.make_node("Identity", [name], [target], name=target))
            node = source.get_node()
            place = self.places.get(self._names[node.get_name(), source.get_index()])
            if place is not None:
                self.places[target] = place
            name = target
        return value_info(name, source)

    def held_of(self, source: "openvino.Output") -> Held | None:
        """The constant that a tensor is; None for one that is computed."""
        found = self._held.get(source.get_node().get_name())
        if found is not None:
            self._read.add(source.get_node().get_name())
        return found

    def value_of(self, source: "openvino.Output") -> str:
        """Name of a tensor, which is written first where it is a constant."""
        key = source.get_node().get_name()
        held = self._held.get(key)
        if held is None:
            return self._names[key, source.get_index()]
        if key not in self._stored:
            self._stored[key] = self.store(held)
        return self._stored[key]

    def store(self, held: Held) -> str:
        """Write a constant, as codes where it has a grid; returns the name of its real values."""
        quantizer = held.quantizer
        name = held.name if not any(t.name == held.name for t in self.initializers) else self.fresh(held.name)
        if quantizer is None or not _is_expressed(quantizer):
            # What reads doubles takes nothing else.
            self._initializer(name, held.data if held.data.dtype == np.float64 else held.values)
            if quantizer is not None:
                self.grids[name] = StoredCodes(held.data, quantizer)
            elif held.grid is not None:
                self.notices.append(f"the grid of the weights {held.name} has another form than channels or blocks")
            return name
        kind = _type_of(quantizer)
        self._initializer(name, held.data, kind)
        target = self.fresh(f"{name}:values")
        self._add_grid("DequantizeLinear", name, target, quantizer)
        return target

    def initializer(self, base: str, values: Array) -> str:
        """Name of a new constant."""
        name = self.fresh(f"{base}:constant")
        self._initializer(name, values)
        return name

    def _initializer(self, name: str, values: Array, kind: int | None = None) -> None:
        if kind is not None:
            values = np.asarray(values).astype(helper.tensor_dtype_to_np_dtype(kind))
        self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(values).reshape(values.shape), name))

    def _add_grid(self, kind: str, source: str, target: str, quantizer: Quantizer) -> None:
        """Add a quantizer, or what reads its codes."""
        scale, zero = self.fresh(f"{target}:scale"), self.fresh(f"{target}:zero_point")
        self._initializer(scale, np.asarray(quantizer.scale, np.float32))
        self._initializer(zero, np.asarray(quantizer.zero_point), _type_of(quantizer))
        node = helper.make_node(
            kind, [source, scale, zero], [target], target, domain="" if quantizer.bits == 8 else _MICROSOFT
        )
        if quantizer.axis is not None:
            node.attribute.append(helper.make_attribute("axis", quantizer.axis))
        self.nodes.append(node)

    # Constants

    def _hold_constant(self, op: "openvino.Node") -> bool:
        """Keep a constant; False for one of a type that is not read."""
        kind, shape = op.get_element_type().get_type_name(), list(op.get_output_shape(0))
        bits, signed = _CODES.get(kind, (None, True))
        if kind in REAL - {"f64"}:
            data = np.asarray(op.get_data(dtype=np.float32))
        elif bits == 4:
            data = unpack(np.asarray(op.get_tensor_view().data).view(np.uint8).ravel(), shape, signed=signed)
        elif kind in TYPES and kind != "string":
            data = np.asarray(op.get_data())
        else:
            return False
        self._held[op.get_name()] = Held(op.get_friendly_name(), np.asarray(data).reshape(shape), bits, signed)
        return True

    def _is_folded(self, op: "openvino.Node") -> bool:
        """Carry a constant through what makes weights of codes, or moves them."""
        sources = [self._held.get(op.input_value(k).get_node().get_name()) for k in range(op.get_input_size())]
        given = [held for held in sources if held is not None]
        if not sources or len(given) < len(sources):
            return False
        found = fold(op, given)
        if found is None:
            return False
        self._held[op.get_name()] = found
        return True

    def _hold_ahead(self, source: "openvino.Output", steps: int = MOST_STEPS) -> Held | None:
        """A constant, or what a few operators make of constants, wherever it stands in the order of execution."""
        node = source.get_node()
        if node.get_name() not in self._held:
            if node.get_type_name() == "Constant":
                self._hold_constant(node)
            elif steps and node.get_type_name() in FOLDED:
                before = (self._hold_ahead(node.input_value(k), steps - 1) for k in range(node.get_input_size()))
                _ = all(held is not None for held in before) and self._is_folded(node)
        return self._held.get(node.get_name())

    # Operators

    def _operator(self, op: "openvino.Node") -> None:
        if op.get_name() in self._between:
            del self.places[self._names[op.get_name(), 0]]
            return
        if op.get_name() in self._coded:
            self._quantize(*self._coded[op.get_name()], written_by=op)
            return
        if op.get_type_name() == "FakeQuantize":
            if self._is_quantized(op):
                return
        elif self._is_folded(op) or self._waits_for_bias(op) or self._has_bias(op):
            return
        translate_it = translator_of(op)
        site = Site(self, op)
        try:
            if translate_it is None or _is_in_integers(op):
                raise Untranslatable
            translate_it(site)
        except (Untranslatable, ValueError, LookupError, TypeError, ArithmeticError):
            # Attributes and shapes that contradict each other or the documentation of the operator.
            self._add_foreign(op)
            return
        self._add_site(site)

    def _add_site(self, site: "Site") -> None:
        self.nodes += site.nodes
        self.initializers += site.initializers
        op = site.written_by
        self.values += [value_info(self._names[op.get_name(), k], op.output(k)) for k in range(op.get_output_size())]

    def _add_foreign(self, op: "openvino.Node") -> None:
        kind = op.get_type_name()
        self.untranslated.append(kind)
        inputs = [self.value_of(op.input_value(k)) for k in range(op.get_input_size())]
        outputs = [self._names[op.get_name(), k] for k in range(op.get_output_size())]
        self.nodes.append(helper.make_node(kind, inputs, outputs, name=op.get_friendly_name(), domain=UNTRANSLATED))
        self.values += [value_info(name, op.output(k)) for k, name in enumerate(outputs)]

    def _waits_for_bias(self, op: "openvino.Node") -> bool:
        """Leave an operator to the Add behind it, where that is its bias."""
        if biased_translator_of(op) is None:
            return False
        readers = list(op.output(0).get_target_inputs())
        if len(readers) != 1 or (add := readers[0].get_node()).get_type_name() != "Add":
            return False
        other = add.input_value(1 - readers[0].get_index())
        if not fits_as_bias(other, op) or self._hold_ahead(other) is None:
            return False
        self._waiting[add.get_name()] = op
        del self.places[self._names[op.get_name(), 0]]
        return True

    def _has_bias(self, op: "openvino.Node") -> bool:
        """Write the operator that waited for this Add."""
        waiting = self._waiting.get(op.get_name())
        if waiting is None:
            return False
        held = next((h for k in (0, 1) if (h := self.held_of(op.input_value(k))) is not None), None)
        site, translate_it = Site(self, waiting, written_by=op), biased_translator_of(waiting)
        try:
            if held is None or translate_it is None:
                raise Untranslatable
            translate_it(site, held)
        except (Untranslatable, ValueError, LookupError, TypeError, ArithmeticError):
            self._add_foreign(waiting)
            return False
        self._add_site(site)
        return True

    def _is_quantized(self, op: "openvino.Node") -> bool:
        """Write a FakeQuantize as codes and what they stand for; False where no codes express it."""
        ranges = [self.held_of(op.input_value(k)) for k in range(1, 5)]
        rank = op.input_value(0).get_partial_shape().rank
        name = op.get_friendly_name()
        if None in ranges or rank.is_dynamic:
            self.notices.append(f"the ranges of {name} are computed at run time: its grid is not known")
            return False
        own = Ranges(*(np.asarray(held.values, np.float64) for held in ranges if held is not None))
        levels = int(op.get_attributes()["levels"])
        source = self.held_of(op.input_value(0))
        chain = code_chain(op, levels, own, self._hold_ahead) if source is None else None
        grid = grid_of(levels, own if chain is None else chain.ranges, rank.get_length())
        if grid is None:
            self.notices.append(f"{name} rounds to {levels} levels that no codes of 2, 4, 8 or 16 bits express")
            return False
        if grid.off > OFF_GRID:
            self.notices.append(f"0 lies {grid.off:.2g} of a step off the grid of {name}: it was moved onto it")
        if source is not None:
            self._held[op.get_name()] = round_weights(source, grid)
        elif chain is not None:
            self._coded[chain.last.get_name()] = op, grid
            self._between.update(each.get_name() for each in chain.between)
            del self.places[self._names[op.get_name(), 0]]
        else:
            self._quantize(op, grid, op)
        return True

    def _quantize(self, op: "openvino.Node", grid: FakeGrid, written_by: "openvino.Node") -> None:
        """Write codes, and what they stand for, which is called after the last operator that makes it."""
        target = self._names[written_by.get_name(), 0]
        codes = self.fresh(f"{target}:codes")
        source = self.value_of(op.input_value(0))
        for bounds in self.dropped.get(target, ()):
            name = self.fresh(f"{target}:{bounds.op_type.lower()}")
            ends = [self.initializer(name, np.asarray(end, np.float32)) for end in bounds.ends]
            self.nodes.append(helper.make_node(bounds.op_type, [source, *ends], [name], name))
            self.values.append(value_info(name, op.output(0)))
            source = name
        self._add_grid("QuantizeLinear", source, codes, grid.encoder)
        self._add_grid("DequantizeLinear", codes, target, grid.decoder)
        self.places[codes] = self.places[target]
        self.decoders[codes] = grid.decoder
        self.values.append(value_info(target, written_by.output(0)))


class Site:
    """An operator in the model that is being translated; see ``site.Site``. Its nodes are kept until all are known."""

    def __init__(self, translator: _Translator, op: "openvino.Node", written_by: "openvino.Node | None" = None) -> None:
        """``written_by`` is what its result is called after: the Add behind it where that is its bias."""
        self._translator, self._op, self.written_by = translator, op, written_by or op
        self.kind: str = op.get_type_name()
        self.attributes: Mapping[str, object] = op.get_attributes()
        self.outputs: int = op.get_output_size()
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []

    def has(self, place: int) -> bool:
        return bool(place < self._op.get_input_size())

    def _source(self, place: int) -> "openvino.Output":
        if not self.has(place):
            raise Untranslatable
        return self._op.input_value(place)

    def value(self, place: int) -> str:
        return self._translator.value_of(self._source(place))

    def held(self, place: int) -> Held | None:
        return self._translator.held_of(self._source(place))

    def store(self, held: Held) -> str:
        return self._translator.store(held)

    def constant(self, values: object, kind: type = np.int64) -> str:
        name = self._translator.fresh(f"{self._op.get_friendly_name()}:constant")
        self.initializers.append(numpy_helper.from_array(np.asarray(values, kind), name))
        return name

    def shape(self, place: int) -> Shape | None:
        return shape_of(self._source(place))

    def result(self, place: int) -> Shape | None:
        return shape_of(self._op.output(place))

    def is_float(self, place: int) -> bool:
        return self._source(place).get_element_type().get_type_name() in REAL

    def onnx_type(self, place: int) -> int:
        kind = self._op.get_output_element_type(place).get_type_name()
        if kind not in TYPES:
            raise Untranslatable
        return int(TYPES[kind])

    def step(self, kind: str, inputs: Sequence[str], **attributes: Value) -> str:
        name = self._translator.fresh(f"{self._op.get_friendly_name()}:{kind.lower()}")
        self._add(kind, inputs, [name], name, attributes)
        return name

    def finish(self, kind: str, inputs: Sequence[str], **attributes: Value) -> None:
        names, key = self._translator._names, self.written_by.get_name()
        outputs = [names[key, k] for k in range(self.outputs)]
        if kind == "MaxPool":
            outputs = outputs[:1]
        self._add(kind, inputs, outputs, self._op.get_friendly_name(), attributes)

    def _add(
        self, kind: str, inputs: Sequence[str], outputs: Sequence[str], name: str, attributes: Mapping[str, Value]
    ) -> None:
        node = helper.make_node(kind, list(inputs), list(outputs), name=name)
        node.attribute.extend(helper.make_attribute(key, value) for key, value in sorted(attributes.items()))
        self.nodes.append(node)


def _is_in_integers(op: "openvino.Node") -> bool:
    """It writes codes that nothing dequantizes here, such as those of an IR that was lowered already."""
    return op.get_type_name() != "Convert" and any(
        op.get_output_element_type(k).get_type_name() in ("i8", "u8", "i4", "u4") for k in range(op.get_output_size())
    )


def _is_expressed(quantizer: Quantizer) -> bool:
    """ONNX's quantizers have this grid."""
    fits = ((quantizer.zero_point >= quantizer.qmin) & (quantizer.zero_point <= quantizer.qmax)).all()
    return not quantizer.block_size and quantizer.bits in (4, 8, 16) and bool(fits)


def _type_of(quantizer: Quantizer) -> int:
    return int(TensorProto.DataType.Value(f"{'' if quantizer.signed else 'U'}INT{quantizer.bits}"))
