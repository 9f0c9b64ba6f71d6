"""Cuts that both sets of unseen faults use."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from ..patient import Patient
from ..quantizing import Recipe
from ..surgery import Inapplicable, Linear, Surgeon

NOT_NEGATIVE = ("Relu", "Clip", "Sigmoid", "Softmax")


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
    found = [t for t in spots(patient) if surgeon.producer(t).op_type in NOT_NEGATIVE]
    if not found:
        raise Inapplicable("nothing is one-sided")
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


Change = Callable[[NDArray, Linear], NDArray]


def recoded(patient: Patient, linears: list[Linear], change: Change) -> Patient:
    """The codes of some weights changed in place; ``change`` gets them counted from the zero point."""

    def edit(p: Patient, quantized: onnx.ModelProto) -> onnx.ModelProto:
        surgeon = Surgeon(quantized)
        for linear in linears:
            codes, zero = (surgeon.constant(f"{linear.weight}_{part}") for part in ("quantized", "zero_point"))
            if codes is None or codes.dtype not in (np.int8, np.uint8):
                raise Inapplicable(f"{linear.weight} has no codes of eight bits")
            limits = np.iinfo(codes.dtype)
            offset = shaped(zero.astype(np.float64), codes.ndim, linear.out)
            moved = np.rint(change(codes.astype(np.float64) - offset, linear) + offset)
            surgeon.put(f"{linear.weight}_quantized", np.clip(moved, limits.min, limits.max).astype(codes.dtype))
        return surgeon.model

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
