"""Whether the representative set is of another kind than the validation set, or only smaller: numbers and words."""

from collections.abc import Mapping, Sequence
from typing import Any

from quantmedic.engine.case.facts import DatasetFacts, Role
from quantmedic.engine.case.records import Case
from quantmedic.engine.formulas.brightness import brightness_facts
from quantmedic.engine.formulas.columns import ratio
from quantmedic.engine.formulas.ordinary import OrdinaryRanges, ordinary_ranges

#: Share of clipped values under which a ratio of two shares only says how small the smaller one is.
_FLOOR = 1e-6


def domain_facts(case: Case, clipped: Mapping[Role, float | None]) -> dict[str, Any]:
    """Fields of ``DatasetFacts``, the same for both sets; ``clipped`` are their shares of clipped values."""
    light = brightness_facts(case)
    ordinary = ordinary_ranges(case)
    mine, other = clipped.get("representative"), clipped.get("validation")
    facts: dict[str, Any] = {**light, "clipped_reading": _clipped_reading(mine, other)}
    if mine is not None:
        facts["clipped_share_ratio"] = ratio(other, max(mine, _FLOOR))
    if ordinary is not None:
        facts |= {
            "range_lack": ordinary.lack,
            "ordinary_range_lack": ordinary.usual,
            "ordinary_lack_share": ratio(ordinary.usual, ordinary.lack),
            "ordinary_quantile": ordinary.quantile,
        }
    words = [facts["clipped_reading"], light.get("brightness_reading"), _ordinary_reading(ordinary)]
    return facts | {"domain_reading": "; ".join(word for word in words if word) or None}


def with_nearest_set(views: Sequence[DatasetFacts]) -> tuple[DatasetFacts, ...]:
    """Each given set with the best fit of any of them: a range that one of them fills was made for such data."""
    fields = {"nearest_range_ratio": "input_range_ratio", "nearest_unused_side": "input_unused_side"}
    nearest = {
        name: min((value for view in views if (value := getattr(view, field)) is not None), default=None)
        for name, field in fields.items()
    }
    return tuple(view.model_copy(update=nearest) if view.samples is not None else view for view in views)


def _clipped_reading(mine: float | None, other: float | None) -> str | None:
    """How many more values of the validation set are clipped than of the other; next to none has no multiple."""
    if mine is None or other is None:
        return None
    if mine < _FLOOR:
        return "some, where it has none" if other > 0 else "as few"
    return f"{other / mine:.3g} times as many"


def _ordinary_reading(ordinary: OrdinaryRanges | None) -> str | None:
    """What as few samples of the validation set would lack, and whether they ever lack as much."""
    if ordinary is None:
        return None
    often = f"{ordinary.quantile:.1%} of such draws" if ordinary.quantile > 0 else "no such draw"
    return (
        f"these samples leave {ordinary.lack:.0%} of the ranges open, as many random validation samples "
        f"{ordinary.usual:.0%}, and {often} as much as these"
    )
