"""The comparison with the previous case: changed settings, their effect, and remedies that did not help."""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from quantmedic.engine.case.facts import CaseFacts, DatasetFacts, Facts, LayerFacts, MetricFacts, Role, TensorFacts
from quantmedic.engine.case.language_facts import BlockFacts
from quantmedic.engine.case.records import Case, CaseRecord
from quantmedic.engine.contract.causes import CauseReport
from quantmedic.engine.contract.previous_report import Changed, Effect, Previous, SettingChange, Tried
from quantmedic.engine.errors import CaseError
from quantmedic.engine.formulas.change import SAME
from quantmedic.engine.formulas.stored_bins import main_role
from quantmedic.engine.formulas.texts import share_of_texts
from quantmedic.engine.rules.evaluate import decide, look_up, subject_name
from quantmedic.engine.rules.remedies import WEIGHT_FILES, Remedy
from quantmedic.engine.rules.remedy_kinds import REMEDY_KINDS
from quantmedic.engine.rules.rulebase import RuleBase

EXAMPLES_SHOWN = 3
#: Facts that somebody chose; all others are consequences, which change with any calibration.
_SETTING = re.compile(r"(^|\.)quantizer\.(granularity|bits|signed|symmetric|axis|dynamic)$|^(bias\.bits|format|opset)$")
NAMES_SHOWN = 5
_V = TypeVar("_V")


@dataclass(frozen=True)
class PreviousCase:
    """The previous case as it was judged, and how its data relate to the present ones.

    ``shared`` is, per data set that both cases have, the share of samples that occur in both, of all that occur in
    either.
    """

    facts: CaseFacts
    causes: tuple[CauseReport, ...]
    shared: Mapping[Role, float]
    same_data: bool


def previous_case(previous: Case, now: Case, facts: CaseFacts, causes: tuple[CauseReport, ...]) -> PreviousCase:
    """The previous case beside the present one.

    Args:
        previous: The case before the remedy was applied.
        now: The case after.
        facts: Facts of the previous case.
        causes: Its diagnosis.

    """
    roles = previous.statistics.keys() & now.statistics.keys()
    shared = {role: _overlap(previous, now, role) for role in sorted(roles)}
    texts = share_of_texts(previous.record.model.language, now.record.model.language)
    if texts is not None:
        shared["validation"] = texts  # the role that the perplexity is told of
    role = main_role(now)
    same = texts == 1.0 or (role == main_role(previous) and shared.get(role, 0.0) == 1.0)
    return PreviousCase(facts, causes, shared, same)


def refuse_other_float(previous: CaseRecord, now: CaseRecord) -> None:
    """Only cases of one float model can be compared.

    Raises:
        CaseError: The models differ; names files, hashes and the layers that only one of them has.
    """
    hashes = [record.run.get("float_sha256") for record in (previous, now)]
    names = [{op.float_name for op in record.operators if op.float_name} for record in (previous, now)]
    if hashes[0] == hashes[1] and (hashes[0] is not None or names[0] == names[1]):
        return
    where = []
    for word, record, own, other in (
        ("previous", previous, names[0], names[1]),
        ("present", now, names[1], names[0]),
    ):
        file = record.run.get("float_model", "?")
        where.append(f"{word}: {file}, {len(own)} layers, sha256 {str(record.run.get('float_sha256'))[:12]}")
        if alone := sorted(own - other):
            more = f" and {len(alone) - NAMES_SHOWN} more" if len(alone) > NAMES_SHOWN else ""
            where.append(f"only in the {word}: {', '.join(alone[:NAMES_SHOWN])}{more}")
    if names[0] == names[1]:
        where.append("both name the same layers: their weights or attributes differ")
    raise CaseError(
        "the previous case belongs to another float model",
        where=where,
        help="measure both against the same float file; a remedy changes the quantized model",
    )


