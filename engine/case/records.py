"""The case: everything measured of one pair of models, columnar, mergeable, independent of any framework."""

import hashlib
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from quantmedic.engine.case.comparison import Comparison
from quantmedic.engine.case.facts import (
    BiasFacts,
    ModelFacts,
    Pattern,
    QuantizerFacts,
    RecordedFacts,
    ReportedFacts,
    Role,
    WeightFacts,
)
from quantmedic.engine.case.histogram import BINS
from quantmedic.engine.case.proof import ProofRecord
from quantmedic.engine.case.thumbnails import Thumbnails
from quantmedic.engine.errors import CaseError
from quantmedic.engine.record import Record

CASE_SCHEMA = 3
#: ``mode`` in the run record of a case without data: models were read and not run.
STATIC = "static"
#: The same, and the framework, of a case that nothing but files of a toolchain tell of.
IMPORTED = "imported"
#: Channels and bins that are kept of an operator's weights.
WEIGHT_CHANNELS, WEIGHT_BINS = 256, 64
#: Samples fall by content hash into this many buckets, so that halves of a set do not depend on its order.
BUCKETS = 16
#: Of samples with a bucket, those of the first so many are enough to show how deployed values are spread.
SHOWN_BUCKETS = 4
#: Columns of one kind of error: finite pairs, Σd, Σd², Σx·d, Σx².
ERROR_FIELDS = ("count", "sum", "square", "cross", "power")
ERROR_KINDS = ("rounding", "accumulated", "operator", "step")
#: Distinct input values are kept per channel up to this number: an 8-bit image has at most 256.
LATTICE_POINTS = 256
#: Extremes of fewer samples are not judged where the data set holds more.
EXTREME_SAMPLES = 32
#: Sums over the images of a bucket: how many, variance, squared first and second differences of neighbouring pixels,
#: and the variance and squared first differences that the same numbers have in the other layout.
SPATIAL = ("images", "power", "first", "second", "other_power", "other_first")
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


class GateStep(Record):
    """One operator on the way from a tensor to its product with itself, and the grid that its result is rounded to.

    ``constants`` are its parameters; of Sub and Div, ``reverse`` tells that the constant comes first.
    """

    op_type: str
    constants: tuple[float, ...] = ()
    reverse: bool = False
    grid: tuple[float, float, float] | None = None


class GateRecord(Record):
    """A product of two functions of one tensor, as Swish and GELU become when they are exported in pieces.

    ``source`` is that tensor's index; ``names`` are the float names of the layers that compute the product.
    """

    source: int
    factors: tuple[tuple[GateStep, ...], tuple[GateStep, ...]]
    names: tuple[str, ...] = ()


class TensorRecord(Record):
    """One measured activation: its row range is ``channels`` long in every per-channel column."""

    name: str
    float_name: str
    producer: str
    producer_name: str | None
    consumers: tuple[str, ...]
    readers: tuple[str, ...] = ()
    axis: int | None
    channels: int
    bucketed: bool
    is_input: bool
    is_half: bool | None = None
    is_squared: bool | None = None
    quantizer: QuantizerFacts
    pattern: Pattern | None = None
    gate: GateRecord | None = None
    clip_low: float | None = None
    clip_high: float | None = None
    clip_lost: bool | None = None
    recorded: RecordedFacts = RecordedFacts()


class OperatorRecord(Record):
    """One operator of the quantized model without its quantizers; tensors by index into the tensor table.

    ``is_first`` and ``is_last`` are None where the order of execution is not known. ``attributes`` are the short ones,
    as text. ``sources`` are places of operators that feed this one through tensors that are not in the tensor table.
    """

    index: int
    name: str
    float_name: str | None
    quantized_name: str | None
    float_nodes: tuple[str, ...] | None = None
    op_type: str
    inputs: tuple[int | None, ...]
    outputs: tuple[int | None, ...]
    is_compute: bool
    is_first: bool | None
    is_last: bool | None
    executed_as: str | None
    weight: WeightFacts
    bias: BiasFacts
    attributes: dict[str, str] = Field(default_factory=dict)
    sources: tuple[int, ...] = ()
    operations: int | None = None
    time_ms: float | None = None
    reported: ReportedFacts = ReportedFacts()


