"""Samples of the data sets as pictures: both sets in one window, so that a difference in scaling is seen."""

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantmedic.engine.case.facts import ROLES, Role
from quantmedic.engine.case.records import Case
from quantmedic.engine.case.statistics import SetStatistics
from quantmedic.engine.case.thumbnails import Thumbnails
from quantmedic.engine.formulas.datasets import blank_limit
from quantmedic.reports.blocks import Picture, Pictures
from quantmedic.reports.charts.png import fewer_colours, png
from quantmedic.reports.text import number, percent

Pixels = NDArray[np.uint8]
#: Bytes that all pictures of a page may take, as text.
BUDGET = 24_000
#: (squares of pixels made one, colours at most), tried in this order until all pictures fit the budget.
COARSENESS = ((1, None), (1, 48), (1, 24), (1, 12), (2, 24), (2, 12))
#: Words for samples that no set should hold.
BLANK, NOT_FINITE = "blank", "not finite"
#: A picture is named for its values at the top from this share on.
SATURATED = 0.01
#: Pixels between the pictures of a strip, and by how much a strip is enlarged.
GAP, ENLARGED = 2, 2
#: Not finite: no natural picture is of this colour.
_NOT_FINITE = (255, 0, 255)


@dataclass(frozen=True)
class _Sample:
    """One thumbnail and what is said of it."""

    values: NDArray[np.float32]
    caption: str
    odd: bool
    wrong: bool
    facts: str
    has_class: bool


