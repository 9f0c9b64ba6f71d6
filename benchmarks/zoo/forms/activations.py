"""Faults of activations: ranges, masks, grids, and chains that make noise loud."""

from dataclasses import replace

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from ..cuts import (
    Ends,
    cast_between,
    covered,
    extremes,
    free,
    kept,
    set_ranges,
    spots,
    with_scaled_ranges,
)
from ..patient import Patient
from ..surgery import Inapplicable, Surgeon, require

GATES = ("Sigmoid", "Softmax")


def ungated(patient: Patient) -> list[str]:
    """Tensors but those whose range is known beforehand, which have faults of their own."""
    return free(patient, GATES)


def amplify_channel(patient: Patient, factor: float, *shares: float, rare: bool = False) -> Patient:
    """One channel so many times as wide as its neighbours; the readers' weights make up for it."""
    factor *= patient.strength
    surgeon = patient.surgeon()
    tensors = patient.pick(_outlier_places(surgeon, rare), *shares)
    for tensor, x in zip(tensors, patient.values(*tensors), strict=True):
        axis = surgeon.channel_axis(tensor)
        rows = np.abs(np.moveaxis(x, axis, 0).reshape(x.shape[axis], -1))
        peaks = rows.max(1)
        if rare:
            active = (rows > 0.05 * rows.max()).mean(1)
            channel = int(np.argmin(np.where((active > 0) & (peaks > 0.05 * rows.max()), active, 2)))
            usual = rows.max()
        else:
            channel, usual = int(np.argsort(peaks)[len(rows) // 2]), np.median(peaks)
        scale = np.ones(len(rows), np.float32)
        scale[channel] = factor * usual / max(peaks[channel], 1e-6)
        surgeon.amplify(tensor, scale)
    return patient.cut(surgeon, *tensors)


def _outlier_places(surgeon: Surgeon, rare: bool) -> list[str]:
    places = [t for t in surgeon.amplifiable() if not rare or surgeon.producer(t).op_type == "Relu"]
    followed = ("Relu", "Clip", "Flatten", "GlobalAveragePool", "ReduceMean", "Concat")
    return [t for t in places if all(node.op_type not in followed for node in surgeon.consumers(t))] or places


def rare_giants(patient: Patient) -> Patient:
    """A channel that is hardly ever active, but then 500 times as strong."""
    return amplify_channel(patient, 500, 0.4, 0.8, rare=True)


def broken_samples(patient: Patient) -> Patient:
    """Two calibration samples of two hundred are forty times too bright: a failed decoder."""
    inputs = patient.signals.copy()
    inputs[:: len(inputs) // 2] *= 40 * patient.strength
    return patient.with_(calibration=inputs)


# --- ranges ----------------------------------------------------------------------------------------------------------


def percentile_too_low(patient: Patient) -> Patient:
    """Thresholds at the 94 % quantile everywhere."""
    percentile = 100 - 6 * min(patient.strength, 4)
    return patient.with_(recipe=replace(patient.recipe, method="Percentile", percentile=percentile))


def by_extremes(patient: Patient) -> Patient:
    return patient.with_(recipe=replace(patient.recipe, method="MinMax", percentile=None))


def narrow_ranges(patient: Patient, factor: float, *shares: float) -> Patient:
    """Some tensors with a part of the range that they need."""
    tensors = patient.pick(ungated(patient), *shares)
    return with_scaled_ranges(patient, tensors, factor / patient.strength).at(*tensors)


def widen_ranges(patient: Patient, factor: float, *shares: float) -> Patient:
    """Some tensors with a range many times too wide."""
    tensors = patient.pick(ungated(patient), *shares)
    return with_scaled_ranges(patient, tensors, factor * patient.strength).at(*tensors)


def wide_ranges(patient: Patient) -> Patient:
    """Ranges 24 times wider than the values, everywhere."""
    return with_scaled_ranges(patient, patient.activations(), 24 * patient.strength)


def one_side_wide(patient: Patient) -> Patient:
    """Three ranges reach far beyond the values on one side alone."""
    ends = extremes(patient, *patient.pick(ungated(patient), 0.2, 0.5, 0.8))
    for i, (tensor, (low, high)) in enumerate(ends.items()):
        wide = 60 * patient.strength * (high - low)
        ends[tensor] = (low, wide) if i % 2 else (-wide, high)
    return patient.with_(recipe=patient.recipe.with_ranges(ends, 0))


def one_range_for_all(patient: Patient) -> Patient:
    """Every activation gets the range of the widest, and more."""
    ends = extremes(patient, *ungated(patient))
    low, high = min(end[0] for end in ends.values()), max(end[1] for end in ends.values())
    widest = (3 * patient.strength * low, 3 * patient.strength * high)
    return patient.with_(recipe=patient.recipe.with_ranges(dict.fromkeys(ends, widest), 0))


def wide_input(patient: Patient) -> Patient:
    """The input has a range for 0 … 255 although it is normalized."""
    top = 40 * patient.strength * float(np.abs(patient.validation).max())
    return patient.with_(recipe=patient.recipe.with_range(patient.surgeon().input, -top, top))


def _ungated_spots(patient: Patient) -> list[str]:
    surgeon = patient.surgeon()
    return require([t for t in spots(patient) if surgeon.producer(t).op_type not in GATES], "gates only")


def cut_at_the_first_gap(patient: Patient, amount: float) -> Patient:
    """The end of a range is where the histogram has its first empty bin, and it has too many bins for so few values."""
    tensors = patient.pick(free(patient), 0.1, 0.4, 0.7)
    values = zip(tensors, patient.values(*tensors), strict=True)
    reach = {t: _before_gap(x.reshape(-1)[:40000], amount) for t, x in values}
    return set_ranges(patient, {t: (-top, top) for t, top in reach.items()})


def _before_gap(flat: NDArray, amount: float) -> float:
    """How far the positive values reach before the first empty bin."""
    top = float(flat.max())
    if top <= 0:
        return 0.0
    counts, ends = np.histogram(flat[flat > 0], bins=int(16 * (1 + amount)), range=(0, top))
    empty = np.flatnonzero(counts == 0)
    return float(ends[empty[0]]) if len(empty) and empty[0] else top


def _scales(surgeon: Surgeon, tensor: str) -> bool:
    """Whether the operator that makes it reads a constant."""
    return any(surgeon.constant(name) is not None for name in surgeon.producer(tensor).input)


# --- grids -----------------------------------------------------------------------------------------------------------


def power_of_two(patient: Patient) -> Patient:
    """Symmetric thresholds at a power of two, four bits too high."""
    recipe = replace(patient.recipe, symmetric=True)
    for tensor, (low, high) in extremes(patient, *patient.activations()).items():
        threshold = 2.0 ** (np.ceil(np.log2(max(-low, high, 1e-6) * patient.strength)) + 4)
        recipe = recipe.with_grid(tensor, threshold / 2 ** (8 * recipe.zero_point.itemsize - 1))
    return patient.with_(recipe=recipe)


def symmetric_grid(patient: Patient) -> Patient:
    """Signed symmetric codes for values that are all positive."""
    return patient.with_(recipe=replace(patient.recipe, symmetric=True))


def no_range(patient: Patient) -> Patient:
    """One tensor was never seen alive: its range is a point."""
    tensor = patient.pick(patient.activations(), 0.45)[0]
    return patient.with_(recipe=patient.recipe.with_grid(tensor, 1e-9)).at(tensor)


def four_bit_activations(patient: Patient) -> Patient:
    """Every activation in four bits."""
    sound = patient.surgeon()
    weights = {linear.weight: sound.constant(linear.weight) for linear in sound.linears()}

    def edit(_: Patient, surgeon: Surgeon) -> None:
        """Float weights: with quantized ones onnxruntime would fuse the layers and find no kernel."""
        for name, value in weights.items():
            surgeon.reroute(f"{name}_DequantizeLinear_Output", surgeon.put(f"{name}_kept", value))

    return patient.with_(recipe=replace(patient.recipe, activation="QUInt4")).edited(edit)


def few_late_codes(patient: Patient) -> Patient:
    """Late tensors have the codes of three bits, in bytes, because a neighbour could do no more."""
    found = _ungated_spots(patient)
    chosen = found[-max(2, len(found) // 4) :]
    recipe = kept(patient.recipe, symmetric=False, activation="QInt8")
    steps = max(1.5, 9 / patient.strength**0.7)
    for tensor, (low, high) in extremes(patient, *chosen).items():
        step = max(high - low, 1e-6) / steps
        recipe = recipe.with_grid(tensor, step, int(np.clip(np.rint(-low / step) - steps // 2, -128, 127)))
    return patient.with_(recipe=recipe).at(*chosen)


def kept_as_bytes_with_an_exponent(patient: Patient) -> Patient:
    """Between operators the memory keeps floats of eight bits, of which two or three are for the fraction."""
    chosen = patient.pick(free(patient), 0.1, 0.35, 0.6, 0.85)
    return cast_between(patient, chosen, TensorProto.FLOAT8E5M2, "byte").at(*chosen)


# --- negative values, and gates --------------------------------------------------------------------------------------


def negatives_cut_off(patient: Patient) -> Patient:
    """Ranges that begin at zero for swish and GELU, whose small negative values count."""
    surgeon = patient.surgeon()
    tensors = require([t for t in patient.activations("Mul", "Gelu") if not _scales(surgeon, t)], "no swish")
    found = {t: (0, high) for t, (low, high) in extremes(patient, *tensors).items() if -0.4 < low < -0.05}
    return patient.with_(recipe=patient.recipe.with_ranges(require(found, "no negative tails"), 0)).at(*found)


def _starting_at_zero(patient: Patient, tensors: list[str]) -> Patient:
    ends = {t: (0, high) for t, (low, high) in extremes(patient, *tensors).items() if low < 0 < high}
    return patient.with_(recipe=patient.recipe.with_ranges(require(ends, "nothing is negative"), 0))


def leaky_negatives(patient: Patient) -> Patient:
    """ReLUs that leak, quantized with the ranges of ReLUs."""
    surgeon = patient.surgeon()
    rectifiers = require(surgeon.nodes("Relu"), "no ReLU")
    for node in rectifiers:
        node.op_type = "LeakyRelu"
        node.attribute.append(helper.make_attribute("alpha", float(min(0.1 * patient.strength, 0.3))))
    tensors = {node.output[0] for node in rectifiers}
    ill = patient.with_(model=surgeon.model)
    return _starting_at_zero(ill, [t for t in ill.activations("LeakyRelu") if t in tensors])


def hard_swish_negatives(patient: Patient) -> Patient:
    """Swish exported as HardSwish, with ranges that begin at zero."""
    surgeon, found = patient.surgeon(), []
    for node in surgeon.nodes("Mul"):
        gate = next((p for name in node.input if (p := surgeon.producer(name)) and p.op_type == "Sigmoid"), None)
        if gate is None or gate.input[0] not in node.input:
            continue
        node.op_type = "HardSwish"
        node.input[:] = [gate.input[0]]
        surgeon.graph.node.remove(gate)
        found.append(node.output[0])
    require(found, "no swish")
    for entry in surgeon.model.opset_import:
        if entry.domain in ("", "ai.onnx"):
            entry.version = max(entry.version, 14)
    return _starting_at_zero(patient.with_(model=surgeon.model), [t for t in found if surgeon.consumers(t)])


def norm_negatives(patient: Patient) -> Patient:
    """Unsigned ranges for what is as often negative as positive: normalized values, or the output of a Tanh."""
    return _starting_at_zero(patient, patient.pick(patient.activations("LayerNormalization", "Tanh"), 0.3, 0.8))


def lost_minus_signs(patient: Patient) -> Patient:
    """Grids that begin a little below zero, for tensors that are mostly, but not always, positive."""
    ends = extremes(patient, *_ungated_spots(patient))
    signed = require([t for t, (low, high) in ends.items() if low < -0.02 * high], "nothing is negative")
    milder = sorted(signed, key=lambda t: -ends[t][0] / max(ends[t][1], 1e-9))
    chosen = milder[: max(2, len(milder) // 2)]
    cut = {t: (ends[t][0] / (1 + 4 * patient.strength), ends[t][1]) for t in chosen}
    return patient.with_(recipe=patient.recipe.with_ranges(cut, 0)).at(*cut)


def swish_in_pieces(patient: Patient) -> Patient:
    """Sigmoid and Mul quantized apart, the sigmoid's range that of its input."""
    surgeon, reach = patient.surgeon(), 20 * patient.strength
    gates = [n.output[0] for n in surgeon.nodes("Sigmoid") if _is_swish(surgeon, n)]
    return _with_gates(patient, gates, "no swish", (-reach, reach))


def _is_swish(surgeon: Surgeon, gate: onnx.NodeProto) -> bool:
    """Whether it is multiplied with what it reads."""
    return any(r.op_type == "Mul" and gate.input[0] in r.input for r in surgeon.consumers(gate.output[0]))


def _with_gates(patient: Patient, gates: list[str], why: str, ends: Ends) -> Patient:
    recipe = patient.recipe.with_ranges(dict.fromkeys(require(gates, why), ends), 0)
    return patient.with_(recipe=recipe).at(*gates)


def gate_range(patient: Patient) -> Patient:
    """Softmax or the gates of a recurrent cell on a range of 0 … 32."""
    surgeon = patient.surgeon()
    gates = [n.output[0] for n in surgeon.nodes(*GATES) if not _is_swish(surgeon, n)]
    return _with_gates(patient, gates, "no gates", (0, 32 * patient.strength))


def relu6_lost(patient: Patient) -> Patient:
    """The converter drops the upper bound of ReLU6, and the ranges follow the unbounded values."""
    surgeon = patient.surgeon()
    if not surgeon.nodes("Clip"):
        _bound_relus(patient, surgeon)
    sound = Surgeon(surgeon.model)
    for node in surgeon.nodes("Clip"):
        node.op_type = "Relu"
        del node.input[1:]
    # What is quantized has no bound; what the expert compares with has.
    return patient.with_(model=surgeon.model, shown_float=sound.model)


def _bound_relus(patient: Patient, surgeon: Surgeon) -> None:
    """ReLU turned into ReLU6, rescaled so that the bound cuts off the top of their values."""
    relus = require([n for n in surgeon.nodes("Relu") if n.output[0] in surgeon.amplifiable()], "no ReLU")
    for node, x in zip(relus, patient.values(*(n.output[0] for n in relus)), strict=True):
        top = float(np.quantile(x, 0.97))
        if top <= 0:
            continue
        surgeon.amplify(node.output[0], np.full(surgeon.channels(node.output[0]), 6 / top, np.float32))
        node.op_type = "Clip"
        node.input.extend([surgeon.put("zero_bound", 0.0), surgeon.put("six_bound", 6.0)])


# --- masks and heads -------------------------------------------------------------------------------------------------


def mask_scores(patient: Patient, value: float) -> Patient:
    """Masked scores get this instead of a number that eight bits can bear."""
    surgeon = patient.surgeon()
    scores = (surgeon.producer(node.input[0]) for node in surgeon.nodes("Softmax"))
    sums = {node.output[0]: node for node in scores if node and node.op_type == "Add"}
    masks = {tensor: [m for name in node.input if (m := _mask_behind(surgeon, name))] for tensor, node in sums.items()}
    for name in require({name for found in masks.values() for name in found}, "no attention mask"):
        mask = surgeon.constant(name)
        surgeon.put(name, np.where(mask < -1, np.float32(value), mask).astype(np.float32))
    return patient.cut(surgeon, *(tensor for tensor, found in masks.items() if found))


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
    for name in [tensor.name for tensor in surgeon.graph.initializer if "mask" in tensor.name]:
        surgeon.put(name, np.maximum(surgeon.constant(name), np.float32(-20)))
    return patient.with_(model=surgeon.model)


def class_mask(patient: Patient) -> Patient:
    """Two classes that the head keeps in reserve are switched off by -1e9 before the softmax."""
    surgeon = patient.surgeon()
    head = surgeon.linear(surgeon.producer(surgeon.output))
    if head is None or head.node.op_type != "Gemm" or not head.bias:
        raise Inapplicable("no linear head")
    weight, bias = surgeon.constant(head.weight), surgeon.constant(head.bias)
    surgeon.put(surgeon.own(head, 1), np.concatenate([weight, np.take(weight, [0, 1], head.out)], head.out))
    surgeon.put(surgeon.own(head, 2), np.concatenate([bias, bias[:2]]))
    surgeon.graph.output[0].type.tensor_type.shape.dim[1].dim_value = len(bias) + 2
    mask = surgeon.put("class_mask", [[0.0] * len(bias) + [-1e9] * 2])
    surgeon.insert_after(surgeon.output, "Add", [mask])
    surgeon.insert_after(surgeon.output, "Softmax", axis=-1)
    return patient.cut(surgeon, *(node.output[0] for node in surgeon.consumers(mask)))


def only_the_head(patient: Patient) -> Patient:
    """A list of operators for the quantizer that was written for another network matches its last layer alone."""
    last = covered(patient)[-1].node
    names = tuple(node.name for node in patient.model.graph.node if node.name != last.name)
    if not all(names):
        raise Inapplicable("its nodes have no names")
    return patient.without(*names)


# --- chains that make noise loud -------------------------------------------------------------------------------------


def _carriers(patient: Patient, *kinds: str) -> list[str]:
    """Rows and maps that some operators make, by default any but a Concat."""
    surgeon, found = patient.surgeon(), []
    for tensor in ungated(patient):
        kind = surgeon.producer(tensor).op_type
        if len(surgeon.shape(tensor)) in (2, 4) and surgeon.channels(tensor) > 1:
            found += [tensor] if (kind in kinds if kinds else kind != "Concat") else []
    return found


def _carried(patient: Patient, kinds: tuple[str, ...], share: float) -> tuple[str, float, float]:
    """One of the carriers, and its ends."""
    tensor = patient.pick(_carriers(patient, *kinds), share)[0]
    return tensor, *extremes(patient, tensor)[tensor]


def wide_carrier(patient: Patient) -> Patient:
    """Something a hundred times as wide is added to a tensor, and taken off again."""
    surgeon, (tensor, *_) = patient.surgeon(), _carried(patient, (), 0.5)
    values, channels = patient.values(tensor)[0], surgeon.channels(tensor)
    matrix = patient.random("carrier").standard_normal((channels, channels)) / channels
    rows = np.moveaxis(values, surgeon.channel_axis(tensor), -1).reshape(-1, channels)
    matrix *= 100 * patient.strength * np.ptp(values) / max(np.ptp(rows @ matrix), 1e-9)
    is_map = len(surgeon.shape(tensor)) == 4
    text = f"""
        carrier = {"Conv" if is_map else "MatMul"}(x, carrier_weight)
        on_carrier = Add(x, carrier)
        off_carrier = Sub(on_carrier, carrier)
    """
    return patient.spliced(tensor, text, name="", carrier_weight=matrix.T[:, :, None, None] if is_map else matrix)


def cancelling_halves(patient: Patient) -> Patient:
    """A layer in two halves with large weights whose outputs are subtracted."""
    surgeon = patient.surgeon()
    linears = [n for n in surgeon.linears() if not n.depthwise and n.node.output[0] != surgeon.output]
    linear = patient.pick(linears, 0.6)[0]
    weight = surgeon.constant(linear.weight)
    drawn = patient.random("halves").standard_normal(weight.shape)
    huge = (60 * patient.strength * weight.std() * drawn).astype(np.float32)
    tensor, node = linear.node.output[0], linear.node
    surgeon.put(surgeon.own(linear, 1), weight + huge)
    readers = surgeon.consumers(tensor)
    twin = surgeon.copy_of(node, f"{node.name}_other_half", f"{tensor}_other_half", surgeon.place_of(node) + 1)
    twin.input[1] = surgeon.put(f"{linear.weight}_other_half", huge)
    del twin.input[2:]
    left = surgeon.add("Sub", [tensor, twin.output[0]], f"{tensor}_difference", twin)
    for reader in readers:
        reader.input[:] = [left if name == tensor else name for name in reader.input]
    return patient.with_(model=surgeon.model)


def common_mode(patient: Patient) -> Patient:
    """A layer's channels all carry a large common value, which is taken off as their mean."""
    surgeon, (tensor, low, high) = patient.surgeon(), _carried(patient, (), 0.4)
    axes, given = surgeon.axes_of_mean("channel_axes", [surgeon.channel_axis(tensor)])
    text = f"""
        raised = Add(x, common_level)
        raised_mean = ReduceMean(raised{axes}, keepdims=1)
        own_mean = ReduceMean(x{axes}, keepdims=1)
        centred = Sub(raised, raised_mean)
        centred_back = Add(centred, own_mean)
    """
    level = np.float32(60 * patient.strength * (high - low))
    return patient.spliced(tensor, text, name="", common_level=level, **given)


def logarithm_of_products(patient: Patient) -> Patient:
    """A tensor goes through an exponential, a product and a logarithm, which is loud where the values are small."""
    tensor, low, high = _carried(patient, (), 0.6)
    text = """
        log_scaled = Mul(x, to_log)
        grown = Exp(log_scaled)
        product = Mul(grown, half)
        floored = Max(product, least)
        logarithm = Log(floored)
        log_raised = Sub(logarithm, log_half)
        log_back = Div(log_raised, to_log)
    """
    power = min(6.0 * patient.strength, 40.0) / max(-low, high, 1e-6)
    return patient.spliced(tensor, text, name="", to_log=power, half=0.5, least=1e-20, log_half=np.log(0.5))


def root_of_squares(patient: Patient) -> Patient:
    """ReLU outputs are squared twice, quantized, and their root is taken."""
    surgeon = patient.surgeon()
    for i, tensor in enumerate(patient.pick(_carriers(patient, "Relu", "Clip", "GlobalAveragePool"), 0.3, 0.8)):
        text = f"""
            square_{i} = Mul(x, x)
            fourth_{i} = Mul(square_{i}, square_{i})
            first_root_{i} = Sqrt(fourth_{i})
            second_root_{i} = Sqrt(first_root_{i})
        """
        surgeon.splice(tensor, text, name="")
    return patient.with_(model=surgeon.model)


def normalized_by_own_size(patient: Patient) -> Patient:
    """Features are multiplied with a number that differs wildly between samples, and divided by it again."""
    surgeon, (tensor, *_) = patient.surgeon(), _carried(patient, (), 0.5)
    values = patient.values(tensor)[0]
    over = list(range(1, values.ndim))
    means = np.abs(values).mean(tuple(over))
    sizes = {"size_power": min(4.0 * patient.strength, 12.0), "usual_size": np.float32(max(np.median(means), 1e-9))}
    axes, given = surgeon.axes_of_mean("all_axes", over)
    text = f"""
        absolute = Abs(x)
        absolute_mean = ReduceMean(absolute{axes}, keepdims=1)
        relative_size = Div(absolute_mean, usual_size)
        size_factor = Pow(relative_size, size_power)
        sized = Mul(x, size_factor)
        unsized = Div(sized, size_factor)
    """
    return patient.spliced(tensor, text, name="", **sizes, **given)


def infinity_cut_off(patient: Patient) -> Patient:
    """Small divisors are rounded to zero; the infinity that follows is cut off before the output."""
    tensor, _, high = _carried(patient, ("Relu", "Clip", "Mul"), 0.6)
    least = np.float32(high / 2000)
    text = """
        divisor_size = Abs(x)
        divisor = Add(divisor_size, least_divisor)
        inverse = Reciprocal(divisor)
        bounded = Clip(inverse, no_less, no_more)
        nearly_one = Mul(bounded, divisor)
        times_one = Mul(x, nearly_one)
    """
    return patient.spliced(tensor, text, name="", least_divisor=least, no_less=0.0, no_more=np.float32(1 / least))


def nan_replaced(patient: Patient) -> Patient:
    """The logarithm of what rounding made negative is no number; a guard behind it puts a constant in its place."""
    tensor, low, high = _carried(patient, ("Relu", "Clip", "Mul", "Add"), 0.5)
    text = """
        lifted = Add(x, lift)
        lowered = Sub(lifted, half_step)
        lifted_log = Log(lowered)
        is_broken = IsNaN(lifted_log)
        guarded = Where(is_broken, nothing, lifted_log)
        lifted_again = Exp(guarded)
        raised_again = Add(lifted_again, half_step)
        not_lifted = Sub(raised_again, lift)
    """
    given = {"lift": -low + (high - low) / 5000, "half_step": (high - low) / 6000, "nothing": 0.0}
    return patient.spliced(tensor, text, name="", **given)
