"""How the outputs of a detector are read: told by its structure, its float model's own values, and the labels."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.data.datasets import Dataset
from quantmedic.collectors.data.preprocessing import layout_of
from quantmedic.collectors.measure.models import Models
from quantmedic.collectors.measure.plan import shapes_of_samples
from quantmedic.collectors.measure.reading_trials import Sample, Sides, Trial, Unread
from quantmedic.collectors.metrics.box_labels import (
    count_flat_boxes,
    label_layout,
    labelled_boxes,
    may_be_boxes,
    no_boxes_error,
    shape_of_batch,
)
from quantmedic.collectors.metrics.box_readings import (
    CONFIDENCE,
    OVERLAP,
    BoxReading,
    Columns,
    Raw,
    ScoreKind,
    describe_numbers,
    fitting_kinds,
    raw_boxes,
)
from quantmedic.collectors.metrics.detections import told_reading
from quantmedic.collectors.metrics.reading import BOXES, NO_SUPPRESSION, LabelLayout, Reading
from quantmedic.collectors.metrics.sample_tallies import class_range_error
from quantmedic.collectors.pair.detector_heads import Part, are_queries
from quantmedic.collectors.pair.output_parts import joints_of
from quantmedic.engine.errors import DataError

Values = NDArray[np.float64]
#: A reading is taken that finds this share of what is labelled, and so many times what any other one finds.
LEAST, AHEAD = 0.1, 2.0
Array = NDArray[np.generic]
#: Samples with boxes on which readings are tried, samples that are read to find them, and samples of a run.
TRIED, MOST_READ, _BATCH = 32, 256, 4
#: Boxes of a sample on which they are tried: those with the best scores.
_BEST = 300
#: Boxes may reach beyond the picture.
_BEYOND = 1.1
_NAME_READING = (
    f"name it: --metric map --metric-option boxes=… ({', '.join(BOXES)}) --metric-option unit=… (pixels, shares); "
    "see: quantmedic explain metrics"
)
_NAME_SCORES = (
    "name what makes scores: --metric map --metric-option scores=sigmoid, or softmax, and where the column of no "
    "object stands: --metric-option background=last, first or none; see: quantmedic explain metrics"
)
_BACKGROUND_WORDS = {"last": "no object last", "first": "background first", "class-0": "background as class 0"}


class _Candidate(NamedTuple):
    """A reading, and its unit in words."""

    reading: BoxReading
    unit: str

    @property
    def words(self) -> str:
        return f"{self.reading.order} {self.unit}"

    def with_kind(self, kind: ScoreKind) -> "_Candidate":
        """The same with scores of another kind."""
        return _Candidate(replace(self.reading, kind=kind), self.unit)


@dataclass(frozen=True)
class _Head:
    """What the structure of the float model tells of its outputs.

    Attributes:
        columns: Where one output holds everything; None where boxes and scores are outputs of their own.
        has_masks: Columns of masks are left out.
        is_queries: Boxes are those of queries, which find each object once.
    """

    columns: Columns | None
    has_masks: bool
    is_queries: bool


def read_detector(models: Models, dataset: Dataset, told: Reading, threads: int) -> BoxReading | None:
    """How boxes are read of the outputs; None where these are no detector's.

    What the columns hold is told by the structure of the float model. In which order the numbers of a box stand, and in
    which unit, is told by trying: in the right reading the float model finds the labelled boxes. What decides is COCO's
    average precision at the overlap 0.5, whatever the class, on the first 32 samples with boxes. What makes scores of
    numbers, and which column is no class, is tried where the numbers leave it open; there the class decides, too.

    Args:
        models: Both models.
        dataset: Labelled samples.
        told: Options and outputs that were named; they win. It takes a note of boxes without area.
        threads: Processor threads.

    Raises:
        Unread: They are, and it is open how they are read, or the labels do not fit.
        DataError: The outputs are a detector's, and the labels are no boxes, or not of its classes.
        ModelError: A model cannot be run.
    """
    first = next(dataset.batches(_BATCH, limit=MOST_READ))
    if first.labels is None:
        return None
    head = _head_of(models, first, told, threads)
    if not may_be_boxes(first.labels):
        if head.columns is None:
            return None
        why = f"output  {head.columns.output}  boxes and scores of a detector"
        raise no_boxes_error(_shape_of_labels(dataset, first.labels), why)
    try:
        samples = _read_samples(models, dataset, first, head, told, threads)
    except DataError:
        return None  # no boxes in the shapes of the outputs: where the metric was named, it says so itself
    if not samples:
        raise Unread(f"none of the first {MOST_READ} samples has a labelled box", "put samples with boxes in front")
    layout = _layout_of(samples, told)
    trial = _trial_of(samples, None if dataset.labels is None else dataset.labels.values, layout, told)
    try:
        return _Choice(trial, layout, head, told).reading()
    except Unread as unread:
        if unread.fallback is None and head.columns is None:
            unread.fallback = told_reading(told)
        raise


def _head_of(models: Models, first: Batch, told: Reading, threads: int) -> _Head:
    """What the structure tells of the output that was named, or of the first that is a detector's."""
    graph = models.float_graph
    joints = joints_of(models, shapes_of_samples(models.shapes_on(first, threads), first.samples))
    is_queries = any(are_queries(graph, graph.output_roots[i]) for i, _ in models.match.outputs)
    for (i, _), joint in zip(models.match.outputs, joints, strict=True):
        name = graph.outputs[i]
        if told.output in (None, name) and joint.axis and any(part.kind for part in joint.parts):
            scores = next(part.tensor for part in joint.parts if part.kind == "scores")
            columns = _columns(name, joint.axis, joint.parts, told)
            masks = any(part.kind == "masks" for part in joint.parts)
            return _Head(columns, masks, are_queries(graph, scores))
    return _Head(None, False, is_queries)