class OutputRecord(Record):
    """One network output: the tensor measured for it, and the integer grid on which it ends."""

    name: str
    tensor: int | None
    quantizer: QuantizerFacts
    columns: int
    is_codes: bool | None = None


class DatasetRecord(Record):
    """Where one data set came from and how much of it was read.

    ``parts`` holds the samples read of each slice, where tensors take turns and each is measured on some slices only.
    """

    origin: str
    labelled: bool
    seen: int = 0
    complete: bool = True
    parts: tuple[int, ...] = ()


class RunRecord(Record):
    """One run of a network on the samples of a simulation: its noise per sample, and how often its class agrees."""

    noise: tuple[float, ...]
    agreement: float | None = None


class SimulationRecord(Record):
    """What the network's output would be under changed quantizers, on a part of one data set.

    ``power`` is the signal per sample, Σ over the judged outputs of the float values squared; ``noise`` of a run is the
    same of the differences. ``deployed`` is the real quantized model, ``simulated`` the float network with the same
    quantizers, ``runs`` the same with changed ones, by what was changed. Where the noise hides in few output columns of
    small values, only those are judged (``columns``).
    """

    dataset: Role
    power: tuple[float, ...]
    deployed: RunRecord
    simulated: RunRecord
    runs: dict[str, RunRecord] = Field(default_factory=dict)
    columns: int | None = None


class StageRecord(Record):
    """One model of the toolchain's way from float to quantized."""

    name: str
    is_quantized: bool


class ImportRecord(Record):
    """One file of a toolchain that a case was told by: what it is, what it told, and keys in it that are not known."""

    file: str
    format: str
    toolchain: str
    tells: tuple[str, ...] = ()
    lacks: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


class CaseRecord(Record):
    """The JSON half of a case.

    ``compared`` names the files whose outputs were compared, by kind: ``reference`` and ``device``.
    """

    schema_version: int = CASE_SCHEMA
    quantmedic_version: str
    model: ModelFacts
    tensors: tuple[TensorRecord, ...]
    operators: tuple[OperatorRecord, ...]
    outputs: tuple[OutputRecord, ...]
    input_tensor: int | None
    image_input: bool
    spatial_input: bool | None = None
    """Neighbours are measured, for samples are images; None in cases of versions that did not."""
    metric: str | None
    metric_higher_is_better: bool | None
    unmatched: tuple[str, ...]
    notices: tuple[str, ...]
    run: dict[str, Any]
    datasets: dict[Role, DatasetRecord] = Field(default_factory=dict)
    simulation: SimulationRecord | None = None
    stages: tuple[StageRecord, ...] = ()
    compared: dict[str, str] = Field(default_factory=dict)
    expected_float_metric: float | None = None
    proof: ProofRecord | None = None
    imports: tuple[ImportRecord, ...] = ()

    @classmethod
    def of_files(cls, **told: Any) -> "CaseRecord":
        """The record where no model was run: ``told`` is what files tell, and there are neither outputs nor data."""
        nothing: dict[str, Any] = {
            "tensors": (),
            "operators": (),
            "outputs": (),
            "input_tensor": None,
            "image_input": False,
            "metric": None,
            "metric_higher_is_better": None,
            "unmatched": (),
        }
        return cls(**nothing | told)


