"""Findings grouped into suspected causes, with the changes that would repair them and what those recover."""

import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import pairwise
from typing import TypeVar

from quantmedic.engine.case.facts import CaseFacts, LayerFacts, OperandFacts, OutputFacts, TensorFacts
from quantmedic.engine.case.proof import ProofRecord
from quantmedic.engine.case.records import Case, RunRecord, SimulationRecord
from quantmedic.engine.contract.advised_remedies import PairedRemedy, RemedyPair
from quantmedic.engine.diagnosis.advice import advise, where_it_stands
from quantmedic.engine.diagnosis.prediction import ENOUGH_DB, Prediction, heals, is_faithful, predict
from quantmedic.engine.formulas.change import Change, Targets, everything, helped_places, widened_tensors
from quantmedic.engine.formulas.noise_sources import noisiest_output
from quantmedic.engine.rules.evaluate import Finding, RuleResult
from quantmedic.engine.rules.remedies import Remedy
from quantmedic.engine.rules.remedy_kinds import AT_MOST, BOUNDS, MORE_BITS, REMEDY_KINDS, change_of
from quantmedic.engine.rules.rule import SEVERITIES
from quantmedic.engine.rules.rulebase import RuleBase

T = TypeVar("T")
#: Suspected causes that are simulated, the most severe first, and remedies of each.
MAX_SUSPECTS, MAX_REMEDIES = 12, 4
#: A remedy named earlier in a rule costs less: it stands unless a later one recovers this much more, in dB.
PREFERENCE_DB = 3.0
#: A single repair that takes away so much suffices: half of the dB that count.
SUFFICIENT_DB = ENOUGH_DB / 2
#: Of repairs that take away about this share of what the best one does, the first is taken into a pair.
ABOUT = 0.9
#: Gives the repairs of the findings of one cause.
Repairs = Callable[[Sequence[Finding]], "tuple[Repair, ...]"]


@dataclass(frozen=True)
class Repair:
    """What one kind of remedy of a suspected cause changes, where, and the name of its simulated run.

    ``data`` describes the data that the change was fitted on, where these are its own: it is then not fitted again.
    ``nodes`` are those of the float model that a quantizer has to pass over, where no cause names their layers.
    ``spread``: it goes to every place that it is predicted to help, and not only to those where rules fired.
    """

    kind: str
    key: str
    change: Change
    targets: Targets
    data: str | None = None
    nodes: tuple[str, ...] = ()
    spread: bool = False

    @classmethod
    def recalibrate(cls, key: str, kind: str, case: Case, facts: CaseFacts, data: str) -> "Repair":
        """New ranges for all activations from the data of another case."""
        every = everything(facts)
        return cls(kind, key, change_of("recalibrate", case, facts, every), every, data)


@dataclass(frozen=True)
class Suspect:
    """A suspected cause: its findings, worst first, and the remedies that can be simulated, cheapest first.

    Of a kind that spreads there are two repairs, the narrow one first, until `settle` has chosen between them.
    """

    cause: str
    findings: tuple[Finding, ...]
    repairs: tuple[Repair, ...]

    def choose_repair(self, simulation: SimulationRecord | None, proof: ProofRecord | None = None) -> Repair | None:
        """The first remedy that recovers about as much as the best one: of the proven, else of the simulated ones.

        The first of all where nothing is known.
        """
        trials = [(proof.trial(repair.key), repair) for repair in self.repairs] if proof is not None else []
        gains = [(min(t.gain_db or 0.0, ENOUGH_DB), repair) for t, repair in trials if t is not None and t.proven]
        if not gains:
            known = [(predict(simulation, repair.key), repair) for repair in self.repairs]
            gains = [(found.gain_db, repair) for found, repair in known if found is not None]
            return first_about_best(gains, last=AT_MOST) or (self.repairs[0] if self.repairs else None)
        return first_about_best(gains) or (self.repairs[0] if self.repairs else None)

    @property
    def spread(self) -> dict[str, Targets]:
        """Where the remedies go that are chosen for more places than those where rules fired, by kind."""
        return {repair.kind: repair.targets for repair in self.repairs if repair.spread}

    def settle(self, simulation: SimulationRecord | None, base: RuleBase) -> "Suspect":
        """The suspect with one repair of each kind: the spread one where that recovers clearly more for sure."""
        kinds: dict[str, Repair] = {}
        for repair in self.repairs:
            narrow = kinds.setdefault(repair.kind, repair)
            if repair.spread and _is_clearly_better(repair, narrow, simulation, base):
                kinds[repair.kind] = repair
        return replace(self, repairs=tuple(kinds.values()))


