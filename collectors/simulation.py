"""What arrives at the network's output under changed quantizers: noise per sample, on a part of one data set."""

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.batches import Batch, Part
from quantmedic.collectors.datasets import Dataset
from quantmedic.collectors.onnx_observer import Options
from quantmedic.collectors.onnx_pair import Models
from quantmedic.collectors.onnx_plan import feed_of
from quantmedic.collectors.onnx_session import make_session, run
from quantmedic.collectors.onnx_simulated import SimulatedNetwork
from quantmedic.engine.case import Case, RunRecord, SimulationRecord
from quantmedic.engine.change import Change
from quantmedic.engine.facts import Role

Float32 = NDArray[np.float32]
Floats = NDArray[np.float64]
#: Samples that are simulated; between these, as many as a run's time allows.
MIN_SAMPLES, MAX_SAMPLES = 16, 128
RUN_SECONDS = 0.5
#: Bytes of the float outputs that are kept for comparison.
OUTPUT_BYTES = 64 << 20
#: The noise hides where the whole output is better than the first ratio and a column worse than the second (nmse).
CLEAN, SPOILT = 0.01, 0.1
#: Axes with more columns are not searched for hidden noise.
MAX_COLUMNS = 1024


class Simulation:
    """Samples, their float outputs and the network to compare with them."""

    def __init__(self, models: Models, dataset: Dataset, role: Role, case: Case, options: Options) -> None:
        """Run the float, the deployed and the simulated network once.

        Raises:
            ModelError: The network cannot be simulated.
            DataError: The data cannot be read again.
        """
        self._network = SimulatedNetwork(models, case, options.threads)
        self._classes = bool((case.statistics[role].samples["class_float"] >= 0).any())
        self._batches, self._floats = self._read(dataset, case, role, options)
        pairs = zip(self._batches, self._floats, strict=True)
        self._by_sample = all(x.ndim and len(x) == batch.samples for batch, floats in pairs for x in floats)
        quantized = models.quantized
        names = [quantized.outputs[j] for _, j in models.match.outputs]
        session = make_session(quantized.model, quantized.path, options.threads)
        deployed = [run(session, names, feed_of(batch, quantized), quantized.path) for batch in self._batches]
        outputs = [[np.asarray(array, np.float32) for array in found] for found in deployed]
        self._columns = self._hidden(outputs)
        self._totals = [
            sum(float(self._energy(floats[o], o).sum()) for floats in self._floats) or 1.0 for o in range(len(names))
        ]
        self.record = SimulationRecord(
            dataset=role,
            power=tuple(np.concatenate([self._joined(floats) for floats in self._floats]).tolist()),
            deployed=self._compared(outputs),
            simulated=self.run(Change()),
            columns=None if self._columns is None else len(self._columns[2]),
        )

    def run(self, change: Change) -> RunRecord:
        """Noise of the outputs under a change.

        Raises:
            ModelError: The network fails.
        """
        return self._compared([self._network.outputs(batch, change) for batch in self._batches])

    def _read(
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
            outputs = self._network.outputs(batch, None)
            seconds = (time.perf_counter() - start) / batch.samples
            batches.append(batch)
            floats.append(outputs)
            samples += batch.samples
            size += sum(array.nbytes for array in outputs)
            wanted = min(wanted, max(int(RUN_SECONDS / seconds), MIN_SAMPLES)) if len(batches) > 1 else wanted
            if samples >= wanted or (samples >= MIN_SAMPLES and size > OUTPUT_BYTES):
                break
        return batches, floats

    def _compared(self, outputs: Sequence[Sequence[Float32]]) -> RunRecord:
        noise, same = [], []
        for floats, found in zip(self._floats, outputs, strict=True):
            noise.append(self._joined([_difference(x, y) for x, y in zip(floats, found, strict=True)]))
            if self._classes and self._by_sample:
                x, y = (a.reshape(len(a), -1, a.shape[-1]).argmax(axis=2) for a in (floats[0], found[0]))
                same.append((x == y).mean())
        weights = [batch.samples for batch in self._batches]
        agreement = float(np.average(same, weights=weights)) if same else None
        return RunRecord(noise=tuple(np.concatenate(noise).tolist()), agreement=agreement)

    def _joined(self, outputs: Sequence[Float32]) -> Floats:
        """Energy per sample over all outputs, each in shares of its own signal."""
        energies = [self._energy(array, o) / self._totals[o] for o, array in enumerate(outputs)]
        return np.sum(energies, axis=0)

    def _energy(self, array: Float32, output: int) -> Floats:
        """Per sample, or of the whole batch where an output has another first axis."""
        values = np.nan_to_num(array.astype(np.float64), posinf=0.0, neginf=0.0)
        if self._columns is not None:
            if self._columns[0] != output:
                return np.zeros(len(array) if self._by_sample else 1)
            values = np.take(values, self._columns[2], axis=self._columns[1])
        return (values.reshape(len(array) if self._by_sample else 1, -1) ** 2).sum(axis=1)

    def _hidden(self, deployed: Sequence[Sequence[Float32]]) -> tuple[int, int, NDArray[np.int64]] | None:
        """Output, axis and columns in which a clean output hides its noise; None where it does not."""
        for o in range(len(self._floats[0])):
            if len({found[o].shape[1:] for found in self._floats}) > 1 or not self._floats[0][o].ndim:
                continue
            floats = np.concatenate([found[o] for found in self._floats]).astype(np.float64)
            noise = np.concatenate([found[o] for found in deployed]) - floats
            total = (floats**2).sum()
            if not np.isfinite(noise).all() or total == 0 or (noise**2).sum() > CLEAN * total:
                continue
            for axis in range(1, floats.ndim):
                if not 1 < floats.shape[axis] <= MAX_COLUMNS:
                    continue
                others = tuple(i for i in range(floats.ndim) if i != axis)
                power, error = (floats**2).sum(axis=others), (noise**2).sum(axis=others)
                columns = np.flatnonzero((power > 0) & (error > SPOILT * power))
                if columns.size:
                    return o, axis, columns
        return None


def _difference(x: Float32, y: Float32) -> Float32:
    """What the second adds to the first; a value that is not finite has lost all of the signal."""
    return np.where(np.isfinite(y), y - x, x)
