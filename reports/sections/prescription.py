"""The prescription as reports show it, and the files that hold what is to be pasted."""

from collections.abc import Iterator, Sequence

from quantmedic.engine.case.proof import ExecutionRecord
from quantmedic.engine.contract.advised_remedies import Basis, Configuration, Prescription, Proof, RemedyPair, Step
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.rules.remedies import Mark
from quantmedic.engine.rules.toolchain import Chosen
from quantmedic.engine.rules.toolchain_options import Language
from quantmedic.engine.text import inert
from quantmedic.reports.blocks import Block, Bullets, Code, Heading, Inline, Panel, Paragraph, Section, Span
from quantmedic.reports.sections.prescription_run import USAGE, calibration_in_words, can_run
from quantmedic.reports.sections.proof import gain_text, samples_text, trial_gain_text, trial_text
from quantmedic.reports.text import capital, decibels, name, visible

MARKS: dict[Mark, str] = {
    "run": "checked by running it",
    "source": "checked in its source, not run",
    "documentation": "from public documentation, not tried",
}
BASES: dict[Basis, str] = {
    "proven": "Every remedy below is proven on this model.",
    "refused": "The toolchain refuses it: what was proven on a copy of the model cannot be had this way.",
    "without-effect": "It was executed, and nothing was recovered for sure: it is no cure.",
    "predicted": "What the remedies below bring is predicted, not proven; --prove carries them out.",
    "untried": "What the remedies below bring is neither proven nor predicted.",
}
EXECUTED = "Proven: this very text was executed, and the model that came out was measured."
REQUANTIZED = (
    "No option that the file shows is another than before, and yet another model comes out. So the quantized model at "
    "hand was made with one that files do not keep, such as a calibration method that cuts ranges (percentile, "
    "entropy) or options of single tensors; or from another float model or other data; or it was edited afterwards."
)
RECALIBRATED = (
    "No option is another than before: the quantized model at hand was calibrated on other inputs than these. If yours "
    "comes out as it was, its calibration reader yields others than were given here: look at what it yields, all "
    "samples and single ones."
)
#: The float model that a prescription opens, beside what the user defines.
FLOAT_FILES = ("float.onnx", "float.tflite")
#: What most of them write: many keep the model that is diagnosed under the same name.
WRITTEN = "int8.onnx"
LANGUAGES: dict[Language, str] = {"python": "Python", "yaml": "YAML", "json": "JSON"}


def prescription_section(diagnosis: Diagnosis) -> Section | None:
    """The remedies, and what to paste; None where there is nothing to repair."""
    given, chosen = diagnosis.prescription, diagnosis.toolchain
    if given is None or chosen is None:
        return None
    pasted: list[Block] = [Bullets([_step_item(step, chosen) for step in given.steps], "steps", ordered=True)]
    for each in given.configurations:
        pasted += [Heading([f"{LANGUAGES[each.language]}, in ", Span(each.file, target=each.file)])]
        pasted += [Code(each.code, each.file)]
    pasted += [Paragraph(text, "muted") for text in _remarks(given, chosen, can_run(diagnosis))]
    title = f"Prescription for {name(chosen.title)}" if chosen.name else "Prescription"
    lead = Paragraph(" ".join(_sentences(given, chosen, diagnosis)), "lead")
    return Section("prescription", title, "Prescription", [lead, Panel("Prescription", pasted)])


def _step_item(step: Step, chosen: Chosen) -> Inline:
    changes, gain = visible(step.changes), _step_gain(step)
    points = [Span(text, "point") for text in (gain, option_text(step, chosen), *_step_notes(step)) if text]
    return [Span(capital(name(step.title)), "strong"), f": {changes}" if changes else "", *points]


def _sentences(given: Prescription, chosen: Chosen, diagnosis: Diagnosis | None) -> list[str]:
    """For which toolchain it is, and how far it is proven; of a search, which has no diagnosis, nothing was run."""
    basis = EXECUTED if given.grade == "executed" else BASES[given.basis]
    run = [execution_text(given, diagnosis), pair_text(diagnosis.pair)] if diagnosis is not None else []
    return [text for text in (_toolchain_text(chosen), basis, *run) if text]


def pair_text(pair: RemedyPair | None) -> str:
    """What two remedies recover together, and why not one alone."""
    if pair is None:
        return ""
    first, second = pair.remedies
    other = visible(second.title, 200)
    titles = f"{capital(visible(first.title, 200))}, and {other[:1].lower()}{other[1:]}"
    both = gain_text(
        pair.predicted.gain_db, pair.predicted.low_db, pair.predicted.high_db, typical=pair.predicted.typical
    )
    alone = " and ".join(decibels(each.predicted.gain_db, "+") for each in pair.remedies)
    return f"No single remedy suffices. {titles}: together predicted {both}, alone {alone}."


def prescription_files(diagnosis: Diagnosis) -> Iterator[tuple[str, bytes]]:
    """Files to paste from, each with a head that says what it does."""
    if (given := diagnosis.prescription) is not None and (chosen := diagnosis.toolchain) is not None:
        said = _sentences(given, chosen, diagnosis), list(_remarks(given, chosen, can_run(diagnosis)))
        for each in given.configurations:
            yield each.file, _file_text(each, given, chosen, name(diagnosis.model.name), *said).encode()