def settle(suspects: Iterable[Suspect], simulation: SimulationRecord | None, base: RuleBase) -> list[Suspect]:
    """The suspects, each with one repair of a kind; without a faithful simulation none is spread."""
    known = simulation if simulation is not None and is_faithful(simulation) else None
    return [suspect.settle(known, base) for suspect in suspects]


def _is_clearly_better(spread: Repair, narrow: Repair, simulation: SimulationRecord | None, base: RuleBase) -> bool:
    far, near = predict(simulation, spread.key), predict(simulation, narrow.key)
    if far is None or near is None or far.low_db <= 0 or not _may_be_spread(narrow, simulation, base):
        return False
    return min(far.gain_db, ENOUGH_DB) >= near.gain_db + PREFERENCE_DB


def _may_be_spread(narrow: Repair, simulation: SimulationRecord | None, base: RuleBase) -> bool:
    """Where rules fired, a repair recovers something, else what heals is not what they saw; and not nearly all.

    Errors of biases are constant and may cancel each other, so that mending a single one may recover nothing.
    """
    near = predict(simulation, narrow.key)
    if near is None or near.gain_db > ENOUGH_DB - PREFERENCE_DB:
        return False
    return bool(narrow.change.biases) or near.gain_db >= base.threshold("negligible_gain_db")


def first_about_best(gains: Sequence[tuple[float, Repair]], last: Collection[str] = BOUNDS) -> Repair | None:
    """The first repair whose gain in dB is about that of the best one; kinds whose gain is a most come last."""
    ordered = sorted(gains, key=lambda found: found[1].kind in last)
    enough = max((gain for gain, _ in gains), default=0.0) - PREFERENCE_DB
    return next((repair for gain, repair in ordered if gain >= enough), None)


def suspects_of(results: Iterable[RuleResult], repairs: Repairs) -> list[Suspect]:
    """One suspect per cause that a rule has found, the most severe first."""
    grouped: dict[str, list[Finding]] = {}
    for result in results:
        for finding in result.findings:
            grouped.setdefault(finding.rule.cause, []).append(finding)
    found = [Suspect(cause, tuple(own), repairs(own)) for cause, own in grouped.items()]
    return sorted(found, key=lambda s: min(SEVERITIES.index(f.rule.severity) for f in s.findings))


def targets_of(findings: Iterable[Finding], case: Case, facts: CaseFacts) -> Targets:
    """Tensors and operators that findings are about; a finding about data or the whole model means all of them."""
    tensors: dict[int, None] = {}
    operators: dict[int, None] = {}
    number = {id(tensor): i for i, tensor in enumerate(facts.tensors)}
    place = {id(layer): i for i, layer in enumerate(facts.layers)}
    named = {op.name: i for i, op in enumerate(case.record.operators)}
    writer = case.record.writers()
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


