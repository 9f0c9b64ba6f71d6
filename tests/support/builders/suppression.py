"""Suppression by its definition, in plain loops."""

import numpy as np


def loop(boxes, scores, classes, overlap, most):
    """Places of the boxes that stay: every box in order, against every one that stays."""
    kept = []
    for i in np.argsort(-scores, kind="stable"):
        if not any(classes[i] == classes[k] and intersection_over_union(boxes[i], boxes[k]) > overlap for k in kept):
            kept.append(int(i))
    return kept[:most]


def intersection_over_union(a, b):
    """Of two boxes given by corners."""
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    shared = max(width, 0) * max(height, 0)
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - shared
    return shared / union if union > 0 else 0.0
