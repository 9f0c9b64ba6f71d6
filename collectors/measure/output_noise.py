"""The noise at a network's output: what another network adds, per sample, to what the float one gives."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch
from quantmedic.engine.case.records import RunRecord

Float32 = NDArray[np.float32]
Floats = NDArray[np.float64]
#: The noise hides where the whole output is better than the first ratio and a column worse than the second (nmse).
CLEAN, SPOILT = 0.01, 0.1
#: Axes with more columns are not searched for hidden noise.
MAX_COLUMNS = 1024


class OutputNoise:
    """Float outputs of some batches, to compare others with; each output counts in shares of its own signal.

    Where the noise of the deployed network hides in few output columns of small values, only these are judged.
    """

    def __init__(
        self,
        batches: Sequence[Batch],
        floats: Sequence[Sequence[Float32]],
        deployed: Sequence[Sequence[Float32]],
        *,
        classes: bool,
        whole: bool = False,
    ) -> None:
        """Outputs per batch, in the same order.

        Args:
            batches: The samples.
            floats: What the float network makes of them.
            deployed: What the deployed network makes of them.
            classes: The first output holds class scores along its last axis.
            whole: Judge all columns anyway.
        """
        self._weights = [batch.samples for batch in batches]
        self._floats, self._classes = floats, classes
        self._by_sample = all(
            x.ndim and len(x) == batch.samples for batch, found in zip(batches, floats, strict=True) for x in found
        )
        self._columns: tuple[int, int, NDArray[np.int64]] | None = None
        self._columns = None if whole else self._hidden(deployed)
        self._totals = [
            sum(float(self._energy(found[o], o).sum()) for found in floats) or 1.0 for o in range(len(floats[0]))
        ]

    @property
    def columns(self) -> int | None:
        """Number of columns that are judged; None for all."""
        return None if self._columns is None else len(self._columns[2])

    @property
    def power(self) -> Floats:
        """Signal per sample."""
        return np.concatenate([self._energy_of_outputs(floats) for floats in self._floats])

    def compare(self, outputs: Sequence[Sequence[Float32]]) -> RunRecord:
        """Noise per sample of other outputs, and how often their class is that of the float network."""
        noise, same = [], []
        for floats, found in zip(self._floats, outputs, strict=True):
            noise.append(self._energy_of_outputs([_difference(x, y) for x, y in zip(floats, found, strict=True)]))
            if self._classes and self._by_sample:
                x, y = (a.reshape(len(a), -1, a.shape[-1]).argmax(axis=2) for a in (floats[0], found[0]))
                same.append((x == y).mean())
        agreement = float(np.average(same, weights=self._weights)) if same else None
        return RunRecord(noise=tuple(np.concatenate(noise).tolist()), agreement=agreement)

    def _energy_of_outputs(self, outputs: Sequence[Float32]) -> Floats:
        """Energy per sample over all outputs, each in shares of its own signal."""
        energies = [self._energy(array, o) / self._totals[o] for o, array in enumerate(outputs)]
        total: Floats = np.sum(energies, axis=0)
        return total

    def _energy(self, array: Float32, output: int) -> Floats:
        """Per sample, or of the whole batch where an output has another first axis."""
        values = np.nan_to_num(array.astype(np.float64), posinf=0.0, neginf=0.0)
        if self._columns is not None:
            if self._columns[0] != output:
                return np.zeros(len(array) if self._by_sample else 1)
            values = np.take(values, self._columns[2], axis=self._columns[1])
        energy: Floats = (values.reshape(len(array) if self._by_sample else 1, -1) ** 2).sum(axis=1)
        return energy

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
