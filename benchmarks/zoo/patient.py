"""A patient: a network, how it is quantized and with which data. Faults take one and return a sicker one."""

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from .networks import Network
from .quantizing import Recipe, Standing, compare, quantize, run
from .surgery import Inapplicable, Linear, Surgeon
from .tasks import Task

Array = NDArray[Any]

#: Operators whose output has the grid of their input: not a place for a range of its own.
MOVERS = frozenset(
    {"Reshape", "Transpose", "Flatten", "MaxPool", "Slice", "Gather", "Split", "Squeeze", "Unsqueeze", "Identity"}
)
QUANTIZED_BY_DEFAULT = frozenset(
    {"Conv", "Gemm", "MatMul", "Add", "Mul", "Relu", "Clip", "Sigmoid", "LeakyRelu", "GlobalAveragePool", "Concat"}
    | {"Softmax", "LayerNormalization", "AveragePool"}
)


#: How networks are quantized where no seed draws it.
NORMAL = Recipe()


@dataclass(frozen=True)
class Patient:
    """What is needed to quantize a network and to have it diagnosed.

    Attributes:
        calibration: What the quantizer saw.
        shown: What the expert is told that it saw; None for the same.
        shown_float: The float model that the expert is given; None for the one that was quantized.
        edits: Changes to the quantized model, in order.
        options: Further arguments of ``quantmedic.diagnose``.
        strength: How much worse than usual the next graded fault is to be.
        places: Names of the float nodes where a local fault sits; empty for faults of the data and of everything.
    """

    network: Network
    model: onnx.ModelProto
    recipe: Recipe
    calibration: Array
    validation: Array
    labels: Array | None
    task: Task
    shown: Array | None = None
    shown_float: onnx.ModelProto | None = None
    edits: tuple[Callable[["Patient", Surgeon], None], ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    strength: float = 1.0
    places: tuple[str, ...] = ()

    def quantized(self) -> onnx.ModelProto:
        model = quantize(self.network, self.model, self.recipe, self.calibration)
        for edit in self.edits:
            surgeon = Surgeon(model)
            edit(self, surgeon)
            model = surgeon.model
        return model

    def values(self, *tensors: str, samples: int = 64) -> list[Array]:
        """Float activations of validation inputs: what the network really meets."""
        return run(self.network, self.model, self.validation[:samples], tensors=tensors)

    @property
    def signals(self) -> Array:
        """The calibration inputs where they are measured values, of which half or twice as much makes sense."""
        if self.calibration.dtype.kind != "f":
            raise Inapplicable("inputs are tokens")
        return self.calibration

    def reach(self, inputs: Array) -> Array:
        """How far each sample drives the activations: mean over tensors of log(its peak / the largest peak)."""
        tensors = tuple(self.activations())
        peaks = []
        for start in range(0, len(inputs), 50):
            values = run(self.network, self.model, inputs[start : start + 50], tensors=tensors)
            count = len(inputs[start : start + 50])
            # Recurrent layers put steps before samples: such tensors are left out.
            peaks.append(np.stack([np.abs(x).reshape(count, -1).max(1) for x in values if len(x) == count], 1))
        joined = np.concatenate(peaks) + 1e-9
        return np.log(joined / joined.max(0)).mean(1)

    def random(self, salt: str) -> np.random.Generator:
        code = zlib.crc32(f"{self.network.name}/{salt}".encode())
        return np.random.default_rng(code if self.network.seed is None else [self.network.seed, code])

    def pick(self, found: list[Any], *shares: float) -> list[Any]:
        """Some of a list, by their place in it; with a seed as many, drawn by chance."""
        if self.network.seed is None or not found:
            return pick(found, *shares)
        drawn = self.random("place").permutation(len(found))[: len(pick(found, *shares))]
        return [found[i] for i in sorted(drawn)]

    def surgeon(self) -> Surgeon:
        return Surgeon(self.model)

    def with_(self, **changes: Any) -> "Patient":
        return replace(self, **changes)

    def at(self, *places: str | Linear) -> "Patient":
        """With places added: layers, nodes, or tensors, which stand for the nodes that make them."""
        names = [place.node.name if isinstance(place, Linear) else place for place in places]
        made = {tensor: node.name or tensor for node in self.model.graph.node for tensor in node.output}
        return self.with_(places=tuple(dict.fromkeys((*self.places, *(made.get(name, name) for name in names)))))

    def cut(self, surgeon: Surgeon, *places: str | Linear, **changes: Any) -> "Patient":
        """With the model that a surgeon has cut, and where."""
        return self.with_(model=surgeon.model, **changes).at(*surgeon.marks, *places)

    def spliced(self, tensor: str, text: str, **given: Any) -> "Patient":
        """With operators behind a tensor, as ``Surgeon.splice`` puts them there."""
        surgeon = self.surgeon()
        surgeon.splice(tensor, text, **given)
        return self.with_(model=surgeon.model)

    def without(self, *nodes: str) -> "Patient":
        """Some operators are left out by the quantizer."""
        return self.with_(recipe=replace(self.recipe, exclude=(*self.recipe.exclude, *nodes)))

    def edited(self, edit: Callable[["Patient", Surgeon], None]) -> "Patient":
        return replace(self, edits=(*self.edits, edit))

    def activations(self, *kinds: str) -> list[str]:
        """Tensors that get a quantizer of their own, in order, the network's output left out."""
        surgeon = self.surgeon()
        allowed = set(self.recipe.op_types or self.network.op_types or QUANTIZED_BY_DEFAULT)
        found = []
        for node in surgeon.graph.node:
            tensor = node.output[0]
            readers = surgeon.consumers(tensor)
            asked = node.op_type in kinds and any(surgeon.linear(reader) for reader in readers)
            if node.op_type not in allowed - MOVERS and not asked:
                continue
            if not readers or node.name in self.recipe.exclude or surgeon.is_whole(tensor):
                continue
            if any(reader.op_type in ("Relu", "Clip") for reader in readers) or (kinds and node.op_type not in kinds):
                continue
            if not any(reader.op_type in allowed | MOVERS for reader in readers):
                continue
            found.append(tensor)
        return found


def healthy(network: Network, recipe: Recipe = NORMAL) -> Patient:
    """The network as it should be quantized."""
    validation, labels = network.validation()
    return Patient(network, network.model(), recipe, network.calibration(), validation, labels, network.task)


def standing(patient: Patient, quantized: onnx.ModelProto | None = None) -> Standing:
    """How a patient does."""
    quantized = quantized or patient.quantized()
    reference = run(patient.network, patient.shown_float or patient.model, patient.validation)
    outputs = run(patient.network, quantized, patient.validation)
    return compare(patient.task, reference, outputs, patient.labels)


def pick(found: list[Any], *shares: float) -> list[Any]:
    """Some of a list, by their place in it."""
    if not found:
        raise Inapplicable("nothing to choose from")
    return list(dict.fromkeys(found[min(int(share * len(found)), len(found) - 1)] for share in shares))
