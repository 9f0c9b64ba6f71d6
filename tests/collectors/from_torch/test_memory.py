"""Torch modules within bounds: groups of layers give the numbers of one pass, and samples leave nothing behind."""

import gc
import weakref

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
from torch import nn

import quantmedic
from quantmedic.api.opening import open_pair
from quantmedic.api.options import CollectOptions
from quantmedic.collectors.data.batches import Batch
from quantmedic.engine.errors import ModelError

pytestmark = pytest.mark.thorough

SAMPLES = 24


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.second = nn.Conv2d(8, 8, 3, padding=1)
        self.last = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.first(x))
        return self.last(torch.relu(self.second(y) + y).mean((2, 3)))


class Rounded(Net):
    """The same with fake quantizers behind its layers."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        def rounded(v: torch.Tensor) -> torch.Tensor:
            return torch.fake_quantize_per_tensor_affine(v, 0.05, 0, -128, 127)

        y = rounded(torch.relu(self.first(rounded(x))))
        return self.last(rounded(torch.relu(self.second(y) + y)).mean((2, 3)))


def pair() -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    network, quantized = Net(), Rounded()
    quantized.load_state_dict(network.state_dict())
    return network, quantized


def batches(samples: int = SAMPLES):
    values = torch.randn(samples, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    return lambda: iter(values.split(8))


def test_groups_of_layers_give_the_numbers_of_one_pass() -> None:
    whole = quantmedic.collect(*pair(), validation=batches())
    for memory in (1, 20_000, 200_000):
        parts = quantmedic.collect(*pair(), validation=batches(), memory=memory)
        assert whole.record.tensors == parts.record.tensors
        for name, column in whole.statistics["validation"].columns.items():
            np.testing.assert_array_equal(column, parts.statistics["validation"].columns[name], err_msg=name)


def test_a_group_holds_no_more_than_fits() -> None:
    models, datasets = open_pair(*pair(), CollectOptions(validation=batches()))
    batch = next(datasets["validation"].batches(8))
    limit = 2 * 8 * (8 * 8 * 8 * 8)  # two tensors of eight samples and channels: float32, and as much of their codes
    models.limit_memory(limit)
    with models.as_deployed():
        view = models.view(dict(enumerate(models.pairs)), batch, 1)
        sizes = {i: 2 * view.read_tensors(batch).floats[pair.twin].nbytes for i, pair in view.pairs.items()}
    groups = view._groups(batch)
    assert [i for group in groups for i in group] == list(view.pairs)
    assert len(groups) > 1 and all(sum(sizes[i] for i in group) <= limit for group in groups)


def test_what_was_read_of_a_batch_does_not_outlive_it() -> None:
    models, datasets = open_pair(*pair(), CollectOptions(validation=batches()))
    batch: Batch = next(datasets["validation"].batches(8))
    with models.as_deployed():
        view = models.view(dict(enumerate(models.pairs)), batch, 1)
        reading = view.read_tensors(batch)
        gone = weakref.ref(reading.floats[models.pairs[1].twin])
        gc.disable()  # without the collector of circles
        try:
            del reading
            assert gone() is None
        finally:
            gc.enable()


def test_operators_by_themselves_are_refused_before_anything_is_measured() -> None:
    with pytest.raises(ModelError, match="not measured on deployed inputs") as error:
        quantmedic.collect(*pair(), validation=batches(), step_error=True)
    assert "--step-error" in (error.value.help or "")
