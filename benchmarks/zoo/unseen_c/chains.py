"""Unseen faults of sensitive chains, values that are no numbers, and heads, set C."""

import numpy as np
from onnx import TensorProto

from ..fault import fault
from ..faults_activations import extremes
from ..mild import mild
from ..patient import Patient
from ..surgery import Inapplicable
from ..unseen_a.cuts import kept, positive_spots, spots


@fault(
    "through-odds",
    "graph",
    "error-amplifier",
    "sensitive-operator",
    "fixed-range-output",
    graded=True,
    unseen="c",
    also=("non-finite-values",),
)
@mild(0.3, 14)
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


@fault(
    "divided-by-the-loudest",
    "graph",
    "error-amplifier",
    "sensitive-operator",
    graded=True,
    unseen="c",
    also=("non-finite-values", "poor-threshold", "non-stationary-range"),
)
@mild(0.2, 8)
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


@fault(
    "geometric-mean-of-rounded",
    "sanity",
    "non-finite-values",
    unseen="c",
    also=("error-amplifier", "sensitive-operator"),
)
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


@fault(
    "distance-for-a-product",
    "graph",
    "error-amplifier",
    "unbalanced-addition",
    graded=True,
    unseen="c",
    also=("coarse-output",),
)
@mild(0.02, 300)
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


@fault(
    "squares-for-energy",
    "graph",
    "error-amplifier",
    "sensitive-operator",
    graded=True,
    unseen="c",
    also=("negative-activations", "poor-threshold"),
)
@mild(0.05, 3)
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


@fault("output-on-a-wide-grid", "precision", "coarse-output", "poor-threshold", graded=True, unseen="c")
@mild(0.3, 500)
def output_on_a_wide_grid(patient: Patient, amount: float) -> Patient:
    """The output's range is copied from a data sheet: what any network of this kind may tell."""
    name = patient.surgeon().output
    ((low, high),) = extremes(patient, name)
    recipe = kept(patient.recipe).with_range(name, low * (1 + amount), high * (1 + amount))
    return patient.with_(recipe=recipe).at(name)


@fault(
    "scores-beside-a-count",
    "graph",
    "unbalanced-concatenation",
    "coarse-output",
    graded=True,
    unseen="c",
    also=("dead-output-columns",),
)
@mild(0.3, 3000, worst=True)
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
