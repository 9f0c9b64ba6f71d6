"""What fits on one screen: the verdict, what to do first and why, where the noise comes from, and how to see more."""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from quantmedic.engine.contract.advised_remedies import Prescription
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.metrics.kinds import is_share
from quantmedic.engine.rules.rule import SERIOUS
from quantmedic.reports.context import ReportContext, advice_text, failure_box
from quantmedic.reports.sections.cards import CauseCard, Gain
from quantmedic.reports.sections.first_step import FirstStep
from quantmedic.reports.sections.previous import outcome_texts, previous_title
from quantmedic.reports.terminal.lines import WIDTH, Paint, wrap_line
from quantmedic.reports.text import capital, count, first_few, name, visible

#: Of all that is printed without --verbose; the line that names the files is one more.
LINES = 19
NAME_LIMIT = 48
#: Layers of the first cause that are named.
LAYERS_NAMED = 3
#: Of a gain; one line has no room for it.
INTERVAL = re.compile(r" \([^()]*\)")
#: Other causes that are never cut off, as long as there are as many.
OTHERS_LEAST = 1
#: Title of the path to the loss, and the lines that it has.
TITLE, SHORT_LINES = "where the noise comes from", 3


def summary_lines(
    context: ReportContext, diagnosis: Diagnosis, paint: Paint, written: Path | None = None
) -> Iterator[str]:
    """The lines, at most ``LINES`` of them.

    Args:
        context: What a report shows.
        diagnosis: What it is of.
        paint: Colours.
        written: Page of the report, or its folder where no page is among its formats; None: nothing is written.
    """
    head = [*verdict_lines(context, paint), *_mind_lines(context, 1), *_happened_lines(context, diagnosis)]
    first, path = list(_first_lines(context, diagnosis, paint)), _path_lines(context)
    first = [*path, *first] if context.path_leads else [*first, *path]
    whole = visible(str(written), 600) if written is not None else "-o FOLDER"
    told = (_counts_text(context, diagnosis), f"All causes and layers: --verbose. The whole report: {whole}")
    last = [*_hold_lines(context, diagnosis, written), *(paint(text, "dim") for text in told)]
    room = LINES - len(head) - len(first) - len(last)
    yield from head
    yield from first
    yield from _other_lines(context, paint, max(room, OTHERS_LEAST))
    yield from last


def _mind_lines(context: ReportContext, most: int) -> Iterator[str]:
    """So many of the notices, whole: what they say of the figures has to be known before these."""
    for text in _warnings(context)[:most]:
        yield from wrap_line(f"warning: {text}", most=3)


def _warnings(context: ReportContext) -> list[str]:
    return [text for text in context.warnings if text != context.reading_text]


def _hold_lines(context: ReportContext, diagnosis: Diagnosis, written: Path | None) -> Iterator[str]:
    """Where nothing is to do, what keeps it so."""
    if diagnosis.verdict != "healthy" or diagnosis.check is not None or context.first is not None:
        return
    folder = "FOLDER" if written is None else str(written.parent if written.suffix == ".html" else written)
    metrics = diagnosis.metrics
    limit = " --max-drop 1" if metrics.drop is not None and is_share(metrics.name) else ""
    yield f"nothing to do; to hold it in CI: quantmedic check {visible(folder, 600)}{limit}"


def verdict_lines(context: ReportContext, paint: Paint) -> Iterator[str]:
    """The verdict, what it is about, the drop of the task metric, and how sure it is."""
    verdict = paint(context.verdict_word.replace("-", " ").upper(), context.verdict)
    gate = paint(context.gate.text, "bold") if context.gate is not None else ""
    beside = "  ".join(part for part in (gate, context.judged_alone) if part)
    yield f"{verdict}  {visible(context.title, NAME_LIMIT)}  {beside}".rstrip()
    yield from (paint(line, "dim") for line in wrap_line(f"{context.model_text}   {context.samples_text}"))
    if drop := context.drop:
        change = paint(f"{drop.word} {drop.change}", "bold")
        yield f"{drop.metric} {drop.float_value} → {drop.quantized_value}   {change}, 95 % interval {drop.interval}"
    if context.reading_text:
        yield from (paint(line, "dim") for line in wrap_line(visible(context.reading_text, 600), most=4))
    for text in (*context.language.brief, *context.language.told) if context.language is not None else ():
        yield from wrap_line(text)
    yield from wrap_line(f"{context.verdict_text} {context.strength_text}")


