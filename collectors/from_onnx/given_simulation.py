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
from quantmedic.collectors.measure.models import Given
from quantmedic.collectors.pair.feed import feed_of
from quantmedic.engine.case.records import Case
from quantmedic.engine.formulas.change import Change

Float32 = NDArray[np.float32]


class OnnxGivenSimulation:
    """The float network with the deployed quantizers, given some of its tensors; see ``GivenSimulation``."""

    def __init__(self, models: PairedOnnxGraphs, case: Case, tensors: Sequence[int], threads: int) -> None:
        """Build the network.

        Raises:
            ModelError: It cannot be simulated: its opset is too old, or onnxruntime refuses the changed graph.
        """
        self._graph, self._tensors = models.float_graph, tuple(tensors)
        built = build_network(models, case, self._tensors)
        rows = join_scalars(built.model)
        steps = in_order(built.model.graph)
        del built.model.graph.node[:]
        built.model.graph.node.extend(step.node for step in steps)
        # Only the given tensors change from run to run; as constants the stored weights are held once.
        make_constant(built.model.graph, fill_rows(rows, built.feed(Change())))
        quantized = {quantizer.tensor for quantizer in built.quantizers}
        self._exact = {i: case.record.tensors[i].float_name for i in self._tensors}
        self._rounded = {i: quantized_name(i) if i in quantized else name for i, name in self._exact.items()}
        self._outputs = built.outputs
        self._owners = {name: i for names in (self._exact, self._rounded) for i, name in names.items()}
        wanted = [*self._exact.values(), *self._rounded.values(), *self._outputs]
        self._wanted = list(dict.fromkeys(name for name in wanted if name not in self._graph.inputs))
        self._session = make_session(built.model, self._graph.path, threads, exposed=self._wanted)

    def run(self, batch: Batch, given: Mapping[int, Float32]) -> Given:
        """What the network makes of a batch and of these tensors.

        Raises:
            ModelError: The network fails on this batch.
        """
        inputs = feed_of(batch, self._graph)
        known = {**inputs, **{given_input(i): values for i, values in given.items()}}
        feed = {value.name: known[value.name] for value in self._session.get_inputs()}
        found = {
            **inputs,
            **dict(zip(self._wanted, run(self._session, self._wanted, feed, self._graph.path), strict=True)),
        }

        def output(name: str) -> Float32:
            """An output that is a given tensor is what was given."""
            return given[self._owners[name]] if name in self._owners else np.asarray(found[name], np.float32)

        return Given(
            exact={i: np.asarray(found[name], np.float32) for i, name in self._exact.items()},
            rounded={i: np.asarray(found[name], np.float32) for i, name in self._rounded.items()},
            outputs=[output(name) for name in self._outputs],
        )
