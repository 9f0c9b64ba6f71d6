"""Samples of the networks of set D, composed from a seed.

Training and measuring draw from the same functions, with other seeds.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Random = np.random.Generator

# --- beads -----------------------------------------------------------------------------------------------------------

#: Side of a colour picture; classes are three shapes, each in a warm and in a cool colour.
BEAD, BEADS = 40, 6


def beads(rng: Random, count: int) -> tuple[Array, Array]:
    """Colour pictures of one thing on a ground of its own colour, and which thing it is."""
    y, x = np.mgrid[0:BEAD, 0:BEAD].astype(np.float32)
    kinds = rng.integers(0, BEADS, count)
    pictures = np.zeros((count, 3, BEAD, BEAD), np.float32)
    for picture, kind in zip(pictures, kinds, strict=True):
        slope = rng.uniform(-1, 1, (3, 2, 1, 1))
        picture += rng.uniform(30, 170, (3, 1, 1)) + slope[:, 0] * x + slope[:, 1] * y
        (mx, my), size = rng.uniform(12, BEAD - 12, 2), rng.uniform(6, 10)
        far, across = np.hypot(x - mx, y - my), np.maximum(np.abs(x - mx), np.abs(y - my))
        shape = (far < size, (across < size) & (np.minimum(np.abs(x - mx), np.abs(y - my)) < size / 3), None)[kind // 2]
        inside = (far < size * 1.1) & (far > size * 0.6) if shape is None else shape
        light, dark, middle = rng.uniform(190, 255), rng.uniform(0, 70), rng.uniform(60, 200)
        colour = (light, middle, dark) if kind % 2 == 0 else (dark, middle, light)
        picture[:, inside] = np.array(colour, np.float32)[:, None]
    pictures += rng.uniform(3, 14, (count, 1, 1, 1)) * rng.standard_normal(pictures.shape)
    return pictures.round().clip(0, 255).astype(np.uint8), kinds.astype(np.int64)


# --- weaves ----------------------------------------------------------------------------------------------------------

#: Side of a picture of cloth, and its classes: four directions of the thread, coarse and fine.
CLOTH, WEAVES = 24, 8


def weaves(rng: Random, count: int) -> tuple[Array, Array]:
    """Grainy pictures of cloth under uneven light, and the kind of weave."""
    y, x = np.mgrid[0:CLOTH, 0:CLOTH].astype(np.float32)
    kinds = rng.integers(0, WEAVES, count)
    turn = (kinds % 4) * np.pi / 4 + rng.normal(0, 0.12, count)
    pace = np.where(kinds < 4, 0.75, 1.35) * np.exp(rng.normal(0, 0.09, count))
    along = np.cos(turn)[:, None, None] * x + np.sin(turn)[:, None, None] * y
    thread = np.sin(pace[:, None, None] * along + rng.uniform(0, 6.28, (count, 1, 1)))
    light = rng.uniform(70, 180, (count, 1, 1)) + rng.uniform(-1.5, 1.5, (count, 1, 1)) * (x - CLOTH / 2)
    pictures = light + rng.uniform(12, 60, (count, 1, 1)) * thread
    pictures += rng.uniform(5, 25, (count, 1, 1)) * rng.standard_normal(pictures.shape)
    return pictures[:, None].round().clip(0, 255).astype(np.uint8), kinds.astype(np.int64)


# --- machines --------------------------------------------------------------------------------------------------------

#: Readings in a window; sensors: two of vibration, speed, current, temperature, pressure; states of the machine.
READINGS, SENSORS, STATES = 96, 6, 6
#: Mean and deviation of each sensor, in g, g, revolutions, ampere, degrees and bar.
USUAL = ((0, 0, 24, 11, 55, 3.2), (0.35, 0.3, 3.5, 2.2, 9, 0.6))


def machines(rng: Random, count: int) -> tuple[Array, Array]:
    """Windows of standardized readings of a machine, and its state."""
    states = rng.integers(0, STATES, count)
    found = np.zeros((count, READINGS, SENSORS), np.float32)
    for window, state in zip(found, states, strict=True):
        window += _readings(rng, int(state))
    mean, deviation = (np.array(v, np.float32) for v in USUAL)
    return ((found - mean) / deviation).astype(np.float32), states.astype(np.int64)


def _readings(rng: Random, state: int) -> Array:
    """Sound, unbalanced, a worn bearing, a loose foot, overload, a leak."""
    time = np.arange(READINGS)
    speed, shake = rng.uniform(18, 30), rng.uniform(0.08, 0.2)
    turns = 2 * np.pi * speed * time / 150 + rng.uniform(0, 6.28)
    readings = np.zeros((READINGS, SENSORS))
    readings[:, :2] = shake * np.stack([np.sin(turns), np.cos(turns)], 1) + rng.laplace(0, 0.05, (READINGS, 2))
    readings[:, 2] = speed + rng.normal(0, 0.2, READINGS).cumsum() * 0.3
    readings[:, 3] = rng.uniform(8, 13) + 0.5 * np.sin(turns / 3) + rng.normal(0, 0.3, READINGS)
    readings[:, 4] = rng.uniform(42, 62) + rng.uniform(-0.02, 0.02) * time
    readings[:, 5] = rng.uniform(2.8, 4) + rng.normal(0, 0.05, READINGS)
    if state == 1:
        readings[:, 0] += rng.uniform(0.4, 0.7) * np.sin(turns)
    if state == 2:
        beat = rng.integers(9, 16)
        readings[:, :2] += rng.uniform(1.0, 2.4) * ((time + rng.integers(beat)) % beat == 0)[:, None]
    if state == 3:
        readings[:, 1] += rng.uniform(0.3, 0.6) * np.sign(np.sin(2 * turns))
    if state == 4:
        readings[:, 3] += np.linspace(1, rng.uniform(4, 8), READINGS)
        readings[:, 4] += np.linspace(0, rng.uniform(6, 20), READINGS)
    if state == 5:
        readings[:, 5] -= np.linspace(0, rng.uniform(0.9, 2), READINGS)
    return readings


# --- prints ----------------------------------------------------------------------------------------------------------

#: Side of the small picture and of the large one.
SMALL, LARGE = 24, 48


def prints(rng: Random, count: int) -> tuple[Array, Array]:
    """Small pictures, and the large ones of which they are the means of four pixels, as shares of white."""
    y, x = np.mgrid[0:LARGE, 0:LARGE].astype(np.float32)
    pictures = np.zeros((count, 1, LARGE, LARGE), np.float32)
    for picture in pictures[:, 0]:
        picture += rng.uniform(40, 200) + rng.uniform(-1, 1) * (x - 24) + rng.uniform(-1, 1) * (y - 24)
        for _ in range(int(rng.integers(2, 6))):
            turn, (mx, my) = rng.uniform(0, 2 * np.pi), rng.uniform(4, LARGE - 4, 2)
            u, v = (
                (x - mx) * np.cos(turn) + (y - my) * np.sin(turn),
                (y - my) * np.cos(turn) - (x - mx) * np.sin(turn),
            )
            long, wide = rng.uniform(6, 24), rng.uniform(1.2, 7)
            inside = np.maximum(np.abs(u) - long, np.abs(v) - wide)
            share = np.clip(0.5 - inside, 0, 1)
            picture += share * (rng.uniform(0, 255) - picture)
    low = pictures.reshape(count, 1, SMALL, 2, SMALL, 2).mean((3, 5))
    return low.round().clip(0, 255).astype(np.uint8), (pictures.clip(0, 255) / 255).astype(np.float32)


# --- bags ------------------------------------------------------------------------------------------------------------

#: Things in a bag, measurements of each, and kinds of bags: each has a few things of its kind among common ones.
BAG, MEASURES, SORTS = 24, 12, 6


def bags(rng: Random, count: int) -> tuple[Array, Array]:
    """Bags of measured things in any order, and the kind of the few that matter."""
    fixed = np.random.default_rng(78)
    centres, common = fixed.normal(0, 1.3, (SORTS, MEASURES)), fixed.normal(0, 0.9, (5, MEASURES))
    sorts = rng.integers(0, SORTS, count)
    found = common[rng.integers(0, 5, (count, BAG))] + 0.8 * rng.standard_normal((count, BAG, MEASURES))
    for bag, sort in zip(found, sorts, strict=True):
        few = rng.integers(1, 5)
        bag[rng.permutation(BAG)[:few]] = centres[sort] + 0.6 * rng.standard_normal((few, MEASURES))
    found[..., 8:] = np.expm1(np.abs(found[..., 8:])) / 3  # sizes, of which a few are large
    return found.clip(-8, 8).astype(np.float32), sorts.astype(np.int64)
