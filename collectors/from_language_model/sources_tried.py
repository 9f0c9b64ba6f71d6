"""Activations and the K and V cache of the quantized model in float, or with other scales: what each of them costs."""

from quantmedic.collectors.from_checkpoint.weight_values import WeightValues
from quantmedic.collectors.from_language_model.bench import Bench
from quantmedic.collectors.from_language_model.simulation import Simulation
from quantmedic.engine.case.facts import LanguageFacts

#: Share of the divergence from which on it is asked what of a source makes it.
_LOOKED_INTO = 0.4


def try_sources(bench: Bench, weights: WeightValues, found: LanguageFacts) -> dict[str, float | None]:
    """What is left of the divergence where a source is in float, and where its scales are made while running.

    Args:
        bench: Runs the model again on some of the texts.
        weights: Of the quantized model.
        found: What is known without trials.

    Raises:
        ModelError: See ``run_blocks``.
    """
    trial = _Trial(bench, weights)
    return {**_try_inputs(trial, found), **_try_caches(trial)}


class _Trial:
    """Runs the quantized model with another simulation."""

    def __init__(self, bench: Bench, weights: WeightValues) -> None:
        """``weights``: of the quantized model."""
        self._bench, self._weights = bench, weights

    @property
    def simulation(self) -> Simulation:
        """What is quantized beside the weights."""
        return self._bench.run.simulation

    def divergence(self, step: str, simulation: Simulation, *, first: int = 0) -> float:
        """Mean over the tokens, in nats; see ``Bench.left``."""
        return self._bench.mean(self._bench.left(step, self._weights, simulation, first=first))

    def gain_of_inputs(self, found: LanguageFacts) -> float | None:
        """Share of the divergence that is gone where the inputs of the worst block are float."""
        name = found.activation_block.name
        first = self._bench.rooms.first_of_trial([block.name for block in found.blocks].index(name))
        return self.share(
            self.divergence("kl_float_activation_block", self.simulation.without_inputs(f"{name}."), first=first)
        )

    def share_of(self, left: float, other: float) -> float | None:
        """Of what a source in float takes away, after which so much is left, the share that something other does."""
        before = self._before
        return (before - other) / (before - left) if before != left else None

    def share(self, left: float) -> float | None:
        """Share of the divergence that is gone where so much is left; None where there was none."""
        return 1 - left / self._before if self._before else None

    @property
    def _before(self) -> float:
        return self._bench.mean(self._bench.before)


def _try_inputs(trial: _Trial, found: LanguageFacts) -> dict[str, float | None]:
    simulation = trial.simulation
    if not simulation.inputs:
        return {}
    left = trial.divergence("kl_float_activations", simulation.without_inputs())
    gains = {"kl_float_activations": left, "activations_gain": trial.share(left)}
    if (gains["activations_gain"] or 0.0) <= _LOOKED_INTO:
        return gains
    if found.activation_block.name is not None:
        gains["activation_block_gain"] = trial.gain_of_inputs(found)
    if any(grid.scale is not None for grid in simulation.inputs.values()):
        other = trial.divergence("kl_token_scales", simulation.with_scales_of_tokens())
        gains["token_scales_share"] = trial.share_of(left, other)
    return gains


def _try_caches(trial: _Trial) -> dict[str, float | None]:
    simulation = trial.simulation
    if not simulation.caches:
        return {}
    left = trial.divergence("kl_float_cache", simulation.without_caches())
    gains = {"kl_float_cache": left, "cache_gain": trial.share(left)}
    if (gains["cache_gain"] or 0.0) <= _LOOKED_INTO:
        return gains
    gains["keys_gain"] = trial.share(trial.divergence("kl_float_keys", simulation.with_float_keys()))
    if any(grid is not None and grid.scale is not None for pair in simulation.caches.values() for grid in pair):
        other = trial.divergence("kl_text_scales", simulation.with_scales_of_texts())
        gains["text_scales_share"] = trial.share_of(left, other)
    return gains
