"""Cuts that faults of several kinds share."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from .patient import Patient
from .pixels import Preprocessing
from .quantizing import Recipe, run
from .surgery import Inapplicable, Linear, Surgeon, require, shaped

SOFT_CURVES = ("Sigmoid", "Tanh", "Softmax", "Softplus")
NOT_NEGATIVE = ("Relu", "Clip", "Sigmoid", "Softmax")
Change = Callable[[NDArray, Linear], NDArray]


def images(patient: Patient) -> tuple[NDArray, Preprocessing]:
    network = patient.network
    if network.preprocessing is None:
        raise Inapplicable("no images")
    return network.pixels("calibration")[0][: len(patient.calibration)], network.preprocessing


def real_numbers(patient: Patient) -> NDArray:
    """The calibration inputs, where they are no integers."""
    if patient.calibration.dtype.kind != "f":
        raise Inapplicable("inputs are integers")
    return patient.calibration


def requantize(patient: Patient, surgeon: Surgeon, names: list[str], kind: int, *, one_scale: bool = False) -> None:
    """Weights of named layers on a coarser grid, scales per channel as before or all the same; biases follow."""
    source = patient.surgeon()
    bits = {TensorProto.INT2: 2, TensorProto.INT4: 4}[kind]
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    for name in names:
        codes_name, scale_name, zero_name = (f"{name}_{part}" for part in ("quantized", "scale", "zero_point"))
        old_scale = surgeon.constant(scale_name)
        if old_scale is None:
            raise Inapplicable(f"{name} is not quantized")
        weight = source.constant(name)
        axis = next(linear.out for linear in source.linears() if linear.weight == name)
        over = tuple(i for i in range(weight.ndim) if i != axis) if old_scale.size > 1 else None
        scale = (np.abs(weight).max(over) / high).astype(np.float32).reshape(old_scale.shape)
        scale = np.full_like(scale, scale.max()) if one_scale else np.maximum(scale, 1e-12)
        codes = np.clip(np.rint(weight / shaped(scale, weight.ndim, axis)), low, high).astype(np.int64)
        _store(surgeon, codes_name, kind, codes)
        _store(surgeon, zero_name, kind, np.zeros(old_scale.shape, np.int64))
        surgeon.put(scale_name, scale)
        _follow_bias(surgeon, name, old_scale, scale, bits)
    with_opset(surgeon.model, 25 if kind == TensorProto.INT2 else 21)


def _store(surgeon: Surgeon, name: str, kind: int, codes: np.ndarray) -> None:
    tensor = helper.make_tensor(name, kind, codes.shape, codes.flatten().tolist())
    next(old for old in surgeon.graph.initializer if old.name == name).CopyFrom(tensor)


def _follow_bias(surgeon: Surgeon, name: str, old: np.ndarray, new: np.ndarray, bits: int) -> None:
    """The bias of the layer that reads a weight, on its new scale."""
    reader = next(
        n for n in surgeon.graph.node if n.op_type == "DequantizeLinear" and n.input[0] == f"{name}_quantized"
    )
    for node in surgeon.consumers(reader.output[0]):
        entry = surgeon.producer(node.input[0])
        if bits < 4 and entry is not None and entry.op_type == "DequantizeLinear":
            # onnxruntime would fuse the layer and then find no kernel for two bits: its input stays float.
            node.input[0] = surgeon.producer(entry.input[0]).input[0]
        if len(node.input) < 3:
            continue
        bias = surgeon.producer(node.input[2])
        if bias is None or bias.op_type != "DequantizeLinear":
            continue
        codes, scale = surgeon.constant(bias.input[0]), surgeon.constant(bias.input[1])
        wanted = (scale * (new / old)).astype(np.float32).reshape(scale.shape)
        limit = np.iinfo(np.int32)
        moved = np.clip(np.rint(codes.astype(np.float64) * scale / wanted), limit.min, limit.max)
        surgeon.put(bias.input[0], moved.astype(np.int32))
        surgeon.put(bias.input[1], wanted)


def with_opset(model: onnx.ModelProto, opset: int) -> None:
    for entry in model.opset_import:
        if entry.domain in ("", "ai.onnx") and entry.version < opset:
            entry.version = opset
    model.ir_version = max(model.ir_version, 13 if opset >= 25 else 10)


def inner(patient: Patient, surgeon: Surgeon) -> list[Linear]:
    """Covered layers of a model under the knife, each weight once, the last layer left out."""
    names = {linear.weight for linear in covered(patient)}
    found: dict[str, Linear] = {}
    for linear in surgeon.linears():
        if linear.weight in names and linear.node.output[0] != surgeon.output:
            found.setdefault(linear.weight, linear)
    return list(require(found, "no inner layer").values())


def deployed(patient: Patient, surgeon: Surgeon, *places: str | Linear) -> Patient:
    """What was cut is quantized; the expert is shown the model before the cut."""
    return patient.cut(surgeon, *places, shown_float=patient.shown_float or patient.model)


def with_outputs(patient: Patient, option: str, outputs: list[NDArray]) -> Patient:
    """The expert is told outputs that come from elsewhere: ``reference_outputs`` or ``device_outputs``."""
    names = [value.name for value in patient.model.graph.output]
    return patient.with_(options={**patient.options, option: dict(zip(names, outputs, strict=True))})


def reading_on_the_board(patient: Patient, inputs: NDArray) -> Patient:
    """The model on the board gets other inputs; the one on the desk is sound."""
    outputs = run(patient.network, patient.quantized(), np.ascontiguousarray(inputs))
    return with_outputs(patient, "device_outputs", outputs)


def picked(patient: Patient, found: list[Any], *shares: float) -> list[Any]:
    """Some of a list of what cannot be hashed, such as nodes."""
    return [found[i] for i in patient.pick(list(range(len(found))), *shares)]


Ends = tuple[float, float]


def ends_of(values: NDArray) -> Ends:
    """The least and the largest value, and zero between them."""
    return float(min(values.min(), 0)), float(max(values.max(), 0))


def extremes(patient: Patient, *tensors: str) -> dict[str, Ends]:
    """The ends of tensors on validation inputs."""
    return {tensor: ends_of(x) for tensor, x in zip(tensors, patient.values(*tensors), strict=True)}


def top_of(patient: Patient, tensor: str) -> float:
    """The largest absolute value of a tensor."""
    return max(abs(end) for end in extremes(patient, tensor)[tensor])


def mix_ends(own: Ends, other: Ends, amount: float) -> Ends:
    """Ends that lie so far from their own to others."""
    share = min(amount, 1.0)
    low, high = ((1 - share) * end + share * moved for end, moved in zip(own, other, strict=True))
    return low, high


def set_ranges(patient: Patient, ends: dict[str, Ends], **changes: Any) -> Patient:
    """With these ranges for some tensors, where the fault sits then."""
    return patient.with_(recipe=kept(patient.recipe, **changes).with_ranges(ends)).at(*ends)


def multiply_ends(patient: Patient, tensors: list[str], factor: float) -> dict[str, Ends]:
    """The ends of tensors, times a factor."""
    return {tensor: (low * factor, high * factor) for tensor, (low, high) in extremes(patient, *tensors).items()}


def with_scaled_ranges(patient: Patient, tensors: list[str], factor: float) -> Patient:
    return patient.with_(recipe=patient.recipe.with_ranges(multiply_ends(patient, tensors, factor), 0))


def free(patient: Patient, curves: tuple[str, ...] = SOFT_CURVES) -> list[str]:
    """Activations with a grid of their own that are no gates."""
    surgeon = patient.surgeon()
    return require([t for t in patient.activations() if surgeon.producer(t).op_type not in curves], "gates only")


def _rounded(surgeon: Surgeon, tensor: str, grid: list[str], step: float, name: str) -> str:
    """A tensor as short floats, and rounded to a grid whose ends are those of the given one."""
    scale, zero = (surgeon.constant(part) for part in grid)
    least = np.iinfo(zero.dtype).min
    moved = np.rint(least + (zero.astype(np.float64) - least) / step).astype(zero.dtype)
    text = """
        short = Cast(x, to=10)
        long = Cast(short, to=1)
        codes = QuantizeLinear(long, step, zero)
        again = DequantizeLinear(codes, step, zero)
    """
    return surgeon.splice(tensor, text, name=name, step=np.asarray(scale * step, np.float32), zero=moved)["again"]


def cast_between(patient: Patient, tensors: list[str], kind: int, name: str) -> Patient:
    """Some quantized tensors are floats of another kind for a while."""

    def edit(_: Patient, surgeon: Surgeon) -> None:
        for tensor in tensors:
            text = f"{name} = Cast(x, to={kind}); long_again = Cast({name}, to={TensorProto.FLOAT})"
            surgeon.splice(surgeon.read_back(tensor), text, name=tensor)

    return patient.with_(recipe=kept(patient.recipe)).edited(edit)


def output_reader(surgeon: Surgeon) -> onnx.NodeProto:
    """The operator that makes the output of its codes."""
    last = surgeon.producer(surgeon.output)
    if last is None or last.op_type != "DequantizeLinear":
        raise Inapplicable("the output is not quantized")
    return last


def joining(surgeon: Surgeon, kind: str) -> list[onnx.NodeProto]:
    """Operators of a kind all of whose operands are computed."""
    return [n for n in surgeon.nodes(kind) if all(surgeon.producer(tensor) is not None for tensor in n.input)]


def classes(patient: Patient, surgeon: Surgeon):
    """The last layer of a classifier."""
    head = surgeon.linear(surgeon.producer(surgeon.output))
    if head is None or patient.task.same is None:
        raise Inapplicable("no classes")
    return head


def spots(patient: Patient) -> list[str]:
    """Activations of known channels behind which something can be put, in order."""
    surgeon = patient.surgeon()
    return require([t for t in patient.activations() if has_channels(surgeon, t)], "no place for a cut")


def has_channels(surgeon: Surgeon, tensor: str) -> bool:
    """Whether they are known."""
    try:
        return surgeon.channels(tensor) > 0
    except Inapplicable:
        return False


def positive_spots(patient: Patient) -> list[str]:
    """Those that are never negative; the gates of a recurrent cell too."""
    surgeon = patient.surgeon()
    return require([t for t in spots(patient) if surgeon.producer(t).op_type in NOT_NEGATIVE], "nothing is one-sided")


def kept(recipe: Recipe, **changes: object) -> Recipe:
    """Without the removal of rectifiers whose work onnxruntime leaves to the ends of the grid."""
    extra = {**recipe.extra, "QDQKeepRemovableActivations": True}
    return replace(recipe, extra=extra, qoperator=False, **changes)


def weights_of(patient: Patient) -> list[Linear]:
    """Layers whose weights the quantizer takes."""
    allowed = patient.recipe.op_types or patient.network.op_types
    return [n for n in patient.surgeon().linears() if not allowed or n.node.op_type in allowed]


def covered(patient: Patient) -> list[Linear]:
    """Layers whose weights the recipe quantizes, each weight once, in order."""
    found: dict[str, Linear] = {}
    for linear in weights_of(patient):
        if linear.node.name not in patient.recipe.exclude:
            found.setdefault(linear.weight, linear)
    return list(require(found, "no layer is quantized").values())


def at_layers(patient: Patient, linears: list[Linear]) -> Patient:
    """With all layers that read these weights as places."""
    weights = {linear.weight for linear in linears}
    return patient.at(*(n.node.name for n in patient.surgeon().linears() if n.weight in weights))


def recoded(patient: Patient, linears: list[Linear], change: Change) -> Patient:
    """The codes of some weights changed in place; ``change`` gets them counted from the zero point."""

    def edit(_: Patient, surgeon: Surgeon) -> None:
        for linear in linears:
            codes, zero = (surgeon.constant(f"{linear.weight}_{part}") for part in ("quantized", "zero_point"))
            if codes is None or codes.dtype not in (np.int8, np.uint8):
                raise Inapplicable(f"{linear.weight} has no codes of eight bits")
            limits = np.iinfo(codes.dtype)
            offset = shaped(zero.astype(np.float64), codes.ndim, linear.out)
            moved = np.rint(change(codes.astype(np.float64) - offset, linear) + offset)
            surgeon.put(f"{linear.weight}_quantized", np.clip(moved, limits.min, limits.max).astype(codes.dtype))

    return at_layers(patient, linears).edited(edit)


def on_multiples(step: float) -> Change:
    """Codes are rounded to multiples of a step."""
    return lambda codes, _: np.rint(np.rint(codes / step) * step)


def channel_peaks(patient: Patient, tensor: str) -> NDArray:
    """The largest absolute value of each channel."""
    axis = patient.surgeon().channel_axis(tensor)
    x = patient.values(tensor)[0]
    return np.abs(np.moveaxis(x, axis, 0).reshape(x.shape[axis], -1)).max(1)


def amplify_on_one_scale(
    patient: Patient, surgeon: Surgeon, linears: list[Linear], gain: Callable[[int, int], NDArray]
) -> Patient:
    """Output channels times a gain, told from a layer's number and its channels; one scale serves all of a layer."""
    for i, linear in enumerate(linears):
        surgeon.amplify(linear.node.output[0], gain(i, surgeon.outputs(linear)).astype(np.float32))
    return patient.cut(surgeon, *linears, recipe=replace(patient.recipe, per_channel=False))


