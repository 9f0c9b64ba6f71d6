"""What arrives at the network's output under changed quantizers: noise per sample, on a part of one data set."""

import time

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch, Part
from quantmedic.collectors.data.datasets import Dataset
from quantmedic.collectors.measure.models import Models
from quantmedic.collectors.measure.options import Options
from quantmedic.collectors.measure.output_noise import OutputNoise
from quantmedic.collectors.pair.output_parts import recorded_joints
from quantmedic.engine.case.facts import Role
from quantmedic.engine.case.records import Case, RunRecord, SimulationRecord
from quantmedic.engine.formulas.change import Change

Float32 = NDArray[np.float32]
#: Samples that are simulated; between these, as many as a run's time allows.
MIN_SAMPLES, MAX_SAMPLES = 16, 128
RUN_SECONDS = 0.5
#: Bytes of the float outputs that are kept for comparison.
OUTPUT_BYTES = 64 << 20


class Simulation:
    """Samples, their float outputs and the network to compare with them.

    Attributes:
        network: The float network with quantizers that can be changed.
        batches: The samples.
        unit: Samples that the models take at a time; 1 where they take any number.
        record: What is kept in the case; it grows with the runs.
    """

    def __init__(self, models: Models, dataset: Dataset, role: Role, case: Case, options: Options) -> None:
        """Run the float, the deployed and the simulated network once.

        Raises:
            ModelError: The network cannot be simulated.
            DataError: The data cannot be read again.
        """
        self.network = models.simulate(case, options.threads)
        self.unit = dataset.unit
        self.batches, floats = self._read_samples(dataset, case, role, options)
        run = models.quantized_runner(options.threads)
        outputs = [run(batch) for batch in self.batches]
        classes = bool((case.statistics[role].samples["class_float"] >= 0).any())
        self._noise = OutputNoise(self.batches, floats, outputs, classes=classes, joints=recorded_joints(case.record))
        self.record = SimulationRecord(
            dataset=role,
            power=tuple(self._noise.power.tolist()),
            deployed=self._noise.compare(outputs),
            simulated=self.run(Change()),
            columns=self._noise.columns,
        )

    def run(self, change: Change) -> RunRecord:
        """Noise of the outputs under a change.

        Raises:
            ModelError: The network fails.
        """
        return self._noise.compare([self.network.outputs(batch, change) for batch in self.batches])

    def _read_samples(
        self, dataset: Dataset, case: Case, role: Role, options: Options
    ) -> tuple[list[Batch], list[list[Float32]]]:
        """A random part of the samples with what the float network makes of them, as far as time and memory allow."""
        seen = case.record.datasets[role].seen
        count = max(seen // MAX_SAMPLES, 1)
        part = Part(0, count, options.seed) if count > 1 else None
        batches: list[Batch] = []
        floats: list[list[Float32]] = []
        wanted, samples, size = MAX_SAMPLES, 0, 0
        for batch in dataset.batches(min(options.batch_size or MIN_SAMPLES, MIN_SAMPLES), options.samples, part=part):
            start = time.perf_counter()
            outputs = self.network.outputs(batch, None)
            seconds = (time.perf_counter() - start) / batch.samples
            batches.append(batch)
            floats.append(outputs)
            if samples >= MIN_SAMPLES and 2 * seconds * MIN_SAMPLES > RUN_SECONDS:
                batches.pop()
                floats.pop()
                break
            samples += batch.samples
            size += sum(array.nbytes for array in outputs)
            wanted = min(wanted, max(int(RUN_SECONDS / seconds), MIN_SAMPLES)) if len(batches) > 1 else wanted
            if samples >= wanted or (samples >= MIN_SAMPLES and size > OUTPUT_BYTES):
                break
        return batches, floats
