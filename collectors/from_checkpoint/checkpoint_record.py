"""Two compared checkpoints as the record of a case: its operators, its model, and what is told above all findings."""

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from quantmedic.collectors.from_checkpoint.checkpoint_name import name_of
from quantmedic.collectors.from_checkpoint.checkpoint_pair import Layer, Pair
from quantmedic.collectors.from_checkpoint.containers import framework_of
from quantmedic.collectors.from_checkpoint.declared.declared_facts import declared_facts
from quantmedic.collectors.from_checkpoint.layers.exchanged_layers import with_twins
from quantmedic.collectors.from_checkpoint.layers.gain_changes import GainChanges, gain_changes
from quantmedic.collectors.from_checkpoint.layers.output_gains import SPREAD
from quantmedic.collectors.from_checkpoint.safetensors_file import Checkpoint
from quantmedic.collectors.from_checkpoint.tensor_roles import RIGHTLY_FLOAT, is_embedding
from quantmedic.engine.case.facts import BiasFacts, CheckpointFacts, ModelFacts, WeightFacts
from quantmedic.engine.case.records import CaseRecord, OperatorRecord

_NAMES_SHOWN = 5
#: Names that configurations give GPTQ, in small letters.
_GPTQ = ("gptq", "gptqmodel")
#: What stands above all findings of checkpoints.
WEIGHTS_ALONE = (
    "weights alone were compared: no model was run, so that whether an error does harm is not known and rules on "
    "activations do not apply"
)
#: Of a quantized folder.
NO_CONFIG = "the quantized folder has no config.json, which runtimes need"
#: Where no other file has the settings, either.
NOTHING_SAID = "and nothing says how activations and a K/V cache are quantized"
#: Fewer layers have no usual error.
MIN_PEERS = 5
#: Deviation that is always taken for granted, in dB: layers of random weights agree to a hundredth.
LEAST_DEVIATION_DB = 0.1
#: Format, bits and granularity.
Kind = tuple[str | None, int | None, str | None]


def record_of(found: list[Layer], pair: Pair, version: str) -> CaseRecord:
    changes = gain_changes(found, pair)
    found = with_twins(changes.layers, pair)
    facts = _with_peers([layer.facts for layer in found])
    operators = tuple(
        OperatorRecord(
            index=index,
            name=layer.name.removesuffix(".weight"),
            float_name=layer.name.removesuffix(".weight"),
            quantized_name=layer.quantized_name.removesuffix(".weight"),
            op_type="Gather" if is_embedding(layer.name) else "Gemm",
            inputs=(),
            outputs=(),
            is_compute=not is_embedding(layer.name),
            is_last=None,
            executed_as=None,
            weight=weight,
            bias=BiasFacts(),
        )
        for index, (layer, weight) in enumerate(zip(found, facts, strict=True))
    )
    files = {"float": pair.floats, "quantized": pair.quantized}
    return CaseRecord.of_files(
        quantmedic_version=version,
        model=_checkpoint_model(operators, pair, changes),
        operators=operators,
        notices=tuple(_checkpoint_notices(pair, changes)),
        run={
            **{f"{kind}_model": str(checkpoint.path) for kind, checkpoint in files.items()},
            **{f"{kind}_sha256": checkpoint.fingerprint() for kind, checkpoint in files.items()},
            "quantization_config": {
                key: value for key, value in pair.quantized.settings.items() if isinstance(value, str | int | float)
            },
        },
    )


def _checkpoint_model(operators: tuple[OperatorRecord, ...], pair: Pair, changes: GainChanges) -> ModelFacts:
    compute = [op for op in operators if op.is_compute]
    counted = [op for op in compute if not _is_rightly_float(op.weight)]
    quantized = sum(op.weight.quantizer.bits is not None for op in counted)
    changed = sum(op.weight.rounding.mse is not None for op in counted)
    kinds = _weight_formats([op.weight for op in operators if op.weight.format is not None])
    return ModelFacts(
        name=name_of(pair.quantized, pair.floats),
        framework=framework_of(pair.quantized.path),
        format=", ".join(dict.fromkeys(kinds)) or None,
        toolchain_marks=_marks_of_checkpoint(pair),
        operators=len(operators),
        compute_operators=len(compute),
        # Weights that changed without a grid may be quantized or not.
        quantized_share=quantized / len(counted) if counted and quantized >= changed else None,
        bytes_float=pair.floats.nbytes,
        bytes_quantized=pair.quantized.nbytes,
        size_ratio=pair.quantized.nbytes / pair.floats.nbytes if pair.floats.nbytes else None,
        float_is_quantized=False,
        same_as_float="bytes" if _is_unchanged(operators, pair) else "no",
        checkpoint=_checkpoint_facts(pair, changes, operators),
    )


def _checkpoint_facts(pair: Pair, changes: GainChanges, operators: Iterable[OperatorRecord]) -> CheckpointFacts:
    found: dict[str, object] = {
        "tensors": len(pair.floats.tensors),
        "missing": len(pair.missing),
        "first_missing": next(iter(pair.missing), None),
        "mismatched": len(pair.mismatched),
        "first_mismatched": next(iter(pair.mismatched), None),
        "altered": len(pair.altered),
        "unexplained": len(changes.unexplained),
        "first_unexplained": next(iter(changes.unexplained), None),
        "rescaled_layers": len(changes.rescaled),
        "misfolded_norms": len(changes.misfolded),
        "first_misfolded_norm": next(iter(changes.misfolded), None),
        "unscaled_biases": len(changes.unscaled_biases),
        "first_unscaled_bias": next(iter(changes.unscaled_biases), None),
    }
    return CheckpointFacts.model_validate(found | declared_facts(pair) | _gptq_facts(pair, operators))