def amplifiable_layers(surgeon: Surgeon) -> list[Linear]:
    """Layers whose output channels can be made larger without changing the function."""
    places = set(surgeon.amplifiable())
    return require([n for n in surgeon.linears() if n.node.output[0] in places], "no channels can be scaled")


def per_channel(surgeon: Surgeon, tensor: str, values: NDArray) -> NDArray:
    """Numbers, one for each channel, in the shape of a constant beside the tensor."""
    return shaped(values.astype(np.float32), len(surgeon.shape(tensor)), surgeon.channel_axis(tensor))


def mix_and_back(surgeon: Surgeon, tensor: str, mixing: NDArray, back: NDArray, names: str) -> None:
    """Channels go through a matrix and another that undoes it; names of both matrices and of both results."""
    first, second, mixed, unmixed = names.split()
    is_map = len(surgeon.shape(tensor)) == 4
    given = {
        name: matrix[:, :, None, None] if is_map else np.ascontiguousarray(matrix.T)
        for name, matrix in ((first, mixing), (second, back))
    }
    op = "Conv" if is_map else "MatMul"
    text = f"{mixed} = {op}(x, {first}); {unmixed} = {op}({mixed}, {second})"
    surgeon.splice(tensor, text, f"{mixed} {unmixed}", **given)


def reader_of(surgeon: Surgeon, linear: Linear, through: tuple[str, ...], most: int) -> Linear | None:
    """The layer that alone reads another's output, or what less than so many operators make of it."""
    tensor = linear.node.output[0]
    for _ in range(most):
        readers = surgeon.consumers(tensor)
        if len(readers) != 1:
            return None
        found = surgeon.linear(readers[0])
        if found is not None:
            return found if readers[0].input[0] == tensor else None
        if readers[0].op_type not in through:
            return None
        tensor = readers[0].output[0]
    return None


def dense(patient: Patient, surgeon: Surgeon) -> list[Linear]:
    """Layers behind an activation that read all its channels, in order."""
    names = {linear.node.name for linear in covered(patient)}
    found = []
    for linear in surgeon.linears():
        tensor = linear.node.input[0]
        if linear.node.name not in names or linear.depthwise or surgeon.producer(tensor) is None:
            continue
        if has_channels(surgeon, tensor) and surgeon.inputs(linear) == surgeon.channels(tensor):
            found.append(linear)
    return require(found, "no dense layer")
