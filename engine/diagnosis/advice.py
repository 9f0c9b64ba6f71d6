"""Which remedies to advise for a cause, for which layers, and which to hold back and why."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import chain
from types import MappingProxyType
from typing import TypeVar

from quantmedic.engine.case.facts import SCOPES, CaseFacts, DatasetFacts, Facts, LayerFacts, OutputFacts, TensorFacts
from quantmedic.engine.contract.advised_remedies import Advice, Present, Withheld
from quantmedic.engine.diagnosis.group_options import group_fields
from quantmedic.engine.diagnosis.input_repair import input_repair
from quantmedic.engine.diagnosis.settings_in_force import code_type, declared_table, scale_axis
from quantmedic.engine.formulas.change import Targets
from quantmedic.engine.rules.conditions import Condition
from quantmedic.engine.rules.evaluate import Finding, decide, look_up, render_message, subject_name, subjects
from quantmedic.engine.rules.remedies import EACH_FIELDS, NAME_FIELDS, Remedy, Snippet
from quantmedic.engine.rules.rule import GLOBAL_SCOPES, LAYER_NAMING, names_layers
from quantmedic.engine.rules.rulebase import RuleBase
from quantmedic.engine.rules.toolchain_options import Code

#: A value for a snippet keeps this many digits; it is rounded up, so that a bound still holds.
DIGITS = 3
#: Mean and factor of a configuration are those of the images within this: digits left out, and half a pixel value.
_SAME_SCALE, _SAME_LEVELS = 1.005, 0.5
_F = TypeVar("_F", bound=Facts)


@dataclass(frozen=True)
class _Verdict:
    """What the conditions of a remedy decide for one subject; ``reason`` is the place among ``withheld``."""

    view: Facts
    in_force: str | None = None
    because: str | None = None
    reason: int = -1
    missing: tuple[str, ...] = ()

    @property
    def stands(self) -> bool:
        """Nothing speaks against the remedy here."""
        return self.in_force is None and self.because is None


def advise(
    findings: Sequence[Finding], base: RuleBase, facts: CaseFacts, spread: Mapping[str, Targets] = MappingProxyType({})
) -> tuple[tuple[Advice, ...], tuple[Withheld, ...]]:
    """Remedies for one cause, in the order of its rules, and those that are held back.

    Each finding is looked at on the subjects that the remedy's conditions speak of: a tensor's producing layer, a
    layer's output, the layer that joins an operand; all of them where a finding concerns the whole model. What is
    already in force, or out of place, on a subject is not advised for it.

    Args:
        findings: What fired for the cause.
        base: Remedies and thresholds in force.
        facts: The facts on which the findings rest.
        spread: Where remedies go that are for every place that they help, by their kind.
    """
    advised: list[Advice] = []
    withheld: list[Withheld] = []
    advisor = _Advisor.of(base, facts, spread)
    for name in dict.fromkeys(name for finding in findings for name in finding.rule.remedies):
        given, held = advisor.advise(base.remedies[name], findings)
        advised += given
        withheld += held
    return tuple(advised), tuple(withheld)


def general_advice(
    remedy: Remedy, types: Iterable[str], nodes: tuple[str, ...] = (), form: str | None = None
) -> Advice:
    """A remedy for the whole network of these operator types, or for these nodes.

    Snippets that ask for other names than those of the nodes are left out.
    """
    fields: dict[str, object] = dict.fromkeys(NAME_FIELDS, ()) | dict.fromkeys(("layers", "nodes", "around"), nodes)
    return _advice_of(remedy, fields, _fitting_snippets(remedy, fields, form, {*types}, []))


def advise_on(remedy: Remedy, places: Targets, base: RuleBase, facts: CaseFacts) -> Advice:
    """A remedy for these operators and activations, whatever any rule says of them.

    Args:
        remedy: What to do there.
        places: Where, by index into the tables of the case.
        base: Thresholds in force.
        facts: The facts of that case.
    """
    layers = [facts.layers[k] for k in places.operators]
    tensors = _unique([*(layer.output for layer in layers), *(facts.tensors[i] for i in places.tensors)])
    fields = _Advisor.of(base, facts).snippet_fields(remedy, layers, tensors, [*layers])
    snippets = _fitting_snippets(remedy, fields, facts.model.format, {layer.op_type for layer in layers}, tensors)
    return _advice_of(remedy, fields, snippets, layers, tensors)


def where_it_stands(remedy: Remedy, places: Targets, base: RuleBase, facts: CaseFacts) -> Targets:
    """Those of the places where nothing speaks against a remedy."""
    advisor = _Advisor.of(base, facts)
    if remedy.scope == "tensor":
        stand = (i for i in places.tensors if advisor.judge(remedy, facts.tensors[i]).stands)
        return replace(places, tensors=tuple(stand))
    return replace(
        places, operators=tuple(k for k in places.operators if advisor.judge(remedy, facts.layers[k]).stands)
    )


@dataclass(frozen=True)
class _Advisor:
    """Facts by the names that findings use, and the thresholds that judge remedies on them."""

    base: RuleBase
    facts: CaseFacts
    layers: Mapping[str | None, LayerFacts]
    tensors: Mapping[str, tuple[TensorFacts, ...]]
    spread: Mapping[str, Targets]
    groups: Mapping[str, object]

    @classmethod
    def of(cls, base: RuleBase, facts: CaseFacts, spread: Mapping[str, Targets] = MappingProxyType({})) -> "_Advisor":
        tensors: dict[str, tuple[TensorFacts, ...]] = {}
        for tensor in facts.tensors:
            tensors[subject_name(tensor)] = (*tensors.get(subject_name(tensor), ()), tensor)
        groups = declared_table(facts.model.checkpoint.declared_groups)
        return cls(base, facts, {layer.name: layer for layer in facts.layers}, tensors, spread, groups)

    def advise(self, remedy: Remedy, findings: Sequence[Finding]) -> tuple[list[Advice], list[Withheld]]:
        """The remedy for what was found, or why it is held back."""
        findings = self._findings_of(remedy, findings)
        everywhere = all(map(self._is_global, findings))
        views = self._subjects_of(remedy, findings, everywhere)
        places = self.spread.get(remedy.simulate or "")
        spread = _views_of(places, remedy, self.facts) if places is not None else None
        if spread:
            # Where the rules fired comes first.
            there = {id(view) for view in spread}
            views = [*_unique(chain((view for view in views if id(view) in there), spread))]
            everywhere = False
        if not views:
            needed = {"layer": "a layer", "tensor": "an activation"}.get(remedy.scope, f"a {remedy.scope}")
            reason = f"it needs {needed}, and this cause names none in the float model"
            return [], [Withheld(id=remedy.id, title=remedy.title, because=reason)]
        verdicts = [self.judge(remedy, view) for view in views]
        if everywhere:
            # A layer without weights says nothing about weights.
            verdicts = [verdict for verdict in verdicts if not verdict.missing] or verdicts[:1]
        standing = [verdict for verdict in verdicts if verdict.stands]
        held = [] if everywhere and standing else _withheld_entries(remedy, verdicts)
        if not standing:
            return [], held
        concerned = [verdict.view for verdict in standing]
        layers, tensors = ([], []) if everywhere else self._layers_and_tensors(remedy, concerned, findings)
        fields = self.snippet_fields(remedy, layers, tensors, concerned)
        fields["repair"] = _repair_code(findings, self.facts)
        types, form = {layer.op_type for layer in layers}, self.facts.model.format
        fitting = _fitting_snippets(remedy, fields, form, types, tensors)
        if remedy.snippets and not fitting:
            reason = "nothing in the float model has a name that its options could take"
            return [], [*held, Withheld(id=remedy.id, title=remedy.title, because=reason)]
        snippets = tuple(snippet for snippet in fitting if snippet.takes(self.facts.model.framework))
        advice = _advice_of(remedy, fields, snippets, layers, tensors).model_copy(
            update={
                "now": self._present_values(remedy, concerned),
                "spread": bool(spread),
                "unsure": tuple(dict.fromkeys(name for verdict in standing for name in verdict.missing)),
            }
        )
        return [advice], held

    def _findings_of(self, remedy: Remedy, findings: Sequence[Finding]) -> list[Finding]:
        """Findings of the rules that name a remedy, and with its layers those of the cause's other rules.

        A trial changes all layers of a cause, and what is advised has to be what was tried.
        """
        named = [finding for finding in findings if remedy.id in finding.rule.remedies]
        if all(self._is_global(finding) for finding in named):
            return named
        return [f for f in findings if remedy.id in f.rule.remedies or not self._is_global(f)]

    def judge(self, remedy: Remedy, view: Facts) -> _Verdict:
        """What speaks against the remedy on one subject."""
        missing: list[str] = []
        if remedy.in_force is not None:
            verdict, used = decide(remedy.in_force, view, self.facts.model, self.base)
            if verdict:
                return _Verdict(view, in_force=f"already in force ({self._facts_in_words(used, view)})")
            missing += self._missing_facts(verdict, used, view)
        for number, reason in enumerate(remedy.withheld):
            verdict, used = decide(reason.when, view, self.facts.model, self.base)
            if verdict:
                because = render_message(reason.because, lambda path: look_up(path, view, self.facts.model))
                return _Verdict(view, because=because, reason=number)
            missing += self._missing_facts(verdict, used, view)
        return _Verdict(view, missing=tuple(missing))

    def _is_global(self, finding: Finding) -> bool:
        return finding.rule.scope in GLOBAL_SCOPES and self._named_layer(finding) is None

    def _named_layer(self, finding: Finding) -> LayerFacts | None:
        """The layer of a finding, or the one that a fact of the model names."""
        if isinstance(finding.view, LayerFacts):
            return finding.view
        if finding.layer is not None:
            return self.layers.get(finding.layer)
        if finding.rule.scope in GLOBAL_SCOPES and names_layers(finding.rule):
            return self.layers.get(next((getattr(self.facts.model, fact) for fact in LAYER_NAMING), None))
        return None

    def _subjects_of(self, remedy: Remedy, findings: list[Finding], everywhere: bool) -> list[Facts]:
        """Subjects of the remedy's scope that the findings are about."""
        if remedy.scope == "model":
            return [self.facts.model]
        if remedy.scope == "dataset":
            named = {finding.subject for finding in findings}
            sets = [view for view in self.facts.datasets if view.role in named]
            return [*(sets or self.facts.datasets or (DatasetFacts(),))]
        if everywhere:
            return list(subjects(remedy.scope, self.facts)) or [SCOPES[remedy.scope]()]
        if remedy.scope == "layer":
            return [*_unique(layer for finding in findings for layer in self._layers_of_finding(finding))]
        return [*_unique(tensor for finding in findings for tensor in self._tensors_of_finding(finding))]

    def _layers_of_finding(self, finding: Finding) -> list[LayerFacts]:
        """The layer that a finding speaks of; for an input of the network, the layers that read it."""
        layer = self._named_layer(finding)
        if layer is not None:
            return [layer]
        readers = {name for tensor in self._tensors_of_finding(finding) for name in tensor.readers}
        return [layer for layer in self.facts.layers if readers & set(_nodes(layer))]

    def _tensors_of_finding(self, finding: Finding) -> list[TensorFacts]:
        """The activation that a finding speaks of: its own, else the output of its layer."""
        if isinstance(finding.view, TensorFacts):
            return [finding.view]
        if isinstance(finding.view, OutputFacts):
            return [finding.view.tensor]
        layer = self._named_layer(finding)
        if layer is None:
            return list(self.tensors.get(finding.subject, ()))
        return [layer.output]

    def _layers_and_tensors(
        self, remedy: Remedy, views: list[Facts], findings: list[Finding]
    ) -> tuple[list[LayerFacts], list[TensorFacts]]:
        """Layers and activations that the remedy is advised for."""
        if remedy.scope == "layer":
            layers = [view for view in views if isinstance(view, LayerFacts)]
            return layers, [layer.output for layer in layers]
        if remedy.scope == "tensor":
            tensors = [view for view in views if isinstance(view, TensorFacts)]
            return _unique(layer for tensor in tensors for layer in self._writers(tensor)), tensors
        return (
            _unique(layer for finding in findings for layer in self._layers_of_finding(finding)),
            _unique(tensor for finding in findings for tensor in self._tensors_of_finding(finding)),
        )

    def _writers(self, tensor: TensorFacts) -> list[LayerFacts]:
        """The layer that writes a tensor; for an input of the network, the layers that read it."""
        if tensor.producer_name in self.layers:
            return [self.layers[tensor.producer_name]]
        return [layer for layer in self.facts.layers if set(tensor.readers) & set(_nodes(layer))]

    def snippet_fields(
        self, remedy: Remedy, layers: list[LayerFacts], tensors: list[TensorFacts], views: list[Facts]
    ) -> dict[str, object]:
        """What snippets of the remedy are filled with; an empty list or None: nothing to fill in."""
        feeders = [self.layers[name] for layer in layers for name in layer.group if name in self.layers]
        nodes = [name for layer in layers for name in _nodes(layer)]
        written = [*(layer.output for layer in layers), *tensors]
        types = {layer.op_type for layer in layers if layer.op_type}
        names = {
            "layers": [name for layer in layers if (name := _layer_name(layer))],
            "nodes": nodes,
            "around": [*nodes, *(name for tensor in written for name in tensor.readers)],
            "group": [*nodes, *(name for layer in feeders for name in _nodes(layer))],
            "tensors": _tensor_names(tensors),
            "weights": [layer.weight.name for layer in layers if layer.weight.name],
            "typed": [name for layer in self.facts.layers if layer.op_type in types for name in _nodes(layer)],
            "quantized_layers": [n for layer in layers if layer.weight.name and (n := layer.quantized_name)],
            # The layers of a network input are those that read it: their outputs are not meant.
            "quantized_tensors": [
                n
                for tensor in (tensors if remedy.scope == "tensor" else written)
                if tensor.quantizer.bits and (n := tensor.name)
            ],
        }
        lists = {field: tuple(dict.fromkeys(names[field])) for field in NAME_FIELDS}
        values = {field: self._snippet_value(given, views) for field, given in remedy.values.items()}
        groups = group_fields(self.facts, lists["layers"], self.groups)
        return lists | _pixels(self.facts.datasets) | _weight_axes(layers, self.facts.layers) | groups | values

    def _snippet_value(self, given: str | tuple[str, ...], views: list[Facts]) -> object:
        """A table as it is; the largest of a number, rounded up; the different texts; or facts of subjects by name."""
        if isinstance(given, str):
            values = [value for view in views if (value := look_up(given, view, self.facts.model)) is not None]
            if values and isinstance(values[0], Mapping):
                return values[0]
            numbers = [value for value in values if isinstance(value, int | float)]
            if len(numbers) == len(values):
                return _rounded_up(max(numbers)) if numbers else None
            return tuple(dict.fromkeys(values))
        table = {_float_name(view): tuple(look_up(path, view, self.facts.model) for path in given) for view in views}
        return {name: row for name, row in table.items() if name and None not in row} or None

    def _missing_facts(self, verdict: bool | None, used: list[Condition], view: Facts) -> list[str]:
        return [c.fact for c in used if look_up(c.fact, view, self.facts.model) is None] if verdict is None else []

    def _facts_in_words(self, used: Iterable[Condition], view: Facts) -> str:
        """The facts that decided, as measured: "quantizer.bits is 16"."""
        values = {condition.fact: look_up(condition.fact, view, self.facts.model) for condition in used}
        return ", ".join(f"{fact} is {_fact_text(value)}" for fact, value in values.items()) or "the model has it"

    def _present_values(self, remedy: Remedy, views: Sequence[Facts]) -> tuple[Present, ...]:
        """What the settings that a remedy changes are now, and of which subjects; without those that are not known."""
        rows = []
        for alternatives in remedy.now:
            values: dict[tuple[str, object], list[str]] = {}
            for view in views:
                found = ((each, look_up(each, view, self.facts.model)) for each in alternatives.split("|"))
                known = next(((each, value) for each, value in found if value is not None), None)
                if known is not None:
                    values.setdefault(known, []).append(subject_name(view))
            rows += [
                Present(fact=path, value=value, subjects=tuple(dict.fromkeys(names)))
                for (path, value), names in values.items()
            ]
        return tuple(rows)


