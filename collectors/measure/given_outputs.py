"""Outputs that were computed elsewhere, by the training framework or on the device, read beside the validation data."""

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.arrays import (
    Column,
    Rows,
    as_array,
    first_bytes,
    memory_column,
    npy_column,
    npz_columns,
    objects_refused,
)
from quantmedic.collectors.data.messages import did_you_mean, missing, shape_text, table
from quantmedic.collectors.from_onnx.models import Models
from quantmedic.collectors.measure.accumulate import class_scores
from quantmedic.engine.case.comparison import FIELDS, VOTES, Comparison
from quantmedic.engine.errors import DataError

Array = NDArray[Any]
Numbers = NDArray[np.int64]
Floats = NDArray[np.float64]
#: Kinds of given outputs, with the option that gives them.
OPTIONS = {"reference": "--reference-outputs", "device": "--device-outputs"}
#: Elements of a sample's output that are compared where only the line through them matters.
ELEMENTS = 4096
#: More columns of an output are not held apart.
MAX_COLUMNS = 4096


class References:
    """Given outputs, a block of samples at a time.

    Attributes:
        kind: ``reference`` or ``device``.
        origin: Name of the file, without its folder.
        samples: Number of samples in it.
    """

    def __init__(self, source: Any, kind: str, models: Models, samples: int | None, limit: int | None) -> None:
        """Open the outputs and check what can be checked without reading them.

        Args:
            source: Path of an ``.npz`` or ``.npy``, a mapping of output names to arrays, or an array.
            kind: ``reference`` or ``device``.
            models: Both models, whose outputs these are.
            samples: Samples of the validation set; None where only a full pass tells.
            limit: Samples of the set that are read at most.

        Raises:
            DataError: The file cannot be read, or names, shapes or sample counts do not fit.
        """
        self.kind, self.option = kind, OPTIONS[kind]
        self.origin, columns = _open(source, self.option)
        self._columns = _by_output(columns, models, self.option)
        self.samples = self._check(models, samples, limit)
        self._readers: dict[int, _Reader] = {}

    def take(self, numbers: Numbers | None) -> list[Array | None]:
        """Outputs of these samples, by position; None for one that was not given.

        Raises:
            DataError: There are fewer outputs than samples.
        """
        assert numbers is not None, "every data set numbers its samples"
        if len(numbers) and int(numbers.max()) >= self.samples:
            raise _count_error(self.option, self.origin, self.samples, f"at least {int(numbers.max()) + 1}")
        found: list[Array | None] = []
        for i, column in enumerate(self._columns):
            if column is None:
                found.append(None)
                continue
            reader = self._readers.get(i)
            if reader is None or not reader.reaches(numbers):
                reader = self._readers[i] = _Reader(column)
            found.append(reader.take(numbers))
        return found

    def _check(self, models: Models, samples: int | None, limit: int | None) -> int:
        counts = {column.found.shape[0] if column.found.shape else 0 for column in self._columns if column is not None}
        if len(counts) > 1:
            rows = [column.found.where for column in self._columns if column is not None]
            raise DataError(f"arrays of {self.option} hold different numbers of samples", where=table(*rows))
        for (position, _), column in zip(models.match.outputs, self._columns, strict=True):
            if column is not None:
                _check_shape(column, models, models.float_graph.outputs[position], self.option)
        count = counts.pop()
        # Where only the first samples are read, outputs of these are enough.
        needed = samples if limit is None or samples is None else min(samples, limit)
        if needed is not None and count != samples and not (limit is not None and count >= needed):
            raise _count_error(self.option, self.origin, count, str(samples))
        return count


class _Reader:
    """Reads a column once from front to back, as the samples are asked for: compressed files cannot do otherwise."""

    def __init__(self, column: Column) -> None:
        self._wanted: deque[Rows] = deque()
        self._blocks = column.blocks(self._asked())
        self._next = 0

    def reaches(self, numbers: Numbers) -> bool:
        """The samples lie ahead."""
        return not len(numbers) or int(numbers[0]) >= self._next

    def take(self, numbers: Numbers) -> Array:
        ascending = np.arange(numbers[0], numbers[-1] + 1)
        together = np.array_equal(numbers, ascending)
        self._wanted.append(slice(int(numbers[0]), int(numbers[-1]) + 1) if together else numbers)
        self._next = int(numbers[-1]) + 1
        return next(self._blocks)

    def _asked(self) -> Iterator[Rows]:
        while self._wanted:
            yield self._wanted.popleft()


def _open(source: Any, option: str) -> tuple[str, dict[str, Column]]:
    if isinstance(source, str | Path):
        path = Path(source).expanduser()
        if not path.is_file():
            raise missing(path, f"file of {option}", otherwise="")
        start = first_bytes(path)
        if start.startswith(b"\x93NUMPY"):
            return path.name, {"": npy_column(path)}
        if start.startswith(b"PK"):
            return path.name, npz_columns(path)
        raise DataError(
            f"the file of {option} is of a kind that is not known",
            where=str(path),
            help="save the outputs with numpy.savez(path, output_name=array), samples along axis 0",
        )
    if isinstance(source, Mapping):
        return "arrays", {str(name): memory_column(str(name), as_array(v, option)) for name, v in source.items()}
    return "array", {"": memory_column("", as_array(source, option))}


