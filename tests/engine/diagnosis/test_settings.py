"""Settings of the toolchain decide what is advised, and where they are unknown they decide nothing."""

from typing import Any

from quantmedic.api.rulebase import load_rulebase
from quantmedic.engine.case.facts import CaseFacts
from quantmedic.engine.contract.advised_remedies import Advice, Withheld
from quantmedic.engine.diagnosis.advice import advise
from quantmedic.engine.rules.evaluate import Finding
from quantmedic.engine.rules.rule import Rule

BASE = load_rulebase()
TENSOR = {
    "name": "gelu",
    "float_name": "gelu",
    "producer_name": "gelu",
    "negative_ratio": 0.14,
    "quantizer": {"bits": 8, "low": -2.0, "high": 1.98, "symmetric": True},
    "data": {
        "clipping": {"share": 0.0, "energy_share": 0.0, "overshoot": 0.2},
        "values": {"range_inflation_bits": 1.0},
        "accumulated": {"bias_over_std": 0.4},
        "predicted_best_gain_db": 4.0,
    },
}
LAYER = {"name": "gelu", "float_name": "gelu", "weight": {"quantizer": {"bits": 2}}}


def judged(remedy: str, settings: dict[str, Any], **tensor: Any) -> tuple[list[Advice], list[Withheld]]:
    facts = CaseFacts.model_validate(
        {
            "model": {"settings": settings, "weight_sqnr_min_db": 20.0},
            "tensors": [TENSOR | tensor],
            "layers": [LAYER | {"output": TENSOR | tensor}],
        }
    )
    scope = BASE.remedies[remedy].scope
    view = {"tensor": facts.tensors[0], "layer": facts.layers[0]}.get(scope, facts.model)
    rule = {"id": "X001", "name": "any-rule", "cause": "any-cause", "severity": "low", "confidence": 0.5, "message": ""}
    rule |= {"scope": scope, "when": {"fact": "model.name", "known": True}, "remedies": [remedy]}
    if scope == "model":
        rule["when"] = {"fact": "name", "known": True}
    subject = "gelu" if scope != "model" else None
    advised, held = advise([Finding(Rule.model_validate(rule), "gelu", subject, "", (), view)], BASE, facts)
    return list(advised), list(held)


SET_ALREADY = [
    ("shift-negative", {"shift_negative": True, "shift_negative_ratio": 0.2}, {"shift_excess": 0.7}),
    ("limit-activation-range", {"z_threshold": 6.0}, {}),
    ("bias-correction-on", {"bias_correction": True, "activation_bias_correction": True}, {}),
    ("bias-correction-off", {"bias_correction": False}, {}),
    ("last-layer-distance-weighting", {"mixed_precision": True, "distance_weighting": "LAST_LAYER"}, {}),
    ("last-layer-distance-weighting", {"mixed_precision": False}, {}),
    ("more-mixed-precision-images", {"mixed_precision": False}, {}),
    ("hessian-scores", {"mixed_precision": True, "hessian_scores": True}, {}),
    ("hessian-scores", {"mixed_precision": False}, {}),
    ("learned-rounding", {"learned_rounding": True}, {}),
    ("limit-activation-range", {"percentile": 99.99, "calibration_method": "percentile"}, {}),
    ("bias-correction-on", {"bias_correction": True, "toolchain": "Horizon OpenExplorer"}, {}),
    ("asymmetric-activations", {"asymmetric_activations": True}, {}),
    ("per-channel-activations", {"per_channel_activations": True}, {}),
]
STILL_OPEN = [
    ("shift-negative", {"shift_negative": True, "shift_negative_ratio": 0.05}, {"shift_excess": 2.8}),
    ("limit-activation-range", {"z_threshold": float("inf")}, {}),
    ("bias-correction-on", {"bias_correction": True, "activation_bias_correction": False}, {}),
    ("bias-correction-off", {"bias_correction": True}, {}),
    ("last-layer-distance-weighting", {"mixed_precision": True, "distance_weighting": "AVG"}, {}),
    ("more-mixed-precision-images", {"mixed_precision": True}, {}),
    ("hessian-scores", {"mixed_precision": True, "hessian_scores": False}, {}),
    ("learned-rounding", {"learned_rounding": False}, {}),
    ("limit-activation-range", {"percentile": 100.0, "calibration_method": "minmax"}, {}),
    ("bias-correction-on", {"bias_correction": False, "toolchain": "Horizon OpenExplorer"}, {}),
    ("asymmetric-activations", {"asymmetric_activations": False}, {}),
    ("per-channel-activations", {"per_channel_activations": False}, {}),
]


def test_what_is_set_already_is_not_advised() -> None:
    for remedy, settings, tensor in SET_ALREADY:
        advised, held = judged(remedy, settings, **tensor)
        assert (advised, [withheld.id for withheld in held]) == ([], [remedy]), settings


def test_what_is_not_set_is_advised() -> None:
    for remedy, settings, tensor in STILL_OPEN:
        advised, _ = judged(remedy, settings, **tensor)
        assert len(advised) == 1, (remedy, settings)
        shown = {row.fact.rpartition(".")[2]: row.value for row in advised[0].now}
        assert all(shown[name] == settings[name] for name in shown.keys() & settings.keys())
        assert not [path for path in advised[0].unsure if "settings" in path]


def test_unknown_settings_hold_nothing_back_and_are_not_missed() -> None:
    """A model of another toolchain has no such settings: its report does not ask for them."""
    for remedy in {remedy for remedy, _, _ in SET_ALREADY}:
        advised, held = judged(remedy, {})
        assert (len(advised), held) == (1, []), remedy
        assert not [path for path in advised[0].unsure if "settings" in path or "shift" in path]
        assert not [row.fact for row in advised[0].now if "settings" in row.fact]
