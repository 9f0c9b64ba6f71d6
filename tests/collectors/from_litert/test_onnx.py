"""Every operator's translation computes what the LiteRT interpreter computes; models of one operator are made here."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
import pytest
from builders import litert_models, onnx_models
from builders.properties import examples
from builders.recordings import RECORDINGS
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_litert.flatbuffer import LiteTensor
from quantmedic.collectors.from_litert.litert_file import LiteModel, read_litert
from quantmedic.collectors.from_litert.litert_graph import graph_of
from quantmedic.collectors.from_litert.litert_models import LiteRTModels
from quantmedic.collectors.from_litert.litert_operators import OPERATORS
from quantmedic.collectors.from_litert.litert_session import is_open
from quantmedic.collectors.from_litert.litert_translation import UNTRANSLATED, Translation
from quantmedic.collectors.from_onnx.onnx_session import make_session
from quantmedic.collectors.from_onnx.simulated import OnnxSimulated
from quantmedic.collectors.from_onnx.types import static_shapes
from quantmedic.collectors.measure.bias_facts import bias_facts
from quantmedic.collectors.measure.plan import foresee
from quantmedic.collectors.measure.record import record_models
from quantmedic.collectors.pair.channels import channel_axes
from quantmedic.collectors.pair.match import match
from quantmedic.collectors.pair.originals import OperatorPair
from quantmedic.collectors.pair.patterns import Bounds, clip_bounds
from quantmedic.collectors.pair.quantizer import Quantizer
from quantmedic.collectors.pair.tensor_pairs import pairs_of
from quantmedic.engine.case.records import Case, CaseRecord
from quantmedic.engine.formulas.change import Change
from quantmedic.trials.from_onnx.onnx_remedies import edit

schema = pytest.importorskip("ai_edge_litert.schema_py_generated", reason="ai-edge-litert is not installed")
runtime = pytest.importorskip("ai_edge_litert.interpreter", reason="ai-edge-litert is not installed")

Array = NDArray[Any]
_KINDS = {np.dtype(name): kind for name, kind in {
    "f4": "FLOAT32", "f2": "FLOAT16", "i4": "INT32", "i8": "INT64", "i1": "INT8", "i2": "INT16", "?": "BOOL",
}.items()}  # fmt: skip
_KERNELS = runtime.OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
RNG = np.random.default_rng(5)


@dataclass(frozen=True)
class Grid:
    """Scale and zero point, per tensor or along an axis."""

    scale: Array
    zero: Array
    axis: int = 0


@dataclass(frozen=True)
class Operand:
    """A tensor: what it holds, or what it is fed with where it is an input."""

    data: Array
    is_fed: bool = False
    grid: Grid | None = None
    kind: str | None = None
    signature: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Result:
    """A tensor that is computed."""

    dtype: str = "f4"
    grid: Grid | None = None
    shape: tuple[int, ...] = ()


@dataclass(frozen=True)
class Step:
    """One operator over tensors by number."""

    kind: str
    inputs: list[int]
    outputs: list[int]
    options: Mapping[str, Any] = field(default_factory=dict)
    options_type: str | None = None


def fed(*shape: int, low: float = -2.0, high: float = 2.0, **more: Any) -> Operand:
    return Operand(RNG.uniform(low, high, shape).astype("f4"), is_fed=True, **more)


def fixed(*shape: int, low: float = -1.0, high: float = 1.0) -> Operand:
    return Operand(RNG.uniform(low, high, shape).astype("f4"))


def whole(*values: Any) -> Operand:
    return Operand(np.array(values[0] if len(values) == 1 else values, np.int32))


def content(tensors: list[Operand | Result], steps: list[Step], outputs: list[int]) -> bytes:
    """A LiteRT model as the bytes of its file."""
    model = schema.ModelT()
    model.version, model.description, model.buffers, model.operatorCodes = 3, "made for a test", [schema.BufferT()], []
    graph = schema.SubGraphT()
    graph.tensors, graph.operators = [], []
    for number, tensor in enumerate(tensors):
        graph.tensors.append(_tensor(model, number, tensor))
    for step in steps:
        operator = schema.OperatorT()
        operator.opcodeIndex = _code(model, step.kind)
        operator.inputs, operator.outputs = step.inputs, step.outputs
        if step.options_type:
            operator.builtinOptionsType = getattr(schema.BuiltinOptions, step.options_type)
            operator.builtinOptions = getattr(schema, f"{step.options_type}T")()
            for name, value in step.options.items():
                assert hasattr(operator.builtinOptions, name)
                setattr(operator.builtinOptions, name, value)
        graph.operators.append(operator)
    graph.inputs = [k for k, tensor in enumerate(tensors) if isinstance(tensor, Operand) and tensor.is_fed]
    graph.outputs = outputs
    model.subgraphs = [graph]
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def _code(model: Any, kind: str) -> int:
    code = schema.OperatorCodeT()
    number = getattr(schema.BuiltinOperator, kind, None)
    code.builtinCode = schema.BuiltinOperator.CUSTOM if number is None else number
    code.deprecatedBuiltinCode, code.version = min(code.builtinCode, 127), 2 if kind == "BROADCAST_TO" else 1
    code.customCode = kind if number is None else None
    model.operatorCodes.append(code)
    return len(model.operatorCodes) - 1


def _tensor(model: Any, number: int, tensor: Operand | Result) -> Any:
    made = schema.TensorT()
    made.name = f"t{number}"
    dtype = tensor.data.dtype if isinstance(tensor, Operand) else np.dtype(tensor.dtype)
    kind = tensor.kind if isinstance(tensor, Operand) and tensor.kind else _KINDS[dtype]
    made.type = getattr(schema.TensorType, kind)
    made.shape = list(tensor.data.shape if isinstance(tensor, Operand) else tensor.shape)
    made.buffer = 0
    if isinstance(tensor, Operand) and tensor.signature is not None:
        made.shapeSignature = list(tensor.signature)
    if isinstance(tensor, Operand) and not tensor.is_fed:
        buffer = schema.BufferT()
        data = tensor.data
        if kind == "INT4":
            flat = np.append(data.ravel(), np.zeros(data.size % 2, data.dtype)).astype(np.uint8) & 15
            data = flat[::2] | flat[1::2] << 4
        buffer.data = np.frombuffer(np.ascontiguousarray(data).tobytes(), np.uint8)
        model.buffers.append(buffer)
        made.buffer = len(model.buffers) - 1
    if tensor.grid is not None:
        made.quantization = schema.QuantizationParametersT()
        made.quantization.scale = np.atleast_1d(np.asarray(tensor.grid.scale, np.float32))
        made.quantization.zeroPoint = np.atleast_1d(np.asarray(tensor.grid.zero, np.int64))
        made.quantization.quantizedDimension = tensor.grid.axis
    return made


def run_litert(model: bytes, feeds: Mapping[int, Array]) -> list[Array]:
    """With kernels of the library itself: delegates round in ways of their own."""
    made = runtime.Interpreter(model_content=model, experimental_op_resolver_type=_KERNELS, num_threads=1)
    made.allocate_tensors()
    for number, data in feeds.items():
        made.set_tensor(number, data)
    made.invoke()
    return [made.get_tensor(detail["index"]) for detail in made.get_output_details()]


def run_onnx(model: LiteModel, feeds: Mapping[int, Array]) -> list[Array]:
    translation = Translation(model)
    assert not translation.untranslated, translation.untranslated
    session = onnx_models.session(translation.model)
    named = {tensor.name: real_values(tensor, feeds[tensor.index]) for tensor in model.tensors if tensor.index in feeds}
    return list(session.run(None, {value.name: named[value.name] for value in session.get_inputs()}))


def real_values(tensor: LiteTensor, data: Array) -> Array:
    """What the application has of an input before it makes codes of it."""
    coded = tensor.quantizer is not None and data.dtype.kind in "iu"
    return tensor.quantizer.dequantize(data) if tensor.quantizer is not None and coded else data


def feeds_of(tensors: list[Operand | Result]) -> dict[int, Array]:
    return {k: t.data for k, t in enumerate(tensors) if isinstance(t, Operand) and t.is_fed}


def settled(
    tensors: list[Operand | Result], steps: list[Step], outputs: list[int] | None = None
) -> tuple[bytes, list[Operand | Result]]:
    """The model with the shapes that the interpreter finds, as a converter writes them."""
    results = [k for k, tensor in enumerate(tensors) if isinstance(tensor, Result)]
    found = dict(zip(results, run_litert(content(tensors, steps, results), feeds_of(tensors)), strict=True))
    shaped = [replace(t, shape=found[k].shape) if isinstance(t, Result) else t for k, t in enumerate(tensors)]
    return content(shaped, steps, outputs or steps[-1].outputs), shaped


def read(path: Path, model: bytes) -> LiteModel:
    path.write_bytes(model)
    return read_litert(path)


@dataclass(frozen=True)
class Sample:
    """One use of an operator."""

    kind: str
    operands: tuple[Operand | None, ...]
    options_type: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    results: tuple[str, ...] = ("f4",)

    @property
    def tensors(self) -> list[Operand | Result]:
        return [o for o in self.operands if o is not None] + [Result(dtype) for dtype in self.results]

    @property
    def step(self) -> Step:
        there = iter(range(len(self.operands)))
        inputs = [-1 if operand is None else next(there) for operand in self.operands]
        first = sum(operand is not None for operand in self.operands)
        outputs = list(range(first, first + len(self.results)))
        return Step(self.kind, inputs, outputs, self.options, self.options_type)


def use(
    kind: str, *operands: Operand | None, options_type: str | None = None, results: Any = "f4", **options: Any
) -> Sample:
    return Sample(kind, operands, options_type, options, (results,) if isinstance(results, str) else tuple(results))


SAME, VALID = 0, 1
NONE, RELU, RELU_N1_TO_1, RELU6 = range(4)
INT, LONG, BOOL = "i4", "i8", "?"


def conv(x: Operand, w: Operand, b: Operand | None = None, kind: str = "CONV_2D", **options: Any) -> Sample:
    known = {"strideH": 1, "strideW": 1} | options
    options_type = {"CONV_2D": "Conv2DOptions", "DEPTHWISE_CONV_2D": "DepthwiseConv2DOptions"}[kind]
    return use(kind, x, w, *([b] if b is not None else []), options_type=options_type, **known)


def dense(x: Operand | None = None, w: Operand | None = None) -> Sample:
    return use("FULLY_CONNECTED", x or fed(2, 12), w or fixed(5, 12), fixed(5), options_type="FullyConnectedOptions")


def pool(kind: str, x: Operand, **options: Any) -> Sample:
    known = {"strideH": 2, "strideW": 2, "filterHeight": 3, "filterWidth": 2, "padding": SAME}
    return use(kind, x, options_type="Pool2DOptions", **(known | options))


def image() -> Operand:
    return fed(2, 7, 6, 4)


def flags(*shape: int) -> Operand:
    return Operand(RNG.random(shape) > 0.5, is_fed=True)


def counts(*shape: int, low: int = 0, high: int = 9) -> Operand:
    return Operand(RNG.integers(low, high, shape).astype(np.int32), is_fed=True)


UNARY = ["RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1", "TANH", "LOGISTIC", "HARD_SWISH", "ELU", "EXP", "SIN", "COS",
         "ABS", "NEG", "SIGN", "FLOOR", "CEIL", "ROUND", "SQUARE", "ZEROS_LIKE", "LOG_SOFTMAX"]  # fmt: skip
POSITIVE = ["LOG", "SQRT", "RSQRT"]
COMPARED = ["EQUAL", "NOT_EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL"]
REDUCED = ["MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD"]
SAMPLES = [
    *(use(kind, fed(2, 3, 4)) for kind in UNARY),
    *(use(kind, fed(2, 3, 4, low=0.1)) for kind in POSITIVE),
    *(use(kind, counts(2, 6, high=3), counts(2, 6, high=3), results=BOOL) for kind in COMPARED),
    *(use(kind, fed(2, 3, 4, 5), whole([1, 2]), options_type="ReducerOptions", keepDims=kept)
      for kind in REDUCED for kept in (False, True)),
    *(use(kind, flags(3, 4), whole([1]), options_type="ReducerOptions", results=BOOL)
      for kind in ("REDUCE_ANY", "REDUCE_ALL")),
    *(use(kind, fed(2, 3, 4), fixed(4, low=0.5), options_type=f"{kind.title()}Options", fusedActivationFunction=a)
      for kind in ("ADD", "SUB", "MUL", "DIV") for a in (NONE, RELU, RELU_N1_TO_1, RELU6)),
    *(use(kind, fed(2, 3, 4), fed(2, 1, 4)) for kind in ("MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE")),
    use("POW", fed(2, 3, low=0.1), fixed(2, 3)),
    use("FLOOR_DIV", fed(2, 3), fixed(2, 3, low=0.3)),
    use("FLOOR_MOD", fed(2, 3), fixed(2, 3, low=0.3)),
    use("FLOOR_MOD", counts(2, 3), counts(2, 3, low=1), results=INT),
    use("ADD_N", fed(2, 3), fed(2, 3), fed(2, 3), options_type="AddNOptions"),
    use("LOGICAL_AND", flags(5), flags(5), results=BOOL),
    use("LOGICAL_OR", flags(5), flags(5), results=BOOL),
    use("LOGICAL_NOT", flags(5), results=BOOL),
    use("SELECT", flags(2, 3), fed(2, 3), fed(2, 3)),
    use("SELECT_V2", flags(2, 1), fed(2, 3), fed(1, 3)),
    use("RANGE", whole(2), whole(11), whole(3), results=INT),
    use("LEAKY_RELU", fed(2, 3), options_type="LeakyReluOptions", alpha=0.2),
    use("PRELU", image(), fixed(1, 1, 4)),
    use("GELU", fed(2, 5), options_type="GeluOptions", approximate=True),
    use("GELU", fed(2, 5), options_type="GeluOptions", approximate=False),
    use("SOFTMAX", fed(2, 5), options_type="SoftmaxOptions", beta=1.0),
    use("SOFTMAX", fed(2, 3, 5), options_type="SoftmaxOptions", beta=0.5),
    use("L2_NORMALIZATION", fed(2, 3, 5), options_type="L2NormOptions"),
    use("LOCAL_RESPONSE_NORMALIZATION", image(), options_type="LocalResponseNormalizationOptions",
        radius=1, alpha=0.3, beta=0.75, bias=1.0),
    use("FAKE_QUANT", fed(3, 7), options_type="FakeQuantOptions", min=-1.2, max=1.7, numBits=4),
    conv(image(), fixed(5, 3, 2, 4), fixed(5), padding=SAME, strideH=2, fusedActivationFunction=RELU6),
    conv(image(), fixed(5, 3, 2, 4), fixed(5), padding=VALID, strideW=3),
    conv(image(), fixed(6, 3, 3, 2), fixed(6), padding=SAME),
    conv(image(), fixed(1, 3, 3, 8), fixed(8), "DEPTHWISE_CONV_2D", depthMultiplier=2, fusedActivationFunction=RELU),
    use("CONV_3D", fed(1, 5, 6, 4, 3), fixed(2, 3, 2, 3, 5), fixed(5), options_type="Conv3DOptions",
        strideD=1, strideH=2, strideW=1, fusedActivationFunction=RELU),
    *(use("TRANSPOSE_CONV", whole([2, *sides, 5]), fixed(5, 3, 2, 4), fed(2, 4, 3, 4), *bias,
          options_type="TransposeConvOptions", strideH=2, strideW=3, padding=padding, fusedActivationFunction=act)
      for padding, sides in ((SAME, [8, 9]), (SAME, [7, 8]), (VALID, [9, 8]), (VALID, [9, 8]))
      for bias, act in (((), NONE), ((fixed(5),), RELU))),
    *(use("FULLY_CONNECTED", x, fixed(5, 12), b, options_type="FullyConnectedOptions", keepNumDims=keep,
          fusedActivationFunction=act)
      for x in (fed(2, 12), fed(2, 3, 12), fed(2, 2, 3, 12)) for b in (None, fixed(5))
      for keep, act in ((False, NONE), (True, RELU))),
    use("FULLY_CONNECTED", fed(2, 3, 4), fixed(5, 12), fixed(5), options_type="FullyConnectedOptions"),
    use("FULLY_CONNECTED", fed(2, 12), fed(5, 12), None, options_type="FullyConnectedOptions"),
    *(use("BATCH_MATMUL", fed(2, *a), y(2, *b), options_type="BatchMatMulOptions", adjX=x_turned, adjY=y_turned)
      for y in (fed, fixed) for x_turned, a in ((False, (3, 4)), (True, (4, 3)))
      for y_turned, b in ((False, (4, 5)), (True, (5, 4)))),
    *(pool(kind, image(), padding=padding, fusedActivationFunction=act)
      for kind in ("AVERAGE_POOL_2D", "MAX_POOL_2D") for padding, act in ((SAME, NONE), (VALID, RELU))),
    pool("L2_POOL_2D", image(), padding=VALID),
    *(use("RESIZE_BILINEAR", image(), whole(size), options_type="ResizeBilinearOptions",
          alignCorners=a, halfPixelCenters=h)
      for size in ([11, 4], [3, 13]) for a, h in ((False, False), (True, False), (False, True))),
    *(use("RESIZE_NEAREST_NEIGHBOR", image(), whole(size), options_type="ResizeNearestNeighborOptions",
          alignCorners=a, halfPixelCenters=h)
      for size in ([11, 4], [3, 13], [14, 12]) for a, h in ((False, False), (True, False), (False, True))),
    use("ARG_MAX", fed(2, 3, 4), whole(2), options_type="ArgMaxOptions", outputType=2, results=INT),
    use("ARG_MIN", fed(2, 3, 4), whole(-1), options_type="ArgMinOptions", outputType=4, results=LONG),
    use("CUMSUM", fed(2, 5), whole(1), options_type="CumsumOptions", exclusive=True, reverse=True),
    use("RESHAPE", fed(2, 3, 4), whole([2, -1])),
    use("RESHAPE", fed(2, 3, 4), options_type="ReshapeOptions", newShape=[6, 4]),
    use("SQUEEZE", fed(2, 1, 4, 1), options_type="SqueezeOptions", squeezeDims=[1]),
    use("SQUEEZE", fed(2, 1, 4, 1), options_type="SqueezeOptions"),
    use("EXPAND_DIMS", fed(2, 4), whole(-1)),
    use("TRANSPOSE", fed(2, 3, 4), whole([2, 0, 1])),
    use("CONCATENATION", fed(2, 3), fixed(2, 4), fed(2, 1), options_type="ConcatenationOptions", axis=-1),
    use("PACK", fed(2, 3), fed(2, 3), options_type="PackOptions", valuesCount=2, axis=1),
    use("UNPACK", fed(2, 3), options_type="UnpackOptions", num=3, axis=1, results=["f4"] * 3),
    use("SPLIT", whole(1), fed(2, 6), options_type="SplitOptions", numSplits=3, results=["f4"] * 3),
    use("SPLIT_V", fed(2, 6), whole([1, -1, 2]), whole(1), options_type="SplitVOptions",
        numSplits=3, results=["f4"] * 3),
    use("SLICE", fed(3, 5), whole([1, 0]), whole([2, -1])),
    use("SLICE", fed(3, 5), Operand(np.array([1, 2], np.int32), True), Operand(np.array([2, -1], np.int32), True)),
    use("STRIDED_SLICE", fed(3, 5, 4), whole([0, 4, 1]), whole([3, 1, 0]), whole([1, -2, 1]),
        options_type="StridedSliceOptions", shrinkAxisMask=4),
    use("STRIDED_SLICE", fed(3, 5), whole([1, 1]), whole([2, 2]), whole([1, 2]), options_type="StridedSliceOptions",
        beginMask=1, endMask=2),
    use("STRIDED_SLICE", fed(3, 5), whole([-1, 0]), whole([0, 5]), whole([1, 1]), options_type="StridedSliceOptions",
        shrinkAxisMask=1),
    use("REVERSE_V2", fed(2, 3, 4), whole([1])),
    use("REVERSE_SEQUENCE", fed(2, 4, 3), whole([2, 4]), options_type="ReverseSequenceOptions", seqDim=1, batchDim=0),
    use("PAD", image(), whole([[0, 0], [1, 2], [3, 0], [0, 1]])),
    use("PAD", fed(2, 3), Operand(np.array([[0, 1], [2, 0]], np.int32), True)),
    use("PADV2", fed(2, 3), whole([[0, 1], [2, 0]]), Operand(np.array([-7.5], "f4"))),
    use("MIRROR_PAD", fed(3, 4), whole([[1, 2], [2, 0]]), options_type="MirrorPadOptions", mode=0),
    use("DEPTH_TO_SPACE", fed(2, 3, 2, 8), options_type="DepthToSpaceOptions", blockSize=2),
    use("SPACE_TO_DEPTH", fed(2, 4, 6, 3), options_type="SpaceToDepthOptions", blockSize=2),
    use("SPACE_TO_BATCH_ND", fed(2, 5, 6, 3), whole([2, 3]), whole([[1, 0], [2, 1]])),
    use("BATCH_TO_SPACE_ND", fed(12, 3, 2, 3), whole([2, 3]), whole([[1, 0], [0, 2]])),
    use("TILE", fed(2, 3), whole([1, 2])),
    use("TILE", fed(2, 3), Operand(np.array([1, 2], np.int32), True)),
    use("BROADCAST_TO", fed(1, 3), whole([4, 3])),
    use("FILL", whole([2, 3]), Operand(np.array(1.5, "f4"), True)),
    use("SHAPE", fed(2, 3), options_type="ShapeOptions", outType=2, results=INT),
    use("RANK", fed(2, 3), results=INT),
    use("CAST", fed(2, 3), options_type="CastOptions", inDataType=0, outDataType=2, results=INT),
    use("GATHER", fed(4, 3, 2), whole([2, 0, 1]), options_type="GatherOptions", axis=1),
    use("GATHER_ND", fed(4, 3), whole([[1, 2], [3, 0]])),
    use("SCATTER_ND", whole([[1], [3]]), fed(2, 3), whole([5, 3])),
    use("EMBEDDING_LOOKUP", counts(3, high=5), fixed(6, 4)),
    use("ONE_HOT", counts(4, high=3), whole(3), Operand(np.array(2.0, "f4")), Operand(np.array(-1.0, "f4")),
        options_type="OneHotOptions", axis=-1),
    use("TOPK_V2", fed(2, 6), whole(3), results=["f4", INT]),
    use("WHERE", flags(3, 4), results=LONG),
]  # fmt: skip


def side_by_side(parts: list[tuple[list[Operand | Result], Step]]) -> tuple[list[Operand | Result], list[Step]]:
    """One model of operators that have nothing to do with one another."""
    tensors: list[Operand | Result] = []
    steps = []
    for own, step in parts:
        inputs, outputs = (
            [k + len(tensors) if k >= 0 else k for k in places] for places in (step.inputs, step.outputs)
        )
        steps.append(replace(step, inputs=inputs, outputs=outputs))
        tensors += own
    return tensors, steps


def results_of(
    folder: Path, parts: list[tuple[list[Operand | Result], Step]]
) -> tuple[LiteModel, list[tuple[str, Operand | Result, Array, Array]]]:
    """A model of these operators, and of each result its operator, its tensor, and what both runtimes make of it."""
    tensors, steps = side_by_side(parts)
    outputs = [number for step in steps for number in step.outputs]
    made, shaped = settled(tensors, steps, outputs)
    model = read(folder / "m.tflite", made)
    mine, theirs = run_onnx(model, feeds_of(shaped)), run_litert(made, feeds_of(shaped))
    names = [f"{k} {step.kind} {dict(step.options)}" for k, step in enumerate(steps) for _ in step.outputs]
    return model, list(zip(names, [shaped[number] for number in outputs], mine, theirs, strict=True))


def test_operators_compute_what_litert_computes(tmp_path: Path) -> None:
    assert OPERATORS.keys() == {sample.kind for sample in SAMPLES}, "every translation is compared"
    _, results = results_of(tmp_path, [(sample.tensors, sample.step) for sample in SAMPLES])
    departing = {
        name: (mine, theirs)
        for name, _, mine, theirs in results
        if mine.shape != theirs.shape
        or mine.dtype != theirs.dtype
        or not np.allclose(mine, theirs, rtol=1e-4, atol=1e-5, equal_nan=True)
    }
    assert not departing


# Integer operators

#: Operators whose kernels take for granted that operands and results lie on one grid.
ONE_GRID = frozenset(
    {
        *("MAX_POOL_2D", "AVERAGE_POOL_2D", "RESHAPE", "PAD", "TRANSPOSE", "CONCATENATION", "GATHER", "SLICE"),
        *("STRIDED_SLICE", "SPLIT", "PACK", "UNPACK", "SQUEEZE", "EXPAND_DIMS", "RESIZE_BILINEAR", "TILE"),
        *("RESIZE_NEAREST_NEIGHBOR", "DEPTH_TO_SPACE", "SPACE_TO_DEPTH", "MAXIMUM", "MINIMUM", "REDUCE_MAX"),
        *("REVERSE_V2", "SPACE_TO_BATCH_ND", "BATCH_TO_SPACE_ND", "MIRROR_PAD", "SPLIT_V", "BROADCAST_TO"),
    }
)
#: Grids that kernels prescribe for their results.
PRESCRIBED = {
    "SOFTMAX": Grid(np.float32(1 / 256), np.int64(-128)),
    "LOGISTIC": Grid(np.float32(1 / 256), np.int64(-128)),
    "TANH": Grid(np.float32(1 / 128), np.int64(0)),
    "LOG_SOFTMAX": Grid(np.float32(16 / 256), np.int64(127)),
    "L2_NORMALIZATION": Grid(np.float32(1 / 128), np.int64(0)),
}
PRESCRIBED_16 = {"LOGISTIC": Grid(np.float32(1 / 32768), np.int64(0))}
#: Place of the weights, the axis of their scales, and the place of the data and of the bias.
WEIGHTED = {
    "CONV_2D": (1, 0, 0, 2),
    "DEPTHWISE_CONV_2D": (1, 3, 0, 2),
    "FULLY_CONNECTED": (1, 0, 0, 2),
    "TRANSPOSE_CONV": (1, 0, 2, 3),
}
INTEGER = frozenset(
    {*ONE_GRID, *PRESCRIBED, *WEIGHTED, "ADD", "SUB", "MUL", "RELU", "RELU6", "LEAKY_RELU", "PRELU", "HARD_SWISH",
     "MEAN", "SUM", "BATCH_MATMUL", "GELU", "ABS", "ELU", "EXP", "SQUARED_DIFFERENCE", "RSQRT", "LOG"}
)  # fmt: skip
#: Results of tables and of sums with rounding in between are up to so many steps off.
FAR = {"HARD_SWISH": 2, "L2_NORMALIZATION": 2, "SUM": 2, "MEAN": 2, "LOG_SOFTMAX": 2}


def grid_over(*arrays: Array) -> Grid:
    low, high = min(0.0, *(float(a.min()) for a in arrays)), max(0.0, *(float(a.max()) for a in arrays))
    scale = np.float32((high - low) / 255 or 1.0)
    return Grid(scale, np.int64(np.clip(round(-128 - low / scale), -128, 127)))


def symmetric(data: Array, axis: int | None, high: int = 127) -> Grid:
    others = None if axis is None else tuple(i for i in range(data.ndim) if i != axis)
    scale = np.maximum(np.abs(data).max(axis=others), 1e-3).astype(np.float32) / high
    return Grid(scale, np.zeros(scale.shape, np.int64), axis or 0)


def on(grid: Grid, data: Array, dtype: str = "i1", high: int = 127, axis: int | None = None) -> Array:
    shape = [1] * data.ndim
    if axis is not None:
        shape[axis] = -1
    codes = np.rint(data / np.reshape(grid.scale, shape if axis is not None else ())) + np.min(grid.zero)
    return np.asarray(np.clip(codes, -high - 1, high)).astype(dtype)


def with_codes(sample: Sample, dtype: str = "i1", weight_high: int = 127) -> list[Operand | Result]:
    """The tensors of a sample as int8, on grids that its float results settle."""
    float_model, floats = settled(sample.tensors, [sample.step])
    results = dict(zip(sample.step.outputs, run_litert(float_model, feeds_of(floats)), strict=True))
    wide = dtype == "i2"
    seen = [t.data for t in floats if isinstance(t, Operand) and t.data.dtype == np.float32]
    weight, axis, data, bias = WEIGHTED.get(sample.kind, (-1, 0, -1, -1))
    one = grid_over(*seen, *results.values()) if sample.kind in ONE_GRID else None

    def grid(*arrays: Array) -> Grid:
        return symmetric(np.concatenate([a.ravel() for a in arrays]), None, 32767) if wide else grid_over(*arrays)

    made: list[Operand | Result] = []
    for k, tensor in enumerate(floats):
        if isinstance(tensor, Result):
            own = one or (PRESCRIBED_16 if wide else PRESCRIBED).get(sample.kind) or grid(results[k])
            made.append(Result(dtype, own, tensor.shape))
        elif tensor.data.dtype != np.float32:
            made.append(tensor)
        elif k == weight and not tensor.is_fed:
            own = symmetric(tensor.data, axis, weight_high)
            made.append(Operand(on(own, tensor.data, high=weight_high, axis=axis), grid=own))
        elif k == bias:
            x, w = made[data], made[weight]
            assert x.grid is not None and w.grid is not None
            own = Grid(x.grid.scale * w.grid.scale, np.zeros(np.shape(w.grid.scale), np.int64))
            codes = on(own, tensor.data, "i8" if wide else "i4", 2**31 - 1, 0)
            made.append(Operand(codes, grid=own))
        else:
            own = one or grid(tensor.data)
            made.append(Operand(on(own, tensor.data, dtype, 32767 if wide else 127), tensor.is_fed, own))
    return made


@pytest.mark.thorough
def test_integer_operators_come_within_a_step(tmp_path: Path) -> None:
    samples = [s for s in SAMPLES if s.kind in INTEGER and any(o and o.data.dtype == np.float32 for o in s.operands)]
    assert {sample.kind for sample in samples} == INTEGER
    model, results = results_of(tmp_path, [(with_codes(sample), sample.step) for sample in samples])
    graph = graph_of(model)
    assert graph.is_quantized and graph.format == "QDQ" and len(graph.operators) == len(samples)
    departing = {}
    for name, tensor, mine, theirs in results:
        assert tensor.grid is not None
        off = np.abs(np.rint(mine / tensor.grid.scale) + tensor.grid.zero - theirs).max()
        if off > FAR.get(name.split()[1], 1):
            departing[name] = off
    assert not departing


def chain(path: Path, tensors: list[Operand | Result], *steps: Step) -> tuple[LiteModel, list[Operand | Result], bytes]:
    model, shaped = settled(tensors, list(steps))
    return read(path / "m.tflite", model), shaped, model


CONV_OPTIONS = {"strideH": 1, "strideW": 1}


def grids_of(graph: Any, root: str) -> list[tuple[str, int, bool]]:
    return [(tap.tensor, tap.quantizer.bits, tap.quantizer.dynamic) for tap in graph.quantizers[root]]


def test_codes_and_what_they_stand_for_have_names_of_their_own(tmp_path: Path) -> None:
    """QUANTIZE, a product, QUANTIZE to another grid, DEQUANTIZE."""
    fine, coarse = Grid(np.float32(0.02), np.int64(3)), Grid(np.float32(0.07), np.int64(-5))
    weight = symmetric(np.array([[1.0, -1.0]], "f4"), None)
    bias = Grid(fine.scale * weight.scale, np.int64(0))
    tensors = [
        fed(3, 2, low=-1.0, high=1.0),
        Result("i1", fine),
        Operand(np.array([[127, -64], [3, 90]], np.int8), grid=weight),
        Operand(np.array([40, -7], np.int32), grid=bias),
        Result("i1", fine),
        Result("i1", coarse),
        Result(),
    ]
    model, shaped, content_ = chain(
        tmp_path,
        tensors,
        Step("QUANTIZE", [0], [1]),
        Step("FULLY_CONNECTED", [1, 2, 3], [4], {"fusedActivationFunction": RELU}, "FullyConnectedOptions"),
        Step("QUANTIZE", [4], [5]),
        Step("DEQUANTIZE", [5], [6]),
    )
    translation, graph = Translation(model), graph_of(model)
    assert translation.places == {"t0": 0, "t1:codes": 1, "t4:codes": 4, "t5:codes": 5, "t6": 6}
    assert [(op.op_type, op.name, op.inputs, op.outputs) for op in graph.operators] == [
        ("Gemm", "t4", ["t0", "t2:values", "t3:values"], ["t4"])
    ]
    assert grids_of(graph, "t0") == [("t1:codes", 8, False)]
    assert grids_of(graph, "t4") == [("t4:codes", 8, False), ("t5:codes", 8, False)]
    assert graph.output_roots == ["t4"] and graph.outputs == ["t6"]
    assert graph.constants["t3:values"].quantizer is not None and graph.constants["t3:values"].name == "t3"
    (mine,), (theirs,) = run_onnx(model, feeds_of(shaped)), run_litert(content_, feeds_of(shaped))
    np.testing.assert_allclose(mine, theirs, atol=0.07 + 1e-6)


#: Layers, and the axis of output channels in what the translation holds.
TURNED = {
    "CONV_2D": (conv(image(), fixed(5, 3, 2, 4), fixed(5)), 0),
    "DEPTHWISE_CONV_2D": (conv(image(), fixed(1, 3, 3, 8), fixed(8), "DEPTHWISE_CONV_2D", depthMultiplier=2), 0),
    "TRANSPOSE_CONV": (
        use("TRANSPOSE_CONV", whole([2, 8, 9, 5]), fixed(5, 3, 2, 4), fed(2, 4, 3, 4), fixed(5),
            options_type="TransposeConvOptions", strideH=2, strideW=3), 1,
    ),
    "FULLY_CONNECTED": (dense(), 0),
}  # fmt: skip


def test_grids_of_weights_turn_with_them(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for kind, (sample, axis) in TURNED.items():
        for bits in (8, 4):
            with subtests.test(f"{kind}, {bits} bits"):
                tensors = with_codes(sample, weight_high=2 ** (bits - 1) - 1)
                model, shaped, _ = chain(tmp_path, tensors, sample.step)
                place = WEIGHTED[sample.kind][0]
                stored = shaped[place]
                assert isinstance(stored, Operand) and stored.grid is not None
                if bits == 4:  # as the file says it; not every kernel takes such codes
                    shaped[place] = Operand(stored.data, grid=stored.grid, kind="INT4")
                    model = read(tmp_path / "m.tflite", content(shaped, [sample.step], sample.step.outputs))
                graph = graph_of(model)
                (op,) = graph.operators
                weight, bias = (graph.constants[name] for name in op.inputs[1:3])
                assert weight.quantizer is not None and bias.quantizer is not None
                assert (weight.quantizer.axis, weight.quantizer.bits, weight.name) == (axis, bits, f"t{place}")
                np.testing.assert_allclose(weight.quantizer.scale, stored.grid.scale)
                np.testing.assert_allclose(
                    bias.quantizer.scale, weight.quantizer.scale * graph.quantizers[op.inputs[0]][0].quantizer.scale
                )
                assert (bias.quantizer.bits, bias.quantizer.axis) == (32, 0)
                run_onnx(model, feeds_of(shaped))


def test_activations_of_16_bits(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for kind in ("FULLY_CONNECTED", "CONV_2D", "ADD", "LOGISTIC"):
        with subtests.test(kind):
            sample = next(s for s in SAMPLES if s.kind == kind)
            tensors = with_codes(sample, "i2")
            model, shaped, content_ = chain(tmp_path, tensors, sample.step)
            graph = graph_of(model)
            assert {tap.quantizer.bits for taps in graph.quantizers.values() for tap in taps if tap.quantizer} == {16}
            (a,), (b,) = run_onnx(model, feeds_of(shaped)), run_litert(content_, feeds_of(shaped))
            grid = shaped[sample.step.outputs[0]].grid
            assert grid is not None
            # Tables of 16-bit kernels are interpolated.
            assert np.abs(np.rint(a / grid.scale) - b).max() <= (32 if kind == "LOGISTIC" else 2)
            if kind == "CONV_2D":
                bias = graph.constants[graph.operators[0].inputs[2]]
                assert bias.quantizer is not None and bias.quantizer.bits == 64


def test_a_bias_beyond_32_bits_keeps_its_codes(tmp_path: Path) -> None:
    scale = np.float32(1e-9)
    tensors = [
        Operand(np.zeros((1, 2), np.int16), True, Grid(np.float32(1e-4), np.int64(0))),
        Operand(np.ones((3, 2), np.int8), grid=Grid(np.float32(1e-5), np.int64(0))),
        Operand(np.array([2**33, -5, 7]), grid=Grid(scale, np.int64(0))),
        Result("i2", Grid(np.float32(0.01), np.int64(0))),
    ]
    model, _, _ = chain(tmp_path, tensors, Step("FULLY_CONNECTED", [0, 1, 2], [3], {}, "FullyConnectedOptions"))
    graph = graph_of(model)
    bias = graph.constants[graph.operators[0].inputs[2]]
    assert (
        bias.quantizer is not None and bias.quantizer.bits == 64 and bias.codes is not None and bias.values is not None
    )
    assert bias.codes.tolist() == [2**33, -5, 7]
    found = bias_facts(OperatorPair(graph.operators[0], graph, None, graph))
    assert (found.bits, found.overflowing_channels) == (64, 0) and found.max_code == pytest.approx(2**33)
    np.testing.assert_allclose(bias.values, np.array([2**33, -5, 7]) * scale, rtol=1e-6)
    assert Translation(model).untranslated == []


def test_what_has_no_counterpart_is_read_and_told(tmp_path: Path) -> None:
    tensors = [fed(2, 3), Result(shape=(2, 3)), Result(shape=(2, 3)), Result(shape=(2, 3))]
    steps = [
        Step("RELU", [0], [1]),
        Step("Constant", [1], [2]),
        Step("MIRROR_PAD", [2, 4], [3], {"mode": 1}, "MirrorPadOptions"),
    ]
    model = read(tmp_path / "m.tflite", content([*tensors, whole([[0, 0], [0, 0]])], steps, [3]))
    graph = graph_of(model)
    assert graph.untranslated == ("Constant", "MIRROR_PAD") and not graph.can_run
    assert [(op.op_type, op.node.domain) for op in graph.operators] == [
        ("Relu", ""),
        ("CUSTOM:Constant", UNTRANSLATED),
        ("MIRROR_PAD", UNTRANSLATED),
    ]
    assert any("MIRROR_PAD" in notice for notice in graph.notices)
    assert static_shapes(graph.model)["t3"] == (2, 3)


def test_a_first_side_that_is_open_stays_open(tmp_path: Path) -> None:
    sample = conv(
        Operand(RNG.normal(size=(1, 7, 6, 4)).astype("f4"), True, signature=(-1, 7, 6, 4)), fixed(5, 3, 3, 4), fixed(5)
    )
    model, _, _ = chain(tmp_path, sample.tensors, sample.step)
    graph = graph_of(model)
    assert static_shapes(graph.model)["t0"] == (None, 7, 6, 4)
    batch = RNG.normal(size=(3, 7, 6, 4)).astype("f4")
    session = onnx_models.session(graph.model)
    whole_, one = (session.run(None, {"t0": x})[0] for x in (batch, batch[1:2]))
    np.testing.assert_allclose(whole_[1:2], one, rtol=1e-5, atol=1e-6)


def test_outputs_that_are_inputs_constants_or_named_twice(tmp_path: Path) -> None:
    tensors = [fed(2, 3), fixed(2, 3), Result(shape=(2, 3))]
    model = read(tmp_path / "m.tflite", content(tensors, [Step("ADD", [0, 1], [2], {}, "AddOptions")], [0, 2, 1, 2]))
    graph = graph_of(model)
    assert graph.output_roots[:2] == ["t0", "t2"]
    onnx_models.session(graph.model)


def test_channels_are_last(tmp_path: Path) -> None:
    tensors = [
        fed(2, 7, 6, 4),
        fixed(5, 3, 3, 4),
        fixed(5),
        Result(),
        Result(),
        whole([1, 2]),
        Result(),
        fixed(3, 5),
        Result(),
    ]
    model, shaped, _ = chain(
        tmp_path,
        tensors,
        Step("CONV_2D", [0, 1, 2], [3], {**CONV_OPTIONS, "fusedActivationFunction": RELU6}, "Conv2DOptions"),
        Step("LOGISTIC", [3], [4]),
        Step("MEAN", [4, 5], [6], {}, "ReducerOptions"),
        Step("FULLY_CONNECTED", [6, 7, -1], [8], {}, "FullyConnectedOptions"),
    )
    graph = graph_of(model)
    shapes = {f"t{k}": (t.data.shape if isinstance(t, Operand) else t.shape) for k, t in enumerate(shaped)}
    measured = {name: shapes[name] for name in ("t0", "t3", "t4", "t6", "t8")}
    assert channel_axes(graph, measured, static_shapes(graph.model)) == {"t0": 3, "t3": 3, "t4": 3, "t6": 1, "t8": 1}
    assert clip_bounds(graph.operators[0], graph) == Bounds(0.0, 6.0)


sides = st.integers(1, 4)


@examples(40)
@given(
    size=st.tuples(st.integers(4, 9), st.integers(4, 9)),
    kernel=st.tuples(sides, sides),
    strides=st.tuples(sides, sides),
    dilations=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    padding=st.sampled_from([SAME, VALID]),
    multiplier=st.sampled_from([0, 1, 2, 3]),
    channels=st.integers(1, 4),
)
def test_every_geometry_of_a_convolution(
    size: tuple[int, int],
    kernel: tuple[int, int],
    strides: tuple[int, int],
    dilations: tuple[int, int],
    padding: int,
    multiplier: int,
    channels: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """A multiplier of 0 stands for a convolution over all channels."""
    if padding == VALID and any((k - 1) * d >= n for k, d, n in zip(kernel, dilations, size, strict=True)):
        return
    options: dict[str, Any] = {"padding": padding, "strideH": strides[0], "strideW": strides[1]}
    options |= {"dilationHFactor": dilations[0], "dilationWFactor": dilations[1]}
    x = fed(2, *size, channels)
    if multiplier:
        outputs = channels * multiplier
        options |= {"depthMultiplier": multiplier}
        sample = conv(x, fixed(1, *kernel, outputs), fixed(outputs), "DEPTHWISE_CONV_2D", **options)
    else:
        sample = conv(x, fixed(3, *kernel, channels), fixed(3), **options)
    model, shaped, content_ = chain(tmp_path_factory.mktemp("conv"), sample.tensors, sample.step)
    (a,), (b,) = run_onnx(model, feeds_of(shaped)), run_litert(content_, feeds_of(shaped))
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


# Whole models

DATA = RECORDINGS / "litert"
PAIRS = ["autoencoder_example", "image_example1"]
MODES = ["int8", "int16", "dynamic", "weights", "float16"]


def pair_of(float_model: LiteModel, quantized: LiteModel) -> LiteRTModels:
    float_graph, graph = graph_of(float_model), graph_of(quantized)
    matched = match(float_graph, graph)
    batched = is_open(float_model) and is_open(quantized)
    return LiteRTModels(float_graph, graph, matched, pairs_of(float_graph, graph, matched), batched=batched)


def every_tensor(model: LiteModel, feeds: Mapping[str, Array]) -> dict[str, tuple[Array, Array]]:
    """What onnxruntime and LiteRT make of every tensor that both have."""
    graph = graph_of(model)
    made = runtime.Interpreter(
        model_content=model.content, experimental_op_resolver_type=_KERNELS, experimental_preserve_all_tensors=True
    )
    given = graph.feed(Batch(feeds))
    for place, data in given.items():
        made.resize_tensor_input(place, data.shape)
    made.allocate_tensors()
    for place, data in given.items():
        made.set_tensor(place, data)
    made.invoke()
    names = [name for name in graph.places if name not in graph.inputs]
    session = make_session(graph.model, model.path, 1, exposed=names)
    seen = zip(names, session.run(names, dict(feeds)), strict=True)
    return {name: (mine, made.get_tensor(graph.places[name])) for name, mine in seen}


def recorded(models: LiteRTModels) -> CaseRecord:
    plan = foresee(models)
    return record_models(plan, dict, spatial=None, how={})[0]


@pytest.mark.parametrize("name", PAIRS)
def test_a_public_pair(name: str) -> None:
    """LiteRT rounds means half away from zero, onnxruntime half to even: convolutions behind them carry that on."""
    float_model, quantized = read_litert(DATA / f"{name}.float32.tflite"), read_litert(DATA / f"{name}.tflite")
    (start,) = (float_model.tensors[place] for place in float_model.inputs)
    x = RNG.normal(size=[side or 2 for side in start.shape]).astype("f4")
    for mine, theirs in every_tensor(float_model, {start.name: x}).values():
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5 * np.abs(theirs).max())
    (start,) = (quantized.tensors[place] for place in quantized.inputs)
    for tensor, (mine, theirs) in every_tensor(quantized, {start.name: x}).items():
        if tensor.endswith(":codes"):
            assert np.abs(mine.astype(int) - theirs).max() <= 3
            assert (mine == theirs).mean() > 0.3

    models = pair_of(float_model, quantized)
    graph = models.quantized
    assert not models.match.unmatched and len(models.match.operators) == len(models.float_graph.operators)
    assert models.match.outputs == [(0, 0)] and not graph.notices
    record = recorded(models)
    layers = [op for op in record.operators if op.is_compute]
    assert layers and all(op.weight.similarity is not None and op.weight.similarity > 0.999 for op in layers)
    assert all(op.weight.rounding.sqnr_db is not None and op.weight.rounding.sqnr_db > 25 for op in layers)
    assert all(op.bias.bits == 32 and op.bias.max_error_steps is not None for op in layers)
    assert all(op.operations for op in layers)
    assert all(tensor.quantizer.bits == 8 for tensor in record.tensors)
    images = [tensor for tensor in record.tensors if len(models.shapes[tensor.float_name]) == 4]
    assert all(tensor.axis == 3 for tensor in images)


@pytest.mark.parametrize("mode", MODES)
def test_a_model_in_every_mode_of_the_quantizer(mode: str, tmp_path: Path) -> None:
    pytest.importorskip("ai_edge_quantizer")
    twins = litert_models.every_operator()
    x = RNG.normal(size=(4, 8, 8, 3)).astype("f4")
    made = litert_models.quantized(twins.litert(), mode, {"image": x})
    float_model, model = read(tmp_path / "f.tflite", twins.litert()), read(tmp_path / "q.tflite", made)
    models = pair_of(float_model, model)
    graph = models.quantized
    assert not models.match.unmatched and len(models.match.operators) == len(models.float_graph.operators)
    assert graph.format == {"dynamic": "dynamic", "float16": "none"}.get(mode, "QDQ")
    assert graph.coded_inputs == ({"image"} if mode in ("int8", "int16") else set())
    record = recorded(models)
    layers = [op for op in record.operators if op.is_compute]
    expected = {"float16": None, "int16": 8}.get(mode, 8)
    assert {op.weight.quantizer.bits for op in layers} == {expected}
    for name, (mine, theirs) in every_tensor(model, {"image": x}).items():
        if mode == "dynamic":
            assert np.abs(mine - theirs).max() < 0.1 * np.abs(theirs).max()
        elif name.endswith(":codes"):
            assert np.abs(mine.astype(int) - theirs).max() <= (6 if mode == "int8" else 16), name
        else:
            np.testing.assert_allclose(mine, theirs, rtol=1e-3, atol=1e-3 * np.abs(theirs).max())


@pytest.mark.parametrize("mode", ["int8", "weights"])
def test_remedies_are_simulated_and_tried_on_a_translated_model(mode: str, tmp_path: Path) -> None:
    """The float network with the deployed quantizers is the deployed one, and what is put back to float is."""
    pytest.importorskip("ai_edge_quantizer")
    twins = litert_models.every_operator()
    x = RNG.normal(size=(4, 8, 8, 3)).astype("f4")
    made = litert_models.quantized(twins.litert(), mode, {"image": x})
    pair = pair_of(read(tmp_path / "f.tflite", twins.litert()), read(tmp_path / "q.tflite", made))
    case, batch, models = Case(recorded(pair), {}), Batch({"image": x}), pair.editable()
    simulated = OnnxSimulated(models, case, 1)
    graph = models.quantized
    layers = frozenset(op.index for op in graph.operators if op.op_type in ("Conv", "Gemm"))
    assert simulated.weighted == layers
    assert simulated.tensors == (frozenset() if mode == "weights" else frozenset(range(len(case.record.tensors))))
    (real,), (deployed,) = models.float_runner(1)(batch), models.quantized_runner(1)(batch)
    np.testing.assert_allclose(simulated.outputs(batch, None)[0], real, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(simulated.outputs(batch, Change())[0], deployed, atol=1.5 / 255)
    repaired = Change(dict.fromkeys(simulated.tensors), dict.fromkeys(simulated.weighted, "float"), simulated.weighted)
    edited = edit(models, case, repaired)
    assert not edited.unedited
    (again,) = models.quantized_runner(1, edited.model)(batch)
    np.testing.assert_allclose(again, real, atol=1e-4)


def test_grids_that_only_files_hold(tmp_path: Path, subtests: pytest.Subtests) -> None:
    """Blocks, two bits and unsigned codes: not every kernel takes such weights."""
    model, shaped, _ = chain(tmp_path, (sample := dense()).tensors, sample.step)
    x, bias = (t.data for t in (shaped[0], shaped[2]) if isinstance(t, Operand))
    blocks = RNG.uniform(0.1, 0.2, (5, 3)).astype("f4")
    for kind, low, high, zero, scale in (
        ("INT4", -8, 8, 0, blocks), ("INT2", -2, 2, 0, np.float32(0.3)), ("UINT8", 0, 256, 131, np.float32(0.3)),
    ):  # fmt: skip
        with subtests.test(kind):
            codes = RNG.integers(low, high, (5, 12)).astype("u1" if kind == "UINT8" else "i1")
            block = {"axis": 1, "block_size": 4} if scale is blocks else {}
            bits = int(kind.partition("INT")[2])
            quantizer = Quantizer(scale, np.full(np.shape(scale), zero), bits, kind[0] != "U", **block)
            weight = replace(model.tensors[1], kind=kind, data=codes, quantizer=quantizer)
            own = replace(model, tensors=(model.tensors[0], weight, *model.tensors[2:]))
            graph = graph_of(own)
            stored = graph.constants[graph.operators[0].inputs[1]].quantizer
            assert stored is not None and (stored.bits, stored.block_size) == (bits, block.get("block_size"))
            (mine,) = run_onnx(own, {0: x})
            values = (codes.astype("f4") - zero) * (scale.repeat(4, 1) if block else scale)
            np.testing.assert_allclose(mine, x @ values.T + bias, rtol=1e-4, atol=1e-4)


def test_a_state_and_a_constant_that_is_not_read_leave_their_readers_untranslated(tmp_path: Path) -> None:
    tensors = [fed(2, 3), fixed(2, 3), Result(shape=(2, 3)), Result(shape=(2, 3))]
    steps = [Step("ADD", [0, 1], [2], {}, "AddOptions"), Step("RELU", [2], [3])]
    model = read(tmp_path / "m.tflite", content(tensors, steps, [3]))
    state = replace(model.tensors[1], data=None)
    graph = graph_of(replace(model, tensors=(model.tensors[0], state, *model.tensors[2:])))
    assert graph.untranslated == ("ADD",) and [op.op_type for op in graph.operators] == ["ADD", "Relu"]
