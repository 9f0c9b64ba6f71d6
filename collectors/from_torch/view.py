"""Both torch modules with some of their tensors observed while they run."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_torch.capture import Capture
from quantmedic.collectors.from_torch.graph import TorchGraph
from quantmedic.collectors.from_torch.module import to_array
from quantmedic.collectors.from_torch.torch_pair import TorchPair, arrays_of
from quantmedic.collectors.measure.memory import GroupedReading, in_groups
from quantmedic.collectors.measure.models import Faithfulness, Reading
from quantmedic.collectors.measure.plan import feature_of
from quantmedic.collectors.pair.graph import Tap
from quantmedic.collectors.pair.tensor_pairs import Pair
from quantmedic.engine.garbage import give_back_freed_memory

Array = NDArray[np.generic]
#: Of each element: four of the float tensor, four of the quantized one.
_BYTES = 8
#: Batches between two times that freed memory is given back: each time costs up to a fifth of a batch.
_KEEPS_FREED = 4


class TorchView:
    """Shows numbered pairs of tensors; see ``View``. Every tensor of a module can be seen."""

    def __init__(
        self,
        models: TorchPair,
        pairs: Mapping[int, Pair],
        first: Batch,
        threads: int,
        plain: Sequence[Array] | None = None,
    ) -> None:
        self._models, self.pairs = models, dict(pairs)
        self._batches = 0
        self.taps: dict[int, Tap] = {number: self._readable(pair) for number, pair in self.pairs.items()}
        self._feature = feature_of(models.float_graph)
        alone = plain if plain is not None else models.quantized_runner(threads)(first)
        self.observed = Faithfulness.of_outputs(alone, self.read(first).outputs[1])
        if self.observed.simulated:
            models.note_fast_path()

    @staticmethod
    def _readable(pair: Pair) -> Tap:
        """A tensor on a grid that its kernel keeps to itself is seen before it."""
        return pair.tap if pair.tap.tensor else Tap(pair.root, pair.tap.quantizer, decoded=True)

    @property
    def faithful(self) -> list[int]:
        """Numbers of the taps that show what is deployed."""
        return self.observed.faithful(self.taps)

    def renumber(self, numbers: Iterable[int]) -> None:
        """Keep only these pairs and count them from 0."""
        kept = list(numbers)
        self.pairs = {new: self.pairs[old] for new, old in enumerate(kept)}
        self.taps = {new: self.taps[old] for new, old in enumerate(kept)}

    def read(self, batch: Batch) -> Reading:
        """Run both modules; where memory is short, once for each group of tensors, when these are asked for.

        Raises:
            ModelError: One of them fails on this batch.
        """
        self._batches += 1
        if self._batches % _KEEPS_FREED == 0:
            give_back_freed_memory()
        groups = self._groups(batch)
        grouped = GroupedReading(lambda k: self._read_group(batch, groups[k]), groups, self.pairs)
        return grouped.reading(list(self.pairs))

    def _read_group(self, batch: Batch, numbers: Sequence[int]) -> Reading:
        """Some pairs, with the outputs and the features."""
        models = self._models
        twins = [self.pairs[number].twin for number in numbers] + ([self._feature] if self._feature else [])
        floats = self._capture(models.float_graph, [*twins, *models.float_graph.outputs], "float model")
        outputs = models.run_float(batch, floats)
        seen = self._capture(models.quantized, [self.taps[number].tensor for number in numbers], "quantized model")
        deployed = models.run_quantized(batch, seen)
        matched = models.match.outputs
        fed = {name: np.asarray(array) for name, array in batch.inputs.items()}
        codes = {**fed, **seen.found}
        return Reading(
            {**fed, **floats.found},
            {number: codes[self.taps[number].tensor] for number in numbers},
            (arrays_of(outputs, [i for i, _ in matched]), arrays_of(deployed, [j for _, j in matched])),
        )

    def _groups(self, batch: Batch) -> list[list[int]]:
        """Pairs that are observed together: all of them, or as many as the memory holds, at least one."""
        shapes = self._models.shapes
        sides = {number: [side or batch.samples for side in shapes[p.twin]] for number, p in self.pairs.items()}
        return in_groups({number: _BYTES * math.prod(own) for number, own in sides.items()}, self._models.memory)

    def floats_again(self, batch: Batch) -> list[Array]:
        """Outputs of the float model in one more run."""
        graph = self._models.float_graph
        found = zip(graph.outputs, self._models.run_float(batch, None), strict=True)
        return [to_array(tensor) for name, tensor in found if name not in graph.inputs]

    def flipped_features(self, batch: Batch, name: str, axis: int) -> Array:
        """The feature tensor of the float model where the channels of one input are reversed."""
        assert self._feature is not None
        flipped = {**batch.inputs, name: np.ascontiguousarray(np.flip(batch.inputs[name], axis))}
        capture = self._capture(self._models.float_graph, [self._feature], "float model")
        self._models.run_float(replace(batch, inputs=flipped), capture)
        return capture.found[self._feature]

    @staticmethod
    def _capture(graph: TorchGraph, names: Iterable[str], what: str) -> Capture:
        return Capture(graph, [name for name in dict.fromkeys(names) if name in graph.written], what)
