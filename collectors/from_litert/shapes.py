"""Translations of LiteRT operators that move, choose or look up values."""

import numpy as np

from quantmedic.collectors.from_litert.functions import pack as pack_function
from quantmedic.collectors.from_litert.functions import unpack as unpack_function
from quantmedic.collectors.from_litert.site import (
    Node,
    Site,
    Untranslatable,
    constant_integers,
    fixed_sides,
    flag,
    function_node,
    integer_operand,
    node_without_activation,
    onnx_node,
)

_INT64_MAX = np.iinfo(np.int64).max
#: Value of the schema's enumeration of mirrorings.
_REFLECT = 0


def reshape(site: Site) -> Node:
    shape = site.integers(1) if site.has(1) else np.asarray(site.op.options.integers("newShape") or (), np.int64)
    if shape is None:
        return function_node("Reshape", site)
    return Node("Reshape", [site.value(0), site.constant(shape.ravel())])


def with_sides(kind: str, site: Site) -> Node:
    """Data and int64 sides or counts, which a function casts where they are computed."""
    return Node(kind, [site.value(0), integer_operand(site, 1)], is_function=site.integers(1) is None)


def fill(site: Site) -> Node:
    return Node("Expand", [site.value(1), integer_operand(site, 0)], is_function=site.integers(0) is None)


def squeeze(site: Site) -> Node:
    axes = list(site.op.options.integers("squeezeDims") or ())
    axes = axes or [axis for axis, side in enumerate(site.shape(0)) if side == 1]
    return Node("Squeeze", [site.value(0), site.constant(axes)])


def expand_dims(site: Site) -> Node:
    return Node("Unsqueeze", [site.value(0), site.constant(constant_integers(site, 1).ravel())])


def transpose(site: Site) -> Node:
    return Node("Transpose", [site.value(0)], {"perm": constant_integers(site, 1).ravel().tolist()})


def concat(site: Site) -> Node:
    return node_without_activation("Concat", site, axis=site.op.options.integer("axis"))


def pack(site: Site) -> Node:
    axis = site.op.options.integer("axis")
    if not site.op.inputs:
        raise Untranslatable
    return function_node(pack_function(len(site.op.inputs)), site, axis=axis, axes=[axis])


def unpack(site: Site) -> Node:
    axis = site.op.options.integer("axis")
    if not site.op.outputs:
        raise Untranslatable
    return function_node(unpack_function(len(site.op.outputs)), site, axis=axis, axes=[axis])


def split(site: Site) -> Node:
    axis = int(constant_integers(site, 0).item())
    return Node("Split", [site.value(1)], {"axis": axis, "num_outputs": len(site.op.outputs)})


def split_v(site: Site) -> Node:
    axis, sizes = int(constant_integers(site, 2).item()), constant_integers(site, 1).ravel().copy()
    if (sizes < 0).any():
        whole = site.shape(0)[axis]
        if whole is None:
            raise Untranslatable
        sizes[sizes < 0] = whole - sizes[sizes >= 0].sum()
    return Node("Split", [site.value(0), site.constant(sizes)], {"axis": axis})


def slice_(site: Site) -> Node:
    begin, size = site.integers(1), site.integers(2)
    if begin is None or size is None:
        return function_node("SliceOfSize", site)
    ends = np.where(size < 0, _INT64_MAX, begin + size)
    return Node("Slice", [site.value(0), site.constant(begin.ravel()), site.constant(ends.ravel())])


def strided_slice(site: Site) -> Node:
    """Masks are bits by axis; an axis that is shrunk is dropped with the one entry that was taken of it."""
    begin, end, strides = (constant_integers(site, place).ravel().tolist() for place in (1, 2, 3))
    masks = {
        name: site.op.options.integer(f"{name}Mask") for name in ("begin", "end", "ellipsis", "newAxis", "shrinkAxis")
    }
    if masks["ellipsis"] or masks["newAxis"] or flag(site, "offset"):
        raise Untranslatable
    squeezed = []
    for axis, stride in enumerate(strides):
        bit = 1 << axis
        if masks["shrinkAxis"] & bit:
            squeezed.append(axis)
            end[axis] = begin[axis] + 1 if begin[axis] != -1 else _INT64_MAX
            strides[axis] = 1
            continue
        if masks["begin"] & bit:
            begin[axis] = 0 if stride > 0 else _INT64_MAX
        if masks["end"] & bit:
            end[axis] = _INT64_MAX if stride > 0 else -_INT64_MAX
    parts = [site.constant(values) for values in (begin, end, list(range(len(begin))), strides)]
    if not squeezed:
        return Node("Slice", [site.value(0), *parts])
    return Node("Slice", [site.value(0), *parts], {"squeezed": squeezed}, is_function=True)


