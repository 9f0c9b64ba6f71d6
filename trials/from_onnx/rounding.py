"""Rounding search: weight codes of a deployed ONNX model are rounded up or down for the least error at the layer.

What is made small is E‖(W - Q) x‖² over the inputs x that the deployed layer reads, a quadratic form in the rounding
with the second moments of x (Nagel, Amjad, van Baalen, Louizos and Blankevoort 2020, "Up or Down? Adaptive Rounding
for Post-Training Quantization", equation 13). It is descended from the nearest codes, one weight of every row at a
time, as in Frantar, Ashkboos, Hoefler and Alistarh 2023, "GPTQ", in blocks; no gradient and no framework is needed.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_onnx.onnx_graph import PairedOnnxGraphs
from quantmedic.collectors.pair.graph import Operator
from quantmedic.engine.errors import ModelError
from quantmedic.trials.from_onnx.draft import Draft, LearnedLayer, LearnedModel
from quantmedic.trials.from_onnx.layers import Layer, layers_of
from quantmedic.trials.from_onnx.qdq import WEIGHTED, to_qdq

Floats = NDArray[np.float64]
#: Gives the samples anew, as often as they are asked for.
Samples = Callable[[], Iterable[Batch]]
#: Weights per output channel above which the second moments of a layer's inputs take too much memory and time.
MOST_INPUTS = 4608
#: Bytes of the second moments that are gathered in one pass over the samples.
_MEMORY = 512 << 20
#: Added to the diagonal, as a share of its mean: few samples do not show every direction (GPTQ).
DAMPING = 0.01
#: Weights of a row that are descended together, and passes over all of them at most.
_BLOCK, _SWEEPS = 128, 12
#: Positions of a batch that are gathered at most, per layer.
_POSITIONS = 4096
Float32 = NDArray[np.float32]


@dataclass(frozen=True)
class _Task:
    """A layer whose codes are searched.

    Attributes:
        layer: The layer, in a copy of the model without integer operators.
        floats: Its float weights [groups, rows, inputs].
        source: Tensor that it reads.
    """

    layer: Layer
    floats: Floats
    source: str


def round_model(
    models: PairedOnnxGraphs, samples: Samples, *, threads: int, deadline: float | None = None
) -> LearnedModel:
    """A copy of the quantized model with weight codes that give the least error on these samples.

    Steps and zero points stay, and every code is one of the two beside its float weight, or stays as it was.

    Args:
        models: Both models; the float one is that from which the other was quantized.
        samples: Gives representative samples.
        threads: Processor threads.
        deadline: ``time.monotonic()`` at which to leave the remaining layers as they are.

    Raises:
        ModelError: The model cannot be run on these samples, or no weights can be searched.
    """
    plain = Draft(models.quantized.model)
    to_qdq(plain, models.quantized)
    tasks, refused = _tasks_of(plain, models)
    if not tasks:
        raise ModelError(
            "no weights of the quantized model can be rounded anew",
            where=[str(models.quantized.path), *refused[:5]],
            help="codes of Conv, Gemm and MatMul are searched where their float weights are known",
        )
    model, draft, done = plain.finish(), Draft(models.quantized.model), []
    for part in _split_by_memory(tasks):
        if _is_over(deadline):
            refused += [f"{task.layer.name}: the time was over" for task in part]
            continue
        moments = _second_moments(model, models, part, samples, threads)
        for task, moment in zip(part, moments, strict=True):
            if _is_over(deadline):
                refused.append(f"{task.layer.name}: the time was over")
            else:
                done.append(_search(draft, task, moment))
    return LearnedModel(draft.finish(), tuple(done), tuple(refused))


def _is_over(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() > deadline


def _tasks_of(plain: Draft, models: PairedOnnxGraphs) -> tuple[list[_Task], list[str]]:
    tasks, refused, graph = [], [], models.quantized
    for layer in layers_of(plain, models, {}).values():
        if layer.op.op_type not in WEIGHTED:
            continue
        reason = _reason_against(layer)
        if reason is None and not graph.can_store(layer.stored.name):
            reason = "its codes are shared or computed"
        if reason is not None:
            refused.append(f"{layer.name}: {reason}")
            continue
        assert layer.weight is not None
        floats = _rows(layer, layer.weight.astype(np.float64))
        tasks.append(_Task(layer, floats, layer.node.input[1 - min(layer.position, 1)]))
    return tasks, refused


def _reason_against(layer: Layer) -> str | None:
    """Why the codes of a layer are not searched."""
    constant, quantizer = layer.stored, layer.stored.quantizer
    if layer.op.op_type not in ("Conv", "Gemm", "MatMul") or layer.position != 1:
        return f"a {layer.op.op_type} whose codes are not searched"
    if layer.weight is None or constant.values is None or quantizer is None:
        return "its float weights are not known"
    if not _is_initializer(layer):
        return "its codes are shared or computed"
    if layer.op.channels_last and layer.op.op_type == "MatMul":
        return "a product of two tensors whose codes are not searched"
    if layer.op.op_type != "Conv" and layer.weight.ndim != 2:
        return "its weights are no matrix"
    size = _rows(layer, layer.weight).shape[-1]
    return f"{size} weights per channel are too many" if size > MOST_INPUTS else None


def _is_initializer(layer: Layer) -> bool:
    """The stored constant is an initializer of the same shape that no other operator reads."""
    graph = layer.models.quantized
    found = [name for name, each in graph.constants.items() if each.name == layer.stored.name and each.quantizer]
    users = {op.index for name in found for op in graph.consumers.get(name, [])}
    original = graph.constants.get(layer.stored.name)
    held = None if original is None else original.codes if original.codes is not None else original.values
    return len(users) == 1 and held is not None and layer.weight is not None and held.shape == layer.weight.shape


def _rows(layer: Layer, weights: NDArray[np.floating]) -> Floats:
    """Weights as [groups, rows, inputs]: a row gives one output channel."""
    if layer.op.op_type == "Conv":
        groups = layer.op.attributes.integer("group", 1)
        return np.asarray(weights.reshape(groups, weights.shape[0] // groups, -1), np.float64)
    turned = layer.op.op_type == "Gemm" and layer.op.attributes.integer("transB")
    return np.asarray((weights if turned else weights.T)[None], np.float64)


def _as_stored(layer: Layer, rows: Floats, shape: tuple[int, ...]) -> Floats:
    if layer.op.op_type == "Conv":
        return rows.reshape(shape)
    turned = layer.op.op_type == "Gemm" and layer.op.attributes.integer("transB")
    return rows[0] if turned else rows[0].T


def _split_by_memory(tasks: Sequence[_Task]) -> Iterator[list[_Task]]:
    """Tasks whose second moments fit into memory together."""
    part: list[_Task] = []
    used = 0
    for task in tasks:
        groups, _, inputs = task.floats.shape
        size = 8 * groups * inputs**2
        if part and used + size > _MEMORY:
            yield part
            part, used = [], 0
        part.append(task)
        used += size
    if part:
        yield part


def _second_moments(
    model: onnx.ModelProto, models: PairedOnnxGraphs, tasks: Sequence[_Task], samples: Samples, threads: int
) -> list[Floats]:
    """E[x xᵀ] of what each layer reads, [groups, inputs, inputs]; memory does not grow with the samples."""
    read = Draft(model).open_reader([task.source for task in tasks], models.quantized, threads)
    sums = [np.zeros((task.floats.shape[0], *2 * task.floats.shape[2:])) for task in tasks]
    counts = [0] * len(tasks)
    for batch in samples():
        values = read(batch)
        for k, task in enumerate(tasks):
            groups, _, inputs = task.floats.shape
            read_by = np.asarray(values[task.source], np.float32)
            rows = windows_of(task.layer.op, read_by, task.layer.stored.values, _POSITIONS)
            sums[k] += np.matmul(rows.transpose(0, 2, 1), rows).reshape(groups, inputs, inputs)
            counts[k] += rows.shape[1]
    return [total / max(count, 1) for total, count in zip(sums, counts, strict=True)]


def _search(draft: Draft, task: _Task, moments: Floats) -> LearnedLayer:
    layer, quantizer = task.layer, task.layer.stored.quantizer
    assert layer.stored.values is not None and quantizer is not None and layer.weight is not None
    stored = layer.stored.values
    codes = quantizer.encode(stored).astype(np.float64)
    step = np.broadcast_to(quantizer.steps(stored.shape), stored.shape).astype(np.float64)
    zero = codes - stored / step
    limits = (codes.min(), codes.max())
    parts = [_rows(layer, each) for each in (codes, step, zero, stored)]
    found = np.stack(
        [
            _search_group(task.floats[g], parts[0][g], parts[1][g], parts[2][g], limits, moments[g])
            for g in range(len(moments))
        ]
    )
    power = _energy(task.floats, moments)
    before = _energy(parts[3] - task.floats, moments)
    after = _energy((found - parts[2]) * parts[1] - task.floats, moments)
    if not after <= before:
        found, after = parts[0], before
    moved = float((found != parts[0]).mean())
    if moved:
        _put_codes(
            draft, layer, _as_stored(layer, found, stored.shape), _as_stored(layer, parts[2], stored.shape), step
        )
    scale = power or 1.0
    return LearnedLayer(layer.name, before / scale, after / scale, moved)


def _energy(rows: Floats, moments: Floats) -> float:
    """Sum of w E[x xᵀ] wᵀ over all rows."""
    return float(np.einsum("grd,grd->", rows @ moments, rows))


def _search_group(
    floats: Floats, codes: Floats, step: Floats, zero: Floats, limits: tuple[float, float], moments: Floats
) -> Floats:
    """Codes of one group of channels, [rows, inputs]; a row that gains nothing keeps its codes."""
    damped = moments + DAMPING * max(float(np.trace(moments)) / len(moments), 1e-30) * np.eye(len(moments))
    exact = floats / step + zero
    low, high = (np.clip(each, *limits) for each in (np.floor(exact), np.ceil(exact)))
    found = _descend(np.clip(np.rint(exact), low, high), exact, step, (low, high), damped)
    stays = _row_energy((found - exact) * step, moments) >= _row_energy((codes - exact) * step, moments)
    return np.where(stays[:, None], codes, found)


def _row_energy(rows: Floats, moments: Floats) -> Floats:
    energy: Floats = np.einsum("rd,rd->r", rows @ moments, rows)
    return energy


def _descend(codes: Floats, exact: Floats, step: Floats, bounds: tuple[Floats, Floats], moments: Floats) -> Floats:
    """Coordinate descent: each weight in turn takes the code that is best with all others as they are."""
    low, high = bounds
    curvature = np.diag(moments)
    gradient = ((codes - exact) * step) @ moments
    for _ in range(_SWEEPS):
        moved = False
        for start in range(0, len(moments), _BLOCK):
            part = slice(start, start + _BLOCK)
            own, inner, change = gradient[:, part].copy(), moments[part, part], np.zeros_like(codes[:, part])
            for j in range(own.shape[1]):
                k = start + j
                wanted = np.rint(codes[:, k] - own[:, j] / (curvature[k] * step[:, k]))
                delta = np.clip(wanted, low[:, k], high[:, k]) - codes[:, k]
                if delta.any():
                    codes[:, k] += delta
                    change[:, j] = delta * step[:, k]
                    own += np.outer(change[:, j], inner[j])
            if change.any():
                moved = True
                gradient += change @ moments[part]
        if not moved:
            break
    return codes


def _put_codes(draft: Draft, layer: Layer, codes: Floats, zero: Floats, step: Floats) -> None:
    """Write codes where the model keeps them; real values where it keeps these and quantizes them when it is loaded."""
    name = layer.stored.name
    node = next(each for each in draft.nodes if name in each.input)
    place = list(node.input).index(name)
    values = draft.value_of(name)
    assert values is not None
    draft.change_constant(node, place, (codes - zero) * step if values.dtype.kind == "f" else codes)


def windows_of(op: Operator, values: Float32, weights: Float32 | None, most: int | None = None) -> Float32:
    """Inputs of a Conv, Gemm or MatMul as [groups, positions, inputs], in the order of the weights of a row.

    Windows overlap, so that all of them would take many times the memory of what they are cut from.

    Args:
        op: The operator.
        values: What a Conv reads, [samples, channels, ...], or with its channels last; else [..., inputs].
        weights: Its weights as stored.
        most: Positions at most, drawn from all of them, the same each time; None: all.
    """
    if op.op_type != "Conv":
        vectors = values.reshape(-1, _inputs_of(op, values, weights))
        return vectors[_draw(len(vectors), most)][None]
    assert weights is not None
    if op.channels_last:
        values = np.moveaxis(values, -1, 1)
    kernel, groups = weights.shape[2:], op.attributes.integer("group", 1)
    ones = (1,) * len(kernel)
    strides, dilations = (op.attributes.integers(name) or ones for name in ("strides", "dilations"))
    spans = tuple((size - 1) * gap + 1 for size, gap in zip(kernel, dilations, strict=True))
    padded = np.pad(values, [(0, 0), (0, 0), *_paddings(op, values.shape[2:], spans, strides)])
    axes = tuple(range(2, 2 + len(kernel)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, spans, axis=axes)
    steps = [slice(None, None, step) for step in (*strides, *dilations)]
    windows = windows[(slice(None), slice(None), *steps)]
    # [samples, channels, positions..., taps...] to [groups, samples · positions, channels of the group · taps]
    rank = len(kernel)
    ordered = np.moveaxis(windows, 1, 1 + rank)
    sides = ordered.shape[: 1 + rank]
    drawn = _draw(int(np.prod(sides)), most)
    rows = ordered[np.unravel_index(drawn, sides)].reshape(len(drawn), groups, -1)
    return np.ascontiguousarray(rows.transpose(1, 0, 2))


def _inputs_of(op: Operator, values: Float32, weights: Float32 | None) -> int:
    """Inputs of a row: LiteRT's product takes all values of a sample for one row, where its weights are as long."""
    if weights is None or op.op_type != "Gemm":
        return int(values.shape[-1])
    return int(weights.shape[1 if op.attributes.integer("transB") else 0])


def _draw(count: int, most: int | None) -> NDArray[np.intp]:
    """Indexes of some of so many positions."""
    if most is None or count <= most:
        return np.arange(count)
    return np.sort(np.random.default_rng(0).choice(count, most, replace=False))


def _paddings(
    op: Operator, sides: tuple[int, ...], spans: tuple[int, ...], strides: tuple[int, ...]
) -> list[tuple[int, int]]:
    """Zeros before and behind each axis."""
    mode = op.attributes.get("auto_pad", "NOTSET")
    if mode in ("SAME_UPPER", "SAME_LOWER"):
        found = []
        for side, span, stride in zip(sides, spans, strides, strict=True):
            total = max((-(-side // stride) - 1) * stride + span - side, 0)
            small = total // 2
            found.append((small, total - small) if mode == "SAME_UPPER" else (total - small, small))
        return found
    pads = op.attributes.integers("pads") or (0,) * (2 * len(sides))
    return [(0, 0)] * len(sides) if mode == "VALID" else [(pads[i], pads[i + len(sides)]) for i in range(len(sides))]
