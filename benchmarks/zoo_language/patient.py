"""A float network and a quantized one that was made from it, on its way into two folders."""

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import numpy as np

from .declaring import quantization_config
from .llama_cpp import write_llama_cpp
from .networks import Network, Values, Weights
from .roles import BLOCKS, block_of, last, left_in_float, linears, norms
from .schemes import Codes, Damage, Scheme, Tensors, made, stored_layer
from .surgery import amplifiable, move_gains, rows_times

#: Changes what the quantized checkpoint stores.
After = Callable[[Tensors], Tensors]
#: From the name of a norm or a layer, and how many channels it has, to the factor of each.
Factors = Callable[[str, int], Values]


@dataclass(frozen=True)
class Patient:
    """What both checkpoints will hold.

    Attributes:
        network: As it was trained.
        seed: Of whatever is drawn.
        floats: What the float checkpoint holds.
        sources: What is quantized, where a tool changed it before: by name, over ``floats``.
        plan: How each layer is quantized; others stay in float.
        damage: Changes of the codes of layers.
        after: Changes of the stored tensors, one after the other.
        config: What ``config.json`` of the quantized model says otherwise.
        forgotten: Layers in float that the configuration does not leave out.
        llama_cpp: Types of llama.cpp by layer, where the quantized model is such a file.
        is_permuted: Rows of q and k are as that file's architecture has them.
    """

    network: Network
    seed: int
    floats: Weights
    sources: Weights = field(default_factory=dict)
    plan: Mapping[str, Scheme] = field(default_factory=dict)
    damage: Mapping[str, Damage] = field(default_factory=dict)
    after: tuple[After, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    forgotten: tuple[str, ...] = ()
    llama_cpp: Callable[[str], str] | None = None
    is_permuted: bool = True

    @property
    def layers(self) -> list[str]:
        return linears(self.floats)

    def random(self, what: str) -> np.random.Generator:
        """Numbers that depend on the seed, the network and what they are for."""
        return np.random.default_rng([self.seed, zlib.crc32(f"{self.network.name} {what}".encode())])

    def replaced(self, **changes: Any) -> Self:
        return replace(self, **changes)

    def with_scheme(self, scheme: Scheme) -> Self:
        """All layers within blocks quantized alike."""
        return replace(self, plan=dict.fromkeys(self.layers, scheme))

    def with_layers(self, layers: list[str], **changes: Any) -> Self:
        """Some layers quantized otherwise."""
        return replace(self, plan={**self.plan, **{name: replace(self.plan[name], **changes) for name in layers}})

    def with_damage(self, layers: list[str], damage: Damage) -> Self:
        return replace(self, damage={**self.damage, **dict.fromkeys(layers, damage)})

    def with_options(self, layers: list[str], **options: Any) -> Self:
        """Layers written otherwise than their format says."""

        def ask(codes: Codes) -> Codes:
            return replace(codes, options={**codes.options, **options})

        return self.with_damage(layers, ask)

    def with_floats(self, floats: Weights) -> "Patient":
        """The same plan for other float weights."""
        return replace(float_patient(self.network, self.seed, floats), plan=self.plan)

    def move_gains(self, factors: Factors) -> Weights:
        """The float weights with all norms multiplied, and the columns behind them divided."""
        found = self.floats
        for norm in (norm for block in BLOCKS for norm in norms(self.network, block)):
            found = move_gains(self.network, found, norm, factors(norm.name, len(found[norm.name])))
        return found

    def multiply_rows(self, factors: Factors) -> Weights:
        """The float weights with all rows of v and up multiplied, and the columns behind them divided.

        Raises:
            Inapplicable: They are parts of other layers.
        """
        found = self.floats
        for layer in amplifiable(self.layers):
            found = rows_times(found, layer, factors(layer, len(found[f"{layer}.weight"])))
        return found

    def drawn_factors(self, what: str, count: int, number: int, value: float) -> Values:
        """A factor for so many channels, 1 for the others."""
        factors = np.ones(count, np.float32)
        factors[self.random(what).permutation(count)[:number]] = value
        return factors

    def drawn_block(self, salt: str = "block") -> int:
        return int(self.random(salt).choice(list(BLOCKS)))

    def drawn_layer(self, *kinds: str, inner: bool = False) -> str:
        """A layer of some kinds, by the last part of their names; ``inner`` leaves the first block out."""
        names = [name for name in self.layers if last(name) in kinds and (block_of(name) > 0 or not inner)]
        return str(self.random("layer").choice(sorted(names)))

    def then(self, after: After) -> Self:
        return replace(self, after=(*self.after, after))

    def written(self, folder: Path) -> tuple[Path, Path]:
        """Both checkpoints."""
        floats = made.write_folder(folder / "float", _in_bfloat16(self.floats), self.network.config)
        sources = {**self.floats, **self.sources}
        if self.llama_cpp is not None:
            path = folder / "quantized.gguf"
            write_llama_cpp(path, self.network, sources, self.llama_cpp, is_permuted=self.is_permuted)
            return floats, path
        tensors = self._quantized(sources)
        for after in self.after:
            tensors = after(tensors)
        told = quantization_config(self.plan, self._left_out())
        config = {**self.network.config, **told, **_merged(told, self.config)}
        return floats, made.write_folder(folder / "quantized", tensors, config)

    def _left_out(self) -> list[str]:
        """Layers that the configuration leaves in float."""
        names = [*left_in_float(self.floats), *self.layers]
        return [name for name in names if name not in self.plan and name not in self.forgotten]

    def _quantized(self, sources: Weights) -> Tensors:
        found: Tensors = {}
        for name, values in sources.items():
            base = name.removesuffix(".weight")
            scheme = self.plan.get(base)
            if scheme is None:
                found[name] = ("BF16", made.bfloat16(values))
            else:
                found |= stored_layer(base, values, scheme, self.damage.get(base))
        return found


def _in_bfloat16(weights: Weights) -> Tensors:
    return {name: ("BF16", made.bfloat16(values)) for name, values in weights.items()}


def _merged(told: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Tables that both hold are joined."""
    return {
        key: {**told[key], **value} if isinstance(value, dict) and isinstance(told.get(key), dict) else value
        for key, value in changes.items()
    }


def float_patient(network: Network, seed: int, weights: Weights | None = None) -> Patient:
    """A patient whose float weights are those of the network, or others, as bfloat16 holds them."""
    floats = {name: made.from_bfloat16(made.bfloat16(values)) for name, values in (weights or network.weights).items()}
    return Patient(network, seed, floats)
