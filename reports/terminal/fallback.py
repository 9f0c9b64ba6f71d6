"""The layers that must leave int8, for the terminal."""

from collections.abc import Iterator

from quantmedic.engine.contract.fallback import FallbackRecord, Level, Verdict
from quantmedic.engine.text import literal
from quantmedic.reports.terminal.lines import terminal_text, wrap_line
from quantmedic.reports.text import (
    count,
    decibels,
    level,
    loss_word,
    metric_change,
    metric_label,
    metric_value,
    name,
    number,
    percent,
    visible,
)

NAMES_SHOWN, REVERSALS_SHOWN = 3, 3
#: The agreement is a share, as top-1 is.
_AS = {"agreement": "top1"}
_VERDICTS: dict[Verdict, str] = {
    "met": "the goal is met",
    "unsure": "the goal may be met: the interval includes it, and more samples would decide",
    "missed": "the goal is missed on these samples",
    "none": "no set of layers meets the goal in the simulated network",
    "unchecked": "the set was not checked on the quantized model",
}


def render_fallback(record: FallbackRecord, *, ascii_only: bool = False) -> str:
    """Text for the terminal."""
    return terminal_text(_fallback_lines(record), ascii_only=ascii_only)


def _fallback_lines(record: FallbackRecord) -> Iterator[str]:
    yield f"FALLBACK  {name(record.quantized_model)}   goal: {_goal_text(record)}"
    yield from wrap_line(_search_summary(record), indent=2)
    if record.layers:
        yield ""
        yield from _layer_table(record)
    if record.check is not None:
        yield ""
        yield from _check_lines(record)
    if record.found:
        yield _VERDICTS[record.verdict]
    if record.verdict == "missed":
        yield f"help: {_stricter_goal(record)}"
    yield ""
    yield from _cost_lines(record)
    yield from _search_lines(record)
    if record.layers:
        yield ""
        yield from _prescription_lines(record)
    yield ""
    yield "how the set is found, and how to read this: quantmedic explain fallback"


def _prescription_lines(record: FallbackRecord) -> Iterator[str]:
    """The set in the toolchain's own form, and what the user defines for it."""
    chosen, given = record.toolchain, record.prescription
    title = name(chosen.title) if chosen is not None and chosen.name else ""
    configurations = given.configurations if given is not None else ()
    if chosen is None or given is None or not configurations:
        lacking = f"{title} has no option for it" if title else "the toolchain was not recognized"
        yield from wrap_line(f"{lacking}: name yours with --toolchain.")
        yield from wrap_line(f"the layers and the nodes that read them: {literal(record.nodes_to_exclude)}", indent=2)
        return
    yield from wrap_line(f"for {title} ({visible(chosen.how)}; --toolchain names another):")
    for block in configurations:
        yield from (f"  {visible(line)}".rstrip() for line in block.code.splitlines())
    yield from wrap_line("calibrate with the data and the method that you use now", indent=2)
    for user_name, what in given.given.items():
        yield from wrap_line(f"{user_name}: {what}", indent=2)
    for note in given.steps[0].notes:
        yield from wrap_line(f"note: {visible(note, 600)}", indent=2)


def _goal_text(record: FallbackRecord) -> str:
    if record.goal.kind == "sqnr":
        return f"SQNR of at least {decibels(record.goal.limit)}, also of the worst output column"
    return f"{_goal_metric(record)} at most {_metric_change(record, record.goal.limit)} worse"


def _search_summary(record: FallbackRecord) -> str:
    if not record.found:
        said = "interrupted before any set met the goal" if record.interrupted else _VERDICTS["none"]
    else:
        size = count(len(record.units), "layer")
        said = f"the smallest set that was found: {len(record.layers)} of {size} leave int8"
        said = said if record.layers else f"none of {size} has to leave int8"
        said += ": the best set when it was interrupted" if record.interrupted else ""
    return f"{said}; {count(record.samples, 'sample')} of {name(record.data)} searched, seed {record.seed}"


def _layer_table(record: FallbackRecord) -> Iterator[str]:
    yield f"    #  {'layer':<44} {'operator':<18} read by"
    for place, layer in enumerate(record.layers, 1):
        shown = ", ".join(visible(reader, 30) for reader in layer.readers[:1])
        more = f" and {len(layer.readers) - 1} more" if len(layer.readers) > 1 else ""
        yield f"{place:>5}  {visible(layer.name, 44):<44} {visible(layer.op_type, 18):<18} {shown}{more}".rstrip()


