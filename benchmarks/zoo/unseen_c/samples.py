"""Samples of the networks of set C, composed from a seed: arms, words, tables and grounds with things on them.

Training and measuring draw from the same functions, with other seeds.
"""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Random = np.random.Generator
Make = Callable[[Random, int], tuple[Array, Array]]

CALIBRATION, COMPOSED = 200, 512

# --- arms ------------------------------------------------------------------------------------------------------------

#: Side of a picture of an arm in pixels, cells of a heatmap along it, and joints: shoulder, elbow, wrist.
ARM, CELLS, JOINTS = 48, 24, 3


def arms(rng: Random, count: int) -> tuple[Array, Array]:
    """Pictures of a bent arm, and the joints as (x, y) in cells of the heatmap."""
    y, x = np.mgrid[0:ARM, 0:ARM].astype(np.float32)
    pictures = np.zeros((count, 1, ARM, ARM), np.float32)
    joints = np.zeros((count, JOINTS, 2), np.float32)
    for picture, own in zip(pictures[:, 0], joints, strict=True):
        own[:] = _bent(rng)
        picture += rng.uniform(20, 70) + rng.uniform(-0.6, 0.6) * x + rng.uniform(-0.6, 0.6) * y
        light = rng.uniform(90, 170)
        for start, end, width in ((own[0], own[1], 3.2), (own[1], own[2], 2.0)):
            picture += light * _near(x, y, start, end, width)
        picture += 40 * _near(x, y, own[0], own[0], 5.0)
        picture -= 0.7 * light * _near(x, y, own[2], own[2], 1.6)
    pictures += rng.uniform(3, 12, (count, 1, 1, 1)) * rng.standard_normal(pictures.shape)
    return pictures.round().clip(0, 255).astype(np.uint8), joints * CELLS / ARM


def _bent(rng: Random) -> Array:
    """Three joints inside the picture."""
    while True:
        turns = rng.uniform(0, 2 * np.pi) + np.array([0, rng.uniform(-2.2, 2.2)])
        steps = np.stack([np.cos(turns), np.sin(turns)], 1) * rng.uniform(10, 17, (2, 1))
        found = rng.uniform(6, ARM - 6, 2) + np.concatenate([np.zeros((1, 2)), np.cumsum(steps, 0)])
        if found.min() > 4 and found.max() < ARM - 4:
            return np.asarray(found)


def _near(x: Array, y: Array, start: Array, end: Array, width: float) -> Array:
    """1 on a line, falling off as a bell."""
    along = end - start
    share = ((x - start[0]) * along[0] + (y - start[1]) * along[1]) / max(float(along @ along), 1e-6)
    share = share.clip(0, 1)
    squares = (x - start[0] - share * along[0]) ** 2 + (y - start[1] - share * along[1]) ** 2
    return np.asarray(np.exp(-squares / (2 * (width / 1.7) ** 2)))


# --- grounds ---------------------------------------------------------------------------------------------------------

#: Side of a picture, of a map of classes, and the classes: ground, disc, square, ring.
PLOT, MAP, KINDS = 48, 24, 4


def plots(rng: Random, count: int) -> tuple[Array, Array]:
    """Two to four things on a striped ground, and the class of every second pixel."""
    y, x = np.mgrid[0:PLOT, 0:PLOT].astype(np.float32)
    pictures = np.zeros((count, 1, PLOT, PLOT), np.float32)
    classes = np.zeros((count, PLOT, PLOT), np.int64)
    for picture, own in zip(pictures[:, 0], classes, strict=True):
        turn, pace = rng.uniform(0, np.pi), rng.uniform(0.2, 0.9)
        stripes = np.sin(pace * (x * np.cos(turn) + y * np.sin(turn)) + rng.uniform(0, 6.28))
        picture += rng.uniform(60, 150) + rng.uniform(5, 30) * stripes
        for _ in range(rng.integers(2, 5)):
            kind, (mx, my), size = int(rng.integers(1, KINDS)), rng.uniform(6, PLOT - 6, 2), rng.uniform(5, 9)
            far = np.hypot(x - mx, y - my)
            inside = {
                1: far < size,
                2: np.maximum(np.abs(x - mx), np.abs(y - my)) < size * 0.9,
                3: (far < size * 1.15) & (far > size * 0.55),
            }[kind]
            own[inside] = kind
            picture[inside] = rng.choice([rng.uniform(0, 45), rng.uniform(190, 255)])
    pictures += rng.uniform(3, 15, (count, 1, 1, 1)) * rng.standard_normal(pictures.shape)
    return pictures.round().clip(0, 255).astype(np.uint8), classes[:, ::2, ::2]


