"""A case that looks like a real one, judged by a small rule base, and its hostile and healthy sisters."""

import math
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from builders.gates import hostile_check, regression
from builders.hostile import HOSTILE_NAMES

from quantmedic.api.rulebase import load_rulebase
from quantmedic.engine.case.facts import (
    CaseFacts,
    ClippingFacts,
    DatasetFacts,
    DistributionFacts,
    ErrorFacts,
    LayerFacts,
    MetricFacts,
    ModelFacts,
    OutputFacts,
    QuantizerFacts,
    RelationFacts,
    TensorDataFacts,
    TensorFacts,
    WeightFacts,
)
from quantmedic.engine.case.proof import MetricTrial, TrialRecord
from quantmedic.engine.contract.advised_remedies import Proof, TrialRow
from quantmedic.engine.contract.causes import CauseReport
from quantmedic.engine.contract.check_report import GoneFinding
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.diagnosis.assemble import Provenance, make_diagnosis
from quantmedic.engine.diagnosis.prescription import prescribe
from quantmedic.engine.diagnosis.suspects import Repair
from quantmedic.engine.formulas.change import Change, Targets
from quantmedic.engine.formulas.spreads import Histogram
from quantmedic.engine.rules.conditions import Condition
from quantmedic.engine.rules.remedies import Cost, Remedy, Snippet, Withhold
from quantmedic.engine.rules.rule import Rule
from quantmedic.engine.rules.rulebase import RuleBase, Threshold

COSINE_LIMIT, SQNR_LIMIT = 0.99, 20.0


def errors(sqnr_db: float) -> ErrorFacts:
    """Consistent errors of a tensor of unit power."""
    nmse = 10 ** (-sqnr_db / 10)
    return ErrorFacts(
        mse=nmse,
        nmse=nmse,
        sqnr_db=sqnr_db,
        cosine=1 / math.sqrt(1 + nmse),
        mean=0.0,
        std=math.sqrt(nmse),
        max=4 * math.sqrt(nmse),
        worst_channel_sqnr_db=sqnr_db - 6.5,
        worst_channel=3,
    )


def data_facts(role: str, sqnr_db: float, absmax: float) -> TensorDataFacts:
    return TensorDataFacts(
        dataset=role,
        values=DistributionFacts(
            samples=32 if role == "representative" else 5000,
            min=-absmax / 3,
            max=absmax,
            absmax=absmax,
            mean=0.1,
            std=absmax / 9,
            zscore_max=absmax * 2.1,
        ),
        rounding=errors(sqnr_db + 14),
        accumulated=errors(sqnr_db),
        clipping=ClippingFacts(share=0.001),
    )


def layer(index: int, name: str, sqnr_db: float, ratio: float, roles: tuple[str, ...]) -> LayerFacts:
    """One convolution whose weights have channels of unequal range."""
    absmax = 3.0 + index % 4
    data = {role: data_facts(role, sqnr_db - (1.5 if role == "validation" else 0), absmax) for role in roles}
    judged = data[roles[-1]] if roles else TensorDataFacts()
    sqnr, cosine = judged.accumulated.sqnr_db, judged.accumulated.cosine
    degraded = None if sqnr is None else sqnr < SQNR_LIMIT or cosine < COSINE_LIMIT
    return LayerFacts(
        name=name,
        float_name=name,
        quantized_name=f"{name}_quant",
        op_type="Conv" if index % 3 else "Add",
        index=index,
        executed_as="integer",
        weight=WeightFacts(
            channel_range_ratio=ratio,
            quantizer=QuantizerFacts(bits=8, granularity="per_tensor"),
            rounding=errors(40 - math.log2(ratio) * 3),
        ),
        output=TensorFacts(
            name=f"{name}_out",
            float_name=f"{name}_out",
            producer="Conv",
            producer_name=name,
            quantizer=QuantizerFacts(bits=8, scale=absmax / 127, zero_point=0, low=-absmax, high=absmax),
            data=judged,
            **data,
        ),
        degraded=degraded,
        born=degraded,
        added_nmse=judged.rounding.nmse if sqnr is None or not degraded else judged.accumulated.nmse,
    )


