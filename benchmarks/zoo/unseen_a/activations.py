"""Unseen faults of activation ranges, set A."""

from dataclasses import replace

import numpy as np
import onnx

from ..fault import fault
from ..faults_activations import extremes
from ..patient import Patient
from ..surgery import Inapplicable, Surgeon
from .cuts import channel_peaks, float_input, kept, per_channel, spots


@fault("companded-negatives", "activations", "negative-activations", graded=True, unseen="a", also=("error-amplifier",))
def companded_negatives(patient: Patient) -> Patient:
    """Two leaky rectifiers in a row, of which the second undoes the first: between them negatives have few codes."""
    surgeon = patient.surgeon()
    found = [t for t, x in zip(spots(patient), patient.values(*spots(patient)), strict=True) if (x < 0).mean() > 0.2]
    if not found:
        found = [float_input(surgeon)]
    slope = 1 / (1 + 100 * patient.strength)
    chosen = patient.pick(found, 0.3, 0.7)
    marks = []
    for tensor in chosen:
        leaky = surgeon.insert_after(tensor, "LeakyRelu", alpha=slope)
        surgeon.insert_after(leaky, "LeakyRelu", alpha=1 / slope)
        marks.append(leaky)
    return patient.with_(model=surgeon.model).at(*marks)


@fault("worst-case-ranges", "activations", "poor-threshold", graded=True, unseen="a")
def worst_case_ranges(patient: Patient) -> Patient:
    """Ranges were not measured but bounded: every product at its worst, all of one sign."""
    surgeon = patient.surgeon()
    linears = {linear.node.output[0]: linear for linear in surgeon.linears()}
    tensors = patient.activations()
    recipe = kept(patient.recipe)
    changed = []
    for tensor, (low, high) in zip(tensors, extremes(patient, *tensors), strict=True):
        node = surgeon.producer(tensor)
        linear = linears.get(tensor) or linears.get(node.input[0] if node.input else "")
        if linear is None or node.op_type in ("Sigmoid", "Softmax"):
            continue
        weight = np.abs(surgeon.constant(linear.weight))
        rows = weight.sum(tuple(i for i in range(weight.ndim) if i != linear.out))
        source = patient.values(linear.node.input[0])[0]
        bound = float(rows.max() * np.abs(source).max()) * patient.strength
        recipe = recipe.with_range(tensor, min(low, -bound if low < 0 else 0), max(high, bound))
        changed.append(tensor)
    if not changed:
        raise Inapplicable("no layer's output has a range of its own")
    return patient.with_(recipe=recipe)


@fault("upper-end-cut", "activations", "over-clipped-activations", graded=True, unseen="a")
def upper_end_cut(patient: Patient) -> Patient:
    """The upper end alone is far too low in some tensors: a moving average that began at zero."""
    surgeon = patient.surgeon()
    found = [t for t in spots(patient) if surgeon.producer(t).op_type not in ("Sigmoid", "Softmax")]
    chosen = patient.pick(found, 0.15, 0.5, 0.9)
    recipe = patient.recipe
    for tensor, (low, high) in zip(chosen, extremes(patient, *chosen), strict=True):
        recipe = recipe.with_range(tensor, low, max(high / (4 * patient.strength), 1e-4))
    return patient.with_(recipe=recipe).at(*chosen)


@fault(
    "spread-channels",
    "activations",
    "channel-outliers",
    "massive-activations",
    graded=True,
    unseen="a",
    also=("activation-outliers",),
)
def spread_channels(patient: Patient) -> Patient:
    """Learned gains per channel over several decades, taken back behind the next operator."""
    surgeon = patient.surgeon()
    chosen = patient.pick(spots(patient), 0.25, 0.55, 0.85)
    marks = []
    for i, tensor in enumerate(chosen):
        decades = 1.2 + 0.8 * np.log10(1 + patient.strength)
        gain = 10 ** patient.random(f"gain{i}").uniform(-decades, decades, surgeon.channels(tensor))
        up = surgeon.put(f"{tensor}_gain", per_channel(surgeon, tensor, gain))
        down = surgeon.put(f"{tensor}_loss", per_channel(surgeon, tensor, 1 / gain))
        mark = surgeon.insert_after(tensor, "Mul", [up], f"{tensor}_with_gain")
        surgeon.insert_after(mark, "Mul", [down], f"{tensor}_without_gain")
        marks.append(mark)
    return patient.with_(model=surgeon.model).at(*marks)


