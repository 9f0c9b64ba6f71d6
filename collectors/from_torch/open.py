"""Open a float torch module and its quantized counterpart with the data that tell what they are fed with."""

from quantmedic.collectors.data.datasets import Dataset
from quantmedic.collectors.from_torch.inputs import TorchData
from quantmedic.collectors.from_torch.models import TRACED_SAMPLES, TorchModels, open_torch_models
from quantmedic.collectors.from_torch.module import as_deployed, require_module
from quantmedic.collectors.measure.front_end import GivenData
from quantmedic.engine.case.facts import Role


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
    with as_deployed(*modules):
        data = TorchData(modules[0], {role: given.sources[role] for role in sorted(given.sources, reverse=True)})
        inputs = data.inputs()
        datasets = {role: given.open(role, inputs.specs, data.source(role, inputs)) for role in given.sources}
        judged = datasets.get("validation") or next(iter(datasets.values()))
        first = next(judged.batches(TRACED_SAMPLES))
        return open_torch_models(*modules, inputs, first.inputs, given.mapping), datasets
