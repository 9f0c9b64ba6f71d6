"""Two torch modules that belong together: their calls as graphs, and how to run them."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.data.model_inputs import InputSpec
from quantmedic.collectors.from_torch.calls import Interception, tensors_of
from quantmedic.collectors.from_torch.capture import ONE_KIND
from quantmedic.collectors.from_torch.devices import move_modules
from quantmedic.collectors.from_torch.module import FakeQuantizers, as_deployed, run_error, to_array
from quantmedic.collectors.from_torch.torch_graph import TorchGraph
from quantmedic.collectors.from_torch.torch_inputs import TorchInputs
from quantmedic.collectors.measure.models import Models, Runner
from quantmedic.collectors.native.runs import run_python
from quantmedic.collectors.pair.graph import Operator
from quantmedic.engine.errors import ModelError, QuantmedicError

Array = NDArray[np.generic]
Float32 = NDArray[np.float32]
#: Modules that a notice names.
_NAMES_TOLD = 8


@dataclass(frozen=True)
class Collapsed:
    """A convolution into which the branch around it was folded.

    Attributes:
        operator: The float convolution without the branch.
        added: What the branch has added to its weights.
        folded: A normalization behind it is part of them too.
    """

    operator: Operator
    added: Float32
    folded: bool


@dataclass
class TorchPair(Models):
    """Two modules and their runs. One batch runs at a time, for modules keep state while they run."""

    framework: ClassVar[str] = "torch"
    observes_groups: ClassVar[bool] = True

    float_graph: TorchGraph
    quantized: TorchGraph
    float_module: torch.nn.Module = field(kw_only=True)
    quantized_module: torch.nn.Module = field(kw_only=True)
    inputs: TorchInputs = field(kw_only=True)
    collapsed: dict[int, Collapsed] = field(default_factory=dict, kw_only=True)
    """Layers that a residual branch was folded into, by the index of the quantized operator."""
    fakes: FakeQuantizers = field(default=FakeQuantizers(), kw_only=True)
    """Fake quantizers of the quantized module as it was given."""
    lock: threading.RLock = field(default_factory=threading.RLock, kw_only=True)

    @property
    def input_specs(self) -> list[InputSpec]:
        """Inputs that a data set has to supply."""
        return list(self.inputs.specs)

    @property
    def shapes(self) -> Mapping[str, tuple[int | None, ...]]:
        """Shapes of the traced batch; None for the axis of the samples."""
        return self.float_graph.shapes

    def run_on(self, device: str) -> None:
        """Move both modules to a device, where they stay; what reads no parameters goes on running on the processor.

        Raises:
            ModelError: torch has no such device here, or a module cannot be moved there.
        """
        place = move_modules((self.float_module, self.quantized_module), device)
        if place.type != "cpu":
            self.float_graph.notices.append(f"both modules were moved to {place}")

    @contextmanager
    def as_deployed(self) -> Iterator[None]:
        """Context in which both modules run as deployed; they are as before afterwards."""
        with as_deployed(self.float_module, self.quantized_module):
            yield

    def float_runner(self, threads: int) -> Runner:
        """Runs the float module."""
        positions = [i for i, _ in self.match.outputs]
        return lambda batch: arrays_of(self.run_float(batch, None), positions)

    def quantized_runner(self, threads: int, changed: Callable[[], Interception] | None = None) -> Runner:
        """Runs the quantized module; ``changed`` makes the interception that changes a run."""
        positions = [j for _, j in self.match.outputs]
        return lambda batch: arrays_of(self.run_quantized(batch, changed() if changed is not None else None), positions)

    def run_float(self, batch: Batch, mode: Interception | None) -> list[torch.Tensor]:
        """Outputs of the float module, in the order of its graph's, under an interception.

        Raises:
            ModelError: It fails on this batch, or returns something else than on the first one.
        """
        return self._run(self.float_module, self.float_graph, batch, mode, "float model")

    def run_quantized(self, batch: Batch, mode: Interception | None) -> list[torch.Tensor]:
        """The same of the quantized module."""
        return self._run(self.quantized_module, self.quantized, batch, mode, "quantized model")

    def _run(
        self, module: torch.nn.Module, graph: TorchGraph, batch: Batch, mode: Interception | None, what: str
    ) -> list[torch.Tensor]:
        with self.lock, torch.no_grad():
            tensors = self.inputs.tensors(batch.inputs, module)
            found = tensors_of(call_module(module, self.inputs, tensors, mode, what, batch.inputs))
        if len(found) != graph.returned:
            raise ModelError(
                f"the {what} returns something else from batch to batch",
                where=f"tensors: {graph.returned} on the first batch, now {len(found)}",
                help=ONE_KIND,
            )
        return [found[position] for position in graph.positions]

    def note_fast_path(self) -> None:
        """Tell which modules torch computes in one kernel when nobody looks, so that quantizers within do nothing."""
        if not torch.backends.mha.get_fastpath_enabled():
            return
        parts = self.quantized_module.named_modules()
        names = [name for name, part in parts if isinstance(part, torch.nn.TransformerEncoderLayer)]
        notice = (
            f"torch computes {', '.join(names[:_NAMES_TOLD])} in one kernel, which leaves quantizers within out: call "
            "torch.backends.mha.set_fastpath_enabled(False) to let them count"
        )
        if names and notice not in self.quantized.notices:
            self.quantized.notices.append(notice)


def arrays_of(outputs: Sequence[torch.Tensor], positions: Sequence[int]) -> list[Float32]:
    """Outputs at these positions, as float32 arrays."""
    found = [outputs[i] for i in positions]
    return [np.asarray(to_array(t.dequantize() if t.is_quantized else t), np.float32) for t in found]


def call_module(
    module: torch.nn.Module,
    inputs: TorchInputs,
    tensors: Mapping[str, torch.Tensor],
    mode: Interception | None,
    what: str,
    fed: Mapping[str, Array],
) -> object:
    """What a module returns, under an interception.

    Raises:
        ModelError: It fails; ``what`` and ``fed`` tell which module, and on what.
    """
    try:
        with mode or nullcontext():
            return run_python(lambda: inputs.call(module, tensors), what)
    except (QuantmedicError, KeyboardInterrupt):
        raise
    except BaseException as error:  # The module is code of the user, and may end the process.
        raise run_error(error, what, fed) from error
