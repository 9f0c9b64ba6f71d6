"""More forms of the faults of activations and of graphs: ranges wider than the data, offsets that ride, chains."""

import numpy as np
import onnx
from onnx import helper

from .fault import fault
from .faults_activations import extremes
from .patient import Patient
from .surgery import Inapplicable, Surgeon

# --- ranges that are wider than the values --------------------------------------------------------------


def _quantized(patient: Patient, *kinds: str) -> list[str]:
    surgeon = patient.surgeon()
    return [t for t in patient.activations(*kinds) if surgeon.producer(t).op_type not in ("Sigmoid", "Softmax")]


@fault("one-side-wide", "activations", "poor-threshold", "relu-lost", graded=True)
def one_side_wide(patient: Patient) -> Patient:
    """Three ranges reach far beyond the values on one side alone."""
    tensors = patient.pick(_quantized(patient), 0.2, 0.5, 0.8)
    recipe = patient.recipe
    for i, (tensor, (low, high)) in enumerate(zip(tensors, extremes(patient, *tensors), strict=True)):
        wide = 60 * patient.strength * (high - low)
        recipe = recipe.with_range(tensor, low, wide) if i % 2 else recipe.with_range(tensor, -wide, high)
    return patient.with_(recipe=recipe)


@fault("one-range-for-all", "activations", "poor-threshold", "stale-calibration", "relu-lost", graded=True)
def one_range_for_all(patient: Patient) -> Patient:
    """Every activation gets the range of the widest, and more."""
    tensors = _quantized(patient)
    ends = extremes(patient, *tensors)
    low, high = min(end[0] for end in ends), max(end[1] for end in ends)
    recipe = patient.recipe
    for tensor in tensors:
        recipe = recipe.with_range(tensor, 3 * patient.strength * low, 3 * patient.strength * high)
    return patient.with_(recipe=recipe)


@fault("wide-input", "activations", "poor-threshold", "stale-calibration", graded=True)
def wide_input(patient: Patient) -> Patient:
    """The input has a range for 0 … 255 although it is normalized."""
    surgeon = patient.surgeon()
    top = float(np.abs(patient.validation).max())
    recipe = patient.recipe.with_range(surgeon.input, -40 * patient.strength * top, 40 * patient.strength * top)
    return patient.with_(recipe=recipe)


# --- negative values ------------------------------------------------------------------------------------


def _starting_at_zero(patient: Patient, tensors: list[str]) -> Patient:
    recipe = patient.recipe
    for tensor, (low, high) in zip(tensors, extremes(patient, *tensors), strict=True):
        if low < 0 < high:
            recipe = recipe.with_range(tensor, 0, high)
    if recipe is patient.recipe:
        raise Inapplicable("nothing is negative")
    return patient.with_(recipe=recipe)


@fault("leaky-negatives", "activations", "negative-activations", "over-clipped-activations", graded=True)
def leaky_negatives(patient: Patient) -> Patient:
    """ReLUs that leak, quantized with the ranges of ReLUs."""
    surgeon = patient.surgeon()
    relus = surgeon.nodes("Relu")
    if not relus:
        raise Inapplicable("no ReLU")
    for node in relus:
        node.op_type = "LeakyRelu"
        node.attribute.append(_alpha(min(0.1 * patient.strength, 0.3)))
    tensors = [node.output[0] for node in relus]
    ill = patient.with_(model=surgeon.model)
    return _starting_at_zero(ill, [t for t in ill.activations("LeakyRelu") if t in tensors])


def _alpha(value: float) -> onnx.AttributeProto:
    return helper.make_attribute("alpha", value)


@fault("hard-swish-negatives", "activations", "negative-activations", "over-clipped-activations")
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


@fault("norm-negatives", "activations", "negative-activations", "over-clipped-activations")
def norm_negatives(patient: Patient) -> Patient:
    """Unsigned ranges for what is as often negative as positive: normalized values, or the output of a Tanh."""
    return _starting_at_zero(patient, patient.pick(patient.activations("LayerNormalization", "Tanh"), 0.3, 0.8))


# --- what rides on a signal and is taken off later ------------------------------------------------------


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


@fault("wide-carrier", "graph", "unbalanced-addition", "error-amplifier", graded=True)
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


@fault("cancelling-halves", "graph", "error-amplifier", graded=True)
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


@fault("common-mode", "graph", "error-amplifier", graded=True)
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


# --- sensitive chains -----------------------------------------------------------------------------------


@fault("logarithm-of-products", "graph", "error-amplifier", "sensitive-operator", graded=True)
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


@fault("root-of-squares", "graph", "error-amplifier", "sensitive-operator")
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


@fault("normalized-by-own-size", "graph", "error-amplifier", "sensitive-operator", graded=True)
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


# --- values that are no numbers -------------------------------------------------------------------------


@fault("infinity-cut-off", "sanity", "non-finite-values")
def infinity_cut_off(patient: Patient) -> Patient:
    """Small divisors are rounded to zero; the infinity that follows is cut off before the output."""
    surgeon = patient.surgeon()
    tensors = [t for t in _carriers(patient) if surgeon.producer(t).op_type in ("Relu", "Clip", "Mul")]
    if not tensors:
        raise Inapplicable("no features to divide by")
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


@fault("nan-replaced", "sanity", "non-finite-values")
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
