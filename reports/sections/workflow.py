"""The order in which to search for lost accuracy, which checks serve each step, and where this model stands in it."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.metrics.kinds import is_share
from quantmedic.reports.blocks import Bullets, Inline, Paragraph, Section, Span
from quantmedic.reports.sections.run_kind import compares_checkpoints
from quantmedic.reports.text import count, visible

State = Literal["passed", "here", "later"]
#: Each step by its title, what it asks for, and the letters of its rules; the first one is met before quantization.
STEPS = (
    ("Pipeline", "data, inference, post-processing and metric of the float model are those of training", "S"),
    (
        "Data and configuration",
        "calibration data and settings fit the application: losses of more than {large} {unit}",
        "D",
    ),
    ("Calibration", "ranges of activations: losses of {moderate} to {large} {unit}", "A"),
    ("Single operators", "weights, operators and bits that stand out: losses up to {moderate} {unit}", "WGMR"),
    ("Training with quantizers", "where nothing above is left and the loss stays", ""),
)
#: Step at which a loss of this size is searched for first, where no rule found its cause.
_BY_SIZE = {"large": 1, "moderate": 2, "small": 3}


@dataclass(frozen=True)
class WorkflowStep:
    """One step of the search."""

    title: Annotated[str, "its name"]
    asks: Annotated[str, "what has to hold before the next step"]
    checks: Annotated[str, "how many of its rules passed, found something, and were not judged"]
    found: Annotated[tuple[str, ...], "rules of it that found something"]
    state: Annotated[State, "passed, where the search stands, or still to come"]
    note: Annotated[str, "why the search stands there though the loss is larger than such steps cost; else empty"] = ""


def workflow_steps(diagnosis: Diagnosis) -> tuple[WorkflowStep, ...]:
    """The steps in order; none where no loss is searched for, nor of checkpoints: most steps are no matter of them."""
    if compares_checkpoints(diagnosis) or diagnosis.verdict not in ("degraded", "undecided"):
        return ()
    limits = {threshold.name: threshold.value for threshold in diagnosis.thresholds}
    sizes = {key: f"{100 * limits.get(f'drop_{key}', 0):.3g}" for key in ("large", "moderate")}
    sizes["unit"] = "points" if is_share(diagnosis.metrics.name) else "percent"
    here = _current_step(diagnosis)
    return tuple(
        WorkflowStep(
            title=title,
            asks=asks.format_map(sizes),
            checks=_checks_text(diagnosis, letters),
            found=_codes_of_step(diagnosis, letters),
            state="here" if place == here else "passed" if place < here else "later",
            note=_larger_loss_text(diagnosis, here) if place == here else "",
        )
        for place, (title, asks, letters) in enumerate(STEPS)
    )


def workflow_section(diagnosis: Diagnosis) -> Section | None:
    """The steps, and where the search stands; None where there are none."""
    steps = workflow_steps(diagnosis)
    if not steps:
        return None
    lead = Paragraph("From the top: a step is worth its effort only where those above it are settled.", "lead")
    looks = [f"step-{step.state}" for step in steps]
    items = Bullets([_step_text(step) for step in steps], "workflow", ordered=True, looks=looks)
    return Section("workflow", "What was checked and what comes next", "Search", [lead, items])


def _step_text(step: WorkflowStep) -> Inline:
    here = [" ", Span("you are here", "chip chip-medium")] if step.state == "here" else []
    found = f"found {', '.join(step.found)}" if step.found else ""
    checks = Span("; ".join(filter(None, [step.checks, found])), "point")
    return [Span(step.title, "strong"), *here, f": {step.asks}{f'. {step.note}' if step.note else ''}", checks]


def _current_step(diagnosis: Diagnosis) -> int:
    """The first step with a serious cause; without any, that of the size of the loss, and training at last."""
    serious = [code for cause in diagnosis.causes if cause.is_serious for code in cause.rules]
    places = [place for place, (_, _, letters) in enumerate(STEPS) if _of(serious, letters)]
    return min(places, default=_BY_SIZE.get(diagnosis.drop_class or "", len(STEPS) - 1))


def _larger_loss_text(diagnosis: Diagnosis, here: int) -> str:
    """What a cause counts for where a loss of this size is searched for further above."""
    if here <= _BY_SIZE.get(diagnosis.drop_class or "", here):
        return ""
    _, _, letters = STEPS[here]
    own = [cause for cause in diagnosis.causes if cause.is_serious and _of(cause.rules, letters)]
    if any(cause.proven for cause in own):
        return "The loss is larger than such a step costs as a rule; that a remedy recovers it was measured."
    return "The loss is larger than such a step costs as a rule: if the remedy does not recover it, go back to the top."


def _codes_of_step(diagnosis: Diagnosis, letters: str) -> tuple[str, ...]:
    codes = [code for cause in diagnosis.causes for code in (*cause.rules, *(each.rule for each in cause.absorbs))]
    return tuple(visible(code) for code in dict.fromkeys(_of(codes, letters)))


def _checks_text(diagnosis: Diagnosis, letters: str) -> str:
    if not letters:
        return ""
    passed = len(_of((note.rule for note in diagnosis.passed), letters))
    missing = len(_of((note.rule for note in diagnosis.not_judged), letters))
    return f"{count(passed, 'check')} passed, {missing} not judged"


def _of(codes: Iterable[str], letters: str) -> list[str]:
    return [code for code in codes if code[:1] in letters and code]
