"""Two checkpoints that are compared, and one layer of them: what the steps of a comparison hand on."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from quantmedic.collectors.from_checkpoint.output_gains import ChannelGains
from quantmedic.collectors.from_checkpoint.packed_layer import PackedLayer
from quantmedic.collectors.from_checkpoint.safetensors_file import Checkpoint
from quantmedic.engine.case.facts import WeightFacts


@dataclass
class Pair:
    """Both checkpoints, and what comparing them has found.

    Attributes:
        layers: Quantized layers that can be read, by name.
        refused: Why others cannot be read, by name.
        names: Names in the quantized checkpoint by the name in the float one.
        missing: Float tensors without a counterpart.
        mismatched: Tensors that cannot be compared, and why.
        altered: Tensors that changed although they are not quantized.
        left: Weights that are float in both.
        hidden: Width of the model, as far as its vectors tell.
    """

    floats: Checkpoint
    quantized: Checkpoint
    layers: dict[str, PackedLayer]
    refused: Mapping[str, str]
    names: Mapping[str, str]
    notices: list[str]
    missing: list[str] = field(default_factory=list)
    mismatched: list[str] = field(default_factory=list)
    altered: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    hidden: int | None = None


@dataclass(frozen=True)
class Layer:
    """One operator to be, with its name in both checkpoints."""

    name: str
    quantized_name: str
    facts: WeightFacts
    is_embedding: bool
    gains: ChannelGains = field(default_factory=ChannelGains)
