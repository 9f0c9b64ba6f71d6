"""Healthy models of set C: each looks as if something were wrong with it, and nothing is."""

from dataclasses import replace

import numpy as np
import onnx

from ..controls import control
from ..faults_activations import extremes
from ..faults_data import images
from ..patient import Patient
from ..surgery import Inapplicable, Surgeon
from ..unseen_a.cuts import (
    add_cancelling,
    channel_peaks,
    covered,
    dense,
    float_input,
    kept,
    per_channel,
    spots,
    taken_twice,
)
from ..unseen_a.data import real_numbers


@control("as-it-is", unseen="c")
def as_it_is(patient: Patient) -> Patient:
    """Nothing is changed."""
    return patient


@control("per-tensor-symmetric-weights", unseen="c")
def per_tensor(patient: Patient) -> Patient:
    """One scale for all channels, which these networks bear."""
    return patient.with_(recipe=replace(patient.recipe, per_channel=False, weight="QInt8"))


@control("sixteen-bits-throughout", unseen="c")
def sixteen_bits(patient: Patient) -> Patient:
    """Activations in 16 bits, unsigned."""
    return patient.with_(recipe=replace(patient.recipe, activation="QUInt16", qoperator=False, method="MinMax"))


@control("scales-of-half-precision", unseen="c")
def scales_of_half_precision(patient: Patient) -> Patient:
    """All scales went through half precision: none is quite what the ranges give."""

    def edit(p: Patient, quantized: onnx.ModelProto) -> onnx.ModelProto:
        surgeon = Surgeon(quantized)
        for node in surgeon.nodes("QuantizeLinear", "DequantizeLinear"):
            scale = surgeon.constant(node.input[1])
            # Scales of biases are products, far below the numbers of half precision.
            if scale is not None and scale.min() > 1e-4:
                surgeon.put(node.input[1], scale.astype(np.float16).astype(np.float32))
        return surgeon.model

    return patient.with_(recipe=replace(patient.recipe, qoperator=False)).edited(edit)


@control("copies-that-cancel-a-little", unseen="c")
def copies_that_cancel_a_little(patient: Patient) -> Patient:
    """A layer reads its input twice, with weights twice as large that partly cancel."""
    surgeon = patient.surgeon()
    for i, linear in enumerate(patient.pick(dense(patient, surgeon), 0.5)):
        taken_twice(surgeon, linear)
        half = np.split(surgeon.constant(linear.weight), 2, axis=linear.into)[0]
        drawn = patient.random(f"little{i}").normal(0, half.std() * 0.25, half.shape)
        add_cancelling(surgeon, linear, drawn.astype(np.float32))
    return patient.with_(model=surgeon.model)


@control("half-of-the-samples-twice", unseen="c")
def half_twice(patient: Patient) -> Patient:
    """A hundred samples, each twice: duplicates that cost nothing."""
    return patient.with_(calibration=np.repeat(patient.calibration[::2], 2, 0))


@control("some-blank-among-many", unseen="c")
def some_blank(patient: Patient) -> Patient:
    """One sample of eight is zero; the others show all that there is."""
    inputs = np.concatenate(
        [real_numbers(patient), np.zeros_like(patient.calibration[: len(patient.calibration) // 8])]
    )
    return patient.with_(calibration=inputs)


@control("mirrored-pictures", unseen="c")
def mirrored(patient: Patient) -> Patient:
    """Calibrated with mirrored pictures."""
    images(patient)
    return patient.with_(calibration=np.ascontiguousarray(patient.calibration[..., ::-1]))


@control("samples-in-another-order", unseen="c")
def another_order(patient: Patient) -> Patient:
    """The set is sorted by how loud the samples are."""
    order = np.argsort(patient.reach(patient.calibration))
    return patient.with_(calibration=patient.calibration[order])


@control("dead-but-harmless-channels", unseen="c")
def dead_channels(patient: Patient) -> Patient:
    """A layer reads two channels more that are always zero."""
    surgeon = patient.surgeon()
    linear = patient.pick(dense(patient, surgeon), 0.6)[0]
    tensor = linear.node.input[0]
    rank, axis = len(surgeon.shape(tensor)), surgeon.channel_axis(tensor)
    pads = np.zeros((2, rank), np.int64)
    pads[1, axis] = 2
    size = surgeon.put(f"{linear.node.name}_dead_pads", pads.reshape(-1))
    padded = surgeon.add("Pad", [tensor, size], f"{linear.node.name}_with_dead", surgeon.producer(tensor))
    linear.node.input[0] = padded
    weight = surgeon.constant(linear.weight)
    more = np.take(weight, [0, 0], linear.into)
    surgeon.put(surgeon.own(linear, 1), np.concatenate([weight, more], linear.into))
    return patient.with_(model=surgeon.model)


@control("gain-and-its-inverse", unseen="c")
def gain_and_inverse(patient: Patient) -> Patient:
    """Channels are scaled by up to a half more or less, and back."""
    surgeon = patient.surgeon()
    tensor = patient.pick(spots(patient), 0.5)[0]
    channel_peaks(patient, tensor)
    gain = np.exp(patient.random("gain").uniform(-0.3, 0.3, surgeon.channels(tensor)))
    up = surgeon.put(f"{tensor}_some_gain", per_channel(surgeon, tensor, gain))
    down = surgeon.put(f"{tensor}_its_inverse", per_channel(surgeon, tensor, 1 / gain))
    scaled = surgeon.insert_after(tensor, "Mul", [up], f"{tensor}_with_some_gain")
    surgeon.insert_after(scaled, "Mul", [down], f"{tensor}_with_its_inverse")
    return patient.with_(model=surgeon.model)


@control("inputs-in-another-unit", unseen="c")
def another_unit(patient: Patient) -> Patient:
    """Inputs are a thousand times as large and divided first: the numbers look raw, and the network wants them so."""
    surgeon = patient.surgeon()
    name = float_input(surgeon)
    surgeon.insert_after(name, "Mul", [surgeon.put("to_usual_unit", np.float32(1e-3))], "in_usual_unit")
    moved = {k: (getattr(patient, k) * np.float32(1e3)) for k in ("calibration", "validation")}
    return patient.with_(model=surgeon.model, **moved)


@control("ranges-a-little-off", unseen="c")
def ranges_a_little_off(patient: Patient) -> Patient:
    """Ranges up to a tenth wider than measured: another run of the calibrator."""
    tensors = patient.activations()
    rng = patient.random("off")
    recipe = kept(patient.recipe)
    for tensor, (low, high) in zip(tensors, extremes(patient, *tensors), strict=True):
        recipe = recipe.with_range(tensor, low * rng.uniform(1.02, 1.1), max(high * rng.uniform(1.02, 1.1), 1e-5))
    return patient.with_(recipe=recipe)


@control("one-small-layer-in-float", unseen="c")
def one_in_float(patient: Patient) -> Patient:
    """One layer is left out on purpose."""
    linears = covered(patient)
    if len(linears) < 4 or not linears[-1].node.name:
        raise Inapplicable("too few layers")
    return patient.with_(recipe=replace(patient.recipe, exclude=(*patient.recipe.exclude, linears[0].node.name)))
