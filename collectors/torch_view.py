"""Both torch modules with some of their tensors observed while they run."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.batches import Batch
from quantmedic.collectors.onnx_graph import Tap
from quantmedic.collectors.onnx_pair import Pair
from quantmedic.collectors.onnx_plan import feature_of
from quantmedic.collectors.onnx_session import output_difference
from quantmedic.collectors.onnx_view import Reading
from quantmedic.collectors.torch_models import SAME_OUTPUT, Capture, TorchModels
from quantmedic.collectors.torch_module import to_array
from quantmedic.collectors.torch_trace import TorchGraph

Array = NDArray[np.generic]


@dataclass(frozen=True)
class Observed:
    """How faithfully the quantized module is observed; see ``ObservedModel``."""

    plain: Sequence[Array]
    simulated: bool
    difference: float


class TorchView:
    """Shows numbered pairs of tensors; see ``View``. Every tensor of a module can be seen."""

    def __init__(
        self,
        models: TorchModels,
        pairs: Mapping[int, Pair],
        first: Batch,
        threads: int,
        plain: Sequence[Array] | None = None,
    ) -> None:
        self._models, self.pairs = models, dict(pairs)
        self.taps: dict[int, Tap] = {number: self._readable(pair) for number, pair in self.pairs.items()}
        self._feature = feature_of(models.float_graph)
        alone = plain if plain is not None else models.quantized_runner(threads)(first)
        difference = output_difference(alone, self.read(first).outputs[1])
        self.observed = Observed(alone, difference > SAME_OUTPUT, difference if difference > SAME_OUTPUT else 0.0)

    @staticmethod
    def _readable(pair: Pair) -> Tap:
        """A tensor on a grid that its kernel keeps to itself is seen before it."""
        return pair.tap if pair.tap.tensor else Tap(pair.root, pair.tap.quantizer, decoded=True)

    def renumber(self, numbers: Iterable[int]) -> None:
        """Keep only these pairs and count them from 0."""
        kept = list(numbers)
        self.pairs = {new: self.pairs[old] for new, old in enumerate(kept)}
        self.taps = {new: self.taps[old] for new, old in enumerate(kept)}

    def read(self, batch: Batch) -> Reading:
        """Run both modules.

        Raises:
            ModelError: One of them fails on this batch.
        """
        models = self._models
        twins = [pair.twin for pair in self.pairs.values()] + ([self._feature] if self._feature else [])
        floats = self._capture(models.float_graph, [*twins, *models.float_graph.outputs], "float model")
        outputs = models.run_float(batch, floats)
        seen = self._capture(models.quantized, [tap.tensor for tap in self.taps.values()], "quantized model")
        deployed = models.run_quantized(batch, seen)
        matched = models.match.outputs
        fed = {name: np.asarray(array) for name, array in batch.inputs.items()}
        values = {**fed, **floats.found}
        codes = {**fed, **seen.found}
        return Reading(
            values,
            {number: codes[tap.tensor] for number, tap in self.taps.items()},
            (models.matched(outputs, [i for i, _ in matched]), models.matched(deployed, [j for _, j in matched])),
        )

    def floats_again(self, batch: Batch) -> list[Array]:
        """Outputs of the float model in one more run."""
        return [to_array(tensor) for tensor in self._models.run_float(batch, None)]

    def flipped_features(self, batch: Batch, name: str, axis: int) -> Array:
        """The feature tensor of the float model where the channels of one input are reversed."""
        assert self._feature is not None
        flipped = {**batch.inputs, name: np.ascontiguousarray(np.flip(batch.inputs[name], axis))}
        capture = self._capture(self._models.float_graph, [self._feature], "float model")
        self._models.run_float(replace(batch, inputs=flipped), capture)
        return capture.found[self._feature]

    @staticmethod
    def _capture(graph: object, names: Iterable[str], what: str) -> Capture:
        assert isinstance(graph, TorchGraph)
        return Capture(graph, [name for name in dict.fromkeys(names) if name in graph.written], what)
