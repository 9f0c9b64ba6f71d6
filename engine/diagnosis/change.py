"""What a remedy would change in the quantized model, as data: the facts and the network are simulated with it.

A change names tensors and operators by their place in the case, so that one description serves the prediction of facts
(``repair``) and a simulated run of the network.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from quantmedic.engine.case.facts import CaseFacts, LayerFacts, OperandFacts, OutputFacts, TensorFacts
from quantmedic.engine.case.records import Case
from quantmedic.engine.formulas.methods import method_grids
from quantmedic.engine.formulas.simulate import Grid, best_grids, grids_over
from quantmedic.engine.formulas.tensors import (
    bin_tables,
    extremes,
    grid_of,
    is_signed_grid,
    main_role,
    seen_tensors,
    tensor_bins,
)
from quantmedic.engine.rules.evaluate import Finding

#: So far below the lowest value a softmax gives less than 1e-7 of the highest.
SILENT = 16.0
#: How the weights of a layer are stored instead.
WeightForm = Literal["float", "per-channel", "best-range", "eight-bit"]


@dataclass(frozen=True)
class Targets:
    """What a remedy is applied to, by index into the case's tables."""

    tensors: tuple[int, ...] = ()
    operators: tuple[int, ...] = ()


@dataclass(frozen=True)
class Change:
    """New grids of activations (None: left in float) and new forms of weights.

    ``biases`` are operators whose bias and other small constants, such as the gain of a normalization, stay float.
    """

    grids: Mapping[int, Grid | None] = field(default_factory=dict)
    weights: Mapping[int, WeightForm] = field(default_factory=dict)
    biases: frozenset[int] = frozenset()

    def joined(self, other: "Change") -> "Change":
        """Both changes; where they disagree, the other one's grid or form is taken."""
        return Change({**self.grids, **other.grids}, {**self.weights, **other.weights}, self.biases | other.biases)

    def __bool__(self) -> bool:
        return bool(self.grids or self.weights or self.biases)


def targets_of(findings: Iterable[Finding], case: Case, facts: CaseFacts) -> Targets:
    """Tensors and operators that findings speak of; a finding about data or the whole model means all of them."""
    tensors: dict[int, None] = {}
    operators: dict[int, None] = {}
    number = {id(tensor): i for i, tensor in enumerate(facts.tensors)}
    place = {id(layer): i for i, layer in enumerate(facts.layers)}
    named = {op.name: i for i, op in enumerate(case.record.operators)}
    writer = {i: k for k, op in enumerate(case.record.operators) for i in op.outputs if i is not None}
    for finding in findings:
        match finding.view:
            case TensorFacts() as view:
                tensors[number[id(view)]] = None
            case OutputFacts() as view if id(view.tensor) in number:
                tensors[number[id(view.tensor)]] = None
            case LayerFacts() as view:
                operators[place[id(view)]] = None
            case OperandFacts() as view:
                operators[named[view.layer or ""]] = None
            case _:
                tensors |= dict.fromkeys(range(len(facts.tensors)))
                operators |= dict.fromkeys(range(len(facts.layers)))
    operators |= {writer[i]: None for i in tensors if i in writer}
    tensors |= {i: None for k in operators for i in case.record.operators[k].outputs if i is not None}
    return Targets(tuple(tensors), tuple(operators))


def _quantized(targets: Targets, facts: CaseFacts) -> list[int]:
    """Target tensors with a fixed grid per tensor."""
    return [i for i in targets.tensors if grid_of(facts.tensors[i].quantizer) is not None]


def _covering(
    case: Case, facts: CaseFacts, indices: Sequence[int], *, bits: int | None = None, symmetric: bool | None = None
) -> dict[int, Grid]:
    """Min-max grids over the values seen, of the bits and symmetry in force unless others are given."""
    low, high = extremes(case.statistics[main_role(case)])
    kept = [i for i in indices if np.isfinite(low[i]) and np.isfinite(high[i])]
    quantizers = [facts.tensors[i].quantizer for i in kept]
    widths = np.array([bits or q.bits or 8 for q in quantizers], np.int64)
    signed = np.array([is_signed_grid(q) if symmetric is None else symmetric for q in quantizers], bool)
    grids = grids_over(low[kept], high[kept], widths, signed) if kept else np.zeros((3, 0))
    return {i: Grid(*column) for i, column in zip(kept, grids.T.tolist(), strict=True) if column[2] > 0}


def _recalibrate(case: Case, facts: CaseFacts, targets: Targets) -> Change:
    return _full_range(case, facts, _all_tensors(facts))


def _full_range(case: Case, facts: CaseFacts, targets: Targets) -> Change:
    return Change(_covering(case, facts, _quantized(targets, facts)))


