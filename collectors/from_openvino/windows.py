"""Operators that slide a window or multiply matrices: convolutions, pooling, matrix products, resizing."""

from collections.abc import Sequence

import numpy as np

from quantmedic.collectors.from_openvino.constants import Held
from quantmedic.collectors.from_openvino.site import (
    Site,
    Untranslatable,
    Value,
    constant_integers,
    constant_of,
    flag_of,
    integers_of,
    number_of,
    rank_of,
    text_of,
)

_AUTO = {"same_upper": "SAME_UPPER", "same_lower": "SAME_LOWER", "valid": "VALID"}


def convolution(site: Site, bias: Held | None = None) -> None:
    """Conv; ``bias`` is what the Add behind it adds to each channel."""
    _convolve(site, "Conv", site.held(1), site.value(1) if site.held(1) is None else None, bias)


def group_convolution(site: Site, bias: Held | None = None) -> None:
    """Conv of groups: weights ``[groups, out, in, …]`` become ``[groups · out, in, …]``."""
    held = site.held(1)
    if held is None:
        raise Untranslatable
    groups, out, *rest = held.data.shape
    _convolve(site, "Conv", held.reshape((groups * out, *rest)), None, bias, group=groups)


def transposed_convolution(site: Site, bias: Held | None = None) -> None:
    """ConvTranspose, with or without groups: weights ``[groups, in, out, …]`` become ``[groups · in, out, …]``."""
    held, group = site.held(1), 1
    if held is None or site.has(2):
        raise Untranslatable
    if site.kind.startswith("Group"):
        group, inputs, *rest = held.data.shape
        held = held.reshape((group * inputs, *rest))
    more = integers_of(site, "output_padding")
    _convolve(site, "ConvTranspose", held, None, bias, group=group, **({"output_padding": more} if any(more) else {}))


def _convolve(
    site: Site, kind: str, weights: Held | None, computed: str | None, bias: Held | None, **attributes: Value
) -> None:
    name = computed if weights is None else site.store(weights)
    if name is None:
        raise Untranslatable
    inputs = [site.value(0), name]
    if bias is not None:
        inputs.append(site.store(bias.reshape((-1,))))
    if weights is not None:
        attributes["kernel_shape"] = list(weights.data.shape[2:])
    site.finish(kind, inputs, **_window(site), **attributes)


def _window(site: Site) -> dict[str, Value]:
    found: dict[str, Value] = {"strides": integers_of(site, "strides")}
    if dilations := integers_of(site, "dilations"):
        found["dilations"] = dilations
    return found | _padding(site)


def _padding(site: Site) -> dict[str, Value]:
    automatic = _AUTO.get(text_of(site, "auto_pad", "explicit"))
    if automatic is not None:
        return {"auto_pad": automatic}
    return {"pads": [*integers_of(site, "pads_begin"), *integers_of(site, "pads_end")]}


def pool(kind: str, site: Site) -> None:
    """MaxPool or AveragePool; indices that only the former writes are left out."""
    rounding = text_of(site, "rounding_type", "floor")
    if rounding not in ("floor", "ceil", "ceil_torch"):
        raise Untranslatable
    found = _window(site) | {"kernel_shape": integers_of(site, "kernel")}
    if rounding != "floor":
        found["ceil_mode"] = 1
    if kind == "AveragePool":
        found["count_include_pad"] = int(not flag_of(site, "exclude-pad", default=True))
    site.finish(kind, [site.value(0)], **found)


def matrix_product(site: Site, bias: Held | None = None) -> None:
    """MatMul, or Gemm where a bias follows and both operands are matrices; constants are stored as ONNX reads them."""
    inputs = [_operand(site, place, name) for place, name in enumerate(("transpose_a", "transpose_b"))]
    if bias is None:
        site.finish("MatMul", inputs)
    else:
        site.finish("Gemm", [*inputs, site.store(bias.reshape((-1,)))])


def _operand(site: Site, place: int, flag: str) -> str:
    held = site.held(place)
    if not flag_of(site, flag, default=False) or rank_of(site, place) < 2:
        return site.value(place)
    order = [*range(rank_of(site, place))]
    order[-2:] = order[-1], order[-2]
    return (
        site.step("Transpose", [site.value(place)], perm=order) if held is None else site.store(held.transpose(order))
    )


