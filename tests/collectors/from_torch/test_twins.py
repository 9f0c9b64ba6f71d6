"""Folded layers of torch modules stand for what was folded into them."""

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import torch
import torch.nn.functional as F
from torch import nn

import quantmedic
from quantmedic.engine.case.facts import LayerFacts
from quantmedic.engine.formulas.derive import derive

pytestmark = pytest.mark.thorough

SIDE, CHANNELS = 8, 6


class Residual(nn.Module):
    """x + conv(x), as it was trained."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)
        self.last = nn.Linear(CHANNELS, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(F.relu(self.conv(x) + x).mean((2, 3)))


class TwoInARow(nn.Module):
    """A convolution and a pointwise one behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)
        self.point = nn.Conv2d(CHANNELS, CHANNELS, 1)
        self.last = nn.Linear(CHANNELS, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(F.relu(self.point(self.conv(x))).mean((2, 3)))


class Folded(nn.Module):
    """One convolution on an 8-bit grid in place of either."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor, last: nn.Linear) -> None:
        super().__init__()
        self.conv = nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1)
        self.conv.weight.data, self.conv.bias.data = weight, bias
        self.last = last

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weight = torch.fake_quantize_per_tensor_affine(
            self.conv.weight, float(self.conv.weight.abs().max()) / 127, 0, -127, 127
        )
        y = F.relu(F.conv2d(x, weight, self.conv.bias, padding=1))
        return self.last(torch.fake_quantize_per_tensor_affine(y, float(6 / 255), 0, 0, 255).mean((2, 3)))


def layers(network: nn.Module, folded: nn.Module) -> dict[str, LayerFacts]:
    data = torch.randn(32, CHANNELS, SIDE, SIDE, generator=torch.Generator().manual_seed(2))
    case = quantmedic.collect(network.eval(), folded.eval(), validation=lambda: iter(data.split(8)))
    assert not case.record.unmatched
    return {layer.quantized_name or "": layer for layer in derive(case, quantmedic.load_rulebase()).layers}


@torch.no_grad()
def test_a_convolution_with_its_residual_branch_in_it_is_compared_with_their_sum() -> None:
    torch.manual_seed(0)
    network = Residual()
    identity = torch.zeros_like(network.conv.weight)
    identity[range(CHANNELS), range(CHANNELS), 1, 1] = 1
    found = layers(network, Folded(network.conv.weight + identity, network.conv.bias, network.last))
    conv = found["conv2d"]
    assert conv.weight.rounding.sqnr_db is not None and conv.weight.rounding.sqnr_db > 30
    assert conv.weight.similarity is not None and conv.weight.similarity > 0.99
    assert found["last"].output.data.accumulated.sqnr_db is not None
    assert found["last"].output.data.accumulated.sqnr_db > 25


@torch.no_grad()
def test_weights_of_two_convolutions_in_one_are_compared_with_neither() -> None:
    torch.manual_seed(1)
    network = TwoInARow()
    point = network.point.weight[:, :, 0, 0]
    weight = torch.einsum("om,mikl->oikl", point, network.conv.weight)
    bias = point @ network.conv.bias + network.point.bias
    found = layers(network, Folded(weight, bias, network.last))
    assert found["conv2d"].weight.quantizer.bits == 8
    assert found["conv2d"].weight.rounding.sqnr_db is None and found["conv2d"].weight.similarity is None
    # Without a grid the sum of both stages is exact, so what is left is the rounding of the folded weights.
    assert found["conv2d"].output.data.accumulated.sqnr_db is not None
    assert found["conv2d"].output.data.accumulated.sqnr_db > 25
