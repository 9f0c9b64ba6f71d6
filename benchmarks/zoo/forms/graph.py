"""Faults of the graph: what is joined, added, inserted or taken apart; of heads and of single settings."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import onnx
from onnx import TensorProto, helper

from ..cuts import (
    channel_peaks,
    covered,
    dense,
    deployed,
    extremes,
    float_input,
    kept,
    maps,
    mix_and_back,
    on_multiples,
    per_channel,
    picked,
    positive_spots,
    recoded,
    requantize,
    spots,
    top_of,
    weights_of,
    with_opset,
    with_outputs,
)
from ..patient import QUANTIZED_BY_DEFAULT, Patient
from ..quantizing import run
from ..signals import WAVE
from ..surgery import Inapplicable, Linear, Surgeon, attribute, require
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
    return patient.cut(surgeon, *require(done, "no Concat of branches"))


def wide_addend(patient: Patient) -> Patient:
    """The features of the head are added to something 400 times as wide that the head does not see."""
    surgeon = patient.surgeon()
    head = surgeon.linear(surgeon.producer(surgeon.output))
    if head is None or head.node.op_type != "Gemm" or head.into != 1:
        raise Inapplicable("no linear head")
    features, weight = head.node.input[0], surgeon.constant(head.weight)
    values = patient.values(features)[0]
    unseen = np.linalg.svd(weight.astype(np.float64))[2][len(weight) :]
    if len(unseen) < 2:
        raise Inapplicable("the head sees everything")
    if surgeon.producer(features) is None:
        raise Inapplicable("the head reads the input")
    rng = patient.random("addend")
    direction = rng.standard_normal(len(unseen)) @ unseen
    source = rng.standard_normal(values.shape[1])
    strength = 400 * patient.strength * np.ptp(values) / max(np.ptp(np.outer(values @ source, direction)), 1e-9)
    text = "addend = MatMul(x, addend_weight); features_and_addend = Add(x, addend)"
    given = {"x": features, "addend_weight": np.outer(source, direction) * strength}
    head.node.input[0] = surgeon.wire(features, text, "features_and_addend", name="", **given)["features_and_addend"]
    return patient.cut(surgeon)


def cancelled_offset(patient: Patient) -> Patient:
    """A large offset is added to a layer's output and taken off again: what is left is mostly rounding."""
    surgeon = patient.surgeon()
    linears = [n for n in surgeon.linears() if n.bias and n.node.output[0] != surgeon.output and not n.depthwise]
    chosen = patient.pick(linears, 0.3, 0.8)
    ends = extremes(patient, *(linear.node.output[0] for linear in chosen))
    for linear, (tensor, (low, high)) in zip(chosen, ends.items(), strict=True):
        offset = np.float32(round(60 * patient.strength * (high - low), 2))
        surgeon.put(surgeon.own(linear, 2), (surgeon.constant(linear.bias) + offset).astype(np.float32))
        surgeon.splice(tensor, "sub = Sub(x, offset)", offset=offset)
    return patient.cut(surgeon, *chosen)


def all_operators(patient: Patient) -> Patient:
    """Everything is quantized that the toolchain can quantize, where only products bear it."""
    if not patient.network.op_types:
        raise Inapplicable("bears it")
    kinds = tuple(sorted({node.op_type for node in patient.model.graph.node} & QUANTIZED_BY_DEFAULT))
    return patient.with_(recipe=replace(patient.recipe, op_types=kinds))


def two_bit_last_layer(patient: Patient) -> Patient:
    return in_two_bits(patient, weights_of(patient)[-1:], one_scale=True)


def two_bit_first_layer(patient: Patient) -> Patient:
    return in_two_bits(patient, weights_of(patient)[:1])


def in_two_bits(patient: Patient, linears: list[Linear], *, one_scale: bool = False) -> Patient:
    """Some layers with weights of two bits."""
    names = [linear.weight for linear in linears]
    ill = patient.at(*(n.node.name for n in patient.surgeon().linears() if n.weight in names))
    return ill.edited(lambda p, q: requantize(p, q, names, TensorProto.INT2, one_scale=one_scale))


