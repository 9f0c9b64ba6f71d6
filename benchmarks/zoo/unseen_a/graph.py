"""Unseen faults of the graph, set A: sensitive operators, sums and joints of what does not fit one grid."""

import numpy as np

from ..fault import fault
from ..faults_activations import extremes
from ..patient import Patient
from ..surgery import Inapplicable
from .cuts import channel_peaks, class_head, covered, per_channel, positive_spots, spots


@fault("log-with-offset", "graph", "error-amplifier", "sensitive-operator", graded=True, unseen="a")
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


@fault("inverse-of-inverse", "graph", "error-amplifier", "sensitive-operator", "non-finite-values", unseen="a")
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


@fault("log-of-rounded-probability", "sanity", "non-finite-values", unseen="a", also=("error-amplifier",))
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


@fault(
    "packed-sum",
    "graph",
    "unbalanced-addition",
    graded=True,
    unseen="a",
    also=("channel-outliers", "massive-activations"),
)
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


@fault("riding-constants", "graph", "error-amplifier", graded=True, unseen="a", also=("massive-activations",))
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


@fault("joined-with-wide-copy", "graph", "unbalanced-concatenation", graded=True, unseen="a")
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


def _head_in_float(patient: Patient) -> Patient:
    from dataclasses import replace

    last = patient.surgeon().producer(patient.surgeon().output)
    return patient.with_(recipe=replace(patient.recipe, exclude=(*patient.recipe.exclude, last.name)))


@fault("common-offset", "precision", "coarse-output", heal=_head_in_float, graded=True, unseen="a")
def common_offset(patient: Patient) -> Patient:
    """All logits carry the same large number, which no softmax would notice; their grid has few codes left."""
    surgeon = patient.surgeon()
    head = class_head(surgeon, patient)
    ((low, high),) = extremes(patient, surgeon.output)
    bias = surgeon.constant(head.bias)
    surgeon.put(surgeon.own(head, 2), (bias + np.float32(40 * patient.strength * (high - low))).astype(np.float32))
    return patient.with_(model=surgeon.model).at(head.node.name)


@fault("one-older-layer", "sanity", "foreign-weights", "float-export-differs", graded=True, unseen="a")
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


@fault("norm-before-layer", "weights", "batch-norm-not-folded", "batch-norm-blow-up", graded=True, unseen="a")
def norm_before_layer(patient: Patient) -> Patient:
    """A batch norm after an activation, which no converter folds, and whose variances are tiny in places."""
    surgeon = patient.surgeon()
    found = [t for t in spots(patient) if len(surgeon.shape(t)) == 4 and surgeon.channel_axis(t) == 1]
    if not found:
        raise Inapplicable("no maps")
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


@fault("class-switched-off", "activations", "mask-constant", unseen="a", also=("activation-outliers",))
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
