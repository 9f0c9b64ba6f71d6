"""The case: everything measured of one pair of models, mergeable, independent of any framework."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import zip_longest
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from quantmedic.engine.case.budget_record import LossBudget
from quantmedic.engine.case.fact_base import Key, Prose, WordKeys, Words
from quantmedic.engine.case.facts import (
    AskedFacts,
    BiasFacts,
    ConstantFacts,
    FusionFacts,
    ModelFacts,
    Pattern,
    QuantizerFacts,
    RecordedFacts,
    ReportedFacts,
    Role,
    WeightFacts,
)
from quantmedic.engine.case.proof import ProofRecord
from quantmedic.engine.case.recording import Recording
from quantmedic.engine.case.slice_sums import SliceSum, add_slices, join_slices
from quantmedic.engine.case.statistics import SetStatistics
from quantmedic.engine.errors import CaseError
from quantmedic.engine.json_record import Record

CASE_SCHEMA = 8
#: ``mode`` in the run record of a case without data: the models were read, but not run.
STATIC = "static"
#: ``mode`` and framework of a case that was read from files of a toolchain alone.
IMPORTED = "imported"
#: Channels and bins that are kept of an operator's weights.
WEIGHT_CHANNELS, WEIGHT_BINS, CHANNEL_BINS = 256, 64, 32


#: Operators on the way from a tensor to its product with itself, and how many constants each has.
GATE_STEPS: Mapping[str, int] = {
    **dict.fromkeys(("Sigmoid", "Tanh", "Erf", "Relu", "Softplus"), 0),
    **dict.fromkeys(("Add", "Sub", "Mul", "Div"), 1),
    **dict.fromkeys(("HardSigmoid", "Clip"), 2),
}


class GateStep(Record):
    """One operator on the way from a tensor to its product with itself, and the grid that its result is rounded to.

    ``constants`` are its parameters; ``reverse`` means that the constant of a Sub or Div comes first.
    """

    op_type: Words[str]
    constants: tuple[float, ...] = ()
    reverse: bool = False
    grid: tuple[float, float, float] | None = None

    @model_validator(mode="after")
    def _is_known(self) -> "GateStep":
        if GATE_STEPS.get(self.op_type) != len(self.constants):
            raise ValueError(f"{self.op_type:.80} with {len(self.constants)} constants is no step of a gate")
        if self.reverse and self.op_type not in ("Sub", "Div"):
            raise ValueError(f"{self.op_type} has no order of its operands")
        return self


class GateRecord(Record):
    """A product of two functions of one tensor, as Swish and GELU become when they are exported in pieces.

    ``source`` is that tensor's index; ``names`` are the float names of the layers that compute the product.
    """

    source: int
    factors: tuple[tuple[GateStep, ...], tuple[GateStep, ...]]
    names: tuple[str, ...] = ()


class TensorRecord(Record):
    """One measured activation: its row range is ``channels`` long in every per-channel column.

    ``fills`` are the smallest and the largest of the constants that the float model puts among its values.
    """

    name: str
    float_name: str
    producer: Words[str]
    producer_name: str | None
    consumers: Words[tuple[str, ...]]
    readers: tuple[str, ...] = ()
    axis: int | None
    channels: int
    bucketed: bool
    is_input: bool
    is_half: bool | None = None
    is_squared: bool | None = None
    quantizer: QuantizerFacts
    pattern: Pattern | None = None
    fills: tuple[float, ...] = ()
    gate: GateRecord | None = None
    clip_high: float | None = None
    clip_lost: bool | None = None
    floor_lost: bool | None = None
    recorded: RecordedFacts = RecordedFacts()


class OperatorRecord(Record):
    """One operator of the quantized model without its quantizers; tensors by index into the tensor table.

    ``is_last`` is None where the order of execution is not known. ``attributes`` are the short ones,
    as text. ``sources`` are places of operators that feed this one through tensors that are not in the tensor table.
    """

    index: int
    name: str
    float_name: str | None
    quantized_name: str | None
    float_nodes: tuple[str, ...] | None = None
    op_type: Words[str]
    inputs: tuple[int | None, ...]
    outputs: tuple[int | None, ...]
    is_compute: bool
    is_last: bool | None
    executed_as: Words[str | None]
    weight: WeightFacts
    bias: BiasFacts
    constant: ConstantFacts = ConstantFacts()
    fusion: FusionFacts = FusionFacts()
    attributes: dict[str, str] = Field(default_factory=dict)
    difference: str | None = None
    sources: tuple[int, ...] = ()
    operations: int | None = None
    time_ms: float | None = None
    reported: ReportedFacts = ReportedFacts()
    asked: AskedFacts = AskedFacts()


class FloatOperatorRecord(Record):
    """One operator of the float model.

    ``reads`` are places of the float operators that write what it reads, -1 for an input of the network; ``twin`` is
    the place of the quantized model's operator that does its work, None where none was found.
    """

    name: str
    op_type: Words[str]
    reads: tuple[int, ...]
    twin: int | None


#: What columns of a detector's output hold.
PartKind = Literal["boxes", "objectness", "scores", "classes", "masks"]


class PartRecord(Record):
    """Neighbouring columns of an output, ``start`` to the one before ``stop``, that come from one operand."""

    start: int
    stop: int
    tensor: str
    is_score: bool = False
    kind: PartKind | None = None


class OutputRecord(Record):
    """One network output: the tensor measured for it, and the integer grid on which it ends.

    ``columns`` counts those whose codes are kept. ``axis`` is that of the columns which are compared one by one, and
    ``parts`` are the operands of the Concat that joins them. ``carriers`` are the measured tensors that hold them as
    they come out. ``is_score``: the output ends in a Sigmoid or Softmax. ``decoder`` names the float operators between
    the last layers with weights and an output that is the head of a detector.
    """

    name: str
    tensor: int | None
    quantizer: QuantizerFacts
    columns: int
    is_codes: bool | None = None
    axis: int | None = None
    parts: tuple[PartRecord, ...] = ()
    carriers: tuple[int, ...] = ()
    is_score: bool = False
    decoder: tuple[str, ...] = ()


class DatasetRecord(Record):
    """Where one data set came from and how much of it was read.

    ``parts`` holds the samples read of each part, where all tensors are measured on the first part only.
    Of a set that is not complete, ``slices`` is the number of all its slices, 0 where that is not known, and ``spans``
    are those that the case has sums of: the first and how many, 0 for one that was not read to its end.
    """

    origin: str
    labelled: bool
    seen: int = 0
    complete: bool = True
    parts: tuple[int, ...] = ()
    slices: int = 0
    spans: tuple[tuple[int, int], ...] = ()

    def covers(self, sums: Sequence[SliceSum]) -> bool:
        """These are the sums of all slices, each whole."""
        whole = sum(one.slices for one in sums)
        return bool(self.slices) and whole == self.slices and all(one.slices for one in sums)


class RunRecord(Record):
    """One run of a network on the samples of a simulation: its noise per sample, and how often its class agrees."""

    noise: tuple[float, ...]
    agreement: float | None = None


class SimulationRecord(Record):
    """What the network's output would be under changed quantizers, on a part of one data set.

    ``power`` is the signal per sample, Σ over the judged outputs of the float values squared; ``noise`` of a run is the
    same of the differences; one that recovers nothing on the first samples ends with them. ``deployed`` is the real
    quantized model, ``simulated`` the float network with the same quantizers, ``runs`` the same with changed ones, by
    what was changed. Where the noise hides in few output columns of small values, only those are judged (``columns``).
    """

    dataset: Role
    power: tuple[float, ...]
    deployed: RunRecord
    simulated: RunRecord
    runs: Key[dict[str, RunRecord]] = Field(default_factory=dict)
    columns: int | None = None


class StageRecord(Record):
    """One model of the toolchain's way from float to quantized."""

    name: str
    is_quantized: bool