@dataclass(frozen=True)
class Samples:
    """The thumbnails of a case, drawn alike."""

    low: float
    high: float
    by_role: Mapping[Role, Sequence[_Sample]]

    @property
    def window(self) -> str:
        """How values became shades, one sentence; empty without pictures."""
        if not self.by_role:
            return ""
        channels = {sample.values.shape[2] for samples in self.by_role.values() for sample in samples}
        colours = {
            frozenset({1}): "",
            frozenset({3}): " Channels are shown as red, green and blue in the order in which they are stored.",
        }.get(frozenset(channels), " The first three channels are shown as red, green and blue.")
        spoiled = any(not np.isfinite(s.values).all() for samples in self.by_role.values() for s in samples)
        return (
            f"What the network received, in one window for both sets: {number(self.low)} is black and "
            f"{number(self.high)} is white.{colours}"
            f"{' Magenta marks values that are not finite.' if spoiled else ''}{self._classes}"
        )

    @property
    def _classes(self) -> str:
        """What the numbers under the pictures are, where there are any."""
        classified = any(sample.has_class for samples in self.by_role.values() for sample in samples)
        return " Below: the label, else the class; 7 → 8 is 7 in float and 8 quantized." if classified else ""

    def strips(self) -> dict[Role, Pictures]:
        """The pictures of each set, as coarse as their budget asks for."""
        for square, colours in COARSENESS:
            drawn = {role: [png(_coarse(p, square, colours)) for p in self._pixels(role)] for role in self.by_role}
            if sum(len(file) * 4 // 3 for files in drawn.values() for file in files) <= BUDGET:
                break
        return {role: self._strip(role, files) for role, files in drawn.items()}

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Path and content of one PNG per set, all pictures side by side."""
        for role in self.by_role:
            yield strip_file(role), png(_side_by_side(list(self._pixels(role))))

    def _pixels(self, role: Role) -> Iterator[Pixels]:
        for sample in self.by_role[role]:
            yield _shades(sample.values, self.low, self.high)

    def _strip(self, role: Role, files: Sequence[bytes]) -> Pictures:
        samples = self.by_role[role]
        pictures = tuple(
            Picture(
                uri=f"data:image/png;base64,{base64.b64encode(file).decode()}",
                alt=f"{role} sample {place}: {sample.facts}",
                caption=sample.caption,
                odd=sample.odd,
                wrong=sample.wrong,
                width=sample.values.shape[1],
                height=sample.values.shape[0],
            )
            for place, (file, sample) in enumerate(zip(files, samples, strict=True), 1)
        )
        low, high = _span(sample.values for sample in samples if not sample.odd)
        odd = ", ".join(sample.caption for sample in samples if sample.odd)
        return Pictures(
            pictures=pictures,
            file=strip_file(role),
            span=f"{number(low)} … {number(high)}",
            alt=f"{len(pictures)} samples of the {role} set{f'; the last ones: {odd}' if odd else ''}",
        )


def strip_file(role: Role) -> str:
    """Where the pictures of a set lie beside the report."""
    return f"graphs/samples-{role}.png"


def samples_of(case: Case) -> Samples:
    """What a case kept of its samples; nothing where they are no images."""
    by_role = {}
    for role in ROLES:
        statistics = case.statistics.get(role)
        if statistics is not None and len(statistics.thumbnails.table):
            by_role[role] = _samples_shown(case, role, statistics)
    typical = [sample.values for samples in by_role.values() for sample in samples if not sample.odd]
    low, high = _span(typical)
    return Samples(low, high, by_role)


def _span(arrays: Iterable[NDArray[np.float32]]) -> tuple[float, float]:
    finite = [values[np.isfinite(values)] for values in arrays]
    known = [values for values in finite if values.size]
    if not known:
        return 0.0, 1.0
    return float(min(values.min() for values in known)), float(max(values.max() for values in known))


def _samples_shown(case: Case, role: Role, statistics: SetStatistics) -> list[_Sample]:
    """The samples that stand for a set, then those kept for what is odd about them; one that is both is listed once."""
    kept = statistics.thumbnails
    odd: dict[int, list[str]] = {}
    for place, reason in ((kept.faintest, _faint_text(case, role, kept)), (kept.most_spoiled, _saturated_text(kept))):
        if place is not None and reason:
            odd.setdefault(place, []).append(reason)
    ordinary = [place for place in kept.typical if place not in odd]
    ordinary_samples = [_sample(statistics, place, "") for place in ordinary]
    return ordinary_samples + [_sample(statistics, place, ", ".join(reasons)) for place, reasons in odd.items()]


def _faint_text(case: Case, role: Role, kept: Thumbnails) -> str:
    """What is to be said of the sample with the least deviation."""
    if kept.faintest is None:
        return ""
    return BLANK if kept.table["deviation"][kept.faintest] < blank_limit(case, role) else "least contrast"


def _saturated_text(kept: Thumbnails) -> str:
    if kept.most_spoiled is None:
        return ""
    row = kept.table[kept.most_spoiled]
    if row["nonfinite"]:
        return f"{row['nonfinite']} values {NOT_FINITE}"
    share = float(row["saturated"])
    return f"{percent(share, 0)} at its largest value" if share >= SATURATED else ""


def _sample(statistics: SetStatistics, place: int, reason: str) -> _Sample:
    kept, samples = statistics.thumbnails, statistics.samples
    same = np.flatnonzero(samples["hash"] == kept.table["hash"][place])
    facts = []
    caption = ""
    if len(same):
        row = samples[same[0]]
        label, before, after = (int(row[name]) for name in ("label", "class_float", "class_quantized"))
        if label >= 0:
            facts.append(f"label {label}")
        if before >= 0:
            facts.append(f"class {before} in float, {after} quantized")
        caption = f"{before} → {after}" if before != after else str(label if label >= 0 else before)
        caption = "" if label < 0 and before < 0 else caption
    if len(same) > 1:
        facts.append(f"{len(same)} times in the set")
        caption = f"{caption} ×{len(same)}".strip()
    if reason:
        facts.insert(0, reason)
    text = ", ".join(facts) or "no label"
    wrong = BLANK in reason or NOT_FINITE in reason
    return _Sample(kept.values(place), reason or caption, bool(reason), wrong, text, bool(caption) and not reason)


def _shades(values: NDArray[np.float32], low: float, high: float) -> Pixels:
    """Values as shades of grey or colours: ``low`` is 0 and ``high`` 255."""
    shown = values[:, :, :3] if values.shape[2] >= 3 else values[:, :, :1]
    finite = np.isfinite(shown)
    scaled = (np.where(finite, shown, low) - low) * (255.0 / ((high - low) or 1.0))
    pixels = np.clip(np.rint(scaled), 0, 255).astype(np.uint8)
    spoiled = ~finite.all(axis=2)
    if spoiled.any():
        pixels = np.broadcast_to(pixels, (*pixels.shape[:2], 3)).copy()
        pixels[spoiled] = _NOT_FINITE
    return pixels


def _coarse(pixels: Pixels, square: int, colours: int | None) -> Pixels:
    """The same with fewer pixels and colours; what is not finite stays marked."""
    height, width, channels = pixels.shape
    if square > 1:
        high, wide = -(-height // square) * square, -(-width // square) * square
        padded = np.pad(pixels, ((0, high - height), (0, wide - width), (0, 0)), mode="edge")
        blocks = padded.reshape(high // square, square, wide // square, square, channels)
        spoiled = (blocks == _NOT_FINITE).all(axis=4).any(axis=(1, 3)) if channels == 3 else False
        pixels = np.rint(blocks.mean(axis=(1, 3))).astype(np.uint8)
    else:
        spoiled = (pixels == _NOT_FINITE).all(axis=2) if channels == 3 else False
    if colours is not None:
        pixels = fewer_colours(pixels, colours)
    if np.any(spoiled):
        pixels[spoiled] = _NOT_FINITE
    return pixels


def _side_by_side(pictures: Sequence[Pixels]) -> Pixels:
    """One picture of all, enlarged; grey between them."""
    height = max(len(picture) for picture in pictures)
    gap = np.full((height, GAP, 3), 128, np.uint8)
    row: list[Pixels] = []
    for picture in pictures:
        cell = np.full((height, picture.shape[1], 3), 128, np.uint8)
        cell[: len(picture)] = picture
        row += [cell, gap]
    joined = np.concatenate(row[:-1], axis=1)
    return joined.repeat(ENLARGED, axis=0).repeat(ENLARGED, axis=1)
