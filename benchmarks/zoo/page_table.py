"""The manual's table of the fault zoo, from records of the ledger and from nothing else: one column for each record."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .protocol.entries import shares_of
from .protocol.ledger import Record, read_finished
from .protocol.scores import FIGURES
from .protocol.table import NOW

Summary = Mapping[str, Any]
#: Where nothing was counted.
NOTHING = "-"


def render_page_table(files: Sequence[Path]) -> str:
    """The table as Markdown.

    Raises:
        LedgerError: A file is no record of the ledger, or its run was broken off.
    """
    records = read_finished(files)
    head = ["", *(path.stem for path in files)]
    text = [f"| {' | '.join(head)} |", f"|---|{'--:|' * len(files)}"]
    for title, cells in [*_shares(records), *_summaries(records)]:
        if set(cells) != {NOTHING}:
            text.append(f"| {' | '.join([title, *cells])} |")
    return "\n".join(text)


def _shares(records: Sequence[Record]) -> Iterator[tuple[str, list[str]]]:
    """Figures of this version, and of the others."""
    columns = [shares_of(record) for record in records]
    for figure in FIGURES:
        yield figure.title, [str(column[NOW].get(figure.key, NOTHING)) for column in columns]
    for title, who, key in OTHERS:
        yield title, [str(column.get(who, {}).get(key, NOTHING)) for column in columns]


def _summaries(records: Sequence[Record]) -> Iterator[tuple[str, list[str]]]:
    """Figures of gains, prescriptions and repairs, and of confidence."""
    for title, figure in ROWS:
        yield title, [figure(record.figures or {}) for record in records]


def _of(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} % of {whole}" if whole else NOTHING


def _gains(found: Summary) -> str:
    errors = [error for error, *_ in found["summary"]["gains"]]
    return f"{np.median(errors):.1f} / {np.quantile(errors, 0.9):.1f} dB" if errors else NOTHING


def _worse(group: str) -> Callable[[Summary], str]:
    """How many of all cases of a group."""

    def figure(found: Summary) -> str:
        counted = found["summary"][group]
        return f"{len(counted['worse'])} of {counted['asked']}" if counted["asked"] else NOTHING

    return figure


def _part(group: str, name: str, whole: str) -> Callable[[Summary], str]:
    return lambda found: _of(found["summary"][group][name], found["summary"][group][whole])


def _calibration(group: str) -> Callable[[Summary], str]:
    """Error of the confidence, and how many were stated."""

    def figure(found: Summary) -> str:
        stated = found["confidence"][NOW][group]
        return f"{stated['error']:.2f} over {stated['count']}" if stated else NOTHING

    return figure


def _assigned(found: Summary) -> str:
    median = found["assigned_median"]
    return f"{100 * median:.0f} %" if median is not None else NOTHING


OTHERS = (
    ("right cause first, by the rules of the MCT XQuant Extension Tool", "XQuant", "first"),
    ("healthy with an alarm, by the XQuant rules", "XQuant", "alarms"),
)
ROWS: tuple[tuple[str, Callable[[Summary], str]], ...] = (
    ("noise that the budget assigns, median", _assigned),
    ("expected calibration error of the first cause's confidence", _calibration("first")),
    ("the same of all causes of medium or high severity", _calibration("serious")),
    ("predicted against real recovery (capped at 20 dB), median / 90 %", _gains),
    ("pasted prescription heals, of faults with one in the toolchain", _part("pasted", "healed", "with_configuration")),
    ("pasted prescription heals, of all faults", _part("pasted", "healed", "faults")),
    ("executed gain within 1 dB of the number shown, on the samples of the report", _part("pasted", "same", "known")),
    ("the same on all samples that the reader did not give", _part("pasted", "within_1_db", "proven")),
    ("pasted prescription makes the model worse", _worse("pasted")),
    ("healthy variants with a prescription", _part("pasted", "controls_prescribed", "controls")),
    ("`fix` heals, of faults with a remedy in the toolchain", _part("fixed", "healed", "with_configuration")),
    ("`fix` heals, of all faults", _part("fixed", "healed", "faults")),
    ("gain that `fix` prints within 1 dB of that on samples held back", _part("fixed", "within_1_db", "proven")),
    ("`fix` writes a worse model", _worse("fixed")),
    ("healthy variants for which `fix` writes another model", _part("fixed", "controls_ran", "controls")),
)
