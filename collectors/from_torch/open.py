"""Measure a float torch module and its quantized counterpart; the passes over the data are those of ``measure``."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.data.datasets import Dataset, open_dataset
from quantmedic.collectors.data.preprocessing import Preprocessing
from quantmedic.collectors.from_torch.inputs import TorchData
from quantmedic.collectors.from_torch.models import TRACED_SAMPLES, TorchModels, open_torch_models
from quantmedic.collectors.from_torch.module import as_deployed, opened
from quantmedic.engine.case.facts import Role

Array = NDArray[np.generic]
_NOTHING_DECLARED = Preprocessing()


def open_torch(
    float_module: Any,
    quantized_module: Any,
    given: Mapping[Role, Any],
    *,
    preprocessing: Mapping[Role, Preprocessing],
    labels: Any,
    mapping: Mapping[str, str] | None,
) -> tuple[TorchModels, dict[Role, Dataset]]:
    """Open data and modules: the data tell what the modules are fed with.

    Args:
        float_module: The float ``torch.nn.Module``.
        quantized_module: Its quantized counterpart.
        given: Data sets: functions that yield batches, iterables of batches, tensors, or files, by role.
        preprocessing: What is declared for stored pixels.
        labels: Labels of the judged set.
        mapping: See ``open_torch_models``.

    Raises:
        DataError: The data cannot be read or do not tell the inputs.
        ModelError: A module fails on the first batch, or the two do not belong together.
    """
    modules = opened(float_module, "float model"), opened(quantized_module, "quantized model")
    # Loaders draw from torch's random numbers, whose state is the user's.
    with as_deployed(*modules):
        data = TorchData(modules[0], {role: given[role] for role in sorted(given, reverse=True)})
        inputs = data.inputs()
        datasets = {
            role: open_dataset(
                data.source(role, inputs),
                inputs.specs,
                preprocessing=preprocessing.get(role, _NOTHING_DECLARED),
                labels=labels if role == "validation" or "validation" not in given else None,
                role=role,
            )
            for role in given
        }
        judged = datasets.get("validation") or next(iter(datasets.values()))
        first = next(judged.batches(TRACED_SAMPLES))
        return open_torch_models(*modules, inputs, first.inputs, mapping), datasets
