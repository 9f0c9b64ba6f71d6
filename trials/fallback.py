"""Find layers that leave int8 so that a goal is met, on one half of the samples, and check them on the other half."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.data.datasets import Dataset
from quantmedic.collectors.from_onnx.codes import MOVES
from quantmedic.collectors.measure.models import Models
from quantmedic.collectors.metrics.metric import Metric, load_metric
from quantmedic.collectors.pair.operations import Size, sizes_of
from quantmedic.collectors.pair.output_parts import recorded_joints
from quantmedic.engine.case.records import Case, CaseRecord
from quantmedic.engine.contract.fallback import (
    Check,
    Cost,
    FallbackLayer,
    FallbackRecord,
    FallbackStep,
    Goal,
    Level,
)
from quantmedic.engine.decibels import sqnr_db
from quantmedic.engine.diagnosis.fallback import Evaluation, SearchState, Units, one_at_a_time, smallest_set
from quantmedic.engine.errors import DataError, ModelError, QuantmedicError
from quantmedic.engine.formulas.change import Change, Targets
from quantmedic.engine.formulas.tensors import grid_of
from quantmedic.trials.bench import Bench, Measured
from quantmedic.trials.edit import edit
from quantmedic.trials.sensitivity import Unit, left_in_float, quantizers_not_simulated, units_of
from quantmedic.trials.split import CROSS_FITTED_BELOW, folds, read_pool, samples_of

Floats = NDArray[np.float64]
Float32 = NDArray[np.float32]
#: Samples of one evaluation; fewer of a large network, whose passes take long.
MIN_SAMPLES, MAX_SAMPLES = 64, 256
#: Multiply-adds of one evaluation, within these bounds.
OPERATIONS = 50e9
#: Random sets in one pass for the ranking: samples of one batch share a set.
SETS = 256
#: A half holds up to this many times the samples of one evaluation; the check takes the whole other half.
CHECKED = 4
#: Agreement with the float model's class replaces the metric where there are no labels.
AGREEMENT = "agreement"
#: The noise that may stay is estimated only roughly from a drop: at most this factor is believed.
ROUGH = 16.0
RESAMPLES = 1000


@dataclass(frozen=True)
class Group:
    """What leaves int8 together: a layer, and the operators behind it that only move its values on the same grid."""

    units: tuple[Unit, ...]
    operators: tuple[int, ...]

    @property
    def name(self) -> str:
        """Name of the layer."""
        return self.units[0].name

    @property
    def tensors(self) -> tuple[int, ...]:
        """Activations that lose their quantizer."""
        return tuple(i for unit in self.units for i in unit.tensors)


def groups_of(record: CaseRecord, units: Sequence[Unit]) -> list[Group]:
    """Units without those that round a second time what is on the grid already: alone, neither of the two matters."""
    writer: dict[int, int] = {}
    for k, op in enumerate(record.operators):
        for i in op.outputs:
            if i is not None:
                writer.setdefault(i, k)
    home = {i: number for number, unit in enumerate(units) for i in unit.tensors}
    joined: dict[int, list[int]] = {}
    for number, unit in enumerate(units):
        source = _source(record, unit, writer)
        target = home.get(source, number) if source is not None else number
        joined.setdefault(target, []).append(number)
        home |= dict.fromkeys(unit.tensors, target)
    return [_group([units[n] for n in numbers], writer) for numbers in joined.values()]


def _source(record: CaseRecord, unit: Unit, writer: dict[int, int]) -> int | None:
    """The tensor that a unit only moves, where it rounds to the same grid."""
    if unit.operator is not None or len(unit.tensors) != 1 or unit.tensors[0] not in writer:
        return None
    op = record.operators[writer[unit.tensors[0]]]
    read = next((i for i in op.inputs if i is not None), None)
    if op.op_type not in MOVES or read is None:
        return None
    grids = [grid_of(record.tensors[i].quantizer) for i in (read, unit.tensors[0])]
    return read if grids[0] == grids[1] else None


def _group(units: Sequence[Unit], writer: dict[int, int]) -> Group:
    own = [unit.operator for unit in units if unit.operator is not None]
    written = [writer[i] for unit in units for i in unit.tensors if i in writer]
    return Group(tuple(units), tuple(dict.fromkeys([*own, *written])))


#: Outputs for batches from a first one on, each with its set of groups in float, computed on other machines.
Elsewhere = Callable[[int, Sequence[Units]], list[list[Float32]]]


class FallbackTrial:
    """One search and its check.

    Attributes:
        elsewhere: Simulates batches in place of this process, where there are workers.
    """

    elsewhere: Elsewhere | None = None

    def __init__(
        self,
        models: Models,
        dataset: Dataset,
        case: Case,
        goal: Goal,
        *,
        metric: Metric | None,
        samples: int | None,
        threads: int,
        seed: int,
        sets: int = SETS,
    ) -> None:
        """Read the samples, and run the float and the quantized network on them.

        Args:
            models: Both models.
            dataset: Where the samples come from.
            case: What ``collect`` found out about the models; a few samples will do.
            goal: What to reach; of a drop, the metric is filled in.
            metric: Task metric of labelled data.
            samples: Samples of one evaluation; by the size of the network if None.
            threads: Processor threads.
            seed: Seed of the split, of the random sets, and of bootstrapped intervals.
            sets: Random sets in one pass for the ranking, if there are so many samples.

        Raises:
            ModelError: No layer is quantized, or the network cannot be simulated.
            DataError: The data cannot be read, or do not fit the metric.
        """
        self._models, self._case, self._dataset = models, case, dataset
        self._threads, self._seed = threads, seed
        self._classes = case.has_classes
        self._network = models.simulate(case, threads)
        self._network.repeat_exactly()
        self.groups = groups_of(case.record, units_of(case.record, self._network))
        if not self.groups:
            raise ModelError(
                "no layer of the quantized model has a quantizer that can be taken out",
                where=str(models.quantized.path),
                help="give the float model first and the quantized one second",
            )
        self._sizes = sizes_of(models)
        self._metric = metric if dataset.labelled else None
        pool = self._pool(samples or self._sample_count())
        named = self._metric.name if self._metric is not None else None
        if goal.kind == "drop" and self._metric is None:
            pool, self._metric, named = self._with_classes(pool), load_metric("top1"), AGREEMENT
        direction = self._metric.higher_is_better if self._metric is not None else None
        self.goal = goal.model_copy(update={"metric": named, "higher_is_better": direction})
        self._shared = samples_of(pool) < CROSS_FITTED_BELOW
        fold = folds(pool, dataset.unit, seed)[0]
        searched: Sequence[Batch] = pool if self._shared else fold.fitted
        self._judged: Sequence[Batch] = pool if self._shared else fold.judged
        self._batches = _cut(searched, samples or self._sample_count(), sets, dataset.unit)
        self._bench = self._bench_on(self._batches)
        self._found = SearchState()

    def search(self, progress: Callable[[SearchState], None] = lambda found: None) -> FallbackRecord:
        """Search, then check the set on the quantized model itself; Ctrl-C ends with what is known by then.

        Raises:
            ModelError: The network fails.
        """
        units = len(self.groups)
        self._found = smallest_set(units, self.evaluate, self.probe, seed=self._seed, progress=progress)
        best = self._found.best
        check = None
        try:
            check = self._check_edited(best) if best is not None and not self._found.interrupted else None
        except KeyboardInterrupt:
            self._found.interrupted = True
        return self._record(best, check)

    def _sample_count(self) -> int:
        """Samples of one evaluation."""
        known = [size.operations for size in self._sizes if size.operations is not None]
        return int(np.clip(OPERATIONS / max(sum(known), 1), MIN_SAMPLES, MAX_SAMPLES))

    def _pool(self, samples: int) -> list[Batch]:
        wanted = 2 * CHECKED * samples
        known = self._dataset.samples
        # The length of a stream is not known: its first samples are taken.
        return read_pool(self._dataset, known or wanted, None if known else wanted, wanted, self._seed)

    def _with_classes(self, pool: Sequence[Batch]) -> list[Batch]:
        """The samples, labelled with the class that the float network gives them."""
        found = []
        for batch in pool:
            scores = self._network.outputs(batch, None)[0]
            if scores.ndim != 2 or len(scores) != batch.samples or scores.shape[1] < 2:
                raise DataError(
                    "a drop needs labels: the network's first output does not hold class scores",
                    where=f"output  {self._models.float_graph.outputs[0]}  {scores.shape}",
                    help="pass --labels with --metric, or set the goal as --min-sqnr",
                )
            found.append(replace(batch, labels=scores.argmax(axis=1)))
        return found

    def _bench_on(self, batches: Sequence[Batch]) -> Bench:
        return Bench(
            self._models,
            batches,
            metric=self._metric,
            classes=self._classes,
            threads=self._threads,
            whole=True,
            joints=recorded_joints(self._case.record),
        )

    def change(self, units: Units) -> Change:
        """A set of groups left in float; the constants of operators without weights count as biases."""
        change = left_in_float(unit for i in units for unit in self.groups[i].units)
        forms = {k: form for k, form in change.weights.items() if k in self._network.weighted}
        return replace(change, weights=forms)

    def evaluate(self, units: Units) -> Evaluation:
        """One pass over the samples of the search with a set of groups in float."""
        measured = self._simulate([units] * len(self._batches))
        value = self._value(measured)
        if self.goal.kind == "sqnr":
            tolerable = 10 ** ((value - self.goal.limit) / 10)
        else:
            tolerable = min(max(self.goal.limit, 0.0) / value, ROUGH) if value > 0 else ROUGH
        return Evaluation(self._by_batch(measured.noise), value, self.goal.is_met(value), max(tolerable, 1 / ROUGH**4))

    def probe(self, sets: Sequence[Units]) -> Floats:
        """One pass with another set for every batch: noise by batch."""
        return self._by_batch(self._simulate(sets).noise)

    def _simulate(self, sets: Sequence[Units]) -> Measured:
        simulate = self.simulate_batches if self.elsewhere is None else self.elsewhere
        return self._bench.judge_outputs(simulate(0, sets))

    def simulate_batches(self, first: int, sets: Sequence[Units]) -> list[list[Float32]]:
        """Outputs for some batches in a row, from the first, each with its set of groups in float."""
        pairs = zip(self._batches[first:], sets, strict=False)
        return [self._network.outputs(batch, self.change(units)) for batch, units in pairs]

    def _by_batch(self, noise: Floats) -> Floats:
        if len(noise) == len(self._batches):
            return noise
        starts = np.cumsum([0, *(batch.samples for batch in self._batches)])[:-1]
        return np.add.reduceat(noise, starts)

    def _value(self, measured: Measured) -> float:
        if self.goal.kind == "sqnr":
            assert measured.worst is not None
            return measured.worst.sqnr_db
        metric, floats = self._metric, self._bench.float_metric
        assert metric is not None and floats is not None and measured.metric is not None
        drop = metric.aggregate(floats) - metric.aggregate(measured.metric)
        return drop if metric.higher_is_better else -drop

    def _check_edited(self, units: Units) -> Check:
        """The quantized model before and after it was edited, on samples that the search did not see."""
        bench = self._bench_on(self._judged)
        before = self._level(bench, bench.before)
        samples = samples_of(self._judged)
        after: Level | None = None
        failed: str | None = None
        unedited: tuple[str, ...] = ()
        if units:
            try:
                edited = edit(self._models, self._case, self.change(units))
                unedited = edited.unedited
                after = self._level(bench, bench.measure(edited))
            except QuantmedicError as error:
                failed = ": ".join([error.message, *error.where[:2]])
        return Check(samples=samples, shared=self._shared, before=before, after=after, failed=failed, unedited=unedited)

    def _level(self, bench: Bench, measured: Measured) -> Level:
        worst = measured.worst
        assert worst is not None
        low, high = _sqnr_interval(worst.power, worst.noise, self._seed)
        level = Level(
            sqnr_db=worst.sqnr_db,
            sqnr_low=low,
            sqnr_high=high,
            worst=worst.words,
            whole_sqnr_db=worst.whole_sqnr_db,
        )
        metric = self._metric
        if metric is None or bench.float_metric is None or measured.metric is None:
            return level
        drop, low, high = metric.drop_interval(bench.float_metric, measured.metric, self._seed)
        known = {"metric": metric.aggregate(measured.metric), "drop": drop, "drop_low": low, "drop_high": high}
        return level.model_copy(update=known)

    def _record(self, best: Units | None, check: Check | None) -> FallbackRecord:
        found, record = self._found, self._case.record
        chosen = [self.groups[i] for i in sorted(best or ())]
        numbers = {id(step): number for number, step in enumerate(found.steps)}
        return FallbackRecord(
            quantmedic_version=record.quantmedic_version,
            float_model=record.run["float_model"],
            quantized_model=record.run["quantized_model"],
            data=self._dataset.origin,
            goal=self.goal,
            seed=self._seed,
            samples=samples_of(self._batches),
            units=tuple(group.name for group in self.groups),
            layers=tuple(self._layer(group) for group in chosen),
            cost=self._cost(chosen) if best is not None else None,
            found=best is not None,
            interrupted=found.interrupted,
            evaluations=found.evaluations,
            one_at_a_time=one_at_a_time(len(self.groups)),
            steps=tuple(
                FallbackStep(layers=tuple(sorted(step.units)), value=step.value, met=step.met) for step in found.steps
            ),
            reversals=tuple((numbers[id(a)], numbers[id(b)]) for a, b in found.reversals),
            check=check,
            unsimulated=quantizers_not_simulated(record, self._network),
        )

    @property
    def places(self) -> Targets:
        """The set that the search has found, by index into the tables of the case."""
        chosen = [self.groups[i] for i in sorted(self._found.best or ())]
        return Targets(
            tuple(dict.fromkeys(i for group in chosen for i in group.tensors)),
            tuple(dict.fromkeys(k for group in chosen for k in group.operators)),
        )

    def _layer(self, group: Group) -> FallbackLayer:
        record = self._case.record
        nodes = [name for k in group.operators for name in record.operators[k].float_nodes or ()]
        readers = [name for i in group.tensors for name in record.tensors[i].readers]
        return FallbackLayer(
            name=group.name,
            op_type=group.units[0].op_type,
            nodes=tuple(dict.fromkeys(nodes)),
            readers=tuple(name for name in dict.fromkeys(readers) if name not in nodes),
        )

    def _cost(self, chosen: Sequence[Group]) -> Cost:
        members = {k for group in chosen for k in group.operators}
        opened = {i for group in chosen for i in group.tensors}
        dragged = {k for k, op in enumerate(self._case.record.operators) if opened & set(op.inputs)} - members
        return Cost(
            readers=len(dragged),
            bytes=sum(self._sizes[k].bytes_as_float for k in members | dragged),
            operations=_operations(self._sizes[k] for k in members | dragged),
            operations_all=_operations(self._sizes),
        )


def _operations(sizes: Iterator[Size] | Sequence[Size]) -> int | None:
    known = [size.operations for size in sizes]
    return None if None in known else sum(count for count in known if count is not None)


def _cut(batches: Sequence[Batch], samples: int, sets: int, unit: int) -> list[Batch]:
    """This many of the samples, spread over all of them, in small batches: each batch can try another set."""
    step = max(samples_of(batches) / samples, 1.0)
    size = max(unit, -(-min(samples, samples_of(batches)) // sets))
    if unit > 1:
        return [batches[round(i * step)] for i in range(int(len(batches) / step))]
    kept = {round(i * step) for i in range(int(samples_of(batches) / step))}
    found, start = [], 0
    for batch in batches:
        rows = np.array([row for row in range(batch.samples) if start + row in kept], np.int64)
        start += batch.samples
        found += [batch.take(rows[i : i + size]) for i in range(0, len(rows), size)]
    return found


def _sqnr_interval(power: Floats, noise: Floats, seed: int) -> tuple[float, float]:
    """95 % interval of the SQNR in dB: percentiles of a seeded bootstrap over samples."""
    rng = np.random.default_rng(seed)
    picks = rng.integers(0, len(power), (RESAMPLES, len(power)))
    ratios = noise[picks].sum(axis=1) / np.maximum(power[picks].sum(axis=1), np.finfo(float).tiny)
    high, low = np.quantile(ratios, [0.025, 0.975])
    return sqnr_db(1.0, float(low)), sqnr_db(1.0, float(high))
