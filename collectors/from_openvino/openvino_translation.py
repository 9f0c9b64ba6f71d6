"""An OpenVINO model written as an ONNX model, so that whatever reads, simulates or changes ONNX models works on it.

Every operator becomes one node, or a few of which the last one bears its name, and the tensor that it writes is called
after it. A FakeQuantize F becomes the codes ``F:codes`` and what they stand for, ``F``. An Add that gives a convolution
its bias becomes part of that, and weights that are stored as codes are dequantized as ONNX does it. A FakeQuantize that
stands for a Relu or Clip too becomes both (``dropped_bounds.py``).
"""

from typing import TYPE_CHECKING

import numpy as np
import onnx
from numpy.typing import NDArray

from quantmedic.collectors.from_onnx.onnx_session import TRANSLATED
from quantmedic.collectors.from_openvino.dropped_bounds import Dropped
from quantmedic.collectors.from_openvino.fake_quantize import (
    OFF_GRID,
    FakeGrid,
    Ranges,
    code_chain,
    fake_grid_of,
    round_weights,
)
from quantmedic.collectors.from_openvino.openvino_constants import value_info
from quantmedic.collectors.from_openvino.openvino_operators import biased_translator_of, fits_as_bias, translator_of
from quantmedic.collectors.from_openvino.openvino_site import Site, TensorWriter, type_of
from quantmedic.collectors.from_translation.onnx_writer import UNTRANSLATABLE, Untranslatable, make_node
from quantmedic.collectors.pair.quantizer import Quantizer

if TYPE_CHECKING:
    import openvino

Array = NDArray[np.generic]
Float32 = NDArray[np.float32]
#: Domain of operators that have no counterpart: they are read and measured, but cannot be simulated or changed.
UNTRANSLATED = "openvino.untranslated"
#: The first opset with Gelu. Below 21 quantizers have no ``output_dtype``, which onnxruntime leaves as it was where it
#: makes uint8 of int8 codes.
OPSET = 20


