"""Gains of all layers of two checkpoints together: what they explain, and what is left of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.from_checkpoint.checkpoint_pair import Layer, Pair
from quantmedic.collectors.from_checkpoint.layers.input_gains import NormChange, explained_changes, with_left_inputs
from quantmedic.collectors.from_checkpoint.layers.norms import doubles_of, has_offset_norms, is_misfolded
from quantmedic.collectors.from_checkpoint.layers.output_gains import SPREAD, ChannelGains, left_gain
from quantmedic.collectors.from_checkpoint.safetensors_file import Stored
from quantmedic.collectors.from_checkpoint.tensor_roles import module_around

Floats = NDArray[np.float64]
#: Channels count from this gain on, and where the bias is not next to nothing beside the others.
_GAIN, _LEAST_BIAS = 1.1, 1e-3
#: Most of these channels have to show it.
_SHARE, _LEAST_CHANNELS = 0.5, 4


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
    explained = explained_changes(changes, found)
    lost = frozenset(tensors[name].shape[0] for name in pair.missing if len(tensors[name].shape) == 1)
    found = with_left_inputs(found, changes, lost, partial(_scales_beside, pair))
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
