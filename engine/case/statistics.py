"""Statistics of one data set: columns that accumulate over its samples, and merge with those of another shard."""

from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantmedic.engine.case.histogram import BINS
from quantmedic.engine.case.output_comparison import ORDER, Comparison, is_of_ending
from quantmedic.engine.case.tallies import Tally
from quantmedic.engine.case.thumbnails import Thumbnails
from quantmedic.engine.errors import CaseError

#: Samples fall by content hash into this many buckets, so that halves of a set do not depend on its order.
BUCKETS = 16
#: They also fall into slots: half of a bucket's samples into its first, half of the others into the next, and so on.
#: Some of these hold about as many samples as any smaller set does, so that parts of that size can be put together.
LEVELS = 12
SLOTS = BUCKETS * LEVELS
#: Of samples with a bucket, those of the first so many are enough to show how deployed values are spread.
SHOWN_BUCKETS = 4
#: Columns of one kind of error: finite pairs, Σd, Σd², Σx·d, Σx².
ERROR_FIELDS = ("count", "sum", "square", "cross", "power")
ERROR_KINDS = ("rounding", "accumulated", "step")
#: Distinct input values are kept per channel up to this number: an 8-bit image has at most 256.
LATTICE_POINTS = 256
#: Extremes of fewer samples are not judged where the data set holds more.
EXTREME_SAMPLES = 32
#: Sums over the images of a bucket: how many, variance, squared first and second differences of neighbouring pixels,
#: and the variance and squared first differences that the same numbers have in the other layout.
SPATIAL = ("images", "power", "first", "second", "reread_first", "other_first")
#: Features are projected to this many dimensions, so that their covariance stays small.
FEATURES = 64
SAMPLE_DTYPE = np.dtype(
    [
        ("hash", "u8"),
        ("mean", "f4"),
        ("deviation", "f4"),
        ("saturated", "f4"),
        ("nonfinite", "i4"),
        ("bad_float", "i1"),
        ("bad_quantized", "i1"),
        ("label", "i4"),
        ("class_float", "i4"),
        ("class_quantized", "i4"),
        ("margin", "f4"),
        ("tie", "i1"),
        ("metric_float", "f8"),
        ("metric_quantized", "f8"),
    ]
)

#: Counts per bin, by tensor.
Histograms = Mapping[int, NDArray[np.int64]]
#: One row per sample, of ``SAMPLE_DTYPE``.
SampleTable = NDArray[np.void]
#: One value per channel: counts are int64, all else float64.
Column = NDArray[Any]


@dataclass
class TensorStatistics:
    """Views into the columns of one tensor; arrays are ``[channels]`` unless said otherwise.

    ``prepared`` belongs to the code that fills the columns: the same views in the form that it needs, kept between
    batches.
    """

    count: NDArray[np.int64]
    nonfinite: NDArray[np.int64]
    mean: NDArray[np.float64]
    m2: NDArray[np.float64]
    min: NDArray[np.float64]
    max: NDArray[np.float64]
    clipped: NDArray[np.int64]
    clipped_energy: NDArray[np.float64]
    deployed_min: NDArray[np.float64]
    deployed_max: NDArray[np.float64]
    errors: dict[str, dict[str, Column]]
    histogram: NDArray[np.int64]
    quantized_histogram: NDArray[np.int64]
    bucket_min: NDArray[np.float64]
    bucket_max: NDArray[np.float64]
    prepared: object = field(default=None, compare=False, repr=False)


ROW_COLUMNS: Mapping[str, tuple[type, float]] = {
    "count": (np.int64, 0),
    "nonfinite": (np.int64, 0),
    "mean": (np.float64, 0.0),
    "m2": (np.float64, 0.0),
    "min": (np.float64, np.inf),
    "max": (np.float64, -np.inf),
    "clipped": (np.int64, 0),
    "clipped_energy": (np.float64, 0.0),
    "deployed_min": (np.float64, np.inf),
    "deployed_max": (np.float64, -np.inf),
}
ERROR_COLUMNS: Mapping[str, type] = {
    "count": np.int64,
    "nonfinite": np.int64,
    "sum": np.float64,
    "square": np.float64,
    "cross": np.float64,
    "power": np.float64,
    "max": np.float64,
}
#: What the error of the weights does to each channel of an operator's output: values of the input per channel, and as
#: many times the mean and the mean square of the error that they predict. Filled when all data are read.
WEIGHT_COLUMNS: Mapping[str, type] = {
    "weights.count": np.int64,
    "weights.sum": np.float64,
    "weights.square": np.float64,
}
#: Accumulators of a set that add up, and those of which the least and the most count.
_ADDED = (
    *("feature_count", "feature_sum", "feature_outer", "flipped_count", "flipped_sum"),
    *("tensor_samples", "sample_width", "sample_count", "spatial"),
)
_LEAST, _MOST = ("bucket_min", "slot_min"), ("bucket_max", "slot_max")


