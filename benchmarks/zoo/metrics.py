"""Answers of the networks, and the task metrics that quantmedic is given where top-1 would not do."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .pictures import THINGS
from .signals import TOPICS

Array = NDArray[Any]


def class_map(scores: Array) -> Array:
    """The class of each pixel; -1 for what is not a number."""
    return np.where(np.isfinite(scores).all(1), scores.argmax(1), -1)


def pixels_right(found: Array, wanted: Array) -> Array:
    return np.asarray((found == wanted).mean((1, 2)))


def pixels_mapped(outputs, labels):
    """Share of the pixels with the right class."""
    return pixels_right(class_map(outputs["kinds"]), labels)


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


def tail_top1(outputs, labels):
    """Whether the largest of the last ten columns is the label's; the columns before are boxes."""
    scores = next(iter(outputs.values()))[:, -10:]
    return (np.where(np.isfinite(scores).all(1), scores.argmax(1), -1) == labels).astype(np.float64)


def pitch_accuracy(outputs, labels):
    """Share of inner frames within 50 cents of the tone that was synthesized."""
    cents = 1200 * np.abs(np.log2(np.maximum(outputs["pitch"], 1e-6) / labels[:, None]))
    return (cents[:, 3:-3] < 50).mean(axis=1)


def things_found(outputs, labels):
    """F-measure of the things found in each scene, with the right class and at least half of their box."""
    return f_measure(detections(outputs["found"]), labels)


def characters_read(outputs, labels):
    """One minus the edit distance per character."""
    return 1 - character_errors(read_digits(outputs["scores"]), labels) / (labels >= 0).sum(1)


def topic_found(outputs, labels):
    """Whether the topic's direction is the nearest to the embedding."""
    return (nearest_topic(outputs["embedding"]) == labels).astype(np.float64)


for metric in (tail_top1, pitch_accuracy, things_found, characters_read, topic_found, pixels_mapped):
    metric.higher_is_better = True