def _columns(name: str, axis: int, parts: Sequence[Part], told: Reading) -> Columns:
    places = {part.kind: (part.start, part.stop) for part in parts if part.kind in ("objectness", "scores", "classes")}
    (start, stop), there = places["scores"], places.get("objectness", (None, None))[0]
    match told.text("objectness", ""):
        case "first" if there is None:
            start, there = start + 1, start
        case "none" if there is not None:
            start, there = there, None
    return Columns(name, axis, (start, stop), there, places.get("classes", (None, None))[0])


def _read_samples(
    models: Models, dataset: Dataset, first: Batch, head: _Head, told: Reading, threads: int
) -> list[Sample]:
    """What readings are tried on: the first samples with labelled boxes."""
    view = models.view({}, first, threads)
    names = [models.float_graph.outputs[i] for i, _ in models.match.outputs]
    found: list[Sample] = []
    for batch in dataset.batches(_BATCH, limit=MOST_READ):
        labels = batch.labels
        if labels is None or not may_be_boxes(labels) or len(found) >= TRIED:
            break
        outputs = dict(zip(names, view.read_tensors(batch).with_rows().outputs[0], strict=True))
        named = outputs if head.columns is not None else told.select_several(outputs)
        sides = _sides_of(batch)
        for raw, own in zip(raw_boxes(head.columns, named, batch.samples), labels, strict=True):
            real = own[(own[:, 4] >= 0) | (own[:, 0] >= 0)]
            if real.any():
                numbers = describe_numbers(raw.scores) if raw.classes is None else None
                best = raw if numbers is None else _thin_out(raw, fitting_kinds([numbers], told))
                found.append(Sample(best, numbers, real, sides))
    return found[:TRIED]


def _sides_of(batch: Batch) -> Sides | None:
    """Width and height of the pictures; None where the inputs hold none."""
    for array in batch.inputs.values():
        if array.ndim == 4:
            rows, columns = (1, 2) if layout_of(array.shape) == "NHWC" else (2, 3)
            return float(array.shape[columns]), float(array.shape[rows])
    return None


def _thin_out(raw: Raw, kinds: Sequence[ScoreKind]) -> Raw:
    """The boxes with the best scores of any kind."""
    best: dict[int, None] = {}
    for kind in kinds:
        order = np.argsort(-kind.of(raw.scores).max(axis=1), kind="stable")[:_BEST]
        best |= dict.fromkeys(order.tolist())
    return Raw(raw.boxes[[*best]], raw.scores[[*best]], None)


def _shape_of_labels(dataset: Dataset, batch: Array) -> str:
    """Shape and type of all labels, and where they come from, as far as that is known."""
    labels = dataset.labels
    if labels is None:
        return shape_of_batch(batch)
    return f"{list(labels.values.shape)}  {labels.values.dtype}  {labels.where}"


