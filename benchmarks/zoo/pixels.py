"""From Fashion-MNIST pixels to what each network of the zoo wants, and back to the wrong things on purpose."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]
Inputs = NDArray[np.float32]


@dataclass(frozen=True)
class Preprocessing:
    """(pixel / scale - mean) / std, per channel."""

    scale: float = 255.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def apply(self, pixels: NDArray[np.generic]) -> Inputs:
        """Pixels ``[N, C, H, W]`` in 0 … 255 to network inputs of the same shape."""
        shape = (1, -1, 1, 1)
        mean, std = (np.asarray(v, np.float32).reshape(shape) for v in (self.mean, self.std))
        return ((pixels.astype(np.float32) / np.float32(self.scale) - mean) / std).astype(np.float32)


GREY = Preprocessing(255.0, (0.2860,), (0.3530,))
SIGNED = Preprocessing(255.0, (0.5,), (0.5,))
CENTRED = Preprocessing(128.0, (1.0,))
UNIT = Preprocessing(255.0)
SODIUM = Preprocessing(255.0, (0.286, 0.29, 0.075), (0.353, 0.20, 0.032))


def sodium_light(pixels: Pixels) -> Pixels:
    """Grey images as seen under an orange lamp: red carries most of the contrast, blue hardly any.

    The share of green follows from the image's own pixels, so that the result is the same every time.
    """
    grey = pixels.astype(np.float32)
    tint = (grey.sum((1, 2, 3), keepdims=True) % 97) / 97
    green = (0.4 + 0.3 * tint) * grey + 30
    blue = 27 - 0.1 * grey + 6 * tint
    return np.concatenate([grey, green, blue], axis=1).round().clip(0, 255).astype(np.uint8)
