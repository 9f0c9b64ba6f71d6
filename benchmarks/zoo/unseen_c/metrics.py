"""Answers of the networks of set C, and the task metrics that quantmedic is given for them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

#: A joint within so many cells of the heatmap is found.
NEAR = 2.0
#: Share of the pixels that have to be right, and that have to be those of the float model.
MAPPED, SAME = 0.9, 0.97


def peaks(heat: Array) -> Array:
    """From heatmaps ``[N, J, H, W]`` to the middle of the hottest cell, (x, y) of each; NaN where one is no number."""
    flat = heat.reshape(*heat.shape[:2], -1)
    best = np.nan_to_num(flat, nan=-1.0).argmax(2)
    found = np.stack([best % heat.shape[3], best // heat.shape[3]], 2) + 0.5
    return np.where(np.isfinite(flat).all(2)[..., None], found, np.nan)


def joints_hit(found: Array, wanted: Array) -> Array:
    """Share of the joints of each picture that are near enough."""
    return np.asarray((np.linalg.norm(found - wanted, axis=2) <= NEAR).mean(1))


def all_joints(found: Array, wanted: Array) -> Array:
    return joints_hit(found, wanted) == 1


def class_map(scores: Array) -> Array:
    """The class of each pixel; -1 for what is not a number."""
    return np.where(np.isfinite(scores).all(1), scores.argmax(1), -1)


def pixels_right(found: Array, wanted: Array) -> Array:
    return np.asarray((found == wanted).mean((1, 2)))


def well_mapped(found: Array, wanted: Array) -> Array:
    return pixels_right(found, wanted) >= MAPPED


def mapped_alike(found: Array, wanted: Array) -> Array:
    return pixels_right(found, wanted) >= SAME


def joints_found(outputs, labels):
    """Share of the joints within two cells of where they are."""
    return joints_hit(peaks(outputs["heat"]), labels)


def pixels_mapped(outputs, labels):
    """Share of the pixels with the right class."""
    return pixels_right(class_map(outputs["kinds"]), labels)


for metric in (joints_found, pixels_mapped):
    metric.higher_is_better = True
