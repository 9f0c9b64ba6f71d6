"""Float LiteRT models and their ONNX twins from one description, and what ai-edge-quantizer makes of the former."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from builders.onnx_models import Array, Net, random

#: Activations that a LiteRT operator carries with it: number in the schema and what ONNX puts behind the operator.
_FUSED: Mapping[str, tuple[int, str]] = {"": (0, ""), "relu": (1, "Relu"), "relu6": (3, "Clip")}
_SAME, _VALID = 0, 1


def channels_last(x: Array) -> Array:
    """Images as LiteRT takes them."""
    return np.ascontiguousarray(np.moveaxis(x, 1, -1)) if x.ndim == 4 else x


@dataclass
class LiteFile:
    """A LiteRT model in the making; every tensor by its name, the first side of a computed one left to the data."""

    tensors: dict[str, tuple[tuple[int, ...], Array | None]] = field(default_factory=dict)
    operators: list[tuple[str, list[str], str, Any]] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)

    def const(self, name: str, value: Array) -> str:
        self.tensors[name] = value.shape, np.ascontiguousarray(value)
        return name

    def add(self, kind: str, *inputs: str, out: str, shape: Sequence[int], options: Any = None) -> str:
        self.tensors[out] = (1, *shape), None
        self.operators.append((kind, list(inputs), out, options))
        return out

    def content(self) -> bytes:
        """The file, written with the object interface of the schema."""
        import flatbuffers
        from ai_edge_litert import schema_py_generated as schema

        places = {name: i for i, name in enumerate(self.tensors)}
        kinds = list(dict.fromkeys(kind for kind, *_ in self.operators))
        constants = [data for _, data in self.tensors.values() if data is not None]
        buffers = [schema.BufferT(), *(schema.BufferT(data=data.reshape(-1).view(np.uint8)) for data in constants)]
        numbers = iter(range(1, len(buffers)))
        graph = schema.SubGraphT(
            name="main",
            tensors=[
                _tensor(schema, name, shape, data, 0 if data is None else next(numbers))
                for name, (shape, data) in self.tensors.items()
            ],
            operators=[
                schema.OperatorT(
                    opcodeIndex=kinds.index(kind),
                    inputs=[places[name] for name in inputs],
                    outputs=[places[output]],
                    builtinOptions=options,
                    builtinOptionsType=_options_type(schema, options),
                )
                for kind, inputs, output, options in self.operators
            ],
            inputs=[places[name] for name in self.inputs],
            outputs=[places[name] for name in self.outputs],
        )
        codes = [
            schema.OperatorCodeT(builtinCode=code, deprecatedBuiltinCode=min(code, 127))
            for code in (getattr(schema.BuiltinOperator, kind) for kind in kinds)
        ]
        signature = schema.SignatureDefT(
            signatureKey="serving_default",
            inputs=[schema.TensorMapT(name=name, tensorIndex=places[name]) for name in self.inputs],
            outputs=[schema.TensorMapT(name=name, tensorIndex=places[name]) for name in self.outputs],
        )
        model = schema.ModelT(
            version=3,
            description="tests",
            operatorCodes=codes,
            subgraphs=[graph],
            buffers=buffers,
            signatureDefs=[signature],
        )
        builder = flatbuffers.Builder(1024)
        builder.Finish(model.Pack(builder), b"TFL3")
        return bytes(builder.Output())


def _tensor(schema: Any, name: str, shape: Sequence[int], data: Array | None, buffer: int) -> Any:
    kind = schema.TensorType.FLOAT32 if data is None or data.dtype == np.float32 else schema.TensorType.INT32
    signature = [-1, *shape[1:]] if data is None else None
    return schema.TensorT(
        name=name, shape=list(shape), shapeSignature=signature, type=kind, buffer=buffer, hasRank=True
    )


def _options_type(schema: Any, options: Any) -> int:
    return getattr(schema.BuiltinOptions, type(options).__name__.removesuffix("T")) if options is not None else 0


@dataclass
class Twins:
    """A float model as ONNX and as LiteRT: equal weights, equal names, channels first in one and last in the other.

    Every method that adds something returns the name of its tensor; shapes are ``[channels, height, width]``, weights
    are as ONNX has them. ``act`` is part of the operator in LiteRT; in ONNX the linear result is ``OUT/linear``.
    """

    net: Net = field(default_factory=Net)
    lite: LiteFile = field(default_factory=LiteFile)
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def input(self, name: str, *shape: int) -> str:
        self.net.input(name, ["n", *shape])
        self.lite.tensors[name] = (1, *_last(shape)), None
        self.lite.inputs.append(name)
        self.shapes[name] = shape
        return name

    def output(self, name: str) -> str:
        self.net.output(name, shape=["n", *self.shapes[name]])
        self.lite.outputs.append(name)
        return name

    def conv(
        self, x: str, weight: Array, bias: Array | None = None, *, out: str, stride: int = 1, act: str = ""
    ) -> str:
        """Convolution of odd kernel that keeps the size, apart from the stride."""
        from ai_edge_litert import schema_py_generated as schema

        options = schema.Conv2DOptionsT(padding=_SAME, strideH=stride, strideW=stride)
        stored = weight.transpose(0, 2, 3, 1)
        return self._conv("CONV_2D", x, weight, stored, bias, options, 1, stride, act, out)

    def depthwise(
        self,
        x: str,
        weight: Array,
        bias: Array | None = None,
        *,
        out: str,
        stride: int = 1,
        act: str = "",
        multiplier: int = 1,
    ) -> str:
        """The same with so many filters ``[channels · multiplier, 1, h, w]`` for each channel."""
        from ai_edge_litert import schema_py_generated as schema

        options = schema.DepthwiseConv2DOptionsT(
            padding=_SAME, strideH=stride, strideW=stride, depthMultiplier=multiplier
        )
        stored, group = weight.transpose(1, 2, 3, 0), len(weight) // multiplier
        return self._conv("DEPTHWISE_CONV_2D", x, weight, stored, bias, options, group, stride, act, out)

    def _conv(
        self,
        kind: str,
        x: str,
        weight: Array,
        stored: Array,
        bias: Array | None,
        options: Any,
        group: int,
        stride: int,
        act: str,
        out: str,
    ) -> str:
        bias = np.zeros(len(weight), np.float32) if bias is None else bias
        size = self.shapes[x][-1]
        end = -(-size // stride)
        # TensorFlow's rule for SAME: what is missing is added behind before it is added in front.
        pad = max((end - 1) * stride + weight.shape[-1] - size, 0)
        pads = [pad // 2, pad // 2, pad - pad // 2, pad - pad // 2]
        options.dilationHFactor = options.dilationWFactor = 1
        inner = f"{out}/linear" if act else out
        self.net.conv(x, weight, bias, out=inner, pads=pads, strides=[stride, stride], group=group)
        names = [self.lite.const(f"{out}/weight", stored), self.lite.const(f"{out}/bias", bias)]
        return self._fused(kind, x, *names, shape=(len(weight), end, end), options=options, act=act, out=out)

    def dense(self, x: str, weight: Array, bias: Array, *, out: str, act: str = "") -> str:
        """``weight`` is ``[out, in]``."""
        from ai_edge_litert import schema_py_generated as schema

        self.net.const(f"{out}/weight", weight)
        self.net.const(f"{out}/bias", bias)
        self.net.add("Gemm", x, f"{out}/weight", f"{out}/bias", out=f"{out}/linear" if act else out, transB=1)
        names = [self.lite.const(f"{out}/weight", weight), self.lite.const(f"{out}/bias", bias)]
        options = schema.FullyConnectedOptionsT()
        return self._fused("FULLY_CONNECTED", x, *names, shape=(len(weight),), options=options, act=act, out=out)

    def add(self, *inputs: str, out: str, act: str = "") -> str:
        return self._binary("Add", "ADD", "AddOptionsT", *inputs, out=out, act=act)

    def mul(self, *inputs: str, out: str, act: str = "") -> str:
        return self._binary("Mul", "MUL", "MulOptionsT", *inputs, out=out, act=act)

    def _binary(self, op: str, kind: str, options: str, *inputs: str, out: str, act: str) -> str:
        from ai_edge_litert import schema_py_generated as schema

        self.net.add(op, *inputs, out=f"{out}/linear" if act else out)
        shape = self.shapes[inputs[0]]
        return self._fused(kind, *inputs, shape=shape, options=getattr(schema, options)(), act=act, out=out)

    def concat(self, *inputs: str, out: str) -> str:
        """Along the channels."""
        from ai_edge_litert import schema_py_generated as schema

        self.net.add("Concat", *inputs, out=out, axis=1)
        first = self.shapes[inputs[0]]
        shape = (sum(self.shapes[name][0] for name in inputs), *first[1:])
        options = schema.ConcatenationOptionsT(axis=len(shape))
        return self._fused("CONCATENATION", *inputs, shape=shape, options=options, act="", out=out)

    def pool(self, x: str, *, out: str, size: int = 2, kind: str = "max") -> str:
        from ai_edge_litert import schema_py_generated as schema

        op, lite = {"max": ("MaxPool", "MAX_POOL_2D"), "average": ("AveragePool", "AVERAGE_POOL_2D")}[kind]
        self.net.add(op, x, out=out, kernel_shape=[size, size], strides=[size, size])
        channels, height, width = self.shapes[x]
        options = schema.Pool2DOptionsT(padding=_VALID, strideW=size, strideH=size, filterWidth=size, filterHeight=size)
        shape = channels, height // size, width // size
        return self._fused(lite, x, shape=shape, options=options, act="", out=out)

    def mean(self, x: str, *, out: str) -> str:
        """Of each channel."""
        from ai_edge_litert import schema_py_generated as schema

        self.net.add("Flatten", self.net.add("GlobalAveragePool", x, out=f"{out}/pool"), out=out)
        axes = self.lite.const(f"{out}/axes", np.array([1, 2], np.int32))
        return self._plain("MEAN", x, axes, shape=self.shapes[x][:1], options=schema.ReducerOptionsT(), out=out)

    def reshape(self, x: str, *shape: int, out: str) -> str:
        """Values of a sample in the order of LiteRT, channels last, in a new shape of one side."""
        from ai_edge_litert import schema_py_generated as schema

        last = x
        if len(self.shapes[x]) > 1:
            last = self.net.add("Transpose", x, out=f"{out}/last", perm=[0, 2, 3, 1])
        self.net.add("Reshape", last, self.net.const(f"{out}/shape", np.array([-1, *shape], np.int64)), out=out)
        target = self.lite.const(f"{out}/shape", np.array([-1, *shape], np.int32))
        options = schema.ReshapeOptionsT(newShape=[-1, *shape])
        return self._plain("RESHAPE", x, target, shape=shape, options=options, out=out)

    def softmax(self, x: str, *, out: str) -> str:
        from ai_edge_litert import schema_py_generated as schema

        self.net.add("Softmax", x, out=out, axis=-1)
        return self._plain("SOFTMAX", x, shape=self.shapes[x], options=schema.SoftmaxOptionsT(beta=1.0), out=out)

    def logistic(self, x: str, *, out: str) -> str:
        self.net.add("Sigmoid", x, out=out)
        return self._plain("LOGISTIC", x, shape=self.shapes[x], options=None, out=out)

    def pad(self, x: str, *, out: str, by: int = 1) -> str:
        """Zeros around each image."""
        from ai_edge_litert import schema_py_generated as schema

        channels, height, width = self.shapes[x]
        pads = np.array([0, 0, by, by, 0, 0, by, by], np.int64)
        self.net.add("Pad", x, self.net.const(f"{out}/pads", pads), out=out)
        table = np.array([[0, 0], [by, by], [by, by], [0, 0]], np.int32)
        shape = channels, height + 2 * by, width + 2 * by
        return self._plain(
            "PAD", x, self.lite.const(f"{out}/pads", table), shape=shape, options=schema.PadOptionsT(), out=out
        )

    def _fused(self, kind: str, *inputs: str, shape: Sequence[int], options: Any, act: str, out: str) -> str:
        options.fusedActivationFunction, op = _FUSED[act]
        if op == "Clip":
            bounds = [self.net.const(f"{out}/{end}", np.float32(value)) for end, value in (("low", 0), ("high", 6))]
            self.net.add(op, f"{out}/linear", *bounds, out=out)
        elif op:
            self.net.add(op, f"{out}/linear", out=out)
        return self._plain(kind, *inputs, shape=shape, options=options, out=out)

    def _plain(self, kind: str, *inputs: str, shape: Sequence[int], options: Any, out: str) -> str:
        self.shapes[out] = tuple(shape)
        return self.lite.add(kind, *inputs, out=out, shape=_last(shape), options=options)

    def onnx(self) -> onnx.ModelProto:
        return self.net.model()

    def litert(self) -> bytes:
        return self.lite.content()

    def save(self, folder: Path) -> tuple[Path, Path]:
        """Both as ``float.onnx`` and ``float.tflite``."""
        paths = folder / "float.onnx", folder / "float.tflite"
        onnx.save(self.onnx(), str(paths[0]))
        paths[1].write_bytes(self.litert())
        return paths


def _last(shape: Sequence[int]) -> tuple[int, ...]:
    return (*shape[1:], shape[0]) if len(shape) == 3 else tuple(shape)


def every_operator() -> Twins:
    """A model with everything that ``Twins`` can add: 3 x 8 x 8 images to 4 shares."""
    twins = Twins()
    x = twins.conv(
        twins.input("image", 3, 8, 8), random(1, 8, 3, 3, 3, scale=0.3), random(2, 8), out="stem", act="relu"
    )
    y = twins.depthwise(x, random(3, 8, 1, 3, 3, scale=0.4), random(4, 8, scale=0.1), out="depth", act="relu6")
    x = twins.concat(twins.add(x, y, out="sum", act="relu"), twins.mul(x, y, out="product"), out="both")
    x = twins.conv(twins.pool(x, out="max"), random(5, 8, 16, 3, 3, scale=0.1), out="half", stride=2, act="relu")
    x = twins.pool(twins.pad(x, out="padded"), out="average", kind="average")
    flat = twins.reshape(x, 32, out="flat")
    gate = twins.logistic(
        twins.dense(twins.mean(x, out="means"), random(6, 4, 8), random(7, 4), out="gate"), out="open"
    )
    scores = twins.dense(flat, random(8, 4, 32, scale=0.3), random(9, 4), out="scores")
    twins.output(twins.softmax(twins.mul(scores, gate, out="gated"), out="shares"))
    return twins


def two_convolutions(widest: float = 1.0, tail: float = 1.0, colours: tuple[float, ...] = (1.0, 1.0, 1.0)) -> bytes:
    """Two convolutions and scores.

    Args:
        widest: Factor of the first channel of the first weights, which is clipped behind them.
        tail: Factor of one of the second weights in each channel.
        colours: Factors of the first weights by the channel of the image.
    """
    rng = np.random.default_rng(0)
    twins = Twins()
    wide = rng.normal(size=(16, 3, 3, 3)).astype(np.float32) * np.float32(0.3)
    wide[0] *= widest
    wide *= np.float32(colours).reshape(1, 3, 1, 1)
    few = [rng.normal(size=16).astype(np.float32) * np.float32(0.1) for _ in range(2)]
    x = twins.conv(twins.input("image", 3, 12, 12), wide, few[0], out="stem", act="relu6")
    weight = rng.normal(size=(16, 16, 3, 3)).astype(np.float32) * np.float32(0.1)
    weight[:, 0, 0, 0] *= tail
    x = twins.mean(twins.conv(x, weight, few[1], out="mid", act="relu"), out="pool")
    weight = rng.normal(size=(10, 16)).astype(np.float32)
    twins.output(twins.dense(x, weight, np.zeros(10, np.float32), out="scores"))
    return twins.litert()


def gradient_images(seed: int, count: int = 24) -> Array:
    """Images with a gradient, whose channels differ."""
    rng = np.random.default_rng(seed)
    smooth = np.linspace(0, 1, 12, dtype=np.float32)[:, None, None] * np.array([0.5, 1.0, 2.0], np.float32)
    return (rng.normal(size=(count, 12, 12, 3)) * 0.7 + smooth * rng.normal(size=(count, 1, 1, 1))).astype(np.float32)


# --- quantized models ------------------------------------------------------------------------------------------------

#: Bits of activations and weights; activations of None stay float.
_STATIC = {"int8": (8, 8), "int16": (16, 8), "int4": (8, 4)}


def quantized(
    content: bytes, mode: str, samples: Mapping[str, Array] | None = None, *, per_tensor: bool = False
) -> bytes:
    """What ai-edge-quantizer makes of a float LiteRT model.

    Args:
        content: The float model.
        mode: ``int8``, ``int16`` (activations), ``int4`` (weights), ``dynamic``, ``weights`` or ``float16``.
        samples: Inputs of the model to calibrate with, channels last; the first three need them.
        per_tensor: One scale for all channels of a weight.
    """
    from ai_edge_quantizer import qtyping, quantizer

    maker = quantizer.Quantizer(content)
    every = ".*", qtyping.TFLOperationName.ALL_SUPPORTED
    granularity = qtyping.QuantGranularity.TENSORWISE if per_tensor else qtyping.QuantGranularity.CHANNELWISE
    if mode in _STATIC:
        maker.add_static_config(*every, *_STATIC[mode], granularity)
    elif mode == "dynamic":
        maker.add_dynamic_config(*every, 8, granularity)
    elif mode == "weights":
        maker.add_weight_only_config(*every, 8, granularity)
    elif mode == "float16":
        maker.update_quantization_recipe(*every, _halves(), algorithm_key="float_casting")
    else:
        raise ValueError(mode)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that it keeps tensors costs memory
        # All samples are one batch: over several the quantizer takes a moving average of their extremes.
        seen = maker.calibrate({"serving_default": [dict(samples or {})]}, num_threads=1) if mode in _STATIC else None
        return bytes(maker.quantize(seen, enable_progress_report=False).quantized_model)


def _halves() -> Any:
    from ai_edge_quantizer import qtyping

    return qtyping.OpQuantizationConfig(
        weight_tensor_config=qtyping.TensorQuantizationConfig(num_bits=16, dtype=qtyping.TensorDataType.FLOAT),
        compute_precision=qtyping.ComputePrecision.FLOAT,
        explicit_dequantize=True,
    )
