"""A measured case, judged: neither models nor data are needed."""

from quantmedic.api.answer import Diagnosis
from quantmedic.api.inspection import inspect_under
from quantmedic.api.rulebase import load_rulebase
from quantmedic.engine.case.records import Case
from quantmedic.engine.diagnosis.assemble import Provenance, make_diagnosis
from quantmedic.engine.diagnosis.budget_lines import Attribution
from quantmedic.engine.diagnosis.harm import as_if_harmed
from quantmedic.engine.diagnosis.inspection import Inspection
from quantmedic.engine.diagnosis.prescription import prescribe
from quantmedic.engine.diagnosis.previous import previous_case, refuse_other_float
from quantmedic.engine.diagnosis.repair import facts_after
from quantmedic.engine.diagnosis.suspects import Repairer, find_pairs, targets_of
from quantmedic.engine.formulas.derive import derive
from quantmedic.engine.formulas.spreads import display_histogram
from quantmedic.engine.formulas.task_metric import sizes_to_tell
from quantmedic.engine.rules.rulebase import RuleBase
from quantmedic.engine.rules.toolchain import find_toolchain
from quantmedic.engine.version import VERSION
from quantmedic.reports.text import count


def judge(
    case: Case | Inspection,
    rules: RuleBase | None = None,
    *,
    previous: Case | None = None,
    toolchain: str | None = None,
) -> Diagnosis:
    """Judge a measured case; needs neither models nor data.

    Args:
        case: What was measured; opened by ``inspect``, its facts are not derived once more.
        rules: Rules and thresholds; the built-in ones by default.
        previous: The case before a remedy was applied, of the same float model.
        toolchain: See ``diagnose``.

    Raises:
        CaseError: The previous case is of another float model.
        RuleError: No toolchain has that name.
    """
    base = rules or load_rulebase()
    check_toolchain(toolchain, base)
    opened = inspect_under(case, base)
    case, facts = opened.case, opened.facts
    base = base.for_framework(facts.model.framework)
    earlier = None
    if previous is not None:
        refuse_other_float(previous.record, case.record)
        earlier = previous_case(previous, case, derive(previous, base), judge(previous, base).causes)
    world, budget = as_if_harmed(facts), case.record.loss_budget
    diagnosis = make_diagnosis(
        base,
        facts,
        repairs=Repairer(base, case, facts),
        repair=lambda change, outcome: facts_after(case, world, base, change, outcome),
        simulation=case.record.simulation,
        proof=case.record.proof,
        attribution=None if budget is None else Attribution(budget, case.record, lambda f: targets_of(f, case, facts)),
        pairs=lambda suspects: [pair for pair, _ in find_pairs(suspects, case, facts, case.record.simulation, base)],
        provenance=Provenance(
            version=VERSION,
            warnings=tuple(_warnings(case)),
            imports=case.record.imports,
            run=_run_record(case),
        ),
        histogram=lambda tensor: display_histogram(case, tensor),
        sizes=lambda drop: sizes_to_tell(case, facts.model.metric, drop),
        previous=earlier,
    )
    return Diagnosis.of(prescribe(diagnosis, base, toolchain), opened)


def check_toolchain(asked: str | None, base: RuleBase) -> None:
    """Refuse an unknown name before anything is measured."""
    if asked is not None:
        find_toolchain(asked, base.toolchains)


def _warnings(case: Case) -> list[str]:
    record = case.record
    warnings = list(record.notices)
    if record.unmatched:
        shown = ", ".join(record.unmatched[:5])
        more = f" and {len(record.unmatched) - 5} more" if len(record.unmatched) > 5 else ""
        one = len(record.unmatched) == 1
        verbs = ("has", "is") if one else ("have", "are")
        warnings.append(
            f"{count(len(record.unmatched), 'operator')} {verbs[0]} no twin in the float model and {verbs[1]} not "
            f"measured: {shown}{more}"
        )
    warnings += [
        f"the {role} data was not read to its end: {d.seen} samples"
        for role, d in record.datasets.items()
        if not d.complete
    ]
    return warnings


def _run_record(case: Case) -> dict[str, object]:
    """How the case was measured, for the report."""
    record = case.record
    data = {
        role: {
            "origin": d.origin,
            "samples": d.seen,
            "labelled": d.labelled,
            "samples_sha256": case.samples_sha256(role),
        }
        for role, d in record.datasets.items()
    }
    return {**record.run, "metric": record.metric, "data": data, "unmatched": list(record.unmatched)}
