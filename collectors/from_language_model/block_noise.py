"""What is said of one block: sums over texts, none of which is kept."""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.from_language_model.positions import Means
from quantmedic.engine.case.language_facts import BlockFacts

Values = NDArray[np.float32]
Floats = NDArray[np.float64]
#: Values of a text that a median is taken of.
_FOR_MEDIAN = 4096


@dataclass
class BlockNoise:
    """Noise of the tokens behind one block, and the magnitudes of what the float block hands on.

    Attributes:
        carried: Noise with that of all blocks before.
        own: Noise of the block's quantized weights on the float model's values, text by text of the first few.
    """

    carried: Means
    own: list[Floats] = field(default_factory=list)
    _largest: float = 0.0
    _place: tuple[int, int] = (0, 0)
    _medians: list[float] = field(default_factory=list)

    def look(self, outputs: Values) -> None:
        """Take the magnitudes of what the float block hands on of one text, ``[tokens, width]``."""
        magnitudes = np.abs(outputs)
        largest = float(magnitudes.max())
        if largest > self._largest:
            token, channel = np.unravel_index(int(magnitudes.argmax()), magnitudes.shape)
            self._largest, self._place = largest, (int(token), int(channel))
        flat = magnitudes.ravel()
        self._medians.append(float(np.median(flat[:: max(flat.size // _FOR_MEDIAN, 1)])))

    def facts(self, name: str) -> BlockFacts:
        """What is said of the block."""
        first, others = self.carried.of_first, self.carried.of_others
        median = float(np.median(self._medians))
        return BlockFacts(
            name=name,
            noise=self.carried.overall,
            own_noise=float(np.mean(np.concatenate(self.own))),
            first_token_ratio=first / others if first is not None and others else None,
            noise_by_position=self.carried.by_bin,
            largest_ratio=self._largest / median if median > 0 else None,
            largest_position=self._place[0],
            largest_channel=self._place[1],
        )
