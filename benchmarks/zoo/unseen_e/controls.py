"""Healthy models of set E: each looks as if something were wrong with it, and nothing is."""

from dataclasses import replace

import numpy as np
import onnx
from onnx import TensorProto

from ..controls import control
from ..faults_activations import extremes
from ..patient import Patient
from ..surgery import Inapplicable, Surgeon
from ..unseen_a.cuts import covered, dense, kept, spots
from ..unseen_a.data import real_numbers
from .activations import free


@control("as-it-should-be", unseen="e")
def as_it_should_be(patient: Patient) -> Patient:
    """Nothing is changed."""
    return patient


@control("one-scale-for-each-tensor", unseen="e")
def one_scale_for_each_tensor(patient: Patient) -> Patient:
    """Weights have one scale each and no signs are lost."""
    return patient.with_(recipe=replace(patient.recipe, per_channel=False, activation="QUInt8", symmetric=False))


@control("zero-in-the-middle", unseen="e")
def zero_in_the_middle(patient: Patient) -> Patient:
    """All grids are symmetric about zero."""
    recipe = replace(patient.recipe, per_channel=True, activation="QInt8", weight="QInt8", symmetric=True)
    return patient.with_(recipe=recipe)


@control("wide-between-narrow-weights", unseen="e")
def wide_between_narrow_weights(patient: Patient) -> Patient:
    """Activations have sixteen bits, weights eight."""
    return patient.with_(recipe=replace(patient.recipe, activation="QUInt16", method="MinMax", qoperator=False))


@control("integer-operators", unseen="e")
def integer_operators(patient: Patient) -> Patient:
    """The file holds integer operators instead of pairs that quantize and dequantize."""
    return patient.with_(recipe=replace(patient.recipe, activation="QUInt8", qoperator=True, symmetric=False))


