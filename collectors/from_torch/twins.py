"""Twins that structure alone does not settle: which tensor a folded layer stands for is seen from its values.

Toolchains fold what follows a layer into it: a normalization, an activation, in Sony MCT even the addition of a
residual branch. The folded layer then stands for the result of what was folded, and that is the one it resembles.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_torch.capture import Capture
from quantmedic.collectors.from_torch.torch_graph import TorchGraph
from quantmedic.collectors.from_torch.torch_pair import Collapsed, TorchPair
from quantmedic.collectors.pair.constants import Constant
from quantmedic.collectors.pair.graph import FOLDABLE, Graph, Operator
from quantmedic.collectors.pair.originals import OperatorPair

Array = NDArray[np.generic]
Float32 = NDArray[np.float32]
_PRODUCTS = frozenset({"Conv", "Gemm"})
#: Operators between a layer and what it may stand for.
_HOPS = 4
#: Another tensor is the twin only if no more than this share of the difference is left.
_CLEARLY = 0.25


def settle_twins(models: TorchPair, batch: Batch) -> None:
    """Replace twins by tensors further down that come clearly closer on a batch."""
    float_graph, quantized = models.float_graph, models.quantized
    options = {
        root: found
        for root, twin in models.match.tensors.items()
        if root in quantized.producers and (found := list(_further(root, twin, models)))
    }
    if not options:
        return
    twins = {models.match.tensors[root] for root in options} | {name for found in options.values() for name in found}
    floats = Capture(float_graph, sorted(twins - set(float_graph.inputs)), "float model")
    values = Capture(quantized, list(options), "quantized model")
    models.run_float(batch, floats)
    models.run_quantized(batch, values)
    for root, found in options.items():
        shown = _real_values(quantized, root, values.found[root])
        distance = {name: _energy_between(floats.found[name], shown) for name in (models.match.tensors[root], *found)}
        now, best = distance[models.match.tensors[root]], min(found, key=distance.__getitem__)
        if distance[best] < _CLEARLY * now:
            models.match.tensors[root] = best
            if not _fold_product(root, best, models):
                _fold_branch(root, best, models)


def _further(root: str, twin: str, models: TorchPair) -> Iterator[str]:
    """Tensors of the same shape that operators without a twin of their own make of a float tensor."""
    graph, shape = models.float_graph, models.quantized.shapes.get(root)
    taken = {op.index for op in models.match.operators.values()}
    twins = set(models.match.tensors.values())
    frontier, hops = [twin], 0
    while frontier and hops < _HOPS:
        readers = [op for name in frontier for op in graph.consumers.get(name, [])]
        free = [op for op in readers if op.op_type in FOLDABLE | _PRODUCTS and op.index not in taken]
        frontier, hops = [name for op in free for name in op.outputs], hops + 1
        yield from (n for n in frontier if n not in twins and graph.shapes[n] == shape)


def _fold_product(root: str, twin: str, models: TorchPair) -> bool:
    """Where a convolution stands for two in a row, nothing stored in the float module compares with its weights."""
    graph = models.float_graph
    op = models.quantized.producers[root]
    base = models.match.operators.get(op.index)
    last = graph.producers[twin]
    while last.op_type in FOLDABLE and graph.producers.get(last.inputs[0]) is not None:
        last = graph.producers[last.inputs[0]]
    if base is None or base.op_type not in _PRODUCTS or last.op_type not in _PRODUCTS or last.index == base.index:
        return False
    _read_as_one(graph, last, base)
    models.match.operators[op.index] = replace(last, inputs=base.inputs[:1])
    return True


def _fold_branch(root: str, twin: str, models: TorchPair) -> None:
    """Where a convolution stands for its sum with its own input, its twin is the convolution that computes that sum."""
    graph = models.float_graph
    op, addition = models.quantized.producers[root], graph.producers[twin]
    base = models.match.operators.get(op.index)
    if base is None or op.op_type != "Conv" or addition.op_type != "Add" or base.inputs[0] not in addition.inputs:
        return
    original = OperatorPair(op, models.quantized, base, graph).original
    identity = None if original.weight is None else _identity_weights(original.weight)
    if original.weight is None or identity is None:
        return
    names = [base.inputs[0], f"{base.inputs[1]}+identity", f"{base.inputs[1]}+bias"]
    graph.constants[names[1]] = Constant(base.inputs[1], np.asarray(original.weight + identity, np.float32))
    if original.bias is not None:
        graph.constants[names[2]] = Constant(names[2], original.bias)
    inputs = names if original.bias is not None else names[:2]
    models.match.operators[op.index] = replace(base, index=addition.index, inputs=inputs, outputs=[twin])
    _read_as_one(graph, addition, base)
    models.collapsed[op.index] = Collapsed(base, identity, original.folded)


def _read_as_one(graph: TorchGraph, last: Operator, first: Operator) -> None:
    """Where either of two operators reads, the one that stands for both does."""
    reads = graph.read[last.index]
    for name, places in graph.read[first.index].items():
        reads[name] = [*reads.get(name, []), *places]


def _identity_weights(weight: Float32) -> Float32 | None:
    """Weights of a convolution that hands its input on; None where there is none of this shape."""
    sides = weight.shape[2:]
    if not sides or weight.shape[0] != weight.shape[1] or any(side % 2 == 0 for side in sides):
        return None
    found = np.zeros_like(weight)
    rows = np.arange(len(weight))
    found[(rows, rows, *(side // 2 for side in sides))] = 1.0
    return found


def _real_values(graph: Graph, root: str, values: Array) -> Array:
    grid = graph.codes.get(root)
    return grid.dequantize(values) if grid is not None and values.dtype.kind in "iu" else values


def _energy_between(x: Array, y: Array) -> float:
    """Σ(x - y)²; infinite where the shapes differ or the sum is not finite."""
    if x.shape != y.shape:
        return np.inf
    found = float(((x.astype(np.float64) - y.astype(np.float64)) ** 2).sum())
    return found if np.isfinite(found) else np.inf
