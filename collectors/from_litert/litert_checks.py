"""What a LiteRT model must keep to, so that the interpreter, which trusts its files, does not crash on it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from math import prod

import numpy as np

from quantmedic.collectors.from_litert.flatbuffer import (
    KINDS,
    SIGNED,
    Bytes,
    Damaged,
    LiteOperator,
    LiteTensor,
    RawGraph,
    RawModel,
    RawTensor,
    check_places,
)
from quantmedic.collectors.pair.graph import Attributes, Shape
from quantmedic.collectors.pair.quantizer import Quantizer, code_ends

_MAX_RANK = 16
#: The kernels count elements in int32.
_MAX_SIZE = 2**31
#: Bytes of all computed tensors of a graph, which are kept at once when every one of them is looked at.
_MAX_MEMORY = 1 << 34
_LEFT_OUT = -1
#: Twice a larger step would not fit float32.
_MAX_STEP = 1e37
#: Options by which kernels divide, and the operators that have no result without them.
_WINDOW = ("strideH", "strideW", "strideD", "dilationHFactor", "dilationWFactor", "dilationDFactor")
_FILTER = ("filterHeight", "filterWidth")
_MAX_WINDOW = 1 << 16
_CONVOLUTIONS = ("CONV_2D", "DEPTHWISE_CONV_2D", "TRANSPOSE_CONV", "CONV_3D", "CONV_3D_TRANSPOSE")
_POOLS = ("AVERAGE_POOL_2D", "MAX_POOL_2D", "L2_POOL_2D")
#: Inputs and outputs that kernels read without counting them first; all others count.
_OPERANDS: Mapping[str, tuple[int, int]] = {
    "SLICE": (3, 1),
    "STRIDED_SLICE": (4, 1),
    "SPLIT": (2, 1),
    "BATCH_MATMUL": (2, 1),
    "READ_VARIABLE": (1, 1),
    "SIGN": (1, 1),
}
#: What makes text, resources and variants of anything else; all others write numbers.
_MAKERS = ("VAR_HANDLE", "HASHTABLE", "HASHTABLE_FIND", "READ_VARIABLE", "IF", "WHILE", "CALL", "STABLEHLO_COMPOSITE")
#: Values that an enumeration has, by the name of the option.
_CHOICES: Mapping[str, int] = {"padding": 2, "fusedActivationFunction": 6}
#: Bits by which the kernels of sums shift their inputs up before they scale them down to the output's step.
_SUM_SHIFT: Mapping[int, int] = {8: 20, 16: 15}
#: Whole bits of the numbers with which the integer Softmax computes.
_SOFTMAX_SHIFT = 26


def check_tensor(tensor: RawTensor) -> None:
    """Raise ``Damaged`` where a tensor's shape, content or grid cannot be."""
    what = f"tensor {tensor.name!r}"
    _check_shape(tensor, what)
    _check_content(tensor, what)
    _check_grid(tensor, what)


def _check_shape(tensor: RawTensor, what: str) -> None:
    """Raise ``Damaged`` where a side is negative, or the tensor is larger than the kernels count."""
    if len(tensor.shape) > _MAX_RANK or min(tensor.shape, default=0) < 0 or prod(tensor.shape) >= _MAX_SIZE:
        raise Damaged(f"{what} has the shape {list(tensor.shape[: _MAX_RANK + 1])}")
    if tensor.signature is None:
        return
    if len(tensor.signature) != len(tensor.shape) or min(tensor.signature) < -1:
        raise Damaged(f"{what} has the shape {list(tensor.shape)} and the signature {list(tensor.signature)}")


def check_memory(sizes: Iterable[int]) -> None:
    """Raise ``Damaged`` where tensors of these sizes in bytes do not fit into memory together."""
    if (total := sum(sizes)) > _MAX_MEMORY:
        raise Damaged(f"its tensors take {total / 2**30:.0f} GiB")


def _check_content(tensor: RawTensor, what: str) -> None:
    """Raise ``Damaged`` where the buffer of a constant is not as large as its shape and type say."""
    kind, content = tensor.kind, tensor.content
    if content is None:
        return
    if tensor.is_variable:
        raise Damaged(f"{what} is a variable and a constant")
    if kind == "STRING":
        _check_text(content, prod(tensor.shape), what)
        return
    if not tensor.is_sparse and KINDS[kind].bits and content.nbytes != tensor.nbytes:
        raise Damaged(f"{what} has {content.nbytes} bytes where its shape and type say {tensor.nbytes}")


