"""Details of a case for a reader: the graph, and each layer's distributions and channels."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

from quantmedic.engine.case.facts import CaseFacts, Role
from quantmedic.engine.case.records import Case
from quantmedic.engine.formulas.spreads import (
    Channels,
    Spread,
    tensor_channels,
    tensor_spreads,
    weight_channels,
    weight_spread,
)
from quantmedic.engine.rules.evaluate import Finding, evaluate
from quantmedic.engine.rules.rulebase import RuleBase


@dataclass(frozen=True)
class LayerDetail:
    """What is known of one layer beyond its facts; of activations by data set."""

    spreads: dict[Role, Spread]
    channels: dict[Role, Channels]
    weight_spread: Spread | None
    weight_channels: Channels | None


@dataclass(frozen=True)
class Inspection:
    """A case opened for looking: layers are numbered as in ``facts.layers``."""

    case: Case
    facts: CaseFacts
    base: RuleBase

    @cached_property
    def edges(self) -> tuple[tuple[int, int], ...]:
        """(layer that writes, layer that reads); an input of the network is written by layer -1."""
        operators, writers = self.case.record.operators, self.case.record.writers()
        pairs: dict[tuple[int, int], None] = {}
        for place, op in enumerate(operators):
            read = [writers.get(tensor, -1) for tensor in op.inputs if tensor is not None]
            pairs |= dict.fromkeys((writer, place) for writer in (*read, *op.sources))
        return tuple(pairs)

    def findings(self, rules: Collection[str]) -> dict[str, tuple[Finding, ...]]:
        """What these rules found, by the name of the layer."""
        found: dict[str, list[Finding]] = {}
        base = self.base.model_copy(update={"rules": tuple(rule for rule in self.base.rules if rule.id in rules)})
        for result in evaluate(base, self.facts):
            for finding in result.findings:
                if finding.layer is not None:
                    found.setdefault(finding.layer, []).append(finding)
        return {layer: tuple(findings) for layer, findings in found.items()}

    def details(self, places: Sequence[int]) -> list[LayerDetail]:
        """Details of the layers at these places."""
        operators, weights = self.case.record.operators, self.case.weights
        outputs = {place: next((i for i in operators[place].outputs if i is not None), None) for place in places}
        indices = list(dict.fromkeys(index for index in outputs.values() if index is not None))
        spreads: dict[Role, dict[int, Spread]] = {}
        channels: dict[Role, dict[int, Channels]] = {}
        for role, statistics in self.case.statistics.items():
            clipped = {i: getattr(self.facts.tensors[i], role).clipping.share for i in indices}
            spreads[role] = tensor_spreads(self.case, role, indices, clipped)
            channels[role] = tensor_channels(statistics, indices)
        details = []
        for place in places:
            index, arrays, weight = outputs[place], weights.get(place), self.facts.layers[place].weight
            details.append(
                LayerDetail(
                    spreads={role: known[index] for role, known in spreads.items() if index in known},
                    channels={role: known[index] for role, known in channels.items() if index in known},
                    weight_spread=weight_spread(arrays, weight.quantizer) if arrays is not None else None,
                    weight_channels=weight_channels(arrays, weight) if arrays is not None else None,
                )
            )
        return details
