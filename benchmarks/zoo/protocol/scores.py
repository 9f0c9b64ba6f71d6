"""Scores of rows: pure functions, the same for every column of the table, whoever gave the answers."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter

from scipy.stats import binomtest

from .row import Row, Said

#: Who answers: a report, or somebody who guesses.
Answers = Callable[[Row], Said]
#: A budget that assigns this share of the noise is done.
ASSIGNED = 0.8
FIRST, THREE = 1, 3


def own(row: Row) -> Said:
    """What this version said."""
    return row.said


def peer(row: Row) -> Said:
    """What XQuant's rules said."""
    return Said.by_name(row.peer)


@dataclass(frozen=True)
class Share:
    """So many of so many."""

    part: int
    whole: int

    @property
    def value(self) -> float | None:
        return self.part / self.whole if self.whole else None

    def interval(self) -> tuple[float, float]:
        """95 % interval of Wilson (1927)."""
        found = binomtest(self.part, self.whole).proportion_ci(method="wilson")
        return float(found.low), float(found.high)

    def __str__(self) -> str:
        return f"{100 * self.part / self.whole:.0f} % of {self.whole}" if self.whole else "-"


@dataclass(frozen=True)
class Figure:
    """One row of the table.

    Attributes:
        key: Its name in the ledger.
        title: In words.
        reach: What is to be reached, in words.
        of: The rows that count.
        good: Whether what was said of a row counts.
    """

    key: str
    title: str
    reach: str
    of: Callable[[Row], bool]
    good: Callable[[Row, Said], bool]

    def share(self, rows: Iterable[Row], answers: Answers) -> Share:
        counted = [row for row in rows if self.of(row)]
        return Share(sum(self.good(row, answers(row)) for row in counted), len(counted))


def place(right: Iterable[str], said: Sequence[str]) -> int | None:
    """Place of the first right name, from 1."""
    wanted = set(right)
    return next((i + 1 for i, name in enumerate(said) if name in wanted), None)


def is_within(right: Iterable[str], said: Sequence[str], limit: int) -> bool:
    """Whether a right name is among the first ones."""
    found = place(right, said)
    return found is not None and found <= limit


def names_first(row: Row, said: Said) -> bool:
    """The first cause is an expected one."""
    return is_within(row.right, said.names, FIRST)


def names_among_three(row: Row, said: Said) -> bool:
    """An expected cause is among the first three."""
    return is_within(row.right, said.names, THREE)


def is_true_first(row: Row, said: Said) -> bool:
    """The first cause is an expected one, or one that the fault's author calls true and less specific.

    What the rules say of each other is not asked: those who are judged do not mark their own work.
    """
    return is_within(row.true, said.names, FIRST)


def shows_in_first_card(row: Row, said: Said) -> bool:
    """The first cause is true, or its card lists an expected one as following from it.

    The reader finds the right name, but as a symptom of another; so this is a figure of its own.
    """
    return is_true_first(row, said) or any(
        name in row.right for name in (said.causes[0].absorbs if said.causes else ())
    )


def names_place(row: Row, said: Said) -> bool:
    """One of the layers where the fault sits is among the first three layers named."""
    return is_within(row.places, said.layers, THREE)


def alarms(row: Row, said: Said) -> bool:
    """A cause of medium or high severity is named."""
    return bool(said.serious)


def _in_group(group: str) -> Callable[[Row], bool]:
    """Faults of a group that are to be found."""
    return lambda row: row.group == group and row.to_be_found


def _called(verdict: str) -> Callable[[Row, Said], bool]:
    """The verdict is that one."""
    return lambda _, said: said.verdict == verdict


def _has_done(share: str) -> Callable[[Row, Said], bool]:
    """That share of the budget is most of the noise; where there is none, it is not."""
    return lambda _, said: said.budget is not None and getattr(said.budget, share) >= ASSIGNED


def _names_each(row: Row, said: Said) -> bool:
    return all(place(names, said.names) is not None for names in row.expected)


def _names_true(row: Row, said: Said) -> bool:
    return place(row.true, said.names) is not None


def _is_local(row: Row) -> bool:
    return _IS_SINGLE(row) and bool(row.places)


def _mild(row: Row) -> bool:
    return row.group == "single" and row.is_mild


def _costs(row: Row) -> bool:
    return row.to_be_found and row.harms


_IS_SINGLE = _in_group("single")
_IS_LOUD, _IS_CONTROL, _IS_HARMLESS = map(attrgetter, ("is_loud", "is_control", "is_harmless"))
FIGURES: tuple[Figure, ...] = (
    Figure("first", "right cause first", ">= 85 %", _IS_SINGLE, names_first),
    Figure("three", "right cause among the first three", ">= 95 %", _IS_SINGLE, names_among_three),
    Figure("true", "first answer true", ">= 95 %", _IS_SINGLE, is_true_first),
    Figure("card", "the same, or listed in the first card", "", _IS_SINGLE, shows_in_first_card),
    Figure("mild_first", "mild faults: right cause first", ">= 75 %", _mild, names_first),
    Figure("mild_three", "mild faults: among the first three", "", _mild, names_among_three),
    Figure("place", "place among the first three layers named", ">= 90 %", _is_local, names_place),
    Figure("both", "both of two faults named", "", _in_group("double"), _names_each),
    Figure("silent", "silent although the noise is 6 dB up", "0", _IS_LOUD, lambda _, said: said.lists_nothing),
    Figure("healthy", "called healthy although it is 6 dB up", "", _IS_LOUD, _called("healthy")),
    Figure("undecided", "faults that are called undecided", "", attrgetter("to_be_found"), _called("undecided")),
    Figure("alarms", "healthy with a cause of medium or high", "<= 1 %", _IS_CONTROL, alarms),
    Figure("degraded", "healthy that are called degraded", "", _IS_CONTROL, _called("degraded")),
    Figure("undecided_controls", "healthy that are called undecided", "", _IS_CONTROL, _called("undecided")),
    Figure("harmless_alarms", "harmless faults with a cause of medium or high", "", _IS_HARMLESS, alarms),
    Figure("harmless_named", "harmless faults that are listed", "", _IS_HARMLESS, _names_true),
    Figure("assigned", "budget assigns at least 80 % of the noise", ">= 95 %", _costs, _has_done("assigned")),
    Figure("listed", "the same with lines of more than three places", "", _costs, _has_done("listed")),
    Figure("failed", "cases without an answer", "0", lambda _: True, lambda _, said: bool(said.error)),
)


def shares(rows: Sequence[Row], answers: Answers) -> dict[str, Share]:
    """Every figure of the table."""
    return {figure.key: figure.share(rows, answers) for figure in FIGURES}


def grouped(rows: Iterable[Row], key: Callable[[Row], str]) -> dict[str, list[Row]]:
    """Rows by a key, in the order of the keys."""
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return dict(sorted(groups.items()))


def assigned_shares(rows: Iterable[Row]) -> list[float]:
    """Share that the budget assigns in every case that costs something; 0 where there is no budget."""
    return [row.said.budget.assigned if row.said.budget is not None else 0.0 for row in rows if _costs(row)]


def missed(rows: Iterable[Row]) -> list[Row]:
    """Single faults that are to be found and not named first."""
    return [row for row in rows if _IS_SINGLE(row) and not names_first(row, row.said)]


def mistaken(rows: Iterable[Row]) -> Counter[tuple[str, str]]:
    """Expected cause and the wrong one that was named first, or ``nothing``."""
    return Counter((row.expected[0][0], next(iter(row.said.names), "nothing")) for row in missed(rows))
