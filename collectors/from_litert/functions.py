"""Operators of LiteRT as functions of ONNX operators: channels last, activation included, one node each."""

from collections.abc import Iterable

import onnx
from onnx import parser

#: Domain of these functions; tensors that they read and write have their channels last.
DOMAIN = "litert"
#: Opset of their bodies and of the models that call them, of which Gelu is the youngest operator.
OPSET = 20
_LIMITS = "low: float = -inf, high: float = inf"
_CLIP = """
  bottom = Constant <value_float: float = @low> ()
  top = Constant <value_float: float = @high> ()
  {target} = Clip ({source}, bottom, top)
"""
_AXES = "first: ints = [0, 3, 1, 2], last: ints = [0, 2, 3, 1]"
_FIRST = "inner = Transpose <perm: ints = @first> (x)"
_LAST = "y = Transpose <perm: ints = @last> (outer)"
_WINDOW = (
    "auto_pad: string = @auto_pad, pads: ints = @pads, strides: ints = @strides, dilations: ints = @dilations, "
    "group: int = @group"
)
_POOL = "auto_pad: string = @auto_pad, pads: ints = @pads, strides: ints = @strides, kernel_shape: ints = @kernel_shape"
_POOLED = f"<auto_pad, pads, strides, kernel_shape, {_LIMITS}, {_AXES}> (x) => (y)"


def _clip_lines(target: str = "y", source: str = "raw") -> str:
    return _CLIP.format(target=target, source=source)


def _binary_body(kind: str) -> str:
    return f"<{_LIMITS}> (a, b) => (y) {{ raw = {kind} (a, b) {_clip_lines()} }}"


def _pool_body(kind: str) -> str:
    return f"{_POOLED} {{ {_FIRST} raw = {kind} <{_POOL}> (inner) {_clip_lines('outer')} {_LAST} }}"


def _block_body(kind: str, more: str = "") -> str:
    body = f"outer = {kind} <blocksize: int = @blocksize{more}> (inner)"
    return f"<blocksize, {_AXES}> (x) => (y) {{ {_FIRST} {body} {_LAST} }}"


def _arg_body(kind: str) -> str:
    place = f"place = {kind} <axis: int = @axis, keepdims = 0> (x)"
    return f"<axis, to> (x) => (y) {{ {place} y = Cast <to: int = @to> (place) }}"


def _logical_body(kind: str) -> str:
    return (
        f"<keepdims> (x, axes) => (y) {{ number = Cast <to = 6> (x) "
        f"reduced = {kind} <keepdims: int = @keepdims> (number, axes) y = Cast <to = 9> (reduced) }}"
    )


