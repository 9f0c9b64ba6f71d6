"""Unseen faults of weights and biases, set C."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx
from numpy.typing import NDArray

from ..fault import fault
from ..mild import mild
from ..patient import Patient
from ..surgery import Inapplicable, Linear, Surgeon
from ..unseen_a.cuts import add_cancelling, at_layers, covered, dense, few_codes, recoded, taken_twice


@fault(
    "dithered-codes",
    "weights",
    "foreign-weights",
    "too-few-weight-bits",
    graded=True,
    unseen="c",
    also=("layer-worse-than-peers",),
)
@mild(0.3, 60)
def dithered_codes(patient: Patient, amount: float) -> Patient:
    """Weights were rounded up or down by chance, and by more than one code: a packer with dither left on."""
    rng = patient.random("dither")
    linears = patient.pick(covered(patient), 0.25, 0.55, 0.85)
    noise = {n.weight: rng.uniform(-1, 1, patient.surgeon().constant(n.weight).shape) for n in linears}
    return recoded(patient, linears, lambda codes, n: codes + amount * noise[n.weight])


@fault(
    "lower-bits-dropped",
    "weights",
    "too-few-weight-bits",
    "weight-induced-bias-shift",
    graded=True,
    unseen="c",
    also=("foreign-weights",),
)
def lower_bits_dropped(patient: Patient) -> Patient:
    """The lower part of each code was dropped, not rounded, when the memory became narrow."""
    step = 2 ** np.rint(1 + 1.2 * np.log2(1 + patient.strength))
    chosen = patient.pick(covered(patient), 0.2, 0.5, 0.8)
    return recoded(patient, chosen, lambda codes, _: np.floor(codes / step) * step)


@fault(
    "pruned-after-all",
    "weights",
    "foreign-weights",
    "too-few-weight-bits",
    graded=True,
    unseen="c",
    also=("layer-worse-than-peers",),
)
@mild(0.01, 0.9)
def pruned_after_all(patient: Patient, amount: float) -> Patient:
    """The smallest weights were set to zero in the packed file, for a sparse kernel, without training again."""

    def change(codes: NDArray, _: Linear) -> NDArray:
        size = np.abs(codes)
        return np.where(size <= np.quantile(size, min(amount, 0.95)), 0, codes)

    linears = covered(patient)
    return recoded(patient, linears[: max(2, len(linears) // 2)], change)


@fault("weights-cut-by-deviation", "weights", "poor-threshold", graded=True, unseen="c", also=("foreign-weights",))
@mild(0.3, 20)
def weights_cut_by_deviation(patient: Patient, amount: float) -> Patient:
    """The ranges of weights end after a few deviations, and what lies beyond is cut off: a recipe for large models."""
    source = patient.surgeon()
    recipe = replace(patient.recipe, per_channel=False, weight="QInt8")
    linears = covered(patient)
    for linear in linears:
        weight = source.constant(linear.weight)
        reach = min(float(weight.std()) * 5 / amount, float(np.abs(weight).max()))
        recipe = recipe.with_range(linear.weight, -reach, reach)
    return at_layers(patient.with_(recipe=recipe), linears)


@fault(
    "decades-of-rows",
    "weights",
    "channel-range-imbalance",
    graded=True,
    unseen="c",
    heal=lambda p: p.with_(recipe=replace(p.recipe, per_channel=True)),
    also=("heavy-tailed-weights", "poor-threshold"),
)
@mild(0.05, 4)
def decades_of_rows(patient: Patient, amount: float) -> Patient:
    """The quieter output channels have weights over some decades, which cancel; one scale serves all channels."""
    surgeon = patient.surgeon()
    chosen = patient.pick(dense(patient, surgeon), 0.3, 0.7)
    for i, linear in enumerate(chosen):
        taken_twice(surgeon, linear)
        half = np.moveaxis(np.split(surgeon.constant(linear.weight), 2, axis=linear.into)[0], linear.out, 0)
        rng = patient.random(f"decades{i}")
        size = 10 ** (rng.uniform(0, 1, len(half)) * amount) - 1
        size[np.argsort(np.abs(half).reshape(len(half), -1).sum(1))[max(1, len(half) // 4) :]] = 0
        drawn = rng.uniform(0.5, 1, half.shape) * rng.choice([-1.0, 1.0], half.shape)
        extra = drawn * np.abs(half).max() * size.reshape(-1, *(1,) * (half.ndim - 1))
        add_cancelling(surgeon, linear, np.moveaxis(extra, 0, linear.out))
    recipe = replace(patient.recipe, per_channel=False)
    return patient.with_(model=surgeon.model, recipe=recipe).at(*(linear.node.name for linear in chosen))


Code = Callable[[NDArray, NDArray], NDArray]


def _biases(patient: Patient, linears: list[Linear], change: Code) -> Patient:
    """The codes of some biases changed; ``change`` gets them and their scale."""
    names = list(dict.fromkeys(linear.bias for linear in linears if linear.bias))
    if not names:
        raise Inapplicable("no layer has a bias")

    def edit(p: Patient, quantized: onnx.ModelProto) -> onnx.ModelProto:
        surgeon = Surgeon(quantized)
        limits = np.iinfo(np.int32)
        for name in names:
            codes, scale = (surgeon.constant(f"{name}_{part}") for part in ("quantized", "quantized_scale"))
            if codes is None or scale is None or codes.dtype != np.int32:
                raise Inapplicable("a bias has no codes")
            moved = np.rint(change(codes.astype(np.float64), scale.astype(np.float64)))
            surgeon.put(f"{name}_quantized", np.clip(moved, limits.min, limits.max).astype(np.int32))
        return surgeon.model

    return at_layers(patient, [n for n in linears if n.bias]).edited(edit)


@fault(
    "biases-of-eight-bits",
    "weights",
    "weight-induced-bias-shift",
    "bias-overflow",
    graded=True,
    unseen="c",
)
@mild(0.5, 127)
def biases_of_eight_bits(patient: Patient, amount: float) -> Patient:
    """The target keeps biases in a byte or less: they were rounded to steps of the largest of each layer."""

    def change(codes: NDArray, scale: NDArray) -> NDArray:
        values = codes * scale
        step = max(float(np.abs(values).max()), 1e-12) / 127 * amount
        return np.rint(values / step) * step / np.maximum(scale, 1e-30)

    return _biases(patient, covered(patient), change)


@fault("bias-of-another-input", "weights", "weight-induced-bias-shift", graded=True, unseen="c")
@mild(0.01, 20)
def bias_of_another_input(patient: Patient, amount: float) -> Patient:
    """Biases were quantized with the input scale of an earlier calibration, and are read with that of today."""
    linears = [n for n in covered(patient) if n.bias]
    return _biases(patient, patient.pick(linears, 0.3, 0.6, 0.9), lambda codes, _: codes * (1 + amount))


@fault("bias-left-behind", "weights", "weight-induced-bias-shift", unseen="c", also=("foreign-weights",))
def bias_left_behind(patient: Patient) -> Patient:
    """Fusing a layer with what follows left its bias behind."""
    linears = [n for n in covered(patient) if n.bias]
    return _biases(patient, patient.pick(linears, 0.5), lambda codes, _: codes * 0)


@fault(
    "folded-with-another-epsilon",
    "weights",
    "foreign-weights",
    "float-export-differs",
    graded=True,
    unseen="c",
    also=("batch-norm-not-folded", "batch-norm-blow-up"),
)
@mild(0.005, 1.5)
def folded_with_another_epsilon(patient: Patient, amount: float) -> Patient:
    """The norm was folded into the deployed weights with other numbers: each channel is off by a factor of its own."""
    surgeon = patient.surgeon()
    names = {n.weight for n in covered(patient)}
    linears = [n for n in surgeon.linears() if n.weight in names and n.node.output[0] != surgeon.output]
    chosen = patient.pick(linears, 0.2, 0.5, 0.8)
    for i, linear in enumerate(chosen):
        size = surgeon.constant(linear.weight).shape[linear.out]
        gain = np.exp(-np.abs(patient.random(f"epsilon{i}").normal(0, amount, size))).astype(np.float32)
        surgeon.scale_weights(linear, linear.out, gain, bias=False)
    sound = patient.shown_float or patient.model
    return patient.with_(model=surgeon.model, shown_float=sound).at(*(linear.node.name for linear in chosen))


@fault("last-layer-in-some-levels", "precision", "last-layer-bitwidth", "too-few-weight-bits", graded=True, unseen="c")
@mild(1, 200)
def last_layer_in_some_levels(patient: Patient, amount: float) -> Patient:
    """A search for bit widths gave the last layer a few, which were stored in bytes."""
    return recoded(patient, covered(patient)[-1:], few_codes(127 / amount))


@fault(
    "turned-square",
    "weights",
    "foreign-weights",
    "wrong-channel-axis",
    unseen="c",
    also=("float-export-differs",),
)
def turned_square(patient: Patient) -> Patient:
    """Square weights were transposed on the way into the deployed file; no shape gives it away."""
    source = patient.surgeon()
    shapes = ((n, source.constant(n.weight).shape) for n in covered(patient) if not n.depthwise)
    square = [n for n, shape in shapes if shape[n.out] == shape[n.into]]
    chosen = patient.pick(square, 0.6)
    return recoded(patient, chosen, lambda codes, n: np.swapaxes(codes, n.out, n.into))


@fault(
    "scales-one-place-on",
    "weights",
    "wrong-channel-axis",
    "foreign-weights",
    "misread-codes",
    unseen="c",
    also=("channel-range-imbalance",),
)
def scales_one_place_on(patient: Patient) -> Patient:
    """A table of scales begins with a number that is none: each channel is read with its neighbour's."""
    chosen = patient.pick(covered(patient), 0.2, 0.6)

    def edit(p: Patient, quantized: onnx.ModelProto) -> onnx.ModelProto:
        surgeon = Surgeon(quantized)
        for linear in chosen:
            scale = surgeon.constant(f"{linear.weight}_scale")
            if scale is None or scale.size < 2:
                raise Inapplicable(f"{linear.weight} has one scale")
            surgeon.put(f"{linear.weight}_scale", np.roll(scale, 1))
        return surgeon.model

    recipe = replace(patient.recipe, per_channel=True, weight="QInt8")
    return at_layers(patient.with_(recipe=recipe), chosen).edited(edit)


@fault("head-trained-on", "sanity", "foreign-weights", "float-export-differs", graded=True, unseen="c")
@mild(0.005, 3)
def head_trained_on(patient: Patient, amount: float) -> Patient:
    """The head of the float model was trained on after the network had been quantized."""
    surgeon = patient.surgeon()
    last = covered(patient)[-1].node.name
    linear = next(n for n in surgeon.linears() if n.node.name == last)
    weight = surgeon.constant(linear.weight)
    change = patient.random("trained").standard_normal(weight.shape) * weight.std() * amount
    surgeon.put(surgeon.own(linear, 1), (weight + change).astype(np.float32))
    return patient.with_(shown_float=surgeon.model).at(last)
