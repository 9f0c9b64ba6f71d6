"""Faults of set m that users and maintainers told of in public; ``benchmarks/zoo/reports.md`` says where."""

import numpy as np
from numpy.typing import NDArray

from ..cuts import covered, deployed, extremes, free, has_channels, inner, kept, mix_ends, set_ranges, top_of
from ..patient import Patient
from ..surgery import Inapplicable, Linear, Surgeon, attribute, require, with_attributes
from .data import change_pictures, inputs_of
from .weights import apart, rewritten

#: From red, green and blue to lightness and two colours, as files of pictures hold them.
LIGHT_AND_COLOURS = np.array([[0.299, 0.587, 0.114], [-0.1687, -0.3313, 0.5], [0.5, -0.4187, -0.0813]])


# --- calibration -----------------------------------------------------------------------------------------------------


def light_and_colours_for_three_colours(patient: Patient) -> Patient:
    """Frames of the calibration set are lightness and two colours as the decoder gives them, taken for RGB."""

    def undecoded(pixels: NDArray) -> NDArray:
        return np.einsum("kc,nchw->nkhw", LIGHT_AND_COLOURS, pixels) + np.array([0, 128, 128]).reshape(1, 3, 1, 1)

    return change_pictures(patient, undecoded)


def places_for_steps(patient: Patient) -> Patient:
    """The archive of the calibration set tells how far the pen is from the corner, and the network wants its steps."""
    inputs = inputs_of(patient, "pens")
    inputs[..., :2] = 16 + inputs[..., :2].cumsum(1)
    return patient.with_(calibration=inputs)


def ends_of_the_first_slice(patient: Patient, amount: float) -> Patient:
    """Where one range serves all channels, it was set by the first slice of the values that were collected."""
    surgeon, ends = patient.surgeon(), {}
    for tensor, own in extremes(patient, *[t for t in free(patient) if has_channels(surgeon, t)]).items():
        first = np.take(patient.values(tensor)[0], 0, surgeon.channel_axis(tensor))
        ends[tensor] = mix_ends(own, (min(float(first.min()), 0.0), max(float(first.max()), 1e-4)), amount)
    return set_ranges(patient, ends)


# --- weights and codes -----------------------------------------------------------------------------------------------


def scales_rounded_after_the_codes(patient: Patient, amount: float) -> Patient:
    """Scales of some layers are kept as powers of two, and the codes were made before they were rounded up to one."""
    chosen = covered(patient)
    order = patient.random("scales").permutation(len(chosen))[: max(1, round(min(amount, 1) * len(chosen)))]

    def edit(_: Patient, surgeon: Surgeon) -> None:
        for linear in (chosen[i] for i in order):
            scale = surgeon.constant(f"{linear.weight}_scale")
            if scale is None:
                raise Inapplicable(f"{linear.weight} is not quantized")
            surgeon.put(f"{linear.weight}_scale", np.exp2(np.ceil(np.log2(scale))).astype(np.float32))

    return patient.with_(recipe=kept(patient.recipe)).at(*(chosen[i] for i in order)).edited(edit)


def biases_for_one_scale(patient: Patient, amount: float) -> Patient:
    """Biases have codes for one scale of all channels, their largest, and are read with the scales of single ones."""
    chosen = require([n for n in covered(patient) if n.bias], "no biases")

    def edit(_: Patient, surgeon: Surgeon) -> None:
        for linear in chosen:
            scale, codes = (surgeon.constant(f"{linear.bias}_quantized{part}") for part in ("_scale", ""))
            if codes is None or scale.size < 2:
                raise Inapplicable(f"{linear.bias} has no codes for several scales")
            ratio = (scale / scale.max()) ** min(amount, 1.0)
            surgeon.put(f"{linear.bias}_quantized", np.rint(codes * ratio).astype(codes.dtype))

    recipe = kept(patient.recipe, per_channel=True, weight="QInt8")
    return patient.with_(recipe=recipe).at(*chosen).edited(edit)


def kernels_turned_over(patient: Patient, amount: float) -> Patient:
    """One library turns kernels over before it slides them and another does not: some layers were not converted."""
    surgeon = patient.surgeon()
    found = [n for n in inner(patient, surgeon) if surgeon.constant(n.weight).ndim == 4]
    sides = {n.weight: min(surgeon.constant(n.weight).shape[2:]) for n in found}
    found = require([n for n in found if sides[n.weight] > 1], "no kernels")

    def turned(weight: NDArray, _: object = None) -> NDArray:
        return np.ascontiguousarray(weight[:, :, ::-1, ::-1])

    odd = [np.abs(w - turned(w)).mean() / np.abs(w).mean() for w in (surgeon.constant(n.weight) for n in found)]
    chosen = np.argsort(odd)[: max(1, round(min(amount, 1) * len(found)))]
    return rewritten(patient, [found[i] for i in chosen], surgeon, turned)


def adapter_merged_twice(patient: Patient, amount: float) -> Patient:
    """An adapter of low rank was merged into the weights, and once more when they were handed on."""
    surgeon = patient.surgeon()
    chosen = patient.pick([n for n in inner(patient, surgeon) if not n.depthwise], 0.2, 0.6)

    def merged(weight: NDArray, linear: Linear) -> NDArray:
        flat, rng = weight.reshape(len(weight), -1), patient.random(linear.weight)
        adapter = rng.standard_normal((len(flat), 2)) @ rng.standard_normal((2, flat.shape[1]))
        return (flat + amount * adapter * flat.std() / adapter.std()).reshape(weight.shape)

    return rewritten(patient, chosen, surgeon, merged)


