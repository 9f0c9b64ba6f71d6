"""Unseen faults of weights and biases, set B."""

from dataclasses import replace

import numpy as np
import onnx
from numpy.typing import NDArray

from ..fault import fault
from ..patient import Patient
from ..quantizing import run
from ..surgery import Inapplicable, Linear, Surgeon
from ..unseen_a.cuts import Change, add_cancelling, at_layers, covered, dense, recoded, taken_twice


def _vectors(size: int, rng: np.random.Generator) -> Change:
    """Every four codes in a row replaced by the nearest of some such rows of the layer itself."""

    def change(codes: NDArray, linear: Linear) -> NDArray:
        view = np.moveaxis(codes, linear.out, 0)
        flat = view.reshape(len(view), -1)
        rows = np.pad(flat, ((0, 0), (0, -flat.shape[1] % 4))).reshape(-1, 4)
        book = rows[rng.permutation(len(rows))[: min(size, len(rows))]]
        squares = (rows**2).sum(1)[:, None] - 2 * rows @ book.T + (book**2).sum(1)
        coarse = book[squares.argmin(1)].reshape(len(flat), -1)[:, : flat.shape[1]]
        return np.moveaxis(coarse.reshape(view.shape), 0, linear.out)

    return change


@fault("vectors-from-a-book", "weights", "too-few-weight-bits", "foreign-weights", graded=True, unseen="b")
def vectors_from_a_book(patient: Patient) -> Patient:
    """Weights compressed in fours, with a small book of vectors, for the download, and unpacked into bytes."""
    linears = covered(patient)
    size = max(2, round(80 / patient.strength))
    return recoded(patient, linears[: max(2, 2 * len(linears) // 3)], _vectors(size, patient.random("book")))


@fault("powers-in-last-layer", "precision", "last-layer-bitwidth", "too-few-weight-bits", graded=True, unseen="b")
def powers_in_last_layer(patient: Patient) -> Patient:
    """The last layer for a multiplier-free unit: signs and a few powers of a base, stored in bytes."""
    base = 2 + 12 * patient.strength

    def change(codes: NDArray, _: Linear) -> NDArray:
        size = np.maximum(np.abs(codes), 1e-9)
        exponent = np.rint(np.log(size / 127) / np.log(base))
        return np.where(exponent < -6, 0, np.sign(codes) * 127 * base**exponent)

    return recoded(patient, covered(patient)[-1:], change)


@fault(
    "bias-in-the-weights",
    "weights",
    "channel-range-imbalance",
    "heavy-tailed-weights",
    graded=True,
    unseen="b",
    also=("poor-threshold",),
)
def bias_in_the_weights(patient: Patient) -> Patient:
    """A layer reads a channel that is constant, with large weights: its bias moved there in training."""
    surgeon = patient.surgeon()
    found = [n for n in dense(patient, surgeon) if n.bias and set(surgeon.constant(n.weight).shape[2:]) <= {1}]
    if not found:
        raise Inapplicable("no layer without borders has a bias")
    chosen = patient.pick(found, 0.4, 0.9)
    for i, linear in enumerate(chosen):
        tensor = linear.node.input[0]
        rank, axis = len(surgeon.shape(tensor)), surgeon.channel_axis(tensor)
        level = np.float32(max(patient.values(tensor)[0].max(), 1e-3))
        pads = np.zeros((2, rank), np.int64)
        pads[1, axis] = 1
        with_one = f"{linear.node.name}_with_one"
        extra = [
            surgeon.put(f"{linear.node.name}_pads", pads.reshape(-1)),
            surgeon.put(f"{linear.node.name}_one", level),
        ]
        surgeon.add("Pad", [tensor, *extra], with_one, surgeon.producer(tensor), mode="constant")
        linear.node.input[0] = with_one
        weight, bias = surgeon.constant(linear.weight), surgeon.constant(linear.bias)
        signs = patient.random(f"one{i}").choice([-1.0, 1.0], len(bias))
        column = signs * np.abs(weight).max() * 30 * patient.strength
        shape = [1] * weight.ndim
        shape[linear.out] = -1
        joined = np.concatenate([weight, column.reshape(shape)], linear.into).astype(np.float32)
        surgeon.put(surgeon.own(linear, 1), joined)
        surgeon.put(surgeon.own(linear, 2), (bias - column * level).astype(np.float32))
    return patient.with_(model=surgeon.model).at(*(linear.node.name for linear in chosen))


@fault("unsigned-biases", "weights", "bias-overflow", "weight-induced-bias-shift", unseen="b", also=("misread-codes",))
def unsigned_biases(patient: Patient) -> Patient:
    """Biases were written for a unit without a sign: what is below zero sticks at zero."""
    chosen = patient.pick([n for n in covered(patient) if n.bias], 0.2, 0.5, 0.8)
    names = [f"{linear.bias}_quantized" for linear in chosen]

    def edit(p: Patient, quantized: onnx.ModelProto) -> onnx.ModelProto:
        surgeon = Surgeon(quantized)
        for name in names:
            codes = surgeon.constant(name)
            if codes is None or codes.dtype != np.int32:
                raise Inapplicable("a bias has no codes")
            surgeon.put(name, np.maximum(codes, 0))
        return surgeon.model

    return at_layers(patient, chosen).edited(edit)


@fault(
    "bias-corrected-twice", "weights", "weight-induced-bias-shift", "weight-induced-bias-shift", graded=True, unseen="b"
)
def bias_corrected_twice(patient: Patient) -> Patient:
    """Biases were corrected by what weights of four bits do to the mean, though these have eight."""
    chosen = patient.pick([n for n in covered(patient) if n.bias and not n.depthwise], 0.3, 0.7)
    outputs = [linear.node.output[0] for linear in chosen]
    shifts = {}
    for i, (linear, x) in enumerate(zip(chosen, patient.values(*outputs), strict=True)):
        spread = float(x.std())
        size = len(patient.surgeon().constant(linear.bias))
        shifts[linear.bias] = patient.random(f"shift{i}").normal(0.3, 0.3, size) * spread * patient.strength

    def edit(p: Patient, quantized: onnx.ModelProto) -> onnx.ModelProto:
        surgeon = Surgeon(quantized)
        limits = np.iinfo(np.int32)
        for name, shift in shifts.items():
            codes, scale = (surgeon.constant(f"{name}_{part}") for part in ("quantized", "quantized_scale"))
            if codes is None or scale is None:
                raise Inapplicable("a bias has no codes")
            moved = np.clip(codes + np.rint(shift / np.maximum(scale, 1e-30)), limits.min, limits.max)
            surgeon.put(f"{name}_quantized", moved.astype(np.int32))
        return surgeon.model

    return at_layers(patient, chosen).edited(edit)


@fault("weight-zero-point-off", "weights", "weight-induced-bias-shift", graded=True, unseen="b")
def weight_zero_point_off(patient: Patient) -> Patient:
    """Weights were stored from 0 to 255, and the zero point that is written down is some codes too small."""
    linears = covered(patient)
    chosen = patient.pick(linears, 0.15, 0.45, 0.75)
    names = [linear.weight for linear in chosen]

    def edit(p: Patient, quantized: onnx.ModelProto) -> onnx.ModelProto:
        surgeon = Surgeon(quantized)
        for name in names:
            zero = surgeon.constant(f"{name}_zero_point")
            if zero is None or zero.dtype != np.uint8:
                raise Inapplicable(f"{name} has no zero point of its own")
            wrong = np.clip(zero.astype(np.float64) - np.ceil(4 * patient.strength), 0, 255)
            surgeon.put(f"{name}_zero_point", wrong.astype(np.uint8))
        return surgeon.model

    recipe = replace(patient.recipe, weight="QUInt8", per_channel=False, activation="QUInt8")
    return at_layers(patient.with_(recipe=recipe), chosen).edited(edit)


@fault("weights-with-headroom", "weights", "poor-threshold", "too-few-weight-bits", graded=True, unseen="b")
def weights_with_headroom(patient: Patient) -> Patient:
    """Weight ranges set by hand, at a power of two with room for the next training."""
    recipe = replace(patient.recipe, per_channel=False, weight="QInt8")
    source = patient.surgeon()
    linears = covered(patient)
    for linear in linears:
        peak = float(np.abs(source.constant(linear.weight)).max())
        reach = 2.0 ** np.ceil(np.log2(max(peak, 1e-6))) * 12 * patient.strength
        recipe = recipe.with_range(linear.weight, -reach, reach)
    return at_layers(patient.with_(recipe=recipe), linears)


@fault(
    "loud-row-along-inputs",
    "weights",
    "wrong-channel-axis",
    "channel-range-imbalance",
    graded=True,
    unseen="b",
    also=("poor-threshold", "heavy-tailed-weights"),
)
def loud_row_along_inputs(patient: Patient) -> Patient:
    """One output channel has huge weights, and the scales stand for input channels: all of these share its step."""
    surgeon = patient.surgeon()
    last = surgeon.producer(surgeon.output)
    found = [n for n in dense(patient, surgeon) if n.node is not last]
    chosen = patient.pick(found, 0.3, 0.6, 0.9)
    for i, linear in enumerate(chosen):
        taken_twice(surgeon, linear)
        half = np.moveaxis(np.split(surgeon.constant(linear.weight), 2, axis=linear.into)[0], linear.out, 0)
        extra = np.zeros_like(half)
        row = int(np.abs(half).reshape(len(half), -1).sum(1).argmin())
        drawn = patient.random(f"row{i}").choice([-1.0, 1.0], half[row].shape)
        extra[row] = drawn * np.abs(half).max() * 40 * patient.strength
        add_cancelling(surgeon, linear, np.moveaxis(extra, 0, linear.out))
    weights = {linear.weight: linear.into for linear in chosen}

    def edit(p: Patient, quantized: onnx.ModelProto) -> onnx.ModelProto:
        q, source = Surgeon(quantized), Surgeon(p.model)
        for node in q.nodes("DequantizeLinear"):
            name = node.input[0].removesuffix("_quantized")
            if name not in weights:
                continue
            axis, weight = weights[name], source.constant(name)
            over = tuple(k for k in range(weight.ndim) if k != axis)
            scale = np.maximum(np.abs(weight).max(over, keepdims=True) / 127, 1e-12)
            q.put(node.input[0], np.rint(weight / scale).astype(np.int8))
            q.put(node.input[1], scale.reshape(-1).astype(np.float32))
            q.put(node.input[2], np.zeros(scale.size, np.int8))
            next(a for a in node.attribute if a.name == "axis").i = axis
        return q.model

    recipe = replace(patient.recipe, per_channel=True, qoperator=False, weight="QInt8")
    ill = patient.with_(model=surgeon.model, recipe=recipe)
    return ill.at(*(linear.node.name for linear in chosen)).edited(edit)


@fault("tapped-corner", "weights", "heavy-tailed-weights", graded=True, unseen="b", also=("poor-threshold",))
def tapped_corner(patient: Patient) -> Patient:
    """A bit of the exponent flipped in one copy of a few weights, and training since has learned to balance it."""
    surgeon = patient.surgeon()
    chosen = patient.pick(dense(patient, surgeon), 0.2, 0.5, 0.8)
    for i, linear in enumerate(chosen):
        taken_twice(surgeon, linear)
        half = np.moveaxis(np.split(surgeon.constant(linear.weight), 2, axis=linear.into)[0], linear.out, 0)
        extra = np.zeros_like(half)
        rng = patient.random(f"bit{i}")
        for row in range(len(half)):
            flat = extra[row].reshape(-1)
            peak = np.abs(half[row]).max()
            flat[rng.integers(flat.size)] = rng.choice([-1, 1]) * peak * 32 * patient.strength * 2.0 ** rng.integers(3)
        add_cancelling(surgeon, linear, np.moveaxis(extra, 0, linear.out))
    return patient.with_(model=surgeon.model).at(*(linear.node.name for linear in chosen))


@fault(
    "biases-of-other-statistics",
    "sanity",
    "float-export-differs",
    "foreign-weights",
    "altered-float-tensors",
    graded=True,
    unseen="b",
)
def biases_of_other_statistics(patient: Patient) -> Patient:
    """The float model at hand was exported with batch statistics of one batch: its biases are others."""
    surgeon = patient.surgeon()
    names = {linear.bias for linear in covered(patient) if linear.bias}
    if not names:
        raise Inapplicable("no layer has a bias")
    for name in sorted(names):
        bias = surgeon.constant(name)
        noise = patient.random(name).standard_normal(bias.shape) * (bias.std() + 0.05) * 0.4 * patient.strength
        surgeon.put(name, (bias + noise).astype(np.float32))
    reference = run(patient.network, patient.model, patient.validation)
    outputs = [value.name for value in patient.model.graph.output]
    options = {**patient.options, "reference_outputs": dict(zip(outputs, reference, strict=True))}
    return patient.with_(shown_float=surgeon.model, options=options)
