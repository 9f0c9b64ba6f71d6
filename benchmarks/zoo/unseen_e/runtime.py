"""Unseen faults of precision and of the runtime, set E."""

import numpy as np
import onnx

from ..fault import fault
from ..faults_activations import extremes
from ..mild import mild, severe
from ..patient import Patient
from ..quantizing import run
from ..surgery import Inapplicable, Surgeon
from ..unseen_a.cuts import kept
from .activations import free, on_coarse_grids


@fault(
    "scores-in-few-levels",
    "precision",
    "too-few-activation-bits",
    graded=True,
    unseen="e",
    also=("poor-threshold", "sensitive-operator"),
)
@mild(1, 60)
def scores_in_few_levels(patient: Patient, amount: float) -> Patient:
    """What a softmax reads was given fewer bits than the rest, since only its order seemed to matter."""
    surgeon, usual = patient.surgeon(), set(patient.activations())
    found = [node.input[0] for node in surgeon.nodes("Softmax") if node.input[0] in usual]
    if not found:
        raise Inapplicable("no scores")
    return on_coarse_grids(patient, found, [amount])


@fault(
    "late-half-narrow",
    "precision",
    "too-few-activation-bits",
    graded=True,
    unseen="e",
    also=("smooth-accumulation", "poor-threshold", "coarse-output"),
)
@mild(1, 40)
def late_half_narrow(patient: Patient, amount: float) -> Patient:
    """The memory for bits was shared out from the front: activations of the later half of the network have few."""
    tensors = free(patient)
    return on_coarse_grids(patient, tensors[len(tensors) // 2 :], [amount])


@fault(
    "sums-that-wrap",
    "runtime",
    "accumulator-overflow",
    "simulator-differs-from-device",
    graded=True,
    unseen="e",
    also=("over-clipped-activations", "layer-worse-than-peers", "runtime-changes-result", "altered-float-tensors"),
)
@severe(0.02, 60)
def sums_that_wrap(patient: Patient, amount: float) -> Patient:
    """The sums of products of some layers have a narrow accumulator: beyond its end they go on at the other one."""
    names = {linear.node.output[0] for linear in patient.surgeon().linears()}
    chosen = patient.pick([t for t in free(patient) if t in names], 0.3, 0.7)
    limits = dict(zip(chosen, extremes(patient, *chosen), strict=True))

    def edit(p: Patient, quantized: onnx.ModelProto) -> onnx.ModelProto:
        surgeon = Surgeon(quantized)
        for tensor, ends in limits.items():
            if surgeon.producer(tensor) is None:
                raise Inapplicable(f"{tensor} is fused")
            round_trip = np.float32(2 * max(abs(end) for end in ends) / (1 + amount))
            width = surgeon.put(f"{tensor}_width", round_trip)
            wrapped = f"{tensor}_wrapped"
            surgeon.reroute(tensor, wrapped)
            share = surgeon.add("Div", [tensor, width], f"{tensor}_turns", surgeon.producer(tensor))
            turns = surgeon.add("Round", [share], f"{tensor}_whole_turns", surgeon.producer(share))
            over = surgeon.add("Mul", [turns, width], f"{tensor}_over", surgeon.producer(turns))
            surgeon.add("Sub", [tensor, over], wrapped, surgeon.producer(over))
        return surgeon.model

    return patient.with_(recipe=kept(patient.recipe)).at(*chosen).edited(edit)


def on_the_board(patient: Patient, outputs: list[np.ndarray]) -> Patient:
    """With outputs that were recorded on a device."""
    names = [value.name for value in patient.model.graph.output]
    return patient.with_(options={**patient.options, "device_outputs": dict(zip(names, outputs, strict=True))})


@fault("board-one-sample-late", "runtime", "simulator-differs-from-device", harms=False, unseen="e")
def board_one_sample_late(patient: Patient) -> Patient:
    """The board hands out what it computed for the sample before: a buffer is read too early."""
    outputs = run(patient.network, patient.quantized(), patient.validation)
    return on_the_board(patient, [np.roll(x, 1, 0) for x in outputs])


@fault("board-without-lower-bits", "runtime", "simulator-differs-from-device", harms=False, unseen="e")
def board_without_lower_bits(patient: Patient) -> Patient:
    """The board drops some bits of what it hands out; the model on the desk is sound."""
    outputs = run(patient.network, patient.quantized(), patient.validation)
    levels = 2.0 ** int(patient.random("board").integers(2, 5))
    steps = [np.float32((x.max() - x.min()) / levels) for x in outputs]
    return on_the_board(patient, [np.floor(x / s) * s for x, s in zip(outputs, steps, strict=True)])
