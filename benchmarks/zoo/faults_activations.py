"""Faults of activation ranges."""

from dataclasses import replace

import numpy as np
import onnx

from .fault import fault
from .patient import Patient
from .surgery import Inapplicable, Surgeon


def extremes(patient: Patient, *tensors: str) -> list[tuple[float, float]]:
    return [(float(min(x.min(), 0)), float(max(x.max(), 0))) for x in patient.values(*tensors)]


def with_scaled_ranges(patient: Patient, tensors: list[str], factor: float) -> Patient:
    recipe = patient.recipe
    for tensor, (low, high) in zip(tensors, extremes(patient, *tensors), strict=True):
        recipe = recipe.with_range(tensor, low * factor, high * factor)
    return patient.with_(recipe=recipe)


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


@fault("outlier-channel", "activations", "channel-outliers", "massive-activations", graded=True)
def outlier_channel(patient: Patient) -> Patient:
    """One channel 300 times as wide as its neighbours, in two tensors; the readers' weights make up for it."""
    return _amplified(patient, 300 * patient.strength, (0.3, 0.7))


@fault("massive-channel", "activations", "channel-outliers", "massive-activations", graded=True)
def massive_channel(patient: Patient) -> Patient:
    """One channel 3000 times as wide, in one tensor."""
    return _amplified(patient, 3000 * patient.strength, (0.5,))


@fault("rare-giants", "activations", "activation-outliers", "massive-activations", "channel-outliers", graded=True)
def rare_giants(patient: Patient) -> Patient:
    """A channel that is hardly ever active, but then 500 times as strong."""
    return _amplified(patient, 500 * patient.strength, (0.4, 0.8), rare=True)


