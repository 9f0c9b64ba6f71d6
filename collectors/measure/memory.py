"""How much memory a run may take, and what follows: samples of a batch, batches side by side, tensors at a time.

What is counted is resident memory beyond what was resident when the models were open. Values are cheap to count, for
the first sample tells the shape of every tensor; what kernels and statistics take beside them was measured on
networks of many kinds and is counted generously (``WORK``, ``FIXED``, ``WEIGHTS``).
"""

import ctypes
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.datasets import Dataset
from quantmedic.collectors.data.rows import OnDemand
from quantmedic.collectors.measure.collect_pair import batch_size_for
from quantmedic.collectors.measure.host import free_memory, resident_memory
from quantmedic.collectors.measure.models import Models, Reading
from quantmedic.collectors.measure.options import Options
from quantmedic.collectors.pair.graph import Shape
from quantmedic.collectors.pair.tensor_pairs import Pair
from quantmedic.engine.case.facts import Role
from quantmedic.engine.errors import ModelError

Array = NDArray[np.generic]
#: Share of the free memory that a run takes at most where nothing else is asked.
DEFAULT_SHARE = 0.25
#: What is taken for free where the system does not tell.
UNKNOWN_FREE = 4 << 30
#: Copies of the largest tensor that kernels and statistics hold while they work on a batch.
WORK = 6
#: Bytes that sessions, compiled statistics and sums take whatever the network is.
FIXED = 128 << 20
#: Copies of all weights that the sessions of a simulation hold together.
WEIGHTS = 12
#: Bytes that these sessions take for each observed tensor: it has a simulated quantizer of several nodes in each.
PER_TENSOR = 5 << 18
#: Where there is room for so many times what is counted, and for what a simulation keeps at most, nothing is saved.
AMPLE, AMPLE_BYTES = 4, 1 << 30
#: Samples of the first batch where only that tells how many suit the cache.
FIRST_SAMPLES = 2
#: Groups of tensors at most, about: each has sessions of its own, which take time to open, and memory.
MAX_GROUPS = 8
#: Bytes.
MEGABYTE = 10**6
#: With a bound, a batch takes no more than this share of it.
BATCH_SHARE = 1 / 8
#: Shares of the memory that is left: for each of those who keep what they computed or read, and for a run.
KEPT_SHARE, RUN_SHARE = 1 / 8, 1 / 4
#: Where the bound is less than so many times what is counted, what is free goes back to the system at once.
TIGHT = 1.1
#: Else it does before a run with less than this share of the bound left.
RETURN_BELOW = 0.5
#: Blocks of at least so many bytes go back at once.
_BLOCK = 1 << 20
#: Parameters of ``mallopt``, a threshold that no block reaches, and mappings of single blocks at most, as by default.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX, _NEVER, _MAPPINGS = -1, -3, -4, -8, 2**31 - 1, 65536


@dataclass(frozen=True)
class Memory:
    """A bound.

    Attributes:
        size: Bytes that a run may take.
        base: Bytes that were resident before it; None where the system does not tell.
        asked: The user named it.
    """

    size: int
    base: int | None
    asked: bool

    @classmethod
    def begin(cls, asked: int | None) -> "Memory":
        """The bound that was asked for, else a share of what is free; counted from what is resident now."""
        if asked is not None:
            return cls(asked, resident_memory(), asked=True)
        free = free_memory()
        return cls(int(DEFAULT_SHARE * (UNKNOWN_FREE if free is None else free)), resident_memory(), asked=False)

    @property
    def left(self) -> int:
        """Bytes that a run may still take; all of them where the system does not tell what it took."""
        now = resident_memory()
        return self.size if now is None or self.base is None else self.size - max(now - self.base, 0)


class Need(NamedTuple):
    """Bytes that one sample takes.

    Attributes:
        tensors: Of all observed tensors of both models.
        largest: Of the largest pair of them.
    """

    tensors: int
    largest: int

    def of(self, samples: int, tensors: int | None = None) -> int:
        """Of a batch in one lane; with no more than so many bytes of ``tensors`` observed at a time."""
        held = samples * self.tensors if tensors is None else tensors
        return held + WORK * samples * self.largest


class _Short(NamedTuple):
    """The bound of the run that is going on, what a sample of it takes, and whether the bound is tight."""

    memory: Memory
    need: Need
    tight: bool


#: Where memory is short, why.
_short: list[_Short | None] = [None]


def save_memory(memory: Memory, need: Need, *, tight: bool) -> None:
    """Memory is short from now on.

    What is free is taken again first, and goes back to the system near the bound; where that is tight, at once, which
    takes the time once more.
    """
    _short[0] = _Short(memory, need, tight)
    if tight:
        _set_malloc({_M_MMAP_MAX: _MAPPINGS, _M_MMAP_THRESHOLD: _BLOCK, _M_TRIM_THRESHOLD: _BLOCK})
    else:
        # By default every large block is a mapping of its own, whose pages the system has to clear anew: half of the
        # time of a network of large tensors.
        _set_malloc({_M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: _NEVER, _M_ARENA_MAX: 1})


