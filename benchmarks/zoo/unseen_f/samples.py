"""Samples of the networks of set F, composed from a seed: webs, mazes, dials, groves and fabrics.

Training and measuring draw from the same functions, with other seeds.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Random = np.random.Generator

# --- webs ------------------------------------------------------------------------------------------------------------

#: Nodes of a web at most, numbers at each node, and kinds: ring, chain or star; neighbours alike or unlike.
NODES, MARKS, SHAPES = 12, 4, 6


def webs(rng: Random, count: int) -> tuple[Array, Array]:
    """Rows of a web's links beside what each node tells (that it is there, a charge, two measures), and its kind."""
    kinds = rng.integers(0, SHAPES, count)
    found = np.zeros((count, NODES, NODES + MARKS), np.float32)
    for web, kind in zip(found, kinds, strict=True):
        size = int(rng.integers(7, NODES + 1))
        links = _links(int(kind) % 3, size)
        charges = _charges(rng, links, alike=kind >= 3)
        order = rng.permutation(NODES)[:size]
        web[np.ix_(order, order)] = links
        web[order, NODES] = 1
        web[order, NODES + 1] = charges * rng.uniform(0.6, 1.4, size)
        web[order, NODES + 2 :] = rng.normal(0, 1, (size, MARKS - 2)).clip(-3, 3)
    return found, kinds.astype(np.int64)


def _links(shape: int, size: int) -> Array:
    """Ring, chain or star."""
    links = np.zeros((size, size), np.float32)
    for i in range(1, size):
        links[i, 0 if shape == 2 else i - 1] = 1
    if shape == 0:
        links[0, size - 1] = 1
    return links + links.T


def _charges(rng: Random, links: Array, alike: bool) -> Array:
    """Signs that most neighbours share, or that most do not."""
    charges = np.zeros(len(links))
    charges[0] = rng.choice([-1, 1])
    for i in range(1, len(links)):
        before = int(np.flatnonzero(links[i, :i])[0])
        turned = rng.random() < (0.2 if alike else 0.8)
        charges[i] = -charges[before] if turned else charges[before]
    return charges


# --- mazes -----------------------------------------------------------------------------------------------------------

#: Side of a maze, and steps that lead from start to goal at most.
GRID, TURNS = 10, 6