def _check_text(content: Bytes, count: int, what: str) -> None:
    """A count, the offsets of as many strings and of their end, the strings."""
    head = 4 * (count + 2)
    offsets = content[: len(content) // 4 * 4].view("<i4")[: count + 2]
    if len(content) < head or offsets[0] != count or (np.diff(offsets[1:]) < 0).any():
        raise Damaged(f"{what} does not hold {count} strings")
    if offsets[1] != head or offsets[-1] > len(content):
        raise Damaged(f"{what} holds strings outside of its buffer")


def _check_grid(tensor: RawTensor, what: str) -> None:
    """Raise ``Damaged`` where scales and zero points do not fit the tensor or each other, or are none."""
    grid, kind = tensor.grid, tensor.kind
    if grid is None or not grid.scale.size:
        return
    if grid.zero_point.size != grid.scale.size:
        raise Damaged(f"{what} has {grid.scale.size} scales and {grid.zero_point.size} zero points")
    if not np.isfinite(grid.scale).all() or (grid.scale < 0).any():
        raise Damaged(f"{what} has a scale that is negative or not finite")
    low, high = code_ends(KINDS[kind].bits, SIGNED[kind]) if kind in SIGNED else (-np.inf, np.inf)
    if (grid.zero_point < low).any() or (grid.zero_point > high).any():
        raise Damaged(f"{what} has a zero point that {kind} does not hold")
    if tensor.shape and not 0 <= grid.dimension < len(tensor.shape):
        raise Damaged(f"{what} is quantized along axis {grid.dimension} of {len(tensor.shape)}")
    if grid.scale.size > 1 and (not tensor.shape or tensor.shape[grid.dimension] != grid.scale.size):
        raise Damaged(f"{what} of shape {list(tensor.shape)} has {grid.scale.size} scales along axis {grid.dimension}")


def check_order(graph: RawGraph, there: set[int]) -> None:
    """Every tensor is written once, before it is read.

    Args:
        graph: The graph.
        there: Places of tensors that need not be written: constants, variables, empty ones.

    Raises:
        Damaged: A place is not in the graph; a tensor is read before it is written, or written twice.
    """
    count = len(graph.tensors)
    check_places((*graph.inputs, *graph.outputs), count, "the graph")
    written = set(graph.inputs)
    for i, operator in enumerate(graph.operators):
        _check_operator(graph, i, operator, count)
        if missing := [j for j in operator.inputs if j != _LEFT_OUT and j not in written and j not in there]:
            raise Damaged(f"operator {i} reads {graph.tensors[missing[0]].name!r} before it is written")
        outputs = [j for j in operator.outputs if j != _LEFT_OUT]
        if again := [j for j in outputs if j in written or (graph.tensors[j].buffer and j in there)]:
            raise Damaged(f"operator {i} writes {graph.tensors[again[0]].name!r}, which is given")
        written.update(outputs)
    if missing := [j for j in graph.outputs if j not in written and j not in there]:
        raise Damaged(f"the output {graph.tensors[missing[0]].name!r} is never written")


def _check_operator(graph: RawGraph, i: int, operator: LiteOperator, count: int) -> None:
    for places in (operator.inputs, operator.outputs, operator.intermediates):
        check_places((place for place in places if place != _LEFT_OUT), count, f"operator {i}")


def check_kernel(operator: LiteOperator, inputs: Sequence[LiteTensor], outputs: Sequence[LiteTensor]) -> None:
    """Raise ``Damaged`` where the kernel of a builtin operator does not bear its options or operands."""
    if operator.is_custom:
        return
    what = f"operator {operator.index}, {operator.kind},"
    _check_operands(operator, inputs, outputs, what)
    if operator.kind == "DEQUANTIZE" and inputs and outputs:
        _check_cast(inputs[0].shape, outputs[0].shape, what)
    _check_options(operator, what)
    _check_steps(operator, [one.quantizer for one in inputs], [one.quantizer for one in outputs[:1]], what)


def _check_options(operator: LiteOperator, what: str) -> None:
    """Raise ``Damaged`` where an option by which the kernel divides is missing, or has a value that it refuses."""
    kind, options = operator.kind, operator.options
    needed = ("strideH", "strideW") if kind in _CONVOLUTIONS + _POOLS else ()
    for name in (*needed, *(_FILTER if kind in _POOLS else ())):
        if name not in options:
            raise Damaged(f"{what} has no {name}")
    for name in (*_WINDOW, *_FILTER):
        if not 1 <= options.integer(name, 1) <= _MAX_WINDOW:
            raise Damaged(f"{what} has {name} {options.integer(name)}")
    for name, count in _CHOICES.items():
        if not 0 <= options.integer(name) < count:
            raise Damaged(f"{what} has {name} {options.integer(name)}")


def _check_operands(
    operator: LiteOperator, inputs: Sequence[LiteTensor], outputs: Sequence[LiteTensor], what: str
) -> None:
    """Raise ``Damaged`` where an operator has fewer operands than its kernel reads, or writes no numbers."""
    reads, writes = _OPERANDS.get(operator.kind, (0, 0))
    if len(inputs) < reads or len(outputs) < writes:
        raise Damaged(f"{what} has {len(inputs)} inputs and {len(outputs)} outputs")
    splits = operator.options.integer("numSplits")
    if operator.kind == "SPLIT" and splits != len(outputs):
        raise Damaged(f"{what} has {len(outputs)} outputs and numSplits {splits}")
    from_numbers = all(KINDS[one.kind].bits for one in inputs) and operator.kind not in _MAKERS
    if from_numbers and not all(KINDS[one.kind].bits for one in outputs):
        raise Damaged(f"{what} writes {', '.join(one.kind for one in outputs)}")


def _check_cast(codes: Shape, values: Shape, what: str) -> None:
    """Raise ``Damaged`` where the real values of a constant are more or fewer than its codes.

    They are written once, before the first run, into a tensor whose size the interpreter does not check.
    """
    if codes != values and None not in (*codes, *values):
        raise Damaged(f"{what} makes the shape {list(values)} of {list(codes)}")


def _check_steps(
    operator: LiteOperator, inputs: Sequence[Quantizer | None], outputs: Sequence[Quantizer | None], what: str
) -> None:
    """Raise ``Damaged`` where the integer kernel of an operator has no number for the ratio of the steps.

    The kernels end the process then: of a sum where the output's step is too small for those of the inputs, of Softmax
    where the input's step times ``beta`` is too small.
    """
    if not outputs or outputs[0] is None or not inputs or inputs[0] is None:
        return
    steps = [float(grid.scale) if grid and not grid.scale.ndim else 0.0 for grid in (*inputs, *outputs)]
    bits, largest = outputs[0].bits, max(steps[:-1])
    summed = operator.kind in ("ADD", "SUB") and bits in _SUM_SHIFT
    if summed and (2 * largest >= 2.0 ** _SUM_SHIFT[bits] * steps[-1] or max(steps) > _MAX_STEP):
        raise Damaged(f"{what} adds steps of {largest:.3g} to one of {steps[-1]:.3g}")
    beta = operator.options.number("beta", 0.0)
    if operator.kind == "SOFTMAX" and bits == 8 and not 1 < steps[0] * beta * 2.0**_SOFTMAX_SHIFT < np.inf:
        raise Damaged(f"{what} has a step of {steps[0]:.3g} and beta {beta:.3g}")


def check_calls(model: RawModel) -> None:
    """Raise ``Damaged`` where an operator calls a subgraph that is not there, or one that leads back to its own."""
    calls = [
        sorted({place for op in graph.operators for place in _called_subgraphs(op.options)}) for graph in model.graphs
    ]
    for i, called in enumerate(calls):
        check_places(called, len(calls), f"subgraph {i}")
    try:
        TopologicalSorter(dict(enumerate(calls))).prepare()
    except CycleError as error:
        raise Damaged(f"subgraph {error.args[1][0]} calls itself") from error


def _called_subgraphs(options: Attributes) -> Iterator[int]:
    for name in options:
        if name.lower().endswith("subgraphindex") or name == "subgraph":
            yield options.integer(name)
