"""How bright and how rich in contrast the images of both sets are, in pixels, where it is known what is black."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from quantmedic.engine.case.facts import Role
from quantmedic.engine.case.records import Case
from quantmedic.engine.case.statistics import SetStatistics
from quantmedic.engine.formulas.columns import Floats
from quantmedic.engine.formulas.first_input import FULL_SPAN, channel_moments, first_input, lattices_of

#: Standard errors that tell the mean of one set from that of another.
_CERTAIN = 3.0
#: Factor from which on a difference is worth a sentence: that of a third of a step of exposure.
_SEEN = 1.25
#: Factor by which the channels' means and deviations may differ where one gain explains them all.
_ONE_GAIN = 1.15


@dataclass(frozen=True)
class _Light:
    """Mean and deviation of each channel above black, in units that both sets share."""

    mean: Floats
    deviation: Floats
    in_pixels: bool


def brightness_facts(case: Case) -> dict[str, Any]:
    """Fields of ``DatasetFacts`` on the light of the representative against that of the validation images.

    Empty without both sets of images, or where black is not known.
    """
    mine, other = case.statistics.get("representative"), case.statistics.get("validation")
    if mine is None or other is None or not case.record.spatial_input or case.record.input_tensor is None:
        return {}
    here, there = _light_as_given(case, "representative", mine), _light_as_given(case, "validation", other)
    if here is None or there is None:
        here, there = _on_one_grid(case, mine, other) or _from_zero(case, mine, other) or (None, None)
    if here is None or there is None:
        return {}
    if not (there.mean.mean() > 0.0 and here.mean.mean() > 0.0 and (there.deviation > 0.0).all()):
        return {}
    brightness = float(here.mean.mean() / there.mean.mean())
    contrast = math.sqrt(float(np.square(here.deviation).mean() / np.square(there.deviation).mean()))
    facts: dict[str, Any] = {"brightness_ratio": brightness, "contrast_ratio": contrast}
    other_light = _is_told(mine, other, "mean") and _is_seen(brightness)
    other_contrast = _is_told(mine, other, "deviation") and _is_seen(contrast)
    if other_light or other_contrast:
        facts["brightness_reading"] = _reading(here, there, (brightness, contrast), (other_light, other_contrast))
    return facts


def _light_as_given(case: Case, role: Role, statistics: SetStatistics) -> _Light | None:
    """By the preprocessing that the user told; None where no mean was told."""
    told = _mapping(_mapping(case.record.run.get("preprocessing")).get(role))
    centre, deviation = channel_moments(first_input(case, statistics))
    usual = {"mean": None, "std": 1.0, "scale": 1.0}
    mean, std, scale = (_column(told.get(name, other), len(centre)) for name, other in usual.items())
    if mean is None or std is None or scale is None:
        return None
    return _Light((centre * std + mean) * scale, deviation * std * scale, bool((scale == FULL_SPAN).all()))


def _on_one_grid(case: Case, mine: SetStatistics, other: SetStatistics) -> tuple[_Light, _Light] | None:
    """Both sets lie on one grid, of which one of them shows all 256 pixels."""
    grids = [lattices_of(s) for s in (mine, other)]
    if not grids[0] or len(grids[0]) != len(grids[1]):
        return None
    (steps, lows, spans), (step, other_lows, other_spans) = (np.array(own).T for own in grids)
    if not np.allclose(steps, step, rtol=0.01):
        return None
    zero = other_lows if other_spans.min() == FULL_SPAN else lows if spans.min() == FULL_SPAN else None
    if zero is None:
        return None
    (mean, deviation), (other_mean, other_deviation) = (channel_moments(first_input(case, s)) for s in (mine, other))
    here = _Light((mean - zero) / step, deviation / step, True)
    return here, _Light((other_mean - zero) / step, other_deviation / step, True)


def _from_zero(case: Case, mine: SetStatistics, other: SetStatistics) -> tuple[_Light, _Light] | None:
    """Both sets begin at 0, as images do that are not centred."""
    views = [first_input(case, s) for s in (mine, other)]
    if any(view.min.min() != 0.0 for view in views):
        return None
    here, there = (_Light(*channel_moments(view), False) for view in views)
    return here, there


def _mapping(value: object) -> Mapping[str, object]:
    """What a case says of its run may be anything."""
    return value if isinstance(value, Mapping) else {}


def _is_finite(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _column(value: object, channels: int) -> Floats | None:
    """One number per channel; None for another number of them, or for what is no number."""
    found = list(value) if isinstance(value, (list, tuple)) else [value]
    if len(found) not in (1, channels) or not all(_is_finite(own) for own in found):
        return None
    return np.broadcast_to(np.array(found, np.float64), (channels,))


def _is_told(mine: SetStatistics, other: SetStatistics, column: str) -> bool:
    """Samples of one set differ in the mean from those of the other by more than chance explains.

    They count as spread like those of the set that spreads more: a handful says little of its own spread.
    """
    a, b = (s.samples[column].astype(np.float64) for s in (mine, other))
    if min(len(a), len(b)) < 2:
        return False
    error = math.sqrt(max(a.var(ddof=1), b.var(ddof=1)) * (1.0 / len(a) + 1.0 / len(b)))
    return bool(abs(a.mean() - b.mean()) > _CERTAIN * error)


def _is_seen(ratio: float) -> bool:
    return max(ratio, 1.0 / ratio) > _SEEN


def _reading(here: _Light, there: _Light, ratios: tuple[float, float], told: tuple[bool, bool]) -> str:
    brightness, contrast = ratios
    parts = []
    if told[0]:
        parts.append(f"{'darker' if brightness < 1 else 'brighter'}, {brightness:.2g} times the brightness")
        parts[0] += f" (mean pixel {here.mean.mean():.0f} against {there.mean.mean():.0f})" if here.in_pixels else ""
    if told[1]:
        parts.append(f"of {'less' if contrast < 1 else 'more'} contrast, {contrast:.2g} times that")
    text = f"the representative images are {' and '.join(parts)} of the validation images"
    gains = np.concatenate([here.mean / there.mean, here.deviation / there.deviation])
    if all(told) and gains.max() < _ONE_GAIN * gains.min():
        text += f", as if each pixel were multiplied by {math.exp(float(np.log(gains).mean())):.2g}"
    return text
