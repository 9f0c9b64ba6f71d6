"""Faults of the runtime and of the files: operators that compute something else, models and labels that do not fit."""

from collections.abc import Callable

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from ..cuts import (
    at_sums,
    cast_between,
    channel_peaks,
    classes,
    covered,
    deployed,
    float_input,
    framed,
    free,
    kept,
    on_coarse_grids,
    on_multiples,
    picked,
    recoded,
    spots,
    with_outputs,
)
from ..patient import Patient
from ..quantizing import run
from ..signals import WAVE
from ..surgery import Inapplicable, Surgeon, attribute, require, with_attributes


def scores_in_few_levels(patient: Patient, amount: float) -> Patient:
    """What a softmax reads was given fewer bits than the rest, since only its order seemed to matter."""
    usual = set(patient.activations())
    found = [node.input[0] for node in patient.surgeon().nodes("Softmax") if node.input[0] in usual]
    return on_coarse_grids(patient, require(found, "no scores"), [amount])


def late_half_narrow(patient: Patient, amount: float) -> Patient:
    """The memory for bits was shared out from the front: activations of the later half of the network have few."""
    tensors = free(patient)
    return on_coarse_grids(patient, tensors[len(tensors) // 2 :], [amount])


def sums_that_wrap(patient: Patient, amount: float) -> Patient:
    """The sums of products of some layers have a narrow accumulator: beyond its end they go on at the other one."""
    names = {linear.node.output[0] for linear in patient.surgeon().linears()}
    text = """
        turns = Div(x, width)
        whole_turns = Round(turns)
        over = Mul(whole_turns, width)
        wrapped = Sub(x, over)
    """

    def wrap(surgeon: Surgeon, tensor: str, top: float) -> None:
        surgeon.splice(tensor, text, width=2 * top / (1 + amount))

    return at_sums(patient, patient.pick([t for t in free(patient) if t in names], 0.3, 0.7), wrap)


def through_short_floats(patient: Patient) -> Patient:
    """Between integers the target computes with floats of sixteen bits, and one tensor reaches beyond their end."""
    surgeon, allowed = patient.surgeon(), set(free(patient))
    tensor = patient.pick([t for t in surgeon.amplifiable() if t in allowed], 0.5)[0]
    top = 65504 * float(np.exp(patient.random("short").uniform(0.4, 2.5)))
    gain = np.full(surgeon.channels(tensor), top / max(channel_peaks(patient, tensor).max(), 1e-3), np.float32)
    surgeon.amplify(tensor, gain)
    return cast_between(patient.cut(surgeon, tensor), [tensor], TensorProto.FLOAT16, "short")


# --- what a board hands out ------------------------------------------------------------------------------------------


def on_the_board(patient: Patient, outputs: list[NDArray]) -> Patient:
    """With outputs that were recorded on a device."""
    return with_outputs(patient, "device_outputs", outputs)


def board_one_sample_late(patient: Patient) -> Patient:
    """The board hands out what it computed for the sample before: a buffer is read too early."""
    outputs = run(patient.network, patient.quantized(), patient.validation)
    return on_the_board(patient, [np.roll(x, 1, 0) for x in outputs])


def board_without_lower_bits(patient: Patient) -> Patient:
    """The board drops some bits of what it hands out; the model on the desk is sound."""
    outputs = run(patient.network, patient.quantized(), patient.validation)
    levels = 2.0 ** int(patient.random("board").integers(2, 5))
    steps = [np.float32((x.max() - x.min()) / levels) for x in outputs]
    return on_the_board(patient, [np.floor(x / s) * s for x, s in zip(outputs, steps, strict=True)])


def board_stops_a_turn_early(patient: Patient) -> Patient:
    """The loop on the board ends one turn before it should; the model on the desk is sound."""
    short = patient.with_(model=without_turn(patient).model)
    return on_the_board(patient, run(patient.network, short.quantized(), patient.validation))


def board_keeps_the_first_dials(patient: Patient) -> Patient:
    """The board reads the dials once, at the start, and goes on with them; the model on the desk is sound."""
    if patient.network.name != "dials":
        raise Inapplicable("no dials")
    inputs = patient.validation.copy()
    inputs[:, WAVE:] = inputs[0, WAVE:]
    return on_the_board(patient, run(patient.network, patient.quantized(), inputs))


def without_turn(patient: Patient) -> Surgeon:
    """What follows a repeated step reads what came before it.

    Raises:
        Inapplicable: Nothing is repeated.
    """
    surgeon = patient.surgeon()
    free_cells = next((n for n in surgeon.nodes("Sub") if surgeon.constant(n.input[0]) is not None), None)
    states = [n.output[0] for n in surgeon.nodes("Mul") if free_cells is not None and free_cells.output[0] in n.input]
    if patient.network.name != "mazes" or len(states) < 3:
        raise Inapplicable("nothing is repeated")
    surgeon.reroute(states[-1], states[-2])
    return surgeon


# --- operators that compute something else ---------------------------------------------------------------------------


def at_work(
    patient: Patient, nodes: list[onnx.NodeProto], change: Callable[[Surgeon, onnx.NodeProto], None]
) -> Patient:
    """Some operators of the quantized model changed, by name."""
    names = [node.name for node in nodes]

    def edit(_: Patient, surgeon: Surgeon) -> None:
        found = [node for node in surgeon.graph.node if node.name in names]
        if len(found) < len(names):
            raise Inapplicable("an operator was fused")
        for node in found:
            change(surgeon, node)

    return patient.with_(recipe=kept(patient.recipe)).at(*names).edited(edit)


def inputs_by_name(patient: Patient, nodes: list[onnx.NodeProto]) -> dict[str, NDArray]:
    """What operators read on validation inputs."""
    return dict(zip((n.name for n in nodes), patient.values(*(n.input[0] for n in nodes)), strict=True))


def curves_from_a_short_table(patient: Patient, amount: float) -> Patient:
    """The kernel looks curves up in a table of few entries and does not interpolate: it takes the entry below."""
    nodes = require(patient.surgeon().nodes("Sigmoid", "HardSwish"), "no curves")
    spread = {name: float(x.std()) for name, x in inputs_by_name(patient, nodes).items()}
    text = "at = Div(x, entry); entry_below = Floor(at); taken = Mul(entry_below, entry)"

    def change(surgeon: Surgeon, node: onnx.NodeProto) -> None:
        given = {"x": node.input[0], "entry": amount * spread[node.name]}
        node.input[0] = surgeon.wire(node.input[0], text, name=node.name, **given)["taken"]

    return at_work(patient, nodes, change)


def frame_beside_zero(patient: Patient, amount: float) -> Patient:
    """The kernel fills the frame around a map with the zero point of another tensor: the frame is not zero."""
    nodes = picked(patient, framed(patient.surgeon()), 0.2, 0.5, 0.8)
    tops = {name: float(np.ptp(x)) for name, x in inputs_by_name(patient, nodes).items()}
    sign = patient.random("frame").choice([-1, 1])

    def change(surgeon: Surgeon, node: onnx.NodeProto) -> None:
        up, left, down, right = attribute(node, "pads", [0])
        value = np.float32(sign * amount * tops[node.name] / 255)
        given = {"x": node.input[0], "frame": [0, 0, up, left, 0, 0, down, right], "beside_zero": value}
        made = surgeon.wire(node.input[0], "framed = Pad(x, frame, beside_zero)", name=node.name, **given)
        node.input[0] = made["framed"]
        with_attributes(node, "auto_pad", pads=[0, 0, 0, 0])

    return at_work(patient, nodes, change)


def window_one_pixel_on(patient: Patient) -> Patient:
    """Where every second pixel is taken, the target puts the odd column of the frame behind and not before the map."""
    surgeon = patient.surgeon()
    chosen = picked(patient, [n for n in framed(surgeon) if 2 in attribute(n, "strides", [1])], 0.3, 0.7)
    for node in chosen:
        up, left, down, right = attribute(node, "pads", [0])
        moved = int(up > 0)
        with_attributes(node, "auto_pad", pads=[up - moved, left - 1, down + moved, right + 1])
    return deployed(patient, surgeon, *(n.name for n in chosen))


def tiles_without_a_border(patient: Patient) -> Patient:
    """Maps that do not fit into the fast memory are computed in two tiles, and neither sees what lies beside it."""
    surgeon = patient.surgeon()
    found = [
        n for n in framed(surgeon) if 2 not in attribute(n, "strides", [1]) and surgeon.shape(n.input[0])[-1:] != [None]
    ]
    chosen = picked(patient, found, 0.2, 0.5, 0.8)
    axes = surgeon.put("axis_of_tiles", [3])
    for node in chosen:
        name, tensor, out = node.name, node.input[0], node.output[0]
        width = patient.values(tensor, samples=1)[0].shape[3]
        ends = [surgeon.put(f"{name}_tile_{i}", [end]) for i, end in enumerate((0, width // 2, width))]
        tiles = []
        for i, last in enumerate((node, None)):
            tile = surgeon.add("Slice", [tensor, ends[i], ends[i + 1], axes], f"{name}_seen_{i}", last)
            surgeon.graph.node.insert(0, surgeon.graph.node.pop())
            tiles.append(tile)
        _compute_tiles(surgeon, node, tiles, out)
    _sort(surgeon)
    return deployed(patient, surgeon, *(n.name for n in chosen))


def _compute_tiles(surgeon: Surgeon, node: onnx.NodeProto, tiles: list[str], out: str) -> None:
    """The same convolution for each tile, joined."""
    parts = [f"{out}_tile_{i}" for i in range(len(tiles))]
    for i, tile in enumerate(tiles):
        copy = surgeon.copy_of(node, f"{node.name}_of_tile_{i}", parts[i], len(surgeon.graph.node))
        copy.input[0] = tile
    surgeon.graph.node.remove(node)
    surgeon.graph.node.append(helper.make_node("Concat", parts, [out], name=f"{node.name}_joined", axis=3))


def _sort(surgeon: Surgeon) -> None:
    """Nodes in an order in which each finds its inputs."""
    known = {value.name for value in (*surgeon.graph.input, *surgeon.graph.initializer)} | {""}
    waiting, ready = list(surgeon.graph.node), []
    while waiting:
        nodes = [n for n in waiting if set(n.input) <= known]
        for node in nodes:
            known |= set(node.output)
            waiting.remove(node)
        ready += nodes
    copies = [onnx.NodeProto.FromString(n.SerializeToString()) for n in ready]
    del surgeon.graph.node[:]
    surgeon.graph.node.extend(copies)


def average_counts_the_frame(patient: Patient) -> Patient:
    """At the edge of a map the target divides by all cells of a window, those of the frame as well."""
    surgeon = patient.surgeon()
    found = require(surgeon.nodes("AveragePool"), "nothing is averaged in windows")
    for node in found:
        with_attributes(node, count_include_pad=1)
    return deployed(patient, surgeon, *(n.name for n in found))


def mean_over_a_padded_length(patient: Patient, amount: float) -> Patient:
    """Sums are right, but divided by a length that was filled up to what the vector unit likes."""
    nodes = require(patient.surgeon().nodes("ReduceMean"), "nothing is averaged")

    def change(surgeon: Surgeon, node: onnx.NodeProto) -> None:
        share, out = surgeon.put(f"{node.name}_share_of_length", 1 / (1 + amount)), node.output[0]
        node.output[0] = f"{out}_over_its_length"
        surgeon.add("Mul", [node.output[0], share], out, node)

    return at_work(patient, nodes, change)


def compared_without_the_sign(patient: Patient) -> Patient:
    """The kernel that looks for the largest takes codes for numbers without a sign: what is negative wins."""
    nodes = require(patient.surgeon().nodes("MaxPool", "ReduceMax"), "nothing is compared")
    tops = {name: float(np.abs(x).max()) for name, x in inputs_by_name(patient, nodes).items()}
    before = """
        is_below = Less(x, none)
        raised = Add(x, turn)
        unsigned = Where(is_below, raised, x)
    """
    behind = "is_above = Greater(x, half_turn); lowered = Sub(x, turn)"

    def change(surgeon: Surgeon, node: onnx.NodeProto) -> None:
        name, last, out = node.name, node.input[0], node.output[0]
        given = {"none": 0.0, "turn": 4 * tops[name], "half_turn": 2 * tops[name]}
        made = surgeon.wire(last, before, name=name, x=last, **given)
        node.input[0], node.output[0] = made["unsigned"], f"{out}_unsigned"
        turns = {key: made[key] for key in ("turn", "half_turn")}
        found = surgeon.wire(node.output[0], behind, name=name, x=node.output[0], **turns)
        above, lowered = found["is_above"], found["lowered"]
        surgeon.add("Where", [above, lowered, node.output[0]], out, surgeon.producer(lowered))

    return at_work(patient, nodes, change)


def slopes_as_shifts(patient: Patient, amount: float) -> Patient:
    """The target has one slope for what is negative, a power of two for all networks, and takes it."""
    surgeon = patient.surgeon()
    found = require(surgeon.nodes("LeakyRelu"), "nothing leaks")
    for slope in (a for node in found for a in node.attribute if a.name == "alpha"):
        slope.f = float(slope.f * (1 + amount))
    return deployed(patient, surgeon, *(n.name for n in found))


def hard_gates(patient: Patient) -> Patient:
    """The target has no curves: gates of the deployed model are made of straight pieces."""
    surgeon = patient.surgeon()
    found = require(surgeon.nodes("Sigmoid", "Tanh"), "no gates")
    for node in found:
        if node.op_type == "Tanh":
            node.op_type = "Clip"
            node.input.extend(surgeon.put(f"{node.output[0]}_{i}_end", v) for i, v in enumerate((-1.0, 1.0)))
        else:
            node.op_type = "HardSigmoid"
            with_attributes(node, alpha=0.2, beta=0.5)
    return deployed(patient, surgeon, *(node.name for node in found))


def enlarged_by_another_rule(patient: Patient) -> Patient:
    """The target enlarges maps with straight lines between pixels; the float model repeats them."""
    surgeon = patient.surgeon()
    chosen = picked(patient, surgeon.nodes("Resize"), 0.2, 0.6)
    for node in chosen:
        with_attributes(node, "nearest_mode", mode="linear", coordinate_transformation_mode="asymmetric")
    return deployed(patient, surgeon, *(node.name for node in chosen))


# --- models that differ ----------------------------------------------------------------------------------------------


def exported_with_a_turn_less(patient: Patient) -> Patient:
    """What was deployed repeats its step once less than the float model."""
    return deployed(patient, without_turn(patient))


def classes_in_alphabetical_order(patient: Patient) -> Patient:
    """The deployed model counts some classes in the order of their names, the float model in that of the training."""
    surgeon = patient.surgeon()
    head = classes(patient, surgeon)
    size = surgeon.outputs(head)
    order, moved = np.arange(size), patient.random("names").permutation(size)[: max(2, size // 3)]
    order[moved] = np.roll(moved, 1)
    surgeon.put(surgeon.own(head, 1), np.take(surgeon.constant(head.weight), order, head.out))
    if head.bias:
        surgeon.put(surgeon.own(head, 2), surgeon.constant(head.bias)[order])
    return deployed(patient, surgeon, head)


def probabilities_for_logits(patient: Patient) -> Patient:
    """The converter put a softmax behind the last layer of what is deployed; the float model has none."""
    surgeon = patient.surgeon()
    classes(patient, surgeon)
    surgeon.insert_after(surgeon.output, "Softmax", axis=-1)
    return deployed(patient, surgeon)


def temperature_built_in(patient: Patient, amount: float) -> Patient:
    """Somebody fitted a temperature to make scores honest, and folded it into the last layer of the deployed model."""
    surgeon = patient.surgeon()
    head = classes(patient, surgeon)
    surgeon.scale_weights(head, head.out, np.full(surgeon.outputs(head), 1 / (1 + amount), np.float32), bias=True)
    return deployed(patient, surgeon, head)


def axes_reversed_by_the_converter(patient: Patient) -> Patient:
    """The converter was told that columns come last to first, and turns them round in what is deployed."""
    surgeon, axis = patient.surgeon(), patient.calibration.ndim - 1
    text = f"columns_turned_round = Gather(x, order_of_columns, axis={axis})"
    order = np.arange(patient.calibration.shape[axis])[::-1]
    surgeon.splice(float_input(surgeon), text, name="", order_of_columns=order)
    return deployed(patient, surgeon)


def noise_left_in_training_mode(patient: Patient, amount: float) -> Patient:
    """The float model was exported in training mode, and adds noise to a tensor, which training had for robustness."""
    surgeon = patient.surgeon()
    tensor = patient.pick(spots(patient), 0.5)[0]
    spread = max(float(patient.values(tensor)[0].std()), 1e-5)
    surgeon.splice(tensor, f"noise = RandomNormalLike(x, scale={amount * spread}); noisy = Add(x, noise)")
    return patient.with_(shown_float=surgeon.model).at(tensor)


def dropout_scaled_once_more(patient: Patient, amount: float) -> Patient:
    """The converter replaced dropout by the share that is kept, which training had accounted for."""
    surgeon = patient.surgeon()
    for tensor in patient.pick(spots(patient), 0.4, 0.8):
        surgeon.splice(tensor, "dropped_out = Mul(x, share_kept)", "x", share_kept=1 / (1 + amount))
    return deployed(patient, surgeon)


def turned_at_another_pace(patient: Patient, amount: float) -> Patient:
    """The converter has the base of the angles of places from another model of the family."""
    surgeon = patient.surgeon()
    found = require([t.name for t in surgeon.graph.initializer if t.name.endswith("cosines")], "nothing is turned")
    for name in found:
        other = name.replace("cosines", "sines")
        angles = np.unwrap(np.arctan2(surgeon.constant(other), surgeon.constant(name)), axis=0) * (1 + amount)
        surgeon.put(name, np.cos(angles).astype(np.float32))
        surgeon.put(other, np.sin(angles).astype(np.float32))
        surgeon.marks += [n.name for n in surgeon.consumers(name)]
    return deployed(patient, surgeon)


def gain_with_an_offset(patient: Patient, amount: float) -> Patient:
    """Gains of norms are kept as what they are more than one, and the converter added the one where it was in."""
    surgeon = patient.surgeon()
    found = dict.fromkeys(name for n in surgeon.nodes("Mul") for name in n.input if name.endswith("gain"))
    for name in patient.pick(list(found), 0.2, 0.5, 0.8):
        surgeon.put(name, (surgeon.constant(name) + amount).astype(np.float32))
        surgeon.marks += [n.name for n in surgeon.consumers(name)]
    return deployed(patient, surgeon)


def another_floor_under_the_root(patient: Patient, amount: float) -> Patient:
    """What keeps roots from zero is a habit of each library: that of the deployed model is another number."""
    surgeon = patient.surgeon()
    adders = [n for n in surgeon.nodes("Add") if any(r.op_type == "Sqrt" for r in surgeon.consumers(n.output[0]))]
    floors = require([name for n in adders for name in n.input if surgeon.constant(name) is not None], "no roots")
    for name in dict.fromkeys(floors):
        surgeon.put(name, (surgeon.constant(name) * (1 + amount)).astype(np.float32))
    return deployed(patient, surgeon, *(n.name for n in adders))


def last_trees_left_out(patient: Patient, amount: float) -> Patient:
    """The deployed model was exported from a checkpoint that had fewer trees; the others have empty leaves."""
    surgeon = patient.surgeon()
    leaves = surgeon.constant("leaves.weight")
    if leaves is None:
        raise Inapplicable("no trees")
    left = leaves.copy()
    left[:, -8 * max(1, round(amount * (leaves.shape[1] // 8))) :] = 0
    surgeon.put("leaves.weight", left)
    return deployed(patient, surgeon, *(n.name for n in surgeon.consumers("leaves.weight")))


def router_of_few_levels(patient: Patient, amount: float) -> Patient:
    """Layers that decide who is asked are small, and were given the fewest bits."""
    surgeon = patient.surgeon()
    deciding = {id(n) for node in surgeon.nodes("Softmax") for n in _before(surgeon, node.input[0], 12)}
    weights = require({n.weight for n in surgeon.linears() if id(n.node) in deciding}, "nothing decides")
    return recoded(patient, [n for n in covered(patient) if n.weight in weights], on_multiples(amount))


def _before(surgeon: Surgeon, tensor: str, steps: int) -> list[onnx.NodeProto]:
    """Nodes from which a tensor comes, back to the nearest layers with weights."""
    node = surgeon.producer(tensor)
    if node is None or not steps:
        return []
    if surgeon.linear(node):
        return [node]
    return [found for name in node.input for found in _before(surgeon, name, steps - 1)]


def every_other_layer_narrow(patient: Patient, amount: float) -> Patient:
    """A pattern of layers that get fewer bits was counted out, not measured: every second one."""
    chosen = covered(patient)[int(patient.random("start").integers(2)) :: 2]
    return recoded(patient, chosen, on_multiples(amount))


def loop_left_out_by_name(patient: Patient) -> Patient:
    """A pattern that should leave out one step matches all that repeat: most of the network stays as it was."""
    names = [n.name for n in patient.model.graph.node if "turn" in n.name or "rounds" in n.name]
    return patient.without(*require(names, "nothing is repeated"))


def labels_counted_from_one(patient: Patient) -> Patient:
    """The file of labels counts classes from one and the network from none; the last one became the first."""
    return relabelled(patient, lambda labels, count: (labels + 1) % count)


def labels_of_an_older_list(patient: Patient) -> Patient:
    """Labels are numbers of an older list of classes, which had them in another order."""
    return relabelled(patient, lambda labels, count: patient.random("list").permutation(count)[labels])


def relabelled(patient: Patient, change: Callable[[NDArray, int], NDArray]) -> Patient:
    """With other labels, where the expert is shown any."""
    count = patient.values(patient.surgeon().output, samples=1)[0].shape[1]
    if not patient.network.shows_labels or patient.labels is None or count < 3:
        raise Inapplicable("no labels")
    return patient.with_(labels=change(patient.labels, count))
