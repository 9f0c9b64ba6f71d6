"""What became of the previous diagnosis, as text: the outcome, what changed, which remedies were tried."""

from quantmedic.engine.contract.previous_report import Changed, Effect, Previous, SettingChange, Tried
from quantmedic.engine.metrics.kinds import kind_of
from quantmedic.reports.blocks import Bullets, Section
from quantmedic.reports.text import (
    bare_change,
    capital,
    count,
    decibels,
    first_few,
    level,
    loss_word,
    measure,
    metric_change,
    metric_label,
    name,
    number,
    percent,
    tenths,
)

PLURALS = {"layer": "layers", "block": "blocks", "activation": "activations", "data set": "data sets"}


def previous_section(previous: Previous | None) -> Section | None:
    """The previous case against this one: the outcome, what changed, what was tried; None where none was given."""
    if previous is None:
        return None
    changed = [_change_text(changed) for changed in previous.changed] or ["no setting that is measured"]
    items = [f"changed: {text}" for text in changed] + [f"tried: {_trial_text(tried)}" for tried in previous.tried]
    blocks = [Bullets([*outcome_texts(previous.effect), *items])]
    return Section("previous", previous_title(previous), "Previous", blocks)


def previous_title(previous: Previous) -> str:
    """Whether what was done since the previous case helped, and the gain at the output where it is known."""
    effect = previous.effect
    return f"since the previous case: {_effect_text(effect.helped)}{_gain_in_brackets(effect.gain_db)}"


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


def outcome_texts(effect: Effect) -> list[str]:
    """Output, agreement and metric, then and now."""
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
    metric = effect.metric
    low, high = bare_change(effect.drop_before_low, metric), metric_change(effect.drop_before_high, metric)
    interval = f", 95 % interval before {low} … {high}" if effect.drop_before_low is not None else ""
    word = loss_word(kind_of(metric).higher_is_better)
    then, now = bare_change(effect.drop_before, metric), metric_change(effect.drop, metric)
    return f"{metric_label(metric)} {word} {then} → {now}{interval}"


def _change_text(changed: Changed) -> str:
    subjects = count(changed.count, changed.of, PLURALS.get(changed.of))
    return f"{changed.setting} of {subjects} ({_example_text(changed.examples[0])})"


def _example_text(change: SettingChange) -> str:
    return f"{name(change.subject)}: {setting_text(change.before)} → {setting_text(change.after)}"


def setting_text(value: object, unit: str | None = None) -> str:
    """A setting: what has two ends as a range."""
    if unit == "share" and isinstance(value, float):
        return tenths(value)
    if isinstance(value, tuple | list) and len(value) == 2 and all(isinstance(v, int | float) for v in value):
        return f"{number(value[0])} … {number(value[1])}"
    return "none" if value is None else measure(value, unit)


def _trial_text(tried: Tried) -> str:
    where = first_few([name(subject) for subject in tried.subjects], 1)
    return f"{capital(name(tried.title))}, for {name(tried.cause)}: {_effect_text(tried.helped)} (on {where})"
