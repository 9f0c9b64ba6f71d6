"""What measuring torch modules costs on a device, beside plain inference there, and whether it says what the CPU says.

For each network, in a process of its own: both modules run on all samples and nothing else (``plain``), then
``quantmedic.collect`` without and with attribution, and ``quantmedic.diagnose`` with its report. Each is done once
before it is timed, so that kernels are loaded; of the rounds the fastest counts. Then device and CPU measure the same
few samples, and the two cases are compared: the largest relative difference of a power, a noise and a range of any
channel, and the first causes (of all samples, of the few, and of the few on the CPU).

The networks have the shapes of MobileNetV2 and ResNet-50, random weights and fake quantizers at every convolution,
linear layer and addition. ``--fault`` makes one channel within each block 200 times as large, and the weights that read
it as much smaller.

How to run, from the repository root::

    python benchmarks/device.py --device cuda
    python benchmarks/device.py --device cpu --network mobilenet_v2 --samples 16 --fault
"""

import argparse
import copy
import itertools
import platform
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import quantmedic

SEED, SIDE, CLASSES, CALIBRATION = 11, 224, 1000, 8
CHANNEL, GAIN = 3, 200.0


class Rounded(nn.Module):
    """What a layer computes, on a grid of 8 bits once it has seen data."""

    def __init__(self) -> None:
        super().__init__()
        self.watches, self.rounds = False, False
        self.register_buffer("low", torch.zeros(()))
        self.register_buffer("high", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.watches:
            self.low, self.high = torch.minimum(self.low, x.min()), torch.maximum(self.high, x.max())
        if not self.rounds:
            return x
        scale = (self.high - self.low) / 255
        zero = (-self.low / scale).round().to(torch.int32)
        return torch.fake_quantize_per_tensor_affine(x, scale, zero, 0, 255)


class Layer(nn.Module):
    """A convolution or linear layer, perhaps a ReLU, and the grids of weights and result."""

    def __init__(self, body: nn.Conv2d | nn.Linear, relu: bool = True) -> None:
        super().__init__()
        self.body, self.relu, self.grid = body, relu, Rounded()
        nn.init.kaiming_normal_(body.weight)

    def forward(self, x: Tensor) -> Tensor:
        body, weight = self.body, self.body.weight
        if self.grid.rounds:
            scale = weight.abs().flatten(1).amax(1) / 127
            weight = torch.fake_quantize_per_channel_affine(weight, scale, torch.zeros_like(scale).int(), 0, -127, 127)
        if isinstance(body, nn.Linear):
            y = nn.functional.linear(x, weight, body.bias)
        else:
            y = nn.functional.conv2d(x, weight, body.bias, body.stride, body.padding, groups=body.groups)
        return self.grid(torch.relu(y) if self.relu else y)


def conv(inputs: int, outputs: int, size: int = 1, stride: int = 1, groups: int = 1, relu: bool = True) -> Layer:
    return Layer(nn.Conv2d(inputs, outputs, size, stride, size // 2, groups=groups), relu)


class Residual(nn.Module):
    """The sum of what two branches make of one tensor, on a grid."""

    def __init__(self, body: nn.Module, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.body, self.shortcut, self.grid = body, shortcut or nn.Identity(), Rounded()

    def forward(self, x: Tensor) -> Tensor:
        return self.grid(0.7 * self.body(x) + 0.7 * self.shortcut(x))


def head(channels: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), Layer(nn.Linear(channels, CLASSES), relu=False)]


def mobilenet_v2() -> nn.Sequential:
    parts: list[nn.Module] = [Rounded(), conv(3, 32, 3, 2)]
    channels = 32
    for expansion, outputs, count, first in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
    ):  # fmt: skip
        for number in range(count):
            stride, hidden = first if number == 0 else 1, channels * expansion
            body = [conv(channels, hidden)] if expansion > 1 else []
            body += [conv(hidden, hidden, 3, stride, hidden), conv(hidden, outputs, relu=False)]
            block = nn.Sequential(*body)
            parts.append(Residual(block) if stride == 1 and channels == outputs else block)
            channels = outputs
    return nn.Sequential(*parts, conv(320, 1280), *head(1280))


def resnet50() -> nn.Sequential:
    parts: list[nn.Module] = [Rounded(), conv(3, 64, 7, 2), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for width, count, first in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for number in range(count):
            stride = first if number == 0 else 1
            body = nn.Sequential(
                conv(channels, width), conv(width, width, 3, stride), conv(width, 4 * width, relu=False)
            )
            shortcut = conv(channels, 4 * width, 1, stride, relu=False) if number == 0 else None
            parts.append(Residual(body, shortcut))
            channels = 4 * width
    return nn.Sequential(*parts, *head(2048))


NETWORKS: dict[str, Callable[[], nn.Sequential]] = {"mobilenet_v2": mobilenet_v2, "resnet50": resnet50}


@torch.no_grad()
def pair(network: str, fault: bool, device: str) -> tuple[nn.Module, nn.Module]:
    """The float module and its fake-quantized copy, calibrated on a few samples."""
    torch.manual_seed(SEED)
    plain = NETWORKS[network]().eval()
    if fault:
        widen(plain)
    plain, quantized = plain.to(device), copy.deepcopy(plain).to(device)
    for flag in ("watches", "rounds"):
        for part in quantized.modules():
            if isinstance(part, Rounded):
                part.watches, part.rounds = flag == "watches", flag == "rounds"
        if flag == "watches":
            quantized(torch.from_numpy(samples(CALIBRATION)).to(device))
    return plain, quantized


@torch.no_grad()
def widen(network: nn.Module) -> None:
    """One channel much larger, and what reads it as much smaller, wherever that leaves the function as it is."""
    for block in network.modules():
        parts = list(block) if isinstance(block, nn.Sequential) else []
        for layer, reader in itertools.pairwise(parts):
            if (
                not (isinstance(layer, Layer) and isinstance(reader, Layer) and layer.relu)
                or reader.body.weight.shape[1] == 1
            ):
                continue
            layer.body.weight[CHANNEL] *= GAIN
            layer.body.bias[CHANNEL] *= GAIN
            reader.body.weight[:, CHANNEL] /= GAIN


def samples(count: int) -> Any:
    """Smooth images [count, 3, 224, 224] with values about 0 to 1."""
    rng = np.random.default_rng(SEED)
    coarse = rng.random((count, 3, 14, 14), np.float32)
    return np.repeat(np.repeat(coarse, SIDE // 14, 2), SIDE // 14, 3) + rng.normal(
        0, 0.05, (count, 3, SIDE, SIDE)
    ).astype(np.float32)


def fastest(work: Callable[[], Any], rounds: int, device: str) -> tuple[float, Any]:
    """Seconds of the fastest round after one that does not count, and what the last one gave."""
    times = []
    for _ in range(rounds + 1):
        wait(device)
        begun = time.perf_counter()
        found = work()
        wait(device)
        times.append(time.perf_counter() - begun)
    return min(times[1:]), found


def wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def differences(a: Any, b: Any) -> dict[str, float]:
    """Largest difference of two cases, relative to the power, noise or range of the tensor."""
    one, other = (case.statistics["validation"].columns for case in (a, b))

    def largest(x: Any, y: Any) -> float:
        return float(np.max(np.abs(x - y) / np.maximum(np.abs(y), np.abs(y).max() * 1e-6)))

    return {
        "power": largest(one["accumulated.power"], other["accumulated.power"]),
        "noise": largest(one["accumulated.square"], other["accumulated.square"]),
        "range": largest(one["max"], other["max"]),
    }


def first_cause(diagnosis: Any) -> str:
    return next((f"{cause.cause}" for cause in diagnosis.causes), "none")


def measure(name: str, arguments: argparse.Namespace) -> None:
    device, batch = arguments.device, arguments.batch
    plain, quantized = pair(name, arguments.fault, device)
    data = samples(arguments.samples)

    @torch.no_grad()
    def alone() -> None:
        for start in range(0, len(data), batch):
            x = torch.from_numpy(data[start : start + batch]).to(device)
            for module in (plain, quantized):
                module(x).cpu()

    def collect(where: str, attribution: bool) -> Any:
        return quantmedic.collect(
            plain, quantized, validation=data, batch_size=batch, device=where, attribution=attribution
        )

    def diagnose(where: str) -> Any:
        half = len(data) // 2
        with tempfile.TemporaryDirectory() as folder:
            return quantmedic.diagnose(
                plain, quantized, representative=data[:half], validation=data[half:], batch_size=batch, device=where,
                output=Path(folder) / "report",
            )  # fmt: skip

    floor, _ = fastest(alone, arguments.rounds, device)
    print(f"{name}: plain inference {floor:.2f} s", flush=True)
    diagnosis = None
    for kind, work in (
        ("exact", lambda: collect(device, False)),
        ("attributed", lambda: collect(device, True)),
        ("diagnose", lambda: diagnose(device)),
    ):
        took, diagnosis = fastest(work, arguments.rounds, device)
        print(f"  {kind}: {took:.2f} s, {took / floor:.1f} times plain inference", flush=True)
    if device.startswith("cuda"):
        print(f"  on the device at most {torch.cuda.max_memory_allocated() / 2**20:.0f} MB")
    data = data[: arguments.compared]
    found = differences(collect(device, False), collect("cpu", False))
    print("  against the CPU:", ", ".join(f"{part} {value:.1e}" for part, value in found.items()))
    print("  first causes:", ", ".join([first_cause(diagnosis), *(first_cause(diagnose(w)) for w in (device, "cpu"))]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--network", nargs="+", choices=tuple(NETWORKS), default=list(NETWORKS))
    parser.add_argument("--samples", type=int, default=256)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--compared", type=int, default=64, help="samples that the CPU measures too")
    parser.add_argument("--fault", action="store_true")
    arguments = parser.parse_args()
    card = torch.cuda.get_device_name() if arguments.device.startswith("cuda") else platform.processor()
    print(f"{card}, torch {torch.__version__}, {arguments.samples} samples in batches of {arguments.batch}", flush=True)
    warnings.simplefilter("ignore")
    for name in arguments.network:
        measure(name, arguments)


if __name__ == "__main__":
    main()
