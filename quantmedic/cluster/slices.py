"""Slices of data sets measured by workers, and added up as a tree on the workers."""

from collections.abc import Mapping
from contextlib import suppress
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from quantmedic.api.options import CollectOptions, ModelSource
from quantmedic.cluster.connection import connect, shared_folder
from quantmedic.cluster.units import Job, answer_of, describe_job, load_stored, submit
from quantmedic.collectors.data.progress import Progress
from quantmedic.collectors.measure.slices import Slicing, require_counted
from quantmedic.engine.case.facts import Role
from quantmedic.engine.case.records import Case
from quantmedic.engine.case.slice_sums import add_slices
from quantmedic.engine.errors import QuantmedicError

if TYPE_CHECKING:
    from distributed import Client, Future

#: Sums that are added up in one unit: a power of two, so that each is a node of the tree of slices.
RADIX = 8


def measure_on_cluster(
    float_model: ModelSource,
    quantized_model: ModelSource,
    options: CollectOptions,
    progress: Progress,
    slicings: Mapping[Role, Slicing],
    known: Case | None,
) -> Case | None:
    """The case of all slices, measured by workers; after Ctrl-C that of the first ones of each set.

    Args:
        float_model: Path, or ``module:function``; see ``collect``.
        quantized_model: The same.
        options: All options; ``options.cluster`` tells whose workers.
        progress: See ``SliceWork``.
        slicings: How each data set is divided.
        known: What was measured before.

    Raises:
        DataError: The cluster cannot be reached, or models or data are objects in memory.
        QuantmedicError: What a worker could not do.
    """
    if known is not None and all(role in known.statistics and not known.sums.get(role) for role in slicings):
        return known
    job = describe_job(float_model, quantized_model, options)
    beside = options.checkpoint
    with connect(options.cluster) as client:
        work = SliceWork(client, job, slicings, known, progress)
        return work.measure(None if beside is None else Path(beside))


