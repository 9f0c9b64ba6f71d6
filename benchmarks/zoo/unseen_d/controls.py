"""Healthy models of set D: each looks as if something were wrong with it, and nothing is."""

from dataclasses import replace

import numpy as np
import onnx

from ..controls import control
from ..faults_activations import extremes
from ..patient import Patient
from ..surgery import Inapplicable, Surgeon
from ..unseen_a.cuts import channel_peaks, covered, dense, float_input, kept, spots
from ..unseen_a.data import real_numbers


@control("as-it-was", unseen="d")
def as_it_was(patient: Patient) -> Patient:
    """Nothing is changed."""
    return patient


@control("faint-copies-beside", unseen="d")
def faint_copies_beside(patient: Patient) -> Patient:
    """A layer reads its inputs once more, a thousand times as faint: those have no codes, and nobody needs them."""
    surgeon = patient.surgeon()
    linear = patient.pick(dense(patient, surgeon), 0.5)[0]
    tensor, name = linear.node.input[0], linear.node.name
    faint = surgeon.put(f"{name}_faint", np.float32(1e-3))
    copy = surgeon.add("Mul", [tensor, faint], f"{name}_faint_copy", surgeon.producer(tensor))
    axis = surgeon.channel_axis(tensor)
    both = surgeon.add("Concat", [tensor, copy], f"{name}_with_faint", surgeon.producer(copy), axis=axis)
    linear.node.input[0] = both
    weight = surgeon.constant(linear.weight)
    joined = np.concatenate([weight, np.roll(weight, 1, linear.into)], linear.into)
    surgeon.put(surgeon.own(linear, 1), joined)
    return patient.with_(model=surgeon.model)


@control("one-sided-inputs", unseen="d")
def one_sided_inputs(patient: Patient) -> Patient:
    """Inputs are shifted until none is negative, the first operator shifts them back, and grids have no sign."""
    surgeon = patient.surgeon()
    name = float_input(surgeon)
    least = np.float32(-min(patient.calibration.min(), patient.validation.min()))
    surgeon.insert_after(name, "Sub", [surgeon.put("lift_of_inputs", least)], "inputs_let_down")
    moved = {k: getattr(patient, k) + least for k in ("calibration", "validation")}
    recipe = replace(patient.recipe, activation="QUInt8", symmetric=False)
    return patient.with_(model=surgeon.model, recipe=recipe, **moved)


@control("two-dozen-loud-samples", unseen="d")
def two_dozen_loud_samples(patient: Patient) -> Patient:
    """Few samples, chosen so that they drive the network as far as any do."""
    loudest = np.argsort(patient.reach(patient.calibration))[-24:]
    return patient.with_(calibration=patient.calibration[loudest])


@control("ends-balanced", unseen="d")
def ends_balanced(patient: Patient) -> Patient:
    """Tensors that reach about as far on both sides have ends of the same size; the others keep theirs."""
    tensors = patient.activations()
    recipe = kept(patient.recipe)
    for tensor, (low, high) in zip(tensors, extremes(patient, *tensors), strict=True):
        if 0.6 < -low / max(high, 1e-9) < 1.7:
            reach = max(-low, high)
            recipe = recipe.with_range(tensor, -reach, reach)
    return patient.with_(recipe=recipe)


@control("calibrated-where-measured", unseen="d")
def calibrated_where_measured(patient: Patient) -> Patient:
    """The calibration set is made of validation samples."""
    return patient.with_(calibration=patient.validation[:64])


@control("peaks-cut-a-little", unseen="d")
def peaks_cut_a_little(patient: Patient) -> Patient:
    """Every range ends a hundredth below the largest value that occurs."""
    tensors = patient.activations()
    recipe = kept(patient.recipe)
    for tensor, (low, high) in zip(tensors, extremes(patient, *tensors), strict=True):
        recipe = recipe.with_range(tensor, low * 0.99, max(high * 0.99, 1e-5))
    return patient.with_(recipe=recipe)


@control("joined-with-itself", unseen="d")
def joined_with_itself(patient: Patient) -> Patient:
    """A layer reads its input twice, joined, with half of the weights each time."""
    surgeon = patient.surgeon()
    linear = patient.pick(dense(patient, surgeon), 0.4)[0]
    tensor, name = linear.node.input[0], f"{linear.node.name}_joined"
    surgeon.add("Concat", [tensor, tensor], name, surgeon.producer(tensor), axis=surgeon.channel_axis(tensor))
    linear.node.input[0] = name
    weight = surgeon.constant(linear.weight) / 2
    surgeon.put(surgeon.own(linear, 1), np.concatenate([weight, weight], linear.into))
    return patient.with_(model=surgeon.model)


