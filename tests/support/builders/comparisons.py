"""Two cases to compare: facts of small networks, judged by three rules, with the samples that they were measured on."""

from typing import Any

import numpy as np

from quantmedic.engine.case.facts import CaseFacts
from quantmedic.engine.case.records import Case, CaseRecord, DatasetRecord
from quantmedic.engine.case.statistics import SAMPLE_DTYPE, SetStatistics
from quantmedic.engine.diagnosis.assemble import Provenance, make_diagnosis
from quantmedic.engine.rules.remedies import Remedy
from quantmedic.engine.rules.rule import Rule
from quantmedic.engine.rules.rulebase import RuleBase, Threshold
from quantmedic.engine.versus.side_by_side import ComparisonReport, Judged, side_by_side

SAMPLES = 400
RULES: tuple[dict[str, Any], ...] = (
    {
        "id": "W001",
        "cause": "weight-spread",
        "scope": "layer",
        "severity": "high",
        "when": {"fact": "weight.channel_range_ratio", "gt": 16},
    },
    {
        "id": "A001",
        "cause": "noisy-tensors",
        "scope": "tensor",
        "severity": "medium",
        "when": {"fact": "data.rounding.sqnr_db", "lt": 20},
    },
    {
        "id": "D001",
        "cause": "few-samples",
        "scope": "dataset",
        "severity": "medium",
        "when": {"all": [{"fact": "role", "is": "representative"}, {"fact": "range_growth", "gt": 0.05}]},
    },
)
THRESHOLDS = {
    "drop_large": 0.04,
    "drop_moderate": 0.015,
    "degrade_layer_ratio": 0.5,
    "previous_effect_db": 1.0,
    "negligible_gain_db": 0.5,
    "grave_share": 0.5,
    "carried_share": 0.2,
    "notable_share": 0.05,
}


def rule_base() -> RuleBase:
    common = {"confidence": 0.5, "message": "bad", "remedies": ["mend-it"]}
    return RuleBase(
        rules=tuple(Rule.model_validate({"name": row["cause"], **common, **row}) for row in RULES),
        thresholds={k: Threshold(name=k, value=v, source="test", description="d") for k, v in THRESHOLDS.items()},
        remedies={
            "mend-it": Remedy.model_validate(
                {"id": "mend-it", "title": "mend-it", "changes": "c", "cost": "c", "unsafe": "u"}
            )
        },
    )


BASE = rule_base()


def layer(name: str, sqnr: float | None = 30.0, ratio: float | None = 2.0, **fields: Any) -> dict[str, Any]:
    """A convolution: SQNR of its output, and the ratio of its weights' ranges."""
    bits, weight_bits = fields.pop("bits", 8), fields.pop("weight_bits", 8)
    errors = {"accumulated": {"sqnr_db": sqnr}, "rounding": {"sqnr_db": fields.pop("rounding", 40.0)}}
    data = {"dataset": "validation", "values": {"samples": SAMPLES}, **errors}
    quantizer = {"bits": bits, "scale": 0.1, "low": -12.8, "high": 12.7}
    output = {"name": f"{name}_q", "float_name": f"{name}_out", "producer_name": name, "quantizer": quantizer}
    return {
        "name": name,
        "float_name": name,
        "op_type": "Conv",
        "degraded": None if sqnr is None else sqnr < 20,
        "weight": {
            "name": f"{name}.weight",
            "channels": 8,
            "channel_range_ratio": ratio,
            "rounding": {"sqnr_db": fields.pop("weight_sqnr", 35.0)},
            "quantizer": {"bits": weight_bits, "granularity": fields.pop("granularity", "per_tensor")},
        },
        "output": {**output, "validation": data, "data": data} if sqnr is not None else {},
        **fields,
    }


def facts(layers: list[dict[str, Any]], growth: float | None = 0.01, **model: Any) -> CaseFacts:
    """Facts of a chain; the output of the last layer is that of the network."""
    rows = [{"index": place, **row} for place, row in enumerate(layers)]
    tensors = [row["output"] for row in rows if row["output"]]
    sqnr = tensors[-1]["data"]["accumulated"]["sqnr_db"] if tensors else None
    known = {"name": "int8.onnx", "framework": "onnx", "output_sqnr_db": sqnr, "harmed": sqnr is not None and sqnr < 20}
    return CaseFacts.model_validate(
        {
            "layers": rows,
            "tensors": tensors,
            "datasets": [{"role": "representative", "samples": 32, "range_growth": growth}, {"role": "validation"}],
            "outputs": [{"name": "y", "tensor": tensors[-1]}] if tensors else [],
            "model": {**known, **model},
        }
    )


