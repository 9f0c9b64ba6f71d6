"""Samples that are composed from a seed: scenes of several things, strips of digits, sentences, sounds, noisy images.

Training and measuring draw from the same functions, with other images and other seeds.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Random = np.random.Generator

# --- scenes ----------------------------------------------------------------------------------------------------------

#: Side of a scene in pixels, and of a cell of the detector's grid.
SCENE, CELL = 56, 8
#: Things in a scene at most; a row of labels is (class, left, top, right, bottom) in shares of the scene, or -1.
THINGS = 3


def scenes(rng: Random, images: Array, labels: Array | None, count: int) -> tuple[Array, Array]:
    """Scenes of one to three of some 28 x 28 images in other sizes before a dim background, and what is in them."""
    found = np.zeros((count, 1, SCENE, SCENE), np.float32)
    truth = np.full((count, THINGS, 5), -1, np.float32)
    across = np.linspace(-1, 1, SCENE, dtype=np.float32)
    for scene, rows in zip(found[:, 0], truth, strict=True):
        slope = rng.uniform(-15, 15, 2).astype(np.float32)
        scene += rng.uniform(10, 50) + slope[0] * across + slope[1] * across[:, None]
        centres: list[Array] = []
        for row in rows[: rng.integers(1, THINGS + 1)]:
            side = int(rng.integers(18, 29))
            corner = rng.integers(0, SCENE - side + 1, 2)
            centre = corner + side / 2
            if any(np.abs(centre - other).max() < 20 for other in centres):
                continue
            centres.append(centre)
            index = int(rng.integers(len(images)))
            pick = np.arange(side) * 28 // side
            patch = scene[corner[0] : corner[0] + side, corner[1] : corner[1] + side]
            np.maximum(patch, images[index, 0][np.ix_(pick, pick)], out=patch)
            kind = -1 if labels is None else labels[index]
            row[:] = kind, *(corner[::-1] / SCENE), *((corner[::-1] + side) / SCENE)
    found += rng.normal(0, 4, found.shape)
    return found.round().clip(0, 255).astype(np.uint8), truth


# --- strips of digits ------------------------------------------------------------------------------------------------

STRIP = (28, 84)
#: Digits of a strip at most; shorter rows of labels end in -1.
DIGITS = 5
#: Ten digits and a blank.
CLASSES_OF_STRIPS = 11
_FONT = (
    "01110100011001110101110011000101110 00100011000010000100001000010001110 01110100010000100010001000100011111"
    " 11111000100010000010000011000101110 00010001100101010010111110001000010 11111100001111000001000011000101110"
    " 00110010001000011110100011000101110 11111000010001000100010000100001000 01110100011000101110100011000101110"
    " 01110100011000101111000010001001100"
)
GLYPHS = np.array([[int(bit) for bit in glyph] for glyph in _FONT.split()], np.float32).reshape(10, 7, 5)


def strips(rng: Random, count: int) -> tuple[Array, Array]:
    """Strips of three to five digits in shaky print, and the digits."""
    found = np.zeros((count, 1, *STRIP), np.float32)
    truth = np.full((count, DIGITS), -1, np.int64)
    for strip, row in zip(found[:, 0], truth, strict=True):
        digits = rng.integers(0, 10, rng.integers(3, DIGITS + 1))
        row[: len(digits)] = digits
        paper, ink = rng.uniform(0, 70), rng.uniform(150, 255)
        strip += paper
        left = rng.uniform(2, STRIP[1] - 15.5 * len(digits) - 2)
        for digit in digits:
            _print(rng, strip, digit, left, ink - paper)
            left += rng.uniform(14, 15.5)
    found += rng.uniform(8, 50, (count, 1, 1, 1)) * rng.standard_normal(found.shape)
    return found.round().clip(0, 255).astype(np.uint8), truth


def _print(rng: Random, strip: Array, digit: int, left: float, ink: float) -> None:
    """One digit, 12 pixels wide or so, sheared and smoothed."""
    height, width = rng.uniform(18, 22), rng.uniform(10.5, 13)
    top, shear = rng.uniform(1, STRIP[0] - height - 1), rng.uniform(-0.15, 0.15)
    start, end = max(int(left) - 4, 0), min(int(left) + 20, STRIP[1])
    y, x = np.mgrid[0 : STRIP[0], start:end].astype(np.float32)
    v = (y - top) / height * 7 - 0.5
    u = (x - left - shear * (y - STRIP[0] / 2)) / width * 5 - 0.5
    strip[:, start:end] += ink * _smooth(np.pad(GLYPHS[digit], 1), v + 1, u + 1)


def _smooth(image: Array, y: Array, x: Array) -> Array:
    """Values between pixels; 0 outside."""
    low_y, low_x = (np.floor(v).astype(int).clip(0, n - 2) for v, n in zip((y, x), image.shape, strict=True))
    part_y, part_x = (y - low_y).clip(0, 1), (x - low_x).clip(0, 1)
    upper = image[low_y, low_x] * (1 - part_x) + image[low_y, low_x + 1] * part_x
    lower = image[low_y + 1, low_x] * (1 - part_x) + image[low_y + 1, low_x + 1] * part_x
    return upper * (1 - part_y) + lower * part_y


# --- sentences -------------------------------------------------------------------------------------------------------

#: Words of a sentence at most, tokens, topics; token 0 fills up, token 1 stands before the word that tells the topic.
WORDS, TOKENS, TOPICS = 20, 192, 12
MARKER, FIRST_OF_TOPICS = 1, 48
_OF_A_TOPIC = (TOKENS - FIRST_OF_TOPICS) // TOPICS


def sentences(rng: Random, count: int) -> tuple[Array, Array]:
    """Sentences about two topics, of which the one behind the marker counts, and that topic."""
    ids = np.zeros((count, WORDS), np.int64)
    topics = rng.integers(0, TOPICS, count)
    for row, topic in zip(ids, topics, strict=True):
        length = rng.integers(8, WORDS + 1)
        other = (topic + rng.integers(1, TOPICS)) % TOPICS
        row[:length] = rng.integers(2, FIRST_OF_TOPICS, length)
        told = rng.permutation(np.arange(1, length))
        _speak(rng, row, told[: rng.integers(1, 4)], other)
        place = int(rng.integers(0, length - 1))
        row[place] = MARKER
        _speak(rng, row, np.array([place + 1]), topic)
    return ids, topics.astype(np.int64)


def _speak(rng: Random, row: Array, places: Array, topic: int) -> None:
    row[places] = FIRST_OF_TOPICS + topic * _OF_A_TOPIC + rng.integers(0, _OF_A_TOPIC, len(places))


# --- sounds ----------------------------------------------------------------------------------------------------------

RATE, LENGTH = 8000, 3200
SOUNDS = ("tone", "rising", "falling", "trembling", "vowel", "clicks", "hiss", "bursts")


def sounds(rng: Random, count: int) -> tuple[Array, Array]:
    """0.4 s of one of eight sounds, as loud or soft as microphones hear them, in noise; and which one it is."""
    kinds = rng.integers(0, len(SOUNDS), count)
    waves = np.stack([_sound(rng, SOUNDS[kind]) for kind in kinds])
    waves /= np.abs(waves).max(1, keepdims=True)
    waves *= np.exp(rng.uniform(np.log(0.1), np.log(0.9), (count, 1)))
    noise = waves.std(1, keepdims=True) * 10 ** (-rng.uniform(10, 30, (count, 1)) / 20)
    return (waves + noise * rng.standard_normal(waves.shape)).astype(np.float32), kinds.astype(np.int64)


def _sound(rng: Random, kind: str) -> Array:
    time = np.arange(LENGTH) / RATE
    pitch, white = np.exp(rng.uniform(np.log(300), np.log(2500))), rng.standard_normal(LENGTH)
    tone = np.sin(2 * np.pi * pitch * time + rng.uniform(0, 6.28))
    if kind == "trembling":
        return np.asarray(tone * (1 + 0.9 * np.sin(2 * np.pi * rng.uniform(10, 25) * time)))
    if kind in ("rising", "falling"):
        slope = rng.uniform(0.4, 1) * (1 if kind == "rising" else -0.6) / time[-1]
        return np.asarray(np.sin(2 * np.pi * pitch * (time + slope * time**2 / 2)))
    if kind == "vowel":
        base, formants = rng.uniform(90, 220), (rng.uniform(300, 800), rng.uniform(900, 2400))
        parts = np.arange(1, 3500 // base)[:, None] * base
        strength = sum(np.exp(-(((parts - formant) / 150) ** 2)) for formant in formants) + 0.02
        return np.asarray((strength * np.sin(2 * np.pi * parts * time)).sum(0))
    if kind == "clicks":
        return np.asarray(white * np.exp(-((time * rng.uniform(12, 30)) % 1) * 30))
    if kind == "bursts":
        return np.asarray(white * (np.sin(2 * np.pi * rng.uniform(4, 9) * time + rng.uniform(0, 6.28)) > 0) + 1e-3)
    return np.asarray(white if kind == "hiss" else tone)


# --- speech ----------------------------------------------------------------------------------------------------------

SPEECH_RATE = 16000
#: Samples of a packet.
PACKET = 320


def speech(rng: Random, count: int, length: int, lost: float = 0.0) -> Array:
    """Clips that are like speech, in noise of 0 to 40 dB below; up to so large a share of the packets is lost."""
    clips = np.stack([_babble(rng, length) for _ in range(count)])
    clips *= rng.uniform(0.2, 0.9, (count, 1)) / np.abs(clips).max(1, keepdims=True)
    noise = clips.std(1, keepdims=True) * 10 ** (-rng.uniform(0, 40, (count, 1)) / 20)
    clips += noise * rng.standard_normal(clips.shape)
    gaps = rng.random((count, -(-length // PACKET))) < lost * rng.random((count, 1))
    clips *= 1 - gaps.repeat(PACKET, 1)[:, :length]
    return clips.clip(-1, 1).astype(np.float32)


def _babble(rng: Random, length: int) -> Array:
    """Syllables of 80 to 300 ms one after the other: voiced, hissed or silent."""
    wave, at, base = np.zeros(length), 0, rng.uniform(90, 230)
    while at < length:
        size = min(int(rng.uniform(0.08, 0.3) * SPEECH_RATE), length - at)
        shape = np.hanning(size + 2)[1:-1] ** 0.5
        kind = rng.choice(["voiced", "hissed", "silent"], p=[0.6, 0.2, 0.2])
        if kind == "voiced":
            wave[at : at + size] = shape * _voiced(rng, base, size)
        elif kind == "hissed":
            wave[at : at + size] = 0.15 * shape * np.diff(rng.standard_normal(size + 1))
        at += size
    return wave


def _voiced(rng: Random, base: float, size: int) -> Array:
    """Harmonics of a gliding pitch below three formants."""
    pitch = base * np.linspace(*rng.uniform(0.8, 1.25, 2), size)
    turns = 2 * np.pi * np.cumsum(pitch) / SPEECH_RATE
    formants = rng.uniform((280, 900, 2300), (800, 2200, 3000))
    parts = np.arange(1, int(4000 // base))
    gains = sum(np.exp(-(((parts * base - formant) / 180) ** 2)) for formant in formants) + 0.02
    wave = (gains[:, None] * np.sin(parts[:, None] * turns)).sum(0)
    return np.asarray(wave / np.abs(wave).max())


# --- noisy images ----------------------------------------------------------------------------------------------------


def noisy(rng: Random, images: Array) -> Array:
    """The same images, grainy."""
    deviation = rng.uniform(10, 50, (len(images), 1, 1, 1))
    return (images + deviation * rng.standard_normal(images.shape)).round().clip(0, 255).astype(np.uint8)


# --- decoded answers -------------------------------------------------------------------------------------------------


def detections(output: Array) -> Array:
    """From dense rows (box, objectness, class scores) to the three most likely things, as labels are written."""
    objectness, scores = output[..., 4], output[..., 5:]
    best = np.argsort(-np.nan_to_num(objectness), axis=1)[:, :THINGS]
    rows = np.take_along_axis(output, best[..., None], 1)
    kinds = np.take_along_axis(scores.argmax(2), best, 1)[..., None]
    there = np.take_along_axis(objectness, best, 1)[..., None] > 0.5
    return np.where(there, np.concatenate([kinds, rows[..., :4]], 2), -1.0)


def overlap(a: Array, b: Array) -> Array:
    """Intersection over union of all boxes with all others: ``[N, A, 4]`` and ``[N, B, 4]`` to ``[N, A, B]``."""
    a, b = a[:, :, None], b[:, None]
    inner = np.prod(np.clip(np.minimum(a[..., 2:], b[..., 2:]) - np.maximum(a[..., :2], b[..., :2]), 0, None), -1)
    areas = (np.prod(np.clip(x[..., 2:] - x[..., :2], 0, None), -1) for x in (a, b))
    return np.asarray(inner / np.maximum(sum(areas) - inner, 1e-9))


def f_measure(found: Array, wanted: Array) -> Array:
    """Per scene: twice the things found with the right class and half of their box, by all found and all wanted."""
    alike = (found[:, :, None, 0] == wanted[:, None, :, 0]) & (wanted[:, None, :, 0] >= 0)
    hits = (alike & (overlap(found[..., 1:], wanted[..., 1:]) >= 0.5)).any(1).sum(1)
    both = (found[..., 0] >= 0).sum(1) + (wanted[..., 0] >= 0).sum(1)
    return np.where(both > 0, 2 * hits / np.maximum(both, 1), 1.0)


def read_digits(output: Array) -> Array:
    """From a score per step and class, blank last, to digits, as labels are written: repeated ones count once."""
    steps = output.argmax(2)
    blank = output.shape[2] - 1
    fresh = (steps != blank) & (steps != np.pad(steps, ((0, 0), (1, 0)), constant_values=blank)[:, :-1])
    rows = np.full((len(output), output.shape[1]), -1, np.int64)
    for row, own, mask in zip(rows, steps, fresh, strict=True):
        row[: mask.sum()] = own[mask]
    return rows


def character_errors(found: Array, wanted: Array) -> Array:
    """Edit distance of each row, -1 being no character."""
    return np.array([_distance(a[a >= 0], b[b >= 0]) for a, b in zip(found, wanted, strict=True)], float)


def _distance(a: Array, b: Array) -> int:
    row = list(range(len(b) + 1))
    for i, x in enumerate(a, 1):
        last, row[0] = row[0], i
        for j, y in enumerate(b, 1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (x != y))
    return row[-1]


def nearest_topic(output: Array) -> Array:
    """Number of the topic whose direction is the nearest to an embedding; -1 for what is not a number."""
    scores = output @ directions(output.shape[1])[:TOPICS].T
    return np.where(np.isfinite(scores).all(1), scores.argmax(1), -1)


def directions(width: int) -> Array:
    """Directions at right angles (Hadamard): the sign is that of the parity of common bits."""
    rows = np.arange(width)
    common = rows[:, None] & rows
    parity = sum((common >> bit) & 1 for bit in range(16)) % 2
    return (1 - 2 * parity) / np.sqrt(width)
