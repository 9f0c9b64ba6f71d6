"""How the outputs of a detector are read: told by its structure, its float model's own values, and the labels."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.data.datasets import Dataset
from quantmedic.collectors.data.preprocessing import layout_of
from quantmedic.collectors.measure.models import Models
from quantmedic.collectors.measure.reading_trials import (
    Sample,
    Sides,
    Unread,
    class_complaint,
    common_sides,
    few_complaint,
    found_rows,
    precision,
    reach_complaint,
)
from quantmedic.collectors.metrics.box_labels import (
    LabelLayout,
    are_shares,
    count_flat_boxes,
    label_layout,
    labelled_boxes,
    layout_named,
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
    raw_boxes,
)
from quantmedic.collectors.metrics.detections import told_reading
from quantmedic.collectors.metrics.reading import BOXES, NO_SUPPRESSION, Reading
from quantmedic.collectors.metrics.sample_tallies import class_range_error
from quantmedic.collectors.metrics.score_kinds import describe_numbers, fitting_kinds
from quantmedic.collectors.pair.detector_heads import are_queries
from quantmedic.collectors.pair.graph import Shape
from quantmedic.collectors.pair.output_parts import Part, joints_of
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


class Candidate(NamedTuple):
    """A reading, and its unit in words."""

    reading: BoxReading
    unit: str

    @property
    def words(self) -> str:
        return f"{self.reading.order} {self.unit}"

    def with_kind(self, kind: ScoreKind) -> "Candidate":
        """The same with scores of another kind."""
        return Candidate(replace(self.reading, kind=kind), self.unit)


def choose_best(
    samples: Sequence[Sample], truths: Sequence[Values], candidates: Sequence[Candidate]
) -> Candidate | Unread:
    """The reading in which most is found, and so much more than in any other that it is no chance."""
    values = [precision(samples, truths, own.reading, with_class=False) for own in candidates]
    order = np.argsort(-np.array(values), kind="stable")
    chosen, best = candidates[order[0]], values[order[0]]
    if best < LEAST:
        return Unread(
            "in no reading of its boxes the float model finds the labelled ones (the best one, "
            f"{chosen.words}, has mAP50 {100 * best:.1f} % whatever the class)",
            f"where the labels are those of pictures of another size, give them in pixels of the input; else "
            f"{_name_reading()}",
        )
    rivals = [i for i in order[1:] if AHEAD * values[i] > best]
    others = [i for i in rivals if candidates[i].words != chosen.words]
    if others:
        return Unread(
            f"boxes {chosen.words} (mAP50 {100 * best:.1f} % whatever the class) fit the labels little better than "
            f"{candidates[others[0]].words} ({100 * values[others[0]]:.1f} %)",
            _name_reading(),
        )
    return _best_by_class(samples, truths, [chosen, *(candidates[i] for i in rivals)]) if rivals else chosen


def _best_by_class(
    samples: Sequence[Sample], truths: Sequence[Values], candidates: Sequence[Candidate]
) -> Candidate | Unread:
    """Of readings that differ in what makes scores, the one in which most is found with its class."""
    values = [precision(samples, truths, own.reading, with_class=True) for own in candidates]
    first, second = np.argsort(-np.array(values), kind="stable")[:2]
    if AHEAD * values[second] <= values[first]:
        return candidates[first]
    kinds = [kind_in_words(candidates[i].reading.kind) or "scores as they are" for i in (first, second)]
    return Unread(
        f"{kinds[0]} (mAP50 {100 * values[first]:.1f} %) fit the labels little better than {kinds[1]} "
        f"({100 * values[second]:.1f} %)",
        _name_scores(),
    )


def with_numbering(
    samples: Sequence[Sample], truths: Sequence[Values], classes: tuple[int, int], chosen: Candidate
) -> Candidate | Unread:
    """The reading with what the first class behind a background in front is called: 0 or 1.

    A labelled 0 is no background, and the number of columns less 1 has no column where the first one is left out.
    """
    kind, columns = chosen.reading.kind, samples[0].raw.scores.shape[-1]
    if kind.background != "first" or classes[0] == 0:
        return chosen
    counted = chosen.with_kind(kind._replace(background="class-0"))
    if max(float(own[:, 4].max()) for own in truths) >= kind.classes_among(columns):
        return counted
    ordered = _best_by_class(samples, truths, [chosen, counted])
    if isinstance(ordered, Unread):
        why = "it is open whether the first class behind the background has the number 0 or 1"
        return replace(ordered, reason=why, help="name it: --metric-option background=first, or class-0")
    return ordered


def _name_reading() -> str:
    return (
        f"name it: --metric map --metric-option boxes=… ({', '.join(BOXES)}) --metric-option unit=… (pixels, shares); "
        "see: quantmedic explain metrics"
    )


def _name_scores() -> str:
    return (
        "name what makes scores: --metric map --metric-option scores=sigmoid, or softmax, and where the column of no "
        "object stands: --metric-option background=last, first or none; see: quantmedic explain metrics"
    )


def kind_in_words(kind: ScoreKind) -> str:
    """What makes scores, in words; empty where they are taken as they are."""
    parts = [] if kind.scores == "given" else [f"scores by {kind.scores}"]
    match kind.background:
        case "last":
            parts.append("no object last")
        case "first":
            parts.append("background first")
        case "class-0":
            parts.append("background as class 0")
    return ", ".join(parts)


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


def read_detector(models: Models, dataset: Dataset, told: Reading, threads: int) -> BoxReading | Unread | None:
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
        return Unread(f"none of the first {MOST_READ} samples has a labelled box", "put samples with boxes in front")
    layout = _layout_of(samples, told)
    every = None if dataset.labels is None else dataset.labels.values
    _note_flat_boxes(samples, every, layout, told)
    truths = [own[own[:, 4] >= 0] for own in (labelled_boxes(s.labels[np.newaxis], layout)[0] for s in samples)]
    kept = [i for i, own in enumerate(truths) if len(own)]
    if not kept:
        return Unread("none of the labelled boxes that were looked at has an area", "give corners, or centre and sides")
    truths = [truths[i] for i in kept]
    classes = _classes_of(truths if every is None else [labelled_boxes(every, layout)])
    chosen = _choose_reading([samples[i] for i in kept], truths, layout, classes, head, told)
    if isinstance(chosen, Unread) and chosen.fallback is None and head.columns is None:
        return replace(chosen, fallback=told_reading(told))
    return chosen


def _head_of(models: Models, first: Batch, told: Reading, threads: int) -> _Head:
    """What the structure tells of the output that was named, or of the first that is a detector's."""
    graph = models.float_graph
    shapes = {name: _of_samples(shape, first.samples) for name, shape in models.shapes_on(first, threads).items()}
    joints = joints_of(models, shapes)
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


