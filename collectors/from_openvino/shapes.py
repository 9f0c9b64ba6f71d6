"""Operators that move values: shapes, slices, padding, gathering."""

import numpy as np

from quantmedic.collectors.from_openvino.site import (
    Site,
    Untranslatable,
    constant_integers,
    constant_of,
    flag_of,
    integer_of,
    integer_operand,
    integers_of,
    operands,
    rank_of,
    text_of,
)

_INT64 = 7
_END = np.iinfo(np.int64).max
_PADDING = {"constant": "constant", "reflect": "reflect", "edge": "edge"}


def reshape(site: Site) -> None:
    """Reshape; without ``special_zero`` a 0 is a side of length 0."""
    allow = {} if flag_of(site, "special_zero", default=False) else {"allowzero": 1}
    held = site.held(1)
    if allow and held is not None and 0 not in held.values:
        allow = {}
    site.finish("Reshape", [site.value(0), integer_operand(site, 1)], **allow)


def transpose(site: Site) -> None:
    """Transpose; an empty order reverses the axes."""
    order = constant_integers(site, 1) or list(reversed(range(rank_of(site, 0))))
    site.finish("Transpose", [site.value(0)], perm=order)


def squeeze(site: Site) -> None:
    """Squeeze; without axes all sides of length 1 go."""
    site.finish("Squeeze", [site.value(0), *([integer_operand(site, 1)] if site.has(1) else [])])


def unsqueeze(site: Site) -> None:
    """Unsqueeze."""
    site.finish("Unsqueeze", [site.value(0), integer_operand(site, 1)])


def split(site: Site) -> None:
    """Split into equal parts, or into parts of given lengths."""
    axis = constant_integers(site, 1)[0]
    if site.kind == "VariadicSplit":
        site.finish("Split", [site.value(0), integer_operand(site, 2)], axis=axis)
    else:
        site.finish("Split", [site.value(0)], axis=axis, num_outputs=integer_of(site, "num_splits", 1))


def slice_(site: Site) -> None:
    """Slice: start, stop, step, and axes where they are given."""
    site.finish("Slice", _slice_inputs(site))


def _slice_inputs(site: Site) -> list[str]:
    start, stop, step = (integer_operand(site, place) for place in (1, 2, 3))
    held = site.held(1)
    axes = integer_operand(site, 4) if site.has(4) else None
    if axes is None:
        if held is None:
            raise Untranslatable
        axes = site.constant(np.arange(held.data.size))
    return [site.value(0), start, stop, axes, step]


def strided_slice(site: Site) -> None:
    """Slice, then Squeeze where single entries are taken; masks leave ends open."""
    if any(integers_of(site, "ellipsis_mask")) or any(integers_of(site, "new_axis_mask")):
        raise Untranslatable
    starts, ends = constant_integers(site, 1), constant_integers(site, 2)
    steps = constant_integers(site, 3) if site.has(3) else [1] * len(starts)
    begin, end, shrink = (
        [*integers_of(site, name), *([0] * len(starts))][: len(starts)]
        for name in ("begin_mask", "end_mask", "shrink_axis_mask")
    )
    for k, step in enumerate(steps):
        if shrink[k]:
            ends[k], steps[k] = (starts[k] + 1) or _END, 1
            continue
        starts[k] = starts[k] if not begin[k] else (0 if step > 0 else _END)
        ends[k] = ends[k] if not end[k] else (_END if step > 0 else -_END)
    rows = [site.constant(np.array(row)) for row in (starts, ends, range(len(starts)), steps)]
    if not any(shrink):
        site.finish("Slice", [site.value(0), *rows])
        return
    cut = site.step("Slice", [site.value(0), *rows])
    site.finish("Squeeze", [cut, site.constant(np.flatnonzero(shrink))])


def pad(site: Site) -> None:
    """Pad; how much may be computed."""
    mode = _PADDING.get(text_of(site, "pad_mode", "constant"))
    if mode is None:
        raise Untranslatable
    pads = site.step("Concat", [integer_operand(site, place) for place in (1, 2)], axis=0)
    value = [site.value(3)] if site.has(3) and mode == "constant" else []
    site.finish("Pad", [site.value(0), pads, *value], mode=mode)


def gather(site: Site) -> None:
    """Gather along one axis."""
    if integer_of(site, "batch_dims", 0):
        raise Untranslatable
    site.finish("Gather", [site.value(0), site.value(1)], axis=constant_integers(site, 2)[0])


def gather_elements(site: Site) -> None:
    """GatherElements."""
    site.finish("GatherElements", operands(site), axis=integer_of(site, "axis", 0))


def shape_of_tensor(site: Site) -> None:
    """Shape, in the type that the IR has."""
    if site.onnx_type(0) == _INT64:
        site.finish("Shape", [site.value(0)])
    else:
        site.finish("Cast", [site.step("Shape", [site.value(0)])], to=site.onnx_type(0))


def convert(site: Site) -> None:
    """Cast."""
    site.finish("Cast", [site.value(0)], to=site.onnx_type(0))


def broadcast(site: Site) -> None:
    """Expand: by numpy's rule, or to the larger of both."""
    if text_of(site, "mode", "numpy") not in ("numpy", "bidirectional") or site.has(2):
        raise Untranslatable
    site.finish("Expand", [site.value(0), integer_operand(site, 1)])


def tile(site: Site) -> None:
    """Tile."""
    site.finish("Tile", [site.value(0), integer_operand(site, 1)])


def concat(site: Site) -> None:
    """Concat."""
    site.finish("Concat", operands(site), axis=integer_of(site, "axis", 0))


def range_(site: Site) -> None:
    """Range, its ends in the type of what it writes."""
    inputs = [site.step("Cast", [site.value(place)], to=site.onnx_type(0)) for place in range(3)]
    site.finish("Range", inputs)


def top_k(site: Site) -> None:
    """TopK of a fixed number."""
    held = site.held(1)
    if held is None or text_of(site, "sort", "value") == "index":
        raise Untranslatable
    count = site.constant(np.asarray(constant_of(site, 1)).reshape(1))
    largest = int(text_of(site, "mode", "max") == "max")
    site.finish("TopK", [site.value(0), count], axis=integer_of(site, "axis", -1), largest=largest)
