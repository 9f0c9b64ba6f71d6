"""Unseen faults of weights and biases, set D."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import onnx
from numpy.typing import NDArray

from ..fault import fault
from ..mild import costly, severe
from ..patient import Patient
from ..surgery import Inapplicable, Linear, Surgeon
from ..unseen_a.cuts import at_layers, channel_peaks, covered, recoded


def apart(patient: Patient, surgeon: Surgeon) -> list[Linear]:
    """Covered layers of a model under the knife, the last one left out."""
    names = {linear.weight for linear in covered(patient)}
    return [n for n in surgeon.linears() if n.weight in names and n.node.output[0] != surgeon.output]


def deployed(patient: Patient, surgeon: Surgeon, linears: list[Linear]) -> Patient:
    """What was cut is quantized; the expert is shown the model before the cut."""
    sound = patient.shown_float or patient.model
    return patient.with_(model=surgeon.model, shown_float=sound).at(*(linear.node.name for linear in linears))


@fault(
    "through-floats-of-eight-bits",
    "weights",
    "too-few-weight-bits",
    "foreign-weights",
    graded=True,
    unseen="d",
    also=("altered-float-tensors", "layer-worse-than-peers"),
)
@severe(0.6, 16)
def through_floats_of_eight_bits(patient: Patient, amount: float) -> Patient:
    """Weights were stored as floats of eight bits, few of them for the fraction, before they became integers."""

    def change(codes: NDArray, _: Linear) -> NDArray:
        power = 2.0 ** np.floor(np.log2(np.maximum(np.abs(codes), 1e-9)))
        step = np.maximum(power * amount / 16, 1e-9)
        return np.rint(codes / step) * step

    return recoded(patient, covered(patient), change)


@fault(
    "tiles-misread",
    "weights",
    "foreign-weights",
    unseen="d",
    also=("misread-codes", "layer-worse-than-peers", "float-export-differs", "wrong-channel-axis"),
)
@costly
def tiles_misread(patient: Patient) -> Patient:
    """Weights are packed in tiles of four inputs, and each pair of tiles is unpacked the wrong way round."""
    source = patient.surgeon()
    layers = [n for n in covered(patient) if not n.depthwise and source.constant(n.weight).shape[n.into] >= 8]

    def change(codes: NDArray, linear: Linear) -> NDArray:
        count = codes.shape[linear.into] // 8 * 8
        order = np.arange(codes.shape[linear.into])
        order[:count] = order[:count].reshape(-1, 2, 4)[:, ::-1].reshape(-1)
        return np.take(codes, order, linear.into)

    return recoded(patient, patient.pick(layers, 0.5), change)


@fault(
    "kernels-turned-round",
    "weights",
    "foreign-weights",
    "float-export-differs",
    unseen="d",
    also=("layer-worse-than-peers", "altered-float-tensors"),
)
@costly
def kernels_turned_round(patient: Patient) -> Patient:
    """A library that convolves in the strict sense got the kernels of one that correlates, in some layers."""
    source = patient.surgeon()
    found = [n for n in covered(patient) if source.constant(n.weight).ndim == 4]
    found = [n for n in found if np.prod(source.constant(n.weight).shape[2:]) > 1]
    return recoded(patient, patient.pick(found, 0.4, 0.8), lambda codes, _: codes[:, :, ::-1, ::-1])


@fault(
    "equalized-on-one-side",
    "weights",
    "foreign-weights",
    "float-export-differs",
    graded=True,
    unseen="d",
    also=("altered-float-tensors", "channel-range-imbalance"),
)
@severe(0.003, 3)
def equalized_on_one_side(patient: Patient, amount: float) -> Patient:
    """Channels were evened out between two layers, and only the layer that reads them was written back."""
    surgeon = patient.surgeon()
    found = [n for n in apart(patient, surgeon) if not n.depthwise]
    chosen = patient.pick(found, 0.3, 0.7)
    for i, linear in enumerate(chosen):
        size = surgeon.constant(linear.weight).shape[linear.into]
        gain = np.exp(patient.random(f"even{i}").normal(0, amount, size)).astype(np.float32)
        surgeon.scale_weights(linear, linear.into, gain, bias=False)
    return deployed(patient, surgeon, chosen)


@fault(
    "smoothed-too-far",
    "weights",
    "heavy-tailed-weights",
    "channel-range-imbalance",
    "channel-outliers",
    graded=True,
    unseen="d",
    also=("too-few-weight-bits", "layer-worse-than-peers"),
)
@severe(0.2, 12)
def smoothed_too_far(patient: Patient, amount: float) -> Patient:
    """Loud channels were made quiet and the weights that read them loud, by a power that was too high."""
    surgeon = patient.surgeon()
    marks = []
    for tensor in patient.pick(surgeon.amplifiable(), 0.3, 0.7):
        peaks = np.maximum(channel_peaks(patient, tensor), 1e-3 * channel_peaks(patient, tensor).max())
        gain = (peaks / np.exp(np.log(peaks).mean())) ** -amount
        surgeon.amplify(tensor, gain.clip(1e-6, 1e6).astype(np.float32))
        marks += [node.name for node in surgeon.consumers(tensor) if surgeon.linear(node)]
    return patient.with_(model=surgeon.model).at(*marks)


@fault(
    "adapter-left-out",
    "weights",
    "foreign-weights",
    "float-export-differs",
    graded=True,
    unseen="d",
    also=("altered-float-tensors",),
)
@severe(0.01, 4)
def adapter_left_out(patient: Patient, amount: float) -> Patient:
    """The float model has its adapters of low rank merged; the one that was quantized has none."""
    surgeon = patient.surgeon()
    found = [n for n in surgeon.linears() if n.weight in {m.weight for m in covered(patient)} and not n.depthwise]
    chosen = patient.pick(found, 0.4, 0.9)
    for i, linear in enumerate(chosen):
        weight, rng = surgeon.constant(linear.weight), patient.random(f"adapter{i}")
        flat = weight.reshape(weight.shape[0], -1)
        change = rng.standard_normal((len(flat), 2)) @ rng.standard_normal((2, flat.shape[1]))
        change *= amount * np.linalg.norm(flat) / np.linalg.norm(change)
        surgeon.put(surgeon.own(linear, 1), (flat + change).reshape(weight.shape).astype(np.float32))
    return patient.with_(shown_float=surgeon.model).at(*(linear.node.name for linear in chosen))


@fault(
    "biases-in-sorted-order",
    "weights",
    "foreign-weights",
    "weight-induced-bias-shift",
    unseen="d",
    also=("float-export-differs", "altered-float-tensors"),
)
@costly
def biases_in_sorted_order(patient: Patient) -> Patient:
    """Biases were written in the order of their names, where ten comes before two: equal lengths change places."""
    surgeon = patient.surgeon()
    groups: dict[int, list[Linear]] = defaultdict(list)
    for linear in apart(patient, surgeon):
        if linear.bias and linear.bias not in {n.bias for group in groups.values() for n in group}:
            groups[len(surgeon.constant(linear.bias))].append(linear)
    chosen = groups[patient.pick([size for size, group in groups.items() if len(group) > 1], 0.6)[0]]
    values = [surgeon.constant(linear.bias) for linear in chosen]
    for linear, value in zip(chosen, [*values[1:], values[0]], strict=True):
        surgeon.put(linear.bias, value)
    return deployed(patient, surgeon, chosen)


@fault(
    "two-of-four-kept",
    "weights",
    "foreign-weights",
    "too-few-weight-bits",
    unseen="d",
    also=("altered-float-tensors", "float-export-differs", "layer-worse-than-peers"),
)
@costly
def two_of_four_kept(patient: Patient) -> Patient:
    """The compiler's option for sparse hardware zeroed the two smallest of each four weights, without training."""

    def change(codes: NDArray, linear: Linear) -> NDArray:
        moved = np.moveaxis(codes, linear.into, -1).copy()
        count = moved.shape[-1] // 4 * 4
        fours = moved[..., :count].reshape(*moved.shape[:-1], -1, 4)
        small = np.argsort(np.abs(fours), -1)[..., :2]
        np.put_along_axis(fours, small, 0, -1)
        moved[..., :count] = fours.reshape(*moved.shape[:-1], count)
        return np.moveaxis(moved, -1, linear.into)

    source = patient.surgeon()
    found = [n for n in covered(patient) if source.constant(n.weight).shape[n.into] >= 4]
    return recoded(patient, patient.pick(found, 0.2, 0.5, 0.8), change)