def _of_samples(shape: Shape, samples: int) -> Shape:
    return (None, *shape[1:]) if shape and shape[0] == samples else shape


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
        outputs = dict(zip(names, view.read(batch).with_rows().outputs[0], strict=True))
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


def _choose_reading(
    samples: Sequence[Sample],
    truths: Sequence[Values],
    layout: LabelLayout,
    classes: tuple[int, int],
    head: _Head,
    told: Reading,
) -> BoxReading | Unread:
    """The reading in which the float model finds what is labelled."""
    kinds = _score_kinds(samples, truths, classes, head, told)
    beyond = reach_complaint(samples, truths, kinds) if told.text("unit", "") != "labels" else None
    if beyond is not None:
        return beyond
    candidates = _possible_readings(samples, truths, layout, kinds, head, told)
    if not candidates:
        return Unread("the pictures differ in size, or are none", "give boxes in the unit of the labels")
    found = choose_best(samples, truths, candidates) if len(candidates) > 1 else candidates[0]
    if not isinstance(found, Unread) and "background" not in told.options:
        found = with_numbering(samples, truths, classes, found)
    if isinstance(found, Unread):
        return found
    chosen = found
    reading = replace(chosen.reading, words=_in_words(chosen, samples[0].raw, head))
    rows = found_rows(samples, truths, reading, with_class=True)
    complaint = class_complaint(samples, truths, reading, classes, rows) if len(candidates) > 1 else None
    if complaint is not None:
        return Unread(complaint, "number the labels as the model does, or judge all the same: --metric map", reading)
    few = few_complaint(rows, len(samples))
    if few is None:
        return reading
    return Unread(
        few,
        f"boxes were read as {chosen.words}; judge all the same: --metric map --expected-float-metric VALUE, "
        "the mAP that the model is known to have on such data",
        reading,
    )


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