def attention(site: Site) -> None:
    """softmax(scale · Q · Kᵀ + mask) · V, without the mask of what comes later and without masks of truth values."""
    shape = site.shape(0)
    if flag_of(site, "causal", default=False) or (site.has(3) and not site.is_float(3)) or site.has(5):
        raise Untranslatable
    if not site.has(4) and (shape is None or shape[-1] is None):
        raise Untranslatable
    width = shape[-1] if shape is not None else None
    scale = site.value(4) if site.has(4) else site.constant(1.0 / np.sqrt(width or 1), np.float32)
    order = [*range(rank_of(site, 1))]
    order[-2:] = order[-1], order[-2]
    product = site.step("MatMul", [site.value(0), site.step("Transpose", [site.value(1)], perm=order)])
    scores = site.step("Mul", [product, scale])
    if site.has(3):
        scores = site.step("Add", [scores, site.value(3)])
    site.finish("MatMul", [site.step("Softmax", [scores], axis=-1), site.value(2)])


_COORDINATES = {
    "half_pixel": "half_pixel",
    "pytorch_half_pixel": "pytorch_half_pixel",
    "asymmetric": "asymmetric",
    "align_corners": "align_corners",
}
_MODES = {"nearest": "nearest", "linear": "linear", "linear_onnx": "linear", "cubic": "cubic", "bilinear_pillow": ""}
_NEAREST = {
    "round_prefer_floor": "round_prefer_floor",
    "round_prefer_ceil": "round_prefer_ceil",
    "floor": "floor",
    "ceil": "ceil",
    "simple": "",
}


def interpolate(site: Site) -> None:
    """Resize: by sizes or by scales, along the axes that are named."""
    mode, coordinates = (
        _MODES.get(text_of(site, "mode", "")),
        text_of(site, "coordinate_transformation_mode", "half_pixel"),
    )
    nearest = _NEAREST.get(text_of(site, "nearest_mode", "round_prefer_floor"))
    padded = any((*integers_of(site, "pads_begin"), *integers_of(site, "pads_end")))
    if (
        not mode
        or not nearest
        or padded
        or flag_of(site, "antialias", default=False)
        or coordinates not in _COORDINATES
    ):
        raise Untranslatable
    rank = rank_of(site, 0)
    options: dict[str, Value] = {
        "mode": mode,
        "coordinate_transformation_mode": _COORDINATES[coordinates],
        "nearest_mode": nearest,
        "cubic_coeff_a": number_of(site, "cube_coeff", -0.75),
    }
    # Version 4 has sizes and scales, of which an attribute chooses one; version 11 has one input for either.
    by_scales = text_of(site, "shape_calculation_mode", "sizes") == "scales"
    versioned = site.has(2) and _is_fourth(site)
    place, axes_place = (2 if versioned and by_scales else 1), (3 if versioned else 2)
    axes = constant_integers(site, axes_place) if site.has(axes_place) else list(range(rank))
    options["axes"] = axes
    given = constant_of(site, place) if site.held(place) is not None else None
    if by_scales:
        if given is None:
            raise Untranslatable
        site.finish("Resize", [site.value(0), "", site.constant(given.ravel(), np.float32)], **options)
    else:
        sizes = site.constant(given.ravel()) if given is not None else site.step("Cast", [site.value(place)], to=7)
        site.finish("Resize", [site.value(0), "", "", sizes], **options)


def _is_fourth(site: Site) -> bool:
    """Sizes and scales are both there: the third input is of real values."""
    return site.is_float(2)


def space_depth(kind: str, site: Site) -> None:
    """DepthToSpace or SpaceToDepth."""
    mode = text_of(site, "mode", "blocks_first")
    size: dict[str, Value] = {"blocksize": int(number_of(site, "block_size", 1))}
    if kind == "DepthToSpace":
        size["mode"] = "DCR" if mode == "blocks_first" else "CRD"
    elif mode != "blocks_first":
        raise Untranslatable
    site.finish(kind, [site.value(0)], **size)


def bias_shape(rank: int, channels: int) -> Sequence[int]:
    """Shape of what is added to each channel of a convolution."""
    return (1, channels, *([1] * (rank - 2)))