def rule_base() -> RuleBase:
    per_channel = Remedy(
        id="per-channel-weights",
        title="Per-channel weights",
        changes="one scale per output channel instead of one per tensor",
        cost=Cost(says="none at run time; needs opset 13"),
        unsafe="the int32 bias of a narrow channel would overflow",
        scope="layer",
        now=("weight.quantizer.granularity",),
        in_force=Condition.model_validate({"fact": "weight.quantizer.granularity", "is": "per_channel"}),
        simulate="per-channel-weights",
        snippets=(
            Snippet(toolchain="Sony MCT", code="# kernels are per-channel by default\nTARGET = {layers}"),
            Snippet(
                toolchain="onnxruntime",
                code='quantize_static(\n    "float.onnx", "int8.onnx", reader,\n    per_channel=True,\n'
                '    extra_options={{"QDQOpTypePerChannelSupportToAxis": {{"MatMul": 1}}}},\n)',
                note="Layers concerned: one scale now serves the whole tensor.",
            ),
        ),
    )
    equalize = Remedy(
        id="cross-layer-equalization",
        title="Cross-layer equalization",
        changes="moves scale between neighbouring layers until their channels match",
        cost=Cost(says="none at run time, some effort"),
        unsafe="another operator than ReLU stands between the layers",
        scope="layer",
        withheld=(
            Withhold.model_validate(
                {
                    "when": {"fact": "weight.channel_range_ratio", "gt": 120},
                    "because": "ranges that differ {weight.channel_range_ratio:.0f}x hint at dead channels",
                }
            ),
        ),
        snippets=(Snippet(toolchain="AIMET", code="equalize_model(model)"),),
    )
    more = Remedy(
        id="more-samples",
        title="More representative samples",
        changes="ranges are estimated from 100 to 500 samples of all classes",
        cost=Cost(says="a longer calibration"),
        unsafe="the samples differ from what the network sees in the field",
    )
    exclude = Remedy(
        id="keep-layers-float",
        title="Keep the named layers in float",
        changes="removes the quantizers around them",
        cost=Cost(says="latency on integer hardware"),
        unsafe="errors only pass through them",
        snippets=(Snippet(toolchain="onnxruntime", code="quantize_static(..., nodes_to_exclude={layers})"),),
    )
    rules = (
        Rule.model_validate(
            {
                "id": "W001",
                "name": "channel-range-imbalance",
                "cause": "channel-range-imbalance",
                "scope": "layer",
                "severity": "high",
                "confidence": 0.9,
                "when": {
                    "all": [
                        {"fact": "weight.quantizer.granularity", "is": "per_tensor"},
                        {"fact": "weight.channel_range_ratio", "gt": "$weight_channel_range_ratio"},
                        {"fact": "output.data.accumulated.sqnr_db", "lt": "$quantize_error_sqnr_db"},
                    ]
                },
                "message": "one scale serves weight channels whose ranges differ {weight.channel_range_ratio:.0f}x",
                "remedies": ["per-channel-weights", "cross-layer-equalization"],
            }
        ),
        Rule.model_validate(
            {
                "id": "D001",
                "name": "too-few-samples",
                "cause": "too-few-samples",
                "scope": "dataset",
                "severity": "medium",
                "confidence": 0.7,
                "when": {"fact": "range_growth", "gt": "$range_growth"},
                "message": "ranges still widen at the end of the set",
                "remedies": ["more-samples"],
            }
        ),
        Rule.model_validate(
            {
                "id": "A001",
                "name": "activation-outliers",
                "cause": "activation-outliers",
                "scope": "tensor",
                "severity": "low",
                "confidence": 0.6,
                "when": {"fact": "data.values.zscore_max", "gt": 12.5},
                "message": "the largest value lies {data.values.zscore_max:.1f} deviations from the mean",
                "remedies": ["keep-layers-float"],
            }
        ),
        Rule.model_validate(
            {
                "id": "R002",
                "name": "simulator-differs-from-device",
                "cause": "simulator-differs-from-device",
                "scope": "model",
                "severity": "high",
                "confidence": 0.8,
                "when": {"fact": "cpu_vnni", "is": False},
                "message": "the device differs",
                "remedies": ["more-samples"],
            }
        ),
        Rule.model_validate(
            {
                "id": "S001",
                "name": "not-quantized-at-all",
                "cause": "not-quantized",
                "scope": "model",
                "severity": "high",
                "confidence": 1.0,
                "when": {"fact": "quantized_share", "lt": 0.5},
                "message": "nothing is quantized",
                "remedies": ["more-samples"],
            }
        ),
    )
    table = {
        "quantize_error_mse": (math.inf, "value²", "default", "accumulated MSE above which a layer counts as degraded"),
        "quantize_error_cosine": (COSINE_LIMIT, "ratio", "default", "cosine below which a layer counts as degraded"),
        "quantize_error_sqnr_db": (SQNR_LIMIT, "dB", "default", "SQNR below which a layer counts as degraded"),
        "weight_channel_range_ratio": (16, "ratio", "computed: 19 dB in the worst channel", "widest over narrowest"),
        "range_growth": (0.05, "ratio", "quantmedic.toml", "growth of ranges"),
        "drop_large": (0.04, "share", "field experience", "drop that points at settings or data"),
        "drop_moderate": (0.015, "share", "field experience", "drop that points at calibration"),
        "degrade_layer_ratio": (0.5, "share", "default", "share of degraded layers that points at global causes"),
    }
    thresholds = {
        name: Threshold(name=name, value=value, unit=unit, source=source, description=text)
        for name, (value, unit, source, text) in table.items()
    }
    built_in = load_rulebase().thresholds
    thresholds |= {
        name: built_in[name] for name in ("grave_share", "carried_share", "notable_share", "negligible_gain_db")
    }
    return RuleBase(
        rules=rules,
        thresholds=thresholds,
        remedies={remedy.id: remedy for remedy in (per_channel, equalize, more, exclude)},
        hints={"cpu_vnni": "run on the target, or pass --device-outputs FILE"},
        toolchains=load_rulebase().toolchains,
    )


