"""Task metrics that quantmedic is given where top-1 of the first output would not do."""

import numpy as np


def tail_top1(outputs, labels):
    """Whether the largest of the last ten columns is the label's; the columns before are boxes."""
    scores = next(iter(outputs.values()))[:, -10:]
    return (np.where(np.isfinite(scores).all(1), scores.argmax(1), -1) == labels).astype(np.float64)


def pitch_accuracy(outputs, labels):
    """Share of inner frames within 50 cents of the tone that was synthesized."""
    cents = 1200 * np.abs(np.log2(np.maximum(outputs["pitch"], 1e-6) / labels[:, None]))
    return (cents[:, 3:-3] < 50).mean(axis=1)


for metric in (tail_top1, pitch_accuracy):
    metric.higher_is_better = True
