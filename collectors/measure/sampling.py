"""On which samples all tensors are measured, and on which only the network's ends, where that is not every sample."""

from itertools import pairwise

from quantmedic.collectors.data.batches import Part
from quantmedic.engine.case.statistics import EXTREME_SAMPLES

#: One of so many samples is measured: the others, which pass as in deployment, take most of the time then.
MAX_SHARE = 32
#: Parts of the samples that are not measured: each can be read by another shard, and is a pass over the data.
OTHER_PARTS = 7


def share_of(samples: int, unit: int = 1) -> int:
    """One of how many samples of a data set of this size is measured; 1 is all of them.

    Args:
        samples: Samples of the data set.
        unit: Samples that stay together, for the model takes so many at a time.
    """
    units_needed = -(-EXTREME_SAMPLES // unit)
    return max(1, min(MAX_SHARE, samples // unit // units_needed))


def parts_of(share: int, seed: int, others: int) -> list[Part]:
    """The samples that are measured, one of ``share``, and the others, in so many parts if they are enough."""
    others = min(others, share - 1)
    bounds = [0, 1, *(1 + (share - 1) * i // others for i in range(1, others + 1))]
    return [Part(start, share, seed, width=stop - start) for start, stop in pairwise(bounds)]
