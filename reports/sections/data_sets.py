"""The data sets of a report: what they look like, what is wrong with them, and their figures side by side."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated

from quantmedic.engine.case.facts import ROLES, DatasetFacts, Role
from quantmedic.engine.contract.causes import CauseReport
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.reports.sections.samples import Samples, Strip
from quantmedic.reports.text import count, name, visible

#: The remedy that takes the representative set as it is.
CALIBRATE_AGAIN = "calibrate-again"


@dataclass(frozen=True)
class Fault:
    """What a rule found wrong with a data set."""

    code: Annotated[str, "code of the rule"]
    cause: Annotated[str, "name of the cause"]
    severity: Annotated[str, "high, medium, low or info; of the cause that explains it, where one does"]
    message: Annotated[str, "what is wrong, one sentence"]
    card: Annotated[str, "code of the card with the details"]
    explained_by: Annotated[str, "cause with which it would vanish; empty where it stands for itself"]
    of_model: Annotated[bool, "what is wrong is what the model was calibrated on; this set is what mends it"] = False


@dataclass(frozen=True)
class SetBox:
    """One data set."""

    role: Annotated[str, "representative or validation"]
    origin: Annotated[str, "where it came from, without folders; empty where unknown"]
    size: Annotated[str, "samples read, and whether they are labelled"]
    strip: Annotated[Strip | None, "samples as pictures; None where they are no images, or were not kept"]
    faults: Annotated[tuple[Fault, ...], "what rules found wrong with it, or with the model beside it"]

    @property
    def sound(self) -> bool:
        """No rule found anything wrong with the set itself."""
        return all(fault.of_model for fault in self.faults)


@dataclass(frozen=True)
class SetsBox:
    """Both data sets."""

    sets: Annotated[tuple[SetBox, ...], "the sets that were given"]
    window: Annotated[str, "how values became shades; empty without pictures"]
    not_judged: Annotated[tuple[str, ...], "codes and names of rules about data sets that could not be judged"]


def sets_box(diagnosis: Diagnosis, samples: Samples | None) -> SetsBox:
    """Both data sets of a diagnosis; ``samples`` are the thumbnails of its case."""
    strips = samples.strips() if samples is not None else {}
    given = [dataset for dataset in diagnosis.datasets if dataset.role is not None and dataset.samples is not None]
    notes = [note for note in diagnosis.not_judged if note.scope == "dataset"]
    return SetsBox(
        sets=tuple(_set_box(dataset, diagnosis, strips) for dataset in given),
        window=samples.window if samples is not None else "",
        not_judged=tuple(f"{visible(note.rule)} {name(note.name)}" for note in notes),
    )


def _set_box(dataset: DatasetFacts, diagnosis: Diagnosis, strips: Mapping[Role, Strip]) -> SetBox:
    assert dataset.role is not None and dataset.samples is not None
    data = diagnosis.run.get("data") or {}
    origin = (data.get(dataset.role) or {}).get("origin") if isinstance(data, Mapping) else None
    return SetBox(
        role=dataset.role,
        origin=visible(str(origin), 120) if origin else "",
        size=f"{count(dataset.samples, 'sample')}{', labelled' if dataset.labelled else ''}",
        strip=strips.get(dataset.role),
        faults=tuple(_set_faults(diagnosis, dataset.role)),
    )


def _set_faults(diagnosis: Diagnosis, role: str) -> Iterator[Fault]:
    """Causes and explained findings whose subject is this set."""
    for cause in diagnosis.causes:
        card = visible(cause.rules[0]) if cause.rules else ""
        if _is_about(cause, role):
            text = visible(cause.message.strip(), 600)
            yield Fault(card, name(cause.shown), cause.severity, text, card, "", _is_mended_by_it(cause))
        for found in cause.absorbs:
            if found.subject == role:
                text = visible(found.message.strip(), 600)
                yield Fault(visible(found.rule), name(found.name), cause.severity, text, card, name(cause.shown))


def _is_mended_by_it(cause: CauseReport) -> bool:
    """What leads is to calibrate on this very set: so the model is wrong, and not the set."""
    return bool(cause.remedies) and cause.remedies[0].id == CALIBRATE_AGAIN


def _is_about(cause: CauseReport, role: str) -> bool:
    return role in cause.subjects and not cause.layers and set(cause.subjects) <= set(ROLES)
