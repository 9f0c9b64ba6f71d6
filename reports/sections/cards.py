"""Cause cards: what is wrong, the proof, the remedy, and what it explains."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, takewhile
from typing import Annotated, TypeGuard

from quantmedic.engine.case.proof import TrialRecord
from quantmedic.engine.contract.advised_remedies import Advice, Present, Recovery, Withheld
from quantmedic.engine.contract.causes import Ahead, CauseReport, Explained, LeadingStep
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.diagnosis.candidates import NOTHING_CHANGED
from quantmedic.engine.diagnosis.headline import is_number
from quantmedic.engine.diagnosis.snippets import changed_settings, is_whole, render_snippets
from quantmedic.engine.rules.conditions import COMPARISONS, SHOWN
from quantmedic.engine.rules.evaluate import Evidence
from quantmedic.engine.rules.remedies import Snippet
from quantmedic.reports.blocks import (
    EMBEDDED,
    Block,
    Bullets,
    Code,
    Column,
    Details,
    Facts,
    Heading,
    PageOnly,
    Paragraph,
    Span,
    Table,
    Tabs,
    joined,
    layer_target,
    make_table,
)
from quantmedic.reports.sections.asked import asked_lines, is_about_asked
from quantmedic.reports.sections.gate import exempted_of
from quantmedic.reports.sections.harm import harm_text
from quantmedic.reports.sections.prescription import MARKS
from quantmedic.reports.sections.previous import tried_text
from quantmedic.reports.sections.proof import (
    TYPICAL,
    by_toolchain,
    gain_text,
    integer_text,
    judged_text,
    metric_text,
    nothing_beyond,
    proven_word,
    samples_text,
    signed_gain,
    still_lost,
    trial_gain_text,
    trial_text,
    tried_advice,
)
from quantmedic.reports.text import (
    capital,
    count,
    decibels,
    fact_info,
    first_few,
    measure,
    name,
    number,
    percent,
    sentence,
    visible,
)

SUBJECTS_SHOWN = 3
#: Values with more letters are words, which may break.
WORDS_FROM = 24
#: Said beside a call that lacks the settings in force.
PARTIAL = "the change alone; keep the other settings that you quantize with"
#: Said beside a call that has them.
WHOLE = "the whole call, with the settings in force"
TOOLCHAIN_NAMES = {"onnxruntime": "ONNX Runtime"}

#: A cause is shown to hide behind others where it recovers so much more in dB once these are repaired.
HIDDEN_DB = 1.0
#: Two causes are about the same noise where they share this part of what either names.
SAME = 0.5
CAUSES_SHOWN = 3
#: Kinds of remedies that leave layers in float.
IN_FLOAT = ("float", "float-with-inputs", "group-float")
#: What counts where two causes are compared.
COUNTED = "each the mean of what it recovers alone and where what hides it is repaired"
BEFORE_RUN = "as far as the other was tried or simulated"
UNTRIED = "neither change was tried"
#: Why a cause leads; the steps are those of the page "how sure".
LEADS_BY: Mapping[LeadingStep, str] = {
    "doubt": "it makes the comparison itself doubtful, which may explain everything else",
    "severity": "it is graver, by what its change recovers of a loss or by its rule",
    "proof": "as grave, it alone was carried out on the model by a change that repairs no other fault",
    "whole-model": "most layers are degraded, and it concerns the whole model",
    "suffices": "its change heals within the bits in force; the other's does not, or takes quantizers away",
    "worth": "the confidence of its rule times what its change recovers is larger",
    "origin": "the error originates where it is",
    "confidence": "its rule is surer",
    "size": "both recover about the same, and its change is the smaller one",
    "run": "its printed prescription was run, and takes most of the noise away",
}


@dataclass(frozen=True)
class RemedyCard:
    """One way to repair a cause."""

    title: Annotated[str, "name of the remedy"]
    changes: Annotated[str, "what it changes"]
    predicted: Annotated[str, "what it recovers at the output, simulated, with its interval; empty where not simulated"]
    facts: Annotated[Mapping[str, str], "all that there is to say of it, by what it is called"]
    no_option: Annotated[str, "that the toolchain which the report speaks for has no option for it; empty: it has"]
    code: Annotated[str, "what to copy in that toolchain; empty where it has nothing"]
    sets: Annotated[Mapping[str, Sequence[str]], "lines of it that set options, by what takes them"]
    ways: Annotated[Tabs | None, "what to copy, by toolchain, that which the report speaks for first"]
    same_as: Annotated[str, "code of the cause before it that has the same to copy; empty: none"] = ""

    @property
    def blocks(self) -> Iterator[Block]:
        """The remedy below its title."""
        yield Heading(self.title, level=5)
        yield Facts([(label, Span(text, "code") if label == "now" else text) for label, text in self.facts.items()])
        if self.no_option:
            yield Paragraph(f"{self.no_option}{'; other toolchains have:' if self.ways else ''}", "muted")
        if self.same_as:
            yield Paragraph(["What to copy: as for ", Span(self.same_as, "", f"#cause-{self.same_as}")], "muted")
        elif self.ways is not None:
            yield self.ways


@dataclass(frozen=True)
class Gain:
    """What repairing a cause brings."""

    kind: Annotated[str, "measured (by a trial), predicted or simulated; of the whole drop: recovers"]
    text: Annotated[str, "the gain with its unit and its interval"]
    judged: Annotated[str, "proven, and on how many samples, or why not; empty where that is not known"] = ""
    look: Annotated[str, "how it is drawn: measured, unproven or predicted"] = "predicted"

    @property
    def said(self) -> str:
        """What something brings, how that is known, and how sure."""
        return f"{self.kind} {self.text}{f', {self.judged}' if self.judged else ''}"


@dataclass(frozen=True)
class CauseCard:
    """One cause, ready to be printed."""

    rank: Annotated[int, "place, 1 = look here first"]
    code: Annotated[str, "code of the leading rule; names anchor and manual page"]
    rules: Annotated[tuple[str, ...], "codes of all rules that speak for the cause"]
    cause: Annotated[str, "the fault that its rules have in common"]
    name: Annotated[str, "what it is called: the name of the leading rule"]
    severity: Annotated[str, "high, medium, low or info"]
    harm: Annotated[str, "what it costs now, in a few words; empty where that was not measured"]
    assumed: Annotated[bool, "no loss is proven, and its repair recovers noise"]
    confidence: Annotated[str, "probability that the cause is real, as percent"]
    scope: Annotated[str, "how much it concerns: '9 layers', 'representative', 'model'"]
    message: Annotated[str, "what is wrong, one sentence"]
    same_as: Annotated[str, "code of the cause that it is another name of; empty: a fault of its own"]
    behind: Annotated[str, "code of the cause whose noise hides it; empty: it shows now"]
    gains: Annotated[tuple[Gain, ...], "measured and predicted gains, measured first"]
    layers: Annotated[tuple[str, ...], "names of the layers concerned, worst first"]
    found: Annotated[str, "what was found, where a fact says it in words: how the data differ, say; may be empty"]
    remedies: Annotated[tuple[RemedyCard, ...], "what to do, best first"]
    exempted: Annotated[str, "how much of it the policy of the gate exempts, and why; empty where it does not"]
    struck: Annotated[bool, "all of it is exempted"]
    blocks: Annotated[tuple[Block, ...], "message, evidence, remedies, and what it explains"]

    @property
    def found_apart(self) -> str:
        """What was found in words, where the message does not hold them already."""
        return "" if self.found in self.message else self.found

    @property
    def chips(self) -> list[Span]:
        """What stands beside its name: how grave and how sure it is, what it concerns, what its repair brings."""
        plain = (self.harm, ", ".join(self.rules), self.scope, f"confidence {self.confidence}")
        chips = [Span(self.severity, f"chip chip-{self.severity}"), *(Span(text, "chip") for text in plain if text)]
        return [*chips, *(Span(gain.said, f"gain gain-{gain.look}") for gain in self.gains)]


def cause_cards(diagnosis: Diagnosis, pages: Iterable[str]) -> tuple[CauseCard, ...]:
    """One card per cause in the order of the diagnosis; ``pages`` names the manual pages at hand."""
    known, said = set(pages), dict[str, str]()
    return tuple(_cause_card(rank, cause, diagnosis, known, said) for rank, cause in enumerate(diagnosis.causes, 1))


def _cause_card(
    rank: int, cause: CauseReport, diagnosis: Diagnosis, pages: set[str], said: dict[str, str]
) -> CauseCard:
    """A card; ``said`` holds what to copy of the remedies of those before it, with the codes of their causes."""
    code = cause.rules[0] if cause.rules else cause.manual.rpartition("/")[2]
    exempted = exempted_of(cause, diagnosis.check)
    first, _ = _split_evidence(cause)
    card = CauseCard(
        rank=rank,
        code=visible(code),
        rules=tuple(visible(rule) for rule in cause.rules),
        cause=name(cause.cause),
        name=name(cause.shown),
        severity=cause.severity,
        harm=harm_text(cause, diagnosis),
        assumed=cause.harm == "assumed",
        confidence=f"{100 * cause.confidence:.0f} %",
        scope=_scope_text(cause),
        message=visible(cause.message.strip(), 600),
        same_as=_code_of(cause.explained_by, diagnosis),
        behind=_code_of(cause.behind, diagnosis),
        gains=_cause_gains(cause, diagnosis),
        layers=tuple(name(layer.float_name or layer.quantized_name) for layer in cause.layers),
        found=next((visible(row.value) for row in first if row.comparison == SHOWN and _is_told(row.value)), ""),
        remedies=tuple(
            _unless_said(_remedy_card(place, cause, diagnosis, f"tool-{rank}"), visible(code), said)
            for place in range(len(cause.remedies))
        ),
        exempted=exempted.text if exempted is not None else "",
        struck=exempted is not None and exempted.whole,
        blocks=(),
    )
    return replace(card, blocks=tuple(_card_blocks(card, cause, diagnosis, code in pages)))


def _card_blocks(card: CauseCard, cause: CauseReport, diagnosis: Diagnosis, has_page: bool) -> Iterator[Block]:
    first, rest = _split_evidence(cause)
    beside = ""
    if card.behind:
        beside = f"; it shows, and costs, once {card.behind} is repaired"
    elif card.same_as:
        beside = f"; the same fault as {card.same_as}, where it shows"
    asked = any(is_about_asked(row.fact) for row in first) and bool(asked_lines(diagnosis.layers))
    more = [" ", Span("Layer by layer", "hint", "#asked")] if asked else []
    yield Paragraph([f"{capital(card.message)}{beside}", *more], "message")
    if card.rank == 1 and cause.ahead is not None:
        yield Paragraph(_ahead_text(cause.ahead, diagnosis), "muted")
    yield from (Paragraph(text, "muted") for text in connections(cause, diagnosis))
    if card.exempted:
        yield Paragraph(sentence(card.exempted), "exempted")
    if cause.tried:
        yield Paragraph(Span(capital(tried_text(cause.tried)), "strong"))
    if first:
        yield from _evidence_blocks(card.name, first, rest)
    if card.remedies:
        yield Heading("remedy" if len(card.remedies) == 1 else "remedies", level=4)
    for remedy in card.remedies:
        yield from remedy.blocks
    if cause.withheld:
        yield Heading("not advised", level=4)
        yield Bullets([_withheld_text(held) for held in cause.withheld])
    if cause.absorbs:
        size = count(len(cause.absorbs), "finding")
        yield Heading(f"explains {size}: {_explains_text(cause.absorbs)}", level=4)
        yield PageOnly([Details("what would vanish with this cause repaired", [_explained_table(cause)])])
    if card.layers:
        layers = joined([Span(layer, "name", layer_target(layer)) for layer in card.layers])
        yield PageOnly([Details("layers concerned", [Paragraph(layers)])])
    if has_page:
        alone = Span("Open it by itself", "hint", f"manual/{card.code}")
        yield Paragraph([Span(f"Manual page {card.code}", "", f"{EMBEDDED}{card.code}"), " ", alone], "links")


def _ahead_text(ahead: Ahead, diagnosis: Diagnosis) -> str:
    """Why the leading cause comes before the next one, with what counts of what both recover."""
    other = next((each for each in diagnosis.causes if each.cause == ahead.of), None)
    if other is None:
        return ""
    gains = [ahead.gain_db, ahead.other_gain_db]
    own, theirs = ("not tried" if gain is None else decibels(gain, "+") for gain in gains)
    is_known = any(gain is not None for gain in gains)
    figures = f"{own} against {theirs}, {BEFORE_RUN if ahead.by == 'run' else COUNTED}" if is_known else UNTRIED
    return f"Leads over {_code_of(ahead.of, diagnosis)} {name(other.shown)}: {LEADS_BY[ahead.by]} ({figures})."


def _code_of(named: str | None, diagnosis: Diagnosis) -> str:
    """Code of a cause by its name; empty where it is not listed."""
    other = next((each for each in diagnosis.causes if each.cause == named), None)
    return visible(next(iter(other.rules), other.cause)) if other is not None else ""


def _scope_text(cause: CauseReport) -> str:
    if cause.layers:
        return count(len(cause.layers), "layer")
    return ", ".join(name(subject) for subject in cause.subjects[:SUBJECTS_SHOWN])


def _split_evidence(cause: CauseReport) -> tuple[list[Evidence], list[Evidence]]:
    """Evidence of the worst subjects, each with its rows together, and that of the others."""
    by_subject: dict[str, list[Evidence]] = {}
    for row in _without_repeats(cause.evidence):
        by_subject.setdefault(row.subject, []).append(row)
    rows = list(by_subject.values())
    return list(chain.from_iterable(rows[:SUBJECTS_SHOWN])), list(chain.from_iterable(rows[SUBJECTS_SHOWN:]))


def _without_repeats(rows: Sequence[Evidence]) -> list[Evidence]:
    """Rows of several rules of one cause, each once; what a limit is held against is not shown once more without it."""
    compared = {(row.subject, row.fact) for row in rows if row.comparison != SHOWN}
    found: dict[tuple[object, ...], Evidence] = {}
    for row in rows:
        if row.comparison != SHOWN or (row.subject, row.fact) not in compared:
            found.setdefault((row.subject, row.fact, row.comparison, str(row.threshold)), row)
    return list(found.values())


def _evidence_blocks(cause: str, first: Sequence[Evidence], rest: Sequence[Evidence]) -> Iterator[Block]:
    """Facts of the worst subjects; those of the others are for the page alone."""
    others = len({row.subject for row in rest})
    worst = f" of the worst {SUBJECTS_SHOWN} of {SUBJECTS_SHOWN + others}" if others else ""
    table = _evidence_table(f"Evidence for {cause}", first)
    more = Details(f"{others} more", [_evidence_table(f"More evidence for {cause}", rest)])
    folded: list[Block] = [PageOnly([more])] if others else []
    yield Details(f"evidence{worst}: {_deciding_text(first)}", [table, *folded], "evidence-of")


def _evidence_table(label: str, rows: Sequence[Evidence]) -> Table:
    """Facts against their limits; what stands above is not described again."""
    described = {row.fact: row for row in reversed(rows)}

    def hint(row: Evidence, text: str | None) -> Span:
        return Span(visible(text or "") if described[row.fact] is row else "", "hint")

    wide = any(len(_value_text(row)) > WORDS_FROM for row in rows)
    return make_table(
        label,
        rows,
        [
            (Column("fact"), lambda row: [Span(row.fact, "code"), hint(row, fact_info(row.fact).description)]),
            (Column("value", "" if wide else "num"), lambda row: Span(_value_text(row), "value")),
            (Column("", "tight"), _sign_text),
            (Column("threshold"), lambda row: [_limit_text(row), hint(row, row.source)]),
            (Column("where"), lambda row: Span(name(row.subject), "name")),
        ],
        "evidence",
    )


def _value_text(row: Evidence) -> str:
    return measure(row.value, fact_info(row.fact).unit)


def _sign_text(row: Evidence) -> str:
    """The sign between value and limit; empty where nothing was compared."""
    return "" if row.comparison == SHOWN else COMPARISONS.get(row.comparison, visible(row.comparison))


def _limit_text(row: Evidence) -> str:
    return measure(row.threshold, fact_info(row.fact).unit) if row.comparison != SHOWN else ""


def _deciding_text(rows: Sequence[Evidence]) -> str:
    """The first fact that was held against a limit, in one line; of none, how many facts there are."""
    row = next((row for row in rows if _sign_text(row) in (">", "<", "≥", "≤")), None)
    if row is None:
        return count(len(rows), "fact")
    more = f", and {count(len(rows) - 1, 'other fact')}" if len(rows) > 1 else ""
    fact = f"{visible(row.fact)} {_value_text(row)} {_sign_text(row)} {_limit_text(row)}"
    return f"{fact} at {name(row.subject)}{more}"


def _cause_gains(cause: CauseReport, diagnosis: Diagnosis) -> tuple[Gain, ...]:
    """What the executed prescription brings, where it is for this cause alone; else an edit or a simulation."""
    given = diagnosis.prescription
    if (
        given is not None
        and given.executed is not None
        and given.grade == "executed"
        and {name for s in given.steps for name in s.causes} == {cause.cause}
    ):
        return (executed_gain(diagnosis, given.executed.credit),)
    measured = []
    if cause.measured_gain_db is not None:
        of_median = (tried := _trial_of(cause)) is not None and tried.typical
        ends = cause.measured_low_db, cause.measured_high_db
        measured.append(gain_text(cause.measured_gain_db, *ends, typical=of_median))
    if cause.measured_gain_metric is not None:
        trial = _trial_of(cause)
        known = trial is not None and trial.metric is not None and trial.metric.gain == cause.measured_gain_metric
        text = metric_text(trial.metric) if trial is not None and known else ""
        measured.append(text or signed_gain(cause.measured_gain_metric, diagnosis.metrics.name))
    is_beside = bool(nothing_beyond(tried_advice(cause.remedies), diagnosis.proof))
    costs = (cause.measured_gain_metric or 0.0) < 0
    look = "unproven" if cause.proven is False or is_beside or costs else "measured"
    judged = judged_text(cause, diagnosis.proof)
    gains = [Gain("measured", ", ".join(measured), judged, look)] if measured else []
    if (alone := cause.predicted_gain_db) is not None:
        most = any(advice.predicted is not None and advice.predicted.bound for advice in cause.remedies[:1])
        of_median = any(advice.predicted is not None and advice.predicted.typical for advice in cause.remedies[:1])
        said = f"{'at most ' if most else ''}{decibels(alone, '+')}{TYPICAL if of_median else ''}"
        gains.append(Gain("predicted", said))
        if (last := cause.predicted_last_gain_db) is not None and last > alone + HIDDEN_DB:
            gains.append(Gain("once what hides it is repaired", decibels(last, "+")))
    return tuple(gains)


def executed_gain(diagnosis: Diagnosis, trial: TrialRecord) -> Gain:
    """What the run of a prescription gave."""
    parts = [trial_gain_text(trial), metric_text(trial.metric)]
    beyond = ", beyond quantizing again alone" if trial.after else ""
    judged = f"{proven_word(trial.metric)} on {samples_text(trial, diagnosis)} (executed){beyond}"
    told = "; ".join(text for text in (judged, still_lost(trial.metric)) if text)
    costs = trial.metric is not None and trial.metric.gain < 0
    return Gain("measured", ", ".join(part for part in parts if part), told, "unproven" if costs else "measured")


def _trial_of(cause: CauseReport) -> TrialRecord | None:
    """The trial that stands for the cause: of its first remedy that was tried."""
    return next((advice.measured for advice in cause.remedies if advice.measured is not None), None)


def _recovery_text(predicted: Recovery | None) -> str:
    if predicted is None:
        return ""
    low, high = decibels(predicted.low_db, "+"), decibels(predicted.high_db, "+")
    most = "at most " if predicted.bound else ""
    where = f" at the output{TYPICAL if predicted.typical else ''}"
    return f"{most}{decibels(predicted.gain_db, '+')}{where} ({low} … {high})"


def _executed_beside(advice: Advice, cause: CauseReport, diagnosis: Diagnosis) -> str:
    """What running the prescription gave that holds a remedy which was tried on an edited copy: another model."""
    given = diagnosis.prescription
    if given is None or given.executed is None or given.grade != "executed":
        return ""
    if advice.measured is None or advice.measured.grade != "edited":
        return ""
    if not any(step.title == advice.title and cause.cause in step.causes for step in given.steps):
        return ""
    trial = given.executed.trial
    gains = ", ".join(text for text in (trial_gain_text(trial), metric_text(trial.metric)) if text)
    return f"the prescription, run as printed, makes another model: {gains} (executed)"


def _remedy_card(place: int, cause: CauseReport, diagnosis: Diagnosis, key: str) -> RemedyCard:
    advice, toolchain = cause.remedies[place], diagnosis.toolchain
    snippets = list(zip(advice.snippets, render_snippets(advice, cause.rules), strict=True))
    own = toolchain.name if toolchain is not None else None
    lacks = bool(own and snippets) and own not in [snippet.toolchain for snippet, _ in snippets]
    snippets.sort(key=lambda each: each[0].toolchain != own)
    ways: dict[str, list[Block]] = {}
    for snippet, code in snippets:
        tool = TOOLCHAIN_NAMES.get(snippet.toolchain, snippet.toolchain)
        said = (_caution(snippet, advice), snippet.note or "", MARKS[snippet.mark])
        ways.setdefault(tool, []).extend([Paragraph(" ".join(sentence(text) for text in said if text)), Code(code)])
    leading = None if lacks else next(iter(snippets), None)
    facts = _remedy_facts(advice, cause, diagnosis)
    return RemedyCard(
        title=capital(advice.title),
        changes=facts["changes"],
        predicted=facts.get("predicted", ""),
        facts={label: text for label, text in facts.items() if text},
        no_option=f"{name(toolchain.title)} has no option for it" if lacks and toolchain is not None else "",
        code=leading[1] if leading is not None else "",
        sets=changed_settings(leading[0], advice, cause.rules) if leading is not None else {},
        ways=Tabs(f"{key}-{place + 1}", list(ways.items()), bool(own) and not lacks) if ways else None,
    )


def _unless_said(remedy: RemedyCard, code: str, said: dict[str, str]) -> RemedyCard:
    """The remedy, which names the cause before it that has the same to copy."""
    if remedy.ways is None:
        return remedy
    first = said.setdefault(repr(remedy.ways.ways), code)
    return remedy if first == code else replace(remedy, same_as=first)


def _remedy_facts(advice: Advice, cause: CauseReport, diagnosis: Diagnosis) -> dict[str, str]:
    """All that there is to say of a remedy; one for whoever has other data than were given has no figures of these."""
    if _asks_for_other_data(advice, cause):
        only = f"only if the inputs given are not like those of the application: {advice.changes}"
        measured = "no, that takes other inputs than those given"
        return {"changes": only, "measured": measured, "costs": advice.cost.says, "caution": advice.unsafe}
    beside = nothing_beyond(advice, diagnosis.proof) or by_toolchain(advice, diagnosis)
    left = integer_text(advice.measured)
    told = [trial_text(advice.measured), _executed_beside(advice, cause, diagnosis), beside]
    told += [f"left their integer kernels without being meant to: {left}"] if left else []
    unsure = f"whether it is in place already: {', '.join(advice.unsure)} was not measured"
    return {
        "changes": advice.changes,
        "for": _where_it_goes(advice, cause),
        "now": ", ".join(_present_values(advice.now)),
        "measured": "; ".join(text for text in told if text),
        "predicted": _recovery_text(advice.predicted),
        "costs": _cost_text(advice, diagnosis),
        "caution": advice.unsafe,
        "not known": unsure if advice.unsure else "",
    }


def _cost_text(advice: Advice, diagnosis: Diagnosis) -> str:
    """What a remedy costs; of one that leaves layers in float, how much of the network stays quantized."""
    weighted = {row.name for row in diagnosis.layers if row.weight_bits}
    if advice.simulate not in IN_FLOAT or not weighted & set(advice.layers):
        return advice.cost.says
    left = len(weighted - set(advice.layers))
    return f"{advice.cost.says}; {left} of {len(weighted)} layers with weights stay quantized"


def _asks_for_other_data(advice: Advice, cause: CauseReport) -> bool:
    """Its figures are those of the inputs that were given, which a remedy before it takes as they are."""
    before = takewhile(lambda other: other is not advice, cause.remedies)
    return advice.measured is not None and any(
        other.id in NOTHING_CHANGED and other.measured == advice.measured for other in before
    )


def _is_told(value: object) -> TypeGuard[str]:
    """Words of its own, not a name alone, which says nothing without the fact that it is the value of."""
    return isinstance(value, str) and " " in value.strip()


def _caution(snippet: Snippet, advice: Advice) -> str:
    if not snippet.options:
        return ""
    return WHOLE if is_whole(snippet, advice) else PARTIAL


def _present_values(present: Iterable[Present]) -> Iterable[str]:
    """One text per fact: its values, of many numbers the smallest and the largest; most words speak for themselves."""
    for fact, rows in groupby(present, key=lambda row: row.fact):
        values = [row.value for row in rows]
        numbers = [value for value in values if is_number(value)]
        spread = len(numbers) == len(values) > 1
        shown = [min(numbers), max(numbers)] if spread else values
        unit = fact_info(fact).unit
        joined = (" … " if spread else ", ").join(measure(value, unit) for value in shown)
        if fact == "executed_as":
            yield f"{joined} kernels"
            continue
        owner, _, label = fact.rpartition(".")
        if label == unit:  # of bits, what has them: "weight 8 bits"
            label = owner.removesuffix("quantizer").rstrip(".")
        yield joined if all(isinstance(value, str) for value in values) else f"{label} {joined}".lstrip()


def _where_it_goes(advice: Advice, cause: CauseReport) -> str:
    """Layers or tensors that a remedy is for; empty where these are all that the cause concerns."""
    if advice.spread:
        names, what = (advice.tensors, "tensors") if advice.scope == "tensor" else (advice.layers, "layers")
        shown = ", ".join(name(each) for each in names[:SUBJECTS_SHOWN])
        return f"everywhere it helps: {number(len(names))} {what}, among them {shown}"
    all_layers = {layer.float_name or layer.quantized_name for layer in cause.layers}
    return "" if all_layers <= set(advice.layers) else _first_names(advice.layers)


def _first_names(names: Sequence[str]) -> str:
    """The first few names and the number of the others."""
    return first_few([name(each) for each in names], SUBJECTS_SHOWN)


def _withheld_text(held: Withheld) -> str:
    where = f" ({_first_names(held.layers)})" if held.layers else ""
    return f"{capital(held.title)}{where}: {visible(held.because, 600)}"


def _explained_table(cause: CauseReport) -> Table:
    return make_table(
        f"Findings explained by {name(cause.shown)}",
        cause.absorbs,
        [
            (Column("rule"), lambda found: f"{visible(found.rule)} {name(found.name)}"),
            (Column("where", "name"), lambda found: name(found.subject)),
            (Column("finding"), lambda found: capital(visible(found.message, 600))),
        ],
    )


def _explains_text(found: Iterable[Explained]) -> str:
    counts = ((rule, len(list(rows))) for rule, rows in groupby(sorted(f.rule for f in found)))
    return ", ".join(f"{visible(rule)} ×{size}" if size > 1 else visible(rule) for rule, size in counts)


def connections(cause: CauseReport, diagnosis: Diagnosis) -> tuple[str, ...]:
    """What else is about the noise of a cause, as sentences."""
    return (*_same_noise(cause, diagnosis), *_other_cure(cause, diagnosis))


def _same_noise(cause: CauseReport, diagnosis: Diagnosis) -> Iterator[str]:
    """Other causes whose layers and tensors make the same noise."""
    lines = diagnosis.loss_budget.lines if diagnosis.loss_budget is not None else ()
    held = {each.cause: sum(abs(x.share) for x in lines if each.cause in x.causes) for each in diagnosis.causes}
    found = []
    for other in diagnosis.causes:
        both = sum(abs(line.share) for line in lines if {cause.cause, other.cause} <= set(line.causes))
        if other.cause != cause.cause and both and both >= SAME * max(held[cause.cause], held[other.cause]):
            found.append(other)
    if found:
        names = ", ".join(f"{visible(other.rules[0])} {name(other.shown)}" for other in found[:CAUSES_SHOWN])
        advice = "One remedy may be enough for both."
        if not _is_of_data(cause) and any(map(_is_of_data, found)):
            advice = "If the data are wrong, they come first: with the same data, a remedy for this may change nothing."
        yield f"The same noise has another name: {names}. {advice}"


def _is_of_data(cause: CauseReport) -> bool:
    return any(rule.startswith("D") for rule in cause.rules)


def _other_cure(cause: CauseReport, diagnosis: Diagnosis) -> Iterator[str]:
    """The prescription recovers the loss by another remedy than those of the cause."""
    given = diagnosis.prescription
    if (
        given is None
        or given.executed is None
        or given.grade != "executed"
        or not cause.is_serious
        or cause.is_of_device
    ):
        return
    share = given.executed.trial.share
    if share is None or share < SAME or any(cause.cause in step.causes for step in given.steps):
        return
    titles = " and ".join(visible(step.title) for step in given.steps)
    yield f"The prescription removes {percent(share, 0)} of the noise in another way: {titles}. It comes first."
