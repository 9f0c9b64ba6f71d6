"""Measure a float model and its quantized counterpart: one pass over each data set, memory independent of it.

How many samples run at a time is decided here, too, and on which of them all tensors are measured."""

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch, Part
from quantmedic.collectors.data.datasets import Dataset
from quantmedic.collectors.measure.lanes import Abandoned, Lane, Until, side_by_side
from quantmedic.collectors.measure.measurement import Measurement
from quantmedic.collectors.measure.models import Models
from quantmedic.collectors.measure.observer import Observer
from quantmedic.collectors.measure.plan import Plan
from quantmedic.collectors.measure.record import record_models
from quantmedic.collectors.measure.slices import SetSums, Slicing, read_slices
from quantmedic.collectors.measure.stages import compare_stages
from quantmedic.collectors.metrics.metric import Metric
from quantmedic.collectors.native.runs import meanwhile
from quantmedic.collectors.pair.graph import Graph, TensorSpec
from quantmedic.collectors.pair.weight_effects import fill_weight_errors
from quantmedic.collectors.statistics.accumulate import SetAccumulator, sample_rows
from quantmedic.engine.case.facts import Role
from quantmedic.engine.case.records import Case, CaseRecord, DatasetRecord, WeightArrays, refuse_strangers
from quantmedic.engine.case.slice_sums import SliceSum, add_slices
from quantmedic.engine.case.statistics import EXTREME_SAMPLES, SetStatistics
from quantmedic.engine.errors import CaseError

Array = NDArray[np.generic]
#: Measures slices of data sets, beside what is known of them, and returns a case.
Elsewhere = Callable[[Mapping[Role, Slicing], Case | None], Case | None]
#: Samples on which the channel-reversed representative inputs are tried.
FLIP_SAMPLES = 64
#: Seconds between two checkpoints.
CHECKPOINT_SECONDS = 30.0
#: What an interrupted run has to be repeated with.
RESUMED_OPTIONS = ("batch_size", "mode", "samples", "seed", "step_error", "metric_output")
RESUMED_EXTRAS = (
    *("device", "metric_options", "reference_outputs", "device_outputs", "stages"),
    *("expected_float_metric", "expected_quantized_metric"),
)
#: One of so many samples is measured: the others, which pass as in deployment, take most of the time then.
MAX_SHARE = 32
#: Parts of the samples that are not measured: each can be read by another worker, and is a pass over the data.
OTHER_PARTS = 7
#: Bytes that the tensors of one batch should take: they stay in the last-level cache until they are measured.
BATCH_BYTES = 16 << 20
MAX_BATCH = 32
#: Samples of a batch of which tensors are not shown: more gain nothing.
MAX_PASSING = 8
#: Values of a tensor that take about as long as calling its operator and its statistics.
WORTHWHILE_VALUES = 4096


