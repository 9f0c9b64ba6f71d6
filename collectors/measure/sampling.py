"""How many samples run at a time, and on which of them all tensors are measured, where that is not every sample."""

import math
from itertools import pairwise

import numpy as np

from quantmedic.collectors.data.batches import Batch, Part
from quantmedic.collectors.measure.models import Models
from quantmedic.collectors.measure.plan import Plan
from quantmedic.engine.case.statistics import EXTREME_SAMPLES

#: One of so many samples is measured: the others, which pass as in deployment, take most of the time then.
MAX_SHARE = 32
#: Parts of the samples that are not measured: each can be read by another shard, and is a pass over the data.
OTHER_PARTS = 7
#: Bytes that the tensors of one batch should take: they stay in the last-level cache until they are measured.
BATCH_BYTES = 16 << 20
#: The same on another device, which has no such cache, and is kept busy by large batches only.
DEVICE_BATCH_BYTES = 1 << 30
MAX_BATCH = 32
#: Samples of a batch of which tensors are not shown: more gain nothing.
MAX_PASSING = 8
#: Values of a tensor that take about as long as calling its operator and its statistics.
WORTHWHILE_VALUES = 4096


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


def batch_size_for(models: Models) -> int | None:
    """Samples per run: as many as fit the cache, or keep a device busy.

    One where a grid computed at run time would depend on the batch.

    None where the size of a tensor depends on the data: then the first sample tells; see ``batch_size_after``.
    """
    if _depends_on_batches(models):
        return 1
    shapes = [models.shapes.get(pair.twin) for pair in models.pairs]
    known = [
        math.prod(size or 1 for size in shape[1:]) for shape in shapes if shape is not None and None not in shape[1:]
    ]
    room = DEVICE_BATCH_BYTES if models.measured_on_device else BATCH_BYTES
    return _batch_of(sum(known), len(known), room) if len(known) == len(shapes) else None


def batch_size_after(first: Batch, plan: Plan) -> int:
    """Samples per run by the tensors that the first samples made."""
    return _batch_of(sum(plan.elements) // first.samples, len(plan.elements), BATCH_BYTES)


def passing_size(models: Models, plan: Plan, size: int) -> int:
    """Samples per run where tensors are not shown, of which ``size`` are measured together.

    As many as hide what is around a run, and as have no more in the largest tensor and the one beside it, in float32,
    than in all tensors where these are shown.
    """
    if _depends_on_batches(models):
        return size
    room = 5 * sum(plan.elements) // (8 * max(plan.elements))
    return size * max(min(room, MAX_PASSING // size), 1)


def _depends_on_batches(models: Models) -> bool:
    """A grid is computed at run time, of all samples of a batch."""
    taps = [pair.tap.quantizer for pair in models.pairs]
    return any(quantizer is not None and quantizer.dynamic for quantizer in taps)


def _batch_of(elements: int, tensors: int, room: int) -> int:
    """Samples per run that fill a room, by the elements of a sample: four bytes of each float value, one of its code.

    Tensors so small that most of the time goes into what is around them come in as many samples as make them worth it.
    """
    elements = max(elements, 1)
    return int(np.clip(max(room // (5 * elements), WORTHWHILE_VALUES * tensors // elements), 1, MAX_BATCH))
