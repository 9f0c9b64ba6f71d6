"""Mistakes in the representative inputs that can be undone: what is done to them, for trials and as Python text.

Each step has a witness of its own in the data: another order of the channels fits their statistics, a line leads from
one set's values to the other's. They are carried out in the order in which lines can be fitted: channels first.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantmedic.engine.case.facts import DatasetFacts, RelationFacts, Role
from quantmedic.engine.formulas.strays import words_of
from quantmedic.engine.rules.toolchain_options import Code
from quantmedic.engine.text import quote

Array = NDArray[np.generic]
Moments = tuple[tuple[float, ...], tuple[float, ...]]
#: Factor and offset of each channel, or one pair for all of them.
Lines = tuple[tuple[float, float], ...]
#: A sample varies less than this share of the validation set: as in the fact ``blank_share``.
BLANK = 5e-3
#: Where the samples that are not blank vary less than this share of the validation samples, they are no better.
VARIED = 0.5
#: Moments of two sets that differ by less, in deviations, are those of the same numbers.
ALIKE = 0.3
#: Causes that leave out samples or move their values, and those of which each is undone together with the others.
STRAYS, BLANKS, LAYOUT = "stray-samples", "blank-samples", "layout-mismatch"
MENDED = ("preprocessing-mismatch", "channel-order-mismatch")
#: In which order several are undone: strays are known by values as stored, blanks by those of the application.
TURNS = (STRAYS, LAYOUT, *MENDED, BLANKS)
#: Channels the other way round.
REVERSED = (2, 1, 0)

_CHANGE = '''\
def repaired(feeds):
    """The feeds with {name} as the application has it: {words}. What is so already stays."""

    def differs(arrays, mean, deviation):
        values = np.concatenate([{rows} for x in arrays]).astype(np.float64)
        return np.abs(values.mean(axis=0) - mean).sum() + np.abs(values.std(axis=0) - deviation).sum()

    given = [feed[{name}] for feed in feeds]
    from_representative = differs(given, {wrong[0]}, {wrong[1]})  # mean and deviation of each channel
    from_application = differs(given, {right[0]}, {right[1]})
    if from_representative > from_application:
        return feeds
    return [{{**feed, {name}: {change}}} for feed, x in zip(feeds, given)]'''
_DROP = '''\
def repaired(feeds):
    """{words}"""
    found = []
    for feed in feeds:
        x = feed[{name}]
        kept = {kept}
        if kept.any():
            found.append({{key: y[kept] if np.shape(y)[:1] == kept.shape else y for key, y in feed.items()}})
    return found'''

_RELAY = '''\
def repaired(feeds):
    """The feeds with {name} in the layout in which neighbouring pixels are most alike, which may be the present one."""

    def read(x, stored_by):
        n, {shape} = x.shape
        if stored_by == "{other}":
            return np.moveaxis(x.reshape(n, {stored}), {there}, {axis})
        return np.swapaxes(x.reshape(n, h, c, w), 2, {axis}) if stored_by == "lines" else x

    def roughness(x):
        planes = np.moveaxis(x.astype(np.float64), {axis}, 1)
        return (np.diff(planes, axis=2) ** 2).sum() + (np.diff(planes, axis=3) ** 2).sum()

    layouts = ["{own}", "{other}", "lines"]
    best = min(layouts, key=lambda stored_by: sum(roughness(read(feed[{name}], stored_by)) for feed in feeds))
    return [{{**feed, {name}: np.ascontiguousarray(read(feed[{name}], best))}} for feed in feeds]'''
#: By the channel axis of images: what their numbers are stored by, and how they lie.
_STORED = {1: ("planes", "c, h, w"), 3: ("pixels", "h, w, c")}


@dataclass(frozen=True)
class InputRepair:
    """What is done to one input of the network, the first in most cases; all other inputs stay.

    Attributes:
        name: The input, by its name in the float model.
        axis: Axis of its channels; None where it has none.
        order: For each channel the place where it is stored; empty where all are in their places.
        lines: Factor and offset of each channel, or one pair for all of them, once they are in order.
        least: Standard deviation that a sample has to have.
        most: Root mean square that it may have.
        left_out: The samples that have more, in words.
        relaid: Their numbers are read in the layout in which neighbouring pixels are most alike.
        wrong: Mean and standard deviation per channel of the representative inputs.
        right: Those of the validation inputs.
    """

    name: str
    axis: int | None = None
    order: tuple[int, ...] = ()
    lines: Lines = ()
    least: float = 0.0
    most: float = math.inf
    left_out: str = "blank samples"
    relaid: bool = False
    wrong: Moments = ((), ())
    right: Moments = ((), ())

    @property
    def words(self) -> str:
        """What is done, as text."""
        if self.relaid:
            return "representative inputs read in the layout in which neighbouring pixels are most alike"
        if not self._steps:
            return f"representative inputs without {self.left_out}"
        lines = ", ".join(dict.fromkeys(f"{slope:.4g}·x {offset:+.4g}" for slope, offset in self.lines))
        turned = f"with their channels {self._order_in_words}" if self.order else ""
        return f"representative inputs {' and '.join(filter(None, [turned, lines and f'mapped to {lines}']))}"

    @property
    def _order_in_words(self) -> str:
        return "reversed" if self.order == REVERSED else f"in the order {', '.join(map(str, self.order))}"

    @property
    def _steps(self) -> list[str]:
        """What is done to the values, in words."""
        turned = [f"its channels are {self._order_in_words.replace('in the', 'put in the')}"] if self.order else []
        return [*turned, *(["its values are mapped"] if self.lines else [])]

    def find_kept(self, x: Array) -> NDArray[np.intp]:
        """Samples that stay, along the first axis."""
        rows = x.reshape(len(x), -1).astype(np.float64)
        if self.most < math.inf:
            return np.flatnonzero(np.sqrt((rows**2).mean(axis=1)) <= self.most)
        return np.flatnonzero(rows.std(axis=1) >= self.least)

    def change(self, x: Array) -> Array:
        """Samples that have the mistakes, without them."""
        if self.relaid:
            return self._relay(x)
        if self.order:
            assert self.axis is not None
            x = np.take(x, self.order, self.axis)
        if not self.lines:
            return x
        slopes, offsets = (np.array(column, np.float32) for column in zip(*self.lines, strict=True))
        if len(self.lines) == 1 or self.axis is None:
            return np.asarray(x.astype(np.float32) * slopes[0] + offsets[0], x.dtype)
        moved = np.moveaxis(x.astype(np.float32), self.axis, -1) * slopes + offsets
        return np.ascontiguousarray(np.moveaxis(moved, -1, self.axis), x.dtype)

    def _relay(self, x: Array) -> Array:
        """As the printed text does it."""
        axis = self.axis or 1
        channels, height, width = np.moveaxis(x, axis, 1).shape[1:]
        other = (height, width, channels) if axis == 1 else (channels, height, width)
        by_other = np.moveaxis(x.reshape(len(x), *other), 4 - axis, axis)
        by_lines = np.swapaxes(x.reshape(len(x), height, channels, width), 2, axis)

        def roughness(images: Array) -> float:
            planes = np.moveaxis(images.astype(np.float64), axis, 1)
            return float((np.diff(planes, axis=2) ** 2).sum() + (np.diff(planes, axis=3) ** 2).sum())

        return np.ascontiguousarray(min((x, by_other, by_lines), key=roughness))

    def code(self) -> Code:
        """Python function ``repaired`` of a list of feeds, which hold arrays by the names of inputs."""
        name = quote(self.name)
        if self.relaid and self.axis is not None:
            (own, shape), (other, stored) = _STORED[self.axis], _STORED[4 - self.axis]
            places = {"axis": self.axis, "there": 4 - self.axis}
            return Code(_RELAY.format(name=name, own=own, shape=shape, other=other, stored=stored, **places))
        if not self._steps:
            return Code(_DROP.format(name=name, words=self._drop_in_words(name), kept=self._kept_in_words()))
        words, change = ", and ".join(self._steps), self._change_in_words()
        rows = "x.reshape(-1, 1)"
        if self.axis is not None:
            rows = f"np.moveaxis(x, {self.axis}, -1).reshape(-1, {len(self.right[0])})"
        wrong, right = ([_numbers(row) for row in moments] for moments in (self.wrong, self.right))
        return Code(_CHANGE.format(name=name, words=words, change=change, rows=rows, wrong=wrong, right=right))

    def _drop_in_words(self, name: str) -> str:
        if self.most < math.inf:
            return f"The feeds without {self.left_out}: the root mean square of {name} is above {_number(self.most)}."
        return f"The feeds without samples in which {name} is blank: it varies less than {_number(self.least)}."

    def _kept_in_words(self) -> str:
        rows = "x.reshape(len(x), -1)"
        if self.most < math.inf:
            return f"np.sqrt(({rows}.astype(np.float64) ** 2).mean(axis=1)) <= {_number(self.most)}"
        return f"{rows}.astype(np.float64).std(axis=1) >= {_number(self.least)}"

    def _change_in_words(self) -> str:
        x = f"np.take(x, {list(self.order)}, {self.axis})" if self.order else "x"
        if not self.lines:
            return x
        slopes, offsets = zip(*self.lines, strict=True)
        x = f"{x}.astype(np.float32)"
        if len(self.lines) == 1 or self.axis is None:
            return f"({x} * np.float32({_number(slopes[0])}) + np.float32({_number(offsets[0])})).astype(x.dtype)"
        moved = f"np.moveaxis({x}, {self.axis}, -1) * np.float32({_numbers(slopes)}) + np.float32({_numbers(offsets)})"
        return f"np.ascontiguousarray(np.moveaxis({moved}, -1, {self.axis}), x.dtype)"


def input_repair(cause: str, sets: Mapping[Role | None, DatasetFacts]) -> InputRepair | None:
    """What undoes the mistake that is a cause, with all that has to be undone along with it.

    None where the facts of the two data sets do not show it.

    Args:
        cause: Name of the cause.
        sets: Facts of the data sets by their role.
    """
    mine, other = sets.get("representative"), sets.get("validation")
    if mine is None or mine.input is None:
        return None
    if cause == STRAYS:
        return _drop_strays(mine, mine.input)
    if other is None or not mine.mean or not mine.std or not other.mean or not other.std:
        return None
    if cause == BLANKS and mine.kept_deviation_ratio is not None and mine.kept_deviation_ratio >= VARIED:
        return InputRepair(mine.input, least=BLANK * float(np.sqrt(np.mean(np.square(other.std)))))
    relation, axis = mine.relation, mine.channel_axis
    lines = tuple(zip(relation.undoing_slopes or (), relation.undoing_offsets or (), strict=True))
    if cause == LAYOUT and mine.layout_reread and axis in _STORED and _are_the_same_numbers(mine, other, lines):
        return InputRepair(mine.input, axis, relaid=True)
    if cause not in MENDED:
        return None
    if relation.input is not None and relation.input != mine.input:
        return _map_other_input(relation, relation.input, lines)
    order = relation.order if relation.reordered and axis is not None else None
    moments = (mine.mean, mine.std), (other.mean, other.std)
    found = InputRepair(mine.input, axis, order or (), lines, wrong=moments[0], right=moments[1])
    return found if found.order or found.lines else None


def _are_the_same_numbers(mine: DatasetFacts, other: DatasetFacts, lines: Lines) -> bool:
    """In whatever order: mean and deviation of all channels together fit the other set's, once they are mapped alike.

    Where they do not, channels were normalized after they had been mixed, which no other order undoes.
    """
    (mean, deviation), (expected, usual) = _moments_of_all(mine), _moments_of_all(other)
    if lines and max(abs(slope - lines[0][0]) for slope, _ in lines) <= ALIKE * abs(lines[0][0]):
        mean, deviation = lines[0][0] * mean + lines[0][1], abs(lines[0][0]) * deviation
    return abs(mean - expected) <= ALIKE * usual and abs(deviation - usual) <= ALIKE * usual


def _moments_of_all(view: DatasetFacts) -> tuple[float, float]:
    """Mean and standard deviation over all channels, which are of one size."""
    means, deviations = np.array(view.mean), np.array(view.std)
    return float(means.mean()), float(np.sqrt((deviations**2 + means**2).mean() - means.mean() ** 2))


def _map_other_input(relation: RelationFacts, name: str, lines: Lines) -> InputRepair | None:
    """One line for all of an input besides the first."""
    mean, std, slope, offset = relation.input_mean, relation.input_std, relation.slope, relation.offset
    if mean is None or std is None or slope is None or offset is None or not lines:
        return None
    return InputRepair(name, lines=lines, wrong=((slope * mean + offset,), (slope * std,)), right=((mean,), (std,)))


def _drop_strays(mine: DatasetFacts, name: str) -> InputRepair | None:
    """What is too large by far is left out; which samples these are does not depend on their order."""
    if not mine.stray_samples or mine.stray_limit is None:
        return None
    return InputRepair(name, most=mine.stray_limit, left_out=words_of(mine.stray_samples))


def _number(value: float) -> str:
    """All digits of a 32-bit float."""
    return f"{value:.9g}"


def _numbers(values: tuple[float, ...]) -> str:
    return f"[{', '.join(map(_number, values))}]"
