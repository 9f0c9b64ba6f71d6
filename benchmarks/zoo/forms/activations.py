"""Faults of activations: ranges, masks, grids, and chains that make noise loud."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from ..cuts import (
    channel_peaks,
    class_head,
    covered,
    extremes,
    float_input,
    free,
    kept,
    on_coarse_grids,
    per_channel,
    spots,
    with_scaled_ranges,
)
from ..patient import Patient, standing
from ..quantizing import run
from ..surgery import Inapplicable, Surgeon, require

GATES = ("Sigmoid", "Softmax")
CURVES = ("Sigmoid", "Tanh", "Erf", "Gelu", "Softmax")
Regrid = Callable[[NDArray, NDArray, int], tuple[NDArray, NDArray]]


def _amplified(patient: Patient, factor: float, shares: tuple[float, ...], rare: bool = False) -> Patient:
    surgeon = patient.surgeon()
    tensors = patient.pick(_outlier_places(surgeon, rare), *shares)
    for tensor, x in zip(tensors, patient.values(*tensors), strict=True):
        axis = surgeon.channel_axis(tensor)
        rows = np.abs(np.moveaxis(x, axis, 0).reshape(x.shape[axis], -1))
        if rare:
            active = (rows > 0.05 * rows.max()).mean(1)
            possible = np.where((active > 0) & (rows.max(1) > 0.05 * rows.max()), active, 2)
            channel, gain = (
                int(np.argmin(possible)),
                factor * rows.max() / max(rows[int(np.argmin(possible))].max(), 1e-6),
            )
        else:
            channel = int(np.argsort(rows.max(1))[len(rows) // 2])
            gain = factor * np.median(rows.max(1)) / max(rows[channel].max(), 1e-6)
        scale = np.ones(len(rows), np.float32)
        scale[channel] = gain
        surgeon.amplify(tensor, scale)
    return patient.with_(model=surgeon.model).at(*tensors)


def _outlier_places(surgeon: Surgeon, rare: bool) -> list[str]:
    kinds = ("Relu",) if rare else None
    places = [t for t in surgeon.amplifiable() if kinds is None or surgeon.producer(t).op_type in kinds]
    followed = ("Relu", "Clip", "Flatten", "GlobalAveragePool", "ReduceMean", "Concat")
    return [t for t in places if all(node.op_type not in followed for node in surgeon.consumers(t))] or places


def outlier_channel(patient: Patient) -> Patient:
    """One channel 300 times as wide as its neighbours, in two tensors; the readers' weights make up for it."""
    return _amplified(patient, 300 * patient.strength, (0.3, 0.7))


def massive_channel(patient: Patient) -> Patient:
    """One channel 3000 times as wide, in one tensor."""
    return _amplified(patient, 3000 * patient.strength, (0.5,))


def rare_giants(patient: Patient) -> Patient:
    """A channel that is hardly ever active, but then 500 times as strong."""
    return _amplified(patient, 500 * patient.strength, (0.4, 0.8), rare=True)


