"""What remedies would recover at the network's output, from simulated runs under changed quantizers.

Local noise does not show what arrives at the output: downstream layers add, attenuate and amplify it. So the float
network is run with the deployed quantizers and with those that a remedy would leave, and the noise at its output is
compared. The runs are few, because only what the rules suspect is changed.
"""

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quantmedic.engine.case.gains import (
    Interval,
    gain_without_share,
    pooled_share,
    share_of_gain,
    speaks_typical,
    typical_gain,
)
from quantmedic.engine.case.records import RunRecord, SimulationRecord
from quantmedic.engine.contract.advised_remedies import Recovery
from quantmedic.engine.decibels import sqnr_db, to_decibels
from quantmedic.engine.rules.remedy_kinds import AT_MOST
from quantmedic.engine.rules.rulebase import RuleBase

#: Gains in dB beyond this count as equal: 99 % of the noise power is gone.
ENOUGH_DB = 20.0
#: Where simulated and deployed network differ by more, a simulated gain says little about the deployed one.
FAITHFUL_DB = 6.0


class Prediction(NamedTuple):
    """What a simulated change recovers at the network's output.

    Attributes:
        gain_db: Rise of the output's SQNR; of its 95 % interval the ends ``low_db`` and ``high_db``: a bootstrap over
            the samples, widened by the difference between simulated and deployed network.
        typical: These are of the median sample, because the summed noise says nothing for sure (`speaks_typical`).
        share: Share of the output's noise power that goes, negative where it grows.
        sqnr_db: SQNR of the output after the change.
        agreement: Share of samples with the float network's class after the change; None without classes.
    """

    gain_db: float
    low_db: float
    high_db: float
    share: float
    sqnr_db: float
    agreement: float | None
    typical: bool = False

    def heals(self, base: RuleBase) -> bool:
        """It leaves nothing to explain."""
        return explains(share=self.share, sqnr_db=self.sqnr_db, agreement=self.agreement, base=base)

    def beside(self, stays: float) -> "Prediction":
        """The same where a share of the noise stays, whatever is quantized otherwise; it holds for the rest."""
        if stays <= 0:
            return self

        def gain_beside(gain_db: float) -> float:
            return float(-to_decibels((1.0 - stays) * 10.0 ** (-gain_db / 10.0) + stays))

        gain, low, high = map(gain_beside, (self.gain_db, self.low_db, self.high_db))
        sqnr_db, share = self.sqnr_db - self.gain_db + gain, (1.0 - stays) * self.share
        return self._replace(gain_db=gain, low_db=low, high_db=high, share=share, sqnr_db=sqnr_db)

    def recovery(self, kind: str | None) -> Recovery:
        """As report.json has it; of a kind that only bounds it is a most."""
        own = {name: value for name, value in self._asdict().items() if name in Recovery.model_fields}
        return Recovery(**own, bound=kind in AT_MOST)


def predict(simulation: SimulationRecord | None, key: str, before: str | None = None) -> Prediction | None:
    """What one of the simulated runs recovers, over the unchanged network or another run; None where it was not run."""
    if simulation is None or key not in simulation.runs:
        return None
    if before is not None and before not in simulation.runs:
        return None
    start = simulation.simulated if before is None else simulation.runs[before]
    return _prediction_between(simulation, start, simulation.runs[key])


def explains(*, share: float, sqnr_db: float, agreement: float | None, base: RuleBase) -> bool:
    """Whether nothing is left to explain: most of the noise has gone, and the output is clean, or its classes agree.

    Args:
        share: Share of the output's noise power that has gone.
        sqnr_db: SQNR of the output now.
        agreement: Share of samples with the float network's class now; None without classes.
        base: Holds the thresholds.
    """
    if agreement is not None:
        clean = agreement >= base.threshold("harmed_agreement") and sqnr_db >= base.threshold("healed_sqnr_db")
    else:
        clean = sqnr_db >= base.threshold("quantize_error_sqnr_db")
    return clean and share > base.threshold("healed_share")


def is_grave(gain_db: float, base: RuleBase) -> bool:
    """A repair that recovers so much at the output is one of a grave cause."""
    return share_of_gain(gain_db) > base.threshold("grave_share")


def simulation_gap_db(simulation: SimulationRecord) -> float:
    """Output SQNR of the deployed network minus that of the simulated one."""
    power = np.array(simulation.power)
    return output_sqnr_db(power, simulation.deployed) - output_sqnr_db(power, simulation.simulated)


def is_faithful(simulation: SimulationRecord) -> bool:
    """The simulated network is about as noisy as the deployed one."""
    return abs(simulation_gap_db(simulation)) <= FAITHFUL_DB


def output_sqnr_db(power: NDArray[np.float64], run: RunRecord) -> float:
    """Output SQNR of one run in dB; inf without noise."""
    return sqnr_db(float(power.sum()), float(np.sum(run.noise)))


def _prediction_between(simulation: SimulationRecord, before: RunRecord, after: RunRecord) -> Prediction:
    # A run that recovers nothing ended early: what is compared is on the samples that both were run on.
    both = min(len(before.noise), len(after.noise))
    old, new, power = (np.array(values[:both]) for values in (before.noise, after.noise, simulation.power))
    pooled = _widen(_pooled_gain(before.noise[:both], after.noise[:both]), simulation_gap_db(simulation))
    typical = typical_gain(old, new)
    if typical is not None:
        gap = typical_gain(np.array(simulation.simulated.noise), np.array(simulation.deployed.noise))
        typical = _widen(typical, gap.value if gap is not None else 0.0)
    speaks = speaks_typical(pooled, typical)
    found = typical if typical is not None and speaks else pooled
    return Prediction(
        gain_db=found.value,
        low_db=found.low,
        high_db=found.high,
        share=float(1.0 - new.sum() / old.sum()) if old.sum() > 0 else 0.0,
        sqnr_db=_sqnr_on_all(simulation, power, new),
        agreement=after.agreement,
        typical=speaks,
    )


def _sqnr_on_all(simulation: SimulationRecord, power: NDArray[np.float64], noise: NDArray[np.float64]) -> float:
    """Output SQNR on all samples, of what was measured on the first of them."""
    every, simulated = np.array(simulation.power), np.array(simulation.simulated.noise)
    first = sqnr_db(float(power.sum()), float(noise.sum()))
    if len(power) == len(every):
        return first
    unchanged = sqnr_db(float(power.sum()), float(simulated[: len(power)].sum()))
    return sqnr_db(float(every.sum()), float(simulated.sum())) + first - unchanged


def _widen(gain: Interval, gap_db: float) -> Interval:
    """The interval with the difference between simulated and deployed network."""
    gap = abs(gap_db) if math.isfinite(gap_db) else FAITHFUL_DB
    below, above = math.hypot(gain.value - gain.low, gap), math.hypot(gain.high - gain.value, gap)
    return Interval(gain.value, gain.value - below, gain.value + above)


@lru_cache(maxsize=4096)
def _pooled_gain(old: tuple[float, ...], new: tuple[float, ...]) -> Interval:
    """Gain of the summed noise, with the interval that a trial would have."""
    return Interval(*map(gain_without_share, pooled_share(np.array(old), np.array(new))))
