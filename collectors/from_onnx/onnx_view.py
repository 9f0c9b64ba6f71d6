"""Both models with some of their tensors exposed."""

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_onnx.onnx_graph import OnnxGraph, PairedOnnxGraphs
from quantmedic.collectors.from_onnx.onnx_session import ObservedModel, make_session, run
from quantmedic.collectors.measure.memory import GroupedReading
from quantmedic.collectors.measure.models import Faithfulness, Reading, View
from quantmedic.collectors.measure.plan import feature_of
from quantmedic.collectors.pair.feed import feed_of
from quantmedic.collectors.pair.graph import Tap
from quantmedic.collectors.pair.tensor_pairs import Pair

Array = NDArray[np.generic]


class FloatTensors:
    """The float model with some of its tensors exposed.

    Attributes:
        session: Runs it.
    """

    def __init__(self, graph: OnnxGraph, names: Sequence[str], threads: int, others: Sequence[str] = ()) -> None:
        """Open the session; ``others`` are not fused away either (``size_readers``)."""
        self._graph = graph
        self.session = make_session(graph.model, graph.path, threads, exposed=names, read=others)
        self._wanted = [*dict.fromkeys(n for n in (*names, *graph.outputs) if n not in graph.inputs)]

    def read_tensors(self, batch: Batch) -> dict[str, Array]:
        """These tensors, inputs and outputs by name.

        Raises:
            ModelError: The model fails on this batch.
        """
        feed = feed_of(batch, self._graph)
        found = run(self.session, self._wanted, feed, self._graph.path)
        return {**feed, **dict(zip(self._wanted, found, strict=True))}


class _Group:
    """Sessions of both models that show some of the pairs of a view; see `OnnxView`."""

    def __init__(
        self,
        models: PairedOnnxGraphs,
        pairs: Mapping[int, Pair],
        first: Batch,
        threads: int,
        plain: Sequence[Array] | None = None,
        others: Iterable[Pair] = (),
    ) -> None:
        """Open the sessions; ``others`` are all pairs where these are not all of them."""
        self._models = models
        taps, beside = [pair.tap for pair in pairs.values()], list(others)
        feed = feed_of(first, models.quantized)
        seen = ObservedModel(models.quantized, taps, feed, threads, plain, [pair.tap for pair in beside])
        self.observed = seen.observed
        self.model, self._session = seen.model, seen.session
        numbers = list(pairs)
        self.taps: dict[int, Tap] = {numbers[k]: seen.read[k] for k in seen.taps}
        feature, graph = feature_of(models.float_graph), models.float_graph
        twins = [pair.twin for pair in pairs.values()] + ([feature] if feature else [])
        self.floats = FloatTensors(graph, twins, threads, [pair.twin for pair in beside])

    def read_tensors(self, batch: Batch) -> Reading:
        """Run both models."""
        float_graph, quantized = self._models.float_graph, self._models.quantized
        floats = self.floats.read_tensors(batch)
        feed = feed_of(batch, quantized)
        names = [tap.tensor for tap in self.taps.values()]
        wanted = [*dict.fromkeys(name for name in (*names, *quantized.outputs) if name not in feed)]
        seen = feed | dict(zip(wanted, run(self._session, wanted, feed, quantized.path), strict=True))
        codes = {number: seen[tap.tensor] for number, tap in self.taps.items()}
        matched = self._models.match.outputs
        outputs = (
            [floats[float_graph.outputs[i]] for i, _ in matched],
            [seen[quantized.outputs[j]] for _, j in matched],
        )
        return Reading(floats, codes, outputs)


class OnnxView(View):
    """Sessions of both models that show numbered pairs of tensors; see ``View``.

    Where memory is short, each pair of sessions shows a group of them, and both models run once for each group.

    Attributes:
        model: The quantized model that is observed, before anything was exposed.
    """

    def __init__(
        self,
        models: PairedOnnxGraphs,
        pairs: Mapping[int, Pair],
        first: Batch,
        threads: int,
        plain: Sequence[Array] | None = None,
        groups: Sequence[Sequence[int]] = (),
    ) -> None:
        """Open the sessions; ``groups`` hold the numbers of the pairs that are shown together, else all are."""
        self._models, self.pairs = models, dict(pairs)
        self._numbers = [list(numbers) for numbers in groups] if len(groups) > 1 else [list(pairs)]
        others = pairs.values() if len(groups) > 1 else ()
        self._groups: list[_Group] = []
        for numbers in self._numbers:
            own = {number: pairs[number] for number in numbers}
            self._groups.append(_Group(models, own, first, threads, plain, others))
            plain = self._groups[0].observed.plain
        self.observed = reduce(Faithfulness.join, (group.observed for group in self._groups))
        self.model = self._groups[0].model
        self._floats = self._groups[0].floats
        self.taps = {number: tap for group in self._groups for number, tap in group.taps.items()}

    def renumber(self, numbers: Sequence[int]) -> None:
        """Keep only these pairs and count them from 0."""
        super().renumber(numbers)
        new = {old: number for number, old in enumerate(numbers)}
        self._numbers = [[new[old] for old in own if old in new] for own in self._numbers]
        for group in self._groups:
            group.taps = {new[old]: tap for old, tap in group.taps.items() if old in new}

    def read_tensors(self, batch: Batch) -> Reading:
        """Run both models; a group of tensors at a time when these are asked for, where memory is short.

        Raises:
            ModelError: One of them fails on this batch.
        """
        grouped = GroupedReading(lambda k: self._groups[k].read_tensors(batch), self._numbers, self.pairs)
        return grouped.reading(list(self.taps))

    def read_floats(self, batch: Batch, names: Sequence[str]) -> list[Array]:
        """These tensors in one run of the float model alone."""
        graph = self._models.float_graph
        # A session that is asked for nothing gives everything.
        return run(self._floats.session, names, feed_of(batch, graph), graph.path) if names else []