class DeviceTensorRecord(Record):
    """One tensor that the device computed, against the deployed model here; ``tensor`` is its index.

    ``nmse`` is the energy of the difference over that of the tensor here. ``own_nmse`` and ``own_steps`` are of what
    the device computes otherwise than the tensor's operator does of the device's own tensors before it: energy over
    that of the tensor, and mean square in steps of its grid. Differences of one step are rounding, and left out. None
    where that is not known; ``own_steps`` of a tensor without a fixed grid. ``factor`` is what the device multiplies
    the same by, and ``factor_nmse`` what is left beside that.
    """

    tensor: int
    nmse: float
    own_nmse: float | None = None
    own_steps: float | None = None
    factor: float | None = None
    factor_nmse: float | None = None


class DeviceRecord(Record):
    """Tensors that the device computed: where they came from, and the samples that were compared."""

    origin: str
    samples: int
    tensors: tuple[DeviceTensorRecord, ...] = ()


class ImportRecord(Record):
    """One file of a toolchain that a case was read from.

    ``tells`` lists what was read from it, ``lacks`` what it could hold and does not, ``unknown`` its unknown keys.
    """

    file: str
    format: Words[str]
    toolchain: Words[str]
    tells: Prose[tuple[str, ...]] = ()
    lacks: Prose[tuple[str, ...]] = ()
    unknown: Prose[tuple[str, ...]] = ()