def layer_files(given: Prescription, chosen: Chosen, model: str) -> Iterator[tuple[str, str]]:
    """The same of a set of layers that a search found."""
    said = _sentences(given, chosen, None), list(_remarks(given, chosen, runs=False))
    return ((each.file, _file_text(each, given, chosen, name(model), *said)) for each in given.configurations)


def _file_text(
    file: Configuration,
    given: Prescription,
    chosen: Chosen,
    model: str,
    sentences: Sequence[str],
    remarks: Sequence[str],
) -> str:
    if file.language == "json":
        return file.code
    lines = [f"Prescription of quantmedic for {model} and {name(chosen.title) if chosen.name else ''}", *sentences]
    for place, step in enumerate(given.steps, 1):
        gain = f", {known}" if (known := _step_gain(step)) else ""
        lines.append(f"{place}. {capital(name(step.title))}{gain}: {option_text(step, chosen)}")
    if file.language != "python":  # there it stands beside the code
        lines += [text for step in given.steps for text in (*step.notes, *step.says)]
    return "".join(f"# {inert(line)}\n" for line in (*lines, *remarks)) + f"\n{file.code}"


def execution_text(given: Prescription, diagnosis: Diagnosis) -> str:
    """What running the text gave, on what; or why nothing was run."""
    if given.executed is None:
        proof = diagnosis.proof
        reason = proof.unexecuted if proof is not None else None
        return f"It was not executed: {visible(reason, 600)}." if reason else ""
    run, trial = given.executed, given.executed.trial
    by = f"{name(run.toolchain)} {visible(run.version or '')}".strip()
    if trial.failed is not None:
        return f"Run with {by}, it failed: {visible(trial.failed, 600)}"
    return (
        f"Run with {by} on {visible(run.reads)}; the model that came out, on {samples_text(trial, diagnosis)}: "
        f"{trial_text(trial)}.{_baseline_text(given, run, diagnosis.proof)}"
    )


def _baseline_text(given: Prescription, run: ExecutionRecord, proof: Proof | None) -> str:
    """What of a gain is no merit of the remedies; of quantizing again itself, what its gain means."""
    if proof is None or proof.baseline is None:
        return ""
    alone = proof.executions[proof.baseline]
    if run == alone:
        return f" {requantized_text(given.steps)}" if alone.trial.proven else ""
    if not alone.trial.proven:
        return " Quantizing again with nothing changed recovers none of it."
    gain = trial_gain_text(alone.trial)
    return f" Of this, quantizing again with nothing changed recovers {gain} alone."


def requantized_text(steps: Sequence[Step]) -> str:
    """What it means that quantizing again with nothing changed heals: a cause in the data, or nobody knows."""
    return RECALIBRATED if any(step.remedy == "calibrate-again" for step in steps) else REQUANTIZED


def _toolchain_text(chosen: Chosen) -> str:
    if chosen.named:
        return f"Written for {name(chosen.title)}, as asked for."
    if chosen.name:
        return f"Written for {name(chosen.title)}, {visible(chosen.how, 200)}; --toolchain names another."
    return f"The toolchain was {visible(chosen.how, 200)}. Name it with --toolchain to get the configuration."


def _step_gain(step: Step) -> str:
    """What a remedy brings, measured or predicted; empty where neither is known."""
    if step.measured is not None:
        return trial_text(step.measured)
    if step.predicted is None:
        return ""
    return f"predicted {'at most ' if step.predicted.bound else ''}{decibels(step.predicted.gain_db, '+')}"


def _step_notes(step: Step) -> list[str]:
    """Remarks, and what was found in the data."""
    other = step.stands_in_for
    instead = [f"stands in for: {visible(other)}, for which there is no option"] if other else []
    return [visible(text, 600) for text in (*instead, *step.notes, *step.says)]


def option_text(step: Step, chosen: Chosen) -> str:
    """Whether the option of a step was tried, or why there is none."""
    if step.mark is not None:
        return f"option {MARKS[step.mark]}"
    if step.is_edit:
        return "no option of any toolchain: edit the model, the data or the application"
    if not chosen.name:
        return "toolchain not known"
    return f"{name(chosen.title)} has no option for it: apply it to the model itself"


def _remarks(given: Prescription, chosen: Chosen, runs: bool) -> Iterator[str]:
    if runs:
        data = calibration_in_words(given)
        yield f"To run it as it stands: {USAGE}, in the folder of this report. CALIBRATION: {data}."
    if given.checked and given.grade != "executed":
        yield f"Options were checked with {visible(given.checked)}."
    if given.given:
        names = "; ".join(f"{name(own)}, {visible(what)}" for own, what in given.given.items())
        yield f"{'Without that, define' if runs else 'Define'} before you run it, at the top of the file: {names}."
    opened = [file for file in FLOAT_FILES if any(f'"{file}"' in each.code for each in given.configurations)]
    if opened:
        yield f"Run it in the folder of the float model, which must be called {' or '.join(opened)}."
    if any(f'"{WRITTEN}"' in each.code for each in given.configurations):
        yield f"It writes {WRITTEN} there, over a file of this name: keep yours under another one to compare both."
    for conflict in given.conflicts:
        yield f"Two remedies set the same option, and the first stands: {visible(conflict, 200)}."
    if not given.configurations and chosen.name:
        yield f"{name(chosen.title)} has no option for any of them."
