"""Faults of the graph: what is joined, added, inserted or taken apart; of heads and of single settings."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from ..cuts import (
    channel_peaks,
    class_head,
    covered,
    dense,
    extremes,
    float_input,
    kept,
    per_channel,
    picked,
    positive_spots,
    read_beside,
    recoded,
    requantize,
    spots,
    with_opset,
)
from ..patient import QUANTIZED_BY_DEFAULT, Patient
from ..quantizing import run
from ..signals import WAVE
from ..surgery import Inapplicable, Surgeon, require
from ..tasks import TAIL

#: Width of the picture in pixels.
PICTURE = 640.0
#: Columns of the input that are told in another unit.
FAR_UNITS = {"dials": (WAVE, WAVE + 2), "groves": (2, 5)}


def wide_branch(patient: Patient) -> Patient:
    """One branch of a Concat 200 times as wide; its readers make up for it."""
    surgeon = patient.surgeon()
    done: list[str] = []
    for node in surgeon.nodes("Concat"):
        for tensor in node.input:
            if surgeon.consumers(tensor) != [node] or surgeon.constant(tensor) is not None or tensor == surgeon.input:
                continue
            try:
                surgeon.amplify(tensor, np.full(surgeon.channels(tensor), 200.0 * patient.strength, np.float32))
            except Inapplicable:
                continue
            done.append(node.output[0])
            break
    if not done:
        raise Inapplicable("no Concat of branches")
    return patient.with_(model=surgeon.model).at(*done)


def wide_addend(patient: Patient) -> Patient:
    """The features of the head are added to something 400 times as wide that the head does not see."""
    surgeon = patient.surgeon()
    head = surgeon.linear(surgeon.producer(surgeon.output))
    if head is None or head.node.op_type != "Gemm" or head.into != 1:
        raise Inapplicable("no linear head")
    features = head.node.input[0]
    weight = surgeon.constant(head.weight)
    values = patient.values(features)[0]
    _, _, basis = np.linalg.svd(weight.astype(np.float64))
    unseen = basis[len(weight) :]
    if len(unseen) < 2:
        raise Inapplicable("the head sees everything")
    rng = patient.random("addend")
    direction = rng.standard_normal(len(unseen)) @ unseen
    source = rng.standard_normal(values.shape[1])
    strength = 400 * patient.strength * np.ptp(values) / max(np.ptp(np.outer(values @ source, direction)), 1e-9)
    surgeon.put("addend_weight", (np.outer(source, direction) * strength).astype(np.float32))
    at = surgeon.producer(features)
    if at is None:
        raise Inapplicable("the head reads the input")
    surgeon.add("MatMul", [features, "addend_weight"], "addend", at)
    joined = surgeon.add("Add", [features, "addend"], "features_and_addend", surgeon.producer("addend"))
    head.node.input[0] = joined
    return patient.with_(model=surgeon.model).at(joined)


def cancelled_offset(patient: Patient) -> Patient:
    """A large offset is added to a layer's output and taken off again: what is left is mostly rounding."""
    surgeon = patient.surgeon()
    linears = [n for n in surgeon.linears() if n.bias and n.node.output[0] != surgeon.output and not n.depthwise]
    chosen = patient.pick(linears, 0.3, 0.8)
    peaks = extremes(patient, *(linear.node.output[0] for linear in chosen))
    for linear, (low, high) in zip(chosen, peaks, strict=True):
        offset = np.float32(round(60 * patient.strength * (high - low), 2))
        bias = surgeon.constant(linear.bias)
        surgeon.put(surgeon.own(linear, 2), (bias + offset).astype(np.float32))
        name = surgeon.put(f"{linear.node.output[0]}_offset", np.float32(offset))
        surgeon.insert_after(linear.node.output[0], "Sub", [name])
    return patient.with_(model=surgeon.model).at(*chosen)


def all_operators(patient: Patient) -> Patient:
    """Everything is quantized that the toolchain can quantize, where only products bear it."""
    if not patient.network.op_types:
        raise Inapplicable("bears it")
    kinds = tuple(sorted({node.op_type for node in patient.model.graph.node} & QUANTIZED_BY_DEFAULT))
    return patient.with_(recipe=replace(patient.recipe, op_types=kinds))


def two_bit_last_layer(patient: Patient) -> Patient:
    linears = patient.surgeon().linears()
    allowed = patient.recipe.op_types or patient.network.op_types
    names = [n.weight for n in linears if not allowed or n.node.op_type in allowed][-1:]
    ill = patient.at(*(linear.node.name for linear in linears if linear.weight in names))
    return ill.edited(lambda p, q: requantize(p, q, names, TensorProto.INT2, one_scale=True))


def two_bit_first_layer(patient: Patient) -> Patient:
    linears = patient.surgeon().linears()
    allowed = patient.recipe.op_types or patient.network.op_types
    names = [n.weight for n in linears if not allowed or n.node.op_type in allowed][:1]
    ill = patient.at(*(linear.node.name for linear in linears if linear.weight in names))
    return ill.edited(lambda p, q: requantize(p, q, names, TensorProto.INT2))


def coarse_output(patient: Patient) -> Patient:
    """The logits have to do with a handful of codes."""
    surgeon = patient.surgeon()
    if surgeon.producer(surgeon.output).op_type not in ("Gemm", "Conv", "MatMul"):
        raise Inapplicable("the output is not quantized")
    ((low, high),) = extremes(patient, surgeon.output)
    factor = 120 * patient.strength
    recipe = patient.recipe.with_range(surgeon.output, low * factor, high * factor)
    return patient.with_(recipe=recipe).at(surgeon.output)


def few_output_codes(patient: Patient) -> Patient:
    """The logits in four bits, over a range five times as wide as they need."""
    surgeon = patient.surgeon()
    if surgeon.producer(surgeon.output).op_type not in ("Gemm", "Conv", "MatMul"):
        raise Inapplicable("the output is not quantized")

    def edit(_: Patient, q: Surgeon) -> None:
        last = q.producer(q.output)
        if last.op_type != "DequantizeLinear":
            raise Inapplicable("the output is not quantized")
        scale = q.constant(last.input[1])
        zero = q.constant(last.input[2]).astype(np.int64)
        coarse = q.put("coarse_scale", (scale * 90 * patient.strength).astype(np.float32))
        code = int(np.clip(round((zero + 128) / 17), 0, 15))
        q.graph.initializer.append(helper.make_tensor("coarse_zero", TensorProto.UINT4, [], [code]))
        before = q.producer(last.input[0])
        for node in (before, last):
            node.input[1], node.input[2] = coarse, "coarse_zero"
        with_opset(q.model, 21)

    return patient.at(surgeon.output).edited(edit)


def not_quantized(patient: Patient) -> Patient:
    """The quantizer was handed names that match nothing, and wrote the float model."""
    return patient.edited(lambda p, surgeon: surgeon.model.CopyFrom(p.model))


