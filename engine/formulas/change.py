"""What a remedy would change in the quantized model, as data, and the functions that fit such a change to a case.

A change names tensors and operators by their place in the case. So one description serves three purposes: facts are
predicted with it, the network is simulated with it, and copies of the quantized model are edited by it. The functions
are listed in `engine/rules/remedy_kinds.py`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from quantmedic.engine.case.facts import CaseFacts, QuantizerFacts, TensorFacts
from quantmedic.engine.case.histogram import Bins
from quantmedic.engine.case.records import Case
from quantmedic.engine.formulas.fills import SILENT, beside_fill, range_of
from quantmedic.engine.formulas.methods import RangeMethod, Side, kl_ends, percentile_ends
from quantmedic.engine.formulas.simulate import AnyGrid, ChannelGrid, Grid, best_grids, grids_over
from quantmedic.engine.formulas.stored_bins import bin_tables, extremes, main_role, moments, seen_tensors, tensor_bins
from quantmedic.engine.formulas.tensors import grid_of, is_signed_grid, predicted_sqnr, quantized_for
from quantmedic.engine.operator_types import LAYOUTS, SELECTIONS

Floats = NDArray[np.float64]
#: How the weights of a layer are stored instead.
WeightForm = Literal["float", "per-channel", "best-range", "eight-bit"]
#: What is learned on samples: how weights are rounded, and the mean errors that biases make up for.
Learned = Literal["rounding", "biases"]


@dataclass(frozen=True)
class Targets:
    """What a remedy is applied to, by index into the case's tables."""

    tensors: tuple[int, ...] = ()
    operators: tuple[int, ...] = ()


@dataclass(frozen=True)
class Change:
    """New grids of activations (None: left in float) and new forms of weights.

    ``biases`` are operators whose bias and other small constants, such as the gain of a normalization, stay float.
    ``learned`` is fitted to samples once everything else is done, in all layers; it cannot be simulated.
    """

    grids: Mapping[int, AnyGrid | None] = field(default_factory=dict)
    weights: Mapping[int, WeightForm] = field(default_factory=dict)
    biases: frozenset[int] = frozenset()
    learned: frozenset[Learned] = frozenset()

    def join(self, other: "Change") -> "Change":
        """Both changes; where they disagree, the other one's grid or form is taken."""
        return Change(
            {**self.grids, **other.grids},
            {**self.weights, **other.weights},
            self.biases | other.biases,
            self.learned | other.learned,
        )

    def __bool__(self) -> bool:
        return bool(self.grids or self.weights or self.biases or self.learned)


#: A place is helped where what rounding leaves of its values is predicted to rise by this much, in dB.
HELPS_DB = 1.0
#: A bias that is off by more, in steps of its grid, is more than rounded.
ROUNDED_STEPS = 1.0
#: A correction that leaves a constant of more than this part of itself was not made for these data.
LEFT_OF_CORRECTION = 0.5
#: Scales and ends of ranges that differ by less, relative to the wider range, are the same setting.
SAME = 0.01
#: A method explains ranges of which it misses three in four by less, |log| of the ratio (what D013 calls stale, too).
EXPLAINED = 0.1
#: Where more of the ranges than this are min-max ranges, that is the method.
MOST = 0.5
#: Fits a change to what a case holds, for these targets.
ChangeFunction = Callable[[Case, CaseFacts, Targets], Change]


def _with_fixed_grid(targets: Targets, facts: CaseFacts) -> list[int]:
    """Target tensors with a fixed grid, for all values or for each channel."""
    quantizers = ((i, facts.tensors[i].quantizer) for i in targets.tensors)
    return [i for i, own in quantizers if grid_of(own) is not None or _is_per_channel(own)]


def _with_grid(targets: Targets, facts: CaseFacts) -> list[int]:
    """Target tensors with a grid, fixed or found at run time."""
    fixed = set(_with_fixed_grid(targets, facts))
    return [i for i in targets.tensors if i in fixed or facts.tensors[i].quantizer.dynamic]


