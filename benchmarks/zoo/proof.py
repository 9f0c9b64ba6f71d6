"""How much of what a fault took the first proven remedy brings back."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from quantmedic.engine.contract.remedies import Proof, TrialRow

from .cases import Built

#: A remedy that brings back this share heals.
ENOUGH = 0.8


@dataclass
class Proved:
    """The proof of one case: its first remedy, and all of them together.

    Attributes:
        cause: What the first remedy is advised for; empty where it was tried for no cause.
        chain_db: What all proven remedies together recover.
        executed_db: What the prescription recovers that was run with its toolchain.
        unexecuted: Why none, or no further one, was run.
        metric: Task metric before and after the first remedy, on the judged samples.
        failed: Trials without a result, and why.
        left_integer: Layers that ran in integers before a proven remedy and do not after it, without being meant to.
    """

    stopped: str
    seconds: float
    trials: int
    remedy: str = ""
    cause: str = ""
    gain_db: float | None = None
    low_db: float | None = None
    chain_db: float | None = None
    executed_db: float | None = None
    unexecuted: str = ""
    metric: tuple[float, float] | None = None
    failed: tuple[str, ...] = ()
    left_integer: tuple[str, ...] = ()


def proved(proof: Proof) -> Proved:
    """What a report tells of its trials."""
    rows: Sequence[TrialRow] = (*proof.trials, *proof.chain)
    failed = tuple(f"{row.trial.kind}: {row.trial.failed}" for row in rows if row.trial.failed)
    seconds = math.nan if proof.spent_seconds is None else proof.spent_seconds
    known = Proved(proof.stopped, seconds, len(rows), failed=failed, unexecuted=proof.unexecuted or "")
    known.executed_db = proof.executions[proof.best].trial.gain_db if proof.best is not None else None
    if not proof.chain:
        return known
    first, last = proof.chain[0].trial, proof.chain[-1].trial
    known.remedy, known.cause = first.kind, ", ".join(proof.chain[0].causes)
    known.gain_db, known.low_db = first.gain_db, first.low_db
    known.chain_db = (last.sqnr_after or 0.0) - (first.sqnr_before or 0.0)
    known.metric = (first.metric.before, first.metric.after) if first.metric else None
    known.left_integer = tuple(name for row in proof.chain for name in row.trial.left_integer)
    return known


def noise_share(built: Built, gain_db: float | None) -> float | None:
    """Share of the noise power that the fault added and the remedy takes away; nothing is proven: 0."""
    return share_of_gain(built.gain_db, gain_db)


def share_of_gain(recovery_db: float | None, gain_db: float | None) -> float | None:
    """Share of the noise that a fault added, and takes ``recovery_db`` to undo, which a gain takes away."""
    if recovery_db is None or recovery_db <= 0:
        return None
    return _gone(gain_db or 0.0) / _gone(recovery_db)


def metric_share(built: Built, found: Proved) -> float | None:
    """The same of the task metric, where the fault takes a proven part of it that the expert sees; None elsewhere."""
    if built.before is None or built.healed is None or not built.before.proven_drop or built.metric:
        return None
    if not built.spec.base.shows_labels:
        return None
    taken = built.healed.score - built.before.score
    if taken <= 0:
        return None
    return (found.metric[1] - found.metric[0]) / taken if found.metric else 0.0


def _gone(gain_db: float) -> float:
    return 1.0 - 10.0 ** (-gain_db / 10.0)


def render_proofs(found: Sequence[tuple[Built, Proved]]) -> str:
    """The table, and the cases that are not healed."""
    singles = [(b, p) for b, p in found if b.spec.group == "single" and noise_share(b, p.gain_db) is not None]
    doubles = [(b, p) for b, p in found if b.spec.group == "double" and noise_share(b, p.chain_db) is not None]
    text = ["\nproof: what the first proven remedy brings back of what the fault took"]
    text += _line("noise power", [noise_share(b, p.gain_db) for b, p in singles])
    text += _line("task metric, where a drop is proven", [metric_share(b, p) for b, p in singles])
    text += _line("metric where a drop is proven, else noise", [_judged(b, p) for b, p in singles])
    text += _line("noise power, all proven remedies", [noise_share(b, p.chain_db) for b, p in singles])
    text += _line("noise power, executed prescription", [noise_share(b, p.executed_db) for b, p in singles])
    text += _line("doubles: noise power, all proven remedies", [noise_share(b, p.chain_db) for b, p in doubles])
    text += _line("doubles: executed prescription", [noise_share(b, p.executed_db) for b, p in doubles])
    seconds = [p.seconds for _, p in found]
    text.append(
        f"  time: median {np.median(seconds):.1f} s, longest {max(seconds):.1f} s; "
        f"ended by the budget {sum(p.stopped == 'budget' for _, p in found)} of {len(found)}"
    )
    text.append(
        f"  proven remedies that take layers out of integers unmeant: {sum(bool(p.left_integer) for _, p in found)}"
    )
    text.append("  not healed (noise share, metric share; remedy and cause; fault's recovery):")
    text += [_miss(b, p) for b, p in singles if (_judged(b, p) or 0.0) < ENOUGH]
    failed = [(b, p) for b, p in found if p.failed]
    text += [f"  failed trials in {len(failed)} cases:"]
    text += [f"    {b.spec.name}: {reason[:160]}" for b, p in failed for reason in p.failed[:1]]
    return "\n".join(text)


def _judged(built: Built, found: Proved) -> float | None:
    share = metric_share(built, found)
    return noise_share(built, found.gain_db) if share is None else share


def _line(title: str, shares: Sequence[float | None]) -> list[str]:
    known = [share for share in shares if share is not None]
    if not known:
        return []
    healed = sum(share >= ENOUGH for share in known)
    return [
        f"  {title:44s} at least {100 * ENOUGH:.0f} % back in {healed} of {len(known)} cases "
        f"({100 * healed / len(known):.0f} %), median {100 * float(np.median(known)):.0f} %"
    ]


def _miss(built: Built, found: Proved) -> str:
    shares = [noise_share(built, found.gain_db), metric_share(built, found)]
    shown = ", ".join("-" if share is None else f"{100 * share:.0f} %" for share in shares)
    what = f"{found.remedy or 'nothing proven'} for {found.cause or 'no cause'}, {found.stopped}"
    wanted = " + ".join("|".join(expected) for expected in built.spec.expected)
    return f"    {built.spec.name}: {shown}; {what}; {built.gain_db:.1f} dB; {wanted}"