#: Signature and body of each, in ONNX's text format. One that is named as an ONNX operator does what that one does.
_BODIES = {
    "Conv": f"""<auto_pad, pads, strides, dilations, group, {_LIMITS}, {_AXES}> (x, w, b) => (y) {{
        {_FIRST} raw = Conv <{_WINDOW}> (inner, w, b) {_clip_lines("outer")} {_LAST} }}""",
    "ConvTranspose": f"""<pads, output_padding, strides, {_LIMITS}, {_AXES}> (x, w, b) => (y) {{
        {_FIRST}
        raw = ConvTranspose <pads: ints = @pads, output_padding: ints = @output_padding, strides: ints = @strides>
            (inner, w, b)
        {_clip_lines("outer")} {_LAST} }}""",
    # Rows of all leading axes are multiplied; the first ``kept`` of these axes come back, the rest are counted as one.
    "Gemm": f"""<transB: int = 1, kept: ints = [0], {_LIMITS}> (x, w, b) => (y) {{
        any = Constant <value_ints: ints = [-1]> ()
        weights = Shape (w)
        inputs = Shape <start: int = 1> (w)
        outputs = Shape <end: int = 1> (w)
        rows = Concat <axis = 0> (any, inputs)
        flat = Reshape (x, rows)
        product = Gemm <transB: int = @transB> (flat, w, b)
        {_clip_lines("limited", "product")}
        start = Constant <value_ints: ints = [0]> ()
        end = Constant <value_ints: ints = @kept> ()
        sides = Shape (x)
        leading = Slice (sides, start, end)
        target = Concat <axis = 0> (leading, any, outputs)
        y = Reshape (limited, target) }}""",
    "MatMul": """<perm_a, perm_b> (a, b) => (y) {
        left = Transpose <perm: ints = @perm_a> (a)
        right = Transpose <perm: ints = @perm_b> (b)
        y = MatMul (left, right) }""",
    **{kind: _binary_body(kind) for kind in ("Add", "Sub", "Mul", "Div")},
    **{kind: _pool_body(kind) for kind in ("AveragePool", "MaxPool")},
    "L2Pool": f"""{_POOLED} {{ {_FIRST}
        squares = Mul (inner, inner)
        mean = AveragePool <{_POOL}> (squares)
        raw = Sqrt (mean) {_clip_lines("outer")} {_LAST} }}""",
    # All four sizes are given: onnxruntime, which moves a Transpose behind a Resize, mixes up the sizes of chosen axes.
    "Resize": f"""<mode, coordinate_transformation_mode, nearest_mode, {_AXES}> (x, size) => (y) {{ {_FIRST}
        inside = Cast <to = 7> (size)
        outside = Shape <end: int = 2> (inner)
        sizes = Concat <axis = 0> (outside, inside)
        outer = Resize <mode: string = @mode, nearest_mode: string = @nearest_mode,
            coordinate_transformation_mode: string = @coordinate_transformation_mode> (inner, , , sizes)
        {_LAST} }}""",
    "DepthToSpace": _block_body("DepthToSpace", ', mode = "DCR"'),
    "SpaceToDepth": _block_body("SpaceToDepth"),
    "LRN": f"""<size, alpha, beta, bias, {_AXES}> (x) => (y) {{ {_FIRST}
        outer = LRN <size: int = @size, alpha: float = @alpha, beta: float = @beta, bias: float = @bias> (inner)
        {_LAST} }}""",
    "PRelu": "(x, slope) => (y) { y = PRelu (x, slope) }",
    "SpaceToBatch": """(x, pads, parted, joined) => (y) {
        padded = Pad (x, pads)
        blocks = Reshape (padded, parted)
        turned = Transpose <perm = [2, 4, 0, 1, 3, 5]> (blocks)
        y = Reshape (turned, joined) }""",
    "BatchToSpace": """(x, parted, joined, starts, ends) => (y) {
        blocks = Reshape (x, parted)
        turned = Transpose <perm = [2, 3, 0, 4, 1, 5]> (blocks)
        whole = Reshape (turned, joined)
        axes = Constant <value_ints = [1, 2]> ()
        y = Slice (whole, starts, ends, axes) }""",
    "Softmax": """<beta> (x) => (y) {
        factor = Constant <value_float: float = @beta> ()
        scaled = Mul (x, factor)
        y = Softmax <axis = -1> (scaled) }""",
    "FakeQuant": f"""<low, high, step> (x) => (y) {{
        {_clip_lines("limited", "x")}
        width = Constant <value_float: float = @step> ()
        above = Sub (limited, bottom)
        steps = Div (above, width)
        whole = Round (steps)
        reach = Mul (whole, width)
        y = Add (reach, bottom) }}""",
    "Rsqrt": "(x) => (y) { root = Sqrt (x) y = Reciprocal (root) }",
    "SquaredDifference": "(a, b) => (y) { difference = Sub (a, b) y = Mul (difference, difference) }",
    "NotEqual": "(a, b) => (y) { same = Equal (a, b) y = Not (same) }",
    "FloorDiv": "(a, b) => (y) { ratio = Div (a, b) y = Floor (ratio) }",
    "FloorMod": """(a, b) => (y) {
        ratio = Div (a, b)
        whole = Floor (ratio)
        part = Mul (whole, b)
        y = Sub (a, part) }""",
    "ZerosLike": "(x) => (y) { y = Sub (x, x) }",
    **{kind: _arg_body(kind) for kind in ("ArgMax", "ArgMin")},
    "ReduceAny": _logical_body("ReduceMax"),
    "ReduceAll": _logical_body("ReduceMin"),
    "Shape": "<to> (x) => (y) { sides = Shape (x) y = Cast <to: int = @to> (sides) }",
    "Rank": """(x) => (y) {
        sides = Shape (x)
        rank = Size (sides)
        y = Cast <to = 6> (rank) }""",
    "Reshape": "(x, shape) => (y) { sides = Cast <to = 7> (shape) y = Reshape (x, sides) }",
    "Expand": "(x, shape) => (y) { sides = Cast <to = 7> (shape) y = Expand (x, sides) }",
    "Tile": "(x, repeats) => (y) { times = Cast <to = 7> (repeats) y = Tile (x, times) }",
    "Pad": """(x, paddings, value) => (y) {
        ends = Transpose <perm = [1, 0]> (paddings)
        any = Constant <value_ints = [-1]> ()
        flat = Reshape (ends, any)
        pads = Cast <to = 7> (flat)
        y = Pad (x, pads, value) }""",
    "Slice": """<squeezed> (x, starts, ends, axes, steps) => (y) {
        part = Slice (x, starts, ends, axes, steps)
        gone = Constant <value_ints: ints = @squeezed> ()
        y = Squeeze (part, gone) }""",
    "SliceOfSize": """(x, begin, size) => (y) {
        starts = Cast <to = 7> (begin)
        sizes = Cast <to = 7> (size)
        behind = Add (starts, sizes)
        none = Constant <value_int = 0> ()
        last = Constant <value_int = 9223372036854775807> ()
        open = Less (sizes, none)
        ends = Where (open, last, behind)
        y = Slice (x, starts, ends) }""",
    "GatherND": """<batch_dims> (x, places) => (y) {
        indices = Cast <to = 7> (places)
        y = GatherND <batch_dims: int = @batch_dims> (x, indices) }""",
    "ScatterND": """(places, updates, shape) => (y) {
        indices = Cast <to = 7> (places)
        sides = Cast <to = 7> (shape)
        first = Constant <value_ints = [-1]> ()
        flat = Reshape (updates, first)
        start = Constant <value_ints = [0]> ()
        end = Constant <value_ints = [1]> ()
        one = Slice (flat, start, end)
        nothing = Sub (one, one)
        empty = Expand (nothing, sides)
        y = ScatterND <reduction = "add"> (empty, indices, updates) }""",
    "OneHot": """<axis> (places, depth, on, off) => (y) {
        any = Constant <value_ints = [-1]> ()
        both = Reshape (on, any)
        neither = Reshape (off, any)
        values = Concat <axis = 0> (neither, both)
        y = OneHot <axis: int = @axis> (places, depth, values) }""",
    "TopK": """(x, k) => (values, places) {
        any = Constant <value_ints = [-1]> ()
        count = Reshape (k, any)
        number = Cast <to = 7> (count)
        values, indices = TopK (x, number)
        places = Cast <to = 6> (indices) }""",
    "NonZero": "(x) => (y) { places = NonZero (x) y = Transpose <perm = [1, 0]> (places) }",
    "ReverseSequence": """<batch_axis, time_axis> (x, lengths) => (y) {
        counts = Cast <to = 7> (lengths)
        y = ReverseSequence <batch_axis: int = @batch_axis, time_axis: int = @time_axis> (x, counts) }""",
}
_PACK, _UNPACK = "Pack", "Unpack"