class CaseRecord(Record):
    """The JSON half of a case.

    ``compared`` names the files whose outputs were compared, by kind: ``reference`` and ``device``; ``recording`` tells
    where those of the latter were recorded, if ``quantmedic collect --outputs-only`` wrote them.
    """

    schema_version: int = CASE_SCHEMA
    quantmedic_version: Words[str]
    model: ModelFacts
    tensors: tuple[TensorRecord, ...]
    operators: tuple[OperatorRecord, ...]
    outputs: tuple[OutputRecord, ...]
    input_tensor: int | None
    image_input: bool
    spatial_input: bool | None = None
    """Neighbours are measured, for samples are images; None in cases of versions that did not."""
    metric: Words[str | None]
    metric_higher_is_better: bool | None
    unmatched: tuple[str, ...]
    notices: tuple[str, ...]
    run: dict[str, Any]
    datasets: dict[Role, DatasetRecord] = Field(default_factory=dict)
    simulation: SimulationRecord | None = None
    loss_budget: LossBudget | None = None
    stages: tuple[StageRecord, ...] = ()
    compared: WordKeys[dict[str, str]] = Field(default_factory=dict)
    recording: Recording | None = None
    expected_float_metric: float | None = None
    expected_quantized_metric: float | None = None
    proof: ProofRecord | None = None
    imports: tuple[ImportRecord, ...] = ()
    device: DeviceRecord | None = None
    float_operators: tuple[FloatOperatorRecord, ...] = ()
    """The float model as it was before anything was folded; empty in cases of files alone, and of older versions."""

    def writers(self) -> dict[int, int]:
        """Place of the operator that writes each tensor, by the index of the tensor."""
        return {i: place for place, op in enumerate(self.operators) for i in op.outputs if i is not None}

    @classmethod
    def of_files(
        cls,
        quantmedic_version: str,
        model: ModelFacts,
        notices: tuple[str, ...],
        run: dict[str, Any],
        operators: tuple[OperatorRecord, ...] = (),
        tensors: tuple[TensorRecord, ...] = (),
    ) -> "CaseRecord":
        """The record of a case that was read from files: no model was run, so there are neither outputs nor data."""
        return cls(
            quantmedic_version=quantmedic_version,
            model=model,
            tensors=tensors,
            operators=operators,
            outputs=(),
            input_tensor=None,
            image_input=False,
            metric=None,
            metric_higher_is_better=None,
            unmatched=(),
            notices=notices,
            run=run,
        )