#: From a kernel of three to the six points of the fast transform for tiles of four.
POINTS = np.array([[6, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 24]]) / 24


@fault(
    "through-the-fast-transform",
    "weights",
    "too-few-weight-bits",
    "foreign-weights",
    graded=True,
    unseen="d",
    also=("altered-float-tensors", "layer-worse-than-peers"),
)
@severe(0.3, 60)
def through_the_fast_transform(patient: Patient, amount: float) -> Patient:
    """Kernels of three by three were rounded in the domain of the fast algorithm, where they have few levels."""
    source = patient.surgeon()
    found = [n for n in covered(patient) if source.constant(n.weight).shape[2:] == (3, 3)]
    back = np.linalg.pinv(POINTS)

    def change(codes: NDArray, _: Linear) -> NDArray:
        points = POINTS @ codes @ POINTS.T
        step = np.abs(points).max((1, 2, 3), keepdims=True) / 127 * amount
        return back @ (np.rint(points / np.maximum(step, 1e-9)) * step) @ back.T

    return recoded(patient, patient.pick(found, 0.2, 0.5, 0.8), change)


@fault(
    "bit-that-sticks",
    "weights",
    "foreign-weights",
    "misread-codes",
    graded=True,
    unseen="d",
    also=("altered-float-tensors", "layer-worse-than-peers", "too-few-weight-bits"),
)
@severe(0.0005, 0.5)
def bit_that_sticks(patient: Patient, amount: float) -> Patient:
    """In a share of the cells of the memory of weights, the sixth bit is always set."""
    rng = patient.random("cells")
    chosen = patient.pick(covered(patient), 0.25, 0.75)
    cells = {n.weight: rng.random(patient.surgeon().constant(n.weight).shape) < amount for n in chosen}

    def change(codes: NDArray, linear: Linear) -> NDArray:
        stuck = (codes.astype(np.int64) & 0xFF) | 0x20
        return np.where(cells[linear.weight], stuck - 256 * (stuck > 127), codes)

    return recoded(patient, chosen, change)


