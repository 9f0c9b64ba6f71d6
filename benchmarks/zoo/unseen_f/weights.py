"""Unseen faults of weights and of other constants, set F."""

from dataclasses import replace

import numpy as np
import onnx
from numpy.typing import NDArray

from ..fault import fault
from ..mild import mild, severe
from ..patient import Patient
from ..surgery import Inapplicable, Linear, Surgeon
from ..unseen_a.cuts import at_layers, covered, recoded
from ..unseen_e.weights import deployed, inner

#: Names for a constant that is not that of the float model.
FOREIGN = ("foreign-constant", "foreign-weights", "float-export-differs")


@fault(
    "one-turn-untied",
    "weights",
    "foreign-weights",
    "float-export-differs",
    graded=True,
    unseen="f",
    also=("altered-float-tensors", "layer-worse-than-peers", "error-amplifier"),
)
@mild(0.001, 3)
def one_turn_untied(patient: Patient, amount: float) -> Patient:
    """Weights that serve at every turn were written out once for each, and one copy is from an earlier step."""
    surgeon = patient.surgeon()
    tied = [n for n in surgeon.linears() if len(surgeon.consumers(n.weight)) > 1]
    linear = patient.pick(tied, 0.5)[0]
    weight = surgeon.constant(linear.weight)
    drift = amount * weight.std() * patient.random("drift").standard_normal(weight.shape)
    surgeon.put(surgeon.own(linear, 1), (weight + drift).astype(np.float32))
    return deployed(patient, surgeon, linear.node.name)


@fault(
    "differences-that-overflow",
    "weights",
    "foreign-weights",
    "misread-codes",
    graded=True,
    unseen="f",
    also=("too-few-weight-bits", "layer-worse-than-peers", "over-clipped-activations", "altered-float-tensors"),
)
@mild(0.5, 60)
def differences_that_overflow(patient: Patient, amount: float) -> Patient:
    """For the download each code is stored less the one before, in a few bits: where codes jump, they lag behind."""
    bound = 127 / amount

    def change(codes: NDArray, _: Linear) -> NDArray:
        flat, last = codes.reshape(-1).copy(), 0.0
        for i, code in enumerate(flat):
            last += np.clip(code - last, -bound, bound)
            flat[i] = last
        return flat.reshape(codes.shape)

    return recoded(patient, patient.pick(covered(patient), 0.2, 0.5, 0.8), change)