def case_facts(
    names: tuple[str, ...], *, roles: tuple[str, ...] = ("representative", "validation"), sound: bool = False
) -> CaseFacts:
    """Facts of a chain of layers; ``sound`` ones have nothing to blame."""
    bad = () if sound else (4, 7, 8, 11, len(names) - 1)
    layers = tuple(
        layer(
            index,
            name,
            (46 if sound else 40) - 18 * index / len(names) - (17 if index in bad else 0) + 2 * math.sin(index * 1.7),
            max(148.0 - 2 * index, 40.0) if index in bad else 2.0 + index % 3,
            roles,
        )
        for index, name in enumerate(names)
    )
    metric = MetricFacts(
        name="top1",
        higher_is_better=True,
        dataset="validation",
        samples=5000,
        float_value=0.7188,
        quantized_value=0.7176 if sound else 0.6412,
        drop=0.0012 if sound else 0.0776,
        drop_low=-0.0021 if sound else 0.0691,
        drop_high=0.0046 if sound else 0.086,
        relative_drop=0.0012 / 0.7188 if sound else 0.0776 / 0.7188,
    )
    datasets = tuple(
        DatasetFacts(
            role=role,
            samples=32 if role == "representative" else 5000,
            labelled=role == "validation",
            unique_share=1.0,
            blank_share=0.0,
            min=-2.1179,
            max=2.64,
            mean=(0.4854, 0.4561, 0.4063),
            std=(0.2291, 0.2243, 0.2252),
            range_growth=0.01 if sound or role == "validation" else 0.112,
            relation=RelationFacts(method="lattice", slope=1.0, offset=0.0, kind="same", certainty=1.0)
            if role == "representative"
            else RelationFacts(),
        )
        for role in roles
    )
    model = ModelFacts(
        name="mobilenet_v2_int8.onnx",
        framework="onnx",
        format="QDQ",
        toolchain="onnx.quantize",
        opset=17,
        operators=len(names),
        quantized_share=1.0,
        bytes_float=14_000_000,
        bytes_quantized=3_650_000,
        degraded_layers=sum(row.degraded is True for row in layers),
        degraded_share=sum(row.degraded is True for row in layers) / len(layers),
        metric=metric if "validation" in roles else MetricFacts(),
    )
    outputs = (
        OutputFacts(
            name=f"{names[-1]}_out",
            tensor=layers[-1].output,
            is_integer=True,
            step=0.118,
            distinct_levels_worst_column=21,
            margin_median=1.92,
            tie_share=0.0134,
        ),
    )
    return CaseFacts(
        model=model,
        datasets=datasets,
        layers=layers,
        tensors=tuple(row.output for row in layers),
        outputs=outputs,
    )


