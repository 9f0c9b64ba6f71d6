"""Both torch modules with some of their tensors observed while they run."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_torch.capture import Capture
from quantmedic.collectors.from_torch.graph import TorchGraph
from quantmedic.collectors.from_torch.module import to_array
from quantmedic.collectors.from_torch.torch_pair import TorchPair, arrays_of
from quantmedic.collectors.measure.models import Faithfulness, Reading
from quantmedic.collectors.measure.plan import feature_of
from quantmedic.collectors.pair.graph import Tap
from quantmedic.collectors.pair.tensor_pairs import Pair

Array = NDArray[np.generic]
K = TypeVar("K")
#: Of each element: four of the float tensor, four of the quantized one.
_BYTES = 8


class _Grouped:
    """Readings of groups of pairs, one of which is held at a time: the one that was asked for last."""

    def __init__(
        self, read: Callable[[Sequence[int]], Reading], groups: Sequence[Sequence[int]], pairs: Mapping[int, Pair]
    ) -> None:
        self._read_group, self._groups = read, groups
        self._now = read(groups[0])
        self._group = {number: group for group, numbers in enumerate(groups) for number in numbers}
        self._number = {pairs[number].twin: number for number in reversed(list(self._group))}
        self._held = 0

    def reading(self) -> Reading:
        """All pairs; not kept here, for a circle of references would outlive the batch."""
        return Reading(_Lookup(self._float), _Lookup(self._code, list(self._group)), self._now.outputs)

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
            self._now, self._held = self._read_group(self._groups[group]), group


class _Lookup(Mapping[K, Array]):
    """A mapping of which every value is looked up when it is asked for."""

    def __init__(self, find: Callable[[K], Array], keys: Sequence[K] = ()) -> None:
        self._find, self._keys = find, keys

    def __getitem__(self, key: K) -> Array:
        return self._find(key)

    def __iter__(self) -> Iterator[K]:
        return iter(self._keys)

    def __len__(self) -> int:
        return len(self._keys)


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
        groups = self._groups(batch)
        return _Grouped(lambda numbers: self._read_group(batch, numbers), groups, self.pairs).reading()

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
        limit = self._models.memory
        if limit is None:
            return [list(self.pairs)]
        groups: list[list[int]] = [[]]
        held = 0
        for number, pair in self.pairs.items():
            size = _BYTES * math.prod(side or batch.samples for side in self._models.shapes[pair.twin])
            if held + size > limit and groups[-1]:
                groups.append([])
                held = 0
            groups[-1].append(number)
            held += size
        return groups

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