@dataclass(frozen=True)
class Repairer:
    """Gives the repairs of the findings of one cause; what is the same for all causes is computed once.

    Attributes:
        base: Remedies and thresholds in force.
        case: What was measured.
        facts: Its facts.
    """

    base: RuleBase
    case: Case
    facts: CaseFacts
    _helped: dict[str, tuple[Targets, Mapping[int, bool]]] = field(default_factory=dict)

    def __call__(self, findings: Sequence[Finding]) -> tuple[Repair, ...]:
        """What the remedies of the rules that found something would change, where that can be simulated."""
        if not self.case.statistics:  # Only weights were compared: there is nothing to simulate on.
            return ()
        targets = targets_of(findings, self.case, self.facts)
        repairs: dict[str, list[Repair]] = {}
        for advice in advise(findings, self.base, self.facts)[0]:
            kind = advice.simulate
            if kind is None or kind in repairs or len(repairs) == MAX_REMEDIES:
                continue
            if narrow := self._repair(kind, targets):
                spread = self._spread(narrow, self.base.remedies[advice.id]) if REMEDY_KINDS[kind].spreads else None
                repairs[kind] = [narrow, *([spread] if spread is not None else [])]
        return tuple(repair for own in repairs.values() for repair in own)

    def _repair(self, kind: str, targets: Targets) -> Repair | None:
        change = change_of(kind, self.case, self.facts, targets)
        return Repair(kind, f"{kind}:{_digest([change])}", change, targets) if change else None

    def _spread(self, narrow: Repair, remedy: Remedy) -> Repair | None:
        """The same repair on every place that it helps, if most of its own places are among them, and others.

        Ranges move as they do where the rules fired: what mends clipping makes none narrower.
        """
        helped, wider = self._places_helped(narrow.kind)
        own, inside = widened_tensors(self.facts, narrow.change), set(helped.tensors)
        moves = {wide for i, wide in own.items() if i in inside}
        moves -= {True} if REMEDY_KINDS[narrow.kind].narrows else set()
        places = Targets(tuple(i for i in helped.tensors if wider[i] in moves), helped.operators)
        repair = self._repair(narrow.kind, where_it_stands(remedy, places, self.base, self.facts))
        if repair is None:
            return None
        changed, there = _places_of(narrow.change), _places_of(repair.change)
        if there <= changed or 2 * len(there & changed) < len(changed):
            return None
        return replace(repair, spread=True)

    def _places_helped(self, kind: str) -> tuple[Targets, Mapping[int, bool]]:
        """Where a kind helps in the whole network, and whether it makes each range wider."""
        if kind not in self._helped:
            change = change_of(kind, self.case, self.facts, everything(self.facts))
            self._helped[kind] = helped_places(self.case, self.facts, change), widened_tensors(self.facts, change)
        return self._helped[kind]


def _places_of(change: Change) -> set[tuple[str, int]]:
    grids, weights = {("tensor", i) for i in change.grids}, {("weight", k) for k in change.weights}
    return grids | weights | {("bias", k) for k in change.biases}


def general_repairs(kinds: Iterable[str], case: Case, facts: CaseFacts) -> list[Repair]:
    """Changes of the whole network, whatever the cause."""
    every = everything(facts)
    repairs = (Repair(kind, f"{kind}:everywhere", change_of(kind, case, facts, every), every) for kind in kinds)
    return [repair for repair in repairs if repair.change]


def _digest(changes: Iterable[Change]) -> str:
    """A short name of what is changed, the same in every process."""
    parts = (
        (sorted(c.grids.items()), sorted(c.weights.items()), sorted(c.biases), *sorted(c.learned)) for c in changes
    )
    text = repr(list(parts))
    return f"{zlib.crc32(text.encode()):08x}"


def simulate(
    suspects: Sequence[Suspect],
    halves: Sequence[Repair],
    simulation: SimulationRecord,
    run: Callable[[Change], RunRecord],
    base: RuleBase,
) -> SimulationRecord:
    """Run halves and every remedy alone, then all suspects' repairs together and with one of them left out.

    A fault that spoils everything hides others: what a repair adds to all the other repairs shows them.
    """
    runs: dict[str, RunRecord] = {}

    def once(key: str, change: Change) -> None:
        if key not in runs and not change.learned:
            runs[key] = run(change)

    for half in halves:
        once(half.kind, half.change)
    wanted = [repair for suspect in suspects[:MAX_SUSPECTS] for repair in suspect.repairs]
    for repair in wanted:
        if not repair.spread:
            once(repair.key, repair.change)
    known = simulation.model_copy(update={"runs": runs})
    for narrow, repair in pairwise(wanted):
        if repair.spread and _may_be_spread(narrow, known, base):
            once(repair.key, repair.change)
    known = simulation.model_copy(update={"runs": runs})
    every = chosen_repairs(settle(suspects, known, base), known)
    if len(every) > 1:
        once(*_together(every))
        for repair in every:
            once(*_together([other for other in every if other is not repair]))
    return simulation.model_copy(update={"runs": runs})