@dataclass
class TensorStatistics:
    """Views into the columns of one tensor; arrays are ``[channels]`` unless said otherwise.

    ``prepared`` is for whoever fills them: the same views in the form that it needs, kept between batches.
    """

    count: NDArray[np.int64]
    nonfinite: NDArray[np.int64]
    mean: NDArray[np.float64]
    m2: NDArray[np.float64]
    min: NDArray[np.float64]
    max: NDArray[np.float64]
    clipped: NDArray[np.int64]
    clipped_energy: NDArray[np.float64]
    errors: dict[str, dict[str, NDArray[Any]]]
    histogram: NDArray[np.int64]
    quantized_histogram: NDArray[np.int64]
    bucket_min: NDArray[np.float64]
    bucket_max: NDArray[np.float64]
    prepared: Any = field(default=None, compare=False, repr=False)


ROW_COLUMNS: Mapping[str, tuple[type, float]] = {
    "count": (np.int64, 0),
    "nonfinite": (np.int64, 0),
    "mean": (np.float64, 0.0),
    "m2": (np.float64, 0.0),
    "min": (np.float64, np.inf),
    "max": (np.float64, -np.inf),
    "clipped": (np.int64, 0),
    "clipped_energy": (np.float64, 0.0),
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


@dataclass
class SetStatistics:
    """All accumulators of one data set; merging two sets' equals one pass over both.

    Per-channel columns are concatenated over the tensors: tensor ``t`` owns rows ``offsets[t]:offsets[t + 1]``.
    ``feature_width`` is the width of the features before they are projected, 0 before any was seen. ``comparisons``
    holds pairs of outputs by kind and position: ``output.0`` (float, quantized), ``reference.0`` (given, float),
    ``device.0`` (quantized, given), ``stage.1.0`` (first stage, second) and ``step.2.0`` (second stage, third).
    ``sample_width`` sums the range widths of ``sample_count`` single samples of each tensor. ``histograms`` count all
    finite values of the float model; ``quantized_histograms`` those of the deployed model, dequantized, of the samples
    in the first ``SHOWN_BUCKETS`` buckets, or of all where rows are no samples.
    """

    channels: NDArray[np.int64]
    columns: dict[str, NDArray[Any]]
    histograms: MutableMapping[int, NDArray[np.int64]]
    bucket_min: NDArray[np.float64]
    bucket_max: NDArray[np.float64]
    samples: NDArray[Any]
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
    spatial: NDArray[np.float64]
    comparisons: dict[str, Comparison] = field(default_factory=dict)
    quantized_histograms: MutableMapping[int, NDArray[np.int64]] = field(default_factory=dict)
    thumbnails: Thumbnails = field(default_factory=Thumbnails)
    offsets: NDArray[np.int64] = field(init=False)

    def __post_init__(self) -> None:
        self.offsets = np.concatenate([[0], np.cumsum(self.channels)]).astype(np.int64)

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
        columns: dict[str, NDArray[Any]] = {
            name: np.full(rows, start, dtype) for name, (dtype, start) in ROW_COLUMNS.items()
        }
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
            spatial=np.zeros((BUCKETS, len(SPATIAL))),
        )

    def tensor(self, index: int) -> TensorStatistics:
        """Views of one tensor; writing to them changes the set."""
        rows = slice(int(self.offsets[index]), int(self.offsets[index + 1]))
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

    def _shapes(self) -> tuple[Any, ...]:
        return self.channels.tolist(), len(self.lattice), [codes.shape for codes in self.codes]

    def merge(self, other: "SetStatistics") -> "SetStatistics":
        """Statistics of both sets together: exact for counts, extremes and histograms.

        Moments follow Chan, Golub and LeVeque (1979).

        Raises:
            CaseError: The sets were measured on different tensors, inputs or outputs.
        """
        if self._shapes() != other._shapes():
            raise CaseError("the shards measured different tensors", help="merge only cases of the same two models")
        if _kinds(self) != _kinds(other):
            raise CaseError(
                "the shards were compared with different outputs",
                where=[f"one    {', '.join(_kinds(self)) or 'none'}", f"other  {', '.join(_kinds(other)) or 'none'}"],
                help="give --reference-outputs, --device-outputs and --stage for all shards or for none",
            )
        a, b = self.columns, other.columns
        total = a["count"] + b["count"]
        share = np.divide(b["count"], total, out=np.zeros(len(total)), where=total > 0)
        delta = b["mean"] - a["mean"]
        columns = {name: a[name] + b[name] for name in a}
        columns |= {
            "mean": a["mean"] + delta * share,
            "m2": a["m2"] + b["m2"] + delta * delta * a["count"] * share,
            "min": np.minimum(a["min"], b["min"]),
            "max": np.maximum(a["max"], b["max"]),
        }
        columns |= {f"{kind}.max": np.maximum(a[f"{kind}.max"], b[f"{kind}.max"]) for kind in ERROR_KINDS}
        return SetStatistics(
            channels=self.channels,
            columns=columns,
            histograms=_added(self.histograms, other.histograms),
            bucket_min=np.minimum(self.bucket_min, other.bucket_min),
            bucket_max=np.maximum(self.bucket_max, other.bucket_max),
            samples=np.concatenate([self.samples, other.samples]),
            lattice=[union_lattice(x, y) for x, y in zip(self.lattice, other.lattice, strict=True)],
            feature_count=self.feature_count + other.feature_count,
            feature_sum=self.feature_sum + other.feature_sum,
            feature_outer=self.feature_outer + other.feature_outer,
            flipped_count=self.flipped_count + other.flipped_count,
            flipped_sum=self.flipped_sum + other.flipped_sum,
            feature_width=self.feature_width or other.feature_width,
            codes=[x | y for x, y in zip(self.codes, other.codes, strict=True)],
            tensor_samples=self.tensor_samples + other.tensor_samples,
            sample_width=self.sample_width + other.sample_width,
            sample_count=self.sample_count + other.sample_count,
            comparisons={key: mine.merge(other.comparisons[key]) for key, mine in self.comparisons.items()},
            spatial=self.spatial + other.spatial,
            quantized_histograms=_added(self.quantized_histograms, other.quantized_histograms),
            thumbnails=self.thumbnails.merge(other.thumbnails),
        )


