"""Healthy models: each looks as if something were wrong with it, and nothing is."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..cuts import (
    Ends,
    channel_peaks,
    covered,
    dense,
    extremes,
    kept,
    real_numbers,
    spots,
    with_scaled_ranges,
)
from ..patient import Patient
from ..quantizing import Recipe
from ..surgery import Inapplicable, Surgeon, require
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


def peaks_cut_a_little(patient: Patient) -> Patient:
    """Every range ends a hundredth below the largest value that occurs."""
    return with_ends(patient, lambda low, high: (low * 0.99, high * 0.99))


def grainy_set(patient: Patient) -> Patient:
    """The sensor of the calibration set has a little more noise."""
    return change_numbers(patient, lambda x: x + patient.random("grain").normal(0, 0.02 * x.std(), x.shape))


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
    return patient.spliced(tensor, text, order_0=order, order_1=np.argsort(order))


def ends_on_round_numbers(patient: Patient) -> Patient:
    """Every end of a range was made a little wider, until it had two digits."""
    return with_ends(patient, lambda low, high: (_rounded_away(low), _rounded_away(high)))


def _rounded_away(end: float) -> float:
    if end == 0:
        return 0.0
    digit = 10.0 ** (np.floor(np.log10(abs(end))) - 1)
    return float(np.sign(end) * np.ceil(abs(end) / digit) * digit)


def sorted_by_size(patient: Patient) -> Patient:
    """The calibration set is in the order of how loud its samples are."""
    inputs = real_numbers(patient)
    loud = np.square(inputs.reshape(len(inputs), -1)).sum(1)
    return patient.with_(calibration=inputs[np.argsort(loud)].copy())


def open_spots(patient: Patient, surgeon: Surgeon) -> list[str]:
    """Places where nothing is lost if an operator stands behind: no rectifier or bias follows."""
    found = [t for t in spots(patient) if not any(n.op_type in ("Relu", "Add") for n in surgeon.consumers(t))]
    return require(found, "no place for it")


def cut_in_three_and_joined(patient: Patient) -> Patient:
    """Channels are taken apart in three uneven parts, and put side by side as they were."""
    surgeon = patient.surgeon()
    tensor = patient.pick([t for t in open_spots(patient, surgeon) if surgeon.channels(t) >= 8], 0.5)[0]
    axis, size = surgeon.channel_axis(tensor), surgeon.channels(tensor)
    given = {f"end_{i}": [end] for i, end in enumerate((0, 1, size // 3, size))} | {"along": [axis]}
    lines = [f"part_{i} = Slice(x, end_{i}, end_{i + 1}, along)" for i in range(3)]
    text = "\n".join([*lines, f"joined = Concat(part_0, part_1, part_2, axis={axis})"])
    return patient.spliced(tensor, text, **given)
