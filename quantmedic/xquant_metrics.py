"""The user's own similarity metrics of XQuant, measured on outputs and layers of two torch modules."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import takewhile

import torch

from quantmedic.engine.case.facts import CaseFacts
from quantmedic.reports.xquant import Similarity
from quantmedic.xquant_data import ModelInputs

Metrics = Mapping[str, Callable[[torch.Tensor, torch.Tensor], float]]
#: MCT's class around a module with quantized weights.
WRAPPER = "PytorchQuantizationWrapper"
#: Modules that are folded into the weights in front of them.
NORMALIZATIONS = (torch.nn.BatchNorm1d, torch.nn.BatchNorm2d, torch.nn.BatchNorm3d)
#: The measures of the original, by its formulas: a layer's value is the mean over the batches.
ORIGINAL: "Metrics" = {
    "mse": lambda x, y: torch.nn.functional.mse_loss(x, y).item(),
    "cs": lambda x, y: torch.nn.functional.cosine_similarity(x.flatten(), y.flatten(), dim=0).item(),
    "sqnr": lambda x, y: ((x**2).mean() / ((x - y) ** 2).mean()).item(),
}
#: A float module and its quantized twin.
Pair = tuple[torch.nn.Module, torch.nn.Module]


def measure_metrics(
    float_model: torch.nn.Module,
    quantized_model: torch.nn.Module,
    pairs: Mapping[str, Pair],
    batches: Iterable[ModelInputs],
    metrics: Metrics,
) -> Similarity:
    """The user's metrics, averaged over the batches; hooks are removed afterwards, whatever happens."""
    seen: dict[tuple[str, int], object] = {}
    hooks = [
        module.register_forward_hook(lambda _module, _inputs, output, key=(name, side): seen.__setitem__(key, output))
        for name, pair in pairs.items()
        for side, module in enumerate(pair)
    ]
    outputs: dict[str, list[float]] = {metric: [] for metric in metrics}
    layers: dict[str, dict[str, list[float]]] = {name: {metric: [] for metric in metrics} for name in pairs}
    try:
        with torch.no_grad():
            for batch in batches:
                seen.clear()
                results = [_run_module(model, batch) for model in (float_model, quantized_model)]
                for metric, function in metrics.items():
                    outputs[metric] += _metric_values(function, *results)
                    for name in pairs:
                        layers[name][metric] += _metric_values(function, seen.get((name, 0)), seen.get((name, 1)))
    finally:
        for hook in hooks:
            hook.remove()
    return Similarity(_metric_means(outputs), {name: _metric_means(values) for name, values in layers.items()})


def add_metrics(similarity: Similarity, own: Similarity, metrics: Metrics) -> Similarity:
    """XQuant's metrics with the user's beside them; the user's win where the names are equal."""
    unknown = dict.fromkeys(metrics, math.nan)
    layers = {name: {**values, **own.layers.get(name, unknown)} for name, values in similarity.layers.items()}
    return Similarity({**similarity.output, **own.output}, layers)


def module_pairs(facts: CaseFacts, float_model: torch.nn.Module, quantized_model: torch.nn.Module) -> dict[str, Pair]:
    """Modules that give the same values, by the layer's name in the quantized model."""
    float_modules, quantized_modules = dict(float_model.named_modules()), dict(quantized_model.named_modules())
    pairs = {}
    for layer in facts.layers:
        name = layer.quantized_name or layer.name or ""
        twins = [float_modules[node] for node in layer.float_nodes or (layer.float_name,) if node in float_modules]
        if name in quantized_modules and twins:
            pairs[name] = (_float_twin(twins, quantized_modules[name]), quantized_modules[name])
    return pairs


def weighted_pairs(pairs: Mapping[str, Pair]) -> list[str]:
    """The layers that the original compares: those whose weights MCT quantized; of other toolchains' modules all."""
    wrapped = [name for name, (_, quantized) in pairs.items() if type(quantized).__name__ == WRAPPER]
    return wrapped or list(pairs)


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


def _metric_values(function: Callable[[torch.Tensor, torch.Tensor], float], x: object, y: object) -> tuple[float, ...]:
    """One batch's value, where both sides are tensors."""
    return (float(function(x, y)),) if isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor) else ()


def _metric_means(values: Mapping[str, list[float]]) -> dict[str, float]:
    return {metric: sum(own) / len(own) if own else math.nan for metric, own in values.items()}
