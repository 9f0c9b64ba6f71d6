"""Two checkpoints that are compared, and one layer of them: what the steps of a comparison hand on."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.from_checkpoint.layers.output_gains import ChannelGains
from quantmedic.collectors.from_checkpoint.layers.weight_slices import slices
from quantmedic.collectors.from_checkpoint.safetensors_file import Checkpoint, Stored
from quantmedic.collectors.from_checkpoint.weight_values import Opened
from quantmedic.engine.case.facts import WeightFacts

#: Rounding to bfloat16 changes a number by at most this share of it; float16 loses what is smaller than its least step.
_BFLOAT16, _FLOAT16_STEP = 2.0**-8, 2.0**-24


@dataclass
class Pair:
    """Both checkpoints, and what comparing them has found.

    Attributes:
        names: Names in the quantized checkpoint by the name in the float one.
        missing: Float tensors without a counterpart.
        mismatched: Tensors that cannot be compared, and why.
        altered: Tensors that changed although they are not quantized.
        left: Weights that are float in both.
        hidden: Width of the model, as far as its vectors tell.
    """

    floats: Checkpoint
    quantized: Opened
    names: Mapping[str, str]
    notices: list[str]
    missing: list[str] = field(default_factory=list)
    mismatched: list[str] = field(default_factory=list)
    altered: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    hidden: int | None = None


@dataclass(frozen=True)
class Layer:
    """One operator to be, with its name in both checkpoints, the number of its inputs and the gains of its channels."""

    name: str
    quantized_name: str
    facts: WeightFacts
    inputs: int
    gains: ChannelGains = field(default_factory=ChannelGains)

    def with_facts(self, **more: object) -> "Layer":
        """The same with other values of these facts."""
        return replace(self, facts=self.facts.model_copy(update=more))

    @property
    def columns(self) -> NDArray[np.float64]:
        """Gains of its inputs; 1 where it has none, no number where too little is left of a channel."""
        found = np.array(self.gains.columns, float) if self.gains.columns else np.ones(self.inputs)
        found[[*self.gains.unsure]] = np.nan
        return found


def differs(tensor: Stored, twin: Stored) -> bool:
    """Some element differs by more than a rounding to bfloat16 explains."""
    width = math.prod(tensor.shape[1:]) if tensor.shape else 1
    for rows in slices(tensor.rows, width, 1):
        part = rows if tensor.shape else None
        mine, theirs = tensor.load(part), twin.load(part)
        if tensor.dtype == twin.dtype and np.array_equal(mine.view(np.uint8), theirs.view(np.uint8)):
            continue
        a, b = tensor.floats(part), twin.floats(part)
        with np.errstate(invalid="ignore"):
            close = (np.abs(a - b) <= _BFLOAT16 * np.abs(a) + _FLOAT16_STEP) | (a == b) | (np.isnan(a) & np.isnan(b))
        if not close.all():
            return True
    return False
