"""The graph of a LiteRT model, read from its translation to ONNX."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from quantmedic.collectors.from_litert.file import LiteModel
from quantmedic.collectors.from_litert.functions import DOMAIN
from quantmedic.collectors.from_litert.stored import writable_constants, write_constants
from quantmedic.collectors.from_litert.translation import Held, Stored, translate
from quantmedic.collectors.from_onnx.graph import OnnxGraph
from quantmedic.collectors.from_onnx.parse import parse
from quantmedic.collectors.pair.graph import Operator, Tap
from quantmedic.collectors.pair.quantizer import Quantizer
from quantmedic.engine.errors import ModelError

Array = NDArray[np.generic]


@dataclass(kw_only=True)
class LiteRTGraph(OnnxGraph):
    """The graph of a LiteRT model, read from its translation.

    Attributes:
        file: What the file holds.
        places: The interpreter's number of every tensor that it has.
        untranslated: Operators without a counterpart.
        held: Which constant of the file each initializer holds.
        grids: Grids of constants that ONNX has no types for, by the initializer that holds their real values.
    """

    file: LiteModel
    places: Mapping[str, int]
    untranslated: tuple[str, ...]
    held: Mapping[str, Held]
    grids: Mapping[str, Stored]

    @property
    def coded_inputs(self) -> set[str]:
        return {name for name in self.inputs if name not in self.places}

    @property
    def can_run(self) -> bool:
        """Its ONNX model can be run: remedies can be simulated and tried."""
        return not self.untranslated

    @cached_property
    def _writable(self) -> frozenset[int]:
        return writable_constants(self.file)

    def can_store(self, name: str) -> bool:
        """The constant of this name has a place of its own in the file; nothing new gets one."""
        held = self.held.get(name)
        return held is not None and held.place in self._writable

    def with_model(self, model: onnx.ModelProto) -> "LiteRTGraph":
        """The graph of a copy of the translation in which constants have other values."""
        return _graph_of_parts(model, self.file, self.places, self.untranslated, self.held, self.grids)

    def content_with(self, changed: onnx.ModelProto) -> bytes:
        """The file with the constants of a changed copy of the translation; all else stays as it is.

        Raises:
            ModelError: A constant that was changed has no place of its own in the file.
        """
        before = {tensor.name: tensor for tensor in self.model.graph.initializer}
        values = {}
        for tensor in changed.graph.initializer:
            if tensor.name in before and tensor == before[tensor.name]:
                continue
            held = self.held.get(tensor.name)
            if held is None:
                raise ModelError(
                    f"the constant {tensor.name} has no place in the LiteRT file",
                    where=str(self.path),
                    help="quantize the model again with the remedy",
                )
            values[held.place] = self._numbers(tensor).transpose(np.argsort(held.order))
        return write_constants(self.file, values)

    def _numbers(self, tensor: onnx.TensorProto) -> Array:
        """What the file holds for an initializer: codes where the translation has real values in their place."""
        stored = numpy_helper.to_array(tensor)
        grid = self.grids.get(tensor.name)
        if grid is None:
            return stored.astype(np.int8) if stored.dtype.kind not in "iuf" else stored
        steps, zero = grid.quantizer.steps(stored.shape), grid.quantizer.dequantize(np.zeros(stored.shape, np.int64))
        return np.rint((stored.astype(np.float64) - zero) / steps)


def graph_of(model: LiteModel) -> LiteRTGraph:
    """The graph of a model, with taps where activations are rounded at run time.

    Raises:
        ModelError: The graph is damaged.
    """
    try:
        translation = translate(model)
    except (ValueError, LookupError, TypeError, ArithmeticError) as error:
        raise ModelError(
            "the model is damaged", where=f"{model.path}: {error or type(error).__name__}", help="convert it again"
        ) from error
    graph = _graph_of_parts(
        translation.model, model, translation.places, translation.untranslated, translation.held, translation.grids
    )
    graph.notices += model.notices
    if translation.untranslated:
        kinds = ", ".join(dict.fromkeys(translation.untranslated))
        graph.notices.append(f"operators without a counterpart in ONNX are measured, not simulated: {kinds}")
    for name in translation.hybrid:
        graph.dynamic_nodes += 1
        root = graph.root(name)
        if root not in graph.constants:
            graph.quantizers.setdefault(root, [Tap("", replace(Quantizer.at_run_time(), signed=True))])
    return graph


def parse_translation(path: Path, model: onnx.ModelProto) -> OnnxGraph:
    """A translation, or a changed copy of one, as any ONNX model, with what LiteRT's operators have of their own.

    Raises:
        ModelError: The graph is damaged.
    """
    graph = parse(path, model)
    for op in graph.operators:
        if op.node.domain == DOMAIN:
            op.channels_last, op.bounds = True, _bounds(op)
    return graph


def _graph_of_parts(
    translation: onnx.ModelProto,
    file: LiteModel,
    places: Mapping[str, int],
    untranslated: tuple[str, ...],
    held: Mapping[str, Held],
    grids: Mapping[str, Stored],
) -> LiteRTGraph:
    parsed = parse_translation(file.path, translation)
    own = {each.name: getattr(parsed, each.name) for each in fields(OnnxGraph)}
    graph = LiteRTGraph(file=file, places=places, untranslated=untranslated, held=held, grids=grids, **own)
    for name, stored in grids.items():
        graph.constants[name] = replace(graph.constants[name], quantizer=stored.quantizer, codes=stored.codes)
    return graph


def _bounds(op: Operator) -> tuple[float, float] | None:
    """Ends of the activation that a LiteRT operator has built in."""
    if {"low", "high"}.isdisjoint(op.attributes):
        return None
    return op.attributes.number("low", -np.inf), op.attributes.number("high", np.inf)
