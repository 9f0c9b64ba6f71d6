"""Healthy models of set F: each looks as if something were wrong with it, and nothing is."""

from dataclasses import replace

import numpy as np

from ..controls import control
from ..patient import Patient
from ..surgery import Inapplicable, Linear, Surgeon
from ..unseen_a.cuts import covered, spots
from ..unseen_a.data import real_numbers
from ..unseen_e.weights import inner


@control("as-it-came", unseen="f")
def as_it_came(patient: Patient) -> Patient:
    """Nothing is changed."""
    return patient


@control("wide-and-symmetric", unseen="f")
def wide_and_symmetric(patient: Patient) -> Patient:
    """Activations have sixteen bits and a sign, and zero is in the middle."""
    recipe = replace(patient.recipe, activation="QInt16", weight="QInt8", symmetric=True)
    return patient.with_(recipe=replace(recipe, method="MinMax", percentile=None, qoperator=False))


@control("hardly-a-percentile", unseen="f")
def hardly_a_percentile(patient: Patient) -> Patient:
    """Percentiles so high that they leave out a handful of values among all."""
    recipe = replace(patient.recipe, activation="QUInt8", weight="QInt8", symmetric=False)
    return patient.with_(recipe=replace(recipe, method="Percentile", percentile=99.9999))


@control("every-third-sample", unseen="f")
def every_third_sample(patient: Patient) -> Patient:
    """A third of the set, which suffices."""
    return patient.with_(calibration=patient.calibration[::3].copy())


@control("read-backwards", unseen="f")
def read_backwards(patient: Patient) -> Patient:
    """The set begins with its last sample."""
    return patient.with_(calibration=patient.calibration[::-1].copy())


@control("a-little-louder", unseen="f")
def a_little_louder(patient: Patient) -> Patient:
    """Calibrated with a little more gain than there is in use."""
    return patient.with_(calibration=(real_numbers(patient) * np.float32(1.08)).astype(np.float32))


@control("bound-that-is-meant", unseen="f")
def bound_that_is_meant(patient: Patient) -> Patient:
    """Both models cut what is rare off at a bound: values pile up there as they should."""
    surgeon = patient.surgeon()
    tensor = patient.pick(_apart(patient, surgeon), 0.5)[0]
    x = patient.values(tensor)[0]
    ends = [surgeon.put(f"{tensor}_{i}", np.float32(np.quantile(x, q))) for i, q in enumerate((0.001, 0.999))]
    surgeon.insert_after(tensor, "Clip", ends, f"{tensor}_bounded")
    return patient.with_(model=surgeon.model)


def _apart(patient: Patient, surgeon: Surgeon) -> list[str]:
    """Places where nothing is lost if an operator stands behind: no rectifier or bias follows."""
    found = [t for t in spots(patient) if not any(n.op_type in ("Relu", "Add") for n in surgeon.consumers(t))]
    if not found:
        raise Inapplicable("no place for it")
    return found


@control("wide-and-without-weight", unseen="f")
def wide_and_without_weight(patient: Patient) -> Patient:
    """A tensor is made a thousand times as large beside, and added with a weight of nothing: a switch that is off."""
    surgeon = patient.surgeon()
    tensor = patient.pick(_apart(patient, surgeon), 0.5)[0]
    thousand, none = (surgeon.put(f"{tensor}_times_{v}", np.float32(v)) for v in (1000, 0))
    made = surgeon.producer(tensor)
    wide = surgeon.add("Mul", [tensor, thousand], f"{tensor}_wide", made)
    nothing = surgeon.add("Mul", [wide, none], f"{tensor}_switched_off", surgeon.producer(wide))
    total = f"{tensor}_with_switch"
    surgeon.reroute(tensor, total, but=(wide,))
    surgeon.add("Add", [tensor, nothing], total, surgeon.producer(nothing))
    return patient.with_(model=surgeon.model)


@control("rows-of-few-directions", unseen="f")
def rows_of_few_directions(patient: Patient) -> Patient:
    """A layer was compressed before either model was made: its smallest singular values are nothing in both."""
    surgeon = patient.surgeon()
    linear = patient.pick([n for n in inner(patient, surgeon) if not n.depthwise], 0.5)[0]
    weight = surgeon.constant(linear.weight)
    left, values, right = np.linalg.svd(weight.reshape(weight.shape[0], -1), full_matrices=False)
    kept = np.where(values < 0.15 * values[0], 0, values)
    surgeon.put(linear.weight, ((left * kept) @ right).reshape(weight.shape).astype(np.float32))
    return patient.with_(model=surgeon.model)


@control("folded-and-unfolded", unseen="f")
def folded_and_unfolded(patient: Patient) -> Patient:
    """A tensor is laid out in one line, and at once in its own shape again."""
    surgeon = patient.surgeon()
    tensor = patient.pick(spots(patient), 0.5)[0]
    shape = patient.values(tensor, samples=1)[0].shape[1:]
    line = surgeon.put(f"{tensor}_line", np.array([-1, int(np.prod(shape))]))
    own = surgeon.put(f"{tensor}_own_shape", np.array([-1, *shape]))
    folded = surgeon.insert_after(tensor, "Reshape", [line], f"{tensor}_folded")
    surgeon.insert_after(folded, "Reshape", [own], f"{tensor}_unfolded")
    return patient.with_(model=surgeon.model)


