"""Two diagnoses side by side: what healed, what broke, what was changed in between."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal

from pydantic import Field

from quantmedic.engine.case.fact_base import declared_unit
from quantmedic.engine.case.facts import CaseFacts, LayerFacts, MetricFacts, ModelFacts, Role, TensorFacts, fact_paths
from quantmedic.engine.case.records import Case
from quantmedic.engine.contract.causes import CauseReport
from quantmedic.engine.contract.diagnosis import Diagnosis, DropClass, Verdict
from quantmedic.engine.contract.layers import LayerRow
from quantmedic.engine.contract.previous_report import Changed, SettingChange, Tried
from quantmedic.engine.diagnosis.previous import PreviousCase, compare_with_previous, differs, level_gain, previous_case
from quantmedic.engine.formulas.matching import How, Matching, match_layers, new_names, renamer
from quantmedic.engine.garbage import without_garbage_collection
from quantmedic.engine.json_record import Contract
from quantmedic.engine.rules.evaluate import evaluate, look_up
from quantmedic.engine.rules.rulebase import RuleBase
from quantmedic.engine.versus.cause_changes import CauseChange, Compared, FactChange, Findings
from quantmedic.engine.versus.outcome import (
    Direction,
    MetricChange,
    OutputChange,
    Word,
    answer,
    direction_of,
    is_same_metric,
    metric_change,
    output_changes,
)

SCHEMA_VERSION = "1.0"
#: Facts of how the model was made and is run; the others follow from these.
_SETTING = re.compile(
    r"(framework|format|toolchain|opset|operators|quantized_share|integer_share|half_share|power_of_two_share)"
    r"|settings\..*"
)
#: Facts of what the model costs.
_COST = re.compile(r"bytes_.*|size_ratio|(integer_)?operations(_share)?|latency_((float|quantized)_ms|ratio)")
#: Entries of a run that are files rather than options.
_FILES = frozenset({"float_model", "quantized_model", "float_sha256", "quantized_sha256", "data", "unmatched"})


class Side(Contract):
    """One of the two cases."""

    float_model: str | None = Field(description="file name of the float model")
    quantized_model: str | None = Field(description="file name of the quantized model")
    float_sha256: str | None
    quantized_sha256: str | None
    quantmedic_version: str = Field(description="version that measured it")
    verdict: Verdict
    drop_class: DropClass | None
    causes: int = Field(description="causes of high or medium severity")
    layers: int
    degraded_layers: int | None = Field(description="layers whose accumulated error is over a threshold")
    metric: MetricFacts
    output_sqnr_db: float | None = Field(description="lowest accumulated sqnr_db of the outputs")
    output_agreement: float | None = Field(description="share of samples with the float model's class")
    kl_mean: float | None = Field(
        default=None, description="mean divergence of the predictions of a language model from the float one's, in nats"
    )
    same_top: float | None = Field(
        default=None,
        description="share of tokens for which a language model and its float one put the same token first",
    )
    samples: Mapping[Role, int] = Field(description="samples of each data set; of language models texts")


class SharedSamples(Contract):
    """How far a data set that both cases have is the same."""

    role: Role
    share: float = Field(description="samples that occur in both / samples that occur in either, by content")


class LayerChange(Contract):
    """One layer that both models have, measured on the data set that both have; SQNR in dB."""

    index: int = Field(description="topological index in the second case")
    name: str = Field(description="name in the second case")
    before_name: str | None = Field(default=None, description="name in the first case, where that is another")
    matched: How = Field(description="name, or position: order and kind between layers that match by name")
    op_type: str
    accumulated_before: float | None = None
    accumulated_after: float | None = None
    gain_db: float | None = Field(default=None, description="accumulated after - before")
    rounding_before: float | None = None
    rounding_after: float | None = None
    weight_before: float | None = Field(default=None, description="sqnr_db of the stored weights")
    weight_after: float | None = None
    weight_gain_db: float | None = None
    bits_before: int | None = None
    bits_after: int | None = None
    weight_bits_before: int | None = None
    weight_bits_after: int | None = None
    degraded_before: bool | None = None
    degraded_after: bool | None = None


class LayersMatched(Contract):
    """How the layers of both models were matched."""

    by_name: int
    by_position: int
    only_before: tuple[str, ...] = Field(description="layers of the first case without a counterpart")
    only_after: tuple[str, ...] = Field(description="layers of the second case without one")


class ComparisonReport(Contract):
    """Two diagnoses side by side: this is ``compare.json``. Better is a positive gain everywhere."""

    schema_version: str = SCHEMA_VERSION
    quantmedic_version: str
    word: Word
    before: Side
    after: Side
    same_float: bool | None = Field(description="by hash of the file; None where one is not known")
    same_quantized: bool | None = Field(description="the same of the quantized models")
    same_data: bool = Field(description="both are judged on the same samples, so that levels can be compared")
    shared: tuple[SharedSamples, ...]
    same_metric: bool = Field(description="both measured the same metric of the same output, or none")
    metric: MetricChange | None = Field(description="None where the same metric was not measured in both")
    outputs: tuple[OutputChange, ...]
    measured: str | None = Field(description="metric and outputs together: better, worse, same, mixed; None: not known")
    causes: tuple[CauseChange, ...] = Field(description="every cause that either lists, what broke first")
    dataset: Role | None = Field(description="data set that the layers below were measured on in both cases")
    matched: LayersMatched
    layers: tuple[LayerChange, ...] = Field(description="layers of both models in the order of the second")
    changed: tuple[Changed, ...] = Field(description="settings of layers, activations and data sets that changed")
    settings: tuple[FactChange, ...] = Field(description="facts of how the model was made and is run that differ")
    options: tuple[SettingChange, ...] = Field(description="options and versions of the measurement that differ")
    thresholds: tuple[SettingChange, ...] = Field(description="thresholds that differ; none if judged together")
    costs: tuple[FactChange, ...] = Field(description="sizes, and what else a model costs, where one of them knows it")
    tried: tuple[Tried, ...] = Field(description="remedies of the first diagnosis that were applied since")


@dataclass(frozen=True)
class Judged:
    """A case with its facts and its diagnosis."""

    case: Case
    facts: CaseFacts
    diagnosis: Diagnosis


@without_garbage_collection
def side_by_side(before: Judged, after: Judged, base: RuleBase, *, version: str) -> ComparisonReport:
    """Compare two cases, judged by the same rules.

    The cases may be of different float models: layers are then matched as far as names, order and kinds agree.

    Args:
        before: The first case.
        after: The second.
        base: Rules and thresholds that judged both.
        version: Version of quantmedic.
    """
    matching = match_layers(before.facts.layers, after.facts.layers)
    renamed = renamer(new_names(matching, before.facts.layers, after.facts.layers))
    past = _renamed_case(before, after, renamed)
    asked = _rules_of_causes(before.diagnosis, after.diagnosis, base)
    old, new = (Findings.of(j.diagnosis, j.facts, evaluate(asked, j.facts)) for j in (before, after))
    causes = Compared(old, new, base, renamed).changes()
    same_float = _same_run_value(before, after, "float_sha256")
    metrics = (judged.facts.model.metric for judged in (before, after))
    metric = metric_change(before.case, after.case, *metrics, same_float=same_float is True)
    outputs = output_changes(
        before.facts.outputs,
        after.facts.outputs,
        same_data=past.same_data,
        margin_db=base.threshold("previous_effect_db"),
    )
    measured = direction_of([metric.direction if metric is not None else None, *(o.direction for o in outputs)])
    since = compare_with_previous(past, after.facts, base)
    role = _common_role(before.case, after.case)
    return ComparisonReport(
        quantmedic_version=version,
        word=_word(before, after, causes, measured, matching),
        before=_side(before),
        after=_side(after),
        same_float=same_float,
        same_quantized=_same_run_value(before, after, "quantized_sha256"),
        same_data=past.same_data,
        shared=tuple(SharedSamples(role=r, share=share) for r, share in past.shared.items()),
        same_metric=is_same_metric(before.case, after.case),
        metric=metric,
        outputs=outputs,
        measured=measured,
        causes=causes,
        dataset=role,
        matched=_match_counts(matching, before.facts, after.facts),
        layers=tuple(
            _layer_change(before.diagnosis.layers[pair.before], after.diagnosis.layers[pair.after], pair.how, role)
            for pair in matching.pairs
        ),
        changed=since.changed,
        settings=_fact_changes(before.facts.model, after.facts.model, _SETTING, only_changed=True),
        options=_option_changes(before.case.record.run, after.case.record.run),
        thresholds=_threshold_changes(before.diagnosis, after.diagnosis),
        costs=_fact_changes(before.facts.model, after.facts.model, _COST, only_changed=False),
        tried=since.tried if matching.pairs and same_float is not False else (),
    )


def _rules_of_causes(before: Diagnosis, after: Diagnosis, base: RuleBase) -> RuleBase:
    """The rules for any cause that either diagnosis lists."""
    causes = {cause.cause for diagnosis in (before, after) for cause in diagnosis.causes}
    return base.model_copy(update={"rules": tuple(rule for rule in base.rules if rule.cause in causes)})


# --- The answer ------------------------------------------------------------------------------------------------------


def _word(
    before: Judged,
    after: Judged,
    causes: tuple[CauseChange, ...],
    measured: Direction | Literal["mixed"] | None,
    matching: Matching,
) -> Word:
    serious = [cause for cause in causes if cause.is_serious]
    return answer(
        before.diagnosis,
        after.diagnosis,
        measured,
        _by_causes(serious) if matching.pairs and _without_data(before) and _without_data(after) else None,
        all_healed=_all_have([cause for cause in serious if cause.severity_before is not None], "healed"),
        all_new=_all_have([cause for cause in serious if cause.severity_after is not None], "new"),
    )


def _all_have(causes: list[CauseChange], status: str) -> bool:
    return bool(causes) and all(cause.status == status for cause in causes)


def _by_causes(causes: Iterable[CauseChange]) -> Direction | Literal["mixed"]:
    """The causes together: what could not be judged in both cases counts for nothing."""
    signs: dict[str, Direction] = {"new": "worse", "worse": "worse", "healed": "better", "better": "better"}
    statuses = {cause.status for cause in causes}
    if "mixed" in statuses:
        return "mixed"
    return direction_of([*(signs.get(status) for status in statuses), "same"]) or "same"


def _without_data(judged: Judged) -> bool:
    """Models or checkpoints were read, and nothing was run."""
    return not judged.case.statistics and judged.case.record.model.language.texts is None


# --- Sides -----------------------------------------------------------------------------------------------------------


def _side(judged: Judged) -> Side:
    run, model = judged.case.record.run, judged.facts.model
    return Side(
        float_model=_run_text(run.get("float_model")),
        quantized_model=model.name or _run_text(run.get("quantized_model")),
        float_sha256=_run_text(run.get("float_sha256")),
        quantized_sha256=_run_text(run.get("quantized_sha256")),
        quantmedic_version=judged.case.record.quantmedic_version,
        verdict=judged.diagnosis.verdict,
        drop_class=judged.diagnosis.drop_class,
        causes=sum(cause.is_serious for cause in judged.diagnosis.causes),
        layers=len(judged.facts.layers),
        degraded_layers=model.degraded_layers,
        metric=model.metric,
        output_sqnr_db=model.output_sqnr_db,
        output_agreement=model.output_agreement,
        kl_mean=model.language.kl_mean,
        same_top=model.language.same_top,
        samples=_samples_of(judged.case),
    )


def _samples_of(case: Case) -> dict[Role, int]:
    """Samples by data set; the texts of language models are those that validate."""
    texts = case.record.model.language.texts
    if texts is not None:
        return {"validation": texts}
    return {role: len(found.samples) for role, found in sorted(case.statistics.items())}


def _run_text(value: object) -> str | None:
    return None if value is None else str(value)


def _same_run_value(before: Judged, after: Judged, key: str) -> bool | None:
    old, new = (_run_text(judged.case.record.run.get(key)) for judged in (before, after))
    return None if old is None or new is None else old == new


def _common_role(before: Case, after: Case) -> Role | None:
    """The data set that layers are compared on: the validation set where both have one."""
    roles = before.statistics.keys() & after.statistics.keys()
    return next((role for role in ("validation", "representative") if role in roles), None)


# --- Layers ----------------------------------------------------------------------------------------------------------


def _renamed_case(before: Judged, after: Judged, renamed: Callable[[str], str]) -> PreviousCase:
    """The first case under the names of the second, so that what was set can be compared."""
    past = previous_case(before.case, after.case, before.facts, before.diagnosis.causes)
    layers = tuple(_renamed_layer(layer, renamed) for layer in past.facts.layers)
    new_tensors = {t.producer_name: t.float_name for t in after.facts.tensors}
    tensors = tuple(_renamed_tensor(tensor, renamed, new_tensors) for tensor in past.facts.tensors)
    facts = past.facts.model_copy(update={"layers": layers, "tensors": tensors})
    return replace(past, facts=facts, causes=tuple(_renamed_cause(cause, renamed) for cause in past.causes))


def _renamed_layer(layer: LayerFacts, renamed: Callable[[str], str]) -> LayerFacts:
    if layer.float_name is None or renamed(layer.float_name) == layer.float_name:
        return layer
    name = None if layer.name is None else renamed(layer.name)
    return layer.model_copy(update={"name": name, "float_name": renamed(layer.float_name)})


def _renamed_tensor(
    tensor: TensorFacts, renamed: Callable[[str], str], new_tensors: Mapping[str | None, str | None]
) -> TensorFacts:
    producer = tensor.producer_name
    if producer is None or renamed(producer) == producer:
        return tensor
    name = renamed(producer)
    return tensor.model_copy(update={"producer_name": name, "float_name": new_tensors.get(name, tensor.float_name)})


def _renamed_cause(cause: CauseReport, renamed: Callable[[str], str]) -> CauseReport:
    layers = tuple(
        layer.model_copy(update={"float_name": renamed(layer.float_name)}) if layer.float_name is not None else layer
        for layer in cause.layers
    )
    return cause.model_copy(update={"subjects": tuple(map(renamed, cause.subjects)), "layers": layers})


def _match_counts(matching: Matching, before: CaseFacts, after: CaseFacts) -> LayersMatched:
    by_name = sum(pair.how == "name" for pair in matching.pairs)
    return LayersMatched(
        by_name=by_name,
        by_position=len(matching.pairs) - by_name,
        only_before=tuple(before.layers[place].name or "?" for place in matching.only_before),
        only_after=tuple(after.layers[place].name or "?" for place in matching.only_after),
    )


def _layer_change(before: LayerRow, after: LayerRow, how: How, role: Role | None) -> LayerChange:
    errors = [getattr(row, role) if role is not None else None for row in (before, after)]
    accumulated = [error.accumulated.sqnr_db if error is not None else None for error in errors]
    rounding = [error.rounding.sqnr_db if error is not None else None for error in errors]
    return LayerChange(
        index=after.index,
        name=after.name,
        before_name=before.name if before.name != after.name else None,
        matched=how,
        op_type=after.op_type,
        accumulated_before=accumulated[0],
        accumulated_after=accumulated[1],
        gain_db=level_gain(*accumulated),
        rounding_before=rounding[0],
        rounding_after=rounding[1],
        weight_before=before.weight_sqnr_db,
        weight_after=after.weight_sqnr_db,
        weight_gain_db=level_gain(before.weight_sqnr_db, after.weight_sqnr_db),
        bits_before=before.bits,
        bits_after=after.bits,
        weight_bits_before=before.weight_bits,
        weight_bits_after=after.weight_bits,
        degraded_before=before.degraded,
        degraded_after=after.degraded,
    )


# --- What was changed ------------------------------------------------------------------------------------------------


def _fact_changes(
    before: ModelFacts, after: ModelFacts, wanted: re.Pattern[str], *, only_changed: bool
) -> tuple[FactChange, ...]:
    """Facts of the model in both cases, in the order in which they are declared."""
    found = []
    for path, field in fact_paths("model").items():
        if not wanted.fullmatch(path):
            continue
        old, new = (look_up(path, model, model) for model in (before, after))
        known = [value is not None for value in (old, new)]
        if (all(known) and differs(old, new)) if only_changed else any(known):
            unit = declared_unit(field)
            found.append(FactChange(fact=path, unit=unit, before=old, after=new))
    return tuple(found)


def _option_changes(before: Mapping[str, object], after: Mapping[str, object]) -> tuple[SettingChange, ...]:
    old, new = _flat(before), _flat(after)
    return tuple(
        SettingChange(subject=key, before=old[key], after=new[key])
        for key in new
        if key in old and old[key] != new[key]
    )


def _flat(run: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Entries of a run that are options, nested ones by their path."""
    flat: dict[str, object] = {}
    for key, value in run.items():
        if key in _FILES:
            continue
        flat |= _flat(value, f"{prefix}{key} ") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return flat


def _threshold_changes(before: Diagnosis, after: Diagnosis) -> tuple[SettingChange, ...]:
    old, new = ({t.name: t.value for t in diagnosis.thresholds} for diagnosis in (before, after))
    return tuple(
        SettingChange(subject=name, before=old.get(name), after=new.get(name))
        for name in dict.fromkeys((*new, *old))
        if old.get(name) != new.get(name)
    )