def _is_per_channel(quantizer: QuantizerFacts) -> bool:
    """Every channel has a fixed uniform grid of its own."""
    is_uniform = quantizer.code_type is None and not quantizer.dynamic
    return is_uniform and quantizer.granularity == "per_channel" and bool(quantizer.bits)


def _min_max_grids(
    case: Case, facts: CaseFacts, indices: Sequence[int], *, symmetric: bool | None = None
) -> dict[int, AnyGrid]:
    """Min-max grids over the values seen, of the bits and, unless another is given, the symmetry in force."""
    found = _grids_between(*extremes(case.statistics[main_role(case)]), facts, indices, symmetric=symmetric)
    return {**found, **_channel_grids(case, facts, indices, symmetric=symmetric)}


def _channel_grids(
    case: Case,
    facts: CaseFacts,
    indices: Sequence[int],
    *,
    bits: int | None = None,
    symmetric: bool | None = None,
) -> dict[int, AnyGrid]:
    """Min-max grids of every channel of those tensors that have such; channels without values get the tensor's range.

    Histograms are kept per tensor: whatever finds another range in them leaves these to their smallest and largest
    values, as toolchains do.
    """
    statistics, records = case.statistics[main_role(case)], case.record.tensors
    found: dict[int, AnyGrid] = {}
    for i in indices:
        own, record = facts.tensors[i].quantizer, records[i]
        if not _is_per_channel(own) or own.axis is None or own.axis != record.axis:
            continue
        rows = statistics.rows(i)
        low, high = statistics.columns["min"][rows], statistics.columns["max"][rows]
        seen = np.isfinite(low) & np.isfinite(high) & (np.maximum(high, 0.0) > np.minimum(low, 0.0))
        if not seen.any():
            continue
        low, high = np.where(seen, low, low[seen].min()), np.where(seen, high, high[seen].max())
        is_symmetric = bool(own.symmetric and own.signed) if symmetric is None else symmetric
        same = np.ones(len(low), np.int64)
        columns = grids_over(low, high, same * (bits or own.bits or 8), same * is_symmetric > 0)
        found[i] = ChannelGrid(own.axis, tuple(Grid(*column) for column in columns.T.tolist()))
    return found


def _grids_between(
    low: Floats,
    high: Floats,
    facts: CaseFacts,
    indices: Sequence[int],
    *,
    bits: int | None = None,
    symmetric: bool | None = None,
) -> dict[int, Grid]:
    """Grids between these ends of each tensor, where they are known."""
    kept = [i for i in indices if np.isfinite(low[i]) and np.isfinite(high[i])]
    quantizers = [facts.tensors[i].quantizer for i in kept]
    widths = np.array([bits or q.bits or 8 for q in quantizers], np.int64)
    signed = np.array([is_signed_grid(q) if symmetric is None else symmetric for q in quantizers], bool)
    grids = grids_over(low[kept], high[kept], widths, signed) if kept else np.zeros((3, 0))
    return {i: Grid(*column) for i, column in zip(kept, grids.T.tolist(), strict=True) if column[2] > 0}


def recalibrate(case: Case, facts: CaseFacts, targets: Targets) -> Change:
    """New ranges for all activations as those in force were found, and biases without what other data taught them."""
    every = _all_tensors(facts)
    found = full_range(case, facts, every).join(Change(_grids_by_method(case, facts, every)))
    return found.join(Change(biases=_biases_of_other_data(facts)))


def _grids_by_method(case: Case, facts: CaseFacts, targets: Targets) -> dict[int, Grid]:
    """Grids between the ends that the method finds here which explains the ranges in force; none where none does."""
    method = _method_in_force(facts)
    if method is None:
        return {}
    mean, deviation = moments(case.statistics[main_role(case)])

    def ends_of(i: int, bins: Bins) -> tuple[float, float]:
        low, high = float(bins.lowest[0]), float(bins.highest[0])
        sides = (Side(size, sign, mean[i], deviation[i], bins) for size, sign in ((-low, -1), (high, 1)))
        below, above = (max(method.end(side), 0.0) if side.value > 0 else 0.0 for side in sides)
        return -below, above

    whole = [i for i in _with_fixed_grid(targets, facts) if grid_of(facts.tensors[i].quantizer) is not None]
    return _grids_by_bins(case, facts, whole, ends_of)


