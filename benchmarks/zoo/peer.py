"""The four rules of the one other tool that judges causes, on the facts that quantmedic measured.

Degraded is a layer whose mean squared error is at least 0.1, or whose cosine similarity or linear SQNR is at most 0.1.
If half of the layers are degraded it says nothing. Else every degraded layer is judged: z-score of its values,
type of its activation, range ratio of concatenated operands, bits of the last layer.
"""

from quantmedic.engine.case.facts import CaseFacts, LayerFacts

LIMIT = 0.1
DEGRADED_SHARE = 0.5
ZSCORE = 5
RANGE_RATIO = 16
LAST_BITS = 2
NEGATIVE = frozenset({"Gelu", "HardSwish", "LeakyRelu", "PRelu", "Elu", "Selu", "Mish", "Swish"})


def peer_causes(facts: CaseFacts) -> list[str]:
    """What the peer would say, the layer with the worst error first."""
    measured = [layer for layer in facts.layers if _error(layer) is not None]
    degraded = sorted((layer for layer in measured if _degraded(layer)), key=lambda layer: -(_error(layer) or 0))
    if not measured or len(degraded) >= DEGRADED_SHARE * len(measured):
        return []
    by_name = {layer.name: layer for layer in facts.layers}
    wide = {op.layer for op in facts.operands if op.op_type == "Concat" and (op.range_ratio or 0) >= RANGE_RATIO}
    said: dict[str, None] = {}
    for layer in degraded:
        if (
            max(layer.output.representative.values.zscore_max or 0, layer.output.validation.values.zscore_max or 0)
            >= ZSCORE
        ):
            said["activation-outliers"] = None
        if layer.op_type in NEGATIVE or _is_swish(layer, by_name):
            said["negative-activations"] = None
        if layer.name in wide or any(name in wide for name in layer.feeders[:1]):
            said["unbalanced-concatenation"] = None
        if layer.is_last and (layer.weight.quantizer.bits or 32) <= LAST_BITS:
            said["last-layer-bitwidth"] = None
    return list(said)


def _error(layer: LayerFacts) -> float | None:
    return layer.output.data.accumulated.mse


def _degraded(layer: LayerFacts) -> bool:
    error = layer.output.data.accumulated
    cosine, nmse = error.cosine, error.nmse
    low_sqnr = nmse is not None and nmse >= 1 / LIMIT
    return (error.mse or 0) >= LIMIT or (cosine is not None and cosine <= LIMIT) or low_sqnr


def _is_swish(layer: LayerFacts, by_name: dict[str | None, LayerFacts]) -> bool:
    """x · sigmoid(x) in two operators."""
    return layer.op_type == "Mul" and any(
        by_name[name].op_type in ("Sigmoid", "HardSigmoid") for name in layer.feeders if name in by_name
    )
