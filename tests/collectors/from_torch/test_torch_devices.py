"""Modules on devices of torch: where they are told to run, and that tensors are measured as on the processor."""

import numpy as np
import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
from torch import nn

import quantmedic
from quantmedic.collectors.from_torch.module import to_array
from quantmedic.engine.errors import ModelError

pytestmark = pytest.mark.thorough


def test_tensors_of_any_precision_are_measured_as_float32_and_codes_keep_their_type():
    for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.float32):
        tensor = torch.randn(3, 5, 7, dtype=torch.float64).to(dtype)
        found = to_array(tensor)
        assert found.dtype == np.float32
        np.testing.assert_array_equal(found, tensor.float().numpy())
    quantized = torch.quantize_per_tensor(torch.randn(2, 3), 0.1, 3, torch.qint8)
    assert to_array(quantized).dtype == np.int8
    assert to_array(torch.zeros(2, dtype=torch.int64)).dtype == np.int64


class Net(nn.Module):
    def __init__(self, *, rounds: bool) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.last = nn.Linear(8, 4)
        self.rounds = rounds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.rounded(self.first(self.rounded(x)))
        return self.last(self.rounded(torch.relu_(x)).mean((2, 3)))

    def rounded(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fake_quantize_per_tensor_affine(x, 0.05, 0, -128, 127) if self.rounds else x


def pair() -> tuple[Net, Net]:
    torch.manual_seed(0)
    network, quantized = Net(rounds=False), Net(rounds=True)
    quantized.load_state_dict(network.state_dict())
    return network, quantized


def test_a_device_that_torch_lacks_is_refused():
    for device in ("nowhere", "meta"):
        with pytest.raises(ModelError, match="torch cannot use this device"):
            quantmedic.collect(*pair(), validation=torch.randn(2, 3, 8, 8), device=device)


def test_modules_may_be_told_to_stay_on_the_processor():
    case = quantmedic.collect(*pair(), validation=torch.randn(2, 3, 8, 8), device="cpu")
    assert case.record.run["device"] == "cpu"
    assert not [notice for notice in case.record.notices if "moved" in notice]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA here")
def test_a_case_of_cuda_is_that_of_the_processor():
    network, quantized = pair()
    x = torch.randn(12, 3, 8, 8)
    plain, on_device = (quantmedic.collect(network, quantized, validation=x, device=name) for name in ("cpu", "cuda"))
    assert any("moved to cuda" in notice for notice in on_device.record.notices)
    for name in ("min", "max", "mean"):
        found, wanted = (case.statistics["validation"].columns[name] for case in (on_device, plain))
        np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-3, err_msg=name)