@control("cut-in-three-and-joined", unseen="f")
def cut_in_three_and_joined(patient: Patient) -> Patient:
    """Channels are taken apart in three uneven parts, and put side by side as they were."""
    surgeon = patient.surgeon()
    tensor = patient.pick([t for t in _apart(patient, surgeon) if surgeon.channels(t) >= 8], 0.5)[0]
    axis, size = surgeon.channel_axis(tensor), surgeon.channels(tensor)
    ends = [surgeon.put(f"{tensor}_end_{i}", np.array([end])) for i, end in enumerate((0, 1, size // 3, size))]
    along, made, parts = surgeon.put(f"{tensor}_along", np.array([axis])), surgeon.producer(tensor), []
    for i in range(3):
        part = surgeon.add("Slice", [tensor, ends[i], ends[i + 1], along], f"{tensor}_part_{i}", made)
        made = surgeon.producer(part)
        parts.append(part)
    surgeon.reroute(tensor, f"{tensor}_joined", but=parts)
    surgeon.add("Concat", parts, f"{tensor}_joined", made, axis=axis)
    return patient.with_(model=surgeon.model)


@control("bias-in-an-operator-of-its-own", unseen="f")
def bias_in_an_operator_of_its_own(patient: Patient) -> Patient:
    """A layer adds its bias in a second step; between the two there is a grid."""
    surgeon = patient.surgeon()
    found = [n for n in surgeon.linears() if n.node.op_type == "Gemm" and n.bias and n.weight in _weights(patient)]
    linear = patient.pick(found, 0.5)[0]
    out = linear.node.output[0]
    del linear.node.input[2]
    linear.node.output[0] = f"{out}_without_bias"
    surgeon.add("Add", [linear.node.output[0], linear.bias], out, linear.node)
    return patient.with_(model=surgeon.model)


def _weights(patient: Patient) -> set[str]:
    return {linear.weight for linear in covered(patient)}


@control("through-a-layer-that-does-nothing", unseen="f")
def through_a_layer_that_does_nothing(patient: Patient) -> Patient:
    """A layer whose matrix has ones on its diagonal and nothing beside."""
    surgeon = patient.surgeon()
    tensor = patient.pick(_apart(patient, surgeon), 0.5)[0]
    size, rank = surgeon.channels(tensor), len(surgeon.shape(tensor))
    same = np.eye(size, dtype=np.float32)
    name = surgeon.put(f"{tensor}_same", same[:, :, None, None] if rank == 4 else same)
    surgeon.insert_after(tensor, "Conv" if rank == 4 else "MatMul", [name], f"{tensor}_as_before")
    return patient.with_(model=surgeon.model)


@control("largest-of-itself", unseen="f")
def largest_of_itself(patient: Patient) -> Patient:
    """The larger of a tensor and the same tensor, in two places: what is left of a branch that was removed."""
    surgeon = patient.surgeon()
    for tensor in patient.pick(spots(patient), 0.3, 0.7):
        surgeon.insert_after(tensor, "Max", [tensor], f"{tensor}_larger")
        node = surgeon.producer(f"{tensor}_larger")
        node.input[1] = tensor
    return patient.with_(model=surgeon.model)


@control("layers-in-another-order", unseen="f")
def layers_in_another_order(patient: Patient) -> Patient:
    """Outputs of a layer were put in another order, and what reads them as well: in both models."""
    surgeon = patient.surgeon()
    pairs = [pair for n in inner(patient, surgeon) if (pair := _followed(surgeon, n)) is not None]
    first, second = patient.pick(pairs, 0.5)[0]
    order = patient.random("order").permutation(surgeon.constant(first.weight).shape[first.out])
    surgeon.put(first.weight, np.take(surgeon.constant(first.weight), order, first.out))
    if first.bias:
        surgeon.put(first.bias, surgeon.constant(first.bias)[order])
    surgeon.put(second.weight, np.take(surgeon.constant(second.weight), order, second.into))
    return patient.with_(model=surgeon.model)


def _followed(surgeon: Surgeon, linear: Linear) -> tuple[Linear, Linear] | None:
    """A layer and the one that alone reads it, through a curve at most; both with weights of their own."""
    tensor, readers = linear.node.output[0], surgeon.consumers(linear.node.output[0])
    while len(readers) == 1 and readers[0].op_type in ("Relu", "Sigmoid", "LeakyRelu"):
        tensor, readers = readers[0].output[0], surgeon.consumers(readers[0].output[0])
    if len(readers) != 1 or readers[0].input[0] != tensor:
        return None
    second = surgeon.linear(readers[0])
    alone = second is not None and all(len(surgeon.consumers(n.weight)) == 1 for n in (linear, second))
    return (linear, second) if alone else None