def _grids_by_bins(
    case: Case, facts: CaseFacts, indices: Iterable[int], ends_of: Callable[[int, Bins], tuple[float, float]]
) -> dict[int, Grid]:
    """Grids between the ends that are found in the histogram of each tensor, where values were seen."""
    grids: dict[int, Grid] = {}
    for i in indices:
        bins, quantizer = tensor_bins(case, main_role(case), i), facts.tensors[i].quantizer
        if bins is not None:
            found = Grid.over(*ends_of(i, bins), quantizer.bits or 8, symmetric=is_signed_grid(quantizer))
            grids |= {i: found} if found.step > 0 else {}
    return grids


def _method_in_force(facts: CaseFacts) -> RangeMethod | None:
    """What finds the ranges in force in the representative data, if that explains them; None: min-max, or not known."""
    data = next((own for own in facts.datasets if own.role == "representative"), None)
    if data is None or data.range_method is None or data.range_method_setting is None:
        return None
    if data.exact_range_share is None or data.exact_range_share > MOST:
        return None
    is_explained = data.range_method_error is not None and data.range_method_error <= EXPLAINED
    return RangeMethod(data.range_method, data.range_method_setting) if is_explained else None


def _biases_of_other_data(facts: CaseFacts) -> frozenset[int]:
    """Biases in float that calibration changed, if most of those that can be judged shift the output by that change.

    Corrected on data like these, they would take a constant away instead of adding one. One calibration changed all.
    """
    changed = {k: x.bias.max_error for k, x in enumerate(facts.layers) if x.bias.bits == 0 and x.bias.max_error}
    shifts = [(facts.layers[k].weight_error.shift, size) for k, size in changed.items()]
    added = [shift > LEFT_OF_CORRECTION * size for shift, size in shifts if shift is not None]
    return frozenset(changed) if 2 * sum(added) > len(added) else frozenset()


def full_range(case: Case, facts: CaseFacts, targets: Targets) -> Change:
    return Change(_min_max_grids(case, facts, _with_fixed_grid(targets, facts)))


def asymmetric_range(case: Case, facts: CaseFacts, targets: Targets) -> Change:
    return Change(_min_max_grids(case, facts, _with_fixed_grid(targets, facts), symmetric=False))


def sixteen_bit(case: Case, facts: CaseFacts, targets: Targets) -> Change:
    """Over what is seen and what the range in force holds.

    A toolchain takes the range from samples that are not seen here; of so many steps it costs next to none to keep it,
    and the half of few samples may lack what the other half shows.
    """
    low, high = (ends.copy() for ends in extremes(case.statistics[main_role(case)]))
    indices = _with_fixed_grid(targets, facts)
    for i in indices:
        grid = grid_of(case.record.tensors[i].quantizer)
        if grid is not None and np.isfinite(low[i]):
            low[i], high[i] = min(low[i], grid.low), max(high[i], grid.high)
    grids = _grids_between(low, high, facts, indices, bits=16, symmetric=False)
    return Change({**grids, **_channel_grids(case, facts, indices, bits=16, symmetric=False)})


def best_range(case: Case, facts: CaseFacts, targets: Targets) -> Change:
    statistics = case.statistics[main_role(case)]
    wanted = _with_fixed_grid(targets, facts)
    grids = _channel_grids(case, facts, wanted)
    seen = [i for i in seen_tensors(statistics) if i in {*wanted} - grids.keys()]
    for part, bins in bin_tables(case, main_role(case), seen):
        quantizers = [facts.tensors[i].quantizer for i in part]
        bits = np.array([q.bits or 8 for q in quantizers], np.int64)
        signed = np.array([is_signed_grid(q) for q in quantizers], bool)
        found, _ = best_grids(bins, np.arange(len(part)), bits, signed)
        grids |= {i: Grid(*column) for i, column in zip(part, found.T.tolist(), strict=True) if column[2] > 0}
    return Change(grids)