def table(right: int | None = None, *, first: int = 0, size: int = SAMPLES) -> Any:
    """Samples of which the float model has all right, the quantized one so many."""
    samples = np.zeros(size, SAMPLE_DTYPE)
    samples["hash"] = np.arange(first, first + size)
    samples["metric_float"] = 1.0 if right is not None else np.nan
    samples["metric_quantized"] = (np.arange(size) < right) if right is not None else np.nan
    return samples


def judged(
    found: CaseFacts,
    samples: dict[str, Any] | None = None,
    *,
    run: dict[str, Any] | None = None,
    base: RuleBase = BASE,
) -> Judged:
    """The facts as a judged case that was measured on these samples."""
    samples = {"validation": table()} if samples is None else samples
    known = {"float_model": "float.onnx", "float_sha256": "f" * 64, "quantized_sha256": "a" * 64}
    labelled = {role: bool(np.isfinite(rows["metric_float"]).all()) for role, rows in samples.items()}
    metric = next((role for role, has in labelled.items() if has), None)
    record = CaseRecord(
        quantmedic_version="1.0",
        model=found.model,
        tensors=(),
        operators=(),
        outputs=(),
        input_tensor=None,
        image_input=False,
        metric="top1" if metric else None,
        metric_higher_is_better=True if metric else None,
        unmatched=(),
        notices=(),
        run=known | (run or {}),
        datasets={
            role: DatasetRecord(origin="d", labelled=labelled[role], seen=len(rows)) for role, rows in samples.items()
        },
    )
    statistics = {role: SetStatistics.empty(()) for role in samples}
    for role, rows in samples.items():
        statistics[role].samples = rows
    case = Case(record=record, statistics=statistics)
    if metric is not None:
        found = found.model_copy(update={"model": found.model.model_copy(update={"metric": _metric(case)})})
    diagnosis = make_diagnosis(
        base,
        found,
        lambda findings: (),
        lambda change, outcome: found,
        provenance=Provenance("1.0", run=record.run),
    )
    return Judged(case, found, diagnosis)


def _metric(case: Case) -> Any:
    from quantmedic.engine.formulas.task_metric import metric_facts

    return metric_facts(case)


def compared(before: Judged, after: Judged, base: RuleBase = BASE) -> ComparisonReport:
    return side_by_side(before, after, base, version="1.0")


def pair(hostile: tuple[str, ...] = ()) -> tuple[Judged, Judged]:
    """A network with a bit of everything: healed, new, worse, better, renamed and missing layers; names as given."""
    names = hostile or tuple(f"block{place}/conv" for place in range(12))
    before = [layer(name, 34.0 - place, ratio=2.0) for place, name in enumerate(names)]
    after = [layer(name, 34.0 - place, ratio=2.0) for place, name in enumerate(names)]
    before[1], after[1] = layer(names[1], 25.0, 64.0), layer(names[1], 33.5, 3.0, granularity="per_channel")
    before[2], after[2] = layer(names[2], 30.0, 32.0), layer(names[2], 24.0, 90.0)
    before[3], after[3] = layer(names[3], 31.0, rounding=38.0), layer(names[3], 19.0, rounding=12.0, weight_bits=4)
    before[5], after[5] = layer("old/name", 29.0), layer("new/name", 29.2)
    before[-1], after[-1] = layer(names[-1], 15.0), layer(names[-1], 21.0)
    sizes = {"bytes_float": 400_000, "opset": 13, "harmed": True}
    old = facts(before, growth=0.3, bytes_quantized=101_000, format="QDQ", **sizes)
    name = hostile[1] if hostile else "int8_new.onnx"
    new = facts(after, growth=0.01, bytes_quantized=90_500, format="QOperator", name=name, **sizes)
    calibration = {"representative": table(size=32)}
    return (
        judged(old, {**calibration, "validation": table(300)}, run={"mode": "exact", "onnxruntime": "1.20"}),
        judged(new, {**calibration, "validation": table(340)}, run={"mode": "fast", "quantized_sha256": "b" * 64}),
    )