def chosen_repairs(suspects: Sequence[Suspect], simulation: SimulationRecord) -> list[Repair]:
    """The repair of each suspect that was simulated; suspects that share one count once."""
    found: dict[str, Repair] = {}
    for suspect in suspects[:MAX_SUSPECTS]:
        repair = suspect.choose_repair(simulation)
        if repair is not None and not repair.change.learned:
            found.setdefault(repair.key, repair)
    return list(found.values())


def last_gain(
    repair: Repair, every: Sequence[Repair], simulation: SimulationRecord, base: RuleBase
) -> Prediction | None:
    """What a repair recovers where all the other suspects' are done already; None where these alone heal the network.

    Of the little noise that the other repairs leave then, any repair would seem to recover much.
    """
    others = [other for other in every if other.key != repair.key]
    if not others:
        return predict(simulation, repair.key)
    before = _together(others)[0]
    left = predict(simulation, before)
    if left is not None and heals(left, base):
        return None
    return predict(simulation, _together(every)[0], before=before)


def _together(repairs: Sequence[Repair]) -> tuple[str, Change]:
    if len(repairs) == 1:
        return repairs[0].key, repairs[0].change
    changes = [repair.change for repair in repairs]
    return f"together:{_digest(changes)}", reduce(Change.join, changes, Change())


def simulate_pairs(
    suspects: Sequence[Suspect],
    case: Case,
    facts: CaseFacts,
    simulation: SimulationRecord,
    run: Callable[[Change], RunRecord],
    base: RuleBase,
) -> SimulationRecord:
    """Run what heals a whole family of sources, and pairs of repairs, where no single repair suffices.

    A loss may need two remedies: neither recovers much while the noise of the other's source stays.
    """
    settled = settle(suspects, simulation, base)
    singles = _single_repairs(settled)
    if not is_faithful(simulation) or not _is_wanting(singles, simulation, base):
        return simulation
    runs = dict(simulation.runs)
    for repair in general_repairs(_family_kinds(case), case, facts):
        singles.append(repair)
        if repair.key not in runs:
            runs[repair.key] = run(repair.change)
    known = simulation.model_copy(update={"runs": runs})
    for pair in _likely_pairs(settled, singles, known, base):
        key, change = _together(pair)
        if key not in runs:
            runs[key] = run(change)
        found = predict(simulation.model_copy(update={"runs": runs}), key)
        if found is not None and found.gain_db >= ENOUGH_DB - PREFERENCE_DB:
            break
    return simulation.model_copy(update={"runs": runs})


def find_pairs(
    suspects: Sequence[Suspect], case: Case, facts: CaseFacts, simulation: SimulationRecord | None, base: RuleBase
) -> list[tuple[RemedyPair, tuple[Repair, Repair]]]:
    """Pairs of repairs that recover clearly more than any single one, the best first; none where none was simulated.

    Of about equal ones those come first that stay within the bits in force. Each has all causes that ask for it, and
    the title of the remedy for the whole network if there is one.
    """
    if simulation is None or not facts.model.harmed or not is_faithful(simulation):
        return []
    ran = [kind for kind in _family_kinds(case) if f"{kind}:everywhere" in simulation.runs]
    singles = _single_repairs(suspects) + general_repairs(ran, case, facts)
    reached = max((known.gain_db for repair in singles if (known := predict(simulation, repair.key))), default=0.0)
    pairs = []
    for pair in _likely_pairs(suspects, singles, simulation, base):
        together = predict(simulation, _together(pair)[0])
        if together is None or together.low_db <= 0:
            continue
        if min(together.gain_db, ENOUGH_DB) >= reached + PREFERENCE_DB:
            first, second = (_paired_remedy(repair, suspects, simulation) for repair in pair)
            pairs.append((RemedyPair(remedies=(first, second), predicted=together.recovery(None)), pair))
    return sorted(pairs, key=lambda pair: -round(min(pair[0].predicted.gain_db, ENOUGH_DB) / PREFERENCE_DB))