class SliceWork:
    """All slices of one measurement on their way."""

    def __init__(
        self,
        client: "Client",
        job: Job,
        slicings: Mapping[Role, Slicing],
        known: Case | None,
        progress: Progress,
    ) -> None:
        """Nothing is asked for yet.

        Args:
            client: Whose workers measure.
            job: Models, data and options.
            slicings: How each data set is divided.
            known: What an interrupted run measured: its whole slices are not measured again.
            progress: Called with ``… slices``, how many are measured, and their number.

        Raises:
            DataError: Nobody knows how many samples a set has.
        """
        self._client, self._job, self._progress = client, job, progress
        self._known = None if known is None else _only_whole(known)
        self._first = {role: _first_unknown(role, self._known) for role in slicings}
        counted = require_counted({role: own for role, own in slicings.items() if self._first[role] is not None})
        self._counts = {role: slicing.count for role, slicing in counted.items()}
        #: Sums that nobody has added up yet, and those that are being made of others, by level and number within it.
        self._nodes: dict[Node, Future] = {}
        self._merging: dict[Node, Future] = {}

    def measure(self, beside: Path | None) -> Case | None:
        """The case of all slices; after Ctrl-C that of the first ones of each set, as far as they are whole.

        Args:
            beside: File beside which results may be kept, if all workers see it.

        Raises:
            QuantmedicError: What a worker could not do.
        """
        with shared_folder(self._client, beside) as folder:
            try:
                self._submit_slices(folder)
                self._wait(folder)
            except KeyboardInterrupt:
                pass
            try:
                return self._gather_first()
            finally:
                self._client.cancel([*self._nodes.values(), *self._merging.values()])

    def _submit_slices(self, folder: Path | None) -> None:
        for role, count in self._counts.items():
            for number in range(self._first[role] or 0, count):
                node = Node(role, 0, number)
                target = _target(folder, node)
                self._nodes[node] = submit(self._client, "measure_slice", self._job, role, number, target)

    def _wait(self, folder: Path | None) -> None:
        """Wait for all; whatever becomes complete is added up, level by level."""
        from distributed import as_completed  # an optional package

        places = {future.key: node for node, future in self._nodes.items()}
        done = {role: self._first[role] or 0 for role in self._counts}
        waiting = as_completed(list(self._nodes.values()))
        finished: set[Node] = set()
        for future in waiting:
            node = places[future.key]
            self._require(future, folder)
            finished.add(node)
            if node.level:
                self._nodes[node] = self._merging.pop(node)
                for member in self._members(node):
                    del self._nodes[member]
            else:
                done[node.role] += 1
                self._progress(f"{node.role} slices", done[node.role], self._counts[node.role])
            above = Node(node.role, node.level + 1, node.number // RADIX)
            members = self._members(above)
            if len(members) > 1 and finished.issuperset(members):
                parts = [self._nodes[member] for member in members]
                merged = submit(self._client, "merge_cases", parts, _target(folder, above), priority=above.level)
                self._merging[above] = merged
                places[merged.key] = above
                waiting.add(merged)

    def _require(self, future: "Future", folder: Path | None) -> None:
        """Raise what a unit could not do; keep a second copy of a result that lies with one worker alone.

        Raises:
            QuantmedicError: The worker's error.
        """
        answer_of(future)
        if folder is None and len(self._client.scheduler_info()["workers"]) > 1:
            # A worker may go in between: then there is one copy, and losing that costs the unit again.
            with suppress(ValueError, KeyError, OSError):
                self._client.replicate([future], n=2)

    def _members(self, node: "Node") -> "list[Node]":
        """The sums that a sum is made of, without those that were known before."""
        below, start = node.level - 1, node.number * RADIX
        first, count = (self._first[node.role] or 0) // RADIX**below, -(-self._counts[node.role] // RADIX**below)
        return [Node(node.role, below, number) for number in range(max(start, first), min(start + RADIX, count))]

    def _gather_first(self) -> Case | None:
        """What the first slices of each set gave, up to the first that is not there."""
        found = [] if self._known is None else [self._known]
        for role in self._counts:
            own = sorted((node for node in self._nodes if node.role == role), key=lambda node: node.first)
            for node in own:
                future = self._nodes[node]
                if future.status != "finished" or isinstance(answer := future.result(), QuantmedicError):
                    break
                found.append(load_stored(answer))
        return reduce(Case.merge, found) if found else None


class Node(NamedTuple):
    """The sum of some slices of one data set: the ``number``-th of its level."""

    role: Role
    level: int
    number: int

    @property
    def first(self) -> int:
        """Its first slice."""
        return self.number * int(RADIX**self.level)


def _target(folder: Path | None, node: Node) -> str | None:
    return None if folder is None else str(folder / f"{node.role}-{node.level}-{node.number}.case")


def _first_unknown(role: Role, known: Case | None) -> int | None:
    """The first slice of a set that was not measured; None where all of it was."""
    if known is None or role not in known.statistics:
        return 0
    return None if known.record.datasets[role].complete else known.sums[role][-1].stop


def _only_whole(case: Case) -> Case | None:
    """The case without slices that were not read to their end; None where nothing is left."""
    datasets, statistics, sums = {}, {}, {}
    for role, found in case.record.datasets.items():
        whole = [one for one in case.sums.get(role, ()) if one.slices]
        if found.complete:
            datasets[role], statistics[role] = found, case.statistics[role]
        elif whole:
            statistics[role], sums[role] = add_slices(whole), whole
            seen = len(statistics[role].samples)
            parts = found.parts if len(found.parts) == 1 else found.parts[: whole[-1].stop]
            parts = (seen,) if len(parts) == 1 and len(found.parts) == 1 else parts
            filled = (*parts, *[0] * (len(found.parts) - len(parts)))
            spans = tuple((one.first, one.slices) for one in whole)
            datasets[role] = found.model_copy(update={"seen": seen, "parts": filled, "spans": spans})
    if not statistics:
        return None
    return Case(case.record.model_copy(update={"datasets": datasets}), statistics, case.weights, sums)