def _advice_of(
    remedy: Remedy,
    fields: Mapping[str, object],
    snippets: tuple[Snippet, ...],
    layers: Iterable[LayerFacts] = (),
    tensors: Iterable[TensorFacts] = (),
) -> Advice:
    return Advice(
        id=remedy.id,
        title=remedy.title,
        changes=remedy.changes,
        cost=remedy.cost,
        unsafe=remedy.unsafe,
        scope=remedy.scope,
        simulate=remedy.simulate,
        layers=tuple(name for layer in layers if (name := _layer_name(layer))),
        tensors=tuple(_tensor_names(tensors)),
        snippets=snippets,
        fields=dict(fields),
    )


def _views_of(targets: Targets, remedy: Remedy, facts: CaseFacts) -> list[Facts]:
    """Tensors or layers, as the remedy's conditions speak of the one or the other."""
    if remedy.scope == "tensor":
        return [facts.tensors[i] for i in targets.tensors]
    return [facts.layers[k] for k in targets.operators]


def _fact_text(value: object) -> str:
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _withheld_entries(remedy: Remedy, verdicts: list[_Verdict]) -> list[Withheld]:
    """One entry per reason; that a remedy is in force on some subjects only is not reported."""
    some_stand = any(verdict.stands for verdict in verdicts)
    against = [v for v in verdicts if v.because is not None or (v.in_force is not None and not some_stand)]
    reasons: dict[int, list[_Verdict]] = {}
    for verdict in against:
        reasons.setdefault(verdict.reason, []).append(verdict)
    everything = len(reasons) == 1 and not some_stand
    return [
        Withheld(
            id=remedy.id,
            title=remedy.title,
            # What holds of most subjects; of reasons that hold of as many the first.
            because=Counter(verdict.because or verdict.in_force or "" for verdict in same).most_common(1)[0][0],
            layers=() if everything else tuple(dict.fromkeys(subject_name(verdict.view) for verdict in same)),
        )
        for same in reasons.values()
    ]


