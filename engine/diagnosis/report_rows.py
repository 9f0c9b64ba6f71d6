"""Layers and trials as report.json shows them, with the names of the rules and causes that they belong to."""

from collections.abc import Iterable, Iterator, Sequence

from quantmedic.engine.case.facts import CaseFacts, ReportedFacts, Role, TensorFacts, WeightFacts
from quantmedic.engine.case.gains import share_of_gain
from quantmedic.engine.case.proof import REPAIRED_DATA, ProofRecord, Proven, TrialRecord
from quantmedic.engine.contract.advised_remedies import PairedRemedy, Proof, RemedyPair, TrialRow
from quantmedic.engine.contract.causes import CauseReport
from quantmedic.engine.contract.layers import ErrorRow, GroupRow, LayerRow
from quantmedic.engine.diagnosis.suspects import Suspect
from quantmedic.engine.rules.evaluate import RuleResult
from quantmedic.engine.rules.remedy_kinds import HALVES, REMEDY_KINDS
from quantmedic.engine.rules.rulebase import RuleBase

_NOTHING_REPORTED = ReportedFacts()


def layer_rows(facts: CaseFacts, results: Sequence[RuleResult]) -> tuple[LayerRow, ...]:
    flagged = flagging_rules(results)
    rows = []
    for layer in facts.layers:
        output, values = layer.output, layer.output.data.values
        rows.append(
            LayerRow(
                index=layer.index or 0,
                name=layer.name or "?",
                float_name=layer.float_name,
                quantized_name=layer.quantized_name,
                op_type=layer.op_type or "?",
                executed_as=layer.executed_as,
                bits=output.quantizer.bits,
                scale=output.quantizer.scale,
                zero_point=output.quantizer.zero_point,
                min=values.min,
                max=values.max,
                mean=values.mean,
                std=values.std,
                weight_bits=layer.weight.quantizer.bits,
                weight_granularity=layer.weight.quantizer.granularity,
                weight_sqnr_db=layer.weight.rounding.sqnr_db,
                degraded=layer.degraded,
                born=layer.born,
                added_nmse=layer.added_nmse,
                amplification=output.data.amplification,
                representative=_error_row(output, "representative"),
                validation=_error_row(output, "validation"),
                groups=_group_row(layer.weight),
                role=layer.weight.role,
                operations=layer.operations,
                time_ms=layer.time_ms,
                time_share=layer.time_share,
                reported=layer.reported if layer.reported != _NOTHING_REPORTED else None,
                asked=layer.asked if layer.asked.origin is not None else None,
                recorded=output.recorded if output.recorded.origin is not None else None,
                device_sqnr_db=output.device.sqnr_db,
                device_departs=layer.device_departs,
                findings=tuple(flagged.get(layer.name or "", ())),
            )
        )
    return tuple(rows)


def flagging_rules(results: Iterable[RuleResult]) -> dict[str, list[str]]:
    """Codes of the rules that flagged each layer, by its name."""
    flagged: dict[str, list[str]] = {}
    for result in results:
        for finding in result.findings:
            if finding.layer and finding.rule.id not in flagged.setdefault(finding.layer, []):
                flagged[finding.layer].append(finding.rule.id)
    return flagged


def _group_row(weight: WeightFacts) -> GroupRow | None:
    if weight.groups is None:
        return None
    return GroupRow(
        size=weight.group_size,
        worst_channel_sqnr_db=weight.rounding.worst_channel_sqnr_db,
        worst_group_sqnr_db=weight.worst_group_sqnr_db,
        worst_group=weight.worst_group,
        dead=weight.dead_groups,
        outliers=weight.outlier_groups,
    )


def _error_row(tensor: TensorFacts, role: Role) -> ErrorRow:
    data = getattr(tensor, role)
    return ErrorRow(
        samples=data.values.samples,
        rounding=data.rounding,
        accumulated=data.accumulated,
        step=data.step,
    )


def proof_of(
    record: ProofRecord | None, suspects: Sequence[Suspect], causes: Sequence[CauseReport], base: RuleBase
) -> Proof | None:
    """The proof with the names of what was tried, by the rules in force; None where nothing was tried."""
    if record is None:
        return None
    alone = [trial for trial in record.trials if not trial.after and trial.kind not in HALVES]
    links = record.links()
    weights, activations = (next((t for t in record.trials if t.kind == half), None) for half in HALVES)
    return Proof(
        **{name: getattr(record, name) for name in Proven.model_fields},
        weights=weights,
        activations=activations,
        trials=tuple(_trial_row(trial, suspects, causes, base) for trial in alone),
        chain=tuple(_trial_row(trial, suspects, causes, base) for trial in links),
        explained=_explained_share(links),
    )


def pairs_of(pairs: Iterable[RemedyPair], causes: Sequence[CauseReport]) -> Iterator[RemedyPair]:
    """The pairs both of whose remedies are still advised, for a cause or for all, with their titles."""
    for pair in pairs:
        first, second = (_as_advised(remedy, causes) for remedy in pair.remedies)
        if first.title and second.title:
            yield pair.model_copy(update={"remedies": (first, second)})


def _as_advised(remedy: PairedRemedy, causes: Sequence[CauseReport]) -> PairedRemedy:
    advising = [
        (cause.cause, advice.title)
        for cause in causes
        if cause.cause in remedy.causes
        for advice in cause.remedies
        if advice.simulate == remedy.kind
    ]
    title = advising[0][1] if advising else remedy.title
    return remedy.model_copy(update={"title": title, "causes": tuple(dict.fromkeys(name for name, _ in advising))})


def _trial_row(
    trial: TrialRecord, suspects: Iterable[Suspect], causes: Sequence[CauseReport], base: RuleBase
) -> TrialRow:
    known = [s.cause for s in suspects if any(repair.key == trial.key for repair in s.repairs)]
    if trial.kind == REPAIRED_DATA:
        known = [trial.key.partition(":")[2]]
    named = [cause for cause in causes if cause.cause in known]
    ids = [id for cause in named for id in (*(each.id for each in cause.remedies), *(w.id for w in cause.withheld))]
    titles = [base.remedies[id].title for id in ids if base.remedies[id].simulate == trial.kind]
    kind = REMEDY_KINDS.get(trial.kind)
    if kind is not None and kind.bound is not None:
        titles = [f"{kind.bound}, the most that could be gained here by: {title}" for title in titles]
    general = kind.everywhere.title if kind is not None and kind.everywhere is not None else trial.kind
    title = trial.detail or next(iter(titles), general)
    return TrialRow(causes=tuple(cause.cause for cause in named), remedy=title, trial=trial)


def _explained_share(links: Sequence[TrialRecord]) -> float | None:
    """Share of the noise power that is gone after the last link."""
    if not links or links[0].sqnr_before is None or links[-1].sqnr_after is None:
        return None
    return share_of_gain(links[-1].sqnr_after - links[0].sqnr_before)
