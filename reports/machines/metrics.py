"""Figures of a diagnosis as one flat object of numbers, as trackers of experiments take them."""

import json
import math
from collections import Counter

from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.rules.rule import SEVERITIES
from quantmedic.reports.text import inert_json

_PREFIX = "quantmedic"


def figures_of(diagnosis: Diagnosis) -> dict[str, float]:
    """Numbers by name; what was not measured, or is not finite, is left out. A count of 0 is a number, too."""
    metric, model = diagnosis.metrics, diagnosis.model
    counts = Counter(cause.severity for cause in diagnosis.causes)
    found: dict[str, float | None] = {
        "drop": metric.drop,
        "drop_low": metric.drop_low,
        "drop_high": metric.drop_high,
        "metric.float": metric.float_value,
        "metric.quantized": metric.quantized_value,
        "sqnr_db": model.output_sqnr_db,
        "agreement": model.output_agreement,
        "quantized_share": model.quantized_share,
        "integer_share": model.integer_share,
        "size_ratio": model.size_ratio,
        "latency_ratio": model.latency_ratio,
        "layers": len(diagnosis.layers),
        "layers.degraded": model.degraded_layers,
        "healthy": float(diagnosis.verdict == "healthy"),
        **{f"causes.{severity}": counts[severity] for severity in SEVERITIES},
        "causes": len(diagnosis.causes),
        "rules.passed": len(diagnosis.passed),
        "rules.not_judged": len(diagnosis.not_judged),
    }
    return {
        f"{_PREFIX}.{name}": float(value) for name, value in found.items() if value is not None and math.isfinite(value)
    }


def render_metrics(diagnosis: Diagnosis) -> str:
    """``metrics.json``."""
    return inert_json(json.dumps(figures_of(diagnosis), indent=1, allow_nan=False))
