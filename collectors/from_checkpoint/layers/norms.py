"""Norms that were stored, or that gains were folded into, as if they computed x · w where it is x · (1 + w).

Or the other way round.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.from_checkpoint.checkpoint_name import architecture_of
from quantmedic.collectors.from_checkpoint.safetensors_file import Stored

#: Architectures whose norms multiply with 1 + w, by ``model_type``, and those whose norms multiply with w.
_WITH_OFFSET = frozenset({"gemma", "gemma2", "gemma3", "gemma3_text", "nemotron", "qwen3_next", "recurrent_gemma"})
_PLAIN = frozenset({
    "deepseek_v2", "deepseek_v3", "gemma3n_text", "gpt_oss", "granite", "llama", "mistral", "mixtral", "olmo2", "phi3",
    "qwen2", "qwen2_moe", "qwen3", "qwen3_moe",
})  # fmt: skip
#: One way explains the norm where it leaves this share of it, and the other leaves this many times as much.
_FITS, _CLEARLY = 0.1, 3.0
#: Rounding to bfloat16 moves a norm by less.
_ROUNDED = 0.02
Values = NDArray[np.float64]


def has_offset_norms(config: Mapping[str, object]) -> bool | None:
    """Whether norms of an architecture multiply with 1 + w; None where the configuration names none that is known."""
    own = architecture_of(config)
    return own in _WITH_OFFSET if own in _WITH_OFFSET | _PLAIN else None


def is_misfolded(before: Values, after: Values, readers: Sequence[Values], *, has_offset: bool | None) -> bool:
    """The norm was stored, or divided by the gains of the layers behind it, as in another architecture.

    Args:
        before: The float norm.
        after: The stored one.
        readers: Gains of the inputs of layers in the same block.
        has_offset: Norms multiply with 1 + w; gains are not looked at where that is not known.
    """
    return _is_shifted(before, after) or (has_offset is not None and _is_divided(before, after, readers, has_offset))


def _is_shifted(before: Values, after: Values) -> bool:
    """All of it has 1 more than before, or 1 less: the offset was stored, or taken away."""
    return any(bool((np.abs(after - before - shift) < _ROUNDED).all()) for shift in (1.0, -1.0))


def doubles_of(tensor: Stored) -> Values:
    """The numbers of a tensor as float64."""
    return tensor.floats().astype(np.float64)


def _is_divided(before: Values, after: Values, readers: Sequence[Values], has_offset: bool) -> bool:
    fitting = [gains for gains in readers if gains.shape == before.shape]
    if not fitting:
        return False
    offset = 1.0 if has_offset else 0.0
    right = min(_unexplained_share(before + offset, (after + offset) * gains) for gains in fitting)
    wrong = min(_unexplained_share(before + 1.0 - offset, (after + 1.0 - offset) * gains) for gains in fitting)
    return wrong < _FITS and right > _CLEARLY * wrong


def _unexplained_share(wanted: Values, found: Values) -> float:
    """Share of the wanted values that remains where what was found is scaled to them."""
    power = float(found @ found)
    scaled = found * (float(found @ wanted) / power if power > 0 else 0.0)
    whole = float(wanted @ wanted)
    return float(np.sqrt(np.square(scaled - wanted).sum() / whole)) if whole > 0 else 0.0
