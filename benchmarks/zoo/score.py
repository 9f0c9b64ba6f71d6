"""How good the answers are: first and third places, false alarms, confidence, predicted gains."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from .cases import Built
from .verdict import Answer

Result = tuple[Built, Answer]
#: Predictions are capped here, and so is what they are compared with.
CAP_DB = 20.0


def place(expected: Sequence[str], said: Sequence[str]) -> int | None:
    """Place of the first right name, from 1."""
    return next((i + 1 for i, name in enumerate(said) if name in expected), None)


@dataclass(frozen=True)
class Line:
    """One row of the table."""

    title: str
    cases: int
    top1: float | None
    top3: float | None
    brier: float | None
    gain_error_db: float | None
    peer_top1: float | None
    peer_top3: float | None


def line(title: str, results: Sequence[Result]) -> Line:
    places, peer = [], []
    for built, answer in results:
        for expected in built.spec.expected:
            places.append(place(expected, answer.names))
            peer.append(place(expected, answer.peer))
    errors = [error for error, *_ in gain_errors(results)]
    return Line(
        title,
        len(places),
        _within(places, 1),
        _within(places, 3),
        brier(results)[0],
        float(np.median(errors)) if errors else None,
        _within(peer, 1),
        _within(peer, 3),
    )


def _within(places: Sequence[int | None], limit: int) -> float | None:
    return sum(p is not None and p <= limit for p in places) / len(places) if places else None


def false_alarms(results: Iterable[Result]) -> tuple[list[str], list[str], int]:
    """Controls at which the expert, and the peer, name a cause (the expert's of medium or high severity)."""
    controls = [r for r in results if r[0].spec.control]
    return (
        [a.name for _, a in controls if a.severe],
        [a.name for _, a in controls if a.peer],
        len(controls),
    )


def brier(results: Iterable[Result]) -> tuple[float | None, int, float | None, float | None]:
    """Brier score of the stated confidences, their number, mean confidence and share of right ones."""
    pairs = [
        (confidence, any(name in expected for expected in built.spec.expected))
        for built, answer in results
        for name, _, confidence, _, _ in answer.severe
    ]
    if not pairs:
        return None, 0, None, None
    stated, right = (np.array(column, float) for column in zip(*pairs, strict=True))
    return float(np.mean((stated - right) ** 2)), len(pairs), float(stated.mean()), float(right.mean())


def gain_errors(results: Sequence[Result]) -> list[tuple[float, str, float, float]]:
    """|predicted - real recovery| in dB, both capped, for single faults whose expected cause carries a prediction."""
    found = []
    for built, answer in results:
        if built.spec.group != "single" or built.gain_db is None:
            continue
        (expected,) = built.spec.expected
        predicted = next((c[3] for c in answer.causes if c[0] in expected), None)
        if predicted is None:
            continue
        real, stated = min(built.gain_db, CAP_DB), min(predicted, CAP_DB)
        found.append((abs(real - stated), answer.name, predicted, built.gain_db))
    return sorted(found)


def both_named(results: Iterable[Result]) -> tuple[list[str], int]:
    """Doubles of which a fault is missing among the causes, and the number of doubles."""
    doubles = [r for r in results if r[0].spec.group == "double"]
    missed = [a.name for b, a in doubles if any(place(expected, a.names) is None for expected in b.spec.expected)]
    return missed, len(doubles)


def render(results: Sequence[Result]) -> str:
    """The report."""
    singles = [r for r in results if r[0].spec.group == "single"]
    rows = [line("all single faults", singles)]
    rows += [line(f"  {key}", group) for key, group in _grouped(singles, lambda b: b.spec.family)]
    rows += [line(f"  on {key}", group) for key, group in _grouped(singles, lambda b: b.spec.network)]
    text = [
        f"{'':24s}{'cases':>6s}{'top-1':>8s}{'top-3':>8s}{'Brier':>8s}{'gain dB':>9s}   peer:{'top-1':>7s}{'top-3':>8s}"
    ]
    text += [
        f"{r.title:24s}{r.cases:6d}{_percent(r.top1):>8s}{_percent(r.top3):>8s}{_number(r.brier, 3):>8s}"
        f"{_number(r.gain_error_db, 1):>9s}        "
        f"{_percent(r.peer_top1):>7s}{_percent(r.peer_top3):>8s}"
        for r in rows
    ]
    alarms, peer_alarms, controls = false_alarms(results)
    share = (lambda n: _percent(n / controls)) if controls else (lambda n: "-")
    text.append(f"\nfalse alarms on {controls} healthy controls: {share(len(alarms))}, peer {share(len(peer_alarms))}")
    score, count, stated, right = brier(results)
    if score is not None:
        text.append(f"Brier score of {count} stated confidences: {score:.3f} (stated {stated:.2f}, right {right:.2f})")
    errors = gain_errors(results)
    if errors:
        sizes = [e[0] for e in errors]
        text.append(
            f"|predicted - real recovery| in {len(errors)} cases, both capped at {CAP_DB:.0f} dB: "
            f"median {np.median(sizes):.1f} dB, 90th percentile {np.quantile(sizes, 0.9):.1f} dB"
        )
        text += [
            f"    {size:5.1f} dB  {name}: predicted {p:.1f}, real {r:.1f}" for size, name, p, r in errors[-8:][::-1]
        ]
    else:
        text.append("|predicted - real recovery|: no expected cause carries a prediction")
    missed, doubles = both_named(results)
    if doubles:
        text.append(
            f"both faults named: {doubles - len(missed)} of {doubles} doubles ({_percent(1 - len(missed) / doubles)})"
        )
    text += _misses(results, alarms)
    return "\n".join(text)


def _grouped(results: Iterable[Result], key) -> list[tuple[str, list[Result]]]:
    groups: dict[str, list[Result]] = defaultdict(list)
    for result in results:
        groups[key(result[0])].append(result)
    return list(groups.items())


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"


def _misses(results: Sequence[Result], alarms: list[str]) -> list[str]:
    text = []
    wrong = [
        (b, a) for b, a in results if not b.spec.control and any(place(e, a.names[:1]) is None for e in b.spec.expected)
    ]
    singles = [(b, a) for b, a in wrong if b.spec.group == "single"]
    text.append(f"\n{len(singles)} single faults not named first (expected; real recovery; what was said):")
    text += [f"  {_miss(b, a)}" for b, a in singles]
    doubles = [
        (b, a) for b, a in wrong if b.spec.group == "double" and any(place(e, a.names) is None for e in b.spec.expected)
    ]
    if doubles:
        text.append(f"\n{len(doubles)} doubles with a fault not named:")
        text += [f"  {_miss(b, a)}" for b, a in doubles]
    if alarms:
        text.append(f"\n{len(alarms)} false alarms:")
        text += [f"  {a.name}: {_said(a)}" for _, a in results if a.name in alarms]
    return text


def _miss(built: Built, answer: Answer) -> str:
    wanted = " + ".join("|".join(e) for e in built.spec.expected)
    recovery = f"{built.gain_db:.0f} dB" if built.gain_db is not None else "-"
    return f"{answer.name}: {wanted}; {recovery}; {_said(answer)}"


def _said(answer: Answer) -> str:
    if answer.error:
        return f"ERROR {answer.error}"
    said = ", ".join(f"{name} ({severity}, {confidence:.2f})" for name, severity, confidence, _, _ in answer.causes[:4])
    absorbed = (
        f" [absorbed: {', '.join(sorted({a.split(' (')[0] for a in answer.absorbed}))}]" if answer.absorbed else ""
    )
    return (said or f"nothing, verdict {answer.verdict}") + absorbed