class Interrupted(KeyboardInterrupt):
    """Ctrl-C: ``case`` holds what was measured until then."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.case = case


def collect(
    measurement: Measurement,
    *,
    resume: Case | None = None,
    checkpoint: Callable[[Case], None] = lambda case: None,
    elsewhere: Elsewhere | None = None,
) -> Case:
    """Run both models over the data sets and return everything measured.

    Args:
        measurement: Models, data and options.
        resume: An unfinished case of the same models, data and options: goes on behind its last sample.
        checkpoint: Called every half minute with what is measured so far; on Ctrl-C too, then ``Interrupted`` is
            raised.
        elsewhere: Measures slices on other machines; on Ctrl-C less than all of them.

    Raises:
        DataError: A data set does not fit the model, or cannot be divided.
        ModelError: A model fails on the data.
        CaseError: The case to resume was measured with other models, data or options.
    """
    run = Run(measurement)
    known = resume if elsewhere is None else elsewhere(run.slicings, resume)
    if known is not None:
        run.go_on(known)
    try:
        if elsewhere is not None and not run.is_read:
            raise KeyboardInterrupt
        for case in run.measure():
            checkpoint(case)
        return run.case(complete=True)
    except Abandoned:
        raise
    except KeyboardInterrupt:
        if not run.settled or not run.begun:
            raise
        run.count_seen()
        checkpoint(run.case())
        raise Interrupted(run.case(complete=True)) from None


@dataclass
class _ReadSet:
    """How far one data set has been read.

    Attributes:
        dataset: The data set.
        parts: What is read of it one after the other; all tensors are measured on the first part.
        slicing: How it is divided, and which slices are measured.
        sums: What is added up.
        seen: Samples of each part.
        complete: All of it is read.
    """

    dataset: Dataset
    parts: Sequence[Part | None]
    slicing: Slicing
    sums: SetSums
    seen: list[int]
    complete: bool = False

    def holds(self, index: int) -> bool:
        """This part is read by this run."""
        return len(self.parts) == 1 or self.slicing.holds(index)


class _Item(NamedTuple):
    """One batch on its way to the accumulators.

    Attributes:
        batch: Samples.
        flip: Its channels are reversed too, for comparison.
        given: Its outputs as they were computed elsewhere, by kind.
        number: Number of its slice.
        into: The sums of that slice.
    """

    batch: Batch
    flip: bool
    given: Mapping[str, Sequence[Array | None]]
    number: int
    into: SetAccumulator


class Run:
    """One collection: what has been read, at first no more than one batch, and the accumulators that it went to."""

    def __init__(self, measurement: Measurement) -> None:
        """Look at the first batch."""
        self._measurement = measurement
        models, options, metric = measurement.models, measurement.options, measurement.metric
        self._models, self._metric = models, metric
        # Two samples, since a single one may lose its axis by squeezing, and what has no axis is not compared.
        size = options.batch_size or batch_size_for(models)
        first = next(next(iter(measurement.datasets.values())).batches(size or 2, limit=options.samples))
        self._observer = Observer(models, first, options, classes=_are_classes(models.float_graph, metric))
        self._size = size or batch_size_after(first, self._observer.plan)
        self._passing = options.batch_size or passing_size(models, self._observer.plan, self._size)
        # Where samples differ in size, no batch holds more values than one of samples like the first.
        self._room = _values_of(first) if size is None else None
        self._options = replace(options, batch_size=self._size)
        self._record: CaseRecord | None = None
        self._weights: dict[int, WeightArrays] = {}
        self._notices: list[str] = []
        #: The part that is read, and the samples that were added before it.
        self._part: tuple[_ReadSet, int, int] | None = None
        self._sets = {role: self._begin_set(dataset) for role, dataset in measurement.datasets.items()}

    def _begin_set(self, dataset: Dataset) -> _ReadSet:
        """A set is divided by its samples, or, where only some are measured, into its parts."""
        parts = self._parts_of(dataset)
        samples = dataset.reads(self._options.samples) if dataset.samples is not None else None
        whole = samples // dataset.unit * dataset.unit if samples is not None else None
        slicing = Slicing.of_samples(whole, self._size if dataset.unit == 1 else dataset.unit)
        slicing = Slicing(None, len(parts)) if len(parts) > 1 else slicing
        return _ReadSet(dataset, parts, slicing, self._begin_sums(dataset), [0] * len(parts))

    @property
    def slicings(self) -> dict[Role, Slicing]:
        """How each set is divided."""
        return {role: own.slicing for role, own in self._sets.items()}

    @property
    def is_whole(self) -> bool:
        """All slices are measured."""
        return all(own.slicing.is_whole for own in self._sets.values())

    @property
    def is_read(self) -> bool:
        """No slice is left to be measured."""
        return all(own.complete for own in self._sets.values())

    def _parts_of(self, dataset: Dataset) -> Sequence[Part | None]:
        """Of a set of unknown length no more samples are counted than make a difference, and it is read only twice."""
        if self._options.mode == "exact":
            return [None]
        samples, others = dataset.reads(self._options.samples), OTHER_PARTS
        if dataset.samples is None:
            enough = MAX_SHARE * EXTREME_SAMPLES
            enough, others = min(enough, self._options.samples or enough), 1
            samples = sum(batch.samples for batch in dataset.batches(self._size, limit=enough))
        share = share_of(samples or 0, dataset.unit)
        return parts_of(share, self._options.seed, others) if share > 1 else [None]

    def _begin_sums(self, dataset: Dataset, known: Sequence[SliceSum] = ()) -> SetSums:
        # They do not hold this run: both would stay, with the models, until the collector looks for cycles.
        return SetSums(partial(self._observer.accumulator, self._metric if dataset.labelled else None), known)

    @property
    def settled(self) -> bool:
        """No batch was left half added."""
        return all(own.sums.settled for own in self._sets.values())

    @property
    def begun(self) -> bool:
        """Something was measured."""
        return any(own.sums.samples for own in self._sets.values())

    def go_on(self, case: Case) -> None:
        """Take over what an interrupted run has measured."""
        record, mine = case.record, self.case().record
        options = {name: (record.run.get(name), mine.run[name]) for name in RESUMED_OPTIONS}
        options |= {name: (record.run.get(name), mine.run.get(name)) for name in RESUMED_EXTRAS}
        for name, (then, now) in {**options, "metric": (record.metric, mine.metric)}.items():
            if then != now:
                raise CaseError(
                    "what was measured before was measured with other options",
                    where=f"{name}: {_option_text(then)} then, {_option_text(now)} now",
                    help="repeat the earlier options, or measure anew: without --resume",
                )
        refuse_strangers(record, mine)
        self._notices = [notice for notice in record.notices if notice not in self._unread(record.datasets)]
        for i, tensor in enumerate(record.tensors):
            self._observer.plan.tensors[i].bucketed &= tensor.bucketed
        for role, known in record.datasets.items():
            own = self._sets.get(role)
            if own is not None and not own.slicing.begins_with(case.sums.get(role, ())):
                raise CaseError(
                    f"what was measured before is another part of the {role} data",
                    where=f"{known.origin}, {known.seen} samples",
                    help="measure anew: without --resume",
                )
            if own is None or len(known.parts) != len(own.seen) or not self._same_start(own, case, role):
                raise CaseError(
                    f"what was measured before is of other {role} data",
                    where=f"{known.origin}, {known.seen} samples",
                    help="give the same data, or measure anew: without --resume",
                )
            own.seen, own.complete = list(known.parts), known.complete
            whole = SliceSum(0, 0, case.statistics[role])
            own.sums = self._begin_sums(own.dataset, case.sums.get(role, [whole]))

    def _same_start(self, own: _ReadSet, case: Case, role: Role) -> bool:
        """The data set has its name and no less samples than were read, and the first batch of them is what it was."""
        known, dataset = case.statistics[role].samples, own.dataset
        if dataset.origin != case.record.datasets[role].origin or len(known) > (dataset.samples or len(known)):
            return False
        batch = next(self._batches(own, *own.slicing.start), None)
        if not len(known) or batch is None:
            return not len(known)
        name = self._observer.plan.image[0] if self._observer.plan.image is not None else next(iter(batch.inputs))
        rows = sample_rows(batch.inputs[name], batch.labels)
        return all(np.array_equal(rows[column], known[column][: len(rows)]) for column in ("hash", "label"))

    def measure(self) -> Iterator[Case]:
        """Read everything that is left; yields the case now and then."""
        unread = [(role, own) for role, own in self._sets.items() if not own.complete]
        parts = [(role, i) for role, own in unread for i in range(len(own.seen)) if own.holds(i)]
        for tensors, reading in (
            (self._observer.plan.all, [part for part in parts if part[1] == 0]),
            (self._observer.plan.always, [part for part in parts if part[1] > 0]),
        ):
            if reading:
                self._observer.show(tensors)
                self._settle_passing(*reading[0])
            for role, index in reading:
                yield from self._read_part(role, index)
        for _, own in unread:
            own.sums.close()
            own.complete = own.slicing.is_whole
        if self.is_whole:
            self._compare_stages()

    def _settle_passing(self, role: Role, index: int) -> None:
        """Models that take no more samples at a time than are measured together get no more."""
        more = index > 0 and self._passing > self._size
        first = next(self._batches(self._sets[role], index, 0), None) if more else None
        if first is not None and not self._observer.takes(first):
            self._passing = self._size

    def _compare_stages(self) -> None:
        """Run the stage models on the first samples of the validation set, unless an earlier run did."""
        own, stages = self._sets.get("validation") or self._sets["representative"], self._measurement.extras.stages
        if not stages:
            return
        into, dataset = own.sums.settle(), own.dataset
        if into.knows("stage.0.0"):
            return
        metric, progress = self._metric if dataset.labelled else None, self._measurement.progress
        into.compare(compare_stages(stages, dataset, self._observer.outputs, self._options, metric, progress))

    def count_seen(self) -> None:
        """Note how much of the part at hand was added; again behind an interrupt, which may have come in between."""
        if self._part is not None:
            own, index, before = self._part
            own.seen[index] = own.sums.samples - before

    def _read_part(self, role: Role, index: int) -> Iterator[Case]:
        """One part of one data set, unless a later one was begun already."""
        own = self._sets[role]
        sums = own.sums
        if any(own.seen[index + 1 :]):
            return
        done, self._part = sums.samples, (own, index, sums.samples - own.seen[index])
        total = own.dataset.reads(self._options.samples)
        batches = self._items_of_part(role, index)

        def work(item: _Item, lane: Lane) -> None:
            self._observer.observe(item.batch, item.into, lane, flip=item.flip, given=item.given)

        while True:
            more = Until(batches, time.monotonic() + CHECKPOINT_SECONDS)
            try:
                # Closed before anything is read off: an interrupt in this loop waits for the batches that were begun.
                with closing(side_by_side(more, work, self._options.lanes)) as items:
                    for item in items:
                        done += item.batch.samples
                        sums.close_before(item.number)
                        self._measurement.progress(role, done, total)
            finally:
                self.count_seen()
            if more.exhausted:
                return
            yield self.case()

    def _items_of_part(self, role: Role, index: int) -> Iterator["_Item"]:
        """What is left of a part."""
        references = self._measurement.extras.references if role == "validation" else {}
        own = self._sets[role]
        done = sum(own.seen) + own.slicing.first * (own.slicing.size or 0)
        for number, batch in self._numbered_batches(own, index):
            given = {kind: outputs.take(batch) for kind, outputs in references.items()}
            flip = role == "representative" and index == 0 and done < FLIP_SAMPLES
            yield _Item(batch, flip, given, number, own.sums.open(number))
            done += batch.samples

    def _numbered_batches(self, own: _ReadSet, index: int) -> Iterator[tuple[int, Batch]]:
        """What is left of a part, with the number of its slice."""
        if own.slicing.size is None:
            return ((index, batch) for batch in self._batches(own, index, own.seen[index]))
        return read_slices(own.dataset, own.slicing, partial(self._batches, own, index), own.seen[index])

    def _batches(self, own: _ReadSet, index: int, start: int) -> Iterator[Batch]:
        dataset, wanted = own.dataset, self._size if index == 0 else self._passing
        for batch in dataset.batches(wanted, limit=self._options.samples, start=start, part=own.parts[index]):
            size = max(wanted if self._room is None else wanted * self._room // _values_of(batch), dataset.unit)
            yield from (batch.take(slice(k, k + size)) for k in range(0, batch.samples, size))

    def measure_slice(self, role: Role, number: int) -> Case:
        """The case of one slice; what opening and looking at the first batch cost is paid once for many slices.

        Raises:
            DataError: A sample does not fit the model.
            ModelError: A model fails on the data.
        """
        for each, own in self._sets.items():
            slicing = own.slicing.only(number, number + 1) if each == role else own.slicing.only(0, 0)
            sums, seen = self._begin_sums(own.dataset), [0] * len(own.parts)
            self._sets[each] = replace(own, slicing=slicing, sums=sums, seen=seen, complete=False)
        for _ in self.measure():
            pass
        return self.case()

    def case(self, *, complete: bool = False) -> Case:
        """Everything measured so far; with what the errors of the weights do to it once it is ``complete``."""
        if self._record is None:
            options = self._options
            with meanwhile(lambda: self._models.kernels(options.session_threads), options.threads) as kernels:
                record, self._weights = record_models(
                    self._observer.plan,
                    kernels,
                    spatial=self._observer.spatial,
                    how=options.run,
                    metric=self._metric,
                    facts=self._observer.facts,
                )
            self._record = self._measurement.extras.added_to(record)
        begun = {role: own.sums.sums() for role, own in self._sets.items() if own.sums.samples}
        if complete and not self.is_whole:
            self._fill_weight_errors(one.statistics for sums in begun.values() for one in sums)
        statistics = {role: add_slices(own) for role, own in begun.items()}
        if complete:
            self._fill_weight_errors(statistics.values())
        records = {role: self._dataset_record(role, own) for role, own in begun.items()}
        unfinished = {role: own for role, own in begun.items() if not records[role].complete}
        notices = [*self._notices, *self._observer.notices]
        notices += [notice for own in self._sets.values() for notice in own.dataset.notices]
        notices += self._metric.notices if self._metric is not None else []
        notices += self._unread(begun)
        observer, record = self._observer, self._record
        tensors = zip(record.tensors, observer.plan.tensors, strict=True)
        changes = {
            "datasets": records,
            "notices": tuple(dict.fromkeys(notices)),
            "tensors": tuple(own.model_copy(update={"bucketed": tensor.bucketed}) for own, tensor in tensors),
            "model": record.model.model_copy(update=observer.facts),
        }
        return Case(record.model_copy(update=changes), statistics, self._weights, unfinished)

    def _fill_weight_errors(self, statistics: Iterable[SetStatistics]) -> None:
        assert self._record is not None
        for into in statistics:
            fill_weight_errors(into, self._record, self._models)

    def _unread(self, begun: Collection[Role]) -> list[str]:
        slicings = self.slicings.items()
        unread = [role for role, own in slicings if role not in begun and own.stop != own.first]
        return [f"the {role} data were not read" for role in unread]

    def _dataset_record(self, role: Role, sums: Sequence[SliceSum]) -> DatasetRecord:
        own = self._sets[role]
        known = {"slices": own.slicing.count, "spans": tuple((one.first, one.slices) for one in sums)}
        record = DatasetRecord(
            origin=own.dataset.origin,
            labelled=own.dataset.labelled,
            seen=sum(own.seen),
            complete=own.complete,
            parts=tuple(own.seen),
        )
        return record if own.complete else record.model_copy(update=known)


def _values_of(batch: Batch) -> int:
    """Input values of a sample."""
    return max(sum(array.size for array in batch.inputs.values()) // batch.samples, 1)


def _are_classes(graph: Graph, metric: Metric | None) -> bool:
    """The first output holds class scores: a known number of them, and no metric that says otherwise.

    Where none is given, what has the shape of an input is taken for a reconstruction or a filtered signal.
    """
    if metric is not None:
        return metric.kind.of_classes and _has_columns(graph)
    return _has_columns(graph) and _sides(graph.output_specs[0]) not in map(_sides, graph.input_specs)


def _has_columns(graph: Graph) -> bool:
    return bool(graph.outputs) and any(side > 1 for side in _sides(graph.output_specs[0]))


def _sides(spec: TensorSpec) -> list[int]:
    """Sides of a sample; 0 where they depend on the data."""
    return [side or 0 for side in (spec.shape or ())[1:]]


def _option_text(option: object) -> object:
    """The value of an option, as a message says it."""
    return "not given" if option is None else option


def share_of(samples: int, unit: int = 1) -> int:
    """One of how many samples of a data set of this size is measured; 1 is all of them.

    Args:
        samples: Samples of the data set.
        unit: Samples that stay together, for the model takes so many at a time.
    """
    units_needed = -(-EXTREME_SAMPLES // unit)
    return max(1, min(MAX_SHARE, samples // unit // units_needed))


def parts_of(share: int, seed: int, others: int) -> list[Part]:
    """The samples that are measured, one of ``share``, and the others, in so many parts if they are enough."""
    others = min(others, share - 1)
    bounds = [0, 1, *(1 + (share - 1) * i // others for i in range(1, others + 1))]
    return [Part(start, share, seed, width=stop - start) for start, stop in pairwise(bounds)]


def batch_size_for(models: Models) -> int | None:
    """Samples per run: as many as fit the cache.

    One where a grid computed at run time would depend on the batch.

    None where the size of a tensor depends on the data: then the first sample tells; see ``batch_size_after``.
    """
    if _depends_on_batches(models):
        return 1
    shapes = [models.shapes.get(pair.twin) for pair in models.pairs]
    known = [
        math.prod(size or 1 for size in shape[1:]) for shape in shapes if shape is not None and None not in shape[1:]
    ]
    return _batch_of(sum(known), len(known), BATCH_BYTES) if len(known) == len(shapes) else None


def batch_size_after(first: Batch, plan: Plan) -> int:
    """Samples per run by the tensors that the first samples made."""
    elements = sum(tensor.elements for tensor in plan.tensors)
    return _batch_of(elements // first.samples, len(plan.tensors), BATCH_BYTES)


def passing_size(models: Models, plan: Plan, size: int) -> int:
    """Samples per run where tensors are not shown, of which ``size`` are measured together.

    As many as hide what is around a run, and as have no more in the largest tensor and the one beside it, in float32,
    than in all tensors where these are shown.
    """
    if _depends_on_batches(models):
        return size
    elements = [tensor.elements for tensor in plan.tensors]
    room = 5 * sum(elements) // (8 * max(elements))
    return size * max(min(room, MAX_PASSING // size), 1)


def _depends_on_batches(models: Models) -> bool:
    """A grid is computed at run time, of all samples of a batch."""
    taps = [pair.tap.quantizer for pair in models.pairs]
    return any(quantizer is not None and quantizer.dynamic for quantizer in taps)


def _batch_of(elements: int, tensors: int, room: int) -> int:
    """Samples per run that fill a room, by the elements of a sample: four bytes of each float value, one of its code.

    Tensors so small that most of the time goes into what is around them come in as many samples as make them worth it.
    """
    elements = max(elements, 1)
    return int(np.clip(max(room // (5 * elements), WORTHWHILE_VALUES * tensors // elements), 1, MAX_BATCH))