def reverse(site: Site) -> Node:
    axes = constant_integers(site, 1).ravel()
    last, before_first = np.full(axes.size, -1), np.full(axes.size, -_INT64_MAX)
    ends = [site.constant(values) for values in (last, before_first, axes, last)]
    return Node("Slice", [site.value(0), *ends])


def reverse_sequence(site: Site) -> Node:
    batch, time = (site.op.options.integer(name) for name in ("batchDim", "seqDim"))
    if sorted((batch, time)) != [0, 1]:
        raise Untranslatable
    return Node(
        "ReverseSequence", [site.value(0), integer_operand(site, 1)], {"batch_axis": batch, "time_axis": time}, True
    )


def pad(site: Site) -> Node:
    value = [site.value(2)] if site.has(2) else []
    paddings = site.integers(1)
    if paddings is None:
        return Node("Pad", [site.value(0), site.value(1), *value], is_function=True)
    return Node("Pad", [site.value(0), site.constant(paddings.T.ravel()), *value])


def mirror_pad(site: Site) -> Node:
    if site.op.options.integer("mode") != _REFLECT:
        raise Untranslatable
    return Node("Pad", [site.value(0), site.constant(constant_integers(site, 1).T.ravel())], {"mode": "reflect"})


def blocks(kind: str, site: Site) -> Node:
    return function_node(kind, site, blocksize=site.op.options.integer("blockSize"))


def space_to_batch(site: Site) -> Node:
    block, pads = constant_integers(site, 1).ravel(), constant_integers(site, 2)
    _, height, width, channels = (*site.shape(0), None)[:4]
    if len(site.shape(0)) != 4 or block.size != 2:
        raise Untranslatable
    sides = np.asarray(fixed_sides((height, width))) + pads.sum(axis=1)
    (rows, columns), (high, wide) = sides // block, block
    (depth,) = fixed_sides((channels,))
    around = [0, *pads[:, 0], 0, 0, *pads[:, 1], 0]
    parted, joined = [-1, rows, high, columns, wide, depth], [-1, rows, columns, depth]
    names = [site.constant(values) for values in (around, parted, joined)]
    return Node("SpaceToBatch", [site.value(0), *names], is_function=True)


def batch_to_space(site: Site) -> Node:
    block, crops = constant_integers(site, 1).ravel(), constant_integers(site, 2)
    if len(site.shape(0)) != 4 or block.size != 2:
        raise Untranslatable
    high, wide = block
    rows, columns, depth = fixed_sides(site.shape(0)[1:])
    parted, joined = [high, wide, -1, rows, columns, depth], [-1, rows * high, columns * wide, depth]
    ends = [rows * high - crops[0, 1], columns * wide - crops[1, 1]]
    names = [site.constant(np.asarray(values)) for values in (parted, joined, crops[:, 0], ends)]
    return Node("BatchToSpace", [site.value(0), *names], is_function=True)


def gather(site: Site) -> Node:
    if site.op.options.integer("batchDims"):
        raise Untranslatable
    return onnx_node("Gather", site, axis=site.op.options.integer("axis"))


def gather_nd(site: Site) -> Node:
    return Node("GatherND", [site.value(0), integer_operand(site, 1)], {"batch_dims": 0}, is_function=True)


def scatter_nd(site: Site) -> Node:
    return Node("ScatterND", [integer_operand(site, 0), site.value(1), integer_operand(site, 2)], is_function=True)


def embedding_lookup(site: Site) -> Node:
    return Node("Gather", [site.value(1), site.value(0)], {"axis": 0})


def one_hot(site: Site) -> Node:
    return function_node("OneHot", site, axis=site.op.options.integer("axis", -1))


def top_k(site: Site) -> Node:
    return function_node("TopK", site)
