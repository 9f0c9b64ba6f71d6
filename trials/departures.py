"""Where noise begins that no quantizer makes: tensors that the deployed model computes otherwise than its grids say.

Every operator of the simulated network, with the stored weights, is fed with what the deployed model computed before
it; what comes out is rounded on the operator's own grid. Where the deployed tensor departs from that by more than
rounding, the departure is added to the simulated network at this place alone: what that adds at the outputs is its
part of the noise.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch, cut
from quantmedic.collectors.measure.memory import lacking_for, samples_that_fit
from quantmedic.collectors.measure.models import GivenSimulation, Models, Reading, View
from quantmedic.collectors.measure.plan import pairs_of_case, tap_values
from quantmedic.collectors.measure.simulation import samples_within
from quantmedic.engine.case.budget_record import DepartureRecord
from quantmedic.engine.case.records import Case
from quantmedic.engine.formulas.noise_sources import simulated_shares
from quantmedic.trials.budget_runs import BudgetRuns

Float32 = NDArray[np.float32]
Floats = NDArray[np.float64]
#: No place is looked for where quantizers make more than all but this share of the noise.
LOOKED_FOR = 0.1
#: All tensors of a sample and all weights are held about so often by the sessions that are opened for it.
TENSORS, WEIGHTS = 6, 8
#: Samples that are looked at, between these, as many as make so many values.
MIN_SAMPLES, MAX_SAMPLES, VALUES = 1, 8, 16e6
#: A departure below this share of a tensor's own noise is none: sums in another order round otherwise.
NOTHING = 0.01
#: Places that are tried, those of the largest departures.
TRIED = 6


@dataclass
class _Energies:
    """Sums of squares over the samples, by tensor: departure, own rounding, noise and signal."""

    departure: dict[int, float]
    own: dict[int, float]
    noise: dict[int, float]
    signal: dict[int, float]

    def departing(self) -> list[int]:
        """Tensors whose departure is more than their own rounding, the largest in shares of the signal first."""
        found = [
            i
            for i, departure in self.departure.items()
            if np.isfinite(departure) and departure > max(self.own[i], NOTHING * self.noise[i])
        ]
        return sorted(found, key=lambda i: -self.relative(i))

    def relative(self, i: int) -> float:
        """Departure over signal."""
        return self.departure[i] / max(self.signal[i], float(np.finfo(np.float64).tiny))


class _Departure(NamedTuple):
    """A deployed tensor, and what it has beyond its simulated operator."""

    deployed: Float32
    beyond: Float32

    def outputs(self, i: int, alone: GivenSimulation, batch: Batch) -> list[Float32]:
        """The outputs of the simulated network where only tensor ``i`` is given, and departs as it is deployed."""
        # What writes the tensor does not depend on what is given: the deployed values are there for their shape.
        own = alone(batch, {i: self.deployed}).rounded[i]
        return alone(batch, {i: own + self.beyond}).outputs


@dataclass(frozen=True)
class _Steps:
    """Every operator of the simulated network fed with what the deployed model computed before it."""

    view: View
    simulated: GivenSimulation
    #: The tensor that is returned at each place of the matched outputs.
    ends: Mapping[int, int]

    def energies(self, batches: Iterable[Batch]) -> _Energies:
        """How much every tensor departs."""
        found = _Energies(*(dict.fromkeys(sorted(self.view.taps), 0.0) for _ in range(4)))
        for batch in batches:
            reading = self.view.read_tensors(batch)
            deployed = self._deployed_values(reading)
            made = self.simulated(batch, deployed)
            for i, values in deployed.items():
                twin = np.asarray(reading.floats[self.view.pairs[i].twin], np.float32)
                found.departure[i] += _distance(values, made.rounded[i])
                found.own[i] += _distance(made.rounded[i], made.exact[i])
                found.noise[i] += _distance(values, twin)
                found.signal[i] += _distance(twin, np.float32(0))
        return found

    def departures(self, tensors: Collection[int], batches: Iterable[Batch]) -> Iterator[dict[int, _Departure]]:
        """Of these tensors, batch by batch, what they have beyond their simulated operators."""
        for batch in batches:
            deployed = self._deployed_values(self.view.read_tensors(batch))
            rounded = self.simulated(batch, deployed).rounded
            yield {i: _Departure(deployed[i], deployed[i] - rounded[i]) for i in tensors}

    def _deployed_values(self, reading: Reading) -> dict[int, Float32]:
        """What the deployed model computed; of an output what it returns, which may be read on another grid."""
        found = {i: tap_values(tap, reading.codes[i]) for i, tap in self.view.taps.items()}
        returned = reading.outputs[1]
        for o, i in self.ends.items():
            if i in found and np.issubdtype(returned[o].dtype, np.floating) and returned[o].shape == found[i].shape:
                found[i] = np.asarray(returned[o], np.float32)
        return found


def find_departures(models: Models, case: Case, runs: BudgetRuns, unit: int) -> tuple[DepartureRecord, ...] | None:
    """Where the noise begins that no quantizer makes, the largest part first.

    Args:
        models: Both models.
        case: What was measured of them.
        runs: Runs of the simulated network.
        unit: Samples that the models take at a time; 1 where they take any number.

    Returns:
        None where quantizers make about all of the noise, operators cannot be fed by themselves, no tensor of the
        deployed model can be observed without computing otherwise, or memory is too short.

    Raises:
        ModelError: A network fails.
    """
    left = 1.0 - simulated_shares(runs.whole, runs.deployed)
    if left.max(initial=0.0) < LOOKED_FOR:
        return None
    if (lacking := lacking_for(models, tensors=TENSORS, weights=WEIGHTS)) is not None:
        models.float_graph.notices.append(
            "a part of the noise is made by no quantizer, and where it begins was not looked for (cause "
            f"operator-departs): that takes {lacking} more than --memory leaves"
        )
        return None
    few = _few(runs.batches, case, unit)
    if (view := _view_as_deployed(models, case, few[0], runs.threads)) is None:
        return None
    if (simulated := models.simulate_given(case, sorted(view.taps), runs.threads)) is None:
        return None
    ends = {o: output.tensor for o, output in enumerate(case.record.outputs) if output.tensor is not None}
    steps = _Steps(view, simulated, ends)
    energies, judge = steps.energies(few), runs.judge_of(few)
    tried = energies.departing()[:TRIED]
    departures = list(steps.departures(tried, few))
    del view, simulated, steps  # Their sessions are large, and others are opened below.

    def record_of(i: int) -> DepartureRecord:
        alone = models.simulate_given(case, [i], runs.threads)
        assert alone is not None
        shares = judge([own[i].outputs(i, alone, batch) for own, batch in zip(departures, few, strict=True)])
        return DepartureRecord(tensor=i, nmse=energies.relative(i), shares=tuple(shares.tolist()))

    return _keep_within(map(record_of, tried), left)


def _view_as_deployed(models: Models, case: Case, first: Batch, threads: int) -> View | None:
    """The tensors that the deployed model shows without computing otherwise; None where these are inputs at most.

    What lies between two of them is simulated: where noise begins there, the next one that is shown departs.
    """
    pairs = pairs_of_case(models, case)
    view = models.view(pairs, first, threads)
    if not view.observed.simulated:
        return view
    faithful = {i: pairs[i] for i in view.faithful}
    if all(pair.tap.tensor in models.quantized.inputs for pair in faithful.values()):
        return None
    view = models.view(faithful, first, threads)
    return None if view.observed.simulated else view


def _few(batches: Sequence[Batch], case: Case, unit: int) -> list[Batch]:
    """Some of the samples, few at a time: all tensors are held."""
    wanted = samples_within(VALUES, MIN_SAMPLES, MAX_SAMPLES, case)
    size = max(unit, min(samples_that_fit(wanted), batches[0].samples))
    return list(cut(batches, size))[: max(wanted // size, 1)]


def _keep_within(found: Iterable[DepartureRecord], left: Floats) -> tuple[DepartureRecord, ...]:
    """The parts of several places, which may hide one another, share what no quantizer makes; the largest first."""
    parts = [(record, np.clip(record.shares, 0.0, left)) for record in found]
    total = np.sum([shares for _, shares in parts], axis=0) if parts else left
    scale = np.minimum(np.divide(left, total, out=np.ones_like(left), where=total > 0), 1.0)
    placed = [record.model_copy(update={"shares": tuple((shares * scale).tolist())}) for record, shares in parts]
    return tuple(sorted(placed, key=lambda record: -max(record.shares)))


def _distance(values: Float32, others: Float32 | np.float32) -> float:
    """Σ of the differences squared; NaN where both are infinite, as masks are."""
    with np.errstate(invalid="ignore"):
        return float(np.square(values - others, dtype=np.float64).sum())
