"""The proof as report.json shows it: trials with the remedies that they carried out, and the causes of these."""

from collections.abc import Iterable, Sequence

from quantmedic.engine.case.proof import REPAIRED_DATA, ProofRecord, TrialRecord
from quantmedic.engine.contract.causes import CauseReport
from quantmedic.engine.contract.remedies import Proof, TrialRow
from quantmedic.engine.diagnosis.suspects import Suspect
from quantmedic.engine.rules.remedy_kinds import HALVES, REMEDY_KINDS


def proof_of(record: ProofRecord | None, suspects: Sequence[Suspect], causes: Sequence[CauseReport]) -> Proof | None:
    """The proof with the names of what was tried; None where nothing was tried."""
    if record is None:
        return None
    alone = [trial for trial in record.trials if not trial.after and trial.kind not in HALVES]
    links = record.links()
    weights, activations = (next((t for t in record.trials if t.kind == half), None) for half in HALVES)
    return Proof(
        dataset=record.dataset,
        fitted=record.fitted,
        judged=record.judged,
        cross_fitted=record.cross_fitted,
        budget_seconds=record.budget_seconds,
        spent_seconds=record.spent_seconds,
        stopped=record.stopped,
        weights=weights,
        activations=activations,
        trials=tuple(_trial_row(trial, suspects, causes) for trial in alone),
        chain=tuple(_trial_row(trial, suspects, causes) for trial in links),
        explained=_explained_share(links),
        executions=record.executions,
        best=record.best,
        baseline=record.baseline,
        unexecuted=record.unexecuted,
    )


def _trial_row(trial: TrialRecord, suspects: Iterable[Suspect], causes: Sequence[CauseReport]) -> TrialRow:
    known = [s.cause for s in suspects if any(repair.key == trial.key for repair in s.repairs)]
    if trial.kind == REPAIRED_DATA:
        known = [trial.key.partition(":")[2]]
    named = [cause for cause in causes if cause.cause in known]
    titles = [advice.title for cause in named for advice in cause.remedies if advice.simulate == trial.kind]
    kind = REMEDY_KINDS.get(trial.kind)
    if kind is not None and kind.bound is not None:
        titles = [f"{kind.bound}, the most that could be gained here by: {title}" for title in titles]
    general = kind.everywhere.title if kind is not None and kind.everywhere is not None else trial.kind
    title = trial.detail or next(iter(titles), general)
    return TrialRow(causes=tuple(cause.cause for cause in named), remedy=title, trial=trial)


def _explained_share(links: Sequence[TrialRecord]) -> float | None:
    """Share of the noise power that is gone after the last link."""
    if not links or links[0].sqnr_before is None or links[-1].sqnr_after is None:
        return None
    return float(1.0 - 10.0 ** ((links[0].sqnr_before - links[-1].sqnr_after) / 10.0))
