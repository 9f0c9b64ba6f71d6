"""What became of the previous diagnosis, as text: the outcome, what changed, which remedies were tried."""

from dataclasses import dataclass
from typing import Annotated

from quantmedic.engine.contract.previous_report import Changed, Effect, Previous, SettingChange, Tried
from quantmedic.engine.metrics.kinds import is_share, kind_of
from quantmedic.reports.text import (
    capital,
    count,
    decibels,
    level,
    loss_word,
    measure,
    metric_change,
    metric_label,
    name,
    number,
    percent,
)

PLURALS = {"layer": "layers", "block": "blocks", "activation": "activations", "data set": "data sets"}


@dataclass(frozen=True)
class PreviousBox:
    """The previous case against this one."""

    verdict: Annotated[str, "helped, without effect, or not comparable"]
    gain: Annotated[str, "gain at the output, in brackets; empty where it is not known"]
    outcome: Annotated[tuple[str, ...], "output, agreement and metric, then and now"]
    changes: Annotated[tuple[str, ...], "settings that changed, with an example each"]
    tried: Annotated[tuple[str, ...], "remedies of the previous diagnosis that were applied, and what came of it"]


def previous_box(previous: Previous | None) -> PreviousBox | None:
    """The comparison as text; None where no previous case was given."""
    if previous is None:
        return None
    effect = previous.effect
    return PreviousBox(
        verdict=_effect_text(effect.helped),
        gain=_gain_in_brackets(effect.gain_db),
        outcome=tuple(_outcome_texts(effect)),
        changes=tuple(_change_text(changed) for changed in previous.changed),
        tried=tuple(_trial_text(tried) for tried in previous.tried),
    )


def tried_text(tried: tuple[Tried, ...]) -> str:
    """What was done about a cause in vain; empty where nothing was."""
    if not tried:
        return ""
    titles = "; ".join(capital(name(one.title)) for one in tried)
    return f"tried without effect{_gain_in_brackets(tried[0].effect_db)}: {titles}"


def _effect_text(helped: bool | None) -> str:
    return {True: "helped", False: "without effect", None: "not comparable"}[helped]


def _gain_in_brackets(gain_db: float | None) -> str:
    return f" ({decibels(gain_db, '+')})" if gain_db is not None else ""


def _outcome_texts(effect: Effect) -> list[str]:
    parts = []
    if effect.gain_db is not None:
        parts.append(f"output SQNR {level(effect.sqnr_before)} → {decibels(effect.sqnr)}")
    if not effect.same_data:
        parts.append("the two cases were not judged on the same samples, so that their noise cannot be compared")
    elif effect.agreement_before is not None and effect.agreement is not None:
        parts.append(f"agreement {percent(effect.agreement_before)} → {percent(effect.agreement)}")
    if effect.drop is not None:
        parts.append(_drop_change(effect))
    return parts


def _drop_change(effect: Effect) -> str:
    """Both drops, and the interval that the present one had to leave."""
    unit = " points" if is_share(effect.metric) else ""
    then, now, low, high = (
        metric_change(value, effect.metric)
        for value in (effect.drop_before, effect.drop, effect.drop_before_low, effect.drop_before_high)
    )
    interval = f", 95 % interval before {low.removesuffix(unit)} … {high}" if effect.drop_before_low is not None else ""
    word = loss_word(kind_of(effect.metric).higher_is_better)
    return f"{metric_label(effect.metric)} {word} {then.removesuffix(unit)} → {now}{interval}"


def _change_text(changed: Changed) -> str:
    subjects = count(changed.count, changed.of, PLURALS.get(changed.of))
    return f"{changed.setting} of {subjects} ({_example_text(changed.examples[0])})"


def _example_text(change: SettingChange) -> str:
    return f"{name(change.subject)}: {_setting_text(change.before)} → {_setting_text(change.after)}"


def _setting_text(value: object) -> str:
    if isinstance(value, tuple | list) and len(value) == 2:
        return f"{number(value[0])} … {number(value[1])}"
    return measure(value)


def _trial_text(tried: Tried) -> str:
    where = ", ".join(name(subject) for subject in tried.subjects[:1])
    more = f" and {len(tried.subjects) - 1} more" if len(tried.subjects) > 1 else ""
    return f"{capital(name(tried.title))}, for {name(tried.cause)}: {_effect_text(tried.helped)} (on {where}{more})"
