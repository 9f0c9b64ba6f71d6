"""The loss budget as text: where the noise at the outputs comes from, what heals it, and which cause names it."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal

from quantmedic.engine.case.budget_record import TaskMeasure
from quantmedic.engine.contract.budget_report import (
    BudgetFamily,
    BudgetLine,
    BudgetOutput,
    LossBudgetReport,
    LossOrigin,
    LossPart,
    PathStep,
    TaskLoss,
    TaskShare,
)
from quantmedic.engine.contract.causes import CauseReport
from quantmedic.engine.contract.diagnosis import Diagnosis
from quantmedic.engine.diagnosis.budget_lines import MECHANISMS, NOTABLE
from quantmedic.engine.rules.remedy_kinds import REMEDY_KINDS
from quantmedic.reports.blocks import (
    Block,
    Bullets,
    Cell,
    Column,
    Details,
    Figure,
    Inline,
    Paragraph,
    Section,
    Span,
    joined,
    layer_target,
    make_table,
)
from quantmedic.reports.charts.waterfall import Piece, WaterfallChart, loss_waterfall, waterfall_chart
from quantmedic.reports.text import (
    capital,
    count,
    decibels,
    metric_change,
    metric_label,
    name,
    number,
    points,
    visible,
)

#: Sources that cancel each other make a few times the noise; a larger share divides by next to none.
SENSIBLE = 10.0
#: A smaller share would read 0 %.
SHOWN = 0.005
#: Noise that no quantizer makes is said in words from this share on.
UNSIMULATED_SAID = 0.1
#: Causes that name a line, and layers of one, that are shown.
CAUSES_SHOWN, PLACES_SHOWN = 3, 300
WORDS_LIMIT = 160
UNSIMULATED = "from no quantizer: kernels, or the deployed model computes other values"
#: The same where lines say where most of it begins; what the task loses is not divided among them.
UNPLACED = "from no quantizer and no single operator; task loss without a quantizer is counted here"
INCOMPLETE = (
    "The budget of {runs} ended before all notable sources were separated: layers in one line need not share the "
    "blame, and one of them may cause all of it."
)
AGREEMENT = "agreement with the float model"
TOO_FEW = "not judged"
INTERACTION = "lost only in combination: no source alone loses this"
NO_NAME = "no rule matches this"
FAMILIES = {"weight": "all weights", "activation": "all activations and inputs"}

HOW_TO_READ = "Alone: the noise with everything else in float. Last: what goes with only this in float."
LOST = " Lost {metric}: what this takes of it, with its 95 % interval; alone and last as for the noise."
MANUAL = "general/loss-budget"

Look = Literal["line", "rest", "unsimulated", "interaction"]


@dataclass(frozen=True)
class BudgetRow:
    """A piece of the noise of the noisiest output."""

    look: Annotated[Look, "line, rest, unsimulated or interaction"]
    what: Annotated[str, "what makes it, and where"]
    share: Annotated[str, "share of the noise as percent; empty where it is of the loss only"]
    shares: Annotated[tuple[str, ...], "the same for every output; empty for one output"] = ()
    how: Annotated[str, "how it makes noise; empty where that is not known"] = ""
    alone: Annotated[str, "noise with everything else in float, as percent; empty where not measured"] = ""
    last: Annotated[str, "what goes with only this in float, as percent; empty where not measured"] = ""
    healed: Annotated[str, "what takes most of it away, and how much of the noise; empty where nothing does"] = ""
    causes: Annotated[tuple[Span, ...], "causes that name it, leading to their cards"] = ()
    nameless: Annotated[str, "says that no rule names it; empty where one does, or it is small"] = ""
    layers: Annotated[tuple[str, ...], "layers of it, the loudest first; empty where none makes the values"] = ()
    anchor: Annotated[str, "where the list of its layers stands in the page; empty for a single one"] = ""
    href: Annotated[str, "what its bar opens in a page with layers; empty for nothing"] = ""
    lost: Annotated[str, "what it takes of what the task loses, with its interval; empty where not measured"] = ""
    views: Annotated[str, "what the task loses with this alone, and regains with it last; empty: not measured"] = ""

    @property
    def said(self) -> str:
        """How it makes noise, and what is known of that."""
        return "; ".join(text for text in (self.how, self.healed, self.nameless) if text)


@dataclass(frozen=True)
class StripPiece:
    """A piece of the noise in a strip that is 100 long."""

    at: Annotated[float, "where it begins"]
    width: Annotated[float, "its share as percent"]
    look: Annotated[Look, "line, rest, unsimulated or interaction"]


@dataclass(frozen=True)
class BudgetBox:
    """Where the noise at the outputs comes from."""

    strip: Annotated[tuple[StripPiece, ...], "all of it in a single line, which a first screen has room for"]
    section: Annotated[Section, "all of it"]


@dataclass(frozen=True)
class _LossWords:
    """Words for a loss in the unit of its metric."""

    measure: TaskMeasure
    whole: LossPart
    metric: str | None
    samples: int

    @property
    def label(self) -> str:
        """What is lost."""
        return AGREEMENT if self.measure == "agreement" else metric_label(self.metric).rpartition(":")[2]

    @property
    def cost(self) -> str:
        """What the quantized model loses on these samples; empty where that is not told from none."""
        if not self.whole.judged:
            return ""
        return f"quantizing costs {self.figure(self.whole.lost)} of {self.label} there ({self.ends(self.whole)})"

    @property
    def undivided(self) -> str:
        """Why the loss is not divided; empty where it is."""
        if self.whole.judged:
            return ""
        return (
            f"The cost in {self.label} is not divided: {count(self.samples, 'sample')} are too few to distinguish a "
            f"loss from none ({self.ends(self.whole)})."
        )

    def notes(self, parts: Iterable[LossPart]) -> Iterator[str]:
        """What limits the division of the loss into parts."""
        if not all(part.judged for part in parts):
            yield (
                f"{capital(TOO_FEW)}: parts of the loss whose interval contains zero and is wider than the whole loss; "
                f"{count(self.samples, 'sample')} are too few for them."
            )

    def part(self, part: LossPart) -> str:
        """A part with its interval, or that it is not judged."""
        if not part.judged:
            return f"{TOO_FEW} ({self.ends(part)})"
        return f"{self.figure(part.lost)} ({self.ends(part)})"

    def views(self, share: TaskShare) -> str:
        """What is lost by this alone, and regained by it last."""
        if share.alone is None or share.last is None:
            return ""
        return f"alone {self.bare(share.alone.lost)}, last {self.bare(share.last.lost)}"

    def figure(self, lost: float) -> str:
        """A loss with its unit."""
        return points(lost) if self.measure == "agreement" else metric_change(lost, self.metric)

    def ends(self, part: LossPart) -> str:
        """Both ends of the interval."""
        return f"{self.bare(part.low)} … {self.bare(part.high)}"

    def bare(self, lost: float) -> str:
        """A loss without its unit."""
        return self.figure(lost).removesuffix(" points")


def budget_box(diagnosis: Diagnosis, manuals: Iterable[str]) -> BudgetBox | None:
    """The budget; None where none was measured. ``manuals`` are the pages that lie beside the report."""
    budget = diagnosis.loss_budget
    if budget is None:
        return None
    rows, blocks = budget_rows(diagnosis), _budget_blocks(diagnosis, budget, MANUAL in set(manuals))
    section = Section("budget", "Where the noise comes from", "Noise", list(blocks))
    return BudgetBox(tuple(_strip(rows, _shares(budget))), section)


def path_text(diagnosis: Diagnosis) -> str:
    """The path to the loss, each step with the share of the noise that goes with it, and what would have to change.

    Empty without a path.
    """
    path, budget = diagnosis.loss_path, diagnosis.loss_budget
    if path is None or budget is None:
        return ""
    words = _loss_words(budget, diagnosis.metrics.name)
    text = " → ".join(_step_text(step, words) for step in path.steps)
    levels = {step.level for step in path.steps}
    if "place" not in levels:
        largest = f" (largest: {_step_text(path.largest, words)})" if path.largest is not None else ""
        text += f"; no single {'kind' if 'all' in levels else 'place'} makes most of it{largest}"
    return ". ".join(filter(None, [text, _origin_text(diagnosis.loss_origin)]))


def _origin_text(origin: LossOrigin | None) -> str:
    """A fault of the file, of its settings, or the price of the bits."""
    if origin is None:
        return ""
    anew = f"Made anew on the judged data with these settings, {share_text(origin.file)} of the noise goes"
    parts = [
        (origin.settings, f"with searched ranges and a scale per channel {share_text(origin.settings)} more of it"),
        (origin.bits, f"{share_text(origin.bits)} is left in as many bits"),
    ]
    return "; ".join([anew, *(text for share, text in parts if share >= SHOWN)])


def _step_text(step: PathStep, words: _LossWords | None) -> str:
    how = MECHANISMS[step.mechanism] if step.mechanism is not None else ""
    what = visible(step.words.removesuffix(f": {how}") if how else step.words, WORDS_LIMIT)
    lost = "" if step.lost is None or words is None else f"{share_text(step.lost)} of the loss of {words.label}"
    said = "; ".join(filter(None, [lost, how]))
    return f"{what} {share_text(step.share)}{f' ({said})' if said else ''}"


def _budget_blocks(diagnosis: Diagnosis, budget: LossBudgetReport, has_page: bool) -> Iterator[Block]:
    rows, words = budget_rows(diagnosis), _loss_words(budget, diagnosis.metrics.name)
    divided = words if words is not None and words.whole.judged else None
    basis = f"{count(budget.samples, 'sample')} of the {budget.dataset} set, {count(budget.runs, 'run')}"
    how = [" ", Span("How it is measured, and what it cannot see", "", f"manual/{MANUAL}")] if has_page else []
    yield Paragraph([_lead(diagnosis, budget, words), *how], "lead")
    if path := path_text(diagnosis):
        yield Paragraph(Span(f"{capital(path)}.", "strong"))
    if notes := [*_notes(budget), *(divided.notes(_loss_parts(budget)) if divided is not None else ())]:
        yield Bullets(notes, "notice")
    pieces = [_chart_piece(row, share) for row, share in zip(rows, _shares(budget), strict=False)]
    first = budget.outputs[0]
    yield Figure(waterfall_chart(pieces, output=visible(first.name), sqnr=first.sqnr_db, basis=basis))
    if (chart := _task_chart(rows, budget, divided, basis)) is not None:
        yield Figure(chart)
    metric = divided.label if divided is not None else ""
    yield make_table("Where the noise comes from", rows, _budget_columns(budget, metric), "budget")
    for row, line in zip(rows, budget.lines, strict=False):
        if row.anchor:
            more = len(line.layers) - len(row.layers)
            layers = joined([Span(layer, "name", layer_target(layer)) for layer in row.layers])
            rest = f" and {more} more in report.json" if more else ""
            title = f"all {len(line.layers)} layers: {row.what}"
            yield Details(title, [Paragraph([layers, rest])], "places", row.anchor)
    yield Paragraph(f"{HOW_TO_READ}{LOST.format(metric=metric) if metric else ''} {capital(basis)}.", "muted")
    if len(budget.outputs) > 1:
        yield Bullets([_output_text(output) for output in budget.outputs])
    if families := [_family_text(family) for family in budget.families if family.healed_by is not None]:
        yield Bullets(families)


def _budget_columns(budget: LossBudgetReport, metric: str) -> list[tuple[Column, Callable[[BudgetRow], Cell]]]:
    outputs = budget.outputs if len(budget.outputs) > 1 else ()
    return [
        (Column("what makes the noise"), _what_text),
        (Column("share", "num"), lambda row: row.share),
        *((Column(["of ", Span(each.name, "name")], "num"), _output_share(k)) for k, each in enumerate(outputs)),
        (Column("alone", "num"), lambda row: row.alone),
        (Column("last", "num"), lambda row: row.last),
        (Column("healed by"), lambda row: row.healed),
        *([(Column(f"lost {metric}", "tight"), _lost_text)] if metric else []),
        (Column("named by"), lambda row: [joined(row.causes), Span(row.nameless, "missing")]),
    ]


def _what_text(row: BudgetRow) -> Inline:
    layers = row.layers if not row.anchor else ()
    return [row.what, Span(row.how, "note"), *([" ", Span(each, "hint", layer_target(each))] for each in layers)]


def _output_share(place: int) -> Callable[[BudgetRow], Cell]:
    return lambda row: row.shares[place] if row.shares else ""


def _lost_text(row: BudgetRow) -> Inline:
    return [row.lost, Span(row.views, "note")]


def _output_text(output: BudgetOutput) -> str:
    """An output that is judged by itself."""
    unsimulated = share_text(output.unsimulated)
    return f"{name(output.name)}: SQNR {decibels(output.sqnr_db)}, {unsimulated} of its noise made by no quantizer"


def _strip(rows: Sequence[BudgetRow], shares: Sequence[float]) -> Iterator[StripPiece]:
    """Pieces side by side; what makes up for others, and what goes beyond all of it, has no room."""
    at = 0.0
    for row, share in zip(rows, shares, strict=False):
        width = round(min(max(100 * share, 0.0), 100.0 - at), 1)
        if width > 0:
            yield StripPiece(round(at, 1), width, row.look)
        at += width


def share_text(share: float) -> str:
    """A share of the noise: whole percent; of next to no noise any share would be huge, and says nothing."""
    return f"{round(100 * share) + 0} %" if abs(share) <= SENSIBLE else "not known"


def healing_title(kind: str) -> str:
    """What a kind of change makes, as a plural phrase."""
    return REMEDY_KINDS[kind].title if kind in REMEDY_KINDS and REMEDY_KINDS[kind].title else visible(kind)


def budget_rows(diagnosis: Diagnosis) -> tuple[BudgetRow, ...]:
    """One row per line, then the rest and what no quantizer makes; none where no budget was measured."""
    budget = diagnosis.loss_budget
    if budget is None:
        return ()
    several = len(budget.outputs) > 1
    words = _loss_words(budget, diagnosis.metrics.name)
    rows = [_line_row(line, place, diagnosis, several) for place, line in enumerate(budget.lines, 1)]
    rows.append(BudgetRow("rest", "the rest: sources too small for a line", share_text(budget.rest)))
    if _has_unsimulated(budget):
        others = tuple(share_text(share) for share in budget.unplaced) if several else ()
        words_for_it = UNPLACED if any(line.source == "kernel" for line in budget.lines) else UNSIMULATED
        rows.append(BudgetRow("unsimulated", words_for_it, share_text(budget.unplaced[0]), others))
    if budget.task is None or words is None or not words.whole.judged:
        return tuple(rows)
    rows.append(BudgetRow("interaction", INTERACTION, ""))
    named = [_with_loss(row, line, words) for row, line in zip(rows, budget.lines, strict=False)]
    rest = _rest_of_loss(budget.task)
    return (*named, *(replace(row, lost=words.part(rest[row.look])) for row in rows[len(named) :]))


def _loss_words(budget: LossBudgetReport, metric: str | None) -> _LossWords | None:
    """None where nothing of the task was measured."""
    task = budget.task
    return _LossWords(task.measure, task.whole, metric, budget.samples) if task is not None else None


def _with_loss(row: BudgetRow, line: BudgetLine, words: _LossWords) -> BudgetRow:
    """The row with what its line takes of what the task loses."""
    if line.task is None:
        return row
    return replace(row, lost=words.part(line.task.share), views=words.views(line.task))


def _rest_of_loss(task: TaskLoss) -> Mapping[Look, LossPart]:
    """What no line takes."""
    return {"rest": task.rest, "unsimulated": task.unassigned, "interaction": task.interaction}


def _has_unsimulated(budget: LossBudgetReport) -> bool:
    """What no quantizer makes is shown: of the noise, or of what the task loses."""
    lost = budget.task is not None and budget.task.whole.judged and budget.task.unassigned.lost != 0.0
    return bool(round(100 * budget.unplaced[0])) or lost


def _shares(budget: LossBudgetReport) -> list[float]:
    """Shares of the noise in the order of the rows that have some; they sum up to 1."""
    shares = [line.share for line in budget.lines] + [budget.rest]
    return [*shares, budget.unplaced[0]] if _has_unsimulated(budget) else shares


def _loss_parts(budget: LossBudgetReport) -> list[LossPart]:
    """All parts of what the task loses that are shown."""
    rest = _rest_of_loss(budget.task).values() if budget.task is not None else ()
    return [*(line.task.share for line in budget.lines if line.task is not None), *rest]


def _task_chart(
    rows: Sequence[BudgetRow], budget: LossBudgetReport, words: _LossWords | None, basis: str
) -> WaterfallChart | None:
    """What of the loss each piece takes, the largest first; None where it is not told from none."""
    task = budget.task
    if task is None or words is None:
        return None
    rest = _rest_of_loss(task)
    lines: list[LossPart] = [line.task.share for line in budget.lines if line.task is not None]
    if len(lines) < len(budget.lines):
        return None
    parts = [*lines, *(rest[row.look] for row in rows[len(lines) :])]
    found = [
        Piece(
            look=row.look,
            what=row.what,
            how="" if part.judged else f"{TOO_FEW}: the samples are too few",
            share=part.lost / task.whole.lost,
            text=words.figure(part.lost),
            href=row.href,
        )
        for row, part in zip(rows, parts, strict=True)
        if part.lost or row.look == "line"
    ]
    found.sort(key=lambda piece: (piece.look != "line", -piece.share))
    return loss_waterfall(found, measure=words.label, lost=words.figure(task.whole.lost), basis=basis)


def _line_row(line: BudgetLine, place: int, diagnosis: Diagnosis, several: bool) -> BudgetRow:
    how = MECHANISMS[line.mechanism] if line.mechanism is not None else ""
    cards = {cause.cause: cause for cause in diagnosis.causes}
    anchor = f"noise-{place}" if len(line.places) > 1 else ""
    return BudgetRow(
        look="line",
        what=visible(line.words.removesuffix(f": {how}") if how else line.words, WORDS_LIMIT),
        share=share_text(line.share),
        shares=tuple(share_text(share) for share in line.shares) if several else (),
        how=how,
        alone="" if line.alone is None else share_text(line.alone),
        last="" if line.last is None else share_text(line.last),
        healed=_healed_text(line.healed_by, line.healed),
        causes=tuple(_named_cause(cause, cards) for cause in line.causes[:CAUSES_SHOWN]),
        nameless=NO_NAME if line.share >= NOTABLE and not line.causes and diagnosis.verdict != "healthy" else "",
        layers=tuple(line.layers[:PLACES_SHOWN]),
        anchor=anchor,
        href=f"#{anchor}" if anchor else _address(line),
    )


def _address(line: BudgetLine) -> str:
    """What stands for a single place: its layer, or the data for a network input."""
    if line.layers:
        return layer_target(line.layers[0])
    return "#data" if line.source == "input" else ""


def _named_cause(key: str, cards: Mapping[str, CauseReport]) -> Span:
    """A cause by what its card is called; one that another explains has none, and its rule stands with that one."""
    cause = cards.get(key)
    if cause is None or not cause.rules:
        absorbed = (found for card in cards.values() for found in card.absorbs if found.name == key)
        rule = next((found.rule for found in absorbed), "")
        return Span(visible(f"{rule} {key}".strip()))
    code = visible(cause.rules[0])
    return Span(f"{code} {visible(cause.shown)}", "", f"#cause-{code}")


def _healed_text(kind: str | None, share: float | None) -> str:
    if kind is None or share is None:
        return ""
    return f"{healing_title(kind)} alone remove {share_text(share)}"


def _lead(diagnosis: Diagnosis, budget: LossBudgetReport, words: _LossWords | None) -> str:
    """What is divided: noise and loss of the samples of the budget, beside those of all that were measured."""
    first, metrics = budget.outputs[0], diagnosis.metrics
    of = f" of {visible(first.name)}" if len(budget.outputs) > 1 else ""
    given = next((each.samples for each in diagnosis.datasets if each.role == budget.dataset), None) or 0
    some, noise = count(budget.samples, f"{budget.dataset} sample"), decibels(first.sqnr_db)
    cost = words.cost if words is not None else ""
    if given > budget.samples:
        some = f"{budget.samples} of the {number(given)} {budget.dataset} samples"
        levels = {each.name: each.tensor.data.accumulated.sqnr_db for each in diagnosis.outputs}
        if (level := levels.get(first.name)) is not None:
            noise = f"{noise}; {decibels(level)} on all"
        is_same = words is not None and words.measure != "agreement" and metrics.dataset == budget.dataset
        if words is not None and cost and is_same and metrics.drop is not None:
            cost = f"{cost}, {words.bare(metrics.drop)} on all"
    divided = f"On {some} the noise{of} (SQNR {noise}) is divided among its sources by experiment"
    lead = f"{divided}; {cost}." if cost else f"{divided}."
    return f"{lead} {words.undivided}".rstrip() if words is not None else lead


def _family_text(family: BudgetFamily) -> str:
    what = FAMILIES.get(family.source, family.source)
    healed = _healed_text(family.healed_by, family.healed)
    return f"{capital(what)} together cause {share_text(family.share)}; changed together, {healed} of the noise."


def _notes(budget: LossBudgetReport) -> Iterator[str]:
    if budget.unsimulated >= UNSIMULATED_SAID:
        yield (
            f"{share_text(budget.unsimulated)} of the noise comes from no quantizer: kernels round or overflow "
            "differently from the grids, or the deployed model computes other values than the float model."
        )
    if not budget.complete:
        yield INCOMPLETE.format(runs=count(budget.runs, "run"))
    if any(line.share < 0 for line in budget.lines):
        yield "A negative share compensates errors of others: keeping only it in float makes the output worse."


def _chart_piece(row: BudgetRow, share: float) -> Piece:
    return Piece(row.look, row.what, row.said, share, row.share, row.href)
