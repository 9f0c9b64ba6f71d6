"""The graph of an OpenVINO model, read from its translation to ONNX."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.from_onnx.graph import OnnxGraph
from quantmedic.collectors.from_onnx.parse import parse
from quantmedic.collectors.from_openvino.dropped_bounds import Dropped
from quantmedic.collectors.from_openvino.file import IrModel
from quantmedic.collectors.from_openvino.folded_factors import Factor
from quantmedic.collectors.from_openvino.site import shape_of
from quantmedic.collectors.from_openvino.translation import Place, translate
from quantmedic.collectors.from_openvino.unfolding import Rescaled, unfold
from quantmedic.collectors.pair.graph import Shape
from quantmedic.collectors.pair.quantizer import Quantizer
from quantmedic.engine.errors import ModelError

Array = NDArray[np.generic]
Float32 = NDArray[np.float32]


@dataclass(frozen=True)
class Exposed:
    """How tensors are shown.

    Attributes:
        same: Those that a copy shows whose outputs are the same to the bit.
        aside: Those that a second copy shows, whose outputs are not.
        outputs: Outputs on the first batch of the copy whose outputs depart most.
    """

    same: list[Place]
    aside: list[Place]
    outputs: Sequence[Array]

    @property
    def copies(self) -> list[list[Place]]:
        """What each copy shows."""
        return [places for places in (self.same, self.aside) if places]


@dataclass(kw_only=True)
class OpenVINOGraph(OnnxGraph):
    """The graph of an OpenVINO model, read from its translation.

    Attributes:
        file: What the files hold.
        places: Where OpenVINO has each tensor, or the neighbour from which its values follow.
        rescaled: How they follow, for tensors between a layer and a factor that was folded into it.
        decoders: Grids of the codes that it writes, by tensor.
        untranslated: Operators without a counterpart.
        weights: Real values of constants that are stored as codes, by the place of the operator that makes them.
        stated: Shapes as OpenVINO infers them, by tensor.
        exposed: How tensors are shown, as far as it was found out: by what FakeQuantize writes, and other tensors.
    """

    file: IrModel
    places: Mapping[str, Place]
    rescaled: Mapping[str, Rescaled]
    decoders: Mapping[str, Quantizer]
    untranslated: tuple[str, ...]
    weights: Mapping[int, Float32]
    stated: Mapping[str, Shape]
    exposed: dict[tuple[frozenset[Place], frozenset[Place]], Exposed] = field(default_factory=dict)

    @property
    def can_run(self) -> bool:
        """Its ONNX model can be run: remedies can be simulated and tried."""
        return not self.untranslated

    def shown(self, name: str) -> str:
        """The tensor of OpenVINO that stands for this one: of a step that is its own here alone, what that reads.

        Such steps move values, as the transposed operand of a MatMul.
        """
        while name not in self.places:
            name = self.producers[name].inputs[0]
        return name

    def values_of(self, name: str, shown: Array) -> Array:
        """Values of a tensor, from what OpenVINO has in its place."""
        return self.rescaled[name].apply(shown) if name in self.rescaled else shown


def graph_of(file: IrModel, dropped: Dropped | None = None, factors: Sequence[Factor] = ()) -> OpenVINOGraph:
    """The graph of a model.

    Args:
        file: The model.
        dropped: Relu and Clip for which a FakeQuantize stands too, by the tensor that this writes.
        factors: What was folded into weights, and is to be an operator again.

    Raises:
        ModelError: The graph is damaged.
    """
    try:
        found, rescaled = unfold(translate(file.model, dropped), factors)
    except (ValueError, LookupError, TypeError, ArithmeticError, RuntimeError) as error:
        raise ModelError(
            "the model is damaged",
            where=f"{file.path}: {error or type(error).__name__}",
            help="write it again with openvino.save_model",
        ) from error
    parsed = parse(file.path, found.model)
    own = {each.name: getattr(parsed, each.name) for each in fields(OnnxGraph)}
    operators = file.model.get_ordered_ops()
    shapes = {name: shape_of(operators[at.operator].output(at.output)) for name, at in found.places.items()}
    graph = OpenVINOGraph(
        file=file,
        places=found.places,
        rescaled=rescaled,
        decoders=found.decoders,
        untranslated=found.untranslated,
        weights=found.weights,
        stated={name: shape for name, shape in shapes.items() if shape is not None},
        **own,
    )
    for name, (codes, quantizer) in found.grids.items():
        graph.constants[name] = replace(graph.constants[name], quantizer=quantizer, codes=codes)
    graph.notices += found.notices
    if found.untranslated:
        kinds = ", ".join(dict.fromkeys(found.untranslated))
        graph.notices.append(f"operators without a counterpart in ONNX are measured, not simulated: {kinds}")
    return graph
