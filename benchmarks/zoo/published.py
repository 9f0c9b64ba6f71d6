"""Samples for networks that others trained, which come with packages or lie beside the project.

The packages are pinned in ``benchmarks/published.txt``. Nothing of them runs: their files are read. Images are crops of
the photographs that scikit-image and scikit-learn ship. Audio is like speech and is synthesized from a seed: syllables
of a gliding pitch and three formants, hisses and pauses, in noise, with gaps where packets were lost.
"""

import json
import random
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .signals import SPEECH_RATE, speech
from .surgery import Inapplicable

Array = NDArray[Any]
#: Beside the project, as for the tests of real networks.
RESNET8 = Path(__file__).parents[3] / "shared" / "models" / "resnet8"
MAGIKA = "models/standard_v3_3/model.onnx"

CALIBRATION_TONES, TONES = 24, 72


@cache
def tones(seed: int) -> tuple[Array, Array, Array]:
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
def cifar10(role: str) -> tuple[Array, Array]:
    name = "validation" if role == "validation" else "representative"
    with np.load(RESNET8 / "cifar10_subset.npz") as archive:
        return archive[name], archive[f"{name}_labels"]


CALIBRATION_FILES, FILES_OF_A_KIND = 64, 48
#: Kinds by suffixes that leave no doubt: a .h may be C or C++, a .md plain text.
KINDS = {
    "py": "python", "json": "json", "pyc": "pythonbytecode", "so": "elf", "js": "javascript", "html": "html",
    "css": "css", "yaml": "yaml", "png": "png", "toml": "toml",
}  # fmt: skip
#: Bytes of the beginning and the end of a file that magika reads, and what stands for no byte.
BLOCK, PADDING = 1024, 256


@cache
def files(seed: int) -> tuple[Array, Array, Array]:
    """Files of this Python environment, as their first and last bytes, and their kinds."""
    model = package_file("magika", MAGIKA)
    classes = json.loads((model.parent / "config.min.json").read_text())["target_labels_space"]
    inputs, labels = _files_of_kinds(classes)
    order = np.random.default_rng(seed).permutation(len(inputs))
    first, others = order[:CALIBRATION_FILES], order[CALIBRATION_FILES:]
    return inputs[first], inputs[others], labels[others]


def _files_of_kinds(classes: list[str]) -> tuple[Array, Array]:
    """Inputs and labels, the kinds mixed."""
    found: dict[str, list[Path]] = {suffix: [] for suffix in KINDS}
    for root in {Path(entry) for entry in sys.path if entry and Path(entry).is_dir()}:
        for path in root.rglob("*"):
            if path.suffix[1:] in found and path.is_file() and path.stat().st_size > 200:
                found[path.suffix[1:]].append(path)
    chooser = random.Random(0)
    rows = [
        (_file_bytes(path.read_bytes()), classes.index(KINDS[suffix]))
        for suffix, paths in found.items()
        for path in chooser.sample(sorted(paths), min(FILES_OF_A_KIND, len(paths)))
    ]
    chooser.shuffle(rows)
    inputs, labels = zip(*rows, strict=True)
    return np.array(inputs), np.array(labels)


def _file_bytes(content: bytes) -> Array:
    """First and last bytes without the white space around them, as magika prepares them."""
    begin, end = content[:4096].lstrip()[:BLOCK], content[-4096:].rstrip()[-BLOCK:]
    row = np.full(2 * BLOCK, PADDING, np.int32)
    row[: len(begin)] = list(begin)
    row[2 * BLOCK - len(end) :] = list(end)
    return row


def package_file(package: str, name: str) -> Path:
    spec = find_spec(package)
    return Path(spec.origin).parent / name if spec and spec.origin else Path(package) / name


PHOTOGRAPHS = {
    "skimage": ("astronaut", "chelsea", "coffee", "motorcycle_left", "motorcycle_right", "rocket", "camera", "coins"),
    "sklearn": ("china", "flower"),
}
CALIBRATION_CROPS, CROPS, SIDE = 24, 40, 224
#: Blue, green, red: the mean that the network was trained with.
BLUE_FIRST_MEAN = np.array([104, 117, 123], np.float32)


def photographs() -> list[Path]:
    """Those that are installed."""
    folders = {"skimage": "data", "sklearn": "datasets/images"}
    found = [
        package_file(package, f"{folders[package]}/{name}.{kind}")
        for package, names in PHOTOGRAPHS.items()
        for name in names
        for kind in ("png", "jpg")
    ]
    return [path for path in found if path.is_file()]


