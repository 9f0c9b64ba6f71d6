"""Pictures that are composed from a seed, and what is on them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Random = np.random.Generator

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
    return _bytes(found), truth


STRIP = (28, 84)
#: Digits of a strip at most; shorter rows of labels end in -1.
DIGITS = 5
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
    return _grainy(rng, found, 8, 50), truth


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


def _grainy(rng: Random, found: Array, low: float, high: float) -> Array:
    """Pictures as bytes, with grain that is drawn for each of them."""
    found += rng.uniform(low, high, (len(found), *[1] * (found.ndim - 1))) * rng.standard_normal(found.shape)
    return _bytes(found)


def _bytes(found: Array) -> Array:
    return np.asarray(found.round().clip(0, 255).astype(np.uint8))


def noisy(rng: Random, images: Array) -> Array:
    """The same images, grainy."""
    deviation = rng.uniform(10, 50, (len(images), 1, 1, 1))
    return _bytes(images + deviation * rng.standard_normal(images.shape))


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
    return _grainy(rng, pictures, 3, 15), classes[:, ::2, ::2]


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
    return _grainy(rng, pictures, 3, 14), kinds.astype(np.int64)


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
    return _grainy(rng, pictures, 5, 25)[:, None], kinds.astype(np.int64)


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
    return _bytes(low), (pictures.clip(0, 255) / 255).astype(np.float32)


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
    return _bytes(found)


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


#: Side of a picture, and fabrics: each is woven of three waves with colours of their own.
FABRIC, FABRICS = 24, 8


def fabrics(rng: Random, count: int) -> tuple[Array, Array]:
    """Colour pictures of cloth with random phases, light and dirt, and which cloth it is."""
    fixed = np.random.default_rng(103)
    angles, paces = fixed.uniform(0, np.pi, (4, 3)), fixed.uniform(0.9, 2.0, (4, 3))
    colours = fixed.normal(0, 1, (FABRICS, 3, 3))
    kinds = rng.integers(0, FABRICS, count)
    y, x = np.mgrid[0:FABRIC, 0:FABRIC]
    angle = angles[kinds % 4] + rng.normal(0, 0.06, (count, 3))
    pace = paces[kinds % 4] * np.exp(rng.normal(0, 0.05, (count, 3)))
    phase = rng.uniform(0, 2 * np.pi, (count, 3))
    down, across = (pace * f(angle) for f in (np.sin, np.cos))
    waves = np.sin(down[..., None, None] * y + across[..., None, None] * x + phase[..., None, None])
    woven = np.einsum("nwc,nwyx->ncyx", colours[kinds], waves)
    light = rng.uniform(5, 15, (count, 1, 1, 1))
    ground = rng.uniform(90, 165, (count, 1, 1, 1)) + rng.normal(0, 15, (count, 3, 1, 1))
    found = ground + light * woven + rng.normal(0, 40, woven.shape)
    return _bytes(found), kinds.astype(np.int64)


#: Side of a picture of a badge, and badges: a triangle, a square or a disc, with a bar or a ring on it.
BADGE, BADGES = 32, 6


#: Side of a picture of a harbour, and kinds of things on the water: buoy, boat, raft.
HARBOUR, CRAFTS = 48, 3


#: Side of a picture of a flower, and flowers: three, five or eight petals around a yellow or a violet middle.
FLOWER, FLOWERS = 32, 6


#: Side of a picture of a slide, and kinds of things on it: cell with a nucleus, ring, rod.
SLIDE, CELLS = 48, 3


def slides(rng: Random, count: int) -> tuple[Array, Array]:
    """Colour pictures through a microscope: one to three stained things before a pale ground, and what is where."""
    y, x = np.mgrid[0:SLIDE, 0:SLIDE].astype(np.float32)
    found = np.zeros((count, 3, SLIDE, SLIDE), np.float32)
    truth = np.full((count, THINGS, 5), -1, np.float32)
    stains = np.array([[185, 120, 180], [200, 95, 120], [95, 85, 165]], np.float32)
    for picture, rows in zip(found, truth, strict=True):
        ground = np.array([236, 214, 228]) * rng.uniform(0.88, 1.04) + rng.normal(0, 4, 3)
        lit = 1 - rng.uniform(0, 0.12) * ((x - 24) ** 2 + (y - 24) ** 2) / 1152
        picture += ground[:, None, None] * lit
        for row, place in zip(rows, rng.permutation(4)[: rng.integers(1, THINGS + 1)], strict=False):
            kind, half = int(rng.integers(CELLS)), rng.uniform(4, 10)
            mx, my = (24 * part + rng.uniform(10.5, 13.5) for part in (place % 2, place // 2))
            wide, high = half * np.array([[1, rng.uniform(0.8, 1)], [1, 1], rng.choice([[1, 0.4], [0.4, 1]])][kind])
            far = np.hypot((x - mx) / wide, (y - my) / high)
            body = (far < 1) & ((far > 0.55) | (kind != 1))
            dye = stains[kind] * rng.uniform(0.85, 1.15) + rng.normal(0, 8, 3)
            picture[:, body] += 0.85 * (dye[:, None] - picture[:, body])
            if kind == 0:
                picture[:, far < 0.4] = np.array([[90], [45], [115]]) * rng.uniform(0.8, 1.2)
            row[:] = kind, *(np.array([mx - wide, my - high, mx + wide, my + high]) / SLIDE).clip(0, 1)
    return _grainy(rng, found, 2, 7), truth


#: Side of a picture of a road sign, and signs: four plates, each with one of three marks.
SIGN, SIGNS = 32, 12


def signs(rng: Random, count: int) -> tuple[Array, Array]:
    """Colour pictures of a road sign before a street, in any light and a little askew, and which one it is."""
    y, x = np.mgrid[0:SIGN, 0:SIGN].astype(np.float32)
    kinds = rng.integers(0, SIGNS, count)
    mx, my, turn, half = (
        rng.uniform(low, high, (count, 1, 1)) for low, high in ((13, 19), (13, 19), (-0.3, 0.3), (5, 12))
    )
    across = (np.cos(turn) * (x - mx) + np.sin(turn) * (y - my)) / half
    down = (np.cos(turn) * (y - my) - np.sin(turn) * (x - mx)) / half
    far = [
        np.maximum(1.1 * np.abs(across) - 0.55 * down + 0.45, down + 0.2),
        np.hypot(across, down),
        np.maximum(np.abs(across), np.abs(down)) * 1.15,
        np.maximum(np.maximum(np.abs(across), np.abs(down)), (np.abs(across) + np.abs(down)) / 1.35),
    ]
    marks = [
        (np.abs(across) < 0.45) & (np.abs(down) < 0.16),
        (np.abs(across) < 0.16) & (np.abs(down) < 0.45),
        np.hypot(across, down) < 0.3,
    ]
    plate, mark = kinds // 3, kinds % 3
    edge, inside = (np.choose(plate[:, None, None], far) < size for size in (1, 0.78))
    rims = np.array([[200, 40, 40], [205, 35, 45], [245, 240, 235], [235, 235, 230]], np.float32)
    fills = np.array([[240, 235, 225], [235, 235, 235], [40, 80, 185], [190, 35, 40]], np.float32)
    inks = np.array([[30, 30, 35], [25, 25, 30], [240, 240, 240], [240, 235, 230]], np.float32)
    street = np.array([110, 115, 110]) * rng.uniform(0.5, 1.4, (count, 1)) + rng.normal(0, 12, (count, 3))
    found = np.broadcast_to(street[..., None, None], (count, 3, SIGN, SIGN)) + 8.0 * np.sin(x * 0.4 + 6 * mx)[:, None]
    layers = ((edge, rims), (inside, fills), (inside & np.choose(mark[:, None, None], marks), inks))
    for there, paint in layers:
        found = np.where(there[:, None], paint[plate][..., None, None], found)
    light = rng.uniform(0.3, 1.1, (count, 1, 1, 1)) * np.array([1.05, 0.9, 0.6]).reshape(1, 3, 1, 1)
    found = found * light + rng.uniform(8, 60, (count, 1, 1, 1)) * rng.standard_normal(found.shape)
    return found.round().clip(0, 255).astype(np.uint8), kinds.astype(np.int64)


#: Side of a picture of an orchard, and kinds of fruit before the leaves: apple, pear, plum.
ORCHARD, FRUITS = 48, 3


def orchards(rng: Random, count: int) -> tuple[Array, Array]:
    """Colour pictures of leaves in patches of sun, one to three fruits before them, and what is where."""
    y, x = np.mgrid[0:ORCHARD, 0:ORCHARD].astype(np.float32)
    found = np.zeros((count, 3, ORCHARD, ORCHARD), np.float32)
    truth = np.full((count, THINGS, 5), -1, np.float32)
    skins = np.array([[200, 45, 40], [205, 190, 70], [95, 50, 120]], np.float32)
    for picture, rows in zip(found, truth, strict=True):
        leaves = np.array([62, 105, 45]) * rng.uniform(0.5, 1.3) + rng.normal(0, 6, 3)
        sun = np.cos(x * rng.uniform(0.1, 0.5) + rng.uniform(0, 6.28)) * np.cos(y * rng.uniform(0.1, 0.5))
        picture += leaves[:, None, None] + rng.uniform(8, 40) * np.array([1.2, 1.2, 0.6])[:, None, None] * sun
        for row, place in zip(rows, rng.permutation(4)[: rng.integers(1, THINGS + 1)], strict=False):
            kind, half = int(rng.integers(FRUITS)), rng.uniform(3.5, 9)
            mx, my = (24 * part + rng.uniform(10.5, 13.5) for part in (place % 2, place // 2))
            wide, high = half * np.array([[1, rng.uniform(0.85, 1)], [0.72, 1], [0.85, 0.85]][kind])
            across, down = (x - mx) / wide, (y - my) / high
            far = np.hypot(across * (1 + (0.5 * (down < 0) if kind == 1 else 0)), down)
            skin = skins[kind] * rng.uniform(0.6, 1.15) + rng.normal(0, 26, 3)
            shade = 1.1 - 0.45 * np.clip(0.5 * (across + down) + 0.5, 0, 1)
            picture[:, far < 1] = (skin[:, None, None] * shade)[:, far < 1]
            row[:] = kind, *(np.array([mx - wide, my - high, mx + wide, my + high]) / ORCHARD).clip(0, 1)
    found += rng.uniform(10, 62, (count, 1, 1, 1)) * rng.standard_normal(found.shape)
    return found.round().clip(0, 255).astype(np.uint8), truth


#: Side of a picture of a kite, and kites: three outlines, each plain, with a cross or in two halves.
KITE, KITES = 32, 9


def kites(rng: Random, count: int) -> tuple[Array, Array]:
    """Colour pictures of a kite before a sky that pales downwards, and which one it is."""
    y, x = np.mgrid[0:KITE, 0:KITE].astype(np.float32)
    kinds = rng.integers(0, KITES, count)
    mx, my, turn, half = (
        rng.uniform(low, high, (count, 1, 1)) for low, high in ((13, 19), (13, 19), (-0.5, 0.5), (7, 12))
    )
    across = (np.cos(turn) * (x - mx) + np.sin(turn) * (y - my)) / half
    down = (np.cos(turn) * (y - my) - np.sin(turn) * (x - mx)) / half
    outlines = [
        np.abs(across) * 1.3 + np.abs(down + 0.15 * np.abs(across)),
        np.maximum(1.2 * np.abs(across) - 0.6 * down + 0.35, down + 0.25),
        np.maximum(np.abs(across), 0.5 * np.abs(across) + 0.87 * np.abs(down)),
    ]
    inside = np.choose(kinds[:, None, None] // 3, outlines) < 1
    mark = kinds[:, None, None] % 3
    bars = (np.minimum(np.abs(across), np.abs(down)) < 0.13) & (mark == 1)
    other = bars | ((across > 0) & (mark == 2))
    cloth, patch = rng.uniform(60, 250, (2, count, 3, 1, 1))
    patch = np.where(np.abs(patch - cloth).mean(1, keepdims=True) < 60, 255 - cloth, patch)
    sky = np.array([95, 150, 215]) * rng.uniform(0.75, 1.1, (count, 1)) + rng.normal(0, 8, (count, 3))
    pale = rng.uniform(0.3, 1.2, (count, 1, 1)) * y + 9 * np.sin(x * 0.3 + mx) * np.sin(y * 0.25 + my)
    found = sky[..., None, None] + pale[:, None]
    found = np.where(inside[:, None], np.where(other[:, None], patch, cloth), found)
    found += rng.uniform(6, 38, (count, 1, 1, 1)) * rng.standard_normal(found.shape)
    return found.round().clip(0, 255).astype(np.uint8), kinds.astype(np.int64)


#: Side of a tile of land seen from above, and uses of land: tilled, vines, orchard, wood, houses, road, river, lake.
ACRE, ACRES = 32, 8


def acres(rng: Random, count: int) -> tuple[Array, Array]:
    """Colour tiles of land from above, turned and lit in any way, and what the land is used for."""
    y, x = np.mgrid[0:ACRE, 0:ACRE].astype(np.float32)
    kinds = rng.integers(0, ACRES, count)
    found = np.zeros((count, 3, ACRE, ACRE), np.float32)
    for tile, kind in zip(found, kinds, strict=True):
        turn, pace, phase = rng.uniform(0, np.pi), rng.uniform(0.85, 1.25), rng.uniform(0, 6.28)
        along, across = (np.cos(turn) * x + np.sin(turn) * y), (np.cos(turn) * y - np.sin(turn) * x)
        middle = rng.uniform(11, 20) * (np.cos(turn) - np.sin(turn)) + 3 * np.sin(
            along * rng.uniform(0.15, 0.3) + phase
        )
        cloudy = np.sin(x * rng.uniform(0.1, 0.3) + phase) * np.sin(y * rng.uniform(0.1, 0.3) + 2 * phase)
        rows = np.sin(pace * along + phase)
        dots = rows * np.sin(pace * across + 2 * phase)
        straight = np.abs(across - rng.uniform(11, 20) * (np.cos(turn) - np.sin(turn)))
        centre = rng.uniform(12, 20, 2)
        far = np.hypot(x - centre[0], (y - centre[1]) * rng.uniform(0.8, 1.3)) + 1.5 * cloudy
        green, soil = np.array([85, 120, 65]) + rng.normal(0, 14, 3), np.array([140, 115, 85]) + rng.normal(0, 14, 3)
        water = np.array([60, 85, 110]) + rng.normal(0, 12, 3)
        shares = {
            0: (soil, green, 0.25 * (rng.uniform(0.3, 0.5) * pace * across > 4) + 0.1 * cloudy),
            1: (soil, green, 0.5 + 0.5 * rows),
            2: (soil, green, np.clip(1.6 * dots, 0, 1)),
            3: (green * 0.55, green, np.clip(0.3 + 0.35 * rng.standard_normal(x.shape), 0, 1)),
            4: (green, np.array([175, 150, 140]) + rng.normal(0, 12, 3), (dots > 0.35) * rng.uniform(0.6, 1)),
            5: (green, np.array([150, 150, 150]) + rng.normal(0, 10, 3), (straight < rng.uniform(1.2, 2.6)) * 1.0),
            6: (green, water, (np.abs(across - middle) < rng.uniform(1.6, 4)) * 1.0),
            7: (green, water, (far < rng.uniform(5, 9)) * 1.0),
        }
        ground, upon, share = shares[int(kind)]
        tile += (ground + share[..., None] * (upon - ground)).transpose(2, 0, 1) + 7 * cloudy
    light = rng.uniform(0.5, 1.25, (count, 1, 1, 1)) * (1 + rng.normal(0, 0.05, (count, 3, 1, 1)))
    found = found * light + rng.uniform(10, 50, (count, 1, 1, 1)) * rng.standard_normal(found.shape)
    return found.round().clip(0, 255).astype(np.uint8), kinds.astype(np.int64)


#: Side of a picture of a reef, and kinds of animals before it: fish, star, jelly.
REEF, ANIMALS = 48, 3


def reefs(rng: Random, count: int) -> tuple[Array, Array]:
    """Colour pictures under water, one to three animals before the reef, and what is where."""
    y, x = np.mgrid[0:REEF, 0:REEF].astype(np.float32)
    found = np.zeros((count, 3, REEF, REEF), np.float32)
    truth = np.full((count, THINGS, 5), -1, np.float32)
    skins = np.array([[215, 150, 60], [190, 70, 85], [150, 165, 205]], np.float32)
    for picture, rows in zip(found, truth, strict=True):
        water = np.array([35, 85, 105]) * rng.uniform(0.6, 1.3) + rng.normal(0, 6, 3)
        stone = np.sin(x * rng.uniform(0.2, 0.6) + 2 * np.sin(y * rng.uniform(0.1, 0.4)) + rng.uniform(0, 6.28))
        picture += water[:, None, None] + rng.uniform(8, 40) * np.array([0.7, 1, 0.8])[:, None, None] * stone
        for row, place in zip(rows, rng.permutation(4)[: rng.integers(1, THINGS + 1)], strict=False):
            kind, half = int(rng.integers(ANIMALS)), rng.uniform(3.5, 8)
            mx, my = (24 * part + rng.uniform(10.5, 13.5) for part in (place % 2, place // 2))
            wide, high = half * np.array([[1, rng.uniform(0.5, 0.65)], [1, 1], [0.8, 1]][kind])
            across, down = (x - mx) / wide * rng.choice([-1, 1]), (y - my) / high
            angle = np.arctan2(down, across) * 2.5 + rng.uniform(0, 6.28)
            shapes = (
                np.minimum(
                    np.hypot((across + 0.3) / 0.7, down),
                    np.where(across > 0, np.maximum(1.4 * np.abs(down) - across + 1, across), 2),
                ),
                np.hypot(across, down) / (0.6 + 0.4 * np.abs(np.cos(angle))),
                np.where(down < 0, np.hypot(across, down), np.maximum(np.abs(across), down) + 0.3 * np.cos(9 * across)),
            )
            skin = skins[kind] * rng.uniform(0.45, 1.0) + rng.normal(0, 45, 3)
            picture[:, shapes[kind] < 1] = (skin[:, None, None] * (1.05 - 0.25 * np.abs(down)))[:, shapes[kind] < 1]
            row[:] = kind, *(np.array([mx - wide, my - high, mx + wide, my + high]) / REEF).clip(0, 1)
    found += rng.uniform(15, 75, (count, 1, 1, 1)) * rng.standard_normal(found.shape)
    return found.round().clip(0, 255).astype(np.uint8), truth


#: Side of a picture of a moth, and moths: two outlines of wings, each with bands, eyes, rims or spots.
MOTH, MOTHS = 32, 8


def moths(rng: Random, count: int) -> tuple[Array, Array]:
    """Colour pictures of a moth on bark, turned and lit in any way, and which one it is."""
    y, x = np.mgrid[0:MOTH, 0:MOTH].astype(np.float32)
    kinds = rng.integers(0, MOTHS, count)
    mx, my, turn, half = (
        rng.uniform(low, high, (count, 1, 1)) for low, high in ((13, 19), (13, 19), (-0.6, 0.6), (8, 13))
    )
    across = np.abs((np.cos(turn) * (x - mx) + np.sin(turn) * (y - my)) / half)
    down = (np.cos(turn) * (y - my) - np.sin(turn) * (x - mx)) / half
    outlines = [
        np.hypot(across * 1.05, down + 0.35 * across - 0.1) * 1.15,
        np.maximum(across - 0.25 * down, 1.5 * down),
    ]
    inside = (np.choose(kinds[:, None, None] // 4, outlines) < 0.85) & (down > across * 0.9 - 1.2) & (across < 1)
    patterns = [
        np.sin(9 * down + 4 * across) > 0.2,
        np.hypot(across - 0.5, down + 0.05) < 0.24,
        np.choose(kinds[:, None, None] // 4, outlines) > 0.6,
        np.sin(11 * across) * np.sin(11 * down) > 0.35,
    ]
    marked = np.choose(kinds[:, None, None] % 4, patterns) & inside
    wing = np.array([165, 140, 110]) * rng.uniform(0.6, 1.4, (count, 1)) + rng.normal(0, 25, (count, 3))
    mark = wing + rng.choice([-1, 1], (count, 1)) * rng.uniform(35, 80, (count, 1)) + rng.normal(0, 18, (count, 3))
    bark = np.array([105, 92, 80]) * rng.uniform(0.6, 1.4, (count, 1)) + rng.normal(0, 10, (count, 3))
    grain = 12 * np.sin(x * 0.9 + 5 * np.sin(y * 0.12 + mx)) * rng.uniform(0.3, 1.5, (count, 1, 1))
    found = np.where(inside[:, None], wing[..., None, None], bark[..., None, None] + grain[:, None])
    found = np.where(marked[:, None], mark[..., None, None], found)
    found = np.where((across < 0.09)[:, None] & (np.abs(down) < 0.6)[:, None], 0.5 * wing[..., None, None], found)
    found += rng.uniform(10, 46, (count, 1, 1, 1)) * rng.standard_normal(found.shape)
    return found.round().clip(0, 255).astype(np.uint8), kinds.astype(np.int64)
