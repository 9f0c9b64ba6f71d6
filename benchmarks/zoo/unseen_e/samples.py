"""Samples of the networks of set E, composed from a seed: swirls, solids, orders, signatures and talks.

Training and measuring draw from the same functions, with other seeds.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Random = np.random.Generator

# --- swirls ----------------------------------------------------------------------------------------------------------

#: Side of a field.
FIELD = 32


def swirls(rng: Random, count: int) -> tuple[Array, Array]:
    """Vorticity of a flow in a plane without ends, and the two components of its velocity."""
    y, x = np.mgrid[0:FIELD, 0:FIELD].astype(np.float32)
    spins = np.zeros((count, 1, FIELD, FIELD), np.float32)
    for spin in spins[:, 0]:
        for _ in range(int(rng.integers(2, 7))):
            (mx, my), size = rng.uniform(0, FIELD, 2), rng.uniform(1.2, 4.5)
            dx, dy = (np.abs(d) for d in (x - mx, y - my))
            squares = np.minimum(dx, FIELD - dx) ** 2 + np.minimum(dy, FIELD - dy) ** 2
            spin += rng.choice([-1, 1]) * rng.lognormal(0.3, 0.5) * np.exp(-squares / (2 * size**2))
    spins -= spins.mean((2, 3), keepdims=True)
    return spins, _velocity(spins)


def _velocity(spins: Array) -> Array:
    """From the stream function, whose curvature is the vorticity."""
    pace = 2j * np.pi * np.fft.fftfreq(FIELD)
    down, across = pace[:, None], pace[None, :]
    bend = down**2 + across**2
    bend[0, 0] = 1
    stream = -np.fft.fft2(spins[:, 0]) / bend
    found = [np.fft.ifft2(stream * down).real, -np.fft.ifft2(stream * across).real]
    return np.asarray(np.stack(found, 1) / 4, np.float32)


# --- solids ----------------------------------------------------------------------------------------------------------

#: Points of a cloud, and shapes: ball, box, tube, cone, ring, two balls.
POINTS, SOLIDS = 64, 6


def solids(rng: Random, count: int) -> tuple[Array, Array]:
    """Clouds of points on the skin of a thing that is turned about its axis, and its shape."""
    kinds = rng.integers(0, SOLIDS, count)
    clouds = np.stack([_cloud(rng, kind) for kind in kinds])
    turn = rng.uniform(0, 2 * np.pi, count)
    c, s, zero, one = np.cos(turn), np.sin(turn), np.zeros(count), np.ones(count)
    around = np.stack([np.stack(row, 1) for row in ((c, -s, zero), (s, c, zero), (zero, zero, one))], 1)
    clouds = (clouds * rng.uniform(0.75, 1.25, (count, 1, 3))) @ around
    clouds = clouds * rng.uniform(0.7, 1.4, (count, 1, 1)) + 0.03 * rng.standard_normal(clouds.shape)
    return clouds.astype(np.float32), kinds.astype(np.int64)


def _cloud(rng: Random, kind: int) -> Array:
    angle, share = rng.uniform(0, 2 * np.pi, POINTS), rng.uniform(0, 1, POINTS)
    ball = rng.standard_normal((POINTS, 3))
    ball /= np.linalg.norm(ball, axis=1, keepdims=True)
    ring = np.stack([np.cos(angle), np.sin(angle)], 1)
    if kind == 0:
        return np.asarray(ball)
    if kind == 1:
        return np.asarray(ball / np.abs(ball).max(1, keepdims=True))
    if kind == 2:
        return np.concatenate([ring, 2 * share[:, None] - 1], 1)
    if kind == 3:
        wide = np.sqrt(share)[:, None]
        return np.concatenate([ring * wide, 1 - 2 * wide], 1)
    if kind == 4:
        tube = 2 * np.pi * share
        return np.concatenate([ring * (0.75 + 0.25 * np.cos(tube))[:, None], 0.25 * np.sin(tube)[:, None]], 1)
    upper = np.where(share < 0.5, -0.5, 0.5)[:, None] * np.array([0, 0, 1.0])
    return np.asarray(0.5 * ball + upper)


# --- orders ----------------------------------------------------------------------------------------------------------

#: Columns of an order, what may become of it, and the trades, each of which has rules of its own.
COLUMNS, FATES, TRADES = 18, 5, 4


def orders(rng: Random, count: int) -> tuple[Array, Array]:
    """Rows of a table: three columns tell the trade, some are amounts with a long tail; and what becomes of each."""
    fixed = np.random.default_rng(91)
    centres = fixed.normal(0, 2.0, (TRADES, 3))
    rules = fixed.normal(0, 1, (TRADES, COLUMNS - 3, FATES))
    drawn = 2 * count
    trades = rng.integers(0, TRADES, drawn)
    rows = rng.standard_normal((drawn, COLUMNS))
    rows[:, :3] = centres[trades] + 0.5 * rows[:, :3]
    scores = np.einsum("nc,ncf->nf", rows[:, 3:], rules[trades])
    best = np.sort(scores, 1)
    clear = np.argsort(best[:, -2] - best[:, -1])[:count]  # the other half is left out: nobody could tell
    clear = rng.permutation(clear)
    rows[:, 14:] = np.sign(rows[:, 14:]) * np.expm1(0.6 * np.abs(rows[:, 14:]))
    return rows[clear].clip(-4, 4).astype(np.float32), scores[clear].argmax(1).astype(np.int64)


# --- signatures ------------------------------------------------------------------------------------------------------

#: Side of a picture, and people who sign.
SHEET, PEOPLE = 28, 24


def signatures(rng: Random, count: int) -> tuple[Array, Array]:
    """Pairs of pictures of a signature, one above the other, and whether one hand wrote both."""
    fixed = np.random.default_rng(92)
    hands = fixed.uniform(5, SHEET - 5, (PEOPLE, 4, 2, 2))
    same = rng.integers(0, 2, count)
    first = rng.integers(0, PEOPLE, count)
    second = np.where(same == 1, first, (first + rng.integers(1, PEOPLE, count)) % PEOPLE)
    sheets = np.stack([_written(rng, hands[first]), _written(rng, hands[second])], 1)
    return sheets, same.astype(np.int64)


def _written(rng: Random, strokes: Array) -> Array:
    """Grey pictures of strokes, a little turned, moved and stretched, on paper that is not quite even."""
    count, middle = len(strokes), SHEET / 2 - 0.5
    turn, size = rng.normal(0, 0.1, count), np.exp(rng.normal(0, 0.07, count))
    turned = np.stack([np.stack([np.cos(turn), -np.sin(turn)], 1), np.stack([np.sin(turn), np.cos(turn)], 1)], 1)
    ends = (strokes - middle) @ (turned * size[:, None, None])[:, None] + middle
    ends = ends + rng.normal(0, 0.8, (count, 1, 1, 2)) + rng.normal(0, 0.3, ends.shape)
    y, x = np.mgrid[0:SHEET, 0:SHEET].astype(np.float32)
    width = rng.uniform(0.9, 1.5, (count, 1, 1))
    ink = np.zeros((count, SHEET, SHEET))
    for (ax, ay), (bx, by) in ends.transpose(1, 2, 3, 0)[..., None, None]:
        dx, dy = bx - ax, by - ay
        share = (((x - ax) * dx + (y - ay) * dy) / np.maximum(dx * dx + dy * dy, 1)).clip(0, 1)
        squares = (x - ax - share * dx) ** 2 + (y - ay - share * dy) ** 2
        ink = np.maximum(ink, np.exp(-squares / (2 * width**2)))
    paper = rng.uniform(170, 240, (count, 1, 1)) + rng.uniform(-1, 1, (count, 1, 1)) * (y - middle)
    found = paper - rng.uniform(90, 160, (count, 1, 1)) * ink + rng.normal(0, 6, ink.shape)
    return np.asarray(found.round().clip(0, 255).astype(np.uint8))


# --- talks -----------------------------------------------------------------------------------------------------------

#: Words in a talk, words that there are, and tongues: in each, another word follows each word.
TALK, WORDS, TONGUES = 20, 24, 5


def talks(rng: Random, count: int) -> tuple[Array, Array]:
    """Words of talks in one of some tongues, with slips of the tongue, and the word that should follow each."""
    fixed = np.random.default_rng(93)
    follows = np.stack([np.roll(order, 1)[np.argsort(order)] for order in fixed.permuted(_numbers(), axis=1)])
    tongues = rng.integers(0, TONGUES, count)
    words = np.zeros((count, TALK), np.int64)
    words[:, 0] = rng.integers(0, WORDS, count)
    for step in range(1, TALK):
        slips = rng.random(count) < 0.12
        words[:, step] = np.where(slips, rng.integers(0, WORDS, count), follows[tongues, words[:, step - 1]])
    return words, follows[tongues[:, None], words]


def _numbers() -> Array:
    return np.tile(np.arange(WORDS), (TONGUES, 1))


def last_words(rng: Random, count: int) -> tuple[Array, Array]:
    """The same with the word that follows the last one."""
    words, following = talks(rng, count)
    return words, following[:, -1]
