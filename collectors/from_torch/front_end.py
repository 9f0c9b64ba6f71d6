"""Torch modules as a front end. Nothing here needs torch, so that files are opened where it is not installed.

A float module by itself shows its parameters; what it computes would take data to find out.
"""

import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, cast

from quantmedic.collectors.data.datasets import Dataset
from quantmedic.collectors.measure.float_model import FloatModel
from quantmedic.collectors.measure.front_end import FrontEnd, GivenData
from quantmedic.collectors.measure.models import Models
from quantmedic.engine.case.facts import FloatFacts, ModelFacts, Role
from quantmedic.engine.errors import ModelError

if TYPE_CHECKING:
    import torch  # an optional package; who gives a module has it


class _TorchFrontEnd(FrontEnd):
    """Runs modules; any other object that no front end recognizes is refused when it is opened."""

    name: ClassVar[str] = "torch"
    title: ClassVar[str] = "torch"

    def recognizes(self, model: object) -> bool:
        """Any module: there is none before torch is imported."""
        torch = sys.modules.get("torch")
        return torch is not None and isinstance(model, torch.nn.Module)

    def takes_rest(self, model: object) -> bool:
        """Any object that is no path."""
        return not isinstance(model, str | Path)

    def open(
        self, float_model: object, quantized_model: object, given: GivenData
    ) -> tuple[Models, dict[Role, Dataset]]:
        """Open data and modules: the data tell what the modules are fed with; see ``FrontEnd``."""
        try:
            from quantmedic.collectors.from_torch.torch_models import open_torch  # torch is an optional package
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] != "torch":
                raise
            raise ModelError(
                "these models are neither files nor can torch be imported",
                where=_kinds(float_model, quantized_model),
                help="give paths of ONNX or LiteRT files, or install torch for torch modules: "
                "pip install 'quantmedic[torch]'",
            ) from error
        return open_torch(float_model, quantized_model, given)

    def open_files(self, float_model: object, quantized_model: object) -> Models:
        """Refuse modules without data; see ``FrontEnd``."""
        raise ModelError(
            "torch modules cannot be judged without data: what they compute is found out by running them",
            where=_kinds(float_model, quantized_model),
            help="leave --static out and pass the calibration data with --representative",
        )

    def as_deployed(self, *models: object) -> AbstractContextManager[None]:
        """Modules do not train, and fake quantizers do not observe."""
        from quantmedic.collectors.from_torch.module import as_deployed, require_module  # torch is an optional package

        return as_deployed(*(require_module(model, "model") for model in models))

    def read_float(self, model: object) -> FloatModel:
        """What the parameters and buffers of a module tell.

        Raises:
            ModelError: It is no module.
        """
        if not self.recognizes(model):
            raise ModelError(
                "the float model is neither a file nor a torch.nn.Module",
                where=type(model).__name__,
                help="give the path of an ONNX or LiteRT file, or the module itself",
            )
        module = cast("torch.nn.Module", model)
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        broken = [name for name, tensor in tensors.items() if not bool(tensor.isfinite().all())]
        facts = FloatFacts(
            format="torch",
            operators=sum(1 for child in module.modules() if not list(child.children())),
            constant_bytes=sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()),
            nonfinite_constants=len(broken),
            first_nonfinite_constant=broken[0] if broken else None,
        )
        return FloatModel(ModelFacts(name=type(model).__name__, float_model=facts))


def _kinds(float_model: object, quantized_model: object) -> list[str]:
    return [f"float     {type(float_model).__name__}", f"quantized {type(quantized_model).__name__}"]


FRONT_END: FrontEnd = _TorchFrontEnd()
