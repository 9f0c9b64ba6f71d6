"""What changed between two cases: causes by what became of them, layers by their gain, settings and remedies."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated

from quantmedic.engine.contract.previous_report import Changed, SettingChange, Tried
from quantmedic.engine.diagnosis.headline import SHIFT_DB, is_beyond
from quantmedic.engine.versus.cause_changes import CauseChange, Status, SubjectChange
from quantmedic.engine.versus.side_by_side import ComparisonReport, LayerChange
from quantmedic.reports.charts.comparison import Level, largest, levels
from quantmedic.reports.sections.previous import PLURALS
from quantmedic.reports.text import capital, count, level, measure, name, number, percent, visible

NAMES_SHOWN, NAME_LIMIT = 3, 40
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


@dataclass(frozen=True)
class SubjectLine:
    """One layer, tensor or data set of a cause."""

    subject: Annotated[str, "its name"]
    status: Annotated[str, "what became of it"]
    before: Annotated[str, "headline fact before"]
    after: Annotated[str, "headline fact after"]
    look: Annotated[str, "good, bad or empty"]


@dataclass(frozen=True)
class CauseLine:
    """What became of one cause."""

    code: Annotated[str, "the first of its rules"]
    cause: Annotated[str, "its name"]
    status: Annotated[str, "what became of it"]
    severity: Annotated[str, "severity before and after, one where they are equal"]
    fact: Annotated[str, "headline fact; empty where it has none"]
    before: Annotated[str, "its worst value before"]
    after: Annotated[str, "its worst value after"]
    limit: Annotated[str, "comparison and threshold"]
    found: Annotated[str, "on how many subjects it was found"]
    note: Annotated[str, "what explains it, or what lacks to judge it; empty else"]
    subjects: Annotated[tuple[SubjectLine, ...], "the subjects shown"]
    more: Annotated[int, "subjects that are only in compare.json"]
    look: Annotated[str, "good, bad or empty"]


@dataclass(frozen=True)
class CauseGroup:
    """Causes with the same fate."""

    title: Annotated[str, "what became of them"]
    causes: Annotated[tuple[CauseLine, ...], "the causes"]
    look: Annotated[str, "good, bad or empty"]
    quiet: Annotated[bool, "nothing happened to them"]


@dataclass(frozen=True)
class LayerLine:
    """One layer whose error changed."""

    index: Annotated[int, "topological index in the second case"]
    layer: Annotated[str, "its name"]
    was: Annotated[str, "its name in the first case, where that is another"]
    op_type: Annotated[str, "operator type"]
    before: Annotated[str, "SQNR in dB before"]
    after: Annotated[str, "the same after"]
    gain: Annotated[str, "its change"]
    note: Annotated[str, "bits that changed, and thresholds that were crossed"]


@dataclass(frozen=True)
class LayerGroup:
    """Layers that changed one way, the largest change first."""

    title: Annotated[str, "which way, and how many"]
    rows: Annotated[tuple[LayerLine, ...], "the layers shown"]
    left_out: Annotated[int, "layers that are only in compare.json"]
    look: Annotated[str, "good or bad"]


@dataclass(frozen=True)
class ChangeLine:
    """One setting that changed."""

    setting: Annotated[str, "what was set"]
    where: Annotated[str, "on how many layers, activations or data sets; or model, run, rules"]
    example: Annotated[str, "the first of them; empty for the model itself"]
    before: Annotated[str, "value before"]
    after: Annotated[str, "value after"]


def cause_groups(record: ComparisonReport, subjects: int | None) -> tuple[CauseGroup, ...]:
    """Causes by what became of them; ``subjects`` limits how many are shown of each, None shows all."""
    return tuple(
        CauseGroup(
            title=title,
            causes=tuple(_cause_line(cause, subjects) for cause in record.causes if cause.status == status),
            look=LOOKS.get(status, ""),
            quiet=status == "unchanged",
        )
        for status, title in TITLES.items()
        if any(cause.status == status for cause in record.causes)
    )


def _cause_line(cause: CauseChange, subjects: int | None) -> CauseLine:
    severities = dict.fromkeys(s for s in (cause.severity_before, cause.severity_after) if s is not None)
    compared = {"gt": ">", "ge": "≥", "lt": "<", "le": "≤"}.get(cause.comparison or "", "")
    shown = cause.subjects[:subjects]
    return CauseLine(
        code=visible(cause.rules[0]) if cause.rules else "?",
        cause=name(cause.name or cause.cause),
        status=cause.status.replace("-", " "),
        severity=" → ".join(severities),
        fact=name(cause.fact) if cause.fact is not None else "",
        before=measure(cause.before, cause.unit),
        after=measure(cause.after, cause.unit),
        limit=f"{compared} {measure(cause.threshold, cause.unit)}" if compared else "",
        found=_subjects_text(cause),
        note=_cause_note(cause),
        subjects=tuple(_subject_line(subject, cause) for subject in shown),
        more=len(cause.subjects) - len(shown),
        look=LOOKS.get(cause.status, ""),
    )


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
            f"{name(own.fact)} {_setting_value(own.before, own.unit)} → {_setting_value(own.after, own.unit)}"
            for own in cause.turned[:NAMES_SHOWN]
        )
        return f"{said}: {turned}" if turned else said
    return ""


def _subject_line(subject: SubjectChange, cause: CauseChange) -> SubjectLine:
    was = f" (was {name(subject.before_name)})" if subject.before_name is not None else ""
    return SubjectLine(
        subject=f"{name(subject.subject)}{was}",
        status=subject.status.replace("-", " "),
        before=measure(subject.before, cause.unit),
        after=measure(subject.after, cause.unit),
        look=LOOKS.get(subject.status, ""),
    )


def match_text(record: ComparisonReport) -> str:
    """How layers were matched, as a sentence."""
    matched = record.matched
    parts = [f"{count(len(record.layers), 'layer')} in both"]
    parts += [f"{matched.by_name} matched by name"] if matched.by_name else []
    if matched.by_position:
        parts.append(f"{matched.by_position} by position and kind")
    for which, names in (("first", matched.only_before), ("second", matched.only_after)):
        if names:
            shown = ", ".join(visible(text, NAME_LIMIT) for text in names[:NAMES_SHOWN])
            more = f" and {len(names) - NAMES_SHOWN} more" if len(names) > NAMES_SHOWN else ""
            parts.append(f"{len(names)} only in the {which} ({shown}{more})")
    if levels(record) and not any(found.look != "same" for found in levels(record)):
        parts.append(f"none changed by {number(SHIFT_DB)} dB or more")
    return ", ".join(parts)


def layer_groups(record: ComparisonReport, most: int | None) -> tuple[LayerGroup, ...]:
    """Layers that got worse, then those that got better; at most ``most`` each way."""
    found = levels(record)
    groups = []
    for look, colour in (("worse", "bad"), ("better", "good")):
        rows = largest(found, look)
        if rows:
            shown = rows[:most]
            title = f"{count(len(rows), 'layer')} {look}, the largest change first"
            lines = tuple(_layer_line(row) for row in shown)
            groups.append(LayerGroup(title, lines, len(rows) - len(shown), colour))
    return tuple(groups)


def _layer_line(found: Level) -> LayerLine:
    layer = found.layer
    return LayerLine(
        index=layer.index,
        layer=name(layer.name),
        was=name(layer.before_name) if layer.before_name is not None else "",
        op_type=visible(layer.op_type, NAME_LIMIT),
        before=level(found.before),
        after=level(found.after),
        gain=level(found.gain, "+"),
        note=", ".join(_layer_notes(layer)),
    )


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


def setting_changes(record: ComparisonReport) -> Iterator[ChangeLine]:
    """Settings of the model, of the measurement and of the rules that changed."""
    for fact in record.settings:
        old, new = (_setting_value(value, fact.unit) for value in (fact.before, fact.after))
        yield ChangeLine(fact_label(fact.fact), "model", "", old, new)
    for changed in record.changed:
        if changed.setting != SHARE_OF_SAMPLES:
            yield from _change_lines(changed)
    for where, changes in (("measurement", record.options), ("rules", record.thresholds)):
        for change in changes:
            yield _option_line(change, where)


def _change_lines(changed: Changed) -> Iterator[ChangeLine]:
    """One line per data set; of layers and activations one, with the first of them."""
    is_set = changed.of == "data set"
    for example in changed.examples if is_set else changed.examples[:1]:
        subject = name(example.subject)
        yield ChangeLine(
            visible(changed.setting),
            f"{subject} set" if is_set else count(changed.count, changed.of, PLURALS[changed.of]),
            "" if is_set else subject,
            _setting_value(example.before),
            _setting_value(example.after),
        )


def _option_line(change: SettingChange, where: str) -> ChangeLine:
    return ChangeLine(
        fact_label(name(change.subject)), where, "", _setting_value(change.before), _setting_value(change.after)
    )


def _setting_value(value: object, unit: str | None = None) -> str:
    if unit == "share" and isinstance(value, float):
        return percent(value, 1)
    if isinstance(value, tuple | list) and len(value) == 2 and all(isinstance(v, int | float) for v in value):
        return f"{number(value[0])} … {number(value[1])}"
    return "none" if value is None else measure(value, unit)


def applied_remedies(record: ComparisonReport) -> tuple[str, ...]:
    """What is now as remedies of the first diagnosis ask for, each once with all causes that it is for."""
    found: dict[str, list[Tried]] = {}
    for tried in record.tried:
        found.setdefault(tried.title, []).append(tried)
    return tuple(_applied_remedy(title, rows) for title, rows in found.items())


def _applied_remedy(title: str, rows: Sequence[Tried]) -> str:
    subjects = list(dict.fromkeys(subject for row in rows for subject in row.subjects))
    more = f" and {len(subjects) - 1} more" if len(subjects) > 1 else ""
    causes = ", ".join(name(row.cause) for row in rows)
    return f"{capital(name(title))}, on {name(subjects[0])}{more}, for {causes}"


def fact_label(path: str) -> str:
    """A fact as people call it."""
    return LABELS.get(path, path.replace("_", " ").replace(".", " "))
