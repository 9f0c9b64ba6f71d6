"""What pasted prescriptions and repairs bring back, as a table and as a list of misses with their reasons."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from .cases import Built
from .fault import FAULTS
from .paste import ENOUGH, Pasted, metric_share, noise_share, worst_share
from .verdict import Answer

Row = tuple[Built, Answer, Pasted]
#: No setting of a quantizer undoes these: the file of the float model is another one.
WITHOUT_REMEDY = frozenset({"other-float-model"})


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


def render_pasted(found: Sequence[Row]) -> str:
    """The whole report."""
    judged = [row for row in found if counts(row[0])]
    text = ["", *_table("pasted prescriptions", judged)]
    text += [
        "  config: the prescription holds a configuration; share: healed of these; median: share of the added noise",
        "  that is gone; 1 dB: a proven prescription shows the gain that was measured; inside: so does its interval;",
        "  same: within 1 dB on the very samples on which the report judged",
    ]
    text += _figures("the pasted prescription", judged)
    text += _misses(judged)
    text += _named("prescriptions of faults without a remedy in the toolchain", [r for r in judged if _bare(r)])
    text += _wrong_numbers(judged)
    text += _worse(found)
    return "\n".join([*text, *_controls(found)])


def render_fixed(found: Sequence[Row]) -> str:
    """The same of what ``quantmedic.fix`` wrote."""
    judged = [row for row in found if counts(row[0])]
    text = ["", *_table("quantmedic.fix", judged)]
    text += [
        "  config: a model was written, or the report holds a configuration; failed: also refused; 1 dB: the gain",
        "  that is printed is the one on samples held back; same: so it is on the samples given",
    ]
    text += _figures("fix", judged)
    text += _misses(judged)
    text += _named("faults that fix refuses, without a configuration", [r for r in judged if _bare(r)])
    text += _wrong_numbers(judged)
    text += _worse(found)
    controls = [row for row in found if row[0].spec.control]
    written = [row for row in controls if row[2].outcome == "ran"]
    text.append(f"\n{len(written)} of {len(controls)} healthy controls get another model" if controls else "")
    return "\n".join([*text, *(f"  {b.spec.name}: {outcome(b, p)}" for b, _, p in written)])


def _table(title: str, judged: Sequence[Row]) -> list[str]:
    head = f"{title:26s}{'cases':>6s}{'config':>8s}{'healed':>8s}{'share':>8s}{'median':>8s}"
    text = [head + f"{'failed':>8s}{'worse':>7s}{'proven':>8s}{'1 dB':>7s}{'inside':>8s}{'same':>6s}"]
    text.append(_line("all faults", judged))
    text += _groups("", judged, lambda b: b.spec.family)
    text += _groups("on ", judged, lambda b: b.spec.network)
    return text + _groups("", [row for row in judged if row[0].spec.group == "single"], lambda b: b.spec.kinds[0])


def _bare(row: Row) -> bool:
    return row[2].outcome == "no configuration"


def _has(row: Row) -> bool:
    return row[2].outcome in ("ran", "failed", "refused")


def _line(title: str, found: Sequence[Row]) -> str:
    with_text = [row for row in found if _has(row)]
    healed = [is_healed(b, p) for b, _, p in with_text]
    shares = [noise_share(b, p) or 0.0 for b, _, p in with_text]
    proven = [p for _, _, p in found if p.shown is not None and p.shown.is_proven]
    near, within = ([p for p in proven if test(p)] for test in (lambda p: p.is_near(p.gain_db), lambda p: p.is_within))
    same = [p for p in proven if p.is_near(p.same_db)]
    share = f"{100 * float(np.mean(healed)):.0f} %" if healed else "-"
    median = f"{100 * float(np.median(shares)):.0f} %" if shares else "-"
    return (
        f"{title:26s}{len(found):6d}{len(with_text):8d}{sum(healed):8d}{share:>8s}{median:>8s}"
        f"{sum(p.outcome in ('failed', 'refused') for _, _, p in found):8d}{sum(bool(p.worse) for _, _, p in found):7d}"
        f"{len(proven):8d}{len(near):7d}{len(within):8d}{len(same):6d}"
    )


def _groups(prefix: str, found: Sequence[Row], key: Callable[[Built], str]) -> list[str]:
    groups: dict[str, list[Row]] = defaultdict(list)
    for row in found:
        groups[key(row[0])].append(row)
    return [_line(f"  {prefix}{name}", group) for name, group in sorted(groups.items())]


def _figures(by: str, judged: Sequence[Row]) -> list[str]:
    with_text = [row for row in judged if _has(row)]
    healed = sum(is_healed(b, p) for b, _, p in with_text)
    text = [
        f"\nhealed by {by}: {_of(healed, len(with_text))} of those with a configuration, "
        f"{_of(healed, len(judged))} of all faults"
    ]
    for title, share in (("noise", noise_share), ("noise of the worst column", worst_share), ("metric", metric_share)):
        known = [value for b, _, p in with_text if (value := share(b, p)) is not None]
        text.append(
            f"  at least {100 * ENOUGH:.0f} % of the {title} back: {_of(sum(v >= ENOUGH for v in known), len(known))}"
        )
    for grade in ("executed", "edited"):
        graded = [row for row in judged if row[2].shown is not None and row[2].shown.grade == grade]
        if graded:
            good = sum(is_healed(b, p) for b, _, p in graded)
            near = sum(bool(p.is_near(p.gain_db)) for _, _, p in graded)
            same = [p.is_near(p.same_db) for _, _, p in graded if p.same_db is not None]
            text += [
                f"  shown as {grade}: healed {_of(good, len(graded))}, within 1 dB of the number shown "
                f"{_of(near, len(graded))},",
                f"    on the samples of the report, where these are known, {_of(sum(map(bool, same)), len(same))}",
            ]
    return text


def _of(part: int, whole: int) -> str:
    return f"{part} of {whole}" + (f" ({100 * part / whole:.0f} %)" if whole else "")


def _misses(judged: Sequence[Row]) -> list[str]:
    missed = [row for row in judged if not is_healed(row[0], row[2]) and not _bare(row)]
    counted = Counter(reason(b, p).split(":")[0].split(" (")[0] for b, _, p in missed)
    title = ", ".join(f"{number} {name}" for name, number in counted.most_common())
    return [f"\n{len(missed)} not healed: {title}", *(f"  {_describe(row)}" for row in missed)]


def _describe(row: Row) -> str:
    built, answer, found = row
    shares = [noise_share(built, found), worst_share(built, found), metric_share(built, found)]
    percent = " / ".join("-" if share is None else f"{100 * share:.0f} %" for share in shares)
    causes = ", ".join(answer.names[:2]) or "no cause"
    wanted = " + ".join("|".join(expected) for expected in built.spec.expected)
    return (
        f"{built.spec.name}: {reason(built, found)}\n"
        f"      noise/worst column/metric {percent}; pasted {', '.join(found.remedies) or '-'}; {_number(found)}; "
        f"fault {built.gain_db:.1f} dB; said {causes}; is {wanted}"
    )


def _number(found: Pasted) -> str:
    shown = found.shown
    if shown is None:
        return "nothing shown"
    measured = "-" if found.gain_db is None else f"{found.gain_db:+.1f} dB"
    if shown.gain_db is None:
        return f"{shown.grade}, measured {measured}"
    interval = "" if shown.low_db is None else f" [{shown.low_db:.1f}, {shown.high_db:.1f}]"
    return f"{shown.grade} {shown.gain_db:+.1f} dB{interval}, measured {measured}"


def _named(title: str, found: Sequence[Row]) -> list[str]:
    return [f"\n{len(found)} {title}:", *(f"  {_describe(row)}" for row in found)] if found else []


def _wrong_numbers(judged: Sequence[Row]) -> list[str]:
    proven = [row for row in judged if row[2].shown is not None and row[2].shown.is_proven]
    wrong = [row for row in proven if not row[2].is_near(row[2].gain_db) or row[2].is_within is False]
    text = [f"\n{len(wrong)} of {len(proven)} proven prescriptions show another number than what was measured:"]
    for built, _, found in wrong:
        same = "" if found.same_db is None else f", on the samples of the report {found.same_db:+.1f} dB"
        text.append(f"  {built.spec.name}: {_number(found)}{same}; {', '.join(found.remedies)}")
    return text if wrong else []


def _worse(found: Sequence[Row]) -> list[str]:
    worse = [(b, p) for b, _, p in found if p.worse]
    lines = [f"  {b.spec.name}: {p.worse}; {', '.join(p.remedies)}; {_number(p)}" for b, p in worse]
    return [f"\n{len(worse)} models are worse than before:", *lines] if worse else ["\nno model is worse than before"]


def _controls(found: Sequence[Row]) -> list[str]:
    controls = [row for row in found if row[0].spec.control]
    given = [(b, p) for b, _, p in controls if p.outcome != "no prescription"]
    lines = [f"  {b.spec.name}: {', '.join(p.remedies)}; {_number(p)}" for b, p in given]
    return [f"\n{len(given)} of {len(controls)} healthy controls get a prescription", *lines] if controls else []


def summary(found: Sequence[Row]) -> dict[str, Any]:
    """Figures for a file."""
    judged = [row for row in found if counts(row[0])]
    with_text = [row for row in judged if _has(row)]
    proven = [p for _, _, p in judged if p.shown is not None and p.shown.is_proven]
    controls = [p for b, _, p in found if b.spec.control]
    return {
        "asked": len(found),
        "faults": len(judged),
        "with_configuration": len(with_text),
        "healed": sum(is_healed(b, p) for b, _, p in with_text),
        "failed": sum(p.outcome in ("failed", "refused") for _, _, p in judged),
        "worse": [b.spec.name for b, _, p in found if p.worse],
        "proven": len(proven),
        "within_1_db": sum(bool(p.is_near(p.gain_db)) for p in proven),
        "inside": sum(bool(p.is_within) for p in proven),
        "same": sum(bool(p.is_near(p.same_db)) for p in proven),
        "known": sum(p.is_near(p.same_db) is not None for p in proven),
        "controls": len(controls),
        "controls_prescribed": sum(p.outcome != "no prescription" for p in controls),
        "controls_ran": sum(p.outcome == "ran" for p in controls),
        "cases": {
            b.spec.name: {
                "noise": noise_share(b, p),
                "worst_column": worst_share(b, p),
                "metric": metric_share(b, p),
                "healed": is_healed(b, p),
                "reason": "" if is_healed(b, p) else reason(b, p),
                **asdict(p),
            }
            for b, _, p in found
        },
    }
