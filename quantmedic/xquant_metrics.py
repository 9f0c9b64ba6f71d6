"""XQuant's similarity metrics and the user's own, measured on outputs and layers of two torch modules."""

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import NamedTuple

import torch
from torch.utils.hooks import RemovableHandle

from quantmedic.collectors.front_ends import front_end_of
from quantmedic.engine.case.facts import CaseFacts
from quantmedic.reports.xquant import Similarity

#: Inputs of a model, in its order or by name.
ModelInputs = list[object] | Mapping[str, object]
Metrics = Mapping[str, Callable[[torch.Tensor, torch.Tensor], float]]
#: MCT's class around a module with quantized weights.
WRAPPER = "PytorchQuantizationWrapper"
#: MCT's names of convolutions that also add their own input: the residual branch around them was folded in.
WITH_RESIDUAL = re.compile(r"_add(_\d+)?_collapsed$")
#: Smallest product of two lengths that a cosine is divided by, as torch has it.
_TINY = 1e-8
#: Modules that are folded into the weights in front of them.
NORMALIZATIONS = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)


class Pair(NamedTuple):
    """A float module and its quantized twin."""

    float_module: torch.nn.Module
    quantized_module: torch.nn.Module
    residual: torch.nn.Module | None = None
    """The float module whose input the twin adds as well, where a residual branch was folded into it."""


def measure_metrics(
    float_model: torch.nn.Module,
    quantized_model: torch.nn.Module,
    pairs: Mapping[str, Pair],
    batches: Iterable[ModelInputs],
    metrics: Metrics,
    compared: Collection[str] = (),
) -> Similarity:
    """Metrics, averaged over the batches; hooks are removed afterwards, whatever happens.

    Of the ``compared`` layers, and where there are any of the outputs, the original's measures are taken as well.
    """
    seen: dict[tuple[str, str], object] = {}
    hooks = [hook for name, pair in pairs.items() for hook in _watch_pair(name, pair, seen)]
    outputs: list[dict[str, float]] = []
    layers: dict[str, list[dict[str, float]]] = {name: [] for name in pairs}
    try:
        with front_end_of(float_model).as_deployed(float_model, quantized_model), torch.no_grad():
            for batch in batches:
                seen.clear()
                results = _run_module(float_model, batch), _run_module(quantized_model, batch)
                outputs.append(_measure_pair(results, metrics, as_original=bool(compared)))
                for name, values in layers.items():
                    sides = seen.get((name, "float")), seen.get((name, "quantized"))
                    values.append(_measure_pair(sides, metrics, as_original=name in compared))
    finally:
        for hook in hooks:
            hook.remove()
    return Similarity(_metric_means(outputs, metrics), {n: _metric_means(v, metrics) for n, v in layers.items()})


def measure_original(x: torch.Tensor, y: torch.Tensor) -> dict[str, float]:
    """The original's measures of a float tensor and a quantized one of its shape; infinite where the two are equal.

    mse = Σ(x - y)² / n, cs = Σxy / √(Σx² Σy²), sqnr = Σx² / Σ(x - y)²
    """
    x, y = x.float().flatten(), y.float().flatten()
    apart = x - y
    signal, other, noise, joint = (torch.dot(a, b) for a, b in ((x, x), (y, y), (apart, apart), (x, y)))
    lengths = (signal.sqrt() * other.sqrt()).clamp_min(_TINY)
    return {
        "mse": (noise / x.numel()).item(),
        "cs": (joint / lengths).item(),
        "sqnr": (signal / noise).item(),
    }


