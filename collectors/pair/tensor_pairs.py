"""Tensors that can be read in both of two matched models."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from quantmedic.collectors.pair.graph import Graph, Operator, Shape, Tap
from quantmedic.collectors.pair.match import Match

#: Activations that runtimes fuse into the kernel before them.
_ACTIVATIONS = frozenset({"Relu", "Clip", "LeakyRelu", "PRelu", "HardSigmoid", "HardSwish"})


@dataclass(frozen=True)
class Pair:
    """One measured tensor.

    Attributes:
        root: Name of the tensor in the quantized model, without its quantized copies.
        twin: Name of the tensor in the float model.
        tap: Where the quantized model shows it.
    """

    root: str
    twin: str
    tap: Tap


class PairedGraphs(Protocol):
    """Two matched graphs with the shapes of their tensors: what is known of both models without running them."""

    @property
    def float_graph(self) -> Graph:
        """The float model."""

    @property
    def quantized(self) -> Graph:
        """The quantized model."""

    @property
    def match(self) -> Match:
        """Which tensor and which operator of the quantized model is which of the float model."""

    @property
    def shapes(self) -> Mapping[str, Shape]:
        """Shapes in the float model that hold for every batch; None for an axis that depends on the data."""


def pairs_of(float_graph: Graph, quantized: Graph, matched: Match) -> list[Pair]:
    """Every tensor that can be read in both models: by its codes, or, outside of quantizers, by its values."""
    pairs = []
    order = [*quantized.inputs, *(name for op in quantized.operators for name in op.outputs)]
    for root in order:
        twin = matched.tensors.get(root)
        if twin is None or observable_tensor(root, quantized) != root:
            continue
        taps = _final_taps(root, quantized)
        read = [t for t in taps if t.tensor and (t.quantizer is not None or t.small_floats is not None)]
        codes = next((t for t in read if t.decoded or (t.quantizer is not None and t.quantizer.bits >= 8)), None)
        if codes is None:
            codes = _decoded_tap(taps, quantized)
        if codes is not None:
            pairs.append(Pair(root, twin, codes))
        elif not any(t.tensor for t in taps):
            dynamic = next((t.quantizer for t in taps), None)
            pairs.append(Pair(root, twin, Tap(root, dynamic)))
    return pairs


def _final_taps(root: str, graph: Graph) -> list[Tap]:
    """Where the codes of a tensor can be read; of several quantizers in a row only the last, which all else reads.

    Where they have other bits, a layer of other precision begins or ends there, and the first one is that of the layer.
    """
    taps = graph.quantizers.get(root, [])
    if len(taps) < 2 or len({tap.quantizer.bits for tap in taps if tap.quantizer is not None}) > 1:
        return taps
    names = [name for reader in graph.consumers.get(root, []) for name in reader.node.inputs if name]
    names += graph.outputs
    seen = {graph.encoded.get(name, name) for name in names if graph.root(name) == root}
    last = [tap for tap in taps if seen == {tap.tensor}]
    return last or taps


def _decoded_tap(taps: Sequence[Tap], graph: Graph) -> Tap | None:
    """Codes of fewer than 8 bits, which no array holds, as the values that they stand for."""
    few = (tap for tap in taps if tap.quantizer is not None and tap.tensor in graph.decoded)
    return next((Tap(graph.decoded[tap.tensor], tap.quantizer, decoded=True) for tap in few), None)


def observable_tensor(root: str, graph: Graph) -> str:
    """The tensor that exists at run time.

    A product inside an integer kernel is only seen behind its activation: exposing it would take the kernel apart.
    """
    readers = graph.consumers.get(root, [])
    producer = graph.producers.get(root)
    if producer is None or len(readers) != 1 or not _is_fusible(readers[0]) or root in graph.quantizers:
        return root
    fused = any(name in graph.quantizers for name in producer.inputs)
    activated = readers[0].outputs[0]
    return activated if fused and activated in graph.quantizers else root


def _is_fusible(op: Operator) -> bool:
    return op.op_type in _ACTIVATIONS