def histogram(tensor: TensorFacts) -> Histogram:
    """Bell with a few values far out."""
    edges = tuple(round(-6 + 0.3125 * step, 4) for step in range(65))
    counts = tuple(int(2e6 * math.exp(-((left + 0.15) ** 2) / 1.6)) + (7 if left > 11 else 0) for left in edges[:-1])
    return Histogram(
        layer=tensor.producer_name or "?", dataset="validation", edges=edges, counts=counts, low=-9.2, high=9.13
    )


RECALIBRATION = Repair("recalibrate-on-proper-data", "recalibrate:1", Change(grids={0: None}), Targets())


def judge(facts: CaseFacts, base: RuleBase | None = None) -> Diagnosis:
    """Diagnosis of facts; the outliers vanish when more samples are taken."""
    repaired = facts.model_copy(
        update={
            "tensors": (),
            "datasets": tuple(d.model_copy(update={"range_growth": 0.0}) for d in facts.datasets),
        }
    )
    base = base or rule_base()
    found = make_diagnosis(
        base,
        facts,
        lambda findings: (
            (Repair("recalibrate", "recalibrate:1", Change(grids={0: None}), Targets()),) * (findings[0].layer is None)
        ),
        lambda change, outcome: repaired,
        provenance=Provenance(
            version="0.2.0",
            warnings=("2 tensors were not observed: exposing them changed the output",),
            run={
                "versions": {"onnxruntime": "1.31.1", "onnx": "1.23.2"},
                "float model": {"name": "mobilenet_v2.onnx", "sha256": "6b1d" * 16},
                "options": ["--metric", "top1"],
            },
        ),
        histogram=histogram,
    )
    return prescribe(found, base)


def mobilenet_names(blocks: int = 17) -> tuple[str, ...]:
    parts = tuple(f"features.{block}.conv.{part}" for block in range(1, blocks + 1) for part in ("0.0", "1.0", "2"))
    return ("features.0.0", *parts, "classifier.1")


def gains(diagnosis: Diagnosis) -> Diagnosis:
    """The same with gains, as trials will measure them."""
    first, *rest = diagnosis.causes
    lead = first.model_copy(update={"measured_gain_db": 12.4, "measured_gain_metric": 0.069, "predicted_gain_db": 11.8})
    rest = [rest[0].model_copy(update={"predicted_gain_db": 1.9}), *rest[1:]] if rest else []
    return diagnosis.model_copy(update={"causes": (lead, *rest)})


@pytest.fixture(scope="session")
def diagnosis() -> Diagnosis:
    """A network of 53 layers that lost 7.76 points."""
    return gains(judge(case_facts(mobilenet_names())))


def trial(gain: float, width: float = 0.6, points: float | None = None, **fields: object) -> TrialRecord:
    """What one remedy recovered, with an interval of this half width."""
    metric = MetricTrial(
        name="top1",
        float_model=0.7188,
        before=0.6412,
        after=0.6412 + (points or 0) / 100,
        gain=(points or 0) / 100,
        low=(points or 0) / 100 - 0.018,
        high=(points or 0) / 100 + 0.018,
        left=0.0776 - (points or 0) / 100,
        left_low=0.0691 - (points or 0) / 100,
        left_high=0.086 - (points or 0) / 100,
    )
    share = 1 - 10 ** (-gain / 10)
    return TrialRecord.model_validate(
        {
            "key": "per-channel-weights:1",
            "kind": "per-channel-weights",
            "samples": 256,
            "gain_db": gain,
            "low_db": gain - width,
            "high_db": gain + width,
            "share": share,
            "metric": metric if points is not None else None,
            "seconds": 3.42,
        }
        | fields
    )


