"""Repaired representative inputs: mapped to the validation inputs, channels reversed, or blank samples dropped."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch
from quantmedic.engine.case.facts import CaseFacts, DatasetFacts
from quantmedic.engine.case.records import Case

Array = NDArray[np.generic]
#: A sample varies less than this share of the validation set: as in the fact ``blank_share``.
BLANK = 5e-3


@dataclass(frozen=True)
class DataRepair:
    """What is done to every batch, and its description."""

    words: str
    repair: Callable[[Batch], Batch | None]


def data_repair(cause: str, case: Case, facts: CaseFacts) -> DataRepair | None:
    """The repair of the representative inputs for a cause; None where the facts do not show one."""
    made = _REPAIRS.get(cause)
    sets = {dataset.role: dataset for dataset in facts.datasets}
    if made is None or case.record.input_tensor is None or not sets.keys() >= {"representative", "validation"}:
        return None
    axis = case.record.tensors[case.record.input_tensor].axis
    name = case.record.tensors[case.record.input_tensor].float_name
    return made(sets["representative"], sets["validation"], name, axis)


def _map_to_validation(mine: DatasetFacts, other: DatasetFacts, name: str, axis: int | None) -> DataRepair | None:
    """The linear map from one set's values to the other's: per channel on lattices, else one for all channels."""
    relation = mine.relation
    lines = _lattice_lines(mine, other) if relation.method == "lattice" else None
    if lines is None:
        if relation.slope is None or relation.offset is None:
            return None
        lines = [(1.0 / relation.slope, -relation.offset / relation.slope)]
    words = ", ".join(dict.fromkeys(f"{slope:.4g}·x {offset:+.4g}" for slope, offset in lines))
    slopes, offsets = (np.array(column, np.float32) for column in zip(*lines, strict=True))

    def move(x: Array) -> Array:
        shape = [1] * x.ndim
        if len(lines) > 1 and axis is not None:
            shape[axis] = len(lines)
        return np.asarray(np.asarray(x, np.float32) * slopes.reshape(shape) + offsets.reshape(shape), x.dtype)

    return DataRepair(f"representative inputs mapped to {words}", _on_input(name, move))


def _lattice_lines(mine: DatasetFacts, other: DatasetFacts) -> list[tuple[float, float]] | None:
    if mine.lattice_step is None or mine.lattice_low is None or other.lattice_step is None or other.lattice_low is None:
        return None
    columns = zip(mine.lattice_step, mine.lattice_low, other.lattice_step, other.lattice_low, strict=True)
    return [(step / own, low - own_low * step / own) for own, own_low, step, low in columns]


def _reverse_channels(mine: DatasetFacts, other: DatasetFacts, name: str, axis: int | None) -> DataRepair | None:
    if axis is None:
        return None
    turned = _on_input(name, lambda x: np.flip(x, axis))
    return DataRepair("representative inputs with their channels reversed", turned)


def _drop_blanks(mine: DatasetFacts, other: DatasetFacts, name: str, axis: int | None) -> DataRepair | None:
    if other.std is None:
        return None
    least = BLANK * float(np.sqrt(np.mean(np.square(other.std))))

    def drop(batch: Batch) -> Batch | None:
        deviation = batch.inputs[name].reshape(batch.samples, -1).std(axis=1)
        rows = np.flatnonzero(deviation >= least)
        return batch.take(rows) if rows.size else None

    return DataRepair("representative inputs without their blank samples", drop)


def _on_input(name: str, change: Callable[[Array], Array]) -> Callable[[Batch], Batch]:
    return lambda batch: Batch({**batch.inputs, name: np.ascontiguousarray(change(batch.inputs[name]))}, batch.labels)


_REPAIRS: Mapping[str, Callable[[DatasetFacts, DatasetFacts, str, int | None], DataRepair | None]] = {
    "preprocessing-mismatch": _map_to_validation,
    "channel-order-mismatch": _reverse_channels,
    "blank-samples": _drop_blanks,
}
