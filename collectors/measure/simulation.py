"""What arrives at the network's output under changed quantizers: noise per sample, on a part of one data set."""

import sys
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch, Part
from quantmedic.collectors.data.datasets import Dataset
from quantmedic.collectors.measure.measurement import Measurement
from quantmedic.collectors.measure.memory import kept_bytes, samples_that_fit
from quantmedic.collectors.measure.options import Options
from quantmedic.collectors.measure.output_noise import OutputNoise
from quantmedic.collectors.pair.output_parts import recorded_joints
from quantmedic.engine.case.facts import Role
from quantmedic.engine.case.records import Case, RunRecord, SimulationRecord
from quantmedic.engine.formulas.change import Change
from quantmedic.engine.formulas.stored_bins import main_role

Float32 = NDArray[np.float32]
Floats = NDArray[np.float64]
#: Samples that are simulated; between these, as many as make so many values in a run, whatever time that takes.
MIN_SAMPLES, MAX_SAMPLES = 16, 128
#: Samples that are run at a time at most: more of them take no less time each.
RUN_SAMPLES = 32
RUN_VALUES = 128e6
#: Values of the samples that are run at a time, where those are more than a few.
BATCH_VALUES = 8e6
#: Share of the samples on which a change is tried first, and so many at least.
FIRST, LEAST_FIRST = 0.25, 4
#: These are others where they hold less than this share of their even part of the noise.
QUIET = 0.1
#: A change that leaves more than this share of the noise of every one of these recovers nothing: 0.2 dB.
HARDLY_LESS = 0.955
#: Bytes of the float outputs that are kept for comparison.
OUTPUT_BYTES = 64 << 20


class Simulation:
    """Samples, their float outputs and the network to compare with them.

    Attributes:
        network: The float network with quantizers that can be changed.
        deployed: Runs the quantized model.
        batches: The samples.
        unit: Samples that the models take at a time; 1 where they take any number.
        record: What is kept in the case; it grows with the runs.
    """

    def __init__(self, measurement: Measurement, role: Role, case: Case) -> None:
        """Run the float, the deployed and the simulated network once, on samples of one data set.

        Raises:
            ModelError: The network cannot be simulated.
            DataError: The data cannot be read again.
        """
        models, dataset, options = measurement.models, measurement.datasets[role], measurement.options
        self.network = models.simulate(case, options.threads)
        self.unit = dataset.unit
        self.batches, floats = self._read_samples(dataset, case, role, options)
        self.deployed = models.quantized_runner(options.threads)
        outputs = [self.deployed(batch) for batch in self.batches]
        classes, joints = case.statistics[role].has_classes, recorded_joints(case)
        self._noise = OutputNoise(self.batches, floats, outputs, classes=classes, joints=joints)
        self._first = _count_first(self.batches)
        order = _loudest_first(self._noise.by_batch(outputs).sum(axis=1), self._first)
        if order is not None:
            self.batches = [self.batches[k] for k in order]
            floats, outputs = ([each[k] for k in order] for each in (floats, outputs))
            self._noise = OutputNoise(self.batches, floats, outputs, classes=classes, joints=joints)
        simulated = [self.network.outputs(batch, Change()) for batch in self.batches]
        self.record = SimulationRecord(
            dataset=role,
            power=tuple(self._noise.power.tolist()),
            deployed=self._noise.compare(outputs),
            simulated=self._noise.compare(simulated),
            columns=self._noise.columns,
        )

    @property
    def numbers(self) -> list[int] | None:
        """Places of the samples in their set, counted from 0; None where the data set does not tell."""
        known = [batch.numbers for batch in self.batches if batch.numbers is not None]
        return np.concatenate(known).tolist() if len(known) == len(self.batches) else None

    def run(self, change: Change) -> RunRecord:
        """Noise of the outputs under a change; on the first samples alone where none of these gains anything.

        Raises:
            ModelError: The network fails.
        """
        outputs = [self.network.outputs(batch, change) for batch in self.batches[: self._first]]
        found = self._noise.compare(outputs)
        gains = zip(self.record.simulated.noise, found.noise, strict=False)
        if self._first == len(self.batches) or all(after >= HARDLY_LESS * before for before, after in gains):
            return found
        outputs += [self.network.outputs(batch, change) for batch in self.batches[self._first :]]
        return self._noise.compare(outputs)

    def _read_samples(
        self, dataset: Dataset, case: Case, role: Role, options: Options
    ) -> tuple[list[Batch], list[list[Float32]]]:
        """A random part of the samples with what the float network makes of them, as far as memory allows."""
        seen = case.record.datasets[role].seen
        count = max(seen // MAX_SAMPLES, 1)
        part = Part(0, count, options.seed) if count > 1 else None
        wanted = simulated_samples(case)
        batches: list[Batch] = []
        floats: list[list[Float32]] = []
        samples, size, room = 0, 0, kept_bytes(sys.maxsize)
        for batch in dataset.batches(batch_size_of(case), options.samples, part=part):
            outputs = self.network.outputs(batch, None)
            batches.append(batch)
            floats.append(outputs)
            samples += batch.samples
            size += sum(array.nbytes for array in outputs)
            room -= sum(array.nbytes for array in (*batch.inputs.values(), *outputs))
            if samples >= wanted or (samples >= MIN_SAMPLES and size > OUTPUT_BYTES) or room < 0:
                break
        return batches, floats


def _loudest_first(noise: Floats, first: int) -> list[int] | None:
    """The order of batches in which the loudest are tried first, ``noise`` being that of each.

    None where the ``first`` ones as they are hold something of it: a detector may find something in one sample of ten,
    and what heals it would do nothing on all that are tried before.
    """
    if noise[:first].sum() * len(noise) >= QUIET * noise.sum() * first:
        return None
    order: list[int] = np.argsort(-noise, kind="stable").tolist()
    return order


def _count_first(batches: Sequence[Batch]) -> int:
    """Batches on which a change is tried first."""
    wanted = max(sum(batch.samples for batch in batches) * FIRST, LEAST_FIRST)
    summed = np.cumsum([batch.samples for batch in batches])
    return min(int(np.searchsorted(summed, wanted)) + 1, len(batches))


def batch_size_of(case: Case) -> int:
    """Samples that are run at a time: as few as were measured so where those are few, else what their values allow."""
    size = case.record.run.get("batch_size")
    if isinstance(size, int) and size < MIN_SAMPLES:
        return size
    return samples_that_fit(samples_within(BATCH_VALUES, MIN_SAMPLES, RUN_SAMPLES, case))


def simulated_samples(case: Case) -> int:
    """Samples that are simulated, where there are so many."""
    return samples_within(RUN_VALUES, MIN_SAMPLES, MAX_SAMPLES, case)


def samples_within(values: float, least: int, most: int, case: Case) -> int:
    """Samples whose measured tensors hold so many values, between bounds."""
    return int(np.clip(values / max(values_per_sample(case), 1.0), least, most))


def values_per_sample(case: Case) -> float:
    """Values that the measured tensors have in a sample, on average."""
    statistics = case.statistics[main_role(case)]
    counts = np.add.reduceat(statistics.columns["count"], statistics.offsets[:-1])
    return float((counts / np.maximum(statistics.tensor_samples, 1)).sum())
