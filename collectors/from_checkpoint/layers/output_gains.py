"""Output channels whose stored weights are a multiple of the float ones, and whether another layer undoes that.

AWQ, SmoothQuant and equalization multiply output channels of one layer and divide the inputs of the next by as much. A
wrong scale multiplies them, too, and nothing undoes it.
"""

from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.from_checkpoint.layers.weight_fields import Integers, Values
from quantmedic.collectors.from_checkpoint.packed.packed_layer import restore_order

#: Gains of output channels from here on are looked at; clipping and coarse rounding shrink a channel by up to a half.
LOUD, QUIET = 1.25, 0.5
#: A layer has gains of its inputs where one is further from the middle one than this factor: less than LOUD, so that
#: what undoes a gain is always seen.
SPREAD = 1.1
#: A channel has a gain where stored and float weights are this alike but for it: by computation, clipping that halves
#: Gaussian weights leaves a cosine of 0.92, rounding to 4 bits 0.99.
ALIKE_CHANNEL = 0.95
#: A layer undoes gains where it agrees to this factor on this share of the channels.
_AGREES, _SHARE = 2.0**0.5, 0.9
Floats = NDArray[np.float64]
Numbers = NDArray[np.floating[Any]]
Loud = Mapping[int, float]


@dataclass
class Gains:
    """What stored weights are multiplied with against the float ones.

    Attributes:
        columns: Factor of each input channel; None where no gains are found.
        ratio: Largest factor over the smallest; None where it is not known.
        slight: Factors that are above the noise, although too small to be taken out; None where there are none.
        alike: Cosine of stored and float weights of each input channel.
    """

    columns: Values | None = None
    ratio: float | None = None
    slight: Values | None = None
    alike: Values | None = None

    def in_order(self, order: Integers | None) -> "Gains":
        """The same of channels that were sorted by this order."""
        columns, slight, alike = (
            None if each is None else restore_order(each, order) for each in (self.columns, self.slight, self.alike)
        )
        return Gains(columns, self.ratio, slight, alike)


@dataclass(frozen=True)
class ChannelGains:
    """What the stored weights of one layer are multiplied with against the float ones.

    Attributes:
        loud: Gains of output channels above ``LOUD`` or below ``QUIET``, by channel.
        outputs: Number of output channels.
        inputs: Gains of input channels, where they are spread beyond ``SPREAD``; else none.
        slight: The same where they are not, and yet are above the noise of rounding.
        loud_inputs: Gains of input channels above ``LOUD`` or below ``QUIET`` times the middle one, by channel.
        rows: Gains of all output channels, where they are spread beyond ``SPREAD``; else none.
        unsure: Input channels of which rounding has left too little to tell their gain.
    """

    loud: Loud = field(default_factory=dict)
    outputs: int = 0
    inputs: Sequence[float] = ()
    slight: Sequence[float] = ()
    loud_inputs: Loud = field(default_factory=dict)
    rows: Sequence[float] = ()
    unsure: Sequence[int] = ()

    @property
    def columns(self) -> Sequence[float]:
        """Gains of input channels, however small; none where they are those of rounding."""
        return self.inputs or self.slight

    @classmethod
    def of_sides(cls, gains: Floats, alike: Floats, columns: Gains) -> "ChannelGains":
        """From the gain of each output channel, the cosine left where it is taken out, and the gains of inputs.

        Gains of inputs leave the common factor of the outputs open: those beside it count then.
        """
        inputs = () if columns.columns is None or not _are_spread(columns.columns) else _pack_numbers(columns.columns)
        common = float(np.median(gains)) if inputs else 1.0
        has_gains = bool(inputs) or columns.slight is not None
        with np.errstate(divide="ignore", invalid="ignore"):
            own = gains / common
        return cls(
            _stand_out(own, alike),
            len(gains),
            inputs,
            () if columns.slight is None else _pack_numbers(columns.slight),
            {}
            if not inputs or columns.alike is None
            else _stand_out(_beside_middle(inputs, columns.alike), columns.alike),
            _pack_numbers(own) if _are_spread(own[alike > ALIKE_CHANNEL]) else (),
            tuple(np.flatnonzero(columns.alike <= ALIKE_CHANNEL).tolist())
            if has_gains and columns.alike is not None
            else (),
        )


def _pack_numbers(values: Iterable[float]) -> Sequence[float]:
    """Numbers of four bytes each: a mixture has thousands of layers with gains."""
    return array("f", values)


def _beside_middle(gains: Sequence[float], alike: Numbers) -> Floats:
    """Gains over the middle one of those that are known."""
    own = np.array(gains, float)
    known = own[(alike > ALIKE_CHANNEL) & (own > 0)]
    return own / np.median(known) if known.size else own


def _stand_out(own: Floats, alike: Numbers) -> dict[int, float]:
    """Gains that neither rounding nor clipping makes, by channel."""
    loud = ((own > LOUD) | (own < QUIET)) & (own > 0) & (alike > ALIKE_CHANNEL)
    return {int(k): float(own[k]) for k in np.flatnonzero(loud)}


def _are_spread(gains: Numbers) -> bool:
    """Some are further from the middle one than rounding explains; what is 0 or no number is none."""
    known = np.abs(gains[np.isfinite(gains) & (gains != 0)])
    return bool(known.size and max(known.max() / np.median(known), np.median(known) / known.min()) > SPREAD)


def left_gain(own: ChannelGains, layers: Sequence[ChannelGains], altered: frozenset[int]) -> tuple[int, float] | None:
    """How many output channels have a gain that no layer undoes, and the largest of them, up or down.

    Args:
        own: The layer.
        layers: Layers of the checkpoint that may undo them; it does not do so itself.
        altered: Sizes of the axes of float tensors that have changed: one of them may undo the gains.

    Returns:
        None where it is not known: something of another size has gains as well, or a float tensor may hold them.
    """
    if not own.loud:
        return 0, 1.0
    others = [layer.inputs for layer in layers if layer.inputs and layer is not own]
    if any(len(inputs) == own.outputs and undoes(inputs, own.loud) for inputs in others):
        return 0, 1.0
    if own.outputs in altered or any(may_be_parts(len(inputs), own.outputs) for inputs in others):
        return None
    return len(own.loud), max(own.loud.values(), key=lambda gain: abs(np.log2(gain)))


def may_be_parts(inputs: int, outputs: int) -> bool:
    """One layer reads the outputs several times, as heads share keys and values, or a part of a fused layer."""
    return inputs != outputs and (inputs % outputs == 0 or outputs % inputs == 0)


def undoes(inputs: Sequence[float], loud: Loud) -> bool:
    """Gains of one side times those of the other are one factor for all channels."""
    products = np.array(inputs, float)
    for channel, gain in loud.items():
        products[channel] *= gain
    common = np.median(products)
    own = products[list(loud)]
    with np.errstate(divide="ignore", invalid="ignore"):
        near = (own / common > 0) & (np.abs(np.log2(own / common)) < np.log2(_AGREES))
    return bool(near.mean() >= _SHARE)
