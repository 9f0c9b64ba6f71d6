"""Unseen faults of activation ranges and of the bits of activations, set F."""

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from ..fault import fault
from ..faults_activations import extremes
from ..mild import costly, mild
from ..patient import Patient
from ..surgery import Inapplicable, Surgeon
from ..unseen_a.cuts import kept, per_channel
from ..unseen_e.activations import free, on_coarse_grids


def read_back(surgeon: Surgeon, tensor: str) -> str:
    """What readers see of a quantized tensor.

    Raises:
        Inapplicable: It is not quantized.
    """
    writer = next((n for n in surgeon.consumers(tensor) if n.op_type == "QuantizeLinear"), None)
    if writer is None:
        raise Inapplicable(f"{tensor} is not quantized")
    return str(surgeon.consumers(writer.output[0])[0].output[0])


@fault(
    "ranges-in-order-of-names",
    "activations",
    "stale-calibration",
    "over-clipped-activations",
    unseen="f",
    also=("poor-threshold",),
)
@costly
def ranges_in_order_of_names(patient: Patient) -> Patient:
    """The table of ranges has no names, and one side sorts by name and the other by place: ten stands before two."""
    tensors = free(patient)
    start = int(patient.random("names").integers(max(1, len(tensors) - 5)))
    some = tensors[start : start + 6]
    ends = dict(zip(some, extremes(patient, *some), strict=True))
    moved = [(t, ends[other]) for t, other in zip(some, sorted(some), strict=True) if t != other]
    if not moved:
        raise Inapplicable("both orders are the same")
    recipe = kept(patient.recipe)
    for tensor, (low, high) in moved:
        recipe = recipe.with_range(tensor, low, max(high, 1e-5))
    return patient.with_(recipe=recipe).at(*(tensor for tensor, _ in moved))


@fault(
    "ranges-by-kind-of-operator",
    "activations",
    "over-clipped-activations",
    "stale-calibration",
    "poor-threshold",
    graded=True,
    unseen="f",
    also=("unbalanced-addition",),
)
@mild(0.02, 1)
def ranges_by_kind_of_operator(patient: Patient, amount: float) -> Patient:
    """The template has one range for each kind of operator: all that one makes get that of the narrowest among them."""
    surgeon, kinds = patient.surgeon(), {}
    for tensor in free(patient):
        kinds.setdefault(surgeon.producer(tensor).op_type, []).append(tensor)
    groups = [tensors for tensors in kinds.values() if len(tensors) > 2]
    if not groups:
        raise Inapplicable("operators are all of another kind")
    tensors = groups[int(patient.random("kind").integers(len(groups)))]
    ends = extremes(patient, *tensors)
    low, high = min(ends, key=lambda pair: pair[1] - pair[0])
    recipe, share = kept(patient.recipe), min(amount, 1.0)
    for tensor, own in zip(tensors, ends, strict=True):
        moved = [(1 - share) * end + share * shared for end, shared in zip(own, (low, high), strict=True)]
        recipe = recipe.with_range(tensor, moved[0], max(moved[1], 1e-5))
    return patient.with_(recipe=recipe).at(*tensors)


@fault(
    "ends-of-one-digit",
    "activations",
    "over-clipped-activations",
    unseen="f",
    also=("poor-threshold", "stale-calibration"),
)
@costly
def ends_of_one_digit(patient: Patient) -> Patient:
    """The table of ranges was printed with a digit for each end, and what came behind it was cut off, not rounded."""
    recipe = kept(patient.recipe)
    chosen = patient.pick(free(patient), 0.1, 0.3, 0.5, 0.7, 0.9)
    for tensor, ends in zip(chosen, extremes(patient, *chosen), strict=True):
        low, high = (_cut_digit(end) for end in ends)
        recipe = recipe.with_range(tensor, low, max(high, 1e-5))
    return patient.with_(recipe=recipe).at(*chosen)


def _cut_digit(end: float) -> float:
    if end == 0:
        return 0.0
    digit = 10.0 ** np.floor(np.log10(abs(end)))
    return float(np.sign(end) * np.floor(abs(end) / digit) * digit)


@fault(
    "centred-on-the-mean",
    "activations",
    "over-clipped-activations",
    graded=True,
    unseen="f",
    also=("poor-threshold", "stale-calibration"),
)
@mild(0.02, 1)
def centred_on_the_mean(patient: Patient, amount: float) -> Patient:
    """The script takes values to spread evenly about their mean: the longer side is cut where the shorter one ends."""
    chosen = patient.pick(free(patient), 0.2, 0.5, 0.8)
    recipe, share = kept(patient.recipe), min(amount, 1.0)
    for tensor, x in zip(chosen, patient.values(*chosen), strict=True):
        middle, ends = float(x.mean()), (float(x.min()), float(x.max()))
        reach = min(middle - ends[0], ends[1] - middle)
        low, high = (
            (1 - share) * end + share * moved for end, moved in zip(ends, (middle - reach, middle + reach), strict=True)
        )
        recipe = recipe.with_range(tensor, min(low, 0.0), max(high, 1e-5))
    return patient.with_(recipe=recipe).at(*chosen)


