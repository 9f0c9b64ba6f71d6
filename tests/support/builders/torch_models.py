"""Small torch modules, and what the toolchains make of them."""

import copy
import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

Tensor = torch.Tensor
warnings.filterwarnings("ignore", category=DeprecationWarning)
warnings.filterwarnings("ignore", category=FutureWarning)


def images(n: int = 24, seed: int = 7) -> Tensor:
    return torch.randn(n, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


def rows(n: int = 24, width: int = 16, seed: int = 7) -> Tensor:
    return torch.randn(n, width, generator=torch.Generator().manual_seed(seed))


def steps(n: int = 24, length: int = 5, width: int = 16, seed: int = 7) -> Tensor:
    return torch.randn(n, length, width, generator=torch.Generator().manual_seed(seed))


def batches(x: Any, size: int = 8) -> Callable[[], Iterator[Any]]:
    """A function that yields the samples of a tensor in batches."""

    def made() -> Iterator[Any]:
        for start in range(0, len(x), size):
            yield x[start : start + size]

    return made


# --- float modules ---------------------------------------------------------------------------------------------------


class ConvNet(nn.Module):
    """conv1, bn1, relu, conv2, a sum, F.silu, cat, mean, fc: 3 x 8 x 8 images to 5 scores."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 4, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(4)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(4, 4, 3, padding=1)
        self.fc = nn.Linear(8, 5)

    def forward(self, image: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(image)))
        z = F.silu(self.conv2(y) + y)
        return self.fc(torch.cat([y, z], 1).mean((2, 3)))


class Dense(nn.Sequential):
    """Two linear layers with a ReLU between: 64 numbers to 8."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8))


class Transformer(nn.Module):
    """Attention by itself, then a whole encoder layer: 5 steps of 16 numbers to 3."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.encoder = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        mixed, _ = self.attention(x, x, x)
        return self.head(self.encoder(x + mixed).mean(1))


class Recurrent(nn.Module):
    """An LSTM and a linear layer on its last step."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(16, 12, batch_first=True)
        self.fc = nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.lstm(x)[0][:, -1])


class TwoInputs(nn.Module):
    """Two inputs that are added up behind a layer each; the second may be left to its keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 8), nn.Linear(12, 8)
        self.fc = nn.Linear(8, 4)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.fc(F.relu(self.a(left) + self.b(right)))


class Keywords(TwoInputs):
    """The same with arguments that can only be named."""

    def forward(self, *, left: Tensor, right: Tensor) -> Tensor:  # type: ignore[override]
        return super().forward(left, right)


class InPlace(nn.Module):
    """Memory is written to twice: by ReLU, and by +=."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.fc = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.conv1(x))
        z = self.conv2(y)
        z += y
        return self.fc(self.relu(z).mean((2, 3)))


class Shared(nn.Module):
    """One layer that is called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.fc = nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(F.relu(self.layer(F.relu(self.layer(x)))))


class Many(nn.Module):
    """Two outputs, as a tuple or under names."""

    def __init__(self, kind: str = "tuple") -> None:
        super().__init__()
        self.kind = kind
        self.body, self.first, self.second = nn.Linear(16, 16), nn.Linear(16, 3), nn.Linear(16, 7)

    def forward(self, x: Tensor) -> Any:
        y = F.relu(self.body(x))
        found = {"first": self.first(y), "second": self.second(y)}
        return found if self.kind == "dict" else tuple(found.values())


def made(kind: Callable[..., nn.Module], *arguments: Any, seed: int = 0) -> nn.Module:
    """A module in eval mode with weights of its own, and statistics as training would leave them."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = kind(*arguments).eval()
        for part in net.modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm):
                part.running_mean.normal_(0, 0.3)  # type: ignore[union-attr]
                part.running_var.uniform_(0.5, 2)  # type: ignore[union-attr]
                part.weight.data.uniform_(0.5, 1.5)
                part.bias.data.normal_(0, 0.3)
    return net


# --- what toolchains make of them ------------------------------------------------------------------------------------


