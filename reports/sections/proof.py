"""What was tried: remedies carried out on copies of the model, and what they recovered."""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from quantmedic.engine.case.proof import ExecutionRecord, MetricTrial, Stopped, TrialRecord
from quantmedic.engine.contract.advised_remedies import Advice, Proof, TrialRow
from quantmedic.engine.contract.causes import CauseReport
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.diagnosis.budget_lines import ABOUT
from quantmedic.engine.diagnosis.candidates import NOTHING_CHANGED
from quantmedic.engine.metrics.kinds import is_share
from quantmedic.reports.blocks import (
    Block,
    Bullets,
    Cell,
    Column,
    Heading,
    Inline,
    Paragraph,
    Section,
    Span,
    Table,
    make_table,
)
from quantmedic.reports.text import (
    capital,
    count,
    decibels,
    first_few,
    level,
    metric_change,
    metric_interval,
    metric_label,
    name,
    number,
    percent,
    visible,
)

REASON_LIMIT = 300
#: Behind a gain that is not of the summed noise power.
TYPICAL = " in the median sample"
#: What stands in the name of a choice before the colon where it is for no cause.
NO_CAUSE = ("everywhere", "trial")
STOPPED: dict[Stopped, str] = {
    "explained": "the loss is explained",
    "tried-all": "nothing was left to try",
    "budget": "what may be tried was spent",
    "interrupted": "it was interrupted",
    "first": "only what leads was tried, --prove goes on",
}
ZERO_INCLUDED = "the interval includes zero"
CONTROL = "control: quantized again, nothing changed"
NO_GAIN = "as expected, no gain"
LEFT_INTEGER = "left their integer kernels without being meant to"
NUMBERS = {2: "two", 3: "three", 4: "four", 5: "five"}


class TrialLine(NamedTuple):
    """One remedy that was carried out."""

    trial: TrialRecord
    remedy: str
    """What was changed."""
    causes: Sequence[str]
    """What the cards of the causes that it is advised for are called."""
    beside: str = ""
    """What else there is to say of its gain."""
    is_control: bool = False
    """Nothing was changed, to see what quantizing again does by itself."""

    @property
    def verdict(self) -> str:
        """Proven, not proven, at most or failed; of a control that nothing is gained, as it should be."""
        if self.is_control and _verdict(self.trial) == "not proven" and _reason(self.trial) == ZERO_INCLUDED:
            return NO_GAIN
        return _verdict(self.trial)

    @property
    def reason(self) -> str:
        """Why it is not proven, or why it failed, and what takes from its merit."""
        if self.verdict == NO_GAIN:
            return ""
        return "; ".join(text for text in (_reason(self.trial), self.beside) if text)


def proof_section(diagnosis: Diagnosis) -> Section | None:
    """What was tried, and on which samples; None where nothing was."""
    proof = diagnosis.proof
    if proof is None:
        return None
    trials = [_trial_row(row, diagnosis) for row in proof.trials]
    chain = [_trial_row(row, diagnosis) for row in proof.chain]
    metric = _metric_of(proof)
    tried = count(len(proof.trials), "remedy", "remedies")
    controls = 0 if proof.baseline is None else 1
    if len(proof.executions) > controls:
        tried += f", {count(len(proof.executions) - controls, 'prescription')}"
    tried += ", 1 control run" if controls else ""
    summary = f"{tried}{_time_text(proof)}; {STOPPED[proof.stopped]}."
    blocks: list[Block] = [
        Paragraph(
            f"{summary} {_split_text(proof)} A gain is proven where its whole 95 % interval lies above zero.", "lead"
        )
    ]
    if proof.executions:
        said = "The text of the prescription was run with its toolchain, and the model that came out was measured."
        table = _trial_table("Prescriptions that were run with their toolchain", execution_lines(diagnosis), metric)
        blocks += [Heading("executed as printed"), Paragraph(said, "muted"), table]
    if proof.unexecuted:
        none = "No further prescription" if proof.executions else "No prescription"
        blocks.append(Paragraph(f"{none} was executed: {visible(proof.unexecuted, 600)}."))
    if len(chain) > 1:
        blocks.append(Heading("one after the other, on a copy of the quantized model"))
        blocks.append(Paragraph(Span(_chain_text(proof), "strong")))
        blocks.append(_trial_table("Proven remedies, each on top of those before it", chain, metric))
    if halves := _halves_texts(proof):
        said = "The two shares do not add up: what one half disturbs, the other may hide."
        blocks += [Heading("weights or activations"), Bullets(halves), Paragraph(said, "muted")]
    trials = trials or chain[:1]
    if trials:
        blocks.append(Heading("each by itself, on a copy of the quantized model"))
        if len(chain) == 1:
            which = "it" if len(trials) == 1 else f"“{name(chain[0].remedy)}”"
            blocks.append(Paragraph(Span(_alone_text(which, proof.explained), "strong")))
        blocks.append(_trial_table("Remedies that were tried, each by itself", trials, metric))
    return Section("proof", "What was tried", "What was tried", blocks)


