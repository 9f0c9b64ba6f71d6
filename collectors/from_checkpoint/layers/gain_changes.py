"""Gains of all layers of two checkpoints together: what they explain, what undoes them, and what is left of them.

AWQ and SmoothQuant multiply the weights of a layer per input channel, and divide what the layer reads by as much: in a
norm, a layer or a scale before it. Where only one of both was done, or some of the layers behind a norm were left out,
the network computes something else.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.from_checkpoint.checkpoint_pair import Layer, Pair
from quantmedic.collectors.from_checkpoint.layers.norms import doubles_of, has_offset_norms, is_misfolded
from quantmedic.collectors.from_checkpoint.layers.output_gains import LOUD, SPREAD, ChannelGains, left_gain
from quantmedic.collectors.from_checkpoint.safetensors_file import Stored
from quantmedic.collectors.from_checkpoint.tensor_roles import module_around, reads_a_norm

Floats = NDArray[np.float64]
#: A gain is undone where this share of its logarithm is left at most, on this share of the channels.
_LEFT, _SHARE_UNDONE = 0.5, 0.9
#: Gains explain the change of a norm where they leave this share of it at most.
_EXPLAINED = 0.25
#: Channels of a bias count from this gain on, and where it is not next to nothing beside the others.
_GAIN, _LEAST_BIAS = 1.1, 1e-3
#: Most of these channels have to show it.
_SHARE, _LEAST_CHANNELS = 0.5, 4


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
        return any(_undoes(gains, factor) for factor in self.factors if factor.shape == gains.shape)


def _explained_changes(changes: Iterable[NormChange], readers: Sequence[Layer]) -> list[NormChange]:
    """Changes of norms that gains of layers undo: of the same block, or of layers outside of all, such as the head."""
    own = [reader for reader in readers if reader.gains.columns]
    outside = [reader for reader in own if not module_around(reader.name)]
    found = []
    for change in changes:
        inside = [reader for reader in own if reader.name.startswith(f"{change.block}.")] or own
        if any(change.is_undone_by(reader.columns) for reader in (*inside, *outside)):
            found.append(change)
    return found


def _with_left_inputs(readers: Sequence[Layer], changes: Sequence[NormChange], pair: Pair) -> list[Layer]:
    """All layers with gains of input channels that nothing undoes, where these norms have changed."""
    places = _Places(readers, changes, pair)
    found = []
    for reader in readers:
        left = _left_inputs(reader, places)
        if left is not None:
            reader = reader.with_facts(left_input_channels=left[0], left_input_gain=left[1])
        found.append(reader)
    return found


class _Places:
    """Which layers stand where: a mixture has tens of thousands, so that none is held against all others."""

    def __init__(self, readers: Sequence[Layer], changes: Sequence[NormChange], pair: Pair) -> None:
        self.all_changes, self.pair = changes, pair
        shapes = [pair.floats.tensors[name].shape for name in pair.missing]
        #: Numbers of channels of norms that cannot be read.
        self.lost = frozenset(shape[0] for shape in shapes if len(shape) == 1)
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
            if any(_undoes(gains, factor) for gains in columns):
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
    factors += _scales_beside(places.pair, own.name, own.inputs)
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
    return float(np.mean(near)) >= _SHARE_UNDONE


def _stand_out(gains: Floats) -> tuple[int, float]:
    """Channels whose gain is loud beside the middle one, and the largest, up or down."""
    departure = _logarithms(gains)
    loud = np.abs(departure) > np.log(LOUD)
    return int(loud.sum()), float(np.exp(departure[np.nanargmax(np.abs(departure))])) if loud.any() else 1.0


def _undoes(gains: Floats, factor: Floats) -> bool:
    """Gains explain most of what a norm multiplies with."""
    return _departure(factor * gains) < _EXPLAINED * _departure(factor)


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


@dataclass(frozen=True)
class GainChanges:
    """What the gains of two checkpoints tell.

    Attributes:
        layers: All layers, in order, with what is left of their gains.
        rescaled: Layers with gains of their inputs.
        misfolded: Norms that were divided in the way of another architecture.
        unexplained: Tensors that changed, and no gains explain it.
        unscaled_biases: Biases that were not multiplied with their weights.
    """

    layers: Sequence[Layer]
    rescaled: Sequence[str]
    misfolded: Sequence[str]
    unexplained: Sequence[str]
    unscaled_biases: Sequence[str]


def gain_changes(found: Sequence[Layer], pair: Pair) -> GainChanges:
    """What is left of the gains of layers, and what their gains explain."""
    tensors = pair.floats.tensors
    altered = frozenset(size for name in pair.altered for size in tensors[name].shape)
    found = _with_left_gains(found, altered)
    vectors = [(name, tensors[name], _twin(name, pair)) for name in pair.altered if len(tensors[name].shape) == 1]
    has_offset = has_offset_norms(pair.floats.config)
    offset = None if has_offset is None else float(has_offset)
    changes = []
    for name, before, after in vectors:
        both = doubles_of(before), doubles_of(after)
        is_other = is_misfolded(*both, _gains_behind(name, found), has_offset=has_offset)
        changes.append(NormChange(name, *both, offset, is_other))
    misfolded = [change.name for change in changes if change.is_misfolded]
    explained = _explained_changes(changes, found)
    found = _with_left_inputs(found, changes, pair)
    settled = {*misfolded, *(change.name for change in explained)}
    return GainChanges(
        found,
        [layer.name for layer in found if (layer.facts.input_gain_ratio or 1.0) > SPREAD],
        misfolded,
        [name for name in pair.altered if name not in settled],
        [*_unscaled_biases(found, pair), *_unscaled_norm_biases(explained, pair)],
    )


def _with_left_gains(found: Sequence[Layer], altered: frozenset[int]) -> list[Layer]:
    """The layers with gains of output channels that nothing in the checkpoint undoes; see ``left_gain``."""
    readers = [layer.gains for layer in found if layer.gains.inputs]
    beside: dict[str, list[ChannelGains]] = {}
    for layer in found:
        if layer.gains.inputs:
            beside.setdefault(module_around(layer.name), []).append(layer.gains)
    changed = []
    for layer in found:
        # Those of the same module first: in a mixture of thousands of layers the others are too many.
        near = left_gain(layer.gains, beside.get(module_around(layer.name), ()), frozenset())
        undone = near is not None and near[0] == 0
        left = (
            (near if undone else left_gain(layer.gains, readers, altered))
            if layer.facts.rounding.mse is not None
            else None
        )
        changed.append(layer.with_facts(left_gain_channels=left[0], left_gain=left[1]) if left is not None else layer)
    return changed


def _gains_behind(norm: str, found: Sequence[Layer]) -> list[Floats]:
    """Gains of the inputs of layers in the same block, which has the name of the norm but for its last part."""
    block = f"{module_around(norm)}."
    return [np.asarray(each.gains.inputs) for each in found if each.gains.inputs and each.name.startswith(block)]


def _twin(name: str, pair: Pair) -> Stored:
    return pair.quantized.tensors[pair.names[name]]


def _scales_beside(pair: Pair, name: str, size: int) -> list[Floats]:
    """Vectors of this size that the quantized checkpoint alone has in the block of a layer, and their inverses."""
    block = module_around(name)
    known = {pair.names[each] for each in pair.floats.tensors if each in pair.names}
    found = [
        doubles_of(tensor)
        for other, tensor in pair.quantized.tensors.items()
        if other not in known and tensor.is_float and tensor.size == size and _is_within(other, block, pair.names, name)
    ]
    with np.errstate(divide="ignore"):
        return [each for own in found for each in (own.ravel(), 1.0 / own.ravel())]


def _is_within(other: str, block: str, names: Mapping[str, str], name: str) -> bool:
    """A tensor stands in the block of a layer, by its name in the quantized checkpoint."""
    own = module_around(names.get(name, name))
    return other.startswith((f"{own}.", f"{block}."))


def _unscaled_biases(found: Sequence[Layer], pair: Pair) -> list[str]:
    """Biases of layers that stayed as they were while the weights of their outputs have gains.

    Gains that no layer undoes are wrong themselves: then it is not the bias that was forgotten.
    """
    names = [
        (f"{layer.name.removesuffix('weight')}bias", np.array(layer.gains.rows, float))
        for layer in found
        if layer.gains.rows and not layer.facts.left_gain_channels
    ]
    return [name for name, gains in names if _stays(name, gains, pair)]


def _unscaled_norm_biases(explained: Sequence[NormChange], pair: Pair) -> list[str]:
    """Biases of norms that stayed as they were while the norm was divided by gains."""
    names = [(f"{change.name.removesuffix('weight')}bias", change) for change in explained]
    return [name for name, change in names if all(_stays(name, factor, pair) for factor in change.factors)]


def _stays(name: str, gains: Floats, pair: Pair) -> bool:
    if name not in pair.floats.tensors or pair.names.get(name) not in pair.quantized.tensors:
        return False
    before, after = pair.floats.tensors[name], _twin(name, pair)
    return before.is_float and after.is_float and is_left_unscaled(doubles_of(before), doubles_of(after), gains)


def is_left_unscaled(before: Floats, after: Floats, gains: Floats) -> bool:
    """The bias stayed as it was, or nearly so, where weights were multiplied by gains of their outputs.

    Gains are known up to a factor in common, and so is what the bias was multiplied with.
    """
    if before.shape != gains.shape or after.shape != gains.shape:
        return False
    counted = (np.abs(before) > _LEAST_BIAS * np.sqrt(np.mean(np.square(before)))) & (gains > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        moved, wanted = np.log(after / before), np.log(gains)
    counted &= np.isfinite(moved) & np.isfinite(wanted)
    if not counted.any():
        return False
    moved, wanted = moved[counted], wanted[counted]
    wanted = wanted - np.median(wanted)
    loud = np.abs(wanted) > np.log(_GAIN)
    if loud.sum() < _LEAST_CHANNELS:
        return False
    moved = moved - np.median(moved)
    return bool((np.abs(moved - wanted) > np.abs(wanted) / 2)[loud].mean() > _SHARE)
