"""How good the answers are, as a table: first and third places, and false alarms, with intervals of Wilson."""

from collections.abc import Iterable, Sequence

from zoo.protocol.scores import Share

from .asking import Result

#: How the answers of a result were asked for.
_ASKED = ("without texts", "with texts")


def render(results: Sequence[Result]) -> str:
    """The tables of a part."""
    faults = [result for result in results if result.spec.fault is not None and result.counts]
    controls = [result for result in results if result.spec.fault is None and result.counts]
    parts = [_faults_table(faults), _controls_table(controls), _left_out(results)]
    return "\n\n".join(parts)


def _faults_table(faults: Sequence[Result]) -> str:
    rows = [
        "| faults | cases | first, without texts | first three | first, with texts | first three |",
        "|---|--:|--:|--:|--:|--:|",
        _faults_row("all", faults),
    ]
    for family in dict.fromkeys(result.spec.family for result in faults):
        rows.append(_faults_row(f"family {family}", [r for r in faults if r.spec.family == family]))
    for name in dict.fromkeys(result.spec.architecture.name for result in faults):
        rows.append(_faults_row(f"network {name}", [r for r in faults if r.spec.architecture.name == name]))
    for kind in dict.fromkeys(result.spec.kind for result in faults):
        rows.append(_faults_row(kind, [r for r in faults if r.spec.kind == kind], is_short=True))
    return "\n".join(rows)


def _faults_row(title: str, results: Sequence[Result], *, is_short: bool = False) -> str:
    cells = []
    for i in range(len(_ASKED)):
        places = [result.place(result.answers[i]) for result in results]
        for most in (1, 3):
            share = Share(sum(place is not None and place <= most for place in places), len(places))
            cells.append(f"{share.part}" if is_short else with_interval(share))
    return f"| {title} | {len(results)} | {' | '.join(cells)} |"


def _controls_table(controls: Sequence[Result]) -> str:
    rows = ["| healthy controls | cases | alarms, without texts | alarms, with texts |", "|---|--:|--:|--:|"]
    groups = {"all": list(controls)}
    for name in dict.fromkeys(result.spec.architecture.name for result in controls):
        groups[f"network {name}"] = [r for r in controls if r.spec.architecture.name == name]
    for title, own in groups.items():
        alarms = [sum(bool(r.answers[i].serious) for r in own) for i in range(len(_ASKED))]
        cells = [with_interval(Share(count, len(own))) for count in alarms]
        rows.append(f"| {title} | {len(own)} | {' | '.join(cells)} |")
    return "\n".join(rows)


def with_interval(share: Share) -> str:
    """A share of a hundred, its interval, and of how many."""
    if not share.whole:
        return "-"
    low, high = share.interval()
    return f"{100 * share.part / share.whole:.1f} % ({100 * low:.1f} … {100 * high:.1f})"


def _left_out(results: Sequence[Result]) -> str:
    mild = [result for result in results if not result.counts and result.spec.fault is not None]
    others = [result for result in results if not result.counts and result.spec.fault is None]
    alarms = sum(any(not _is_right(result, cause.name) for cause in result.told.serious) for result in mild)
    return (
        f"not counted: {len(mild)} faults that the perplexity hardly feels ({alarms} with a false alarm), "
        f"{len(others)} controls that cost more than is healthy\n  "
        + "\n  ".join(f"{r.spec.name}: perplexity {_percent(r.growth)}" for r in [*mild, *others])
    )


def _is_right(result: Result, name: str) -> bool:
    fault = result.spec.fault
    return fault is not None and name in (*fault.expected, *fault.also)


def _percent(growth: float | None) -> str:
    return "not measured" if growth is None else f"{100 * growth:+.2f} %"


def render_misses(results: Iterable[Result]) -> str:
    """Faults that are not named first, and controls with an alarm."""
    rows = []
    for result in results:
        if not result.counts:
            continue
        for title, own in zip(_ASKED, result.answers, strict=True):
            if result.spec.fault is None:
                if own.serious or own.error:
                    alarms = ", ".join(cause.name for cause in own.serious)
                    rows.append(f"ALARM  {result.spec.name}, {title}: {alarms}{own.error}")
            elif result.place(own) != 1:
                said = ", ".join(f"{c.name} ({c.severity})" for c in own.causes[:4]) or own.error or "nothing"
                wanted = " or ".join(result.spec.fault.expected)
                rows.append(
                    f"MISS   {result.spec.name}, {title} [{own.verdict}, {_percent(result.growth)}]: {said}; "
                    f"right is {wanted}"
                )
    return "\n".join(rows)