def rules_text(diagnosis: Diagnosis) -> str:
    """How many rules were judged, and how many were not."""
    ignored = f", {len(diagnosis.ignored)} ignored" if diagnosis.ignored else ""
    return f"{count(len(diagnosis.passed), 'rule')} passed, {len(diagnosis.not_judged)} not judged{ignored}"


def brings(gain: Gain | None) -> str:
    """What a remedy brings, to stand behind its name; empty where nothing measured or predicted it."""
    return f", {gain.said}" if gain is not None else ""


def _path_lines(context: ReportContext) -> Sequence[str]:
    """The path to the loss."""
    return wrap_line(f"{TITLE}: {context.path}", most=SHORT_LINES) if context.path else ()


def _happened_lines(context: ReportContext, diagnosis: Diagnosis) -> Iterator[str]:
    """How quantization failed, or what changed since the previous case."""
    if (failure := failure_box(diagnosis)) is not None:
        yield from wrap_line(" ".join([failure.summary, *failure.lines[-1:]]), most=3)
        yield from wrap_line(failure.unknown, most=2)
    if diagnosis.previous is not None:
        yield previous_title(diagnosis.previous)
        yield from wrap_line(", ".join(outcome_texts(diagnosis.previous.effect)), indent=2, most=1)


def _first_lines(context: ReportContext, diagnosis: Diagnosis, paint: Paint) -> Iterator[str]:
    """The first step, why, where, and what changes."""
    first, advice = context.first, diagnosis.advice
    if first is None or not (context.causes or context.tried or first.is_change):
        if advice:
            yield from wrap_line(f"{advice_text(diagnosis)} To read: quantmedic explain {', '.join(advice)}", most=2)
        return
    yield ""
    label, *rest = wrap_line(f"{first.label}: {first.named}{brings(first.gain)}", most=2)
    yield label.replace(first.label, paint(first.label, "help"), 1)
    yield from rest
    card = _shown_card(context)
    if not first.code:
        yield from wrap_line(first.detail, indent=2, most=3)
    if card is not None:
        # The deciding words stand on a line of their own, or within the message, which then has room for them.
        most = 4 if card.found and not card.found_apart else 2
        yield from wrap_line(
            f"{'because of' if first.code else 'found:'} {_found_text(card, first)}", indent=2, most=most
        )
    elif advice:
        yield from wrap_line(f"quantmedic explain {advice[0]}", indent=2, most=1)
    yield from _change_lines(diagnosis.prescription, card if first.code else None, first)


def _shown_card(context: ReportContext) -> CauseCard | None:
    """The cause that the first step is for; where it is for none, the first one that costs, or may."""
    first = context.first
    if first is not None and first.code:
        return card_called(context, first.code)
    is_step = first is not None and first.is_change
    return next((card for card in context.causes[:1] if card.severity in SERIOUS or (card.assumed and is_step)), None)


def card_called(context: ReportContext, code: str) -> CauseCard | None:
    """The card of a cause by the code of its leading rule."""
    return next((card for card in context.causes if card.code == code), None)


def _found_text(card: CauseCard, first: FirstStep) -> str:
    """What was found, with its layers where the step has not named them."""
    layers = f" ({first_few(card.layers, LAYERS_NAMED)})" if card.layers and not first.where else ""
    return f"{card.code} {visible(card.name, NAME_LIMIT)}, confidence {card.confidence}: {card.message}{layers}"


