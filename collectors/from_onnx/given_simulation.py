"""The simulated network where some tensors are given: what it makes of the values that the deployed model computed."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_onnx.onnx_graph import PairedOnnxGraphs
from quantmedic.collectors.from_onnx.onnx_session import make_session, run
from quantmedic.collectors.from_onnx.scalars import fill_rows, join_scalars
from quantmedic.collectors.from_onnx.segments import in_order, make_constant
from quantmedic.collectors.from_onnx.simulated import build_network, given_input, quantized_name
from quantmedic.collectors.measure.models import Given, GivenSimulation
from quantmedic.collectors.pair.feed import feed_of
from quantmedic.engine.case.records import Case
from quantmedic.engine.formulas.change import Change

Float32 = NDArray[np.float32]


def given_simulation(models: PairedOnnxGraphs, case: Case, tensors: Sequence[int], threads: int) -> GivenSimulation:
    """The float network with the deployed quantizers, given some of its tensors.

    Raises:
        ModelError: It cannot be simulated: its opset is too old, or onnxruntime refuses the changed graph.
    """
    graph = models.float_graph
    built = build_network(models, case, tensors)
    outputs = built.outputs
    rows = join_scalars(built.model)
    steps = in_order(built.model.graph)
    del built.model.graph.node[:]
    built.model.graph.node.extend(step.node for step in steps)
    # Only the given tensors change from run to run; as constants the stored weights are held once.
    make_constant(built.model.graph, fill_rows(rows, built.feed(Change())))
    quantized = {quantizer.tensor for quantizer in built.quantizers}
    exact = {i: case.record.tensors[i].float_name for i in tensors}
    rounded = {i: quantized_name(i) if i in quantized else name for i, name in exact.items()}
    owners = {name: i for names in (exact, rounded) for i, name in names.items()}
    every = dict.fromkeys((*exact.values(), *rounded.values(), *outputs))
    wanted = [name for name in every if name not in graph.inputs]
    session = make_session(built.model, graph.path, threads, exposed=wanted)

    def simulate(batch: Batch, given: Mapping[int, Float32]) -> Given:
        """What the network makes of a batch and of these tensors."""
        inputs = feed_of(batch, graph)
        known = {**inputs, **{given_input(i): values for i, values in given.items()}}
        feed = {value.name: known[value.name] for value in session.get_inputs()}
        found = {**inputs, **dict(zip(wanted, run(session, wanted, feed, graph.path), strict=True))}

        def output(name: str) -> Float32:
            """An output that is a given tensor is what was given."""
            return given[owners[name]] if name in owners else np.asarray(found[name], np.float32)

        return Given(
            exact={i: np.asarray(found[name], np.float32) for i, name in exact.items()},
            rounded={i: np.asarray(found[name], np.float32) for i, name in rounded.items()},
            outputs=[output(name) for name in outputs],
        )

    return simulate
