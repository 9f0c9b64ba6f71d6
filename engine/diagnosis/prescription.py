"""The prescription: the best remedies as one configuration of the user's toolchain, ready to be pasted."""

import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from quantmedic.engine.case.facts import FLOAT_ALONE
from quantmedic.engine.case.proof import REPAIRED_DATA, TrialRecord
from quantmedic.engine.case.settings_in_force import SettingsInForce
from quantmedic.engine.contract.causes import CauseReport
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.contract.remedies import Advice, Configuration, Prescription, Step, TrialRow
from quantmedic.engine.diagnosis.advice import general_advice
from quantmedic.engine.diagnosis.snippets import filled_options, render_snippet, stand_within
from quantmedic.engine.rules.options import (
    WIDTH,
    Form,
    Language,
    Options,
    mark_changes,
    merge,
    merge_all,
    with_helpers,
    write,
)
from quantmedic.engine.rules.remedies import Mark, Snippet
from quantmedic.engine.rules.remedy_kinds import REMEDY_KINDS
from quantmedic.engine.rules.rulebase import RuleBase
from quantmedic.engine.rules.toolchain import Toolchain, choose, options_in_force
from quantmedic.engine.text import inert

FILES: Mapping[Language, str] = {"python": "prescription.py", "yaml": "prescription.yaml", "json": "prescription.json"}
#: From the weakest to the strongest.
MARKS: tuple[Mark, ...] = ("documentation", "source", "run")


class _Choice(NamedTuple):
    """A remedy with the causes that advise it; None where it is for the whole network, whatever the cause."""

    advised: list[tuple[CauseReport | None, Advice]]
    title: str
    measured: TrialRecord | None
    instead: str | None = None


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
    repairable = diagnosis.verdict != "healthy" and diagnosis.model.framework != FLOAT_ALONE
    repairable = repairable and not diagnosis.model.is_twice_the_same and not diagnosis.model.float_is_quantized
    wanted = _choose_remedies(diagnosis, base) if repairable else []
    given = _prescription_of(diagnosis, wanted, toolchain) if wanted else None
    guide = toolchain.guide if toolchain is not None and diagnosis.advice else None
    advice = tuple(dict.fromkeys((guide, *diagnosis.advice))) if guide else diagnosis.advice
    return diagnosis.model_copy(update={"toolchain": chosen, "prescription": given, "advice": advice})


def _choose_remedies(diagnosis: Diagnosis, base: RuleBase) -> list[_Choice]:
    """The remedies of the proven chain; else the best one of the first cause that has one not disproven."""
    if diagnosis.proof is not None and diagnosis.proof.chain:
        return [_of_row(row, diagnosis, base) for row in diagnosis.proof.chain]
    for cause in diagnosis.causes:
        best = next((advice for advice in cause.remedies if not advice.is_disproven), None)
        if best is not None:
            return [_Choice([(cause, best)], best.title, best.measured)]
    return []


def _of_row(row: TrialRow, diagnosis: Diagnosis, base: RuleBase) -> _Choice:
    """What the rules advise for a link of the chain: of every cause the remedy that it was a trial of."""
    kind = REMEDY_KINDS.get(row.trial.kind)
    if kind is not None and kind.advised_as is not None:
        kind = REMEDY_KINDS[kind.advised_as]
    advised: list[tuple[CauseReport | None, Advice]] = []
    for cause in (each for each in diagnosis.causes if each.cause in row.causes):
        same = [advice for advice in cause.remedies if advice.title == row.remedy]
        same += [advice for advice in cause.remedies if kind is not None and advice.simulate == kind.name]
        advised += [(cause, advice) for advice in same[:1]]
    general = kind.everywhere.remedy if kind is not None and kind.everywhere is not None else None
    if not advised and general is not None and general in base.remedies:
        types = [layer.op_type for layer in diagnosis.layers]
        advised = [(None, general_advice(base.remedies[general], types, row.trial.nodes))]
    return _Choice(advised, row.remedy, row.trial)


def _prescription_of(diagnosis: Diagnosis, wanted: list[_Choice], toolchain: Toolchain | None) -> Prescription:
    choices = [_replace_unsupported(choice, toolchain) for choice in wanted]
    parts = [_snippets_of(choice, toolchain) for choice in choices]
    steps = tuple(_prescription_step(choice, found, diagnosis) for choice, found in zip(choices, parts, strict=True))
    conflicts: list[str] = []
    configurations = (
        _merged_configurations(choices, parts, steps, toolchain, conflicts, diagnosis.settings_in_force)
        if toolchain is not None
        else ()
    )
    marks = [step.mark for step in steps if step.mark is not None]
    proven = all(step.measured is not None and step.measured.proven for step in steps)
    predicted = all(step.measured is not None or step.predicted is not None for step in steps)
    return Prescription(
        basis="proven" if proven else "predicted" if predicted else "untried",
        steps=steps,
        configurations=configurations,
        mark=min(marks, key=MARKS.index, default=None),
        checked=toolchain.checked if toolchain is not None and set(marks) - {"documentation"} else "",
        given=_user_names(configurations, toolchain) if toolchain is not None else {},
        conflicts=tuple(dict.fromkeys(conflicts)),
    )


def _replace_unsupported(choice: _Choice, toolchain: Toolchain | None) -> _Choice:
    """The choice, or the next remedy of its cause where the toolchain can do that but not this."""
    if toolchain is None or not choice.advised or _snippets_of(choice, toolchain):
        return choice
    cause, best = choice.advised[0]
    if not best.snippets:  # an edit, which every toolchain leaves to the user
        return choice
    for advice in cause.remedies if cause is not None else ():
        other = _Choice([(cause, advice)], advice.title, advice.measured, instead=best.title)
        if advice is not best and not advice.is_disproven and _snippets_of(other, toolchain):
            return other
    return choice


