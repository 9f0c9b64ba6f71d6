"""The layer table of report.json."""

from collections.abc import Iterable, Sequence

from quantmedic.engine.case.facts import CaseFacts, ReportedFacts, Role, TensorFacts, WeightFacts
from quantmedic.engine.contract.layers import ErrorRow, GroupRow, LayerRow
from quantmedic.engine.rules.evaluate import RuleResult

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
                operations=layer.operations,
                time_ms=layer.time_ms,
                time_share=layer.time_share,
                reported=layer.reported if layer.reported != _NOTHING_REPORTED else None,
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
        operator=data.operator,
        step=data.step,
    )
