"""The base networks: their float models, data, and the way in which a task is scored."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import prove_magika
from numpy.typing import NDArray

from .pixels import CENTRED, GREY, SIGNED, SODIUM, UNIT, Preprocessing, sodium_light

Array = NDArray[Any]
FOLDER = Path(__file__).parent / "networks"
DEMO = Path(__file__).parents[2] / "quantmedic" / "demo"
#: Beside the project, as for the tests of real networks.
RESNET8 = Path(__file__).parents[3] / "shared" / "models" / "resnet8"
MAGIKA = "models/standard_v3_3/model.onnx"
VALIDATION = 256
CALIBRATION = 200


@dataclass(frozen=True)
class Task:
    """How outputs become right or wrong; ``metric`` is what quantmedic is told (None: top1 by default)."""

    answers: Callable[[list[Array]], Array]
    right: Callable[[Array, Array], Array]
    same: Callable[[Array, Array], Array]
    metric: str | None = None


def _class(outputs: list[Array]) -> Array:
    scores = outputs[0]
    return np.where(np.isfinite(scores).all(1), scores.argmax(1), -1)


def _tail_class(outputs: list[Array]) -> Array:
    return _class([outputs[0][:, -10:]])


def _equal(answers: Array, labels: Array) -> Array:
    return answers == labels


TOP1 = Task(_class, _equal, _equal)
#: Boxes and scores in one output: the last ten columns are the scores.
TAIL = Task(_tail_class, _equal, _equal, "zoo.metrics:tail_top1")


def _close(answers: Array, pitches: Array) -> Array:
    wanted = pitches[:, None] if pitches.ndim == 1 else pitches
    cents = 1200 * np.abs(np.log2(np.maximum(answers, 1e-6) / np.maximum(wanted, 1e-6)))
    return (cents < 50).mean(1) > 0.5


PITCH = Task(lambda outputs: outputs[0][:, 3:-3], _close, _close, "zoo.metrics:pitch_accuracy")


@cache
def _images(role: str) -> tuple[Array, Array | None]:
    if role == "validation":
        with np.load(DEMO / "validation.npz") as archive:
            return archive["image"], archive["labels"].astype(np.int64)
    with np.load(DEMO / "representative_healthy.npz") as archive:
        return archive["image"], None


Images = Callable[[str], tuple[Array, Array | None]]
Samples = Callable[[int], tuple[Array, Array, Array]]


@dataclass(frozen=True)
class Network:
    """A base network.

    Attributes:
        name: Short name.
        family: What it stands for.
        path: Float ONNX model.
        preprocessing: From pixels to inputs; None where the inputs are no images.
        tinted: Colour images.
        op_types: Operator types that its healthy quantization covers; None for all.
        task: How its outputs are scored.
        batch: Samples per run.
        extra: Scalar inputs besides the first.
        images: Stored images and labels by role.
        samples: Where inputs are no images: those for calibration and validation, and labels, from a seed.
        seed: Seed of the order of the images, or of other samples; None: as they are stored.
        labelled: Labelled samples at most.
    """

    name: str
    family: str
    path: Path
    preprocessing: Preprocessing | None = GREY
    tinted: bool = False
    op_types: tuple[str, ...] | None = None
    batch: int = 64
    task: Task = TOP1
    extra: dict[str, float] = field(default_factory=dict)
    images: Images = field(default=_images)
    samples: Samples | None = None
    seed: int | None = None
    labelled: int = VALIDATION

    def model(self) -> onnx.ModelProto:
        return onnx.load(str(self.path))

    @property
    def available(self) -> bool:
        return self.path.is_file()

    def pixels(self, role: str) -> tuple[Array, Array | None]:
        """Stored images as this network's camera would take them, with labels where there are any."""
        images, labels = self.images(role)
        if self.seed is not None:
            order = np.random.default_rng([self.seed, len(images)]).permutation(len(images))
            images, labels = images[order], None if labels is None else labels[order]
        return (sodium_light(images) if self.tinted else images), labels

    def calibration(self) -> Array:
        if self.preprocessing is None:
            return self._drawn()[0]
        return self.preprocessing.apply(self.pixels("calibration")[0][:CALIBRATION])

    def validation(self) -> tuple[Array, Array]:
        if self.preprocessing is None:
            return self._drawn()[1:]
        images, labels = self.pixels("validation")
        return self.preprocessing.apply(images[: self.labelled]), labels[: self.labelled]

    def _drawn(self) -> tuple[Array, Array, Array]:
        assert self.samples is not None
        calibration, validation, labels = self.samples(self.seed or 0)
        return calibration, validation[: self.labelled], labels[: self.labelled]

    def feed(self, name: str, inputs: Array) -> dict[str, Array]:
        """One batch for onnxruntime."""
        return {name: inputs} | {k: np.asarray(v, np.float32) for k, v in self.extra.items()}

    def columns(self, inputs: Array) -> dict[str, Array]:
        """Scalar inputs, one per sample, as a data set holds them."""
        return {k: np.full(len(inputs), v, np.float32) for k, v in self.extra.items()}