def is_short() -> bool:
    """Memory is short."""
    return _short[0] is not None


def return_free_blocks() -> None:
    """Before a run: what is free goes back to the system where little of the bound is left, and it did not at once."""
    if _short[0] is None or _short[0].tight or sys.platform != "linux":
        return
    memory = _short[0].memory
    if memory.left < RETURN_BELOW * memory.size:
        with suppress(OSError, AttributeError):  # another C library than glibc
            ctypes.CDLL(None).malloc_trim(0)


def kept_bytes(most: int) -> int:
    """Bytes that one of those may hold who keep what was computed or read; ``most`` where memory is not short."""
    if _short[0] is None:
        return most
    memory = _short[0].memory
    return min(most, max(int(KEPT_SHARE * memory.left), 0))


def samples_that_fit(most: int) -> int:
    """Samples that a model may be run on at a time while nothing is observed; ``most`` where memory is not short."""
    if _short[0] is None:
        return most
    memory, need, _ = _short[0]
    return max(min(most, int(RUN_SHARE * memory.left) // max(WORK * need.largest, 1)), 1)


def lacking_for(models: Models, *, tensors: int, weights: int) -> str | None:
    """How much more memory it takes to hold all observed tensors of a sample and all weights so many times.

    None where they fit, as they do where memory is not short.
    """
    if _short[0] is None:
        return None
    memory, need, _ = _short[0]
    lacking = tensors * need.tensors + weights * _weight_bytes(models) - memory.left
    return _megabytes(lacking) if lacking > 0 else None


def _set_malloc(parameters: Mapping[int, int]) -> None:
    """Tell the C library how to keep blocks that were freed."""
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # another C library than glibc
            mallopt = ctypes.CDLL(None).mallopt
            for name, value in parameters.items():
                mallopt(name, value)


def sizes_of(pairs: Mapping[int, Pair], shapes: Mapping[str, Shape], samples: int) -> dict[int, int] | None:
    """Bytes of both tensors of each pair by number, for a batch; None where a shape is not known."""
    found = {}
    for number, pair in pairs.items():
        shape = shapes.get(pair.twin)
        if shape is None or None in shape[1:]:
            return None
        sides, grid = [side if side is not None else samples for side in shape], pair.tap.quantizer
        code = 4 if pair.tap.decoded or grid is None else -(-grid.bits // 8)
        found[number] = math.prod(sides) * (np.dtype(np.float32).itemsize + code)
    return found


class Setting(NamedTuple):
    """What a bound allows.

    Attributes:
        lanes: Batches side by side.
        tensors: Bytes of tensors that are observed at a time; None for all.
        saved: Memory has to go back to the system at once.
        needed: Bytes that all of this takes at most.
    """

    lanes: int
    tensors: int | None
    saved: bool
    needed: int


def settle_memory(need: Need, left: int, reserve: int, batch: int, first: int, lanes: int) -> Setting:
    """What fits: fewer batches side by side first, and fewer tensors at a time where one batch does not fit.

    Args:
        need: What a sample takes.
        left: Bytes that may be taken.
        reserve: Bytes that are taken in any case.
        batch: Samples of a batch.
        first: Samples of the first batch, which is looked at by itself.
        lanes: Batches side by side at most.
    """
    samples = max(batch, first)
    whole = need.of(samples)
    if AMPLE * lanes * whole + 2 * reserve + AMPLE_BYTES <= left:
        return Setting(lanes, None, False, lanes * whole + reserve)
    fitting = (left - reserve) // max(whole, 1)
    if fitting >= 1:
        lanes = min(lanes, fitting)
        return Setting(lanes, None, True, lanes * whole + reserve)
    least = max(samples * need.largest, -(-samples * need.tensors // MAX_GROUPS))
    tensors = max(left - reserve - need.of(samples, 0), least)
    return Setting(1, tensors, True, need.of(samples, tensors) + reserve)


def in_groups(sizes: Mapping[int, int], limit: int | None) -> list[list[int]]:
    """Numbers of what is observed together: all, or in their order as many as take ``limit`` bytes, at least one."""
    if limit is None:
        return [list(sizes)]
    groups: list[list[int]] = [[]]
    held = 0
    for number, size in sizes.items():
        if held + size > limit and groups[-1]:
            groups.append([])
            held = 0
        groups[-1].append(number)
        held += size
    return groups


class GroupedReading:
    """Readings of groups of pairs, one of which is held at a time: the one that was asked for last."""

    def __init__(
        self, read: Callable[[int], Reading], groups: Sequence[Sequence[int]], pairs: Mapping[int, Pair]
    ) -> None:
        """Read the first group.

        Args:
            read: Reads a group by its place.
            groups: Numbers of the pairs of each.
            pairs: All of them.
        """
        self._read_group = read
        self._now, self._held = read(0), 0
        self._group = {number: group for group, numbers in enumerate(groups) for number in numbers}
        self._number = {pairs[number].twin: number for number in reversed(list(self._group))}

    def reading(self, codes: Sequence[int]) -> Reading:
        """All pairs, of which these show codes; not kept here, for a circle of references would outlive the batch."""
        floats = (*self._number, *self._now.floats)
        return Reading(OnDemand(self._float, floats), OnDemand(self._code, codes), self._now.outputs)

    def _float(self, name: str) -> Array:
        if name not in self._now.floats:
            self._hold(self._group[self._number[name]])
        return self._now.floats[name]

    def _code(self, number: int) -> Array:
        self._hold(self._group[number])
        return self._now.codes[number]

    def _hold(self, group: int) -> None:
        if group != self._held:
            self._now = Reading({}, {}, ([], []))  # the memory of one group is free before the next is read
            self._now, self._held = self._read_group(group), group


def heed_memory(models: Models, datasets: Mapping[Role, Dataset], options: Options, asked: int | None) -> Options:
    """Have a run that begins now keep to a bound.

    Args:
        models: Both models, which observe no more tensors at a time than fit from now on.
        datasets: What is read first, where only a sample tells the sizes of tensors.
        options: How the run was to collect.
        asked: Bytes that it may take; None for a share of what is free.

    Returns:
        The options with as many samples and batches side by side as fit. Only a bound that was asked for lowers the
        number of samples, for last bits depend on it, and none what the options name.

    Raises:
        ModelError: The bound was asked for, and even the smallest setting takes more.
    """
    memory = Memory.begin(asked)
    _short[0] = None
    if not models.keeps_bound:
        if memory.asked or models.observes_groups:
            models.limit_memory(memory.size // options.lanes)
        return options
    need = _need_of(models, datasets, options)
    if need is None:
        return options
    unit = next(iter(datasets.values())).unit
    usual = options.batch_size or batch_size_for(models)
    batch = max(_fitting_batch(usual, options, need, memory), unit)
    first = max(batch if usual is not None else FIRST_SAMPLES, unit)
    reserve = FIXED + WEIGHTS * _weight_bytes(models) + PER_TENSOR * len(models.pairs)
    # Of the whole, not of what is left: what the run on the first sample left resident is part of the reserve.
    setting = settle_memory(need, memory.size, reserve, batch, first, options.lanes)
    if setting.saved:
        save_memory(memory, need, tight=TIGHT * setting.needed > memory.size)
    # Where that reserve alone is more than a share that nobody asked for, groups would cost runs and keep no bound.
    helps = memory.asked or reserve < memory.size
    grouped = setting.tensors is not None and helps and models.observes_groups and not options.step_error
    needed = setting.needed if grouped or setting.tensors is None else need.of(first) + reserve
    if memory.asked and needed > memory.size:
        raise _too_small(models, needed, memory, options)
    if setting.tensors is not None and grouped:
        models.limit_memory(setting.tensors)
        models.float_graph.notices.append(
            f"the tensors of {first} samples do not fit into {_megabytes(memory.size)} together: they are observed in "
            "groups, and both models run once for each (--memory)"
        )
    lowered = batch if usual is not None and batch < usual else options.batch_size
    return replace(options, batch_size=lowered, most_lanes=setting.lanes)


def _need_of(models: Models, datasets: Mapping[Role, Dataset], options: Options) -> Need | None:
    """What a sample takes, by the shapes that the models state or that the first sample has; None if these are open."""
    pairs = dict(enumerate(models.pairs))
    sizes, samples = sizes_of(pairs, models.shapes, 1), 1
    if sizes is None:
        sample = next(next(iter(datasets.values())).batches(1, limit=options.samples))
        samples = sample.samples
        with models.as_deployed():
            sizes = sizes_of(pairs, models.shapes_on(sample, options.threads), samples)
    if not sizes:
        return None
    # What one more run shows is held beside.
    return Need((1 + options.step_error) * sum(sizes.values()) // samples, max(sizes.values()) // samples)


def _fitting_batch(usual: int | None, options: Options, need: Need, memory: Memory) -> int:
    """Samples of a batch; of a bound that was asked for they take no more than a share."""
    if not memory.asked or options.batch_size is not None:
        return usual or 1
    return min(usual or 1, max(int(BATCH_SHARE * memory.size / need.of(1)), 1))


def _weight_bytes(models: Models) -> int:
    """Bytes of the constants of the float model."""
    values = (constant.values for constant in models.float_graph.constants.values())
    return sum(array.nbytes for array in values if array is not None)


def _too_small(models: Models, needed: int, memory: Memory, options: Options) -> ModelError:
    return ModelError(
        "these models do not fit into the memory that was allowed",
        where=[
            str(models.quantized.path),
            f"--memory allows {_megabytes(memory.size)}; one batch at a time takes up to {_megabytes(needed)}",
        ],
        help=f"allow {_megabytes(needed)} or more with --memory"
        + (", or leave --step-error out" if options.step_error else ""),
    )


def _megabytes(size: int) -> str:
    """As ``--memory`` takes it, rounded up."""
    return f"{-(-size // MEGABYTE)} MB" if size >= MEGABYTE else f"{size} bytes"