def _method_range(ends_of: Callable[[Bins], tuple[float, float]]) -> ChangeFunction:
    """The ranges of a calibration method, which finds their ends in a histogram."""

    def change(case: Case, facts: CaseFacts, targets: Targets) -> Change:
        wanted = _with_fixed_grid(targets, facts)
        grids = _channel_grids(case, facts, wanted)
        whole = (i for i in wanted if i not in grids)
        return Change({**grids, **_grids_by_bins(case, facts, whole, lambda _, bins: ends_of(bins))})

    return change


percentile_range = _method_range(percentile_ends)
kl_range = _method_range(kl_ends)


def range_beside_fill(case: Case, facts: CaseFacts, targets: Targets) -> Change:
    """Ranges without a huge constant, and the biases behind them, whose grid follows from that of the input.

    In front of a softmax they end where that gives hardly anything any more.
    """
    grids: dict[int, Grid] = {}
    for i in _with_fixed_grid(targets, facts):
        bins, own = tensor_bins(case, main_role(case), i), facts.tensors[i]
        beside = beside_fill(bins, own.fill) if bins is not None and own.fill is not None else None
        if beside is not None and own.fill is not None:
            beyond = SILENT if own.pattern == "softmax-input" and own.fill < 0 else 0.0
            low, high = range_of(beside)
            grids[i] = Grid.over(low - beyond, high, own.quantizer.bits or 8, symmetric=False)
    behind = (k for k, op in enumerate(case.record.operators) if grids.keys() & set(op.inputs))
    return Change(grids, biases=frozenset(k for k in behind if facts.layers[k].bias.bits))


def unit_range(case: Case, facts: CaseFacts, targets: Targets) -> Change:
    grids = {i: 2 ** (facts.tensors[i].quantizer.bits or 8) for i in _with_fixed_grid(targets, facts)}
    return Change({i: Grid(0.0, (codes - 1) / codes, 1.0 / codes) for i, codes in grids.items()})


def no_quantizer(case: Case, facts: CaseFacts, targets: Targets) -> Change:
    """Activations in float, and with them the constants of operators without weights."""
    plain = frozenset(targets.operators) - set(_with_weights(targets, facts))
    return Change(dict.fromkeys(_with_grid(targets, facts)), biases=plain)


def in_float(case: Case, facts: CaseFacts, targets: Targets) -> Change:
    weights: dict[int, WeightForm] = dict.fromkeys(_with_weights(targets, facts), "float")
    return Change(dict.fromkeys(_with_grid(targets, facts)), weights, frozenset(targets.operators))


def float_with_inputs(case: Case, facts: CaseFacts, targets: Targets) -> Change:
    """The layers and what they read: the input of the network is the output of no layer."""
    inputs = _read_by(case, targets.operators).tensors
    return in_float(case, facts, Targets(tuple(sorted({*inputs, *targets.tensors})), targets.operators))


def group_float(case: Case, facts: CaseFacts, targets: Targets) -> Change:
    """The layers, the layers without weights that feed them, and what they cancel against."""
    named = {op.name: k for k, op in enumerate(case.record.operators)}
    feeders = [named[name] for k in targets.operators for name in facts.layers[k].group if name in named]
    operators = tuple(dict.fromkeys([*targets.operators, *feeders]))
    tensors = {i for k in operators for i in quantized_for(case.record.operators[k], facts.tensors)}
    return in_float(case, facts, Targets(tuple(sorted(tensors | set(targets.tensors))), operators))