def _classes_of(truths: Sequence[Values]) -> tuple[int, int]:
    """The least and the largest class of labelled boxes."""
    classes = np.concatenate([own[own[..., 4] >= 0, 4] for own in truths])
    return int(classes.min()), int(classes.max())


def _layout_of(samples: Sequence[Sample], told: Reading) -> LabelLayout:
    named = told.text("labels", "")
    if named:
        return layout_named(named)
    found = {label_layout(own.labels[np.newaxis]) for own in samples}
    return "yolo" if "yolo" in found else "corners"


def _score_kinds(
    samples: Sequence[Sample], truths: Sequence[Values], classes: tuple[int, int], head: _Head, told: Reading
) -> list[ScoreKind]:
    """What may make the scores, as far as the numbers and the labelled classes leave that open.

    Raises:
        DataError: A label is no class of the model.
    """
    numbers = [own.numbers for own in samples if own.numbers is not None]
    if not numbers:
        return [ScoreKind()]
    columns, kinds = numbers[0].columns, fitting_kinds(numbers, told)
    largest = max(float(own[:, 4].max()) for own in truths)
    # Classes behind a background in front may be numbered by their columns, where none is 0.
    room = {
        kind: columns if kind.background == "first" and classes[0] > 0 else kind.classes_among(columns)
        for kind in kinds
    }
    fitting = [kind for kind in kinds if largest < room[kind]]
    if not fitting:
        where = head.columns.output if head.columns is not None else "scores"
        raise class_range_error(int(largest), where, room[kinds[0]])
    return fitting


def _possible_readings(
    samples: Sequence[Sample],
    truths: Sequence[Values],
    layout: LabelLayout,
    kinds: Sequence[ScoreKind],
    head: _Head,
    told: Reading,
) -> list[Candidate]:
    """Readings that what was named leaves open."""
    orders = [told.text("boxes", "")] if "boxes" in told.options else list(BOXES)
    overlap = told.real("nms", OVERLAP)
    is_listed = samples[0].raw.classes is not None
    suppresses = overlap != NO_SUPPRESSION and not is_listed and ("nms" in told.options or not head.is_queries)
    plain = BoxReading(
        columns=head.columns,
        overlap=overlap if suppresses else None,
        confidence=told.real("confidence", CONFIDENCE),
        labels=layout,
    )
    units = _box_units(samples, truths, told)
    return [
        Candidate(replace(plain, kind=kind, order=order, factor=factor), unit)
        for kind, order, (factor, unit) in product(kinds, orders, units)
    ]


def _box_units(samples: Sequence[Sample], truths: Sequence[Values], told: Reading) -> list[tuple[Sides, str]]:
    """By what boxes become what the labels are in, and what that says of their own unit."""
    sides = common_sides(samples)
    shares = all(are_shares(own) for own in truths)
    if shares:
        same, own_unit = "in 0…1", "shares"
    else:
        largest = max(float(own[:, :4].max()) for own in truths)
        fits = sides is not None and largest <= _BEYOND * max(sides)
        same, own_unit = ("in pixels", "pixels") if fits else ("in the unit of the labels", "pixels")
    found = {own_unit: ((1.0, 1.0), same)}
    if sides is not None:
        width, height = sides
        found["pixels" if shares else "shares"] = (
            ((1 / width, 1 / height), "in pixels") if shares else ((width, height), "in 0…1")
        )
    asked = told.text("unit", "")
    if asked == "labels":
        return [found[own_unit]]
    return [found[asked]] if asked in found else [] if asked else list(found.values())


def _in_words(chosen: Candidate, raw: Raw, head: _Head) -> str:
    """How boxes are read, in one line."""
    reading = chosen.reading
    parts = [f"boxes {chosen.words}"]
    if head.columns is not None and head.columns.objectness is not None:
        parts.append("objectness")
    if raw.classes is not None:
        parts.append("a score and a class each")
    else:
        count = raw.scores.shape[1] - (reading.kind.background != "none")
        parts.append(f"{count} {'class' if count == 1 else 'classes'}")
        parts += [words] if (words := kind_in_words(reading.kind)) else []
    if head.has_masks:
        parts.append("masks left out")
    parts.append("no NMS" if reading.overlap is None else f"NMS at {reading.overlap:g}")
    labels = "; labels read as class, centre and sides in 0…1" if reading.labels == "yolo" else ""
    return ", ".join(parts) + labels
