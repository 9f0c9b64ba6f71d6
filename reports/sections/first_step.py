"""What to do first: one step, with what it brings."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain, takewhile
from typing import Annotated

from quantmedic.engine.case.facts import ROLES
from quantmedic.engine.case.proof import ExecutionRecord, TrialRecord
from quantmedic.engine.contract.advised_remedies import Advice, Prescription, Proof, Step
from quantmedic.engine.contract.causes import CauseReport
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.metrics.kinds import is_share, kind_of
from quantmedic.engine.rules.rule import family_of
from quantmedic.reports.blocks import Inline, Span, joined
from quantmedic.reports.sections.budget_box import share_text
from quantmedic.reports.sections.cards import CauseCard, Gain, RemedyCard, executed_gain
from quantmedic.reports.sections.harm import undecided_text
from quantmedic.reports.sections.prescription import requantized_text
from quantmedic.reports.sections.proof import gain_text, signed_gain, trial_gain_text
from quantmedic.reports.text import capital, first_few, loss_word, metric_change, name, number, visible

DO_FIRST = "do this first"
#: Lines of a change that stand with the step; a longer one stands with its cause.
LINES_SET = 2
#: Of a change that stands with the step, all lines together.
LETTERS_SET = 400
#: Titles that hold these words need the names beside them.
NAMED = "named layers"
#: Layers that are named with the step.
LAYERS_NAMED = 3
OPEN_LABEL = "still to be gained"
#: A remedy whose prediction ends below is no first step.
SLIGHT_DB = 0.5
#: One that reaches so far down says nothing: half of the samples, say, without any noise.
WILD_DB = -20.0
#: A prescription that was run and recovers less than this share of the noise, or of the metric, does not heal.
HALF = 0.5
NOT_ENOUGH = "the most that was found, and it does not heal"


@dataclass(frozen=True)
class FirstStep:
    """What to do first."""

    title: Annotated[str, "name of the remedy, or of the manual page to read"]
    detail: Annotated[str, "what it changes"]
    gain: Annotated[Gain | None, "what it brings; None where nothing measured or predicted it"]
    code: Annotated[str, "code of the cause that it repairs; empty where it is for none, or a page is meant"]
    label: Annotated[str, "what it is: do this first, or where a gate accepts the model: still to be gained"]
    cause: Annotated[str, "name of the cause that it repairs; empty where it is for none"] = ""
    confidence: Annotated[str, "how sure that cause is, as percent; empty where there is none"] = ""
    why: Annotated[str, "what that cause found, as a sentence; empty where there is none"] = ""
    found: Annotated[str, "the decisive measurement in one line; empty where the sentence holds it"] = ""
    where: Annotated[str, "the layers, where the title speaks of named ones; else empty"] = ""
    sets: Annotated[Mapping[str, Sequence[str]], "the few lines that set it, by what takes them; else empty"] = field(
        default_factory=dict
    )

    @property
    def is_change(self) -> bool:
        """Something to change, and not only to read or to measure."""
        return bool(self.code) or self.gain is not None

    @property
    def named(self) -> str:
        """The title with the layers that it speaks of."""
        return f"{self.title}: {self.where}" if self.where else self.title

    @property
    def text(self) -> str:
        """The lines that set it, to copy; empty where they stand elsewhere."""
        return "\n".join(line for taker, lines in self.sets.items() for line in (f"# {taker}", *lines))


def first_step(diagnosis: Diagnosis, causes: tuple[CauseCard, ...], advice: Sequence[str]) -> FirstStep | None:
    """The step, or None where nothing needs to change.

    Args:
        diagnosis: What is shown.
        causes: Its causes.
        advice: Titles of the general pages in their order, where they may lead: not those below causes to be tried.
    """
    step = _choose_step(diagnosis, causes, advice)
    return step if step is None else _with_cause(_with_failure(step, diagnosis.prescription), causes)


def step_links(step: FirstStep, diagnosis: Diagnosis) -> Inline:
    """Where the page says more about the step."""
    given, proof = diagnosis.prescription, diagnosis.proof
    paste = [Span("What to paste", "", "#prescription")] if given is not None and given.configurations else []
    if step.code:
        return joined([Span("Why, and how", "", f"#cause-{step.code}"), *paste], " ")
    if paste:
        return joined([*paste, Span("What was found", "", "#causes")], " ")
    if step.gain is not None and step.gain.kind == "simulated":
        return Span("Where the noise comes from", "", "#budget")
    is_tried = proof is not None and proof.chain
    return Span("What was tried", "", "#proof") if is_tried else Span("Read on", "", "#advice")


def _with_cause(step: FirstStep, causes: Sequence[CauseCard]) -> FirstStep:
    """With the cause that it is for and the lines that set it; a longer change is left to the card of the cause."""
    card = next((card for card in causes if step.code and card.code == step.code), None)
    if card is None:
        return step
    sets: Mapping[str, Sequence[str]]
    sets = next((remedy.sets for remedy in card.remedies if remedy.title == step.title), {})
    lines = list(chain.from_iterable(sets.values()))
    short = len(lines) <= LINES_SET and sum(map(len, lines)) <= LETTERS_SET
    where = _layers_text(card.layers) if NAMED in step.title.casefold() else ""
    named = replace(step, cause=card.name, confidence=card.confidence, why=card.message, found=card.found_apart)
    return replace(named, where=where, sets=sets if short else {})


def _layers_text(layers: Sequence[str]) -> str:
    """Names of layers; those of one numbered part of the network as a number of them."""
    part = _common_part(layers)
    if len(layers) > 1 and any(map(str.isdigit, part)):
        return f"{len(layers)} layers of {part}"
    return first_few(layers, LAYERS_NAMED)


def _common_part(layers: Sequence[str]) -> str:
    """What the names of layers begin with alike, up to a dot or a slash; empty where that is nothing."""
    parts = [re.split(r"(?<=[./])", layer) for layer in layers]
    alike = takewhile(lambda column: len(set(column)) == 1, zip(*parts, strict=False))
    return "".join(column[0] for column in alike).rstrip("./")


def _with_failure(step: FirstStep, given: Prescription | None) -> FirstStep:
    """Of a step whose printed text failed when it was run, this is said: whoever follows it has to mend the text."""
    if given is None or given.basis != "refused":
        return step
    titles = [own.title for own in given.steps]
    if step.title.casefold() not in {visible(title, 300).casefold() for title in (*titles, ", and ".join(titles))}:
        return step
    return replace(step, detail=f"{step.detail}; the text that does it failed when it was run, see the prescription")


def _choose_step(diagnosis: Diagnosis, causes: tuple[CauseCard, ...], advice: Sequence[str]) -> FirstStep | None:
    if diagnosis.verdict == "healthy":
        return _executed_step(diagnosis, causes)
    label = _first_label(diagnosis)
    if (doubted := _doubted_card(diagnosis, causes)) is not None:
        return _card_step(diagnosis, doubted, label)
    # What users have is the device: what heals the model here leaves that as it is.
    if causes and diagnosis.causes[0].is_of_device and diagnosis.causes[0].severity == "high":
        return _card_step(diagnosis, causes[0], label)
    if (executed := _executed_step(diagnosis, causes)) is not None:
        return executed
    if diagnosis.proof is not None and diagnosis.proof.chain and not diagnosis.proof.chain[0].causes:
        return _first_link(diagnosis, diagnosis.proof)
    if (paired := _paired_step(diagnosis, causes)) is not None:
        return paired
    card = _first_card(diagnosis, causes)
    if card is not None and _gains_nothing(diagnosis.causes[card.rank - 1]):
        card = None
    if card is not None and not (advice and _is_left_behind(diagnosis.causes[card.rank - 1])):
        return _card_step(diagnosis, card, label)
    if diagnosis.undecided is not None:
        open_ = undecided_text(diagnosis.undecided, diagnosis.metrics)
        more = FirstStep("Measure more labelled samples", open_, None, "", OPEN_LABEL)
        return _simulated_step(diagnosis) or more
    if advice and diagnosis.verdict in ("failed", "not-comparable"):
        return FirstStep(
            advice[0], "no cause is known; this page says what to look at and what to give", None, "", label
        )
    if advice and (simulated := _simulated_step(diagnosis)) is not None:
        return simulated
    if advice:
        why = "no rule names the cause"
        if causes:
            tried = any(cause.was_tried_in_vain for cause in diagnosis.causes)
            why = "the causes named were tried without effect" if tried else "none of the causes accounts for the loss"
        return FirstStep(advice[0], f"{why}; this page says where to look first", None, "", label)
    return None


def _card_step(diagnosis: Diagnosis, card: CauseCard, label: str) -> FirstStep:
    """The first remedy of a cause that may lead; else what it is, where it has none."""
    advised = zip(diagnosis.causes[card.rank - 1].remedies, card.remedies, strict=True)
    steps = diagnosis.prescription.steps if diagnosis.prescription is not None else ()
    able = [shown for advice, shown in advised if _may_lead(advice) and not _is_replaced(advice, steps)]
    remedy = next(iter([*able, *card.remedies]), None)
    gain = _first_gain(diagnosis, card) if remedy in card.remedies[:1] else _predicted_gain(remedy)
    title, detail = (remedy.title, remedy.changes) if remedy is not None else (card.name, card.message)
    return FirstStep(title, detail, gain, card.code, label)


def _doubted_card(diagnosis: Diagnosis, causes: tuple[CauseCard, ...]) -> CauseCard | None:
    """A grave cause by which the given data are broken: until that is mended, what remedies recover says nothing."""
    doubted = [
        card
        for card in causes
        for cause in [diagnosis.causes[card.rank - 1]]
        if cause.severity == "high" and not card.struck and _is_of_broken_data(cause)
    ]
    return next(iter(doubted), None)


def _is_of_broken_data(cause: CauseReport) -> bool:
    """It makes doubtful what was measured, or is a check of the data themselves."""
    is_check = all(family_of(rule) == "sanity" for rule in cause.rules) and set(cause.subjects) <= set(ROLES)
    return cause.doubt is not None or is_check


def _paired_step(diagnosis: Diagnosis, causes: tuple[CauseCard, ...]) -> FirstStep | None:
    """The two remedies that are needed together, where these are prescribed; None where one suffices."""
    pair, given = diagnosis.pair, diagnosis.prescription
    chain = diagnosis.proof.chain if diagnosis.proof is not None else ()
    if pair is None or given is None or chain or [s.title for s in given.steps] != [r.title for r in pair.remedies]:
        return None
    both = pair.predicted
    return FirstStep(
        capital(visible(", and ".join(step.title for step in given.steps), 300)),
        "no single remedy suffices; " + visible("; ".join(step.changes for step in given.steps if step.changes), 600),
        Gain("predicted", gain_text(both.gain_db, both.low_db, both.high_db, typical=both.typical)),
        next((card.code for card in causes if card.cause in pair.remedies[0].causes), ""),
        _first_label(diagnosis),
    )


def _simulated_step(diagnosis: Diagnosis) -> FirstStep | None:
    """What heals at the end of the path to the loss, by simulated runs."""
    path = diagnosis.loss_path
    if path is None or path.remedy is None:
        return None
    remedy, where = path.remedy, "".join(f": {name(place)}" for place in path.remedy.places[:1])
    return FirstStep(
        f"{capital(visible(remedy.words))}{where}",
        "no cause explains the loss; of all changes that were simulated, this recovers about the most",
        Gain("simulated", f"{share_text(remedy.share)} of the noise", "not tried on the model"),
        "",
        _first_label(diagnosis),
    )


def _first_card(diagnosis: Diagnosis, causes: tuple[CauseCard, ...]) -> CauseCard | None:
    """The cause of the first proven remedy; else the first that is not exempted and has a remedy not tried in vain."""
    chain = diagnosis.proof.chain if diagnosis.proof is not None else ()
    standing = [card for card in causes if not card.struck] or list(causes)
    pairs = [(card, diagnosis.causes[card.rank - 1]) for card in standing]
    # What was proven on a copy and executed in vain is not proven any more.
    proven = [card for row in chain for card, cause in pairs if cause.cause in row.causes and cause.proven]
    able = [card for card, cause in pairs if any(not advice.is_disproven for advice in cause.remedies)]
    return next(iter([*proven, *able, *standing]), None)


def _is_left_behind(cause: CauseReport) -> bool:
    """General advice comes before it: it accounts for no loss, or what mends it was tried in vain."""
    return cause.was_tried_in_vain or not cause.is_serious


def _gains_nothing(cause: CauseReport) -> bool:
    """The simulation says of every remedy that it gains nothing at most, or says nothing, and no trial disagrees."""
    return bool(cause.remedies) and all(map(_is_idle, cause.remedies))


def _is_idle(advice: Advice) -> bool:
    predicted = advice.predicted
    if predicted is None or (advice.measured is not None and advice.measured.proven):
        return False
    says_nothing = predicted.high_db < SLIGHT_DB or predicted.low_db < WILD_DB
    return says_nothing or (predicted.bound and predicted.gain_db <= 0)


def _may_lead(advice: Advice) -> bool:
    """Not tried in vain, and its gain is not just the most that could be had."""
    return not advice.is_disproven and not (advice.predicted is not None and advice.predicted.bound)


def _is_replaced(advice: Advice, steps: Sequence[Step]) -> bool:
    """The toolchain in use cannot do it, and the prescription holds what it can do instead."""
    return any(step.stands_in_for == advice.title for step in steps)


def _predicted_gain(remedy: RemedyCard | None) -> Gain | None:
    return Gain("predicted", remedy.predicted) if remedy is not None and remedy.predicted else None


def _first_label(diagnosis: Diagnosis) -> str:
    """What a gate accepts, or what may cost nothing, need not be changed first."""
    accepted = diagnosis.check is not None and diagnosis.check.verdict == "ACCEPT"
    noise_is_open = diagnosis.undecided is not None and diagnosis.undecided.doubt is None
    return OPEN_LABEL if accepted or noise_is_open or diagnosis.verdict == "healthy" else DO_FIRST


def _executed_step(diagnosis: Diagnosis, causes: tuple[CauseCard, ...]) -> FirstStep | None:
    """The prescription that was run as it is printed, with what it gave; None where none heals."""
    given = diagnosis.prescription
    if given is None or given.executed is None or given.grade != "executed":
        return None
    trial, gain = given.executed.trial, executed_gain(diagnosis, given.executed.trial)
    if trial.metric is not None and trial.metric.low > 0 and diagnosis.metrics.drop is not None:
        gain = _beside_drop(gain, trial.metric.gain, trial.metric.lost, diagnosis.metrics.name)
    names = {name for step in given.steps for name in step.causes}
    proof = diagnosis.proof
    again = proof is not None and proof.baseline is not None and given.executed == proof.executions[proof.baseline]
    changes = "; ".join(step.changes for step in given.steps if step.changes)
    code = next((card.code for card in causes if card.cause in names), "")
    title = ", and ".join(step.title for step in given.steps)
    if (control := _stronger_control(proof, given.executed)) is not None:
        title = ", and ".join((*control.titles, title))
        changes = f"quantizing again with nothing changed alone gives {trial_gain_text(control.trial)}; {changes}"
        code = next((card.code for card in causes), code)
    return FirstStep(
        capital(visible(title, 300)),
        visible(requantized_text(given.steps) if again and not code else changes, 600),
        gain,
        code,
        _first_label(diagnosis) if _heals(trial) else NOT_ENOUGH,
    )


def _stronger_control(proof: Proof | None, executed: ExecutionRecord) -> ExecutionRecord | None:
    """Quantizing again with nothing changed, where that recovers more than the remedies add to it."""
    if proof is None or proof.baseline is None or executed.own is None:
        return None
    control = proof.executions[proof.baseline]
    gain, own = control.trial.gain_db, executed.own.gain_db
    return control if control.trial.proven and gain is not None and gain > (own or 0.0) else None


def _heals(trial: TrialRecord) -> bool:
    """It recovers half of the loss of the task metric where that is proven, else half of the noise."""
    metric = trial.metric
    if metric is not None and metric.low > 0 and metric.gain >= HALF * metric.lost:
        return True
    return trial.share is None or trial.share >= HALF


def _beside_drop(gain: Gain, recovered: float, lost: float, metric: str | None) -> Gain:
    """A gain of the task metric with the loss that it is a part of, both of the same samples."""
    if lost <= 0:
        return replace(gain, text=signed_gain(recovered, metric))
    figure = signed_gain(recovered, metric).removesuffix(" points" if is_share(metric) else "")
    whole = metric_change(lost, metric)
    if recovered < lost:
        return replace(gain, text=f"{figure} of {whole}")
    word = loss_word(kind_of(metric).higher_is_better)
    return replace(gain, kind="recovers", text=f"the whole {word} of {whole} (measured {figure})")


def _first_link(diagnosis: Diagnosis, proof: Proof) -> FirstStep:
    """A proven remedy that is for no cause: all of them together recover less."""
    link = proof.chain[0]
    title, _, names = link.remedy.partition(": ")
    why = "no cause by itself explains the loss" + (f"; the layers: {names}" if names else "")
    brings = trial_gain_text(link.trial)
    judged = f"proven on {number(proof.judged)} {'samples' if proof.cross_fitted else 'other samples'} (edited)"
    gain = Gain("measured", brings, judged, "measured")
    return FirstStep(capital(visible(title)), visible(why, 600), gain, "", _first_label(diagnosis))


def _first_gain(diagnosis: Diagnosis, card: CauseCard) -> Gain | None:
    """What the first remedy brings; of a measured gain of the task metric, how much of the drop that is."""
    gain, drop = next(iter(card.gains), None), diagnosis.metrics.drop
    measured = diagnosis.causes[card.rank - 1].measured_gain_metric
    tried = next((a.measured for a in diagnosis.causes[card.rank - 1].remedies if a.measured is not None), None)
    own = tried.metric if tried is not None else None
    unsure = own is not None and own.low <= 0
    if gain is None or gain.kind != "measured" or measured is None or drop is None or unsure:
        return gain
    lost = own.lost if own is not None and own.gain == measured else drop
    return _beside_drop(gain, measured, lost, diagnosis.metrics.name)