@dataclass
class SetStatistics:
    """All accumulators of one data set; merging two sets' equals one pass over both.

    Per-channel columns are concatenated over the tensors: tensor ``t`` owns rows ``offsets[t]:offsets[t + 1]``.
    ``feature_width`` is the width of the features before they are projected, 0 before any was seen. ``comparisons``
    holds pairs of outputs by kind and position: ``output.0`` (float, quantized), ``column.0`` and ``operand.0`` (the
    same by the columns of the output, and by the operands that it is joined of), ``reference.0`` (given, float),
    ``device.0`` (quantized, given), ``stage.1.0`` (first stage, second) and ``step.2.0`` (second stage, third).
    ``slot_min`` and ``slot_max`` hold the extremes of the samples in each slot, see ``slots_of``; infinite where a slot
    is empty, and NaN where it was not measured.
    ``sample_width`` sums the range widths of ``sample_count`` single samples of each tensor. ``histograms`` count all
    finite values of the float model; ``quantized_histograms`` those of the deployed model, dequantized, of the samples
    in the first ``SHOWN_BUCKETS`` buckets, or of all where rows are no samples. ``tallies`` holds what a metric that is
    no mean keeps of every sample in the table, of the ``float`` and of the ``quantized`` model.
    """

    channels: NDArray[np.int64]
    columns: dict[str, Column]
    histograms: MutableMapping[int, NDArray[np.int64]]
    bucket_min: NDArray[np.float64]
    bucket_max: NDArray[np.float64]
    samples: SampleTable
    lattice: list[NDArray[np.float32]]
    feature_count: int
    feature_sum: NDArray[np.float64]
    feature_outer: NDArray[np.float64]
    flipped_count: int
    flipped_sum: NDArray[np.float64]
    feature_width: int
    codes: list[NDArray[np.bool_]]
    tensor_samples: NDArray[np.int64]
    sample_width: NDArray[np.float64]
    sample_count: NDArray[np.int64]
    slot_min: NDArray[np.float32]
    slot_max: NDArray[np.float32]
    spatial: NDArray[np.float64]
    comparisons: dict[str, Comparison] = field(default_factory=dict)
    quantized_histograms: MutableMapping[int, NDArray[np.int64]] = field(default_factory=dict)
    thumbnails: Thumbnails = field(default_factory=Thumbnails)
    tallies: dict[str, Tally] = field(default_factory=dict)
    offsets: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        self.offsets = np.concatenate([[0], np.cumsum(self.channels)]).astype(np.int64)

    @property
    def has_classes(self) -> bool:
        """The outputs of its samples were seen to be classes."""
        return bool((self.samples["class_float"] >= 0).any())

    @classmethod
    def empty(
        cls, channels: Iterable[int], lattices: int = 0, codes: Iterable[tuple[int, int]] = ()
    ) -> "SetStatistics":
        """Zeroed accumulators for tensors with the given numbers of channels.

        Args:
            channels: Rows per tensor, in the order of the tensor table.
            lattices: Channels of the first input whose distinct values are kept.
            codes: (columns, codes) of every network output that ends on an integer grid.
        """
        counts = np.fromiter(channels, np.int64)
        rows, tensors = int(counts.sum()), len(counts)
        columns: dict[str, Column] = {name: np.full(rows, start, dtype) for name, (dtype, start) in ROW_COLUMNS.items()}
        for kind in ERROR_KINDS:
            columns |= {f"{kind}.{name}": np.zeros(rows, dtype) for name, dtype in ERROR_COLUMNS.items()}
        columns |= {name: np.zeros(rows, dtype) for name, dtype in WEIGHT_COLUMNS.items()}
        return cls(
            channels=counts,
            columns=columns,
            histograms={},
            bucket_min=np.full((tensors, BUCKETS), np.inf),
            bucket_max=np.full((tensors, BUCKETS), -np.inf),
            samples=np.zeros(0, SAMPLE_DTYPE),
            lattice=[np.zeros(0, np.float32) for _ in range(lattices)],
            feature_count=0,
            feature_sum=np.zeros(FEATURES),
            feature_outer=np.zeros((FEATURES, FEATURES)),
            flipped_count=0,
            flipped_sum=np.zeros(FEATURES),
            feature_width=0,
            codes=[np.zeros(shape, np.bool_) for shape in codes],
            tensor_samples=np.zeros(tensors, np.int64),
            sample_width=np.zeros(tensors),
            sample_count=np.zeros(tensors, np.int64),
            slot_min=np.full((tensors, SLOTS), np.inf, np.float32),
            slot_max=np.full((tensors, SLOTS), -np.inf, np.float32),
            spatial=np.zeros((BUCKETS, len(SPATIAL))),
        )

    def rows(self, index: int) -> slice:
        """Rows of one tensor in the columns."""
        return slice(int(self.offsets[index]), int(self.offsets[index + 1]))

    def tensor(self, index: int) -> TensorStatistics:
        """Views of one tensor; writing to them changes the set."""
        rows = self.rows(index)
        columns = {name: self.columns[name][rows] for name in ROW_COLUMNS}
        errors = {kind: {n: self.columns[f"{kind}.{n}"][rows] for n in ERROR_COLUMNS} for kind in ERROR_KINDS}
        for histograms in (self.histograms, self.quantized_histograms):
            found = histograms.get(index)
            # Of those that a file holds one gets a copy: it has to be set, to be counted into.
            histograms[index] = np.zeros(BINS, np.int64) if found is None else found
        return TensorStatistics(
            **columns,
            errors=errors,
            histogram=self.histograms[index],
            quantized_histogram=self.quantized_histograms[index],
            bucket_min=self.bucket_min[index],
            bucket_max=self.bucket_max[index],
        )

    def _shapes(self) -> tuple[list[int], int, list[tuple[int, ...]]]:
        return self.channels.tolist(), len(self.lattice), [codes.shape for codes in self.codes]

    def merge(self, other: "SetStatistics") -> "SetStatistics":
        """Statistics of both sets together: exact for counts, extremes and histograms.

        Moments follow Chan, Golub and LeVeque (1979).

        Raises:
            CaseError: The sets were measured on different tensors, inputs or outputs.
        """
        self._require_same_measurement(other)
        a, b = self.columns, other.columns
        total = a["count"] + b["count"]
        share = np.divide(b["count"], total, out=np.zeros(len(total)), where=total > 0)
        delta = b["mean"] - a["mean"]
        columns = {name: a[name] + b[name] for name in a}
        columns |= {
            "mean": a["mean"] + delta * share,
            "m2": a["m2"] + b["m2"] + delta * delta * a["count"] * share,
        }
        columns |= {name: np.minimum(a[name], b[name]) for name in ("min", "deployed_min")}
        largest = ("max", "deployed_max", *(f"{kind}.max" for kind in ERROR_KINDS))
        columns |= {name: np.maximum(a[name], b[name]) for name in largest}
        return replace(
            self,
            columns=columns,
            **{name: getattr(self, name) + getattr(other, name) for name in _ADDED},
            **{name: np.minimum(getattr(self, name), getattr(other, name)) for name in _LEAST},
            **{name: np.maximum(getattr(self, name), getattr(other, name)) for name in _MOST},
            histograms=add_histograms(self.histograms, other.histograms),
            quantized_histograms=add_histograms(self.quantized_histograms, other.quantized_histograms),
            samples=np.concatenate([self.samples, other.samples]),
            lattice=[union_lattice(x, y) for x, y in zip(self.lattice, other.lattice, strict=True)],
            feature_width=self.feature_width or other.feature_width,
            codes=[x | y for x, y in zip(self.codes, other.codes, strict=True)],
            comparisons=_add_comparisons(self.comparisons, other.comparisons),
            thumbnails=self.thumbnails.merge(other.thumbnails),
            tallies={
                key: Tally.join([own.tallies.get(key, Tally.not_measured(len(own.samples))) for own in (self, other)])
                for key in sorted(self.tallies.keys() | other.tallies.keys())
            },
        )

    def _require_same_measurement(self, other: "SetStatistics") -> None:
        if self._shapes() != other._shapes():
            raise CaseError("the shards measured different tensors", help="merge only cases of the same two models")
        mine, theirs = _compared_outputs(self), _compared_outputs(other)
        if mine != theirs:
            raise CaseError(
                "the shards were compared with different outputs",
                where=[f"one    {', '.join(mine) or 'none'}", f"other  {', '.join(theirs) or 'none'}"],
                help="give --reference-outputs, --device-outputs and --stage for all shards or for none",
            )