def _overlap(previous: Case, now: Case, role: Role) -> float:
    then, present = (set(case.statistics[role].samples["hash"].tolist()) for case in (previous, now))
    return len(then & present) / len(then | present) if then | present else 1.0


def compare_with_previous(past: PreviousCase, facts: CaseFacts, base: RuleBase) -> Previous:
    """What changed since the previous case, with what effect, and which of its remedies were tried."""
    effect = _effect(past, facts, base)
    return Previous(
        effect=effect,
        changed=tuple(_setting_changes(past, facts)),
        tried=tuple(_Since(past, facts, base).remedies(effect)),
    )


# --- The effect ------------------------------------------------------------------------------------------------------


def _effect(past: PreviousCase, facts: CaseFacts, base: RuleBase) -> Effect:
    then, now = past.facts.model, facts.model
    gain = level_gain(then.output_sqnr_db, now.output_sqnr_db) if past.same_data else None
    same_metric = then.metric.name == now.metric.name and now.metric.drop is not None and then.metric.drop is not None
    gained = None if gain is None else gain >= base.threshold("previous_effect_db")
    shrank = _has_shrunk(then.metric, now.metric) if same_metric else None
    verdicts = [verdict for verdict in (gained, shrank) if verdict is not None]
    drops = (then.metric, now.metric) if same_metric else (MetricFacts(), MetricFacts())
    return Effect(
        same_data=past.same_data,
        sqnr_before=then.output_sqnr_db,
        sqnr=now.output_sqnr_db,
        gain_db=gain,
        agreement_before=then.output_agreement,
        agreement=now.output_agreement,
        metric=drops[1].name,
        drop_before=drops[0].drop,
        drop_before_low=drops[0].drop_low,
        drop_before_high=drops[0].drop_high,
        drop=drops[1].drop,
        drop_low=drops[1].drop_low,
        drop_high=drops[1].drop_high,
        helped=any(verdicts) if verdicts else None,
    )


def _has_shrunk(before: MetricFacts, after: MetricFacts) -> bool:
    """The drop fell below its earlier interval."""
    return before.drop_low is not None and after.drop is not None and after.drop < before.drop_low


def level_gain(before: float | None, after: float | None) -> float | None:
    """after - before of two levels in dB; 0 where both are infinite, None where one is missing."""
    if before is None or after is None or math.isnan(before) or math.isnan(after):
        return None
    return 0.0 if before == after else after - before


# --- What changed ----------------------------------------------------------------------------------------------------


def _setting_changes(past: PreviousCase, facts: CaseFacts) -> Iterable[Changed]:
    cases = past.facts, facts
    yield from _setting_differences(
        "data set", cases, lambda case: _first_by_name(case.datasets, "role"), _data_settings
    )
    for role, share in past.shared.items():
        if share < 1.0:
            change = SettingChange(subject=role, before=1.0, after=share)
            yield Changed(setting="share of the same samples", of="data set", count=1, examples=(change,))
    yield from _setting_differences(
        "layer", cases, lambda case: _first_by_name(case.layers, "float_name"), _layer_settings
    )
    yield from _setting_differences("layer", cases, _input_scales, lambda scale: {"stored scale of inputs": scale})
    yield from _setting_differences(
        "block", cases, lambda case: _first_by_name(case.model.language.blocks, "name"), _block_settings
    )
    yield from _setting_differences(
        "activation", cases, lambda case: _first_by_name(case.tensors, "float_name"), _tensor_settings
    )


def _setting_differences(
    of: str,
    cases: tuple[CaseFacts, CaseFacts],
    named: Callable[[CaseFacts], dict[str, _V]],
    settings: Callable[[_V], dict[str, object]],
) -> Iterable[Changed]:
    then, now = map(named, cases)
    found: dict[str, list[SettingChange]] = {}
    for name, view in then.items():
        if name not in now:
            continue
        old, new = settings(view), settings(now[name])
        known = (key for key in old if old[key] is not None and new.get(key) is not None)
        for setting in [key for key in known if differs(old[key], new[key])]:
            # A grid that changed in kind has another step anyway.
            if setting in ("range", "weight scale") and any(
                key in found and found[key][-1].subject == name for key in _KINDS
            ):
                continue
            found.setdefault(setting, []).append(SettingChange(subject=name, before=old[setting], after=new[setting]))
    for setting, changes in found.items():
        yield Changed(setting=setting, of=of, count=len(changes), examples=tuple(changes[:EXAMPLES_SHOWN]))


