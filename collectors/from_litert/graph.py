"""The graph of a LiteRT model, read from its translation to ONNX."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import numpy as np

from quantmedic.collectors.from_litert.file import LiteModel
from quantmedic.collectors.from_litert.functions import DOMAIN
from quantmedic.collectors.from_litert.translation import translate
from quantmedic.collectors.from_onnx.graph import OnnxGraph
from quantmedic.collectors.from_onnx.parse import parse
from quantmedic.collectors.pair.graph import Operator, Tap
from quantmedic.collectors.pair.quantizer import Quantizer
from quantmedic.engine.errors import ModelError


@dataclass(kw_only=True)
class LiteRTGraph(OnnxGraph):
    """The graph of a LiteRT model, read from its translation.

    Attributes:
        file: What the file holds.
        places: The interpreter's number of every tensor that it has.
        untranslated: Operators without a counterpart.
    """

    file: LiteModel
    places: Mapping[str, int]
    untranslated: tuple[str, ...]

    @property
    def coded_inputs(self) -> set[str]:
        return {name for name in self.inputs if name not in self.places}

    @property
    def can_run(self) -> bool:
        """Its ONNX model can be run: remedies can be simulated and tried."""
        return not self.untranslated


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
    parsed = parse(model.path, translation.model)
    own = {each.name: getattr(parsed, each.name) for each in fields(OnnxGraph)}
    graph = LiteRTGraph(file=model, places=translation.places, untranslated=translation.untranslated, **own)
    for op in graph.operators:
        if op.node.domain == DOMAIN:
            op.channels_last, op.bounds = True, _bounds(op)
    graph.notices += model.notices
    if translation.untranslated:
        kinds = ", ".join(dict.fromkeys(translation.untranslated))
        graph.notices.append(f"operators without a counterpart in ONNX are measured, not simulated: {kinds}")
    for name, stored in translation.grids.items():
        graph.constants[name] = replace(graph.constants[name], quantizer=stored.quantizer, codes=stored.codes)
    for name in translation.hybrid:
        graph.dynamic_nodes += 1
        root = graph.root(name)
        if root not in graph.constants:
            graph.quantizers.setdefault(root, [Tap("", replace(Quantizer.at_run_time(), signed=True))])
    return graph


def _bounds(op: Operator) -> tuple[float, float] | None:
    """Ends of the activation that a LiteRT operator has built in."""
    if {"low", "high"}.isdisjoint(op.attributes):
        return None
    return op.attributes.number("low", -np.inf), op.attributes.number("high", np.inf)
