"""Whether the range of an activation moved as a remedy would move it; any calibration moves ranges a little."""

from quantmedic.engine.case.facts import TensorFacts

#: Scales and ends of ranges that differ by less, relative to the wider range, are the same setting.
SAME = 0.01


def widens(before: TensorFacts, after: TensorFacts) -> bool:
    """The range reaches further on one side, and no less far on the other."""
    old, new = _range_of(before), _range_of(after)
    if old is None or new is None:
        return False
    slack = SAME * (old[1] - old[0])
    below, above = old[0] - new[0], new[1] - old[1]
    return max(below, above) > slack and min(below, above) >= -slack


def nears_best(before: TensorFacts, after: TensorFacts) -> bool:
    """The range came nearer to the one that was predicted best before."""
    old, new = _range_of(before), _range_of(after)
    low, high = before.data.predicted_best_low, before.data.predicted_best_high
    if old is None or new is None or low is None or high is None:
        return False
    was, now = (abs(ends[0] - low) + abs(ends[1] - high) for ends in (old, new))
    return was - now > SAME * (old[1] - old[0])


def _range_of(tensor: TensorFacts) -> tuple[float, float] | None:
    quantizer = tensor.quantizer
    return None if quantizer.low is None or quantizer.high is None else (quantizer.low, quantizer.high)