@cache
def crops(seed: int) -> tuple[Array, Array, None]:
    """Crops of photographs in other sizes and lights, some mirrored; the last axis is colour, blue first."""
    from PIL import Image  # pillow is optional: no other network needs it

    rng = np.random.default_rng([21, seed])
    images = [Image.open(path).convert("RGB") for path in photographs()]
    if not images:
        raise Inapplicable("no photographs: pip install --no-deps -r benchmarks/published.txt")
    found = []
    for _ in range(CALIBRATION_CROPS + CROPS):
        image = images[rng.integers(len(images))]
        size = int(min(image.size) * rng.uniform(0.4, 1))
        left, top = (int(rng.integers(0, whole - size + 1)) for whole in image.size)
        patch = image.resize((SIDE, SIDE), Image.Resampling.BILINEAR, (left, top, left + size, top + size))
        pixels = np.asarray(patch, np.float32)[:, :: int(rng.choice([-1, 1])), ::-1]
        found.append((pixels * rng.uniform(0.6, 1.1)).clip(0, 255) - BLUE_FIRST_MEAN)
    inputs = np.stack(found).astype(np.float32)
    return inputs[:CALIBRATION_CROPS], inputs[CALIBRATION_CROPS:], None


CALIBRATION_CLIPS, CLIPS = 24, 48


@cache
def mel_clips(seed: int) -> tuple[Array, Array, None]:
    """Nine seconds each as mel bands in decibels below the loudest, for DNSMOS (P.808)."""
    waves = speech(np.random.default_rng([22, seed]), CALIBRATION_CLIPS + CLIPS, 9 * SPEECH_RATE)
    bands = _mel_bands(321, 120)
    found = np.stack([_mel_decibels(wave, bands) for wave in waves])
    return found[:CALIBRATION_CLIPS], found[CALIBRATION_CLIPS:], None


def _mel_decibels(wave: Array, bands: Array) -> Array:
    """Frames of 321 samples every 160, Hann window, (decibels + 40) / 40, at most 80 below the loudest."""
    padded = np.pad(wave, 160)
    frames = np.lib.stride_tricks.sliding_window_view(padded, 321)[: 900 * 160 : 160]
    power = np.abs(np.fft.rfft(frames * np.hanning(322)[:-1])) ** 2 @ bands.T
    level = 10 * np.log10(np.maximum(power, 1e-10) / max(power.max(), 1e-10))
    return ((np.maximum(level, -80) + 40) / 40).astype(np.float32)


def _mel_bands(window: int, count: int) -> Array:
    """Triangles of equal area on the scale of Slaney's Auditory Toolbox: linear up to 1 kHz, logarithmic above."""
    top = 15 + np.log(SPEECH_RATE / 2 / 1000) / (np.log(6.4) / 27)
    mels = np.linspace(0, top, count + 2)
    edges = np.where(mels < 15, mels * 200 / 3, 1000 * np.exp(np.log(6.4) / 27 * (mels - 15)))
    bins = np.arange(window // 2 + 1) * SPEECH_RATE / window
    left, middle, right = (edges[i : count + i, None] for i in range(3))
    shape = np.minimum((bins - left) / (middle - left), (right - bins) / (right - middle)).clip(0)
    return np.asarray(shape * 2 / (right - left))


@cache
def gappy_clips(seed: int) -> tuple[Array, Array, None]:
    """Some three seconds each with lost packets, as logarithms of the spectrum, for PLCMOS."""
    waves = speech(np.random.default_rng([23, seed]), CALIBRATION_CLIPS + CLIPS, 200 * 256 + 256, lost=0.15)
    found = np.stack([_log_spectrum(wave) for wave in waves])[:, None]
    return found[:CALIBRATION_CLIPS], found[CALIBRATION_CLIPS:], None


def _log_spectrum(wave: Array) -> Array:
    """Frames of 512 samples every 256, Hamming window, natural logarithm of the power over 20."""
    frames = np.lib.stride_tricks.sliding_window_view(np.pad(wave, (256, 0)), 512)[::256]
    power = np.abs(np.fft.rfft(frames * np.hamming(513)[:-1])) ** 2
    return (np.log(np.maximum(power, 1e-12)) / 20).astype(np.float32)
