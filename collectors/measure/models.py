"""The interface of a front end: what measuring, trying and reporting ask of two models, whatever their framework.

A front end is a package ``collectors/from_*`` whose classes have the methods of these protocols; nothing inherits from
another front end. What follows holds everywhere:

- Arrays have the samples along axis 0. Float tensors are float32, codes have the integer type that stores them.
- Tensors go by the names of ``Graph``: a *root* is a tensor without its quantized copies, its *twin* the tensor of the
  float model that it stands for.
- ``threads`` are processor threads of one run. Runs of several threads at once must not disturb each other.
- A ``ModelError`` says what is wrong, names the file or module, and says what to do next.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.data.model_inputs import InputSpec
from quantmedic.collectors.data.rows import Rows, row_of
from quantmedic.collectors.measure.latency import Profile
from quantmedic.collectors.measure.outputs import output_difference
from quantmedic.collectors.pair.graph import Shape, Tap, TensorSpec
from quantmedic.collectors.pair.tensor_pairs import Pair, PairedGraphs
from quantmedic.engine.case.facts import ModelFacts
from quantmedic.engine.case.records import Case
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
        return Reading(Rows(self.floats), Rows(self.codes), outputs)


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

    @classmethod
    def of_outputs(cls, plain: Sequence[Array], seen: Sequence[Array]) -> "Faithfulness":
        """From the outputs of the model as deployed, and of the one that is observed, on one batch."""
        difference = output_difference(plain, seen)
        simulated = difference > SAME_OUTPUT
        return cls(plain, simulated, difference if simulated else 0.0)

    def faithful(self, taps: Iterable[int]) -> list[int]:
        """Of taps that one model shows, those that show what is deployed: all, or none."""
        return [] if self.simulated else list(taps)


class View(Protocol):
    """Both models with numbered pairs of tensors exposed."""

    @property
    def pairs(self) -> Mapping[int, Pair]:
        """The pairs, by number."""

    @property
    def taps(self) -> Mapping[int, Tap]:
        """How the quantized model shows each; those that it cannot show without computing otherwise are missing."""

    @property
    def observed(self) -> Faithfulness:
        """How faithfully the quantized model is observed."""

    @property
    def faithful(self) -> Collection[int]:
        """Numbers of the taps that are read of what computes as the deployed model does."""

    def renumber(self, numbers: Iterable[int]) -> None:
        """Keep only the pairs of these numbers and count them from 0, in this order."""

    def read(self, batch: Batch) -> Reading:
        """Run both models.

        Raises:
            ModelError: One of them fails on this batch.
        """

    def floats_again(self, batch: Batch) -> list[Array]:
        """Outputs of the float model in one more run, in its order; outputs that are inputs are left out.

        Raises:
            ModelError: The model fails on this batch.
        """

    def flipped_features(self, batch: Batch, name: str, axis: int) -> Array:
        """The feature tensor (``feature_of``) of the float model with the channels ``axis`` of input ``name`` reversed.

        Raises:
            ModelError: The model fails on this batch.
        """


class IsolatedOperators(Protocol):
    """Operators of the quantized model, each fed with float tensors: the reference of the ``operator`` error."""

    def read(self, batch: Batch, floats: Mapping[str, Array]) -> Mapping[int, Array]:
        """What each measured operator writes, as its tap shows it, by number of the pair.

        Args:
            batch: The samples.
            floats: Tensors of the float model on that batch (``Reading.floats``).

        Raises:
            ModelError: The model fails on this batch.
        """


class FloatSteps(Protocol):
    """Float operators, each fed with what the deployed model computed before it: the reference of the ``step`` error.

    As in LiteRT's debugger, a network input that the quantized model takes as floats reaches the float operator as it
    is: rounding it belongs to the first operator. One that it takes as codes is dequantized.
    """

    @property
    def measured(self) -> Sequence[int]:
        """Numbers of the tensors whose float operator reads nothing but what the view shows."""

    def read(self, batch: Batch, codes: Mapping[int, Array]) -> Mapping[int, Array]:
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


class GivenSimulation(Protocol):
    """The simulated network with the deployed quantizers, where what reads some tensors gets values from outside."""

    def run(self, batch: Batch, given: Mapping[int, Float32]) -> Given:
        """What the network makes of a batch and of these tensors, by index into the tensors of the case.

        Raises:
            ModelError: The network fails on this batch.
        """


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


class Edited(ABC):
    """A quantized model with a change carried out, or made anew by a toolchain; the original stays as it is.

    Attributes:
        unedited: What of the change could not be carried out, or the runtime undoes by itself, in words.
    """

    unedited: tuple[str, ...] = ()

    @abstractmethod
    def runner(self, threads: int) -> Runner:
        """Runs the changed model.

        Raises:
            ModelError: The runtime refuses it.
        """

    def left_integer(self, case: Case, change: Change) -> tuple[str, ...]:
        """Layers that an integer kernel computes before the change and none after it, against the change, by name.

        Empty where it is not known which kernels compute.
        """
        return ()

    @property
    def save(self) -> Callable[[Path], None] | None:
        """Writes the changed model to a file; None where models of this kind are not written."""
        return None


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


class Models(PairedGraphs, Protocol):
    """Two models that belong together: their graphs, their twins, and how to run and observe them."""

    @property
    def framework(self) -> str:
        """Name of the front end, as in ``model.framework`` of a case."""

    @property
    def pairs(self) -> Sequence[Pair]:
        """Tensors that can be read in both models."""

    @property
    def input_specs(self) -> Sequence[InputSpec]:
        """Inputs that a data set has to supply, in the order of the float model."""

    @property
    def measures_operator_error(self) -> bool:
        """Quantized operators can be run by themselves on float inputs: ``isolate`` may be called."""

    @property
    def measures_step_error(self) -> bool:
        """Float operators can be run by themselves on deployed inputs: ``steps`` may be called."""

    @property
    def notices(self) -> Sequence[str]:
        """What the user should know of these models where remedies are tried on them."""

    @property
    def keeps_bound(self) -> bool:
        """All that a run takes is known, so that it can be kept to a bound; else only observed tensors may be."""

    @property
    def observes_groups(self) -> bool:
        """Tensors can be observed a group at a time, with the same numbers: ``limit_memory`` may be called."""

    def limit_memory(self, size: int) -> None:
        """Let the observed tensors of one batch take no more than so many bytes.

        Raises:
            ModelError: All of them are observed at once.
        """

    def shapes_on(self, batch: Batch, threads: int) -> Mapping[str, Shape]:
        """Shapes of the float tensors of all pairs on a batch, as far as they can be told without holding them.

        Raises:
            ModelError: The model fails on this batch.
        """

    def run_on(self, device: str) -> None:
        """Have both models run on a device from now on: ``cpu``, ``cuda``, ``cuda:1`` or what the framework has.

        Raises:
            ModelError: The framework cannot use it.
        """

    def as_deployed(self) -> AbstractContextManager[None]:
        """Context in which both models run as deployed; afterwards they are as they were."""

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

    def isolate(self, view: View, measured: Sequence[int], threads: int) -> IsolatedOperators:
        """Operators that write these tensors of a view, fed with float tensors.

        Raises:
            ModelError: A model cannot be run.
        """

    def steps(self, view: View, pairs: Sequence[Pair], threads: int) -> FloatSteps:
        """Float operators fed with the deployed tensors of a view; ``pairs`` are all that are measured.

        Raises:
            ModelError: A model cannot be run.
        """

    def simulate_given(self, case: Case, tensors: Sequence[int], threads: int) -> GivenSimulation | None:
        """The simulated network where these tensors of the case are given; None where the front end has none.

        Raises:
            ModelError: The network cannot be simulated.
        """

    def producer_of(self, pair: Pair) -> Producer:
        """What writes a measured tensor."""

    def kernel_facts(self, first: Batch, reading: Reading, threads: int) -> dict[str, object]:
        """Fields of ``ModelFacts`` on what the runtime's own kernels add to the quantization; empty if not known.

        Raises:
            ModelError: A model cannot be run.
        """

    def profile(self, batch: Batch, threads: int) -> Profile:
        """Latency of both models on one batch in milliseconds, and of the quantized one's operators where known.

        Raises:
            ModelError: A model cannot be loaded or fails on the batch.
        """

    def describe(self) -> Description:
        """What a case says of both models besides graphs and statistics."""

    def kernels(self, threads: int) -> Mapping[str, Kernel]:
        """How the kernel that writes each tensor of the quantized model computes, as far as that is known.

        Raises:
            ModelError: The runtime refuses the model.
        """

    def simulate(self, case: Case, threads: int) -> SimulatedNetwork:
        """The float network with the quantizers of the deployed one; ``case`` is what was measured of both.

        Raises:
            ModelError: The network cannot be simulated.
        """

    def editable(self) -> "Models":
        """The models on which remedies are carried out: these, or what stands for them.

        Raises:
            ModelError: There are none.
        """

    def float_runner(self, threads: int) -> Runner:
        """Runs the float model.

        Raises:
            ModelError: The runtime refuses the model.
        """

    def quantized_runner(self, threads: int) -> Runner:
        """Runs the quantized model.

        Raises:
            ModelError: The runtime refuses the model.
        """


class FileModels(Models, Protocol):
    """Two models that were read from files, so that something is known of them without data."""

    def static_types(self, samples: int) -> tuple[Mapping[str, TensorSpec], Mapping[str, TensorSpec]]:
        """Types of the tensors of the float and of the quantized model, as far as the files tell them.

        Args:
            samples: Samples of a batch that is thought of, for inputs whose first axis is left open.
        """

    def probe(self) -> None:
        """Find out by running what the files leave open about their inputs.

        Raises:
            ModelError: A model cannot be run.
        """


class Network(Protocol):
    """One model by itself, such as a stage of a toolchain."""

    @property
    def path(self) -> Path:
        """Its file."""

    @property
    def is_quantized(self) -> bool:
        """It holds quantizers."""

    @property
    def input_specs(self) -> Sequence[InputSpec]:
        """Its inputs."""

    @property
    def outputs(self) -> Sequence[str]:
        """Names of its outputs."""

    def runner(self, outputs: Sequence[str], threads: int) -> Callable[[Batch], list[Array]]:
        """Returns these outputs of a batch, as the model has them; raises ``ModelError`` where it fails.

        Raises:
            ModelError: The runtime refuses the model.
        """