def _note_flat_boxes(samples: Sequence[Sample], every: Array | None, layout: LabelLayout, told: Reading) -> None:
    """Take a note of labelled boxes without area: of all, or of those that were looked at where labels are a stream."""
    known = [own.labels for own in samples] if every is None else [every]
    flat = sum(count_flat_boxes(own, layout) for own in known)
    if flat:
        among = f" of the first {len(samples)} samples with boxes" if every is None else ""
        verb = "box has" if flat == 1 else "boxes have"
        told.note(f"{flat} labelled {verb} no area{among} and were ignored; fill up with boxes of class -1")


def _layout_of(samples: Sequence[Sample], told: Reading) -> LabelLayout:
    if (named := told.layout()) is not None:
        return named
    found = {label_layout(own.labels[np.newaxis]) for own in samples}
    return "yolo" if "yolo" in found else "corners"


def _trial_of(samples: Sequence[Sample], every: Array | None, layout: LabelLayout, told: Reading) -> Trial:
    """The samples with boxes that have an area; ``every`` are all labels, None where they are a stream.

    Raises:
        Unread: No box has one.
    """
    _note_flat_boxes(samples, every, layout, told)
    found = [(own, labelled_boxes(own.labels[np.newaxis], layout)[0]) for own in samples]
    real = [(own, truth[truth[:, 4] >= 0]) for own, truth in found if (truth[:, 4] >= 0).any()]
    if not real:
        raise Unread("none of the labelled boxes that were looked at has an area", "give corners, or centre and sides")
    truths = [truth for _, truth in real]
    classes = np.concatenate(
        [own[..., 4].ravel() for own in (truths if every is None else [labelled_boxes(every, layout)])]
    )
    classes = classes[classes >= 0]
    return Trial([own for own, _ in real], truths, (int(classes.min()), int(classes.max())))


