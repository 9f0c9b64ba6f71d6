"""The prescription: the best remedies as one configuration of the user's toolchain, ready to be pasted."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain

from quantmedic.engine.case.facts import FLOAT_ALONE, MetricFacts
from quantmedic.engine.case.proof import REPAIRED_DATA, ExecutionRecord
from quantmedic.engine.case.settings_in_force import SettingsInForce
from quantmedic.engine.contract.advised_remedies import Advice, Basis, Configuration, Prescription, Step
from quantmedic.engine.contract.causes import CauseReport
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.diagnosis.candidates import Candidates, Choice, Part, reads_anew
from quantmedic.engine.diagnosis.competition import rank_executed
from quantmedic.engine.diagnosis.harm import stands_out
from quantmedic.engine.diagnosis.remedy_outcomes import is_harmful
from quantmedic.engine.diagnosis.snippets import (
    as_comment,
    filled_options,
    lines_behind,
    own_names,
    render_snippet,
    stand_within,
    with_settings,
)
from quantmedic.engine.rules.remedies import NAME_FIELDS, Mark, Snippet
from quantmedic.engine.rules.rulebase import RuleBase
from quantmedic.engine.rules.toolchain import Toolchain, choose, options_in_force
from quantmedic.engine.rules.toolchain_options import (
    Form,
    Language,
    Options,
    merge,
    with_helpers,
    with_imports,
    write,
)

FILES: Mapping[Language, str] = {"python": "prescription.py", "yaml": "prescription.yaml", "json": "prescription.json"}
#: What the user's data have to be where those that calibrated the model cannot be repaired.
NEW_DATA = "inputs as the application sees them: not those that the model was calibrated with, which cannot be repaired"
#: Share of right answers by which a quantized model beats a float one at chance level.
BETTER = 0.1
#: Of models with names of layers and tensors.
FRAMEWORKS = ("onnx", "torch", "litert", "openvino")
#: From the weakest to the strongest.
MARKS: tuple[Mark, ...] = ("documentation", "source", "run")


def prescribe(diagnosis: Diagnosis, base: RuleBase, asked: str | None = None) -> Diagnosis:
    """The diagnosis with its toolchain, and with a prescription unless there is nothing to repair.

    Where quantization failed there is none: remedies then change the model, the data or the call, not a configuration.

    Args:
        diagnosis: With the proof, if there is one.
        base: Remedies and toolchains in force.
        asked: Toolchain as the user calls it; None: what the quantized model carries marks of.

    Raises:
        RuleError: No toolchain has that name.
    """
    chosen = choose(diagnosis.model, base.toolchains, asked)
    toolchain = next((each for each in base.toolchains if each.name == chosen.name), None)
    settings = diagnosis.settings_in_force
    if toolchain is not None and settings is not None:
        kept = _with_settings_in_force(diagnosis.causes, settings, toolchain)
        diagnosis = diagnosis.model_copy(update={"causes": kept})
    repairable = is_worth_repairing(diagnosis, base) and diagnosis.model.framework != FLOAT_ALONE
    repairable = repairable and not diagnosis.model.is_twice_the_same and not diagnosis.model.float_is_quantized
    repairable = repairable and not _float_is_worse(diagnosis.metrics)
    given = _prescription_of(Candidates(diagnosis, base, toolchain)) if repairable else None
    if diagnosis.verdict == "healthy" and given is not None and given.grade != "executed":
        given = None  # What may do no good is not asked of a healthy model.
    guide = toolchain.guide if toolchain is not None and diagnosis.advice else None
    advice = tuple(dict.fromkeys((guide, *diagnosis.advice))) if guide else diagnosis.advice
    causes = rank_executed(diagnosis.causes, given, base)
    changes = {"toolchain": chosen, "prescription": given, "advice": advice, "causes": causes}
    return diagnosis.model_copy(update=changes)


def is_worth_repairing(diagnosis: Diagnosis, base: RuleBase) -> bool:
    """A loss is found or possible; of a healthy network, one cause makes most of the noise and its repair removes it.

    Such noise costs nothing on these data and this task; other data, or one more fault, may be another matter.
    """
    if diagnosis.verdict != "healthy":
        return True
    assumed = [cause for cause in diagnosis.causes if cause.harm == "assumed"]
    return any(stands_out(cause.measured_gain_db or cause.predicted_gain_db or 0.0, base) for cause in assumed)


def _with_settings_in_force(
    causes: tuple[CauseReport, ...], settings: SettingsInForce, toolchain: Toolchain
) -> tuple[CauseReport, ...]:
    """Causes whose remedies are written as whole calls of the toolchain in use, texts that set something new first."""
    kept = {form: options_in_force(toolchain, form, settings) for form in toolchain.in_force}
    changes = {"in_force": kept, "helpers": toolchain.helpers, "imports": toolchain.imports}

    def write_whole(advice: Advice) -> Advice:
        ordered = sorted(
            advice.snippets, key=lambda s: s.toolchain == toolchain.name and _sets_nothing(s, advice, kept)
        )
        return advice.model_copy(update={**changes, "snippets": tuple(ordered)})

    return tuple(cause.model_copy(update={"remedies": tuple(map(write_whole, cause.remedies))}) for cause in causes)


def _float_is_worse(metrics: MetricFacts) -> bool:
    """The quantized model is better at its task than the float one: what made it alike would harm it."""
    if metrics.drop_high is not None:
        return metrics.drop_high < 0
    if metrics.label_fault not in ("chance", "weak") or metrics.quantized_value is None or metrics.float_value is None:
        return False
    return metrics.quantized_value > metrics.float_value + BETTER


def _prescription_of(candidates: Candidates) -> Prescription | None:
    """The one that was executed and heals; else what trials and rules say, unless that made the model worse."""
    executed = _executed_best(candidates)
    if executed is not None:
        return executed
    wanted, proof = candidates.choose(), candidates.diagnosis.proof
    if not wanted:
        return None
    given = write_prescription(candidates.diagnosis, wanted, candidates.toolchain)
    if candidates.toolchain is not None and not given.configurations:
        others = _prescription_of_others(candidates, given)
        if others is not None and others.configurations:
            return others  # The toolchain has no option for what leads.
    rows = proof.executions if proof is not None else ()
    same = next((row for row in rows if _is_text_of(row, given, candidates.toolchain)), None)
    if same is None:
        return given
    if is_harmful(same.trial.gain_db, candidates.base):
        return None
    given = _with_execution(given, same)
    is_vain = given.basis == "without-effect" and not same.is_of_data
    return (_prescription_of_others(candidates, given) if is_vain else None) or given


def _prescription_of_others(candidates: Candidates, given: Prescription) -> Prescription | None:
    """What is prescribed for the grave causes that a prescription is not for; None without such."""
    tried = {cause for step in given.steps for cause in step.causes}
    others = [cause for cause in candidates.diagnosis.causes if cause.cause not in tried]
    # Other names of the same fault have other remedies.
    left = tuple(sorted(others, key=lambda cause: cause.explained_by not in tried))
    if not tried or not any(cause.is_serious or cause.explained_by in tried for cause in left):
        return None
    return _prescription_of(replace(candidates, diagnosis=candidates.diagnosis.model_copy(update={"causes": left})))


def _executed_best(candidates: Candidates) -> Prescription | None:
    """The executed prescription, where rules and toolchain still give the very text that ran."""
    proof, toolchain = candidates.diagnosis.proof, candidates.toolchain
    if proof is None or proof.best is None or toolchain is None:
        return None
    record, known = proof.executions[proof.best], candidates.by_id()
    if not set(record.choices) <= known.keys():
        return None
    given = write_prescription(candidates.diagnosis, [known[each] for each in record.choices], toolchain)
    return _with_execution(given, record) if _is_text_of(record, given, toolchain) else None


def _is_text_of(record: ExecutionRecord, given: Prescription, toolchain: Toolchain | None) -> bool:
    return toolchain is not None and record.toolchain == toolchain.name and record.code == code_of(given)


def _with_execution(given: Prescription, record: ExecutionRecord) -> Prescription:
    healed = record.trial.proven
    basis: Basis = "proven" if healed else "refused" if record.trial.failed is not None else "without-effect"
    alone = len(given.steps) == 1
    steps = (given.steps[0].model_copy(update={"measured": record.trial}),) if alone else given.steps
    changes = {"basis": basis, "grade": "executed" if healed else given.grade, "executed": record, "steps": steps}
    return given.model_copy(update=changes)


def code_of(given: Prescription) -> str | None:
    """The Python text of a prescription; None where it has none."""
    return next((each.code for each in given.configurations if each.language == "python"), None)


def write_prescription(diagnosis: Diagnosis, choices: Sequence[Choice], toolchain: Toolchain | None) -> Prescription:
    """These remedies as one configuration, whether or not they were tried.

    Args:
        diagnosis: What is to be healed.
        choices: The remedies, in order; of two that set one option differently the first holds.
        toolchain: Whose options they become; None: not known, and nothing can be pasted.
    """
    parts = [choice.snippets(toolchain) for choice in choices]
    steps = tuple(_prescription_step(choice, found, diagnosis) for choice, found in zip(choices, parts, strict=True))
    configurations, conflicts, given = tuple[Configuration, ...](), tuple[str, ...](), dict[str, str]()
    if toolchain is not None:
        configurations, conflicts = _merge(choices, parts, steps, toolchain, diagnosis.settings_in_force)
        if foreign := _foreign_names(parts, toolchain, diagnosis):
            configurations = tuple(each.model_copy(update={"code": _under(foreign, each)}) for each in configurations)
            steps = tuple(step.model_copy(update={"notes": (*step.notes, foreign)}) for step in steps)
        given = user_names(configurations, toolchain, reads_anew(chain.from_iterable(parts)))
    marks = [step.mark for step in steps if step.mark is not None]
    proven = all(step.measured is not None and step.measured.proven for step in steps)
    predicted = all(map(_is_foreseen, steps))
    return Prescription(
        basis="proven" if proven else "predicted" if predicted else "untried",
        grade="edited" if proven else "simulated" if predicted else None,
        steps=steps,
        configurations=configurations,
        mark=min(marks, key=MARKS.index, default=None),
        checked=toolchain.checked if toolchain is not None and set(marks) - {"documentation"} else "",
        given=given,
        conflicts=conflicts,
    )


def _foreign_names(parts: Iterable[Sequence[Part]], toolchain: Toolchain, diagnosis: Diagnosis) -> str:
    """What is said where names are those of a model that the toolchain does not quantize; empty elsewhere."""
    framework = diagnosis.model.framework
    foreign = framework in FRAMEWORKS and bool(toolchain.names_of) and framework not in toolchain.names_of
    if not foreign or not any(part.snippet.names_something for found in parts for part in found):
        return ""
    return (
        f"names are those of the {framework} model and have to be replaced, for {toolchain.title} has others: "
        f"{toolchain.naming}"
    )


def _under(said: str, configuration: Configuration) -> str:
    """The text of a configuration below a comment; JSON has none."""
    if configuration.language == "json":
        return configuration.code
    return "\n".join([*as_comment(said), configuration.code])


def _is_foreseen(step: Step) -> bool:
    """What it brings was measured or simulated; of a bound nothing is known but that it brings no more."""
    known = step.measured if step.measured is not None else step.predicted
    return known is not None and not known.bound


def _prescription_step(choice: Choice, parts: list[Part], diagnosis: Diagnosis) -> Step:
    lead = choice.lead
    marks = [part.snippet.mark for part in parts]
    return Step(
        remedy=lead.id if lead is not None else "",
        title=choice.title,
        changes=lead.changes if lead is not None else "",
        causes=tuple(dict.fromkeys(cause.cause for cause, _ in choice.advised if cause is not None)),
        measured=choice.measured,
        predicted=lead.predicted if lead is not None else None,
        mark=min(marks, key=MARKS.index, default=None),
        notes=tuple(dict.fromkeys(part.snippet.note for part in parts if part.snippet.note)),
        stands_in_for=choice.instead,
        is_edit=lead is not None and not lead.snippets,
        says=tuple(_in_words(choice, diagnosis)) if choice.is_of_data else (),
    )


def _in_words(choice: Choice, diagnosis: Diagnosis) -> Iterator[str]:
    """What is wrong with the data, and the map between the two sets."""
    yield from dict.fromkeys(cause.message.strip() for cause, _ in choice.advised if cause is not None)
    causes = {cause.cause for cause, _ in choice.advised if cause is not None}
    rows = diagnosis.proof.trials if diagnosis.proof is not None else ()
    for trial in [choice.measured, *(row.trial for row in rows if causes & set(row.causes))]:
        if trial is not None and trial.kind == REPAIRED_DATA and trial.detail and trial.proven:
            yield f"proven by itself: {trial.detail}"
    relation = next((each.relation for each in diagnosis.datasets if each.role == "representative"), None)
    if relation is None or relation.kind in (None, "same", "unexplained"):
        return
    if relation.reading:
        yield relation.reading
    slope, offset = relation.slope, relation.offset or 0.0
    if slope:
        yield (
            f"representative = {slope:.4g} * validation {'+' if offset >= 0 else '-'} {abs(offset):.4g} in the channel "
            "that differs most: the calibration data have to undo it, "
            f"(x {'-' if offset >= 0 else '+'} {abs(offset):.4g}) / {slope:.4g}, "
            "or better, prepare the inputs with the application's own function"
        )


def _merge(
    choices: Sequence[Choice],
    parts: list[list[Part]],
    steps: tuple[Step, ...],
    toolchain: Toolchain,
    settings: SettingsInForce | None,
) -> tuple[tuple[Configuration, ...], tuple[str, ...]]:
    """Code of all remedies, then each form once with the options of all of them and the settings in force.

    Gives the conflicts of their options, too.
    """
    conflicts: list[str] = []
    code: list[str] = []
    merged: dict[str, Options] = {}
    forms: dict[str, Form] = {}
    for choice, found, step in zip(choices, parts, steps, strict=True):
        if found:
            code += [line for text in (choice.title, *step.says) for line in as_comment(text)]
        for part in found:
            if (
                part.snippet.code
                and (text := render_snippet(part.snippet.code, part.advice.fields, part.origin)) not in code
            ):
                code += [text, ""]
            forms |= part.snippet.forms
            clashes: list[str] = []
            for form, options in filled_options(part.snippet, part.advice.fields, part.origin).items():
                merged[form] = merge(merged[form], options, clashes, form) if form in merged else options
            conflicts += [f"{place}: {choice.title} asks for another value" for place in clashes]
    texts: dict[Language, list[str]] = {"python": code} if code and not _only(forms, "yaml", "json") else {}
    for form, options in merged.items():
        text = _write_form(form, forms[form], options, toolchain, settings)
        looped = next((part.snippet for found in parts for part in found if part.snippet.within), None)
        rows = texts.setdefault(forms[form].language, [])
        rows.append(stand_within(text, looped) if looped is not None else text)
        concerned = [part.snippet for found in parts for part in found if form in part.snippet.options]
        rows += lines_behind(concerned, forms[form], options)
    configurations = tuple(
        Configuration(language=language, file=FILES[language], code=complete_code("\n".join(rows), language, toolchain))
        for language, rows in texts.items()
    )
    return configurations, tuple(dict.fromkeys(conflicts))


def _write_form(name: str, form: Form, options: Options, toolchain: Toolchain, settings: SettingsInForce | None) -> str:
    """The form with the settings in force, and the options of the remedies marked where they change one."""
    if name not in toolchain.in_force or settings is None:
        return write(name, form, options)
    kept = options_in_force(toolchain, name, settings)
    head = "# The settings of the quantized model are kept; what the remedy sets anew is marked.\n" if kept else ""
    return head + with_settings(name, form, options, kept)


def _only(forms: Mapping[str, Form], *languages: Language) -> bool:
    return bool(forms) and all(form.language in languages for form in forms.values())


def user_names(configurations: Iterable[Configuration], toolchain: Toolchain, reads_anew: bool) -> dict[str, str]:
    """The names of the user's own that the Python code uses."""
    used = own_names("\n".join(each.code for each in configurations if each.language == "python"), toolchain.given)
    return {name: NEW_DATA if reads_anew and name in toolchain.data_names else what for name, what in used.items()}


def complete_code(body: str, language: Language, toolchain: Toolchain) -> str:
    body = with_helpers(body, toolchain.helpers) if language == "python" else body
    return f"{with_imports(body, toolchain.imports) if language == 'python' else body}".strip("\n") + "\n"


def _sets_nothing(snippet: Snippet, advice: Advice, kept: Mapping[str, Options]) -> bool:
    """Every option of the text has its value already; texts with code of their own, or that name something, do more."""
    if snippet.code or not snippet.options or snippet.fields & NAME_FIELDS.keys():
        return False
    filled = filled_options(snippet, advice.fields, advice.id)
    return all(kept.get(form) and _holds(kept[form], options) for form, options in filled.items())


def _holds(kept: object, wanted: object) -> bool:
    """What is wanted is in force; what nobody has set is off."""
    if isinstance(wanted, Mapping):
        held = kept if isinstance(kept, Mapping) else {}
        return all(_holds(held.get(key), value) for key, value in wanted.items())
    return wanted is False if kept is None else bool(kept == wanted)