def _metric_of(proof: Proof) -> str:
    """Name of the task metric; empty where none was measured."""
    runs = [*(row.trial for row in (*proof.trials, *proof.chain)), *(row.trial for row in proof.executions)]
    return next((metric_label(trial.metric.name) for trial in runs if trial.metric is not None), "")


def execution_lines(diagnosis: Diagnosis) -> list[TrialLine]:
    """Prescriptions that were run with their toolchain, in order."""
    proof = diagnosis.proof
    return [_execution_line(row, diagnosis, proof) for row in proof.executions] if proof is not None else []


def _trial_table(label: str, lines: Sequence[TrialLine], metric: str) -> Table:
    columns: list[tuple[Column, Callable[[TrialLine], Cell]]] = [
        (Column("remedy"), _remedy_text),
        (Column("verdict"), _verdict_text),
        (Column("gain at the output", "tight"), lambda line: trial_gain_text(line.trial)),
        (Column("of the noise", "num"), _share_text),
    ]
    if metric:
        columns.append((Column(metric, "tight"), lambda line: metric_text(line.trial.metric) or None))
    if lines[0].trial.seconds is not None:
        columns.append((Column("time", "num", seconds), lambda line: line.trial.seconds))
    return make_table(label, lines, columns, "trials")


def _remedy_text(line: TrialLine) -> Inline:
    causes = f"for {', '.join(map(name, line.causes))}" if line.causes else ""
    lost = integer_text(line.trial)
    left = f"{LEFT_INTEGER}: {lost}" if lost else ""
    return [capital(name(line.remedy)), Span(causes, "note"), Span(left, "note")]


def _verdict_text(line: TrialLine) -> Inline:
    style = _verdict(line.trial).replace(" ", "-") if line.verdict != NO_GAIN else "control"
    return [Span(line.verdict, f"trial trial-{style}"), Span(line.reason, "note")]


def _share_text(line: TrialLine) -> str:
    """Share of the noise power at the output that is gone."""
    share = line.trial.share
    return "worse than at first" if share is not None and share < 0 else percent(share, 0)


def gain_text(gain: float | None, low: float | None, high: float | None, *, typical: bool = False) -> str:
    """A gain in dB with its interval where there is one; ``typical``: it is that of the median sample."""
    if gain is None or low is None or high is None:
        return decibels(gain, "+")
    return f"{decibels(gain, '+')} ({level(low)} … {level(high)}){TYPICAL if typical else ''}"


def trial_gain_text(trial: TrialRecord) -> str:
    """What a trial recovered in dB."""
    return gain_text(trial.gain_db, trial.low_db, trial.high_db, typical=trial.typical)


def metric_text(trial: MetricTrial | None) -> str:
    """A gain of the task metric with its interval; empty where none was measured."""
    if trial is None:
        return ""
    return f"{signed_gain(trial.gain, trial.name)} ({metric_interval(trial.low, trial.high, trial.name)})"


def signed_gain(gain: float, metric: str | None) -> str:
    """A gain of the task metric with its sign; ``±0`` where none of its digits is shown."""
    text = metric_change(abs(gain), metric)
    figure, _, unit = text.partition(" ")
    if not figure.strip("0."):
        return f"±0 {unit}".rstrip()
    return f"{'-' if gain < 0 else '+'}{text}"


def judged_text(cause: CauseReport, proof: Proof | None) -> str:
    """Whether the measured gain of a cause is proven, on what, or why not; empty where it was not tried."""
    if cause.proven is None:
        return ""
    if not cause.proven:
        trial = next((advice.measured for advice in cause.remedies if advice.measured is not None), None)
        return f"not proven: {_why_unproven(trial, cause.measured_low_db, cause.measured_high_db)}"
    if proof is None:
        return "proven"
    tried = tried_advice(cause.remedies)
    trial = tried.measured if tried is not None else None
    on_top = ", on top of the other remedies" if trial is not None and trial.after else ""
    word = proven_word(trial.metric if trial is not None else None)
    samples = "samples, cross-fitted" if proof.cross_fitted else "other samples"
    told = f"{word} on {number(proof.judged)} {samples} (edited){on_top}"
    left = still_lost(trial.metric if trial is not None else None)
    return "; ".join(text for text in (told, left, nothing_beyond(tried, proof)) if text)


