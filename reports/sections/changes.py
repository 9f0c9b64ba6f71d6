"""What changed between two cases: causes by what became of them, layers by their gain, settings and remedies."""

from collections.abc import Iterator, Mapping, Sequence

from quantmedic.engine.contract.previous_report import Changed, Tried
from quantmedic.engine.diagnosis.headline import SHIFT_DB, is_beyond
from quantmedic.engine.versus.cause_changes import CauseChange, Status, SubjectChange
from quantmedic.engine.versus.side_by_side import ComparisonReport, LayerChange
from quantmedic.reports.blocks import Block, Bullets, Cell, Column, Heading, Inline, Paragraph, Span, Table, make_table
from quantmedic.reports.charts.comparison import Level, largest, levels
from quantmedic.reports.sections.previous import PLURALS, setting_text
from quantmedic.reports.text import capital, count, first_few, level, measure, name, number, visible

NAMES_SHOWN, NAME_LIMIT = 3, 40
#: In front of what stands below a cause.
BELOW = "└ "
TITLES: dict[Status, str] = {
    "new": "broke: new",
    "worse": "broke: worse",
    "mixed": "better on some, worse on others",
    "healed": "healed",
    "better": "better",
    "unchanged": "as before",
    "explained": "found in both, and in one of them explained by another cause",
    "not-judged": "not judged in one of them",
    "gone": "on layers that only one of them has",
}
#: Words behind a number of causes.
COUNTED: dict[Status, str] = {"mixed": "better and worse", "unchanged": "as before", "not-judged": "not judged"}
LOOKS: dict[Status, str] = {"new": "bad", "worse": "bad", "healed": "good", "better": "good"}
#: Said in a notice, and no setting.
SHARE_OF_SAMPLES = "share of the same samples"
LABELS = {
    "bytes_float": "float model",
    "bytes_quantized": "quantized model",
    "operations": "multiply-adds",
    "integer_operations_share": "of them integer",
    "latency_float_ms": "float latency",
    "latency_quantized_ms": "latency",
}


def cause_blocks(record: ComparisonReport, subjects: int | None, quiet: bool) -> list[Block]:
    """Causes by what became of them.

    Args:
        record: What was compared.
        subjects: So many subjects of each are shown at most; None: all.
        quiet: Those to which nothing happened are left out.
    """
    blocks: list[Block] = []
    for status, title in TITLES.items():
        found = [cause for cause in record.causes if cause.status == status]
        if found and not (quiet and status == "unchanged"):
            blocks += [Heading(f"{title} ({len(found)})"), _cause_table(title, found, subjects)]
            notes = [f"{_cause_name(cause)}: {note}" for cause in found if (note := _cause_note(cause))]
            blocks += [Bullets(notes)] if notes else []
    return blocks


def _cause_table(title: str, causes: Sequence[CauseChange], subjects: int | None) -> Table:
    """Each cause, and below it the subjects that it was found on, where there are several."""
    columns = [
        Column("cause"),
        Column("status", brief=any(len({own.status for own in cause.subjects}) > 1 for cause in causes)),
        Column("severity"),
        Column("headline fact", "whole"),
        Column("before", "num"),
        Column("after", "num"),
        Column("threshold", "num", brief=False),
        Column("found", "whole"),
    ]
    rows: list[Sequence[Cell]] = []
    for cause in causes:
        rows.append(_cause_row(cause))
        if len(cause.subjects) > 1 and cause.status != "unchanged":
            rows += [_subject_row(subject, cause) for subject in cause.subjects[:subjects]]
            more = len(cause.subjects) - len(cause.subjects[:subjects])
            rows += [(f"{BELOW}{more} more: -o FOLDER", *[""] * 7)] if more else []
    return Table(f"Causes, {title}", columns, rows, "causes")