def fx_prepared(net: nn.Module, x: Tensor) -> nn.Module:
    """With observers that have seen ``x``."""
    from torch.ao.quantization import get_default_qconfig_mapping, quantize_fx

    prepared = quantize_fx.prepare_fx(copy.deepcopy(net), get_default_qconfig_mapping("x86"), (x,))
    prepared(x)
    return prepared


def fx(net: nn.Module, x: Tensor) -> nn.Module:
    """Integer kernels."""
    from torch.ao.quantization import quantize_fx

    return quantize_fx.convert_fx(fx_prepared(net, x))


def fx_reference(net: nn.Module, x: Tensor) -> nn.Module:
    """Codes that are taken back before each float operator."""
    from torch.ao.quantization import quantize_fx

    return quantize_fx.convert_to_reference_fx(fx_prepared(net, x))


def fx_qat(net: nn.Module, x: Tensor) -> nn.Module:
    """Fake quantizers, the normalization still beside its layer."""
    from torch.ao.quantization import get_default_qat_qconfig_mapping, quantize_fx

    mapping = get_default_qat_qconfig_mapping("x86")
    prepared = quantize_fx.prepare_qat_fx(copy.deepcopy(net).train(), mapping, (x,))
    return _calibrated(prepared, x)


def eager(net: nn.Module, x: Tensor) -> nn.Module:
    """Fake quantizers that forward hooks call, as the eager mode attaches them."""
    from torch.ao.quantization import get_default_qat_qconfig, prepare_qat

    net = copy.deepcopy(net).train()
    net.qconfig = get_default_qat_qconfig("x86")  # type: ignore[assignment]
    return _calibrated(prepare_qat(net), x)


def _calibrated(net: nn.Module, x: Tensor) -> nn.Module:
    """Fake quantizers that have seen ``x`` and observe no more."""
    net.eval()(x)
    return net.apply(torch.ao.quantization.disable_observer)


def pt2e_prepared(net: nn.Module, x: Tensor) -> nn.Module:
    """An exported program with observers that have seen ``x``."""
    pytest.importorskip("torchao", reason="torchao is not installed")
    from torchao.quantization.pt2e.quantize_pt2e import prepare_pt2e
    from torchao.quantization.pt2e.quantizer.x86_inductor_quantizer import (
        X86InductorQuantizer,
        get_default_x86_inductor_quantization_config,
    )

    shapes = ({0: torch.export.Dim("samples", min=1, max=4096)},)
    program = torch.export.export(copy.deepcopy(net), (x,), dynamic_shapes=shapes).module()
    quantizer = X86InductorQuantizer().set_global(get_default_x86_inductor_quantization_config())
    prepared = prepare_pt2e(program, quantizer)
    prepared(x)
    return prepared


def pt2e(net: nn.Module, x: Tensor) -> nn.Module:
    """The same with quantizers."""
    prepared = pt2e_prepared(net, x)
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e

    return convert_pt2e(prepared)


def _torchao(config: str, **options: Any) -> Callable[[nn.Module, Tensor], nn.Module]:
    def quantized(net: nn.Module, x: Tensor) -> nn.Module:
        quantization = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
        found = copy.deepcopy(net)
        given = {name: value() if callable(value) else value for name, value in options.items()}
        quantization.quantize_(found, getattr(quantization, config)(**given))
        return found

    return quantized


def _groups() -> Any:
    from torchao.quantization import PerGroup

    return PerGroup(32)


int8_weights = _torchao("Int8WeightOnlyConfig")
int8_dynamic = _torchao("Int8DynamicActivationInt8WeightConfig")
int4_weights = _torchao("IntxWeightOnlyConfig", weight_dtype=lambda: torch.int4, granularity=_groups)
int8_dynamic_int4 = _torchao("Int8DynamicActivationIntxWeightConfig", weight_dtype=lambda: torch.int4)


