"""Both OpenVINO models with some of their tensors exposed."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_openvino.exposing import Exposed, find_exposable
from quantmedic.collectors.from_openvino.openvino_graph import OpenVINOGraph
from quantmedic.collectors.from_openvino.openvino_session import Sessions
from quantmedic.collectors.from_openvino.openvino_site import Place
from quantmedic.collectors.measure.models import Faithfulness, Reading, View
from quantmedic.collectors.measure.plan import feature_of
from quantmedic.collectors.pair.graph import Tap
from quantmedic.collectors.pair.match import Match
from quantmedic.collectors.pair.tensor_pairs import Pair

Array = NDArray[np.generic]


class OpenVINOView(View):
    """Shows numbered pairs of tensors; see ``View``.

    Outputs always come from the models as they are; copies of them show the tensors (``exposing.py``).
    """

    def __init__(
        self,
        sessions: Sessions,
        graphs: tuple[OpenVINOGraph, OpenVINOGraph],
        match: Match,
        pairs: Mapping[int, Pair],
        first: Batch,
        threads: int,
    ) -> None:
        """Compile what shows the pairs; ``graphs`` are the float and the quantized model."""
        self._sessions, self._threads, self._match = sessions, threads, match
        self._float, self._quantized = graphs
        self.pairs = dict(pairs)
        self._feature = feature_of(self._float)
        wanted = {number: pair for number, pair in pairs.items() if pair.tap.tensor not in self._quantized.inputs}
        self._exposed = self._find(wanted, first)
        shown = {place for places in self._exposed.copies for place in places}
        self.taps: dict[int, Tap] = {
            number: pair.tap
            for number, pair in pairs.items()
            if number not in wanted or self._quantized.places[pair.tap.tensor] in shown
        }
        plain = self._match_outputs(self._run(self._quantized, first), 1)
        self.observed = Faithfulness.of_outputs(plain, self._match_outputs(self._exposed.outputs, 1))

    def _find(self, pairs: Mapping[int, Pair], first: Batch) -> Exposed:
        graph = self._quantized
        codes = {graph.places[p.tap.tensor] for p in pairs.values() if p.tap.quantizer is not None}
        others = {graph.places[p.tap.tensor] for p in pairs.values()} - codes
        found = find_exposable(self._sessions, graph, codes, others, graph.feed(first), self._threads)
        self._sessions.forget(graph.file, found.copies)
        return found

    @property
    def faithful(self) -> list[int]:
        """Numbers of the taps that show what is deployed: inputs, and what the copy shows that computes the same."""
        if not self.observed.simulated:
            return list(self.taps)
        places, same = self._quantized.places, set(self._exposed.same)
        return [n for n, tap in self.taps.items() if tap.tensor in self._quantized.inputs or places[tap.tensor] in same]

    def read_tensors(self, batch: Batch) -> Reading:
        """Run both models.

        Raises:
            ModelError: One of them fails on this batch.
        """
        graph = self._quantized
        fed = graph.feed(batch)
        shown: dict[Place, Array] = {}
        for places in self._exposed.copies:
            shown |= self._sessions.session(graph, self._threads, places).run(fed)[1]
        inputs = dict(zip(graph.inputs, fed, strict=True))
        codes = {number: self._codes(tap, shown, inputs) for number, tap in self.taps.items()}
        floats = self._floats(batch)
        own = [floats[name] for name in self._float.outputs]
        return Reading(floats, codes, (self._match_outputs(own, 0), self._match_outputs(self._run(graph, batch), 1)))

    def _codes(self, tap: Tap, shown: Mapping[Place, Array], inputs: Mapping[str, Array]) -> Array:
        """What a tap shows: codes, which the plugin has as the values that they stand for."""
        graph = self._quantized
        if tap.tensor in inputs:
            return inputs[tap.tensor]
        values = shown[graph.places[tap.tensor]]
        decoder = graph.decoders.get(tap.tensor)
        if decoder is None:
            return values
        kind = np.dtype(f"{'' if decoder.signed else 'u'}int{max(decoder.bits, 8)}")
        return decoder.encode(np.asarray(values, np.float32)).astype(kind)

    def _floats(self, batch: Batch) -> dict[str, Array]:
        """Tensors of the float model by name, its inputs and outputs too."""
        graph = self._float
        names = {pair.twin for pair in self.pairs.values()}
        wanted = sorted({*names, *([self._feature] if self._feature else []), *graph.outputs} - {*graph.inputs})
        at = {name: graph.places[graph.shown_by(name)] for name in wanted}
        places = sorted({*at.values()})
        fed = graph.feed(batch)
        shown = self._sessions.session(graph, self._threads, places).run(fed)[1]
        found = {name: graph.values_of(name, shown[place]) for name, place in at.items()}
        found |= dict(zip(graph.inputs, fed, strict=True))
        # The copy that shows the tensors may round the outputs a little otherwise.
        return found | dict(zip(graph.outputs, self._run(graph, batch), strict=True))

    def _run(self, graph: OpenVINOGraph, batch: Batch) -> list[Array]:
        """Outputs of a model as it is."""
        return self._sessions.session(graph, self._threads).run(graph.feed(batch))[0]

    def _match_outputs(self, outputs: Sequence[Array], side: int) -> list[Array]:
        return [np.asarray(outputs[pair[side]], np.float32) for pair in self._match.outputs]

    def read_floats(self, batch: Batch, names: Sequence[str]) -> list[Array]:
        """These tensors in one run of the float model alone."""
        found = self._floats(batch)
        return [found[name] for name in names]