def _unique(views: Iterable[_F]) -> list[_F]:
    return list({id(view): view for view in views}.values())


def _weight_axes(layers: list[LayerFacts], every: Iterable[LayerFacts]) -> dict[str, object]:
    """The axes of weights that a toolchain has to be told so that it keeps their granularity, or changes it."""
    own = {layer.weight.name: layer for layer in layers if layer.weight.name}
    some = any(layer.weight.quantizer.granularity == "per_channel" for layer in every)
    single = {name: layer for name, layer in own.items() if some and scale_axis(layer) is None}
    return {
        "weight_axes": {name: (scale_axis(layer), code_type(layer.weight.quantizer)) for name, layer in own.items()},
        "channel_axes": {name: (layer.weight.output_axis,) for name, layer in single.items()},
    }


def _pixels(datasets: Iterable[DatasetFacts]) -> dict[str, str | None]:
    """How the application turns pixels into inputs, where the validation images show all of a pixel's values."""
    sets = {view.role: view for view in datasets}
    rep, val = sets.get("representative"), sets.get("validation")
    if rep is None or val is None or not rep.relation.reading or not val.lattice_step or not val.lattice_low:
        return dict.fromkeys(("pixel_mean", "pixel_scale", "pixel_kept"))
    grids = list(zip(val.lattice_step, val.lattice_low, strict=True))
    mean, scale = " ".join(f"{-low / step + 0.0:.6g}" for step, low in grids), " ".join(f"{x:.6g}" for x, _ in grids)
    if _settings_agree(val):
        return {"pixel_mean": None, "pixel_scale": None, "pixel_kept": f"mean {mean}, factor {scale}"}
    return {"pixel_mean": mean, "pixel_scale": scale, "pixel_kept": None}


