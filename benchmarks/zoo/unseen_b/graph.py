"""Unseen faults of the graph, set B: sensitive operators, sums and joints of what does not fit one grid."""

from dataclasses import replace

import numpy as np

from ..fault import fault
from ..faults_activations import extremes
from ..patient import Patient
from ..surgery import Inapplicable
from ..unseen_a.cuts import class_head, dense, float_input, positive_spots, spots


@fault("powers-and-roots", "graph", "error-amplifier", "sensitive-operator", graded=True, unseen="b")
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


@fault("variance-below-zero", "sanity", "non-finite-values", graded=True, unseen="b", also=("error-amplifier",))
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


@fault("opposed-branches", "graph", "unbalanced-addition", graded=True, unseen="b", also=("error-amplifier",))
def opposed_branches(patient: Patient) -> Patient:
    """One operand of a sum is much louder than the other, and a third branch takes most of it off later."""
    surgeon = patient.surgeon()
    sums = [
        node
        for node in surgeon.nodes("Add")
        if all(surgeon.constant(name) is None and surgeon.producer(name) is not None for name in node.input)
        and node.name not in patient.recipe.exclude
        and surgeon.shape(node.input[0]) == surgeon.shape(node.input[1])
        and node.output[0] != surgeon.output
    ]
    if not sums:
        raise Inapplicable("no sum of branches")
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


@fault(
    "kelvin",
    "graph",
    "error-amplifier",
    graded=True,
    unseen="b",
    also=("poor-threshold", "unbalanced-addition"),
)
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


@fault("coordinates-in-pixels", "graph", "unbalanced-concatenation", graded=True, unseen="b")
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
        surgeon.add("Concat", [tensor, where], mark, surgeon.producer(where), axis=axis)
        linear.node.input[0] = mark
        weight = surgeon.constant(linear.weight)
        zeros = np.zeros_like(np.take(weight, [0], linear.into))
        surgeon.put(surgeon.own(linear, 1), np.concatenate([weight, zeros], linear.into))
        marks.append(mark)
    return patient.with_(model=surgeon.model).at(*marks)


def _head_in_float(patient: Patient) -> Patient:
    last = patient.surgeon().producer(patient.surgeon().output)
    return patient.with_(recipe=replace(patient.recipe, exclude=(*patient.recipe.exclude, last.name)))


@fault("background-class", "precision", "coarse-output", heal=_head_in_float, graded=True, unseen="b")
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


@fault(
    "norm-of-dead-channels",
    "weights",
    "batch-norm-blow-up",
    "batch-norm-not-folded",
    graded=True,
    unseen="b",
    also=("channel-outliers",),
)
def norm_of_dead_channels(patient: Patient) -> Patient:
    """A batch norm kept after a sum blows up two channels that were nearly dead when it was trained."""
    surgeon = patient.surgeon()
    found = [t for t in spots(patient) if len(surgeon.shape(t)) == 4 and surgeon.channel_axis(t) == 1]
    if not found:
        raise Inapplicable("no maps")
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