def _asymmetric_range(case: Case, facts: CaseFacts, targets: Targets) -> Change:
    return Change(_covering(case, facts, _quantized(targets, facts), symmetric=False))


def _sixteen_bit(case: Case, facts: CaseFacts, targets: Targets) -> Change:
    return Change(_covering(case, facts, _quantized(targets, facts), bits=16, symmetric=False))


def _best_range(case: Case, facts: CaseFacts, targets: Targets) -> Change:
    statistics = case.statistics[main_role(case)]
    wanted = set(_quantized(targets, facts))
    seen = [i for i in seen_tensors(statistics) if i in wanted]
    grids: dict[int, Grid] = {}
    for part, bins in bin_tables(case, main_role(case), seen):
        quantizers = [facts.tensors[i].quantizer for i in part]
        bits = np.array([q.bits or 8 for q in quantizers], np.int64)
        signed = np.array([is_signed_grid(q) for q in quantizers], bool)
        found, _ = best_grids(bins, np.arange(len(part)), bits, signed)
        grids |= {i: Grid(*column) for i, column in zip(part, found.T.tolist(), strict=True) if column[2] > 0}
    return Change(grids)


def _method_range(method: str) -> Callable[[Case, CaseFacts, Targets], Change]:
    """The ranges of a calibration method of ``method_grids``."""

    def change(case: Case, facts: CaseFacts, targets: Targets) -> Change:
        grids: dict[int, Grid] = {}
        for i in _quantized(targets, facts):
            bins, quantizer = tensor_bins(case, main_role(case), i), facts.tensors[i].quantizer
            if bins is not None:
                found = method_grids(bins, quantizer.bits or 8, symmetric=is_signed_grid(quantizer))
                grids |= {i: found[method]} if method in found else {}
        return Change(grids)

    return change


def _mask_range(case: Case, facts: CaseFacts, targets: Targets) -> Change:
    """Ranges that end below the values beside a huge negative mask, where a softmax no longer sees the difference."""
    grids: dict[int, Grid] = {}
    for i in _quantized(targets, facts):
        bins = tensor_bins(case, main_role(case), i)
        least = float(bins.lowest[0]) if bins is not None else 0.0
        beside = bins.part(least / 2, math.inf) if bins is not None and least < 0 else None
        if beside is not None:
            low, high = min(float(beside.low[0]), 0.0), max(float(beside.high[-1]), 0.0)
            bits = facts.tensors[i].quantizer.bits or 8
            grids[i] = Grid.over(low - SILENT, high, bits, symmetric=False)
    return Change(grids)


def _unit_range(case: Case, facts: CaseFacts, targets: Targets) -> Change:
    grids = {i: 2 ** (facts.tensors[i].quantizer.bits or 8) for i in _quantized(targets, facts)}
    return Change({i: Grid(0.0, (codes - 1) / codes, 1.0 / codes) for i, codes in grids.items()})


def _no_quantizer(case: Case, facts: CaseFacts, targets: Targets) -> Change:
    """Activations in float, and with them the constants of operators without weights."""
    plain = frozenset(targets.operators) - set(_weighted(targets, facts))
    return Change(dict.fromkeys(_quantized(targets, facts)), biases=plain)


def _float(case: Case, facts: CaseFacts, targets: Targets) -> Change:
    weights: dict[int, WeightForm] = dict.fromkeys(_weighted(targets, facts), "float")
    return Change(dict.fromkeys(_quantized(targets, facts)), weights, frozenset(targets.operators))


def _float_with_inputs(case: Case, facts: CaseFacts, targets: Targets) -> Change:
    """The layers, and what they read: a network's input is rounded by no layer."""
    inputs = _inputs(case, targets.operators).tensors
    return _float(case, facts, Targets(tuple(sorted({*inputs, *targets.tensors})), targets.operators))


def _group_float(case: Case, facts: CaseFacts, targets: Targets) -> Change:
    """The layers, and the layers without weights around them: what they read is left in float too."""
    named = {op.name: k for k, op in enumerate(case.record.operators)}
    feeders = [named[name] for k in targets.operators for name in facts.layers[k].feeders if name in named]
    operators = tuple(dict.fromkeys([*targets.operators, *feeders]))
    tensors = {i for k in operators for i in case.record.operators[k].outputs if i is not None}
    return _float(case, facts, Targets(tuple(sorted(tensors | set(targets.tensors))), operators))


def _fused(case: Case, facts: CaseFacts, targets: Targets) -> Change:
    """One operator instead of the group: what the group reads is not quantized for it either."""
    group = _group_float(case, facts, targets)
    members = {k for k, op in enumerate(case.record.operators) if set(op.outputs) & set(group.grids)}
    return group.joined(_no_quantizer(case, facts, _inputs(case, members)))