def add_histograms(a: Histograms, b: Histograms) -> dict[int, NDArray[np.int64]]:
    """Histograms of both sets together."""
    zero = np.zeros(BINS, np.int64)
    return {i: a.get(i, zero) + b.get(i, zero) for i in sorted(a.keys() | b.keys())}


def _compared_outputs(statistics: SetStatistics) -> list[str]:
    """What has to be compared of all samples or of none, with the columns of each output.

    Labels in another order are no such thing: a metric may take them of some batches alone.
    """
    compared = [each for each in statistics.comparisons.items() if not each[0].startswith(ORDER)]
    return sorted(f"{key}[{len(found.table)}]" for key, found in compared if not is_of_ending(key))


def _add_comparisons(a: Mapping[str, Comparison], b: Mapping[str, Comparison]) -> dict[str, Comparison]:
    """Pairs of outputs of both sets together."""
    both = {key: mine.merge(b[key]) if key in b else mine for key, mine in a.items()}
    return both | {key: theirs for key, theirs in b.items() if key not in a}


def slots_of(samples: SampleTable) -> NDArray[np.int64]:
    """Slot of each sample of a table, by its content: the bucket is ``slot % BUCKETS``, the level ``slot // BUCKETS``.

    A level holds half of the samples that the levels before it leave, the last one all of the rest.
    """
    rest = samples["hash"] // np.uint64(BUCKETS)
    level = np.zeros(len(samples), np.int64)
    for bit in range(LEVELS - 1):
        level += rest % np.uint64(2 << bit) == 0
    return level * BUCKETS + (samples["hash"] % np.uint64(BUCKETS)).astype(np.int64)


def union_lattice(known: NDArray[np.float32], values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Sorted distinct values of both, cut off one past the limit: longer means "no lattice"."""
    return np.union1d(known, values).astype(np.float32)[: LATTICE_POINTS + 1]
