"""A task metric given by the user: pitch accuracy."""

import numpy as np


def pitch_accuracy(outputs, labels):
    """Share of inner frames within 50 cents of the tone that was synthesized."""
    cents = 1200 * np.abs(np.log2(np.maximum(outputs["pitch"], 1e-6) / labels[:, None]))
    return (cents[:, 3:-3] < 50).mean(axis=1)


pitch_accuracy.higher_is_better = True