def _gptq_facts(pair: Pair, operators: Iterable[OperatorRecord]) -> dict[str, object]:
    """Whether any codes are others than the nearest ones, where the configuration says that GPTQ chose them."""
    if str(pair.quantized.settings.get("quant_method")).lower() not in _GPTQ:
        return {}
    found = [op.weight.moved_share for op in operators if op.weight.moved_share is not None]
    return {"gptq_layers": len(found), "gptq_moved_share": max(found, default=None)}


def _marks_of_checkpoint(pair: Pair) -> tuple[str, ...]:
    """What tells the tool that wrote the checkpoint: its configuration first, then how layers are stored."""
    method = pair.quantized.settings.get("quant_method")
    declared = [f"quant_method {method}"] if isinstance(method, str) else []
    return tuple(dict.fromkeys([*declared, *(f"weights {layer.format}" for layer in pair.quantized.layers.values())]))


def _is_rightly_float(weight: WeightFacts) -> bool:
    """Weights that are usually left in float, and were."""
    return weight.role in RIGHTLY_FLOAT and weight.quantizer.bits is None


def _is_unchanged(operators: tuple[OperatorRecord, ...], pair: Pair) -> bool:
    """Nothing is quantized and nothing differs: both are one checkpoint."""
    quantized = any(op.weight.quantizer.bits is not None or op.weight.rounding.mse is not None for op in operators)
    different = [*pair.altered, *pair.missing, *pair.mismatched, *pair.quantized.layers]
    return not quantized and not different and pair.floats.fingerprint() == pair.quantized.fingerprint()


def _weight_formats(weights: Sequence[WeightFacts]) -> list[str]:
    """Each once; a layer with one group has the format of those with several of its size."""
    found = {
        (each.format, each.quantizer.bits, each.group_size, each.quantizer.granularity == "per_block"): None
        for each in weights
    }
    grouped = {each[:3] for each in found if each[3]}
    return [
        f"{name} {bits}-bit{f' in groups of {size}' if in_groups else ''}"
        for name, bits, size, in_groups in found
        if in_groups or (name, bits, size) not in grouped
    ]


def _checkpoint_notices(pair: Pair, changes: GainChanges) -> list[str]:
    """What the report says above all findings."""
    notices = [WEIGHTS_ALONE]
    if _lacks_config(pair.quantized):
        notices.append(NO_CONFIG if pair.quantized.settings else f"{NO_CONFIG}, {NOTHING_SAID}")
    notices += _gain_notices(changes.layers)
    matched = {pair.names[name] for name in pair.floats.tensors if name in pair.names}
    lists: Mapping[str, Sequence[str]] = {
        "no counterpart in the quantized checkpoint": pair.missing,
        "not comparable": pair.mismatched,
        "changed although not quantized": changes.unexplained,
        "left in float": pair.left,
        "only in the quantized checkpoint": sorted(set(pair.names.values()) - matched),
    }
    for what, names in lists.items():
        if names:
            more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
            notices.append(f"{what}: {', '.join(names[:_NAMES_SHOWN])}{more}")
    return [*notices, *pair.notices]


def _lacks_config(checkpoint: Checkpoint) -> bool:
    """It is a folder of safetensors files without ``config.json``; a file has none."""
    folder = checkpoint.path
    return folder.is_dir() and framework_of(folder) == "safetensors" and not checkpoint.config


def _gain_notices(layers: Sequence[Layer]) -> list[str]:
    """That layers hold gains, so that their errors are those beside them."""
    weights = [layer.facts for layer in layers]
    undone = [
        weight for weight in weights if (weight.input_gain_ratio or 1.0) > SPREAD and weight.left_input_gain == 1.0
    ]
    if not undone:
        return []
    most = max(weight.input_gain_ratio or 1.0 for weight in undone)
    holders = "1 layer holds" if len(undone) == 1 else f"{len(undone)} layers hold"
    return [
        f"{holders} gains of input channels (AWQ, SmoothQuant) up to a factor of {most:.3g} apart, "
        "which what comes before them undoes: errors are those beside these gains"
    ]


def _with_peers(facts: Sequence[WeightFacts]) -> list[WeightFacts]:
    """The facts with how far each layer is below those of its kind; unknown where there are fewer than 5."""
    kinds: dict[Kind, list[float]] = {}
    for weight in facts:
        if (sqnr := _finite_sqnr(weight)) is not None:
            kinds.setdefault(_peer_kind(weight), []).append(sqnr)
    return [_among_peers(weight, kinds.get(_peer_kind(weight), [])) for weight in facts]


def _among_peers(weight: WeightFacts, levels: Sequence[float]) -> WeightFacts:
    own = _finite_sqnr(weight)
    if own is None or len(levels) < MIN_PEERS:
        return weight.model_copy(update={"peers": len(levels) or None})
    median = float(np.median(levels))
    deviation = max(float(np.median(np.abs(np.array(levels) - median))), LEAST_DEVIATION_DB)
    gap = median - own
    return weight.model_copy(update={"peers": len(levels), "peer_gap_db": gap, "peer_zscore": 0.6745 * gap / deviation})


def _peer_kind(weight: WeightFacts) -> Kind:
    return weight.format, weight.quantizer.bits, weight.quantizer.granularity


def _finite_sqnr(weight: WeightFacts) -> float | None:
    sqnr = weight.rounding.sqnr_db
    return sqnr if sqnr is not None and math.isfinite(sqnr) and weight.format is not None else None
