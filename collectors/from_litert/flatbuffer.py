"""The parts of a LiteRT flatbuffer as plain records, every offset and length confined to the file.

The library's Python runtime follows whatever offset a file names and takes lengths as they stand, and the interpreter
does so without looking. So everything that the interpreter walks is walked here first: what lies outside of the file,
or would grow to a multiple of it, is damage.
"""

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from quantmedic.collectors.pair.graph import Attribute, Attributes
from quantmedic.collectors.pair.quantizer import Quantizer

Array = NDArray[np.generic]
Bytes = NDArray[np.uint8]
#: A table of the schema, or its module: the classes are generated and have no types.
Table = Any

IDENTIFIER = b"TFL3"
#: What the Python runtime of flatbuffers raises on a damaged file.
ACCIDENTS = (struct.error, IndexError, TypeError, ValueError, OverflowError, AttributeError, AssertionError)
#: Tables in a file: the largest language models have some 100 000 tensors and operators in all their graphs.
_MAX_TABLES = 1 << 18
_MAX_NAME = 1 << 16
#: A file's vectors and strings may be shared, hence read more than once; never this many times over.
_READ_TIMES = 4
_READ_EXTRA = 1 << 20
#: Offsets up to this say that a buffer lies within the flatbuffer (schema, ``Buffer.offset``).
_INSIDE = 1


class Kind(NamedTuple):
    """A type of tensors.

    Attributes:
        bits: Bits of one value; 0 for text, resources and variants, which have no size of their own.
        numpy: Type of constants as they are handed on; None where they are not read.
        onnx: The type in ONNX's numbers; codes of 2 bits have none in this opset and are stored in 4.
    """

    bits: int
    numpy: str | None = None
    onnx: int = TensorProto.UNDEFINED


#: Types of tensors by the schema's name.
KINDS: Mapping[str, Kind] = {
    "FLOAT32": Kind(32, "<f4", TensorProto.FLOAT),
    "FLOAT16": Kind(16, "<f2", TensorProto.FLOAT16),
    "BFLOAT16": Kind(16, "<f4", TensorProto.FLOAT),
    "FLOAT64": Kind(64, "<f8", TensorProto.DOUBLE),
    "FLOAT8_E4M3FN": Kind(8),
    "FLOAT8_E5M2": Kind(8),
    "INT2": Kind(2, "i1", TensorProto.INT4),
    "INT4": Kind(4, "i1", TensorProto.INT4),
    "INT8": Kind(8, "i1", TensorProto.INT8),
    "INT16": Kind(16, "<i2", TensorProto.INT16),
    "INT32": Kind(32, "<i4", TensorProto.INT32),
    "INT64": Kind(64, "<i8", TensorProto.INT64),
    "UINT4": Kind(4, "u1", TensorProto.UINT4),
    "UINT8": Kind(8, "u1", TensorProto.UINT8),
    "UINT16": Kind(16, "<u2", TensorProto.UINT16),
    "UINT32": Kind(32, "<u4", TensorProto.UINT32),
    "UINT64": Kind(64, "<u8", TensorProto.UINT64),
    "BOOL": Kind(8, "?", TensorProto.BOOL),
    "COMPLEX64": Kind(64, "<c8", TensorProto.COMPLEX64),
    "COMPLEX128": Kind(128, "<c16", TensorProto.COMPLEX128),
    "STRING": Kind(0, None, TensorProto.STRING),
    "RESOURCE": Kind(0),
    "VARIANT": Kind(0),
}
#: Whether whole numbers of a type have a sign.
SIGNED = {name: not name.startswith("U") for name in KINDS if name.removeprefix("U").startswith("INT")}
#: Types of the codes of quantized activations.
CODES = frozenset(name for name in SIGNED if KINDS[name].bits <= 16)


class Damaged(Exception):
    """A file contradicts itself; the message names the part."""


@dataclass(frozen=True)
class RawGrid:
    """Quantization of a tensor as it stands in the file.

    Attributes:
        scale: Scales of the tensor or of its channels.
        zero_point: Their zero points.
        dimension: Axis of the channels.
        block_size: Values of a block, where blocks have scales of their own; 0 without.
        block_scales: Place of the tensor that holds these.
        block_zero_points: Place of the tensor that holds their zero points; below 1 for none.
        is_other: It is quantized in a way that is not known here.
    """

    scale: NDArray[np.float32]
    zero_point: NDArray[np.int64]
    dimension: int
    block_size: int | None = None
    block_scales: int = -1
    block_zero_points: int = -1
    is_other: bool = False


