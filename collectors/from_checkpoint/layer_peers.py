"""How far each layer of a checkpoint is below those of its kind."""

import math
from collections.abc import Sequence

import numpy as np

from quantmedic.engine.case.facts import WeightFacts

#: Fewer layers have no usual error.
MIN_PEERS = 5
#: Deviation that is always taken for granted, in dB: layers of random weights agree to a hundredth.
LEAST_DEVIATION_DB = 0.1
#: Format, bits and granularity.
Kind = tuple[str | None, int | None, str | None]


def with_peers(facts: Sequence[WeightFacts]) -> list[WeightFacts]:
    """The facts with how far each layer is below those of its kind; unknown where there are fewer than 5."""
    kinds: dict[Kind, list[float]] = {}
    for weight in facts:
        if (sqnr := _finite_sqnr(weight)) is not None:
            kinds.setdefault(_peer_kind(weight), []).append(sqnr)
    return [_among_peers(weight, kinds.get(_peer_kind(weight), [])) for weight in facts]


def _among_peers(weight: WeightFacts, levels: Sequence[float]) -> WeightFacts:
    own = _finite_sqnr(weight)
    if own is None or len(levels) < MIN_PEERS:
        return weight.model_copy(update={"peers": len(levels) or None})
    median = float(np.median(levels))
    deviation = max(float(np.median(np.abs(np.array(levels) - median))), LEAST_DEVIATION_DB)
    gap = median - own
    return weight.model_copy(update={"peers": len(levels), "peer_gap_db": gap, "peer_zscore": 0.6745 * gap / deviation})


def _peer_kind(weight: WeightFacts) -> Kind:
    return weight.format, weight.quantizer.bits, weight.quantizer.granularity


def _finite_sqnr(weight: WeightFacts) -> float | None:
    sqnr = weight.rounding.sqnr_db
    return sqnr if sqnr is not None and math.isfinite(sqnr) and weight.format is not None else None
