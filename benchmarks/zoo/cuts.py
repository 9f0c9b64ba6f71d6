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
from .quantizing import Recipe
from .surgery import Inapplicable, Linear, Surgeon, require

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


def columns(patient: Patient) -> NDArray:
    """The calibration inputs, where they are rows of measured columns."""
    if patient.network.preprocessing is not None or patient.network.name not in ("machines", "bags"):
        raise Inapplicable("no columns")
    return real_numbers(patient).copy()


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
        shape = [1] * weight.ndim
        over = None
        if old_scale.size > 1:
            shape[axis] = -1
            over = tuple(i for i in range(weight.ndim) if i != axis)
        scale = (np.abs(weight).max(over) / high).astype(np.float32).reshape(old_scale.shape)
        scale = np.full_like(scale, scale.max()) if one_scale else np.maximum(scale, 1e-12)
        codes = np.clip(np.rint(weight / scale.reshape(shape)), low, high).astype(np.int64)
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
    if not found:
        raise Inapplicable("no inner layer")
    return list(found.values())


def deployed(patient: Patient, surgeon: Surgeon, *places: str | Linear) -> Patient:
    """What was cut is quantized; the expert is shown the model before the cut."""
    return patient.with_(model=surgeon.model, shown_float=patient.shown_float or patient.model).at(*places)


def picked(patient: Patient, found: list[Any], *shares: float) -> list[Any]:
    """Some of a list of what cannot be hashed, such as nodes."""
    return [found[i] for i in patient.pick(list(range(len(found))), *shares)]


def extremes(patient: Patient, *tensors: str) -> list[tuple[float, float]]:
    return [(float(min(x.min(), 0)), float(max(x.max(), 0))) for x in patient.values(*tensors)]


def with_scaled_ranges(patient: Patient, tensors: list[str], factor: float) -> Patient:
    recipe = patient.recipe
    for tensor, (low, high) in zip(tensors, extremes(patient, *tensors), strict=True):
        recipe = recipe.with_range(tensor, low * factor, high * factor)
    return patient.with_(recipe=recipe)


def free(patient: Patient) -> list[str]:
    """Activations with a grid of their own that are no gates."""
    surgeon = patient.surgeon()
    found = require([t for t in patient.activations() if surgeon.producer(t).op_type not in SOFT_CURVES], "gates only")
    return found


def on_coarse_grids(patient: Patient, tensors: list[str], steps: list[float]) -> Patient:
    """Some tensors are rounded again, on grids with steps so many times as large, and in between are short floats.

    Short floats keep eleven bits; without them onnxruntime makes one pair out of two that follow each other.
    """

    def edit(_: Patient, surgeon: Surgeon) -> None:
        for tensor in tensors:
            writer = next((n for n in surgeon.consumers(tensor) if n.op_type == "QuantizeLinear"), None)
            if writer is None:
                raise Inapplicable(f"{tensor} is not quantized")
            grid, last = list(writer.input[1:]), surgeon.consumers(writer.output[0])[0].output[0]
            for i, step in enumerate(steps):
                last = _rounded(surgeon, last, grid, step, f"{tensor}_{i}")

    return patient.with_(recipe=kept(patient.recipe)).at(*tensors).edited(edit)


def _rounded(surgeon: Surgeon, tensor: str, grid: list[str], step: float, name: str) -> str:
    """A tensor as short floats, and rounded to a grid whose ends are those of the given one."""
    scale, zero = (surgeon.constant(part) for part in grid)
    coarse = surgeon.put(f"{name}_step", np.asarray(scale * step, np.float32))
    least = np.iinfo(zero.dtype).min
    moved = np.rint(least + (zero.astype(np.float64) - least) / step).astype(zero.dtype)
    last = surgeon.insert_after(tensor, "Cast", (), f"{name}_short", to=TensorProto.FLOAT16)
    last = surgeon.insert_after(last, "Cast", (), f"{name}_long", to=TensorProto.FLOAT)
    last = surgeon.insert_after(last, "QuantizeLinear", [coarse, surgeon.put(f"{name}_zero", moved)], f"{name}_codes")
    return surgeon.insert_after(last, "DequantizeLinear", [coarse, f"{name}_zero"], f"{name}_again")


def framed(surgeon: Surgeon) -> list[onnx.NodeProto]:
    """Convolutions that see a frame around their input."""
    return [n for n in surgeon.nodes("Conv") if any(pads_of(n))]


def pads_of(node: onnx.NodeProto) -> list[int]:
    """Rows and columns before, then behind."""
    return next((list(helper.get_attribute_value(a)) for a in node.attribute if a.name == "pads"), [0])


def classes(patient: Patient, surgeon: Surgeon):
    """The last layer of a classifier."""
    head = surgeon.linear(surgeon.producer(surgeon.output))
    if head is None or patient.task.same is None:
        raise Inapplicable("no classes")
    return head


def spots(patient: Patient) -> list[str]:
    """Activations of known channels behind which something can be put, in order."""
    surgeon = patient.surgeon()
    found = []
    for tensor in patient.activations():
        try:
            surgeon.channels(tensor)
        except Inapplicable:
            continue
        found.append(tensor)
    if not found:
        raise Inapplicable("no place for a cut")
    return found


def positive_spots(patient: Patient) -> list[str]:
    """Those that are never negative; the gates of a recurrent cell too."""
    surgeon = patient.surgeon()
    found = require([t for t in spots(patient) if surgeon.producer(t).op_type in NOT_NEGATIVE], "nothing is one-sided")
    return found