def half_quantized(patient: Patient) -> Patient:
    """The first half of the network is left out by an exclude list that matches too much."""
    allowed = patient.network.op_types
    layers = [n.node.name for n in patient.surgeon().linears() if not allowed or n.node.op_type in allowed]
    nodes = [node.name for node in patient.model.graph.node]
    if not all(nodes):
        raise Inapplicable("its nodes have no names")
    names = tuple(nodes[: nodes.index(layers[len(layers) // 2]) + 1])
    return patient.with_(recipe=replace(patient.recipe, exclude=(*patient.recipe.exclude, *names)))


def nan_in_quantized(patient: Patient) -> Patient:
    """A scale that is not a number."""
    tensor = patient.pick(patient.activations(), 0.4)[0]

    def edit(_: Patient, surgeon: Surgeon) -> None:
        if surgeon.constant(f"{tensor}_scale") is None:
            raise Inapplicable(f"{tensor} has no scale")
        surgeon.put(f"{tensor}_scale", np.array(np.nan, np.float32))

    return patient.at(tensor).edited(edit)


def overflow_in_both(patient: Patient) -> Patient:
    """A logarithm of something that can be negative: both models yield NaN for some samples."""
    surgeon = patient.surgeon()
    head = surgeon.linear(surgeon.producer(surgeon.output))
    if head is None:
        raise Inapplicable("no linear head")
    output = surgeon.output
    values = run(patient.network, patient.model, patient.validation)[0]
    level = surgeon.put("level", np.float32(-np.quantile(values.min(1), 0.3)))
    surgeon.insert_after(output, "Add", [level])
    surgeon.insert_after(output, "Log")
    return patient.with_(model=surgeon.model).at(output)


def codes_as_output(patient: Patient) -> Patient:
    """The application reads the codes of the output as if they were values."""

    def edit(_: Patient, surgeon: Surgeon) -> None:
        last = surgeon.producer(surgeon.output)
        if last.op_type != "DequantizeLinear":
            raise Inapplicable("the output is not quantized")
        codes = last.input[0]
        name = surgeon.output
        surgeon.graph.node.remove(last)
        surgeon.add("Cast", [codes], name, to=TensorProto.FLOAT)

    return patient.edited(edit)


def other_float_model(patient: Patient) -> Patient:
    """The float model at hand is an older checkpoint than the one that was quantized."""
    surgeon = patient.surgeon()
    rng = patient.random("older")
    for linear in surgeon.linears():
        weight = surgeon.constant(linear.weight)
        noise = rng.standard_normal(weight.shape) * weight.std() * 0.15 * patient.strength
        surgeon.put(linear.weight, (weight + noise).astype(np.float32))
    reference = run(patient.network, patient.model, patient.validation)
    names = [value.name for value in patient.model.graph.output]
    options = {**patient.options, "reference_outputs": dict(zip(names, reference, strict=True))}
    return patient.with_(shown_float=surgeon.model, options=options)


def device_differs(patient: Patient) -> Patient:
    """The board computes something else than the model on the desk."""
    outputs = run(patient.network, patient.quantized(), patient.validation)
    rng = patient.random("device")
    wrong = [x + rng.standard_normal(x.shape).astype(np.float32) * x.std() * 0.5 for x in outputs]
    names = [value.name for value in patient.model.graph.output]
    return patient.with_(options={**patient.options, "device_outputs": dict(zip(names, wrong, strict=True))})


class _Head:
    """The linear head of a classifier, whose output becomes ``scores``, and what is put beside them."""

    def __init__(self, patient: Patient) -> None:
        self.patient, self.surgeon = patient, patient.surgeon()
        surgeon = self.surgeon
        head = surgeon.linear(surgeon.producer(surgeon.output))
        if head is None or head.node.op_type != "Gemm":
            raise Inapplicable("no linear head")
        if surgeon.constant(head.weight).shape[head.out] != 10:
            raise Inapplicable("not ten classes")
        self.features, self.output = head.node.input[0], surgeon.output
        self.values = patient.values(self.features)[0]
        surgeon.insert_after(self.output, "Softmax", axis=-1)

    def linear(self, name: str, columns: int, low: float, high: float) -> str:
        """Columns between two values, linear in the features."""
        mix = self.patient.random(name).uniform(0, 1, (self.values.shape[1], columns)).astype(np.float32)
        raw = self.values @ mix
        gain, least = (high - low) / np.ptp(raw, axis=0), raw.min(0)
        weight = self.surgeon.put(f"{name}_weight", (mix * gain).astype(np.float32))
        bias = self.surgeon.put(f"{name}_bias", (low - least * gain).astype(np.float32))
        return self.surgeon.add("Gemm", [self.features, weight, bias], name)

    def joined(self, *parts: str, columns: int) -> Patient:
        """These before the scores, in one output."""
        surgeon = self.surgeon
        surgeon.producer(self.output).output[0] = "scores"
        surgeon.add("Concat", [*parts, "scores"], self.output, axis=1)
        surgeon.graph.output[0].type.tensor_type.shape.dim[1].dim_value = columns + 10
        return self.patient.with_(model=surgeon.model, task=TAIL).at(self.output)

    def apart(self, part: str, columns: int) -> Patient:
        """This in an output of its own, behind the scores."""
        value = helper.make_tensor_value_info(part, TensorProto.FLOAT, ["batch", columns])
        self.surgeon.graph.output.append(value)
        return self.patient.with_(model=self.surgeon.model)


def joints_in_float(patient: Patient) -> Patient:
    """The joining left in float, so that all parts keep grids of their own."""
    joints = tuple(node.name for node in patient.surgeon().nodes("Concat") if "scores" in node.input)
    return patient.with_(recipe=replace(patient.recipe, exclude=(*patient.recipe.exclude, *joints)))


def boxes_and_scores(patient: Patient) -> Patient:
    """Four box coordinates of 0 … 640 before the scores of 0 … 1, in one output."""
    head = _Head(patient)
    return head.joined(head.linear("boxes", 4, 40, 600), columns=4)


def boxes_objectness_classes(patient: Patient) -> Patient:
    """Boxes, an objectness and the scores of the classes, in one output."""
    head = _Head(patient)
    boxes = head.linear("boxes", 4, 40, 600)
    there = head.surgeon.add("Sigmoid", [head.linear("objectness_raw", 1, -2, 2)], "objectness")
    return head.joined(boxes, there, columns=5)


def keypoints_and_scores(patient: Patient) -> Patient:
    """The coordinates of eight keypoints before the scores, in one output."""
    head = _Head(patient)
    return head.joined(head.linear("keypoints", 16, 5, PICTURE - 5), columns=16)


def scores_in_pixels(patient: Patient) -> Patient:
    """Boxes and scores in two outputs, of which the scores were given the range of the boxes."""
    head = _Head(patient)
    ill = head.apart(head.linear("boxes", 4, 40, 600), columns=4)
    return ill.with_(recipe=ill.recipe.with_range(head.output, 0, PICTURE * patient.strength)).at(head.output)


def boxes_in_another_output(patient: Patient) -> Patient:
    """Scores and boxes in two outputs, each with a grid of its own."""
    head = _Head(patient)
    return head.apart(head.linear("boxes", 4, 40, 600), columns=4)


def normalized_boxes(patient: Patient) -> Patient:
    """Boxes in shares of the picture before the scores, in one output."""
    head = _Head(patient)
    return head.joined(head.linear("boxes", 4, 0.05, 0.95), columns=4)


def joint_in_float(patient: Patient) -> Patient:
    """Boxes in pixels before the scores, joined in float."""
    head = _Head(patient)
    return joints_in_float(head.joined(head.linear("boxes", 4, 40, 600), columns=4))


def log_with_offset(patient: Patient) -> Patient:
    """Values are carried as logarithms with a large constant beside them: rounding there is a factor later."""
    surgeon = patient.surgeon()
    marks = []
    for tensor in patient.pick(positive_spots(patient), 0.3, 0.8):
        least = surgeon.put(f"{tensor}_least", np.float32(1e-4))
        offset = surgeon.put(f"{tensor}_level", np.float32(round(120 * patient.strength, 2)))
        kept = surgeon.insert_after(tensor, "Max", [least], f"{tensor}_kept")
        log = surgeon.insert_after(kept, "Log", name=f"{tensor}_log")
        raised = surgeon.insert_after(log, "Add", [offset], f"{tensor}_raised")
        lowered = surgeon.insert_after(raised, "Sub", [offset], f"{tensor}_lowered")
        back = surgeon.insert_after(lowered, "Exp", name=f"{tensor}_back")
        marks += [raised, back]
    return patient.with_(model=surgeon.model).at(*marks)


def inverse_of_inverse(patient: Patient) -> Patient:
    """One is divided by something whose large values leave the small ones a few codes, and zero among them."""
    surgeon = patient.surgeon()
    chosen = patient.pick(positive_spots(patient), 0.4, 0.9)
    one = surgeon.put("one_half", np.float32(0.5))
    two = surgeon.put("two", np.float32(0.5))
    marks = []
    for tensor in chosen:
        least = surgeon.put(f"{tensor}_least", np.float32(1e-5))
        kept = surgeon.insert_after(tensor, "Max", [least], f"{tensor}_kept")
        inverse = surgeon.insert_after(kept, "Reciprocal", name=f"{tensor}_inverse")
        halved = surgeon.insert_after(inverse, "Mul", [one], f"{tensor}_halved")
        again = surgeon.insert_after(halved, "Reciprocal", name=f"{tensor}_again")
        surgeon.insert_after(again, "Mul", [two], f"{tensor}_doubled")
        marks.append(again)
    return patient.with_(model=surgeon.model).at(*marks)


def log_of_rounded_probability(patient: Patient) -> Patient:
    """The exporter splits the logarithm of a softmax in two; eight bits round small probabilities to zero."""
    surgeon = patient.surgeon()
    last = surgeon.producer(surgeon.output)
    if last.op_type not in ("Gemm", "MatMul", "Conv", "Add") or patient.task.metric is not None:
        raise Inapplicable("the output is no logits")
    axis = surgeon.channel_axis(surgeon.output)
    surgeon.insert_after(surgeon.output, "Softmax", axis=axis)
    surgeon.insert_after(surgeon.output, "Log")
    return patient.with_(model=surgeon.model).at(surgeon.output)


def packed_sum(patient: Patient) -> Patient:
    """Two tensors of different loudness are packed by adding them, each padded where the other has its channels."""
    surgeon = patient.surgeon()
    marks = []
    for tensor in patient.pick(spots(patient), 0.4, 0.8):
        producer, axis, rank = surgeon.producer(tensor), surgeon.channel_axis(tensor), len(surgeon.shape(tensor))
        channels = surgeon.channels(tensor)
        pads = np.zeros((2, 2, rank), np.int64)
        pads[0, 1, axis] = pads[1, 0, axis] = channels
        gain = surgeon.put(f"{tensor}_loudness", np.float32(60 * patient.strength))
        before, behind = (surgeon.put(f"{tensor}_pads_{i}", pads[i].reshape(-1)) for i in (0, 1))
        bounds = [
            surgeon.put(f"{tensor}_{name}", np.array([value]))
            for name, value in (("from", 0), ("to", channels), ("axis", axis))
        ]
        alone = f"{tensor}_alone"
        surgeon.reroute(tensor, alone)
        loud = surgeon.add("Mul", [tensor, gain], f"{tensor}_loud", producer)
        first = surgeon.add("Pad", [tensor, before], f"{tensor}_first", surgeon.producer(loud))
        second = surgeon.add("Pad", [loud, behind], f"{tensor}_second", surgeon.producer(first))
        summed = surgeon.add("Add", [first, second], f"{tensor}_packed", surgeon.producer(second))
        surgeon.add("Slice", [summed, *bounds], alone, surgeon.producer(summed))
        marks.append(summed)
    return patient.with_(model=surgeon.model).at(*marks)


def riding_constants(patient: Patient) -> Patient:
    """A constant for each channel rides on a tensor and is taken off one operator later: an embedding of positions."""
    surgeon = patient.surgeon()
    marks = []
    for i, tensor in enumerate(patient.pick(spots(patient), 0.2, 0.6)):
        peak = channel_peaks(patient, tensor).max()
        drawn = patient.random(f"ride{i}").normal(0, 30 * patient.strength * peak, surgeon.channels(tensor))
        name = surgeon.put(f"{tensor}_embedding", per_channel(surgeon, tensor, drawn))
        ridden = surgeon.insert_after(tensor, "Add", [name], f"{tensor}_embedded")
        taken = surgeon.insert_after(ridden, "Sub", [name], f"{tensor}_taken_off")
        marks += [ridden, taken]
    return patient.with_(model=surgeon.model).at(*marks)


def joined_with_wide_copy(patient: Patient) -> Patient:
    """A tensor is joined with something much wider for a while, and cut out again."""
    surgeon = patient.surgeon()
    marks = []
    for tensor in patient.pick(spots(patient), 0.5, 0.75):
        producer, axis = surgeon.producer(tensor), surgeon.channel_axis(tensor)
        channels = surgeon.channels(tensor)
        joint, cut = f"{tensor}_joint", f"{tensor}_cut"
        surgeon.reroute(tensor, cut)
        gain = surgeon.put(f"{tensor}_width", np.float32(100 * patient.strength))
        bounds = [
            surgeon.put(f"{tensor}_{name}", np.array([value]))
            for name, value in (("from", 0), ("to", channels), ("axis", axis))
        ]
        wide = surgeon.add("Mul", [tensor, gain], f"{tensor}_wide", producer)
        surgeon.add("Concat", [tensor, wide], joint, surgeon.producer(wide), axis=axis)
        surgeon.add("Slice", [joint, *bounds], cut, surgeon.producer(joint))
        marks.append(joint)
    return patient.with_(model=surgeon.model).at(*marks)


def last_in_float(patient: Patient) -> Patient:
    last = patient.surgeon().producer(patient.surgeon().output)
    return patient.with_(recipe=replace(patient.recipe, exclude=(*patient.recipe.exclude, last.name)))


def common_offset(patient: Patient) -> Patient:
    """All logits carry the same large number, which no softmax would notice; their grid has few codes left."""
    surgeon = patient.surgeon()
    head = class_head(surgeon, patient)
    ((low, high),) = extremes(patient, surgeon.output)
    bias = surgeon.constant(head.bias)
    surgeon.put(surgeon.own(head, 2), (bias + np.float32(40 * patient.strength * (high - low))).astype(np.float32))
    return patient.with_(model=surgeon.model).at(head.node.name)


def one_older_layer(patient: Patient) -> Patient:
    """One layer of the float model at hand comes from another checkpoint than the quantized one."""
    surgeon = patient.surgeon()
    names = {linear.node.name for linear in covered(patient)}
    linears = [linear for linear in surgeon.linears() if linear.node.name in names]
    linear = patient.pick(linears, 0.5)[0]
    weight = surgeon.constant(linear.weight)
    noise = patient.random("other").standard_normal(weight.shape) * weight.std() * 0.8 * patient.strength
    surgeon.put(surgeon.own(linear, 1), (weight + noise).astype(np.float32))
    return patient.with_(shown_float=surgeon.model).at(linear.node.name)


def norm_before_layer(patient: Patient) -> Patient:
    """A batch norm after an activation, which no converter folds, and whose variances are tiny in places."""
    surgeon = patient.surgeon()
    found = require(
        [t for t in spots(patient) if len(surgeon.shape(t)) == 4 and surgeon.channel_axis(t) == 1], "no maps"
    )
    marks = []
    for i, tensor in enumerate(patient.pick(found, 0.35, 0.65)):
        channels = surgeon.channels(tensor)
        gain = 10 ** patient.random(f"norm{i}").uniform(0, 2 + np.log10(1 + patient.strength), channels)
        down = surgeon.put(f"{tensor}_down", per_channel(surgeon, tensor, 1 / gain))
        parts = (("gamma", np.ones(channels)), ("beta", np.zeros(channels)), ("mean", np.zeros(channels)))
        extra = [surgeon.put(f"{tensor}_{k}", v.astype(np.float32)) for k, v in (*parts, ("variance", gain**-2.0))]
        lowered = surgeon.insert_after(tensor, "Mul", [down], f"{tensor}_lowered")
        marks.append(surgeon.insert_after(lowered, "BatchNormalization", extra, f"{tensor}_norm", epsilon=1e-12))
    return patient.with_(model=surgeon.model).at(*marks)


def class_switched_off(patient: Patient) -> Patient:
    """A class that is not sold in this country gets -65504 from a table of allowed classes before the softmax."""
    surgeon = patient.surgeon()
    head = class_head(surgeon, patient)
    axis = head.out
    weight, bias = surgeon.constant(head.weight), surgeon.constant(head.bias)
    surgeon.put(surgeon.own(head, 1), np.concatenate([weight, np.take(weight, [0], axis)], axis))
    surgeon.put(surgeon.own(head, 2), np.concatenate([bias, bias[:1]]))
    allowed = surgeon.put("allowed_classes", np.array([[True] * len(bias) + [False]]))
    lowest = surgeon.put("lowest_half", np.float32(-65504))
    inner = surgeon.insert_after(surgeon.output, "Softmax", axis=-1)
    softmax = surgeon.producer(inner)
    logits = softmax.input[0]
    chosen = surgeon.add("Where", [allowed, logits, lowest], "chosen_logits", surgeon.producer(logits))
    softmax.input[0] = chosen
    surgeon.graph.output[0].type.tensor_type.shape.dim[1].dim_value = len(bias) + 1
    return patient.with_(model=surgeon.model).at(chosen)


def powers_and_roots(patient: Patient) -> Patient:
    """A tensor is raised to a power, weighed, and a root is taken: what is small is gone in between."""
    surgeon = patient.surgeon()
    marks = []
    for tensor in patient.pick(positive_spots(patient), 0.25, 0.7):
        top = max(float(patient.values(tensor)[0].max()), 1e-3)
        power = float(np.float32(1 + 4 * patient.strength**0.7))
        unit = surgeon.put(f"{tensor}_unit", np.float32(1 / top))
        exponent = surgeon.put(f"{tensor}_exponent", np.float32(power))
        weigh = surgeon.put(f"{tensor}_weigh", np.float32(0.5))
        root = surgeon.put(f"{tensor}_root", np.float32(1 / power))
        back = surgeon.put(f"{tensor}_back_scale", np.float32(top * 2 ** (1 / power)))
        scaled = surgeon.insert_after(tensor, "Mul", [unit], f"{tensor}_unit_scaled")
        raised = surgeon.insert_after(scaled, "Pow", [exponent], f"{tensor}_raised")
        weighed = surgeon.insert_after(raised, "Mul", [weigh], f"{tensor}_weighed")
        rooted = surgeon.insert_after(weighed, "Pow", [root], f"{tensor}_rooted")
        surgeon.insert_after(rooted, "Mul", [back], f"{tensor}_restored")
        marks += [rooted, raised]
    return patient.with_(model=surgeon.model).at(*marks)


def variance_below_zero(patient: Patient) -> Patient:
    """Outputs are normalized by a variance made of two rounded squares, whose difference can be negative."""
    surgeon = patient.surgeon()
    last = surgeon.producer(surgeon.output)
    if last.op_type not in ("Gemm", "MatMul", "Conv", "Add") or patient.task.metric is not None:
        raise Inapplicable("the output is no logits")
    name = surgeon.output
    axis = surgeon.channel_axis(name)
    ((low, high),) = extremes(patient, name)
    offset = surgeon.put("level", np.float32(6 * patient.strength * (high - low)))
    least = surgeon.put("least_variance", np.float32(1e-6))
    lifted = surgeon.insert_after(name, "Add", [offset])
    final = surgeon.producer(lifted)
    final.output[0] = "lifted"
    surgeon.add("Mul", ["lifted", "lifted"], "squares", final)
    surgeon.add("ReduceMean", ["lifted"], "means", surgeon.producer("squares"), axes=[axis], keepdims=1)
    surgeon.add("ReduceMean", ["squares"], "mean_squares", surgeon.producer("means"), axes=[axis], keepdims=1)
    surgeon.add("Mul", ["means", "means"], "squared_means", surgeon.producer("mean_squares"))
    surgeon.add("Sub", ["mean_squares", "squared_means"], "variances", surgeon.producer("squared_means"))
    surgeon.add("Add", ["variances", least], "kept_variances", surgeon.producer("variances"))
    surgeon.add("Sqrt", ["kept_variances"], "deviations", surgeon.producer("kept_variances"))
    surgeon.add("Sub", ["lifted", "means"], "centred", surgeon.producer("deviations"))
    surgeon.add("Div", ["centred", "deviations"], name, surgeon.producer("centred"))
    opset = max(entry.version for entry in surgeon.model.opset_import if entry.domain in ("", "ai.onnx"))
    if opset >= 18:
        axes = surgeon.put("axes", np.array([axis]))
        for node in surgeon.nodes("ReduceMean"):
            if node.output[0] in ("means", "mean_squares"):
                del node.attribute[:]
                node.input.append(axes)
    return patient.with_(model=surgeon.model).at("deviations", "variances")


def opposed_branches(patient: Patient) -> Patient:
    """One operand of a sum is much louder than the other, and a third branch takes most of it off later."""
    surgeon = patient.surgeon()
    sums = require(
        [
            node
            for node in surgeon.nodes("Add")
            if all(surgeon.constant(name) is None and surgeon.producer(name) is not None for name in node.input)
            and node.name not in patient.recipe.exclude
            and surgeon.shape(node.input[0]) == surgeon.shape(node.input[1])
            and node.output[0] != surgeon.output
        ],
        "no sum of branches",
    )
    marks = []
    gain = 60 * patient.strength
    for place in patient.pick(list(range(len(sums))), 0.4, 0.9):
        node = sums[place]
        loud, total = node.input[0], node.output[0]
        up = surgeon.put(f"{total}_up", np.float32(1 + gain))
        over = surgeon.put(f"{total}_over", np.float32(gain))
        raised = surgeon.add("Mul", [loud, up], f"{total}_louder", surgeon.producer(loud))
        rest = f"{total}_balanced"
        surgeon.reroute(total, rest)
        node.input[0] = raised
        excess = surgeon.add("Mul", [loud, over], f"{total}_excess", node)
        surgeon.add("Sub", [total, excess], rest, surgeon.producer(excess))
        marks.append(total)
    return patient.with_(model=surgeon.model).at(*marks)


def kelvin(patient: Patient) -> Patient:
    """Inputs come in a unit with a far origin, and the network takes the origin off first: kelvin, not degrees."""
    surgeon = patient.surgeon()
    name = float_input(surgeon)
    origin = np.float32(np.ceil(40 * patient.strength * np.ptp(patient.calibration)))
    surgeon.insert_after(name, "Add", [surgeon.put("minus_origin", -origin)], "from_origin")
    moved = {
        "calibration": (patient.calibration + origin).astype(np.float32),
        "validation": (patient.validation + origin).astype(np.float32),
    }
    return patient.with_(model=surgeon.model, **moved).at("from_origin")


def coordinates_in_pixels(patient: Patient) -> Patient:
    """A layer reads the coordinates beside its input, in pixels of the full picture; it hardly uses them."""
    surgeon = patient.surgeon()
    last = surgeon.producer(surgeon.output)
    chosen = patient.pick([n for n in dense(patient, surgeon) if n.node is not last], 0.4, 0.8)
    marks = []
    for linear in chosen:
        tensor, mark = linear.node.input[0], f"{linear.node.name}_placed"
        axis, shape = surgeon.channel_axis(tensor), surgeon.shape(tensor)
        rank = len(shape)
        reach = 60 * patient.strength * max(abs(end) for end in extremes(patient, tensor)[0])
        inner = [i for i in range(1, rank) if i != axis]
        size = shape[inner[-1]] if inner and shape[inner[-1]] else 1
        along = [1] * rank
        if inner:
            along[inner[-1]] = size
        place = np.linspace(0.5, 1, size).reshape(along).astype(np.float32) * np.float32(reach)
        bounds = [
            surgeon.put(f"{linear.node.name}_{key}", np.array([value]))
            for key, value in (("from", 0), ("to", 1), ("axis", axis))
        ]
        nothing = surgeon.put(f"{linear.node.name}_nothing", np.float32(0))
        table = surgeon.put(f"{linear.node.name}_coordinates", place)
        first = surgeon.add("Slice", [tensor, *bounds], f"{mark}_first", surgeon.producer(tensor))
        blank = surgeon.add("Mul", [first, nothing], f"{mark}_blank", surgeon.producer(first))
        where = surgeon.add("Add", [blank, table], f"{mark}_where", surgeon.producer(blank))
        read_beside(surgeon, linear, where, mark)
        marks.append(mark)
    return patient.with_(model=surgeon.model).at(*marks)


def background_class(patient: Patient) -> Patient:
    """A class for the background whose logit is far below all others takes nearly all codes of the output."""
    surgeon = patient.surgeon()
    head = class_head(surgeon, patient)
    ((low, high),) = extremes(patient, surgeon.output)
    weight, bias = surgeon.constant(head.weight), surgeon.constant(head.bias)
    surgeon.put(surgeon.own(head, 1), np.concatenate([weight, np.take(weight, [0], head.out)], head.out))
    far = np.float32(-60 * patient.strength * (high - low))
    surgeon.put(surgeon.own(head, 2), np.concatenate([bias, [far]]).astype(np.float32))
    surgeon.graph.output[0].type.tensor_type.shape.dim[1].dim_value = len(bias) + 1
    return patient.with_(model=surgeon.model).at(head.node.name)


def norm_of_dead_channels(patient: Patient) -> Patient:
    """A batch norm kept after a sum blows up two channels that were nearly dead when it was trained."""
    surgeon = patient.surgeon()
    found = require(
        [t for t in spots(patient) if len(surgeon.shape(t)) == 4 and surgeon.channel_axis(t) == 1], "no maps"
    )
    marks = []
    for i, tensor in enumerate(patient.pick(found, 0.2, 0.5, 0.8)):
        channels = surgeon.channels(tensor)
        gain = np.ones(channels)
        gain[patient.random(f"dead{i}").permutation(channels)[: max(2, channels // 3)]] = 1 / (60 * patient.strength)
        shrink = surgeon.put(f"{tensor}_nearly_dead", gain.reshape(1, -1, 1, 1).astype(np.float32))
        parts = (("gamma", np.ones(channels)), ("beta", np.zeros(channels)), ("mean", np.zeros(channels)))
        extra = [surgeon.put(f"{tensor}_{k}", v.astype(np.float32)) for k, v in (*parts, ("variance", gain**2))]
        small = surgeon.insert_after(tensor, "Mul", [shrink], f"{tensor}_shrunken")
        marks.append(surgeon.insert_after(small, "BatchNormalization", extra, f"{tensor}_normed", epsilon=1e-12))
    return patient.with_(model=surgeon.model).at(*marks)


def ramp_of_time(patient: Patient, amount: float) -> Patient:
    """The number of the step, uncentred, is added to a tensor and taken off by the branch that knows it."""
    surgeon = patient.surgeon()
    found = [t for t in spots(patient) if len(surgeon.shape(t)) > 2 and all(surgeon.shape(t)[1:])]
    marks = []
    for tensor in patient.pick(found, 0.35, 0.75):
        shape, axis = surgeon.shape(tensor), surgeon.channel_axis(tensor)
        along = next(i for i in range(len(shape) - 1, 0, -1) if i != axis)
        places = [1] * len(shape)
        places[along] = shape[along]
        top = amount * max(abs(end) for end in extremes(patient, tensor)[0])
        ramp = np.linspace(0.02, 1, shape[along]).reshape(places).astype(np.float32) * np.float32(top)
        name = surgeon.put(f"{tensor}_ramp", ramp)
        timed = surgeon.insert_after(tensor, "Add", [name], f"{tensor}_timed")
        surgeon.insert_after(timed, "Sub", [name], f"{tensor}_untimed")
        marks.append(timed)
    return patient.with_(model=surgeon.model).at(*marks)


def joined_with_their_sum(patient: Patient, amount: float) -> Patient:
    """A layer reads the weighted sum of its input's channels beside them, as a count; it learned to ignore it."""
    surgeon = patient.surgeon()
    last = surgeon.producer(surgeon.output)
    chosen = patient.pick([n for n in dense(patient, surgeon) if n.node is not last], 0.3, 0.7)
    marks = []
    for linear in chosen:
        tensor, mark = linear.node.input[0], f"{linear.node.name}_counted"
        axis = surgeon.channel_axis(tensor)
        gain = surgeon.put(f"{linear.node.name}_unit", np.float32(amount))
        axes = surgeon.put(f"{linear.node.name}_axes", np.array([axis]))
        total = surgeon.add("ReduceSum", [tensor, axes], f"{mark}_sum", surgeon.producer(tensor), keepdims=1)
        count = surgeon.add("Mul", [total, gain], f"{mark}_count", surgeon.producer(total))
        read_beside(surgeon, linear, count, mark)
        marks.append(mark)
    return patient.with_(model=surgeon.model).at(*marks)


def loud_twin_in_a_residual(patient: Patient, amount: float) -> Patient:
    """A copy of a tensor with its channels in reverse, much louder, joins a residual sum and leaves it later."""
    surgeon = patient.surgeon()
    marks = []
    for tensor in patient.pick(spots(patient), 0.45, 0.85):
        producer, axis, channels = surgeon.producer(tensor), surgeon.channel_axis(tensor), surgeon.channels(tensor)
        order = surgeon.put(f"{tensor}_backwards", np.arange(channels)[::-1].copy())
        gain = surgeon.put(f"{tensor}_twin_gain", np.float32(amount))
        rest, summed = f"{tensor}_left_alone", f"{tensor}_with_twin"
        surgeon.reroute(tensor, rest)
        turned = surgeon.add("Gather", [tensor, order], f"{tensor}_turned", producer, axis=axis)
        loud = surgeon.add("Mul", [turned, gain], f"{tensor}_twin", surgeon.producer(turned))
        surgeon.add("Add", [tensor, loud], summed, surgeon.producer(loud))
        surgeon.add("Sub", [summed, loud], rest, surgeon.producer(summed))
        marks.append(summed)
    return patient.with_(model=surgeon.model).at(*marks)


def grid_of_the_sum_for_its_parts(patient: Patient, amount: float) -> Patient:
    """Hardware wants one grid for all operands of a sum or joint, and takes that of a wide relative."""
    surgeon = patient.surgeon()
    usual = set(patient.activations())
    groups = [
        (*(name for name in node.input if surgeon.constant(name) is None), node.output[0])
        for node in surgeon.nodes("Concat", "Add")
        if node.output[0] in usual
    ]
    recipe = kept(patient.recipe)
    marks = []
    for tensors in patient.pick([group for group in groups if len(group) > 2], 0.2, 0.5, 0.8):
        ends = extremes(patient, *tensors)
        low, high = (max(abs(pair[i]) for pair in ends) * (1 + amount) for i in (0, 1))
        for tensor in tensors:
            recipe = recipe.with_range(tensor, -low, max(high, 1e-5))
            marks.append(tensor)
    return patient.with_(recipe=recipe).at(*marks)


def bound_far_above(patient: Patient, amount: float) -> Patient:
    """Fusing a bound with the operator before it gave the grid the ends of the bound, which no value comes near."""
    surgeon = patient.surgeon()
    recipe = kept(patient.recipe)
    chosen = patient.pick(positive_spots(patient), 0.25, 0.6)
    for tensor in chosen:
        high = max(extremes(patient, tensor)[0][1], 1e-5)
        ends = [surgeon.put(f"{tensor}_{i}_bound", np.float32(v)) for i, v in enumerate((0, high * (1 + amount)))]
        bounded = surgeon.insert_after(tensor, "Clip", ends, f"{tensor}_bounded")
        recipe = recipe.with_range(bounded, 0, high * (1 + amount)).with_range(tensor, 0, high * (1 + amount))
    if not chosen:
        raise Inapplicable("nothing is one-sided")
    return patient.with_(model=surgeon.model, recipe=recipe).at(*chosen, *(f"{t}_bounded" for t in chosen))


def through_odds(patient: Patient, amount: float) -> Patient:
    """Values become probabilities and come back as the logarithm of their odds, which is steep at both ends."""
    surgeon = patient.surgeon()
    marks = []
    for tensor in patient.pick(spots(patient), 0.4, 0.75):
        top = max(max(abs(end) for end in extremes(patient, tensor)[0]), 1e-3)
        value = {"pace": amount / top, "back": top / amount, "least": 1e-7, "most": 1 - 1e-7, "whole": 1.0}
        put = {k: surgeon.put(f"{tensor}_{k}_of_odds", np.float32(v)) for k, v in value.items()}
        paced = surgeon.insert_after(tensor, "Mul", [put["pace"]], f"{tensor}_paced")
        chance = surgeon.insert_after(paced, "Sigmoid", name=f"{tensor}_chance")
        safe = surgeon.insert_after(chance, "Max", [put["least"]], f"{tensor}_from_below")
        safe = surgeon.insert_after(safe, "Min", [put["most"]], f"{tensor}_from_above")
        end = f"{tensor}_odds"
        surgeon.reroute(safe, end)
        rest = surgeon.add("Sub", [put["whole"], safe], f"{tensor}_against", surgeon.producer(safe))
        surgeon.add("Div", [safe, rest], f"{tensor}_ratio", surgeon.producer(rest))
        surgeon.add("Log", [f"{tensor}_ratio"], f"{tensor}_log_odds", surgeon.producer(f"{tensor}_ratio"))
        surgeon.add("Mul", [f"{tensor}_log_odds", put["back"]], end, surgeon.producer(f"{tensor}_log_odds"))
        marks += [chance, f"{tensor}_ratio", f"{tensor}_log_odds"]
    return patient.with_(model=surgeon.model).at(*marks)


def divided_by_the_loudest(patient: Patient, amount: float) -> Patient:
    """Each sample is weighed by a power of its own mean and divided by it again: quiet samples have few codes."""
    surgeon = patient.surgeon()
    marks = []
    for tensor in patient.pick(positive_spots(patient), 0.3, 0.7):
        rank = len(surgeon.shape(tensor))
        x = patient.values(tensor)[0]
        usual = float(x.mean()) or 1.0
        axes = surgeon.put(f"{tensor}_axes_of_mean", np.arange(1, rank))
        power = surgeon.put(f"{tensor}_power_of_mean", np.float32(amount))
        unit = surgeon.put(f"{tensor}_unit_of_mean", np.float32(1 / usual))
        least = surgeon.put(f"{tensor}_least_of_mean", np.float32(0.02))
        back = f"{tensor}_evened"
        surgeon.reroute(tensor, back)
        total = surgeon.add("ReduceSum", [tensor, axes], f"{tensor}_total", surgeon.producer(tensor), keepdims=1)
        size = surgeon.put(f"{tensor}_size_of_mean", np.float32(np.prod(x.shape[1:])))
        surgeon.add("Div", [total, size], f"{tensor}_mean", surgeon.producer(total))
        surgeon.add("Mul", [f"{tensor}_mean", unit], f"{tensor}_relative", surgeon.producer(f"{tensor}_mean"))
        surgeon.add("Max", [f"{tensor}_relative", least], f"{tensor}_floored", surgeon.producer(f"{tensor}_relative"))
        surgeon.add("Pow", [f"{tensor}_floored", power], f"{tensor}_loudness", surgeon.producer(f"{tensor}_floored"))
        weighed = surgeon.add(
            "Mul", [tensor, f"{tensor}_loudness"], f"{tensor}_by_loudness", surgeon.producer(f"{tensor}_loudness")
        )
        surgeon.add("Div", [weighed, f"{tensor}_loudness"], back, surgeon.producer(weighed))
        marks += [weighed, back]
    return patient.with_(model=surgeon.model).at(*marks)


def geometric_mean_of_rounded(patient: Patient) -> Patient:
    """Values are divided by their geometric mean; what keeps them from zero is smaller than a step."""
    surgeon = patient.surgeon()
    marks = []
    found = positive_spots(patient)
    found = [t for t, x in zip(found, patient.values(*found), strict=True) if x.min() < 1e-3 * x.max()]
    for tensor in patient.pick(found, 0.5):
        (x,) = patient.values(tensor)
        least = surgeon.put(f"{tensor}_epsilon", np.float32(max(float(x.max()), 1e-3) * 1e-4))
        axes = surgeon.put(f"{tensor}_axes_of_geometry", np.arange(1, x.ndim))
        size = surgeon.put(f"{tensor}_size_of_geometry", np.float32(np.prod(x.shape[1:])))
        lifted = surgeon.insert_after(tensor, "Add", [least], f"{tensor}_lifted")
        end = f"{tensor}_let_down"
        surgeon.reroute(lifted, end)
        log = surgeon.add("Log", [lifted], f"{tensor}_log", surgeon.producer(lifted))
        total = surgeon.add("ReduceSum", [log, axes], f"{tensor}_log_total", surgeon.producer(log), keepdims=1)
        mean = surgeon.add("Div", [total, size], f"{tensor}_log_mean", surgeon.producer(total))
        usual = surgeon.add("Exp", [mean], f"{tensor}_geometric_mean", surgeon.producer(mean))
        normed = surgeon.add("Div", [lifted, usual], f"{tensor}_by_mean", surgeon.producer(usual))
        again = surgeon.add("Mul", [normed, usual], f"{tensor}_again_lifted", surgeon.producer(normed))
        surgeon.add("Sub", [again, least], end, surgeon.producer(again))
        marks += [lifted, log, normed, again]
    return patient.with_(model=surgeon.model).at(*marks)


def distance_for_a_product(patient: Patient, amount: float) -> Patient:
    """The head tells distances: the square of the features is in every score, and is taken off at the end."""
    surgeon = patient.surgeon()
    head = surgeon.linear(surgeon.producer(surgeon.output))
    if head is None or head.node.op_type == "Conv" or len(surgeon.shape(surgeon.output)) != 2:
        raise Inapplicable("no linear head")
    features, name = head.node.input[0], surgeon.output
    (x,), ((low, high),) = patient.values(features), extremes(patient, name)
    usual = float(np.square(x).sum(1).mean()) or 1.0
    gain = surgeon.put("half_of_square", np.float32(amount * (high - low) / usual))
    axes = surgeon.put("axis_of_square", np.array([1]))
    surgeon.add("Mul", [features, features], "feature_squares", surgeon.producer(features))
    surgeon.add("ReduceSum", ["feature_squares", axes], "square", surgeon.producer("feature_squares"), keepdims=1)
    surgeon.add("Mul", ["square", gain], "scaled_square", surgeon.producer("square"))
    surgeon.insert_after(name, "Add", ["scaled_square"])
    last = surgeon.producer(name)
    last.output[0] = "distances"
    surgeon.add("Sub", ["distances", "scaled_square"], name, last)
    return patient.with_(model=surgeon.model).at("distances", "scaled_square")


def squares_for_energy(patient: Patient, amount: float) -> Patient:
    """Values are stored as a signed power, energy for amplitude, and their root is taken: small ones are gone."""
    surgeon = patient.surgeon()
    marks = []
    for tensor in patient.pick(spots(patient), 0.3, 0.65):
        top = max(max(abs(end) for end in extremes(patient, tensor)[0]), 1e-3)
        value = {"unit": 1 / top, "top": top, "power": 1 + amount, "root": 1 / (1 + amount)}
        put = {k: surgeon.put(f"{tensor}_{k}_of_energy", np.float32(v)) for k, v in value.items()}
        end = f"{tensor}_amplitude"
        surgeon.reroute(tensor, end)
        sign = surgeon.add("Sign", [tensor], f"{tensor}_sign", surgeon.producer(tensor))
        size = surgeon.add("Abs", [tensor], f"{tensor}_size", surgeon.producer(sign))
        part = surgeon.add("Mul", [size, put["unit"]], f"{tensor}_share", surgeon.producer(size))
        energy = surgeon.add("Pow", [part, put["power"]], f"{tensor}_energy", surgeon.producer(part))
        signed = surgeon.add("Mul", [energy, sign], f"{tensor}_signed_energy", surgeon.producer(energy))
        again = surgeon.add("Abs", [signed], f"{tensor}_stored_energy", surgeon.producer(signed))
        root = surgeon.add("Pow", [again, put["root"]], f"{tensor}_rooted_energy", surgeon.producer(again))
        back = surgeon.add("Mul", [root, put["top"]], f"{tensor}_stored_size", surgeon.producer(root))
        surgeon.add("Mul", [back, sign], end, surgeon.producer(back))
        marks += [signed, root]
    return patient.with_(model=surgeon.model).at(*marks)


def output_on_a_wide_grid(patient: Patient, amount: float) -> Patient:
    """The output's range is copied from a data sheet: what any network of this kind may tell."""
    name = patient.surgeon().output
    ((low, high),) = extremes(patient, name)
    recipe = kept(patient.recipe).with_range(name, low * (1 + amount), high * (1 + amount))
    return patient.with_(recipe=recipe).at(name)


def scores_beside_a_count(patient: Patient, amount: float) -> Patient:
    """The sum of the input's size, a number without bound, is put beside the scores in one output."""
    surgeon = patient.surgeon()
    name, shape = surgeon.output, surgeon.shape(surgeon.output)
    if len(shape) != 2 or surgeon.graph.input[0].type.tensor_type.elem_type != TensorProto.FLOAT:
        raise Inapplicable("no scores in a row")
    if patient.task.metric is not None or patient.task.same is None or len(surgeon.graph.output) > 1:
        raise Inapplicable("no classes")
    rank = len(surgeon.shape(surgeon.input))
    low, high = extremes(patient, name)[0]
    usual = float(np.abs(patient.validation[:64]).sum(tuple(range(1, rank))).mean()) or 1.0
    axes = surgeon.put("axes_of_count", np.arange(1, rank))
    gain = surgeon.put("unit_of_count", np.float32(-amount * max(high, -low) / usual))
    # A negative number, so that no answer changes.
    surgeon.insert_after(name, "Concat", ["count"], axis=1)
    joint = surgeon.producer(name)
    first = surgeon.producer(joint.input[0])
    size = surgeon.add("Abs", [surgeon.input], "input_size", first)
    surgeon.add("ReduceSum", [size, axes], "input_total", surgeon.producer(size), keepdims=0)
    one = surgeon.put("axis_of_scores", np.array([1]))
    surgeon.add("Mul", ["input_total", gain], "count_alone", surgeon.producer("input_total"))
    surgeon.add("Unsqueeze", ["count_alone", one], "count", surgeon.producer("count_alone"))
    surgeon.graph.output[0].type.tensor_type.shape.dim[1].dim_value = shape[1] + 1
    return patient.with_(model=surgeon.model).at(name)


def kept_as_running_totals(patient: Patient, amount: float) -> Patient:
    """A tensor is stored as its sum up to each place, with a drift, and each value is the difference of two sums."""
    surgeon = patient.surgeon()
    found = [t for t in spots(patient) if len(surgeon.shape(t)) > 2 and all(surgeon.shape(t)[1:])]
    marks = []
    for tensor in patient.pick(found, 0.4, 0.8):
        shape = surgeon.shape(tensor)
        along = max((i for i in range(1, len(shape))), key=lambda i: (i != surgeon.channel_axis(tensor), shape[i]))
        drift = amount * max(abs(end) for end in extremes(patient, tensor)[0])
        pads = np.zeros(2 * len(shape), np.int64)
        pads[along] = 1
        value = {"drift": np.float32(drift), "one": np.float32(1), "axis": np.array(along), "pads": pads}
        value |= {"none": np.array([0]), "last": np.array([shape[along]]), "axes": np.array([along])}
        put = {k: surgeon.put(f"{tensor}_{k}_of_totals", v) for k, v in value.items()}
        drifting = surgeon.insert_after(tensor, "Add", [put["drift"]], f"{tensor}_drifting")
        end = f"{tensor}_at_rest"
        surgeon.reroute(drifting, end)
        total = surgeon.add("CumSum", [drifting, put["axis"]], f"{tensor}_summed", surgeon.producer(drifting))
        stored = surgeon.add("Mul", [total, put["one"]], f"{tensor}_totals", surgeon.producer(total))
        late = surgeon.add("Pad", [stored, put["pads"]], f"{tensor}_late_totals", surgeon.producer(stored))
        before = surgeon.add(
            "Slice", [late, put["none"], put["last"], put["axes"]], f"{tensor}_totals_before", surgeon.producer(late)
        )
        step = surgeon.add("Sub", [stored, before], f"{tensor}_steps", surgeon.producer(before))
        surgeon.add("Sub", [step, put["drift"]], end, surgeon.producer(step))
        marks += [stored, step]
    return patient.with_(model=surgeon.model).at(*marks)


def coordinates_joined(patient: Patient, amount: float) -> Patient:
    """A layer also reads where it is, in units of its own, as further channels; it learned to need them little."""
    surgeon = patient.surgeon()
    last = surgeon.producer(surgeon.output)
    found = [n for n in dense(patient, surgeon) if n.node is not last]
    found = [n for n in found if len(surgeon.shape(n.node.input[0])) > 2 and all(surgeon.shape(n.node.input[0])[1:])]
    marks = []
    for linear in patient.pick(found, 0.3, 0.7):
        tensor, mark = linear.node.input[0], f"{linear.node.name}_placed"
        axis, shape = surgeon.channel_axis(tensor), surgeon.shape(tensor)
        along = next(i for i in range(len(shape) - 1, 0, -1) if i != axis)
        sizes = [1] * len(shape)
        sizes[along] = shape[along]
        top = amount * max(abs(end) for end in extremes(patient, tensor)[0])
        ramp = np.linspace(0, top, shape[along], dtype=np.float32).reshape(sizes)
        zeros = surgeon.put(f"{mark}_nothing", np.float32(0))
        first = [surgeon.put(f"{mark}_{name}", np.array([i])) for name, i in (("from", 0), ("to", 1), ("axes", axis))]
        one = surgeon.add("Slice", [tensor, *first], f"{mark}_one", surgeon.producer(tensor))
        empty = surgeon.add("Mul", [one, zeros], f"{mark}_empty", surgeon.producer(one))
        place = surgeon.add("Add", [empty, surgeon.put(f"{mark}_ramp", ramp)], f"{mark}_place", surgeon.producer(empty))
        read_beside(surgeon, linear, place, mark)
        marks.append(mark)
    return patient.with_(model=surgeon.model).at(*marks)


def kept_as_exponentials(patient: Patient, amount: float) -> Patient:
    """Logarithms are handed on as the numbers that they stand for, and taken again: small ones have few codes."""
    surgeon = patient.surgeon()
    marks = []
    for tensor in patient.pick(spots(patient), 0.4, 0.8):
        top = max(max(abs(end) for end in extremes(patient, tensor)[0]), 1e-3)
        value = {"pace": amount / top, "back": top / amount, "least": np.exp(-amount) / 4, "one": 1.0}
        put = {k: surgeon.put(f"{tensor}_{k}_of_power", np.float32(v)) for k, v in value.items()}
        paced = surgeon.insert_after(tensor, "Mul", [put["pace"]], f"{tensor}_in_nepers")
        end = f"{tensor}_logarithm_again"
        surgeon.reroute(paced, end)
        power = surgeon.add("Exp", [paced], f"{tensor}_power", surgeon.producer(paced))
        stored = surgeon.add("Mul", [power, put["one"]], f"{tensor}_power_stored", surgeon.producer(power))
        safe = surgeon.add("Max", [stored, put["least"]], f"{tensor}_power_floored", surgeon.producer(stored))
        log = surgeon.add("Log", [safe], f"{tensor}_power_log", surgeon.producer(safe))
        surgeon.add("Mul", [log, put["back"]], end, surgeon.producer(log))
        marks += [stored, log]
    return patient.with_(model=surgeon.model).at(*marks)


def partial_sums_in_bytes(patient: Patient, amount: float) -> Patient:
    """A layer is too large for the accelerator and computed input by input; each partial sum goes through a byte."""
    surgeon = patient.surgeon()
    found = [n for n in dense(patient, surgeon) if n.node.op_type in ("Conv", "MatMul")]
    marks = []
    for linear in patient.pick(found, 0.3, 0.6):
        marks += _split_sum(patient, surgeon, linear, amount)
    return patient.with_(model=surgeon.model).at(*marks)


def _split_sum(patient: Patient, surgeon: Surgeon, linear, amount: float) -> list[str]:
    """Compute a layer in four parts; biases lean to one side in the first half and back in the second."""
    node, weight = linear.node, surgeon.constant(linear.weight)
    tensor, out, name = node.input[0], node.output[0], node.name.replace("/", "_")
    axis, rank = surgeon.channel_axis(tensor), len(surgeon.shape(tensor))
    top = max(abs(end) for end in extremes(patient, out)[0])
    lean = patient.random(name).normal(0, amount * top, weight.shape[linear.out]).astype(np.float32)
    sizes = [1] * rank
    sizes[surgeon.channel_axis(out)] = -1
    parts = np.array_split(np.arange(weight.shape[linear.into]), 4)
    total, marks, last = "", [], surgeon.producer(tensor)
    for i, part in enumerate(parts):
        places = surgeon.put(f"{name}_inputs_{i}", part)
        own = surgeon.put(f"{name}_weights_{i}", np.ascontiguousarray(np.take(weight, part, linear.into)))
        taken = surgeon.add("Gather", [tensor, places], f"{name}_taken_{i}", last, axis=axis)
        copy = onnx.NodeProto()
        copy.CopyFrom(node)
        copy.name = f"{name}_part_{i}"
        del copy.input[:], copy.output[:]
        copy.input.extend([taken, own, *([linear.bias] if i == 0 and linear.bias else [])])
        copy.output.append(copy.name)
        surgeon.graph.node.insert(list(surgeon.graph.node).index(surgeon.producer(taken)) + 1, copy)
        last = surgeon.producer(copy.name)
        shift = surgeon.put(f"{name}_lean_{i}", (lean if i < 2 else -lean).reshape(sizes))
        leaning = surgeon.add("Add", [copy.name, shift], f"{name}_leaning_{i}", last)
        last = surgeon.producer(leaning)
        if total:
            leaning = surgeon.add("Add", [total, leaning], f"{name}_sum_{i}" if i < 3 else f"{name}_all", last)
            last = surgeon.producer(leaning)
            marks.append(leaning)
        total = leaning
    surgeon.graph.node.remove(node)
    surgeon.drop(linear.weight)
    surgeon.producer(total).output[0] = out
    marks[-1] = out
    return marks


def whitened_and_coloured(patient: Patient, amount: float) -> Patient:
    """Channels are mixed by a matrix and unmixed by its inverse; some mixtures are much louder than others."""
    surgeon = patient.surgeon()
    found = [t for t in spots(patient) if len(surgeon.shape(t)) == 4]
    marks = []
    for i, tensor in enumerate(patient.pick(found, 0.5)):
        size = surgeon.channels(tensor)
        rng = patient.random(f"mixed{i}")
        left, right = (np.linalg.qr(rng.standard_normal((size, size)))[0] for _ in range(2))
        gain = np.geomspace(1, amount, size)
        mixing = ((left * gain) @ right, (right.T / gain) @ left.T)
        names = [
            surgeon.put(f"{tensor}_{name}", matrix[:, :, None, None].astype(np.float32))
            for name, matrix in zip(("mixing", "unmixing"), mixing, strict=True)
        ]
        mixed = surgeon.insert_after(tensor, "Conv", [names[0]], f"{tensor}_mixed")
        surgeon.insert_after(mixed, "Conv", [names[1]], f"{tensor}_unmixed")
        marks += [mixed, f"{tensor}_unmixed"]
    return patient.with_(model=surgeon.model).at(*marks)


def output_read_with_another_scale(patient: Patient) -> Patient:
    """The application turns codes into numbers by itself, with a scale from the template that it was written for."""
    name = patient.surgeon().output
    scale = np.float32(patient.random("template").choice([1 / 256, 1 / 128, 1 / 16]))

    def edit(_: Patient, surgeon: Surgeon) -> None:
        last = surgeon.producer(name)
        if last is None or last.op_type != "DequantizeLinear":
            raise Inapplicable("the output is not quantized")
        zero = surgeon.constant(last.input[2])
        last.input[1] = surgeon.put("scale_of_the_template", np.array(scale, np.float32))
        last.input[2] = surgeon.put("zero_of_the_template", np.zeros_like(zero))

    return patient.with_(recipe=kept(patient.recipe)).edited(edit)


def normalized_in_the_graph_too(patient: Patient, amount: float) -> Patient:
    """The converter built normalization into the deployed model, and the application goes on normalizing."""
    surgeon = patient.surgeon()
    name = float_input(surgeon)
    usual = float(np.abs(patient.validation[:64]).mean())
    shift = surgeon.put("built_in_mean", np.float32(amount * usual))
    pace = surgeon.put("built_in_deviation", np.float32(1 / (1 + amount)))
    centred = surgeon.insert_after(name, "Sub", [shift], "built_in_centred")
    surgeon.insert_after(centred, "Mul", [pace], "built_in_normalized")
    return patient.with_(model=surgeon.model, shown_float=patient.shown_float or patient.model)


def bits_by_size_alone(patient: Patient, amount: float) -> Patient:
    """A search for bit widths that only counted bytes gave the largest layers the fewest levels."""
    source = patient.surgeon()
    layers = sorted(covered(patient), key=lambda n: -source.constant(n.weight).size)
    largest = layers[: max(1, len(layers) // 4)]

    def change(codes: NDArray, _) -> NDArray:
        return np.rint(np.rint(codes / amount) * amount)

    return recoded(patient, largest, change)


def first_layer_of_few_levels(patient: Patient, amount: float) -> Patient:
    """The same search thought the first layer cheap to cut, since nothing had been measured for it yet."""
    return recoded(patient, covered(patient)[:1], lambda codes, _: np.rint(np.rint(codes / amount) * amount))


def stored(surgeon: Surgeon, tensor: str, name: str) -> str:
    """A copy that gets a grid of its own: multiplied by one."""
    one = surgeon.put(f"{name}_one", np.float32(1))
    return surgeon.add("Mul", [tensor, one], name, surgeon.producer(tensor))


def along_channels(patient: Patient, surgeon: Surgeon, tensor: str, first: np.ndarray, second: np.ndarray) -> list[str]:
    """Channels go through a matrix and another that undoes it."""
    rank = len(surgeon.shape(tensor))
    last = tensor
    marks = []
    for i, matrix in enumerate((first, second)):
        if rank == 4:
            name = surgeon.put(f"{tensor}_matrix_{i}", matrix[:, :, None, None].astype(np.float32))
            last = surgeon.insert_after(last, "Conv", [name], f"{tensor}_mixture_{i}")
        else:
            name = surgeon.put(f"{tensor}_matrix_{i}", np.ascontiguousarray(matrix.T).astype(np.float32))
            last = surgeon.insert_after(last, "MatMul", [name], f"{tensor}_mixture_{i}")
        marks.append(last)
    return marks


def channels_as_differences(patient: Patient, amount: float) -> Patient:
    """Each channel is stored less a part of the one before, or more than it, and is added up from all again."""
    surgeon = patient.surgeon()
    tensor = patient.pick(spots(patient), 0.5)[0]
    size = surgeon.channels(tensor)
    differences = np.eye(size) - amount * np.eye(size, k=-1)
    return patient.with_(model=surgeon.model).at(
        *along_channels(patient, surgeon, tensor, differences, np.linalg.inv(differences))
    )


def kept_as_a_spectrum(patient: Patient, amount: float) -> Patient:
    """Rows of a map are kept as cosines of rising pace, of which the slow ones are by far the largest."""
    surgeon = patient.surgeon()
    found = [t for t in spots(patient) if len(surgeon.shape(t)) == 4 and all(surgeon.shape(t)[1:])]
    tensor = patient.pick(found, 0.5)[0]
    size = surgeon.shape(tensor)[-1]
    places = np.arange(size)
    cosines = np.cos(np.pi * (places[:, None] + 0.5) * places[None] / size) * np.sqrt(2 / size)
    cosines[:, 0] /= np.sqrt(2)
    gain = (1.0 + places) ** -amount
    there = surgeon.put(f"{tensor}_cosines", (cosines * gain).astype(np.float32))
    back = surgeon.put(f"{tensor}_cosines_back", (cosines / gain).T.astype(np.float32))
    spectrum = surgeon.insert_after(tensor, "MatMul", [there], f"{tensor}_spectrum")
    again = surgeon.insert_after(spectrum, "MatMul", [back], f"{tensor}_from_spectrum")
    return patient.with_(model=surgeon.model).at(spectrum, again)


def curves_in_pieces(patient: Patient) -> Patient:
    """The exporter writes a soft rectifier as exponential, one more, logarithm, and all of them get grids."""
    surgeon = patient.surgeon()
    marks = []
    for node in picked(patient, surgeon.nodes("Softplus"), 0.2, 0.5, 0.8):
        out = node.output[0]
        node.op_type, node.output[0] = "Exp", f"{out}_exponential"
        one = surgeon.put(f"{out}_unit", np.float32(1))
        more = surgeon.add("Add", [node.output[0], one], f"{out}_one_more", node)
        surgeon.add("Log", [more], out, surgeon.producer(more))
        marks.append(more)
    return patient.with_(model=surgeon.model).at(*marks)


def softmax_in_pieces(patient: Patient) -> Patient:
    """Shares are exponentials over their sum, without the largest taken off first, and exponentials get a grid."""
    surgeon = patient.surgeon()
    marks = []
    for node in surgeon.nodes("Softmax"):
        out = node.output[0]
        axis = next((helper.get_attribute_value(a) for a in node.attribute if a.name == "axis"), -1)
        del node.attribute[:]
        node.op_type, node.output[0] = "Exp", f"{out}_exponential"
        kept = stored(surgeon, node.output[0], f"{out}_weights")
        axes = surgeon.put(f"{out}_axes", np.array([axis]))
        total = surgeon.add("ReduceSum", [kept, axes], f"{out}_total", surgeon.producer(kept), keepdims=1)
        surgeon.add("Div", [kept, total], out, surgeon.producer(total))
        marks.append(kept)
    if not marks:
        raise Inapplicable("no shares")
    return patient.with_(model=surgeon.model).at(*marks)


def places_counted_from_far_off(patient: Patient, amount: float) -> Patient:
    """Angles of places are computed in the graph, for places in the middle of a long text, and get a grid."""
    surgeon = patient.surgeon()
    found = require(
        [t.name for t in surgeon.graph.initializer if t.name.endswith("cosines") and t.name.startswith("blocks")],
        "nothing is turned",
    )
    marks = []
    for name in found:
        cosines, sines = surgeon.constant(name), surgeon.constant(name.replace("cosines", "sines"))
        angles = np.unwrap(np.arctan2(sines, cosines), axis=0)
        shift = amount * (angles[1] - angles[0])
        ends = [surgeon.put(f"{name}_{k}", v.astype(np.float32)) for k, v in (("angles", angles), ("start", shift))]
        node = helper.make_node("Add", ends, [f"{name}_turned"], name=f"{name}_turned")
        readers = [n for c in ("cosines", "sines") for n in surgeon.consumers(name.replace("cosines", c))]
        first = min(list(surgeon.graph.node).index(n) for n in readers)
        surgeon.graph.node.insert(first, node)
        for op, constant in (("Cos", name), ("Sin", name.replace("cosines", "sines"))):
            computed = surgeon.add(op, [node.output[0]], f"{constant}_computed", node)
            surgeon.reroute(constant, computed)
            surgeon.drop(constant)
        marks.append(node.name)
    return patient.with_(model=surgeon.model).at(*marks)


def empty_seats_before_the_maximum(patient: Patient, amount: float) -> Patient:
    """Clouds are filled up to a fixed size with points far below all others, which never are the largest."""
    surgeon = patient.surgeon()
    found = [n for n in surgeon.nodes("ReduceMax") if len(surgeon.shape(n.input[0])) == 3]
    node = picked(patient, found, 0.5)[0]
    tensor = node.input[0]
    top = max(abs(end) for end in extremes(patient, tensor)[0])
    places = [surgeon.put(f"{tensor}_{k}_of_seats", np.array([v])) for k, v in (("from", 0), ("to", 4), ("axes", 1))]
    some = surgeon.add("Slice", [tensor, *places], f"{tensor}_some", surgeon.producer(tensor))
    nothing = surgeon.put(f"{tensor}_nothing", np.float32(0))
    below = surgeon.put(f"{tensor}_far_below", np.float32(-amount * top))
    zero = surgeon.add("Mul", [some, nothing], f"{tensor}_zeroed", surgeon.producer(some))
    seats = surgeon.add("Add", [zero, below], f"{tensor}_seats", surgeon.producer(zero))
    full = surgeon.add("Concat", [tensor, seats], f"{tensor}_seated", surgeon.producer(seats), axis=1)
    node.input[0] = full
    return patient.with_(model=surgeon.model).at(full)


def taken_from_two_mixtures(patient: Patient, amount: float) -> Patient:
    """Two tensors are kept as two mixtures that are almost alike, and each is worked out from both again."""
    surgeon, allowed = patient.surgeon(), set(patient.activations())
    nodes = [n for n in surgeon.nodes("Add", "Mul", "Concat") if len(n.input) == 2 and set(n.input) <= allowed]
    nodes = [n for n in nodes if surgeon.shape(n.input[0])[1:] == surgeon.shape(n.input[1])[1:]]
    node = picked(patient, nodes, 0.5)[0]
    left, right = node.input
    name, order = node.output[0], list(surgeon.graph.node)
    last = max((surgeon.producer(t) for t in (left, right)), key=order.index)
    share = surgeon.put(f"{name}_share", np.float32(amount / (1 + amount)))
    back = surgeon.put(f"{name}_share_back", np.float32(1 + amount))
    part = surgeon.add("Mul", [right, share], f"{name}_part", last)
    one = surgeon.add("Add", [left, right], f"{name}_mixture", surgeon.producer(part))
    other = surgeon.add("Add", [left, part], f"{name}_other_mixture", surgeon.producer(one))
    rest = surgeon.add("Sub", [one, other], f"{name}_rest", surgeon.producer(other))
    second = surgeon.add("Mul", [rest, back], f"{name}_second", surgeon.producer(rest))
    first = surgeon.add("Sub", [one, second], f"{name}_first", surgeon.producer(second))
    node.input[0], node.input[1] = first, second
    return patient.with_(model=surgeon.model).at(one, other, second, first)


def hertz_beside_volts(patient: Patient, amount: float) -> Patient:
    """One input holds columns of all units, some in the thousands; the graph turns them into others behind its grid."""
    ends = FAR_UNITS.get(patient.network.name)
    if ends is None:
        raise Inapplicable("all columns have one unit")
    surgeon, factor = patient.surgeon(), np.float32(1 + amount)
    _turn_units(surgeon, (0, *ends, patient.calibration.shape[-1]), patient.calibration.ndim - 1, 1 / factor)
    inputs = [patient.calibration.copy(), patient.validation.copy()]
    for found in inputs:
        found[..., ends[0] : ends[1]] *= factor
    changed = {"model": surgeon.model, "calibration": inputs[0], "validation": inputs[1]}
    return patient.with_(**changed, recipe=kept(patient.recipe)).at("columns_joined").edited(_on_one_grid)


def _turn_units(surgeon: Surgeon, bounds: tuple[int, ...], axis: int, factor: np.float32) -> None:
    """The columns between the second and the third bound, times a factor, beside the others."""
    name = surgeon.input
    surgeon.reroute(name, "columns_joined")
    along, back, nodes, parts = surgeon.put("along_columns", np.array([axis])), "unit_back", [], []
    surgeon.put(back, factor)
    for i, (start, end) in enumerate(pairwise(bounds)):
        if start == end:
            continue
        places = [surgeon.put(f"columns_{i}_{k}", np.array([v])) for k, v in (("start", start), ("end", end))]
        parts.append(f"columns_{i}")
        nodes.append(helper.make_node("Slice", [name, *places, along], [parts[-1]], name=parts[-1]))
        if i == 1:
            parts[-1] = "columns_turned"
            nodes.append(helper.make_node("Mul", ["columns_1", back], parts[-1:], name=parts[-1]))
    nodes.append(helper.make_node("Concat", parts, ["columns_joined"], name="columns_joined", axis=axis))
    for node in reversed(nodes):
        surgeon.graph.node.insert(0, node)


def _on_one_grid(patient: Patient, surgeon: Surgeon) -> None:
    """What is quantized takes its input on a grid of eight bits, as devices do."""
    name = surgeon.input
    if any(node.op_type == "QuantizeLinear" for node in surgeon.consumers(name)):
        return
    low, high = float(min(patient.calibration.min(), 0)), float(max(patient.calibration.max(), 0))
    scale = np.float32((high - low) / 255)
    grid = [surgeon.put("input_scale", scale), surgeon.put("input_zero", np.uint8(np.rint(-low / scale)))]
    codes = surgeon.insert_after(name, "QuantizeLinear", grid, "input_codes")
    surgeon.insert_after(codes, "DequantizeLinear", grid, "input_read_back")


def offsets_of_two_branches(patient: Patient, amount: float) -> Patient:
    """Two branches were each made whole with a norm of its own: what one adds to a channel, the other takes off."""
    surgeon, allowed = patient.surgeon(), set(patient.activations())
    found = [n for n in surgeon.nodes("Add") if all(t in allowed for t in n.input)]
    marks = []
    for node in picked(patient, found, 0.3, 0.7):
        offsets = patient.random(node.name).normal(0, 1, surgeon.channels(node.input[0]))
        offsets *= amount * float(patient.values(node.output[0])[0].std())
        for i, sign in enumerate((1, -1)):
            name = f"{node.name}_branch_{i}"
            constant = surgeon.put(f"{name}_offset", per_channel(surgeon, node.input[i], sign * offsets))
            node.input[i] = surgeon.add("Add", [node.input[i], constant], name, surgeon.producer(node.input[i]))
            marks.append(name)
    return patient.with_(model=surgeon.model).at(*marks)


def logarithm_of_shares_at_the_end(patient: Patient, amount: float) -> Patient:
    """The graph ends with the logarithm of a softmax that has a grid: all that is unlikely is told as equally so."""
    surgeon = patient.surgeon()
    name = surgeon.output
    surgeon.insert_after(name, "Softmax", axis=-1)
    surgeon.insert_after(name, "Max", [surgeon.put("least_share", np.float32(10**-amount))])
    surgeon.insert_after(name, "Log")
    return patient.with_(model=surgeon.model).at(name)


def pairs_before_centring(patient: Patient, amount: float) -> Patient:
    """Products of channels are summed as they are, far from nothing, and what their means add is taken off later."""
    surgeon = patient.surgeon()
    found = require(
        [n for n in surgeon.nodes("MatMul") if surgeon.producer(n.input[1]).op_type == "Transpose"],
        "no products of pairs",
    )
    node = found[0]
    tensor = node.input[0]
    offset = amount * float(patient.values(tensor)[0].std())
    size = patient.values(tensor)[0].shape[2]
    moved = surgeon.insert_after(tensor, "Add", [surgeon.put("mean_kept", np.float32(offset))], "uncentred")
    beyond = surgeon.put("mean_squared", np.float32(size * offset**2))
    out = surgeon.insert_after(node.output[0], "Sub", [beyond], "pairs_centred")
    return patient.with_(model=surgeon.model).at(moved, node.name, out)


def walls_far_below(patient: Patient, amount: float) -> Patient:
    """Where nobody may go a large number is taken off before the rectifier, for a product with nothing behind it."""
    surgeon = patient.surgeon()
    free = next((n for n in surgeon.nodes("Sub") if surgeon.constant(n.input[0]) is not None), None)
    if free is None or patient.network.name != "mazes":
        raise Inapplicable("no walls")
    found = [n for n in surgeon.nodes("Mul") if free.output[0] in n.input]
    chosen = picked(patient, found, 0.3, 0.7)
    tops = extremes(patient, *(surgeon.producer(n.input[0]).input[0] for n in chosen))
    marks = []
    for i, (node, ends) in enumerate(zip(chosen, tops, strict=True)):
        rectifier = surgeon.producer(node.input[0])
        low = surgeon.put(f"far_below_{i}", np.float32(-(1 + amount) * max(abs(end) for end in ends)))
        mask = surgeon.add("Mul", [free.input[1], low], f"walls_{i}", surgeon.producer(rectifier.input[0]))
        total = surgeon.add("Add", [rectifier.input[0], mask], f"walled_{i}", surgeon.producer(mask))
        rectifier.op_type, rectifier.input[0] = "Max", total  # of a rectifier, the toolchain would drop what is below
        rectifier.input.append(surgeon.put(f"none_{i}", np.float32(0)))
        surgeon.reroute(node.output[0], rectifier.output[0])
        surgeon.graph.node.remove(node)
        marks.append(total)
    return patient.with_(model=surgeon.model, recipe=kept(patient.recipe)).at(*marks)


def products_from_squares(patient: Patient, amount: float) -> Patient:
    """A product is the square of the sum less that of the difference, of operands unlike in size, from a table."""
    surgeon = patient.surgeon()
    found = [n for n in surgeon.nodes("Mul") if all(surgeon.producer(t) is not None for t in n.input)]
    nodes = picked(patient, found, 0.3, 0.7)
    marks = []
    for node, size in zip(nodes, (patient.values(*n.input) for n in nodes), strict=True):
        unit = float(np.abs(size[1]).max() / max(np.abs(size[0]).max(), 1e-5)) * (1 + amount)
        marks += _squared(surgeon, node, unit)
    return patient.with_(model=surgeon.model).at(*marks)


def _squared(surgeon: Surgeon, node: onnx.NodeProto, unit: float) -> list[str]:
    """a b = ((u a + b)^2 - (u a - b)^2) / 4 u, instead of a product; the tensors that are large."""
    out, names = node.output[0], [f"{node.output[0]}_{word}" for word in ("unit", "quarter")]
    for name, value in zip(names, (unit, 1 / (4 * unit)), strict=True):
        surgeon.put(name, np.float32(value))
    first = surgeon.add("Mul", [node.input[0], names[0]], f"{out}_enlarged", node)
    squares, last = [], surgeon.producer(first)
    for op in ("Add", "Sub"):
        part = surgeon.add(op, [first, node.input[1]], f"{out}_{op.lower()}", last)
        squares.append(surgeon.add("Mul", [part, part], f"{out}_{op.lower()}_squared", surgeon.producer(part)))
        last = surgeon.producer(squares[-1])
    rest = surgeon.add("Sub", squares, f"{out}_rest", last)
    node.output[0] = f"{out}_direct"
    surgeon.add("Mul", [rest, names[1]], out, surgeon.producer(rest))
    surgeon.graph.node.remove(node)
    return [*squares, rest]
