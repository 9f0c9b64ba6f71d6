"""LiteRT pairs that are made here without downloads: random weights, quantized by ai-edge-quantizer.

The writer of LiteRT files is that of the tests (``tests/support/builders/litert_models.py``).
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))

from builders.litert_models import Twins, every_operator, quantized  # the path comes first

Array = NDArray[Any]
SEED, CALIBRATED = 3, 16
#: Of MobileNetV2 at half its width: channels, stride and number of the blocks.
BLOCKS = ((16, 1, 1), (24, 2, 2), (32, 2, 3), (64, 2, 4), (96, 1, 3), (160, 2, 3))


@dataclass(frozen=True)
class Network:
    """A network, the side of its images and how many of them are judged."""

    make: Callable[[], Twins]
    side: int
    samples: int


def mobilenet(side: int) -> Twins:
    """Inverted residuals with ReLU6; 63 layers."""
    rng, twins = np.random.default_rng(SEED), Twins()

    def weights(*shape: int, gain: float = 2.0) -> Array:
        fan = int(np.prod(shape[1:]))
        return (rng.standard_normal(shape) * np.sqrt(gain / fan)).astype(np.float32)

    def bias(count: int) -> Array:
        return (rng.standard_normal(count) * 0.05).astype(np.float32)

    x, channels, number = twins.input("image", 3, side, side), 16, 0
    x = twins.conv(x, weights(16, 3, 3, 3), bias(16), out="stem", stride=2, act="relu6")
    for after, stride, count in BLOCKS:
        for i in range(count):
            wide, number, step = 6 * channels, number + 1, stride if i == 0 else 1
            name = f"block{number}"
            y = twins.conv(x, weights(wide, channels, 1, 1), bias(wide), out=f"{name}/expand", act="relu6")
            y = twins.depthwise(y, weights(wide, 1, 3, 3), bias(wide), out=f"{name}/depth", stride=step, act="relu6")
            y = twins.conv(y, weights(after, wide, 1, 1, gain=1.0), bias(after), out=f"{name}/project")
            x = twins.add(x, y, out=f"{name}/sum") if step == 1 and channels == after else y
            channels = after
    x = twins.conv(x, weights(640, channels, 1, 1), bias(640), out="last", act="relu6")
    twins.output(twins.dense(twins.mean(x, out="means"), weights(100, 640), bias(100), out="scores"))
    return twins


NETWORKS = {
    "every operator, 8²": Network(every_operator, 8, 2048),
    "MobileNetV2-like, 96²": Network(lambda: mobilenet(96), 96, 256),
    "MobileNetV2-like, 224²": Network(lambda: mobilenet(224), 224, 64),
}


def build(network: Network, folder: Path) -> None:
    """Write ``float.tflite``, ``int8.tflite`` and ``val.npz``."""
    folder.mkdir(parents=True, exist_ok=True)
    content = network.make().litert()
    x = np.random.default_rng(0).standard_normal((network.samples, network.side, network.side, 3)).astype(np.float32)
    (folder / "float.tflite").write_bytes(content)
    np.savez(folder / "val.npz", image=x)
    (folder / "int8.tflite").write_bytes(quantized(content, "int8", {"image": x[:CALIBRATED]}))
