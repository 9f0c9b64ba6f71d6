"""Unseen faults of weights and biases, set E."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from ..fault import fault
from ..mild import costly, mild, severe
from ..patient import Patient
from ..surgery import Inapplicable, Linear, Surgeon
from ..unseen_a.cuts import at_layers, covered, dense, recoded, shaped


def inner(patient: Patient, surgeon: Surgeon) -> list[Linear]:
    """Covered layers of a model under the knife, each weight once, the last layer left out."""
    names = {linear.weight for linear in covered(patient)}
    found: dict[str, Linear] = {}
    for linear in surgeon.linears():
        if linear.weight in names and linear.node.output[0] != surgeon.output:
            found.setdefault(linear.weight, linear)
    if not found:
        raise Inapplicable("no inner layer")
    return list(found.values())


def deployed(patient: Patient, surgeon: Surgeon, *places: str) -> Patient:
    """What was cut is quantized; the expert is shown the model before the cut."""
    return patient.with_(model=surgeon.model, shown_float=patient.shown_float or patient.model).at(*places)


def rewritten(patient: Patient, linears: list[Linear], surgeon: Surgeon, change: Callable[[NDArray, Linear], NDArray]):
    """Weights of the deployed model changed in place, wherever they are read."""
    for linear in linears:
        surgeon.put(linear.weight, change(surgeon.constant(linear.weight), linear).astype(np.float32))
    weights = {linear.weight for linear in linears}
    return deployed(patient, surgeon, *(n.node.name for n in surgeon.linears() if n.weight in weights))


def picked(patient: Patient, found: list[Any], *shares: float) -> list[Any]:
    """Some of a list of what cannot be hashed, such as nodes."""
    return [found[i] for i in patient.pick(list(range(len(found))), *shares)]


def siblings(patient: Patient) -> list[list[Linear]]:
    """Groups of covered layers that read the same tensor."""
    groups: dict[str, list[Linear]] = {}
    for linear in covered(patient):
        groups.setdefault(linear.node.input[0], []).append(linear)
    found = [group for group in groups.values() if len(group) > 1]
    if not found:
        raise Inapplicable("no two layers read the same")
    return found


@fault(
    "siblings-exchanged",
    "weights",
    "foreign-weights",
    "float-export-differs",
    graded=True,
    unseen="e",
    also=("altered-float-tensors", "layer-worse-than-peers"),
)
@severe(0.002, 1)
def siblings_exchanged(patient: Patient, amount: float) -> Patient:
    """Two layers of one shape that read the same got some of each other's rows when the file was written."""
    surgeon = patient.surgeon()
    shape = {n.weight: surgeon.constant(n.weight).shape for n in covered(patient)}
    pairs = [
        pair for group in siblings(patient) for pair in pairwise(group) if len({shape[n.weight] for n in pair}) == 1
    ]
    first, second = patient.pick(pairs, 0.5)[0]
    a, b = (np.moveaxis(surgeon.constant(n.weight), n.out, 0).copy() for n in (first, second))
    count = max(1, round(min(amount, 1) * len(a)))
    rows = patient.random("rows").permutation(len(a))[:count]
    a[rows], b[rows] = b[rows], a[rows]
    for linear, weight in ((first, a), (second, b)):
        surgeon.put(linear.weight, np.ascontiguousarray(np.moveaxis(weight, 0, linear.out)))
    return deployed(patient, surgeon, first.node.name, second.node.name)


@fault(
    "one-scale-read-for-all",
    "weights",
    "misread-codes",
    "foreign-weights",
    graded=True,
    unseen="e",
    also=("wrong-channel-axis", "stale-calibration", "layer-worse-than-peers", "altered-float-tensors"),
)
@mild(0.002, 1)
def one_scale_read_for_all(patient: Patient, amount: float) -> Patient:
    """Codes have a scale for each channel, and the kernel leans towards the one that comes first."""
    chosen = patient.pick(covered(patient), 0.3, 0.7)

    def edit(p: Patient, quantized: onnx.ModelProto) -> onnx.ModelProto:
        surgeon = Surgeon(quantized)
        for linear in chosen:
            scale = surgeon.constant(f"{linear.weight}_scale")
            if scale is None or scale.size < 2:
                raise Inapplicable(f"{linear.weight} has no scale for each channel")
            share = min(amount, 1)
            leaning = np.exp((1 - share) * np.log(scale) + share * np.log(scale[0]))
            surgeon.put(f"{linear.weight}_scale", leaning.astype(np.float32))
        return surgeon.model

    recipe = replace(patient.recipe, per_channel=True, weight="QInt8", qoperator=False)
    return at_layers(patient.with_(recipe=recipe), chosen).edited(edit)


