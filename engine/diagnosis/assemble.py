"""From findings to a diagnosis: causes grouped, ranked, and freed of what they explain."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from quantmedic.engine.case.facts import FLOAT_ALONE, CaseFacts, MetricFacts, ModelFacts, TensorFacts
from quantmedic.engine.case.proof import ProofRecord
from quantmedic.engine.case.records import IMPORTED, ImportRecord, SimulationRecord
from quantmedic.engine.contract.advised_remedies import RemedyPair
from quantmedic.engine.contract.causes import CauseReport, RuleNote
from quantmedic.engine.contract.diagnosis import AdvicePlace, Diagnosis, DropClass, EvidenceStrength, Verdict
from quantmedic.engine.contract.harm_report import Undecided
from quantmedic.engine.diagnosis.budget_lines import Attribution
from quantmedic.engine.diagnosis.certainty import with_certainty
from quantmedic.engine.diagnosis.competition import Competition, rank_tried
from quantmedic.engine.diagnosis.harm import Loss, as_if_harmed, with_assumed, without_harmless
from quantmedic.engine.diagnosis.prediction import Prediction
from quantmedic.engine.diagnosis.previous import PreviousCase, compare_with_previous
from quantmedic.engine.diagnosis.remedy_outcomes import RemedyOutcomes, remedy_outcomes
from quantmedic.engine.diagnosis.repair_runs import Simulated
from quantmedic.engine.diagnosis.report_rows import layer_rows, pairs_of, proof_of
from quantmedic.engine.diagnosis.settings_in_force import settings_in_force
from quantmedic.engine.diagnosis.suspects import Repairs, Suspect, suspects_of
from quantmedic.engine.formulas.change import Change
from quantmedic.engine.formulas.power import SampleSizes
from quantmedic.engine.formulas.spreads import Histogram
from quantmedic.engine.garbage import without_garbage_collection
from quantmedic.engine.metrics.kinds import is_share
from quantmedic.engine.rules.evaluate import RuleResult, evaluate
from quantmedic.engine.rules.rulebase import RuleBase

#: The rule that says that both models are one.
SAME_MODEL = "S024"


@dataclass(frozen=True)
class Provenance:
    """Where the facts of a diagnosis come from.

    Attributes:
        version: Version of quantmedic.
        warnings: Notices of the collectors.
        imports: Files of the toolchain that were read.
        run: Versions, options, file names and hashes of the run that gave the facts.
    """

    version: str
    warnings: tuple[str, ...] = ()
    imports: tuple[ImportRecord, ...] = ()
    run: Mapping[str, object] = field(default_factory=dict)


@without_garbage_collection
def make_diagnosis(
    base: RuleBase,
    facts: CaseFacts,
    repairs: Repairs,
    repair: Callable[[Change, Prediction | None], CaseFacts],
    *,
    simulation: SimulationRecord | None = None,
    proof: ProofRecord | None = None,
    attribution: Attribution | None = None,
    hidden: Callable[[Sequence[Suspect]], Iterable[CauseReport]] = lambda suspects: (),
    pairs: Callable[[Sequence[Suspect]], Sequence[RemedyPair]] = lambda suspects: (),
    provenance: Provenance,
    histogram: Callable[[TensorFacts], Histogram | None] = lambda tensor: None,
    sizes: Callable[[float], SampleSizes | None] = lambda drop: None,
    previous: PreviousCase | None = None,
) -> Diagnosis:
    """Judge all rules and assemble the report.

    Args:
        base: Rules, thresholds and remedies in force.
        facts: The measured facts.
        repairs: Gives the changes that would repair the findings of one cause.
        repair: Gives the facts that would be measured after a change, whose simulated outcome it gets where known; of
            a network that is not harmed, those of one that was (`as_if_harmed`).
        simulation: What simulated runs of these changes gave.
        proof: What these changes gave on copies of the quantized model.
        attribution: Where the noise comes from; None where that was not measured.
        hidden: Gives the causes that show once the suspect whose repair recovers most is repaired.
        pairs: Gives two repairs that are needed together, the best first, if simulated runs show such.
        provenance: Where the facts come from, for the report.
        histogram: Gives the histogram of a tensor, for layers flagged by a rule about a distribution.
        sizes: Gives the samples that it takes to tell the drop of the task metric from another one.
        previous: The case before a remedy was applied; what was tried without effect is ranked down.
    """
    simulated = Simulated.faithful(simulation, base)
    results, first, suspects, outcomes = _find_suspects(base, facts, repairs, simulated, proof)
    size = drop_class(facts.model.metric, base)
    shares = attribution.share_of_suspects(suspects) if attribution is not None else {}
    loss = Loss(facts, size, base, sizes, simulated.gain_of_whole_db)
    causes = Competition(base, as_if_harmed(facts), outcomes, shares, loss).decide(suspects, repair)
    causes = _with_hidden(causes, hidden(first))
    undecided = loss.why_undecided(causes, outcomes)
    past = compare_with_previous(previous, facts, base) if previous is not None else None
    causes = rank_tried(causes, past) if past is not None else causes
    verdict = _verdict_of(causes, loss, undecided)
    found = Diagnosis(
        quantmedic_version=provenance.version,
        verdict=verdict,
        undecided=undecided if verdict == "undecided" else None,
        drop_class=size,
        evidence_strength=evidence_strength(facts.model.metric),
        causes=causes,
        passed=_notes(results, "passed", base),
        not_judged=_notes(results, "not-judged", base),
        not_applicable=_notes(results, "not-applicable", base),
        ignored=tuple(RuleNote(rule=rule.id, name=rule.name, scope=rule.scope) for rule in base.ignored),
        advice=(pages := _general_pages(causes, facts.model, size, verdict)),
        advice_place=_place_of_advice(causes, proof) if pages else None,
        layers=layer_rows(facts, results),
        model=facts.model,
        metrics=facts.model.metric,
        outputs=facts.outputs,
        datasets=facts.datasets,
        histograms=_histograms(results, facts, histogram),
        loss_budget=attribution.report(_in_order_of(causes, suspects)) if attribution is not None else None,
        loss_origin=simulated.origin(),
        pair=next(pairs_of(pairs(suspects), causes), None),
        proof=proof_of(proof, suspects, causes, base),
        settings_in_force=settings_in_force(facts) if facts.model.framework != FLOAT_ALONE else None,
        previous=past,
        thresholds=tuple(base.thresholds.values()),
        warnings=provenance.warnings,
        imports=provenance.imports,
        run=provenance.run,
    )
    return with_certainty(found, base)


def _find_suspects(
    base: RuleBase, facts: CaseFacts, repairs: Repairs, simulated: Simulated, proof: ProofRecord | None
) -> tuple[list[RuleResult], list[Suspect], list[Suspect], dict[str, RemedyOutcomes]]:
    """What the rules say, all causes that they suspect, those that count, and what the repairs of each of these gave.

    Of a network that is not harmed, what only a harmed one would have is left out where its repair recovers nothing.
    """
    results = evaluate(base, facts)
    if facts.model.is_twice_the_same:
        # What else the rules see is the model held against itself.
        results = [result for result in results if result.rule.id == SAME_MODEL or not result.findings]
    assumed = with_assumed(results, base, facts)
    suspects = simulated.settle(suspects_of(assumed, repairs))
    outcomes = remedy_outcomes(suspects, simulated, proof, facts)
    if as_if_harmed(facts) is facts:
        return results, suspects, suspects, outcomes
    results = without_harmless(assumed, results, outcomes, base)
    first, suspects = suspects, simulated.settle(suspects_of(results, repairs))
    # What is left of a cause has repairs of its own.
    same = {suspect.cause: outcomes[suspect.cause] for suspect in suspects if suspect in first}
    return results, first, suspects, remedy_outcomes(suspects, simulated, proof, facts) | same


def _with_hidden(causes: Sequence[CauseReport], hidden: Iterable[CauseReport]) -> tuple[CauseReport, ...]:
    """The causes with those that another one hides; such a one says more than a remark on the same cause."""
    if not causes:
        return ()
    known, lead = {cause.cause: cause for cause in causes}, causes[0]
    found: dict[str, CauseReport] = {}
    for cause in hidden:
        if cause.cause != lead.cause and (cause.cause not in known or not known[cause.cause].is_serious):
            hiding = known.get(cause.behind or "", lead)
            found[cause.cause] = cause.model_copy(update={"behind": hiding.explained_by or hiding.cause})
    return (*(cause for cause in causes if cause.cause not in found), *found.values())


def _in_order_of(causes: Sequence[CauseReport], suspects: Sequence[Suspect]) -> list[Suspect]:
    """The suspects of these causes in their order, and then those that others explain."""
    place = {cause.cause: k for k, cause in enumerate(causes)}
    return sorted(suspects, key=lambda suspect: place.get(suspect.cause, len(place)))


def drop_class(metric: MetricFacts, base: RuleBase) -> DropClass | None:
    """Size of the drop in relative points, None where no metric was measured.

    ``none`` when the drop's interval includes zero; else the limits are the thresholds drop_large and drop_moderate.
    """
    if metric.drop is None or metric.drop_low is None:
        return None
    if metric.drop_low <= 0:
        return "none"
    size = metric.drop if is_share(metric.name) else (metric.relative_drop or 0.0)
    if size > base.threshold("drop_large"):
        return "large"
    return "moderate" if size > base.threshold("drop_moderate") else "small"


def evidence_strength(metric: MetricFacts) -> EvidenceStrength:
    """``proven`` only where the whole interval of the drop lies above zero."""
    if metric.drop is None:
        return EvidenceStrength(statement="not-measured")
    proven = metric.drop_low is not None and metric.drop_low > 0
    return EvidenceStrength(
        statement="proven" if proven else "unproven",
        samples=metric.samples,
        drop=metric.drop,
        low=metric.drop_low,
        high=metric.drop_high,
    )


def _verdict_of(causes: tuple[CauseReport, ...], loss: Loss, undecided: Undecided | None) -> Verdict:
    """``degraded`` also where a measured loss is left without a cause: silence about it would be a pass.

    Without a quantized model it is ``failed``, unless neither log nor float model shows anything: then there is nothing
    to compare. Nor is it a pass that a toolchain's own figures look well: they are of its data, prepared its way.
    """
    model = loss.facts.model
    if model.framework == FLOAT_ALONE:
        return "failed" if model.failure.failed or _explains_loss(causes) else "not-comparable"
    if not model.is_comparable:
        return "not-comparable"
    if loss.is_proven or _explains_loss(causes):
        return "degraded"
    if model.framework == IMPORTED:
        return "not-comparable"
    return "undecided" if undecided is not None else "healthy"


def _explains_loss(causes: tuple[CauseReport, ...]) -> bool:
    """A cause is severe enough to account for a loss, and does not make doubtful whether there is one."""
    return any(cause.is_serious and cause.doubt is None for cause in causes)


def _notes(results: list[RuleResult], verdict: str, base: RuleBase) -> tuple[RuleNote, ...]:
    return tuple(_note(result, base) for result in results if result.verdict == verdict)


def _note(result: RuleResult, base: RuleBase) -> RuleNote:
    missing = tuple(dict.fromkeys(name for unknown in result.unknown for name in unknown.missing))
    hints = [hint for name in missing if (hint := base.hint(name))]
    return RuleNote(
        rule=result.rule.id,
        name=result.rule.name,
        scope=result.rule.scope,
        judged=result.judged,
        unknown=len(result.unknown),
        missing=missing,
        hint=hints[0] if hints else None,
    )


def _general_pages(
    causes: tuple[CauseReport, ...], model: ModelFacts, size: DropClass | None, verdict: Verdict
) -> tuple[str, ...]:
    """General pages in the order that the size of the drop suggests; none where no loss is proven or explained.

    Harm that no metric measured counts as a large drop. A quantization that failed has a page of its own.
    """
    if model.framework == FLOAT_ALONE:
        return () if _explains_loss(causes) else ("failed",)
    if model.checkpoint.tensors is not None:
        return ()  # calibration and images are no matter of checkpoints: their faults have remedies of their own
    tuning = ("threshold-error-method", "calibration-search", "bias-correction")
    layers = ("leave-layers-in-float", "mixed-precision-images", "hessian-scores", "gptq", "qat")
    data = ("preprocessing", "representative-data")
    proven = size not in (None, "none") or bool(model.harmed)
    if verdict == "undecided" or not (proven or _explains_loss(causes)):
        return ()
    orders = {"moderate": tuning + data + layers, "small": layers + tuning + data}
    return orders.get(size or "large", data + tuning + layers)


def _place_of_advice(causes: tuple[CauseReport, ...], proof: ProofRecord | None) -> AdvicePlace:
    """In front of causes whose remedies did not help, below those that are still to be tried, and what was proven."""
    if proof is not None and proof.chain:
        return "folded"
    serious = [cause for cause in causes if cause.is_serious]
    if any(not cause.was_tried_in_vain for cause in serious):
        return "folded"
    return "first" if any(cause.was_tried_in_vain for cause in causes) else "open"


def _histograms(
    results: list[RuleResult], facts: CaseFacts, histogram: Callable[[TensorFacts], Histogram | None]
) -> tuple[Histogram, ...]:
    flagged = {f.subject for r in results if r.rule.cause == "activation-outliers" for f in r.findings}
    found = [histogram(tensor) for tensor in facts.tensors if (tensor.producer_name or tensor.float_name) in flagged]
    return tuple(h for h in found if h is not None)