def _settings_agree(view: DatasetFacts) -> bool:
    """The toolchain's mean and factor are those of the images, as far as configurations write their digits."""
    mismatch, levels = view.settings_scale_mismatch, view.settings_mean_difference
    return mismatch is not None and levels is not None and mismatch < _SAME_SCALE and levels < _SAME_LEVELS


def _repair_code(findings: Iterable[Finding], facts: CaseFacts) -> Code | None:
    """The function that undoes the mistake in the representative inputs which is the cause."""
    sets = {dataset.role: dataset for dataset in facts.datasets}
    repairs = (input_repair(finding.rule.cause, sets) for finding in findings)
    return next((found.code() for found in repairs if found is not None), None)


def _rounded_up(value: float) -> float:
    if isinstance(value, int) or not math.isfinite(value) or value == 0:
        return value
    places = DIGITS - 1 - math.floor(math.log10(abs(value)))
    return math.ceil(value * 10**places) / 10**places if places <= 300 else value


def _float_name(view: Facts) -> str | None:
    return view.float_name if isinstance(view, LayerFacts | TensorFacts) else subject_name(view)


def _nodes(layer: LayerFacts) -> tuple[str, ...]:
    """Nodes of a layer in the float model; its name where its nodes are not known."""
    if layer.float_nodes is not None:
        return layer.float_nodes
    return (layer.float_name,) if layer.float_name else ()