@fault("broken-samples", "activations", "activation-outliers", "stray-samples", graded=True)
def broken_samples(patient: Patient) -> Patient:
    """Two calibration samples of two hundred are forty times too bright: a failed decoder."""
    inputs = patient.signals.copy()
    inputs[:: len(inputs) // 2] *= 40 * patient.strength
    return patient.with_(calibration=inputs)


@fault(
    "percentile-too-low",
    "activations",
    "over-clipped-activations",
    heal=lambda p: p.with_(recipe=replace(p.recipe, method="MinMax", percentile=None)),
    graded=True,
)
def percentile_too_low(patient: Patient) -> Patient:
    """Thresholds at the 94 % quantile everywhere."""
    return patient.with_(
        recipe=replace(patient.recipe, method="Percentile", percentile=100 - 6 * min(patient.strength, 4))
    )


def _no_gates(patient: Patient) -> list[str]:
    """Tensors but those whose range is known beforehand, which have faults of their own."""
    surgeon = patient.surgeon()
    return [t for t in patient.activations() if surgeon.producer(t).op_type not in ("Sigmoid", "Softmax")]


@fault("narrow-range", "activations", "over-clipped-activations", graded=True)
def narrow_range(patient: Patient) -> Patient:
    """Two tensors with a fifth of the range that they need."""
    tensors = patient.pick(_no_gates(patient), 0.25, 0.6)
    return with_scaled_ranges(patient, tensors, 0.12 / patient.strength).at(*tensors)


@fault("narrow-late-range", "activations", "over-clipped-activations", graded=True)
def narrow_late_range(patient: Patient) -> Patient:
    """A late tensor with a tenth of its range."""
    tensors = patient.pick(_no_gates(patient), 0.85)
    return with_scaled_ranges(patient, tensors, 0.08 / patient.strength).at(*tensors)


@fault("wide-ranges", "activations", "poor-threshold", "stale-calibration", graded=True)
def wide_ranges(patient: Patient) -> Patient:
    """Ranges 24 times wider than the values, everywhere."""
    return with_scaled_ranges(patient, patient.activations(), 24 * patient.strength)


@fault("one-wide-range", "activations", "poor-threshold", graded=True)
def one_wide_range(patient: Patient) -> Patient:
    """One tensor with a range 150 times too wide."""
    tensors = patient.pick(_no_gates(patient), 0.5)
    return with_scaled_ranges(patient, tensors, 150 * patient.strength).at(*tensors)


@fault("power-of-two", "activations", "power-of-two-waste", "poor-threshold", graded=True)
def power_of_two(patient: Patient) -> Patient:
    """Symmetric thresholds at a power of two, four bits too high."""
    recipe = replace(patient.recipe, symmetric=True)
    tensors = patient.activations()
    for tensor, (low, high) in zip(tensors, extremes(patient, *tensors), strict=True):
        threshold = 2.0 ** (np.ceil(np.log2(max(-low, high, 1e-6) * patient.strength)) + 4)
        step = np.float32(threshold / 2 ** (8 * recipe.zero_point.itemsize - 1))
        recipe = recipe.with_override(tensor, scale=np.array(step, np.float32), zero_point=recipe.zero_point)
    return patient.with_(recipe=recipe)


@fault("symmetric-grid", "activations", "asymmetric-data-on-symmetric-grid")
def symmetric_grid(patient: Patient) -> Patient:
    """Signed symmetric codes for values that are all positive."""
    return patient.with_(recipe=replace(patient.recipe, symmetric=True))


@fault("negatives-cut-off", "activations", "negative-activations", "over-clipped-activations")
def negatives_cut_off(patient: Patient) -> Patient:
    """Ranges that begin at zero for swish and GELU, whose small negative values count."""
    surgeon = patient.surgeon()
    tensors = [t for t in patient.activations("Mul", "Gelu") if not _scales(surgeon, t)]
    if not tensors:
        raise Inapplicable("no swish")
    found = [
        (t, high)
        for t, (low, high) in zip(tensors, extremes(patient, *tensors), strict=True)
        if low < -0.05 and low > -0.4
    ]
    if not found:
        raise Inapplicable("no negative tails")
    recipe = patient.recipe
    for tensor, high in found:
        recipe = recipe.with_range(tensor, 0, high)
    return patient.with_(recipe=recipe).at(*(tensor for tensor, _ in found))


def _scales(surgeon: Surgeon, tensor: str) -> bool:
    return any(surgeon.constant(name) is not None for name in surgeon.producer(tensor).input)


@fault("swish-in-pieces", "activations", "decomposed-swish", "fixed-range-output", graded=True)
def swish_in_pieces(patient: Patient) -> Patient:
    """Sigmoid and Mul quantized apart, the sigmoid's range that of its input."""
    surgeon = patient.surgeon()
    sigmoids = [
        n.output[0]
        for n in surgeon.nodes("Sigmoid")
        if any(r.op_type == "Mul" and n.input[0] in r.input for r in surgeon.consumers(n.output[0]))
    ]
    if not sigmoids:
        raise Inapplicable("no swish")
    recipe = patient.recipe
    for tensor in sigmoids:
        recipe = recipe.with_range(tensor, -20 * patient.strength, 20 * patient.strength)
    return patient.with_(recipe=recipe).at(*sigmoids)


@fault("gate-range", "activations", "fixed-range-output", graded=True)
def gate_range(patient: Patient) -> Patient:
    """Softmax or the gates of a recurrent cell on a range of 0 … 32."""
    surgeon = patient.surgeon()
    gates = [
        n.output[0]
        for n in surgeon.nodes("Softmax", "Sigmoid")
        if not any(r.op_type == "Mul" and n.input[0] in r.input for r in surgeon.consumers(n.output[0]))
    ]
    if not gates:
        raise Inapplicable("no gates")
    recipe = patient.recipe
    for tensor in gates:
        recipe = recipe.with_range(tensor, 0, 32 * patient.strength)
    return patient.with_(recipe=recipe).at(*gates)


@fault("attention-mask", "activations", "mask-constant")
def attention_mask(patient: Patient) -> Patient:
    """Masked scores get -1e9 instead of a number that eight bits can bear."""
    return _masked(patient, -1e9)


@fault("lowest-float-mask", "activations", "mask-constant", "non-finite-values", "degenerate-range")
def lowest_float_mask(patient: Patient) -> Patient:
    """Masked scores get the lowest float32."""
    return _masked(patient, float(np.finfo(np.float32).min))


def _masked(patient: Patient, value: float) -> Patient:
    surgeon = patient.surgeon()
    sums = {node.output[0]: node for node in map(surgeon.producer, _scores(surgeon)) if node and node.op_type == "Add"}
    masks = {tensor: [m for name in node.input if (m := _mask_behind(surgeon, name))] for tensor, node in sums.items()}
    names = {name for found in masks.values() for name in found}
    if not names:
        raise Inapplicable("no attention mask")
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


def _milder_mask(patient: Patient) -> Patient:
    """Masks of -20: nothing after a softmax, and no burden to eight bits."""
    surgeon = patient.surgeon()
    for tensor in surgeon.graph.initializer:
        if "mask" in tensor.name:
            surgeon.put(tensor.name, np.maximum(surgeon.constant(tensor.name), np.float32(-20)))
    return patient.with_(model=surgeon.model)


@fault("class-mask", "activations", "mask-constant", heal=_milder_mask)
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


@fault("no-range", "activations", "degenerate-range")
def no_range(patient: Patient) -> Patient:
    """One tensor was never seen alive: its range is a point."""
    tensor = patient.pick(patient.activations(), 0.45)[0]
    recipe = patient.recipe
    point = recipe.with_override(tensor, scale=np.array(1e-9, np.float32), zero_point=recipe.zero_point)
    return patient.with_(recipe=point).at(tensor)


@fault("relu6-lost", "activations", "relu6-lost")
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
    relus = [n for n in surgeon.nodes("Relu") if n.output[0] in surgeon.amplifiable()]
    if not relus:
        raise Inapplicable("no ReLU")
    values = patient.values(*(n.output[0] for n in relus))
    for node, x in zip(relus, values, strict=True):
        top = float(np.quantile(x, 0.97))
        if top <= 0:
            continue
        surgeon.amplify(node.output[0], np.full(surgeon.channels(node.output[0]), 6 / top, np.float32))
        node.op_type = "Clip"
        node.input.extend([surgeon.put("zero_bound", np.float32(0)), surgeon.put("six_bound", np.float32(6))])
    return surgeon.nodes("Clip")


@fault("four-bit-activations", "activations", "too-few-activation-bits", "smooth-accumulation")
def four_bit_activations(patient: Patient) -> Patient:
    """Every activation in four bits."""
    sound = patient.surgeon()
    weights = {linear.weight: sound.constant(linear.weight) for linear in sound.linears()}

    def edit(p: Patient, quantized: onnx.ModelProto) -> onnx.ModelProto:
        """Float weights: with quantized ones onnxruntime would fuse the layers and find no kernel."""
        surgeon = Surgeon(quantized)
        for name, value in weights.items():
            surgeon.reroute(f"{name}_DequantizeLinear_Output", surgeon.put(f"{name}_kept", value))
        return surgeon.model

    return patient.with_(recipe=replace(patient.recipe, activation="QUInt4")).edited(edit)
