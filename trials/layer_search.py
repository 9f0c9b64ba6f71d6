"""Searches over layers: what a network gives with some of them in float, simulated or edited, run after run."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.arrays import array_content
from quantmedic.collectors.data.batches import Batch, Part
from quantmedic.collectors.data.datasets import Dataset
from quantmedic.collectors.data.messages import did_you_mean
from quantmedic.collectors.measure.models import Models
from quantmedic.collectors.metrics.metric import Metric
from quantmedic.collectors.pair.output_parts import recorded_joints
from quantmedic.engine.case.records import Case
from quantmedic.engine.contract.searches import Mode, Outcome, SensitivityRecord, SensitivityUnit, WorstOutcome
from quantmedic.engine.diagnosis.smallest_set import Units
from quantmedic.engine.errors import DataError, ModelError, QuantmedicError, failure_in_words
from quantmedic.engine.formulas.change import Change
from quantmedic.trials.bench import Bench
from quantmedic.trials.edit import edit
from quantmedic.trials.places import Unit, groups_of, left_in_float, quantizers_not_simulated, units_of
from quantmedic.trials.split import judged_together, read_pool, samples_of, take_samples

#: Bytes of inputs and float outputs that are kept in memory; no more samples are read then.
MAX_BYTES = 256 << 20
Float32 = NDArray[np.float32]
#: Outputs for batches from a first one on, each with its set of groups in float, computed on other machines.
SimulateElsewhere = Callable[[int, Sequence[Units]], list[list[Float32]]]


class EditedLayers(NamedTuple):
    """What came of editing layers: the model judged, why it failed, and what could not be carried out."""

    outcome: WorstOutcome | None = None
    failed: str | None = None
    unedited: tuple[str, ...] = ()


@dataclass(frozen=True)
class Searched:
    """What is searched.

    Attributes:
        models: Both models.
        dataset: Where the samples come from.
        case: What ``collect`` found out about the models; a few samples will do.
        metric: Task metric; used where the data set is labelled.
        threads: Processor threads.
        seed: Seed of the choice of samples, and of bootstrapped intervals.
    """

    models: Models
    dataset: Dataset
    case: Case
    metric: Metric | None
    threads: int
    seed: int


class LayerSearch:
    """Both models and the simulated network, its layers, and the benches that judge what is left in float.

    Attributes:
        units: What can be quantized or left in float.
        groups: The same without what rounds a second time to one grid: sets are made of these.
        unsimulated: Layers and activations whose quantizers no run can turn on or off.
    """

    def __init__(self, searched: Searched) -> None:
        """Build the simulated network.

        Raises:
            ModelError: No layer is quantized, or the network cannot be simulated.
        """
        models, case = searched.models, searched.case
        self._models, self._case, self._dataset = models, case, searched.dataset
        self._threads, self._seed = searched.threads, searched.seed
        self._metric = searched.metric if searched.dataset.labelled else None
        self._network = models.simulate(case, searched.threads)
        self._network.repeat_exactly()
        self.units = units_of(case.record, self._network)
        self.groups = groups_of(case.record, self.units)
        self.unsimulated = quantizers_not_simulated(case.record, self._network)
        if not self.units:
            raise _nothing_quantized(models, self.unsimulated)

    def change(self, groups: Units) -> Change:
        """A set of groups left in float."""
        return self._in_float(unit for i in groups for unit in self.groups[i].units)

    def find_groups(self, names: Sequence[str], title: str) -> Units:
        """The groups that hold these activations of the float model.

        Raises:
            DataError: A name is not that of a quantized activation.
        """
        tensors = self._case.record.tensors
        by_name = {tensors[i].float_name: n for n, group in enumerate(self.groups) for i in group.tensors}
        for name in names:
            if name not in by_name:
                raise DataError(
                    "a denylist names no quantized activation",
                    where=f"{'' if name == title else f'{title}: '}{name}{did_you_mean(name, by_name)}",
                    help="names are those of the column tensor_name, whole",
                )
        return frozenset(by_name[name] for name in names)

    def judge_edited(self, bench: Bench, groups: Units) -> EditedLayers:
        """The quantized model itself, edited so that a set of groups runs in float."""
        unedited: tuple[str, ...] = ()
        try:
            edited = edit(self._models, self._case, self.change(groups))
            unedited = edited.unedited
            return EditedLayers(bench.worst_outcome(bench.measure(edited), self._seed), None, unedited)
        except QuantmedicError as error:
            return EditedLayers(None, failure_in_words(error), unedited)

    def _in_float(self, units: Iterable[Unit]) -> Change:
        return left_in_float(units, self._network.weighted)

    def bench_on_pool(self, limit: int | None, wanted: int) -> Bench:
        """Judges whole outputs on a random part of the data set; see ``read_pool``."""
        seen, size = self._dataset.samples or wanted, judged_together(self._case)
        return self._bench_on(read_pool(self._dataset, seen, limit, wanted, self._seed, size), whole=True)

    def _bench_on(self, batches: Sequence[Batch], *, whole: bool) -> Bench:
        return Bench(
            self._models,
            batches,
            metric=self._metric,
            classes=self._case.has_classes,
            threads=self._threads,
            whole=whole,
            joints=recorded_joints(self._case),
        )


class Experiment(LayerSearch):
    """Runs of ``sensitivity``: one layer quantized, all but one, or all up to one.

    Attributes:
        start: The record before any run.
    """

    def __init__(self, searched: Searched, *, modes: Sequence[Mode], samples: int, batch_size: int) -> None:
        """Run the float, the deployed and the simulated network once.

        Args:
            searched: See there.
            modes: Which runs are planned.
            samples: At most this many samples, chosen at random where the length of the data set is known.
            batch_size: Samples per run.

        Raises:
            ModelError: No layer is quantized, or the network cannot be simulated.
            DataError: The data cannot be read, or do not fit the metric.
        """
        super().__init__(searched)
        case, seed = searched.case, searched.seed
        self._batches = self._read_batches(samples, batch_size)
        self._bench = self._bench_on(self._batches, whole=False)
        run, metric = case.record.run, self._metric
        self.start = SensitivityRecord(
            quantmedic_version=case.record.quantmedic_version,
            float_model=run["float_model"],
            quantized_model=run["quantized_model"],
            float_sha256=run["float_sha256"],
            quantized_sha256=run["quantized_sha256"],
            data=searched.dataset.origin,
            data_sha256=_content_hash(self._batches),
            samples=samples_of(self._batches),
            seed=seed,
            batch_size=batch_size,
            metric=metric.name if metric else None,
            metric_output=metric.output if metric else None,
            metric_options=metric.options if metric else None,
            higher_is_better=metric.higher_is_better if metric else None,
            float_metric=self._bench.float_value,
            modes=tuple(modes),
            units=tuple(SensitivityUnit(name=u.name, op_type=u.op_type, quantized=u.quantized) for u in self.units),
            unsimulated=self.unsimulated,
            columns=self._bench.columns,
            deployed=self._bench.outcome(self._bench.before, seed),
            simulated=self.outcome(range(len(self.units))),
        )

    def run(self, mode: Mode, unit: int) -> Outcome:
        """The output in one planned run."""
        every = range(len(self.units))
        match mode:
            case "one":
                return self.outcome((unit,))
            case "all-but-one":
                return self.outcome([i for i in every if i != unit])
            case "cumulative":
                return self.outcome(every[: unit + 1])

    def outcome(self, quantized: Iterable[int]) -> Outcome:
        """The output with the quantizers of some units, all others in float.

        Raises:
            ModelError: The network fails.
        """
        kept = frozenset(quantized)
        change = self._in_float(unit for i, unit in enumerate(self.units) if i not in kept)
        outputs = [self._network.outputs(batch, change) for batch in self._batches]
        return self._bench.outcome(self._bench.judge_outputs(outputs), self._seed)

    def _read_batches(self, samples: int, batch_size: int) -> list[Batch]:
        """Samples from all over the data set, no more than fit into memory with their outputs."""
        dataset, unit = self._dataset, self._dataset.unit
        first = next(dataset.batches(batch_size, max(batch_size, unit)))
        arrays = [*first.inputs.values(), *self._network.outputs(first, None)]
        room = MAX_BYTES // max(sum(array.nbytes for array in arrays) // first.samples, 1)
        wanted = max(min(samples, room), unit)
        if dataset.samples is None:
            return list(dataset.batches(batch_size, wanted))
        known, kept = dataset.samples // unit, wanted // unit
        # What is taken together is read or not; single samples are thinned out.
        count = known // kept if unit == 1 else -(-known // kept)
        batches = list(dataset.batches(batch_size, part=Part(0, count, self._seed) if count > 1 else None))
        if unit > 1:
            return batches
        chosen = np.random.default_rng(self._seed).permutation(samples_of(batches))[:wanted]
        return take_samples(batches, np.sort(chosen))


def _nothing_quantized(models: Models, not_simulated: Sequence[str]) -> ModelError:
    if not_simulated:
        return ModelError(
            "no quantizer of the model can be simulated, so that no layer can be quantized alone",
            where=f"{models.quantized.path}  {', '.join(not_simulated[:5])}",
            help="measure the layers in place: quantmedic diagnose FLOAT QUANT",
        )
    return ModelError(
        "no layer of the quantized model is quantized",
        where=str(models.quantized.path),
        help="give the float model first and the quantized one second",
    )


def _content_hash(batches: Sequence[Batch]) -> str:
    digest = hashlib.sha256()
    for batch in batches:
        arrays = {**batch.inputs, **({} if batch.labels is None else {"labels": batch.labels})}
        for name, array in arrays.items():
            for block in array_content(name, array):
                digest.update(block)
    return digest.hexdigest()