@fault(
    "halves-interleaved",
    "weights",
    "foreign-weights",
    "float-export-differs",
    unseen="e",
    also=("altered-float-tensors", "misread-codes", "layer-worse-than-peers", "wrong-channel-axis"),
)
@costly
def halves_interleaved(patient: Patient) -> Patient:
    """Another library wants the two halves of the outputs one after another in turn; one layer was written so."""

    def change(codes: NDArray, linear: Linear) -> NDArray:
        size = codes.shape[linear.out]
        order = np.arange(size)
        order[: size // 2 * 2] = order[: size // 2 * 2].reshape(2, -1).T.reshape(-1)
        return np.take(codes, order, linear.out)

    source = patient.surgeon()
    last = source.producer(source.output)
    found = [n for n in covered(patient) if n.node is not last and source.constant(n.weight).shape[n.out] >= 4]
    return recoded(patient, patient.pick(found, 0.5), change)


@fault(
    "checkpoint-before-averaging",
    "weights",
    "float-export-differs",
    "foreign-weights",
    graded=True,
    unseen="e",
    also=("altered-float-tensors", "smooth-accumulation"),
)
@mild(0.001, 0.5)
def checkpoint_before_averaging(patient: Patient, amount: float) -> Patient:
    """The float model has averaged weights; what was quantized are those of the last step, which jitter about them."""
    surgeon = patient.surgeon()
    rng = patient.random("steps")
    return rewritten(
        patient, inner(patient, surgeon), surgeon, lambda w, _: w + amount * w.std() * rng.standard_normal(w.shape)
    )


@fault(
    "bias-added-twice",
    "weights",
    "weight-induced-bias-shift",
    "foreign-weights",
    "float-export-differs",
    graded=True,
    unseen="e",
    also=("altered-float-tensors", "layer-worse-than-peers"),
)
@mild(0.003, 8)
def bias_added_twice(patient: Patient, amount: float) -> Patient:
    """The fused operator adds the bias, and a part of it stays in the addition behind."""
    surgeon = patient.surgeon()
    biases = {linear.bias: linear.node.name for linear in inner(patient, surgeon) if linear.bias}
    for node in surgeon.nodes("Add"):
        made = [surgeon.producer(name) for name in node.input]
        if any(n is not None and surgeon.linear(n) for n in made):
            biases |= {
                name: node.name for name in node.input if (c := surgeon.constant(name)) is not None and c.ndim == 1
            }
    chosen = patient.pick(list(biases), 0.2, 0.5, 0.8)
    for name in chosen:
        surgeon.put(name, (surgeon.constant(name) * (1 + amount)).astype(np.float32))
    return deployed(patient, surgeon, *(biases[name] for name in chosen))


@fault(
    "biases-of-an-earlier-calibration",
    "weights",
    "weight-induced-bias-shift",
    "foreign-weights",
    "misread-codes",
    graded=True,
    unseen="e",
    also=("stale-calibration", "bias-scale-mismatch", "layer-worse-than-peers", "altered-float-tensors"),
)
@severe(0.005, 300)
def biases_of_an_earlier_calibration(patient: Patient, amount: float) -> Patient:
    """Inputs were calibrated again and their steps are wider now, but some biases kept the integers of before."""
    chosen = patient.pick([n for n in covered(patient) if n.bias], 0.2, 0.5, 0.8)

    def edit(p: Patient, quantized: onnx.ModelProto) -> onnx.ModelProto:
        surgeon = Surgeon(quantized)
        for linear in chosen:
            codes = surgeon.constant(f"{linear.bias}_quantized")
            if codes is None:
                raise Inapplicable(f"{linear.bias} has no codes")
            grown = np.rint(codes * (1.0 + amount)).clip(-(2**31) + 1, 2**31 - 1)
            surgeon.put(f"{linear.bias}_quantized", grown.astype(codes.dtype))
        return surgeon.model

    return at_layers(patient.with_(recipe=replace(patient.recipe, qoperator=False)), chosen).edited(edit)


@fault(
    "embedding-of-few-levels",
    "weights",
    "too-few-weight-bits",
    "float-export-differs",
    graded=True,
    unseen="e",
    also=("altered-float-tensors", "foreign-weights"),
)
@mild(0.5, 60)
def embedding_of_few_levels(patient: Patient, amount: float) -> Patient:
    """To save memory, vectors of words were rounded to few levels before the model was quantized."""
    surgeon = patient.surgeon()
    found = [node for node in surgeon.nodes("Gather") if _is_table(surgeon.constant(node.input[0]))]
    node = picked(patient, found, 0.5)[0]
    table = surgeon.constant(node.input[0])
    step = np.abs(table).max(1, keepdims=True) * amount / 127
    surgeon.put(node.input[0], (np.rint(table / step) * step).astype(np.float32))
    return deployed(patient, surgeon, node.name)


def _is_table(found: NDArray | None) -> bool:
    return found is not None and found.ndim == 2


@fault(
    "compressed-to-low-rank",
    "weights",
    "foreign-weights",
    "float-export-differs",
    graded=True,
    unseen="e",
    also=("altered-float-tensors", "layer-worse-than-peers"),
)
@severe(0.003, 0.9)
def compressed_to_low_rank(patient: Patient, amount: float) -> Patient:
    """Some layers were compressed on the way: of their singular values the small ones are gone."""
    surgeon = patient.surgeon()

    def change(weight: NDArray, _: Linear) -> NDArray:
        left, values, right = np.linalg.svd(weight.reshape(weight.shape[0], -1), full_matrices=False)
        gone = values < amount * values[0]
        soft = np.where(gone, values * max(0.0, 1 - 3 * amount), values)
        return ((left * soft) @ right).reshape(weight.shape)

    chosen = patient.pick([n for n in inner(patient, surgeon) if not n.depthwise], 0.2, 0.5, 0.8)
    return rewritten(patient, chosen, surgeon, change)


@fault(
    "equalized-through-a-curve",
    "weights",
    "float-export-differs",
    "foreign-weights",
    graded=True,
    unseen="e",
    also=("altered-float-tensors", "channel-range-imbalance"),
)
@mild(0.003, 3)
def equalized_through_a_curve(patient: Patient, amount: float) -> Patient:
    """Channels were evened out between two layers as if a rectifier lay between them, and it is a curve."""
    surgeon = patient.surgeon()
    pairs = [pair for pair in pairwise(inner(patient, surgeon)) if _is_bent(surgeon, *pair)]
    first, second = patient.pick(pairs, 0.5)[0]
    size = surgeon.constant(first.weight).shape[first.out]
    gain = np.exp(patient.random("even").normal(0, amount, size)).astype(np.float32)
    for name, axis, factor in ((first.weight, first.out, gain), (second.weight, second.into, 1 / gain)):
        weight = surgeon.constant(name)
        surgeon.put(name, (weight * shaped(factor, weight.ndim, axis)).astype(np.float32))
    if first.bias:
        surgeon.put(first.bias, surgeon.constant(first.bias) * gain)
    return deployed(patient, surgeon, first.node.name, second.node.name)


def _is_bent(surgeon: Surgeon, first: Linear, second: Linear) -> bool:
    """Whether a curve lies between two layers whose channels match."""
    if surgeon.constant(first.weight).shape[first.out] != surgeon.constant(second.weight).shape[second.into]:
        return False
    readers = {node.op_type for node in surgeon.consumers(first.node.output[0])}
    return bool(readers & {"Softplus", "Sigmoid", "Tanh"}) and second.node.input[0] != first.node.input[0]


@fault(
    "siblings-on-one-scale",
    "weights",
    "too-few-weight-bits",
    "channel-range-imbalance",
    graded=True,
    unseen="e",
    also=("layer-worse-than-peers",),
)
@mild(1, 120)
def siblings_on_one_scale(patient: Patient, amount: float) -> Patient:
    """Layers that read the same were fused, and have the scale of the one with by far the largest weights."""
    chosen = [linear for group in picked(patient, siblings(patient), 0.5) for linear in group[1:]]
    return recoded(patient, chosen, lambda codes, _: np.rint(np.rint(codes / amount) * amount))


@fault(
    "columns-of-dead-inputs-revived",
    "weights",
    "foreign-weights",
    "float-export-differs",
    graded=True,
    unseen="e",
    also=("altered-float-tensors", "layer-worse-than-peers", "weight-induced-bias-shift"),
)
@severe(0.02, 60)
def columns_of_dead_inputs_revived(patient: Patient, amount: float) -> Patient:
    """Pruned columns were left out of the file, and the loader filled the places with the mean of the others."""
    surgeon = patient.surgeon()
    chosen = patient.pick([n for n in inner(patient, surgeon) if not n.depthwise], 0.3, 0.7)
    for i, linear in enumerate(chosen):
        weight = surgeon.constant(linear.weight)
        size = weight.shape[linear.into]
        gone = patient.random(f"gone{i}").permutation(size)[: max(1, size // 8)]
        moved = np.moveaxis(weight, linear.into, 0).copy()
        moved[gone] = amount * np.abs(moved).mean(0)
        surgeon.put(linear.weight, np.ascontiguousarray(np.moveaxis(moved, 0, linear.into)))
    return deployed(patient, surgeon, *(linear.node.name for linear in chosen))


@fault(
    "turned-basis-not-turned-back",
    "weights",
    "foreign-weights",
    "float-export-differs",
    graded=True,
    unseen="e",
    also=("altered-float-tensors", "layer-worse-than-peers", "error-amplifier"),
)
@severe(0.003, 1.5)
def turned_basis_not_turned_back(patient: Patient, amount: float) -> Patient:
    """Inputs of a layer were to be turned so that no channel is loud; its weights were turned, and they were not."""
    surgeon = patient.surgeon()
    linear = patient.pick(dense(patient, surgeon), 0.5)[0]
    weight = np.moveaxis(surgeon.constant(linear.weight), linear.into, 0)
    rng, size = patient.random("turn"), len(weight)
    lean = rng.standard_normal((size, size)) / np.sqrt(size)
    turn = np.linalg.solve(np.eye(size) + amount * (lean - lean.T) / 2, np.eye(size) - amount * (lean - lean.T) / 2)
    turned = np.tensordot(turn, weight, 1)
    surgeon.put(surgeon.own(linear, 1), np.ascontiguousarray(np.moveaxis(turned, 0, linear.into)).astype(np.float32))
    return deployed(patient, surgeon, linear.node.name)
