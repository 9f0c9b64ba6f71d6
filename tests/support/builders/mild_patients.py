"""A classifier whose ranges are too wide: by how much, and how many labels there are, decides what is known of it."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from builders.onnx_models import Net, random
from builders.trial_bench import quantized

FEATURES, HIDDEN, CLASSES = 16, 32, 4
#: How far samples lie from the centre of their class.
SPREAD = 0.9


def samples(seed: int, n: int) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """Inputs and their classes."""
    labels = np.random.default_rng(seed).integers(0, CLASSES, n)
    return random(9, CLASSES, FEATURES)[labels] + random(seed, n, FEATURES, scale=SPREAD), labels


def classifier() -> onnx.ModelProto:
    """Two layers; the second one is fitted to 4000 samples."""
    weight, bias = random(1, FEATURES, HIDDEN, scale=0.3), random(2, HIDDEN, scale=0.3)
    x, labels = samples(3, 4000)
    hidden = np.maximum(x @ weight + bias, 0)
    fitted = np.linalg.lstsq(hidden, np.eye(CLASSES)[labels], rcond=None)[0].astype(np.float32)
    net = Net()
    out = net.input("features", ["n", FEATURES])
    net.const("first", weight)
    net.const("bias", bias)
    net.const("last", fitted)
    out = net.add("Relu", net.add("Gemm", out, "first", "bias", out="hidden"), out="relu")
    net.output(net.add("MatMul", out, "last", out="scores"), shape=["n", CLASSES])
    return net.model()


def pair(folder: Path, wide: float) -> tuple[Path, Path]:
    """Float model, and int8 model that was calibrated with inputs that reach so many times as far."""
    onnx.save(classifier(), str(folder / "float.onnx"))
    inputs = np.float32(wide) * samples(4, 128)[0]
    return folder / "float.onnx", quantized(folder / "float.onnx", folder / "int8.onnx", "features", inputs)


def options(labelled: int, *, labels: bool = True) -> dict[str, Any]:
    """What to collect on: representative inputs as they should have been, and so many validation samples."""
    inputs, classes = samples(5, labelled)
    return {"representative": samples(4, 128)[0], "validation": inputs} | ({"labels": classes} if labels else {})
