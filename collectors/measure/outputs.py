"""Outputs against outputs: column by column, as classes, and whether they are the same at all."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, repeat

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.messages import aligned_rows, shape_text
from quantmedic.collectors.pair.output_parts import Joint, shorter_axis
from quantmedic.collectors.pair.tensor_pairs import PairedGraphs
from quantmedic.collectors.statistics.accumulate import class_scores
from quantmedic.engine.case.output_comparison import FIELDS, VOTES, Comparison, noise_ratio
from quantmedic.engine.case.output_facts import Ending
from quantmedic.engine.errors import DataError
from quantmedic.engine.special_functions import sigmoid, softmax

Array = NDArray[np.generic]
Floats = NDArray[np.float64]
#: Kinds of given outputs, with the option that gives them.
OPTIONS = {"reference": "--reference-outputs", "device": "--device-outputs"}
#: Elements of a sample's output that are compared where only the line through them matters.
ELEMENTS = 4096
#: More columns of an output are not held apart.
MAX_COLUMNS = 4096
#: Columns that are judged one by one; of an output with more, only the operands that it is joined of are.
COLUMNS = 1024
#: Elements of a sample's output whose columns are compared.
COLUMN_ELEMENTS = 1 << 20
#: Elements of a sample's output up to which it is looked for a function that only one model ends with.
ENDING_ELEMENTS = 1 << 14


#: Functions that an exported file may end with or not, by their operator.
ENDINGS: Mapping[Ending, Callable[[Floats], Floats]] = {"Softmax": softmax, "Sigmoid": sigmoid}


class Outputs:
    """Compares the outputs that both models have, column by column where they have a fixed number of columns."""

    def __init__(self, models: PairedGraphs, joints: Sequence[Joint], *, classes: bool) -> None:
        #: Names of all outputs of the float model.
        self.names = models.float_graph.outputs
        self._joints = joints
        self._names = [models.float_graph.outputs[i] for i, _ in models.match.outputs]
        self._axes = [column_axis(models.shapes.get(name)) for name in self._names]
        self._classes = classes

    def pairs(
        self, floats: Sequence[Array], quantized: Sequence[Array], *, whole: bool = False
    ) -> dict[str, Comparison]:
        """The quantized model's outputs, as they are returned, against the float model's: one column each.

        Of large outputs some elements of every sample tell enough, unless the ``whole`` is asked for.
        """
        return {
            f"output.{i}": compare_outputs(*((x, y) if whole else (thin_out(x), thin_out(y))), None)
            for i, (x, y) in enumerate(zip(floats, quantized, strict=True))
            if comparable(x, y)
        }

    def endings(self, floats: Sequence[Array], quantized: Sequence[Array]) -> dict[str, Comparison]:
        """The same where one model's output goes through a function first: what the other one may end with."""
        found = {}
        for i, (x, y) in enumerate(zip(floats, quantized, strict=True)):
            if not _are_values(x, y) or x.ndim < 2 or x.shape[-1] < 2 or x[:1].size > ENDING_ELEMENTS:
                continue
            for name, function in ENDINGS.items():
                found[f"{name} quantized.{i}"] = compare_outputs(function(x.astype(np.float64)), y, None)
                found[f"{name} float.{i}"] = compare_outputs(x, function(y.astype(np.float64)), None)
        return found

    def columns(self, floats: Sequence[Array], quantized: Sequence[Array]) -> dict[str, Comparison]:
        """The same column by column; of an output with very many columns, by the operands that it is joined of.

        Codes are left out, for they are no values.
        """
        found = {}
        for i, (joint, x, y) in enumerate(zip(self._joints, floats, quantized, strict=True)):
            if joint.axis is None or not _are_values(x, y) or x.ndim <= joint.axis:
                continue
            if x.shape[joint.axis] != joint.size:
                continue  # as many as the data decide, such as boxes that are left after a suppression
            if joint.size <= COLUMNS:
                found[f"column.{i}"] = _compare_columns(x, y, joint.axis)
            elif joint.parts:
                found[f"operand.{i}"] = _compare_parts(x, y, joint)
        return found

    def of_given(
        self, kind: str, outside: Sequence[Array | None], floats: Sequence[Array], quantized: Sequence[Array]
    ) -> dict[str, Comparison]:
        """Given outputs: the float model against the framework's, and the device's against the quantized model.

        Raises:
            DataError: Shapes differ.
        """
        found = {}
        for i, (given, *own) in enumerate(zip(outside, floats, quantized, strict=True)):
            if given is None:
                continue
            x, y = (given, own[0]) if kind == "reference" else (own[1], given)
            if not comparable(x, y):
                rows = [(OPTIONS[kind], shape_text(given.shape)), (f"model {self._names[i]}", shape_text(own[0].shape))]
                raise DataError("given outputs do not have the shape of the model's", where=aligned_rows(*rows))
            found[f"{kind}.{i}"] = compare_outputs(x, y, self._axes[i], classes=self._classes and i == 0)
        return found

    def of_stage(self, key: str, first: Sequence[Array], other: Sequence[Array]) -> dict[str, Comparison]:
        """The outputs of one stage against those of another; outputs of different shapes are left out."""
        return {
            f"{key}.{i}": compare_outputs(x, y, axis, classes=self._classes and i == 0)
            for i, (x, y, axis) in enumerate(zip(first, other, chain(self._axes, repeat(None)), strict=False))
            if comparable(x, y)
        }