def _change_lines(given: Prescription | None, card: CauseCard | None, first: FirstStep) -> Iterator[str]:
    """What the remedy sets, in words of the toolchain in use, the file that has it whole, and what carries it out."""
    remedies = card.remedies if card is not None else ()
    remedy = next((each for each in remedies if each.title == first.title), next(iter(remedies), None))
    if remedy is not None and remedy.no_option:
        yield from wrap_line(remedy.no_option, indent=2, most=1)
        return
    if card is not None and card.found_apart:
        yield from wrap_line(card.found_apart, indent=4, most=1)
    lines = list(chain.from_iterable(first.sets.values()))
    if lines and max(map(len, lines)) <= WIDTH - 4:
        yield f"  set in {', '.join(first.sets)}:"
        yield from (f"    {visible(line)}" for line in lines)
    if given is not None and given.configurations and (remedy is None or _holds(given, remedy.title)):
        done = "; quantmedic fix with these arguments does it, or what heals more" if given.grade == "executed" else ""
        yield f"  to paste: {given.configurations[0].file}{done}"


def _holds(given: Prescription, title: str) -> bool:
    """A prescription carries out the remedy of this title."""
    return any(capital(name(step.title)) == title for step in given.steps if step.mark is not None)


def _other_lines(context: ReportContext, paint: Paint, room: int) -> Iterator[str]:
    """The other causes and the notices, whole where there is room, else one line each, as many as there is room for."""
    above = _shown_card(context)
    others = [card for card in context.causes if card is not above and not (card.same_as or card.behind)]
    names = [*_other_name_lines(context.causes)]
    told = [f"warning: {text}" for text in _warnings(context)[1:]]
    whole = [*chain.from_iterable(_cause_lines(card, paint, most=3) for card in others), *names]
    whole += chain.from_iterable(wrap_line(text, most=3) for text in told)
    if len(whole) <= room:
        yield from whole
        return
    lines = [*chain.from_iterable(_cause_lines(card, paint, most=1) for card in others), *names]
    lines += chain.from_iterable(wrap_line(text, most=1) for text in told)
    shown = lines if len(lines) <= room else lines[: room - 1]
    yield from shown
    if left := len(lines) - len(shown):
        yield f"{count(left, 'more cause or warning', 'more causes and warnings')}"


def _cause_lines(card: CauseCard, paint: Paint, most: int) -> Iterator[str]:
    where = f" at {visible(card.scope, NAME_LIMIT)}" if card.scope else ""
    harm = f", {card.harm}" if card.assumed else ""
    gain = "".join(f", {each.kind} {INTERVAL.sub('', each.text)}" for each in card.gains[:1])
    named = f"{card.severity:<6} {card.code} {visible(card.name, NAME_LIMIT)}{where}"
    first, *rest = wrap_line(f"{named}{harm}{gain}, confidence {card.confidence}: {card.message}", most=most)
    yield first.replace(card.severity, paint(card.severity, card.severity), 1)
    yield from rest


def _other_name_lines(cards: Iterable[CauseCard]) -> Iterator[str]:
    """Which causes are the same fault as another one, named where it shows, and which ones another one hides."""
    lines: dict[str, list[str]] = {}
    for card in cards:
        named = f"{card.code} {visible(card.name, NAME_LIMIT)}"
        if card.same_as:
            lines.setdefault(f"the fault of {card.same_as} also shows as", []).append(named)
        elif card.behind:
            gains = f" ({card.gains[0].text})" if card.gains else ""
            lines.setdefault(f"hidden behind {card.behind}, each to gain once that is repaired", []).append(
                f"{named}{gains}"
            )
    for start, found in lines.items():
        yield from wrap_line(f"{start}: {', '.join(found)}", most=3)


def _counts_text(context: ReportContext, diagnosis: Diagnosis) -> str:
    card = _shown_card(context)
    return f"{rules_text(diagnosis)}{f'. The manual: quantmedic explain {card.code}' if card is not None else ''}"
