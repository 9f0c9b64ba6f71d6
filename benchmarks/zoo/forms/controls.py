"""Healthy models: each looks as if something were wrong with it, and nothing is."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from ..cuts import (
    add_cancelling,
    channel_peaks,
    covered,
    dense,
    extremes,
    float_input,
    free,
    images,
    inner,
    kept,
    per_channel,
    real_numbers,
    spots,
    taken_twice,
    with_scaled_ranges,
)
from ..patient import Patient
from ..surgery import Inapplicable, Linear, Surgeon, require

#: Controls that are settings of the quantizer alone.
RECIPES: dict[str, dict[str, Any]] = {
    "per-channel": {},
    "per-tensor": {"per_channel": False},
    "unsigned": {"activation": "QUInt8"},
    "unsigned-weights": {"activation": "QUInt8", "weight": "QUInt8", "per_channel": False},
    "percentile": {"method": "Percentile", "percentile": 99.999},
    "entropy": {"method": "Entropy"},
    "symmetric": {"symmetric": True},
    "qoperator": {"qoperator": True},
    "qoperator-per-tensor": {"qoperator": True, "per_channel": False, "activation": "QUInt8"},
    "sixteen-bit": {"activation": "QUInt16"},
    "sixteen-bit-signed": {"activation": "QInt16", "symmetric": True},
    "reduced-range": {"extra": {"reduce_range": True}},
    "no-bias-quantization": {"extra": {"QuantizeBias": False}},
    "kept-activations": {"extra": {"QDQKeepRemovableActivations": True}},
    "per-tensor-symmetric-weights": {"per_channel": False, "weight": "QInt8"},
    "sixteen-bits-throughout": {"activation": "QUInt16", "qoperator": False, "method": "MinMax"},
    "as-it-was": {},
    "as-it-should-be": {},
    "one-scale-for-each-tensor": {"per_channel": False, "activation": "QUInt8", "symmetric": False},
    "zero-in-the-middle": {"per_channel": True, "activation": "QInt8", "weight": "QInt8", "symmetric": True},
    "wide-between-narrow-weights": {"activation": "QUInt16", "method": "MinMax", "qoperator": False},
    "integer-operators": {"activation": "QUInt8", "qoperator": True, "symmetric": False},
    "as-it-came": {},
    "wide-and-symmetric": {
        **{"activation": "QInt16", "weight": "QInt8", "symmetric": True},
        **{"method": "MinMax", "percentile": None, "qoperator": False},
    },
    "hardly-a-percentile": {
        **{"activation": "QUInt8", "weight": "QInt8", "symmetric": False},
        **{"method": "Percentile", "percentile": 99.9999},
    },
}


def with_recipe(changes: dict[str, Any]) -> Callable[[Patient], Patient]:
    """A control with other settings of the quantizer."""
    return lambda patient: patient.with_(recipe=replace(patient.recipe, **changes))


def large_scales(patient: Patient) -> Patient:
    """All channels of some tensors a thousand times as large: the numbers are huge, the shapes are the same."""
    surgeon = patient.surgeon()
    for tensor in patient.pick(_apart(surgeon), 0.2, 0.5, 0.8):
        surgeon.amplify(tensor, np.full(surgeon.channels(tensor), 1000.0, np.float32))
    return patient.with_(model=surgeon.model)


def _apart(surgeon: Surgeon) -> list[str]:
    """Tensors that no Concat joins with others."""
    followed = ("Concat", "MaxPool", "Relu", "Clip")
    return [t for t in surgeon.amplifiable() if all(n.op_type not in followed for n in surgeon.consumers(t))]


def small_scales(patient: Patient) -> Patient:
    """The same a thousand times as small."""
    surgeon = patient.surgeon()
    for tensor in patient.pick(_apart(surgeon), 0.3, 0.6):
        surgeon.amplify(tensor, np.full(surgeon.channels(tensor), 1e-3, np.float32))
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
    network = patient.network
    if network.preprocessing is None:
        raise Inapplicable("no images")
    pixels = network.pixels("calibration")[0][: len(patient.calibration)]
    return patient.with_(calibration=network.preprocessing.apply((pixels * 1.1).round().clip(0, 255)))


def enough_with_sixty(patient: Patient) -> Patient:
    """A small set that shows the whole range all the same."""
    return patient.with_(calibration=patient.calibration[:64])


def some_duplicates(patient: Patient) -> Patient:
    """A fifth of the samples occurs twice."""
    inputs = patient.calibration
    return patient.with_(calibration=np.concatenate([inputs, inputs[: len(inputs) // 5]]))


def jpeg_like(patient: Patient) -> Patient:
    """Images that were stored with slight losses."""
    network = patient.network
    if network.preprocessing is None:
        raise Inapplicable("no images")
    pixels = network.pixels("calibration")[0][: len(patient.calibration)].astype(np.float32)
    noise = patient.random("jpeg").normal(0, 2, pixels.shape)
    return patient.with_(calibration=network.preprocessing.apply((pixels + noise).round().clip(0, 255)))


def as_it_is(patient: Patient) -> Patient:
    """Nothing is changed."""
    return patient


def scales_of_half_precision(patient: Patient) -> Patient:
    """All scales went through half precision: none is quite what the ranges give."""

    def edit(_: Patient, surgeon: Surgeon) -> None:
        for node in surgeon.nodes("QuantizeLinear", "DequantizeLinear"):
            scale = surgeon.constant(node.input[1])
            # Scales of biases are products, far below the numbers of half precision.
            if scale is not None and scale.min() > 1e-4:
                surgeon.put(node.input[1], scale.astype(np.float16).astype(np.float32))

    return patient.with_(recipe=replace(patient.recipe, qoperator=False)).edited(edit)


def copies_that_cancel_a_little(patient: Patient) -> Patient:
    """A layer reads its input twice, with weights twice as large that partly cancel."""
    surgeon = patient.surgeon()
    for i, linear in enumerate(patient.pick(dense(patient, surgeon), 0.5)):
        taken_twice(surgeon, linear)
        half = np.split(surgeon.constant(linear.weight), 2, axis=linear.into)[0]
        drawn = patient.random(f"little{i}").normal(0, half.std() * 0.25, half.shape)
        add_cancelling(surgeon, linear, drawn.astype(np.float32))
    return patient.with_(model=surgeon.model)


def half_of_the_samples_twice(patient: Patient) -> Patient:
    """A hundred samples, each twice: duplicates that cost nothing."""
    return patient.with_(calibration=np.repeat(patient.calibration[::2], 2, 0))


def some_blank_among_many(patient: Patient) -> Patient:
    """One sample of eight is zero; the others show all that there is."""
    inputs = np.concatenate(
        [real_numbers(patient), np.zeros_like(patient.calibration[: len(patient.calibration) // 8])]
    )
    return patient.with_(calibration=inputs)


def mirrored_pictures(patient: Patient) -> Patient:
    """Calibrated with mirrored_pictures pictures."""
    images(patient)
    return patient.with_(calibration=np.ascontiguousarray(patient.calibration[..., ::-1]))


def samples_in_another_order(patient: Patient) -> Patient:
    """The set is sorted by how loud the samples are."""
    order = np.argsort(patient.reach(patient.calibration))
    return patient.with_(calibration=patient.calibration[order])


def dead_but_harmless_channels(patient: Patient) -> Patient:
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


def gain_and_its_inverse(patient: Patient) -> Patient:
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


def inputs_in_another_unit(patient: Patient) -> Patient:
    """Inputs are a thousand times as large and divided first: the numbers look raw, and the network wants them so."""
    surgeon = patient.surgeon()
    name = float_input(surgeon)
    surgeon.insert_after(name, "Mul", [surgeon.put("to_usual_unit", np.float32(1e-3))], "in_usual_unit")
    moved = {k: (getattr(patient, k) * np.float32(1e3)) for k in ("calibration", "validation")}
    return patient.with_(model=surgeon.model, **moved)


def ranges_a_little_off(patient: Patient) -> Patient:
    """Ranges up to a tenth wider than measured: another run of the calibrator."""
    tensors = patient.activations()
    rng = patient.random("off")
    recipe = kept(patient.recipe)
    for tensor, (low, high) in zip(tensors, extremes(patient, *tensors), strict=True):
        recipe = recipe.with_range(tensor, low * rng.uniform(1.02, 1.1), max(high * rng.uniform(1.02, 1.1), 1e-5))
    return patient.with_(recipe=recipe)


def one_small_layer_in_float(patient: Patient) -> Patient:
    """One layer is left out on purpose."""
    linears = covered(patient)
    if len(linears) < 4 or not linears[-1].node.name:
        raise Inapplicable("too few layers")
    return patient.with_(recipe=replace(patient.recipe, exclude=(*patient.recipe.exclude, linears[0].node.name)))


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


def one_sided_inputs(patient: Patient) -> Patient:
    """Inputs are shifted until none is negative, the first operator shifts them back, and grids have no sign."""
    surgeon = patient.surgeon()
    name = float_input(surgeon)
    least = np.float32(-min(patient.calibration.min(), patient.validation.min()))
    surgeon.insert_after(name, "Sub", [surgeon.put("lift_of_inputs", least)], "inputs_let_down")
    moved = {k: getattr(patient, k) + least for k in ("calibration", "validation")}
    recipe = replace(patient.recipe, activation="QUInt8", symmetric=False)
    return patient.with_(model=surgeon.model, recipe=recipe, **moved)


def two_dozen_loud_samples(patient: Patient) -> Patient:
    """Few samples, chosen so that they drive the network as far as any do."""
    loudest = np.argsort(patient.reach(patient.calibration))[-24:]
    return patient.with_(calibration=patient.calibration[loudest])


def ends_balanced(patient: Patient) -> Patient:
    """Tensors that reach about as far on both sides have ends of the same size; the others keep theirs."""
    tensors = patient.activations()
    recipe = kept(patient.recipe)
    for tensor, (low, high) in zip(tensors, extremes(patient, *tensors), strict=True):
        if 0.6 < -low / max(high, 1e-9) < 1.7:
            reach = max(-low, high)
            recipe = recipe.with_range(tensor, -reach, reach)
    return patient.with_(recipe=recipe)


def calibrated_where_measured(patient: Patient) -> Patient:
    """The calibration set is made of validation samples."""
    return patient.with_(calibration=patient.validation[:64])


def peaks_cut_a_little(patient: Patient) -> Patient:
    """Every range ends a hundredth below the largest value that occurs."""
    tensors = patient.activations()
    recipe = kept(patient.recipe)
    for tensor, (low, high) in zip(tensors, extremes(patient, *tensors), strict=True):
        recipe = recipe.with_range(tensor, low * 0.99, max(high * 0.99, 1e-5))
    return patient.with_(recipe=recipe)


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
    inputs = real_numbers(patient)
    noise = patient.random("grain").normal(0, 0.02 * inputs.std(), inputs.shape)
    return patient.with_(calibration=(inputs + noise).astype(np.float32))


def rounded_again_on_the_same_grid(patient: Patient) -> Patient:
    """Some tensors are quantized twice in a row with the same scale: the second time changes nothing."""
    chosen = patient.pick(patient.activations(), 0.3, 0.7)

    def edit(_: Patient, surgeon: Surgeon) -> None:
        for tensor in chosen:
            readers = [n for n in surgeon.consumers(tensor) if n.op_type == "QuantizeLinear"]
            if not readers:
                raise Inapplicable(f"{tensor} is not quantized")
            grid, back = list(readers[0].input[1:]), surgeon.consumers(readers[0].output[0])[0]
            codes = surgeon.insert_after(back.output[0], "QuantizeLinear", grid, f"{tensor}_same_codes")
            surgeon.insert_after(codes, "DequantizeLinear", grid, f"{tensor}_same")

    return patient.with_(recipe=kept(patient.recipe)).edited(edit)


def nodes_without_sense_in_their_names(patient: Patient) -> Patient:
    """An optimizer renamed all nodes to numbers."""
    surgeon = patient.surgeon()
    if patient.recipe.exclude:
        raise Inapplicable("names are needed")
    for i, node in enumerate(surgeon.graph.node):
        node.name = str(1000 + i)
    return patient.with_(model=surgeon.model)


def head_in_float(patient: Patient) -> Patient:
    """The last layer is left out on purpose."""
    linears = covered(patient)
    if len(linears) < 4 or not linears[-1].node.name:
        raise Inapplicable("too few layers")
    return patient.with_(recipe=replace(patient.recipe, exclude=(*patient.recipe.exclude, linears[-1].node.name)))


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


def a_hundred_twice_over(patient: Patient) -> Patient:
    """Half of the set, in reversed order, twice."""
    half = patient.calibration[: len(patient.calibration) // 2][::-1]
    return patient.with_(calibration=np.concatenate([half, half]))


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


def short_floats_between(patient: Patient) -> Patient:
    """Between two integer operators some tensors are floats of sixteen bits, in which they have room enough."""
    chosen = patient.pick(free(patient), 0.3, 0.7)

    def edit(_: Patient, surgeon: Surgeon) -> None:
        for tensor in chosen:
            writer = next((n for n in surgeon.consumers(tensor) if n.op_type == "QuantizeLinear"), None)
            if writer is None:
                raise Inapplicable(f"{tensor} is not quantized")
            last = surgeon.consumers(writer.output[0])[0].output[0]
            short = surgeon.insert_after(last, "Cast", (), f"{tensor}_short", to=TensorProto.FLOAT16)
            surgeon.insert_after(short, "Cast", (), f"{tensor}_long_again", to=TensorProto.FLOAT)

    return patient.with_(recipe=kept(patient.recipe)).edited(edit)


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


def first_and_last_in_float(patient: Patient) -> Patient:
    """The first layer and the last are left out, as vendors advise."""
    linears = covered(patient)
    if len(linears) < 5:
        raise Inapplicable("too few layers")
    ends = (linears[0].node.name, linears[-1].node.name)
    return patient.with_(recipe=replace(patient.recipe, exclude=(*patient.recipe.exclude, *ends)))


def negated_twice(patient: Patient) -> Patient:
    """A layer makes the negative of what it made, and its sign is changed back behind it."""
    surgeon = patient.surgeon()
    found = [n for n in dense(patient, surgeon) if n.node.output[0] in set(patient.activations())]
    linear = patient.pick(found, 0.5)[0]
    size = surgeon.constant(linear.weight).shape[linear.out]
    surgeon.scale_weights(linear, linear.out, np.full(size, -1, np.float32), bias=True)
    surgeon.insert_after(linear.node.output[0], "Neg", (), f"{linear.node.output[0]}_sign_back")
    return patient.with_(model=surgeon.model)


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
    return patient.with_(calibration=(real_numbers(patient) * np.float32(1.08)).astype(np.float32))


def bound_that_is_meant(patient: Patient) -> Patient:
    """Both models cut what is rare off at a bound: values pile up there as they should."""
    surgeon = patient.surgeon()
    tensor = patient.pick(open_spots(patient, surgeon), 0.5)[0]
    x = patient.values(tensor)[0]
    ends = [surgeon.put(f"{tensor}_{i}", np.float32(np.quantile(x, q))) for i, q in enumerate((0.001, 0.999))]
    surgeon.insert_after(tensor, "Clip", ends, f"{tensor}_bounded")
    return patient.with_(model=surgeon.model)


def open_spots(patient: Patient, surgeon: Surgeon) -> list[str]:
    """Places where nothing is lost if an operator stands behind: no rectifier or bias follows."""
    found = require(
        [t for t in spots(patient) if not any(n.op_type in ("Relu", "Add") for n in surgeon.consumers(t))],
        "no place for it",
    )
    return found


def wide_and_without_weight(patient: Patient) -> Patient:
    """A tensor is made a thousand times as large beside, and added with a weight of nothing: a switch that is off."""
    surgeon = patient.surgeon()
    tensor = patient.pick(open_spots(patient, surgeon), 0.5)[0]
    thousand, none = (surgeon.put(f"{tensor}_times_{v}", np.float32(v)) for v in (1000, 0))
    made = surgeon.producer(tensor)
    wide = surgeon.add("Mul", [tensor, thousand], f"{tensor}_wide", made)
    nothing = surgeon.add("Mul", [wide, none], f"{tensor}_switched_off", surgeon.producer(wide))
    total = f"{tensor}_with_switch"
    surgeon.reroute(tensor, total, but=(wide,))
    surgeon.add("Add", [tensor, nothing], total, surgeon.producer(nothing))
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
    line = surgeon.put(f"{tensor}_line", np.array([-1, int(np.prod(shape))]))
    own = surgeon.put(f"{tensor}_own_shape", np.array([-1, *shape]))
    folded = surgeon.insert_after(tensor, "Reshape", [line], f"{tensor}_folded")
    surgeon.insert_after(folded, "Reshape", [own], f"{tensor}_unfolded")
    return patient.with_(model=surgeon.model)


def cut_in_three_and_joined(patient: Patient) -> Patient:
    """Channels are taken apart in three uneven parts, and put side by side as they were."""
    surgeon = patient.surgeon()
    tensor = patient.pick([t for t in open_spots(patient, surgeon) if surgeon.channels(t) >= 8], 0.5)[0]
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


def through_a_layer_that_does_nothing(patient: Patient) -> Patient:
    """A layer whose matrix has ones on its diagonal and nothing beside."""
    surgeon = patient.surgeon()
    tensor = patient.pick(open_spots(patient, surgeon), 0.5)[0]
    size, rank = surgeon.channels(tensor), len(surgeon.shape(tensor))
    same = np.eye(size, dtype=np.float32)
    name = surgeon.put(f"{tensor}_same", same[:, :, None, None] if rank == 4 else same)
    surgeon.insert_after(tensor, "Conv" if rank == 4 else "MatMul", [name], f"{tensor}_as_before")
    return patient.with_(model=surgeon.model)


def largest_of_itself(patient: Patient) -> Patient:
    """The larger of a tensor and the same tensor, in two places: what is left of a branch that was removed."""
    surgeon = patient.surgeon()
    for tensor in patient.pick(spots(patient), 0.3, 0.7):
        surgeon.insert_after(tensor, "Max", [tensor], f"{tensor}_larger")
        node = surgeon.producer(f"{tensor}_larger")
        node.input[1] = tensor
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
    tensor, readers = linear.node.output[0], surgeon.consumers(linear.node.output[0])
    while len(readers) == 1 and readers[0].op_type in ("Relu", "Sigmoid", "LeakyRelu"):
        tensor, readers = readers[0].output[0], surgeon.consumers(readers[0].output[0])
    if len(readers) != 1 or readers[0].input[0] != tensor:
        return None
    second = surgeon.linear(readers[0])
    alone = second is not None and all(len(surgeon.consumers(n.weight)) == 1 for n in (linear, second))
    return (linear, second) if alone else None