@control("padded-and-cropped", unseen="d")
def padded_and_cropped(patient: Patient) -> Patient:
    """A map is framed with zeros, and the frame is cut off again."""
    surgeon = patient.surgeon()
    found = [t for t in spots(patient) if len(surgeon.shape(t)) == 4 and all(surgeon.shape(t)[1:])]
    tensor = patient.pick(found, 0.5)[0]
    height, width = surgeon.shape(tensor)[2:]
    pads = surgeon.put(f"{tensor}_margin", np.array([0, 0, 1, 1, 0, 0, 1, 1]))
    corners = [
        surgeon.put(f"{tensor}_crop_{name}", np.array(place))
        for name, place in (("from", [1, 1]), ("to", [height + 1, width + 1]), ("axes", [2, 3]))
    ]
    padded = surgeon.insert_after(tensor, "Pad", [pads], f"{tensor}_padded")
    surgeon.insert_after(padded, "Slice", corners, f"{tensor}_cropped")
    return patient.with_(model=surgeon.model)


@control("pruned-in-both", unseen="d")
def pruned_in_both(patient: Patient) -> Patient:
    """The smallest fifth of all weights is zero in the float model as well."""
    surgeon = patient.surgeon()
    names = {linear.weight for linear in covered(patient)}
    for name in names:
        weight = surgeon.constant(name)
        surgeon.put(name, np.where(np.abs(weight) < np.quantile(np.abs(weight), 0.2), 0, weight).astype(np.float32))
    return patient.with_(model=surgeon.model)


@control("grainy-set", unseen="d")
def grainy_set(patient: Patient) -> Patient:
    """The sensor of the calibration set has a little more noise."""
    inputs = real_numbers(patient)
    noise = patient.random("grain").normal(0, 0.02 * inputs.std(), inputs.shape)
    return patient.with_(calibration=(inputs + noise).astype(np.float32))


@control("rounded-again-on-the-same-grid", unseen="d")
def rounded_again(patient: Patient) -> Patient:
    """Some tensors are quantized twice in a row with the same scale: the second time changes nothing."""
    chosen = patient.pick(patient.activations(), 0.3, 0.7)

    def edit(p: Patient, quantized: onnx.ModelProto) -> onnx.ModelProto:
        surgeon = Surgeon(quantized)
        for tensor in chosen:
            readers = [n for n in surgeon.consumers(tensor) if n.op_type == "QuantizeLinear"]
            if not readers:
                raise Inapplicable(f"{tensor} is not quantized")
            grid, back = list(readers[0].input[1:]), surgeon.consumers(readers[0].output[0])[0]
            codes = surgeon.insert_after(back.output[0], "QuantizeLinear", grid, f"{tensor}_same_codes")
            surgeon.insert_after(codes, "DequantizeLinear", grid, f"{tensor}_same")
        return surgeon.model

    return patient.with_(recipe=kept(patient.recipe)).edited(edit)


@control("nodes-without-sense-in-their-names", unseen="d")
def nodes_without_sense(patient: Patient) -> Patient:
    """An optimizer renamed all nodes to numbers."""
    surgeon = patient.surgeon()
    if patient.recipe.exclude:
        raise Inapplicable("names are needed")
    for i, node in enumerate(surgeon.graph.node):
        node.name = str(1000 + i)
    return patient.with_(model=surgeon.model)


@control("head-in-float", unseen="d")
def head_in_float(patient: Patient) -> Patient:
    """The last layer is left out on purpose."""
    linears = covered(patient)
    if len(linears) < 4 or not linears[-1].node.name:
        raise Inapplicable("too few layers")
    return patient.with_(recipe=replace(patient.recipe, exclude=(*patient.recipe.exclude, linears[-1].node.name)))


@control("bound-that-nothing-reaches", unseen="d")
def bound_that_nothing_reaches(patient: Patient) -> Patient:
    """A bound lies half as far again as values reach, and the grid keeps to the values."""
    surgeon = patient.surgeon()
    tensor = patient.pick(spots(patient), 0.5)[0]
    reach = 1.5 * max(channel_peaks(patient, tensor).max(), 1e-3)
    low, high = extremes(patient, tensor)[0]
    ends = [surgeon.put(f"{tensor}_{i}_far_bound", np.float32(v)) for i, v in enumerate((-reach, reach))]
    bounded = surgeon.insert_after(tensor, "Clip", ends, f"{tensor}_far_bounded")
    recipe = kept(patient.recipe).with_range(bounded, low, max(high, 1e-5))
    return patient.with_(model=surgeon.model, recipe=recipe)


@control("narrow-weights-elsewhere", unseen="d")
def narrow_weights_elsewhere(patient: Patient) -> Patient:
    """Weights have a thousandth of their size and what they make is multiplied back: small numbers, same shapes."""
    surgeon = patient.surgeon()
    found = [n for n in dense(patient, surgeon) if n.node.output[0] in patient.activations()]
    linear = patient.pick(found, 0.5)[0]
    size = surgeon.constant(linear.weight).shape[linear.out]
    surgeon.scale_weights(linear, linear.out, np.full(size, 1e-3, np.float32), bias=True)
    out = linear.node.output[0]
    surgeon.insert_after(out, "Mul", [surgeon.put(f"{out}_thousand", np.float32(1000))], f"{out}_multiplied_back")
    return patient.with_(model=surgeon.model)