class _Part(NamedTuple):
    """One snippet, and what it is filled with."""

    snippet: Snippet
    fields: Mapping[str, object]
    origin: str


def _snippets_of(choice: _Choice, toolchain: Toolchain | None) -> list[_Part]:
    """The snippet of the toolchain for every cause that advises the remedy; one for the layers' types goes first."""
    found = []
    for cause, advice in choice.advised:
        own = [s for s in advice.snippets if toolchain is not None and s.toolchain == toolchain.name]
        if own:
            best = min(own, key=lambda snippet: not snippet.types)
            rules = ", ".join(cause.rules) if cause is not None else "proof"
            found.append(_Part(best, advice.fields, f"{rules}: {advice.id}"))
    return found


def _prescription_step(choice: _Choice, parts: list[_Part], diagnosis: Diagnosis) -> Step:
    lead = choice.advised[0][1] if choice.advised else None
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
        says=tuple(_in_words(choice, diagnosis)) if lead is not None and lead.scope == "dataset" else (),
    )


def _in_words(choice: _Choice, diagnosis: Diagnosis) -> Iterator[str]:
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
            f"that differs most: the reader has to undo it, (x {'-' if offset >= 0 else '+'} {abs(offset):.4g}) / "
            f"{slope:.4g}, or better, prepare its inputs with the application's own function"
        )


def _merged_configurations(
    choices: list[_Choice],
    parts: list[list[_Part]],
    steps: tuple[Step, ...],
    toolchain: Toolchain,
    conflicts: list[str],
    settings: SettingsInForce | None,
) -> tuple[Configuration, ...]:
    """Code of all remedies, then each form once with the options of all of them and the settings in force."""
    code: list[str] = []
    merged: dict[str, Options] = {}
    forms: dict[str, Form] = {}
    for choice, found, step in zip(choices, parts, steps, strict=True):
        if found:
            code += [line for text in (choice.title, *step.says) for line in _comment(text)]
        for part in found:
            if part.snippet.code and (text := render_snippet(part.snippet.code, part.fields, part.origin)) not in code:
                code += [text, ""]
            forms |= part.snippet.forms
            clashes: list[str] = []
            for form, options in filled_options(part.snippet, part.fields, part.origin).items():
                merged[form] = merge(merged[form], options, clashes, form) if form in merged else options
            conflicts += [f"{place}: {choice.title} asks for another value" for place in clashes]
    texts: dict[Language, list[str]] = {"python": code} if code and not _only(forms, "yaml", "json") else {}
    for form, options in merged.items():
        text = _write_form(form, forms[form], options, toolchain, settings)
        looped = next((part.snippet for found in parts for part in found if part.snippet.within), None)
        texts.setdefault(forms[form].language, []).append(stand_within(text, looped) if looped is not None else text)
    return tuple(
        Configuration(language=language, file=FILES[language], code=complete_code("\n".join(rows), language, toolchain))
        for language, rows in texts.items()
    )


def _write_form(name: str, form: Form, options: Options, toolchain: Toolchain, settings: SettingsInForce | None) -> str:
    """The form with the settings in force, and the options of the remedies marked where they change one."""
    if name not in toolchain.in_force or settings is None:
        return write(name, form, options)
    kept = options_in_force(toolchain, name, settings)
    before: Options = {**dict(enumerate(form.positional)), **kept}
    merged = merge_all([options, before])
    ordered = {key: merged[key] for key in (*before, *(key for key in merged if key not in before))}
    head = "# The settings of the quantized model are kept; what the remedy sets anew is marked.\n" if kept else ""
    return head + write(name, form, mark_changes(ordered, before))


def _only(forms: Mapping[str, Form], *languages: Language) -> bool:
    return bool(forms) and all(form.language in languages for form in forms.values())


def _comment(text: str) -> list[str]:
    return textwrap.wrap(inert(text), WIDTH, initial_indent="# ", subsequent_indent="# ", break_on_hyphens=False)


def _user_names(configurations: Iterable[Configuration], toolchain: Toolchain) -> dict[str, str]:
    """The names of the user's own that the Python code uses."""
    code = "\n".join(each.code for each in configurations if each.language == "python")
    text = "\n".join(line for line in code.splitlines() if not line.startswith("#"))
    return {name: what for name, what in toolchain.given.items() if re.search(rf"(?<![\w\"./]){name}(?![\w\"])", text)}


def complete_code(body: str, language: Language, toolchain: Toolchain) -> str:
    body = with_helpers(body, toolchain.helpers) if language == "python" else body
    imports = list(_imports(body, toolchain)) if language == "python" else []
    return "\n".join([*imports, *([""] if imports else []), body.strip("\n")]) + "\n"


def _imports(body: str, toolchain: Toolchain) -> Iterator[str]:
    """Import lines for the names that the body uses."""
    for module, names in toolchain.imports.items():
        if isinstance(names, str):
            if re.search(rf"\b{re.escape(names)}\.", body):
                yield f"import {module}" if names == module else f"import {module} as {names}"
        elif used := [name for name in names if re.search(rf"\b{name}\b", body)]:
            line = f"from {module} import {', '.join(used)}"
            yield line if len(line) <= WIDTH else f"from {module} import (\n    {', '.join(used)},\n)"