CALIBRATION_TONES, TONES = 24, 72


@cache
def _tones(seed: int) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(seed)
    pitches = np.exp(rng.uniform(np.log(70), np.log(1200), TONES))
    audio = np.stack([_tone(rng, pitch) for pitch in pitches])
    return audio[:CALIBRATION_TONES], audio[CALIBRATION_TONES:], pitches[CALIBRATION_TONES:]


def _tone(rng: np.random.Generator, pitch: float, samples: int = 6000) -> Array:
    """A harmonic tone with noise 25 dB below it."""
    time = np.arange(samples) / 16000
    parts = [
        np.sin(2 * np.pi * pitch * k * time + rng.uniform(0, 6.28)) * rng.uniform(0.3, 1) / k
        for k in range(1, 6)
        if pitch * k < 7900
    ]
    wave = np.sum(parts, axis=0)
    wave *= rng.uniform(0.2, 0.8) / np.abs(wave).max()
    return (wave + rng.normal(0, wave.std() * 10 ** (-25 / 20), samples)).astype(np.float32)


@cache
def _cifar10(role: str) -> tuple[Array, Array]:
    name = "validation" if role == "validation" else "representative"
    with np.load(RESNET8 / "cifar10_subset.npz") as archive:
        return archive[name], archive[f"{name}_labels"]


CALIBRATION_FILES, FILES_OF_A_KIND = 64, 48


@cache
def _files(seed: int) -> tuple[Array, Array, Array]:
    """Files of this Python environment, as their first and last bytes, and their kinds."""
    model = _package_file("magika", MAGIKA)
    classes = json.loads((model.parent / "config.min.json").read_text())["target_labels_space"]
    inputs, labels = prove_magika.samples(classes, FILES_OF_A_KIND)
    order = np.random.default_rng(seed).permutation(len(inputs))
    first, others = order[:CALIBRATION_FILES], order[CALIBRATION_FILES:]
    return inputs[first], inputs[others], labels[others]


def _package_file(package: str, name: str) -> Path:
    spec = find_spec(package)
    return Path(spec.origin).parent / name if spec and spec.origin else Path(package) / name


NETWORKS = {
    network.name: network
    for network in (
        Network("demo", "convolutional with branches", DEMO / "float.onnx", GREY),
        Network("mobile", "depthwise, ReLU6", FOLDER / "mobile.onnx", SIGNED),
        Network("resnet", "residual, colour", FOLDER / "resnet.onnx", SODIUM, tinted=True),
        Network("csp", "concatenating, SiLU", FOLDER / "csp.onnx", UNIT),
        Network("vit", "transformer", FOLDER / "vit.onnx", SIGNED),
        Network("gru", "recurrent", FOLDER / "gru.onnx", GREY),
        Network(
            "f0",
            "audio",
            _package_file("swift_f0", "model.onnx"),
            None,
            op_types=("Conv",),
            batch=1,
            task=PITCH,
            extra={"fmin": 46.875, "fmax": 2093.75},
            samples=_tones,
        ),
    )
}

#: Networks that others trained, with data of their own: what tuning never saw.
REAL_NETWORKS = {
    network.name: network
    for network in (
        Network("resnet8", "residual", RESNET8 / "float.onnx", CENTRED, images=_cifar10, batch=50),
        Network(
            "magika",
            "bytes, convolutional, decomposed norms",
            _package_file("magika", MAGIKA),
            None,
            op_types=("MatMul", "Conv"),
            batch=16,
            samples=_files,
        ),
        NETWORKS["f0"],
    )
}
