"""Writing ONNX models: names, nodes, constants and quantizers of a graph that is being built."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from quantmedic.collectors.from_onnx.onnx_graph import unique_name
from quantmedic.collectors.pair.quantizer import Quantizer

Array = NDArray[np.generic]
#: Value of an attribute of a node.
Value = int | float | str | Sequence[int] | Sequence[float]
#: Behind every entry of an axis.
BEYOND = int(np.iinfo(np.int64).max)
#: The first version of the format that has opsets 20 and 21.
_IR_VERSION = 10
#: Domain of onnxruntime's own quantizers, which take codes of 4 and 16 bits in any opset; and codes that ONNX's take.
_MICROSOFT = "com.microsoft"
_PLAIN_CODES = frozenset({TensorProto.INT8, TensorProto.UINT8, TensorProto.INT32})


class Untranslatable(Exception):
    """An operator, as it is used here, has no counterpart."""


#: What options and shapes raise that contradict each other or the documentation of their operator.
UNTRANSLATABLE = (Untranslatable, ValueError, LookupError, TypeError, ArithmeticError)


class OnnxWriter:
    """An ONNX model in the making.

    Attributes:
        nodes: Its nodes, in the order of execution.
        initializers: Its constants.
        values: Types and shapes of its tensors, as far as they are known.
    """

    def __init__(self, taken: Iterable[str]) -> None:
        """Begin a model; ``taken`` are names that are given already."""
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.values: list[onnx.ValueInfoProto] = []
        self._taken = set(taken)

    def fresh(self, base: str) -> str:
        """A name that nothing has yet."""
        return unique_name(base, self._taken)

    def initializer(self, base: str, values: Array, kind: int | None = None) -> str:
        """Name of a new constant; see ``store_initializer``."""
        return self.store_initializer(self.fresh(base), values, kind)

    def store_initializer(self, name: str, values: Array, kind: int | None = None) -> str:
        """Add a constant under this name; ``kind`` is its type in ONNX's numbers, else numpy's type decides."""
        if kind is not None:
            values = np.asarray(values).astype(helper.tensor_dtype_to_np_dtype(kind))
        self.initializers.append(numpy_helper.from_array(np.ascontiguousarray(values).reshape(values.shape), name))
        return name

    def add_grid(self, kind: str, source: str, target: str, base: str, quantizer: Quantizer, codes: int) -> None:
        """Add a quantizer, or what reads its codes.

        Args:
            kind: QuantizeLinear or DequantizeLinear.
            source: What it reads.
            target: What it writes.
            base: What its scale and zero point are called after.
            quantizer: The grid.
            codes: Type of the codes in ONNX's numbers; those of 32 bits have no zero point.
        """
        inputs = [source, self.initializer(f"{base}:scale", np.asarray(quantizer.scale, np.float32))]
        if codes != TensorProto.INT32:
            zero = np.broadcast_to(quantizer.zero_point, quantizer.scale.shape)
            inputs.append(self.initializer(f"{base}:zero_point", zero, codes))
        domain = "" if codes in _PLAIN_CODES or quantizer.block_size else _MICROSOFT
        self.nodes.append(make_node(kind, inputs, [target], target, domain, _attributes_of(quantizer)))

    def write(
        self,
        inputs: Sequence[onnx.ValueInfoProto],
        outputs: Sequence[onnx.ValueInfoProto],
        opset: int,
        producer: str,
        *,
        functions: Sequence[onnx.FunctionProto] = (),
        description: str = "",
    ) -> onnx.ModelProto:
        """The model with these inputs and outputs."""
        ends = {value.name for value in (*inputs, *outputs)}
        known = list({value.name: value for value in self.values if value.name not in ends}.values())
        graph = helper.make_graph(self.nodes, "main", inputs, outputs, self.initializers, value_info=known)
        domains = [("", opset), *((name, 1) for name in sorted({node.domain for node in self.nodes} - {""}))]
        return helper.make_model(
            graph,
            functions=functions,
            opset_imports=[helper.make_opsetid(*each) for each in domains],
            ir_version=_IR_VERSION,
            producer_name=producer,
            doc_string=description,
        )


def make_node(
    kind: str,
    inputs: Sequence[str],
    outputs: Sequence[str],
    name: str,
    domain: str = "",
    attributes: Mapping[str, Value] | None = None,
) -> onnx.NodeProto:
    """A node whose attributes have the types of their values."""
    node = helper.make_node(kind, inputs, outputs, name=name, domain=domain)
    node.attribute.extend(helper.make_attribute(key, value) for key, value in sorted((attributes or {}).items()))
    return node


def slice_rows(rows: Iterable[tuple[int, int, int]], masks: Iterable[Sequence[object]]) -> list[list[int]]:
    """Starts, ends, axes and steps of ONNX's Slice for a strided slice.

    Args:
        rows: Start, end and step along each axis.
        masks: Whether the start and the end are open, and whether a single entry is taken.

    Raises:
        ValueError: There are more of one than of the other.
    """
    found = []
    for axis, ((start, end, step), (open_start, open_end, single)) in enumerate(zip(rows, masks, strict=True)):
        if single:
            found.append((start, start + 1 or BEYOND, axis, 1))
            continue
        start = start if not open_start else 0 if step > 0 else BEYOND
        end = end if not open_end else BEYOND if step > 0 else -BEYOND
        found.append((start, end, axis, step))
    return [list(column) for column in zip(*found, strict=True)] or [[], [], [], []]


def open_first_side(sides: Sequence[int | None], batch: str | None) -> list[int | str | None]:
    """Sides of a tensor; the first goes by this name where it depends on the data."""
    found: list[int | str | None] = list(sides)
    if found and found[0] is None:
        found[0] = batch
    return found


def _attributes_of(quantizer: Quantizer) -> dict[str, int]:
    """Attributes of a node that quantizes along an axis."""
    found = {} if quantizer.axis is None else {"axis": quantizer.axis}
    return found | ({"block_size": quantizer.block_size} if quantizer.block_size else {})