def proof_of(diagnosis: Diagnosis) -> Diagnosis:
    """The same after remedies were tried: one proven, one not, one that failed, and a chain of two."""
    best = trial(12.4, points=6.9, left_integer=("features.3.conv.0.0", "classifier.1"))
    doubtful = trial(0.2, points=0.1, key="recalibrate:1", kind="recalibrate")
    failed = TrialRecord(
        key="float-weights:1", kind="float-weights", failed="onnxruntime refused the model: <b>|no kernel|</b>"
    )
    noisier = trial(-2.3, key="best-range:1", kind="best-range", seconds=12.7)
    after = trial(1.8, points=0.55, key="recalibrate:1", after=("per-channel-weights:1",), share=0.31)
    lead, samples = diagnosis.causes

    def measured(cause: CauseReport, record: TrialRecord) -> CauseReport:
        first, *others = cause.remedies
        others = [advice.model_copy(update={"measured": failed}) for advice in others]
        return cause.model_copy(
            update={
                "measured_gain_db": record.gain_db,
                "measured_low_db": record.low_db,
                "measured_high_db": record.high_db,
                "measured_gain_metric": record.metric.gain if record.metric is not None else None,
                "proven": record.proven,
                "remedies": (first.model_copy(update={"measured": record}), *others),
            }
        )

    weights, data = (cause.remedies[0].title for cause in diagnosis.causes)
    rows = (
        TrialRow(causes=(lead.cause,), remedy=weights, trial=best),
        TrialRow(causes=(samples.cause,), remedy=data, trial=doubtful),
        TrialRow(causes=(lead.cause,), remedy="cross-layer equalization", trial=failed),
        TrialRow(causes=(), remedy="limit the activation range", trial=noisier),
    )
    proof = Proof(
        dataset="validation",
        fitted=256,
        judged=256,
        cross_fitted=False,
        budget_seconds=60,
        spent_seconds=41.8,
        stopped="explained",
        weights=trial(11.1, key="weights", kind="float-weights"),
        activations=trial(1.3, key="activations", kind="float"),
        trials=rows,
        chain=(rows[0], TrialRow(causes=(samples.cause,), remedy=data, trial=after)),
        explained=0.98,
    )
    causes = (measured(lead, best), measured(samples, doubtful))
    return prescribe(diagnosis.model_copy(update={"causes": causes, "proof": proof}), rule_base())


@pytest.fixture(scope="session")
def proven(diagnosis: Diagnosis) -> Diagnosis:
    """The network of 53 layers after remedies were tried."""
    return proof_of(diagnosis)


@pytest.fixture(scope="session")
def healthy() -> Diagnosis:
    """A network that lost nothing measurable."""
    return judge(case_facts(mobilenet_names(4), sound=True))


@pytest.fixture(scope="session")
def hostile() -> Diagnosis:
    """A network whose names attack every format."""
    facts = case_facts((*HOSTILE_NAMES, *HOSTILE_NAMES[:3]))
    return judge(facts.model_copy(update={"model": facts.model.model_copy(update={"name": HOSTILE_NAMES[1]})}))


@pytest.fixture(scope="session")
def hostile_proven(hostile: Diagnosis) -> Diagnosis:
    """The same after trials that speak of these names."""
    evil = TrialRecord(
        key=HOSTILE_NAMES[1],
        kind="float",
        failed="\n".join(HOSTILE_NAMES),
        left_integer=HOSTILE_NAMES,
    )
    causes = tuple(cause.cause for cause in hostile.causes)
    rows = tuple(TrialRow(causes=causes, remedy=name, trial=evil) for name in HOSTILE_NAMES)
    good = trial(3.0, kind="keep-layers-float", left_integer=HOSTILE_NAMES)
    chain = tuple(
        TrialRow(causes=causes, remedy=title, trial=good) for title in (HOSTILE_NAMES[1], "Per-channel weights")
    )
    proof = Proof(
        dataset="validation",
        fitted=20,
        judged=40,
        cross_fitted=True,
        budget_seconds=1.0,
        spent_seconds=1.5,
        stopped="budget",
        weights=evil,
        trials=rows,
        chain=chain,
    )
    return prescribe(hostile.model_copy(update={"proof": proof}), rule_base())


