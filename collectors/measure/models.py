"""The interface of a front end: what measuring, trying and reporting ask of two models, whatever their framework.

A front end is a package ``collectors/from_*`` that derives from these classes and from no other front end. What follows
holds everywhere:

- Arrays have the samples along axis 0. Float tensors are float32, codes have the integer type that stores them.
- Tensors go by the names of ``Graph``: a *root* is a tensor without its quantized copies, its *twin* the tensor of the
  float model that it stands for.
- ``threads`` are processor threads of one run. Runs of several threads at once must not disturb each other.
- A ``ModelError`` says what is wrong, names the file or module, and says what to do next.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.data.model_inputs import InputSpec
from quantmedic.collectors.data.rows import OnDemand, row_of
from quantmedic.collectors.measure.latency import Profile
from quantmedic.collectors.measure.outputs import output_difference
from quantmedic.collectors.pair.feed import input_specs
from quantmedic.collectors.pair.graph import Graph, Shape, Tap, TensorSpec
from quantmedic.collectors.pair.match import Match
from quantmedic.collectors.pair.tensor_pairs import Pair
from quantmedic.engine.case.facts import ModelFacts
from quantmedic.engine.case.records import Case
from quantmedic.engine.errors import ModelError
from quantmedic.engine.formulas.change import Change

Array = NDArray[np.generic]
Float32 = NDArray[np.float32]
#: What a network makes of a batch: real values of the outputs that both models have, in the order of ``Match.outputs``.
#: Raises ``ModelError`` where the network fails on the batch.
Runner = Callable[[Batch], list[Float32]]
#: What a float model makes of a batch: tensors by name. Raises as a runner does.
FloatReader = Callable[[Batch], Mapping[str, Array]]
#: Outputs that differ by more than this share of their largest value are not those of the model by itself: kernels
#: that a framework chooses when nothing is observed round a little differently.
SAME_OUTPUT = 1e-4


class Kernel(StrEnum):
    """How a kernel computes; the values are those of ``executed_as`` in a case."""

    INTEGER = "integer"
    FLOAT = "float"


class Producer(NamedTuple):
    """What writes a measured tensor: its operator's type, the tensor's number, and its name in the float model."""

    op_type: str
    place: int
    float_name: str


@dataclass(frozen=True)
class Reading:
    """What one batch shows.

    Attributes:
        floats: Tensors of the float model by name: every twin of a pair of the view, and the outputs.
        codes: What the taps of the quantized model show, by number of the pair.
        outputs: Outputs of the float model and of the quantized one, in the order of ``Match.outputs``.
    """

    floats: Mapping[str, Array]
    codes: Mapping[int, Array]
    outputs: tuple[Sequence[Array], Sequence[Array]]

    def with_rows(self) -> "Reading":
        """The same with an axis for the samples, where squeezing took that of a single one too."""
        outputs = ([row_of(x) for x in self.outputs[0]], [row_of(x) for x in self.outputs[1]])
        floats = OnDemand(lambda name: row_of(self.floats[name]), self.floats)
        return Reading(floats, OnDemand(lambda number: row_of(self.codes[number]), self.codes), outputs)


@dataclass(frozen=True)
class Faithfulness:
    """How faithfully a quantized model is observed.

    Attributes:
        plain: Outputs of the model as deployed, on the first batch.
        simulated: What is observed is not what is deployed.
        difference: Largest relative change of an output by observing; 0 unless simulated.
    """

    plain: Sequence[Array]
    simulated: bool
    difference: float

    @property
    def notices(self) -> list[str]:
        """What the user should know of it."""
        if not self.simulated:
            return []
        return [
            "reading its tensors changes the result of the quantized model by "
            f"{100 * self.difference:.1f} % of the largest output: the figures describe that simulation"
        ]

    @classmethod
    def of_outputs(cls, plain: Sequence[Array], seen: Sequence[Array]) -> "Faithfulness":
        """From the outputs of the model as deployed, and of the one that is observed, on one batch."""
        difference = output_difference(plain, seen)
        simulated = difference > SAME_OUTPUT
        return cls(plain, simulated, difference if simulated else 0.0)

    def join(self, other: "Faithfulness") -> "Faithfulness":
        """That of two views of one model: the worse of both."""
        simulated, difference = self.simulated or other.simulated, max(self.difference, other.difference)
        return Faithfulness(self.plain, simulated, difference)


class View(ABC):
    """Both models with numbered pairs of tensors exposed.

    Attributes:
        pairs: The pairs, by number.
        taps: How the quantized model shows each; those that it cannot show without computing otherwise are missing.
        observed: How faithfully the quantized model is observed.
    """

    pairs: dict[int, Pair]
    taps: dict[int, Tap]
    observed: Faithfulness

    @property
    def faithful(self) -> list[int]:
        """Numbers of the taps that are read of what computes as the deployed model does."""
        return [] if self.observed.simulated else list(self.taps)

    def renumber(self, numbers: Sequence[int]) -> None:
        """Keep only the pairs of these numbers and count them from 0, in this order."""
        self.pairs = {new: self.pairs[old] for new, old in enumerate(numbers)}
        self.taps = {new: self.taps[old] for new, old in enumerate(numbers) if old in self.taps}

    @abstractmethod
    def read_tensors(self, batch: Batch) -> Reading:
        """Run both models.

        Raises:
            ModelError: One of them fails on this batch.
        """

    @abstractmethod
    def read_floats(self, batch: Batch, names: Sequence[str]) -> list[Array]:
        """Run the float model alone.

        Args:
            batch: The samples.
            names: Outputs that are no inputs, or its feature tensor (``feature_of``).

        Raises:
            ModelError: The model fails on this batch.
        """


def flip_channels(batch: Batch, name: str, axis: int) -> Batch:
    """The batch with the channels of one input reversed."""
    flipped = np.ascontiguousarray(np.flip(batch.inputs[name], axis))
    return replace(batch, inputs={**batch.inputs, name: flipped})


class FloatSteps(Protocol):
    """Float operators, each fed with what the deployed model computed before it: the reference of the ``step`` error.

    As in LiteRT's debugger, a network input that the quantized model takes as floats reaches the float operator as it
    is: rounding it belongs to the first operator. One that it takes as codes is dequantized.
    """

    @property
    def measured(self) -> Sequence[int]:
        """Numbers of the tensors whose float operator reads nothing but what the view shows."""

    def run_operators(self, batch: Batch, codes: Mapping[int, Array]) -> Mapping[int, Array]:
        """What each measured float operator makes of the deployed tensors of a batch, by number of its output.

        Args:
            batch: The samples.
            codes: What the taps show on that batch (``Reading.codes``).

        Raises:
            ModelError: The model fails on this batch.
        """


class SimulatedNetwork(Protocol):
    """The float network with simulated quantizers that can be changed from run to run."""

    @property
    def weighted(self) -> frozenset[int]:
        """Operators whose weights can be changed, by index into the operators of the case."""

    @property
    def with_constants(self) -> frozenset[int]:
        """Operators with other constants that can be changed along with the bias, by index."""

    @property
    def tensors(self) -> frozenset[int]:
        """Tensors whose quantizers can be changed, by index into the tensors of the case."""

    def repeat_exactly(self) -> None:
        """From now on no run depends on those before it, not in its last bits either."""

    def outputs(self, batch: Batch, change: Change | None) -> list[Float32]:
        """Outputs in the order of ``Match.outputs``; of the network without any quantizer where ``change`` is None.

        Raises:
            ModelError: The network fails on this batch.
        """


class Given(NamedTuple):
    """What the simulated network makes of given tensors.

    Attributes:
        exact: Of every such tensor what its float operator makes, with the stored weights, by index.
        rounded: The same behind the quantizer of the tensor, where it has one.
        outputs: In the order of ``Match.outputs``.
    """

    exact: Mapping[int, Float32]
    rounded: Mapping[int, Float32]
    outputs: list[Float32]


#: What the simulated network with the deployed quantizers makes of a batch, where what reads some tensors gets values
#: from outside, by index into the tensors of the case. Raises as a runner does.
GivenSimulation = Callable[[Batch, Mapping[int, Float32]], Given]


class Fitting(NamedTuple):
    """What is needed to learn on samples (``Change.learned``).

    Attributes:
        batches: The samples.
        threads: Processor threads.
        deadline: ``time.monotonic()`` at which to leave the remaining layers as they are; None: never.
    """

    batches: Sequence[Batch]
    threads: int = 1
    deadline: float | None = None


@dataclass(frozen=True)
class Edited:
    """A quantized model with a change carried out, or made anew by a toolchain; the original stays as it is.

    Attributes:
        runner: Makes what runs it with so many threads; raises a ``ModelError`` where the runtime refuses it.
        unedited: What of the change could not be carried out, or the runtime undoes by itself, in words.
        save: Writes it to a file; None where models of this kind are not written.
        left_integer: Layers that an integer kernel computes before the change and none after it, against the change,
            by name; None where it is not known which kernels compute.
    """

    runner: Callable[[int], Runner]
    unedited: tuple[str, ...] = ()
    save: Callable[[Path], None] | None = None
    left_integer: Callable[[Case, Change], tuple[str, ...]] | None = None


@dataclass(frozen=True)
class Description:
    """What a front end knows of two models that graphs and statistics do not tell.

    Attributes:
        facts: ``ModelFacts`` with name, framework, format, toolchain, sizes, and what the framework alone knows.
        half: Tensors that the quantized model holds as float16, by root; None where that is not known.
        names: File or class names of the float and the quantized model, without folders.
        hashes: SHA-256 of both models, in hexadecimal.
        versions: Versions of the packages that read and ran the models, by package; None for one that is missing.
        codes_are_outputs: An output that holds codes is compared as codes; else it is decoded.
        attributes_of_twins: Quantized operators keep their attributes to themselves: those of their twins count.
    """

    facts: ModelFacts
    half: frozenset[str] | None
    names: tuple[str, str]
    hashes: tuple[str, str]
    versions: Mapping[str, str | None] = field(default_factory=dict)
    codes_are_outputs: bool = True
    attributes_of_twins: bool = False


@dataclass
class Models(ABC):
    """Two models that belong together: their graphs, their twins, and how to run and observe them.

    What not every front end can do has an answer here that says so.

    Attributes:
        float_graph: The float model.
        quantized: The quantized model.
        match: Which tensor and which operator of the quantized model is which of the float model.
        pairs: Tensors that can be read in both models.
        memory: Bytes that the observed tensors of one batch may take; None for as many as there are.
        keeps_bound: All that a run takes is known, so that it can be kept to a bound; else only observed tensors can.
        observes_groups: Tensors can be observed a group at a time, with the same numbers (``limit_memory``).
    """

    float_graph: Graph
    quantized: Graph
    match: Match
    pairs: list[Pair]
    memory: int | None = field(default=None, kw_only=True)

    keeps_bound: ClassVar[bool] = False
    observes_groups: ClassVar[bool] = False

    @property
    @abstractmethod
    def framework(self) -> str:
        """Name of the front end, as in ``model.framework`` of a case."""

    @property
    @abstractmethod
    def shapes(self) -> Mapping[str, Shape]:
        """Shapes in the float model that hold for every batch; None for an axis that depends on the data."""

    @property
    def input_specs(self) -> list[InputSpec]:
        """Inputs that a data set has to supply, in the order of the float model."""
        return input_specs(self.float_graph)

    @property
    def notices(self) -> Sequence[str]:
        """What the user should know of these models where remedies are tried on them."""
        return ()

    def static_types(self, samples: int) -> tuple[Mapping[str, TensorSpec], Mapping[str, TensorSpec]]:
        """Types of the tensors of the float and of the quantized model, as far as the files tell them.

        Args:
            samples: Samples of a batch that is thought of, for inputs whose first axis is left open.

        Raises:
            ModelError: Only running these models tells.
        """
        raise ModelError(f"{self.framework} models have to be run to be known", where=str(self.quantized.path))

    def probe(self) -> None:  # noqa: B027  # most leave nothing open
        """Find out by running what files leave open about their inputs.

        Raises:
            ModelError: A model cannot be run.
        """

    def limit_memory(self, size: int) -> None:
        """Let the observed tensors of one batch take no more than so many bytes.

        Raises:
            ModelError: All of them are observed at once.
        """
        if not self.observes_groups:
            raise ModelError(
                f"what {self.framework} models take is not bounded",
                where=str(self.quantized.path),
                help="leave --memory out",
            )
        self.memory = size

    def shapes_on(self, batch: Batch, threads: int) -> Mapping[str, Shape]:
        """Shapes of the float tensors of all pairs on a batch, as far as they can be told without holding them.

        Raises:
            ModelError: The model fails on this batch.
        """
        return {}

    def run_on(self, device: str) -> None:
        """Have both models run on a device from now on: ``cpu``, ``cuda``, ``cuda:1`` or what the framework has.

        Raises:
            ModelError: The framework cannot use it.
        """
        if device != "cpu":
            raise ModelError(
                f"{self.framework} models are run on the processor only",
                where=f"--device {device}",
                help="leave --device out",
            )

    def as_deployed(self) -> AbstractContextManager[None]:
        """Context in which both models run as deployed; afterwards they are as they were."""
        return nullcontext()

    @abstractmethod
    def view(self, pairs: Mapping[int, Pair], first: Batch, threads: int, plain: Sequence[Array] | None = None) -> View:
        """Both models with these pairs exposed.

        Args:
            pairs: What to expose, by number.
            first: A batch, on which exposing must not change the outputs.
            threads: Processor threads.
            plain: Outputs of the quantized model as deployed on that batch (``Faithfulness.plain``), where known.

        Raises:
            ModelError: A model cannot be run.
        """

    def float_reader(self, names: Sequence[str], threads: int) -> FloatReader | None:
        """Reads these tensors of the float model by itself; None where the front end reads both models at once.

        Raises:
            ModelError: The model cannot be run.
        """
        return None

    def steps(self, view: View, pairs: Sequence[Pair], threads: int) -> FloatSteps:
        """Float operators fed with the deployed tensors of a view; ``pairs`` are all that are measured.

        Raises:
            ModelError: A model cannot be run, or its operators cannot be run by themselves.
        """
        raise ModelError(
            f"operators of {self.framework} models are not measured on deployed inputs",
            where=str(self.quantized.path),
            help="--step-error and search debugger take ONNX, LiteRT and OpenVINO files; rounding and accumulated "
            "errors are measured without them",
        )

    @abstractmethod
    def simulate(self, case: Case, threads: int) -> SimulatedNetwork:
        """The float network with the quantizers of the deployed one; ``case`` is what was measured of both.

        Raises:
            ModelError: The network cannot be simulated.
        """

    def simulate_given(self, case: Case, tensors: Sequence[int], threads: int) -> GivenSimulation | None:
        """The simulated network where these tensors of the case are given; None where the front end has none.

        Raises:
            ModelError: The network cannot be simulated.
        """
        return None

    def producer_of(self, pair: Pair) -> Producer:
        """What writes a measured tensor; its place is its number among the pairs."""
        producer = self.quantized.producers.get(pair.root)
        return Producer(producer.op_type if producer is not None else "Input", self.pairs.index(pair), pair.twin)

    def kernel_facts(self, first: Batch, reading: Reading, threads: int) -> dict[str, object]:
        """Fields of ``ModelFacts`` on what the runtime's own kernels add to the quantization; empty if not known.

        Raises:
            ModelError: A model cannot be run.
        """
        return {}

    @abstractmethod
    def profile(self, batch: Batch, threads: int) -> Profile:
        """Latency of both models on one batch in milliseconds, and of the quantized one's operators where known.

        Raises:
            ModelError: A model cannot be loaded or fails on the batch.
        """

    @abstractmethod
    def describe(self) -> Description:
        """What a case says of both models besides graphs and statistics."""

    @abstractmethod
    def kernels(self, threads: int) -> Mapping[str, Kernel]:
        """How the kernel that writes each tensor of the quantized model computes, as far as that is known.

        Raises:
            ModelError: The runtime refuses the model.
        """

    @abstractmethod
    def editable(self) -> "Models":
        """The models on which remedies are carried out: these, or what stands for them.

        Raises:
            ModelError: There are none.
        """

    @abstractmethod
    def float_runner(self, threads: int) -> Runner:
        """Runs the float model.

        Raises:
            ModelError: The runtime refuses the model.
        """

    @abstractmethod
    def quantized_runner(self, threads: int) -> Runner:
        """Runs the quantized model.

        Raises:
            ModelError: The runtime refuses the model.
        """


class Network(NamedTuple):
    """One model by itself, such as a stage of a toolchain.

    Attributes:
        graph: The model.
        open: Opens it for so many threads; then returns these outputs of a batch, as the model has them. Both raise
            ``ModelError`` where the runtime fails.
    """

    graph: Graph
    open: Callable[[Sequence[str], int], Callable[[Batch], list[Array]]]