def _added(a: Mapping[int, NDArray[np.int64]], b: Mapping[int, NDArray[np.int64]]) -> dict[int, NDArray[np.int64]]:
    """Histograms of both sets together."""
    zero = np.zeros(BINS, np.int64)
    return {i: a.get(i, zero) + b.get(i, zero) for i in sorted(a.keys() | b.keys())}


def _kinds(statistics: SetStatistics) -> list[str]:
    """What was compared, with the columns of each output."""
    return sorted(f"{key}[{len(found.table)}]" for key, found in statistics.comparisons.items())


def union_lattice(known: NDArray[np.float32], values: NDArray[np.float32]) -> NDArray[np.float32]:
    """Sorted distinct values of both, cut off one past the limit: longer means "no lattice"."""
    return np.union1d(known, values).astype(np.float32)[: LATTICE_POINTS + 1]


@dataclass
class WeightArrays:
    """Weights of one operator as a reader looks at them; they are the same in all shards.

    Per output channel, at most ``WEIGHT_CHANNELS`` of them, those of the lowest SQNR: ``index``, extremes of the float
    and of the stored weights, ``sqnr_db``. ``floats`` and ``stored`` count all weights over ``WEIGHT_BINS`` even bins
    from ``start`` to ``stop``, which span both. ``sqnr_db`` is infinite without error, and NaN for a channel that is
    dead in float (absmax under 1e-6 of the widest): those come last.
    """

    index: NDArray[np.int64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    stored_low: NDArray[np.float64]
    stored_high: NDArray[np.float64]
    sqnr_db: NDArray[np.float64]
    start: float
    stop: float
    floats: NDArray[np.int64]
    stored: NDArray[np.int64]


@dataclass
class Case:
    """A measured pair of models: records (JSON), statistics per data set and weights per operator (arrays).

    ``weights`` is by the operator's place in ``record.operators``.
    """

    record: CaseRecord
    statistics: dict[Role, SetStatistics]
    weights: dict[int, WeightArrays] = field(default_factory=dict)

    def samples_sha256(self, role: Role) -> str:
        """SHA-256 over the content hashes and labels of a data set's samples, in ascending order.

        It says whether the same samples were read, in whatever order, from whatever file.
        """
        samples = self.statistics[role].samples
        table = np.zeros(len(samples), [("hash", "<u8"), ("label", "<i4")])
        table["hash"], table["label"] = samples["hash"], samples["label"]
        return hashlib.sha256(np.sort(table).tobytes()).hexdigest()

    def merge(self, other: "Case") -> "Case":
        """The case that one pass over both shards' samples would have given.

        Raises:
            CaseError: The shards belong to different models, tools or settings.
        """
        mine, theirs = self.record, other.record
        if not self.statistics or not other.statistics:
            raise CaseError(
                "a case without data cannot be merged",
                where=[str(case.run.get("quantized_model")) for case in (mine, theirs)],
                help="shards are merged to add up their samples; judge a case that has none by itself",
            )
        refuse_strangers(mine, theirs)
        roles = sorted(self.statistics.keys() | other.statistics.keys())
        statistics, datasets = {}, {}
        for role in roles:
            parts = [case for case in (self, other) if role in case.statistics]
            statistics[role] = parts[0].statistics[role]
            datasets[role] = parts[0].record.datasets[role]
            if len(parts) == 2:
                statistics[role] = self.statistics[role].merge(other.statistics[role])
                datasets[role] = _merge_records(mine.datasets[role], theirs.datasets[role])
        notices = tuple(dict.fromkeys((*mine.notices, *theirs.notices)))
        pairs = zip(mine.tensors, theirs.tensors, strict=True)
        tensors = tuple(a.model_copy(update={"bucketed": a.bucketed and b.bucketed}) for a, b in pairs)
        # Simulated runs and trials belong to the findings of one shard; of both together nothing was tried.
        changes = {"datasets": datasets, "notices": notices, "tensors": tensors, "simulation": None, "proof": None}
        record = mine.model_copy(update=changes)
        return Case(record, statistics, self.weights or other.weights)


def refuse_strangers(mine: CaseRecord, theirs: CaseRecord) -> None:
    """Refuse to add up what was measured of other models, tensors or with another metric.

    Raises:
        CaseError: Names what differs.
    """
    for key in ("float_sha256", "quantized_sha256"):
        if mine.run.get(key) != theirs.run.get(key):
            raise CaseError(
                "the shards belong to different models",
                where=[f"{key}: {mine.run.get(key)}", f"{key}: {theirs.run.get(key)}"],
            )
    # Compared as text, since a broken scale of NaN is not equal to itself.
    settings = [repr((_comparable(r.tensors), r.metric, r.stages, r.expected_float_metric)) for r in (mine, theirs)]
    if settings[0] != settings[1]:
        raise CaseError("the shards were measured with different settings", help="collect both with equal options")


def _comparable(tensors: tuple[TensorRecord, ...]) -> list[TensorRecord]:
    """Whether a tensor holds one row per sample may only show in some shards."""
    return [tensor.model_copy(update={"bucketed": True}) for tensor in tensors]


def _merge_records(a: DatasetRecord, b: DatasetRecord) -> DatasetRecord:
    return DatasetRecord(
        origin=a.origin if a.origin == b.origin else f"{a.origin} + {b.origin}",
        labelled=a.labelled and b.labelled,
        seen=a.seen + b.seen,
        complete=a.complete and b.complete,
        parts=tuple(sum(pair) for pair in zip_longest(a.parts, b.parts, fillvalue=0)),
    )