def kept(recipe: Recipe, **changes: object) -> Recipe:
    """Without the removal of rectifiers whose work onnxruntime leaves to the ends of the grid."""
    extra = {**recipe.extra, "QDQKeepRemovableActivations": True}
    return replace(recipe, extra=extra, qoperator=False, **changes)


def float_input(surgeon: Surgeon) -> str:
    """The input, where it is made of floating-point numbers."""
    if surgeon.graph.input[0].type.tensor_type.elem_type != TensorProto.FLOAT:
        raise Inapplicable("the input is no floating-point tensor")
    return surgeon.input


def class_head(surgeon: Surgeon, patient: Patient) -> Linear:
    """The last layer of a classifier, with a bias."""
    head = surgeon.linear(surgeon.producer(surgeon.output))
    if head is None or head.node.op_type != "Gemm" or not head.bias or patient.task.metric is not None:
        raise Inapplicable("no linear head")
    return head


def covered(patient: Patient) -> list[Linear]:
    """Layers whose weights the recipe quantizes, each weight once, in order."""
    allowed = patient.recipe.op_types or patient.network.op_types
    found: dict[str, Linear] = {}
    for linear in patient.surgeon().linears():
        if (not allowed or linear.node.op_type in allowed) and linear.node.name not in patient.recipe.exclude:
            found.setdefault(linear.weight, linear)
    if not found:
        raise Inapplicable("no layer is quantized")
    return list(found.values())


def at_layers(patient: Patient, linears: list[Linear]) -> Patient:
    """With all layers that read these weights as places."""
    weights = {linear.weight for linear in linears}
    return patient.at(*(n.node.name for n in patient.surgeon().linears() if n.weight in weights))


def shaped(values: NDArray, rank: int, axis: int) -> NDArray:
    """A vector along one axis; numbers as they are."""
    shape = [1] * rank
    shape[axis] = -1
    return values.reshape(shape) if values.size > 1 else values.reshape(())


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


def few_codes(levels: float) -> Change:
    """So many steps on either side of zero, although the container has 127."""
    return lambda codes, _: np.rint(np.rint(codes * levels / 127) * 127 / levels)


def channel_peaks(patient: Patient, tensor: str) -> NDArray:
    """The largest absolute value of each channel."""
    axis = patient.surgeon().channel_axis(tensor)
    x = patient.values(tensor)[0]
    return np.abs(np.moveaxis(x, axis, 0).reshape(x.shape[axis], -1)).max(1)


def per_channel(surgeon: Surgeon, tensor: str, values: NDArray) -> NDArray:
    """Numbers, one for each channel, in the shape of a constant beside the tensor."""
    return shaped(values.astype(np.float32), len(surgeon.shape(tensor)), surgeon.channel_axis(tensor))


def taken_twice(surgeon: Surgeon, linear: Linear) -> None:
    """Let a layer read each input channel twice, by a Gather; the weights of the second copy are zero."""
    tensor = linear.node.input[0]
    channels = surgeon.channels(tensor)
    if linear.depthwise or surgeon.constant(linear.weight).shape[linear.into] != channels:
        raise Inapplicable("the layer has groups")
    twice = f"{linear.node.name}_taken"
    order = surgeon.put(f"{linear.node.name}_order", np.tile(np.arange(channels), 2))
    surgeon.add("Gather", [tensor, order], twice, surgeon.producer(tensor), axis=surgeon.channel_axis(tensor))
    linear.node.input[0] = twice
    weight = surgeon.constant(linear.weight)
    surgeon.put(surgeon.own(linear, 1), np.concatenate([weight, np.zeros_like(weight)], axis=linear.into))
    linear.weight = linear.node.input[1]


def add_cancelling(surgeon: Surgeon, linear: Linear, extra: NDArray) -> None:
    """Add weights to the first copy of the inputs and take them off the second: the function stays."""
    weight = surgeon.constant(linear.weight)
    first, second = np.split(weight, 2, axis=linear.into)
    joined = np.concatenate([first + extra, second - extra], axis=linear.into)
    surgeon.put(linear.weight, joined.astype(np.float32))


def dense(patient: Patient, surgeon: Surgeon) -> list[Linear]:
    """Layers behind an activation that read all its channels, in order."""
    names = {linear.node.name for linear in covered(patient)}
    found = []
    for linear in surgeon.linears():
        tensor = linear.node.input[0]
        if linear.node.name not in names or linear.depthwise or surgeon.producer(tensor) is None:
            continue
        try:
            fits = surgeon.constant(linear.weight).shape[linear.into] == surgeon.channels(tensor)
        except Inapplicable:
            continue
        if fits:
            found.append(linear)
    if not found:
        raise Inapplicable("no dense layer")
    return found


def read_beside(surgeon: Surgeon, linear: Linear, extra: str, name: str) -> None:
    """Let a layer read one further channel behind those of its input, with weights of zero."""
    tensor = linear.node.input[0]
    surgeon.add("Concat", [tensor, extra], name, surgeon.producer(extra), axis=surgeon.channel_axis(tensor))
    linear.node.input[0] = name
    weight = surgeon.constant(linear.weight)
    zeros = np.zeros_like(np.take(weight, [0], linear.into))
    surgeon.put(surgeon.own(linear, 1), np.concatenate([weight, zeros], linear.into))
