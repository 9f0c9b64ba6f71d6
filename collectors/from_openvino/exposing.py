"""Which tensors of a quantized model can be exposed without changing what the CPU plugin computes.

The plugin lowers FakeQuantize to integer kernels and fuses what follows them. A tensor that is exposed has one more
reader, which keeps it from being fused, or even from being computed in integers. Measured on five published networks
(OpenVINO 2025.4, AVX2): with every tensor exposed the outputs of four of them change, those of two by all of their
range. With what their FakeQuantize write, three stay the same to the bit; in the other two the operands of residual
additions must be left out, which are otherwise fused into a convolution, and change the outputs by up to 5 %.

So outputs always come from the model as it is. A copy shows the tensors that leave its outputs as they are, to the bit;
what FakeQuantize writes besides is shown by a second copy, and how far its outputs depart is said.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.from_openvino.graph import OpenVINOGraph
from quantmedic.collectors.from_openvino.session import Sessions
from quantmedic.collectors.from_openvino.translation import Place

Array = NDArray[np.generic]
#: Models that are compiled at most to find out which codes, and then which other tensors, can be exposed.
SEARCH_LIMIT = 30


@dataclass(frozen=True)
class Exposed:
    """How tensors are shown.

    Attributes:
        same: Those that a copy shows whose outputs are the same to the bit.
        aside: Those that a second copy shows, whose outputs are not.
        outputs: Outputs of the second copy on the first batch; those of the model where there is none.
    """

    same: list[Place]
    aside: list[Place]
    outputs: Sequence[Array]

    @property
    def copies(self) -> list[list[Place]]:
        """What each copy shows."""
        return [places for places in (self.same, self.aside) if places]


def are_same(a: Sequence[Array], b: Sequence[Array]) -> bool:
    """Equal to the bit."""
    return all(np.array_equal(x, y, equal_nan=x.dtype.kind == "f") for x, y in zip(a, b, strict=True))


def find_exposable(
    sessions: Sessions,
    graph: OpenVINOGraph,
    codes: Collection[Place],
    others: Collection[Place],
    feed: Sequence[Array],
    threads: int,
) -> Exposed:
    """How to show tensors of a model.

    Args:
        sessions: Compile the model.
        graph: The quantized model.
        codes: What its FakeQuantize write.
        others: Other tensors; of them those are shown that end a kernel and change nothing.
        feed: The first batch.
        threads: Threads of a run.

    Raises:
        ModelError: The model cannot be run.
    """

    def run(places: Sequence[Place]) -> Sequence[Array]:
        return sessions.session(graph.file, threads, sorted(places)).run(feed)[0]

    plain = run([])
    search = _Search(run, plain)
    search.add(codes)
    ends = kernel_ends(sessions, graph, threads)
    search.add([place for place in others if place in ends])
    kept = sorted(search.kept)
    aside = sorted(place for place in codes if place not in search.kept)
    return Exposed(kept, aside, run(aside) if aside else plain)


def kernel_ends(sessions: Sessions, graph: OpenVINOGraph, threads: int) -> set[Place]:
    """Tensors that a kernel of the compiled model writes, by the names of its operators."""
    names = {names[-1] for names, _ in sessions.session(graph.file, threads).executed() if names}
    operators = graph.file.model.get_ordered_ops()
    return {
        Place(number, k)
        for number, op in enumerate(operators)
        if op.get_friendly_name() in names
        for k in range(op.get_output_size())
    }


class _Search:
    """Adds tensors to those that are kept as long as the outputs stay the same."""

    def __init__(self, run: Callable[[Sequence[Place]], Sequence[Array]], plain: Sequence[Array]) -> None:
        self._run, self._plain = run, plain
        self.kept: set[Place] = set()

    def add(self, places: Collection[Place]) -> None:
        """Keep of these what changes nothing beside what is kept."""
        waiting, tries = [sorted(places)], 0
        while waiting and tries < SEARCH_LIMIT:
            group = waiting.pop(0)
            if not group:
                continue
            tries += 1
            if are_same(self._plain, self._run([*self.kept, *group])):
                self.kept.update(group)
            elif len(group) > 1:
                half = len(group) // 2
                waiting += [group[:half], group[half:]]