_KINDS = (
    "weights",
    "weight granularity",
    "weight symmetry",
    "weight group size",
    "quantizer",
    "bits",
    "symmetry",
    "signedness",
)


def _layer_settings(layer: LayerFacts) -> dict[str, object]:
    """Settings of a layer, the most important first."""
    quantizer = layer.weight.quantizer
    return {
        "weights": _precision(quantizer.bits) if layer.weight.name is not None or quantizer.bits is not None else None,
        "weight granularity": quantizer.granularity,
        "weight symmetry": quantizer.symmetric,
        "weight group size": layer.weight.group_size,
        "weight scale": quantizer.scale,
        "bias": None if layer.bias.bits is None else _precision(layer.bias.bits or None),
        "kernel": layer.executed_as,
    }


def _input_scales(case: CaseFacts) -> dict[str, float]:
    """Stored scales of inputs by layer; cases of older versions have that of the layer which loses most by block."""
    found: dict[str, float] = {}
    for block in case.model.language.blocks:
        if block.input_layer is not None and block.input_scale is not None:
            found[block.input_layer] = block.input_scale
        found |= {own.layer: own.scale for own in block.inputs if own.layer is not None and own.scale is not None}
    return found


def _tensor_settings(tensor: TensorFacts) -> dict[str, object]:
    quantizer = tensor.quantizer
    kind = "dynamic" if quantizer.dynamic else "none" if quantizer.scale is None else "static"
    has_range = kind == "static" and quantizer.low is not None and quantizer.high is not None
    return {
        "quantizer": kind,
        "bits": quantizer.bits,
        "symmetry": quantizer.symmetric,
        "signedness": quantizer.signed,
        "range": (quantizer.low, quantizer.high) if has_range else None,
    }


def _block_settings(block: BlockFacts) -> dict[str, object]:
    return {"stored scale of keys": block.key_scale, "stored scale of values": block.value_scale}


def _data_settings(dataset: DatasetFacts) -> dict[str, object]:
    return {
        "samples": dataset.samples,
        "channel means": dataset.mean,
        "distinct samples": dataset.unique_share,
        "blank samples": dataset.blank_share,
    }


def _precision(bits: int | None) -> str:
    return f"{bits} bit" if bits else "float"


def differs(before: object, after: object) -> bool:
    """Values of a setting are not the same; numbers by more than 1 % of the largest among them."""
    if before is None or after is None:
        return (before is None) is not (after is None)
    old, new = _as_numbers(before), _as_numbers(after)
    if old is None or new is None or len(old) != len(new):
        return bool(before != after)
    if all(isinstance(value, int) for value in (*old, *new)):
        return old != new
    largest = max(map(abs, (*old, *new)), default=0.0)
    return any(abs(a - b) > SAME * largest for a, b in zip(old, new, strict=True))


def _as_numbers(value: object) -> tuple[float, ...] | None:
    values = value if isinstance(value, tuple) else (value,)
    return values if all(isinstance(v, int | float) and not isinstance(v, bool) for v in values) else None


def _first_by_name(views: Iterable[_V], key: str) -> dict[str, _V]:
    """Views by what a field of theirs names them, the first of each."""
    found: dict[str, _V] = {}
    for view in views:
        name = getattr(view, key)
        if name is not None:
            found.setdefault(name, view)
    return found


