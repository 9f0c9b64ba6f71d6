"""What the settings that a remedy changes are now."""

from collections.abc import Sequence

from quantmedic.engine.case.facts import CaseFacts, Facts
from quantmedic.engine.contract.remedies import Present
from quantmedic.engine.rules.evaluate import look_up, subject_name
from quantmedic.engine.rules.remedies import Remedy


def present_values(remedy: Remedy, views: Sequence[Facts], facts: CaseFacts) -> tuple[Present, ...]:
    """What the settings that a remedy changes are now, and of which subjects; those that are not known are left out."""
    rows = []
    for alternatives in remedy.now:
        values: dict[tuple[str, object], list[str]] = {}
        for view in views:
            found = ((each, look_up(each, view, facts.model)) for each in alternatives.split("|"))
            known = next(((each, value) for each, value in found if value is not None), None)
            if known is not None:
                values.setdefault(known, []).append(subject_name(view))
        rows += [
            Present(fact=path, value=value, subjects=tuple(dict.fromkeys(names)))
            for (path, value), names in values.items()
        ]
    return tuple(rows)
