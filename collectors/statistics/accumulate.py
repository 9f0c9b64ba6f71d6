"""One data set's accumulators: what each batch adds to the statistics, the sample table and the features."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.metrics.metric import Metric
from quantmedic.collectors.metrics.sample_tallies import is_one_hot
from quantmedic.collectors.pair.quantizer import Deployed, Quantizer, Rounding
from quantmedic.collectors.statistics import numba_loops as kernels
from quantmedic.collectors.statistics.label_turns import SAMPLES, turns_of
from quantmedic.collectors.statistics.spatial import is_image, spatial_sums
from quantmedic.engine.case.output_comparison import ORDER, Comparison
from quantmedic.engine.case.statistics import (
    BUCKETS,
    FEATURES,
    LATTICE_POINTS,
    SAMPLE_DTYPE,
    SetStatistics,
    union_lattice,
)
from quantmedic.engine.case.tallies import Tally
from quantmedic.engine.case.thumbnails import SIDE, THUMBNAIL_DTYPE, TYPICAL, Table, Thumbnails, places_to_keep
from quantmedic.engine.errors import QuantmedicError

Array = NDArray[np.generic]
S = TypeVar("S", bound=np.generic)
Float32 = NDArray[np.float32]
_PROJECTION_SEED = 20240117
#: Shorter rows are gathered per channel before they are measured.
SHORT_ROW = 16
COPIED = ("hash", "deviation", "saturated", "nonfinite")


class SetAccumulator:
    """Adds batches to a ``SetStatistics``; ``finish`` returns it with its sample table."""

    def __init__(
        self, statistics: SetStatistics, metric: Metric | None, *, classes: bool, thumbnails: bool = True
    ) -> None:
        self._statistics, self._metric, self._classes = statistics, metric, classes
        self._keeps_thumbnails = thumbnails
        self._rows: list[NDArray[np.void]] = []
        self._tallies: dict[str, list[Tally]] = {"float": [], "quantized": []}
        self._labels: Array | None = None
        self._projection: NDArray[np.float64] | None = None
        self._views = [statistics.tensor(i) for i in range(len(statistics.channels))]
        self.begun = self.ended = len(statistics.samples)

    def begin(self, rows: NDArray[np.void], labels: Array | None) -> None:
        """Open a batch: the table that ``sample_rows`` made of its inputs and labels."""
        self._rows.append(rows)
        self._labels = labels
        self.begun += len(rows)

    def show(self, x: Array, image: tuple[str, int] | None) -> None:
        """Keep small versions of what reports show of the inputs ``x`` of this batch."""
        if self._keeps_thumbnails and image is not None and x.dtype.kind == "f" and is_image(x.shape, image[1]):
            self._statistics.thumbnails = with_batch(self._statistics.thumbnails, self._rows[-1], x, image[1])

    def inputs(self, x: Array, image: tuple[str, int] | None) -> None:
        """Which values the inputs ``x`` of this batch take, and how neighbours relate where they are images."""
        if image is None or x.dtype.kind != "f":
            return
        self._lattice(x, image[1])
        if is_image(x.shape, image[1]):
            np.add.at(self._statistics.spatial, buckets_of(self._rows[-1]), spatial_sums(x, image[1]))

    def _lattice(self, x: Array, axis: int) -> None:
        known = self._statistics.lattice
        for c in range(len(known)):
            if len(known[c]) > LATTICE_POINTS:
                continue
            values = np.ascontiguousarray(x if axis == 0 else np.take(x, c, axis=axis), np.float32).reshape(-1)
            known[c] = union_lattice(known[c], kernels.distinct(values, LATTICE_POINTS + 1))

    def outputs(self, floats: Sequence[Array], quantized: Sequence[Array], names: Sequence[str]) -> None:
        """Predictions, margins, ties and the task metric of this batch."""
        rows = self._rows[-1]
        for key, arrays in (("bad_float", floats), ("bad_quantized", quantized)):
            rows[key] = np.any([_nonfinite_rows(array, len(rows)) for array in arrays], axis=0) if arrays else 0
        scores = class_scores(floats[0], len(rows)) if self._classes and floats else None
        other = class_scores(quantized[0], len(rows), kinds="fiu") if scores is not None else None
        if scores is not None and other is not None:
            rows["class_float"], rows["class_quantized"] = scores.argmax(axis=1), other.argmax(axis=1)
            best, second = np.partition(scores, -2, axis=1)[:, :-3:-1].T
            rows["margin"] = best - second
            top, next_ = np.partition(other, -2, axis=1)[:, :-3:-1].T
            rows["tie"] = top == next_
        if self._metric is not None and self._labels is not None:
            for key, values in (("float", floats), ("quantized", quantized)):
                found = self._metric.tally(dict(zip(names, values, strict=True)), self._labels)
                if self._metric.kind.is_mean:
                    rows[f"metric_{key}"] = found.values[:, 0]
                else:
                    self._tallies[key].append(found)
            if self._metric.kind.is_mean and self.begun <= SAMPLES + len(rows):
                self._read_in_other_orders(dict(zip(names, floats, strict=True)), self._metric, self._labels)

    def _read_in_other_orders(self, outputs: Mapping[str, Array], metric: Metric, labels: Array) -> None:
        """What the float model's metric is where the labels are read in other orders, of the first samples.

        A metric that takes no labels in some order, as boxes whose classes became corners, says nothing of that one.
        """
        for name, turned in turns_of(labels):
            with suppress(QuantmedicError):
                found = Comparison.empty(1).with_metric(metric.tally(outputs, turned).values[:, 0])
                self.compare({f"{ORDER}{name}.0": found})

    def features(self, values: Array, n: int) -> None:
        """Add the projected features of a batch to their mean and second moment."""
        vectors = self._project(values, n)
        self._statistics.feature_count += len(vectors)
        self._statistics.feature_sum += vectors.sum(axis=0)
        self._statistics.feature_outer += vectors.T @ vectors

    def flipped_features(self, values: Array, n: int) -> None:
        """The same for channel-reversed inputs; only their mean is kept."""
        vectors = self._project(values, n)
        self._statistics.flipped_count += len(vectors)
        self._statistics.flipped_sum += vectors.sum(axis=0)

    def _project(self, values: Array, n: int) -> NDArray[np.float64]:
        """One vector per sample: spatial mean, then a fixed random projection to ``FEATURES`` dimensions."""
        if values.shape[0] != n:
            return np.zeros((0, FEATURES))
        x = np.asarray(values, np.float64)
        x = x.mean(axis=tuple(range(2, x.ndim))) if x.ndim > 2 else x.reshape(n, -1)
        x = x[np.isfinite(x).all(axis=1)]
        width = x.shape[1]
        self._statistics.feature_width = self._statistics.feature_width or width
        if width != self._statistics.feature_width:  # features over an axis that depends on the data cannot be compared
            return np.zeros((0, FEATURES))
        if width <= FEATURES:
            return np.pad(x, ((0, 0), (0, FEATURES - width)))
        if self._projection is None:
            rng = np.random.default_rng(_PROJECTION_SEED)
            self._projection = rng.standard_normal((width, FEATURES)) / np.sqrt(FEATURES)
        return x @ self._projection

    def tensor(
        self,
        i: int,
        rows: Float32,
        samples: int,
        slots: NDArray[np.int64] | None,
        rounding: Rounding | None,
        deployed: Deployed | None,
    ) -> None:
        """Add what a batch tells of one tensor.

        Args:
            i: Index of the tensor.
            rows: Its values in the float model as ``as_rows`` arranges them.
            samples: Samples in the batch.
            slots: Slot of each sample, as ``slots_of`` gives them; None where the first axis holds no samples.
            rounding: Its grid, where it is quantized on a fixed one.
            deployed: Its values in the quantized model, arranged alike, where they are seen.
        """
        buckets = None if slots is None else slots % BUCKETS
        ends = kernels.observe(rows, self._views[i], _buckets_of(rows, buckets), rounding, deployed)
        self._statistics.tensor_samples[i] += samples
        if slots is not None:
            self._sample_ranges(i, ends.reshape(2, samples, -1), slots)

    def _sample_ranges(self, i: int, ends: NDArray[np.float64], slots: NDArray[np.int64]) -> None:
        """Add the range of every sample with a finite value; ``ends`` holds the extremes of its parts."""
        low, high = ends[0].min(axis=1), ends[1].max(axis=1)
        np.minimum.at(self._statistics.slot_min[i], slots, low.astype(np.float32))
        np.maximum.at(self._statistics.slot_max[i], slots, high.astype(np.float32))
        width = high - low
        known = width[width >= 0]
        self._statistics.sample_width[i] += known.sum()
        self._statistics.sample_count[i] += len(known)

    def step_error(self, i: int, x: Float32, y: Float32) -> None:
        """Add a ``step`` error, both tensors as ``as_rows`` arranges them."""
        kernels.observe_error(x, y, self._views[i], "step")

    def codes(self, slot: int, codes: Array, columns: int, quantizer: Quantizer) -> None:
        """Mark the codes that an output uses, per column of its last axis."""
        table = np.asarray(codes).reshape(-1, columns).astype(np.int64) - quantizer.qmin
        used = self._statistics.codes[slot]
        used[np.broadcast_to(np.arange(columns), table.shape).ravel(), table.ravel()] = True

    def compare(self, found: Mapping[str, Comparison]) -> None:
        """Add what a batch tells of pairs of outputs, by their key in ``SetStatistics.comparisons``."""
        known = self._statistics.comparisons
        for key, comparison in found.items():
            known[key] = known[key].merge(comparison) if key in known else comparison

    def device(self, outputs: Sequence[Array | None], names: Sequence[str]) -> None:
        """The task metric of the device's outputs, with the first of their comparisons.

        Nothing where the metric is no mean over samples, or an output was not given.
        """
        if self._metric is None or not self._metric.kind.is_mean or self._labels is None:
            return
        known = {name: array for name, array in zip(names, outputs, strict=False) if array is not None}
        if len(known) < len(names):
            return
        key, found = "device.0", self._metric.tally(known, self._labels)
        self._statistics.comparisons[key] = self._statistics.comparisons[key].with_metric(found.values[:, 0])

    def knows(self, key: str) -> bool:
        """Whether a pair of outputs was compared already."""
        return key in self._statistics.comparisons

    def end(self, samples: int) -> None:
        """Close a batch: everything that it tells has been added."""
        self.ended += samples

    def finish(self) -> SetStatistics:
        """The statistics with the sample table attached."""
        statistics = self._statistics
        before = Tally.not_measured(len(statistics.samples))
        for key, parts in self._tallies.items():
            if parts:
                statistics.tallies[key] = Tally.join([statistics.tallies.get(key, before), *parts])
                parts.clear()
        statistics.samples = np.concatenate([statistics.samples, *self._rows])
        self._rows = []
        return self._statistics


def sample_rows(x: Array, labels: Array | None) -> NDArray[np.void]:
    """The sample table of a batch of inputs ``[samples, ...]``, as far as it needs no model."""
    rows = np.zeros(len(x), SAMPLE_DTYPE)
    rows["class_float"] = rows["class_quantized"] = rows["label"] = -1
    rows["metric_float"] = rows["metric_quantized"] = rows["margin"] = np.nan
    rows["hash"] = [content_hash(sample) for sample in x]
    if labels is not None and labels.ndim == 1 and labels.dtype.kind in "iu":
        rows["label"] = labels
    elif labels is not None and is_one_hot(labels):
        rows["label"] = labels.argmax(axis=1)
    if x.dtype.kind == "f":
        flat = np.ascontiguousarray(x, np.float32).reshape(len(x), -1)
        rows["mean"], rows["deviation"], rows["saturated"], rows["nonfinite"] = kernels.sample_moments(flat)
    return rows


def buckets_of(rows: NDArray[np.void]) -> NDArray[np.int64]:
    """Bucket of each sample of a table."""
    return (rows["hash"] % BUCKETS).astype(np.int64)


def content_hash(sample: Array) -> int:
    """64-bit hash of a sample's bytes; SHA-256, for processors compute it several times faster than other hashes."""
    return int.from_bytes(hashlib.sha256(np.ascontiguousarray(sample).data).digest()[:8], "little")