@fault(
    "scales-of-another-group",
    "weights",
    "misread-codes",
    "foreign-weights",
    graded=True,
    unseen="f",
    also=("wrong-channel-axis", "layer-worse-than-peers", "altered-float-tensors", "channel-range-imbalance"),
)
@mild(0.01, 2)
def scales_of_another_group(patient: Patient, amount: float) -> Patient:
    """Inputs were put in order of size before weights were rounded in groups, and the groups' scales were not."""

    def change(codes: NDArray, linear: Linear) -> NDArray:
        inputs = np.moveaxis(codes, linear.into, 0)
        groups = np.array_split(np.arange(len(inputs)), max(2, len(inputs) // 4))
        size = np.stack([np.abs(inputs[group]).max(0) + 1 for group in groups])
        ratio = (np.roll(size, 1, 0) / size) ** amount
        moved = np.concatenate([inputs[group] * factor for group, factor in zip(groups, ratio, strict=True)])
        return np.moveaxis(moved, 0, linear.into)

    found = [n for n in covered(patient) if not n.depthwise and _inputs(patient, n) >= 8]
    return recoded(patient, patient.pick(found, 0.3, 0.7), change)


def _inputs(patient: Patient, linear: Linear) -> int:
    return int(patient.surgeon().constant(linear.weight).shape[linear.into])


@fault(
    "no-code-for-zero",
    "weights",
    "too-few-weight-bits",
    "foreign-weights",
    graded=True,
    unseen="f",
    also=("weight-induced-bias-shift", "layer-worse-than-peers", "misread-codes"),
)
@mild(1, 90)
def no_code_for_zero(patient: Patient, amount: float) -> Patient:
    """Levels lie evenly on either side of zero and none on it, as the unit wants: what was none is half a level."""

    def change(codes: NDArray, _: Linear) -> NDArray:
        return (np.floor(codes / amount) + 0.5) * amount

    return recoded(patient, patient.pick(covered(patient), 0.2, 0.5, 0.8), change)


@fault(
    "rows-shifted-by-one",
    "weights",
    "foreign-weights",
    "misread-codes",
    "float-export-differs",
    graded=True,
    unseen="f",
    also=("altered-float-tensors", "layer-worse-than-peers", "wrong-channel-axis"),
)
@severe(0.005, 1)
def rows_shifted_by_one(patient: Patient, amount: float) -> Patient:
    """Sparse rows list the places of their weights, counted from one here and from none there."""
    linear = patient.pick([n for n in covered(patient) if not n.depthwise], 0.5)[0]

    def change(codes: NDArray, _: Linear) -> NDArray:
        rows = np.moveaxis(codes, linear.out, 0).copy()
        some = patient.random("rows").permutation(len(rows))[: max(1, round(min(amount, 1) * len(rows)))]
        along = 0 if linear.into > linear.out else linear.into
        rows[some] = np.roll(rows[some], 1, 1 + along)
        return np.moveaxis(rows, 0, linear.out)

    return recoded(patient, [linear], change)


@fault(
    "zero-point-folded-in-wrongly",
    "weights",
    "weight-induced-bias-shift",
    "misread-codes",
    "foreign-weights",
    graded=True,
    unseen="f",
    also=("stale-calibration", "layer-worse-than-peers", "altered-float-tensors"),
)
@mild(0.1, 300)
def zero_point_folded_in_wrongly(patient: Patient, amount: float) -> Patient:
    """What the zero point of the inputs adds was folded into the bias, for a zero point that is some codes off."""
    chosen = patient.pick([n for n in covered(patient) if n.bias], 0.2, 0.5, 0.8)

    def edit(p: Patient, quantized: onnx.ModelProto) -> onnx.ModelProto:
        surgeon = Surgeon(quantized)
        for linear in chosen:
            bias, weight = (surgeon.constant(f"{name}_quantized") for name in (linear.bias, linear.weight))
            if bias is None or weight is None:
                raise Inapplicable(f"{linear.bias} has no codes")
            sums = np.moveaxis(weight.astype(np.float64), linear.out, 0).reshape(len(bias), -1).sum(1)
            moved = np.rint(bias + amount * sums).clip(-(2**31) + 1, 2**31 - 1)
            surgeon.put(f"{linear.bias}_quantized", moved.astype(bias.dtype))
        return surgeon.model

    recipe = replace(patient.recipe, qoperator=False, weight="QInt8")
    return at_layers(patient.with_(recipe=recipe), chosen).edited(edit)


@fault(
    "thresholds-with-few-decimals",
    "weights",
    "weight-induced-bias-shift",
    *FOREIGN,
    graded=True,
    unseen="f",
    also=("altered-float-tensors", "layer-worse-than-peers"),
)
@mild(0.02, 12)
def thresholds_with_few_decimals(patient: Patient, amount: float) -> Patient:
    """Biases went through a table in a document, with few decimals, on their way into what was deployed."""
    surgeon = patient.surgeon()
    found = [n for n in inner(patient, surgeon) if n.bias]
    if not found:
        raise Inapplicable("no biases")
    for linear in found:
        bias = surgeon.constant(linear.bias)
        step = amount * bias.std()
        surgeon.put(linear.bias, (np.rint(bias / step) * step).astype(np.float32))
    return deployed(patient, surgeon, *(n.node.name for n in found))


@fault(
    "addends-of-an-earlier-epoch",
    "weights",
    *FOREIGN,
    "weight-induced-bias-shift",
    graded=True,
    unseen="f",
    also=("altered-float-tensors", "layer-worse-than-peers"),
)
@mild(0.005, 4)
def addends_of_an_earlier_epoch(patient: Patient, amount: float) -> Patient:
    """The file of weights is the last one, but what is added beside the products was taken from an earlier one."""
    surgeon = patient.surgeon()
    found = [name for n in surgeon.nodes("Add") for name in n.input if _is_vector(surgeon.constant(name))]
    chosen = patient.pick(list(dict.fromkeys(found)), 0.3, 0.7)
    for name in chosen:
        value = surgeon.constant(name)
        drift = amount * value.std() * patient.random(name).standard_normal(value.shape)
        surgeon.put(name, (value + drift).astype(np.float32))
    return deployed(patient, surgeon, *(n.name for name in chosen for n in surgeon.consumers(name)))


def _is_vector(value: NDArray | None) -> bool:
    return value is not None and value.dtype == np.float32 and value.size > 4


@fault(
    "places-a-little-on",
    "weights",
    *FOREIGN,
    graded=True,
    unseen="f",
    also=("altered-float-tensors", "layer-worse-than-peers", "stage-loses-accuracy", "operator-departs"),
)
@mild(0.02, 1)
def places_a_little_on(patient: Patient, amount: float) -> Patient:
    """A table of what is added at each place was stretched by another rule: each place is a part of the next one on."""
    surgeon = patient.surgeon()
    table = surgeon.constant("places")
    if table is None:
        raise Inapplicable("places have no table")
    share = min(amount, 1.0)
    surgeon.put("places", ((1 - share) * table + share * np.roll(table, -1, 3)).astype(np.float32))
    return deployed(patient, surgeon, *(n.name for n in surgeon.consumers("places")))


@fault(
    "statistics-of-another-extract",
    "weights",
    *FOREIGN,
    graded=True,
    unseen="f",
    also=("altered-float-tensors", "preprocessing-mismatch", "stage-loses-accuracy", "domain-shift"),
)
@mild(0.003, 3)
def statistics_of_another_extract(patient: Patient, amount: float) -> Patient:
    """The graph takes off means and divides by spreads, and those of the deployed model are of another extract."""
    surgeon, rng = patient.surgeon(), patient.random("extract")
    centre, size = surgeon.constant("centre"), surgeon.constant("size")
    if centre is None or size is None:
        raise Inapplicable("nothing is standardized")
    surgeon.put("centre", (centre + amount / size * rng.standard_normal(centre.shape)).astype(np.float32))
    surgeon.put("size", (size * np.exp(amount * rng.standard_normal(size.shape))).astype(np.float32))
    return deployed(patient, surgeon, *(n.name for name in ("centre", "size") for n in surgeon.consumers(name)))


@fault(
    "bits-where-weights-serve-once",
    "precision",
    "too-few-weight-bits",
    graded=True,
    unseen="f",
    also=("smooth-accumulation", "error-amplifier", "layer-worse-than-peers"),
)
@mild(1, 120)
def bits_where_weights_serve_once(patient: Patient, amount: float) -> Patient:
    """Traffic was counted to share out bits: weights that are read again at every turn got the fewest."""
    surgeon = patient.surgeon()
    chosen = [n for n in covered(patient) if len(surgeon.consumers(n.weight)) > 1]
    if not chosen:
        raise Inapplicable("nothing is read twice")
    return recoded(patient, chosen, lambda codes, _: np.rint(np.rint(codes / amount) * amount))