class Translation(TensorWriter):
    """An OpenVINO model in ONNX, written operator by operator.

    Attributes:
        model: The ONNX model.
        decoders: Grids on which OpenVINO writes codes, by the tensor of codes.
        untranslated: Operators without a counterpart, by their own type.
    """

    def __init__(self, source: "openvino.Model", dropped: Dropped) -> None:
        """Write a model; ``dropped`` are Relu and Clip for which a FakeQuantize stands, by the tensor that this writes.

        Raises:
            ValueError: It contradicts itself.
        """
        super().__init__(source)
        self._dropped = dropped
        self.decoders: dict[str, Quantizer] = {}
        self.untranslated: list[str] = []
        #: Operators whose bias follows, by the Add that has it.
        self._waiting: dict[str, openvino.Node] = {}
        #: FakeQuantize of which the last operator behind them makes values of their codes, by that, and operators
        #: between.
        self._coded: dict[str, tuple[openvino.Node, FakeGrid]] = {}
        self._between: set[str] = set()
        self.model = self._translate_all()

    def _translate_all(self) -> onnx.ModelProto:
        for number, op in enumerate(self.source.get_ordered_ops()):
            kind = op.get_type_name()
            self.name_outputs(op, number)
            if kind in ("Parameter", "Result") or (kind == "Constant" and self.hold_constant(op)):
                continue
            self._operator(op)
        parameters = self.source.get_parameters()
        inputs = [value_info(self.names[each.get_name(), 0], each.output(0), batch="N") for each in parameters]
        outputs = [self._output(result) for result in self.source.get_results()]
        return self.write(inputs, outputs, OPSET, TRANSLATED)

    def _output(self, result: "openvino.Node") -> onnx.ValueInfoProto:
        source = result.input_value(0)
        name = self.value_of(source)
        inputs = {self.names[p.get_name(), 0] for p in self.source.get_parameters()}
        again = any(name in node.input and node.op_type == "Identity" for node in self.nodes)
        if name in inputs or source.get_node().get_name() in self.held or again:
            target = self.fresh(f"{name}:output")
            self.nodes.append(make_node("Identity", [name], [target], target))
            node = source.get_node()
            place = self.places.get(self.names[node.get_name(), source.get_index()])
            if place is not None:
                self.places[target] = place
            name = target
        return value_info(name, source)

    def _operator(self, op: "openvino.Node") -> None:
        if op.get_name() in self._between:
            del self.places[self.names[op.get_name(), 0]]
            return
        if op.get_name() in self._coded:
            self._quantize(*self._coded[op.get_name()], written_by=op)
            return
        if op.get_type_name() == "FakeQuantize":
            if self._is_quantized(op):
                return
        elif self.is_folded(op) or self._waits_for_bias(op) or self._has_bias(op):
            return
        translate_it = translator_of(op)
        site = Site(self, op)
        try:
            if translate_it is None or _is_in_integers(op):
                raise Untranslatable
            translate_it(site)
        except UNTRANSLATABLE:
            self._add_foreign(op)
            return
        self._add_site(site)

    def _add_site(self, site: "Site") -> None:
        self.nodes += site.nodes
        self.initializers += site.initializers
        op = site.written_by
        self.values += [value_info(self.names[op.get_name(), k], op.output(k)) for k in range(op.get_output_size())]

    def _add_foreign(self, op: "openvino.Node") -> None:
        kind = op.get_type_name()
        self.untranslated.append(kind)
        inputs = [self.value_of(op.input_value(k)) for k in range(op.get_input_size())]
        outputs = [self.names[op.get_name(), k] for k in range(op.get_output_size())]
        self.nodes.append(make_node(kind, inputs, outputs, op.get_friendly_name(), UNTRANSLATED))
        self.values += [value_info(name, op.output(k)) for k, name in enumerate(outputs)]

    def _waits_for_bias(self, op: "openvino.Node") -> bool:
        """Leave an operator to the Add behind it, where that is its bias."""
        if biased_translator_of(op) is None:
            return False
        readers = list(op.output(0).get_target_inputs())
        if len(readers) != 1 or (add := readers[0].get_node()).get_type_name() != "Add":
            return False
        other = add.input_value(1 - readers[0].get_index())
        if not fits_as_bias(other, op) or self.hold_ahead(other) is None:
            return False
        self._waiting[add.get_name()] = op
        del self.places[self.names[op.get_name(), 0]]
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
        except UNTRANSLATABLE:
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
        chain = code_chain(op, levels, own, self.hold_ahead) if source is None else None
        grid = fake_grid_of(levels, own if chain is None else chain.ranges, rank.get_length())
        if grid is None:
            self.notices.append(f"{name} rounds to {levels} levels that no codes of 2, 4, 8 or 16 bits express")
            return False
        if grid.off > OFF_GRID:
            self.notices.append(f"0 lies {grid.off:.2g} of a step off the grid of {name}: it was moved onto it")
        if source is not None:
            self.held[op.get_name()] = round_weights(source, grid)
        elif chain is not None:
            self._coded[chain.last.get_name()] = op, grid
            self._between.update(each.get_name() for each in chain.between)
            del self.places[self.names[op.get_name(), 0]]
        else:
            self._quantize(op, grid, op)
        return True

    def _quantize(self, op: "openvino.Node", grid: FakeGrid, written_by: "openvino.Node") -> None:
        """Write codes, and what they stand for, which is called after the last operator that makes it."""
        target = self.names[written_by.get_name(), 0]
        codes = self.fresh(f"{target}:codes")
        source = self.value_of(op.input_value(0))
        for bounds in self._dropped.get(target, ()):
            name = self.fresh(f"{target}:{bounds.op_type.lower()}")
            ends = [self.initializer(f"{name}:constant", np.asarray(end, np.float32)) for end in bounds.ends]
            self.nodes.append(make_node(bounds.op_type, [source, *ends], [name], name))
            self.values.append(value_info(name, op.output(0)))
            source = name
        self.add_grid("QuantizeLinear", source, codes, codes, grid.encoder, type_of(grid.encoder))
        self.add_grid("DequantizeLinear", codes, target, target, grid.decoder, type_of(grid.decoder))
        self.places[codes] = self.places[target]
        self.decoders[codes] = grid.decoder
        self.values.append(value_info(target, written_by.output(0)))


def _is_in_integers(op: "openvino.Node") -> bool:
    """It writes codes that nothing dequantizes here, such as those of an IR that was lowered already."""
    return op.get_type_name() != "Convert" and any(
        op.get_output_element_type(k).get_type_name() in ("i8", "u8", "i4", "u4") for k in range(op.get_output_size())
    )