def _watch_pair(name: str, pair: Pair, seen: dict[tuple[str, str], object]) -> Iterator[RemovableHandle]:
    """Have a pair's modules write what they give to ``seen``; what is added is so at once, for it may change later."""

    added: list[torch.Tensor] = []

    def keep_added(_module: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        added[:] = inputs[:1]

    def keep_float(_module: torch.nn.Module, _inputs: object, output: torch.Tensor) -> None:
        seen[name, "float"] = output + added.pop() if added else output

    def keep_quantized(_module: torch.nn.Module, _inputs: object, output: object) -> None:
        seen[name, "quantized"] = output

    if pair.residual is not None:
        yield pair.residual.register_forward_pre_hook(keep_added)
    yield pair.float_module.register_forward_hook(keep_float)
    yield pair.quantized_module.register_forward_hook(keep_quantized)


def add_metrics(similarity: Similarity, own: Similarity, metrics: Metrics, compared: Collection[str]) -> Similarity:
    """The diagnosis's measures with the user's beside them, and with the original's in their place where it compares.

    Args:
        similarity: What the diagnosis measured.
        own: What was measured by the original's formulas and the user's; an output that is no tensor was not.
        metrics: The user's, which win where the names are equal.
        compared: The layers that the original compares.
    """
    unknown = dict.fromkeys(metrics, math.nan)
    layers = {
        name: {**values, **unknown, **_choose_values(own.layers.get(name, {}), None if name in compared else metrics)}
        for name, values in similarity.layers.items()
    }
    return Similarity({**similarity.output, **own.output}, layers)


def _choose_values(values: Mapping[str, float], names: Collection[str] | None) -> dict[str, float]:
    """The values of these names; of all where none are given."""
    return {name: value for name, value in values.items() if names is None or name in names}


def module_pairs(facts: CaseFacts, float_model: torch.nn.Module, quantized_model: torch.nn.Module) -> dict[str, Pair]:
    """Modules that give the same values, by the layer's name in the quantized model."""
    float_modules, quantized_modules = dict(float_model.named_modules()), dict(quantized_model.named_modules())
    pairs = {}
    for layer in facts.layers:
        name = layer.quantized_name or layer.name or ""
        twins = [float_modules[node] for node in layer.float_nodes or (layer.float_name,) if node in float_modules]
        if name in quantized_modules and twins:
            residual = twins[0] if WITH_RESIDUAL.search(name) else None
            pairs[name] = Pair(_float_twin(twins, quantized_modules[name]), quantized_modules[name], residual)
    return pairs


def wrapped_pairs(pairs: Mapping[str, Pair]) -> dict[str, Pair]:
    """The layers that the original compares: those whose weights MCT quantized; none of other toolchains' modules."""
    return {name: pair for name, pair in pairs.items() if type(pair[1]).__name__ == WRAPPER}


def _float_twin(twins: Sequence[torch.nn.Module], quantized: torch.nn.Module) -> torch.nn.Module:
    """The float module whose output a quantized one gives, among those that its layer stands for, in their order.

    MCT wraps the module that holds the weights: the activation behind it is a layer of the module, not of the wrapper.
    Batch norm that was folded into the weights belongs to them. Of other toolchains' modules it is the last.
    """
    wrapped = getattr(quantized, "layer", None) if type(quantized).__name__ == WRAPPER else None
    own = [place for place, twin in enumerate(twins) if wrapped is not None and isinstance(twin, type(wrapped))]
    if not own:
        return twins[-1]
    behind = takewhile(lambda twin: isinstance(twin, NORMALIZATIONS), twins[own[-1] + 1 :])
    return [twins[own[-1]], *behind][-1]


def _run_module(model: torch.nn.Module, batch: ModelInputs) -> object:
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    if isinstance(batch, Mapping):
        return model(**{name: torch.as_tensor(value).to(device) for name, value in batch.items()})
    return model(*(torch.as_tensor(value).to(device) for value in batch))


def _measure_pair(sides: tuple[object, object], metrics: Metrics, *, as_original: bool) -> dict[str, float]:
    """One batch's values, where both sides are tensors of one shape."""
    x, y = sides
    if not isinstance(x, torch.Tensor) or not isinstance(y, torch.Tensor) or x.shape != y.shape:
        return {}
    own = {name: float(function(x, y)) for name, function in metrics.items()}
    return {**measure_original(x, y), **own} if as_original else own


def _metric_means(batches: Sequence[Mapping[str, float]], metrics: Metrics) -> dict[str, float]:
    """The mean of each value over the batches that have it; NaN for a metric that none has."""
    names = dict.fromkeys([*metrics, *(name for values in batches for name in values)])
    found = {name: [values[name] for values in batches if name in values] for name in names}
    return {name: sum(values) / len(values) if values else math.nan for name, values in found.items()}
