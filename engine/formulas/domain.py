"""Whether the representative set is of another kind than the validation set, or only smaller: numbers and words."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantmedic.engine.case.facts import DatasetFacts, Role
from quantmedic.engine.case.records import Case
from quantmedic.engine.case.statistics import SLOTS, SetStatistics, slots_of
from quantmedic.engine.formulas.brightness import brightness_facts
from quantmedic.engine.formulas.columns import ratio

#: Share of clipped values under which a ratio of two shares only says how small the smaller one is.
_FLOOR = 1e-6
#: Parts that are put together.
_PARTS = 400
#: Values of parts that are looked at together.
_AT_ONCE = 1 << 18
#: The validation set holds so many parts of that size at least; fewer share most of their samples.
_ROOM = 2
#: Of fewer samples no kind is told: a single odd one among ordinary samples is one of them, and too few in any case.
#: What one in five samples shows is missing in every sixth draw of so many.
_LEAST = 8
#: A part that cannot be put together in full has this share of the samples at least.
_NEARLY = 0.75


@dataclass(frozen=True)
class OrdinaryRanges:
    """Ranges of the representative set against those of parts of the validation set with as many samples.

    Attributes:
        lack: Share of the range of the validation set that the representative set does not cover, fourth root of the
            mean fourth power over the activations, so that those which lack most count most, as they make most noise.
        usual: The same of the middle part.
        quantile: Share of the parts that lack as much as the representative set or more.
    """

    lack: float
    usual: float
    quantile: float


def domain_facts(case: Case, clipped: Mapping[Role, float | None]) -> dict[str, Any]:
    """Fields of ``DatasetFacts``, the same for both sets; ``clipped`` are their shares of clipped values."""
    light = brightness_facts(case)
    ordinary = ordinary_ranges(case)
    mine, other = clipped.get("representative"), clipped.get("validation")
    facts: dict[str, Any] = {**light, "clipped_reading": _clipped_reading(mine, other)}
    facts["clipped_share_ratio"] = clipped_ratio(clipped)
    if ordinary is not None:
        facts |= {
            "range_lack": ordinary.lack,
            "ordinary_range_lack": ordinary.usual,
            "ordinary_lack_share": ratio(ordinary.usual, ordinary.lack),
            "ordinary_quantile": ordinary.quantile,
        }
    words = [facts["clipped_reading"], light.get("brightness_reading"), _ordinary_reading(ordinary)]
    return facts | {"domain_reading": "; ".join(word for word in words if word) or None}


def clipped_ratio(clipped: Mapping[Role, float | None]) -> float | None:
    """Clipped values of the validation set against those of the other; None without one of them."""
    mine, other = clipped.get("representative"), clipped.get("validation")
    return None if mine is None else ratio(other, max(mine, _FLOOR))


def with_other_set(views: Sequence[DatasetFacts]) -> tuple[DatasetFacts, ...]:
    """Each given set with what the other one says of it.

    A range that one of them fills was made for such data. What gave the ranges calibrates, as what has no labels.
    """
    fields = {"nearest_range_ratio": "input_range_ratio", "nearest_unused_side": "input_unused_side"}
    nearest: dict[str, object] = {
        name: min((value for view in views if (value := getattr(view, field)) is not None), default=None)
        for name, field in fields.items()
    }
    given = {view.role: view for view in views if view.samples is not None}
    mine, other = given.get("representative"), given.get("validation")
    of_role: dict[Role | None, dict[str, object]] = {}
    if mine is not None and other is not None:
        labels = bool(mine.labelled and not other.labelled)
        of_role["validation"] = {
            "representative_range_share": mine.exact_range_share,
            "labels_elsewhere": labels,
        }
    return tuple(
        view.model_copy(update={**nearest, **of_role.get(view.role, {})}) if view.role in given else view
        for view in views
    )


def _clipped_reading(mine: float | None, other: float | None) -> str | None:
    """How many values of each set are clipped."""
    if mine is None or other is None:
        return None
    if mine == other == 0:
        return "no activation of either set exceeds the calibrated ranges"
    return (
        f"{_share_text(other)} of the validation activations exceed the calibrated ranges, "
        f"{_share_text(mine)} of the representative ones do"
    )


def _share_text(share: float) -> str:
    """A share of values as percent, so that few are not printed as none."""
    if share == 0:
        return "none"
    return f"{100 * share:.2f} %" if share >= 0.5e-4 else "less than 0.01 %"


def _ordinary_reading(ordinary: OrdinaryRanges | None) -> str | None:
    """What as few samples of the validation set would lack, and whether they ever lack as much."""
    if ordinary is None:
        return None
    often = f"{100 * ordinary.quantile:.1f} % of the random draws" if ordinary.quantile > 0 else "no random draw"
    return (
        f"the representative samples leave {100 * ordinary.lack:.0f} % of the ranges unfilled, equally many random "
        f"validation samples {100 * ordinary.usual:.0f} %, and {often} as much"
    )


def ordinary_ranges(case: Case) -> OrdinaryRanges | None:
    """The comparison; None without both sets, or where one of them is too small for it."""
    mine, other = case.statistics.get("representative"), case.statistics.get("validation")
    if mine is None or other is None:
        return None
    size = len(np.unique(mine.samples["hash"]))
    distinct = other.samples[np.unique(other.samples["hash"], return_index=True)[1]]
    parts = _parts(slots_of(distinct).tobytes(), size)
    judged = _find_judged(case, mine, other)
    if parts is None or not judged.any():
        return None
    whole_low, whole_high = other.slot_min[judged].min(axis=1), other.slot_max[judged].max(axis=1)
    width = whole_high.astype(np.float64) - whole_low

    def lack(low: NDArray[np.float32], high: NDArray[np.float32]) -> NDArray[np.float64]:
        overlap = np.minimum(high, whole_high).astype(np.float64) - np.maximum(low, whole_low)
        return ((1.0 - np.maximum(overlap, 0.0) / width) ** 4).mean(axis=1) ** 0.25

    own = lack(mine.slot_min[judged].min(axis=1)[None], mine.slot_max[judged].max(axis=1)[None])[0]
    lows, highs = other.slot_min[judged].T.copy(), other.slot_max[judged].T.copy()
    others = np.concatenate(
        [
            lack(np.minimum.reduceat(lows[slots], begins, axis=0), np.maximum.reduceat(highs[slots], begins, axis=0))
            for slots, begins in _in_groups(parts, lows.shape[1])
        ]
    )
    return OrdinaryRanges(float(own), float(np.median(others)), float((others >= own).mean()))


def _in_groups(parts: list[NDArray[np.int64]], tensors: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Slots of several parts in a row, and where each of them begins: few enough for their values to fit the cache."""
    most = max(1, _AT_ONCE // (tensors * SLOTS))
    for first in range(0, len(parts), most):
        group = parts[first : first + most]
        yield np.concatenate(group), np.cumsum([0, *map(len, group[:-1])])


def _find_judged(case: Case, mine: SetStatistics, other: SetStatistics) -> NDArray[np.bool_]:
    """Quantized tensors that were measured on every sample of both sets, and vary."""
    quantized = np.array([tensor.quantizer.scale is not None for tensor in case.record.tensors], bool)
    whole = [s.tensor_samples == len(s.samples) for s in (mine, other)]
    with np.errstate(invalid="ignore"):
        width = other.slot_max.max(axis=1) - other.slot_min.min(axis=1)
        seen = np.isfinite(width) & (width > 0) & np.isfinite(mine.slot_max.max(axis=1) - mine.slot_min.min(axis=1))
    return quantized & whole[0] & whole[1] & seen


@lru_cache(maxsize=2)
def _parts(distinct: bytes, size: int) -> list[NDArray[np.int64]] | None:
    """Slots that together hold ``size`` distinct samples, drawn at random; None where that is too few or too many.

    ``distinct`` holds the slot of each of these samples.

    Kept: they are the same for both sets, and what is simulated of a repair leaves the samples as they were measured.
    """
    slots = np.frombuffer(distinct, np.int64)
    if size < _LEAST or size * _ROOM > len(slots):
        return None
    counts = np.bincount(slots, minlength=SLOTS)
    used = np.flatnonzero((counts > 0) & (counts <= size))
    rng = np.random.default_rng(0)
    parts = [_draw(rng.permutation(used), counts, size) for _ in range(_PARTS)]
    return parts if all(counts[part].sum() >= _NEARLY * size for part in parts) else None


def _draw(order: NDArray[np.int64], counts: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Slots in this order, without those that would make more than ``size`` samples."""
    part, room = [], size
    for slot in order.tolist():
        if counts[slot] <= room:
            part.append(slot)
            room -= counts[slot]
    return np.array(part, np.int64)
