"""What pasted prescriptions and repairs bring back, as a table and as a list of misses with their reasons."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from .asking import Answer
from .cases import Built
from .fault import FAULTS
from .paste import ENOUGH, Pasted, metric_share, noise_share, worst_share

Row = tuple[Built, Answer, Pasted]
#: No setting of a quantizer undoes these: the file of the float model is another one.
WITHOUT_REMEDY = frozenset({"other-float-model"})
#: Figures of a summary: in words, of prescriptions or of repairs, what is counted, and of how many.
FIGURES = (
    ("pasted prescription heals, of faults with one in the toolchain", "pasted", "healed", "with_configuration"),
    ("pasted prescription heals, of all faults", "pasted", "healed", "faults"),
    ("executed gain within 1 dB of the number shown, on the samples of the report", "pasted", "same", "known"),
    ("the same on all samples that the reader did not give", "pasted", "within_1_db", "proven"),
    ("pasted prescription makes the model worse", "pasted", "worse", "asked"),
    ("healthy variants with a prescription", "pasted", "controls_prescribed", "controls"),
    ("fix heals, of faults with a remedy in the toolchain", "fixed", "healed", "with_configuration"),
    ("fix heals, of all faults", "fixed", "healed", "faults"),
    ("gain that fix prints within 1 dB of that on samples held back", "fixed", "within_1_db", "proven"),
    ("fix writes a worse model", "fixed", "worse", "asked"),
    ("healthy variants for which fix writes another model", "fixed", "controls_ran", "controls"),
)


def rows(results: Iterable[tuple[Built, Answer]]) -> list[Row]:
    """The cases whose prescription was followed."""
    return [(built, answer, answer.pasted) for built, answer in results if answer.pasted is not None]


def fixed_rows(results: Iterable[tuple[Built, Answer]]) -> list[Row]:
    """The cases that ``quantmedic.fix`` was given."""
    return [(built, answer, answer.fixed) for built, answer in results if answer.fixed is not None]


def counts(built: Built) -> bool:
    """Whether the fault took something that a quantizer can bring back."""
    kinds = built.spec.kinds
    harms = bool(kinds) and all(FAULTS[kind].harms and kind not in WITHOUT_REMEDY for kind in kinds)
    return harms and (built.gain_db or 0.0) > 0


def is_healed(built: Built, found: Pasted) -> bool:
    """Noise is gone, and the task metric is back where the fault took a proven part of it."""
    metric = metric_share(built, found)
    return (noise_share(built, found) or 0.0) >= ENOUGH and (metric is None or metric >= ENOUGH)


def reason(built: Built, found: Pasted) -> str:
    """Why a case is not healed, in short."""
    if found.outcome in ("failed", "refused"):
        return f"{'script failed' if found.outcome == 'failed' else 'refused'}: {found.reason}"
    if found.outcome != "ran":
        return f"{found.outcome}{f' ({found.reason})' if found.reason else ''}"
    if found.worse:
        return f"worse than before: {found.worse}"
    too_little = (noise_share(built, found) or 0.0) < ENOUGH
    return "too little noise is gone" if too_little else "the metric is not back"


def outcome(built: Built, found: Pasted) -> str:
    """What became of a prescription, in one line."""
    result = "healed" if is_healed(built, found) else reason(built, found)
    return f"{result}; {', '.join(found.remedies) or 'nothing'}; {_number(found)}"


def _number(found: Pasted) -> str:
    shown = found.shown
    if shown is None:
        return "nothing shown"
    measured = "-" if found.gain_db is None else f"{found.gain_db:+.1f} dB"
    if shown.gain_db is None:
        return f"{shown.grade}, measured {measured}"
    interval = "" if shown.low_db is None else f" [{shown.low_db:.1f}, {shown.high_db:.1f}]"
    return f"{shown.grade} {shown.gain_db:+.1f} dB{interval}, measured {measured}"


def render(by: str, found: Sequence[Row]) -> str:
    """The report on prescriptions or on repairs: how many heal, and every case that needs a look."""
    judged = [row for row in found if counts(row[0])]
    figures, wrong = summary(found), [row for row in judged if _is_proven(row[2]) and not _is_as_shown(row[2])]
    healed, faults = figures["healed"], figures["faults"]
    text = [
        f"\nhealed by {by}: {_of(healed, figures['with_configuration'])} of those with a configuration, "
        f"{_of(healed, faults)} of all faults"
    ]
    controls = [row for row in found if row[0].spec.control and row[2].outcome not in ("no prescription", "refused")]
    missed = [row for row in judged if not is_healed(row[0], row[2])]
    kinds = Counter(reason(built, pasted).split(":")[0].split(" (")[0] for built, _, pasted in missed)
    for title, listed in (
        (f"not healed: {', '.join(f'{number} {name}' for name, number in kinds.most_common())}", missed),
        (f"of {figures['proven']} proven ones show another number", wrong),
        ("models are worse than before", [row for row in found if row[2].worse]),
        (f"of {figures['controls']} healthy controls get a prescription or another model", controls),
    ):
        text += [f"\n{len(listed)} {title}", *(f"  {_describe(row)}" for row in listed)]
    return "\n".join(text)


def _is_proven(found: Pasted) -> bool:
    return found.shown is not None and found.shown.is_proven


def _is_as_shown(found: Pasted) -> bool:
    return bool(found.is_near(found.gain_db)) and found.is_within is not False


def _of(part: int, whole: int) -> str:
    return f"{part} of {whole}" + (f" ({100 * part / whole:.0f} %)" if whole else "")


def _describe(row: Row) -> str:
    built, answer, found = row
    shares = [noise_share(built, found), worst_share(built, found), metric_share(built, found)]
    percent = " / ".join("-" if share is None else f"{100 * share:.0f} %" for share in shares)
    wanted = " + ".join("|".join(expected) for expected in built.spec.expected) or "healthy"
    return (
        f"{built.spec.name}: {outcome(built, found)}\n"
        f"      noise/worst column/metric {percent}; said {', '.join(answer.said.names[:2]) or 'no cause'}; is {wanted}"
    )


def summary(found: Sequence[Row]) -> dict[str, Any]:
    """Figures for a file."""
    judged = [row for row in found if counts(row[0])]
    with_text = [row for row in judged if row[2].is_given]
    proven = [p for _, _, p in judged if _is_proven(p)]
    controls = [p for b, _, p in found if b.spec.control]
    return {
        "asked": len(found),
        "faults": len(judged),
        "with_configuration": len(with_text),
        "healed": sum(is_healed(b, p) for b, _, p in with_text),
        "worse": [b.spec.name for b, _, p in found if p.worse],
        "proven": len(proven),
        "within_1_db": sum(bool(p.is_near(p.gain_db)) for p in proven),
        "same": sum(bool(p.is_near(p.same_db)) for p in proven),
        "known": sum(p.is_near(p.same_db) is not None for p in proven),
        "controls": len(controls),
        "controls_prescribed": sum(p.outcome != "no prescription" for p in controls),
        "controls_ran": sum(p.outcome == "ran" for p in controls),
    }


def render_summary(found: Mapping[str, Any]) -> list[str]:
    """Figures of a record on gains, prescriptions and repairs; those of which nothing was counted are left out."""
    text = []
    if errors := [error for error, *_ in found["gains"]]:
        median, most = np.median(errors), np.quantile(errors, 0.9)
        text.append(f"predicted against real recovery (capped at 20 dB), median / 90 %: {median:.1f} / {most:.1f} dB")
    for title, group, part, whole in FIGURES:
        counted = found[group]
        if counted[whole]:
            number = len(counted[part]) if part == "worse" else counted[part]
            text.append(f"{title}: {_of(number, counted[whole])}")
    return text