def as_rows(x: NDArray[S], axis: int | None) -> NDArray[S]:
    """Contiguous ``[outer, channels, inner]``; without a channel axis, one channel per sample.

    Where the channels come last, rows would be single numbers: they are gathered into one long row per channel.
    """
    if axis is None:
        return np.ascontiguousarray(x).reshape(x.shape[0] if x.ndim else 1, 1, -1)
    outer, channels = math.prod(x.shape[:axis]), x.shape[axis]
    view = np.ascontiguousarray(x).reshape(outer, channels, -1)
    if view.shape[2] >= SHORT_ROW or outer == 1 or channels == 1:
        return view
    return np.ascontiguousarray(view.transpose(1, 0, 2)).reshape(1, channels, -1)


def _buckets_of(rows: NDArray[np.float32], buckets: NDArray[np.int64] | None) -> NDArray[np.int64]:
    """Bucket per outer row; for gathered rows the bucket of each sample, whose values lie side by side."""
    outer = rows.shape[0]
    if buckets is None:
        return np.full(outer, -1, np.int64)
    return np.repeat(buckets, outer // len(buckets)) if outer >= len(buckets) else buckets


def _nonfinite_rows(output: Array, n: int) -> NDArray[np.bool_]:
    """Samples with a non-finite value in an output; all of them where its rows are no samples."""
    if output.dtype.kind != "f":
        return np.zeros(n, np.bool_)
    if output.ndim == 0 or output.shape[0] != n:
        return np.full(n, not np.isfinite(output).all())
    return np.logical_not(np.isfinite(output.reshape(n, -1)).all(axis=1))


def class_scores(output: Array, n: int, kinds: str = "f") -> NDArray[np.float64] | None:
    """Class scores ``[n, classes]`` where the output looks like them; ``kinds="fiu"`` takes codes of scores as well."""
    if not isinstance(output, np.ndarray) or output.dtype.kind not in kinds or output.ndim < 2 or output.shape[0] != n:
        return None
    scores = output.reshape(n, -1)
    one_axis = max(output.shape[1:]) == scores.shape[1]
    if not one_axis or scores.shape[1] < 2:
        return None
    lowest = float(np.finfo(np.float32).min)
    return np.nan_to_num(scores.astype(np.float64), nan=lowest, neginf=lowest, posinf=-lowest)


def with_batch(known: Thumbnails, rows: NDArray[np.void], x: Array, axis: int) -> Thumbnails:
    """The thumbnails of a set with those that a batch of images adds.

    Args:
        known: What was kept before.
        rows: The sample table of the batch.
        x: Its images, ``[samples, channels, height, width]`` or ``[samples, height, width, channels]``.
        axis: Their channel axis, 1 or 3.
    """
    if _none_is_kept(known, rows):
        return known
    table = np.zeros(len(rows), THUMBNAIL_DTYPE)
    for column in COPIED:
        table[column] = rows[column]
    table, before = np.concatenate([known.table, table]), len(known.table)
    places = places_to_keep(table)
    pixels = []
    for place in places:
        if place < before:
            pixels.append(known.pixels[place])
            continue
        small, table["scale"][place] = shrunk(x[place - before], axis - 1)
        pixels.append(small)
    return Thumbnails(table[places], pixels)


def _none_is_kept(known: Thumbnails, rows: Table) -> bool:
    """A glance at a batch, most of which add nothing: none of its samples can be among those that are kept."""
    table = known.table
    if len(table) < TYPICAL or table["nonfinite"].any() or not table["deviation"].min() > 0:
        return False
    top = table["saturated"].max()
    rivals = rows[rows["saturated"] >= top]
    return bool(
        rows["hash"].min() > table["hash"][TYPICAL - 1]
        and not rows["nonfinite"].any()
        and rows["deviation"].min() > table["deviation"].min()
        and (rivals["saturated"] == top).all()
        and (rivals["hash"] > table["hash"][table["saturated"] == top].min()).all()
    )


def shrunk(image: Array, axis: int) -> tuple[NDArray[np.float16], float]:
    """An image as means over squares of whole pixels, so that no side exceeds ``SIDE``.

    Squares at the right and lower border may be cut off. A square with a non-finite value is not finite.

    Args:
        image: ``[channels, height, width]`` or ``[height, width, channels]``.
        axis: The channel axis, 0 or 2.

    Returns:
        ``[height, width, channels]`` and the power of two that it was divided by, so that it fits float16.
    """
    planes = np.moveaxis(image, axis, -1)
    step = -(-max(planes.shape[:2]) // SIDE)
    with np.errstate(invalid="ignore"):
        means = _means(_means(planes, 0, step), 1, step)
    largest = float(np.abs(means, where=np.isfinite(means), out=np.zeros_like(means)).max(initial=0.0))
    scale = math.ldexp(1.0, max(min(math.frexp(largest)[1], 126), -126)) if largest else 1.0
    return (means / scale).astype(np.float16), scale


def _means(x: Array, axis: int, step: int) -> NDArray[np.float64]:
    """Means of ``step`` neighbours along an axis; the last may be of fewer."""
    size = x.shape[axis]
    starts = np.arange(0, size, step)
    counts = np.minimum(starts + step, size) - starts
    sums: NDArray[np.float64] = np.add.reduceat(x, starts, axis=axis, dtype=np.float64)
    return sums / counts.reshape([-1 if i == axis else 1 for i in range(x.ndim)])