def _cause_row(cause: CauseChange) -> Sequence[Cell]:
    severities = dict.fromkeys(s for s in (cause.severity_before, cause.severity_after) if s is not None)
    compared = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}.get(cause.comparison or "", "")
    return (
        _cause_name(cause),
        _fate_span(cause.status.replace("-", " "), LOOKS.get(cause.status, "")),
        " → ".join(severities),
        Span(name(cause.fact), "code") if cause.fact is not None else "",
        *_fact_cells(cause, cause),
        f"{compared} {measure(cause.threshold, cause.unit)}" if compared else "",
        _subjects_text(cause),
    )


def _cause_name(cause: CauseChange) -> str:
    return f"{cause.rules[0] if cause.rules else '?'} {name(cause.name or cause.cause)}"


def _subject_row(subject: SubjectChange, cause: CauseChange) -> Sequence[Cell]:
    was = f" (was {name(subject.before_name)})" if subject.before_name is not None else ""
    status = Span(subject.status.replace("-", " "), LOOKS.get(subject.status, ""))
    called = [BELOW, Span(f"{name(subject.subject)}{was}", "name")]
    return (called, status, "", "", *_fact_cells(subject, cause), "", "")


def _fact_cells(found: CauseChange | SubjectChange, cause: CauseChange) -> tuple[str, str]:
    """The headline fact before and after; empty where the cause has none."""
    if cause.fact is None:
        return "", ""
    return measure(found.before, cause.unit), measure(found.after, cause.unit)


def _fate_span(text: str, look: str) -> Span:
    return Span(text, f"fate fate-{look}" if look else "fate")


def _subjects_text(cause: CauseChange) -> str:
    if len(cause.subjects) == 1:
        return f"on {name(cause.subjects[0].subject)}"
    return f"on {cause.found_before} → {count(cause.found_after, 'subject')}"


def _cause_note(cause: CauseChange) -> str:
    if cause.status == "explained":
        which = "second" if cause.severity_after is None else "first"
        by = f" by {name(cause.explained_by)}" if cause.explained_by is not None else ""
        return f"in the {which} case it is explained{by}"
    if cause.status == "not-judged":
        which = "second" if cause.severity_after is None else "first"
        facts = ", ".join(name(fact) for fact in cause.missing[:NAMES_SHOWN])
        return f"the {which} case lacks {facts or 'what it takes'}"
    silent = cause.after if cause.status == "healed" else cause.before if cause.status == "new" else None
    if silent is not None and is_beyond(silent, cause.comparison, cause.threshold):
        said = f"another condition of its rule {'no longer holds' if cause.status == 'healed' else 'did not hold'}"
        turned = "; ".join(
            f"{name(own.fact)} {setting_text(own.before, own.unit)} → {setting_text(own.after, own.unit)}"
            for own in cause.turned[:NAMES_SHOWN]
        )
        return f"{said}: {turned}" if turned else said
    return ""


def match_text(record: ComparisonReport) -> str:
    """How layers were matched, as a sentence."""
    matched = record.matched
    parts = [f"{count(len(record.layers), 'layer')} in both"]
    parts += [f"{matched.by_name} matched by name"] if matched.by_name else []
    if matched.by_position:
        parts.append(f"{matched.by_position} by position and kind")
    for which, names in (("first", matched.only_before), ("second", matched.only_after)):
        if names:
            shown = first_few([visible(text, NAME_LIMIT) for text in names], NAMES_SHOWN)
            parts.append(f"{len(names)} only in the {which} ({shown})")
    if levels(record) and not any(found.look != "same" for found in levels(record)):
        parts.append(f"none changed by {number(SHIFT_DB)} dB or more")
    return ", ".join(parts)


def layer_blocks(record: ComparisonReport, most: int | None, measured: str) -> list[Block]:
    """Layers that got worse, then those that got better; at most ``most`` each way."""
    found = levels(record)
    blocks: list[Block] = []
    for look, colour in (("worse", "bad"), ("better", "good")):
        rows = largest(found, look)
        if rows:
            title = f"{count(len(rows), 'layer')} {look}, the largest change first"
            blocks += [Heading(title), _layer_table(title, rows[:most], measured, colour)]
            left = len(rows) - len(rows[:most])
            more = f"{left} more: -o FOLDER writes all of them to compare.json"
            blocks += [Paragraph(more, "muted")] if left else []
    return blocks


