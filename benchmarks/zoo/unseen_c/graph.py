"""Unseen faults of the graph, set C: sums and joints of what does not fit one grid."""

import numpy as np

from ..fault import fault
from ..faults_activations import extremes
from ..mild import mild
from ..patient import Patient
from ..surgery import Inapplicable
from ..unseen_a.cuts import dense, kept, positive_spots, spots


@fault(
    "ramp-of-time",
    "graph",
    "unbalanced-addition",
    "error-amplifier",
    graded=True,
    unseen="c",
    also=("activation-outliers", "massive-activations"),
)
@mild(0.2, 3000)
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


@fault(
    "joined-with-their-sum",
    "graph",
    "unbalanced-concatenation",
    graded=True,
    unseen="c",
    also=("channel-outliers", "massive-activations"),
)
@mild(0.2, 3000)
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
        surgeon.add("Concat", [tensor, count], mark, surgeon.producer(count), axis=axis)
        linear.node.input[0] = mark
        weight = surgeon.constant(linear.weight)
        zeros = np.zeros_like(np.take(weight, [0], linear.into))
        surgeon.put(surgeon.own(linear, 1), np.concatenate([weight, zeros], linear.into))
        marks.append(mark)
    return patient.with_(model=surgeon.model).at(*marks)


@fault(
    "loud-twin-in-a-residual",
    "graph",
    "unbalanced-addition",
    graded=True,
    unseen="c",
    also=("error-amplifier", "poor-threshold"),
)
@mild(0.2, 3000)
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


@fault(
    "grid-of-the-sum-for-its-parts",
    "graph",
    "unbalanced-concatenation",
    "poor-threshold",
    "unbalanced-addition",
    graded=True,
    unseen="c",
    also=("stale-calibration",),
)
@mild(0.3, 300)
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


@fault(
    "bound-far-above",
    "graph",
    "poor-threshold",
    "fixed-range-output",
    graded=True,
    unseen="c",
    also=("power-of-two-waste", "relu6-lost"),
)
@mild(0.5, 500)
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