@dataclass
class WeightArrays:
    """Weights of one operator as a reader looks at them; they are the same in all shards.

    Per output channel, at most ``WEIGHT_CHANNELS`` of them, those of the lowest SQNR: ``index``, extremes of the float
    and of the stored weights, ``sqnr_db``. ``floats`` and ``stored`` count all weights over ``WEIGHT_BINS`` even bins
    from ``start`` to ``stop``, which span both. ``sqnr_db`` is infinite without error, and NaN for a channel that is
    dead in float (absmax under 1e-6 of the widest): those come last.

    ``heights`` is the histogram of each channel's float weights, ``[channels, CHANNEL_BINS]`` over even bins from
    ``start`` to ``stop``: 255 for the channel's fullest bin, 0 only for empty ones. None in cases of versions that
    did not count them.
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
    heights: NDArray[np.uint8] | None = None


@dataclass
class Case:
    """A measured pair of models: records (JSON), statistics per data set and weights per operator (arrays).

    ``weights`` is by the operator's place in ``record.operators``. ``sums`` holds what ``statistics`` were added up
    from, for a data set that is not complete: what is still missing is added where it belongs.
    """

    record: CaseRecord
    statistics: dict[Role, SetStatistics]
    weights: dict[int, WeightArrays] = field(default_factory=dict)
    sums: dict[Role, list[SliceSum]] = field(default_factory=dict)

    @property
    def has_classes(self) -> bool:
        """On some data set the outputs were seen to be classes."""
        return any(statistics.has_classes for statistics in self.statistics.values())

    def with_record(self, **changes: object) -> "Case":
        """The same with other entries of its record."""
        return replace(self, record=self.record.model_copy(update=changes))

    def samples_sha256(self, role: Role) -> str:
        """SHA-256 over the content hashes and labels of a data set's samples, in ascending order.

        Two data sets of one hash hold the same samples, whatever their order and their files.
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
        roles: list[Role] = sorted(self.statistics.keys() | other.statistics.keys())
        statistics: dict[Role, SetStatistics] = {}
        datasets: dict[Role, DatasetRecord] = {}
        sums: dict[Role, list[SliceSum]] = {}
        for role in roles:
            parts = [case for case in (self, other) if role in case.statistics]
            statistics[role] = parts[0].statistics[role]
            datasets[role] = parts[0].record.datasets[role]
            known = [case.sums[role] for case in parts if role in case.sums]
            if len(parts) == 2:
                datasets[role] = _merge_records(mine.datasets[role], theirs.datasets[role])
            if len(known) < len(parts):
                statistics[role] = reduce(SetStatistics.merge, (case.statistics[role] for case in parts))
                continue
            if len({case.record.datasets[role].slices for case in parts}) > 1:
                raise CaseError("the shards divide the data differently", help="collect all with equal options")
            joined = join_slices(one for own in known for one in own)
            statistics[role], sums[role] = add_slices(joined), joined
            datasets[role] = _with_spans(datasets[role], joined)
        notices = tuple(dict.fromkeys((*mine.notices, *theirs.notices)))
        pairs = zip(mine.tensors, theirs.tensors, strict=True)
        tensors = tuple(a.model_copy(update={"bucketed": a.bucketed and b.bucketed}) for a, b in pairs)
        # Simulated runs and trials belong to the findings of one shard; of both together nothing was tried.
        changes: dict[str, object] = {"datasets": datasets, "notices": notices, "tensors": tensors}
        changes |= {"simulation": None, "proof": None, "device": None}
        record = mine.model_copy(update=changes)
        unfinished = {role: own for role, own in sums.items() if not datasets[role].complete}
        return Case(record, statistics, self.weights or other.weights, unfinished)


def refuse_strangers(mine: CaseRecord, theirs: CaseRecord) -> None:
    """Refuse to add up what was measured of other models, tensors or with another metric.

    Raises:
        CaseError: Names what differs.
    """
    for key in ("float_sha256", "quantized_sha256"):
        if mine.run.get(key) != theirs.run.get(key):
            raise CaseError(
                "they were measured on different models",
                where=[f"{r.run.get(key.replace('sha256', 'model'))}, {key} {r.run.get(key)}" for r in (mine, theirs)],
                help="put together only what was measured on the same two models",
            )
    # Compared as text, since a broken scale of NaN is not equal to itself.
    settings = [
        repr((_comparable(r.tensors), r.metric, r.stages, r.expected_float_metric, r.expected_quantized_metric))
        for r in (mine, theirs)
    ]
    if settings[0] != settings[1]:
        raise CaseError("the shards were measured with different settings", help="collect both with equal options")


def _comparable(tensors: tuple[TensorRecord, ...]) -> list[TensorRecord]:
    """Whether a tensor holds one row per sample may only show in some shards."""
    return [tensor.model_copy(update={"bucketed": True}) for tensor in tensors]


def _with_spans(record: DatasetRecord, sums: Sequence[SliceSum]) -> DatasetRecord:
    """The record of a set with these sums: complete where they are those of all slices."""
    complete = record.covers(sums)
    spans = () if complete else tuple((one.first, one.slices) for one in sums)
    return record.model_copy(update={"complete": complete, "slices": 0 if complete else record.slices, "spans": spans})


def _merge_records(a: DatasetRecord, b: DatasetRecord) -> DatasetRecord:
    return DatasetRecord(
        origin=a.origin if a.origin == b.origin else f"{a.origin} + {b.origin}",
        labelled=a.labelled and b.labelled,
        seen=a.seen + b.seen,
        complete=a.complete and b.complete,
        parts=tuple(sum(pair) for pair in zip_longest(a.parts, b.parts, fillvalue=0)),
        slices=a.slices if a.slices == b.slices else 0,
    )
