"""Findings that a team knows of: written once, compared with at every check."""

import json
import math
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from pydantic import Field

from quantmedic.engine.case.facts import CaseFacts, LayerFacts, TensorFacts, WeightFacts
from quantmedic.engine.diagnosis.headline import Headline, headline_of
from quantmedic.engine.formulas.matching import match_layers, new_names, renamer
from quantmedic.engine.json_record import Contract
from quantmedic.engine.rules.evaluate import Finding, RuleResult

BASELINE_SCHEMA = "1.0"


class KnownFinding(Contract):
    """One finding, and the figure that it is known by."""

    rule: str
    layer: str = Field(description="float layer, tensor, data set, output or 'model'")
    fact: str | None = Field(default=None, description="headline fact: the first that the rule compares with a number")
    value: float | None = Field(default=None, allow_inf_nan=False)


class KnownLayer(NamedTuple):
    """What a layer is found again by when names shift."""

    name: str
    op_type: str | None
    weight_channels: int | None
    output_channels: int | None


class Baseline(Contract):
    """All findings of one case, those included that other causes explain; the layers in their order."""

    schema_version: str = BASELINE_SCHEMA
    model: str | None = None
    findings: tuple[KnownFinding, ...]
    layers: tuple[KnownLayer, ...] = ()

    def renamer_for(self, layers: Sequence[LayerFacts]) -> Callable[[str], str]:
        """Gives the present name of a layer, tensor or operand of the baseline.

        Args:
            layers: The layers now.
        """
        then = [_as_facts(layer) for layer in self.layers]
        return renamer(new_names(match_layers(then, layers), then, layers))

    def without(self, gone: Iterable[KnownFinding]) -> "Baseline":
        """The baseline without these findings."""
        left = set(gone)
        return self.model_copy(update={"findings": tuple(f for f in self.findings if f not in left)})


def baseline_of(facts: CaseFacts, results: Iterable[RuleResult]) -> Baseline:
    """The findings of a case as a baseline, in the order of rules and layers.

    Args:
        facts: Its facts.
        results: Results of all rules on them.
    """
    found = dict.fromkeys(_known_finding(finding) for result in results for finding in result.findings)
    order = {layer.name or "?": place for place, layer in enumerate(facts.layers)}
    return Baseline(
        model=facts.model.name,
        findings=tuple(sorted(found, key=lambda f: (f.rule, order.get(f.layer, len(order)), f.layer))),
        layers=tuple(
            KnownLayer(layer.name or "?", layer.op_type, layer.weight.channels, layer.output.channels)
            for layer in facts.layers
        ),
    )


def headline(finding: Finding) -> Headline | None:
    """The first evidence of a finding that is compared with a number, and says which values are worse.

    That none was counted of what may not be there is no figure of the finding.
    """
    rows = (headline_of(e.fact, e.comparison, e.value, e.threshold) for e in finding.evidence)
    return next((row for row in rows if row is not None and (row.value, row.threshold) != (0, 0)), None)


def render_baseline(baseline: Baseline) -> str:
    """JSON with one finding or layer a line, so that a review shows what changed."""
    head = baseline.model_dump(mode="json", exclude={"findings", "layers"})
    parts = [f" {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
    parts.append(_json_lines("findings", [f.model_dump(mode="json") for f in baseline.findings]))
    parts.append(_json_lines("layers", [list(layer) for layer in baseline.layers]))
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _json_lines(key: str, entries: Sequence[object]) -> str:
    if not entries:
        return f" {json.dumps(key)}: []"
    return f" {json.dumps(key)}: [\n" + ",\n".join(f"  {json.dumps(entry)}" for entry in entries) + "\n ]"


def _known_finding(finding: Finding) -> KnownFinding:
    lead = headline(finding)
    return KnownFinding(
        rule=finding.rule.id,
        layer=finding.subject,
        fact=lead.fact if lead is not None else None,
        value=lead.value if lead is not None and math.isfinite(lead.value) else None,
    )


def _as_facts(layer: KnownLayer) -> LayerFacts:
    return LayerFacts(
        name=layer.name,
        float_name=layer.name,
        op_type=layer.op_type,
        weight=WeightFacts(channels=layer.weight_channels),
        output=TensorFacts(channels=layer.output_channels),
    )
