"""Gains of input channels, and what undoes them: norms, layers and scales before the layer that has them.

AWQ and SmoothQuant multiply the weights of a layer per input channel, and divide what the layer reads by as much. Where
only one of both was done, or some of the layers behind a norm were left out, the network computes something else.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.from_checkpoint.checkpoint_pair import Layer
from quantmedic.collectors.from_checkpoint.layers.output_gains import LOUD
from quantmedic.collectors.from_checkpoint.tensor_roles import module_around, reads_a_norm

#: A gain is undone where this share of its logarithm is left at most, on this share of the channels.
_LEFT, _SHARE = 0.5, 0.9
#: Gains explain the change of a norm where they leave this share of it at most.
_EXPLAINED = 0.25
Floats = NDArray[np.float64]
#: Gives vectors beside a layer, by its name and the number of its inputs.
ScalesBeside = Callable[[str, int], Sequence[Floats]]


@dataclass(frozen=True)
class NormChange:
    """A float vector that has changed, as it was and as it is.

    Attributes:
        offset: Added to it before it multiplies; None where that is not known.
        is_misfolded: It was divided in the way of another architecture.
    """

    name: str
    before: Floats
    after: Floats
    offset: float | None = None
    is_misfolded: bool = False

    @cached_property
    def factors(self) -> tuple[Floats, ...]:
        """What it multiplies with against before, in each way that it may compute."""
        offsets = (0.0, 1.0) if self.offset is None else (self.offset,)
        return tuple(_ratio(self.after + one, self.before + one) for one in offsets)

    @property
    def block(self) -> str:
        """Its name but for its own part."""
        return module_around(self.name)

    def is_undone_by(self, gains: Floats) -> bool:
        """Gains of a layer that reads it explain most of the change."""
        return any(
            _departure(factor * gains) < _EXPLAINED * _departure(factor)
            for factor in self.factors
            if factor.shape == gains.shape
        )


def explained_changes(changes: Iterable[NormChange], readers: Sequence[Layer]) -> list[NormChange]:
    """Changes of norms that gains of layers undo: of the same block, or of layers outside of all, such as the head."""
    own = [reader for reader in readers if reader.gains.columns]
    outside = [reader for reader in own if not module_around(reader.name)]
    found = []
    for change in changes:
        inside = [reader for reader in own if reader.name.startswith(f"{change.block}.")] or own
        if any(change.is_undone_by(reader.columns) for reader in (*inside, *outside)):
            found.append(change)
    return found


def with_left_inputs(
    readers: Sequence[Layer], changes: Sequence[NormChange], lost: frozenset[int], scales_beside: ScalesBeside
) -> list[Layer]:
    """The layers with gains of input channels that nothing undoes.

    Args:
        readers: All layers.
        changes: Norms that have changed.
        lost: Numbers of channels of norms that cannot be read.
        scales_beside: Gives the vectors of a size beside a layer that only the quantized checkpoint has.
    """
    places = _Places(readers, changes, lost, scales_beside)
    found = []
    for reader in readers:
        left = _left_inputs(reader, places)
        if left is not None:
            reader = reader.with_facts(left_input_channels=left[0], left_input_gain=left[1])
        found.append(reader)
    return found


class _Places:
    """Which layers stand where: a mixture has tens of thousands, so that none is held against all others."""

    def __init__(
        self, readers: Sequence[Layer], changes: Sequence[NormChange], lost: frozenset[int], scales: ScalesBeside
    ) -> None:
        self.all_changes, self.lost, self.scales_beside = changes, lost, scales
        self._changes: dict[str, list[NormChange]] = {}
        for change in changes:
            self._changes.setdefault(change.block, []).append(change)
        self._writers: dict[str, list[Layer]] = {}
        self._parts: dict[tuple[str, str], list[Layer]] = {}
        self._undone: dict[tuple[str, str, int], Floats | None] = {}
        for reader in readers:
            if reader.gains.rows:
                self._writers.setdefault(module_around(reader.name), []).append(reader)
            for block in self._blocks_of(reader.name) if reader.gains.columns and reads_a_norm(reader.name) else ():
                self._parts.setdefault((block, _part_of(reader.name, block)), []).append(reader)

    def _blocks_of(self, name: str) -> Iterator[str]:
        """Blocks with changed norms that a layer stands in, the innermost first."""
        parent = module_around(name)
        while parent:
            if parent in self._changes:
                yield parent
            parent = module_around(parent)

    def changes_before(self, name: str) -> Iterator[NormChange]:
        """Norms that have changed in the blocks of a layer."""
        for block in self._blocks_of(name):
            yield from self._changes[block]

    def writers_beside(self, name: str) -> Sequence[Layer]:
        """Layers of the same module with gains of their outputs."""
        return self._writers.get(module_around(name), ())

    def undone_factor(self, change: NormChange, name: str, inputs: int) -> Floats | None:
        """What a norm multiplies with, where a layer of the same part of the block undoes it."""
        key = change.name, _part_of(name, change.block), inputs
        if key not in self._undone:
            self._undone[key] = self._find_factor(change, self._parts.get((change.block, key[1]), ()), inputs)
        return self._undone[key]

    @staticmethod
    def _find_factor(change: NormChange, beside: Iterable[Layer], inputs: int) -> Floats | None:
        columns = [each.columns for each in beside if each.inputs == inputs]
        for factor in (each for each in change.factors if len(each) == inputs):
            if any(_departure(factor * gains) < _EXPLAINED * _departure(factor) for gains in columns):
                return factor
        return None


def _left_inputs(own: Layer, places: _Places) -> tuple[int, float] | None:
    """How many input channels have a gain that nothing undoes, and the largest of them; None: not known."""
    forgotten = _factor_before(own, places)
    if forgotten is not None:
        return _stand_out(forgotten * own.columns)
    if not own.gains.loud_inputs:
        return (0, 1.0) if own.gains.outputs else None
    changes = [*places.changes_before(own.name)] or places.all_changes
    writers = [each for each in places.writers_beside(own.name) if each is not own]
    factors = [factor for change in changes for factor in change.factors]
    factors += [np.array(other.gains.rows, float) for other in writers]
    factors += places.scales_beside(own.name, own.inputs)
    if any(_is_undone(own, factor) for factor in factors):
        return 0, 1.0
    is_misfolded = any(change.is_misfolded for change in changes)
    if own.inputs in places.lost or is_misfolded or any(other.gains.outputs != own.inputs for other in writers):
        return None
    return len(own.gains.loud_inputs), max(own.gains.loud_inputs.values(), key=lambda gain: abs(np.log(gain)))


def _factor_before(own: Layer, places: _Places) -> Floats | None:
    """What the norm before the layer multiplies with, where a layer beside it undoes that and it does not itself."""
    if not reads_a_norm(own.name):
        return None
    for change in places.changes_before(own.name):
        factor = places.undone_factor(change, own.name, own.inputs)
        if factor is not None and not change.is_undone_by(own.columns):
            return factor
    return None


def _part_of(name: str, block: str) -> str:
    return name.removeprefix(f"{block}.").partition(".")[0] if name.startswith(f"{block}.") else ""


def _is_undone(own: Layer, factor: Floats) -> bool:
    """Gains of inputs times what comes before them are one factor for nearly all channels that have a gain."""
    if len(factor) != own.inputs:
        return False
    departure = _logarithms(factor * own.columns)
    loud = own.gains.loud_inputs
    near = [abs(departure[channel]) < _LEFT * abs(np.log(gain)) for channel, gain in loud.items()]
    return float(np.mean(near)) >= _SHARE


def _stand_out(gains: Floats) -> tuple[int, float]:
    """Channels whose gain is loud beside the middle one, and the largest, up or down."""
    departure = _logarithms(gains)
    loud = np.abs(departure) > np.log(LOUD)
    return int(loud.sum()), float(np.exp(departure[np.nanargmax(np.abs(departure))])) if loud.any() else 1.0


def _departure(gains: Floats) -> float:
    """Root mean square of how far gains are from their middle, in logarithms."""
    found = _logarithms(gains)
    return float(np.sqrt(np.nanmean(np.square(found)))) if np.isfinite(found).any() else 0.0


def _logarithms(gains: Floats) -> Floats:
    """Logarithms of gains over the middle one; no number where there is none."""
    with np.errstate(divide="ignore", invalid="ignore"):
        found = np.log(gains)
    found[~np.isfinite(found)] = np.nan
    return found - np.nanmedian(found) if np.isfinite(found).any() else found


def _ratio(after: Floats, before: Floats) -> Floats:
    """What became of numbers; 1 where both are 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where((before == 0) & (after == 0), 1.0, after / before)