def fuse(case: Case, facts: CaseFacts, targets: Targets) -> Change:
    """One operator instead of the group: what the group reads is not quantized for it either."""
    group = group_float(case, facts, targets)
    members = {k for k, op in enumerate(case.record.operators) if set(op.outputs) & set(group.grids)}
    return group.join(no_quantizer(case, facts, _read_by(case, members)))


def float_inputs(case: Case, facts: CaseFacts, targets: Targets) -> Change:
    """What the operators read is not quantized: they are joined with what writes it."""
    return no_quantizer(case, facts, _read_by(case, targets.operators))


def separate_operands(case: Case, facts: CaseFacts, targets: Targets) -> Change:
    """The joint tensor stays float; every operand, and every part that is taken out of it, gets a range of its own."""
    operands = full_range(case, facts, _read_by(case, targets.operators))
    parts = full_range(case, facts, _handed_on(case, targets.tensors))
    return operands.join(parts).join(no_quantizer(case, facts, targets))


def requantize(case: Case, facts: CaseFacts, targets: Targets) -> Change:
    """Everything made anew from the float model as it was set: ranges, weights and biases."""
    return recalibrate(case, facts, targets).join(requantize_weights(facts))


def quantize_well(case: Case, facts: CaseFacts, targets: Targets) -> Change:
    """Everything made anew in the bits in force, set to lose least: searched ranges, weights per channel."""
    made = best_range(case, facts, everything(facts)).join(requantize_weights(facts))
    return made.join(per_channel_weights(case, facts, everything(facts)))


def requantize_weights(facts: CaseFacts) -> Change:
    """All weights and biases made anew from the float model."""
    every = everything(facts)
    weights: dict[int, WeightForm] = dict.fromkeys(_with_weights(every, facts), "best-range")
    return Change(weights=weights, biases=frozenset(every.operators))


def _all_tensors(facts: CaseFacts) -> Targets:
    return Targets(tuple(range(len(facts.tensors))))


def _read_by(case: Case, operators: Iterable[int]) -> Targets:
    """The tensors that operators read."""
    read = {i for k in operators for i in case.record.operators[k].inputs if i is not None}
    return Targets(tuple(sorted(read)))


def _handed_on(case: Case, tensors: Iterable[int]) -> Targets:
    """Tensors that hold nothing but values of these, moved or selected: they share their scale."""
    known = set(tensors)
    found: dict[int, None] = {}
    for operator in case.record.operators:
        if operator.op_type in LAYOUTS | SELECTIONS and known & {*operator.inputs[:1]}:
            outputs = [i for i in operator.outputs if i is not None]
            found |= dict.fromkeys(outputs)
            known.update(outputs)
    return Targets(tuple(found))


def _with_weights(targets: Targets, facts: CaseFacts) -> list[int]:
    return [k for k in targets.operators if facts.layers[k].weight.quantizer.bits is not None]


def _weight_form(form: WeightForm) -> ChangeFunction:
    return lambda case, facts, targets: Change(weights=dict.fromkeys(_with_weights(targets, facts), form))


float_weights = _weight_form("float")
per_channel_weights = _weight_form("per-channel")
best_weight_range = _weight_form("best-range")


def eight_bit_weights(case: Case, facts: CaseFacts, targets: Targets) -> Change:
    """With the biases made anew: what a bias was corrected by for coarser weights would be wrong for finer ones."""
    weighted = _with_weights(targets, facts)
    return Change(weights=dict.fromkeys(weighted, "eight-bit"), biases=frozenset(weighted))


def float_bias(case: Case, facts: CaseFacts, targets: Targets) -> Change:
    return Change(biases=frozenset(k for k in targets.operators if facts.layers[k].bias.bits))


def _with_learned(what: Learned) -> ChangeFunction:
    return lambda case, facts, targets: Change(
        learned=frozenset({what} if _with_weights(everything(facts), facts) else ())
    )


corrected_biases = _with_learned("biases")
learned_rounding = _with_learned("rounding")


def without_activation_noise(case: Case, facts: CaseFacts, targets: Targets) -> Change:
    """Every activation in float: the noise of the weights and biases is left."""
    return Change(dict.fromkeys(_with_grid(_all_tensors(facts), facts)))


