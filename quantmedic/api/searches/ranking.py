"""The settings of a search in order: where each stands, and what proves it."""

from collections.abc import Mapping
from typing import get_args

from quantmedic.engine.contract.calibrations import Dropped, Estimate, JudgedSetting, Standing
from quantmedic.trials.calibrations import CalibrationSearch
from quantmedic.trials.racing import STRICT


def rank_settings(search: CalibrationSearch, winner: int) -> tuple[JudgedSetting, ...]:
    """By standing; within one, what was judged on more samples first, then the nearest. Twins follow their model."""
    rows = {number: _row(search, winner, number) for number in range(len(search.racers))}
    steps = get_args(Standing)

    def order(number: int) -> tuple[int, int, float, int, bool, int]:
        twin_of = search.racers[number].same_as
        model = number if twin_of is None else twin_of
        row = rows[model]
        return steps.index(row.standing), -row.samples, _shown_loss(row), model, twin_of is not None, number

    ordered = sorted(rows, key=order)
    places = {number: place for place, number in enumerate(ordered)}
    return tuple(_with_places(rows[number], places) for number in ordered)


def _shown_loss(row: JudgedSetting) -> float:
    shown = row.dropped.behind if row.dropped is not None else row.behind
    return 0.0 if shown is None else shown.value


def _with_places(row: JudgedSetting, places: Mapping[int, int]) -> JudgedSetting:
    """The row, which names others by their numbers, with their places instead."""
    changes: dict[str, object] = {}
    if row.same_as is not None:
        changes["same_as"] = places[row.same_as]
    if row.dropped is not None:
        changes["dropped"] = row.dropped.model_copy(update={"leader": places[row.dropped.leader]})
    return row.model_copy(update=changes)


def _row(search: CalibrationSearch, winner: int, number: int) -> JudgedSetting:
    racer = search.racers[number]
    choices = dict(racer.setting.choices)
    title = racer.setting.toolchain.title
    if racer.same_as is not None:
        return JudgedSetting(toolchain=title, choices=choices, standing="same", samples=0, same_as=racer.same_as)
    if racer.failed is not None:
        return JudgedSetting(toolchain=title, choices=choices, standing="failed", samples=0, failed=racer.failed)
    figures = racer.known
    behind = search.behind(winner, number) if number != winner else None
    dropped = _drop_of(search, winner, number)
    return JudgedSetting(
        toolchain=title,
        choices=choices,
        standing="dropped" if dropped is not None else _standing(behind),
        samples=len(figures.sqnr),
        metric=search.metric_of(figures),
        sqnr_db=figures.sqnr_estimate,
        agreement=figures.agreement,
        behind=behind,
        winner_there=search.reached(winner, len(racer.figures)) if number != winner else None,
        dropped=dropped,
    )


def _standing(behind: Estimate | None) -> Standing:
    """By how far a setting is behind the winner, which is not behind itself."""
    if behind is None:
        return "best"
    return "behind" if behind.low > 0 else "as-good"


def _drop_of(search: CalibrationSearch, winner: int, number: int) -> Dropped | None:
    """Why it left the race; what did so with its last samples is compared with the winner on all of them instead."""
    assert search.race is not None
    drop = search.race.dropped.get(number)
    if drop is None or drop.parts == len(search.racers[winner].figures):
        return None
    behind = Estimate(value=drop.gap.loss, low=drop.gap.low, high=drop.gap.high)
    return Dropped(leader=drop.leader, behind=behind, confidence=STRICT)
