"""Findings grouped into suspected causes, with the changes that would repair them."""

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from quantmedic.engine.case.facts import CaseFacts, LayerFacts, OperandFacts, OutputFacts, TensorFacts
from quantmedic.engine.case.records import Case
from quantmedic.engine.diagnosis.advice import advise, where_it_stands
from quantmedic.engine.formulas.change import Change, Targets, everything, helped_places, widened_tensors
from quantmedic.engine.formulas.tensors import quantized_for
from quantmedic.engine.rules.evaluate import Finding, RuleResult
from quantmedic.engine.rules.remedies import Remedy
from quantmedic.engine.rules.remedy_kinds import REMEDY_KINDS, change_of
from quantmedic.engine.rules.rule import GLOBAL_SCOPES, SEVERITIES
from quantmedic.engine.rules.rulebase import RuleBase

#: Remedies of a suspected cause that are simulated.
MAX_REMEDIES = 4
#: Gives the repairs of the findings of one cause.
Repairs = Callable[[Sequence[Finding]], "tuple[Repair, ...]"]


@dataclass(frozen=True)
class Repair:
    """What one kind of remedy of a suspected cause changes, where, and the name of its simulated run.

    ``data`` describes the data that the change was fitted on, where these are its own, and ``is_calibrated`` says that
    it was fitted to the representative ones: neither is fitted again.
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
    is_calibrated: bool = False

    @property
    def is_fitted(self) -> bool:
        """A trial carries it out as it is, and fits nothing anew."""
        return bool(self.data) or self.is_calibrated

    @classmethod
    def fit(cls, kind: str, case: Case, facts: CaseFacts, targets: Targets) -> "Repair":
        """What a kind changes there, with the ranges that a toolchain would find, named by what it changes.

        These are in the representative data, whatever the judged ones hold.
        """
        calibrating = case.statistics.get("representative") if REMEDY_KINDS[kind].calibrates else None
        source = replace(case, statistics={"representative": calibrating}) if calibrating is not None else case
        change = change_of(kind, source, facts, targets)
        key = f"{kind}:{digest([change])}"
        return cls(kind, key, change, targets, is_calibrated=calibrating is not None)

    @classmethod
    def recalibrate(cls, key: str, kind: str, case: Case, facts: CaseFacts, data: str) -> "Repair":
        """New ranges for all activations from the data of another case."""
        every = everything(facts)
        return cls(kind, key, change_of("recalibrate", case, facts, every), every, data)


@dataclass(frozen=True)
class Suspect:
    """A suspected cause: its findings, worst first, and the remedies that can be simulated, cheapest first.

    Of a kind that spreads there are two repairs, the narrow one first, until `Simulated.settle` has chosen.
    """

    cause: str
    findings: tuple[Finding, ...]
    repairs: tuple[Repair, ...]

    @property
    def spread(self) -> dict[str, Targets]:
        """Where the remedies go that are chosen for more places than those where rules fired, by kind."""
        return {repair.kind: repair.targets for repair in self.repairs if repair.spread}

    @property
    def is_global(self) -> bool:
        """Only rules about data sets or the whole model found the cause."""
        return all(f.rule.scope in GLOBAL_SCOPES for f in self.findings)


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
    tensors |= {i: None for k in operators for i in quantized_for(case.record.operators[k], facts.tensors)}
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
        repair = Repair.fit(kind, self.case, self.facts, targets)
        return repair if repair.change else None

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
        changed, there = places_of(narrow.change), places_of(repair.change)
        if there <= changed or 2 * len(there & changed) < len(changed):
            return None
        return replace(repair, spread=True)

    def _places_helped(self, kind: str) -> tuple[Targets, Mapping[int, bool]]:
        """Where a kind helps in the whole network, and whether it makes each range wider."""
        if kind not in self._helped:
            change = Repair.fit(kind, self.case, self.facts, everything(self.facts)).change
            self._helped[kind] = helped_places(self.case, self.facts, change), widened_tensors(self.facts, change)
        return self._helped[kind]


def places_of(change: Change) -> set[tuple[str, int]]:
    """What it changes: activations, weights and biases by index."""
    grids, weights = {("tensor", i) for i in change.grids}, {("weight", k) for k in change.weights}
    return grids | weights | {("bias", k) for k in change.biases}


def general_repairs(kinds: Iterable[str], case: Case, facts: CaseFacts) -> list[Repair]:
    """Changes of the whole network, whatever the cause: the most that there is, with ranges of the judged data."""
    every = everything(facts)
    repairs = (Repair(kind, f"{kind}:everywhere", change_of(kind, case, facts, every), every) for kind in kinds)
    return [repair for repair in repairs if repair.change]


def digest(changes: Iterable[Change]) -> str:
    """A short name of what is changed, the same in every process."""
    parts = (
        (sorted(c.grids.items()), sorted(c.weights.items()), sorted(c.biases), *sorted(c.learned)) for c in changes
    )
    text = repr(list(parts))
    return f"{zlib.crc32(text.encode()):08x}"
