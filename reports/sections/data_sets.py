"""The data sets of a report: what they look like and what is wrong with them; `tables.py` has their figures."""

from collections.abc import Iterator, Mapping

from quantmedic.engine.case.facts import ROLES, DatasetFacts, Role
from quantmedic.engine.contract.causes import CauseReport
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.reports.blocks import Bullets, Heading, Inline, Panel, Paragraph, Pictures, Section, Span
from quantmedic.reports.sections.samples import Samples
from quantmedic.reports.sections.tables import data_blocks, relation_text
from quantmedic.reports.text import count, name, visible

#: The remedy that takes the representative set as it is.
CALIBRATE_AGAIN = "calibrate-again"
OF_MODEL = "of the model, not of this set"
SOUND = "No rule found anything wrong with this set."


def data_section(diagnosis: Diagnosis, samples: Samples | None) -> Section:
    """Both data sets of a diagnosis; ``samples`` are the thumbnails of its case."""
    strips = samples.strips() if samples is not None else {}
    given = [dataset for dataset in diagnosis.datasets if dataset.role is not None and dataset.samples is not None]
    notes = ", ".join(f"{note.rule} {name(note.name)}" for note in diagnosis.not_judged if note.scope == "dataset")
    window = samples.window if samples is not None else ""
    missing = [
        f"Rules about data sets that could not be judged: {notes}. ",
        Span("What is missing", "hint", "#not-judged"),
    ]
    return Section(
        "data",
        "Data sets",
        "Data",
        [
            Paragraph(f"Representative against validation inputs: {relation_text(diagnosis.datasets)}.", "lead"),
            *(_set_panel(dataset, diagnosis, strips) for dataset in given),
            *([Paragraph(window, "muted")] if window else []),
            *([Paragraph(missing, "muted")] if notes else []),
            *data_blocks(diagnosis.datasets),
        ],
    )


def _set_panel(dataset: DatasetFacts, diagnosis: Diagnosis, strips: Mapping[Role, Pictures]) -> Panel:
    """What one set is, what it looks like, and what rules found wrong with it, or with the model beside it."""
    assert dataset.role is not None and dataset.samples is not None
    data = diagnosis.run.get("data") or {}
    origin = (data.get(dataset.role) or {}).get("origin") if isinstance(data, Mapping) else None
    strip = strips.get(dataset.role)
    facts = [visible(str(origin), 120)] if origin else []
    facts.append(f"{count(dataset.samples, 'sample')}{', labelled' if dataset.labelled else ''}")
    facts += [f"pictures span {strip.span}"] if strip is not None else []
    faults = list(_set_faults(diagnosis, dataset.role))
    sound = [] if any(is_its_own for is_its_own, _ in faults) else [Paragraph(SOUND)]
    return Panel(
        f"{dataset.role} set",
        [
            Heading([f"{dataset.role} ", Span(f"({' · '.join(facts)})", "muted")]),
            *([strip] if strip is not None else []),
            *([Bullets([text for _, text in faults], "faults")] if faults else []),
            *sound,
        ],
    )


def _set_faults(diagnosis: Diagnosis, role: str) -> Iterator[tuple[bool, Inline]]:
    """Causes and explained findings whose subject is this set; whether they are faults of the set itself.

    What was calibrated on other data is mended by this very set: so the model is wrong, and not the set.
    """
    for cause in diagnosis.causes:
        card = f"#cause-{visible(cause.rules[0]) if cause.rules else ''}"
        if _is_about(cause, role):
            own = not (cause.remedies and cause.remedies[0].id == CALIBRATE_AGAIN)
            chip = Span(cause.severity, f"chip chip-{cause.severity}") if own else Span(OF_MODEL, "chip")
            called = Span(f"{cause.rules[0] if cause.rules else ''} {name(cause.shown)}", "strong", card)
            yield own, [chip, " ", called, f" {visible(cause.message.strip(), 600)}"]
        for found in cause.absorbs:
            if found.subject == role:
                chip = Span(cause.severity, f"chip chip-{cause.severity}")
                called = Span(f"{found.rule} {name(found.name)}", "strong", card)
                healed = Span(f" (would vanish with {name(cause.shown)} repaired)", "muted")
                yield True, [chip, " ", called, f" {visible(found.message.strip(), 600)}", healed]


def _is_about(cause: CauseReport, role: str) -> bool:
    return role in cause.subjects and not cause.layers and set(cause.subjects) <= set(ROLES)