def same_outputs(a: Sequence[Array], b: Sequence[Array]) -> bool:
    """Bit-equal, NaN equal to NaN."""
    return all(_is_equal_output(x, y) for x, y in zip(a, b, strict=True))


def _is_equal_output(x: Array, y: Array) -> bool:
    """Sequences and maps, which runtimes return as Python objects, are not compared."""
    if not isinstance(x, np.ndarray) or not isinstance(y, np.ndarray):
        return True
    return np.array_equal(x, y, equal_nan=x.dtype.kind == "f")


def output_difference(a: Sequence[Array], b: Sequence[Array]) -> float:
    """Largest change of an output over its largest magnitude; infinite where that is 0 or not finite, or of another
    shape.
    """
    return max((_largest_change(x, y) for x, y in zip(a, b, strict=True) if not _is_equal_output(x, y)), default=0.0)


def _largest_change(x: Array, y: Array) -> float:
    before, after = np.asarray(x, np.float64), np.asarray(y, np.float64)
    if before.shape != after.shape:
        return np.inf
    finite = np.isfinite(before) & np.isfinite(after)
    top = float(np.abs(before[finite]).max(initial=0.0))
    if not np.array_equal(np.isfinite(before), np.isfinite(after)) or top == 0.0:
        return np.inf
    return float(np.abs(after - before)[finite].max()) / top


def column_axis(shape: Sequence[int | None] | None) -> int | None:
    """The axis whose entries mean different things: the shorter one, unless it has very many."""
    size, axis = shorter_axis(shape)
    return axis if 1 < size <= MAX_COLUMNS else None