def two_bit_layers(patient: Patient) -> Patient:
    """Early layers with weights of two bits."""
    linears = patient.surgeon().linears()
    if len(linears) < 5:
        raise Inapplicable("too few layers")
    return in_two_bits(patient, linears[1 : 1 + max(2, len(linears) // 4)])


def _quantized_output(patient: Patient) -> str:
    surgeon = patient.surgeon()
    if surgeon.producer(surgeon.output).op_type not in ("Gemm", "Conv", "MatMul"):
        raise Inapplicable("the output is not quantized")
    return surgeon.output


def coarse_output(patient: Patient) -> Patient:
    """The logits have to do with a handful of codes."""
    ((name, (low, high)),) = extremes(patient, _quantized_output(patient)).items()
    factor = 120 * patient.strength
    return patient.with_(recipe=patient.recipe.with_range(name, low * factor, high * factor)).at(name)


def few_output_codes(patient: Patient) -> Patient:
    """The logits in four bits, over a range five times as wide as they need."""

    def edit(_: Patient, q: Surgeon) -> None:
        last = _dequantizer(q)
        scale, zero = q.constant(last.input[1]), q.constant(last.input[2]).astype(np.int64)
        coarse = q.put("coarse_scale", (scale * 90 * patient.strength).astype(np.float32))
        code = int(np.clip(round((zero + 128) / 17), 0, 15))
        q.graph.initializer.append(helper.make_tensor("coarse_zero", TensorProto.UINT4, [], [code]))
        for node in (q.producer(last.input[0]), last):
            node.input[1], node.input[2] = coarse, "coarse_zero"
        with_opset(q.model, 21)

    return patient.at(_quantized_output(patient)).edited(edit)


def _dequantizer(surgeon: Surgeon) -> onnx.NodeProto:
    """The operator that makes the output of its codes."""
    last = surgeon.producer(surgeon.output)
    if last is None or last.op_type != "DequantizeLinear":
        raise Inapplicable("the output is not quantized")
    return last


def codes_as_output(patient: Patient) -> Patient:
    """The application reads the codes of the output as if they were values."""

    def edit(_: Patient, surgeon: Surgeon) -> None:
        last = _dequantizer(surgeon)
        codes = last.input[0]
        surgeon.graph.node.remove(last)
        surgeon.add("Cast", [codes], surgeon.output, to=TensorProto.FLOAT)

    return patient.edited(edit)


def scale_forgotten(patient: Patient) -> Patient:
    """The application takes the zero point off the codes of the output and forgets the scale."""

    def edit(_: Patient, surgeon: Surgeon) -> None:
        last, name = _dequantizer(surgeon), surgeon.output
        codes, zero = last.input[0], surgeon.constant(last.input[2]).astype(np.float32).reshape(())
        surgeon.graph.node.remove(last)
        surgeon.add("Cast", [codes], f"{name}_codes", to=TensorProto.FLOAT)
        surgeon.add("Sub", [f"{name}_codes", surgeon.put(f"{name}_middle", zero)], name)

    return patient.edited(edit)


def output_read_with_another_scale(patient: Patient) -> Patient:
    """The application turns codes into numbers by itself, with a scale from the template that it was written for."""
    scale = np.float32(patient.random("template").choice([1 / 256, 1 / 128, 1 / 16]))

    def edit(_: Patient, surgeon: Surgeon) -> None:
        last = _dequantizer(surgeon)
        zero = surgeon.constant(last.input[2])
        last.input[1] = surgeon.put("scale_of_the_template", scale)
        last.input[2] = surgeon.put("zero_of_the_template", np.zeros_like(zero))

    return patient.with_(recipe=kept(patient.recipe)).edited(edit)


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
    return patient.without(*nodes[: nodes.index(layers[len(layers) // 2]) + 1])


def nan_in_quantized(patient: Patient) -> Patient:
    """A scale that is not a number."""
    tensor = patient.pick(patient.activations(), 0.4)[0]

    def edit(_: Patient, surgeon: Surgeon) -> None:
        if surgeon.constant(f"{tensor}_scale") is None:
            raise Inapplicable(f"{tensor} has no scale")
        surgeon.put(f"{tensor}_scale", np.nan)

    return patient.at(tensor).edited(edit)


def overflow_in_both(patient: Patient) -> Patient:
    """A logarithm of something that can be negative: both models yield NaN for some samples."""
    surgeon = patient.surgeon()
    output = surgeon.output
    if surgeon.linear(surgeon.producer(output)) is None:
        raise Inapplicable("no linear head")
    values = run(patient.network, patient.model, patient.validation)[0]
    surgeon.insert_after(output, "Add", [surgeon.put("level", np.float32(-np.quantile(values.min(1), 0.3)))])
    surgeon.insert_after(output, "Log")
    return patient.cut(surgeon, output)


def other_float_model(patient: Patient) -> Patient:
    """The float model at hand is an older checkpoint than the one that was quantized."""
    surgeon = patient.surgeon()
    rng = patient.random("older")
    for linear in surgeon.linears():
        weight = surgeon.constant(linear.weight)
        noise = rng.standard_normal(weight.shape) * weight.std() * 0.15 * patient.strength
        surgeon.put(linear.weight, (weight + noise).astype(np.float32))
    reference = run(patient.network, patient.model, patient.validation)
    return with_outputs(patient, "reference_outputs", reference).with_(shown_float=surgeon.model)


def one_older_layer(patient: Patient) -> Patient:
    """One layer of the float model at hand comes from another checkpoint than the quantized one."""
    surgeon = patient.surgeon()
    names = {linear.node.name for linear in covered(patient)}
    linear = patient.pick([linear for linear in surgeon.linears() if linear.node.name in names], 0.5)[0]
    weight = surgeon.constant(linear.weight)
    noise = patient.random("other").standard_normal(weight.shape) * weight.std() * 0.8 * patient.strength
    surgeon.put(surgeon.own(linear, 1), (weight + noise).astype(np.float32))
    return patient.with_(shown_float=surgeon.model).at(linear)


def device_differs(patient: Patient) -> Patient:
    """The board computes something else than the model on the desk."""
    rng = patient.random("device")
    outputs = run(patient.network, patient.quantized(), patient.validation)
    wrong = [x + rng.standard_normal(x.shape).astype(np.float32) * x.std() * 0.5 for x in outputs]
    return with_outputs(patient, "device_outputs", wrong)


# --- heads of classifiers --------------------------------------------------------------------------------------------


class _Head:
    """The linear head of a classifier, whose output becomes ``scores``, and what is put beside them."""

    def __init__(self, patient: Patient) -> None:
        self.patient, self.surgeon = patient, patient.surgeon()
        surgeon = self.surgeon
        head = surgeon.linear(surgeon.producer(surgeon.output))
        if head is None or head.node.op_type != "Gemm":
            raise Inapplicable("no linear head")
        if surgeon.outputs(head) != 10:
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

    def boxes(self) -> str:
        """Four coordinates of 0 … 640."""
        return self.linear("boxes", 4, 40, 600)

    def joined(self, *parts: str, columns: int) -> Patient:
        """These before the scores, in one output."""
        surgeon = self.surgeon
        surgeon.producer(self.output).output[0] = "scores"
        surgeon.add("Concat", [*parts, "scores"], self.output, axis=1)
        surgeon.graph.output[0].type.tensor_type.shape.dim[1].dim_value = columns + 10
        return self.patient.cut(surgeon, self.output, task=TAIL)

    def with_boxes_apart(self) -> Patient:
        """Boxes in an output of their own, behind the scores."""
        value = helper.make_tensor_value_info(self.boxes(), TensorProto.FLOAT, ["batch", 4])
        self.surgeon.graph.output.append(value)
        return self.patient.with_(model=self.surgeon.model)


def joints_in_float(patient: Patient) -> Patient:
    """The joining left in float, so that all parts keep grids of their own."""
    return patient.without(*(node.name for node in patient.surgeon().nodes("Concat") if "scores" in node.input))


def beside_scores(patient: Patient, name: str, columns: int, low: float, high: float) -> Patient:
    """Columns between two values, such as coordinates, before the scores of 0 … 1, in one output."""
    head = _Head(patient)
    return head.joined(head.linear(name, columns, low, high), columns=columns)


def boxes_objectness_classes(patient: Patient) -> Patient:
    """Boxes, an objectness and the scores of the classes, in one output."""
    head = _Head(patient)
    boxes = head.boxes()
    there = head.surgeon.add("Sigmoid", [head.linear("objectness_raw", 1, -2, 2)], "objectness")
    return head.joined(boxes, there, columns=5)


def scores_in_pixels(patient: Patient) -> Patient:
    """Boxes and scores in two outputs, of which the scores were given the range of the boxes."""
    head = _Head(patient)
    ill = head.with_boxes_apart()
    return ill.with_(recipe=ill.recipe.with_range(head.output, 0, PICTURE * patient.strength)).at(head.output)


def boxes_in_another_output(patient: Patient) -> Patient:
    """Scores and boxes in two outputs, each with a grid of its own."""
    return _Head(patient).with_boxes_apart()


def joint_in_float(patient: Patient) -> Patient:
    """Boxes in pixels before the scores, joined in float."""
    return joints_in_float(beside_scores(patient, "boxes", 4, 40, 600))


def logarithm_of_shares_at_the_end(patient: Patient, amount: float) -> Patient:
    """The graph ends with the logarithm of a softmax that has a grid: all that is unlikely is told as equally so."""
    surgeon = patient.surgeon()
    name = surgeon.output
    surgeon.insert_after(name, "Softmax", axis=-1)
    surgeon.insert_after(name, "Max", [surgeon.put("least_share", 10**-amount)])
    surgeon.insert_after(name, "Log")
    return patient.cut(surgeon, name)


# --- what is put behind tensors, and keeps the function --------------------------------------------------------------


def inverse_of_inverse(patient: Patient) -> Patient:
    """One is divided by something whose large values leave the small ones a few codes, and zero among them."""
    surgeon = patient.surgeon()
    chosen = patient.pick(positive_spots(patient), 0.4, 0.9)
    one, two = surgeon.put("one_half", 0.5), surgeon.put("two", 0.5)
    text = """
        kept = Max(x, least)
        inverse = Reciprocal(kept)
        halved = Mul(inverse, one)
        again = Reciprocal(halved)
        doubled = Mul(again, two)
    """
    for tensor in chosen:
        surgeon.splice(tensor, text, "again", least=1e-5, one=one, two=two)
    return patient.cut(surgeon)


def packed_sum(patient: Patient) -> Patient:
    """Two tensors of different loudness are packed by adding them, each padded where the other has its channels."""
    surgeon = patient.surgeon()
    text = """
        loud = Mul(x, loudness)
        first = Pad(x, pads_0)
        second = Pad(loud, pads_1)
        packed = Add(first, second)
        alone = Slice(packed, from_, to, axis)
    """
    for tensor in patient.pick(spots(patient), 0.4, 0.8):
        axis, channels = surgeon.channel_axis(tensor), surgeon.channels(tensor)
        pads = np.zeros((2, 2, len(surgeon.shape(tensor))), np.int64)
        pads[0, 1, axis] = pads[1, 0, axis] = channels
        given = {"loudness": 60 * patient.strength, "pads_0": pads[0].reshape(-1), "pads_1": pads[1].reshape(-1)}
        surgeon.splice(tensor, text, "packed", **given, from_=[0], to=[channels], axis=[axis])
    return patient.cut(surgeon)


def riding_constants(patient: Patient) -> Patient:
    """A constant for each channel rides on a tensor and is taken off one operator later: an embedding of positions."""
    surgeon = patient.surgeon()
    for i, tensor in enumerate(patient.pick(spots(patient), 0.2, 0.6)):
        peak = channel_peaks(patient, tensor).max()
        drawn = patient.random(f"ride{i}").normal(0, 30 * patient.strength * peak, surgeon.channels(tensor))
        text = "embedded = Add(x, embedding); taken_off = Sub(embedded, embedding)"
        surgeon.splice(tensor, text, "embedded taken_off", embedding=per_channel(surgeon, tensor, drawn))
    return patient.cut(surgeon)


def joined_with_wide_copy(patient: Patient) -> Patient:
    """A tensor is joined with something much wider for a while, and cut out again."""
    surgeon = patient.surgeon()
    for tensor in patient.pick(spots(patient), 0.5, 0.75):
        axis = surgeon.channel_axis(tensor)
        text = f"wide = Mul(x, width); joint = Concat(x, wide, axis={axis}); cut = Slice(joint, from_, to, axis)"
        given = {"width": 100 * patient.strength, "from_": [0], "to": [surgeon.channels(tensor)], "axis": [axis]}
        surgeon.splice(tensor, text, "joint", **given)
    return patient.cut(surgeon)


def _ramp(shape: list[int], axis: int, last: float) -> np.ndarray:
    """Even steps from zero along the last axis that holds no channels."""
    along = next((i for i in range(len(shape) - 1, 0, -1) if i != axis), None)
    size = shape[along] if along is not None and shape[along] else 1
    ramp = np.linspace(0, last, size).reshape([size if i == along else 1 for i in range(len(shape))])
    return ramp.astype(np.float32)


def coordinates_joined(patient: Patient, amount: float) -> Patient:
    """A layer also reads where it is, in units of its own, as further channels; it learned to need them little."""
    surgeon = patient.surgeon()
    last = surgeon.producer(surgeon.output)
    shapes = [(n, surgeon.shape(n.node.input[0])) for n in dense(patient, surgeon) if n.node is not last]
    text = "one = Slice(x, from_, to, axes); empty = Mul(one, nothing); place = Add(empty, ramp)"
    for linear in patient.pick([n for n, shape in shapes if len(shape) > 2 and all(shape[1:])], 0.3, 0.7):
        tensor, mark = linear.node.input[0], f"{linear.node.name}_placed"
        axis, top = surgeon.channel_axis(tensor), amount * top_of(patient, tensor)
        given = {"nothing": 0.0, "from_": [0], "to": [1], "axes": [axis]}
        ramp = _ramp(surgeon.shape(tensor), axis, top)
        place = surgeon.wire(tensor, text, name=mark, x=tensor, **given, ramp=ramp)["place"]
        surgeon.add("Concat", [tensor, place], mark, surgeon.producer(place), axis=axis)
        linear.node.input[0] = mark
        surgeon.marks.append(mark)
        weight = surgeon.constant(linear.weight)
        unread = np.zeros_like(np.take(weight, [0], linear.into))
        surgeon.put(surgeon.own(linear, 1), np.concatenate([weight, unread], linear.into))
    return patient.cut(surgeon)


def bound_far_above(patient: Patient, amount: float) -> Patient:
    """Fusing a bound with the operator before it gave the grid the ends of the bound, which no value comes near."""
    surgeon, ranges = patient.surgeon(), {}
    chosen = patient.pick(positive_spots(patient), 0.25, 0.6)
    for tensor in chosen:
        high = max(extremes(patient, tensor)[tensor][1], 1e-5) * (1 + amount)
        low, top = (surgeon.put(f"{tensor}_{i}_bound", v) for i, v in enumerate((0.0, high)))
        surgeon.splice(tensor, "bounded = Clip(x, low, top)", "bounded", low=low, top=top)
        ranges |= {f"{tensor}_bounded": (0, high), tensor: (0, high)}
    return patient.with_(model=surgeon.model, recipe=kept(patient.recipe).with_ranges(ranges)).at(
        *chosen, *surgeon.marks
    )


def kept_as_running_totals(patient: Patient, amount: float) -> Patient:
    """A tensor is stored as its sum up to each place, with a drift, and each value is the difference of two sums."""
    surgeon = patient.surgeon()
    text = """
        drifting = Add(x, drift_of_totals)
        summed = CumSum(drifting, axis_of_totals)
        totals = Mul(summed, one_of_totals)
        late_totals = Pad(totals, pads_of_totals)
        totals_before = Slice(late_totals, none_of_totals, last_of_totals, axes_of_totals)
        steps = Sub(totals, totals_before)
        at_rest = Sub(steps, drift_of_totals)
    """
    for tensor in patient.pick(maps(patient, None), 0.4, 0.8):
        shape = surgeon.shape(tensor)
        along = max(range(1, len(shape)), key=lambda i: (i != surgeon.channel_axis(tensor), shape[i]))
        pads = np.zeros(2 * len(shape), np.int64)
        pads[along] = 1
        given = {"drift": amount * top_of(patient, tensor), "one": 1.0, "axis": np.array(along), "pads": pads}
        given |= {"none": [0], "last": [shape[along]], "axes": [along]}
        surgeon.splice(tensor, text, "totals steps", **{f"{key}_of_totals": value for key, value in given.items()})
    return patient.cut(surgeon)


def kept_as_exponentials(patient: Patient, amount: float) -> Patient:
    """Logarithms are handed on as the numbers that they stand for, and taken again: small ones have few codes."""
    surgeon = patient.surgeon()
    text = """
        in_nepers = Mul(x, pace_of_power)
        power = Exp(in_nepers)
        power_stored = Mul(power, one_of_power)
        power_floored = Max(power_stored, least_of_power)
        power_log = Log(power_floored)
        logarithm_again = Mul(power_log, back_of_power)
    """
    for tensor in patient.pick(spots(patient), 0.4, 0.8):
        top = max(top_of(patient, tensor), 1e-3)
        given = {"pace_of_power": amount / top, "back_of_power": top / amount}
        given |= {"least_of_power": np.exp(-amount) / 4, "one_of_power": 1.0}
        surgeon.splice(tensor, text, "power_stored power_log", **given)
    return patient.cut(surgeon)


def partial_sums_in_bytes(patient: Patient, amount: float) -> Patient:
    """A layer is too large for the accelerator and computed input by input; each partial sum goes through a byte."""
    surgeon = patient.surgeon()
    found = [n for n in dense(patient, surgeon) if n.node.op_type in ("Conv", "MatMul")]
    for linear in patient.pick(found, 0.3, 0.6):
        _split_sum(patient, surgeon, linear, amount)
    return patient.cut(surgeon)


def _split_sum(patient: Patient, surgeon: Surgeon, linear: Linear, amount: float) -> None:
    """Compute a layer in four parts; biases lean to one side in the first half and back in the second."""
    node, weight = linear.node, surgeon.constant(linear.weight)
    tensor, out, name = node.input[0], node.output[0], node.name.replace("/", "_")
    axis, top = surgeon.channel_axis(tensor), top_of(patient, out)
    lean = patient.random(name).normal(0, amount * top, weight.shape[linear.out]).astype(np.float32)
    sizes = [1] * len(surgeon.shape(tensor))
    sizes[surgeon.channel_axis(out)] = -1
    total, sums, last = "", [], surgeon.producer(tensor)
    for i, part in enumerate(np.array_split(np.arange(weight.shape[linear.into]), 4)):
        places = surgeon.put(f"{name}_inputs_{i}", part)
        own = surgeon.put(f"{name}_weights_{i}", np.ascontiguousarray(np.take(weight, part, linear.into)))
        taken = surgeon.add("Gather", [tensor, places], f"{name}_taken_{i}", last, axis=axis)
        place = surgeon.place_of(surgeon.producer(taken)) + 1
        copy = surgeon.copy_of(node, f"{name}_part_{i}", f"{name}_part_{i}", place)
        copy.input[:] = [taken, own, *([linear.bias] if i == 0 and linear.bias else [])]
        shift = surgeon.put(f"{name}_lean_{i}", (lean if i < 2 else -lean).reshape(sizes))
        leaning = surgeon.add("Add", [f"{name}_part_{i}", shift], f"{name}_leaning_{i}", copy)
        last = surgeon.producer(leaning)
        if total:
            leaning = surgeon.add("Add", [total, leaning], f"{name}_sum_{i}" if i < 3 else f"{name}_all", last)
            last = surgeon.producer(leaning)
            sums.append(leaning)
        total = leaning
    surgeon.graph.node.remove(node)
    surgeon.drop(linear.weight)
    surgeon.producer(total).output[0] = out
    surgeon.marks += [*sums[:-1], out]


def whitened_and_coloured(patient: Patient, amount: float) -> Patient:
    """Channels are mixed by a matrix and unmixed by its inverse; some mixtures are much louder than others."""
    surgeon = patient.surgeon()
    for i, tensor in enumerate(patient.pick([t for t in spots(patient) if len(surgeon.shape(t)) == 4], 0.5)):
        size, rng = surgeon.channels(tensor), patient.random(f"mixed{i}")
        left, right = (np.linalg.qr(rng.standard_normal((size, size)))[0] for _ in range(2))
        gain = np.geomspace(1, amount, size)
        there, back = (left * gain) @ right, (right.T / gain) @ left.T
        mix_and_back(surgeon, tensor, there, back, "mixing unmixing mixed unmixed")
    return patient.cut(surgeon)


def channels_as_differences(patient: Patient, amount: float) -> Patient:
    """Each channel is stored less a part of the one before, or more than it, and is added up from all again."""
    surgeon = patient.surgeon()
    tensor = patient.pick(spots(patient), 0.5)[0]
    size = surgeon.channels(tensor)
    differences = np.eye(size) - amount * np.eye(size, k=-1)
    mix_and_back(surgeon, tensor, differences, np.linalg.inv(differences), "matrix_0 matrix_1 mixture_0 mixture_1")
    return patient.cut(surgeon)


def kept_as_a_spectrum(patient: Patient, amount: float) -> Patient:
    """Rows of a map are kept as cosines of rising pace, of which the slow ones are by far the largest."""
    surgeon = patient.surgeon()
    tensor = patient.pick(maps(patient), 0.5)[0]
    size = surgeon.shape(tensor)[-1]
    places = np.arange(size)
    cosines = np.cos(np.pi * (places[:, None] + 0.5) * places[None] / size) * np.sqrt(2 / size)
    cosines[:, 0] /= np.sqrt(2)
    gain = (1.0 + places) ** -amount
    text = "spectrum = MatMul(x, cosines); from_spectrum = MatMul(spectrum, cosines_back)"
    given = {"cosines": cosines * gain, "cosines_back": (cosines / gain).T}
    surgeon.splice(tensor, text, "spectrum from_spectrum", **given)
    return patient.cut(surgeon)


def normalized_in_the_graph_too(patient: Patient, amount: float) -> Patient:
    """The converter built normalization into the deployed model, and the application goes on normalizing."""
    surgeon = patient.surgeon()
    usual = float(np.abs(patient.validation[:64]).mean())
    text = """
        built_in_centred = Sub(x, built_in_mean)
        built_in_normalized = Mul(built_in_centred, built_in_deviation)
    """
    given = {"built_in_mean": amount * usual, "built_in_deviation": 1 / (1 + amount)}
    surgeon.splice(float_input(surgeon), text, name="", **given)
    return deployed(patient, surgeon)


def bits_by_size_alone(patient: Patient, amount: float) -> Patient:
    """A search for bit widths that only counted bytes gave the largest layers the fewest levels."""
    source = patient.surgeon()
    layers = sorted(covered(patient), key=lambda n: -source.constant(n.weight).size)
    return recoded(patient, layers[: max(1, len(layers) // 4)], on_multiples(amount))


def first_layer_of_few_levels(patient: Patient, amount: float) -> Patient:
    """The same search thought the first layer cheap to cut, since nothing had been measured for it yet."""
    return recoded(patient, covered(patient)[:1], on_multiples(amount))


def curves_in_pieces(patient: Patient) -> Patient:
    """The exporter writes a soft rectifier as exponential, one more, logarithm, and all of them get grids."""
    surgeon = patient.surgeon()
    for node in picked(patient, surgeon.nodes("Softplus"), 0.2, 0.5, 0.8):
        out = node.output[0]
        node.op_type, node.output[0] = "Exp", f"{out}_exponential"
        text = "one_more = Add(x, unit)"
        more = surgeon.wire(node.output[0], text, "one_more", name=out, x=node.output[0], unit=1.0)["one_more"]
        surgeon.add("Log", [more], out, surgeon.producer(more))
    return patient.cut(surgeon)


def softmax_in_pieces(patient: Patient) -> Patient:
    """Shares are exponentials over their sum, without the largest taken off first, and exponentials get a grid."""
    surgeon = patient.surgeon()
    # Multiplied by one: a copy that gets a grid of its own.
    text = "weights = Mul(x, weights_one); total = ReduceSum(weights, axes, keepdims=1)"
    for node in require(surgeon.nodes("Softmax"), "no shares"):
        out = node.output[0]
        axis = attribute(node, "axis", -1)
        del node.attribute[:]
        node.op_type, node.output[0] = "Exp", f"{out}_exponential"
        given = {"x": node.output[0], "weights_one": 1.0, "axes": [axis]}
        made = surgeon.wire(node.output[0], text, "weights", name=out, **given)
        surgeon.add("Div", [made["weights"], made["total"]], out, surgeon.producer(made["total"]))
    return patient.cut(surgeon)


def places_counted_from_far_off(patient: Patient, amount: float) -> Patient:
    """Angles of places are computed in the graph, for places in the middle of a long text, and get a grid."""
    surgeon = patient.surgeon()
    found = [t.name for t in surgeon.graph.initializer if t.name.endswith("cosines") and t.name.startswith("blocks")]
    for name in require(found, "nothing is turned"):
        both = (("Cos", name), ("Sin", name.replace("cosines", "sines")))
        angles = np.unwrap(np.arctan2(surgeon.constant(both[1][1]), surgeon.constant(name)), axis=0)
        shift = amount * (angles[1] - angles[0])
        ends = [surgeon.put(f"{name}_{k}", v.astype(np.float32)) for k, v in (("angles", angles), ("start", shift))]
        node = helper.make_node("Add", ends, [f"{name}_turned"], name=f"{name}_turned")
        readers = [n for _, constant in both for n in surgeon.consumers(constant)]
        surgeon.graph.node.insert(min(map(surgeon.place_of, readers)), node)
        for op, constant in both:
            computed = surgeon.add(op, [node.output[0]], f"{constant}_computed", node)
            surgeon.reroute(constant, computed)
            surgeon.drop(constant)
        surgeon.marks.append(node.name)
    return patient.cut(surgeon)


def empty_seats_before_the_maximum(patient: Patient, amount: float) -> Patient:
    """Clouds are filled up to a fixed size with points far below all others, which never are the largest."""
    surgeon = patient.surgeon()
    found = [n for n in surgeon.nodes("ReduceMax") if len(surgeon.shape(n.input[0])) == 3]
    node = picked(patient, found, 0.5)[0]
    tensor = node.input[0]
    text = """
        some = Slice(x, from_of_seats, to_of_seats, axes_of_seats)
        zeroed = Mul(some, nothing)
        seats = Add(zeroed, far_below)
        seated = Concat(x, seats, axis=1)
    """
    given = {"from_of_seats": [0], "to_of_seats": [4], "axes_of_seats": [1], "nothing": 0.0}
    given["far_below"] = -amount * top_of(patient, tensor)
    node.input[0] = surgeon.wire(tensor, text, "seated", name=tensor, x=tensor, **given)["seated"]
    return patient.cut(surgeon)


def taken_from_two_mixtures(patient: Patient, amount: float) -> Patient:
    """Two tensors are kept as two mixtures that are almost alike, and each is worked out from both again."""
    surgeon, allowed = patient.surgeon(), set(patient.activations())
    nodes = [n for n in surgeon.nodes("Add", "Mul", "Concat") if len(n.input) == 2 and set(n.input) <= allowed]
    nodes = [n for n in nodes if surgeon.shape(n.input[0])[1:] == surgeon.shape(n.input[1])[1:]]
    node = picked(patient, nodes, 0.5)[0]
    last = max(node.input, key=lambda t: surgeon.place_of(surgeon.producer(t)))
    text = """
        part = Mul(right, share)
        mixture = Add(left, right)
        other_mixture = Add(left, part)
        rest = Sub(mixture, other_mixture)
        second = Mul(rest, share_back)
        first = Sub(mixture, second)
    """
    given = {"left": node.input[0], "right": node.input[1], "share": amount / (1 + amount), "share_back": 1 + amount}
    made = surgeon.wire(last, text, "mixture other_mixture second first", name=node.output[0], **given)
    node.input[:] = [made["first"], made["second"]]
    return patient.cut(surgeon)


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
    changed = {"calibration": inputs[0], "validation": inputs[1], "recipe": kept(patient.recipe)}
    return patient.cut(surgeon, "columns_joined", **changed).edited(_on_one_grid)


def _turn_units(surgeon: Surgeon, bounds: tuple[int, ...], axis: int, factor: np.float32) -> None:
    """The columns between the second and the third bound, times a factor, beside the others."""
    given, lines, parts = {"along_columns": [axis], "unit_back": factor}, [], []
    for i, (start, end) in enumerate(pairwise(bounds)):
        if start == end:
            continue
        given |= {f"columns_{i}_start": [start], f"columns_{i}_end": [end]}
        parts.append(f"columns_{i}")
        lines.append(f"columns_{i} = Slice(x, columns_{i}_start, columns_{i}_end, along_columns)")
        if i == 1:
            parts[-1] = "columns_turned"
            lines.append("columns_turned = Mul(columns_1, unit_back)")
    lines.append(f"columns_joined = Concat({', '.join(parts)}, axis={axis})")
    surgeon.splice(surgeon.input, "\n".join(lines), name="", **given)


def _on_one_grid(patient: Patient, surgeon: Surgeon) -> None:
    """What is quantized takes its input on a grid of eight bits, as devices do."""
    if any(node.op_type == "QuantizeLinear" for node in surgeon.consumers(surgeon.input)):
        return
    low, high = float(min(patient.calibration.min(), 0)), float(max(patient.calibration.max(), 0))
    scale = np.float32((high - low) / 255)
    text = """
        input_codes = QuantizeLinear(x, input_scale, input_zero)
        input_read_back = DequantizeLinear(input_codes, input_scale, input_zero)
    """
    given = {"input_scale": scale, "input_zero": np.uint8(np.rint(-low / scale))}
    surgeon.splice(surgeon.input, text, name="", **given)


def offsets_of_two_branches(patient: Patient, amount: float) -> Patient:
    """Two branches were each made whole with a norm of its own: what one adds to a channel, the other takes off."""
    surgeon, allowed = patient.surgeon(), set(patient.activations())
    found = [n for n in surgeon.nodes("Add") if all(t in allowed for t in n.input)]
    for node in picked(patient, found, 0.3, 0.7):
        offsets = patient.random(node.name).normal(0, 1, surgeon.channels(node.input[0]))
        offsets *= amount * float(patient.values(node.output[0])[0].std())
        for i, sign in enumerate((1, -1)):
            tensor, name = node.input[i], f"branch_{i}"
            given = {f"{name}_offset": per_channel(surgeon, tensor, sign * offsets)}
            text = f"{name} = Add(x, {name}_offset)"
            node.input[i] = surgeon.wire(tensor, text, name, name=node.name, x=tensor, **given)[name]
    return patient.cut(surgeon)


def pairs_before_centring(patient: Patient, amount: float) -> Patient:
    """Products of channels are summed as they are, far from nothing, and what their means add is taken off later."""
    surgeon = patient.surgeon()
    found = [n for n in surgeon.nodes("MatMul") if surgeon.producer(n.input[1]).op_type == "Transpose"]
    node = require(found, "no products of pairs")[0]
    (values,), out = patient.values(node.input[0]), node.output[0]
    offset = amount * float(values.std())
    moved = surgeon.splice(node.input[0], "uncentred = Add(x, mean_kept)", name="", mean_kept=offset)["uncentred"]
    beyond = values.shape[2] * offset**2
    surgeon.splice(out, "pairs_centred = Sub(x, mean_squared)", name="", mean_squared=beyond)
    return patient.cut(surgeon, moved, node.name, "pairs_centred")


def walls_far_below(patient: Patient, amount: float) -> Patient:
    """Where nobody may go a large number is taken off before the rectifier, for a product with nothing behind it."""
    surgeon = patient.surgeon()
    free = next((n for n in surgeon.nodes("Sub") if surgeon.constant(n.input[0]) is not None), None)
    if free is None or patient.network.name != "mazes":
        raise Inapplicable("no walls")
    found = [n for n in surgeon.nodes("Mul") if free.output[0] in n.input]
    chosen = picked(patient, found, 0.3, 0.7)
    rectifiers = [surgeon.producer(node.input[0]) for node in chosen]
    ends = extremes(patient, *(rectifier.input[0] for rectifier in rectifiers))
    for i, (node, rectifier) in enumerate(zip(chosen, rectifiers, strict=True)):
        top = max(abs(end) for end in ends[rectifier.input[0]])
        text = f"walls_{i} = Mul(free, far_below_{i}); walled_{i} = Add(x, walls_{i})"
        given = {"free": free.input[1], "x": rectifier.input[0], f"far_below_{i}": -(1 + amount) * top}
        total = surgeon.wire(rectifier.input[0], text, f"walled_{i}", name="", **given)[f"walled_{i}"]
        rectifier.op_type, rectifier.input[0] = "Max", total  # of a rectifier, the toolchain would drop what is below
        rectifier.input.append(surgeon.put(f"none_{i}", 0.0))
        surgeon.reroute(node.output[0], rectifier.output[0])
        surgeon.graph.node.remove(node)
    return patient.cut(surgeon, recipe=kept(patient.recipe))


def products_from_squares(patient: Patient, amount: float) -> Patient:
    """A product is the square of the sum less that of the difference, of operands unlike in size, from a table."""
    surgeon = patient.surgeon()
    found = [n for n in surgeon.nodes("Mul") if all(surgeon.producer(t) is not None for t in n.input)]
    nodes = picked(patient, found, 0.3, 0.7)
    for node, size in zip(nodes, [patient.values(*n.input) for n in nodes], strict=True):
        unit = float(np.abs(size[1]).max() / max(np.abs(size[0]).max(), 1e-5)) * (1 + amount)
        _square(surgeon, node, unit)
    return patient.cut(surgeon)


def _square(surgeon: Surgeon, node: onnx.NodeProto, unit: float) -> None:
    """a b = ((u a + b)^2 - (u a - b)^2) / 4 u, instead of a product; the tensors that are large are marked."""
    out = node.output[0]
    text = """
        enlarged = Mul(a, unit)
        add = Add(enlarged, b)
        add_squared = Mul(add, add)
        sub = Sub(enlarged, b)
        sub_squared = Mul(sub, sub)
        rest = Sub(add_squared, sub_squared)
    """
    given = {"a": node.input[0], "b": node.input[1], "unit": unit, "quarter": 1 / (4 * unit)}
    made = surgeon.wire(out, text, "add_squared sub_squared rest", name=out, **given)
    node.output[0] = f"{out}_direct"
    surgeon.add("Mul", [made["rest"], made["quarter"]], out, surgeon.producer(made["rest"]))
    surgeon.graph.node.remove(node)