def without_weight_noise(case: Case, facts: CaseFacts, targets: Targets) -> Change:
    """Every weight and bias in float: the noise of the activations is left."""
    every = Targets(operators=tuple(range(len(facts.layers))))
    forms: dict[int, WeightForm] = dict.fromkeys(_with_weights(every, facts), "float")
    return Change(weights=forms, biases=frozenset(every.operators))


def everything(facts: CaseFacts) -> Targets:
    """All tensors and operators."""
    return Targets(tuple(range(len(facts.tensors))), tuple(range(len(facts.layers))))


def helped_places(case: Case, facts: CaseFacts, change: Change) -> Targets:
    """Tensors and operators that a change is predicted to help by themselves, whatever arrives at the output."""
    return Targets(tuple(_helped_tensors(case, facts, change)), tuple(_helped_operators(facts, change)))


def _helped_tensors(case: Case, facts: CaseFacts, change: Change) -> list[int]:
    """Tensors whose predicted rounding SQNR rises enough."""
    pairs = list(_replaced_grids(facts, change))
    before, after = (
        predicted_sqnr(case, main_role(case), [(i, grids[place]) for i, *grids in pairs]) for place in (0, 1)
    )
    return [i for (i, *_), old, new in zip(pairs, before, after, strict=True) if _rises(old, new)]


def _helped_operators(facts: CaseFacts, change: Change) -> list[int]:
    """Operators whose weights are predicted to be rounded better, or whose bias is off by more than rounding."""
    found = []
    for k in sorted({*change.weights, *change.biases}):
        weight, off = facts.layers[k].weight, facts.layers[k].bias.max_error_steps
        form = change.weights.get(k)
        mended = form == "per-channel" and _rises(weight.rounding.sqnr_db, weight.predicted_per_channel_sqnr_db)
        # Of weights that are no rounding of the float ones, no gain of a better range is known.
        mended |= form == "best-range" and (weight.predicted_best_gain_db or 0.0) >= HELPS_DB
        if mended or (k in change.biases and off is not None and off > ROUNDED_STEPS):
            found.append(k)
    return found


def _rises(before: float | None, after: float | None) -> bool:
    return before is not None and after is not None and after - before >= HELPS_DB


def widened_tensors(facts: CaseFacts, change: Change) -> dict[int, bool]:
    """Whether each new grid reaches over a wider range than the one in force."""
    return {i: new.high - new.low > old.high - old.low for i, old, new in _replaced_grids(facts, change)}


def _replaced_grids(facts: CaseFacts, change: Change) -> Iterator[tuple[int, Grid, Grid]]:
    """Tensors that get another grid, with the one in force and the new one."""
    for i, new in change.grids.items():
        if isinstance(new, Grid) and (old := grid_of(facts.tensors[i].quantizer)) is not None:
            yield i, old, new


def widens(before: TensorFacts, after: TensorFacts) -> bool:
    """The range reaches further on one side, and no less far on the other."""
    old, new = _range_of(before), _range_of(after)
    if old is None or new is None:
        return False
    slack = SAME * (old[1] - old[0])
    below, above = old[0] - new[0], new[1] - old[1]
    return max(below, above) > slack and min(below, above) >= -slack


def nears_best(before: TensorFacts, after: TensorFacts) -> bool:
    """The range came nearer to the one that was predicted best before."""
    old, new = _range_of(before), _range_of(after)
    low, high = before.data.predicted_best_low, before.data.predicted_best_high
    if old is None or new is None or low is None or high is None:
        return False
    was, now = (abs(ends[0] - low) + abs(ends[1] - high) for ends in (old, new))
    return was - now > SAME * (old[1] - old[0])


def _range_of(tensor: TensorFacts) -> tuple[float, float] | None:
    quantizer = tensor.quantizer
    return None if quantizer.low is None or quantizer.high is None else (quantizer.low, quantizer.high)