def thin_out(x: Array) -> Array:
    """Evenly spread elements of every sample, ``[samples, elements]``: the same ones however samples are batched."""
    rows = x.reshape(len(x), -1)
    size = rows.shape[1]
    step = -(-size // ELEMENTS)
    # Without a common factor no axis is visited at some of its places only.
    while step > 1 and math.gcd(step, size) > 1:
        step += 1
    return rows[:, ::step]


def comparable(x: object, y: object) -> bool:
    """Two arrays of numbers of one shape; runtimes return sequences and maps as other objects."""
    if not isinstance(x, np.ndarray) or not isinstance(y, np.ndarray):
        return False
    return all(a.dtype.kind in "fiub" and a.ndim for a in (x, y)) and x.shape == y.shape


def _are_values(x: Array, y: Array) -> bool:
    """Two comparable arrays that hold no codes."""
    return comparable(x, y) and {x.dtype.kind, y.dtype.kind} == {"f"}


def compare_outputs(x: Array, y: Array, axis: int | None, *, classes: bool = False) -> Comparison:
    """What one batch tells of two arrays of one shape, samples along axis 0.

    Args:
        x: The standard.
        y: What is held against it.
        axis: Axis of the columns; None for one column.
        classes: Both hold class scores.
    """
    a, b = (_columns(v, axis) for v in (x, y))
    finite = np.isfinite(a) & np.isfinite(b)
    bad = np.logical_not(finite).sum(axis=1)
    if bad.any():
        a, b = (np.where(finite, v, 0.0) for v in (a, b))
    count = finite.sum(axis=1).astype(np.float64)
    known = np.maximum(count, 1.0)
    means = [v.sum(axis=1) / known for v in (a, b)]
    from_a, from_b = ((v - m[:, np.newaxis]) * finite for v, m in zip((a, b), means, strict=True))
    d = b - a
    values: dict[str, Floats] = {
        "count": count,
        "mean_x": means[0],
        "mean_y": means[1],
        "m2_x": _dot(from_a, from_a),
        "m2_y": _dot(from_b, from_b),
        "cross": _dot(from_a, from_b),
        "square": _dot(d, d),
        "power": _dot(a, a),
        "max": np.abs(d).max(axis=1, initial=0.0),
        "peak": np.abs(a).max(axis=1, initial=0.0),
        "nonfinite": bad.astype(np.float64),
    }
    return Comparison(np.stack([values[name] for name in FIELDS], axis=-1), _votes(x, y, classes))


def added_noise_ratio(floats: Sequence[Array], plain: Sequence[Array], executed: Sequence[Array]) -> float | None:
    """Largest ratio over the outputs of the noise that kernels add to the noise of quantization itself.

    Args:
        floats: Outputs of the float model.
        plain: Outputs of the quantized model as it is written.
        executed: Outputs of the quantized model as it is run.

    Returns:
        mean (executed - plain)² / mean (plain - floats)²; None where quantization makes no noise.
    """
    found, against = [], []
    for x, written, y in zip(floats, plain, executed, strict=True):
        if comparable(written, y) and comparable(x, written):
            found.append(compare_outputs(written, y, None))
            against.append(compare_outputs(x, written, None))
    return noise_ratio(found, against)


def _compare_columns(x: Array, y: Array, axis: int) -> Comparison:
    """By columns: of very large outputs some elements of each, the same ones however samples are batched."""
    x, y = (np.moveaxis(v, axis, 1).reshape(len(v), v.shape[axis], -1) for v in (x, y))
    step = -(-x[0].size // COLUMN_ELEMENTS)
    return compare_outputs(x[:, :, ::step], y[:, :, ::step], 1)


def _compare_parts(x: Array, y: Array, joint: Joint) -> Comparison:
    """By operands."""
    assert joint.axis is not None
    tables = []
    for part in joint.parts:
        place = (slice(None),) * joint.axis + (slice(part.start, part.stop),)
        tables.append(compare_outputs(x[place], y[place], None).table)
    return Comparison(np.concatenate(tables), _votes(x, y, classes=False))


def _columns(x: Array, axis: int | None) -> Floats:
    """``[columns, values]`` in float64."""
    moved = x.reshape(1, -1) if axis is None else np.moveaxis(x, axis, 0).reshape(x.shape[axis], -1)
    return moved.astype(np.float64)


def _dot(a: Floats, b: Floats) -> Floats:
    products: Floats = np.einsum("ij,ij->i", a, b)
    return products


def _votes(x: Array, y: Array, classes: bool) -> NDArray[np.int64]:
    votes = dict.fromkeys(VOTES, 0)
    votes["samples"] = len(x)
    scores = [class_scores(v, len(x), kinds="fiu") for v in (x, y)] if classes else []
    if scores and scores[0] is not None and scores[1] is not None:
        votes["classified"] = len(x)
        votes["same"] = int((scores[0].argmax(axis=1) == scores[1].argmax(axis=1)).sum())
    return np.array([votes[name] for name in VOTES], np.int64)
