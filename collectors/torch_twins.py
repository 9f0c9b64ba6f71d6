"""Twins that structure alone does not settle: which tensor a folded layer stands for is told by its values.

Toolchains fold what follows a layer into it: a normalization, an activation, in Sony MCT even the addition of a
residual branch. The folded layer then stands for the result of what was folded, and that is the one it resembles.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from quantmedic.collectors.batches import Batch
from quantmedic.collectors.onnx_graph import FOLDABLE, Graph

if TYPE_CHECKING:
    from quantmedic.collectors.torch_models import TorchModels

#: Operators between a layer and what it may stand for.
_HOPS = 4
#: Another tensor is the twin only if so much less of the difference is left.
_CLEARLY = 0.25


def settle_twins(models: "TorchModels", batch: Batch) -> None:
    """Replace twins by tensors further down that come clearly closer on a batch."""
    from quantmedic.collectors.torch_models import Capture

    float_graph, quantized = models.float_graph, models.quantized
    options = {
        root: found
        for root, twin in models.match.tensors.items()
        if root in quantized.producers and (found := list(_further(root, twin, models)))
    }
    if not options:
        return
    twins = {models.match.tensors[root] for root in options} | {name for found in options.values() for name in found}
    floats = Capture(float_graph, sorted(twins - set(float_graph.inputs)), "float model")  # type: ignore[arg-type]
    values = Capture(quantized, list(options), "quantized model")  # type: ignore[arg-type]
    models.run_float(batch, floats)
    models.run_quantized(batch, values)
    for root, found in options.items():
        shown = _decoded(quantized, root, values.found[root])
        distance = {name: _distance(floats.found[name], shown) for name in (models.match.tensors[root], *found)}
        now, best = distance[models.match.tensors[root]], min(found, key=distance.__getitem__)
        if distance[best] < _CLEARLY * now:
            models.match.tensors[root] = best


def _further(root: str, twin: str, models: "TorchModels") -> Iterator[str]:
    """Tensors of the same shape that operators without a twin of their own make of a float tensor."""
    graph: Any = models.float_graph
    shapes: Any = models.quantized
    taken = {op.index for op in models.match.operators.values()}
    twins = set(models.match.tensors.values())
    frontier, hops = [twin], 0
    while frontier and hops < _HOPS:
        readers = [op for name in frontier for op in graph.consumers.get(name, [])]
        free = [op for op in readers if op.op_type in FOLDABLE and op.index not in taken]
        frontier, hops = [name for op in free for name in op.outputs], hops + 1
        yield from (n for n in frontier if n not in twins and graph.shapes[n] == shapes.shapes.get(root))


def _decoded(graph: Graph, root: str, values: Any) -> Any:
    grid = graph.codes.get(root)
    return grid.dequantize(values) if grid is not None and values.dtype.kind in "iu" else values


def _distance(x: Any, y: Any) -> float:
    if x.shape != y.shape:
        return np.inf
    found = float(((x.astype(np.float64) - y) ** 2).sum())
    return found if np.isfinite(found) else np.inf
