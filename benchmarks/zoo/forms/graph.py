"""Faults of the graph: what is joined, added, inserted or taken apart; of heads and of single settings."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
from onnx import TensorProto, helper

from ..cuts import (
    at_layers,
    channel_peaks,
    covered,
    extremes,
    kept,
    mix_and_back,
    output_reader,
    per_channel,
    positive_spots,
    requantize,
    spots,
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
    return at_layers(patient, linears).edited(
        lambda p, q: requantize(p, q, names, TensorProto.INT2, one_scale=one_scale)
    )


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
        last = output_reader(q)
        scale, zero = q.constant(last.input[1]), q.constant(last.input[2]).astype(np.int64)
        coarse = q.put("coarse_scale", (scale * 90 * patient.strength).astype(np.float32))
        code = int(np.clip(round((zero + 128) / 17), 0, 15))
        q.graph.initializer.append(helper.make_tensor("coarse_zero", TensorProto.UINT4, [], [code]))
        for node in (q.producer(last.input[0]), last):
            node.input[1], node.input[2] = coarse, "coarse_zero"
        with_opset(q.model, 21)

    return patient.at(_quantized_output(patient)).edited(edit)


def codes_as_output(patient: Patient) -> Patient:
    """The application reads the codes of the output as if they were values."""

    def edit(_: Patient, surgeon: Surgeon) -> None:
        last = output_reader(surgeon)
        codes = last.input[0]
        surgeon.graph.node.remove(last)
        surgeon.add("Cast", [codes], surgeon.output, to=TensorProto.FLOAT)

    return patient.edited(edit)


def scale_forgotten(patient: Patient) -> Patient:
    """The application takes the zero point off the codes of the output and forgets the scale."""

    def edit(_: Patient, surgeon: Surgeon) -> None:
        last, name = output_reader(surgeon), surgeon.output
        codes, zero = last.input[0], surgeon.constant(last.input[2]).astype(np.float32).reshape(())
        surgeon.graph.node.remove(last)
        surgeon.add("Cast", [codes], f"{name}_codes", to=TensorProto.FLOAT)
        surgeon.add("Sub", [f"{name}_codes", surgeon.put(f"{name}_middle", zero)], name)

    return patient.edited(edit)


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
