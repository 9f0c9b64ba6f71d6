"""Open a float torch module and its quantized counterpart with the data that tell what they are fed with."""

import torch

from quantmedic.collectors.data.datasets import Dataset
from quantmedic.collectors.from_torch.inputs import TorchData
from quantmedic.collectors.from_torch.models import TRACED_SAMPLES, TorchModels, open_torch_models
from quantmedic.collectors.from_torch.module import as_deployed, fake_quantizers_of, fixed_batch_of, require_module
from quantmedic.collectors.measure.front_end import GivenData
from quantmedic.engine.case.facts import Role
from quantmedic.engine.errors import ModelError


def open_torch(
    float_module: object, quantized_module: object, given: GivenData
) -> tuple[TorchModels, dict[Role, Dataset]]:
    """Open data and modules.

    Args:
        float_module: The float ``torch.nn.Module``.
        quantized_module: Its quantized counterpart.
        given: Data sets: functions that yield batches, iterables of batches, tensors, or files, by role.

    Raises:
        DataError: The data cannot be read or do not tell the inputs.
        ModelError: A module fails on the first batch, or the two do not belong together.
    """
    modules = require_module(float_module, "float model"), require_module(quantized_module, "quantized model")
    # Loaders draw from torch's random numbers, whose state is the user's.
    fakes = fake_quantizers_of(modules[1])
    with as_deployed(*modules):
        data = TorchData(modules[0], {role: given.sources[role] for role in sorted(given.sources, reverse=True)})
        inputs = data.inputs().in_batches_of(_samples_at_once(*modules))
        datasets = {role: given.open(role, inputs.specs, data.source(role, inputs)) for role in given.sources}
        judged = datasets.get("validation") or next(iter(datasets.values()))
        first = next(judged.batches(TRACED_SAMPLES))
        models = open_torch_models(*modules, inputs, first.inputs, given.mapping)
        models.fakes = fakes
        return models, datasets


def _samples_at_once(float_module: torch.nn.Module, quantized_module: torch.nn.Module) -> int | None:
    """Samples that both modules take at once; None: any number.

    Raises:
        ModelError: They were exported for different numbers.
    """
    sizes = [fixed_batch_of(module) for module in (float_module, quantized_module)]
    fixed = {size for size in sizes if size is not None}
    if len(fixed) > 1:
        raise ModelError(
            "the two modules were exported for batches of different sizes",
            where=f"float {sizes[0]}, quantized {sizes[1]}",
            help="export both for one size, or with torch.export.Dim.AUTO for the first axis",
        )
    return fixed.pop() if fixed else None
