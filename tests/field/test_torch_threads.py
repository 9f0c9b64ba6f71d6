"""Threads about PyTorch's own tools, rebuilt with them."""

import copy
import dataclasses
from collections.abc import Callable, Iterator
from functools import cache

import pytest
from builders.field_patients import images, labels, rules

import quantmedic
from quantmedic.engine.contract.diagnosis import Diagnosis

torch = pytest.importorskip("torch", reason="torch is not installed")
pytestmark = pytest.mark.thorough

SEEN = 256


class Network(torch.nn.Module):  # type: ignore[misc, name-defined]
    """Three convolutions with SiLU, as in EfficientNet, and a linear layer on their averages."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(1, 32, 5, stride=2)
        self.second = torch.nn.Conv2d(32, 32, 3, stride=2)
        self.third = torch.nn.Conv2d(32, 32, 3)
        self.classes = torch.nn.Linear(32, 10)

    def forward(self, image):  # type: ignore[no-untyped-def]
        silu = torch.nn.functional.silu
        x = silu(self.third(silu(self.second(silu(self.first(image))))))
        return self.classes(x.mean((2, 3)))


@cache
def trained() -> Network:
    """The network after a short training on the demo's pictures."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = Network()
        x, y = torch.from_numpy(images("representative", 500)), torch.from_numpy(labels("representative", 500))
        optimizer = torch.optim.Adam(net.parameters(), 3e-3)
        for _ in range(150):
            chosen = torch.randperm(len(x))[:128]
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(x[chosen]), y[chosen]).backward()
            optimizer.step()
    return net.eval()


def batches(role: str) -> Callable[[], Iterator[object]]:
    """The demo's pictures, with labels where they validate."""

    def give() -> Iterator[object]:
        for start in range(0, SEEN, 64):
            x = torch.from_numpy(images(role, SEEN)[start : start + 64])
            yield (x, labels(role, SEEN)[start : start + 64]) if role == "validation" else x

    return give


def judged(net: object, quantized: object) -> Diagnosis:
    data = {role: batches(role) for role in ("representative", "validation")}
    return quantmedic.diagnose(net, quantized, **data, rules=rules(), threads=1)


# --- extremes on a symmetric grid ------------------------------------------------------------------------------------


def with_rare_extremes(size: float) -> Network:
    """One channel of the second layer is shut in all but one place of 700, where it is huge; nothing reads it."""
    net = copy.deepcopy(trained())
    with torch.no_grad():
        x = torch.nn.functional.silu(net.first(torch.from_numpy(images("representative", SEEN))))
        weight = 0.1 * torch.randn(net.second.weight[3].shape, generator=torch.Generator().manual_seed(3))
        reached = torch.nn.functional.conv2d(x, weight[None], stride=2)
        net.second.weight[3] = size * weight
        net.second.bias[3] = -size * torch.quantile(reached.flatten(), 0.9985)
        net.third.weight[:, 3] = 0
    return net


def exported(net: Network, observer: str) -> object:
    """Quantized by pt2e: activations on a symmetric grid, whose ends an observer chooses."""
    pt2e = pytest.importorskip("torchao.quantization.pt2e", reason="torchao is not installed")
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e
    from torchao.quantization.pt2e.quantizer import QuantizationSpec
    from torchao.quantization.pt2e.quantizer.x86_inductor_quantizer import (
        X86InductorQuantizer,
        get_default_x86_inductor_quantization_config,
    )

    codes = {"dtype": torch.int8, "quant_min": -127, "quant_max": 127, "is_dynamic": False}
    seen, per_channel = (getattr(pt2e, name).with_args(eps=2**-12) for name in (observer, "PerChannelMinMaxObserver"))
    symmetric, along = torch.per_tensor_symmetric, torch.per_channel_symmetric
    config = dataclasses.replace(
        get_default_x86_inductor_quantization_config(),
        input_activation=QuantizationSpec(**codes, qscheme=symmetric, observer_or_fake_quant_ctr=seen),
        weight=QuantizationSpec(**codes, qscheme=along, ch_axis=0, observer_or_fake_quant_ctr=per_channel),
    )
    x = torch.from_numpy(images("representative", SEEN))
    shapes = ({0: torch.export.Dim("samples", min=1, max=4096)},)
    program = torch.export.export(copy.deepcopy(net), (x,), dynamic_shapes=shapes).module()
    prepared = prepare_pt2e(program, X86InductorQuantizer().set_global(config))
    prepared(x)
    return convert_pt2e(prepared)


@pytest.mark.nightly
def test_extremes_set_the_step_of_a_symmetric_grid() -> None:
    """fasterai#55: a min-max observer on a symmetric grid; with the histogram observer the accuracy comes back."""
    net = with_rare_extremes(2000)
    diagnosis = judged(net, exported(net, "MinMaxObserver"))
    told = [(cause.cause, cause.subjects) for cause in diagnosis.causes if cause.explained_by is None]
    assert diagnosis.verdict == "degraded"
    assert told == [("activation-outliers", ("silu_1",))]
    mended = judged(net, exported(net, "HistogramObserver"))
    assert mended.verdict == "healthy" and mended.model.fake_quantizers == 0


# --- observers that go on --------------------------------------------------------------------------------------------


def prepared() -> object:
    """Fake quantizers of 8 bits that have seen the pictures."""
    ao = torch.ao.quantization
    weight = ao.FakeQuantize.with_args(
        observer=ao.MovingAveragePerChannelMinMaxObserver,
        quant_min=-127,
        quant_max=127,
        dtype=torch.qint8,
        qscheme=torch.per_channel_symmetric,
    )
    seen = ao.FakeQuantize.with_args(observer=ao.MovingAverageMinMaxObserver, quant_min=0, quant_max=255)
    net = copy.deepcopy(trained()).train()
    net.qconfig = ao.QConfig(activation=seen, weight=weight)
    net = ao.prepare_qat(net)
    net(torch.from_numpy(images("representative", SEEN)))
    return net


@pytest.mark.nightly
def test_observers_that_go_on_where_nothing_is_rounded() -> None:
    """pytorch/ao#2138: fake quantizers of some layers were switched off, and only the converted model was bad."""
    net = prepared()
    for layer in (net.second, net.third):  # type: ignore[attr-defined]
        layer.weight_fake_quant.disable_fake_quant()
    diagnosis = judged(trained(), net)
    assert diagnosis.causes[0].cause == "observer-moved"
    assert diagnosis.model.idle_fake_quantizer_names == ("second.weight_fake_quant", "third.weight_fake_quant")
    for layer in (net.second, net.third):  # type: ignore[attr-defined]
        assert bool(layer.weight_fake_quant.observer_enabled), "the module is as it was given"
        layer.weight_fake_quant.disable_observer()
    assert "observer-moved" not in [cause.cause for cause in judged(trained(), net).causes]


@pytest.mark.nightly
def test_fake_quantizers_that_observe_and_round_are_no_cause() -> None:
    """As every training with quantizers in it begins."""
    diagnosis = judged(trained(), prepared())
    assert diagnosis.model.fake_quantizers and diagnosis.model.idle_fake_quantizers == 0
    assert "observer-moved" not in [cause.cause for cause in diagnosis.causes]