@dataclass(frozen=True)
class RawTensor:
    """A tensor as it stands in the file.

    ``kind`` is its type by the schema's name, ``signature`` has -1 where a side depends on the data and is None where
    the file has none, ``content`` are the bytes of its buffer, None for one that is computed.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    signature: tuple[int, ...] | None
    buffer: int
    content: Bytes | None
    grid: RawGrid | None
    is_variable: bool
    is_sparse: bool
    is_external: bool

    @property
    def sides(self) -> tuple[int | None, ...]:
        """Its shape; None for a side that depends on the data."""
        signature = self.signature if self.content is None else None
        return tuple(None if side < 0 else side for side in signature or self.shape)

    @property
    def size(self) -> int:
        """Number of its values."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes it takes in the interpreter, whose codes of fewer than 8 bits are packed."""
        return -(-self.size * KINDS[self.kind].bits // 8)

    @property
    def is_there(self) -> bool:
        """It can be read before any operator has run."""
        return self.content is not None or self.is_variable or self.is_external or not self.size


@dataclass(frozen=True)
class LiteTensor:
    """One tensor of the main graph.

    Attributes:
        index: Its place, by which the interpreter knows it.
        name: Its name, made unique where the file's is empty or taken.
        kind: Type by the schema's name: FLOAT32, FLOAT16, INT8, INT16, INT4, INT32, INT64, BOOL …
        shape: Sides; None for one that depends on the data.
        quantizer: Its grid; None for one without.
        data: What a constant holds, of fewer than 8 bits unpacked to int8; None for what is computed.
    """

    index: int
    name: str
    kind: str
    shape: tuple[int | None, ...]
    quantizer: Quantizer | None = None
    data: Array | None = None

    @property
    def dtype(self) -> np.dtype[np.generic]:
        """Type of the arrays that it is read from and written to; of objects where numpy has none."""
        try:
            return np.dtype(self.kind.lower())
        except TypeError:
            return np.dtype(object)


@dataclass(frozen=True)
class LiteOperator:
    """One operator: ``kind`` by the schema's name, such as CONV_2D, or the name of a custom operator.

    ``inputs`` are places of tensors, -1 for one that is left out. ``options`` are the schema's, names in its spelling
    (strideH, fusedActivationFunction), enumerations as numbers.
    """

    index: int
    kind: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Attributes = field(default_factory=Attributes)
    is_custom: bool = False
    intermediates: tuple[int, ...] = ()


@dataclass(frozen=True)
class RawGraph:
    name: str
    tensors: tuple[RawTensor, ...]
    operators: tuple[LiteOperator, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class RawModel:
    graphs: tuple[RawGraph, ...]
    description: str
    metadata: tuple[str, ...]


def check_places(places: Iterable[int], count: int, what: str) -> None:
    """Raise ``Damaged`` where a place is not below the count."""
    for place in places:
        if not 0 <= place < count:
            raise Damaged(f"{what} names place {place} of {count}")


def read_raw(content: bytes) -> RawModel:
    """Read every part of a file.

    Raises:
        Damaged: A part lies outside of the file, or claims to be larger than it.
        ACCIDENTS: An offset leads to what is no table.
    """
    return _Reader(content).model(schema().Model.GetRootAs(content, 0))


def schema() -> Table:
    """Classes of the schema.

    Raises:
        ImportError: ai-edge-litert is not installed.
    """
    from ai_edge_litert import schema_py_generated  # an optional package

    return schema_py_generated


@cache
def names_by_number(enumeration: str) -> Mapping[int, str]:
    """Names of an enumeration of the schema by number."""
    numbers = vars(getattr(schema(), enumeration))
    return {number: name for name, number in numbers.items() if isinstance(number, int)}


class _Reader:
    """Walks the tables of one file and counts what it reads."""

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.codes: list[tuple[int, str]] = []
        self.buffers: list[Bytes | None] = []
        self.tables = _MAX_TABLES
        self.bytes = len(content) * _READ_TIMES + _READ_EXTRA

    def model(self, model: Table) -> RawModel:
        for one in self._tables("operator codes", model.OperatorCodesLength, model.OperatorCodes):
            self.codes.append(self._code(one))
        for one in self._tables("buffers", model.BuffersLength, model.Buffers):
            self.buffers.append(self._buffer(one))
        graphs = [self._graph(one) for one in self._tables("subgraphs", model.SubgraphsLength, model.Subgraphs)]
        if not graphs:
            raise Damaged("it has no subgraph")
        for one in self._tables("signatures", model.SignatureDefsLength, model.SignatureDefs):
            self._check_signature(one, graphs)
        metadata = []
        for one in self._tables("metadata", model.MetadataLength, model.Metadata):
            metadata.append(self._text(one, 4, "the name of an entry of metadata"))
            if int(one.Buffer()) >= len(self.buffers):
                raise Damaged(f"metadata {metadata[-1]!r} names buffer {one.Buffer()} of {len(self.buffers)}")
        return RawModel(tuple(graphs), self._text(model, 10, "the description"), tuple(filter(None, metadata)))

    def _code(self, code: Table) -> tuple[int, str]:
        # A newer file holds 127 in the deprecated field, an older one nothing in the other: the larger one counts.
        return max(int(code.DeprecatedBuiltinCode()), int(code.BuiltinCode())), self._text(code, 6, "a custom operator")

    def _buffer(self, buffer: Table) -> Bytes | None:
        if buffer.DataLength():
            return np.asarray(buffer.DataAsNumpy())
        return self._outside(int(buffer.Offset()), int(buffer.Size()), "a buffer")

    def _outside(self, offset: int, size: int, what: str) -> Bytes | None:
        """Bytes that a file larger than 2 GB keeps behind the flatbuffer."""
        if offset <= _INSIDE or not size:
            return None
        if offset + size > len(self.content):
            raise Damaged(f"{what} ends at byte {offset + size} of a file of {len(self.content)}")
        return np.frombuffer(self.content, np.uint8, size, offset)

    def _graph(self, graph: Table) -> RawGraph:
        name = self._text(graph, 12, "the name of a subgraph")
        tensors = [self._tensor(one) for one in self._tables("tensors", graph.TensorsLength, graph.Tensors)]
        found = self._tables("operators", graph.OperatorsLength, graph.Operators)
        operators = [self._operator(index, one) for index, one in enumerate(found)]
        inputs, outputs = self._numbers(graph.InputsAsNumpy()), self._numbers(graph.OutputsAsNumpy())
        return RawGraph(name, tuple(tensors), tuple(operators), inputs, outputs)

    def _tensor(self, tensor: Table) -> RawTensor:
        name = self._text(tensor, 10, "the name of a tensor")
        signature = None if tensor.ShapeSignatureIsNone() else self._numbers(tensor.ShapeSignatureAsNumpy())
        for variant in self._tables("variants", tensor.VariantTensorsLength, tensor.VariantTensors):
            self._numbers(variant.ShapeAsNumpy())
        kind = names_by_number("TensorType").get(int(tensor.Type()), str(tensor.Type()))
        if kind not in KINDS:
            raise Damaged(f"tensor {name!r} has type {kind}, which is not known")
        buffer = int(tensor.Buffer())
        check_places((buffer,), len(self.buffers), f"tensor {name!r}")
        return RawTensor(
            name,
            kind,
            self._numbers(tensor.ShapeAsNumpy()),
            signature or None,
            buffer,
            self.buffers[buffer] if buffer else None,
            self._grid(tensor.Quantization()),
            bool(tensor.IsVariable()),
            self._is_sparse(tensor.Sparsity()),
            int(tensor.ExternalBuffer()) > 0,
        )

    def _grid(self, found: Table) -> RawGrid | None:
        if found is None:
            return None
        for extent in (found.MinAsNumpy, found.MaxAsNumpy):
            extent()  # not used, but a length beyond the file is damage
        scale, zero_point = np.asarray(found.ScaleAsNumpy()), np.asarray(found.ZeroPointAsNumpy())
        self._charge(scale.nbytes + zero_point.nbytes)
        kind, known = int(found.DetailsType()), schema().QuantizationDetails
        details = schema().QuantizationDetailsCreator(kind, found.Details()) if kind else None
        blocks: tuple[int | None, int, int] = (None, -1, -1)
        if kind == known.BlockwiseQuantization and details is not None:
            blocks = int(details.blockSize), int(details.scales), int(details.zeroPoints)
        # The runtime gives 0 for a vector that is missing.
        scale = scale if found.ScaleLength() else np.empty(0, scale.dtype)
        zero_point = zero_point if found.ZeroPointLength() else np.empty(0, zero_point.dtype)
        is_other = bool(kind) and blocks[0] is None
        return RawGrid(scale, zero_point, int(found.QuantizedDimension()), *blocks, is_other)

    def _is_sparse(self, found: Table) -> bool:
        if found is None:
            return False
        self._numbers(found.TraversalOrderAsNumpy())
        self._numbers(found.BlockMapAsNumpy())
        for dimension in self._tables("sparse dimensions", found.DimMetadataLength, found.DimMetadata):
            schema().DimensionMetadataT.InitFromObj(dimension)
        return True

    def _operator(self, index: int, operator: Table) -> LiteOperator:
        check_places((int(operator.OpcodeIndex()),), len(self.codes), f"operator {index}")
        code, custom = self.codes[int(operator.OpcodeIndex())]
        kind = names_by_number("BuiltinOperator").get(code)
        if kind is None:
            raise Damaged(f"operator {index} is builtin operator {code}, which this ai-edge-litert does not know")
        is_custom = kind == "CUSTOM"
        if is_custom and not custom:
            raise Damaged(f"operator {index} is a custom operator without a name")
        operator.CustomOptionsAsNumpy()
        operator.MutatingVariableInputsAsNumpy()
        self._outside(
            int(operator.LargeCustomOptionsOffset()), int(operator.LargeCustomOptionsSize()), "an operator's options"
        )
        create, create_newer = schema().BuiltinOptionsCreator, schema().BuiltinOptions2Creator
        options = Attributes(self._options(create(operator.BuiltinOptionsType(), operator.BuiltinOptions())))
        options.update(self._options(create_newer(operator.BuiltinOptions2Type(), operator.BuiltinOptions2())))
        return LiteOperator(
            index,
            custom if is_custom else kind,
            self._numbers(operator.InputsAsNumpy()),
            self._numbers(operator.OutputsAsNumpy()),
            options,
            is_custom,
            self._numbers(operator.IntermediatesAsNumpy()),
        )

    def _options(self, options: object | None) -> dict[str, Attribute]:
        """Options that are numbers, texts, or lists of numbers."""
        if options is None:
            return {}
        values = {name: self._option(value) for name, value in vars(options).items()}
        return {name: value for name, value in values.items() if value is not None}

    def _option(self, value: object) -> Attribute | None:
        if isinstance(value, np.ndarray):
            return self._numbers(value)
        if isinstance(value, bytes):
            self._charge(len(value))
            return value.decode()
        return value if isinstance(value, int | float | str) else None

    def _check_signature(self, signature: Table, graphs: Sequence[RawGraph]) -> None:
        what = f"signature {self._text(signature, 8, 'the name of a signature')}"
        check_places((int(signature.SubgraphIndex()),), len(graphs), what)
        for one in [
            *self._tables("inputs of a signature", signature.InputsLength, signature.Inputs),
            *self._tables("outputs of a signature", signature.OutputsLength, signature.Outputs),
        ]:
            self._text(one, 4, "a name in a signature")
            check_places((int(one.TensorIndex()),), len(graphs[int(signature.SubgraphIndex())].tensors), what)

    def _tables(self, what: str, length: Callable[[], int], item: Callable[[int], Table]) -> Iterable[Table]:
        count = int(length())
        self.tables -= count
        if self.tables < 0:
            raise Damaged(f"{count} {what} are more than a model has")
        for i in range(count):
            if (one := item(i)) is None:
                raise Damaged(f"one of the {what} is missing")
            yield one

    def _numbers(self, found: object) -> tuple[int, ...]:
        """A vector of whole numbers; the runtime gives 0 for one that is missing."""
        values = np.atleast_1d(np.asarray(found)) if isinstance(found, np.ndarray) else np.empty(0, np.int32)
        self._charge(values.nbytes)
        return tuple(values.tolist())

    def _text(self, table: Table, slot: int, what: str) -> str:
        """A string, its end within the file too: the interpreter reads up to the NUL behind it."""
        inner = table._tab
        field_at = inner.Offset(slot)
        if not field_at:
            return ""
        at = inner.Indirect(inner.Pos + field_at)
        (length,) = struct.unpack_from("<I", self.content, at)
        end = at + 4 + length
        if length > _MAX_NAME or end >= len(self.content) or self.content[end]:
            raise Damaged(f"{what} has no end")
        self._charge(length)
        return self.content[at + 4 : end].decode()

    def _charge(self, count: int) -> None:
        self.bytes -= count
        if self.bytes < 0:
            raise Damaged("its parts together are larger than the file")
