"""What front ends share: two matched graphs, the answers of one that can do no more than run them, and views."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.data.model_inputs import InputSpec
from quantmedic.collectors.measure.models import (
    Faithfulness,
    FloatReader,
    FloatSteps,
    IsolatedOperators,
    Producer,
    Reading,
    View,
)
from quantmedic.collectors.pair.feed import input_specs
from quantmedic.collectors.pair.graph import Graph, Shape, Tap
from quantmedic.collectors.pair.match import Match
from quantmedic.collectors.pair.tensor_pairs import Pair
from quantmedic.engine.errors import ModelError


@dataclass
class ModelPair:
    """Both graphs and their twins; a front end adds what concerns running. See ``Models``."""

    float_graph: Graph
    quantized: Graph
    match: Match
    pairs: list[Pair]

    measures_operator_error: ClassVar[bool] = False
    measures_step_error: ClassVar[bool] = False
    keeps_bound: ClassVar[bool] = False
    observes_groups: ClassVar[bool] = False

    @property
    @abstractmethod
    def framework(self) -> str:
        """Name of the front end."""

    @property
    def input_specs(self) -> list[InputSpec]:
        """Inputs that a data set has to supply: those of the float graph."""
        return input_specs(self.float_graph)

    def probe(self) -> None:
        """Nothing is left open: the files say how they are fed."""

    @property
    def notices(self) -> list[str]:
        """What the user should know of these models where remedies are tried on them: nothing."""
        return []

    def limit_memory(self, size: int) -> None:
        """Refuse a limit: all tensors are observed at once.

        Raises:
            ModelError: Always.
        """
        raise ModelError(
            f"what {self.framework} models take is not bounded",
            where=str(self.quantized.path),
            help="leave --memory out",
        )

    def shapes_on(self, batch: Batch, threads: int) -> Mapping[str, Shape]:
        """Shapes that nothing needs to be run for: none are known here."""
        return {}

    def run_on(self, device: str) -> None:
        """Refuse every device but the processor.

        Raises:
            ModelError: It is another one.
        """
        if device != "cpu":
            raise ModelError(
                f"{self.framework} models are run on the processor only",
                where=f"--device {device}",
                help="leave --device out",
            )

    def as_deployed(self) -> AbstractContextManager[None]:
        """Context in which both models run as deployed: they always do."""
        return nullcontext()

    def float_reader(self, names: Sequence[str], threads: int) -> FloatReader | None:
        """None: both models are read at once."""
        return None

    def isolate(self, view: View, measured: Sequence[int], threads: int) -> IsolatedOperators:
        """Refuse to run quantized operators by themselves.

        Raises:
            ModelError: Always.
        """
        raise ModelError(
            f"operators of {self.framework} models are not measured on float inputs", where=str(self.quantized.path)
        )

    def steps(self, view: View, pairs: Sequence[Pair], threads: int) -> FloatSteps:
        """Refuse to run float operators by themselves.

        Raises:
            ModelError: Always.
        """
        raise ModelError(
            f"operators of {self.framework} models are not measured on deployed inputs", where=str(self.quantized.path)
        )

    def producer_of(self, pair: Pair) -> Producer:
        """What writes a measured tensor; its place is its number among the pairs."""
        producer = self.quantized.producers.get(pair.root)
        return Producer(producer.op_type if producer is not None else "Input", self.pairs.index(pair), pair.twin)

    def kernel_facts(self, first: Batch, reading: Reading, threads: int) -> dict[str, object]:
        """What kernels add to the quantization: not known."""
        return {}


class PairView:
    """Numbered pairs of tensors that are observed; a front end adds how both models are read. See ``View``."""

    pairs: dict[int, Pair]
    taps: dict[int, Tap]
    observed: Faithfulness

    @property
    def faithful(self) -> list[int]:
        """Numbers of the taps that show what is deployed."""
        return self.observed.faithful(self.taps)

    def renumber(self, numbers: Iterable[int]) -> None:
        """Keep only these pairs and count them from 0."""
        kept = list(numbers)
        self.pairs = {new: self.pairs[old] for new, old in enumerate(kept)}
        self.taps = {new: self.taps[old] for new, old in enumerate(kept) if old in self.taps}


def flip_channels(batch: Batch, name: str, axis: int) -> Batch:
    """The batch with the channels of one input reversed."""
    flipped = np.ascontiguousarray(np.flip(batch.inputs[name], axis))
    return replace(batch, inputs={**batch.inputs, name: flipped})