def pack_function(count: int) -> str:
    """Name of the function that lays so many tensors side by side on a new axis."""
    return f"{_PACK}{count}"


def unpack_function(count: int) -> str:
    """Name of the function that takes a tensor apart along an axis of so many entries, which is dropped."""
    return f"{_UNPACK}{count}"


def functions_of(names: Iterable[str], opset: int = OPSET) -> list[onnx.FunctionProto]:
    """The functions of these names, in alphabetical order."""
    head = f'<domain: "{DOMAIN}", opset_import: ["" : {opset}]>'
    return [
        parser.parse_function(f"{head} {name} {_BODIES.get(name) or _function_of_count(name)}")
        for name in sorted(set(names))
    ]


def _function_of_count(name: str) -> str:
    """One of as many operands or results as its name says."""
    kind = _UNPACK if name.startswith(_UNPACK) else _PACK
    parts = [f"p{k}" for k in range(int(name.removeprefix(kind)))]
    outer, inner = ", ".join(parts), ", ".join(f"{part}s" for part in parts)
    axes = "axes = Constant <value_ints: ints = @axes> ()"
    if kind == _PACK:
        raised = " ".join(f"{part}s = Unsqueeze ({part}, axes)" for part in parts)
        return f"<axis, axes> ({outer}) => (y) {{ {axes} {raised} y = Concat <axis: int = @axis> ({inner}) }}"
    dropped = " ".join(f"{part} = Squeeze ({part}s, axes)" for part in parts)
    split = f"{inner} = Split <axis: int = @axis, num_outputs = {len(parts)}> (x)"
    return f"<axis, axes> (x) => ({outer}) {{ {axes} {split} {dropped} }}"
