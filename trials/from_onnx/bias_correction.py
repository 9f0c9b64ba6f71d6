"""Empirical bias correction of a deployed ONNX model: the mean error of every channel is folded into its bias.

Nagel, van Baalen, Blankevoort and Welling 2019, "Data-Free Quantization Through Weight Equalization and Bias
Correction", section 4.2 and appendix D: layer by layer, each with those before it corrected already.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_onnx.integer import INTEGER_OPS
from quantmedic.collectors.from_onnx.onnx_graph import OnnxGraph, PairedOnnxGraphs
from quantmedic.collectors.from_onnx.parse import parse
from quantmedic.collectors.pair.graph import Operator
from quantmedic.collectors.pair.originals import OperatorPair, bias_of, weight_of
from quantmedic.engine.errors import ModelError
from quantmedic.trials.from_onnx.draft import Array, Draft, LearnedLayer, LearnedModel
from quantmedic.trials.from_onnx.qdq import to_qdq

Floats = NDArray[np.float64]
#: Gives the samples anew, as often as they are asked for.
Samples = Callable[[], Iterable[Batch]]
_WITH_BIAS = frozenset({"Conv", "ConvTranspose", "Gemm"})
_INT32_MAX = 2**31 - 1


@dataclass(frozen=True)
class _Site:
    """Where a layer's error is seen and corrected.

    Attributes:
        name: Name of the layer.
        op: What adds the bias: the layer, or an Add behind it.
        twin: Tensor of the float model with the same meaning.
        trailing: Axes behind that of the channels.
        level: Layers before it on the longest way from the input.
    """

    name: str
    op: Operator
    twin: str
    trailing: int
    level: int


class _Moments(NamedTuple):
    """Mean and deviation per channel."""

    mean: Floats
    deviation: float


def correct_model(
    models: PairedOnnxGraphs, samples: Samples, *, threads: int, deadline: float | None = None
) -> LearnedModel:
    """A copy of the quantized model with corrected biases.

    Layers as far from the input as one another share a pass over the samples. A product without a bias is corrected
    in the constant that is added behind it; where that is kept in 8 bits, it is rounded on its own range anew.

    Args:
        models: Both models; the float one is that from which the other was quantized.
        samples: Gives representative samples.
        threads: Processor threads.
        deadline: ``time.monotonic()`` at which to leave the remaining layers as they are.

    Raises:
        ModelError: A model cannot be run on these samples, or no bias can be corrected.
    """
    sites, without = _sites_of(models)
    if not sites:
        raise ModelError(
            "no bias of the quantized model can be corrected",
            where=[str(models.quantized.path), *without[:5]],
            help="biases are corrected of Conv, ConvTranspose and Gemm, and of constants added behind a MatMul",
        )
    graph = models.float_graph
    wanted = _measure_moments(Draft(graph.model), graph, sites, {s.name: s.twin for s in sites}, samples, threads)
    draft, done, left = Draft(models.quantized.model), [], [f"{name}: there is none to correct" for name in without]
    for level in sorted({site.level for site in sites}):
        own = [site for site in sites if site.level == level]
        if deadline is not None and time.monotonic() > deadline:
            left += [f"{site.name}: the time was over" for site in own]
            continue
        seen = _deployed_moments(draft, models, own, samples, threads)
        for site in own:
            error = wanted[site.name].mean - seen[site.name].mean
            applied = _correct(draft, site, error)
            if applied is None:
                left.append(f"{site.name}: its bias cannot be changed")
                continue
            deviation = wanted[site.name].deviation or 1.0
            done.append(LearnedLayer(site.name, _rms(error) / deviation, _rms(error - applied) / deviation))
        draft.index()
    return LearnedModel(draft.finish(), tuple(done), tuple(left))


def _rms(values: Floats) -> float:
    return float(np.sqrt(np.mean(values**2)))


def _sites_of(models: PairedOnnxGraphs) -> tuple[list[_Site], list[str]]:
    """Where biases can be corrected, and the names of layers that have none."""
    graph, found, without = models.quantized, [], []
    levels: dict[str, int] = {}
    for op in graph.operators:
        level = max((levels.get(name, 0) for name in op.inputs), default=0)
        weight = weight_of(op, graph) if op.op_type in (*_WITH_BIAS, "MatMul") else None
        if weight is not None and weight.quantizer is not None:
            level += 1
            site = _site_of(models, op, level)
            if site is not None:
                found.append(site)
            else:
                without.append(op.name)
        levels |= dict.fromkeys(op.outputs, level)
    return found, without


def _site_of(models: PairedOnnxGraphs, op: Operator, level: int) -> _Site | None:
    """None where nothing adds a bias, or the float model has no such tensor."""
    graph, twin = models.quantized, models.match.operators.get(op.index)
    if twin is None:
        return None
    if op.op_type in _WITH_BIAS:
        if op.node.op_type not in (*_WITH_BIAS, *INTEGER_OPS) or _is_computed_bias(models, op):
            return None
        weight = weight_of(op, graph)
        bias = bias_of(op, graph)
        if not graph.can_store("" if bias is None else bias.name):
            return None
        rank = 2 if weight is None or weight.values is None else weight.values.ndim
        trailing = 0 if op.channels_last or op.op_type == "Gemm" else rank - 2
        return _Site(op.name, op, _biased_twin(models, op, twin), trailing, level)
    added = _addition(graph, op)
    if added is None or not graph.can_store(""):
        return None
    other = models.match.operators.get(added.index)
    tensor = other.outputs[0] if other is not None else models.match.tensors.get(added.outputs[0])
    return None if tensor is None else _Site(op.name, added, tensor, 0, level)


def _is_computed_bias(models: PairedOnnxGraphs, op: Operator) -> bool:
    return len(op.inputs) > 2 and bias_of(op, models.quantized) is None


def _biased_twin(models: PairedOnnxGraphs, op: Operator, twin: Operator) -> str:
    """What the twin writes, with a normalization or an addition behind it that the quantized layer has built in."""
    readers = models.float_graph.consumers.get(twin.outputs[0], [])
    pair = OperatorPair(op, models.quantized, twin, models.float_graph)
    if pair.original.folded:
        return readers[0].outputs[0]
    gained = pair.bias is not None and pair.twin_bias is None
    added = _addition(models.float_graph, twin)
    return added.outputs[0] if gained and added is not None and twin.op_type == "MatMul" else twin.outputs[0]


def _addition(graph: OnnxGraph, op: Operator) -> Operator | None:
    """The Add of a constant that alone reads what an operator writes."""
    readers = graph.consumers.get(op.outputs[0], [])
    if len(readers) != 1 or readers[0].op_type != "Add" or op.outputs[0] in graph.output_roots:
        return None
    return readers[0] if any(name in graph.constants for name in readers[0].inputs) else None


def _deployed_moments(
    draft: Draft, models: PairedOnnxGraphs, sites: Sequence[_Site], samples: Samples, threads: int
) -> dict[str, _Moments]:
    """What the quantized model writes at these sites before it is quantized or clipped."""
    graph = parse(models.quantized.path, draft.finish())
    plain = Draft(graph.model)
    to_qdq(plain, graph)
    written = {site.name: plain.computed[site.op.node.outputs[0]].output[0] for site in sites}
    return _measure_moments(plain, graph, sites, written, samples, threads)


def _measure_moments(
    draft: Draft,
    graph: OnnxGraph,
    sites: Sequence[_Site],
    tensors: Mapping[str, str],
    samples: Samples,
    threads: int,
) -> dict[str, _Moments]:
    """Mean per channel, and deviation, of the tensor of each site, by its name."""
    shown = {site.name: draft.before_activation(tensors[site.name]) for site in sites}
    read = draft.open_reader(shown.values(), graph, threads)
    sums: dict[str, list[Floats]] = {}
    for batch in samples():
        seen = read(batch)
        for site in sites:
            rows = _by_channel(np.asarray(seen[shown[site.name]], np.float64), site.trailing)
            own = [np.full(1, rows.shape[1]), rows.sum(axis=1), np.square(rows).sum(axis=1)]
            before = sums.get(site.name)
            sums[site.name] = own if before is None else [a + b for a, b in zip(before, own, strict=True)]
    return {name: _moments_of(*own) for name, own in sums.items()}


def _by_channel(values: Floats, trailing: int) -> Floats:
    axis = values.ndim - 1 - trailing
    return np.moveaxis(values, axis, 0).reshape(values.shape[axis], -1)


def _moments_of(count: Floats, total: Floats, squares: Floats) -> _Moments:
    mean = total / count
    return _Moments(mean, float(np.sqrt(np.maximum(squares / count - mean**2, 0.0).mean())))


def _correct(draft: Draft, site: _Site, shift: Floats) -> Floats | None:
    """Add a shift per channel to a bias; returns what was really added, None where the bias cannot be changed."""
    node = draft.computed[site.op.node.outputs[0]]
    if not np.isfinite(shift).all():
        return None
    if site.op.op_type == "Add":
        return _correct_addend(draft, node, shift)
    place = INTEGER_OPS[node.op_type].bias if node.op_type in INTEGER_OPS else 2
    if place is None:
        return None
    beta = next((a.f for a in node.attribute if a.name == "beta"), 1.0)
    if not beta:
        return None
    applied = _correct_bias(draft, node, place, shift / beta)
    return None if applied is None else applied * beta


def _correct_bias(draft: Draft, node: onnx.NodeProto, place: int, shift: Floats) -> Floats | None:
    present = node.input[place] if len(node.input) > place else ""
    values = draft.value_of(present) if present else None
    if values is not None and values.dtype.kind == "f":
        draft.change_constant(node, place, values + shift.astype(values.dtype))
        return shift
    reader = draft.writers.get(draft.source(present)) if present and values is None else None
    if reader is not None:
        if reader.op_type != "DequantizeLinear":
            return None
        codes, step = draft.value_of(reader.input[0]), draft.value_of(reader.input[1])
    else:
        codes, step = values, _product_step(draft, node)
    if codes is None and present:
        return None
    if step is None:
        draft.touched = True
        _set_input(node, place, draft.add_constant(f"{node.output[0]}_bias", shift.astype(np.float32)))
        return shift
    before = np.zeros(shift.size) if codes is None else codes.astype(np.float64).reshape(-1)
    after = np.rint(np.broadcast_to(before, shift.size) + shift / step)
    if np.abs(after).max(initial=0.0) > _INT32_MAX:
        return None
    _store_bias(draft, node, place, after, step)
    return np.asarray((after - before) * step, np.float64)


def _store_bias(draft: Draft, node: onnx.NodeProto, place: int, codes: Floats, step: Floats) -> None:
    present = node.input[place] if len(node.input) > place else ""
    reader = draft.writers.get(draft.source(present)) if present else None
    if node.op_type in INTEGER_OPS:
        if present:
            draft.change_constant(node, place, codes)
        else:
            _set_input(node, place, draft.add_constant(f"{node.output[0]}_bias", codes, TensorProto.INT32))
    elif reader is not None and len(draft.readers_of(reader.output[0])) == 1:
        before = draft.value_of(reader.input[0])
        draft.change_constant(reader, 0, codes if before is None else codes.reshape(before.shape))
    else:
        scale = step.reshape(()) if step.size == 1 else step.reshape(-1)
        name = draft.add_dequantizer(
            f"{node.output[0]}_bias", codes, TensorProto.INT32, scale, axis=0 if scale.ndim else None
        )
        _set_input(node, place, name)


def _set_input(node: onnx.NodeProto, place: int, name: str) -> None:
    inputs = [*node.input, *[""] * (place + 1 - len(node.input))]
    inputs[place] = name
    node.input[:] = inputs


def _product_step(draft: Draft, node: onnx.NodeProto) -> Floats | None:
    """Step of a product of codes, one or one per channel; None where an operand is not dequantized from codes."""
    if node.op_type in INTEGER_OPS:
        names = [node.input[scale] for _, scale, _ in INTEGER_OPS[node.op_type].values]
    else:
        readers = [draft.writers.get(draft.source(name)) for name in node.input[:2]]
        names = [each.input[1] for each in readers if each is not None and each.op_type == "DequantizeLinear"]
    steps = [draft.value_of(name) for name in names]
    known = [step.astype(np.float64).reshape(-1) for step in steps if step is not None]
    return None if len(known) < 2 or known[0].size != 1 else np.asarray(known[0] * known[1])


def _correct_addend(draft: Draft, node: onnx.NodeProto, shift: Floats) -> Floats | None:
    """Add a shift to the constant operand of an Add."""
    for reader, places in _operands(draft, node):
        if reader is None:
            values = draft.value_of(node.input[places[0]])
            if values is not None and values.dtype.kind == "f":
                draft.change_constant(node, places[0], values + shift.astype(values.dtype))
                return shift
            continue
        codes, step, zero = (draft.value_of(reader.input[place]) for place in places)
        if codes is not None and step is not None and zero is not None and step.size == 1:
            return _round_anew(draft, reader, places, (codes, step, zero), shift)
    return None


def _operands(draft: Draft, node: onnx.NodeProto) -> Iterator[tuple[onnx.NodeProto | None, tuple[int, ...]]]:
    """What holds each operand of an Add: a node and the places of codes, scale and zero point; None and its place."""
    if node.op_type in INTEGER_OPS:
        yield from ((node, places) for places in INTEGER_OPS[node.op_type].values)
        return
    for place, name in enumerate(node.input):
        reader = draft.writers.get(draft.source(name))
        if draft.value_of(name) is not None:
            yield None, (place,)
        elif reader is not None and reader.op_type == "DequantizeLinear" and len(reader.input) > 2:
            yield reader, (0, 1, 2)


def _round_anew(
    draft: Draft, node: onnx.NodeProto, places: tuple[int, ...], stored: tuple[Array, Array, Array], shift: Floats
) -> Floats | None:
    """A constant of 8-bit codes with a shift, on its own grid or on the one of its new range, whichever is closer."""
    codes, step, zero = stored
    limits = np.iinfo(zero.dtype)
    before = (codes.astype(np.float64) - zero) * step
    wanted = before + shift
    low, high = min(wanted.min(), 0.0), max(wanted.max(), 0.0)
    fresh = float((high - low) / (limits.max - limits.min)) or float(step)
    grids = [(float(step), int(zero)), (float(np.float32(fresh)), round(limits.min - low / fresh))]
    rounded = [np.clip(np.rint(wanted / s) + z, limits.min, limits.max) for s, z in grids]
    reals = [(found - z) * s for found, (s, z) in zip(rounded, grids, strict=True)]
    best = int(np.argmin([np.square(real - wanted).sum() for real in reals]))
    for place, values in zip(places, (rounded[best], *map(np.asarray, grids[best])), strict=True):
        draft.change_constant(node, place, np.reshape(values, np.shape(values) if place == places[0] else step.shape))
    axes = tuple(range(before.ndim - 1))
    applied: Floats = np.broadcast_to((reals[best] - before).mean(axis=axes), shift.shape).astype(np.float64)
    return applied