@fault("never-awake", "activations", "degenerate-range", unseen="a", also=("stale-calibration",))
def never_awake(patient: Patient) -> Patient:
    """A tensor that was all zeros when the ranges were taken: from zero to zero."""
    chosen = patient.pick(spots(patient), 0.6)
    recipe = patient.recipe
    for tensor in chosen:
        recipe = recipe.with_override(
            tensor, scale=np.array(np.finfo(np.float32).tiny, np.float32), zero_point=recipe.zero_point
        )
    return patient.with_(recipe=recipe).at(*chosen)


@fault(
    "next-power-of-two",
    "activations",
    "power-of-two-waste",
    "poor-threshold",
    graded=True,
    unseen="a",
)
def next_power_of_two(patient: Patient) -> Patient:
    """Steps rounded up to a power of two, with headroom for sums, on a grid that keeps its zero point."""
    surgeon = patient.surgeon()
    chosen = [t for t in spots(patient) if surgeon.producer(t).op_type not in ("Sigmoid", "Softmax")]
    recipe = kept(patient.recipe, symmetric=False)
    zero = recipe.zero_point
    limits = np.iinfo(zero.dtype)
    bits = int(np.ceil(2 + 1.2 * np.log2(1 + patient.strength)))
    for tensor, (low, high) in zip(chosen, extremes(patient, *chosen), strict=True):
        step = 2.0 ** (np.ceil(np.log2(max(high - low, 1e-6) / (int(limits.max) - int(limits.min)))) + bits)
        code = int(np.clip(np.rint(int(limits.min) - low / step), limits.min, limits.max))
        recipe = recipe.with_override(tensor, scale=np.array(step, np.float32), zero_point=np.array(code, zero.dtype))
    return patient.with_(recipe=recipe)


@fault(
    "zero-point-forgotten",
    "sanity",
    "output-not-dequantized",
    unseen="a",
)
def zero_point_forgotten(patient: Patient) -> Patient:
    """The application multiplies the codes of the output by their scale and forgets the zero point."""

    def edit(p: Patient, quantized: onnx.ModelProto) -> onnx.ModelProto:
        surgeon = Surgeon(quantized)
        last = surgeon.producer(surgeon.output)
        if last.op_type != "DequantizeLinear":
            raise Inapplicable("the output is not quantized")
        scale = surgeon.constant(last.input[1]).reshape(())
        codes, name = last.input[0], surgeon.output
        surgeon.graph.node.remove(last)
        surgeon.add("Cast", [codes], f"{name}_codes", to=onnx.TensorProto.FLOAT)
        surgeon.add("Mul", [f"{name}_codes", surgeon.put(f"{name}_step", scale)], name)
        return surgeon.model

    return patient.with_(recipe=replace(patient.recipe, activation="QUInt8", symmetric=True)).edited(edit)


def _asymmetric(patient: Patient) -> Patient:
    return patient.with_(recipe=replace(patient.recipe, symmetric=False))


@fault(
    "symmetric-in-need",
    "activations",
    "asymmetric-data-on-symmetric-grid",
    heal=_asymmetric,
    unseen="a",
    also=("channel-outliers", "massive-activations", "smooth-accumulation", "negative-activations"),
)
def symmetric_in_need(patient: Patient) -> Patient:
    """Channels as uneven as an asymmetric grid just bears, on a symmetric one that wastes its other half."""
    from ..cases import standing  # the modules of faults are loaded by it

    surgeon = patient.surgeon()
    chosen = [t for t in spots(patient) if (channel_peaks(patient, t) > 0).all()]
    if not chosen:
        raise Inapplicable("no place for a cut")
    recipe = replace(patient.recipe, activation="QUInt8" if patient.random("type").random() < 0.5 else "QInt8")
    best, least, most = None, 0.2, 3.2
    for _ in range(4):
        decades = (least + most) / 2
        surgeon = patient.surgeon()
        for i, tensor in enumerate(chosen):
            gain = 10 ** patient.random(f"need{i}").uniform(-decades, 0, surgeon.channels(tensor))
            up = surgeon.put(f"{tensor}_gain", per_channel(surgeon, tensor, gain))
            down = surgeon.put(f"{tensor}_loss", per_channel(surgeon, tensor, 1 / gain))
            mark = surgeon.insert_after(tensor, "Mul", [up], f"{tensor}_with_gain")
            surgeon.insert_after(mark, "Mul", [down], f"{tensor}_without_gain")
        found = patient.with_(model=surgeon.model, recipe=replace(recipe, symmetric=False))
        if standing(found).hurts:
            most = decades
        else:
            best, least = found, decades
    if best is None:
        raise Inapplicable("the asymmetric grid does not bear it either")
    return best.with_(recipe=replace(recipe, symmetric=True))
