"""The float model cut where the quantized one is seen: its operators are fed with what the deployed ones got."""

from collections.abc import Collection, Iterable, Mapping, Sequence

import numpy as np
import onnx
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_onnx.onnx_graph import PairedOnnxGraphs, subgraphs_of
from quantmedic.collectors.from_onnx.onnx_session import added_outputs, make_session, run
from quantmedic.collectors.measure.models import View
from quantmedic.collectors.measure.plan import tap_values
from quantmedic.collectors.pair.feed import feed_of
from quantmedic.collectors.pair.graph import Graph
from quantmedic.collectors.pair.tensor_pairs import Pair

Array = NDArray[np.generic]


class OnnxSteps:
    """Float operators fed with the deployed tensors of a view; see ``FloatSteps``.

    Attributes:
        measured: Numbers of the tensors whose float operator reads nothing but what the view shows.
    """

    def __init__(self, models: PairedOnnxGraphs, view: View, pairs: Iterable[Pair], threads: int) -> None:
        graph = models.float_graph
        self._graph, self._taps = graph, view.taps
        self.measured = measurable(graph, view, {pair.twin for pair in pairs})
        self._twins = {number: view.pairs[number].twin for number in self.measured}
        fed: dict[str, int] = {}
        for number in view.taps:
            twin = view.pairs[number].twin
            if twin not in graph.inputs or view.pairs[number].root in models.quantized.coded_inputs:
                fed.setdefault(twin, number)
        model, read = cut_at(graph.model, list(fed), list(self._twins.values()))
        self._fed = {name: fed[twin] for twin, name in read.items()}
        self._session = make_session(model, graph.path, threads)

    def run_operators(self, batch: Batch, codes: Mapping[int, Array]) -> dict[int, Array]:
        """What each measured float operator makes of the deployed tensors of a batch, by number of its output."""
        if not self.measured:  # without names a session returns all outputs
            return {}
        feed = feed_of(batch, self._graph)
        for name, number in self._fed.items():
            feed[name] = tap_values(self._taps[number], codes[number])
        wanted = [*dict.fromkeys(self._twins.values())]
        found = dict(zip(wanted, run(self._session, wanted, feed, self._graph.path), strict=True))
        return {number: found[twin] for number, twin in self._twins.items()}


def measurable(graph: Graph, view: View, twins: Collection[str]) -> list[int]:
    """Tensors of a view whose float operator reads nothing but tensors of the view, constants and network inputs.

    ``twins`` are all float tensors that have a deployed counterpart: those that the view does not show at the moment
    are unknown, and with them what lies behind.
    """
    seen: dict[str, list[int]] = {}
    for number in view.taps:
        seen.setdefault(view.pairs[number].twin, []).append(number)
    known: dict[str, bool] = {}
    found = []
    for op in graph.operators:
        alone = all(known.get(name, True) for name in op.inputs)
        for name in op.outputs:
            if alone:
                found += seen.get(name, [])
            known[name] = name in seen if name in twins else alone
    return sorted(found)


def cut_at(
    model: onnx.ModelProto, tensors: Sequence[str], exposed: Sequence[str]
) -> tuple[onnx.ModelProto, dict[str, str]]:
    """A copy of a model whose readers of some float tensors read new inputs instead; what writes them stays.

    Args:
        model: The model.
        tensors: Where to cut.
        exposed: Tensors that are outputs too.

    Returns:
        The model, and the name of the input that replaces each tensor that is read at all.
    """
    original, model = model, onnx.ModelProto()
    model.CopyFrom(original)
    names = {tensor: f"quantmedic_step_{i}" for i, tensor in enumerate(tensors)}
    used = rename_inputs(model.graph, names)
    read = {tensor: name for tensor, name in names.items() if name in used}
    for name in read.values():
        model.graph.input.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    model.graph.output.extend(added_outputs(model, exposed))
    return model, read


def rename_inputs(graph: onnx.GraphProto, names: Mapping[str, str]) -> set[str]:
    """Let nodes read other names, also in subgraphs, which read tensors around them by name; the new ones in use."""
    used: set[str] = set()
    for node in graph.node:
        for position, name in enumerate(node.input):
            if name in names:
                node.input[position] = names[name]
                used.add(names[name])
        for inner in subgraphs_of(node):
            used |= rename_inputs(inner, names)
    return used
