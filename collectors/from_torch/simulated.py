"""The float module with simulated quantizers that change from run to run; see ``SimulatedNetwork``."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_torch.changes import Changed, Redo, Replace, along_channels, constant, on_grid
from quantmedic.collectors.from_torch.torch_graph import Place
from quantmedic.collectors.from_torch.torch_pair import TorchPair, arrays_of
from quantmedic.collectors.pair.deployed_grids import deployed_grids
from quantmedic.collectors.pair.graph import Operator
from quantmedic.collectors.pair.originals import OperatorPair, bias_of, weight_of
from quantmedic.collectors.pair.weight_forms import WeightForms, forms_of
from quantmedic.engine.case.records import Case
from quantmedic.engine.formulas.change import Change, WeightForm

Float32 = NDArray[np.float32]


@dataclass(frozen=True)
class _Layer:
    """The weights of one operator, and where its twin reads them and its bias.

    ``normalization`` is the call of a normalization that is part of the weights; ``added`` is what a folded branch has
    added to the weights, in the float module's layout, while the float module goes on computing that branch.
    """

    forms: WeightForms
    weight: list[Place]
    bias: list[Place]
    normalization: int | None
    added: Float32 | None

    def values(self, form: WeightForm | None) -> Float32:
        found = self.forms.weight(form)
        return found if self.added is None else np.asarray(found - self.added, np.float32)


class TorchSimulated:
    """Runs the float module under a change of the deployed quantizers; see ``SimulatedNetwork``."""

    def __init__(self, models: TorchPair, case: Case) -> None:
        self._models = models
        self._graph = models.float_graph
        self._grids = deployed_grids(case, models.quantized)
        found = {op.index: self._layer(op) for op in models.quantized.operators}
        self._layers = {k: layer for k, layer in found.items() if layer is not None}
        #: As deployed, in nearly all runs: kept, and so sent to a device once.
        self._stored = {k: constant(layer.values(None)) for k, layer in self._layers.items()}
        self._edges = {i: list(self._read_at(case, i)) for i, grid in enumerate(self._grids) if grid is not None}
        self._ends = {i: list(self._ends_at(case, i)) for i in self._edges}

    @property
    def weighted(self) -> frozenset[int]:
        """Operators whose weights can be changed, by index."""
        return frozenset(self._layers)

    @property
    def with_constants(self) -> frozenset[int]:
        """Operators with other constants that can be changed: none, for torch's toolchains keep them in float."""
        return frozenset()

    @property
    def tensors(self) -> frozenset[int]:
        """Tensors whose quantizers can be changed, by index into the case's table."""
        return frozenset(i for i in self._edges if self._edges[i] or self._ends[i])

    def repeat_exactly(self) -> None:
        """Runs of modules never depend on those before them."""

    def outputs(self, batch: Batch, change: Change | None) -> list[Float32]:
        """The matched outputs; of the module without any quantizer where ``change`` is None.

        Raises:
            ModelError: The module fails on this batch.
        """
        if change is None:
            return self._models.float_runner(1)(batch)
        arguments: dict[Place, Replace] = {}
        results: dict[int, Redo] = {}
        for k, layer in self._layers.items():
            form = change.weights.get(k)
            weights = self._stored[k] if form is None else constant(layer.values(form))
            arguments |= dict.fromkeys(layer.weight, weights)
            self._store_bias(layer, k in change.biases, arguments, results)
        rounded: dict[int, Replace] = {}
        for i, places in self._edges.items():
            grid = change.grids.get(i, self._grids[i])
            if grid is not None:
                rounded[i] = on_grid(grid)
                arguments |= dict.fromkeys(places, rounded[i])
        mode = Changed(self._graph, arguments, results, "float model")
        found = self._models.run_float(batch, mode)
        for i, positions in self._ends.items():
            if i in rounded:
                found = [rounded[i](own) if position in positions else own for position, own in enumerate(found)]
        return arrays_of(found, [i for i, _ in self._models.match.outputs])

    def _store_bias(
        self, layer: _Layer, is_float: bool, arguments: dict[Place, Replace], results: dict[int, Redo]
    ) -> None:
        if layer.forms.stored_bias is None:
            return
        bias = layer.forms.bias(is_float)
        if layer.normalization is None:
            arguments |= dict.fromkeys(layer.bias, constant(bias))
            return
        arguments |= dict.fromkeys(layer.bias, constant(np.zeros_like(bias)))
        results[layer.normalization] = along_channels(bias)

    def _layer(self, op: Operator) -> _Layer | None:
        models = self._models
        twin = models.match.operators.get(op.index)
        forms = forms_of(OperatorPair(op, models.quantized, twin, self._graph))
        if forms is None or twin is None:
            return None
        collapsed = models.collapsed.get(op.index)
        base = collapsed.operator if collapsed is not None else twin
        read = self._graph.read[base.index]
        bias = bias_of(base, self._graph)
        weight = weight_of(base, self._graph)
        assert weight is not None
        behind = self._graph.consumers.get(base.outputs[0], [])
        folded = forms.original.folded or (collapsed is not None and collapsed.folded)
        if forms.stored_bias is not None and bias is None and not folded:
            return None
        return _Layer(
            forms,
            read.get(weight.name, []),
            read.get(bias.name, []) if bias is not None else [],
            self._graph.written[behind[0].outputs[0]].call if folded else None,
            collapsed.added if collapsed is not None else None,
        )

    def _read_at(self, case: Case, index: int) -> Iterator[Place]:
        """Where the float module reads a tensor that the deployed one reads rounded."""
        record, quantized = case.record.tensors[index], self._models.quantized
        for reader in quantized.consumers.get(record.name, []):
            twin = self._models.match.operators.get(reader.index)
            coded = any(quantized.root(n) == record.name and n in quantized.codes for n in reader.node.inputs)
            if twin is not None and coded:
                yield from self._graph.read[twin.index].get(record.float_name, [])

    def _ends_at(self, case: Case, index: int) -> Iterator[int]:
        """Outputs of the float module that the deployed one returns rounded, by position."""
        record, quantized = case.record.tensors[index], self._models.quantized
        for i, j in self._models.match.outputs:
            name = quantized.outputs[j]
            if (
                self._graph.outputs[i] == record.float_name
                and quantized.root(name) == record.name
                and name in quantized.codes
            ):
                yield i