# --- What was tried --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Since:
    """What was done between two cases, by the rules in force."""

    past: PreviousCase
    facts: CaseFacts
    base: RuleBase

    def remedies(self, effect: Effect) -> Iterable[Tried]:
        """Remedies of the previous diagnosis that were carried out."""
        for cause, name, subjects in self._advised_before():
            remedy = self.base.remedies[name]
            if applied := self._treated_subjects(remedy, subjects):
                yield Tried(
                    cause=cause,
                    remedy=name,
                    title=remedy.title,
                    subjects=applied,
                    everywhere=remedy.scope in ("model", "dataset"),
                    effect_db=effect.gain_db,
                    helped=effect.helped,
                )

    def _advised_before(self) -> Iterable[tuple[str, str, set[str]]]:
        """(cause, remedy, subjects) of the previous diagnosis, those of absorbed findings last."""
        rules = {rule.id: rule for rule in self.base.rules}
        pairs: dict[tuple[str, str], set[str]] = {}
        for cause in self.past.causes:
            names = {*cause.subjects, *(layer.float_name for layer in cause.layers if layer.float_name)}
            for remedy in cause.remedies:
                if remedy.id in self.base.remedies:
                    pairs.setdefault((cause.cause, remedy.id), set()).update(names)
        for found in (found for cause in self.past.causes for found in cause.absorbs if found.rule in rules):
            for name in rules[found.rule].remedies:
                pairs.setdefault((rules[found.rule].cause, name), set()).add(found.subject)
        return [(cause, remedy, names) for (cause, remedy), names in pairs.items()]

    def _treated_subjects(self, remedy: Remedy, subjects: set[str]) -> tuple[str, ...]:
        """Subjects on which the remedy was carried out."""
        then, now = _views_by_name(remedy.scope, self.past.facts), _views_by_name(remedy.scope, self.facts)
        concerned = {name for name, view in then.items() if {name, subject_name(view)} & subjects} or set(then)
        pairs = [(old, now[name]) for name, old in then.items() if name in concerned and name in now]
        done = (
            new for old, new in pairs if self._came_into_force(remedy, old, new) or self._has_changed(remedy, old, new)
        )
        return tuple(dict.fromkeys(map(subject_name, done)))

    def _has_changed(self, remedy: Remedy, old: Facts, new: Facts) -> bool:
        """The setting that it changes did; ranges count only if they moved as it moves them: any calibration does."""
        moves = REMEDY_KINDS[remedy.simulate].moves if remedy.simulate is not None else None
        if moves is not None and isinstance(old, TensorFacts) and isinstance(new, TensorFacts):
            return moves(old, new)
        if isinstance(old, DatasetFacts) and old.role is not None:
            if old.role not in self.past.shared:  # One of the cases lacks the set.
                return False
            if self.past.shared[old.role] < 1.0:
                return True
        if remedy.in_force is not None:
            return False
        settings = [path for path in remedy.present_facts if isinstance(old, DatasetFacts) or _SETTING.search(path)]
        if self.facts.model.framework in WEIGHT_FILES:
            # Of a checkpoint it is a text that says how all weights are stored: any other run writes another one.
            settings = [path for path in settings if path != "format"]
        models = self.past.facts.model, self.facts.model
        return any(differs(look_up(path, old, models[0]), look_up(path, new, models[1])) for path in settings)

    def _came_into_force(self, remedy: Remedy, old: Facts, new: Facts) -> bool:
        in_force = remedy.in_force
        if in_force is None or decide(in_force, old, self.past.facts.model, self.base)[0] is not False:
            return False
        return bool(decide(in_force, new, self.facts.model, self.base)[0])


def _views_by_name(scope: str, facts: CaseFacts) -> Mapping[str, Facts]:
    """Subjects by names that both cases share."""
    if scope == "model":
        return {"model": facts.model}
    if scope == "dataset":
        return _first_by_name(facts.datasets, "role")
    if scope == "layer":
        return _first_by_name(facts.layers, "float_name")
    return _first_by_name(facts.tensors, "float_name")