def int8_static(net: nn.Module, x: Tensor) -> nn.Module:
    """Weights that prescribe one grid for the activations that they are multiplied with."""
    quantization = pytest.importorskip("torchao.quantization", reason="torchao is not installed")
    from torchao.quantization import Int8StaticActivationInt8WeightConfig, PerRow, PerTensor

    found = copy.deepcopy(net)
    seen: dict[nn.Module, Tensor] = {}
    for part in found.modules():
        if isinstance(part, nn.Linear):
            part.register_forward_pre_hook(lambda own, given: seen.update({own: given[0]}))
    found(x)
    for name, part in found.named_modules():
        if isinstance(part, nn.Linear):
            part._forward_pre_hooks.clear()
            scale = (seen[part].abs().max() / 127).reshape(1, 1)
            config = Int8StaticActivationInt8WeightConfig(act_quant_scale=scale, granularity=[PerTensor(), PerRow()])
            quantization.quantize_(found, config, filter_fn=lambda own, path, name=name: path == name)
    return found


def rounded(net: nn.Module, x: Any, bits: int = 8) -> nn.Module:
    """A copy whose linear layers have fake-quantized weights and results: a toolchain of one's own."""
    found = copy.deepcopy(net)
    layers = []
    for name, part in list(found.named_modules()):
        if type(part) is nn.Linear:
            parent, _, own = name.rpartition(".")
            layers.append(RoundedLinear(part, bits))
            setattr(found.get_submodule(parent), own, layers[-1])
    with torch.no_grad(), without_fast_path():
        found(*x) if isinstance(x, tuple) else found(**x) if isinstance(x, dict) else found(x)
    for layer in layers:
        layer.observing = False
    return found.eval()


@contextmanager
def without_fast_path() -> Iterator[None]:
    """In inference, torch computes whole encoder layers at once and asks no linear layer within."""
    before = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(before)


class RoundedLinear(nn.Linear):
    def __init__(self, source: nn.Linear, bits: int) -> None:
        super().__init__(source.in_features, source.out_features)
        self.load_state_dict(source.state_dict())
        self.bits, self.observing, self.low, self.high = bits, True, 0.0, 0.0

    def weight_grid(self) -> tuple[Tensor, Tensor]:
        top = 2 ** (self.bits - 1) - 1
        return self.weight.detach().abs().amax(1) / top, torch.zeros(self.out_features, dtype=torch.int32)

    def grid(self) -> tuple[float, int]:
        scale = (self.high - self.low) / (2**self.bits - 1) or 1.0
        return scale, round(-self.low / scale)

    def forward(self, x: Tensor) -> Tensor:
        top = 2 ** (self.bits - 1) - 1
        weight = torch.fake_quantize_per_channel_affine(self.weight, *self.weight_grid(), 0, -top - 1, top)
        y = F.linear(x, weight, self.bias)
        if self.observing:
            self.low, self.high = min(self.low, float(y.min())), max(self.high, float(y.max()))
            return y
        return torch.fake_quantize_per_tensor_affine(y, *self.grid(), 0, 2**self.bits - 1)


TOOLCHAINS: dict[str, Callable[[nn.Module, Tensor], nn.Module]] = {
    "fx": fx,
    "fx reference": fx_reference,
    "fx qat": fx_qat,
    "eager": eager,
    "pt2e": pt2e,
    "int8 weights": int8_weights,
    "int8 dynamic": int8_dynamic,
    "int4 weights": int4_weights,
    "int8 dynamic, int4 weights": int8_dynamic_int4,
    "int8 static": int8_static,
}
#: Those that quantize convolutions; the others leave all but linear layers alone.
CONVOLUTIONAL = ("fx", "fx reference", "fx qat", "eager", "pt2e")


@functools.cache
def pair(toolchain: str) -> tuple[nn.Module, nn.Module, Tensor]:
    """A float module, what a toolchain makes of it, and samples; calibrated on two thirds of their range."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        convolutional = toolchain in CONVOLUTIONAL
        net, x = (made(ConvNet), images()) if convolutional else (made(Dense), rows(24, 64))
        return net, TOOLCHAINS[toolchain](net, x * 0.66), x


def sqnr_db(x: Any, y: Any) -> float:
    """Signal over noise of two tensors, by torch."""
    a, b = (v.dequantize().double() if isinstance(v, Tensor) and v.is_quantized else v.double() for v in (x, y))
    return float(10 * torch.log10((a**2).sum() / ((a - b) ** 2).sum()))
