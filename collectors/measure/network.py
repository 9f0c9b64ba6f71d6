"""One model by itself, as what measures stages of a toolchain sees it."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.data.model_inputs import InputSpec
from quantmedic.collectors.measure.models import Array


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
