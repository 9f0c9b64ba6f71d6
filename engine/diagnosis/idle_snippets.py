"""Texts of a remedy that set what the toolchain in use has set already: they change nothing, and go behind others."""

from collections.abc import Mapping

from quantmedic.engine.contract.causes import CauseReport
from quantmedic.engine.contract.remedies import Advice
from quantmedic.engine.diagnosis.snippets import filled_options
from quantmedic.engine.rules.options import Options
from quantmedic.engine.rules.remedies import NAME_FIELDS, Snippet


def idle_last(causes: tuple[CauseReport, ...], toolchain: str, kept: Mapping[str, Options]) -> tuple[CauseReport, ...]:
    """The causes with the texts of each remedy that set something new in front.

    Args:
        causes: Causes with their remedies.
        toolchain: The one whose settings are in force.
        kept: These settings, by the form that takes them.
    """
    return tuple(
        cause.model_copy(update={"remedies": tuple(_put_idle_last(each, toolchain, kept) for each in cause.remedies)})
        for cause in causes
    )


def _put_idle_last(advice: Advice, toolchain: str, kept: Mapping[str, Options]) -> Advice:
    def is_idle(snippet: Snippet) -> bool:
        return snippet.toolchain == toolchain and _sets_nothing(snippet, advice, kept)

    return advice.model_copy(update={"snippets": tuple(sorted(advice.snippets, key=is_idle))})


def _sets_nothing(snippet: Snippet, advice: Advice, kept: Mapping[str, Options]) -> bool:
    """Every option of the text has its value already; texts with code of their own, or that name something, do more."""
    if snippet.code or not snippet.options or snippet.fields & NAME_FIELDS.keys():
        return False
    filled = filled_options(snippet, advice.fields, advice.id)
    return all(kept.get(form) and _holds(kept[form], options) for form, options in filled.items())


def _holds(kept: object, wanted: object) -> bool:
    """What is wanted is in force; what nobody has set is off."""
    if isinstance(wanted, Mapping):
        held = kept if isinstance(kept, Mapping) else {}
        return all(_holds(held.get(key), value) for key, value in wanted.items())
    return wanted is False if kept is None else bool(kept == wanted)
