"""A case whose float activations are those of some samples, so that changes are fitted to these alone."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from quantmedic.collectors.data.batches import Batch, cut
from quantmedic.collectors.data.rows import row_of
from quantmedic.collectors.measure.models import FloatReader, Models
from quantmedic.collectors.measure.simulation import batch_size_of
from quantmedic.collectors.pair.tensor_pairs import Pair
from quantmedic.collectors.statistics.accumulate import SetAccumulator, as_rows
from quantmedic.engine.case.records import Case
from quantmedic.engine.case.statistics import SetStatistics
from quantmedic.engine.formulas.stored_bins import main_role


class FittedCase:
    """Some samples, and of the float model's tensors on them the histograms that were asked for.

    A remedy names few tensors: only those are measured, each once.
    """

    def __init__(self, models: Models, case: Case, batches: Sequence[Batch], unit: int, threads: int) -> None:
        """Remember what there is to measure.

        Args:
            models: Both models.
            case: What was measured of them on all samples.
            batches: The samples.
            unit: Samples that the models take at a time and that stay together.
            threads: Processor threads.
        """
        size = batch_size_of(case)
        self._batches = [part for batch in batches for part in (cut([batch], size) if unit == 1 else [batch])]
        self._models, self._case, self._threads = models, case, threads
        self._pairs = {(pair.root, pair.twin): pair for pair in models.pairs}
        role = main_role(case)
        whole = case.statistics[role]
        statistics = SetStatistics.empty(whole.channels, 0, [])
        statistics.lattice = whole.lattice  # The values that an input can take do not depend on the samples.
        self._into = SetAccumulator(statistics, None, classes=False, thumbnails=False)
        self._measured: set[int] = set()
        self._fitted = replace(case, statistics={role: statistics})

    def with_tensors(self, tensors: Iterable[int]) -> Case:
        """The case with at least these tensors measured, by index.

        Raises:
            ModelError: A model fails.
        """
        missing = sorted(set(tensors) - self._measured)
        if missing:
            self._measure(missing)
            self._measured.update(missing)
        return self._fitted

    def _measure(self, tensors: Sequence[int]) -> None:
        records = self._case.record.tensors
        pairs = {i: self._pairs[records[i].name, records[i].float_name] for i in tensors}
        read = self._reader_of(pairs)
        for batch in self._batches:
            floats = read(batch)
            for i, pair in pairs.items():
                rows = as_rows(np.asarray(row_of(floats[pair.twin]), np.float32), records[i].axis)
                self._into.tensor(i, rows, batch.samples, None, None, None)

    def _reader_of(self, pairs: Mapping[int, Pair]) -> FloatReader:
        """The float model alone, where it can be read so."""
        read = self._models.float_reader([pair.twin for pair in pairs.values()], self._threads)
        if read is not None:
            return read
        view = self._models.view(pairs, self._batches[0], self._threads)
        return lambda batch: view.read(batch).floats
