"""The kinds of change that remedies make, one row each: how it is simulated, tried on a copy, and prescribed.

A remedy of remedies.yaml names its kind under ``simulate``. Prediction, trials, proof, prescription and the comparison
with a previous case read this table; there is no other list of kinds.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import AfterValidator, WithJsonSchema

from quantmedic.engine.case.facts import CaseFacts, TensorFacts
from quantmedic.engine.case.proof import FLOAT_SET, REPAIRED_DATA
from quantmedic.engine.case.records import Case
from quantmedic.engine.formulas import change
from quantmedic.engine.formulas.change import Change, ChangeFunction, Targets
from quantmedic.engine.text import suggest

#: How a kind is carried out on the quantized model. Functions of ``quantmedic.trials``, which the engine cannot import.
#: ``edit`` calls the editor of the model's framework, which lists what of a change it could not carry out.
EDIT, REPAIR_DATA, SEARCH = "edit.edit", "trial.repair_batch", "float_search.float_set"
#: When a proof tries a kind on the whole network: ``late`` if all that is cheaper did not explain the loss.
Turn = Literal["early", "late"]


@dataclass(frozen=True)
class Everywhere:
    """A kind that makes sense for the whole network, whatever the cause.

    Attributes:
        title: What a report calls the trial.
        remedy: Id of the remedy that does the same to the whole network.
        turn: When it is tried where the causes do not explain the loss; None: not for this reason alone.
    """

    title: str
    remedy: str
    turn: Turn | None = None


@dataclass(frozen=True)
class RemedyKind:
    """One kind of change.

    Attributes:
        name: Its name in remedies.yaml, in cases and in reports.
        alters: What of the quantized model it alters.
        change: Fits the change to a case: facts and network are simulated with it. None: it is not simulated.
        trial: Function of ``quantmedic.trials`` that carries it out.
        everywhere: How it is tried and prescribed for the whole network; None where only a cause can ask for it.
        bound: What a trial of it takes away, where that is the most that the remedy can gain: the remedy itself needs
            a toolchain. None where the change is what the remedy does.
        moves: Whether the range of an activation moved as this kind moves it. None where settings of the model show
            that it was applied.
        half: The part of the quantized model whose noise it takes away, of the two changes that are no remedies.
        is_root: It is run to see what settings cost, and is no remedy either.
        advised_as: Kind under which remedies are advised that do the same, where it is not this one.
        tried: What a trial carries out, where that can be fitted to samples alone, and ``change`` is only the most
            that it could gain; None: ``change``.
        learned: A trial learns it on samples, which not every editor can.
        title: What it makes, as a plural phrase, where the loss budget tries it; else empty.
        spends_bits: It needs more bits than toolchains give where nothing is asked, which takes noise from any model.
        spreads: What it repairs is usually made by one setting of the toolchain, in many places at once: it is also
            tried on every place that it is predicted to help, not only where a rule fired.
        narrows: It helps by making ranges narrower: what it gains by a wider one is the merit of another kind.
        calibrates: A toolchain finds its ranges in the representative data, and so does what is simulated and tried.
    """

    name: str
    alters: str
    change: ChangeFunction | None
    trial: str = EDIT
    everywhere: Everywhere | None = None
    bound: str | None = None
    moves: Callable[[TensorFacts, TensorFacts], bool] | None = None
    half: Literal["weights", "activations"] | None = None
    is_root: bool = False
    advised_as: str | None = None
    tried: ChangeFunction | None = None
    learned: bool = False
    title: str = ""
    spends_bits: bool = False
    spreads: bool = False
    narrows: bool = False
    calibrates: bool = False

    @property
    def is_remedy(self) -> bool:
        """A remedy may name it."""
        return self.change is not None and self.half is None and not self.is_root


#: Kinds for the whole network stand in the order in which a proof tries them, the cheapest first.
_ROWS = (
    RemedyKind(
        "recalibrate",
        "ranges of all activations",
        change.recalibrate,
        everywhere=Everywhere(
            "new ranges for all activations, from the validation inputs", "recalibrate-on-proper-data", "early"
        ),
    ),
    RemedyKind(
        "best-range",
        "ranges of activations",
        change.best_range,
        title="ranges of least squared error",
        everywhere=Everywhere(
            "ranges of least squared error for all activations", "search-calibration-methods", "early"
        ),
        moves=change.nears_best,
        spreads=True,
        calibrates=True,
    ),
    RemedyKind(
        "percentile-range",
        "ranges of activations",
        change.percentile_range,
        title="ranges of the 99.99th percentile",
        everywhere=Everywhere(
            "ranges of the 99.99th percentile for all activations", "limit-activation-range", "early"
        ),
        spreads=True,
        calibrates=True,
    ),
    RemedyKind(
        "kl-range",
        "ranges of activations",
        change.kl_range,
        everywhere=Everywhere("ranges of least divergence (KL) for all activations", "limit-activation-range", "early"),
        calibrates=True,
    ),
    RemedyKind(
        "corrected-biases",
        "biases",
        change.corrected_biases,
        learned=True,
        everywhere=Everywhere("biases corrected by the mean error of every channel", "bias-correction-on", "early"),
    ),
    RemedyKind(
        "best-weight-range",
        "scales of weights",
        change.best_weight_range,
        title="weight scales of least squared error",
        everywhere=Everywhere("weights rounded anew on their best ranges", "weight-threshold-search", "early"),
        spreads=True,
    ),
    RemedyKind(
        "per-channel-weights",
        "granularity of weights",
        change.per_channel_weights,
        title="per-channel weight scales",
        everywhere=Everywhere("per-channel weights everywhere", "per-channel-weights", "early"),
        spreads=True,
    ),
    RemedyKind(
        "float-bias",
        "precision of biases",
        change.float_bias,
        everywhere=Everywhere("float biases everywhere", "protect-int32-bias", "early"),
        spreads=True,
    ),
    RemedyKind(
        "requantized",
        "ranges, weights and biases",
        change.requantize,
        everywhere=Everywhere(
            "ranges, weights and biases made anew from the float model", "requantize-this-model", "early"
        ),
        calibrates=True,
    ),
    RemedyKind(
        FLOAT_SET,
        "precision of the fewest layers that explain the loss",
        None,
        SEARCH,
        everywhere=Everywhere("the fewest layers in float that explain the loss", "keep-layers-float"),
        spends_bits=True,
    ),
    RemedyKind(
        "learned-rounding",
        "rounding of weights",
        change.float_weights,
        tried=change.learned_rounding,
        learned=True,
        everywhere=Everywhere("weights rounded for the least error of their layers", "learned-rounding", "late"),
    ),
    RemedyKind(
        "sixteen-bit",
        "bits of activations",
        change.sixteen_bit,
        title="16-bit activations",
        everywhere=Everywhere("16-bit activations everywhere", "activations-16-bit", "late"),
        spends_bits=True,
    ),
    RemedyKind(
        REPAIRED_DATA,
        "ranges of all activations, from representative inputs without their mistake",
        None,
        REPAIR_DATA,
        advised_as="recalibrate",
    ),
    RemedyKind(
        "full-range",
        "ranges of activations",
        change.full_range,
        title="new ranges from the judged data",
        moves=change.widens,
        spreads=True,
        calibrates=True,
    ),
    RemedyKind(
        "asymmetric-range",
        "symmetry of activations",
        change.asymmetric_range,
        title="asymmetric ranges",
        spreads=True,
        narrows=True,
        calibrates=True,
    ),
    RemedyKind("mask-range", "ranges of activations beside a constant", change.range_beside_fill),
    RemedyKind("unit-range", "ranges of activations between 0 and 1", change.unit_range),
    RemedyKind("separate-operands", "ranges of the operands of a joint", change.separate_operands, calibrates=True),
    RemedyKind("float", "precision of layers", change.in_float, spends_bits=True),
    RemedyKind(
        "float-with-inputs", "precision of layers and of what they read", change.float_with_inputs, spends_bits=True
    ),
    RemedyKind("group-float", "precision of layers and of those that feed them", change.group_float, spends_bits=True),
    RemedyKind("fused", "quantizers within a group that is computed as one operator", change.fuse),
    RemedyKind("float-inputs", "quantizers of what operators read", change.float_inputs, spends_bits=True),
    RemedyKind("no-quantizer", "quantizers of activations", change.no_quantizer, spends_bits=True),
    # Equalizing (float-weights) and smoothing (float-tensors) are shown as bounds: they scale weights on both sides of
    # a tensor, so that every range behind the first scaled layer has to be measured anew. A trial on a copy would
    # calibrate and encode as the toolchain does, at the same cost. Their prescription is executed instead, and until
    # then it is untried.
    RemedyKind(
        "float-tensors",
        "quantizers of activations",
        change.no_quantizer,
        bound="activations in float",
        spends_bits=True,
    ),
    RemedyKind(
        "float-weights", "precision of weights", change.float_weights, bound="weights in float", spends_bits=True
    ),
    RemedyKind("eight-bit-weights", "bits of weights", change.eight_bit_weights, title="8-bit weights"),
    RemedyKind("quantized-well", "ranges, weights and biases, and their settings", change.quantize_well, is_root=True),
    RemedyKind(
        "without-weight-noise", "precision of all weights and biases", change.without_weight_noise, half="weights"
    ),
    RemedyKind(
        "without-activation-noise", "precision of all activations", change.without_activation_noise, half="activations"
    ),
)


REMEDY_KINDS = MappingProxyType({row.name: row for row in _ROWS})
#: Names that a remedy may give under ``simulate``.
SIMULATIONS = tuple(row.name for row in _ROWS if row.is_remedy)
#: Kinds that take away what the remedy would repair: what they gain is the most that it can gain.
BOUNDS = tuple(row.name for row in _ROWS if row.bound is not None)
#: Kinds whose predicted gain is the most that they can gain: those, and what only a trial can fit.
AT_MOST = tuple(row.name for row in _ROWS if row.bound is not None or row.tried is not None)
#: Kinds that any model gains by, for they give it more than 8 bits.
MORE_BITS = tuple(row.name for row in _ROWS if row.spends_bits)
#: Kinds that show which half of the loss comes from weights and which from activations; no remedies.
HALVES = tuple(row.name for row in _ROWS if row.half is not None)


def kinds_everywhere(turn: Turn) -> tuple[str, ...]:
    """Kinds that a proof tries on the whole network, in their order."""
    return tuple(row.name for row in _ROWS if row.everywhere is not None and row.everywhere.turn == turn)


def change_of(kind: str, case: Case, facts: CaseFacts, targets: Targets) -> Change:
    """The change of a kind, fitted to what a case holds.

    Raises:
        KeyError: There is no such kind, or it is not simulated.
    """
    function = REMEDY_KINDS[kind].change
    if function is None:
        raise KeyError(kind)
    return function(case, facts, targets)


def is_learned(kind: str) -> bool:
    """A trial of the kind learns on samples, which not every editor can."""
    return REMEDY_KINDS[kind].learned


def tried_change_of(kind: str, case: Case, facts: CaseFacts, targets: Targets) -> Change:
    """What a trial of a kind carries out: its change, unless that is only the most that it could gain.

    Raises:
        KeyError: There is no such kind, or it has no change.
    """
    tried = REMEDY_KINDS[kind].tried
    return change_of(kind, case, facts, targets) if tried is None else tried(case, facts, targets)


def _require_simulation(name: str) -> str:
    if name in SIMULATIONS:
        return name
    raise ValueError(f"unknown kind of change {name!r}{suggest(name, SIMULATIONS)}; known: {', '.join(SIMULATIONS)}")


#: Name of a kind that a remedy may give under ``simulate``.
Simulation = Annotated[
    str, AfterValidator(_require_simulation), WithJsonSchema({"enum": list(SIMULATIONS), "type": "string"})
]