@dataclass(frozen=True)
class _Choice:
    """The reading in which the float model finds what is labelled, of all that what was named leaves open."""

    trial: Trial
    layout: LabelLayout
    head: _Head
    told: Reading

    def reading(self) -> BoxReading:
        """That reading.

        Raises:
            Unread: It is open.
            DataError: A label is no class of the model.
        """
        kinds = self._score_kinds()
        if self.told.text("unit", "") != "labels":
            self.trial.refuse_far_labels(kinds)
        candidates = self._candidates(kinds)
        if not candidates:
            raise Unread("the pictures differ in size, or are none", "give boxes in the unit of the labels")
        chosen = self._best(candidates) if len(candidates) > 1 else candidates[0]
        if "background" not in self.told.options:
            chosen = self._with_numbering(chosen)
        reading = replace(chosen.reading, words=self._in_words(chosen))
        self.trial.refuse_poor(reading, chosen.words, is_only=len(candidates) == 1)
        return reading

    def _score_kinds(self) -> list[ScoreKind]:
        """What may make the scores, as far as the numbers and the labelled classes leave that open.

        Raises:
            DataError: A label is no class of the model.
        """
        numbers = [own.numbers for own in self.trial.samples if own.numbers is not None]
        if not numbers:
            return [ScoreKind()]
        columns, kinds = numbers[0].columns, fitting_kinds(numbers, self.told)
        largest = self.trial.largest([4])
        # Classes behind a background in front may be numbered by their columns, where none is 0.
        room = {
            kind: columns if kind.background == "first" and self.trial.classes[0] > 0 else kind.classes_among(columns)
            for kind in kinds
        }
        fitting = [kind for kind in kinds if largest < room[kind]]
        if not fitting:
            where = self.head.columns.output if self.head.columns is not None else "scores"
            raise class_range_error(int(largest), where, room[kinds[0]])
        return fitting

    def _candidates(self, kinds: Sequence[ScoreKind]) -> list[_Candidate]:
        """Readings that what was named leaves open."""
        told = self.told
        orders = [told.text("boxes", "")] if "boxes" in told.options else list(BOXES)
        overlap = told.real("nms", OVERLAP)
        is_listed = self.trial.samples[0].raw.classes is not None
        suppresses = overlap != NO_SUPPRESSION and not is_listed and ("nms" in told.options or not self.head.is_queries)
        plain = BoxReading(
            columns=self.head.columns,
            overlap=overlap if suppresses else None,
            confidence=told.real("confidence", CONFIDENCE),
            labels=self.layout,
        )
        return [
            _Candidate(replace(plain, kind=kind, order=order, factor=factor), unit)
            for kind, order, (factor, unit) in product(kinds, orders, list(self._units()))
        ]

    def _units(self) -> Iterator[tuple[Sides, str]]:
        """By what boxes become what the labels are in, and what that says of their own unit."""
        sides, shares = self.trial.sides, self.trial.are_shares
        fits = sides is not None and (shares or self.trial.largest(range(4)) <= _BEYOND * max(sides))
        own_unit, other = ("shares", "pixels") if shares else ("pixels", "shares")
        asked = self.told.text("unit", "")
        if asked in ("", "labels", own_unit):
            yield (1.0, 1.0), "in 0…1" if shares else "in pixels" if fits else "in the unit of the labels"
        if asked in ("", other) and sides is not None:
            width, height = sides
            yield ((1 / width, 1 / height), "in pixels") if shares else ((width, height), "in 0…1")

    def _best(self, candidates: Sequence[_Candidate]) -> _Candidate:
        """The reading in which most is found, and so much more than in any other that it is no chance."""
        values = [self.trial.precision(own.reading, with_class=False) for own in candidates]
        order = np.argsort(-np.array(values), kind="stable")
        chosen, best = candidates[order[0]], values[order[0]]
        if best < LEAST:
            raise Unread(
                "in no reading of its boxes the float model finds the labelled ones (the best one, "
                f"{chosen.words}, has mAP50 {100 * best:.1f} % whatever the class)",
                f"where the labels are those of pictures of another size, give them in pixels of the input; else "
                f"{_NAME_READING}",
            )
        rivals = [i for i in order[1:] if AHEAD * values[i] > best]
        others = [i for i in rivals if candidates[i].words != chosen.words]
        if others:
            raise Unread(
                f"boxes {chosen.words} (mAP50 {100 * best:.1f} % whatever the class) fit the labels little better than "
                f"{candidates[others[0]].words} ({100 * values[others[0]]:.1f} %)",
                _NAME_READING,
            )
        return self._best_by_class([chosen, *(candidates[i] for i in rivals)]) if rivals else chosen

    def _best_by_class(self, candidates: Sequence[_Candidate]) -> _Candidate:
        """Of readings that differ in what makes scores, the one in which most is found with its class."""
        values = [self.trial.precision(own.reading, with_class=True) for own in candidates]
        first, second = np.argsort(-np.array(values), kind="stable")[:2]
        if AHEAD * values[second] <= values[first]:
            return candidates[first]
        kinds = [_kind_in_words(candidates[i].reading.kind) or "scores as they are" for i in (first, second)]
        raise Unread(
            f"{kinds[0]} (mAP50 {100 * values[first]:.1f} %) fit the labels little better than {kinds[1]} "
            f"({100 * values[second]:.1f} %)",
            _NAME_SCORES,
        )

    def _with_numbering(self, chosen: _Candidate) -> _Candidate:
        """The reading with what the first class behind a background in front is called: 0 or 1.

        A labelled 0 is no background, and the number of columns less 1 has no column where the first one is left out.
        """
        kind, columns = chosen.reading.kind, self.trial.samples[0].raw.scores.shape[-1]
        if kind.background != "first" or self.trial.classes[0] == 0:
            return chosen
        counted = chosen.with_kind(kind._replace(background="class-0"))
        if self.trial.largest([4]) >= kind.classes_among(columns):
            return counted
        try:
            return self._best_by_class([chosen, counted])
        except Unread:
            why = "it is open whether the first class behind the background has the number 0 or 1"
            raise Unread(why, "name it: --metric-option background=first, or class-0") from None

    def _in_words(self, chosen: _Candidate) -> str:
        """How boxes are read, in one line."""
        reading, raw = chosen.reading, self.trial.samples[0].raw
        parts = [f"boxes {chosen.words}"]
        if self.head.columns is not None and self.head.columns.objectness is not None:
            parts.append("objectness")
        if raw.classes is not None:
            parts.append("a score and a class each")
        else:
            count = raw.scores.shape[1] - (reading.kind.background != "none")
            parts.append(f"{count} {'class' if count == 1 else 'classes'}")
            parts += [words] if (words := _kind_in_words(reading.kind)) else []
        if self.head.has_masks:
            parts.append("masks left out")
        parts.append("no NMS" if reading.overlap is None else f"NMS at {reading.overlap:g}")
        labels = "; labels read as class, centre and sides in 0…1" if reading.labels == "yolo" else ""
        return ", ".join(parts) + labels


def _kind_in_words(kind: ScoreKind) -> str:
    """What makes scores, in words; empty where they are taken as they are."""
    made = [] if kind.scores == "given" else [f"scores by {kind.scores}"]
    return ", ".join([*made, *([_BACKGROUND_WORDS[kind.background]] if kind.background != "none" else [])])
