"""What can be had back of noise that no quantizer makes, and that no simulated run shows for this reason."""

from collections.abc import Iterable

from quantmedic.engine.case.gains import NOISELESS
from quantmedic.engine.decibels import to_decibels
from quantmedic.engine.rules.evaluate import Finding

#: Share of the noise that no simulated repair takes away; a finding that rests on it or shows it tells whose it is.
_UNSIMULATED = "model.unsimulated_share"


def unsimulated_gain_db(findings: Iterable[Finding]) -> float | None:
    """The most that a repair recovers that no simulated run can show: without all noise that no quantizer makes.

    None where no finding is about such noise.
    """
    shares = [e.value for found in findings for e in found.evidence if e.fact == _UNSIMULATED]
    known = [max(share, 0.0) for share in shares if isinstance(share, float)]
    return max((-to_decibels(max(1.0 - share, NOISELESS)) for share in known), default=None)
