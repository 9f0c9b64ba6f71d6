"""Samples that are no pictures, composed from a seed: sounds, words, tables, sensors, fields, clouds, webs."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Random = np.random.Generator

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


#: Columns of an order, what may become of it, and the trades, each of which has rules of its own.
FIELDS, FATES, TRADES = 18, 5, 4


def orders(rng: Random, count: int) -> tuple[Array, Array]:
    """Rows of a table: three columns tell the trade, some are amounts with a long tail; and what becomes of each."""
    fixed = np.random.default_rng(91)
    centres = fixed.normal(0, 2.0, (TRADES, 3))
    rules = fixed.normal(0, 1, (TRADES, FIELDS - 3, FATES))
    drawn = 2 * count
    trades = rng.integers(0, TRADES, drawn)
    rows = rng.standard_normal((drawn, FIELDS))
    rows[:, :3] = centres[trades] + 0.5 * rows[:, :3]
    scores = np.einsum("nc,ncf->nf", rows[:, 3:], rules[trades])
    clear = _clear(rng, scores, count)
    rows[:, 14:] = np.sign(rows[:, 14:]) * np.expm1(0.6 * np.abs(rows[:, 14:]))
    return rows[clear].clip(-4, 4).astype(np.float32), scores[clear].argmax(1).astype(np.int64)


def _clear(rng: Random, scores: Array, count: int) -> Array:
    """So many rows, in any order, whose best score is farthest ahead of the next: of the others nobody could tell."""
    best = np.sort(scores, 1)
    return rng.permutation(np.argsort(best[:, -2] - best[:, -1])[:count])


#: Words in a talk, words that there are, and tongues: in each, another word follows each word.
TALK, SAYINGS, TONGUES = 20, 24, 5


def last_words(rng: Random, count: int) -> tuple[Array, Array]:
    """Words of talks in one of some tongues, with slips of the tongue, and the word that should follow the last one."""
    numbers = np.tile(np.arange(SAYINGS), (TONGUES, 1))
    orders_of_words = np.random.default_rng(93).permuted(numbers, axis=1)
    follows = np.stack([np.roll(order, 1)[np.argsort(order)] for order in orders_of_words])
    tongues = rng.integers(0, TONGUES, count)
    words = np.zeros((count, TALK), np.int64)
    words[:, 0] = rng.integers(0, SAYINGS, count)
    for step in range(1, TALK):
        slips = rng.random(count) < 0.12
        words[:, step] = np.where(slips, rng.integers(0, SAYINGS, count), follows[tongues, words[:, step - 1]])
    return words, follows[tongues, words[:, -1]]


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


#: Measured columns, columns that say yes for one of five each, and yields.
NUMBERS, CHOICES, OPTIONS, YIELDS = 10, 3, 5, 5


def groves(rng: Random, count: int) -> tuple[Array, Array]:
    """Rows of a table in their own units, measures before choices, and what came of each."""
    fixed = np.random.default_rng(101)
    ends, weights = fixed.normal(0, 0.7, (YIELDS, 3)), fixed.normal(0, 1, (CHOICES, OPTIONS, YIELDS))
    columns = np.stack([fixed.permutation(NUMBERS)[:3] for _ in range(YIELDS)])
    units = np.random.default_rng(102)
    means, spreads = units.normal(0, 0.8, NUMBERS), units.uniform(0.6, 1.8, NUMBERS)
    drawn = 2 * count
    numbers = rng.standard_normal((drawn, NUMBERS))
    choices = rng.integers(0, OPTIONS, (drawn, CHOICES))
    scores = 2 * np.stack([np.tanh(2 * (numbers[:, columns[y]] - ends[y])).prod(1) for y in range(YIELDS)], 1)
    scores = scores + sum(0.5 * weights[i, choices[:, i]] for i in range(CHOICES))
    clear = _clear(rng, scores, count)
    rows = np.concatenate([numbers * spreads + means, *np.eye(OPTIONS)[choices].transpose(1, 0, 2)], 1)
    return rows[clear].clip(-8, 8).astype(np.float32), scores[clear].argmax(1).astype(np.int64)


#: Columns of a row about a parcel, of which some are amounts with long tails, and ways on which it may go.
PARCEL, AMOUNTS, WAYS = 24, 6, 6


#: Hours that are told, gauges along the coast, and hours to come.
HOURS, GAUGES, AHEAD = 64, 4, 12


#: Times at which a star may be looked at, what is told of each (hour, brightness, doubt, whether it was), and stars.
LOOKS, TOLD, STARS = 40, 4, 6


#: Places of a trip that were recorded, one each five seconds, and ways to travel: foot, wheel, bus, car, tram, boat.
FIXES, TRAVELS = 36, 6


def trips(rng: Random, count: int) -> tuple[Array, Array]:
    """Speed, change of heading, change of speed and height of a traveller over three minutes, and how one travels."""
    ways, time = rng.integers(0, TRAVELS, count), np.arange(FIXES)
    usual = np.array([1.4, 4.6, 8.5, 12.5, 9.5, 5.0])[ways] * np.exp(rng.normal(0, 0.3, count))
    stops = np.array([26, 60, 14, 30, 12, 90])[ways]
    wait = np.array([2, 2, 5, 3, 4, 1])[ways]
    since = (time + rng.uniform(0, stops)[:, None]) % stops[:, None]
    moves = 1 / (1 + np.exp(np.clip(-2 * (since - wait[:, None]), -30, 30)))
    slow = np.array([0.1, 0.15, 0.22, 0.25, 0.08, 0.1])[ways][:, None]
    drift = rng.normal(0, 1, (count, FIXES)).cumsum(1) / np.sqrt(1 + time)
    speed = usual[:, None] * moves * np.clip(1 + slow * drift, 0.2, 2)
    bends = rng.random((count, FIXES)) < np.array([0.15, 0.1, 0.08, 0.1, 0.0, 0.02])[ways][:, None]
    sway = np.array([0.22, 0.16, 0.09, 0.08, 0.06, 0.12])[ways][:, None]
    turns = sway * rng.standard_normal((count, FIXES)) + bends * rng.normal(0, 0.8, (count, FIXES))
    hills = np.where(ways == TRAVELS - 1, 0.3, 0.5)[:, None]
    height = hills * (np.sin(0.12 * time + rng.uniform(0, 6.28, (count, 1))) + 0.3 * drift)
    speed += 0.4 * np.abs(rng.standard_normal(speed.shape))
    faster = np.diff(speed, axis=1, prepend=speed[:, :1])
    columns = (speed / 5, turns.clip(-0.9, 0.9) / 0.4, faster / 6, height / 0.5)
    return np.stack(columns, 2).astype(np.float32), ways.astype(np.int64)


#: Moments of a pen, what is told of each (way across, way down, pressure, lifted), and letters that it writes.
MOMENTS_OF_A_PEN, TOLD_OF_A_PEN, LETTERS = 32, 4, 8


def pens(rng: Random, count: int) -> tuple[Array, Array]:
    """Steps of a pen on a tablet that writes one of eight letters at any pace and slant, and the letter."""
    corners = np.random.default_rng(131).uniform(-1, 1, (LETTERS, 5, 2))
    corners[LETTERS // 2 :] = corners[: LETTERS // 2, [0, 1, 3, 2, 4]]
    kinds = rng.integers(0, LETTERS, count)
    at = corners[kinds] + rng.normal(0, 0.2, (count, 5, 2))
    slant, size = rng.uniform(-0.35, 0.35, count), np.exp(rng.normal(0, 0.2, count))
    at = np.stack([at[..., 0] + slant[:, None] * at[..., 1], at[..., 1]], 2) * size[:, None, None]
    pace = np.sort(rng.uniform(0, 4, (count, MOMENTS_OF_A_PEN)), 1)
    pace[:, 0], pace[:, -1] = 0, 4
    left = np.minimum(pace.astype(int), 3)
    part = (pace - left)[..., None]
    part = part * part * (3 - 2 * part)
    rows = np.arange(count)[:, None]
    path = (1 - part) * at[rows, left] + part * at[rows, left + 1]
    steps = np.diff(path, axis=1, prepend=path[:, :1]) + 0.05 * rng.standard_normal(path.shape)
    lifted = (left == rng.integers(1, 3, (count, 1))) & (kinds[:, None] % 2 == 1)
    pressure = rng.uniform(0.5, 1.1, (count, 1)) * (1 - 0.3 * np.hypot(*np.moveaxis(steps, 2, 0)))
    pressure = np.where(lifted, 0, pressure) + 0.04 * rng.standard_normal(pressure.shape)
    return np.stack([*np.moveaxis(4 * steps, 2, 0), pressure, lifted], 2).astype(np.float32), kinds.astype(np.int64)


#: Bands and frames of a recording of bells, how many bells hang there, and strokes at most; shorter rows end in -1.
BELL_BANDS, BELL_FRAMES, BELLS, STROKES = 24, 64, 8, 5


def bells(rng: Random, count: int) -> tuple[Array, Array]:
    """Logarithms of levels in bands while a few bells are struck, each with partials of its own; and which ones."""
    fixed = np.random.default_rng(141)
    partials = fixed.uniform(0, 1, (BELLS, BELL_BANDS)) ** 6
    lasting = fixed.uniform(2.5, 9, (BELLS, BELL_BANDS))
    time = np.arange(BELL_FRAMES)
    truth = np.full((count, STROKES), -1, np.int64)
    heard = rng.uniform(0.02, 0.12, (count, 1, 1)) * rng.exponential(1, (count, BELL_BANDS, BELL_FRAMES))
    for levels, told in zip(heard, truth, strict=True):
        size = int(rng.integers(3, STROKES + 1))
        told[:size] = rng.integers(0, BELLS, size)
        at = rng.uniform(1, BELL_FRAMES - 13 * size + 4)
        for bell in told[:size]:
            since = np.maximum(time - at, 0)
            fading = np.exp(-since / lasting[bell][:, None]) * (time >= at)
            levels += np.exp(rng.uniform(-1.6, 0.8)) * partials[bell][:, None] * fading
            at += rng.uniform(6.5, 12)
    tone = np.exp(rng.normal(0, 0.25, (count, BELL_BANDS, 1)))
    return np.log(heard * tone + 0.01)[:, :, None].astype(np.float32), truth


#: Times at which a kiln is read, steps of what was planned, columns of either, and how a firing may go.
READ, PLANNED, GAUGED, FIRINGS = 24, 8, 6, 6


def kilns(rng: Random, count: int) -> tuple[Array, Array]:
    """Readings of a kiln (hour, top, bottom, gas, draught, door), then the plan (hour, wanted heat); how it went."""
    kinds = rng.integers(0, FIRINGS, count)[:, None]
    hours = np.sort(rng.uniform(-1, 1, (count, READ)), 1)
    knots = np.linspace(-1, 1, PLANNED) + rng.normal(0, 0.04, (count, PLANNED))
    rising = np.cumsum(rng.exponential(0.5, (count, PLANNED)), 1)
    wanted = np.where(np.arange(PLANNED) < rng.integers(4, PLANNED, (count, 1)), rising, rising[:, 3:4] + 0.4) - 1.5
    plan = np.stack([np.interp(h, k, w) for h, k, w in zip(hours, knots, wanted, strict=True)])
    late = np.stack([np.interp(h - 0.32, k, w) for h, k, w in zip(hours, knots, wanted, strict=True)])
    since, side = rng.uniform(-0.6, 0.2, (count, 1)), rng.choice([-1, 1], (count, 1))
    size = rng.uniform(0.4, 1.0, (count, 1))
    near = np.exp(-np.square((hours - since) / 0.25))
    drift = size * np.clip(hours - since, 0, None)
    courses = [plan, late, plan + 1.3 * size * near, plan, plan, np.minimum(plan, plan.max(1, keepdims=True) - size)]
    heat = np.choose(kinds, courses)
    apart = np.where(kinds == 3, side * drift * 1.4, 0)
    slope = np.gradient(heat, axis=1) * 6
    door = (rng.random(hours.shape) < 0.06).astype(float)
    gas = 0.8 * slope + 0.5 * heat + np.where(kinds == 4, 1.6 * size * np.sin(9 * hours + 6 * side), 0)
    draught = 0.6 * gas + rng.normal(0, 0.5, (count, 1)) - 0.5 * door
    grain = rng.uniform(0.12, 0.4, (count, 1, 1))
    read = np.stack([hours, heat + apart / 2, heat - apart / 2 - 0.25 * door, gas, draught, 2 * door], 2)
    read[..., 1:5] += grain * rng.standard_normal((count, READ, 4))
    planned = np.zeros((count, PLANNED, GAUGED))
    planned[..., 0], planned[..., 1] = knots, wanted
    return np.concatenate([read, planned], 1).clip(-5, 5).astype(np.float32), kinds[:, 0].astype(np.int64)


#: Moments of a recording of a heart, leads, and rhythms: even, early, left out, fluttering, wide, raised.
MOMENTS_OF_A_HEART, LEADS, RHYTHMS = 128, 2, 6


def hearts(rng: Random, count: int) -> tuple[Array, Array]:
    """Two leads of a heart on a wandering ground (moments, leads), and how it beats."""
    kinds, time = rng.integers(0, RHYTHMS, count), np.arange(MOMENTS_OF_A_HEART)[:, None]
    found = np.zeros((count, MOMENTS_OF_A_HEART, LEADS))
    for leads, kind in zip(found, kinds, strict=True):
        pace, sizes = rng.uniform(15, 26), np.exp(rng.normal(0, 0.25, (3, LEADS))) * [[0.18], [1.5], [0.35]]
        jitter = 0.24 if kind == 3 else 0.035
        gaps = pace * np.exp(rng.normal(0, jitter, 12))
        odd = int(rng.integers(2, 5))
        if kind == 1:
            gaps[odd], gaps[odd + 1] = 0.58 * gaps[odd], 1.37 * gaps[odd + 1]
        if kind == 2:
            gaps[odd] *= 2
        at = np.cumsum(gaps) - gaps[0] - rng.uniform(0, pace)
        width = rng.uniform(1.8, 2.6) if kind == 4 else rng.uniform(0.9, 1.35)
        for beat in at:
            atrial, main, rest = (time - beat - shift for shift in (-4, 0, 6))
            leads += (kind != 3) * sizes[0] * np.exp(-np.square(atrial / 1.3))
            leads += sizes[1] * (
                np.exp(-np.square(main / width)) - 0.35 * np.exp(-np.square((main - 1.6 * width) / width))
            )
            leads += sizes[2] * np.exp(-np.square(rest / 2.4))
            leads += (kind == 5) * 0.4 * sizes[1] * np.exp(-np.square((rest + 2) / 2.6))
        leads += 0.3 * np.sin(time * rng.uniform(0.02, 0.09) + rng.uniform(0, 6.28, LEADS))
        leads += rng.uniform(0.06, 0.42) * rng.standard_normal(leads.shape)
    return found.clip(-4, 4).astype(np.float32), kinds.astype(np.int64)
