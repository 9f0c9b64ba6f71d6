"""What a layer multiplies with its weights: the rows of inputs under each position of its window."""

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.pair.graph import Operator

Float32 = NDArray[np.float32]


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
