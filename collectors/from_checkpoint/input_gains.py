"""Gains of input channels, and what undoes them: norms, layers and scales before the layer that has them.

AWQ and SmoothQuant multiply the weights of a layer per input channel, and divide what the layer reads by as much. Where
only one of both was done, or some of the layers behind a norm were left out, the network computes something else.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.from_checkpoint.output_gains import LOUD, ChannelGains, may_be_parts
from quantmedic.collectors.from_checkpoint.tensor_roles import reads_a_norm
from quantmedic.engine.case.facts import WeightFacts

#: A gain is undone where this share of its logarithm is left at most, on this share of the channels.
_LEFT, _SHARE = 0.5, 0.9
#: Gains explain the change of a norm where they leave this share of it at most.
_EXPLAINED = 0.25
Floats = NDArray[np.float64]


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
        return self.name.removesuffix(".weight").rpartition(".")[0]

    def is_undone_by(self, gains: Floats) -> bool:
        """Gains of a layer that reads it explain most of the change."""
        return any(
            _departure(factor * gains) < _EXPLAINED * _departure(factor)
            for factor in self.factors
            if factor.shape == gains.shape
        )


@dataclass(frozen=True)
class Reader:
    """A layer with the number of its inputs, its facts and the gains of its channels."""

    name: str
    inputs: int
    facts: WeightFacts
    gains: ChannelGains = field(default_factory=ChannelGains)

    @property
    def columns(self) -> Floats:
        """Gains of its inputs; 1 where it has none, no number where too little is left of a channel."""
        found = np.array(self.gains.columns) if self.gains.columns else np.ones(self.inputs)
        found[[*self.gains.unsure]] = np.nan
        return found


@dataclass(frozen=True)
class Surroundings:
    """What may undo gains of inputs.

    Attributes:
        changes: Norms that have changed.
        lost: Numbers of channels of norms that cannot be read.
        scales: Gives the vectors of a size beside a layer that only the quantized checkpoint has.
    """

    changes: Sequence[NormChange] = ()
    lost: frozenset[int] = frozenset()
    scales: Callable[[str, int], Sequence[Floats]] = lambda name, size: ()


def explained_changes(changes: Iterable[NormChange], readers: Sequence[Reader]) -> list[NormChange]:
    """Changes of norms that gains of layers undo."""
    columns = [reader.columns for reader in readers if reader.gains.columns]
    return [change for change in changes if any(change.is_undone_by(gains) for gains in columns)]


def with_left_inputs(readers: Sequence[Reader], around: Surroundings) -> list[WeightFacts]:
    """The facts with gains of input channels that nothing undoes; see ``left_input_gain``."""
    found = []
    for reader in readers:
        left = _left_inputs(reader, readers, around)
        update = {} if left is None else {"left_input_channels": left[0], "left_input_gain": left[1]}
        found.append(reader.facts.model_copy(update=update))
    return found


def _left_inputs(own: Reader, readers: Sequence[Reader], around: Surroundings) -> tuple[int, float] | None:
    """How many input channels have a gain that nothing undoes, and the largest of them; None: not known."""
    forgotten = _factor_before(own, readers, around)
    if forgotten is not None:
        return _stand_out(forgotten * own.columns)
    if not own.gains.loud_inputs:
        return (0, 1.0) if own.gains.outputs else None
    factors = [factor for change in around.changes for factor in change.factors]
    factors += [np.array(other.gains.rows) for other in readers if other.gains.rows and other is not own]
    factors += around.scales(own.name, own.inputs)
    if any(_is_undone(own, factor) for factor in factors):
        return 0, 1.0
    if own.inputs in around.lost or _is_misfolded(own, around) or _may_read_parts(own, readers):
        return None
    return len(own.gains.loud_inputs), max(own.gains.loud_inputs.values(), key=lambda gain: abs(np.log(gain)))


def _factor_before(own: Reader, readers: Sequence[Reader], around: Surroundings) -> Floats | None:
    """What the norm before the layer multiplies with, where a layer beside it undoes that and it does not itself."""
    if not reads_a_norm(own.name):
        return None
    for change in around.changes:
        if not own.name.startswith(f"{change.block}.") or change.is_undone_by(own.columns):
            continue
        beside = [each for each in readers if each is not own and _stand_together(own, each, change.block)]
        factors = [factor for factor in change.factors if len(factor) == own.inputs]
        for factor in factors:
            if any(_departure(factor * each.columns) < _EXPLAINED * _departure(factor) for each in beside):
                return factor
    return None


def _stand_together(own: Reader, other: Reader, block: str) -> bool:
    """Both read the same norm: they are of the same part of the block, and take as many inputs."""
    if other.inputs != own.inputs or not other.gains.columns or not reads_a_norm(other.name):
        return False
    return _part_of(own.name, block) == _part_of(other.name, block)


def _part_of(name: str, block: str) -> str:
    return name.removeprefix(f"{block}.").partition(".")[0] if name.startswith(f"{block}.") else ""


def _is_undone(own: Reader, factor: Floats) -> bool:
    """Gains of inputs times what comes before them are one factor for nearly all channels that have a gain."""
    if len(factor) != own.inputs:
        return False
    departure = _logarithms(factor * own.columns)
    loud = own.gains.loud_inputs
    near = [abs(departure[channel]) < _LEFT * abs(np.log(gain)) for channel, gain in loud.items()]
    return float(np.mean(near)) >= _SHARE


def _is_misfolded(own: Reader, around: Surroundings) -> bool:
    return any(change.is_misfolded and own.name.startswith(f"{change.block}.") for change in around.changes)


def _may_read_parts(own: Reader, readers: Sequence[Reader]) -> bool:
    """It may read a part of the outputs of a layer with gains, or one several times: fused layers, shared heads."""
    block = own.name.rpartition(".")[0].rpartition(".")[0]
    return any(
        other.gains.rows
        and other is not own
        and other.gains.outputs != own.inputs
        and (may_be_parts(own.inputs, other.gains.outputs) or other.name.startswith(f"{block}."))
        for other in readers
    )


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