def norms_folded_with_another_epsilon(patient: Patient, amount: float) -> Patient:
    """Batch norms were folded with the constant of another library: channels of little variance become smaller."""
    surgeon = patient.surgeon()
    found = [n for n in apart(patient, surgeon) if n.bias and n.node.op_type == "Conv"]
    found = [n for n in found if any(r.op_type in ("Relu", "Clip") for r in surgeon.consumers(n.node.output[0]))]
    means = patient.values(*(n.node.output[0] for n in require(found, "no norms")))
    for linear, x in zip(found, means, strict=True):
        variance = np.exp(patient.random(linear.weight).normal(-2, 1.5, surgeon.outputs(linear)))
        gain = np.sqrt((variance + 1e-5) / (variance + amount)).astype(np.float32)
        surgeon.scale_weights(linear, linear.out, gain, bias=True)
        bias = surgeon.constant(linear.node.input[2]) + (1 - gain) * x.mean((0, 2, 3))
        surgeon.put(linear.node.input[2], bias.astype(np.float32))
    return deployed(patient, surgeon, *found)


# --- operators of the deployed model ---------------------------------------------------------------------------------


def epsilon_of_another_norm(patient: Patient, amount: float) -> Patient:
    """Norms of the deployed model have a larger constant beside the variance than those that were trained."""
    surgeon = patient.surgeon()
    nodes = require(surgeon.nodes("LayerNormalization"), "no norms")
    for node in nodes:
        with_attributes(node, epsilon=float(amount))
    return deployed(patient, surgeon, *(n.name for n in nodes))


def largest_told_as_the_mean(patient: Patient) -> Patient:
    """The converter knows one kind of pool, and takes the mean of a map where the network wants its largest value."""
    surgeon = patient.surgeon()
    nodes = require(surgeon.nodes("MaxPool"), "no largest values")
    for node in nodes:
        node.op_type = "AveragePool"
    return deployed(patient, surgeon, *(n.name for n in nodes))


def first_told_as_the_mean(patient: Patient) -> Patient:
    """What is handed on is the first of the seats, as in other networks of the kind, and here it is their mean."""
    surgeon = patient.surgeon()
    node = require(surgeon.nodes("ReduceMean"), "nothing is averaged")[-1]
    axes = node.input[1]
    node.op_type = "Gather"
    node.input[:] = [node.input[0], surgeon.put("first_seat", np.array(0))]
    del node.attribute[:]
    with_attributes(node, axis=1)
    surgeon.drop(axes)
    return deployed(patient, surgeon, node.name)


def gates_without_what_they_open(patient: Patient) -> Patient:
    """A backend has one name for a gate and for what passes through it: in one block the gate alone is handed on."""
    surgeon = patient.surgeon()
    gates = {n.output[0]: n for n in surgeon.nodes("Sigmoid")}
    found = [n for n in surgeon.nodes("Mul") if n.input[1] in gates]
    node = patient.pick(list(range(len(require(found, "no gates")))), 0.4)[0]
    surgeon.reroute(found[node].output[0], found[node].input[1])
    gate = gates[found[node].input[1]].name
    surgeon.graph.node.remove(found[node])
    return deployed(patient, surgeon, gate)


def grids_of_two_heads_exchanged(patient: Patient) -> Patient:
    """Codes of boxes are turned into numbers with the grid of scores, and those of scores with the grid of boxes."""
    outputs = [n.output[0] for n in patient.surgeon().nodes("Conv") if n.name.endswith("_1_Conv")]
    heads = [t for t in outputs if t in set(patient.activations("Conv"))]
    if patient.network.name != "orchards" or len(heads) != 2:
        raise Inapplicable("there are not two heads")

    def edit(_: Patient, surgeon: Surgeon) -> None:
        codes = [surgeon.writer(t).output[0] for t in heads]
        grids = [list(surgeon.writer(t).input[1:]) for t in heads]
        for own, grid in zip(codes, reversed(grids), strict=True):
            for reader in surgeon.consumers(own):
                reader.input[1:] = grid

    return patient.with_(recipe=kept(patient.recipe)).at(*heads).edited(edit)


def framed_by_the_least_number(patient: Patient, amount: float) -> Patient:
    """Before the largest value of a window is taken, both models frame maps by a number that is never the largest."""
    surgeon = patient.surgeon()
    node = require(surgeon.nodes("MaxPool"), "no largest values")[0]
    tensor, window = node.input[0], attribute(node, "kernel_shape", [])
    given = {"x": tensor, "frame": [0, 0, 1, 1, 0, 0, 1, 1], "least": np.float32(-amount * top_of(patient, tensor))}
    made = surgeon.wire(tensor, "framed = Pad(x, frame, least)", "framed", name=node.name, **given)
    node.input[0] = made["framed"]
    with_attributes(node, kernel_shape=[side + 2 for side in window], strides=[1, 1])
    return patient.cut(surgeon, node.name)