def _check_lines(record: FallbackRecord) -> Iterator[str]:
    check = record.check
    assert check is not None
    samples = count(check.samples, "sample")
    where = "the same samples as the search, for there are few" if check.shared else "not those of the search"
    yield f"measured on the quantized model itself, {samples}, {where}"
    labelled = check.before.drop is not None
    head = f" {_goal_metric(record):>10}  {_loss(record)} [95 %]" if labelled else ""
    yield f"  {'':<14} {'SQNR dB [95 %]':<22}{head}"
    yield _level_line(record, "as it is", check.before)
    if check.after is not None:
        yield _level_line(record, "with fallback", check.after)
    if check.failed is not None:
        yield from wrap_line(
            f"warning: the set could not be tried on the model: {visible(check.failed, 300)}", indent=2
        )
    if check.unedited:
        more = f" and {len(check.unedited) - NAMES_SHOWN} more" if len(check.unedited) > NAMES_SHOWN else ""
        yield from wrap_line(f"not carried out: {'; '.join(map(name, check.unedited[:NAMES_SHOWN]))}{more}", indent=2)


def _level_line(record: FallbackRecord, title: str, found: Level) -> str:
    sqnr = f"{level(found.sqnr_db)} [{level(found.sqnr_low)}, {level(found.sqnr_high)}]"
    line = f"  {title:<14} {sqnr:<22}"
    if found.drop is None or found.drop_low is None or found.drop_high is None:
        return f"{line} {_worst_text(found)}".rstrip()
    ends = ", ".join(_metric_change(record, end).removesuffix(" points") for end in (found.drop_low, found.drop_high))
    return (
        f"{line} {metric_value(found.metric, _metric_kind(record)):>10}  {_metric_change(record, found.drop)} [{ends}]"
    )


def _worst_text(found: Level) -> str:
    """Which column or operand the SQNR is of."""
    if found.worst is None or found.whole_sqnr_db is None:
        return ""
    return f"{visible(found.worst, 60)}; {level(found.whole_sqnr_db)} as a whole"


def _stricter_goal(record: FallbackRecord) -> str:
    """A goal for the search that leaves room for what the check lost."""
    assert record.check is not None
    after = record.check.after or record.check.before
    if record.goal.kind == "sqnr":
        return f"search again with --min-sqnr {record.goal.limit + (record.goal.limit - after.sqnr_db):.1f}"
    return "search again with more --samples, or with a smaller --max-drop"


def _cost_lines(record: FallbackRecord) -> Iterator[str]:
    cost = record.cost
    if cost is None or not record.layers:
        return
    parts = [f"weights take {_bytes_text(cost.bytes)} more"]
    if cost.operations is not None and cost.operations_all:
        share = percent(cost.operations / cost.operations_all, 1)
        parts.append(
            f"{_si_amount(cost.operations)} of {_si_amount(cost.operations_all)} multiply-adds leave int8 ({share})"
        )
    elif cost.operations is not None:
        parts.append(f"{_si_amount(cost.operations)} multiply-adds leave int8")
    else:
        parts.append("multiply-adds not known: shapes depend on the data, or layers are recurrent")
    dragged = f"{count(cost.readers, 'layer')} beside them run{'s' if cost.readers == 1 else ''} in float too"
    yield from wrap_line(f"cost: {dragged}, for what they read is float; {'; '.join(parts)}")


def _search_lines(record: FallbackRecord) -> Iterator[str]:
    usual = f"one layer at a time takes {record.one_at_a_time}"
    yield f"search: {count(record.evaluations, 'evaluation')}, the ranking included; {usual}"
    for fewer, more in record.reversals[:REVERSALS_SHOWN]:
        a, b = record.steps[fewer], record.steps[more]
        added = [record.units[i] for i in b.layers if i not in a.layers]
        names = ", ".join(visible(each, 40) for each in added[:NAMES_SHOWN])
        rest = f" and {len(added) - NAMES_SHOWN} more" if len(added) > NAMES_SHOWN else ""
        sizes = f"{len(a.layers)} layers in float: {_goal_value(record, a.value)}"
        yield from wrap_line(
            f"not monotone: {sizes}; with {names}{rest} in float too: {_goal_value(record, b.value)}, and more noise"
        )
    if len(record.reversals) > REVERSALS_SHOWN:
        yield f"  {len(record.reversals) - REVERSALS_SHOWN} more such pairs: --format json"
    if record.unsimulated:
        names = ", ".join(map(name, record.unsimulated[:NAMES_SHOWN]))
        yield from wrap_line(f"warning: not searched, for these quantizers cannot be simulated: {names}", indent=2)


def _goal_metric(record: FallbackRecord) -> str:
    return metric_label(record.goal.metric)


def _metric_kind(record: FallbackRecord) -> str | None:
    return _AS.get(record.goal.metric or "", record.goal.metric)


def _metric_change(record: FallbackRecord, value: float) -> str:
    return metric_change(value, _metric_kind(record))


def _goal_value(record: FallbackRecord, value: float) -> str:
    return decibels(value) if record.goal.kind == "sqnr" else f"{_loss(record)} {_metric_change(record, value)}"


def _loss(record: FallbackRecord) -> str:
    return loss_word(record.goal.higher_is_better)


def _si_amount(value: int) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{number(value / size)} {unit}"
    return str(value)


def _bytes_text(value: int) -> str:
    return f"{_si_amount(value)}B" if value >= 1000 else f"{value} bytes"
