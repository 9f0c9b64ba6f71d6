"""Routers of experts: whether both models choose the same ones, and what quantizing does to each expert."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from quantmedic.collectors.from_language_model.simulation import is_fused
from quantmedic.collectors.from_torch.devices import widen
from quantmedic.engine.case.language_facts import ExpertFacts

Floats = NDArray[np.float64]
Values = NDArray[np.float32]
#: What experts are called with: hidden states ``[tokens, width]``, and places and shares of those chosen.
Call = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass
class Routing:
    """Choices of the router of one block, summed over texts, and noise of its experts.

    Attributes:
        experts: How many there are; 0 where a block has none, or not as one tensor.
        room: Choices of the float model, ``[tokens, chosen]``, and their shares beside them; on disk.
    """

    experts: int
    room: Values | None
    _tokens: int = 0
    _same: int = 0
    _moved: float = 0.0
    _counts: Floats | None = None
    _samples: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)
    _outputs: list[dict[int, torch.Tensor]] = field(default_factory=list)
    _power: dict[int, float] = field(default_factory=dict)
    _noise: dict[int, float] = field(default_factory=dict)

    @classmethod
    def of(cls, layer: nn.Module, room: Values | None) -> "Routing":
        """Nothing is known yet of a block."""
        module = _experts_of(layer)
        return cls(0 if module is None or room is None else len(cast("Any", module).gate_up_proj), room)

    @contextmanager
    def seen_floats(self, layer: nn.Module, span: slice, *, is_sample: bool) -> Iterator[None]:
        """Take what the float router chooses for one text, while the block runs.

        Args:
            layer: The block.
            span: Where the tokens of the text are among all.
            is_sample: Experts are run on it one by one afterwards.
        """
        with _seen_call(layer if self.experts else None) as calls:
            yield
        if not calls or self.room is None:
            return
        hidden, chosen, shares = calls[0]
        if 2 * chosen.shape[1] != self.room.shape[1]:  # the configuration counts other ones
            return
        places = _array(chosen)
        self.room[span] = np.concatenate([places, _array(shares)], axis=1)
        counted = np.bincount(places.ravel(), minlength=self.experts)[: self.experts].astype(np.float64)
        self._counts = counted if self._counts is None else self._counts + counted
        if is_sample:
            self._samples.append((hidden, chosen))

    @contextmanager
    def seen_quantized(self, layer: nn.Module, span: slice) -> Iterator[None]:
        """Take what the quantized router chooses for the same text, while the block runs."""
        with _seen_call(layer if self.experts else None) as calls:
            yield
        if not calls or self.room is None or self._counts is None:
            return
        _, chosen, shares = calls[0]
        kept = np.split(np.asarray(self.room[span], np.float64), 2, axis=1)
        floats = _shares_by_expert(kept[0], kept[1], self.experts)
        quantized = _shares_by_expert(_array(chosen), _array(shares), self.experts)
        self._tokens += len(floats)
        self._same += int(((floats > 0) == (quantized > 0)).all(1).sum())
        # Half of the sum: what one expert loses another one gains.
        self._moved += float(np.abs(floats - quantized).sum() / 2)

    def run_float_experts(self, layer: nn.Module) -> None:
        """Run each expert on the tokens of some texts that the float router gives it."""
        module = _experts_of(layer)
        if module is not None:
            self._outputs = [dict(_each_expert(module, *sample)) for sample in self._samples]

    def run_quantized_experts(self, layer: nn.Module) -> None:
        """Run the quantized ones on the same tokens."""
        module = _experts_of(layer)
        if module is None:
            return
        for sample, outputs in zip(self._samples, self._outputs, strict=True):
            for expert, found in _each_expert(module, *sample):
                wanted = widen(outputs[expert])
                far = widen(found).to(wanted.device) - wanted
                self._power[expert] = self._power.get(expert, 0.0) + float(wanted.square().sum())
                self._noise[expert] = self._noise.get(expert, 0.0) + float(far.square().sum())

    def facts(self) -> dict[str, object]:
        """What is said of the block; nothing where it has no experts."""
        if not self._tokens or self._counts is None:
            return {}
        total = self._counts.sum()
        return {
            "router_agreement": self._same / self._tokens,
            "router_moved": self._moved / self._tokens,
            "experts": tuple(
                ExpertFacts(share=float(count / total), noise=self._noise_of(number))
                for number, count in enumerate(self._counts)
            ),
        }

    def _noise_of(self, expert: int) -> float | None:
        power = self._power.get(expert, 0.0)
        return self._noise[expert] / power if power > 0 else None


def _experts_of(layer: nn.Module) -> nn.Module | None:
    return next((module for module in layer.modules() if is_fused(module)), None)


@contextmanager
def _seen_call(layer: nn.Module | None) -> Iterator[list[Call]]:
    """What the experts of a block are called with."""
    found: list[Call] = []

    def see(_: nn.Module, args: tuple[Any, ...]) -> None:
        if len(args) == 3:
            found.append((args[0], args[1], args[2]))

    module = None if layer is None else _experts_of(layer)
    if module is None:
        yield found
        return
    hook = module.register_forward_pre_hook(see)
    try:
        yield found
    finally:
        hook.remove()


def _each_expert(module: nn.Module, hidden: torch.Tensor, chosen: torch.Tensor) -> Iterator[tuple[int, torch.Tensor]]:
    """What each expert makes of the tokens that are given to it, where and in which numbers it computes."""
    weights = cast("Any", module).gate_up_proj
    hidden, chosen = hidden.to(weights.device, weights.dtype), chosen.to(weights.device)
    for expert in range(len(weights)):
        rows = torch.where((chosen == expert).any(1))[0]
        if not len(rows):
            continue
        place = torch.full((len(rows), 1), expert, dtype=chosen.dtype, device=chosen.device)
        with torch.inference_mode():
            yield expert, module(hidden[rows], place, torch.ones_like(place, dtype=hidden.dtype))


def chosen_experts(config: object) -> int | None:
    """How many experts a configuration chooses for each token in a block; None where there are none."""
    found = (getattr(config, name, None) for name in ("num_experts_per_tok", "moe_topk", "moe_k"))
    return next((value for value in found if isinstance(value, int) and value > 0), None)


def _array(values: torch.Tensor) -> NDArray[Any]:
    """numpy has no bfloat16."""
    return (values.float() if values.is_floating_point() else values).cpu().numpy()


def _shares_by_expert(chosen: NDArray[Any], shares: NDArray[Any], experts: int) -> Floats:
    """Share of each expert of each token, ``[tokens, experts]``; over all chosen ones the shares are 1."""
    found = np.zeros((len(chosen), experts + 1))
    total = shares.sum(1, keepdims=True)
    np.put_along_axis(found, chosen.astype(np.int64), shares / np.where(total > 0, total, 1), axis=1)
    return found[:, :experts]
