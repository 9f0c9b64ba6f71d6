"""What remedies recover: simulated on some samples, or proven on copies of the quantized model."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from quantmedic.api.cases import with_notice
from quantmedic.api.judging import inspect, judge
from quantmedic.api.opening import JudgedMeasurement
from quantmedic.api.options import ModelSource
from quantmedic.api.rulebase import load_rulebase
from quantmedic.collectors.front_ends import front_end_of
from quantmedic.collectors.measure.models import Edited
from quantmedic.collectors.measure.simulation import Simulation
from quantmedic.engine.case.facts import CaseFacts
from quantmedic.engine.case.proof import ProofRecord
from quantmedic.engine.case.records import Case, RunRecord, SimulationRecord
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.diagnosis.budget_lines import NOTABLE
from quantmedic.engine.diagnosis.harm import as_if_harmed, is_clean, with_assumed
from quantmedic.engine.diagnosis.inspection import Inspection
from quantmedic.engine.diagnosis.prescription import is_worth_repairing
from quantmedic.engine.diagnosis.repair_runs import ROOTS, Simulated
from quantmedic.engine.diagnosis.second_look import SecondLook
from quantmedic.engine.diagnosis.suspects import Repair, Repairer, Suspect, general_repairs, suspects_of
from quantmedic.engine.errors import DataError, OutputError, QuantmedicError
from quantmedic.engine.formulas.change import Change
from quantmedic.engine.formulas.derive import derive, derive_with_budget
from quantmedic.engine.formulas.stored_bins import main_role
from quantmedic.engine.input_files import is_same_place
from quantmedic.engine.output_files import require_file
from quantmedic.engine.rules.evaluate import evaluate
from quantmedic.engine.rules.remedy_kinds import HALVES
from quantmedic.engine.rules.rulebase import RuleBase
from quantmedic.trials.allowance import Allowance
from quantmedic.trials.budget_runs import expected_cost
from quantmedic.trials.edit import find_executor
from quantmedic.trials.measure_budget import measure_loss_budget
from quantmedic.trials.prescriptions import Executed, Workshop
from quantmedic.trials.prove import Execute, prove
from quantmedic.trials.tasks import ElsewhereError, OpenElsewhere
from quantmedic.trials.trial import Trials
from quantmedic.trials.workbench import Subject

#: Where so few samples, of at least so many, hold this share of the noise, a remedy can hardly be proven.
FEW_NOISY, AMONG, NEARLY_ALL = 2, 8, 0.9
#: Prescriptions that are run where only what leads is tried.
FIRST_RUNS = 2


@dataclass(frozen=True)
class Proof:
    """A case with its trials, and what makes the model with all proven remedies."""

    case: Case
    fix: Callable[[], Edited] | None = None


def simulate_remedies(case: Case, measurement: JudgedMeasurement) -> Case:
    """The case with its loss budget, and simulated remedies of what is suspected.

    Both are had of every pair whose outputs differ: a network that withstands its noise now may not do so later.

    Args:
        case: What was measured; one that has this already stays as it is.
        measurement: The models and their data.
    """
    if case.record.simulation is not None:
        return case
    facts = derive(case, measurement.base)
    if not facts.model.harmed and as_if_harmed(facts) is facts:
        return case
    role = main_role(case)
    done = 0
    _announce_cost(case, facts, measurement)
    measurement.progress("remedies", done, None)
    try:
        simulation = Simulation(measurement, role, case)

        def run(change: Change) -> RunRecord:
            nonlocal done
            done += 1
            measurement.progress("remedies", done, None)
            return simulation.run(change)

        if facts.model.harmed and not case.record.datasets[role].labelled:
            case = with_notice(case, *_few_noisy_samples(simulation.record, simulation.numbers))
        roots = {root.key: run(root.change) for root in general_repairs(ROOTS, case, facts)}
        if facts.model.harmed or facts.model.output_worst_sqnr_db != math.inf:
            case = _with_budget(case, facts, simulation, measurement)
            # What the budget shows, rules may name.
            facts = derive_with_budget(facts, case, measurement.base)
        suspects = _suspects(case, facts, measurement.base)
        simulated = Simulated(simulation.record.model_copy(update={"runs": roots}), measurement.base)
        simulated = simulated.run_repairs(suspects, general_repairs(HALVES, case, facts), facts, run)
        simulated = SecondLook(simulated, case, facts, simulated.settle(suspects)).run(run)
        if facts.model.harmed:
            simulated = simulated.run_pairs(suspects, case, facts, run)
    except QuantmedicError as error:
        return with_notice(case, f"what remedies recover was not simulated: {error.message}")
    return case.with_record(simulation=simulated.record)


def _few_noisy_samples(record: SimulationRecord, numbers: Sequence[int] | None) -> list[str]:
    """What the user should know where one or two of many samples hold nearly all of the noise.

    ``numbers`` are the places of the samples in their set, where that is known.
    """
    noise = np.array(record.deployed.noise)
    order = np.argsort(-noise, kind="stable")
    noisy = int(np.searchsorted(np.cumsum(noise[order]), NEARLY_ALL * noise.sum())) + 1
    if not (noisy <= FEW_NOISY and len(noise) >= AMONG and noise.sum() > 0):
        return []
    named = numbers if numbers is not None and len(numbers) == len(noise) else ()
    which = f" ({', '.join(f'number {named[k]}' for k in sorted(order[:noisy]))})" if named else ""
    return [
        f"{noisy} of {len(noise)} samples of the {record.dataset} set{which} {'has' if noisy == 1 else 'have'} nearly "
        f"all of the output noise: the gain of a remedy depends on {'it' if noisy == 1 else 'them'} alone and can "
        "hardly be proven; give more such samples (see: quantmedic explain proof)"
    ]


def _announce_cost(case: Case, facts: CaseFacts, measurement: JudgedMeasurement) -> None:
    """Say what attribution is expected to take, where that is more than what measuring took."""
    cost = expected_cost(case, brief=_is_brief(facts, measurement.base))
    if cost.is_large:
        measurement.announce(
            f"attribution takes longer than measuring {cost.measured} samples did: up to {cost.runs} runs of "
            f"{cost.samples} samples divide the noise, and further ones of {cost.simulated} show what remedies recover "
            f"(--no-attribution leaves it out; see: quantmedic explain loss-budget)"
        )


def _is_brief(facts: CaseFacts, base: RuleBase) -> bool:
    return not facts.model.harmed and is_clean(facts, base)


def _with_budget(
    case: Case,
    facts: CaseFacts,
    simulation: Simulation,
    measurement: JudgedMeasurement,
) -> Case:
    notices = measurement.models.float_graph.notices
    known = len(notices)
    budget = measure_loss_budget(
        measurement.models,
        case,
        facts,
        simulation,
        metric=measurement.metric,
        threads=measurement.options.threads,
        progress=lambda done, total: measurement.progress("loss budget", done, total),
        brief=_is_brief(facts, measurement.base),
    )
    case = case.with_record(loss_budget=budget)
    return with_notice(case, *notices[known:])


def prove_remedies(
    case: Case,
    measurement: JudgedMeasurement,
    allowance: Allowance,
    toolchain: str | None = None,
    *,
    first: bool = False,
    elsewhere: OpenElsewhere | None = None,
) -> Proof:
    """What remedies recover on copies of the quantized model, and what prescriptions do that are run as printed.

    A healthy model needs none unless one cause makes most of its noise (`is_worth_repairing`), and samples that are
    none of the network's would tell nothing of any. Where ``first`` alone is tried, neither does one that is not
    measurably harmed, unless that is undecided.

    Args:
        case: What was measured.
        measurement: The models and their data.
        allowance: What all of it may take.
        toolchain: Whose prescriptions are run; None: the one that the quantized model carries marks of.
        first: Try only what leads; where the allowance is too short for that, say so and try nothing.
        elsewhere: Opens other machines, which carry the trials out.

    Raises:
        ElsewhereError: One of them cannot work.
    """
    opened = inspect(case, measurement.base)
    facts = opened.facts
    if not facts.model.harmed and first and case.record.loss_budget is None and case.record.simulation is None:
        return Proof(case)
    judged = judge(opened, toolchain=toolchain)
    is_loud = judged.verdict == "healthy" and is_worth_repairing(judged, measurement.base)
    if first and not facts.model.harmed and judged.verdict != "undecided" and not is_loud:
        return Proof(case)
    if not facts.model.harmed and judged.verdict not in ("degraded", "undecided") and not is_loud:
        spoiled = facts.model.nonfinite_output in ("float", "both")
        why = "an output of the float model is not finite" if spoiled else "the outputs of both models agree"
        return Proof(with_notice(case, f"no remedy was tried: {why}"))
    if judged.undecided is not None and judged.undecided.doubt is not None:
        return Proof(with_notice(case, f"no remedy was tried: {judged.undecided.doubt}"))
    suspects, pair = _to_try(opened, judged)
    try:
        copies = measurement.models.editable()
        workshop, reason = _open_workshop(measurement, judged)
        # Of a float model at chance level the metric still shows which of two quantized models is better.
        metric = measurement.metric if facts.model.metric.label_fault in (None, "none", "chance", "weak") else None
        proven = prove(
            Subject(measurement.models, copies, case, measurement.datasets, measurement.options, metric),
            opened,
            suspects,
            allowance=allowance,
            progress=measurement.progress,
            execute=_execution_of(opened, workshop, toolchain, first) if workshop is not None else None,
            first=first,
            pair=pair,
            everywhere=_healing_everywhere(judged),
            elsewhere=elsewhere,
        )
    except ElsewhereError:
        raise
    except QuantmedicError as error:
        if first:
            return Proof(with_notice(case, f"no remedy was tried: {error.message}; --prove gives it more time"))
        reason = "; ".join([error.message, *error.where, *([error.help] if error.help else [])])
        return Proof(with_notice(case, f"no remedy was tried: {reason}"))
    record = proven.record if reason is None else proven.record.model_copy(update={"unexecuted": reason})
    return Proof(with_notice(case.with_record(proof=record), *copies.notices), proven.fix)


def _to_try(opened: Inspection, judged: Diagnosis) -> tuple[list[Suspect], Sequence[Repair]]:
    """Suspects of the causes that stand, in their order, and the repairs that are needed together, if some are."""
    case, facts, base = opened.case, opened.facts, opened.base
    ranked = [cause.cause for cause in judged.causes]
    simulated = Simulated.faithful(case.record.simulation, base)
    found = simulated.settle(_suspects(case, facts, base))
    suspects = [suspect for suspect in found if suspect.cause in ranked]
    suspects.sort(key=lambda suspect: ranked.index(suspect.cause))
    pairs = simulated.find_pairs(found, case, facts)
    named = [remedy.key for remedy in judged.pair.remedies] if judged.pair is not None else []
    return suspects, next((own for _, own in pairs if [repair.key for repair in own] == named), ())


def _healing_everywhere(judged: Diagnosis) -> list[str]:
    """Kinds of repairs of the whole network that heal a good part of the noise in simulated runs, the best first."""
    families = judged.loss_budget.families if judged.loss_budget is not None else ()
    healing = [family for family in families if (family.healed or 0.0) >= NOTABLE]
    healing.sort(key=lambda family: -(family.healed or 0.0))
    return [family.healed_by for family in healing if family.healed_by is not None]


def _open_workshop(measurement: JudgedMeasurement, judged: Diagnosis) -> tuple[Workshop | None, str | None]:
    """Where prescriptions are run, or None and why they cannot be."""
    framework = measurement.models.framework
    chosen, base = judged.toolchain, measurement.base.for_framework(framework)
    toolchain = next((each for each in base.toolchains if chosen is not None and each.name == chosen.name), None)
    if toolchain is None:
        return None, "the toolchain that made the model is not known; name it with --toolchain"
    executor = find_executor(measurement.models, toolchain.name)
    if executor is None:
        return None, f"prescriptions for {toolchain.title} are not run for models of this kind"
    if (reason := executor.missing()) is not None:
        return None, reason
    if "representative" not in measurement.datasets:
        return None, (
            "no representative data were given, and quantizing anew needs them; what was tried on a copy of the model "
            "may differ from what the toolchain makes"
        )
    return Workshop(base, load_rulebase().for_framework(framework), toolchain, executor), None


def _execution_of(opened: Inspection, workshop: Workshop, toolchain: str | None, first: bool) -> Execute:
    def execute(trials: Trials, record: ProofRecord) -> Executed:
        # Facts are those of before the trials: these add none.
        judged = judge(replace(opened, case=opened.case.with_record(proof=record)), toolchain=toolchain)
        return workshop.execute(trials, judged, FIRST_RUNS if first else None)

    return execute


def _suspects(case: Case, facts: CaseFacts, base: RuleBase) -> list[Suspect]:
    results = with_assumed(evaluate(base, facts), base, facts)
    return suspects_of(results, Repairer(base, case, facts))


def require_writable_repair(path: Path, models: Sequence[ModelSource]) -> None:
    """Refuse a place for the repaired model before anything is measured.

    Raises:
        DataError: Models of this kind are not repaired.
        OutputError: The file cannot be written, or it is one of the user's models.
    """
    unwritten = next((each.title for each in map(front_end_of, models) if not each.writes_models), None)
    if unwritten is not None:
        raise DataError(
            f"a repaired {unwritten} model is not written",
            where=str(path),
            help="leave --write-fixed out: the report's prescription holds the configuration to quantize again with",
        )
    require_other_file(path, models)


def require_other_file(path: Path, models: Sequence[ModelSource]) -> None:
    """Refuse a place for a repaired model that cannot be written, or where one of the user's models lies.

    Raises:
        OutputError: It is such a place.
    """
    if any(is_same_place(path, str(model)) for model in models):
        raise OutputError("the repaired model would replace one of yours", where=str(path), help="name another file")
    require_file(path)