# --- words -----------------------------------------------------------------------------------------------------------

#: Frames and bands of a recording; words are orders of three of four syllables.
FRAMES, BANDS = 48, 20
VOCABULARY = ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0), (3, 0, 1), (1, 0, 3))


def words(rng: Random, count: int) -> tuple[Array, Array]:
    """Levels in bands over time of one word, spoken fast or slowly, and which one it is."""
    kinds = rng.integers(0, len(VOCABULARY), count)
    found = np.zeros((count, FRAMES, BANDS), np.float32)
    for levels, kind in zip(found, kinds, strict=True):
        levels += _word(rng, VOCABULARY[kind])
    found += rng.uniform(0.1, 0.5, (count, 1, 1)) * rng.standard_normal(found.shape)
    return found.astype(np.float32), kinds.astype(np.int64)


def _word(rng: Random, syllables: tuple[int, ...]) -> Array:
    """Each syllable moves two ridges through the bands; what is silent has a low level."""
    time, band = np.arange(FRAMES)[:, None], np.arange(BANDS)
    levels = np.full((FRAMES, BANDS), -1.2) + rng.uniform(-0.3, 0.3, BANDS)
    at, voice, loudness = rng.uniform(1, 9), rng.uniform(-1.2, 1.2), rng.uniform(1.6, 3.2)
    for syllable in syllables:
        length = rng.uniform(8, 12)
        low, high, slope = ((4, 12, 0), (6, 9, 0.25), (2, 15, -0.2), (8, 17, 0.1))[syllable]
        share = (time - at) / length
        there = np.exp(-(((share - 0.5) * 2.2) ** 4))
        for ridge in (low, high):
            middle = ridge + voice + slope * (time - at)
            levels = levels + loudness * there * np.exp(-(((band - middle) / 1.3) ** 2))
        at += length + rng.uniform(0, 2.5)
    return np.asarray(levels)


# --- tables ----------------------------------------------------------------------------------------------------------

#: Columns of a table, and classes of its rows.
COLUMNS, GROUPS = 24, 6


def tables(rng: Random, count: int) -> tuple[Array, Array]:
    """Rows of a table, each column centred and divided by its deviation, and the group of each row."""
    fixed = np.random.default_rng(77)
    centres, mixing = fixed.normal(0, 1.1, (GROUPS, 2, 6)), fixed.normal(0, 0.5, (6, COLUMNS))
    groups, side = rng.integers(0, GROUPS, count), rng.integers(0, 2, count)
    hidden = centres[groups, side] + 0.75 * rng.standard_normal((count, 6))
    columns = hidden @ mixing + 0.25 * rng.standard_normal((count, COLUMNS))
    columns[:, 6:12] = np.expm1(np.abs(columns[:, 6:12])) * np.sign(columns[:, 6:12])  # amounts of money
    columns[:, 12:18] = np.tanh(columns[:, 12:18])  # shares
    columns[:, 18:22] = np.round(columns[:, 18:22] * 2)  # counts
    columns[:, 22:] = columns[:, 22:] > 0  # yes or no
    spread = np.repeat([1.3, 3.5, 0.75, 2.7, 0.5], [6, 6, 6, 4, 2])
    return (columns / spread).clip(-5, 5).astype(np.float32), groups.astype(np.int64)


# --- for measuring ---------------------------------------------------------------------------------------------------


@cache
def _composed(make: Make, seed: int) -> tuple[Array, Array]:
    return make(np.random.default_rng([31, seed]), CALIBRATION + COMPOSED)


def pictures_of(make: Make) -> Callable[[str], tuple[Array, Array | None]]:
    """Pictures by role."""

    def images(role: str) -> tuple[Array, Array | None]:
        found, truth = _composed(make, 0)
        if role == "validation":
            return found[CALIBRATION:], truth[CALIBRATION:]
        return found[:CALIBRATION], None

    return images


def signals_of(make: Make) -> Callable[[int], tuple[Array, Array, Array | None]]:
    """Samples for calibration and validation, and labels, from a seed."""

    def samples(seed: int) -> tuple[Array, Array, Array | None]:
        found, truth = _composed(make, seed)
        return found[:CALIBRATION], found[CALIBRATION:], truth[CALIBRATION:]

    return samples