@fault(
    "standardized-once-more",
    "weights",
    "foreign-weights",
    "weight-induced-bias-shift",
    graded=True,
    unseen="d",
    also=("float-export-differs", "altered-float-tensors", "layer-worse-than-peers"),
)
@severe(0.01, 1.5)
def standardized_once_more(patient: Patient, amount: float) -> Patient:
    """A layer that standardizes its weights was exported with its gains applied, and is centred once more."""
    surgeon = patient.surgeon()
    chosen = patient.pick([n for n in apart(patient, surgeon) if not n.depthwise], 0.2, 0.6)
    for linear in chosen:
        weight = surgeon.constant(linear.weight)
        over = tuple(i for i in range(weight.ndim) if i != linear.out)
        surgeon.put(surgeon.own(linear, 1), (weight - amount * weight.mean(over, keepdims=True)).astype(np.float32))
    return deployed(patient, surgeon, chosen)


@fault(
    "scales-cut-short",
    "weights",
    "misread-codes",
    "foreign-weights",
    graded=True,
    unseen="d",
    also=("wrong-channel-axis", "stale-calibration", "layer-worse-than-peers"),
)
@severe(0.003, 20)
def scales_cut_short(patient: Patient, amount: float) -> Patient:
    """Scales of weights were rounded to a short fraction when the file was packed; the codes are those of before."""
    chosen = patient.pick(covered(patient), 0.2, 0.5, 0.8)

    def edit(p: Patient, quantized: onnx.ModelProto) -> onnx.ModelProto:
        surgeon = Surgeon(quantized)
        for linear in chosen:
            scale = surgeon.constant(f"{linear.weight}_scale")
            if scale is None:
                raise Inapplicable(f"{linear.weight} has no scale")
            step = np.log1p(amount)
            short = np.exp(np.floor(np.log(scale) / step) * step).astype(np.float32)
            surgeon.put(f"{linear.weight}_scale", short)
        return surgeon.model

    recipe = replace(patient.recipe, per_channel=True, weight="QInt8")
    return at_layers(patient.with_(recipe=recipe), chosen).edited(edit)