def tried_advice(remedies: Iterable[Advice]) -> Advice | None:
    """The first remedy that was carried out."""
    return next((advice for advice in remedies if advice.measured is not None), None)


def nothing_beyond(advice: Advice | None, proof: Proof | None) -> str:
    """That quantizing again with nothing changed recovers about as much of the noise as a proven remedy; else empty.

    Where the remedy is to quantize again with nothing changed, that is no objection.
    """
    if advice is None or advice.measured is None or advice.id in NOTHING_CHANGED:
        return ""
    return _beside_again(advice.measured, proof)


def _beside_again(trial: TrialRecord, proof: Proof | None) -> str:
    again = _run_again(proof)
    if again is None or not trial.proven or trial.after:
        return ""
    if not again.proven or again.share is None or trial.share is None or again.share < ABOUT * trial.share:
        return ""
    return f"no merit of it alone: quantizing again with nothing changed recovers {trial_gain_text(again)}"


def by_toolchain(advice: Advice, diagnosis: Diagnosis) -> str:
    """What the toolchain itself recovers by a remedy that is to quantize again with nothing changed; else empty."""
    again = _run_again(diagnosis.proof)
    if advice.id not in NOTHING_CHANGED or advice.measured is None or again is None or not again.proven:
        return ""
    gains = ", ".join(text for text in (trial_gain_text(again), metric_text(again.metric)) if text)
    on = samples_text(again, diagnosis)
    return f"quantized again by the toolchain with no option changed, {gains} on {on} (executed)"


def _run_again(proof: Proof | None) -> TrialRecord | None:
    """Quantizing again with nothing changed, where that was run."""
    return proof.executions[proof.baseline].trial if proof is not None and proof.baseline is not None else None


def proven_word(metric: MetricTrial | None) -> str:
    """What of a proven gain is proven: the noise alone where the interval of the task metric includes zero."""
    if metric is None or metric.low > 0:
        return "proven"
    return f"proven in dB, not in {'points' if is_share(metric.name) else metric_label(metric.name)},"


def still_lost(metric: MetricTrial | None) -> str:
    """What of the task metric a remedy leaves lost, where that is proven; else empty."""
    if metric is None or metric.left_low <= 0:
        return ""
    return f"{metric_change(metric.left, metric.name)} still lost"


def trial_text(trial: TrialRecord | None) -> str:
    """What became of one remedy's trial; empty where it was not tried."""
    if trial is None:
        return ""
    parts = [trial_gain_text(trial), f"{metric_text(trial.metric)}{_lost_text(trial)}"] if trial.failed is None else []
    verdict = f"{_verdict(trial)} ({trial.grade})" if trial.proven else _verdict(trial)
    said = f"{verdict}: {reason}" if (reason := _reason(trial)) else verdict
    return ", ".join(part for part in (*parts, said) if part)


def _lost_text(trial: TrialRecord) -> str:
    """What the samples of a trial lose, which need not be what all samples do; empty without a task metric."""
    metric = trial.metric
    if metric is None or not is_share(metric.name) or metric.lost <= 0:
        return ""
    return f" of {metric_change(metric.lost, metric.name)} lost on {number(trial.samples)} samples"


def samples_text(trial: TrialRecord, diagnosis: Diagnosis) -> str:
    """How many of the samples given an execution was judged on."""
    role = diagnosis.proof.dataset if diagnosis.proof is not None else None
    seen = next((each.samples for each in diagnosis.datasets if each.role == role), None)
    if seen is None:
        return f"{number(trial.samples)} other samples"
    return (
        f"all {number(seen)} samples" if trial.samples >= seen else f"{number(trial.samples)} of {number(seen)} samples"
    )


def integer_text(trial: TrialRecord | None) -> str:
    """Layers that lost their integer kernels without being meant to; empty: none."""
    return ", ".join(name(layer) for layer in trial.left_integer) if trial is not None else ""


def _time_text(proof: Proof) -> str:
    """Time that all trials took; empty where the user set none, for then none was measured."""
    if proof.spent_seconds is None or proof.budget_seconds is None:
        return ""
    return f" in {seconds(proof.spent_seconds)} of {seconds(proof.budget_seconds)}"


def seconds(value: float) -> str:
    """A time in seconds."""
    return f"{value:.1f} s" if value < 10 else f"{value:.0f} s"