@pytest.fixture(scope="session")
def checked(diagnosis: Diagnosis) -> Diagnosis:
    """The network of 53 layers after a gate refused it."""
    return regression(diagnosis)


@pytest.fixture(scope="session")
def hostile_checked(hostile: Diagnosis) -> Diagnosis:
    """The hostile network judged by a gate whose policy, layers and rules have such names too."""
    return hostile_check(hostile, HOSTILE_NAMES)


@pytest.fixture(scope="session")
def hostile_gate() -> Callable[[Diagnosis], Diagnosis]:
    """Gives a diagnosis a gate's verdict whose every text attacks."""

    def attacked(diagnosis: Diagnosis) -> Diagnosis:
        found = regression(diagnosis)
        check = found.check
        assert check is not None and check.baseline is not None
        everything = "\n".join((*HOSTILE_NAMES[:-1], "@org/team #1 https://evil.example --> <!-- --!>"))
        gates = [
            gate.model_copy(update={"name": name, "message": name, "unit": name if gate.unit else None})
            for name in HOSTILE_NAMES
            for gate in check.gates
        ]
        finding = {"name": everything, "fact": everything, "message": everything, "rule": HOSTILE_NAMES[1]}
        odd = [row.model_copy(update=finding | {"subject": name}) for row in check.findings for name in HOSTILE_NAMES]
        told = [row.model_copy(update={"value": None, "message": everything, "gated": True}) for row in odd]
        uses = [
            use.model_copy(update={"rule": name, "layers": HOSTILE_NAMES, "reason": everything, "expires": name})
            for name in HOSTILE_NAMES
            for use in check.exemptions
        ]
        gone = tuple(GoneFinding(rule=name, subject=everything) for name in HOSTILE_NAMES)
        baseline = check.baseline.model_copy(update={"origin": everything, "gone": gone, "not_judged": gone})
        changes = {
            "gates": tuple(gates),
            "findings": (*check.findings, *odd, *told),
            "exemptions": tuple(uses),
            "baseline": baseline,
            "model": everything,
            "policy": everything,
        }
        return found.model_copy(update={"check": check.model_copy(update=changes)})

    return attacked


@pytest.fixture(scope="session")
def judged() -> Callable[[CaseFacts], Diagnosis]:
    """Judges facts of a test's own."""
    return judge


@pytest.fixture(scope="session")
def case() -> Callable[..., CaseFacts]:
    """Builds facts from layer names."""
    return case_facts


@pytest.fixture(scope="session")
def manuals() -> dict[str, str]:
    """Pages of the manual, one of them with everything that a page may hold."""
    return {
        "W001": "# W001 channel-range-imbalance\n\nA per-tensor scale is set by the widest channel. Channels 148 times "
        "narrower keep two levels. See [too few samples](D001.md) and [preprocessing](general/preprocessing.md).\n\n"
        "## What to do\n\n| ratio | worst channel |\n|--:|--:|\n| 16 | 19 dB |\n| 64 | 10 dB |\n\n"
        "1. Give every channel its own scale.\n2. Or equalize the channels first.\n\n"
        "```python\nquantize(per_channel=True)\n```\n\n"
        "References: [arXiv:1806.08342](https://arxiv.org/abs/1806.08342).\n",
        "D001": "# D001 too-few-samples\n\nBack to [the weights](W001.md#what-to-do).\n",
        "general/preprocessing": "# Preprocessing\n\nBoth pipelines must be alike, see [W001](../W001.md).\n",
        "general/calibration-search": "# Search for a calibration method\n\nTry them all.\n",
        "glossary": "# Glossary of facts\n\nWhat rules read.\n",
    }


@pytest.fixture(scope="session")
def golden() -> Callable[[str, str], None]:
    """Compares a text with the file kept beside the tests, or writes that when QUANTMEDIC_UPDATE_GOLDEN is set."""
    folder = Path(__file__).parent / "golden"

    def check(name: str, text: str) -> None:
        path = folder / name
        if os.environ.get("QUANTMEDIC_UPDATE_GOLDEN"):
            folder.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        expected = path.read_text(encoding="utf-8") if path.exists() else ""
        assert text == expected, f"{name} changed: read the difference, then run with QUANTMEDIC_UPDATE_GOLDEN=1"

    return check
