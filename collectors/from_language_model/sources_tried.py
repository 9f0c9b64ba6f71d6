"""Activations and the K and V cache of the quantized model in float, or with other scales: what each of them costs."""

from quantmedic.collectors.data.progress import Progress
from quantmedic.collectors.from_checkpoint.weight_values import WeightValues
from quantmedic.collectors.from_language_model.blocks import run_alone
from quantmedic.collectors.from_language_model.rooms import Rooms
from quantmedic.collectors.from_language_model.runs import Run
from quantmedic.collectors.from_language_model.simulation import Simulation
from quantmedic.engine.case.facts import LanguageFacts

#: Share of the divergence from which on it is asked what of a source makes it.
_LOOKED_INTO = 0.4


def try_sources(
    run: Run, weights: WeightValues, found: LanguageFacts, rooms: Rooms, progress: Progress
) -> dict[str, float | None]:
    """What is left of the divergence where a source is in float, and where its scales are made while running.

    Args:
        run: Both models, whose blocks were run; the states of the quantized one are overwritten.
        weights: Of the quantized model.
        found: What is known without trials.
        rooms: Places for the hidden states; trials that are finished in their work are not made again.
        progress: Called after every block that is run again.

    Raises:
        ModelError: See ``run_blocks``.
    """
    trial = _Trial(run, weights, found.kl_mean or 0.0, rooms, progress)
    return {**_try_inputs(trial, run.simulation, found), **_try_caches(trial, run.simulation)}


class _Trial:
    """Runs the quantized model with another simulation."""

    def __init__(self, run: Run, weights: WeightValues, before: float, rooms: Rooms, progress: Progress) -> None:
        """``before``: divergence with all that is quantized, in nats."""
        self._run, self._weights, self._before, self._rooms, self._progress = run, weights, before, rooms, progress

    def divergence(self, step: str, simulation: Simulation, *, first: int = 0) -> float:
        """Mean over the tokens, in nats.

        Args:
            step: Name of the trial, by which a run that was interrupted in it finds what is finished.
            simulation: What is quantized beside the weights.
            first: The first block in which it is another one, where what goes into it was kept.
        """
        run = self._run

        def compute() -> float:
            run_alone(
                run.skeleton,
                self._weights,
                run.texts,
                self._rooms,
                simulation,
                self._progress,
                step=f"{step}_blocks",
                first=first,
            )
            return float(run.score().divergence.mean())

        return float(self._rooms.work.once(step, compute))

    def gain_of_inputs(self, found: LanguageFacts, simulation: Simulation) -> float | None:
        """Share of the divergence that is gone where the inputs of the worst block are float."""
        name = found.activation_block.name
        first = self._rooms.first_of_trial([block.name for block in found.blocks].index(name))
        left = self.divergence("kl_float_activation_block", simulation.without_inputs(f"{name}."), first=first)
        return self.share(left)

    def share_of(self, left: float, other: float) -> float | None:
        """Of what a source in float takes away, after which so much is left, the share that something other does."""
        return (self._before - other) / (self._before - left) if self._before != left else None

    def share(self, left: float) -> float | None:
        """Share of the divergence that is gone where so much is left."""
        return share_gone(self._before, left)


def share_gone(before: float | None, left: float) -> float | None:
    """Share of a divergence that is gone where so much of it is left; None where there was none."""
    return 1 - left / before if before else None


def _try_inputs(trial: _Trial, simulation: Simulation, found: LanguageFacts) -> dict[str, float | None]:
    if not simulation.inputs:
        return {}
    left = trial.divergence("kl_float_activations", simulation.without_inputs())
    gains = {"kl_float_activations": left, "activations_gain": trial.share(left)}
    if (gains["activations_gain"] or 0.0) <= _LOOKED_INTO:
        return gains
    if found.activation_block.name is not None:
        gains["activation_block_gain"] = trial.gain_of_inputs(found, simulation)
    if any(grid.scale is not None for grid in simulation.inputs.values()):
        other = trial.divergence("kl_token_scales", simulation.with_scales_of_tokens())
        gains["token_scales_share"] = trial.share_of(left, other)
    return gains


def _try_caches(trial: _Trial, simulation: Simulation) -> dict[str, float | None]:
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