def _layer_table(title: str, rows: Sequence[Level], measured: str, look: str) -> Table:
    return make_table(
        title,
        rows,
        [
            (Column("#", "num"), lambda row: row.layer.index),
            (Column("layer", "name"), _layer_name),
            (Column("operator"), lambda row: visible(row.layer.op_type, NAME_LIMIT)),
            (Column(f"{measured} before, dB", "num", level), lambda row: row.before),
            (Column("after", "num", level), lambda row: row.after),
            (Column("change", "num"), lambda row: Span(level(row.gain, "+"), look)),
            (Column("note"), lambda row: ", ".join(_layer_notes(row.layer))),
        ],
        "dense",
    )


def _layer_name(row: Level) -> Inline:
    was = row.layer.before_name
    return [Span(name(row.layer.name), "name"), Span(f"was {name(was)}" if was is not None else "", "note")]


def _layer_notes(layer: LayerChange) -> Iterator[str]:
    if layer.degraded_before is not None and layer.degraded_after is not None:
        if layer.degraded_before and not layer.degraded_after:
            yield "was degraded"
        if layer.degraded_after and not layer.degraded_before:
            yield "degraded now"
    pairs = (("", layer.bits_before, layer.bits_after), ("weights ", layer.weight_bits_before, layer.weight_bits_after))
    for what, old, new in pairs:
        if old != new:
            yield f"{what}{_bits_text(old)} → {_bits_text(new)}"


def _bits_text(bits: int | None) -> str:
    return f"{bits} bit" if bits else "float"


def setting_table(record: ComparisonReport) -> Table | None:
    """Settings of the model, of the measurement and of the rules that changed; None where none did."""
    rows = list(_setting_rows(record))
    heads = ("setting", "of", "example", "before", "after")
    columns = [Column(head, "name" if head == "example" else "") for head in heads]
    return Table("Settings that changed", columns, rows) if rows else None


def _setting_rows(record: ComparisonReport) -> Iterator[Sequence[Cell]]:
    for fact in record.settings:
        old, new = (setting_text(value, fact.unit) for value in (fact.before, fact.after))
        yield fact_label(fact.fact), "model", "", old, new
    for changed in record.changed:
        if changed.setting != SHARE_OF_SAMPLES:
            yield from _changed_rows(changed)
    for where, changes in (("measurement", record.options), ("rules", record.thresholds)):
        for change in changes:
            values = (setting_text(change.before), setting_text(change.after))
            yield fact_label(name(change.subject)), where, "", *values


def _changed_rows(changed: Changed) -> Iterator[Sequence[Cell]]:
    """One row per data set; of layers and activations one, with the first of them."""
    is_set = changed.of == "data set"
    for example in changed.examples if is_set else changed.examples[:1]:
        subject = name(example.subject)
        where = f"{subject} set" if is_set else count(changed.count, changed.of, PLURALS[changed.of])
        values = (setting_text(example.before), setting_text(example.after))
        yield changed.setting, where, "" if is_set else subject, *values


def applied_remedies(record: ComparisonReport) -> tuple[str, ...]:
    """What is now as remedies of the first diagnosis ask for, each once with all causes that it is for."""
    found: dict[str, list[Tried]] = {}
    for tried in record.tried:
        found.setdefault(tried.title, []).append(tried)
    called = {cause.cause: _cause_name(cause) for cause in record.causes}
    return tuple(_applied_remedy(title, rows, called) for title, rows in found.items())


def _applied_remedy(title: str, rows: Sequence[Tried], called: Mapping[str, str]) -> str:
    subjects = list(dict.fromkeys(subject for row in rows for subject in row.subjects))
    causes = ", ".join(called.get(row.cause, name(row.cause)) for row in rows)
    return f"{capital(name(title))}, on {first_few([name(subject) for subject in subjects], 1)}, for {causes}"


def fact_label(path: str) -> str:
    """A fact as people call it."""
    return LABELS.get(path, path.replace("_", " ").replace(".", " "))