def _layer_name(layer: LayerFacts) -> str | None:
    return layer.float_name or layer.quantized_name


def _tensor_names(tensors: Iterable[TensorFacts]) -> list[str]:
    return list(dict.fromkeys(tensor.float_name for tensor in tensors if tensor.float_name))


def _fitting_snippets(
    remedy: Remedy,
    fields: Mapping[str, object],
    form: str | None,
    types: Set[str | None],
    tensors: Sequence[TensorFacts],
) -> tuple[Snippet, ...]:
    """Those that can be written for these layers and activations, and that their toolchain would accept there.

    Where a toolchain has one for models of this format, that for all others is not for this model.
    """
    found = [
        snippet
        for snippet in remedy.snippets
        if _fits(snippet, fields, form)
        and (not snippet.types or types & set(snippet.types))
        and all(_is_accepted(snippet, tensor) for tensor in tensors)
    ]
    of_format = {(snippet.toolchain, snippet.types) for snippet in found if snippet.formats}
    return tuple(s for s in found if s.formats or (s.toolchain, s.types) not in of_format)


def _is_accepted(snippet: Snippet, tensor: TensorFacts) -> bool:
    """What writes an activation and what reads it can do with it what the snippet asks for."""
    if snippet.written_by and tensor.producer not in snippet.written_by:
        return False
    return not snippet.read_by or set(tensor.consumers) <= set(snippet.read_by)


def _fits(snippet: Snippet, fields: Mapping[str, object], form: str | None) -> bool:
    """All that it asks for is there, and it is not meant for the whole model only, nor for another format."""
    if snippet.formats and form not in snippet.formats:
        return False
    if snippet.whole and (fields["layers"] or fields["tensors"]):
        return False
    return all(fields.get(EACH_FIELDS.get(name, name)) not in (None, (), {}) for name in snippet.fields)