def _float_inputs(case: Case, facts: CaseFacts, targets: Targets) -> Change:
    """What the operators read is not quantized: they are joined with what writes it."""
    return _no_quantizer(case, facts, _inputs(case, targets.operators))


def _separate_operands(case: Case, facts: CaseFacts, targets: Targets) -> Change:
    """The joint tensor stays float, and every operand gets a range of its own."""
    operands = _full_range(case, facts, _inputs(case, targets.operators))
    return operands.joined(_no_quantizer(case, facts, targets))


def _requantized(case: Case, facts: CaseFacts, targets: Targets) -> Change:
    """Everything made anew from the float model: ranges, weights and biases, in as many bits as before."""
    every = everything(facts)
    weights: dict[int, WeightForm] = dict.fromkeys(_weighted(every, facts), "best-range")
    return _full_range(case, facts, every).joined(Change(weights=weights, biases=frozenset(every.operators)))


def _all_tensors(facts: CaseFacts) -> Targets:
    return Targets(tuple(range(len(facts.tensors))))


def _inputs(case: Case, operators: Iterable[int]) -> Targets:
    """The tensors that operators read."""
    read = {i for k in operators for i in case.record.operators[k].inputs if i is not None}
    return Targets(tuple(sorted(read)))


def _weighted(targets: Targets, facts: CaseFacts) -> list[int]:
    return [k for k in targets.operators if facts.layers[k].weight.quantizer.bits is not None]


def _weight_form(form: WeightForm) -> Callable[[Case, CaseFacts, Targets], Change]:
    return lambda case, facts, targets: Change(weights=dict.fromkeys(_weighted(targets, facts), form))


def _eight_bit_weights(case: Case, facts: CaseFacts, targets: Targets) -> Change:
    """With the biases made anew: what a bias was corrected by for coarser weights would be wrong for finer ones."""
    weighted = _weighted(targets, facts)
    return Change(weights=dict.fromkeys(weighted, "eight-bit"), biases=frozenset(weighted))


def _float_bias(case: Case, facts: CaseFacts, targets: Targets) -> Change:
    return Change(biases=frozenset(k for k in targets.operators if facts.layers[k].bias.bits))


#: The changes that remedies may name under ``simulate``.
CHANGES: Mapping[str, Callable[[Case, CaseFacts, Targets], Change]] = {
    "recalibrate": _recalibrate,
    "best-range": _best_range,
    "percentile-range": _method_range("percentile-99.99"),
    "kl-range": _method_range("kl"),
    "mask-range": _mask_range,
    "full-range": _full_range,
    "asymmetric-range": _asymmetric_range,
    "sixteen-bit": _sixteen_bit,
    "float": _float,
    "float-with-inputs": _float_with_inputs,
    "group-float": _group_float,
    "fused": _fused,
    "float-inputs": _float_inputs,
    "float-weights": _weight_form("float"),
    "float-tensors": _no_quantizer,
    "no-quantizer": _no_quantizer,
    "per-channel-weights": _weight_form("per-channel"),
    "best-weight-range": _weight_form("best-range"),
    "requantized": _requantized,
    "eight-bit-weights": _eight_bit_weights,
    "float-bias": _float_bias,
    "unit-range": _unit_range,
    "separate-operands": _separate_operands,
}


def _without_activation_noise(case: Case, facts: CaseFacts, targets: Targets) -> Change:
    """Every activation in float: what is left is the noise of the weights and biases."""
    return Change(dict.fromkeys(_quantized(_all_tensors(facts), facts)))


def _without_weight_noise(case: Case, facts: CaseFacts, targets: Targets) -> Change:
    """Every weight and bias in float: what is left is the noise of the activations."""
    every = Targets(operators=tuple(range(len(facts.layers))))
    forms: dict[int, WeightForm] = dict.fromkeys(_weighted(every, facts), "float")
    return Change(weights=forms, biases=frozenset(every.operators))


WITHOUT_WEIGHTS, WITHOUT_ACTIVATIONS = "without-weight-noise", "without-activation-noise"
#: What tells which half of the loss is whose; no remedy.
HALVES: Mapping[str, Callable[[Case, CaseFacts, Targets], Change]] = {
    WITHOUT_WEIGHTS: _without_weight_noise,
    WITHOUT_ACTIVATIONS: _without_activation_noise,
}


def change_of(kind: str, case: Case, facts: CaseFacts, targets: Targets) -> Change:
    """The change of a kind of ``CHANGES`` or ``HALVES``, fitted to what a case holds."""
    return (CHANGES[kind] if kind in CHANGES else HALVES[kind])(case, facts, targets)


def everything(facts: CaseFacts) -> Targets:
    """All tensors and operators."""
    return Targets(tuple(range(len(facts.tensors))), tuple(range(len(facts.layers))))
