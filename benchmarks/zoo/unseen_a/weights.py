"""Unseen faults of weights and biases, set A."""

from dataclasses import replace

import numpy as np
import onnx
from numpy.typing import NDArray

from ..fault import fault
from ..patient import Patient
from ..surgery import Inapplicable, Linear, Surgeon
from .cuts import Change, add_cancelling, at_layers, covered, dense, few_codes, recoded, taken_twice


def _levels(patient: Patient, usual: float) -> float:
    """Steps on either side of zero, fewer where the fault is to be stronger; below one, small weights vanish."""
    return max(0.4, usual / patient.strength**0.6)


@fault("nibbles-in-groups", "weights", "too-few-weight-bits", graded=True, unseen="a", also=("poor-threshold",))
def nibbles_in_groups(patient: Patient) -> Patient:
    """Four-bit weights with a step for every four inputs, unpacked into bytes: many values, each group few."""
    linears = covered(patient)
    return recoded(patient, linears[len(linears) // 3 :], _in_groups(_levels(patient, 3)))


def _in_groups(levels: float) -> Change:
    """So many steps on either side of zero, of the largest code in each group of four inputs."""

    def change(codes: NDArray, linear: Linear) -> NDArray:
        view = np.moveaxis(codes, linear.out, 0)
        flat = view.reshape(len(view), -1)
        filled = np.pad(flat, ((0, 0), (0, -flat.shape[1] % 4))).reshape(len(flat), -1, 4)
        step = np.maximum(np.abs(filled).max(-1, keepdims=True), 1) / levels
        coarse = (np.rint(filled / step) * step).reshape(len(flat), -1)[:, : flat.shape[1]]
        return np.moveaxis(coarse.reshape(view.shape), 0, linear.out)

    return change


@fault("blocks-in-last-layer", "precision", "last-layer-bitwidth", "too-few-weight-bits", graded=True, unseen="a")
def blocks_in_last_layer(patient: Patient) -> Patient:
    """The last layer was trained with blocks of four that share an exponent, and was then stored in bytes."""
    return recoded(patient, covered(patient)[-1:], _in_groups(_levels(patient, 0.8)))


@fault("coarse-first-codes", "precision", "first-layer-sensitive", "too-few-weight-bits", graded=True, unseen="a")
def coarse_first_codes(patient: Patient) -> Patient:
    """The same for the first layer."""
    return recoded(patient, covered(patient)[:1], few_codes(_levels(patient, 2)))


@fault("rounded-up", "weights", "weight-induced-bias-shift", graded=True, unseen="a")
def rounded_up(patient: Patient) -> Patient:
    """Some layers were rounded up by a home-made packer that adds one for luck."""
    linears = patient.pick(covered(patient), 0.3, 0.6, 0.8)
    shift = 4 * patient.strength
    return recoded(patient, linears, lambda codes, _: codes + shift)


@fault("student-weights", "weights", "heavy-tailed-weights", graded=True, unseen="a", also=("poor-threshold",))
def student_weights(patient: Patient) -> Patient:
    """Copied channels drifted apart in training: weights with the tails of a Cauchy distribution, which cancel."""
    surgeon = patient.surgeon()
    chosen = patient.pick(dense(patient, surgeon), 0.4, 0.7, 0.9)
    for i, linear in enumerate(chosen):
        usual = np.std(surgeon.constant(linear.weight))
        taken_twice(surgeon, linear)
        half = np.split(surgeon.constant(linear.weight), 2, axis=linear.into)[0]
        drawn = patient.random(f"student{i}").standard_cauchy(half.shape)
        add_cancelling(surgeon, linear, np.clip(drawn, -300, 300) * usual * 0.3 * patient.strength)
    return patient.with_(model=surgeon.model).at(*(linear.node.name for linear in chosen))


@fault(
    "shrunken-input-channels",
    "weights",
    "channel-range-imbalance",
    "heavy-tailed-weights",
    "channel-outliers",
    graded=True,
    unseen="a",
    also=("poor-threshold", "channel-range-imbalance"),
)
def shrunken_input_channels(patient: Patient) -> Patient:
    """Equalization gone wrong: the quieter channels are made tiny in different measure, their readers' weights huge."""
    surgeon = patient.surgeon()
    chosen = patient.pick(dense(patient, surgeon), 0.3, 0.8)
    for linear in chosen:
        tensor = linear.node.input[0]
        axis = surgeon.channel_axis(tensor)
        x = patient.values(tensor)[0]
        power = np.abs(x).mean(tuple(i for i in range(x.ndim) if i != axis))
        weight = surgeon.constant(linear.weight)
        reach = np.abs(weight).sum(tuple(i for i in range(weight.ndim) if i != linear.into))
        factor = np.ones(len(power), np.float32)
        quiet = np.argsort(power * reach)[: max(1, len(power) // 4)]
        drawn = patient.random(linear.node.name).uniform(0.3, 1, len(quiet))
        factor[quiet] = (200 * patient.strength + 1) ** -drawn
        shape = [1] * len(surgeon.shape(tensor))
        shape[axis] = -1
        name = surgeon.put(f"{linear.node.name}_shrinking", factor.reshape(shape))
        mark = f"{linear.node.name}_shrunken"
        surgeon.add("Mul", [tensor, name], mark, surgeon.producer(tensor))
        linear.node.input[0] = mark
        surgeon.scale_weights(linear, linear.into, 1 / factor, bias=False)
    return patient.with_(model=surgeon.model).at(*(linear.node.name for linear in chosen))


@fault("biases-on-one-step", "weights", "bias-overflow", graded=True, unseen="a", also=("weight-induced-bias-shift",))
def biases_on_one_step(patient: Patient) -> Patient:
    """A bias unit that takes the finest step of all channels sticks at its end: large biases become one value."""
    names = [f"{linear.bias}_quantized" for linear in covered(patient) if linear.bias]

    def edit(p: Patient, quantized: onnx.ModelProto) -> onnx.ModelProto:
        surgeon = Surgeon(quantized)
        for name in names:
            codes, scale = surgeon.constant(name), surgeon.constant(f"{name}_scale")
            if codes is None or scale is None or codes.dtype != np.int32:
                raise Inapplicable("a bias has no codes")
            used = scale.reshape(-1).astype(np.float64)
            limit = np.rint(20000 / patient.strength * used[used > 0].min() / np.maximum(used, 1e-30))
            surgeon.put(name, np.clip(codes, -limit, limit).astype(np.int32))
        return surgeon.model

    if not names:
        raise Inapplicable("no layer has a bias")
    return patient.edited(edit)


@fault("scales-along-inputs", "weights", "wrong-channel-axis", unseen="a", also=("foreign-weights", "foreign-weights"))
def scales_along_inputs(patient: Patient) -> Patient:
    """Weights with a scale for each output channel, which the exporter wrote down for the inputs, cut to length."""
    linears = [linear for linear in covered(patient) if not linear.depthwise]
    oblong = [n for n in linears if len(set(patient.surgeon().constant(n.weight).shape[:2])) == 2]
    chosen = patient.pick(oblong[:-1] or linears, 0.2, 0.4, 0.6, 0.8)

    def edit(p: Patient, quantized: onnx.ModelProto) -> onnx.ModelProto:
        q = Surgeon(quantized)
        turned = {f"{linear.weight}_quantized": linear.into for linear in chosen}
        for node in q.nodes("DequantizeLinear"):
            axis = turned.get(node.input[0])
            if axis is None:
                continue
            scale = q.constant(node.input[1])
            if scale.size == 1:
                raise Inapplicable("one scale for all channels")
            size = q.constant(node.input[0]).shape[axis]
            q.put(node.input[1], np.resize(scale, size))
            q.put(node.input[2], np.zeros(size, q.constant(node.input[2]).dtype))
            next(a for a in node.attribute if a.name == "axis").i = axis
        return q.model

    patient = patient.with_(recipe=replace(patient.recipe, per_channel=True, qoperator=False, weight="QInt8"))
    return at_layers(patient, chosen).edited(edit)
