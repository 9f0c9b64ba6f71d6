"""Two checkpoints as a case: weights against weights, nothing is run.

Layers are matched by name. Every quantized layer becomes an operator with weight facts; there are no tensors and no
data sets, so that whatever rests on activations is not judged.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np

from quantmedic.collectors.data.progress import Progress, no_progress
from quantmedic.collectors.from_checkpoint.checkpoint_name import architecture_of
from quantmedic.collectors.from_checkpoint.checkpoint_pair import Layer, Pair, differs
from quantmedic.collectors.from_checkpoint.checkpoint_record import record_of
from quantmedic.collectors.from_checkpoint.containers import open_both
from quantmedic.collectors.from_checkpoint.layers.layer_facts import Measured, measure_packed, measure_values
from quantmedic.collectors.from_checkpoint.packed.packed_layer import PackedLayer, Settings, UnreadableLayerError
from quantmedic.collectors.from_checkpoint.packed.packed_weights import belongs
from quantmedic.collectors.from_checkpoint.safetensors_file import (
    EIGHT_BIT_FLOATS,
    INTEGERS,
    Checkpoint,
    Stored,
    Values,
    natural_order,
)
from quantmedic.collectors.from_checkpoint.tensor_roles import (
    OUTPUT_WEIGHTS,
    hidden_size,
    is_router_of_experts,
    role_of,
)
from quantmedic.collectors.from_checkpoint.weight_values import Opened, match_names
from quantmedic.collectors.measure.checkpoints import CompareTensors, Elsewhere, Found
from quantmedic.collectors.measure.host import threads_to_use
from quantmedic.collectors.pair.weight_grids import ALIKE, MIN_STRANGERS, STRANGER_SHARE
from quantmedic.engine.case.facts import WeightFacts
from quantmedic.engine.case.records import Case
from quantmedic.engine.errors import ModelError

#: Endings of constants that old checkpoints store and new ones do not.
_CONSTANTS = ("rotary_emb.inv_freq", ".masked_bias", ".attn.bias", ".attention.bias", "position_ids")
#: Layers whose float weights are ``[inputs, outputs]``, and the architectures that have them.
_CONV1D_LAYERS, _CONV1D_MODELS = ("c_attn", "c_proj", "c_fc", "q_attn"), ("gpt2", "openai-gpt")
#: A reading that gains so much explains why weights look strange, in dB.
_EXPLAINS_DB = 6.0
#: Weights in bfloat16 that gains alone have changed keep so much of themselves, in dB.
_RESCALED_DB = 40.0
_MAX_THREADS = 8


#: What comparing tensors adds to a pair beside layers.
_FOUND = ("notices", "missing", "mismatched", "altered", "left")
#: Units of work that comparing two checkpoints is divided into, at most.
_UNITS = 512


def open_checkpoints(float_path: Path, quantized_path: Path) -> CompareTensors:
    """What compares tensors of both checkpoints.

    Raises:
        ModelError: A checkpoint cannot be read or is of the wrong kind.
    """
    pair = _pair_of(*open_both(float_path, quantized_path))

    def compare(names: Sequence[str], threads: int | None) -> Found:
        own = replace(pair, notices=[], missing=[], mismatched=[], altered=[], left=[])
        with ThreadPoolExecutor(min(threads_to_use(threads), _MAX_THREADS)) as workers:
            layers = [layer for name in names for layer in _compare_tensor(name, own, workers)]
        return {"layers": layers, **{name: getattr(own, name) for name in _FOUND}}

    return compare


def collect_checkpoints(
    float_path: Path,
    quantized_path: Path,
    *,
    version: str,
    threads: int | None = None,
    progress: Progress = no_progress,
    elsewhere: Elsewhere | None = None,
) -> Case:
    """Compare the weights of two checkpoints, tensor by tensor.

    Args:
        float_path: File or folder of shards with the float weights.
        quantized_path: The same with the quantized ones.
        version: Version of quantmedic, for the record.
        threads: Processor threads; all cores up to 8 by default.
        progress: Called after every tensor.
        elsewhere: Compares tensors on other machines.

    Raises:
        ModelError: A checkpoint cannot be read, is of the wrong kind, or the two do not belong together.
    """
    pair = _pair_of(*open_both(float_path, quantized_path))
    found: list[Layer] = []
    ordered = sorted(pair.floats.tensors, key=natural_order)
    if elsewhere is not None:
        found = _compare_elsewhere(ordered, pair, elsewhere, progress)
    else:
        with ThreadPoolExecutor(min(threads_to_use(threads), _MAX_THREADS)) as workers:
            for done, name in enumerate(ordered, 1):
                found += _compare_tensor(name, pair, workers)
                progress("weights", done, len(ordered))
    _refuse_strangers(found, pair)
    return Case(record_of(found, pair, version), {})


def _compare_elsewhere(names: Sequence[str], pair: Pair, elsewhere: Elsewhere, progress: Progress) -> list[Layer]:
    """The layers, in order; what else is found goes into the pair, in order as well."""
    groups = _group_by_size(names, pair.floats)
    found: dict[int, Found] = {}
    for number, part in elsewhere(groups):
        found[number] = part
        progress("weights", sum(len(groups[k]) for k in found), len(names))
    for _, part in sorted(found.items()):
        for name in _FOUND:
            getattr(pair, name).extend(part[name])
    return [layer for _, part in sorted(found.items()) for layer in part["layers"]]


def _group_by_size(names: Sequence[str], floats: Checkpoint) -> list[list[str]]:
    """Tensors in a row, about equally many elements in each group."""
    sizes = [math.prod(floats.tensors[name].shape) for name in names]
    room = max(-(-sum(sizes) // _UNITS), 1)
    groups: dict[int, list[str]] = {}
    passed = 0
    for name, size in zip(names, sizes, strict=True):
        groups.setdefault(passed // room, []).append(name)
        passed += size
    return list(groups.values())


def _pair_of(floats: Opened, quantized: Opened) -> Pair:
    codes = [t.name for t in floats.tensors.values() if t.dtype in EIGHT_BIT_FLOATS or _is_code(t)]
    codes += [name for name in floats.names_of_codes if name in floats.tensors]
    if codes:
        raise ModelError(
            "the float checkpoint is quantized itself",
            where=[str(floats.path), f"tensor  {codes[0]}  {floats.tensors[codes[0]].dtype}"],
            help="give the float checkpoint first, then the quantized one; they may be swapped",
        )
    # Names in the quantized checkpoint, also those of weights that are codes, by those of the float one.
    layers = {*quantized.layers, *quantized.refused}
    own = {name for name in quantized.tensors if not belongs(name, layers)}
    names = match_names(floats.tensors, own.union(quantized.names_of_codes))
    notices = _contradictions(quantized.layers, Settings.of(quantized.settings))
    mismatched = [f"{name}: {why}" for name, why in quantized.refused.items()]
    return Pair(floats, quantized, names, notices, mismatched=mismatched, hidden=hidden_size(floats.tensors))


def _is_code(tensor: Stored) -> bool:
    last = tensor.name.rpartition(".")[2]
    return tensor.dtype in INTEGERS and (last in ("qweight", "weight_packed", "_weight_qdata", "weight"))


def _contradictions(layers: Mapping[str, PackedLayer], settings: Settings) -> list[str]:
    """Contradictions between the configuration and the tensors, which win."""
    found = []
    bits = sorted({layer.bits for layer in layers.values()})
    if settings.bits is not None and bits and settings.bits not in bits:
        found.append(f"quantization_config says {settings.bits} bits, the tensors hold {', '.join(map(str, bits))}")
    sizes = sorted({layer.group_size for layer in layers.values() if layer.groups > 1})
    declared = settings.group_size
    if declared is not None and declared > 0 and sizes and declared not in sizes:
        found.append(f"quantization_config says groups of {declared}, the tensors hold {', '.join(map(str, sizes))}")
    return found


def _compare_tensor(name: str, pair: Pair, workers: ThreadPoolExecutor) -> list[Layer]:
    """The layer that one float tensor is the weight of, if it is one; what else is found goes into the pair."""
    tensor, other = pair.floats.tensors[name], pair.names.get(name)
    if other is None:
        if not _is_spared(name, pair):
            pair.missing.append(name)
        return []
    layer = pair.quantized.layer_of(other)
    if isinstance(layer, str):
        return []
    if layer is not None:
        return _compare_codes(name, other, layer, pair, workers)
    twin = pair.quantized.tensors[other]
    if not tensor.is_float or not twin.is_float:
        return []
    if tensor.shape != twin.shape:
        pair.mismatched.append(f"{name}: {list(tensor.shape)} in float, {list(twin.shape)} quantized")
        return []
    return _compare_numbers(name, tensor, twin, pair, workers)


def _compare_codes(name: str, other: str, layer: PackedLayer, pair: Pair, workers: ThreadPoolExecutor) -> list[Layer]:
    tensor = pair.floats.tensors[name]
    source = _float_source(tensor, other, layer, pair.floats)
    if source is None:
        pair.mismatched.append(f"{name}: {list(tensor.shape)} in float, {list(layer.shape)} as {layer.format}")
        return []
    try:
        measured = measure_packed(layer, source, workers)
    except UnreadableLayerError as why:
        pair.mismatched.append(f"{name}: {why}")
        return []
    return [_layer_of(name, layer.own_name or other, measured, pair)]


def _compare_numbers(name: str, tensor: Stored, twin: Stored, pair: Pair, workers: ThreadPoolExecutor) -> list[Layer]:
    """A tensor of real numbers in both: equal, changed, or quantized without codes."""
    is_matrix = len(tensor.shape) > 1 and name.endswith("weight") and min(tensor.shape[:2]) > 1
    if not differs(tensor, twin):
        if is_matrix:
            pair.left.append(name)
            return [_layer_of(name, twin.name, Measured(WeightFacts()), pair)]
        return []
    if not is_matrix:
        if not name.endswith("bias"):
            pair.altered.append(name)
        return []
    shape = (tensor.shape[0], math.prod(tensor.shape[1:]))
    measured = measure_values(_rows_of(tensor), _rows_of(twin), shape, workers)
    if measured.facts.quantizer.bits is None and pair.quantized.layers:
        # Where other layers have codes, real numbers that changed were not quantized.
        if not _is_rescaled(measured):
            pair.altered.append(name)
        measured = Measured(WeightFacts(name=name), measured.gains, measured.notices)
        pair.left.append(name)
    return [_layer_of(name, twin.name, measured, pair)]


def _is_rescaled(measured: Measured) -> bool:
    """Gains of inputs are all that was done to the weights."""
    level = measured.facts.rounding.sqnr_db
    return bool(measured.gains.inputs) and level is not None and level > _RESCALED_DB


def _layer_of(name: str, quantized_name: str, measured: Measured, pair: Pair) -> Layer:
    pair.notices += [f"{name}: {notice}" for notice in measured.notices]
    is_router = is_router_of_experts(name, pair.floats.tensors)
    shape = pair.floats.tensors[name].shape
    role = "router" if is_router else role_of(name, shape, pair.hidden)
    facts = measured.facts.model_copy(update={"name": name, "is_router": is_router, "role": role})
    return Layer(name, quantized_name, facts, len(measured.gains.columns) or math.prod(shape[1:]), measured.gains)


def _float_source(
    tensor: Stored, other: str, layer: PackedLayer, floats: Checkpoint
) -> Callable[[slice], Values] | None:
    """Float weights as ``[outputs, inputs]``; None where the shapes do not fit."""
    if not tensor.is_float or len(tensor.shape) < 2:
        return None
    flat = (tensor.shape[0], math.prod(tensor.shape[1:]))
    turned = (flat[1], flat[0])
    part = other.removesuffix(".weight").rpartition(".")[2]
    is_conv1d = architecture_of(floats.config) in _CONV1D_MODELS and part in _CONV1D_LAYERS
    if flat == layer.shape and not ((is_conv1d or layer.is_turned) and flat == turned):
        return _rows_of(tensor)
    if turned == layer.shape and len(tensor.shape) == 2:
        return lambda rows: np.ascontiguousarray(tensor.floats(None, rows).T)
    return None


def _rows_of(tensor: Stored) -> Callable[[slice], Values]:
    return lambda rows: tensor.floats(rows).reshape(rows.stop - rows.start, -1)


def _is_spared(name: str, pair: Pair) -> bool:
    """The tensor is not needed: a constant of the architecture, or output weights that are the embeddings."""
    if any(name.endswith(ending) for ending in _CONSTANTS) or not pair.floats.tensors[name].is_float:
        return True
    if not name.endswith(OUTPUT_WEIGHTS):
        return False
    return any(config.get("tie_word_embeddings") is True for config in (pair.floats.config, pair.quantized.config))


def _refuse_strangers(layers: Iterable[Layer], pair: Pair) -> None:
    """Refuse checkpoints whose weights have nothing in common, unless another reading of the codes explains it."""
    known = [layer for layer in layers if layer.facts.similarity is not None]
    strange = [
        layer
        for layer in known
        if (layer.facts.similarity or 0.0) < ALIKE and not (layer.facts.reading_gain_db or 0.0) > _EXPLAINS_DB
    ]
    if len(strange) < MIN_STRANGERS or len(strange) < STRANGER_SHARE * len(known):
        return
    raise ModelError(
        "the weights of the two checkpoints do not belong together",
        where=[
            f"float     {pair.floats.path}",
            f"quantized {pair.quantized.path}",
            f"{len(strange)} of {len(known)} layers hold other weights, first {strange[0].name}",
        ],
        help="give the float weights it was made from; if those were rotated (QuaRot, SpinQuant), the rotated ones",
    )