def _trial_row(row: TrialRow, diagnosis: Diagnosis) -> TrialLine:
    advised = (advice for cause in diagnosis.causes for advice in cause.remedies)
    is_again = row.remedy in {advice.title for advice in advised if advice.id in NOTHING_CHANGED}
    beside = "" if is_again else _beside_again(row.trial, diagnosis.proof)
    return TrialLine(row.trial, row.remedy, _shown_names(row.causes, diagnosis), beside)


def _execution_line(run: ExecutionRecord, diagnosis: Diagnosis, proof: Proof) -> TrialLine:
    """An executed prescription with the causes that its remedies are advised for."""
    causes = dict.fromkeys(known for each in run.choices if (known := each.partition(":")[0]) not in NO_CAUSE)
    has_base = proof.baseline is not None and proof.executions[proof.baseline].trial.proven
    own = run.own if has_base else None
    beside = f"beyond quantizing again alone: {trial_gain_text(own)}" if own is not None else ""
    is_control = proof.baseline is not None and run is proof.executions[proof.baseline]
    title = CONTROL if is_control else " and ".join(run.titles)
    return TrialLine(run.trial, title, _shown_names(causes, diagnosis), beside, is_control)


def _shown_names(causes: Iterable[str], diagnosis: Diagnosis) -> list[str]:
    """What the cards of these causes are called; those without a card by their own names."""
    shown = {cause.cause: cause.shown for cause in diagnosis.causes}
    return [shown.get(cause, cause) for cause in causes]


def _verdict(trial: TrialRecord) -> str:
    """Proven, not proven, at most or failed."""
    if trial.failed is not None:
        return "failed"
    return "at most" if trial.bound else "proven" if trial.proven else "not proven"


def _reason(trial: TrialRecord) -> str:
    """Why it is not proven, why it failed, or what is left open."""
    reasons = {
        "failed": visible((trial.failed or "").strip(), REASON_LIMIT),
        "proven": _left_open(trial.metric),
        "at most": "what it would repair was taken away, not repaired",
        "not proven": _why_unproven(trial, trial.low_db, trial.high_db),
    }
    return "; ".join(text for text in (reasons[_verdict(trial)], _unedited_text(trial)) if text)


def _unedited_text(trial: TrialRecord) -> str:
    """What of the remedy could not be carried out."""
    if not trial.unedited:
        return ""
    return f"not carried out: {first_few([visible(text, REASON_LIMIT) for text in trial.unedited], 1)}"


def _left_open(metric: MetricTrial | None) -> str:
    """What of a proven remedy is not proven, or not healed."""
    if metric is None or metric.low > 0:
        return still_lost(metric)
    said = f"in dB; the interval of {metric_label(metric.name)} includes zero"
    return "; ".join(text for text in (said, still_lost(metric)) if text)


def _why_unproven(trial: TrialRecord | None, low: float | None, high: float | None) -> str:
    if low is None or high is None:
        return "its gain was not measured"
    if high < 0:
        return "it makes the output noisier"
    if low > 0 and trial is not None and trial.metric is not None:
        return f"{metric_label(trial.metric.name)} gets worse"
    return ZERO_INCLUDED


def _split_text(proof: Proof) -> str:
    if proof.cross_fitted:
        return (
            f"With {number(proof.judged)} samples of the {proof.dataset} set, remedies were fitted on one half and "
            "judged on the other, and the other way round."
        )
    return (
        f"Remedies were fitted on {number(proof.fitted)} samples of the {proof.dataset} set and judged on "
        f"{number(proof.judged)} others."
    )


def _halves_texts(proof: Proof) -> list[str]:
    """Which half of the noise is whose."""
    found = []
    for noise, trial in (("weight", proof.weights), ("activation", proof.activations)):
        if trial is not None and trial.failed is not None:
            found.append(f"Without {noise} noise: failed, {visible(trial.failed.strip(), REASON_LIMIT)}")
        elif trial is not None and trial.gain_db is not None:
            share = None if trial.share is None else max(trial.share, 0.0)
            gone = f", {percent(share, 0)} of the noise" if share is not None else ""
            found.append(f"Without {noise} noise {trial_gain_text(trial)}{gone}")
    return found


def _alone_text(which: str, share: float | None) -> str:
    """What of the noise the only proven remedy removes."""
    if share is None:
        return f"The share of the noise that {which} removes alone was not measured."
    return f"Alone {which} removes {percent(share, 0) if share > 0 else 'none'} of the output noise."


def _chain_text(proof: Proof) -> str:
    together = f"{NUMBERS.get(len(proof.chain), len(proof.chain))} together"
    if proof.explained is None:
        return f"The share of the noise that these {together} remove was not measured."
    gone = percent(proof.explained, 0) if proof.explained > 0 else "none"
    return f"These {together} remove {gone} of the output noise."
