"""Unseen faults of the graph, of precision, and of what is compared, set D."""

import numpy as np
import onnx
from numpy.typing import NDArray

from ..fault import fault
from ..faults_activations import extremes
from ..mild import costly, severe
from ..patient import Patient
from ..surgery import Inapplicable, Surgeon
from ..unseen_a.cuts import covered, dense, float_input, kept, recoded, spots


@fault(
    "kept-as-running-totals",
    "graph",
    "error-amplifier",
    graded=True,
    unseen="d",
    also=("activation-outliers", "unbalanced-addition", "sensitive-operator", "poor-threshold"),
)
@severe(0.02, 300)
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


@fault(
    "coordinates-joined",
    "graph",
    "unbalanced-concatenation",
    graded=True,
    unseen="d",
    also=("channel-outliers", "massive-activations", "activation-outliers"),
)
@severe(0.3, 5000)
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
        surgeon.add("Concat", [tensor, place], mark, surgeon.producer(place), axis=axis)
        linear.node.input[0] = mark
        weight = surgeon.constant(linear.weight)
        few = np.zeros_like(np.take(weight, [0], linear.into))
        surgeon.put(surgeon.own(linear, 1), np.concatenate([weight, few], linear.into))
        marks.append(mark)
    return patient.with_(model=surgeon.model).at(*marks)


@fault(
    "kept-as-exponentials",
    "graph",
    "error-amplifier",
    "sensitive-operator",
    graded=True,
    unseen="d",
    also=("poor-threshold", "activation-outliers"),
)
@severe(0.1, 14)
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


@fault(
    "partial-sums-in-bytes",
    "graph",
    "smooth-accumulation",
    "too-few-activation-bits",
    "unbalanced-addition",
    graded=True,
    unseen="d",
    also=("error-amplifier", "poor-threshold"),
)
@severe(0.02, 60)
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


@fault(
    "whitened-and-coloured",
    "graph",
    "error-amplifier",
    graded=True,
    unseen="d",
    also=(
        "channel-outliers",
        "massive-activations",
        "heavy-tailed-weights",
        "sensitive-operator",
        "too-few-weight-bits",
    ),
)
@severe(1.5, 3000)
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


@fault(
    "output-read-with-another-scale",
    "sanity",
    "output-not-dequantized",
    unseen="d",
    also=("misread-codes", "coarse-output"),
)
@costly
def output_read_with_another_scale(patient: Patient) -> Patient:
    """The application turns codes into numbers by itself, with a scale from the template that it was written for."""
    name = patient.surgeon().output
    scale = np.float32(patient.random("template").choice([1 / 256, 1 / 128, 1 / 16]))

    def edit(p: Patient, quantized: onnx.ModelProto) -> onnx.ModelProto:
        surgeon = Surgeon(quantized)
        last = surgeon.producer(name)
        if last is None or last.op_type != "DequantizeLinear":
            raise Inapplicable("the output is not quantized")
        zero = surgeon.constant(last.input[2])
        last.input[1] = surgeon.put("scale_of_the_template", np.array(scale, np.float32))
        last.input[2] = surgeon.put("zero_of_the_template", np.zeros_like(zero))
        return surgeon.model

    return patient.with_(recipe=kept(patient.recipe)).edited(edit)


@fault(
    "normalized-in-the-graph-too",
    "sanity",
    "float-export-differs",
    "preprocessing-mismatch",
    graded=True,
    unseen="d",
    also=("altered-float-tensors", "stage-loses-accuracy", "not-quantized", "calibration-input-mismatch"),
)
@severe(0.003, 3)
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


@fault(
    "bits-by-size-alone", "precision", "too-few-weight-bits", graded=True, unseen="d", also=("layer-worse-than-peers",)
)
@severe(1, 120)
def bits_by_size_alone(patient: Patient, amount: float) -> Patient:
    """A search for bit widths that only counted bytes gave the largest layers the fewest levels."""
    source = patient.surgeon()
    layers = sorted(covered(patient), key=lambda n: -source.constant(n.weight).size)
    largest = layers[: max(1, len(layers) // 4)]

    def change(codes: NDArray, _) -> NDArray:
        return np.rint(np.rint(codes / amount) * amount)

    return recoded(patient, largest, change)


@fault(
    "first-layer-of-few-levels", "precision", "first-layer-sensitive", "too-few-weight-bits", graded=True, unseen="d"
)
@severe(1, 120)
def first_layer_of_few_levels(patient: Patient, amount: float) -> Patient:
    """The same search thought the first layer cheap to cut, since nothing had been measured for it yet."""
    return recoded(patient, covered(patient)[:1], lambda codes, _: np.rint(np.rint(codes / amount) * amount))
