"""Layers in float: the fewest that meet a goal, found in the simulated network, and lists of them that are named.

A set is searched for on one half of the samples, and checked on the other half with the quantized model itself.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch, cut
from quantmedic.collectors.metrics.metric import load_metric
from quantmedic.collectors.pair.operations import Size, sizes_of
from quantmedic.engine.case.proof import FLOAT_SET
from quantmedic.engine.case.records import Case
from quantmedic.engine.contract.searches import (
    Check,
    Cost,
    DebuggerRecord,
    DenylistOutcome,
    FallbackLayer,
    FallbackRecord,
    FallbackStep,
    Goal,
)
from quantmedic.engine.diagnosis.smallest_set import Evaluation, SearchState, Units, one_at_a_time, smallest_set
from quantmedic.engine.diagnosis.suspects import Repair
from quantmedic.engine.errors import DataError
from quantmedic.engine.formulas.change import Targets
from quantmedic.trials.bench import Measured
from quantmedic.trials.layer_search import EditedLayers, Float32, LayerSearch, Searched, SimulateElsewhere
from quantmedic.trials.places import Group, targets_of
from quantmedic.trials.split import CROSS_FITTED_BELOW, folds, judged_together, read_pool, samples_of, take_samples

Floats = NDArray[np.float64]
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
#: A set with a larger share of the layers is no repair: hardly anything would be left in int8.
MOST = 1 / 3
NAMED = 4
#: What the model as it is is called in the table of denylists.
AS_IT_IS = "nothing in float"


class FallbackTrial(LayerSearch):
    """One search and its check.

    Attributes:
        elsewhere: Simulates batches in place of this process, where there are workers.
    """

    elsewhere: SimulateElsewhere | None = None

    def __init__(self, searched: Searched, goal: Goal, *, samples: int | None = None, sets: int = SETS) -> None:
        """Read the samples, and run the float and the quantized network on them.

        Args:
            searched: See there; the seed is that of the random sets, too.
            goal: What to reach; of a drop, the metric is filled in.
            samples: Samples of one evaluation; by the size of the network if None.
            sets: Random sets in one pass for the ranking, if there are so many samples.

        Raises:
            ModelError: No layer is quantized, or the network cannot be simulated.
            DataError: The data cannot be read, or do not fit the metric.
        """
        super().__init__(searched)
        unit = searched.dataset.unit
        self._sizes = sizes_of(searched.models)
        pool = self._pool(samples or self._sample_count())
        named = self._metric.name if self._metric is not None else None
        if goal.kind == "drop" and self._metric is None:
            pool, self._metric, named = self._with_classes(pool), load_metric("top1"), AGREEMENT
        direction = self._metric.higher_is_better if self._metric is not None else None
        self.goal = goal.model_copy(update={"metric": named, "higher_is_better": direction})
        self._shared = samples_of(pool) < CROSS_FITTED_BELOW
        fold = folds(pool, unit, searched.seed)[0]
        batches: Sequence[Batch] = pool if self._shared else fold.fitted
        self._judged: Sequence[Batch] = pool if self._shared else fold.judged
        self._batches = _cut(batches, samples or self._sample_count(), sets, unit)
        self._bench = self._bench_on(self._batches, whole=True)
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
        size = judged_together(self._case)
        return read_pool(self._dataset, known or wanted, None if known else wanted, wanted, self._seed, size)

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
        bench = self._bench_on(self._judged, whole=True)
        before = bench.worst_outcome(bench.before, self._seed)
        edited = self.judge_edited(bench, units) if units else EditedLayers()
        return Check(
            samples=samples_of(self._judged),
            shared=self._shared,
            before=before,
            after=edited.outcome,
            failed=edited.failed,
            unedited=edited.unedited,
        )

    def _record(self, best: Units | None, check: Check | None) -> FallbackRecord:
        found, record = self._found, self._case.record
        chosen = self.best_groups(found)
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
            unsimulated=self.unsimulated,
        )

    @property
    def places(self) -> Targets:
        """The set that the search has found, by index into the tables of the case."""
        return targets_of(self.best_groups(self._found))

    def best_groups(self, found: SearchState) -> list[Group]:
        """The best set that a search has found so far."""
        return [self.groups[i] for i in sorted(found.best or ())]

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
    kept = np.unique([round(i * step) for i in range(int(samples_of(batches) / step))])
    return [part for batch in take_samples(batches, kept) for part in cut([batch], size)]


def float_set(search: FallbackTrial, case: Case, seed: int, progress: Callable[[], None]) -> Repair | None:
    """Search for it in the simulated network.

    Args:
        search: With the output SQNR that explains the loss as its goal.
        case: What was measured of the models.
        seed: Seed of the search.
        progress: Called after every pass over the samples.

    Returns:
        None where no set is small enough.

    Raises:
        QuantmedicError: The network fails.
    """
    found = smallest_set(
        len(search.groups), search.evaluate, search.probe, seed=seed, progress=lambda found: progress()
    )
    if found.interrupted:
        raise KeyboardInterrupt
    groups = search.best_groups(found)
    if not groups or len(groups) > MOST * len(search.groups):
        return None
    change = search.change(found.best or frozenset())
    targets = targets_of(groups)
    nodes = [name for k in targets.operators for name in case.record.operators[k].float_nodes or ()]
    readers = [name for i in targets.tensors for name in case.record.tensors[i].readers]
    words = _set_in_words(groups, len(search.groups))
    return Repair(FLOAT_SET, FLOAT_SET, change, targets, words, tuple(dict.fromkeys([*nodes, *readers])))


def _set_in_words(groups: Sequence[Group], layers: int) -> str:
    names = ", ".join(group.name for group in groups[:NAMED])
    more = f" and {len(groups) - NAMED} more" if len(groups) > NAMED else ""
    return f"{len(groups)} of {layers} layers in float, the fewest found that suffice: {names}{more}"


def try_denylists(
    record: DebuggerRecord,
    search: LayerSearch,
    lists: Mapping[str, Sequence[str]],
    samples: int | None,
) -> DebuggerRecord:
    """The debugger's table with what the model gives as it is, and with each list of activations and their layers in
    float, all other ranges as they are.

    Args:
        record: The table.
        search: Both models and their samples.
        lists: Names of output tensors in the float model, by the name of the list.
        samples: Samples of one evaluation; up to 256 if None.

    Raises:
        DataError: A name is not that of a quantized activation, or the data do not fit.
        ModelError: A model fails, or the network cannot be simulated.
    """
    chosen = {name: search.find_groups(names, name) for name, names in lists.items()}
    bench = search.bench_on_pool(samples, samples or MAX_SAMPLES)
    found = [DenylistOutcome(name=AS_IT_IS, outcome=bench.worst_outcome(bench.before, 0))]
    for name, groups in chosen.items():
        edited = search.judge_edited(bench, groups)
        layers = tuple(search.groups[i].name for i in sorted(groups))
        found.append(DenylistOutcome(name=name, layers=layers, outcome=edited.outcome, failed=edited.failed))
    known = {"float_metric": bench.float_value, "judged_samples": bench.samples, "denylists": tuple(found)}
    return record.model_copy(update=known)
