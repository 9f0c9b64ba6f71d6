"""Noise that a block makes by what is quantized in it, one source at a time, and what quantizing does to its values."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from quantmedic.collectors.from_language_model.running_grids import Grid
from quantmedic.collectors.from_language_model.simulation import Simulation, Watch
from quantmedic.collectors.from_torch.devices import widen
from quantmedic.engine.case.language_facts import BlockFacts, RunningInputFacts

Floats = NDArray[np.float64]
Values = NDArray[np.float32]
#: Gives the noise of each token behind a block that runs with a simulation.
Runner = Callable[[Simulation, Watch], Floats]


@dataclass
class Tally:
    """Values that one grid has quantized.

    Attributes:
        noise: Squared error over squared length, of each token.
        largest: Largest magnitude of each token.
        channels: Largest magnitude of each channel.
        sums: Squared error, and squares, of each channel: ``[2, channels]``.
        stored: The largest scale that is stored; None where scales are made while running.
        needed: Scale with which the last code is the largest value; None as before.
        clipped: Values beyond the last code of a stored scale.
        values: All values that met a stored scale.
    """

    noise: list[Floats] = field(default_factory=list)
    largest: list[Floats] = field(default_factory=list)
    channels: Floats | None = None
    sums: Floats | None = None
    stored: float | None = None
    needed: float | None = None
    clipped: int = 0
    values: int = 0

    def add(self, values: torch.Tensor, grid: Grid, rounded: torch.Tensor) -> None:
        """Take the values of one text, ``[1, tokens, channels]`` or ``[1, heads, tokens, channels]``."""
        before, after = (_by_token(each) for each in (values, rounded))
        errors, squares = (after - before) ** 2, before * before
        power = squares.sum(1)
        known = power > 0
        self.noise.append((errors.sum(1)[known] / power[known]).cpu().numpy())
        size = before.abs()
        self.largest.append(size.amax(1).cpu().numpy())
        channels = size.amax(0).cpu().numpy()
        self.channels = channels if self.channels is None else np.maximum(self.channels, channels)
        sums = torch.stack([errors.sum(0), squares.sum(0)]).cpu().numpy()
        self.sums = sums if self.sums is None else self.sums + sums
        clipped = grid.find_clipped(values)
        if clipped is not None:
            self.stored = grid.stored
            self.needed = max(self.needed or 0.0, grid.scale_of(float(size.max())))
            self.clipped += int(clipped.sum())
            self.values += values.numel()

    @property
    def mean_noise(self) -> float:
        """Of all tokens; 0 where none has a length."""
        found = np.concatenate(self.noise)
        return float(found.mean()) if found.size else 0.0

    @property
    def channel_noise(self) -> float:
        """Mean over channels of squared error over squares, where a loud channel counts no more than a quiet one."""
        if self.sums is None or not (known := self.sums[1] > 0).any():
            return 0.0
        return float((self.sums[0, known] / self.sums[1, known]).mean())

    @property
    def clipped_share(self) -> float | None:
        """None where scales are made while running, which no value exceeds."""
        return self.clipped / self.values if self.values else None

    @property
    def token_ratio(self) -> float | None:
        """Largest magnitude of all tokens over the median one."""
        return _over_median(np.concatenate(self.largest))

    @property
    def channel_ratio(self) -> float | None:
        """Largest magnitude of all channels over the median one."""
        return None if self.channels is None else _over_median(self.channels)


def _by_token(values: torch.Tensor) -> torch.Tensor:
    """``[tokens, channels]`` as float64; heads side by side."""
    rows = values[0].transpose(0, 1).flatten(1) if values.ndim == 4 else values[0]
    return widen(rows)


def _over_median(magnitudes: Floats) -> float | None:
    median = float(np.median(magnitudes)) if magnitudes.size else 0.0
    return float(magnitudes.max()) / median if median > 0 else None


@dataclass
class SourceNoise:
    """Noise of a float block whose inputs or whose cache alone are quantized.

    What scales inputs need is looked up in the float block: where those of a layer cut off, what it hands on is small,
    and so would be what the next one seems to need.

    Attributes:
        simulation: What is quantized in the block.
        inputs: Noise of the tokens of each text where the inputs of its layers alone are.
        caches: The same of keys and values.
        tallies: By what reads the values: a layer, or the keys or values of an attention.
        reaches: Scales with which the last code is the largest value, by what reads the values in float.
    """

    simulation: Simulation
    inputs: list[Floats] = field(default_factory=list)
    caches: list[Floats] = field(default_factory=list)
    tallies: dict[str, Tally] = field(default_factory=dict)
    reaches: dict[str, float] = field(default_factory=dict)

    def look(self, run: Runner) -> None:
        """Run one text with each source alone."""
        if self.simulation.inputs:
            self.inputs.append(run(self.simulation.without_caches(), self._count))
        if (plain := self.simulation.unrounded_inputs()).inputs:
            run(plain, self._reach)
        if self.simulation.caches:
            self.caches.append(run(self.simulation.without_inputs(), self._count))

    def _count(self, name: str, values: torch.Tensor, grid: Grid, rounded: torch.Tensor) -> None:
        self.tallies.setdefault(name, Tally()).add(values, grid, rounded)

    def _reach(self, name: str, values: torch.Tensor, grid: Grid, rounded: torch.Tensor) -> None:
        self.reaches[name] = max(self.reaches.get(name, 0.0), grid.scale_of(float(values.abs().max())))

    def facts(self) -> dict[str, object]:
        """What is said of the block."""
        found: dict[str, object] = {}
        if self.inputs:
            found["activation_noise"] = float(np.mean(np.concatenate(self.inputs)))
            found |= self._worst_input()
            found["inputs"] = tuple(
                _input_facts(name, tally, self.reaches.get(name)) for name, tally in self._tallies_of_inputs().items()
            )
        if self.caches:
            found["cache_noise"] = float(np.mean(np.concatenate(self.caches)))
            for kind, title in ((".k", "key"), (".v", "value")):
                own = [tally for name, tally in self.tallies.items() if name.endswith(kind)]
                found |= {f"{title}_noise": max((tally.mean_noise for tally in own), default=None)}
                found |= {f"{title}_clipped": _most(tally.clipped_share for tally in own)}
                stored, needed = _most(tally.stored for tally in own), _most(tally.needed for tally in own)
                found |= _scale_facts(title, stored, needed)
        return found

    def _tallies_of_inputs(self) -> dict[str, Tally]:
        return {name: tally for name, tally in self.tallies.items() if name in self.simulation.inputs}

    def _worst_input(self) -> dict[str, object]:
        layers = self._tallies_of_inputs()
        if not layers:  # experts that no token of these texts has reached
            return {}
        # Loud channels hide in the length of a token that those around them are gone.
        name, worst = max(layers.items(), key=lambda each: max(each[1].mean_noise, each[1].channel_noise))
        return {
            "input_layer": name,
            "input_channel_noise": worst.channel_noise,
            "input_clipped": worst.clipped_share,
            "input_token_ratio": worst.token_ratio,
            "input_channel_ratio": worst.channel_ratio,
            **_scale_facts("input", worst.stored, self.reaches.get(name)),
        }


def _input_facts(layer: str, tally: Tally, needed: float | None) -> RunningInputFacts:
    scales = _scale_facts("input", tally.stored, needed)
    return RunningInputFacts.model_validate(
        {"layer": layer, "noise": tally.mean_noise, "clipped": tally.clipped_share}
        | {name.removeprefix("input_"): value for name, value in scales.items()}
    )


def _scale_facts(title: str, stored: float | None, needed: float | None) -> dict[str, object]:
    ratio = stored / needed if stored is not None and needed else None
    return {f"{title}_scale": stored, f"{title}_scale_needed": needed, f"{title}_scale_ratio": ratio}


def _most(found: Iterable[float | None]) -> float | None:
    return max((each for each in found if each is not None), default=None)


def shares_of_sources(blocks: Sequence[BlockFacts]) -> dict[str, object]:
    """What inputs and cache make of the noise of all blocks, and the blocks where they make most."""
    own, inputs, caches = (
        [getattr(block, name) for block in blocks] for name in ("own_noise", "activation_noise", "cache_noise")
    )
    total = sum(each or 0.0 for each in (*own, *inputs, *caches))
    found: dict[str, object] = {}
    if not 0 < total < math.inf:
        return found
    if (worst := _place_of_most(inputs)) is not None:
        made = sum(each or 0.0 for each in inputs)
        found["activation_block"] = _figures(blocks[worst])
        found["activation_block_share"] = inputs[worst] / made if made else None
    if (worst := _place_of_most(caches)) is not None:
        found["cache_block"] = _figures(blocks[worst])
    return found


def _figures(block: BlockFacts) -> BlockFacts:
    """Without the lists that stand with the blocks."""
    return block.model_copy(update={"noise_by_position": (), "experts": (), "inputs": ()})


def _place_of_most(noises: Sequence[float | None]) -> int | None:
    known = {place: noise for place, noise in enumerate(noises) if noise is not None}
    return max(known, key=lambda place: known[place]) if known else None
