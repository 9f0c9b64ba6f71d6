"""The README's table of the fault zoo, from the files that ``fault_zoo.py --json`` writes: one column for each file."""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Summary = Mapping[str, Any]
#: Where nothing was counted.
NOTHING = "-"


def render_readme(files: Sequence[Path]) -> str:
    """The table as Markdown."""
    summaries = [json.loads(path.read_text()) for path in files]
    head = ["", *(path.stem for path in files)]
    text = [f"| {' | '.join(head)} |", f"|---|{'--:|' * len(files)}"]
    for title, figure in ROWS:
        cells = [figure(each) for each in summaries]
        if set(cells) != {NOTHING}:
            text.append(f"| {' | '.join([title, *cells])} |")
    return "\n".join(text)


def _of(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} % of {whole}" if whole else NOTHING


def _share(group: str, name: str) -> Callable[[Summary], str]:
    """A share of the cases of a group."""

    def figure(found: Summary) -> str:
        count = found[group]["cases"]
        return _of(round((found[group][name] or 0.0) * count), count)

    return figure


def _alarms(name: str) -> Callable[[Summary], str]:
    return lambda found: _of(len(found["controls"][name]), found["controls"]["count"])


def _doubles(found: Summary) -> str:
    count = found["doubles"]["count"]
    return _of(count - len(found["doubles"]["missed"]), count)


def _gains(found: Summary) -> str:
    errors = [error for error, *_ in found["gains"]]
    return f"{np.median(errors):.1f} / {np.quantile(errors, 0.9):.1f} dB" if errors else NOTHING


def _count(group: str, name: str) -> Callable[[Summary], str]:
    """How many of all cases of a group."""

    def figure(found: Summary) -> str:
        return f"{len(found[group][name])} of {len(found[group]['cases'])}" if found[group]["cases"] else NOTHING

    return figure


def _part(group: str, name: str, whole: str) -> Callable[[Summary], str]:
    return lambda found: _of(found[group][name], found[group][whole])


ROWS: tuple[tuple[str, Callable[[Summary], str]], ...] = (
    ("right cause first", _share("single", "top1")),
    ("right cause among the first three", _share("single", "top3")),
    ("the same by the rules of the MCT XQuant Extension Tool: first", _share("single", "peer_top1")),
    ("both of two faults named", _doubles),
    ("healthy variants with a false alarm", _alarms("false_alarms")),
    ("the same by the XQuant rules", _alarms("peer_false_alarms")),
    ("predicted against real recovery (capped at 20 dB), median / 90 %", _gains),
    ("pasted prescription heals, of faults with one in the toolchain", _part("pasted", "healed", "with_configuration")),
    ("pasted prescription heals, of all faults", _part("pasted", "healed", "faults")),
    ("executed gain within 1 dB of the number shown, on the samples of the report", _part("pasted", "same", "known")),
    ("the same on all samples that the reader did not give", _part("pasted", "within_1_db", "proven")),
    ("pasted prescription makes the model worse", _count("pasted", "worse")),
    ("healthy variants with a prescription", _part("pasted", "controls_prescribed", "controls")),
    ("`fix` heals, of faults with a remedy in the toolchain", _part("fixed", "healed", "with_configuration")),
    ("`fix` heals, of all faults", _part("fixed", "healed", "faults")),
    ("gain that `fix` prints within 1 dB of that on samples held back", _part("fixed", "within_1_db", "proven")),
    ("`fix` writes a worse model", _count("fixed", "worse")),
    ("healthy variants for which `fix` writes another model", _part("fixed", "controls_ran", "controls")),
)
