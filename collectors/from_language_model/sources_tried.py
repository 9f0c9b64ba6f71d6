"""Activations and the K and V cache of the quantized model in float, or with other scales: what each of them costs."""

from quantmedic.collectors.data.progress import Progress
from quantmedic.collectors.from_checkpoint.weight_values import WeightValues
from quantmedic.collectors.from_language_model.blocks import run_alone
from quantmedic.collectors.from_language_model.runs import Run
from quantmedic.collectors.from_language_model.simulation import Simulation
from quantmedic.engine.case.facts import LanguageFacts

#: Share of the divergence from which on it is asked what of a source makes it.
_LOOKED_INTO = 0.4


def try_sources(run: Run, weights: WeightValues, found: LanguageFacts, progress: Progress) -> dict[str, float | None]:
    """What is left of the divergence where a source is in float, and where its scales are made while running.

    Args:
        run: Both models, whose blocks were run; the states of the quantized one are overwritten.
        weights: Of the quantized model.
        found: What is known without trials.
        progress: Called after every block that is run again.

    Raises:
        ModelError: See ``run_blocks``.
    """
    trial = _Trial(run, weights, found.kl_mean or 0.0, progress)
    return {**_try_inputs(trial, run.simulation, found), **_try_caches(trial, run.simulation)}


class _Trial:
    """Runs the quantized model with another simulation."""

    def __init__(self, run: Run, weights: WeightValues, before: float, progress: Progress) -> None:
        """``before``: divergence with all that is quantized, in nats."""
        self._run, self._weights, self._before, self._progress = run, weights, before, progress

    def divergence(self, simulation: Simulation) -> float:
        """Mean over the tokens, in nats."""
        run = self._run
        run_alone(run.skeleton, self._weights, run.texts, run.states.quantized, simulation, self._progress)
        return float(run.score().divergence.mean())

    def gain(self, simulation: Simulation) -> float | None:
        """Share of the divergence that is gone."""
        return self.share(self.divergence(simulation))

    def share_of(self, left: float, simulation: Simulation) -> float | None:
        """Of what a source in float takes away, after which so much is left, the share that the simulation does."""
        return (self._before - self.divergence(simulation)) / (self._before - left) if self._before != left else None

    def share(self, left: float) -> float | None:
        """Share of the divergence that is gone where so much is left."""
        return 1 - left / self._before if self._before else None


def _try_inputs(trial: _Trial, simulation: Simulation, found: LanguageFacts) -> dict[str, float | None]:
    if not simulation.inputs:
        return {}
    left = trial.divergence(simulation.without_inputs())
    gains = {"kl_float_activations": left, "activations_gain": trial.share(left)}
    if (gains["activations_gain"] or 0.0) <= _LOOKED_INTO:
        return gains
    if found.activation_block.name is not None:
        gains["activation_block_gain"] = trial.gain(simulation.without_inputs(f"{found.activation_block.name}."))
    if any(grid.scale is not None for grid in simulation.inputs.values()):
        gains["token_scales_share"] = trial.share_of(left, simulation.with_scales_of_tokens())
    return gains


def _try_caches(trial: _Trial, simulation: Simulation) -> dict[str, float | None]:
    if not simulation.caches:
        return {}
    left = trial.divergence(simulation.without_caches())
    gains = {"kl_float_cache": left, "cache_gain": trial.share(left)}
    if (gains["cache_gain"] or 0.0) <= _LOOKED_INTO:
        return gains
    gains["keys_gain"] = trial.gain(simulation.with_float_keys())
    if any(grid is not None and grid.scale is not None for pair in simulation.caches.values() for grid in pair):
        gains["text_scales_share"] = trial.share_of(left, simulation.with_scales_of_texts())
    return gains
