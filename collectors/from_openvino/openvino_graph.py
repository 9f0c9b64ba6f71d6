"""The graph of an OpenVINO model, read from its translation to ONNX."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_onnx.parse import parse
from quantmedic.collectors.from_openvino.dropped_bounds import Dropped
from quantmedic.collectors.from_openvino.folded_factors import Factor, Rescaled, unfold
from quantmedic.collectors.from_openvino.openvino_constants import shape_of
from quantmedic.collectors.from_openvino.openvino_file import IrModel
from quantmedic.collectors.from_openvino.openvino_site import Place
from quantmedic.collectors.from_openvino.openvino_translation import Translation
from quantmedic.collectors.from_translation.translated_models import TranslatedGraph, fields_of
from quantmedic.collectors.pair.feed import feed_of
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
class OpenVINOGraph(TranslatedGraph[Place]):
    """The graph of an OpenVINO model; its places are those where OpenVINO has each tensor, or a neighbour of it.

    Attributes:
        file: What the files hold.
        rescaled: How values follow from those of the neighbour, for tensors between a layer and a factor that was
            folded into it.
        decoders: Grids of the codes that it writes, by tensor.
        weights: Real values of constants that are stored as codes, by the place of the operator that makes them.
        stated: Shapes as OpenVINO infers them, by tensor.
        exposed: How tensors are shown, as far as it was found out: by what FakeQuantize writes, and other tensors.
    """

    file: IrModel
    rescaled: Mapping[str, Rescaled]
    decoders: Mapping[str, Quantizer]
    weights: Mapping[int, Float32]
    stated: Mapping[str, Shape]
    exposed: dict[tuple[frozenset[Place], frozenset[Place]], Exposed] = field(default_factory=dict)

    @property
    def files(self) -> list[Path]:
        """The .xml file and the .bin file."""
        return self.file.files

    def feed(self, batch: Batch) -> list[Array]:
        """What the inputs of the model take of a batch, in their order and types."""
        fed = feed_of(batch, self)
        return [_as_typed(fed[spec.name], spec.dtype) for spec in self.input_specs]

    def shown_by(self, name: str) -> str:
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
        found = Translation(file.model, dropped or {})
        model, places, rescaled = unfold(found.model, found.places, factors)
    except (ValueError, LookupError, TypeError, ArithmeticError, RuntimeError) as error:
        raise ModelError(
            "the model is damaged",
            where=f"{file.path}: {error or type(error).__name__}",
            help="write it again with openvino.save_model",
        ) from error
    operators = file.model.get_ordered_ops()
    shapes = {name: shape_of(operators[at.operator].output(at.output)) for name, at in places.items()}
    graph = OpenVINOGraph(
        file=file,
        places=places,
        rescaled=rescaled,
        decoders=found.decoders,
        untranslated=tuple(found.untranslated),
        weights=found.weights(),
        stated={name: shape for name, shape in shapes.items() if shape is not None},
        **fields_of(parse(file.path, model)),
    )
    graph.give_grids(found.grids)
    graph.add_notices(found.notices)
    return graph


def _as_typed(array: Array, kind: np.dtype[np.generic] | None) -> Array:
    return array if kind is None or array.dtype == kind else array.astype(kind)
