"""Activations and the K and V cache of the quantized model, quantized while a block runs.

Inputs of linear layers are taken where the layer is called. Keys and values are taken where attention hands them to a
cache, which is behind the rotary embedding in every architecture that has one.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Self

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from quantmedic.collectors.from_language_model.running_grids import Grid, UnroundedGrid

#: What attention takes a cache by, in the releases of transformers.
_CACHE_NAMES = ("cache", "past_key_values", "past_key_value")
#: Experts that are one tensor, and the layers of one expert that each part stands for.
FUSED = ("gate_up_proj", "down_proj")


#: Grids of keys and of values; None for those that stay in float.
Pair = tuple[Grid | None, Grid | None]


#: Is told of values and of what a grid makes of them: the name of the layer that reads them, or of the attention with
#: ``.k`` or ``.v`` behind it; the values, their grid, and the values as it keeps them.
Watch = Callable[[str, torch.Tensor, Grid, torch.Tensor], None]


@dataclass(frozen=True)
class Simulation:
    """What is quantized while the quantized model runs.

    Attributes:
        inputs: Grids of the inputs of layers; of experts that are one tensor with ``.gate_up_proj.3`` and the like.
        caches: Grids of keys and values by the name of the attention.
    """

    inputs: Mapping[str, Grid] = field(default_factory=dict)
    caches: Mapping[str, Pair] = field(default_factory=dict)

    def of_block(self, block: str) -> Self:
        """What of it lies within a block."""
        own = {name: grid for name, grid in self.inputs.items() if name.startswith(f"{block}.")}
        caches = {name: grids for name, grids in self.caches.items() if name.startswith(f"{block}.")}
        return replace(self, inputs=own, caches=caches)

    def on(self, device: torch.device) -> Self:
        """The same for a block that runs there."""
        inputs = {name: grid.on(device) for name, grid in self.inputs.items()}
        return replace(self, inputs=inputs, caches={name: _pair_on(own, device) for name, own in self.caches.items()})

    def without_inputs(self, prefix: str = "") -> Self:
        """The same with inputs in float of all layers whose names begin so."""
        return replace(self, inputs={name: grid for name, grid in self.inputs.items() if not name.startswith(prefix)})

    def unrounded_inputs(self) -> Self:
        """The same with inputs that are looked at and stay in float, of the layers that have stored scales, alone."""
        grids = {name: grid for name, grid in self.inputs.items() if grid.scale is not None}
        return replace(self, inputs={name: UnroundedGrid(**vars(grid)) for name, grid in grids.items()}, caches={})

    def without_caches(self) -> Self:
        """The same with keys and values in float."""
        return replace(self, caches={})

    def with_scales_of_tokens(self) -> Self:
        """The same with inputs that get a scale per token while running."""
        return replace(self, inputs={name: grid.per_token() for name, grid in self.inputs.items()})

    def with_scales_of_texts(self) -> Self:
        """The same with keys and values that get scales of their own values while running."""
        return replace(self, caches={name: (_per_text(own[0]), _per_text(own[1])) for name, own in self.caches.items()})

    def with_float_keys(self) -> Self:
        """The same with keys in float."""
        return replace(self, caches={name: (None, own[1]) for name, own in self.caches.items()})


#: Nothing is quantized but the weights.
NOTHING = Simulation()


@contextmanager
def simulate(part: nn.Module, name: str, simulation: Simulation, watch: Watch | None = None) -> Iterator[None]:
    """Run a block with its inputs, keys and values quantized.

    Args:
        part: The block.
        name: Its name, with which the names of its layers begin.
        simulation: What is quantized.
        watch: Told of all values that are.
    """
    with ExitStack() as stack:
        for own, module in part.named_modules():
            full = f"{name}.{own}" if own else name
            if full in simulation.inputs:
                stack.callback(_hook_input(module, full, simulation.inputs[full], watch).remove)
            if full in simulation.caches:
                stack.callback(_hook_cache(module, full, simulation.caches[full], watch).remove)
            if is_fused(module) and any(key.startswith(f"{full}.") for key in simulation.inputs):
                _replace_experts(stack, module, full, simulation.inputs, watch)
        yield


def attentions(part: nn.Module, name: str) -> Iterator[tuple[str, nn.Module]]:
    """Modules within a block that hand keys and values to a cache, with their names."""
    takers = {own: module for own, module in part.named_modules() if own and _cache_name(module) is not None}
    for own, module in takers.items():
        if not any(other.startswith(f"{own}.") for other in takers):
            yield f"{name}.{own}", module


def is_fused(module: nn.Module) -> bool:
    """The weights of all experts are one tensor each."""
    return all(isinstance(own := getattr(module, part, None), nn.Parameter) and own.ndim == 3 for part in FUSED)


def _hook_input(module: nn.Module, name: str, grid: Grid, watch: Watch | None) -> Any:
    def before(_: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (_quantize(name, args[0], grid, watch), *args[1:])

    return module.register_forward_pre_hook(before)


def _hook_cache(module: nn.Module, name: str, grids: Pair, watch: Watch | None) -> Any:
    signature, own = inspect.signature(module.forward), _cache_name(module)
    assert own is not None  # none other is given a grid

    def before(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        bound = signature.bind(*args, **kwargs)
        bound.arguments[own] = _Cache(name, grids, watch)
        return bound.args, bound.kwargs

    return module.register_forward_pre_hook(before, with_kwargs=True)


class _Cache:
    """Stands in for a cache that was empty: hands on what it is given, as the grid keeps it."""

    def __init__(self, name: str, grids: Pair, watch: Watch | None) -> None:
        """Of one attention."""
        self._name, self._grids, self._watch = name, grids, watch

    def update(self, keys: torch.Tensor, values: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """As transformers calls it."""
        return (
            _quantize(f"{self._name}.k", keys, self._grids[0], self._watch),
            _quantize(f"{self._name}.v", values, self._grids[1], self._watch),
        )


def _replace_experts(
    stack: ExitStack, module: nn.Module, name: str, grids: Mapping[str, Grid], watch: Watch | None
) -> None:
    """Run experts that are one tensor with the inputs of each of them quantized."""
    parameters = {part: getattr(module, part).untyped_storage().data_ptr() for part in FUSED}
    forward = module.forward
    mode = _Experts(parameters, lambda part, expert: grids.get(f"{name}.{part}.{expert}"), name, watch)

    def run(*args: Any, **kwargs: Any) -> Any:
        with mode:
            return forward(*args, **kwargs)

    module.forward = run
    stack.callback(delattr, module, "forward")


class _Experts(TorchFunctionMode):
    """Quantizes what is multiplied with a slice of certain tensors."""

    def __init__(
        self,
        parameters: Mapping[str, int],
        grid_of: Callable[[str, int], Grid | None],
        name: str,
        watch: Watch | None,
    ) -> None:
        """Tensors by the place of their values in memory."""
        super().__init__()
        self._parts = {place: part for part, place in parameters.items()}
        self._grid_of, self._name, self._watch = grid_of, name, watch

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is nn.functional.linear:
            values, weight = args[0], args[1]
            part = self._parts.get(weight.untyped_storage().data_ptr())
            expert = weight.storage_offset() // weight.numel() if part is not None else 0
            grid = self._grid_of(part, expert) if part is not None else None
            if grid is not None and values.numel():
                name = f"{self._name}.{part}.{expert}"
                args = (_quantize(name, values[None], grid, self._watch)[0], *args[1:])
        return func(*args, **(kwargs or {}))


def _quantize(name: str, values: torch.Tensor, grid: Grid | None, watch: Watch | None) -> torch.Tensor:
    if grid is None:
        return values
    found = grid.round(values)
    if watch is not None:
        watch(name, values, grid, found)
    return found


def _pair_on(grids: Pair, device: torch.device) -> Pair:
    keys, values = (None if grid is None else grid.on(device) for grid in grids)
    return keys, values


def _per_text(grid: Grid | None) -> Grid | None:
    return None if grid is None else grid.per_text()


def _cache_name(module: nn.Module) -> str | None:
    try:
        known = inspect.signature(module.forward).parameters
    except (TypeError, ValueError):
        return None
    return next((name for name in _CACHE_NAMES if name in known), None)
