"""Sentences of one report that contradict each other."""

import re
from collections.abc import Iterator

from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.rules.rule import SEVERITIES
from quantmedic.reports.context import ReportContext, build_context
from quantmedic.reports.machines.comment import render_comment
from quantmedic.reports.machines.json import render_json
from quantmedic.reports.page.html import render_index
from quantmedic.reports.terminal.check import render_check
from quantmedic.reports.terminal.console import render_console
from quantmedic.reports.text import capital
from quantmedic.reports.write import render_markdown

#: What no report says whatever it is about.
NEVER = (
    r"\bis back\b",
    r"(?<![\d…] )-\d[\d.]* % of the loss",
    r"proven[^.]{0,20}, not proven",
    r"(?i)do this first:[^.:]{0,200}predicted at most [-−]\d",
)
LOSS = ("Quantization costs accuracy", "Quantization harms the outputs", "A cause of high", "A cause of medium")
NO_LOSS = ("No loss stands out", "No cause of medium or high severity was found")
FIRST = "do this first"


def texts_of(diagnosis: Diagnosis, *, page: bool = True) -> dict[str, str]:
    """Everything that a user reads of a diagnosis, by where it stands, without line breaks."""
    context = build_context(diagnosis, {})
    found = {
        "console": render_console(diagnosis),
        "verbose console": render_console(diagnosis, verbosity="verbose"),
        "Markdown": render_markdown(context),
    }
    if page:
        html = render_index(context, diagnosis)
        found["page"] = re.sub(r"<[^>]+>", " ", html.partition("<body")[2].partition("<script")[0])
    if diagnosis.check is not None:
        found["check"] = render_check(diagnosis, verbosity="verbose")
        found["comment"] = render_comment(diagnosis)
    return {where: " ".join(text.split()) for where, text in found.items()}


def contradictions(diagnosis: Diagnosis, *, page: bool = True) -> list[str]:
    """What does not agree, in words; none in a sound report."""
    texts = texts_of(diagnosis, page=page)
    context = build_context(diagnosis, {})
    return [
        *_of_order(diagnosis),
        *_of_proof(diagnosis, context),
        *_of_verdict(diagnosis, texts),
        *_of_gate(diagnosis, texts),
    ]


def _of_order(diagnosis: Diagnosis) -> Iterator[str]:
    for tried in (False, True):
        ranks = [SEVERITIES.index(cause.severity) for cause in diagnosis.causes if bool(cause.tried) is tried]
        if ranks != sorted(ranks):
            yield f"a lesser cause stands ahead of a graver one: {[SEVERITIES[rank] for rank in ranks]}"
    grave = {cause.cause: SEVERITIES.index(cause.severity) for cause in diagnosis.causes}
    for finding in diagnosis.check.findings if diagnosis.check is not None else ():
        explained = finding.rule in {e.rule for cause in diagnosis.causes for e in cause.absorbs}
        if not explained and SEVERITIES.index(finding.severity) < grave.get(finding.cause, 0):
            yield f"the gate holds {finding.rule} for graver than its cause"


def _of_proof(diagnosis: Diagnosis, context: ReportContext) -> Iterator[str]:
    for cause, card in zip(diagnosis.causes, context.causes, strict=True):
        said = " ".join(gain.judged for gain in card.gains)
        if cause.proven and "not proven" in said:
            yield f"{cause.cause} is proven beside not proven"
        if cause.proven is False and said.startswith("proven"):
            yield f"{cause.cause} is not proven beside proven"
        if cause.proven and all(advice.is_disproven for advice in cause.remedies if advice.measured is not None):
            yield f"{cause.cause} is proven, and each of its remedies is not"
        if cause.proven and cause.measured_low_db is not None and cause.measured_low_db <= 0:
            yield f"{cause.cause} is proven by an interval that holds zero"
        for gain in card.gains:
            if "interval includes zero" in gain.judged and (cause.measured_low_db or 0) > 0:
                yield f"an interval above zero is said to include it: {cause.cause}"
    first = context.first
    meant = [a for cause in diagnosis.causes for a in cause.remedies if first and capital(a.title) == first.title]
    judged = first.gain.judged if first is not None and first.gain is not None else ""
    exempted = any(a.measured is not None and not a.is_disproven for a in meant)  # few noisy samples, and much is gone
    if first is not None and (
        (meant and all(advice.is_disproven for advice in meant)) or ("not proven" in judged and not exempted)
    ):
        yield f"what was tried in vain is to be done first: {first.title}"


def _of_verdict(diagnosis: Diagnosis, texts: dict[str, str]) -> Iterator[str]:
    said = LOSS if diagnosis.verdict != "degraded" else NO_LOSS
    unproven = diagnosis.evidence_strength.statement == "unproven"
    for where, text in texts.items():
        if where == "comment":
            continue
        yield from (f"{where}: {diagnosis.verdict} beside {each!r}" for each in said if each in text)
        yield from (f"{where}: {match[0]!r}" for each in NEVER if (match := re.search(each, text)))
        if diagnosis.verdict == "healthy" and f"{FIRST}:" in text.lower():
            yield f"{where}: healthy beside {FIRST!r}"
        if unproven and ("The drop is proven" in text or "Quantization costs accuracy" in text):
            yield f"{where}: an unproven drop beside a proven one"
        if diagnosis.verdict == "not-comparable" and re.search(r"The drop is (un)?proven", text):
            yield f"{where}: the drop of two models that are not compared"
        if diagnosis.model.is_twice_the_same and where != "check" and "same model" not in text:
            yield f"{where}: not said that both files are the same model"
    if diagnosis.verdict == "healthy" and any(cause.is_serious for cause in diagnosis.causes):
        yield "healthy beside a serious cause"
    given = diagnosis.prescription
    if diagnosis.verdict == "healthy" and given is not None and given.grade != "executed":
        yield "healthy beside a prescription that was not executed"
    if diagnosis.model.is_twice_the_same and diagnosis.verdict != "not-comparable":
        yield f"one model given twice is {diagnosis.verdict}"
    if f'"verdict": "{diagnosis.verdict}"' not in render_json(diagnosis):
        yield "report.json has another verdict"


def _of_gate(diagnosis: Diagnosis, texts: dict[str, str]) -> Iterator[str]:
    check = diagnosis.check
    if check is None:
        return
    for where, text in texts.items():
        if check.verdict == "ACCEPT" and FIRST in text.lower():
            yield f"{where}: ACCEPT beside {FIRST!r}"
        told = "still accepts it" in text
        expected = check.verdict == "ACCEPT" and diagnosis.verdict == "degraded"
        if where in ("console", "Markdown", "page") and told is not expected:
            yield f"{where}: {diagnosis.verdict} and {check.verdict}, which is {'' if told else 'not '}put together"
    if diagnosis.verdict in ("failed", "not-comparable") and check.verdict == "ACCEPT" and not check.static:
        yield f"{diagnosis.verdict} is accepted"
