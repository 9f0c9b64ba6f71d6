"""Two cases compared: what healed, what broke."""

from collections.abc import Sequence
from pathlib import Path

from quantmedic.api.judging import inspect, judge
from quantmedic.api.rulebase import load_rulebase
from quantmedic.engine.case.records import Case
from quantmedic.engine.rules.rulebase import RuleBase
from quantmedic.engine.version import VERSION
from quantmedic.engine.versus.side_by_side import ComparisonReport, Judged, side_by_side
from quantmedic.reports.comparison_formats import comparison_files
from quantmedic.reports.write import Written, place

FORMATS = ("html", "markdown", "json")


def compare(
    before: Case | str | Path,
    after: Case | str | Path,
    rules: RuleBase | None = None,
) -> ComparisonReport:
    """Put two cases side by side: what healed, what broke, and what was changed in between.

    Both are judged by the same rules. A change is called better or worse only where it is proven: the 95 % interval of
    the task metric's change excludes zero, or the output's SQNR on the same samples moved by the threshold
    ``previous_effect_db`` or more. The cases may be of different float models: layers are matched by name, then by
    order and kind, and the record says how many were matched how.

    Args:
        before: The first case, or its file.
        after: The second.
        rules: Rules and thresholds; the built-in ones by default.

    Returns:
        The comparison; ``word`` is the answer, ``causes`` what became of each cause.

    Raises:
        CaseError: A file cannot be read.
    """
    base = rules or load_rulebase()
    first, second = (_judge(case, base) for case in (before, after))
    return side_by_side(first, second, base, version=VERSION)


def write_comparison(
    comparison: ComparisonReport, folder: str | Path, *, formats: Sequence[str] = FORMATS
) -> list[Written]:
    """Write ``compare.html``, ``compare.md`` and ``compare.json``, each whole or not at all.

    Raises:
        OutputError: The folder cannot be written.
        QuantmedicError: A format is unknown.
    """
    return place(comparison_files(comparison, formats), Path(folder))


def _judge(case: Case | str | Path, base: RuleBase) -> Judged:
    opened = inspect(case, base)
    return Judged(opened.case, opened.facts, judge(opened))
