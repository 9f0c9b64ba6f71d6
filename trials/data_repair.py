"""Representative inputs without their mistake, as a trial calibrates with them."""

from collections.abc import Callable
from dataclasses import dataclass

from quantmedic.collectors.data.batches import Batch
from quantmedic.engine.case.facts import CaseFacts
from quantmedic.engine.diagnosis.input_repair import InputRepair, input_repair


@dataclass(frozen=True)
class DataRepair:
    """What is done to every batch, and its description."""

    words: str
    repair: Callable[[Batch], Batch | None]


def data_repair(cause: str, facts: CaseFacts) -> DataRepair | None:
    """The repair of the representative inputs for a cause; None where the facts do not show one."""
    found = input_repair(cause, {dataset.role: dataset for dataset in facts.datasets})
    return DataRepair(found.words, lambda batch: _repair(batch, found)) if found is not None else None


def _repair(batch: Batch, found: InputRepair) -> Batch | None:
    """The batch without its mistake; None where no sample stays."""
    rows = found.find_kept(batch.inputs[found.name])
    if not rows.size:
        return None
    kept = batch if rows.size == batch.samples else batch.take(rows)
    return Batch({**kept.inputs, found.name: found.change(kept.inputs[found.name])}, kept.labels)
