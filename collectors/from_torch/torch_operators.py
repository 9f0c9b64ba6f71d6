"""Torch functions in ONNX's vocabulary: operator type, inputs in ONNX's order, and the attributes that matter."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from quantmedic.collectors.from_torch.calls import Kwargs, tensors_of

#: An input: a tensor, a number that becomes a constant, or None for one that is left out.
Operand = torch.Tensor | float | None


@dataclass(frozen=True)
class CallAsOperator:
    """One call as an operator; ``fused`` is the activation that the same kernel computes behind it.

    ``hints`` are further arguments under the names of ONNX's attributes: they are shown, and not compared.
    """

    op_type: str
    inputs: Sequence[Operand]
    attributes: Mapping[str, object] = field(default_factory=dict)
    fused: str | None = None
    hints: Mapping[str, object] = field(default_factory=dict)


class Arguments:
    """Arguments of a call, by place or by name."""

    def __init__(self, args: Sequence[object], kwargs: Kwargs) -> None:
        self._args, self._kwargs = args, kwargs

    def get(self, place: int, *names: str) -> object:
        """The argument at a place, else under one of its names; None without it."""
        if place < len(self._args):
            return self._args[place]
        return next((self._kwargs[name] for name in names if name in self._kwargs), None)

    def tensor(self, place: int, *names: str) -> torch.Tensor:
        """An argument that is a tensor.

        Raises:
            TypeError: It is none.
        """
        found = self.get(place, *names)
        if not isinstance(found, torch.Tensor):
            raise TypeError(f"argument {place} is no tensor: {type(found).__name__}")
        return found

    def operand(self, place: int, *names: str) -> Operand:
        """An argument that is a tensor or a number; None for others."""
        found = self.get(place, *names)
        return found if isinstance(found, torch.Tensor | int | float) else None

    def number(self, place: int, *names: str, default: float) -> float:
        """An argument that is a number, or a tensor that holds one."""
        found = self.get(place, *names)
        return float(found) if isinstance(found, torch.Tensor | int | float) else default

    def numbers(self, place: int, *names: str) -> torch.Tensor | float:
        """An argument that is a tensor or a number; 0 without it."""
        found = self.operand(place, *names)
        return 0.0 if found is None else found

    def integer(self, place: int, *names: str, default: int = 0) -> int:
        """An argument that is a whole number, or a tensor that holds one."""
        return int(self.number(place, *names, default=default))

    def integers(self, place: int, *names: str) -> list[int] | None:
        """An argument that is a whole number, or a list of them; None where it is neither."""
        found = self.get(place, *names)
        if isinstance(found, int):
            return [found]
        return [int(entry) for entry in found] if isinstance(found, tuple | list) else None

    def rest(self, place: int, name: str) -> list[int]:
        """Whole numbers from a place on, given one by one or as one list."""
        given = self._args[place:]
        if len(given) > 1:
            return [entry for entry in given if isinstance(entry, int)]
        return self.integers(place, name) or []

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [*tensors_of(self._args), *tensors_of(self._kwargs)]


Writer = Callable[[Arguments, object], CallAsOperator]


def operator_of_call(name: str, args: Sequence[object], kwargs: Kwargs, result: object) -> CallAsOperator:
    """A call as an operator; one that is not known keeps its own name and all its tensors as inputs."""
    arguments = Arguments(args, kwargs)
    plain, fused = plain_name(name)
    writer = _WRITERS.get(plain)
    found = writer(arguments, result) if writer is not None else CallAsOperator(_type_named(plain), arguments.tensors)
    return found if fused is None else replace(found, fused=fused)


def is_alias(name: str, args: Sequence[object], result: object) -> bool:
    """The call hands on the numbers that it was given, in the same shape."""
    plain, _ = plain_name(name)
    if plain in _ALIASES:
        return True
    source = next(iter(tensors_of(args)), None)
    if plain not in _CASTS or source is None or not isinstance(result, torch.Tensor):
        return False
    return result.is_floating_point() and source.is_floating_point()


def plain_name(name: str) -> tuple[str, str | None]:
    """Name of a function without namespace, operator syntax and in-place mark, and the activation fused into it."""
    namespace, _, plain = name.rpartition("::")
    if plain.startswith("__") and plain.endswith("__"):
        plain = plain.strip("_")
        plain = _REFLECTED.get(plain, plain)
    elif plain.endswith("_") and not plain.endswith("__"):
        plain = plain[:-1]
    if not namespace.startswith("quantized") and namespace != "onednn":
        return plain, None
    plain = plain.removesuffix("_dynamic").removesuffix("_fp16").removesuffix("_prepack")
    for ending in ("_relu6", "_relu"):
        if plain.endswith(ending) and plain not in ("leaky_relu",):
            return plain.removesuffix(ending), "Clip" if ending == "_relu6" else "Relu"
    return plain, None


_REFLECTED = {
    "iadd": "add", "radd": "add", "isub": "sub", "imul": "mul", "rmul": "mul", "itruediv": "div", "truediv": "div",
    "rtruediv": "rdiv", "ipow": "pow",
}  # fmt: skip
_ALIASES = frozenset(
    {"detach", "contiguous", "clone", "alias", "dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout",
     "feature_dropout", "feature_alpha_dropout", "requires_grad_", "cpu", "cuda", "get data", "lift_fresh_copy",
     "native_dropout", "resolve_conj", "as_subclass", "pin_memory", "positive"}
)  # fmt: skip
_CASTS = frozenset({"to", "float", "half", "bfloat16", "double", "type", "type_as", "_to_copy"})


def _type_named(name: str) -> str:
    """The type of an operator of all tensors; of one that is not known its own name, ``layer_scale`` as LayerScale."""
    name = name.removeprefix("get ")
    return _TYPES.get(name) or "".join(part.capitalize() for part in name.split("_") if part) or name


def _binary(kind: str, *, reverse: bool = False) -> Writer:
    def write(a: Arguments, result: object) -> CallAsOperator:
        operands = [a.operand(0, "input", "self"), a.operand(1, "other", "exponent", "y")]
        return CallAsOperator(kind, operands[::-1] if reverse else operands)

    return write


def _conv(kind: str, *, dilation: int, groups: int) -> Writer:
    """A convolution, which has these arguments at these places; ``kind`` is none where an argument tells it."""

    def write(a: Arguments, result: object) -> CallAsOperator:
        found = kind or ("ConvTranspose" if a.get(6, "transposed") else "Conv")
        attributes = {"group": a.integer(groups, "groups", default=1)}
        inputs = [a.operand(0, "input"), a.operand(1, "weight"), a.operand(2, "bias")]
        return CallAsOperator(found, inputs, attributes, hints=_window(a, dilation))

    return write


def _window(a: Arguments, dilation: int) -> dict[str, object]:
    """How a kernel slides; nothing where an integer kernel keeps it to itself."""
    weight = a.get(1, "weight")
    if not isinstance(weight, torch.Tensor):
        return {}
    sides = list(weight.shape[2:])
    return {
        "kernel_shape": sides,
        "strides": _per_side(a.get(3, "stride"), len(sides), 1),
        "pads": _pads(a.get(4, "padding"), len(sides)),
        "dilations": _per_side(a.get(dilation, "dilation"), len(sides), 1),
    }


def _per_side(value: object, count: int, default: int | None = None) -> object:
    """One number per side, where one number stands for all."""
    value = default if value is None else value
    return [value] * count if isinstance(value, int) else list(value) if isinstance(value, list | tuple) else value


def _pads(value: object, count: int) -> object:
    """Before and behind all sides, or the rule by which torch finds them."""
    sides = _per_side(value, count, 0)
    return sides * 2 if isinstance(sides, list) else sides


def _pool(kind: str, sides: int) -> Writer:
    def write(a: Arguments, result: object) -> CallAsOperator:
        size = a.get(1, "kernel_size")
        hints = {
            "kernel_shape": _per_side(size, sides),
            "strides": _per_side(a.get(2, "stride") or size, sides),
            "pads": _pads(a.get(3, "padding"), sides),
        }
        return CallAsOperator(kind, a.tensors, hints=hints)

    return write


def _of(kind: str, *places: tuple[int, str], **attributes: object) -> Writer:
    """An operator of the arguments at these places, with these attributes."""
    return lambda a, result: CallAsOperator(kind, [a.operand(*place) for place in places], attributes)


def _batch_norm(*places: int, epsilon: Sequence[int]) -> Writer:
    """Places of weight, bias, mean and variance; epsilon is the last of some places that holds a number."""

    def write(a: Arguments, result: object) -> CallAsOperator:
        names = ("weight", "bias", "running_mean", "running_var")
        inputs = [a.operand(0, "input"), *(a.operand(*own) for own in zip(places, names, strict=True))]
        numbers = [value for place in epsilon if isinstance(value := a.get(place, "eps"), float)]
        return CallAsOperator("BatchNormalization", inputs, {"epsilon": numbers[-1] if numbers else 1e-5})

    return write


def _normalization(kind: str, weight: int, bias: int, epsilon: int) -> Writer:
    def write(a: Arguments, result: object) -> CallAsOperator:
        small = a.get(epsilon, "eps")
        inputs = [a.operand(0, "input"), a.operand(weight, "weight"), a.operand(bias, "bias")]
        return CallAsOperator(kind, inputs, hints={"epsilon": small} if isinstance(small, float) else {})

    return write


def _embedding(a: Arguments, result: object) -> CallAsOperator:
    first, second = a.tensor(0, "input", "weight"), a.tensor(1, "weight", "indices")
    return CallAsOperator("Gather", [first, second] if first.is_floating_point() else [second, first])


def _clip_writer(low: int | float | None = None, high: float | None = None) -> Writer:
    """Ends as fixed by the function, or as its arguments."""

    def write(a: Arguments, result: object) -> CallAsOperator:
        ends = {
            "min": low if low is not None else a.get(1, "min", "min_val"),
            "max": high if high is not None else a.get(2, "max", "max_val"),
        }
        known = {name: float(end) for name, end in ends.items() if isinstance(end, int | float)}
        return CallAsOperator("Clip", [a.operand(0, "input", "self")], known)

    return write


def _hardtanh(a: Arguments, result: object) -> CallAsOperator:
    ends = {"min": a.number(1, "min_val", default=-1.0), "max": a.number(2, "max_val", default=1.0)}
    return CallAsOperator("Clip", [a.operand(0, "input")], ends)


def _clamp_min(a: Arguments, result: object) -> CallAsOperator:
    low = a.number(1, "min", default=-math.inf)
    return CallAsOperator("Clip" if low else "Relu", [a.operand(0, "input")], {"min": low} if low else {})


def _adaptive_pool(kind: str) -> Writer:
    def write(a: Arguments, result: object) -> CallAsOperator:
        shape = tensors_of(result)[0].shape
        whole = "Global" if all(side == 1 for side in shape[2:]) else ""
        return CallAsOperator(f"{whole}{kind}", [a.operand(0, "input")])

    return write


def _reduction(kind: str) -> Writer:
    def write(a: Arguments, result: object) -> CallAsOperator:
        source, axes = a.tensor(0, "input", "self"), a.integers(1, "dim", "axis")
        axes = list(range(source.dim())) if axes is None else axes
        return CallAsOperator(kind, [source], {"axes": axes, "keepdims": int(bool(a.get(2, "keepdim")))})

    return write


def _softmax(kind: str) -> Writer:
    return lambda a, result: CallAsOperator(
        kind, [a.operand(0, "input", "self")], {"axis": a.integer(1, "dim", default=-1)}
    )


def _concat(a: Arguments, result: object) -> CallAsOperator:
    return CallAsOperator("Concat", tensors_of(a.get(0, "tensors")), {"axis": a.integer(1, "dim", "axis")})


def _permute(a: Arguments, result: object) -> CallAsOperator:
    rank = tensors_of(result)[0].dim()
    return CallAsOperator("Transpose", [a.operand(0, "input")], {"perm": [axis % rank for axis in a.rest(1, "dims")]})


def _transpose(a: Arguments, result: object) -> CallAsOperator:
    source, order = a.operand(0, "input"), list(range(tensors_of(result)[0].dim()))
    first, second = a.integer(1, "dim0", "axis0"), a.integer(2, "dim1", "axis1")
    order[first], order[second] = order[second], order[first]
    return CallAsOperator("Transpose", [source], {"perm": order})


def _last_two(a: Arguments, result: object) -> CallAsOperator:
    order = list(range(tensors_of(result)[0].dim()))
    order[-2:] = order[-2:][::-1]
    return CallAsOperator("Transpose", [a.operand(0, "input")], {"perm": order})


_TYPES = {
    "rsqrt": "Reciprocal", "getitem": "Slice", "setitem": "ScatterElements", "select": "Slice", "narrow": "Slice",
    "index_select": "Gather", "index": "Gather", "repeat": "Tile", "silu": "Swish", "hardswish": "HardSwish",
    "leaky_relu": "LeakyRelu", "prelu": "PRelu", "gelu": "Gelu", "elu": "Elu", "hardsigmoid": "HardSigmoid",
    "pad": "Pad", "constant_pad_nd": "Pad", "pixel_shuffle": "DepthToSpace", "pixel_unshuffle": "SpaceToDepth",
    "matmul": "MatMul", "mm": "MatMul", "bmm": "MatMul", "baddbmm": "MatMul", "lstm": "LSTM", "gru": "GRU",
    "rnn_tanh": "RNN", "rnn_relu": "RNN", "unsqueeze": "Unsqueeze", "squeeze": "Squeeze", "flatten": "Flatten",
    "expand": "Expand", "expand_as": "Expand", "chunk": "Split", "split": "Split", "unbind": "Split",
    "tensor_split": "Split", "split_with_sizes": "Split", "maximum": "Max", "minimum": "Min",
    "view": "Reshape", "reshape": "Reshape", "unflatten": "Reshape", "_unsafe_view": "Reshape", "view_as": "Reshape",
    "reshape_as": "Reshape", "interpolate": "Resize", "upsample_nearest2d": "Resize", "upsample_bilinear2d": "Resize",
    "upsample": "Resize",
}  # fmt: skip
_WRITERS: dict[str, Writer] = {
    **{f"conv{n}d": _conv("Conv", dilation=5, groups=6) for n in (1, 2, 3)},
    **{f"conv_transpose{n}d": _conv("ConvTranspose", dilation=7, groups=6) for n in (1, 2, 3)},
    **dict.fromkeys(("convolution", "_convolution"), _conv("", dilation=5, groups=8)),
    "linear": _of("Gemm", (0, "input"), (1, "weight"), (2, "bias"), transB=1),
    "addmm": _of("Gemm", (1, "mat1"), (2, "mat2"), (0, "input")),
    "batch_norm": _batch_norm(3, 4, 1, 2, epsilon=(7,)),
    **dict.fromkeys(
        ("native_batch_norm", "_native_batch_norm_legit_no_training"), _batch_norm(1, 2, 3, 4, epsilon=(5, 6, 7))
    ),
    **dict.fromkeys(("layer_norm", "native_layer_norm"), _normalization("LayerNormalization", 2, 3, 4)),
    "rms_norm": _normalization("RMSNormalization", 2, 99, 3),
    "group_norm": _normalization("GroupNormalization", 2, 3, 4),
    "native_group_norm": _normalization("GroupNormalization", 1, 2, 7),
    "instance_norm": _normalization("InstanceNormalization", 3, 4, 7),
    "embedding": _embedding,
    "relu6": _clip_writer(0.0, 6.0),
    **dict.fromkeys(("clamp", "clip"), _clip_writer()),
    "clamp_min": _clamp_min,
    "hardtanh": _hardtanh,
    "add": _binary("Add"),
    "sub": _binary("Sub"),
    "rsub": _binary("Sub", reverse=True),
    **dict.fromkeys(("mul", "multiply"), _binary("Mul")),
    **dict.fromkeys(("div", "true_divide", "divide"), _binary("Div")),
    "rdiv": _binary("Div", reverse=True),
    "pow": _binary("Pow"),
    **dict.fromkeys(("cat", "concat", "concatenate", "stack"), _concat),
    **{f"max_pool{n}d": _pool("MaxPool", n) for n in (1, 2, 3)},
    **{f"max_pool{n}d_with_indices": _pool("MaxPool", n) for n in (1, 2, 3)},
    **{f"avg_pool{n}d": _pool("AveragePool", n) for n in (1, 2, 3)},
    **{f"adaptive_avg_pool{n}d": _adaptive_pool("AveragePool") for n in (1, 2, 3)},
    **{f"_adaptive_avg_pool{n}d": _adaptive_pool("AveragePool") for n in (2, 3)},
    **{f"adaptive_max_pool{n}d": _adaptive_pool("MaxPool") for n in (1, 2, 3)},
    "mean": _reduction("ReduceMean"),
    "sum": _reduction("ReduceSum"),
    "amax": _reduction("ReduceMax"),
    "amin": _reduction("ReduceMin"),
    **dict.fromkeys(("softmax", "_softmax", "_safe_softmax"), _softmax("Softmax")),
    **dict.fromkeys(("log_softmax", "_log_softmax"), _softmax("LogSoftmax")),
    "permute": _permute,
    **dict.fromkeys(("transpose", "swapaxes"), _transpose),
    **dict.fromkeys(("t", "get T", "get mT"), _last_two),
    "scaled_dot_product_attention": _of("Attention", (0, "query"), (1, "key"), (2, "value"), (3, "attn_mask")),
}