def _paired_remedy(repair: Repair, suspects: Iterable[Suspect], simulation: SimulationRecord) -> PairedRemedy:
    alone, everywhere = predict(simulation, repair.key), REMEDY_KINDS[repair.kind].everywhere
    assert alone is not None
    return PairedRemedy(
        key=repair.key,
        kind=repair.kind,
        title=everywhere.title if everywhere is not None else "",
        causes=tuple(s.cause for s in suspects if any(own.key == repair.key for own in s.repairs)),
        predicted=alone.recovery(repair.kind),
    )


def _single_repairs(suspects: Iterable[Suspect]) -> list[Repair]:
    """Repairs that can be carried out, each once; what a bound recovers is no repair's."""
    own = (repair for suspect in suspects for repair in suspect.repairs if repair.kind not in AT_MOST)
    return list({repair.key: repair for repair in own}.values())


def _is_wanting(singles: Iterable[Repair], simulation: SimulationRecord, base: RuleBase) -> bool:
    """No single repair suffices."""
    known = (predict(simulation, repair.key) for repair in singles)
    return not any(found is not None and (found.gain_db >= SUFFICIENT_DB or heals(found, base)) for found in known)


def _family_kinds(case: Case) -> list[str]:
    """Kinds that heal most of a family of sources as a whole: in the bits in force, and whatever the bits."""
    budget = case.record.loss_budget
    if budget is None:
        return []
    kinds: dict[str, None] = {}
    output = noisiest_output(budget)
    for family in budget.families:
        gone = {kind: shares[output] for kind, shares in family.heals.items() if REMEDY_KINDS[kind].everywhere}
        for barred in (MORE_BITS, ()):
            kind = _most_of([(share, kind) for kind, share in gone.items() if kind not in barred])
            kinds |= {kind: None} if kind is not None else {}
    return list(kinds)


def _likely_pairs(
    suspects: Sequence[Suspect], singles: Sequence[Repair], simulation: SimulationRecord, base: RuleBase
) -> Iterator[tuple[Repair, Repair]]:
    """The two that all repairs together lack most, and what takes away most, with what takes away most elsewhere.

    Those that keep the bits in force come first.
    """
    if not _is_wanting(singles, simulation, base):
        return
    missed = _missed_most(suspects, simulation)
    shares = [(found.share, repair) for repair in singles if (found := predict(simulation, repair.key)) is not None]
    seen: list[tuple[Repair, Repair]] = []
    for barred in (MORE_BITS, ()):
        if missed is not None and missed not in seen and not any(repair.kind in barred for repair in missed):
            seen.append(missed)
            yield missed
        own = [(share, repair) for share, repair in shares if repair.kind not in barred]
        first = _most_of(own)
        if first is None:
            continue
        elsewhere = [each for each in own if not _places_of(each[1].change) & _places_of(first.change)]
        second = _most_of(elsewhere)
        if second is not None and (first, second) not in seen:
            seen.append((first, second))
            yield first, second


def _missed_most(suspects: Sequence[Suspect], simulation: SimulationRecord) -> tuple[Repair, Repair] | None:
    """Of all suspects' repairs together the two that are missed most, the better one by itself first.

    What others hide shows only there.
    """
    every = chosen_repairs(suspects, simulation)
    whole = predict(simulation, _together(every)[0]) if len(every) > 1 else None
    if whole is None:
        return None
    left = [(predict(simulation, _together([own for own in every if own is not each])[0]), each) for each in every]
    lost = [(whole.gain_db - rest.gain_db, each) for rest, each in left if rest and each.kind not in AT_MOST]
    two = [each for _, each in sorted(lost, key=lambda pair: -pair[0])[:2]]
    if len(two) < 2:
        return None
    alone = [found.share if (found := predict(simulation, each.key)) is not None else 0.0 for each in two]
    return (two[0], two[1]) if alone[0] >= alone[1] else (two[1], two[0])


def _most_of(shares: Sequence[tuple[float, T]]) -> T | None:
    """The first that takes away about as much of the noise as the best one; what others hide may recover nothing."""
    most = max((share for share, _ in shares), default=0.0)
    return next((each for share, each in shares if share >= min(ABOUT * most, most)), None)
