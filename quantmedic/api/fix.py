"""A harmed model made better: diagnosed, the prescription executed, and what came out measured before it is written."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Unpack

from quantmedic.api.arguments import CollectArguments
from quantmedic.api.collect import collect_pair, prove_pair
from quantmedic.api.comparisons import compare, write_comparison
from quantmedic.api.judging import Diagnosis, check_toolchain, judge
from quantmedic.api.keywords import group_arguments
from quantmedic.api.language_models import refuse_checkpoints
from quantmedic.api.notebooks import Watching, watching
from quantmedic.api.opening import with_time_limit
from quantmedic.api.options import CollectOptions, DataSource, ModelSource
from quantmedic.api.remedies import require_other_file
from quantmedic.api.rulebase import load_rulebase
from quantmedic.collectors.data.progress import Progress, no_progress
from quantmedic.collectors.front_ends import front_end_of
from quantmedic.collectors.measure.models import Edited
from quantmedic.engine.case.proof import Grade
from quantmedic.engine.errors import DataError
from quantmedic.engine.output_files import make_folder, move_file, require_folder, scratch_folder
from quantmedic.engine.rules.rulebase import RuleBase
from quantmedic.engine.versus.side_by_side import ComparisonReport

#: Answers of a comparison with which the repaired model is given out.
BETTER = ("healed", "better")
#: Folders of the reports.
BEFORE, AFTER = "before", "after"


@dataclass(frozen=True, repr=False)
class Fixed:
    """What became of a repair.

    Attributes:
        before: The diagnosis of the quantized model, with what was tried.
        after: The diagnosis of the repaired model on the same data; None where there is none.
        comparison: Both side by side; None likewise.
        model: The written file, or the repaired module; None where nothing is given out.
        grade: ``executed``: the toolchain made the model; ``edited``: a copy of the quantized one was changed.
        refused: Why nothing is given out, in words; None where something is.
    """

    before: Diagnosis
    after: Diagnosis | None = None
    comparison: ComparisonReport | None = None
    model: object | None = None
    grade: Grade | None = None
    refused: str | None = None

    def __repr__(self) -> str:
        """What became of the model; the attributes hold the rest."""
        verdicts = f"{self.before.verdict} -> {self.after.verdict}" if self.after is not None else self.before.verdict
        given = f"refused: {self.refused}" if self.refused is not None else f"{self.grade}: {self._given}"
        return f"<Fixed {self.before.model.name or 'model'}: {verdicts}; {given}>"

    @property
    def is_still_degraded(self) -> bool:
        """What is given out is better, and not good."""
        return self.after is not None and self.after.verdict == "degraded"

    @property
    def needless(self) -> bool:
        """There was nothing to repair."""
        return self.before.verdict == "healthy" and self.model is None

    @property
    def _given(self) -> str:
        """The written file, or the kind of the repaired module."""
        return str(self.model) if isinstance(self.model, Path) else type(self.model).__name__


def fix(
    float_model: ModelSource,
    quantized_model: ModelSource,
    output: str | Path | None = None,
    *,
    representative: DataSource | None = None,
    validation: DataSource | None = None,
    rules: RuleBase | None = None,
    toolchain: str | None = None,
    report: str | Path | None = None,
    progress: Watching = True,
    **options: Unpack[CollectArguments],
) -> Fixed:
    """Diagnose the quantized model, carry out what is prescribed, and give out what measures better.

    Args:
        float_model: See ``diagnose``.
        quantized_model: See ``diagnose``; neither model is changed.
        output: File for the repaired model, of the kind of the quantized one; None for modules, which are returned.
        representative: See ``diagnose``.
        validation: See ``diagnose``; the repaired model is measured on it.
        rules: See ``diagnose``.
        toolchain: See ``diagnose``.
        report: Folder for the reports ``before`` and ``after`` and their comparison.
        progress: See ``collect``.
        **options: Passed to ``collect``; ``prove`` limits the time for trials; without, every machine tries as much.

    Raises:
        QuantmedicError: See ``diagnose``; or the file cannot be written.
    """
    given = group_arguments(representative, validation, options)
    given = replace(given, prove=given.prove or True, write_fixed=None, toolchain=toolchain)
    target = Path(output) if output is not None else None
    with watching(progress) as told:
        return fix_pair(
            float_model,
            quantized_model,
            target,
            given,
            rules=rules,
            report=Path(report) if report is not None else None,
            progress=told,
        )


@with_time_limit
def fix_pair(
    float_model: ModelSource,
    quantized_model: ModelSource,
    output: Path | None,
    options: CollectOptions,
    *,
    rules: RuleBase | None = None,
    report: Path | None = None,
    progress: Progress = no_progress,
) -> Fixed:
    """``fix`` with its options as one record; see there."""
    refuse_checkpoints(float_model, quantized_model)
    base = rules or load_rulebase()
    check_toolchain(options.toolchain, base)
    if output is not None:
        _require_place(output, (float_model, quantized_model))
    if report is not None:
        for folder in (report, report / BEFORE, report / AFTER):
            require_folder(folder, within=report)
    proven = prove_pair(float_model, quantized_model, options, rules=base, progress=progress)
    before = judge(proven.case, base, toolchain=options.toolchain)
    grade: Grade = "executed" if before.proof is not None and before.proof.best is not None else "edited"

    def compare_with(repaired: ModelSource, model: object) -> Fixed:
        """What is said of the repaired model, which is given out as ``model`` where it is better."""
        case = collect_pair(float_model, repaired, options.for_repaired(), rules=base, progress=progress)
        comparison = compare(proven.case, case, base)
        found = Fixed(before, judge(case, base), comparison, grade=grade)
        if _is_better(comparison, before):
            return replace(found, model=model)
        return replace(found, refused=f"measured on the same data, the repaired model is {comparison.word}")

    if before.verdict == "healthy" and proven.fix is None:
        words = f"{before.model.name or 'the model'} is healthy: there is nothing to repair"
        found = Fixed(before, refused=words)
    elif proven.fix is None:
        found = Fixed(before, refused=_why_unproven(before))
    else:
        found = _hand_out(proven.fix(), Fixed(before, grade=grade), output, compare_with)
    if report is not None:
        before.save(report / BEFORE)
        if found.after is not None and found.comparison is not None:
            found.after.save(report / AFTER)
            write_comparison(found.comparison, report)
    return found


def _hand_out(
    repaired: Edited, found: Fixed, output: Path | None, compare_with: Callable[[ModelSource, object], Fixed]
) -> Fixed:
    """Measure the repaired model, and give it out where it is better."""
    if output is None:
        module = getattr(repaired, "module", None)
        if module is not None:
            return compare_with(module, module)
        words = "the remedy was proven on a copy of the module while it ran: its toolchain has to carry it out"
        return replace(found, refused=words)
    if repaired.save is None:
        words = "the remedy was proven on a stand-in of the model: its toolchain has to carry it out"
        return replace(found, refused=words)
    make_folder(output.parent)
    with scratch_folder(output.parent) as folder:
        made = folder / output.name
        repaired.save(made)
        result = compare_with(made, output)
        if result.model is not None:
            # Some models are two files of one name: the one that is asked for comes last, when the other is there.
            for part in sorted(folder.iterdir(), key=lambda path: path == made):
                move_file(part, output.parent / part.name)
    return result


def _is_better(comparison: ComparisonReport, before: Diagnosis) -> bool:
    """Measured better; or proven on other samples, where no output of the first model could be held against another."""
    if comparison.word in BETTER:
        return True
    unknown = all(output.gain_db is None for output in comparison.outputs)
    proof = before.proof
    proven = proof is not None and proof.best is not None and proof.executions[proof.best].trial.proven
    return comparison.word in ("unchanged", "undecided") and unknown and proven


def _why_unproven(before: Diagnosis) -> str:
    """What is lacking."""
    if before.proof is None:
        same = next((cause.message for cause in before.causes), "") if before.model.is_twice_the_same else ""
        untried = (text for text in before.warnings if text.startswith("no remedy was tried"))
        return same or next(untried, "nothing was tried")
    lacking = f"; no prescription was executed: {before.proof.unexecuted}" if before.proof.unexecuted else ""
    return f"no remedy recovers anything for sure{lacking}"


def _require_place(output: Path, models: tuple[ModelSource, ...]) -> None:
    if any(front_end_of(model).name == "torch" for model in models):
        raise DataError(
            "a repaired module is returned, not written",
            where=str(output),
            help="call quantmedic.fix(float_module, quantized_module, …) in Python, and save what .model holds",
        )
    require_other_file(output, models)
