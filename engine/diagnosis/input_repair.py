"""A mistake in the representative inputs that can be undone: what is done to them, for trials and as Python text."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from quantmedic.engine.case.facts import DatasetFacts, Role
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
#: The cause that leaves out samples by their size.
STRAYS = "stray-samples"
#: Steps of two grids that differ by less than this share are those of one grid.
SAME_GRID = 1e-3

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


@dataclass(frozen=True)
class InputRepair:
    """What is done to the first input of the network; all other inputs stay.

    Attributes:
        kind: Values mapped to those of the application, channels turned round, or samples left out.
        name: The input, by its name in the float model.
        axis: Axis of its channels; None where it has none.
        lines: Factor and offset of each channel, or one pair for all of them; of turned channels where they stand then.
        least: Standard deviation that a sample has to have.
        most: Root mean square that it may have.
        left_out: The samples that have more, in words.
        wrong: Mean and standard deviation per channel of the representative inputs.
        right: Those of the validation inputs.
    """

    kind: Literal["map", "turn", "drop"]
    name: str
    axis: int | None = None
    lines: Lines = ()
    least: float = 0.0
    most: float = math.inf
    left_out: str = "blank samples"
    wrong: Moments = ((), ())
    right: Moments = ((), ())

    @property
    def words(self) -> str:
        """What is done, as text."""
        if self.kind == "turn":
            return "representative inputs with their channels reversed"
        if self.kind == "drop":
            return f"representative inputs without {self.left_out}"
        mapped = ", ".join(dict.fromkeys(f"{slope:.4g}·x {offset:+.4g}" for slope, offset in self.lines))
        return f"representative inputs mapped to {mapped}"

    def find_kept(self, x: Array) -> NDArray[np.intp]:
        """Samples that stay, along the first axis."""
        if self.kind != "drop":
            return np.arange(len(x))
        rows = x.reshape(len(x), -1).astype(np.float64)
        if self.most < math.inf:
            return np.flatnonzero(np.sqrt((rows**2).mean(axis=1)) <= self.most)
        return np.flatnonzero(rows.std(axis=1) >= self.least)

    def change(self, x: Array) -> Array:
        """Samples that have the mistake, without it."""
        if self.kind == "drop":
            return x
        if self.kind == "turn":
            assert self.axis is not None
            x = np.ascontiguousarray(np.flip(x, self.axis))
        if not self.lines:
            return x
        slopes, offsets = (np.array(column, np.float32) for column in zip(*self.lines, strict=True))
        if len(self.lines) == 1 or self.axis is None:
            return np.asarray(x.astype(np.float32) * slopes[0] + offsets[0], x.dtype)
        moved = np.moveaxis(x.astype(np.float32), self.axis, -1) * slopes + offsets
        return np.ascontiguousarray(np.moveaxis(moved, -1, self.axis), x.dtype)

    def code(self) -> Code:
        """Python function ``repaired`` of a list of feeds, which hold arrays by the names of inputs."""
        name = quote(self.name)
        if self.kind == "drop":
            return Code(_DROP.format(name=name, words=self._drop_in_words(name), kept=self._kept_in_words()))
        words, change = self._change_in_words()
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

    def _change_in_words(self) -> tuple[str, str]:
        turned = self.kind == "turn"
        words = "its channels are reversed" if turned else "its values are mapped"
        x = f"np.flip(x, {self.axis})" if turned else "x"
        if not self.lines:
            return words, f"np.ascontiguousarray({x})"
        slopes, offsets = zip(*self.lines, strict=True)
        x = f"{x}.astype(np.float32)"
        if len(self.lines) == 1 or self.axis is None:
            change = f"({x} * np.float32({_number(slopes[0])}) + np.float32({_number(offsets[0])})).astype(x.dtype)"
            return words, change
        moved = f"np.moveaxis({x}, {self.axis}, -1) * np.float32({_numbers(slopes)}) + np.float32({_numbers(offsets)})"
        return words, f"np.ascontiguousarray(np.moveaxis({moved}, -1, {self.axis}), x.dtype)"


def input_repair(cause: str, sets: Mapping[Role | None, DatasetFacts]) -> InputRepair | None:
    """What undoes the mistake that is a cause; None where the facts of the two data sets do not show it.

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
    made = InputRepair("map", mine.input, wrong=(mine.mean, mine.std), right=(other.mean, other.std))
    match cause:
        case "preprocessing-mismatch":
            lines = _lines_to_validation(mine, other)
            return replace(made, axis=mine.channel_axis, lines=lines) if lines else None
        case "channel-order-mismatch" if mine.channel_axis is not None:
            # Pixels change places, not values: what each channel was scaled and shifted by stays where it is.
            return replace(made, kind="turn", axis=mine.channel_axis, lines=_lines_of_places(mine, other))
        case "blank-samples" if mine.kept_deviation_ratio is not None and mine.kept_deviation_ratio >= VARIED:
            least = BLANK * float(np.sqrt(np.mean(np.square(other.std))))
            return InputRepair("drop", mine.input, least=least)
    return None


def _lines_to_validation(mine: DatasetFacts, other: DatasetFacts) -> Lines:
    """The linear map from one set's values to the other's: per channel on lattices, else one for all channels."""
    relation, grids = mine.relation, (_grid_of(mine), _grid_of(other))
    if relation.method == "lattice" and grids[0] and grids[1]:
        return _lines_between(*grids)
    if relation.slope is None or relation.offset is None:
        return ()
    return ((1.0 / relation.slope, -relation.offset / relation.slope),)


def _lines_of_places(mine: DatasetFacts, other: DatasetFacts) -> Lines:
    """Maps of turned channels onto the grids of the places that they came to; none where all have one grid."""
    if not mine.lattice_step or not mine.lattice_low or not other.lattice_step or not other.lattice_low:
        return ()
    if not np.allclose(mine.lattice_step, other.lattice_step, rtol=SAME_GRID):
        return ()
    lows = np.minimum(mine.lattice_low, other.lattice_low).tolist()
    grid = tuple(zip(mine.lattice_step, lows, strict=True))
    lines = _lines_between(grid[::-1], grid)
    return () if np.allclose(lines, (1.0, 0.0), atol=SAME_GRID) else lines


def _grid_of(data: DatasetFacts) -> Lines:
    """Step and lowest value of each channel; none where they are not known."""
    if data.lattice_step is None or data.lattice_low is None:
        return ()
    return tuple(zip(data.lattice_step, data.lattice_low, strict=True))


def _lines_between(own: Lines, others: Lines) -> Lines:
    """What maps each channel's grid to another one."""
    columns = zip(own, others, strict=True)
    return tuple((step / mine, low - mine_low * step / mine) for (mine, mine_low), (step, low) in columns)


def _drop_strays(mine: DatasetFacts, name: str) -> InputRepair | None:
    """What is too large by far is left out; which samples these are does not depend on their order."""
    if not mine.stray_samples or mine.stray_limit is None:
        return None
    return InputRepair("drop", name, most=mine.stray_limit, left_out=words_of(mine.stray_samples))


def _number(value: float) -> str:
    """All digits of a 32-bit float."""
    return f"{value:.9g}"


def _numbers(values: tuple[float, ...]) -> str:
    return f"[{', '.join(map(_number, values))}]"