@fault(
    "kept-as-bytes-with-an-exponent",
    "activations",
    "too-few-activation-bits",
    "operator-departs",
    unseen="f",
    also=("smooth-accumulation", "poor-threshold", "misread-codes"),
)
@costly
def kept_as_bytes_with_an_exponent(patient: Patient) -> Patient:
    """Between operators the memory keeps floats of eight bits, of which two or three are for the fraction."""
    chosen = patient.pick(free(patient), 0.1, 0.35, 0.6, 0.85)

    def edit(p: Patient, quantized: onnx.ModelProto) -> onnx.ModelProto:
        surgeon = Surgeon(quantized)
        for tensor in chosen:
            last = read_back(surgeon, tensor)
            short = surgeon.insert_after(last, "Cast", (), f"{tensor}_byte", to=TensorProto.FLOAT8E5M2)
            surgeon.insert_after(short, "Cast", (), f"{tensor}_long_again", to=TensorProto.FLOAT)
        return surgeon.model

    return patient.with_(recipe=kept(patient.recipe)).at(*chosen).edited(edit)


@fault(
    "state-in-a-narrow-memory",
    "precision",
    "too-few-activation-bits",
    "smooth-accumulation",
    graded=True,
    unseen="f",
    also=("poor-threshold", "error-amplifier"),
)
@mild(1, 40)
def state_in_a_narrow_memory(patient: Patient, amount: float) -> Patient:
    """What is handed from turn to turn lies in a memory of few bits; what is computed within a turn has all."""
    states = [t for t in free(patient) if patient.surgeon().producer(t).op_type == "Mul"]
    if len(states) < 3:
        raise Inapplicable("nothing is repeated")
    return on_coarse_grids(patient, states, [amount])


@fault(
    "second-operand-narrow",
    "precision",
    "too-few-activation-bits",
    graded=True,
    unseen="f",
    also=("poor-threshold", "layer-worse-than-peers", "sensitive-operator"),
)
@mild(1, 60)
def second_operand_narrow(patient: Patient, amount: float) -> Patient:
    """The engine wants few bits for the second operand of a product, as of weights; here it is an activation."""
    surgeon = patient.surgeon()
    found = [n for n in surgeon.nodes("MatMul", "Mul") if all(surgeon.producer(t) is not None for t in n.input)]
    seconds = list(dict.fromkeys(n.input[1] for n in found if n.op_type == "MatMul")) or [n.input[1] for n in found]
    if not seconds:
        raise Inapplicable("no product of activations")
    return on_coarse_grids(patient, seconds, [amount])


@fault(
    "half-of-the-channels-narrow",
    "precision",
    "too-few-activation-bits",
    graded=True,
    unseen="f",
    also=("poor-threshold", "channel-outliers", "operator-departs", "coarse-output"),
)
@mild(1, 80)
def half_of_the_channels_narrow(patient: Patient, amount: float) -> Patient:
    """A search gave bits to channels, not to tensors, and half of the channels of some tensors have few levels."""
    chosen = patient.pick([t for t in free(patient) if _has_channels(patient, t)], 0.3, 0.6)

    def edit(p: Patient, quantized: onnx.ModelProto) -> onnx.ModelProto:
        surgeon, shapes = Surgeon(quantized), patient.surgeon()
        for tensor in chosen:
            writer = next((n for n in surgeon.consumers(tensor) if n.op_type == "QuantizeLinear"), None)
            if writer is None:
                raise Inapplicable(f"{tensor} is not quantized")
            step = np.full(shapes.channels(tensor), float(surgeon.constant(writer.input[1])))
            step[patient.random(tensor).permutation(len(step))[: len(step) // 2]] *= amount
            _round_channels(surgeon, read_back(surgeon, tensor), per_channel(shapes, tensor, step), tensor)
        return surgeon.model

    return patient.with_(recipe=kept(patient.recipe)).at(*chosen).edited(edit)


def _has_channels(patient: Patient, tensor: str) -> bool:
    try:
        return patient.surgeon().channels(tensor) > 1
    except Inapplicable:
        return False


def _round_channels(surgeon: Surgeon, tensor: str, step: NDArray, name: str) -> None:
    """Each channel to multiples of its own step."""
    name_of_step = surgeon.put(f"{name}_steps_of_channels", step.astype(np.float32))
    last = surgeon.insert_after(tensor, "Div", [name_of_step], f"{name}_in_steps")
    last = surgeon.insert_after(last, "Round", (), f"{name}_whole_steps")
    surgeon.insert_after(last, "Mul", [name_of_step], f"{name}_of_few_levels")


@fault(
    "answers-with-few-digits",
    "precision",
    "coarse-output",
    graded=True,
    unseen="f",
    also=("poor-threshold", "too-few-activation-bits", "operator-departs"),
)
@mild(0.002, 2)
def answers_with_few_digits(patient: Patient, amount: float) -> Patient:
    """The last operator hands out what fits into a short message: scores in steps, of which there are a few."""
    name = patient.surgeon().output
    step = np.float32(amount * patient.values(name)[0].std())

    def edit(p: Patient, quantized: onnx.ModelProto) -> onnx.ModelProto:
        surgeon = Surgeon(quantized)
        constant = surgeon.put("step_of_answers", step)
        for op, extra, made in (("Div", [constant], "in_steps"), ("Round", (), "whole"), ("Mul", [constant], "said")):
            surgeon.insert_after(name, op, extra, f"answers_{made}")
        return surgeon.model

    return patient.with_(recipe=kept(patient.recipe)).at(name).edited(edit)
