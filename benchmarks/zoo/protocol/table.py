"""The scores as text: every figure beside what others would have said, then where the misses are."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from .calibration import reliability, render_reliability, stated
from .row import Row
from .scores import (
    ASSIGNED,
    FIGURES,
    Share,
    assigned_shares,
    grouped,
    missed,
    mistaken,
    own,
    peer,
    shares,
)

Columns = Mapping[str, Mapping[str, Share]]
NOTHING = "-"
#: The column of this version.
NOW = "now"
#: What is asked of the peer, which only names causes.
OF_NAMES = frozenset({"first", "three", "true", "mild_first", "mild_three", "both", "alarms", "harmless_alarms"})
#: Pairs of expected and named causes that are listed.
PAIRS = 40
#: Figures by family and network.
BY_GROUP = ("first", "three", "true", "silent", "alarms")


def columns(rows: Sequence[Row]) -> dict[str, dict[str, Share]]:
    """Figures of this version, and of the peer."""
    of_peer = {key: share for key, share in shares(rows, peer).items() if key in OF_NAMES}
    return {NOW: shares(rows, own), "XQuant": of_peer}


def render_columns(found: Columns) -> list[str]:
    """One row for each figure, one column for each who answers."""
    head = "".join(f"{title:>14s}" for title in found)
    text = [f"{'':48s}{head}   {'95 %':>11s}  {'to reach'}"]
    for figure in FIGURES:
        own_share = found[NOW].get(figure.key) if NOW in found else None
        cells = [str(column[figure.key]) if figure.key in column else NOTHING for column in found.values()]
        if all(cell == NOTHING for cell in cells):
            continue
        within = _interval(own_share) if own_share is not None else ""
        text.append(
            f"{figure.title:48s}{''.join(f'{cell:>14s}' for cell in cells)}   {within:>11s}  {figure.reach}".rstrip()
        )
    return text


def _interval(share: Share) -> str:
    if not share.whole:
        return ""
    low, high = share.interval()
    return f"{100 * low:.0f}-{100 * high:.0f} %"


def render(rows: Sequence[Row]) -> str:
    """Everything."""
    text = render_columns(columns(rows))
    text += [
        "  mild: less than 6 dB above what healing leaves, or no drop is proven; harmless: neither hurts nor 6 dB up.",
        "  silent: no cause of medium or high severity, none that says what is to be had, no large piece of the noise.",
        "  true: an expected cause, or one that is true and less specific; layers: of the causes in their order, then",
        "  of the budget; assigned: what stands in lines of at most three places; others do not name layers.",
    ]
    text += _by("family", rows, lambda row: row.family)
    text += _by("network", rows, lambda row: row.network)
    text += _alarms_by_network(rows)
    text += _calibrations(rows)
    text += _budget(rows)
    return "\n".join([*text, *_mistakes(rows)])


def _by(title: str, rows: Sequence[Row], key: Callable[[Row], str]) -> list[str]:
    figures = [figure for figure in FIGURES if figure.key in BY_GROUP]
    head = "".join(f"{figure.key:>14s}" for figure in figures)
    text = [f"\nby {title:21s}{head}"]
    for name, group in grouped(rows, key).items():
        cells = [str(figure.share(group, own)) for figure in figures]
        text.append(f"  {name:22s}{''.join(f'{cell:>14s}' for cell in cells)}")
    return text


def _alarms_by_network(rows: Sequence[Row]) -> list[str]:
    alarmed = [row for row in rows if row.is_control and row.said.serious]
    if not alarmed:
        return []
    text = [f"\n{len(alarmed)} healthy cases with an alarm:"]
    for row in alarmed:
        named = ", ".join(f"{cause.name} ({cause.severity})" for cause in row.said.serious)
        text.append(f"  {row.name}: {named}; verdict {row.said.verdict}")
    return text


def _calibrations(rows: Sequence[Row]) -> list[str]:
    text = []
    for title, first in (("the first cause", True), ("causes of medium or high severity", False)):
        found = reliability(stated(rows, first=first))
        text += render_reliability(title, found) if found is not None else []
    return text


def _budget(rows: Sequence[Row]) -> list[str]:
    found = assigned_shares(rows)
    if not found:
        return []
    without = sum(row.said.budget is None for row in rows if row.to_be_found and row.harms)
    median, done = 100 * float(np.median(found)), sum(share >= ASSIGNED for share in found)
    return [
        f"\nbudget: median {median:.0f} % of the noise assigned, at least {100 * ASSIGNED:.0f} % in {done} of "
        f"{len(found)} faults; {without} have no budget"
    ]


def _mistakes(rows: Sequence[Row]) -> list[str]:
    """Single mistakes, the most frequent first."""
    pairs = mistaken(rows).most_common(PAIRS)
    text = ["\nwrong first answers (expected -> named):"] if pairs else []
    return text + [f"  {number:3d}  {wanted} -> {named}" for (wanted, named), number in pairs]


def render_misses(rows: Sequence[Row]) -> str:
    """Every single fault that is not named first: what it is, how much it adds, and what was said instead."""
    found = missed(rows)
    return "\n".join([f"\n{len(found)} single faults not named first:", *map(_miss, found)])


def _miss(row: Row) -> str:
    said = row.said
    named = ", ".join(f"{cause.name} ({cause.severity})" for cause in said.causes[:3]) or "nothing"
    pieces = said.budget.pieces[:1] if said.budget is not None else ()
    loudest = "".join(f"; {100 * p.share:.0f} % {p.source} at {', '.join(p.places)}" for p in pieces)
    level = "-" if row.gain_db is None else f"{row.gain_db:.0f} dB"
    wanted = " + ".join("|".join(names) for names in row.expected)
    return f"  {row.name}: {wanted}; {level}; said {named}, {said.error or said.verdict}{loudest}"
