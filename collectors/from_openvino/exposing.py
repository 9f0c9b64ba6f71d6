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
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.from_openvino.openvino_graph import Exposed, OpenVINOGraph
from quantmedic.collectors.from_openvino.openvino_session import Sessions
from quantmedic.collectors.from_openvino.openvino_site import Place
from quantmedic.collectors.measure.outputs import output_difference, same_outputs

Array = NDArray[np.generic]
#: Models that are compiled at most to find out which codes, and then which other tensors, can be exposed.
SEARCH_LIMIT = 16
#: Operators that are fused into the kernel before them: their operands rarely can be exposed.
_FUSED = frozenset({"Add", "Multiply", "Subtract"})


def find_exposable(
    sessions: Sessions,
    graph: OpenVINOGraph,
    codes: Collection[Place],
    others: Collection[Place],
    feed: Sequence[Array],
    threads: int,
) -> Exposed:
    """How to show tensors of a model; of what was found on one batch, another only tells how far outputs depart.

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
        return sessions.session(graph, threads, sorted(places)).run(feed)[0]

    plain = run([])
    known = graph.exposed.get((frozenset(codes), frozenset(others)))
    if known is not None:
        return replace(known, outputs=_most_departed(plain, [run(places) for places in known.copies]))
    search = _Search(run, plain)
    fused = _operands_of_fused(graph, codes)
    search.add([place for place in sorted(codes) if place not in fused] + sorted(fused), len(codes) - len(fused))
    ends = kernel_ends(sessions, graph, threads)
    search.add(sorted(place for place in others if place in ends))
    kept = sorted(search.kept)
    aside = sorted(place for place in codes if place not in search.kept)
    found = Exposed(kept, aside, run(aside) if aside else plain)
    graph.exposed[frozenset(codes), frozenset(others)] = replace(found, outputs=())
    return found


def _most_departed(plain: Sequence[Array], others: Sequence[Sequence[Array]]) -> Sequence[Array]:
    return max(others, key=lambda outputs: output_difference(plain, outputs), default=plain)


def kernel_ends(sessions: Sessions, graph: OpenVINOGraph, threads: int) -> set[Place]:
    """Tensors that a kernel of the compiled model writes, by the names of its operators."""
    names = {names[-1] for names, _ in sessions.session(graph, threads).list_kernels() if names}
    operators = graph.file.model.get_ordered_ops()
    return {
        Place(number, k)
        for number, op in enumerate(operators)
        if op.get_friendly_name() in names
        for k in range(op.get_output_size())
    }


def _operands_of_fused(graph: OpenVINOGraph, places: Collection[Place]) -> set[Place]:
    """Those of the tensors that an operator reads which is fused into the kernel before it."""
    operators = graph.file.model.get_ordered_ops()
    return {
        place
        for place in places
        if any(
            reader.get_node().get_type_name() in _FUSED
            for reader in operators[place.operator].output(place.output).get_target_inputs()
        )
    }


class _Search:
    """Adds tensors to those that are kept as long as the outputs stay the same."""

    def __init__(self, run: Callable[[Sequence[Place]], Sequence[Array]], plain: Sequence[Array]) -> None:
        self._run, self._plain = run, plain
        self.kept: set[Place] = set()

    def add(self, places: Sequence[Place], first: int = 0) -> None:
        """Keep of these what changes nothing beside what is kept; after all, the ``first`` are tried by themselves."""
        waiting, tries = [list(places)], 0
        while waiting and tries < SEARCH_LIMIT:
            group = waiting.pop(0)
            if not group:
                continue
            tries += 1
            if same_outputs(self._plain, self._run([*self.kept, *group])):
                self.kept.update(group)
            elif len(group) > 1:
                middle = first if tries == 1 and 0 < first < len(group) else len(group) // 2
                waiting += [group[:middle], group[middle:]]
