"""Both LiteRT models with some of their tensors observed while interpreters run them."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.data.rows import OnDemand
from quantmedic.collectors.from_litert.litert_graph import LiteRTGraph
from quantmedic.collectors.from_litert.litert_session import Session, Sessions
from quantmedic.collectors.measure.models import Faithfulness, Reading, View
from quantmedic.collectors.measure.plan import feature_of
from quantmedic.collectors.pair.graph import Tap
from quantmedic.collectors.pair.match import Match
from quantmedic.collectors.pair.tensor_pairs import Pair

Array = NDArray[np.generic]


class LiteRTView(View):
    """Shows numbered pairs of tensors; see ``View``.

    Intermediate tensors are read from interpreters that keep all of them. The default delegate then hands every
    operator's result over, where it would otherwise fuse some: the outputs are held against those of interpreters as
    deployed, and where they differ, what is measured is called a simulation.
    """

    def __init__(
        self,
        sessions: Sessions,
        graphs: tuple[LiteRTGraph, LiteRTGraph],
        match: Match,
        pairs: Mapping[int, Pair],
        first: Batch,
        threads: int,
        plain: Sequence[Array] | None = None,
    ) -> None:
        """Observe the pairs; ``graphs`` are the float and the quantized file."""
        self._sessions, self._match, self.pairs = sessions, match, dict(pairs)
        self._float, self._quantized = graphs
        ends = [j for _, j in match.outputs]
        alone = plain if plain is not None else sessions.runner(self._quantized, ends, threads)(first)
        sessions.release()
        self._feature = feature_of(self._float)
        self._float_places = self._floats(pairs.values())
        self._floats_session = self._observing(self._float, first, self._float_places.values(), threads)
        places = {number: self._quantized.places[pair.tap.tensor] for number, pair in pairs.items()}
        self._session = self._observing(self._quantized, first, places.values(), threads)
        self.taps: dict[int, Tap] = {number: pair.tap for number, pair in pairs.items()}
        self.observed = Faithfulness.of_outputs(alone, self.read_tensors(first).outputs[1])

    def _floats(self, pairs: Iterable[Pair]) -> dict[str, int]:
        """Places of the float tensors that are read, by their names: the network's outputs, too."""
        graph = self._float
        names = [*(pair.twin for pair in pairs), *([self._feature] if self._feature else [])]
        return {name: graph.places[name] for name in names} | graph.ends

    def _observing(self, graph: LiteRTGraph, first: Batch, places: Iterable[int], threads: int) -> Session:
        """Interpreters that show these tensors: with the default delegate, or, where it keeps one to itself, without.

        Raises:
            ModelError: The model fails.
        """
        session = self._sessions.session(graph, threads, observed=True)
        wanted = set(places)
        if session.readable(graph.feed(first), sorted(wanted)) == wanted:
            return session
        return self._sessions.session(graph, threads, observed=True, delegated=False)

    def renumber(self, numbers: Sequence[int]) -> None:
        """Keep only these pairs and count them from 0."""
        super().renumber(numbers)
        self._float_places = self._floats(self.pairs.values())

    def read_tensors(self, batch: Batch) -> Reading:
        """Run both files.

        Raises:
            ModelError: One of them fails on this batch.
        """
        graph, quantized, matched = self._float, self._quantized, self._match.outputs
        ends, theirs = ([*each.ends.values()] for each in (graph, quantized))
        ends, theirs = [ends[i] for i, _ in matched], [theirs[j] for _, j in matched]
        named = self._float_places
        floats = self._floats_session.show(graph.feed(batch), [*named.values()])
        places = {number: quantized.places[tap.tensor] for number, tap in self.taps.items()}
        codes = self._session.show(quantized.feed(batch), [*places.values(), *theirs])
        return Reading(
            OnDemand(lambda name: floats[named[name]], named),
            OnDemand(lambda number: codes[places[number]], places),
            (
                [graph.decode(place, floats[place]) for place in ends],
                [quantized.decode(place, codes[place]) for place in theirs],
            ),
        )

    def read_floats(self, batch: Batch, names: Sequence[str]) -> list[Array]:
        """These tensors in one run of the float model alone."""
        places = [self._float_places[name] for name in names]
        found = self._floats_session.run(self._float.feed(batch), places)
        return [found[place] for place in places]
