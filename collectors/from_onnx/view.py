"""Both models with some of their tensors exposed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_onnx.models import Models, Pair
from quantmedic.collectors.from_onnx.session import (
    ObservedModel,
    isolate_operators,
    make_session,
    output_difference,
    run,
)
from quantmedic.collectors.measure.plan import feature_of, feed_of, is_coded
from quantmedic.collectors.pair.graph import Tap

Array = NDArray[np.generic]
#: Outputs that differ by more than this share of their largest value are not those of the model by itself: kernels
#: that a framework chooses when nobody looks round a little differently.
SAME_OUTPUT = 1e-4


@dataclass(frozen=True)
class Reading:
    """What one batch shows: float tensors by name, codes by number of the pair, and both models' matched outputs."""

    floats: Mapping[str, Array]
    codes: Mapping[int, Array]
    outputs: tuple[list[Array], list[Array]]


@dataclass(frozen=True)
class Observed:
    """How faithfully a quantized model of another framework is observed; see ``ObservedModel``."""

    plain: Sequence[Array]
    simulated: bool
    difference: float

    @classmethod
    def beside(cls, plain: Sequence[Array], seen: Sequence[Array]) -> "Observed":
        """By the outputs of one batch: of the model as deployed, and of the one that is observed."""
        difference = output_difference(plain, seen)
        simulated = difference > SAME_OUTPUT
        return cls(plain, simulated, difference if simulated else 0.0)


class View:
    """Sessions of both models that show numbered pairs of tensors.

    Attributes:
        pairs: The pairs, by number.
        taps: How the quantized model shows each; those it cannot show without computing something else are missing.
        observed: The quantized model.
    """

    def __init__(
        self,
        models: Models,
        pairs: Mapping[int, Pair],
        first: Batch,
        threads: int,
        plain: Sequence[Array] | None = None,
    ) -> None:
        self._models = models
        self.pairs = dict(pairs)
        taps = [pair.tap for pair in pairs.values()]
        self.observed = ObservedModel(models.quantized, taps, feed_of(first, models.quantized), threads, plain)
        numbers = list(pairs)
        self.taps: dict[int, Tap] = {numbers[k]: self.observed.read[k] for k in self.observed.taps}
        self._feature = feature_of(models.float_graph)
        graph = models.float_graph
        twins = [pair.twin for pair in pairs.values()] + ([self._feature] if self._feature else [])
        self._floats = make_session(graph.model, graph.path, threads, exposed=twins)
        self._wanted = [*dict.fromkeys(n for n in (*twins, *graph.outputs) if n not in graph.inputs)]

    def renumber(self, numbers: Iterable[int]) -> None:
        """Keep only these pairs and count them from 0."""
        kept = list(numbers)
        self.pairs = {new: self.pairs[old] for new, old in enumerate(kept)}
        self.taps = {new: self.taps[old] for new, old in enumerate(kept) if old in self.taps}

    def read(self, batch: Batch) -> Reading:
        """Run both models.

        Raises:
            ModelError: One of them fails on this batch.
        """
        float_graph, quantized = self._models.float_graph, self._models.quantized
        feed = feed_of(batch, float_graph)
        floats = feed | dict(zip(self._wanted, run(self._floats, self._wanted, feed, float_graph.path), strict=True))
        feed = feed_of(batch, quantized)
        names = [tap.tensor for tap in self.taps.values()]
        wanted = [*dict.fromkeys(name for name in (*names, *quantized.outputs) if name not in feed)]
        seen = feed | dict(zip(wanted, run(self.observed.session, wanted, feed, quantized.path), strict=True))
        codes = {number: seen[tap.tensor] for number, tap in self.taps.items()}
        matched = self._models.match.outputs
        outputs = (
            [floats[float_graph.outputs[i]] for i, _ in matched],
            [seen[quantized.outputs[j]] for _, j in matched],
        )
        return Reading(floats, codes, outputs)

    def floats_again(self, batch: Batch) -> list[Array]:
        """Outputs of the float model in one more run."""
        graph = self._models.float_graph
        wanted = [name for name in graph.outputs if name not in graph.inputs]
        return run(self._floats, wanted, feed_of(batch, graph), graph.path)

    def flipped_features(self, batch: Batch, name: str, axis: int) -> Array:
        """The feature tensor of the float model where the channels of one input are reversed."""
        assert self._feature is not None
        graph = self._models.float_graph
        flipped = {**batch.inputs, name: np.ascontiguousarray(np.flip(batch.inputs[name], axis))}
        feed = feed_of(replace(batch, inputs=flipped), graph)
        (features,) = run(self._floats, [self._feature], feed, graph.path)
        return features


class IsolatedOperators:
    """The quantized model cut at the taps of a view: every operator between them is fed with float tensors."""

    def __init__(self, models: Models, view: View, measured: Iterable[int], threads: int) -> None:
        self._graph = models.quantized
        self._fed = [number for number, tap in view.taps.items() if is_coded(tap)]
        self._pairs = view.pairs
        readable = {number for number in self._fed if view.pairs[number].root not in self._graph.inputs}
        self.taps = {number: view.taps[number] for number in measured if number in readable}
        model, self._inputs = isolate_operators(view.observed.model, [view.taps[number] for number in self._fed])
        self._session = make_session(model, self._graph.path, threads)
        self._used = {value.name for value in self._session.get_inputs()}

    def read(self, batch: Batch, floats: Mapping[str, Array]) -> dict[int, Array]:
        """Codes of every measured operator by number of its output."""
        feed = {name: array for name, array in feed_of(batch, self._graph).items() if name in self._used}
        for name, number in zip(self._inputs, self._fed, strict=True):
            if name in self._used:
                feed[name] = floats[self._pairs[number].twin]
        names = [tap.tensor for tap in self.taps.values()]
        return dict(zip(self.taps, run(self._session, names, feed, self._graph.path), strict=True))
