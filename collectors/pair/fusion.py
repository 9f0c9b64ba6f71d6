"""Activation functions behind layers with weights: one step of rounding with them, or two."""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from quantmedic.collectors.pair.graph import Graph, Operator
from quantmedic.collectors.pair.originals import weight_of
from quantmedic.collectors.pair.tensor_pairs import PairedGraphs
from quantmedic.engine.case.facts import FusionFacts
from quantmedic.engine.operator_types import FUSED_FUNCTIONS

_WEIGHTED = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul"})
#: What may stand between a layer and its activation, and is folded into the layer.
_FOLDED = frozenset({"BatchNormalization", "Add"})


class _Place(NamedTuple):
    """A layer of the quantized model whose twin has an activation behind it; ``readers`` is what else reads it."""

    layer: Operator
    activation: str
    split: bool
    readers: tuple[str, ...]


def fusions_of(models: PairedGraphs) -> dict[int, FusionFacts]:
    """Facts of the layers with an activation function behind them, by the index of the quantized operator."""
    places = list(_find_places(models))
    counts = Counter((place.layer.op_type, place.activation, place.split) for place in places)
    found = {}
    for layer, activation, split, readers in places:
        joined, apart = (counts[layer.op_type, activation, key] for key in (False, True))
        found[layer.index] = FusionFacts(
            activation=activation,
            split=split,
            joined_share=joined / (joined + apart),
            alike=joined + apart,
            also_read_by=", ".join(readers) or "nothing else",
            other_readers=len(readers),
        )
    return found


def _find_places(models: PairedGraphs) -> Iterator[_Place]:
    """Layers whose result is rounded before or behind the activation; those that stay in float are left out."""
    graph, float_graph = models.quantized, models.float_graph
    layers = {twin.index: graph.operators[index] for index, twin in models.match.operators.items()}
    seen: set[int] = set()
    for function in float_graph.operators:
        if function.op_type not in FUSED_FUNCTIONS or not function.inputs:
            continue
        twin = _layer_before(function.inputs[0], float_graph)
        layer = layers.get(twin.index) if twin is not None else None
        if layer is None or layer.op_type not in _WEIGHTED or layer.index in seen or not layer.outputs:
            continue
        tensor = _end_of(layer, graph)
        own = next((op for op in graph.consumers.get(tensor, []) if op.op_type == function.op_type), None)
        ahead = _is_rounded(tensor, graph)
        if (own is None and not ahead) or (own is not None and not _is_rounded(own.outputs[0], graph)):
            continue
        seen.add(layer.index)
        readers = tuple(_other_readers(tensor, own, models)) if own is not None else ()
        yield _Place(layer, function.op_type, own is not None and ahead, readers)


def _layer_before(tensor: str, graph: Graph) -> Operator | None:
    """The layer with weights that writes a tensor, by way of what is folded into it."""
    op = graph.producers.get(tensor)
    while op is not None and op.op_type in _FOLDED and op.inputs and _adds_constants(op, graph):
        op = graph.producers.get(next(name for name in op.inputs if name not in graph.constants))
    return op if op is not None and op.op_type in _WEIGHTED and weight_of(op, graph) is not None else None


def _end_of(layer: Operator, graph: Graph) -> str:
    """The tensor in which a layer ends, behind what is folded into it."""
    tensor = layer.outputs[0]
    while True:
        readers = graph.consumers.get(tensor, [])
        if len(readers) != 1 or readers[0].op_type not in _FOLDED or not _adds_constants(readers[0], graph):
            return tensor
        tensor = readers[0].outputs[0]


def _adds_constants(op: Operator, graph: Graph) -> bool:
    return sum(name not in graph.constants for name in op.inputs) == 1


def _is_rounded(tensor: str, graph: Graph) -> bool:
    """The tensor lies on a grid that is stored."""
    taps = graph.quantizers.get(tensor, [])
    return any(tap.quantizer is not None and not tap.quantizer.dynamic for tap in taps)


def _other_readers(tensor: str, function: Operator, models: PairedGraphs) -> Iterator[str]:
    """Who reads a tensor besides the activation, and besides the product that makes a Swish of both."""
    graph, twins = models.quantized, models.match.operators
    for op in graph.consumers.get(tensor, []):
        is_swish = op.op_type == "Mul" and function.outputs[0] in op.inputs
        if op is not function and not is_swish and op.op_type != "Shape":
            yield twins.get(op.index, op).name
    if tensor in graph.output_roots:
        yield "an output of the network"