@control("a-hundred-twice-over", unseen="e")
def a_hundred_twice_over(patient: Patient) -> Patient:
    """Half of the set, in reversed order, twice."""
    half = patient.calibration[: len(patient.calibration) // 2][::-1]
    return patient.with_(calibration=np.concatenate([half, half]))


@control("a-copy-under-another-name", unseen="e")
def a_copy_under_another_name(patient: Patient) -> Patient:
    """A weight is stored twice, and half of its outputs come from the copy: joined, they are the same."""
    surgeon = patient.surgeon()
    linear = patient.pick(dense(patient, surgeon), 0.5)[0]
    node, name, axis = linear.node, linear.node.name, surgeon.channel_axis(linear.node.output[0])
    weight, size = surgeon.constant(linear.weight), surgeon.constant(linear.weight).shape[linear.out]
    bias = surgeon.constant(linear.bias) if linear.bias else None
    parts = []
    for i, part in enumerate(np.array_split(np.arange(size), 2)):
        inputs = [node.input[0], surgeon.put(f"{name}_weight_{i}", np.take(weight, part, linear.out))]
        if bias is not None:
            inputs.append(surgeon.put(f"{name}_bias_{i}", bias[part]))
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.name = f"{name}_part_{i}"
        del copy.input[:], copy.output[:]
        copy.input.extend(inputs)
        copy.output.append(copy.name)
        surgeon.graph.node.insert(list(surgeon.graph.node).index(node), copy)
        parts.append(copy.name)
    surgeon.add("Concat", parts, f"{name}_joined", node, axis=axis)
    surgeon.producer(f"{name}_joined").output[0] = node.output[0]
    surgeon.graph.node.remove(node)
    for constant in filter(None, (linear.weight, linear.bias)):
        surgeon.drop(constant)
    return patient.with_(model=surgeon.model)


@control("there-and-back-again", unseen="e")
def there_and_back_again(patient: Patient) -> Patient:
    """Channels are put in another order, and at once back into their own."""
    surgeon = patient.surgeon()
    tensor = patient.pick(spots(patient), 0.5)[0]
    axis, size = surgeon.channel_axis(tensor), surgeon.channels(tensor)
    order = patient.random("order").permutation(size)
    last = tensor
    for i, places in enumerate((order, np.argsort(order))):
        last = surgeon.insert_after(
            last, "Gather", [surgeon.put(f"{tensor}_order_{i}", places)], f"{tensor}_went_{i}", axis=axis
        )
    return patient.with_(model=surgeon.model)


@control("short-floats-between", unseen="e")
def short_floats_between(patient: Patient) -> Patient:
    """Between two integer operators some tensors are floats of sixteen bits, in which they have room enough."""
    chosen = patient.pick(free(patient), 0.3, 0.7)

    def edit(p: Patient, quantized: onnx.ModelProto) -> onnx.ModelProto:
        surgeon = Surgeon(quantized)
        for tensor in chosen:
            writer = next((n for n in surgeon.consumers(tensor) if n.op_type == "QuantizeLinear"), None)
            if writer is None:
                raise Inapplicable(f"{tensor} is not quantized")
            last = surgeon.consumers(writer.output[0])[0].output[0]
            short = surgeon.insert_after(last, "Cast", (), f"{tensor}_short", to=TensorProto.FLOAT16)
            surgeon.insert_after(short, "Cast", (), f"{tensor}_long_again", to=TensorProto.FLOAT)
        return surgeon.model

    return patient.with_(recipe=kept(patient.recipe)).edited(edit)


@control("ends-on-round-numbers", unseen="e")
def ends_on_round_numbers(patient: Patient) -> Patient:
    """Every end of a range was made a little wider, until it had two digits."""
    tensors = patient.activations()
    recipe = kept(patient.recipe)
    for tensor, ends in zip(tensors, extremes(patient, *tensors), strict=True):
        low, high = (_rounded_away(end) for end in ends)
        recipe = recipe.with_range(tensor, low, max(high, 1e-5))
    return patient.with_(recipe=recipe)


def _rounded_away(end: float) -> float:
    if end == 0:
        return 0.0
    digit = 10.0 ** (np.floor(np.log10(abs(end))) - 1)
    return float(np.sign(end) * np.ceil(abs(end) / digit) * digit)


@control("a-few-unlike-the-rest", unseen="e")
def a_few_unlike_the_rest(patient: Patient) -> Patient:
    """Three samples of the set are faint: a tenth of what others are."""
    inputs = real_numbers(patient).copy()
    inputs[:3] *= np.float32(0.1)
    return patient.with_(calibration=inputs)


@control("weights-on-short-floats", unseen="e")
def weights_on_short_floats(patient: Patient) -> Patient:
    """Both models come from a file that was stored with floats of sixteen bits."""
    surgeon = patient.surgeon()
    for linear in covered(patient):
        surgeon.put(linear.weight, surgeon.constant(linear.weight).astype(np.float16).astype(np.float32))
    return patient.with_(model=surgeon.model)


@control("sorted-by-size", unseen="e")
def sorted_by_size(patient: Patient) -> Patient:
    """The calibration set is in the order of how loud its samples are."""
    inputs = real_numbers(patient)
    loud = np.square(inputs.reshape(len(inputs), -1)).sum(1)
    return patient.with_(calibration=inputs[np.argsort(loud)].copy())


@control("first-and-last-in-float", unseen="e")
def first_and_last_in_float(patient: Patient) -> Patient:
    """The first layer and the last are left out, as vendors advise."""
    linears = covered(patient)
    if len(linears) < 5:
        raise Inapplicable("too few layers")
    ends = (linears[0].node.name, linears[-1].node.name)
    return patient.with_(recipe=replace(patient.recipe, exclude=(*patient.recipe.exclude, *ends)))


@control("negated-twice", unseen="e")
def negated_twice(patient: Patient) -> Patient:
    """A layer makes the negative of what it made, and its sign is changed back behind it."""
    surgeon = patient.surgeon()
    found = [n for n in dense(patient, surgeon) if n.node.output[0] in set(patient.activations())]
    linear = patient.pick(found, 0.5)[0]
    size = surgeon.constant(linear.weight).shape[linear.out]
    surgeon.scale_weights(linear, linear.out, np.full(size, -1, np.float32), bias=True)
    surgeon.insert_after(linear.node.output[0], "Neg", (), f"{linear.node.output[0]}_sign_back")
    return patient.with_(model=surgeon.model)


@control("tight-where-nothing-is-lost", unseen="e")
def tight_where_nothing_is_lost(patient: Patient) -> Patient:
    """Ranges come from all validation samples, not from the set beside."""
    return patient.with_(calibration=patient.validation.copy())
