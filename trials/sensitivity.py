"""Sensitivity runs: the float network with the simulated quantizers of some layers only, run after run."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from quantmedic.collectors.data.arrays import array_content
from quantmedic.collectors.data.batches import Batch, Part
from quantmedic.collectors.data.datasets import Dataset
from quantmedic.collectors.measure.models import Models, SimulatedNetwork
from quantmedic.collectors.metrics.metric import Metric
from quantmedic.collectors.pair.output_parts import recorded_joints
from quantmedic.engine.case.records import Case, CaseRecord, RunRecord
from quantmedic.engine.case.tallies import Tally
from quantmedic.engine.diagnosis.prediction import output_sqnr_db
from quantmedic.engine.diagnosis.sensitivity import Mode, Outcome, SensitivityRecord, SensitivityUnit
from quantmedic.engine.errors import ModelError
from quantmedic.engine.formulas.change import Change
from quantmedic.trials.bench import Bench, Measured
from quantmedic.trials.split import samples_of

#: Bytes of inputs and float outputs that are kept in memory; no more samples are read then.
MAX_BYTES = 256 << 20


@dataclass(frozen=True)
class Unit:
    """What is quantized or left in float together, by index into the tables of the case.

    Attributes:
        name: Name of the layer in the float model, or of the network input.
        op_type: Its operator type.
        operator: The layer whose weights, bias and small constants can be left in float; None where none is quantized.
        tensors: Activations whose quantizers can be turned off.
        quantized: What has a quantizer, in words.
    """

    name: str
    op_type: str
    operator: int | None
    tensors: tuple[int, ...]
    quantized: tuple[str, ...]


def left_in_float(units: Iterable[Unit]) -> Change:
    """All quantizers of these units turned off."""
    units = list(units)
    operators = [unit.operator for unit in units if unit.operator is not None]
    tensors = [i for unit in units for i in unit.tensors]
    return Change(dict.fromkeys(tensors), dict.fromkeys(operators, "float"), frozenset(operators))


def units_of(record: CaseRecord, network: SimulatedNetwork) -> list[Unit]:
    """Units in the order of execution, network inputs first; layers without a simulated quantizer are left out."""
    owner: dict[int | None, int] = {}
    for k, op in enumerate(record.operators):
        for i in op.outputs:
            # An activation that is fused into the operator before it has that one's output.
            owner.setdefault(i, k)
    found = [
        Unit(f"{t.float_name} (input)" if t.is_input else t.float_name, t.producer, None, (i,), ("values",))
        for i, t in enumerate(record.tensors)
        if i in network.tensors and i not in owner
    ]
    for k, op in enumerate(record.operators):
        tensors = tuple(
            i for i in dict.fromkeys(op.outputs) if i is not None and i in network.tensors and owner[i] == k
        )
        weighted, constants = k in network.weighted, k in network.with_constants
        known = {
            "weight": weighted,
            "bias": weighted and bool(op.bias.bits),
            "constants": constants,
            "output": bool(tensors),
        }
        parts = tuple(part for part, is_quantized in known.items() if is_quantized)
        if parts:
            found.append(Unit(op.name, op.op_type, k if weighted or constants else None, tensors, parts))
    return found


def quantizers_not_simulated(record: CaseRecord, network: SimulatedNetwork) -> tuple[str, ...]:
    """Layers and activations with a quantizer that no run can turn on or off."""
    weights = [
        op.name for k, op in enumerate(record.operators) if op.weight.quantizer.bits and k not in network.weighted
    ]
    outputs = [t.float_name for i, t in enumerate(record.tensors) if t.quantizer.bits and i not in network.tensors]
    return tuple(dict.fromkeys([*weights, *outputs]))


class Experiment:
    """A part of a data set, what the float network makes of it, and the simulated network to compare with that.

    Attributes:
        units: What can be quantized or left in float.
        start: The record before any run.
    """

    def __init__(
        self,
        models: Models,
        dataset: Dataset,
        case: Case,
        *,
        modes: Sequence[Mode],
        samples: int,
        batch_size: int,
        threads: int,
        seed: int,
        metric: Metric | None,
    ) -> None:
        """Run the float, the deployed and the simulated network once.

        Args:
            models: Both models.
            dataset: Where the samples come from.
            case: What ``collect`` found out about the models; a few samples will do.
            modes: Which runs are planned.
            samples: At most this many samples, chosen at random where the length of the data set is known.
            batch_size: Samples per run.
            threads: Processor threads.
            seed: Seed of the choice, and of bootstrapped intervals.
            metric: Task metric; used where the data set is labelled.

        Raises:
            ModelError: No layer is quantized, or the network cannot be simulated.
            DataError: The data cannot be read, or do not fit the metric.
        """
        self._network = models.simulate(case, threads)
        self._network.repeat_exactly()
        self.units = units_of(case.record, self._network)
        left_out = quantizers_not_simulated(case.record, self._network)
        if not self.units:
            raise _nothing_quantized(models, left_out)
        self._metric, self._seed = metric if dataset.labelled else None, seed
        self._batches = self._read_batches(dataset, samples, batch_size)
        classes = case.has_classes
        self._bench = Bench(
            models,
            self._batches,
            metric=self._metric,
            classes=classes,
            threads=threads,
            joints=recorded_joints(case.record),
        )
        self.start = SensitivityRecord(
            quantmedic_version=case.record.quantmedic_version,
            float_model=case.record.run["float_model"],
            quantized_model=case.record.run["quantized_model"],
            float_sha256=case.record.run["float_sha256"],
            quantized_sha256=case.record.run["quantized_sha256"],
            data=dataset.origin,
            data_sha256=_content_hash(self._batches),
            samples=samples_of(self._batches),
            seed=seed,
            batch_size=batch_size,
            metric=self._metric.name if self._metric else None,
            metric_output=self._metric.output if self._metric else None,
            metric_options=self._metric.options if self._metric else None,
            higher_is_better=self._metric.higher_is_better if self._metric else None,
            float_metric=self._aggregate(self._bench.float_metric),
            modes=tuple(modes),
            units=tuple(SensitivityUnit(name=u.name, op_type=u.op_type, quantized=u.quantized) for u in self.units),
            unsimulated=left_out,
            columns=self._bench.columns,
            deployed=self._outcome(self._bench.before),
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
        change = left_in_float(unit for i, unit in enumerate(self.units) if i not in kept)
        return self._outcome(
            self._bench.judge_outputs([self._network.outputs(batch, change) for batch in self._batches])
        )

    def _read_batches(self, dataset: Dataset, samples: int, batch_size: int) -> list[Batch]:
        """Samples from all over the data set, no more than fit into memory with their outputs."""
        unit = dataset.unit
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
        return batches if unit > 1 else _choose_samples(batches, wanted, self._seed)

    def _outcome(self, measured: Measured) -> Outcome:
        noise = RunRecord(noise=tuple(measured.noise.tolist()))
        outcome = Outcome(sqnr_db=output_sqnr_db(self._bench.power, noise), agreement=measured.agreement)
        if self._metric is None or measured.metric is None or self._bench.float_metric is None:
            return outcome
        drop, low, high = self._metric.drop_interval(self._bench.float_metric, measured.metric, self._seed)
        metric = self._aggregate(measured.metric)
        return outcome.model_copy(update={"metric": metric, "drop": drop, "drop_low": low, "drop_high": high})

    def _aggregate(self, tally: Tally | None) -> float | None:
        return None if self._metric is None or tally is None else self._metric.aggregate(tally)


def _choose_samples(batches: Sequence[Batch], wanted: int, seed: int) -> list[Batch]:
    """So many of the samples, at random, in their order."""
    kept = np.sort(np.random.default_rng(seed).permutation(samples_of(batches))[:wanted])
    found, start = [], 0
    for batch in batches:
        rows = kept[(kept >= start) & (kept < start + batch.samples)] - start
        found += [batch.take(rows)] if rows.size else []
        start += batch.samples
    return found


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
        help="give the quantized model as second file",
    )


def _content_hash(batches: Sequence[Batch]) -> str:
    digest = hashlib.sha256()
    for batch in batches:
        arrays = {**batch.inputs, **({} if batch.labels is None else {"labels": batch.labels})}
        for name, array in arrays.items():
            for block in array_content(name, array):
                digest.update(block)
    return digest.hexdigest()
