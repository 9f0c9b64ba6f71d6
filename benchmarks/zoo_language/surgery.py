"""Changes of a float network that leave what it computes as it is, and make its weights harder to quantize."""

from collections.abc import Sequence

import numpy as np
from zoo.surgery import Inapplicable, require

from .networks import HEADS, KV_HEADS, Network, Values, Weights
from .roles import GATES, OUTPUT, UPS, Norm, last


def norm_times(network: Network, weight: Values, factors: Values) -> Values:
    """A norm whose outputs are multiplied."""
    if network.architecture.has_offset_norms:
        return ((1 + weight) * factors - 1).astype(np.float32)
    return (weight * factors).astype(np.float32)


def move_gains(network: Network, weights: Weights, norm: Norm, factors: Values) -> dict[str, Values]:
    """Multiply a norm, and divide the columns of the layers behind it: what AWQ and SmoothQuant do."""
    found = dict(weights)
    found[norm.name] = norm_times(network, found[norm.name], factors)
    for reader in norm.readers:
        found[f"{reader}.weight"] = (found[f"{reader}.weight"] / factors).astype(np.float32)
    return found


def rows_times(weights: Weights, layer: str, factors: Values) -> dict[str, Values]:
    """Multiply the outputs of v or up, and divide the columns of the layer that reads them.

    Raises:
        Inapplicable: Its outputs are not read by one layer alone.
    """
    behind, spread = _behind(layer, factors)
    found = dict(weights)
    found[f"{layer}.weight"] = found[f"{layer}.weight"] * factors[:, None]
    if f"{layer}.bias" in found:
        found[f"{layer}.bias"] = found[f"{layer}.bias"] * factors
    found[f"{behind}.weight"] = (found[f"{behind}.weight"] / spread).astype(np.float32)
    return found


def _behind(layer: str, factors: Values) -> tuple[str, Values]:
    """The layer behind v or up, and the factors of its columns."""
    prefix, own = layer.rpartition(".")[0], last(layer)
    if own in UPS:
        return f"{prefix}.{'w2' if own == 'w3' else 'down_proj'}", factors
    if own == "v_proj":
        heads = factors.reshape(KV_HEADS, 1, -1)
        return f"{prefix}.{OUTPUT}", np.repeat(heads, HEADS // KV_HEADS, axis=1).ravel()
    raise Inapplicable(f"{layer} is no v or up")


def amplifiable(layers: Sequence[str]) -> list[str]:
    """Layers whose rows can be multiplied.

    Raises:
        Inapplicable: There is none.
    """
    return require([name for name in layers if last(name) in (*UPS, "v_proj")], "v and up are parts of other layers")


def twin_of(layer: str) -> str:
    """Up of a gate.

    Raises:
        Inapplicable: It is no gate.
    """
    prefix, own = layer.rpartition(".")[0], last(layer)
    if own not in GATES:
        raise Inapplicable(f"{layer} is no gate")
    return f"{prefix}.{UPS[GATES.index(own)]}"