def broken_samples(patient: Patient) -> Patient:
    """Two calibration samples of two hundred are forty times too bright: a failed decoder."""
    inputs = patient.signals.copy()
    inputs[:: len(inputs) // 2] *= 40 * patient.strength
    return patient.with_(calibration=inputs)


def percentile_too_low(patient: Patient) -> Patient:
    """Thresholds at the 94 % quantile everywhere."""
    return patient.with_(
        recipe=replace(patient.recipe, method="Percentile", percentile=100 - 6 * min(patient.strength, 4))
    )


def _no_gates(patient: Patient) -> list[str]:
    """Tensors but those whose range is known beforehand, which have faults of their own."""
    surgeon = patient.surgeon()
    return [t for t in patient.activations() if surgeon.producer(t).op_type not in ("Sigmoid", "Softmax")]


def narrow_range(patient: Patient) -> Patient:
    """Two tensors with a fifth of the range that they need."""
    tensors = patient.pick(_no_gates(patient), 0.25, 0.6)
    return with_scaled_ranges(patient, tensors, 0.12 / patient.strength).at(*tensors)


def narrow_late_range(patient: Patient) -> Patient:
    """A late tensor with a tenth of its range."""
    tensors = patient.pick(_no_gates(patient), 0.85)
    return with_scaled_ranges(patient, tensors, 0.08 / patient.strength).at(*tensors)


def wide_ranges(patient: Patient) -> Patient:
    """Ranges 24 times wider than the values, everywhere."""
    return with_scaled_ranges(patient, patient.activations(), 24 * patient.strength)


def one_wide_range(patient: Patient) -> Patient:
    """One tensor with a range 150 times too wide."""
    tensors = patient.pick(_no_gates(patient), 0.5)
    return with_scaled_ranges(patient, tensors, 150 * patient.strength).at(*tensors)


def power_of_two(patient: Patient) -> Patient:
    """Symmetric thresholds at a power of two, four bits too high."""
    recipe = replace(patient.recipe, symmetric=True)
    tensors = patient.activations()
    for tensor, (low, high) in zip(tensors, extremes(patient, *tensors), strict=True):
        threshold = 2.0 ** (np.ceil(np.log2(max(-low, high, 1e-6) * patient.strength)) + 4)
        step = np.float32(threshold / 2 ** (8 * recipe.zero_point.itemsize - 1))
        recipe = recipe.with_override(tensor, scale=np.array(step, np.float32), zero_point=recipe.zero_point)
    return patient.with_(recipe=recipe)


def symmetric_grid(patient: Patient) -> Patient:
    """Signed symmetric codes for values that are all positive."""
    return patient.with_(recipe=replace(patient.recipe, symmetric=True))


def negatives_cut_off(patient: Patient) -> Patient:
    """Ranges that begin at zero for swish and GELU, whose small negative values count."""
    surgeon = patient.surgeon()
    tensors = require([t for t in patient.activations("Mul", "Gelu") if not _scales(surgeon, t)], "no swish")
    found = require(
        [
            (t, high)
            for t, (low, high) in zip(tensors, extremes(patient, *tensors), strict=True)
            if low < -0.05 and low > -0.4
        ],
        "no negative tails",
    )
    recipe = patient.recipe
    for tensor, high in found:
        recipe = recipe.with_range(tensor, 0, high)
    return patient.with_(recipe=recipe).at(*(tensor for tensor, _ in found))


def _scales(surgeon: Surgeon, tensor: str) -> bool:
    return any(surgeon.constant(name) is not None for name in surgeon.producer(tensor).input)


def swish_in_pieces(patient: Patient) -> Patient:
    """Sigmoid and Mul quantized apart, the sigmoid's range that of its input."""
    surgeon = patient.surgeon()
    sigmoids = require(
        [
            n.output[0]
            for n in surgeon.nodes("Sigmoid")
            if any(r.op_type == "Mul" and n.input[0] in r.input for r in surgeon.consumers(n.output[0]))
        ],
        "no swish",
    )
    recipe = patient.recipe
    for tensor in sigmoids:
        recipe = recipe.with_range(tensor, -20 * patient.strength, 20 * patient.strength)
    return patient.with_(recipe=recipe).at(*sigmoids)


def gate_range(patient: Patient) -> Patient:
    """Softmax or the gates of a recurrent cell on a range of 0 … 32."""
    surgeon = patient.surgeon()
    gates = require(
        [
            n.output[0]
            for n in surgeon.nodes("Softmax", "Sigmoid")
            if not any(r.op_type == "Mul" and n.input[0] in r.input for r in surgeon.consumers(n.output[0]))
        ],
        "no gates",
    )
    recipe = patient.recipe
    for tensor in gates:
        recipe = recipe.with_range(tensor, 0, 32 * patient.strength)
    return patient.with_(recipe=recipe).at(*gates)


def attention_mask(patient: Patient) -> Patient:
    """Masked scores get -1e9 instead of a number that eight bits can bear."""
    return _masked(patient, -1e9)


def lowest_float_mask(patient: Patient) -> Patient:
    """Masked scores get the lowest float32."""
    return _masked(patient, float(np.finfo(np.float32).min))


def _masked(patient: Patient, value: float) -> Patient:
    surgeon = patient.surgeon()
    sums = {node.output[0]: node for node in map(surgeon.producer, _scores(surgeon)) if node and node.op_type == "Add"}
    masks = {tensor: [m for name in node.input if (m := _mask_behind(surgeon, name))] for tensor, node in sums.items()}
    names = require({name for found in masks.values() for name in found}, "no attention mask")
    for name in names:
        mask = surgeon.constant(name)
        surgeon.put(name, np.where(mask < -1, np.float32(value), mask).astype(np.float32))
    return patient.with_(model=surgeon.model).at(*(tensor for tensor, found in masks.items() if found))


def _scores(surgeon: Surgeon) -> list[str]:
    return [node.input[0] for node in surgeon.nodes("Softmax")]


def _mask_behind(surgeon: Surgeon, tensor: str) -> str | None:
    """The constant that holds the masked value: the mask itself, or what a computed one is multiplied by."""
    value, node = surgeon.constant(tensor), surgeon.producer(tensor)
    if value is not None:
        return tensor if value.dtype == np.float32 and value.min() < -1 else None
    if node is None or node.op_type not in ("Mul", "Unsqueeze", "Expand", "Reshape"):
        return None
    operands = node.input if node.op_type == "Mul" else node.input[:1]
    return next((found for name in operands if (found := _mask_behind(surgeon, name))), None)


def milder_mask(patient: Patient) -> Patient:
    """Masks of -20: nothing after a softmax, and no burden to eight bits."""
    surgeon = patient.surgeon()
    for tensor in surgeon.graph.initializer:
        if "mask" in tensor.name:
            surgeon.put(tensor.name, np.maximum(surgeon.constant(tensor.name), np.float32(-20)))
    return patient.with_(model=surgeon.model)


def class_mask(patient: Patient) -> Patient:
    """Two classes that the head keeps in reserve are switched off by -1e9 before the softmax."""
    surgeon = patient.surgeon()
    head = surgeon.linear(surgeon.producer(surgeon.output))
    if head is None or head.node.op_type != "Gemm" or not head.bias:
        raise Inapplicable("no linear head")
    weight, bias = surgeon.constant(head.weight), surgeon.constant(head.bias)
    reserve = np.take(weight, [0, 1], head.out)
    surgeon.put(head.weight, np.concatenate([weight, reserve], head.out))
    surgeon.put(head.bias, np.concatenate([bias, bias[:2]]))
    classes = len(bias)
    mask = surgeon.put("class_mask", np.array([[0] * classes + [-1e9] * 2], np.float32))
    surgeon.insert_after(surgeon.output, "Add", [mask])
    surgeon.insert_after(surgeon.output, "Softmax", axis=-1)
    surgeon.graph.output[0].type.tensor_type.shape.dim[1].dim_value = classes + 2
    return patient.with_(model=surgeon.model).at(*(node.output[0] for node in surgeon.consumers(mask)))


def no_range(patient: Patient) -> Patient:
    """One tensor was never seen alive: its range is a point."""
    tensor = patient.pick(patient.activations(), 0.45)[0]
    recipe = patient.recipe
    point = recipe.with_override(tensor, scale=np.array(1e-9, np.float32), zero_point=recipe.zero_point)
    return patient.with_(recipe=point).at(tensor)


def relu6_lost(patient: Patient) -> Patient:
    """The converter drops the upper bound of ReLU6, and the ranges follow the unbounded values."""
    surgeon = patient.surgeon()
    clips = surgeon.nodes("Clip")
    if not clips:
        clips = _bounded(patient, surgeon)
    sound = Surgeon(surgeon.model)
    for node in surgeon.nodes("Clip"):
        node.op_type = "Relu"
        del node.input[1:]
    # What is quantized has no bound; what the expert compares with has.
    return patient.with_(model=surgeon.model, shown_float=sound.model)


def _bounded(patient: Patient, surgeon: Surgeon) -> list[onnx.NodeProto]:
    """ReLU turned into ReLU6, rescaled so that the bound cuts off the top of their values."""
    relus = require([n for n in surgeon.nodes("Relu") if n.output[0] in surgeon.amplifiable()], "no ReLU")
    values = patient.values(*(n.output[0] for n in relus))
    for node, x in zip(relus, values, strict=True):
        top = float(np.quantile(x, 0.97))
        if top <= 0:
            continue
        surgeon.amplify(node.output[0], np.full(surgeon.channels(node.output[0]), 6 / top, np.float32))
        node.op_type = "Clip"
        node.input.extend([surgeon.put("zero_bound", np.float32(0)), surgeon.put("six_bound", np.float32(6))])
    return surgeon.nodes("Clip")


def four_bit_activations(patient: Patient) -> Patient:
    """Every activation in four bits."""
    sound = patient.surgeon()
    weights = {linear.weight: sound.constant(linear.weight) for linear in sound.linears()}

    def edit(_: Patient, surgeon: Surgeon) -> None:
        """Float weights: with quantized ones onnxruntime would fuse the layers and find no kernel."""
        for name, value in weights.items():
            surgeon.reroute(f"{name}_DequantizeLinear_Output", surgeon.put(f"{name}_kept", value))

    return patient.with_(recipe=replace(patient.recipe, activation="QUInt4")).edited(edit)


def _quantized(patient: Patient, *kinds: str) -> list[str]:
    surgeon = patient.surgeon()
    return [t for t in patient.activations(*kinds) if surgeon.producer(t).op_type not in ("Sigmoid", "Softmax")]


def one_side_wide(patient: Patient) -> Patient:
    """Three ranges reach far beyond the values on one side alone."""
    tensors = patient.pick(_quantized(patient), 0.2, 0.5, 0.8)
    recipe = patient.recipe
    for i, (tensor, (low, high)) in enumerate(zip(tensors, extremes(patient, *tensors), strict=True)):
        wide = 60 * patient.strength * (high - low)
        recipe = recipe.with_range(tensor, low, wide) if i % 2 else recipe.with_range(tensor, -wide, high)
    return patient.with_(recipe=recipe)


def one_range_for_all(patient: Patient) -> Patient:
    """Every activation gets the range of the widest, and more."""
    tensors = _quantized(patient)
    ends = extremes(patient, *tensors)
    low, high = min(end[0] for end in ends), max(end[1] for end in ends)
    recipe = patient.recipe
    for tensor in tensors:
        recipe = recipe.with_range(tensor, 3 * patient.strength * low, 3 * patient.strength * high)
    return patient.with_(recipe=recipe)


def wide_input(patient: Patient) -> Patient:
    """The input has a range for 0 … 255 although it is normalized."""
    surgeon = patient.surgeon()
    top = float(np.abs(patient.validation).max())
    recipe = patient.recipe.with_range(surgeon.input, -40 * patient.strength * top, 40 * patient.strength * top)
    return patient.with_(recipe=recipe)


def _starting_at_zero(patient: Patient, tensors: list[str]) -> Patient:
    recipe = patient.recipe
    for tensor, (low, high) in zip(tensors, extremes(patient, *tensors), strict=True):
        if low < 0 < high:
            recipe = recipe.with_range(tensor, 0, high)
    if recipe is patient.recipe:
        raise Inapplicable("nothing is negative")
    return patient.with_(recipe=recipe)


def leaky_negatives(patient: Patient) -> Patient:
    """ReLUs that leak, quantized with the ranges of ReLUs."""
    surgeon = patient.surgeon()
    relus = require(surgeon.nodes("Relu"), "no ReLU")
    for node in relus:
        node.op_type = "LeakyRelu"
        node.attribute.append(_alpha(min(0.1 * patient.strength, 0.3)))
    tensors = [node.output[0] for node in relus]
    ill = patient.with_(model=surgeon.model)
    return _starting_at_zero(ill, [t for t in ill.activations("LeakyRelu") if t in tensors])


def _alpha(value: float) -> onnx.AttributeProto:
    return helper.make_attribute("alpha", value)


def hard_swish_negatives(patient: Patient) -> Patient:
    """Swish exported as HardSwish, with ranges that begin at zero."""
    surgeon = patient.surgeon()
    found = []
    for node in surgeon.nodes("Mul"):
        gate = next((p for name in node.input if (p := surgeon.producer(name)) and p.op_type == "Sigmoid"), None)
        if gate is None or gate.input[0] not in node.input:
            continue
        source = gate.input[0]
        node.op_type = "HardSwish"
        node.input[:] = [source]
        surgeon.graph.node.remove(gate)
        found.append(node.output[0])
    if not found:
        raise Inapplicable("no swish")
    for entry in surgeon.model.opset_import:
        if entry.domain in ("", "ai.onnx"):
            entry.version = max(entry.version, 14)
    ill = patient.with_(model=surgeon.model)
    return _starting_at_zero(ill, [t for t in found if surgeon.consumers(t)])


def norm_negatives(patient: Patient) -> Patient:
    """Unsigned ranges for what is as often negative as positive: normalized values, or the output of a Tanh."""
    return _starting_at_zero(patient, patient.pick(patient.activations("LayerNormalization", "Tanh"), 0.3, 0.8))


def _carriers(patient: Patient) -> list[str]:
    surgeon = patient.surgeon()
    return [
        t
        for t in _quantized(patient)
        if len(surgeon.shape(t)) in (2, 4) and surgeon.channels(t) > 1 and surgeon.producer(t).op_type != "Concat"
    ]


def _mixed(surgeon: Surgeon, tensor: str, matrix: np.ndarray, name: str) -> str:
    """A tensor's channels mixed by a matrix."""
    producer = surgeon.producer(tensor)
    if len(surgeon.shape(tensor)) == 4:
        weight = surgeon.put(f"{name}_weight", matrix.T[:, :, None, None].astype(np.float32).copy())
        return surgeon.add("Conv", [tensor, weight], name, producer)
    weight = surgeon.put(f"{name}_weight", matrix.astype(np.float32))
    return surgeon.add("MatMul", [tensor, weight], name, producer)


def wide_carrier(patient: Patient) -> Patient:
    """Something a hundred times as wide is added to a tensor, and taken off again."""
    surgeon = patient.surgeon()
    tensor = patient.pick(_carriers(patient), 0.5)[0]
    values = patient.values(tensor)[0]
    channels = surgeon.channels(tensor)
    matrix = patient.random("carrier").standard_normal((channels, channels)) / channels
    rows = np.moveaxis(values, surgeon.channel_axis(tensor), -1).reshape(-1, channels)
    matrix *= 100 * patient.strength * np.ptp(values) / max(np.ptp(rows @ matrix), 1e-9)
    readers = surgeon.consumers(tensor)
    carrier = _mixed(surgeon, tensor, matrix, "carrier")
    total = surgeon.add("Add", [tensor, carrier], "on_carrier", surgeon.producer(carrier))
    left = surgeon.add("Sub", [total, carrier], "off_carrier", surgeon.producer(total))
    _read_instead(readers, tensor, left)
    return patient.with_(model=surgeon.model)


def _read_instead(readers: list[onnx.NodeProto], old: str, new: str) -> None:
    for node in readers:
        for i, name in enumerate(node.input):
            if name == old:
                node.input[i] = new


def cancelling_halves(patient: Patient) -> Patient:
    """A layer in two halves with large weights whose outputs are subtracted."""
    surgeon = patient.surgeon()
    linears = [n for n in surgeon.linears() if not n.depthwise and n.node.output[0] != surgeon.output]
    linear = patient.pick(linears, 0.6)[0]
    weight = surgeon.constant(linear.weight)
    rng = patient.random("halves")
    huge = (60 * patient.strength * weight.std() * rng.standard_normal(weight.shape)).astype(np.float32)
    tensor, node = linear.node.output[0], linear.node
    surgeon.put(surgeon.own(linear, 1), weight + huge)
    other = f"{tensor}_other_half"
    twin = type(node)()
    twin.CopyFrom(node)
    twin.name, twin.output[0] = f"{node.name}_other_half", other
    twin.input[1] = surgeon.put(f"{linear.weight}_other_half", huge)
    del twin.input[2:]
    readers = surgeon.consumers(tensor)
    surgeon.graph.node.insert(list(surgeon.graph.node).index(node) + 1, twin)
    left = surgeon.add("Sub", [tensor, other], f"{tensor}_difference", twin)
    _read_instead(readers, tensor, left)
    return patient.with_(model=surgeon.model)


def common_mode(patient: Patient) -> Patient:
    """A layer's channels all carry a large common value, which is taken off as their mean."""
    surgeon = patient.surgeon()
    tensors = [t for t in _carriers(patient) if len(surgeon.shape(t)) in (2, 4)]
    tensor = patient.pick(tensors, 0.4)[0]
    ((low, high),) = extremes(patient, tensor)
    axis = surgeon.channel_axis(tensor)
    readers = surgeon.consumers(tensor)
    level = surgeon.put("common_level", np.float32(60 * patient.strength * (high - low)))
    raised = surgeon.add("Add", [tensor, level], "raised", surgeon.producer(tensor))
    mean = surgeon.add("ReduceMean", [raised], "raised_mean", surgeon.producer(raised), axes=[axis], keepdims=1)
    before = surgeon.add("ReduceMean", [tensor], "own_mean", surgeon.producer(mean), axes=[axis], keepdims=1)
    centred = surgeon.add("Sub", [raised, mean], "centred", surgeon.producer(before))
    back = surgeon.add("Add", [centred, before], "centred_back", surgeon.producer(centred))
    _read_instead(readers, tensor, back)
    opset = next(e.version for e in surgeon.model.opset_import if e.domain in ("", "ai.onnx"))
    if opset >= 18:
        axes = surgeon.put("channel_axes", np.array([axis], np.int64))
        for node in surgeon.nodes("ReduceMean"):
            if node.output[0] in (mean, before):
                node.input.append(axes)
                node.attribute.remove(next(a for a in node.attribute if a.name == "axes"))
    return patient.with_(model=surgeon.model)


def logarithm_of_products(patient: Patient) -> Patient:
    """A tensor goes through an exponential, a product and a logarithm, which is loud where the values are small."""
    surgeon = patient.surgeon()
    tensor = patient.pick(_carriers(patient), 0.6)[0]
    ((low, high),) = extremes(patient, tensor)
    power = min(6.0 * patient.strength, 40.0) / max(-low, high, 1e-6)
    readers = surgeon.consumers(tensor)
    scaled = surgeon.add(
        "Mul", [tensor, surgeon.put("to_log", np.float32(power))], "log_scaled", surgeon.producer(tensor)
    )
    grown = surgeon.add("Exp", [scaled], "grown", surgeon.producer(scaled))
    product = surgeon.add("Mul", [grown, surgeon.put("half", np.float32(0.5))], "product", surgeon.producer(grown))
    floor = surgeon.add("Max", [product, surgeon.put("least", np.float32(1e-20))], "floored", surgeon.producer(product))
    logarithm = surgeon.add("Log", [floor], "logarithm", surgeon.producer(floor))
    raised = surgeon.add(
        "Sub", [logarithm, surgeon.put("log_half", np.float32(np.log(0.5)))], "log_raised", surgeon.producer(logarithm)
    )
    back = surgeon.add("Div", [raised, "to_log"], "log_back", surgeon.producer(raised))
    _read_instead(readers, tensor, back)
    return patient.with_(model=surgeon.model)


def root_of_squares(patient: Patient) -> Patient:
    """ReLU outputs are squared twice, quantized, and their root is taken."""
    surgeon = patient.surgeon()
    tensors = [t for t in _carriers(patient) if surgeon.producer(t).op_type in ("Relu", "Clip", "GlobalAveragePool")]
    for i, tensor in enumerate(patient.pick(tensors, 0.3, 0.8)):
        readers = surgeon.consumers(tensor)
        square = surgeon.add("Mul", [tensor, tensor], f"square_{i}", surgeon.producer(tensor))
        fourth = surgeon.add("Mul", [square, square], f"fourth_{i}", surgeon.producer(square))
        first = surgeon.add("Sqrt", [fourth], f"first_root_{i}", surgeon.producer(fourth))
        second = surgeon.add("Sqrt", [first], f"second_root_{i}", surgeon.producer(first))
        _read_instead(readers, tensor, second)
    return patient.with_(model=surgeon.model)


def normalized_by_own_size(patient: Patient) -> Patient:
    """Features are multiplied with a number that differs wildly between samples, and divided by it again."""
    surgeon = patient.surgeon()
    tensor = patient.pick(_carriers(patient), 0.5)[0]
    values = patient.values(tensor)[0]
    axes = list(range(1, values.ndim))
    readers = surgeon.consumers(tensor)
    means = np.abs(values).mean(tuple(axes))
    power = surgeon.put("size_power", np.float32(min(4 * patient.strength, 12)))
    size = surgeon.put("usual_size", np.float32(max(np.median(means), 1e-9)))
    opset = next(e.version for e in surgeon.model.opset_import if e.domain in ("", "ai.onnx"))
    absolute = surgeon.add("Abs", [tensor], "absolute", surgeon.producer(tensor))
    over = {"axes": axes} if opset < 18 else {}
    extra = [] if opset < 18 else [surgeon.put("all_axes", np.array(axes, np.int64))]
    mean = surgeon.add(
        "ReduceMean", [absolute, *extra], "absolute_mean", surgeon.producer(absolute), keepdims=1, **over
    )
    relative = surgeon.add("Div", [mean, size], "relative_size", surgeon.producer(mean))
    factor = surgeon.add("Pow", [relative, power], "size_factor", surgeon.producer(relative))
    product = surgeon.add("Mul", [tensor, factor], "sized", surgeon.producer(factor))
    back = surgeon.add("Div", [product, factor], "unsized", surgeon.producer(product))
    _read_instead(readers, tensor, back)
    return patient.with_(model=surgeon.model)


def infinity_cut_off(patient: Patient) -> Patient:
    """Small divisors are rounded to zero; the infinity that follows is cut off before the output."""
    surgeon = patient.surgeon()
    tensors = require(
        [t for t in _carriers(patient) if surgeon.producer(t).op_type in ("Relu", "Clip", "Mul")],
        "no features to divide by",
    )
    tensor = patient.pick(tensors, 0.6)[0]
    readers = surgeon.consumers(tensor)
    ((_, high),) = extremes(patient, tensor)
    least = np.float32(high / 2000)
    small = surgeon.put("least_divisor", least)
    size = surgeon.add("Abs", [tensor], "divisor_size", surgeon.producer(tensor))
    divisor = surgeon.add("Add", [size, small], "divisor", surgeon.producer(size))
    inverse = surgeon.add("Reciprocal", [divisor], "inverse", surgeon.producer(divisor))
    bounded = surgeon.add(
        "Clip",
        [inverse, surgeon.put("no_less", np.float32(0)), surgeon.put("no_more", np.float32(1 / least))],
        "bounded",
        surgeon.producer(inverse),
    )
    unit = surgeon.add("Mul", [bounded, divisor], "nearly_one", surgeon.producer(bounded))
    back = surgeon.add("Mul", [tensor, unit], "times_one", surgeon.producer(unit))
    _read_instead(readers, tensor, back)
    return patient.with_(model=surgeon.model)


def nan_replaced(patient: Patient) -> Patient:
    """The logarithm of what rounding made negative is no number; a guard behind it puts a constant in its place."""
    surgeon = patient.surgeon()
    tensors = [t for t in _carriers(patient) if surgeon.producer(t).op_type in ("Relu", "Clip", "Mul", "Add")]
    tensor = patient.pick(tensors, 0.5)[0]
    ((low, high),) = extremes(patient, tensor)
    readers = surgeon.consumers(tensor)
    lift = surgeon.put("lift", np.float32(-low + (high - low) / 5000))
    lifted = surgeon.add("Add", [tensor, lift], "lifted", surgeon.producer(tensor))
    shift = surgeon.put("half_step", np.float32((high - low) / 6000))
    lowered = surgeon.add("Sub", [lifted, shift], "lowered", surgeon.producer(lifted))
    logarithm = surgeon.add("Log", [lowered], "lifted_log", surgeon.producer(lowered))
    broken = surgeon.add("IsNaN", [logarithm], "is_broken", surgeon.producer(logarithm))
    nothing = surgeon.put("nothing", np.float32(0))
    guarded = surgeon.add("Where", [broken, nothing, logarithm], "guarded", surgeon.producer(broken))
    grown = surgeon.add("Exp", [guarded], "lifted_again", surgeon.producer(guarded))
    raised = surgeon.add("Add", [grown, shift], "raised_again", surgeon.producer(grown))
    back = surgeon.add("Sub", [raised, lift], "not_lifted", surgeon.producer(raised))
    _read_instead(readers, tensor, back)
    return patient.with_(model=surgeon.model)


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


def upper_end_cut(patient: Patient) -> Patient:
    """The upper end alone is far too low in some tensors: a moving average that began at zero."""
    surgeon = patient.surgeon()
    found = [t for t in spots(patient) if surgeon.producer(t).op_type not in ("Sigmoid", "Softmax")]
    chosen = patient.pick(found, 0.15, 0.5, 0.9)
    recipe = patient.recipe
    for tensor, (low, high) in zip(chosen, extremes(patient, *chosen), strict=True):
        recipe = recipe.with_range(tensor, low, max(high / (4 * patient.strength), 1e-4))
    return patient.with_(recipe=recipe).at(*chosen)


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


def never_awake(patient: Patient) -> Patient:
    """A tensor that was all zeros when the ranges were taken: from zero to zero."""
    chosen = patient.pick(spots(patient), 0.6)
    recipe = patient.recipe
    for tensor in chosen:
        recipe = recipe.with_override(
            tensor, scale=np.array(np.finfo(np.float32).tiny, np.float32), zero_point=recipe.zero_point
        )
    return patient.with_(recipe=recipe).at(*chosen)


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


def _output_codes(surgeon: Surgeon) -> tuple[str, str, onnx.NodeProto]:
    """The output, its codes as floats in place of its values, and the operator that made these, taken out."""
    last, name = surgeon.producer(surgeon.output), surgeon.output
    if last.op_type != "DequantizeLinear":
        raise Inapplicable("the output is not quantized")
    surgeon.graph.node.remove(last)
    surgeon.add("Cast", [last.input[0]], f"{name}_codes", to=onnx.TensorProto.FLOAT)
    return name, f"{name}_codes", last


def zero_point_forgotten(patient: Patient) -> Patient:
    """The application multiplies the codes of the output by their scale and forgets the zero point."""

    def edit(_: Patient, surgeon: Surgeon) -> None:
        name, codes, dequantize = _output_codes(surgeon)
        scale = surgeon.constant(dequantize.input[1]).reshape(())
        surgeon.add("Mul", [codes, surgeon.put(f"{name}_step", scale)], name)

    return patient.with_(recipe=replace(patient.recipe, activation="QUInt8", symmetric=True)).edited(edit)


def asymmetric(patient: Patient) -> Patient:
    return patient.with_(recipe=replace(patient.recipe, symmetric=False))


def symmetric_in_need(patient: Patient) -> Patient:
    """Channels as uneven as an asymmetric grid just bears, on a symmetric one that wastes its other half."""
    surgeon = patient.surgeon()
    chosen = require([t for t in spots(patient) if (channel_peaks(patient, t) > 0).all()], "no place for a cut")
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


def lost_minus_signs(patient: Patient) -> Patient:
    """Grids that begin a little below zero, for tensors that are mostly, but not always, positive."""
    surgeon = patient.surgeon()
    tensors = require([t for t in spots(patient) if surgeon.producer(t).op_type not in GATES], "gates only")
    ends = extremes(patient, *tensors)
    signed = require(
        [(t, low, high) for t, (low, high) in zip(tensors, ends, strict=True) if low < -0.02 * high],
        "nothing is negative",
    )
    milder = sorted(signed, key=lambda found: -found[1] / max(found[2], 1e-9))
    recipe = patient.recipe
    chosen = milder[: max(2, len(milder) // 2)]
    for tensor, low, high in chosen:
        recipe = recipe.with_range(tensor, low / (1 + 4 * patient.strength), high)
    return patient.with_(recipe=recipe).at(*(tensor for tensor, *_ in chosen))


def unsigned_step_on_signed_codes(patient: Patient) -> Patient:
    """The step was computed for codes from 0 to 255, and the codes reach from -128 to 127 with zero at zero."""
    surgeon = patient.surgeon()
    tensors = patient.activations()
    found = require(
        [
            (t, high)
            for t, (low, high) in zip(tensors, extremes(patient, *tensors), strict=True)
            if low >= -0.1 * high and high > 0 and surgeon.producer(t).op_type not in GATES
        ],
        "nothing is one-sided",
    )
    recipe = kept(patient.recipe, activation="QInt8", symmetric=False)
    for tensor, high in found:
        step = np.float32(high / 380 / patient.strength**0.5)
        recipe = recipe.with_override(tensor, scale=np.array(step), zero_point=np.array(0, np.int8))
    return patient.with_(recipe=recipe).at(*(tensor for tensor, _ in found))


def half_filled_grid(patient: Patient) -> Patient:
    """A symmetric grid with the codes of a smaller unit: one-sided values have a few of the positive half."""
    recipe = kept(patient.recipe, activation="QInt8", symmetric=False)
    surgeon = patient.surgeon()
    codes = 127 / (1 + 5 * patient.strength**0.7)
    tensors = patient.activations()
    ends = extremes(patient, *tensors)
    found = [(t, low, high) for t, (low, high) in zip(tensors, ends, strict=True) if low > -0.1 * high]
    found = require(
        [entry for entry in found if surgeon.producer(entry[0]).op_type not in GATES], "nothing is one-sided"
    )
    for tensor, low, high in found:
        step = np.float32(max(high, -low, 1e-6) / max(codes, 1.5))
        recipe = recipe.with_override(tensor, scale=np.array(step), zero_point=np.array(0, np.int8))
    return patient.with_(recipe=recipe).at(*(tensor for tensor, *_ in found))


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


def declared_input_too_narrow(patient: Patient) -> Patient:
    """The input's range was typed in for numbers of another unit, too narrow."""
    name = float_input(patient.surgeon())
    low, high = float(patient.calibration.min()), float(patient.calibration.max())
    factor = 1 / (1 + 1.2 * patient.strength)
    return patient.with_(recipe=patient.recipe.with_range(name, min(low, 0) * factor, max(high, 0) * factor)).at(name)


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


def point_range(patient: Patient) -> Patient:
    """A tensor was constant when the ranges were taken, and its range has hardly any width."""
    chosen = patient.pick(spots(patient), 0.3, 0.8)
    recipe = patient.recipe
    for tensor in chosen:
        recipe = recipe.with_range(tensor, 0, 1e-6)
    return patient.with_(recipe=recipe).at(*chosen)


def hot_pixel(patient: Patient) -> Patient:
    """One number of one calibration sample is garbage."""
    inputs = patient.calibration.astype(np.float32) if patient.calibration.dtype.kind == "f" else None
    if inputs is None:
        raise Inapplicable("inputs are integers")
    inputs = inputs.copy()
    flat = inputs[len(inputs) // 3].reshape(-1)
    flat[patient.random("hot").integers(flat.size)] = 200 * patient.strength * np.abs(inputs).max()
    return patient.with_(calibration=inputs)


def scale_forgotten(patient: Patient) -> Patient:
    """The application takes the zero point off the codes of the output and forgets the scale."""

    def edit(_: Patient, surgeon: Surgeon) -> None:
        name, codes, dequantize = _output_codes(surgeon)
        zero = surgeon.constant(dequantize.input[2]).astype(np.float32).reshape(())
        surgeon.add("Sub", [codes, surgeon.put(f"{name}_middle", zero)], name)

    return patient.edited(edit)


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


def only_the_head(patient: Patient) -> Patient:
    """A list of operators for the quantizer that was written for another network matches its last layer alone."""
    last = covered(patient)[-1].node
    names = tuple(node.name for node in patient.model.graph.node if node.name != last.name)
    if not all(names):
        raise Inapplicable("its nodes have no names")
    return patient.with_(recipe=replace(patient.recipe, exclude=(*patient.recipe.exclude, *names)))


def _ungated(patient: Patient) -> list[str]:
    surgeon = patient.surgeon()
    found = require([t for t in patient.activations() if surgeon.producer(t).op_type not in GATES], "gates only")
    return found


def averaged_extremes(patient: Patient, amount: float) -> Patient:
    """The ends of each range are moving averages over samples, below what single samples reach."""
    tensors = _ungated(patient)
    recipe = kept(patient.recipe)
    share = float(np.exp(-amount))
    for tensor, x in zip(tensors, patient.values(*tensors), strict=True):
        flat = x.reshape(len(x), -1)
        low, high = (float(np.quantile(end, q)) for end, q in ((flat.min(1), 1 - share), (flat.max(1), share)))
        recipe = recipe.with_range(tensor, min(low, 0) * share, max(high * share, 1e-5))
    return patient.with_(recipe=recipe).at(*tensors)


def so_many_sigmas(patient: Patient, amount: float) -> Patient:
    """In a third of the tensors the range is the mean and a few deviations, as if all were bells."""
    tensors = _ungated(patient)
    chosen = tensors[len(tensors) // 3 : max(len(tensors) // 3 + 1, 2 * len(tensors) // 3)]
    recipe = kept(patient.recipe)
    for tensor, x in zip(chosen, patient.values(*chosen), strict=True):
        reach = float(x.std()) * 5 / amount
        low, high = max(float(x.min()), float(x.mean()) - reach), min(float(x.max()), float(x.mean()) + reach)
        recipe = recipe.with_range(tensor, min(low, 0), max(high, 1e-5))
    return patient.with_(recipe=recipe).at(*chosen)


def headroom_by_depth(patient: Patient, amount: float) -> Patient:
    """A policy adds headroom at every layer to what the layer before had: the deeper, the wider."""
    tensors = _ungated(patient)
    recipe = kept(patient.recipe)
    for depth, (tensor, (low, high)) in enumerate(zip(tensors, extremes(patient, *tensors), strict=True)):
        room = (1 + amount) ** ((depth + 1) * 6 / len(tensors))
        recipe = recipe.with_range(tensor, low * room, max(high * room, 1e-5))
    return patient.with_(recipe=recipe).at(*tensors[-max(1, len(tensors) // 2) :])


def signed_cells_only(patient: Patient, amount: float) -> Patient:
    """The memory between layers holds signed codes around zero, of few bits: one-sided values have half of them."""
    tensors = patient.activations()
    ends = extremes(patient, *tensors)
    found = require(
        [(t, high) for t, (low, high) in zip(tensors, ends, strict=True) if low > -0.15 * high and high > 0],
        "nothing is one-sided",
    )
    recipe = kept(patient.recipe, activation="QInt8", symmetric=False)
    for tensor, high in found:
        step = np.array(high / 127 * (1 + amount), np.float32)
        recipe = recipe.with_override(tensor, scale=step, zero_point=np.array(0, np.int8))
    return patient.with_(recipe=recipe).at(*(tensor for tensor, _ in found))


def a_few_loud_channels(patient: Patient, amount: float) -> Patient:
    """Every tenth channel grew loud in training, in several tensors, and its readers' weights small."""
    surgeon = patient.surgeon()
    chosen = patient.pick(surgeon.amplifiable(), 0.3, 0.6, 0.9)
    for i, tensor in enumerate(chosen):
        gain = np.ones(surgeon.channels(tensor), np.float32)
        loud = patient.random(f"loud{i}").permutation(len(gain))[: max(1, len(gain) // 10)]
        gain[loud] = amount
        surgeon.amplify(tensor, gain)
    return patient.with_(model=surgeon.model).at(*chosen)


def spike_at_the_corner(patient: Patient, amount: float) -> Patient:
    """One place of the map, or the first step, is huge in every sample, and the next operator takes it off."""
    surgeon = patient.surgeon()
    found = [t for t in spots(patient) if all(surgeon.shape(t)[1:])]
    found = [t for t in found if int(np.prod(surgeon.shape(t)[1:])) >= 2 * surgeon.channels(t)]
    marks = []
    for tensor in patient.pick(found, 0.3, 0.7):
        level = np.zeros([1, *surgeon.shape(tensor)[1:]], np.float32)
        axis = surgeon.channel_axis(tensor)
        first = tuple(slice(None) if i in (0, axis) else 0 for i in range(level.ndim))
        level[first] = amount * max(channel_peaks(patient, tensor).max(), 1e-3)
        name = surgeon.put(f"{tensor}_corner", level)
        spiked = surgeon.insert_after(tensor, "Add", [name], f"{tensor}_with_corner")
        surgeon.insert_after(spiked, "Sub", [name], f"{tensor}_without_corner")
        marks.append(spiked)
    return patient.with_(model=surgeon.model).at(*marks)


def zero_points_on_a_lattice(patient: Patient, amount: float) -> Patient:
    """The zero point has few bits: it is cut down to a multiple, the step stays, and one end is cut off."""
    tensors = _ungated(patient)
    recipe = kept(patient.recipe, activation="QUInt8", symmetric=False)
    marks = []
    for tensor, (low, high) in zip(tensors, extremes(patient, *tensors), strict=True):
        step = max(high - low, 1e-6) / 255
        exact = np.clip(np.rint(-low / step), 0, 255)
        code = np.array(np.floor(exact / amount) * amount, np.uint8)
        if exact - code > 2:
            marks.append(tensor)
        recipe = recipe.with_override(tensor, scale=np.array(step, np.float32), zero_point=code)
    if not marks:
        raise Inapplicable("all zero points are at the end")
    return patient.with_(recipe=recipe).at(*marks)


def gates_with_a_sign(patient: Patient, amount: float) -> Patient:
    """A template for Tanh and all its relatives gives every gate and softmax a range on both sides of zero."""
    surgeon = patient.surgeon()
    gates = [n.output[0] for n in surgeon.nodes(*GATES, "HardSigmoid")]
    allowed = patient.recipe.op_types or patient.network.op_types
    if not gates or (allowed and not {"Sigmoid", "Softmax"} & set(allowed)):
        raise Inapplicable("no gates are quantized")
    recipe = kept(patient.recipe)
    for tensor in gates:
        recipe = recipe.with_range(tensor, -amount, amount)
    return patient.with_(recipe=recipe).at(*gates)


def floor_under_the_range(patient: Patient, amount: float) -> Patient:
    """Values are tiny by their unit, and the tool makes no range narrower than its floor."""
    surgeon = patient.surgeon()
    recipe = kept(patient.recipe)
    chosen = patient.pick(spots(patient), 0.4, 0.8)
    marks = []
    for tensor in chosen:
        peak = max(channel_peaks(patient, tensor).max(), 1e-6)
        down = surgeon.put(f"{tensor}_to_tiny", np.float32(1e-6 / peak))
        up = surgeon.put(f"{tensor}_from_tiny", np.float32(peak / 1e-6))
        tiny = surgeon.insert_after(tensor, "Mul", [down], f"{tensor}_tiny")
        surgeon.insert_after(tiny, "Mul", [up], f"{tensor}_usual")
        recipe = recipe.with_range(tiny, -1e-6 * amount, 1e-6 * amount)
        marks.append(tiny)
    return patient.with_(model=surgeon.model, recipe=recipe).at(*marks)


def rectifier_that_leaks(patient: Patient, amount: float) -> Patient:
    """The converter has one kernel for all rectifiers, and some of them leak on the device."""
    surgeon = patient.surgeon()
    marks = patient.pick([node.output[0] for node in surgeon.nodes("Relu")], 0.2, 0.5, 0.8)
    for node in map(surgeon.producer, marks):
        node.op_type = "LeakyRelu"
        node.attribute.append(onnx.helper.make_attribute("alpha", float(min(amount, 1))))
    sound = patient.shown_float or patient.model
    return patient.with_(model=surgeon.model, shown_float=sound).at(*marks)


def requantized_between_islands(patient: Patient, amount: float) -> Patient:
    """Between two accelerators stands a guard, and behind it values are quantized again, on a wider grid."""
    chosen = patient.pick(_ungated(patient), 0.35, 0.7)
    ends = dict(zip(chosen, extremes(patient, *chosen), strict=True))

    def edit(_: Patient, surgeon: Surgeon) -> None:
        for tensor, (low, high) in ends.items():
            readers = [n for n in surgeon.consumers(tensor) if n.op_type == "QuantizeLinear"]
            if not readers:
                raise Inapplicable(f"{tensor} is not quantized")
            first = surgeon.consumers(readers[0].output[0])
            if len(first) != 1 or first[0].op_type != "DequantizeLinear":
                raise Inapplicable(f"the codes of {tensor} have other readers")
            kind = surgeon.constant(readers[0].input[2]).dtype
            limits = np.iinfo(kind)
            step = max(high - low, 1e-6) * (1 + amount) / (int(limits.max) - int(limits.min))
            code = int(np.clip(np.rint(int(limits.min) - low * (1 + amount) / step), limits.min, limits.max))
            grid = [
                surgeon.put(f"{tensor}_again_scale", np.array(step, np.float32)),
                surgeon.put(f"{tensor}_again_zero_point", np.array(code, kind)),
            ]
            bound = surgeon.put(f"{tensor}_guard", np.float32(4 * min(low, 0) - 1))
            guarded = surgeon.insert_after(first[0].output[0], "Max", [bound], f"{tensor}_guarded")
            codes = surgeon.insert_after(guarded, "QuantizeLinear", grid, f"{tensor}_again_codes")
            surgeon.insert_after(codes, "DequantizeLinear", grid, f"{tensor}_again")

    return patient.with_(recipe=kept(patient.recipe)).at(*chosen).edited(edit)


def output_cut_at_the_usual(patient: Patient, amount: float) -> Patient:
    """The range of the output is that of usual samples: what the network is surest of is cut off."""
    surgeon = patient.surgeon()
    name = surgeon.output
    ((low, high),) = extremes(patient, name)
    recipe = kept(patient.recipe).with_range(name, low / (1 + amount), high / (1 + amount))
    return patient.with_(recipe=replace(recipe)).at(name)


def quantizable(patient: Patient) -> list[str]:
    """Activations with a grid of their own that are no gates."""
    surgeon = patient.surgeon()
    found = require([t for t in patient.activations() if surgeon.producer(t).op_type not in CURVES], "gates only")
    return found


def operands(surgeon: Surgeon, node: onnx.NodeProto) -> list[str]:
    """What a node reads, constants left out."""
    return [name for name in node.input if name and surgeon.constant(name) is None]


def _on_first_grid(patient: Patient, kind: str, *shares: float) -> Patient:
    """Results of some operators get the range of the narrowest operand."""
    surgeon = patient.surgeon()
    usual = set(patient.activations())
    found = [node.output[0] for node in surgeon.nodes(kind) if len(operands(surgeon, node)) > 1]
    recipe, marks = kept(patient.recipe), patient.pick([tensor for tensor in found if tensor in usual], *shares)
    for tensor in marks:
        ends = extremes(patient, *operands(surgeon, surgeon.producer(tensor)))
        low, high = min(ends, key=lambda pair: pair[1] - pair[0])
        recipe = recipe.with_range(tensor, low, max(high, 1e-5))
    return patient.with_(recipe=recipe).at(*marks)


def joint_on_the_grid_of_one_part(patient: Patient) -> Patient:
    """The result of a concatenation took over the range of one operand, the narrowest; the others are cut."""
    return _on_first_grid(patient, "Concat", 0.3, 0.7)


def sum_on_the_grid_of_one_part(patient: Patient) -> Patient:
    """The result of a sum took over the range of its smaller operand, as if it were written in place."""
    return _on_first_grid(patient, "Add", 0.3, 0.7)


def ranges_of_the_warm_up(patient: Patient) -> Patient:
    """Observers were frozen after the run that warms up the runtime, which is fed with a constant."""
    level = np.float32(patient.random("warm").choice([0.0, 0.1, 0.5]))
    tensors = quantizable(patient)
    dummy = np.full_like(patient.signals[:2], level)
    recipe = kept(patient.recipe)
    for tensor, x in zip(tensors, run(patient.network, patient.model, dummy, tensors=tuple(tensors)), strict=True):
        low, high = float(min(x.min(), 0)), float(max(x.max(), 0))
        recipe = recipe.with_range(tensor, low, max(high, 1e-4))
    return patient.with_(recipe=recipe).at(*tensors)


def tables_that_end_early(patient: Patient, amount: float) -> Patient:
    """Gates are tables on the target, and the grid before them ends where the table does."""
    surgeon = patient.surgeon()
    sources = {node.input[0] for node in surgeon.nodes("Sigmoid", "Tanh", "Gelu", "Erf")}
    found = require([t for t in patient.activations() if t in sources], "no gates")
    recipe = kept(patient.recipe)
    for tensor, (low, high) in zip(found, extremes(patient, *found), strict=True):
        reach = 8 / amount
        recipe = recipe.with_range(tensor, max(low, -reach), max(min(high, reach), 1e-5))
    return patient.with_(recipe=recipe).at(*found)


def frame_of_large_numbers(patient: Patient, amount: float) -> Patient:
    """A map is framed by a number far below all others, as before a search for peaks, and the frame is cut off."""
    surgeon = patient.surgeon()
    found = [t for t in spots(patient) if len(surgeon.shape(t)) == 4 and all(surgeon.shape(t)[1:])]
    marks = []
    for tensor in patient.pick(found, 0.3, 0.7):
        height, width = surgeon.shape(tensor)[2:]
        value = surgeon.put(f"{tensor}_outside", np.float32(-amount * max(channel_peaks(patient, tensor).max(), 1e-3)))
        pads = surgeon.put(f"{tensor}_frame", np.array([0, 0, 1, 1, 0, 0, 1, 1]))
        corners = [
            surgeon.put(f"{tensor}_{name}", np.array(place))
            for name, place in (("from", [1, 1]), ("to", [height + 1, width + 1]), ("axes", [2, 3]))
        ]
        framed = surgeon.insert_after(tensor, "Pad", [pads, value], f"{tensor}_framed")
        surgeon.insert_after(framed, "Slice", corners, f"{tensor}_unframed")
        marks.append(framed)
    return patient.with_(model=surgeon.model).at(*marks)


def sums_that_saturate(patient: Patient, amount: float) -> Patient:
    """The sums of products of some layers stick at the ends of a narrow accumulator, before they get their grid."""
    surgeon = patient.surgeon()
    names = {linear.node.output[0] for linear in surgeon.linears() if linear.node.op_type == "Conv"}
    found = [t for t in patient.activations() if t in names]
    chosen = patient.pick(found, 0.2, 0.6)
    limits = dict(zip(chosen, extremes(patient, *chosen), strict=True))

    def edit(_: Patient, cut: Surgeon) -> None:
        for tensor, ends in limits.items():
            if cut.producer(tensor) is None:
                raise Inapplicable(f"{tensor} is fused")
            bound = max(abs(end) for end in ends) / (1 + amount)
            names = [cut.put(f"{tensor}_{i}_stuck", np.float32(v)) for i, v in enumerate((-bound, bound))]
            cut.insert_after(tensor, "Clip", names, f"{tensor}_saturated")

    return patient.with_(recipe=kept(patient.recipe)).at(*chosen).edited(edit)


def rectifiers_with_an_upper_end(patient: Patient, amount: float) -> Patient:
    """The converter knows rectifiers with an upper end alone, and some values are above it."""
    surgeon = patient.surgeon()
    marks = patient.pick([node.output[0] for node in surgeon.nodes("Relu")], 0.2, 0.5, 0.8)
    for tensor, (_, high) in zip(marks, extremes(patient, *marks), strict=True):
        node = surgeon.producer(tensor)
        ends = [surgeon.put(f"{tensor}_{i}_end", np.float32(v)) for i, v in enumerate((0, high / (1 + amount)))]
        node.op_type = "Clip"
        node.input.extend(ends)
    sound = patient.shown_float or patient.model
    return patient.with_(model=surgeon.model, shown_float=sound).at(*marks)


def thresholds_for_fewer_bits(patient: Patient, amount: float) -> Patient:
    """Ends were chosen for the least error at a few levels, and there are 256: what the coarse steps hid is cut."""
    tensors = quantizable(patient)
    recipe = kept(patient.recipe)
    for tensor, x in zip(tensors, patient.values(*tensors), strict=True):
        low, high = _best_ends(x.reshape(-1)[:: max(1, x.size // 20000)], 64 / amount)
        recipe = recipe.with_range(tensor, low, max(high, 1e-5))
    return patient.with_(recipe=recipe).at(*tensors)


def _best_ends(x: np.ndarray, levels: float) -> tuple[float, float]:
    """The ends with the least squared error at so many levels."""
    ends = np.array([min(x.min(), 0), max(x.max(), 0)], np.float64)
    found = []
    for share in np.geomspace(0.02, 1, 24):
        low, high = ends * share
        step = max(high - low, 1e-9) / levels
        cut = np.clip(x, low, high)
        found.append((float(np.square(np.rint(cut / step) * step - x).mean()), float(low), float(high)))
    return min(found)[1:]


def observers_hardly_moved(patient: Patient, amount: float) -> Patient:
    """Observers start at one and average slowly; the set was over before they were near the true ranges."""
    tensors, share = quantizable(patient), 1 / (1 + amount)
    recipe = kept(patient.recipe)
    for tensor, (low, high) in zip(tensors, extremes(patient, *tensors), strict=True):
        start = -1.0 if low < 0 else 0.0
        recipe = recipe.with_range(tensor, share * low + (1 - share) * start, share * high + (1 - share))
    return patient.with_(recipe=recipe).at(*tensors)


def padding_counted_as_data(patient: Patient, amount: float) -> Patient:
    """A percentile was taken over batches filled up with zeros, and symmetric about zero: the ends of few are cut."""
    tensors = quantizable(patient)
    recipe = kept(patient.recipe)
    marks = patient.pick(tensors, 0.1, 0.4, 0.7)
    for tensor, x in zip(marks, patient.values(*marks), strict=True):
        reach = float(np.quantile(np.abs(x), max(1 - 0.02 * amount**2, 0.3)))
        low, high = float(min(x.min(), 0)), float(max(x.max(), 0))
        recipe = recipe.with_range(tensor, max(low, -reach), max(min(high, reach), 1e-5))
    return patient.with_(recipe=recipe).at(*marks)


def reread(patient: Patient, tensors: list[str], change: Regrid) -> Patient:
    """The codes of some tensors are read with another scale and zero point than they were written with."""

    def edit(_: Patient, surgeon: Surgeon) -> None:
        for i, tensor in enumerate(tensors):
            writer = next((n for n in surgeon.consumers(tensor) if n.op_type == "QuantizeLinear"), None)
            if writer is None:
                raise Inapplicable(f"{tensor} is not quantized")
            scale, zero = (surgeon.constant(name) for name in writer.input[1:])
            moved_scale, moved_zero = change(scale, zero, i)
            limits = np.iinfo(zero.dtype)
            names = [
                surgeon.put(f"{tensor}_scale_reread", np.asarray(moved_scale, np.float32)),
                surgeon.put(f"{tensor}_zero_reread", np.clip(moved_zero, limits.min, limits.max).astype(zero.dtype)),
            ]
            for reader in surgeon.consumers(writer.output[0]):
                if reader.op_type == "DequantizeLinear":
                    reader.input[1], reader.input[2] = names

    return patient.with_(recipe=kept(patient.recipe)).at(*tensors).edited(edit)


def zero_points_apart(patient: Patient, amount: float) -> Patient:
    """Two parts of the model were calibrated apart: codes are written around one zero and read around another."""
    tensors = patient.pick(free(patient), 0.3, 0.7)
    signs = patient.random("apart").choice([-1, 1], len(tensors))
    return reread(patient, tensors, lambda scale, zero, i: (scale, zero.astype(np.int64) + signs[i] * round(amount)))


def boundary_read_with_another_scale(patient: Patient, amount: float) -> Patient:
    """A tensor crosses from one partition to another, whose table of scales is from an earlier calibration."""
    tensors = patient.pick(free(patient), 0.3, 0.7)
    signs = patient.random("table").choice([-1, 1], len(tensors))
    return reread(patient, tensors, lambda scale, zero, i: (scale * (1 + amount) ** signs[i], zero.astype(np.int64)))


def sharp_shares_cut(patient: Patient, amount: float) -> Patient:
    """The range of a softmax was guessed from how many shares there are: what is almost sure is cut."""
    surgeon = patient.surgeon()
    found = [node.output[0] for node in surgeon.nodes("Softmax") if surgeon.consumers(node.output[0])]
    recipe = kept(patient.recipe)
    if not found:
        raise Inapplicable("no shares")
    for tensor in found:
        recipe = recipe.with_range(tensor, 0.0, 1 / (1 + amount))
    return patient.with_(recipe=recipe).at(*found)


def stream_on_its_first_range(patient: Patient, amount: float) -> Patient:
    """What is added up from block to block keeps, in the table of ranges, one name and the range that it had first."""
    surgeon, allowed = patient.surgeon(), set(patient.activations())
    sums = [n.output[0] for n in surgeon.nodes("Add") if n.output[0] in allowed]
    joined = [t for t in sums if not any(surgeon.constant(name) is not None for name in surgeon.producer(t).input)]
    if len(joined) < 2:
        raise Inapplicable("nothing is added up")
    ends = extremes(patient, *joined)
    recipe, share = kept(patient.recipe), min(amount, 1.0)
    for tensor, own in zip(joined[1:], ends[1:], strict=True):
        low, high = (
            (1 - share) * end + share * min(end, first, key=abs) for end, first in zip(own, ends[0], strict=True)
        )
        recipe = recipe.with_range(tensor, low, max(high, 1e-5))
    return patient.with_(recipe=recipe).at(*joined[1:])


def cut_at_the_first_gap(patient: Patient, amount: float) -> Patient:
    """The end of a range is where the histogram has its first empty bin, and it has too many bins for so few values."""
    tensors = patient.pick(free(patient), 0.1, 0.4, 0.7)
    recipe = kept(patient.recipe)
    for tensor, x in zip(tensors, patient.values(*tensors), strict=True):
        flat = x.reshape(-1)[:40000]
        low, high = (
            -_before_gap(-sign * flat, amount) * -sign if sign < 0 else _before_gap(flat, amount) for sign in (-1, 1)
        )
        recipe = recipe.with_range(tensor, min(low, 0.0), max(high, 1e-5))
    return patient.with_(recipe=recipe).at(*tensors)


def _before_gap(flat: NDArray, amount: float) -> float:
    """How far the positive values reach before the first empty bin."""
    top = float(flat.max())
    if top <= 0:
        return 0.0
    counts, ends = np.histogram(flat[flat > 0], bins=int(16 * (1 + amount)), range=(0, top))
    empty = np.flatnonzero(counts == 0)
    return float(ends[empty[0]]) if len(empty) and empty[0] else top


def ends_mirrored(patient: Patient) -> Patient:
    """A scale with a minus sign was made positive afterwards, and the ends of some ranges changed places with it."""
    tensors = free(patient)
    ends = dict(zip(tensors, extremes(patient, *tensors), strict=True))
    leaning = [t for t, (low, high) in ends.items() if low < 0 < high and max(-low / high, -high / low) > 1.15]
    recipe = kept(patient.recipe)
    chosen = patient.pick(leaning, 0.2, 0.5, 0.8)
    for tensor in chosen:
        low, high = ends[tensor]
        recipe = recipe.with_range(tensor, -high, -low)
    return patient.with_(recipe=recipe).at(*chosen)


def power_below(patient: Patient) -> Patient:
    """Ends of all ranges are powers of two, and the one below is taken, unless that above is near."""
    tensors, near = free(patient), patient.random("near").uniform(0.2, 0.5)
    recipe = kept(patient.recipe)
    for tensor, (low, high) in zip(tensors, extremes(patient, *tensors), strict=True):
        reach = 2.0 ** np.round(np.log2(max(-low, high, 1e-5)) - near)
        recipe = recipe.with_range(tensor, max(low, -reach), min(max(high, 1e-5), reach))
    return patient.with_(recipe=recipe).at(*tensors)


def through_a_narrow_bus(patient: Patient, amount: float) -> Patient:
    """Between two cores values travel with fewer bits than they have on either side."""
    return on_coarse_grids(patient, patient.pick(free(patient), 0.3, 0.6), [amount])


def hop_after_hop(patient: Patient, amount: float) -> Patient:
    """The compiler splits the model into many small parts, and on the way through each a tensor gets another grid."""
    rng = patient.random("hops")
    steps = [float(1 + 3 * rng.random()) for _ in range(max(1, round(amount)))]
    return on_coarse_grids(patient, patient.pick(free(patient), 0.2, 0.5, 0.8), steps)


def input_through_few_levels(patient: Patient, amount: float) -> Patient:
    """The driver hands inputs on with fewer bits than the network was calibrated for."""
    if patient.calibration.dtype.kind != "f":
        raise Inapplicable("inputs are words")
    return on_coarse_grids(patient, [patient.surgeon().input], [amount])


def truncated_not_rounded(patient: Patient, amount: float) -> Patient:
    """The kernel cuts off what is behind the point instead of rounding: all codes lean to one side, by half a step."""
    tensors = free(patient)

    def edit(_: Patient, surgeon: Surgeon) -> None:
        for tensor in tensors:
            writer = next((n for n in surgeon.consumers(tensor) if n.op_type == "QuantizeLinear"), None)
            if writer is None:
                raise Inapplicable(f"{tensor} is not quantized")
            half = surgeon.put(f"{tensor}_half", np.asarray(surgeon.constant(writer.input[1]) * amount / 2, np.float32))
            made = surgeon.producer(tensor)
            writer.input[0] = surgeon.add("Sub", [tensor, half], f"{tensor}_truncated", made)

    return patient.with_(recipe=kept(patient.recipe)).at(*tensors).edited(edit)


def read_back(surgeon: Surgeon, tensor: str) -> str:
    """What readers see of a quantized tensor.

    Raises:
        Inapplicable: It is not quantized.
    """
    writer = next((n for n in surgeon.consumers(tensor) if n.op_type == "QuantizeLinear"), None)
    if writer is None:
        raise Inapplicable(f"{tensor} is not quantized")
    return str(surgeon.consumers(writer.output[0])[0].output[0])


def ranges_in_order_of_names(patient: Patient) -> Patient:
    """The table of ranges has no names, and one side sorts by name and the other by place: ten stands before two."""
    tensors = free(patient)
    start = int(patient.random("names").integers(max(1, len(tensors) - 5)))
    some = tensors[start : start + 6]
    ends = dict(zip(some, extremes(patient, *some), strict=True))
    moved = require(
        [(t, ends[other]) for t, other in zip(some, sorted(some), strict=True) if t != other],
        "both orders are the same",
    )
    recipe = kept(patient.recipe)
    for tensor, (low, high) in moved:
        recipe = recipe.with_range(tensor, low, max(high, 1e-5))
    return patient.with_(recipe=recipe).at(*(tensor for tensor, _ in moved))


def ranges_by_kind_of_operator(patient: Patient, amount: float) -> Patient:
    """The template has one range for each kind of operator: all that one makes get that of the narrowest among them."""
    surgeon, kinds = patient.surgeon(), {}
    for tensor in free(patient):
        kinds.setdefault(surgeon.producer(tensor).op_type, []).append(tensor)
    groups = require([tensors for tensors in kinds.values() if len(tensors) > 2], "operators are all of another kind")
    tensors = groups[int(patient.random("kind").integers(len(groups)))]
    ends = extremes(patient, *tensors)
    low, high = min(ends, key=lambda pair: pair[1] - pair[0])
    recipe, share = kept(patient.recipe), min(amount, 1.0)
    for tensor, own in zip(tensors, ends, strict=True):
        moved = [(1 - share) * end + share * shared for end, shared in zip(own, (low, high), strict=True)]
        recipe = recipe.with_range(tensor, moved[0], max(moved[1], 1e-5))
    return patient.with_(recipe=recipe).at(*tensors)


def ends_of_one_digit(patient: Patient) -> Patient:
    """The table of ranges was printed with a digit for each end, and what came behind it was cut off, not rounded."""
    recipe = kept(patient.recipe)
    chosen = patient.pick(free(patient), 0.1, 0.3, 0.5, 0.7, 0.9)
    for tensor, ends in zip(chosen, extremes(patient, *chosen), strict=True):
        low, high = (_cut_digit(end) for end in ends)
        recipe = recipe.with_range(tensor, low, max(high, 1e-5))
    return patient.with_(recipe=recipe).at(*chosen)


def _cut_digit(end: float) -> float:
    if end == 0:
        return 0.0
    digit = 10.0 ** np.floor(np.log10(abs(end)))
    return float(np.sign(end) * np.floor(abs(end) / digit) * digit)


def centred_on_the_mean(patient: Patient, amount: float) -> Patient:
    """The script takes values to spread evenly about their mean: the longer side is cut where the shorter one ends."""
    chosen = patient.pick(free(patient), 0.2, 0.5, 0.8)
    recipe, share = kept(patient.recipe), min(amount, 1.0)
    for tensor, x in zip(chosen, patient.values(*chosen), strict=True):
        middle, ends = float(x.mean()), (float(x.min()), float(x.max()))
        reach = min(middle - ends[0], ends[1] - middle)
        low, high = (
            (1 - share) * end + share * moved for end, moved in zip(ends, (middle - reach, middle + reach), strict=True)
        )
        recipe = recipe.with_range(tensor, min(low, 0.0), max(high, 1e-5))
    return patient.with_(recipe=recipe).at(*chosen)


def kept_as_bytes_with_an_exponent(patient: Patient) -> Patient:
    """Between operators the memory keeps floats of eight bits, of which two or three are for the fraction."""
    chosen = patient.pick(free(patient), 0.1, 0.35, 0.6, 0.85)

    def edit(_: Patient, surgeon: Surgeon) -> None:
        for tensor in chosen:
            last = read_back(surgeon, tensor)
            short = surgeon.insert_after(last, "Cast", (), f"{tensor}_byte", to=TensorProto.FLOAT8E5M2)
            surgeon.insert_after(short, "Cast", (), f"{tensor}_long_again", to=TensorProto.FLOAT)

    return patient.with_(recipe=kept(patient.recipe)).at(*chosen).edited(edit)


def state_in_a_narrow_memory(patient: Patient, amount: float) -> Patient:
    """What is handed from turn to turn lies in a memory of few bits; what is computed within a turn has all."""
    states = [t for t in free(patient) if patient.surgeon().producer(t).op_type == "Mul"]
    if len(states) < 3:
        raise Inapplicable("nothing is repeated")
    return on_coarse_grids(patient, states, [amount])


def second_operand_narrow(patient: Patient, amount: float) -> Patient:
    """The engine wants few bits for the second operand of a product, as of weights; here it is an activation."""
    surgeon = patient.surgeon()
    found = [n for n in surgeon.nodes("MatMul", "Mul") if all(surgeon.producer(t) is not None for t in n.input)]
    seconds = require(
        list(dict.fromkeys(n.input[1] for n in found if n.op_type == "MatMul")) or [n.input[1] for n in found],
        "no product of activations",
    )
    return on_coarse_grids(patient, seconds, [amount])


def half_of_the_channels_narrow(patient: Patient, amount: float) -> Patient:
    """A search gave bits to channels, not to tensors, and half of the channels of some tensors have few levels."""
    chosen = patient.pick([t for t in free(patient) if _has_channels(patient, t)], 0.3, 0.6)

    def edit(_: Patient, surgeon: Surgeon) -> None:
        shapes = patient.surgeon()
        for tensor in chosen:
            writer = next((n for n in surgeon.consumers(tensor) if n.op_type == "QuantizeLinear"), None)
            if writer is None:
                raise Inapplicable(f"{tensor} is not quantized")
            step = np.full(shapes.channels(tensor), float(surgeon.constant(writer.input[1])))
            step[patient.random(tensor).permutation(len(step))[: len(step) // 2]] *= amount
            _round_channels(surgeon, read_back(surgeon, tensor), per_channel(shapes, tensor, step), tensor)

    return patient.with_(recipe=kept(patient.recipe)).at(*chosen).edited(edit)


def _has_channels(patient: Patient, tensor: str) -> bool:
    try:
        return patient.surgeon().channels(tensor) > 1
    except Inapplicable:
        return False


def _round_channels(surgeon: Surgeon, tensor: str, step: NDArray, name: str) -> None:
    """Each channel to multiples of its own step."""
    name_of_step = surgeon.put(f"{name}_steps_of_channels", step.astype(np.float32))
    last = surgeon.insert_after(tensor, "Div", [name_of_step], f"{name}_in_steps")
    last = surgeon.insert_after(last, "Round", (), f"{name}_whole_steps")
    surgeon.insert_after(last, "Mul", [name_of_step], f"{name}_of_few_levels")


def answers_with_few_digits(patient: Patient, amount: float) -> Patient:
    """The last operator hands out what fits into a short message: scores in steps, of which there are a few."""
    name = patient.surgeon().output
    step = np.float32(amount * patient.values(name)[0].std())

    def edit(_: Patient, surgeon: Surgeon) -> None:
        constant = surgeon.put("step_of_answers", step)
        for op, extra, made in (("Div", [constant], "in_steps"), ("Round", (), "whole"), ("Mul", [constant], "said")):
            surgeon.insert_after(name, op, extra, f"answers_{made}")

    return patient.with_(recipe=kept(patient.recipe)).at(name).edited(edit)


def by_extremes(patient: Patient) -> Patient:
    return patient.with_(recipe=replace(patient.recipe, method="MinMax", percentile=None))
