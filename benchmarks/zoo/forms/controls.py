"""Healthy models: each looks as if something were wrong with it, and nothing is."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto

from ..cuts import (
    Ends,
    cast_between,
    channel_peaks,
    covered,
    dense,
    extremes,
    float_input,
    free,
    inner,
    kept,
    maps,
    reader_of,
    real_numbers,
    spots,
    with_scaled_ranges,
)
from ..patient import Patient
from ..quantizing import Recipe
from ..surgery import Inapplicable, Linear, Surgeon, require
from .data import change_numbers, change_pictures, whole


def with_recipe(patient: Patient, **changes: Any) -> Patient:
    """Other settings of the quantizer; what ``Recipe`` has no name for is one of its further options."""
    known = {name: value for name, value in changes.items() if name in Recipe.__dataclass_fields__}
    others = {name: value for name, value in changes.items() if name not in known}
    return patient.with_(recipe=replace(patient.recipe, **known, **({"extra": others} if others else {})))


def in_other_units(patient: Patient, factor: float, *shares: float) -> Patient:
    """All channels of some tensors so many times as large: the numbers are huge or tiny, the shapes are the same."""
    surgeon, followed = patient.surgeon(), ("Concat", "MaxPool", "Relu", "Clip")
    places = surgeon.amplifiable()
    apart = [t for t in places if all(n.op_type not in followed for n in surgeon.consumers(t))]
    for tensor in patient.pick(apart, *shares):
        surgeon.amplify(tensor, np.full(surgeon.channels(tensor), factor, np.float32))
    return patient.with_(model=surgeon.model)


def harmless_outliers(patient: Patient) -> Patient:
    """A channel four times as wide as the others."""
    surgeon = patient.surgeon()
    for tensor in patient.pick(surgeon.amplifiable(), 0.4, 0.8):
        scale = np.ones(surgeon.channels(tensor), np.float32)
        scale[0] = 4
        surgeon.amplify(tensor, scale)
    return patient.with_(model=surgeon.model)


def slightly_wide_ranges(patient: Patient) -> Patient:
    """Some ranges half as wide again as needed."""
    return with_scaled_ranges(patient, patient.pick(patient.activations(), 0.3, 0.7), 1.5)


def brightened_images(patient: Patient) -> Patient:
    """A representative set a little brighter than the validation set: the domain differs, the ranges hold."""
    return change_pictures(patient, lambda pixels: whole(pixels * 1.1))


def enough_with_sixty(patient: Patient) -> Patient:
    """A small set that shows the whole range all the same."""
    return patient.with_(calibration=patient.calibration[:64])


def some_duplicates(patient: Patient) -> Patient:
    """A fifth of the samples occurs twice."""
    inputs = patient.calibration
    return patient.with_(calibration=np.concatenate([inputs, inputs[: len(inputs) // 5]]))


def jpeg_like(patient: Patient) -> Patient:
    """Images that were stored with slight losses."""

    def stored(pixels: NDArray) -> NDArray:
        return whole(pixels.astype(np.float32) + patient.random("jpeg").normal(0, 2, pixels.shape))

    return change_pictures(patient, stored)


def half_of_the_samples_twice(patient: Patient) -> Patient:
    """A hundred samples, each twice: duplicates that cost nothing."""
    return patient.with_(calibration=np.repeat(patient.calibration[::2], 2, 0))


def _reading(
    patient: Patient, surgeon: Surgeon, linear: Linear, text: str, weight: NDArray, **given: object
) -> Patient:
    """A layer reads what is made of its input, with other weights."""
    tensor = linear.node.input[0]
    made = surgeon.wire(tensor, text, name=linear.node.name, x=tensor, **given)
    linear.node.input[0] = made[list(made)[-1]]
    surgeon.put(surgeon.own(linear, 1), weight)
    return patient.with_(model=surgeon.model)


def with_ends(patient: Patient, change: Callable[[float, float], Ends]) -> Patient:
    """With other ranges for all activations."""
    ends = {t: change(*own) for t, own in extremes(patient, *patient.activations()).items()}
    return patient.with_(recipe=kept(patient.recipe).with_ranges(ends))


def in_float(patient: Patient, least: int, *places: int) -> Patient:
    """Some layers are left out on purpose, where there are so many."""
    linears = covered(patient)
    if len(linears) < least or not linears[-1].node.name:
        raise Inapplicable("too few layers")
    return patient.without(*(linears[place].node.name for place in places))


def faint_copies_beside(patient: Patient) -> Patient:
    """A layer reads its inputs once more, a thousand times as faint: those have no codes, and nobody needs them."""
    surgeon = patient.surgeon()
    linear = patient.pick(dense(patient, surgeon), 0.5)[0]
    axis, weight = surgeon.channel_axis(linear.node.input[0]), surgeon.constant(linear.weight)
    text = f"faint_copy = Mul(x, faint); with_faint = Concat(x, faint_copy, axis={axis})"
    joined = np.concatenate([weight, np.roll(weight, 1, linear.into)], linear.into)
    return _reading(patient, surgeon, linear, text, joined, faint=1e-3)


def one_sided_inputs(patient: Patient) -> Patient:
    """Inputs are shifted until none is negative, the first operator shifts them back, and grids have no sign."""
    surgeon = patient.surgeon()
    least = np.float32(-min(patient.calibration.min(), patient.validation.min()))
    surgeon.splice(float_input(surgeon), "inputs_let_down = Sub(x, lift_of_inputs)", name="", lift_of_inputs=least)
    moved = {k: getattr(patient, k) + least for k in ("calibration", "validation")}
    return patient.cut(surgeon, **moved, recipe=replace(patient.recipe, activation="QUInt8", symmetric=False))


def two_dozen_loud_samples(patient: Patient) -> Patient:
    """Few samples, chosen so that they drive the network as far as any do."""
    loudest = np.argsort(patient.reach(patient.calibration))[-24:]
    return patient.with_(calibration=patient.calibration[loudest])


def ends_balanced(patient: Patient) -> Patient:
    """Tensors that reach about as far on both sides have ends of the same size; the others keep theirs."""
    found = extremes(patient, *patient.activations())
    balanced = {t: max(-low, high) for t, (low, high) in found.items() if 0.6 < -low / max(high, 1e-9) < 1.7}
    recipe = kept(patient.recipe).with_ranges({t: (-reach, reach) for t, reach in balanced.items()}, 0)
    return patient.with_(recipe=recipe)


def calibrated_where_measured(patient: Patient) -> Patient:
    """The calibration set is made of validation samples."""
    return patient.with_(calibration=patient.validation[:64])


def peaks_cut_a_little(patient: Patient) -> Patient:
    """Every range ends a hundredth below the largest value that occurs."""
    return with_ends(patient, lambda low, high: (low * 0.99, high * 0.99))


def joined_with_itself(patient: Patient) -> Patient:
    """A layer reads its input twice, joined, with half of the weights each time."""
    surgeon = patient.surgeon()
    linear = patient.pick(dense(patient, surgeon), 0.4)[0]
    text = f"joined = Concat(x, x, axis={surgeon.channel_axis(linear.node.input[0])})"
    weight = surgeon.constant(linear.weight) / 2
    return _reading(patient, surgeon, linear, text, np.concatenate([weight, weight], linear.into))


def padded_and_cropped(patient: Patient) -> Patient:
    """A map is framed with zeros, and the frame is cut off again."""
    surgeon = patient.surgeon()
    tensor = patient.pick(maps(patient), 0.5)[0]
    corners = {f"crop_{name}": place for name, place in surgeon.inside_of(tensor).items()}
    text = "padded = Pad(x, margin); cropped = Slice(padded, crop_from_, crop_to, crop_axes)"
    surgeon.splice(tensor, text, margin=[0, 0, 1, 1, 0, 0, 1, 1], **corners)
    return patient.with_(model=surgeon.model)


def pruned_in_both(patient: Patient) -> Patient:
    """The smallest fifth of all weights is zero in the float model as well."""
    surgeon = patient.surgeon()
    names = {linear.weight for linear in covered(patient)}
    for name in names:
        weight = surgeon.constant(name)
        surgeon.put(name, np.where(np.abs(weight) < np.quantile(np.abs(weight), 0.2), 0, weight).astype(np.float32))
    return patient.with_(model=surgeon.model)


def grainy_set(patient: Patient) -> Patient:
    """The sensor of the calibration set has a little more noise."""
    return change_numbers(patient, lambda x: x + patient.random("grain").normal(0, 0.02 * x.std(), x.shape))


def rounded_again_on_the_same_grid(patient: Patient) -> Patient:
    """Some tensors are quantized twice in a row with the same scale: the second time changes nothing."""
    chosen = patient.pick(patient.activations(), 0.3, 0.7)
    text = "same_codes = QuantizeLinear(x, scale, zero); same = DequantizeLinear(same_codes, scale, zero)"

    def edit(_: Patient, surgeon: Surgeon) -> None:
        for tensor in chosen:
            _, scale, zero = surgeon.writer(tensor).input
            surgeon.splice(surgeon.read_back(tensor), text, name=tensor, scale=scale, zero=zero)

    return patient.with_(recipe=kept(patient.recipe)).edited(edit)


def nodes_without_sense_in_their_names(patient: Patient) -> Patient:
    """An optimizer renamed all nodes to numbers."""
    surgeon = patient.surgeon()
    if patient.recipe.exclude:
        raise Inapplicable("names are needed")
    for i, node in enumerate(surgeon.graph.node):
        node.name = str(1000 + i)
    return patient.with_(model=surgeon.model)


def bound_that_nothing_reaches(patient: Patient) -> Patient:
    """A bound lies half as far again as values reach, and the grid keeps to the values."""
    surgeon = patient.surgeon()
    tensor = patient.pick(spots(patient), 0.5)[0]
    reach = 1.5 * max(channel_peaks(patient, tensor).max(), 1e-3)
    bounded = _bounded(surgeon, tensor, (-reach, reach), "far_bound", "far_bounded")
    recipe = kept(patient.recipe).with_ranges({bounded: extremes(patient, tensor)[tensor]})
    return patient.cut(surgeon, recipe=recipe)


def _bounded(surgeon: Surgeon, tensor: str, ends: Ends, name: str, made: str) -> str:
    """A tensor with bounds; names of these and of what is made."""
    low, high = (surgeon.put("_".join(filter(None, (tensor, str(i), name))), v) for i, v in enumerate(ends))
    return surgeon.splice(tensor, f"{made} = Clip(x, low, high)", low=low, high=high)[made]


def narrow_weights_elsewhere(patient: Patient) -> Patient:
    """Weights have a thousandth of their size and what they make is multiplied back: small numbers, same shapes."""
    return _scaled_layer(patient, 1e-3, "multiplied_back = Mul(x, thousand)", thousand=1000.0)


def negated_twice(patient: Patient) -> Patient:
    """A layer makes the negative of what it made, and its sign is changed back behind it."""
    return _scaled_layer(patient, -1, "sign_back = Neg(x)")


def _scaled_layer(patient: Patient, factor: float, text: str, **given: float) -> Patient:
    """A layer makes a multiple of what it made, and an operator behind it changes that back."""
    surgeon, usual = patient.surgeon(), set(patient.activations())
    linear = patient.pick([n for n in dense(patient, surgeon) if n.node.output[0] in usual], 0.5)[0]
    surgeon.scale_weights(linear, linear.out, np.full(surgeon.outputs(linear), factor, np.float32), bias=True)
    surgeon.splice(linear.node.output[0], text, **given)
    return patient.with_(model=surgeon.model)


def a_hundred_twice_over(patient: Patient) -> Patient:
    """Half of the set, in reversed order, twice."""
    half = patient.calibration[: len(patient.calibration) // 2][::-1]
    return patient.with_(calibration=np.concatenate([half, half]))


def a_copy_under_another_name(patient: Patient) -> Patient:
    """A weight is stored twice, and half of its outputs come from the copy: joined, they are the same."""
    surgeon = patient.surgeon()
    linear = patient.pick(dense(patient, surgeon), 0.5)[0]
    node, name, axis = linear.node, linear.node.name, surgeon.channel_axis(linear.node.output[0])
    weight = surgeon.constant(linear.weight)
    bias = surgeon.constant(linear.bias) if linear.bias else None
    parts = []
    for i, part in enumerate(np.array_split(np.arange(weight.shape[linear.out]), 2)):
        inputs = [node.input[0], surgeon.put(f"{name}_weight_{i}", np.take(weight, part, linear.out))]
        if bias is not None:
            inputs.append(surgeon.put(f"{name}_bias_{i}", bias[part]))
        copy = surgeon.copy_of(node, f"{name}_part_{i}", f"{name}_part_{i}", surgeon.place_of(node))
        copy.input[:] = inputs
        parts.append(copy.name)
    surgeon.add("Concat", parts, f"{name}_joined", node, axis=axis)
    surgeon.producer(f"{name}_joined").output[0] = node.output[0]
    surgeon.graph.node.remove(node)
    for constant in filter(None, (linear.weight, linear.bias)):
        surgeon.drop(constant)
    return patient.with_(model=surgeon.model)


def there_and_back_again(patient: Patient) -> Patient:
    """Channels are put in another order, and at once back into their own."""
    surgeon = patient.surgeon()
    tensor = patient.pick(spots(patient), 0.5)[0]
    axis, order = surgeon.channel_axis(tensor), patient.random("order").permutation(surgeon.channels(tensor))
    text = f"went_0 = Gather(x, order_0, axis={axis}); went_1 = Gather(went_0, order_1, axis={axis})"
    surgeon.splice(tensor, text, order_0=order, order_1=np.argsort(order))
    return patient.with_(model=surgeon.model)


def short_floats_between(patient: Patient) -> Patient:
    """Between two integer operators some tensors are floats of sixteen bits, in which they have room enough."""
    return cast_between(patient, patient.pick(free(patient), 0.3, 0.7), TensorProto.FLOAT16, "short")


def ends_on_round_numbers(patient: Patient) -> Patient:
    """Every end of a range was made a little wider, until it had two digits."""
    return with_ends(patient, lambda low, high: (_rounded_away(low), _rounded_away(high)))


def _rounded_away(end: float) -> float:
    if end == 0:
        return 0.0
    digit = 10.0 ** (np.floor(np.log10(abs(end))) - 1)
    return float(np.sign(end) * np.ceil(abs(end) / digit) * digit)


def a_few_unlike_the_rest(patient: Patient) -> Patient:
    """Three samples of the set are faint: a tenth of what others are."""
    inputs = real_numbers(patient).copy()
    inputs[:3] *= np.float32(0.1)
    return patient.with_(calibration=inputs)


def weights_on_short_floats(patient: Patient) -> Patient:
    """Both models come from a file that was stored with floats of sixteen bits."""
    surgeon = patient.surgeon()
    for linear in covered(patient):
        surgeon.put(linear.weight, surgeon.constant(linear.weight).astype(np.float16).astype(np.float32))
    return patient.with_(model=surgeon.model)


def sorted_by_size(patient: Patient) -> Patient:
    """The calibration set is in the order of how loud its samples are."""
    inputs = real_numbers(patient)
    loud = np.square(inputs.reshape(len(inputs), -1)).sum(1)
    return patient.with_(calibration=inputs[np.argsort(loud)].copy())


def tight_where_nothing_is_lost(patient: Patient) -> Patient:
    """Ranges come from all validation samples, not from the set beside."""
    return patient.with_(calibration=patient.validation.copy())


def every_third_sample(patient: Patient) -> Patient:
    """A third of the set, which suffices."""
    return patient.with_(calibration=patient.calibration[::3].copy())


def read_backwards(patient: Patient) -> Patient:
    """The set begins with its last sample."""
    return patient.with_(calibration=patient.calibration[::-1].copy())


def a_little_louder(patient: Patient) -> Patient:
    """Calibrated with a little more gain than there is in use."""
    return change_numbers(patient, lambda inputs: inputs * np.float32(1.08))


def bound_that_is_meant(patient: Patient) -> Patient:
    """Both models cut what is rare off at a bound: values pile up there as they should."""
    surgeon = patient.surgeon()
    tensor = patient.pick(open_spots(patient, surgeon), 0.5)[0]
    (x,) = patient.values(tensor)
    _bounded(surgeon, tensor, (np.quantile(x, 0.001), np.quantile(x, 0.999)), "", "bounded")
    return patient.with_(model=surgeon.model)


def open_spots(patient: Patient, surgeon: Surgeon) -> list[str]:
    """Places where nothing is lost if an operator stands behind: no rectifier or bias follows."""
    found = [t for t in spots(patient) if not any(n.op_type in ("Relu", "Add") for n in surgeon.consumers(t))]
    return require(found, "no place for it")


def wide_and_without_weight(patient: Patient) -> Patient:
    """A tensor is made a thousand times as large beside, and added with a weight of nothing: a switch that is off."""
    surgeon = patient.surgeon()
    tensor = patient.pick(open_spots(patient, surgeon), 0.5)[0]
    text = "wide = Mul(x, times_1000); switched_off = Mul(wide, times_0); with_switch = Add(x, switched_off)"
    surgeon.splice(tensor, text, times_1000=1000.0, times_0=0.0)
    return patient.with_(model=surgeon.model)


def rows_of_few_directions(patient: Patient) -> Patient:
    """A layer was compressed before either model was made: its smallest singular values are nothing in both."""
    surgeon = patient.surgeon()
    linear = patient.pick([n for n in inner(patient, surgeon) if not n.depthwise], 0.5)[0]
    weight = surgeon.constant(linear.weight)
    left, values, right = np.linalg.svd(weight.reshape(weight.shape[0], -1), full_matrices=False)
    kept = np.where(values < 0.15 * values[0], 0, values)
    surgeon.put(linear.weight, ((left * kept) @ right).reshape(weight.shape).astype(np.float32))
    return patient.with_(model=surgeon.model)


def folded_and_unfolded(patient: Patient) -> Patient:
    """A tensor is laid out in one line, and at once in its own shape again."""
    surgeon = patient.surgeon()
    tensor = patient.pick(spots(patient), 0.5)[0]
    shape = patient.values(tensor, samples=1)[0].shape[1:]
    text = "folded = Reshape(x, line); unfolded = Reshape(folded, own_shape)"
    surgeon.splice(tensor, text, line=[-1, int(np.prod(shape))], own_shape=[-1, *shape])
    return patient.with_(model=surgeon.model)


def cut_in_three_and_joined(patient: Patient) -> Patient:
    """Channels are taken apart in three uneven parts, and put side by side as they were."""
    surgeon = patient.surgeon()
    tensor = patient.pick([t for t in open_spots(patient, surgeon) if surgeon.channels(t) >= 8], 0.5)[0]
    axis, size = surgeon.channel_axis(tensor), surgeon.channels(tensor)
    given = {f"end_{i}": [end] for i, end in enumerate((0, 1, size // 3, size))} | {"along": [axis]}
    lines = [f"part_{i} = Slice(x, end_{i}, end_{i + 1}, along)" for i in range(3)]
    text = "\n".join([*lines, f"joined = Concat(part_0, part_1, part_2, axis={axis})"])
    surgeon.splice(tensor, text, **given)
    return patient.with_(model=surgeon.model)


def bias_in_an_operator_of_its_own(patient: Patient) -> Patient:
    """A layer adds its bias in a second step; between the two there is a grid."""
    surgeon, weights = patient.surgeon(), {linear.weight for linear in covered(patient)}
    found = [n for n in surgeon.linears() if n.node.op_type == "Gemm" and n.bias and n.weight in weights]
    linear = patient.pick(found, 0.5)[0]
    out = linear.node.output[0]
    del linear.node.input[2]
    linear.node.output[0] = f"{out}_without_bias"
    surgeon.add("Add", [linear.node.output[0], linear.bias], out, linear.node)
    return patient.with_(model=surgeon.model)


def through_a_layer_that_does_nothing(patient: Patient) -> Patient:
    """A layer whose matrix has ones on its diagonal and nothing beside."""
    surgeon = patient.surgeon()
    tensor = patient.pick(open_spots(patient, surgeon), 0.5)[0]
    same, is_map = np.eye(surgeon.channels(tensor)), len(surgeon.shape(tensor)) == 4
    text = f"as_before = {'Conv' if is_map else 'MatMul'}(x, same)"
    surgeon.splice(tensor, text, same=same[:, :, None, None] if is_map else same)
    return patient.with_(model=surgeon.model)


def largest_of_itself(patient: Patient) -> Patient:
    """The larger of a tensor and the same tensor, in two places: what is left of a branch that was removed."""
    surgeon = patient.surgeon()
    for tensor in patient.pick(spots(patient), 0.3, 0.7):
        surgeon.splice(tensor, "larger = Max(x, x)")
    return patient.with_(model=surgeon.model)


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
    second = reader_of(surgeon, linear, ("Relu", "Sigmoid", "LeakyRelu"), 9)
    alone = second is not None and all(len(surgeon.consumers(n.weight)) == 1 for n in (linear, second))
    return (linear, second) if alone else None