def mazes(rng: Random, count: int) -> tuple[Array, Array]:
    """Pictures of walls, start and goal in a plane each, and whether a way leads from start to goal."""
    walls = rng.random((count, GRID, GRID)) < rng.uniform(0.25, 0.45, (count, 1, 1))
    start = rng.integers(0, GRID, (2, count))
    each = np.arange(count)
    walls[each, start[0], start[1]] = False
    near = np.zeros_like(walls)
    near[each, start[0], start[1]] = True
    first = near.copy()
    for _ in range(TURNS):
        near = _spread(near) & ~walls
    far = near
    for _ in range(GRID * GRID // 2):
        far = _spread(far) & ~walls
    reached = near & ~first
    cut_off = ~far & ~walls
    answers = rng.integers(0, 2, count)
    answers = np.where(reached.any((1, 2)), answers, 0)
    answers = np.where(cut_off.any((1, 2)), answers, 1)
    goals = np.where(answers[:, None, None] == 1, reached, cut_off) * rng.random(walls.shape)
    goal = np.zeros_like(walls)
    goal.reshape(count, -1)[each, goals.reshape(count, -1).argmax(1)] = True
    planes = np.stack([walls & ~goal, first, goal], 1)
    return (255 * planes).astype(np.uint8), answers.astype(np.int64)


def _spread(cells: Array) -> Array:
    """Cells and their four neighbours."""
    found = cells.copy()
    found[:, 1:] |= cells[:, :-1]
    found[:, :-1] |= cells[:, 1:]
    found[:, :, 1:] |= cells[:, :, :-1]
    found[:, :, :-1] |= cells[:, :, 1:]
    return found


# --- dials -----------------------------------------------------------------------------------------------------------

#: Readings of a wave, dials beside it, tones that there may be, and what a tone may do: nothing, hold, grow, fade.
WAVE, DIALS, TONES, COURSES = 96, 4, 5, 4


def dials(rng: Random, count: int) -> tuple[Array, Array]:
    """Waves of two tones, then the dials: which tone is asked for, gain, offset, noise; and what the tone does."""
    time = np.arange(WAVE) / WAVE
    asked, other = rng.integers(0, TONES, count), rng.integers(1, TONES, count)
    courses, beside = rng.integers(0, COURSES, count), rng.integers(0, COURSES, count)
    wave = _tone(rng, asked, courses, time) + _tone(rng, (asked + other) % TONES, beside, time)
    gain, offset, noise = rng.normal(0, 0.3, count), rng.normal(0, 0.5, count), rng.uniform(0, 1.2, count)
    wave = (wave + noise[:, None] * rng.standard_normal(wave.shape)) * np.exp(gain)[:, None] + offset[:, None]
    knobs = np.stack([(asked - 2) / 1.5, gain * 2, offset * 2, noise * 2 - 1], 1)
    return np.concatenate([wave, knobs], 1).clip(-6, 6).astype(np.float32), courses.astype(np.int64)


def _tone(rng: Random, number: Array, course: Array, time: Array) -> Array:
    pace = 4.0 * 1.6 ** number[:, None]
    shapes = np.stack([0 * time, 0 * time + 0.6, 0.15 + time, 1.15 - time])
    phase = rng.uniform(0, 2 * np.pi, (len(number), 1))
    return np.asarray(shapes[course] * np.sin(2 * np.pi * pace * time + phase))


# --- groves ----------------------------------------------------------------------------------------------------------

#: Measured columns, columns that say yes for one of five each, and yields.
NUMBERS, CHOICES, OPTIONS, YIELDS = 10, 3, 5, 5


def groves(rng: Random, count: int) -> tuple[Array, Array]:
    """Rows of a table in their own units, measures before choices, and what came of each."""
    fixed = np.random.default_rng(101)
    ends, weights = fixed.normal(0, 0.7, (YIELDS, 3)), fixed.normal(0, 1, (CHOICES, OPTIONS, YIELDS))
    columns = np.stack([fixed.permutation(NUMBERS)[:3] for _ in range(YIELDS)])
    means, spreads = grove_units()
    drawn = 2 * count
    numbers = rng.standard_normal((drawn, NUMBERS))
    choices = rng.integers(0, OPTIONS, (drawn, CHOICES))
    scores = 2 * np.stack([np.tanh(2 * (numbers[:, columns[y]] - ends[y])).prod(1) for y in range(YIELDS)], 1)
    scores = scores + sum(0.5 * weights[i, choices[:, i]] for i in range(CHOICES))
    best = np.sort(scores, 1)
    clear = rng.permutation(np.argsort(best[:, -2] - best[:, -1])[:count])  # nobody could tell the other half
    rows = np.concatenate([numbers * spreads + means, *np.eye(OPTIONS)[choices].transpose(1, 0, 2)], 1)
    return rows[clear].clip(-8, 8).astype(np.float32), scores[clear].argmax(1).astype(np.int64)


def grove_units() -> tuple[Array, Array]:
    """Mean and spread of each measured column."""
    fixed = np.random.default_rng(102)
    return fixed.normal(0, 0.8, NUMBERS), fixed.uniform(0.6, 1.8, NUMBERS)


# --- fabrics ---------------------------------------------------------------------------------------------------------

#: Side of a picture, and fabrics: each is woven of three waves with colours of their own.
CLOTH, FABRICS = 24, 8


def fabrics(rng: Random, count: int) -> tuple[Array, Array]:
    """Colour pictures of cloth with random phases, light and dirt, and which cloth it is."""
    fixed = np.random.default_rng(103)
    angles, paces = fixed.uniform(0, np.pi, (4, 3)), fixed.uniform(0.9, 2.0, (4, 3))
    colours = fixed.normal(0, 1, (FABRICS, 3, 3))
    kinds = rng.integers(0, FABRICS, count)
    y, x = np.mgrid[0:CLOTH, 0:CLOTH]
    angle = angles[kinds % 4] + rng.normal(0, 0.06, (count, 3))
    pace = paces[kinds % 4] * np.exp(rng.normal(0, 0.05, (count, 3)))
    phase = rng.uniform(0, 2 * np.pi, (count, 3))
    down, across = (pace * f(angle) for f in (np.sin, np.cos))
    waves = np.sin(down[..., None, None] * y + across[..., None, None] * x + phase[..., None, None])
    woven = np.einsum("nwc,nwyx->ncyx", colours[kinds], waves)
    light = rng.uniform(5, 15, (count, 1, 1, 1))
    ground = rng.uniform(90, 165, (count, 1, 1, 1)) + rng.normal(0, 15, (count, 3, 1, 1))
    found = ground + light * woven + rng.normal(0, 40, woven.shape)
    return found.round().clip(0, 255).astype(np.uint8), kinds.astype(np.int64)
