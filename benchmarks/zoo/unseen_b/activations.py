"""Unseen faults of activation ranges, set B."""

from dataclasses import replace

import numpy as np
import onnx

from ..fault import fault
from ..faults_activations import extremes
from ..patient import Patient
from ..surgery import Inapplicable, Surgeon
from ..unseen_a.cuts import channel_peaks, class_head, covered, float_input, kept, per_channel, spots

GATES = ("Sigmoid", "Softmax")


@fault("lost-minus-signs", "activations", "negative-activations", "over-clipped-activations", graded=True, unseen="b")
def lost_minus_signs(patient: Patient) -> Patient:
    """Grids that begin a little below zero, for tensors that are mostly, but not always, positive."""
    surgeon = patient.surgeon()
    tensors = [t for t in spots(patient) if surgeon.producer(t).op_type not in GATES]
    if not tensors:
        raise Inapplicable("gates only")
    ends = extremes(patient, *tensors)
    signed = [(t, low, high) for t, (low, high) in zip(tensors, ends, strict=True) if low < -0.02 * high]
    if not signed:
        raise Inapplicable("nothing is negative")
    milder = sorted(signed, key=lambda found: -found[1] / max(found[2], 1e-9))
    recipe = patient.recipe
    chosen = milder[: max(2, len(milder) // 2)]
    for tensor, low, high in chosen:
        recipe = recipe.with_range(tensor, low / (1 + 4 * patient.strength), high)
    return patient.with_(recipe=recipe).at(*(tensor for tensor, *_ in chosen))


@fault(
    "unsigned-step-on-signed-codes",
    "activations",
    "over-clipped-activations",
    "asymmetric-data-on-symmetric-grid",
    graded=True,
    unseen="b",
)
def unsigned_step_on_signed_codes(patient: Patient) -> Patient:
    """The step was computed for codes from 0 to 255, and the codes reach from -128 to 127 with zero at zero."""
    surgeon = patient.surgeon()
    tensors = patient.activations()
    found = [
        (t, high)
        for t, (low, high) in zip(tensors, extremes(patient, *tensors), strict=True)
        if low >= -0.1 * high and high > 0 and surgeon.producer(t).op_type not in GATES
    ]
    if not found:
        raise Inapplicable("nothing is one-sided")
    recipe = kept(patient.recipe, activation="QInt8", symmetric=False)
    for tensor, high in found:
        step = np.float32(high / 380 / patient.strength**0.5)
        recipe = recipe.with_override(tensor, scale=np.array(step), zero_point=np.array(0, np.int8))
    return patient.with_(recipe=recipe).at(*(tensor for tensor, _ in found))


@fault(
    "half-filled-grid",
    "activations",
    "asymmetric-data-on-symmetric-grid",
    "too-few-activation-bits",
    graded=True,
    unseen="b",
    also=("poor-threshold", "power-of-two-waste", "smooth-accumulation"),
)
def half_filled_grid(patient: Patient) -> Patient:
    """A symmetric grid with the codes of a smaller unit: one-sided values have a few of the positive half."""
    recipe = kept(patient.recipe, activation="QInt8", symmetric=False)
    surgeon = patient.surgeon()
    codes = 127 / (1 + 5 * patient.strength**0.7)
    tensors = patient.activations()
    ends = extremes(patient, *tensors)
    found = [(t, low, high) for t, (low, high) in zip(tensors, ends, strict=True) if low > -0.1 * high]
    found = [entry for entry in found if surgeon.producer(entry[0]).op_type not in GATES]
    if not found:
        raise Inapplicable("nothing is one-sided")
    for tensor, low, high in found:
        step = np.float32(max(high, -low, 1e-6) / max(codes, 1.5))
        recipe = recipe.with_override(tensor, scale=np.array(step), zero_point=np.array(0, np.int8))
    return patient.with_(recipe=recipe).at(*(tensor for tensor, *_ in found))


@fault("ranges-shared-in-blocks", "activations", "poor-threshold", graded=True, unseen="b", also=("stale-calibration",))
def ranges_shared_in_blocks(patient: Patient) -> Patient:
    """The accelerator keeps one exponent for a few tensors in a row, with bits to spare for their sums."""
    tensors = patient.activations()
    ends = extremes(patient, *tensors)
    recipe = kept(patient.recipe)
    start = len(tensors) // 4
    for first in range(start, len(tensors), 4):
        block = ends[first : first + 4]
        reach = 2.0 ** np.ceil(np.log2(max(max(-low, high) for low, high in block) + 1e-9)) * 8 * patient.strength
        for tensor, (low, _) in zip(tensors[first : first + 4], block, strict=True):
            recipe = recipe.with_range(tensor, -reach if low < 0 else 0, reach)
    return patient.with_(recipe=recipe).at(*tensors[start:])


@fault("declared-input-too-narrow", "activations", "over-clipped-activations", graded=True, unseen="b")
def input_cut(patient: Patient) -> Patient:
    """The input's range was typed in for numbers of another unit, too narrow."""
    name = float_input(patient.surgeon())
    low, high = float(patient.calibration.min()), float(patient.calibration.max())
    factor = 1 / (1 + 1.2 * patient.strength)
    return patient.with_(recipe=patient.recipe.with_range(name, min(low, 0) * factor, max(high, 0) * factor)).at(name)


@fault(
    "sink-channel",
    "activations",
    "massive-activations",
    "channel-outliers",
    graded=True,
    unseen="b",
    also=("error-amplifier",),
)
def sink_channel(patient: Patient) -> Patient:
    """One channel is always huge, whatever the input, and the next operator takes it off: an attention sink."""
    surgeon = patient.surgeon()
    marks = []
    for tensor in patient.pick(spots(patient), 0.3, 0.65, 0.9):
        peaks = channel_peaks(patient, tensor)
        level = np.zeros(len(peaks))
        level[int(np.argmin(peaks))] = 120 * patient.strength * max(peaks.max(), 1e-3)
        name = surgeon.put(f"{tensor}_sink", per_channel(surgeon, tensor, level))
        sunk = surgeon.insert_after(tensor, "Add", [name], f"{tensor}_with_sink")
        surgeon.insert_after(sunk, "Sub", [name], f"{tensor}_without_sink")
        marks.append(sunk)
    return patient.with_(model=surgeon.model).at(*marks)


@fault("few-late-codes", "activations", "too-few-activation-bits", "poor-threshold", graded=True, unseen="b")
def few_late_codes(patient: Patient) -> Patient:
    """Late tensors have the codes of three bits, in bytes, because a neighbour could do no more."""
    surgeon = patient.surgeon()
    found = [t for t in spots(patient) if surgeon.producer(t).op_type not in GATES]
    chosen = found[-max(2, len(found) // 4) :]
    recipe = kept(patient.recipe, symmetric=False, activation="QInt8")
    steps = max(1.5, 9 / patient.strength**0.7)
    for tensor, (low, high) in zip(chosen, extremes(patient, *chosen), strict=True):
        step = max(high - low, 1e-6) / steps
        recipe = recipe.with_override(
            tensor,
            scale=np.array(step, np.float32),
            zero_point=np.array(int(np.clip(np.rint(-low / step) - steps // 2, -128, 127)), np.int8),
        )
    return patient.with_(recipe=recipe).at(*chosen)


@fault("point-range", "activations", "degenerate-range", unseen="b", also=("stale-calibration",))
def point_range(patient: Patient) -> Patient:
    """A tensor was constant when the ranges were taken, and its range has hardly any width."""
    chosen = patient.pick(spots(patient), 0.3, 0.8)
    recipe = patient.recipe
    for tensor in chosen:
        recipe = recipe.with_range(tensor, 0, 1e-6)
    return patient.with_(recipe=recipe).at(*chosen)


@fault("hot-pixel", "activations", "activation-outliers", "stray-samples", graded=True, unseen="b")
def hot_pixel(patient: Patient) -> Patient:
    """One number of one calibration sample is garbage."""
    inputs = patient.calibration.astype(np.float32) if patient.calibration.dtype.kind == "f" else None
    if inputs is None:
        raise Inapplicable("inputs are integers")
    inputs = inputs.copy()
    flat = inputs[len(inputs) // 3].reshape(-1)
    flat[patient.random("hot").integers(flat.size)] = 200 * patient.strength * np.abs(inputs).max()
    return patient.with_(calibration=inputs)


@fault("scale-forgotten", "sanity", "output-not-dequantized", unseen="b")
def scale_forgotten(patient: Patient) -> Patient:
    """The application takes the zero point off the codes of the output and forgets the scale."""

    def edit(p: Patient, quantized: onnx.ModelProto) -> onnx.ModelProto:
        surgeon = Surgeon(quantized)
        last = surgeon.producer(surgeon.output)
        if last.op_type != "DequantizeLinear":
            raise Inapplicable("the output is not quantized")
        zero = surgeon.constant(last.input[2]).astype(np.float32).reshape(())
        codes, name = last.input[0], surgeon.output
        surgeon.graph.node.remove(last)
        surgeon.add("Cast", [codes], f"{name}_codes", to=onnx.TensorProto.FLOAT)
        surgeon.add("Sub", [f"{name}_codes", surgeon.put(f"{name}_middle", zero)], name)
        return surgeon.model

    return patient.edited(edit)


@fault("computed-class-mask", "activations", "mask-constant", graded=True, unseen="b", also=("activation-outliers",))
def computed_class_mask(patient: Patient) -> Patient:
    """Classes that are not allowed get a penalty which the graph computes from a table, before the softmax."""
    surgeon = patient.surgeon()
    head = class_head(surgeon, patient)
    weight, bias = surgeon.constant(head.weight), surgeon.constant(head.bias)
    surgeon.put(surgeon.own(head, 1), np.concatenate([weight, np.take(weight, [1, 2], head.out)], head.out))
    surgeon.put(surgeon.own(head, 2), np.concatenate([bias, bias[1:3]]))
    allowed = surgeon.put("allowed", np.array([[1] * len(bias) + [0, 0]], np.float32))
    surgeon.put("all_ones", np.float32(1))
    surgeon.put("penalty", np.float32(-1e4 * patient.strength))
    inner = surgeon.insert_after(surgeon.output, "Softmax", axis=-1)
    softmax = surgeon.producer(inner)
    logits = softmax.input[0]
    at = surgeon.producer(logits)
    surgeon.add("Sub", ["all_ones", allowed], "forbidden", at)
    surgeon.add("Mul", ["forbidden", "penalty"], "class_penalty", surgeon.producer("forbidden"))
    summed = surgeon.add("Add", [logits, "class_penalty"], "allowed_logits", surgeon.producer("class_penalty"))
    softmax.input[0] = summed
    surgeon.graph.output[0].type.tensor_type.shape.dim[1].dim_value = len(bias) + 2
    return patient.with_(model=surgeon.model).at(summed)


@fault("only-the-head", "sanity", "partly-quantized", "not-quantized", harms=False, unseen="b")
def only_the_head(patient: Patient) -> Patient:
    """A list of operators for the quantizer that was written for another network matches its last layer alone."""
    last = covered(patient)[-1].node
    names = tuple(node.name for node in patient.model.graph.node if node.name != last.name)
    if not all(names):
        raise Inapplicable("its nodes have no names")
    return patient.with_(recipe=replace(patient.recipe, exclude=(*patient.recipe.exclude, *names)))