def _by_output(columns: Mapping[str, Column], models: Models, option: str) -> list[Column | None]:
    """The column of each pair of outputs, by either model's name; a single array fits a single output."""
    pairs = models.match.outputs
    names = [(models.float_graph.outputs[i], models.quantized.outputs[j]) for i, j in pairs]
    if len(columns) == 1 and len(names) == 1:
        return [next(iter(columns.values()))]
    known = {name: k for k, own in reversed(list(enumerate(names))) for name in reversed(own)}
    found: list[Column | None] = [None] * len(names)
    for name, column in columns.items():
        if name not in known:
            listed = ", ".join(own for own, _ in names)
            shown = f"array  {name or 'without a name'}{did_you_mean(name, known)}"
            raise DataError(
                f"an array of {option} is named after no output of the models",
                where=[shown, f"models  {listed or 'no output that both have'}"],
                help="save the outputs with numpy.savez(path, output_name=array)",
            )
        found[known[name]] = column
    if not any(column is not None for column in found):
        raise DataError(f"{option} holds no outputs", help="save them with numpy.savez(path, output_name=array)")
    return found


def _check_shape(column: Column, models: Models, name: str, option: str) -> None:
    if column.found.dtype.kind == "O":
        raise objects_refused(column.found)
    shape, expected = column.found.shape, models.shapes.get(name)
    if column.found.dtype.kind not in "fiub" or not shape:
        raise DataError(f"{option} holds no numbers for each sample", where="  ".join(column.found.where))
    if expected is None:
        return
    fits = len(shape) == len(expected) and all(
        e is None or e == s for e, s in zip(expected[1:], shape[1:], strict=True)
    )
    if not fits:
        rows = [column.found.where, ("model", name, shape_text((None, *expected[1:])))]
        raise DataError(
            f"outputs of {option} do not have the shape of the model's",
            where=table(*rows),
            help="save them as the model returns them, samples along axis 0",
        )


def _count_error(option: str, origin: str, count: int, samples: str) -> DataError:
    return DataError(
        f"{option} holds another number of samples than the validation data",
        where=[f"{origin}  {count} samples", f"validation  {samples} samples"],
        help="compute the outputs of the whole validation set, in its order",
    )


class Outputs:
    """Compares the outputs that both models have, column by column where they have a fixed number of columns."""

    def __init__(self, models: Models, *, classes: bool) -> None:
        self._names = [models.float_graph.outputs[i] for i, _ in models.match.outputs]
        self._axes = [column_axis(models.shapes.get(name)) for name in self._names]
        self._classes = classes

    def pairs(
        self, floats: Sequence[Array], quantized: Sequence[Array], *, whole: bool = False
    ) -> dict[str, Comparison]:
        """The quantized model's outputs, as they are returned, against the float model's: one column each.

        Of large outputs some elements of every sample tell enough, unless the ``whole`` is asked for.
        """
        found = {}
        for i, (x, y) in enumerate(zip(floats, quantized, strict=True)):
            if comparable(x, y):
                found[f"output.{i}"] = compared(*((x, y) if whole else (thinned(x), thinned(y))), None)
        return found

    def given(
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
                raise DataError("given outputs do not have the shape of the model's", where=table(*rows))
            found[f"{kind}.{i}"] = compared(x, y, self._axes[i], classes=self._classes and i == 0)
        return found

    def of_stage(self, key: str, first: Sequence[Array], other: Sequence[Array]) -> dict[str, Comparison]:
        """The outputs of one stage against those of another; outputs of different shapes are left out."""
        found = {}
        for i, (x, y) in enumerate(zip(first, other, strict=False)):
            if comparable(x, y):
                axis = self._axes[i] if i < len(self._axes) else None
                found[f"{key}.{i}"] = compared(x, y, axis, classes=self._classes and i == 0)
        return found


def column_axis(shape: Sequence[int | None] | None) -> int | None:
    """The axis whose entries mean different things: the shorter of axis 1 and the last one, if its length is fixed."""
    if shape is None or len(shape) < 2:
        return None
    fixed = [(size, axis) for axis in (1, len(shape) - 1) if (size := shape[axis])]
    size, axis = min(fixed, default=(0, 0))
    return axis if 1 < size <= MAX_COLUMNS else None


def thinned(x: Array) -> Array:
    """Evenly spread elements of every sample, ``[samples, elements]``: the same ones however samples are batched."""
    rows = x.reshape(len(x), -1)
    size = rows.shape[1]
    step = -(-size // ELEMENTS)
    # Without a common factor no axis is visited at some of its places only.
    while step > 1 and math.gcd(step, size) > 1:
        step += 1
    return rows[:, ::step]


def comparable(x: Any, y: Any) -> bool:
    """Two arrays of numbers of one shape."""
    arrays = all(isinstance(a, np.ndarray) and a.dtype.kind in "fiub" and a.ndim for a in (x, y))
    return arrays and x.shape == y.shape


def compared(x: Array, y: Array, axis: int | None, *, classes: bool = False) -> Comparison:
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


def with_metric(comparison: Comparison, values: Floats) -> Comparison:
    """The comparison with the task metric of ``y`` on the same samples."""
    votes = comparison.votes.copy()
    finite = np.isfinite(values)
    votes[VOTES.index("measured")] += int(finite.sum())
    return Comparison(comparison.table, votes, comparison.metric + float(values[finite].sum()))


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
