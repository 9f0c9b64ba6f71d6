"""The drop-in for MCT's XQuant Extension Tool beside the original on networks of many kinds: are the results equal?

    pip install torch torchvision model-compression-toolkit==2.6.1
    python benchmarks/xquant_networks.py                       all networks
    python benchmarks/xquant_networks.py residual dense         some of them

Each network is seeded and untrained, its batch norm set on the data, and quantized by MCT, with its defaults where the
name says nothing else. Both tools are called with the same arguments, a custom metric and limits that some layers pass
among them. A line per network: how many of the layers that the original compares the drop-in has; the largest relative
difference of a measure at the outputs and of a layer, on both data sets, and where; how many of these layers, by
measure, the original calls degraded, and whether the drop-in does the same; and the troubles. Where
judging them raises an error, the original is called again without. Of several outputs it says 0.0 each, which is not
compared.
"""

import argparse
import copy
import logging
import math
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from xquant import LOGGER, quiet, tool, toolkit

SEED, SAMPLES, BATCH, SIDE = 5, 128, 64, 16
EQUAL = 0.01
SUFFIXES = ("repr", "val")
OUTPUTS = ""
METRICS = ("mse", "cs", "sqnr", "mae")
LIMITS = {"mse": 1e-3, "cs": 0.9995, "sqnr": 1000.0, "mae": 0.02}
BELOW = {"mse": False, "cs": True, "sqnr": True, "mae": False}
TROUBLES = (
    "outlier_removal",
    "shift_negative_activation",
    "unbalanced_concatenation",
    "mixed_precision_with_model_output_loss_objective",
)


class Sum(nn.Module):
    """The sum of what branches make of one tensor; without a second branch, of one and the tensor."""

    def __init__(self, *branches: nn.Module):
        super().__init__()
        self.branches = nn.ModuleList([*branches, *([nn.Identity()] if len(branches) == 1 else [])])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.branches[0](x) + self.branches[1](x)


class Cat(nn.Module):
    """What branches make of one tensor, side by side."""

    def __init__(self, *branches: nn.Module):
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


class Product(nn.Module):
    """A tensor times what the gate makes of it."""

    def __init__(self, gate: nn.Module):
        super().__init__()
        self.gate = gate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gate(x)


class Twice(nn.Module):
    """A module that is used two times."""

    def __init__(self, body: nn.Module):
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(self.body(x))


class Functional(nn.Module):
    """Functions in place of modules: activations, pooling, a mean."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = conv(3, 8), conv(8, 8), nn.Linear(8, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.max_pool2d(F.relu(self.first(x)), 2)
        return self.last(F.gelu(torch.add(x, F.silu(self.second(x)))).mean((2, 3)))


class Heads(nn.Module):
    """Two outputs of one trunk."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.first, self.second = block(3, 16), head(16, 10), head(16, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.trunk(x)
        return self.first(x), self.second(x)


class TwoInputs(nn.Module):
    """Two images, joined by a concatenation or a sum."""

    def __init__(self, join: Callable[[torch.Tensor, torch.Tensor], torch.Tensor], layer: Callable[..., nn.Module]):
        super().__init__()
        self.left, self.right, self.join = layer(3, 8), layer(3, 8), join
        self.rest = nn.Sequential(layer(16 if join is beside else 8, 16), head(16))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return self.rest(self.join(self.left(x), self.right(y)))


def beside(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, y], 1)


def conv(inputs: int, outputs: int, size: int = 3, **settings: Any) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, padding=size // 2, **settings)


def plain(inputs: int, outputs: int, act: Callable[[], nn.Module] = nn.ReLU, **settings: Any) -> nn.Sequential:
    """A convolution and its activation."""
    return nn.Sequential(conv(inputs, outputs, **settings), act())


def block(inputs: int, outputs: int, act: Callable[[], nn.Module] = nn.ReLU, **settings: Any) -> nn.Sequential:
    """A convolution with batch norm and an activation."""
    return nn.Sequential(conv(inputs, outputs, bias=False, **settings), nn.BatchNorm2d(outputs), act())


def head(inputs: int, classes: int = 10) -> nn.Sequential:
    return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, classes))


def chain(*parts: nn.Module) -> nn.Sequential:
    return nn.Sequential(*parts)


def separable(inputs: int, outputs: int, act: Callable[[], nn.Module]) -> nn.Sequential:
    return chain(block(inputs, inputs, act, groups=inputs), block(inputs, outputs, act, size=1))


def two() -> tuple[nn.Module, nn.Module]:
    """Branches of eight channels each."""
    return block(16, 8), block(16, 8, size=5)


def excite(channels: int) -> Product:
    """A squeeze and excitation."""
    squeezed = chain(nn.AdaptiveAvgPool2d(1), plain(channels, channels // 4, size=1))
    return Product(chain(squeezed, plain(channels // 4, channels, nn.Sigmoid, size=1)))


def published(name: str) -> nn.Module:
    """An architecture of torchvision, with ten classes."""
    toolkit()
    import torchvision

    return torchvision.models.get_model(name, num_classes=10)


@dataclass(frozen=True)
class Network:
    """How a network is built, what it reads, and how MCT quantizes it."""

    build: Callable[[], nn.Module]
    inputs: int = 1
    side: int = SIDE
    weight_bits: int | None = None
    platform: str = "imx500"
    settings: Mapping[str, Any] = field(default_factory=dict)


def stacked(act: Callable[[], nn.Module]) -> Network:
    return Network(lambda: chain(block(3, 16, act), block(16, 16, act, stride=2), head(16)))


NETWORKS: dict[str, Network] = {
    "plain": Network(lambda: chain(plain(3, 16), plain(16, 16, stride=2), plain(16, 32), head(32))),
    "linear": Network(lambda: chain(nn.Flatten(), nn.Linear(768, 64), nn.ReLU(), nn.Linear(64, 10))),
    "batch norm, ReLU": stacked(nn.ReLU),
    "batch norm, ReLU6": stacked(nn.ReLU6),
    "batch norm, LeakyReLU": stacked(nn.LeakyReLU),
    "batch norm, PReLU": stacked(nn.PReLU),
    "batch norm, SiLU": stacked(nn.SiLU),
    "batch norm, Hardswish": stacked(nn.Hardswish),
    "batch norm, GELU": stacked(nn.GELU),
    "batch norm, ELU": stacked(nn.ELU),
    "batch norm, Sigmoid": stacked(nn.Sigmoid),
    "batch norm, Tanh": stacked(nn.Tanh),
    "functions": Network(Functional),
    "no activations": Network(lambda: chain(block(3, 16, nn.Identity), conv(16, 16), conv(16, 8), head(8))),
    "depthwise": Network(
        lambda: chain(block(3, 16), separable(16, 32, nn.ReLU6), separable(32, 32, nn.SiLU), head(32))
    ),
    "grouped": Network(lambda: chain(block(3, 16), block(16, 32, groups=4), nn.ChannelShuffle(4), head(32))),
    "residual": Network(lambda: chain(block(3, 16), Sum(chain(block(16, 16), block(16, 16))), nn.ReLU(), head(16))),
    "residual, projected": Network(
        lambda: chain(block(3, 16), Sum(block(16, 32, stride=2), block(16, 32, size=1, stride=2)), head(32))
    ),
    "residual, inverted": Network(
        lambda: chain(
            block(3, 8),
            Sum(chain(block(8, 32, size=1), block(32, 32, groups=32), block(32, 8, nn.Identity, size=1))),
            head(8),
        )
    ),
    "residual, collapsible": Network(lambda: chain(plain(3, 16), Sum(conv(16, 16)), nn.ReLU(), head(16))),
    "linear, collapsible": Network(lambda: chain(plain(3, 16), conv(16, 32), conv(32, 8, size=1), nn.ReLU(), head(8))),
    "linear, normalized": Network(
        lambda: chain(block(3, 16), block(16, 16, nn.Identity, size=1), block(16, 32, size=1), head(32))
    ),
    "concatenated": Network(lambda: chain(block(3, 16), Cat(*two()), block(16, 16), head(16))),
    "dense": Network(
        lambda: chain(
            block(3, 8), Cat(nn.Identity(), block(8, 8)), Cat(nn.Identity(), block(16, 8)), block(24, 16), head(16)
        )
    ),
    "batch norm in front": Network(
        lambda: chain(conv(3, 16), nn.BatchNorm2d(16), nn.ReLU(), nn.BatchNorm2d(16), conv(16, 16), nn.ReLU(), head(16))
    ),
    "squeeze, excite": Network(lambda: chain(block(3, 16, nn.SiLU), excite(16), block(16, 16), head(16))),
    "transposed": Network(
        lambda: chain(
            block(3, 16, stride=2), nn.ConvTranspose2d(16, 8, 2, stride=2), nn.BatchNorm2d(8), nn.ReLU(), conv(8, 3)
        )
    ),
    "upsampled": Network(
        lambda: chain(block(3, 16, stride=2), nn.Upsample(scale_factor=2, mode="bilinear"), block(16, 8), conv(8, 3))
    ),
    "used twice": Network(lambda: chain(block(3, 16), Twice(plain(16, 16)), head(16))),
    "two heads": Network(Heads),
    "two inputs, added": Network(lambda: TwoInputs(torch.add, plain), inputs=2),
    "two inputs, beside": Network(lambda: TwoInputs(beside, plain), inputs=2),
    "two inputs, batch norm": Network(lambda: TwoInputs(beside, block), inputs=2),
    "weights 4 bits": Network(stacked(nn.ReLU).build, weight_bits=4),
    "weights 2 bits, SiLU": Network(stacked(nn.SiLU).build, weight_bits=2),
    "powers of two": Network(stacked(nn.ReLU).build, settings={"relu_bound_to_power_of_2": True}),
    "tflite, residual": Network(lambda: chain(block(3, 16), Sum(block(16, 16)), head(16)), platform="tflite"),
    "not shifted": Network(stacked(nn.Hardswish).build, settings={"shift_negative_activation_correction": False}),
    "mobilenet_v2": Network(lambda: published("mobilenet_v2"), side=32),
    "mobilenet_v3_small": Network(lambda: published("mobilenet_v3_small"), side=32),
    "squeezenet1_1": Network(lambda: published("squeezenet1_1"), side=32),
}


Data = list[torch.Tensor]


def samples(network: Network, seed: int) -> Data:
    """Inputs [128, 3, side, side]; images differ in their mean."""
    generator = torch.Generator().manual_seed(seed)
    shape = (SAMPLES, 3, network.side, network.side)
    return [
        torch.randn(shape, generator=generator) + torch.randn((SAMPLES, 3, 1, 1), generator=generator)
        for _ in range(network.inputs)
    ]


def batches(data: Data, *, labelled: bool) -> Callable[[], Iterator[Any]]:
    """A data set as XQuant takes it; labels are no classes, so only outputs are compared."""

    def generate() -> Iterator[Any]:
        for rows in zip(*(values.split(BATCH) for values in data), strict=True):
            inputs = list(rows)
            yield ((inputs if len(data) > 1 else inputs[0]), torch.zeros(len(inputs[0]))) if labelled else inputs

    return generate


@torch.no_grad()
def built(network: Network, data: Data) -> nn.Module:
    """The network, its batch norm set on the data and its classes told apart: untrained ones name one class for all."""
    torch.manual_seed(SEED)
    net = network.build()
    norms = [module for module in net.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        nn.init.normal_(norm.bias, 0.0, 0.2)
        norm.momentum = None  # the mean of all batches
    net.train()
    for rows in zip(*(values.split(BATCH) for values in data), strict=True):
        net(*rows)
    net.eval()
    output = net(*data)
    last = [module for module in net.modules() if isinstance(module, nn.Linear)][-1:]
    if last and isinstance(output, torch.Tensor):
        last[0].bias.sub_(output.mean(0))
    return net


def quantize(network: Network, net: nn.Module, data: Data) -> nn.Module:
    mct = toolkit()
    widths = mct.core.BitWidthConfig()
    if network.weight_bits is not None:
        chosen = mct.core.common.network_editors.NodeTypeFilter(nn.Conv2d)
        widths.set_manual_weights_bit_width(chosen, network.weight_bits, "weight")
    core = mct.core.CoreConfig(
        quantization_config=mct.core.QuantizationConfig(**network.settings), bit_width_config=widths
    )
    platform = mct.get_target_platform_capabilities("1.0", network.platform)
    return mct.ptq.pytorch_post_training_quantization(
        net, batches(data, labelled=False), core_config=core, target_platform_capabilities=platform
    )[0]


class Flags(logging.Handler):
    """Keeps which layers a tool calls degraded, by measure: ``(measure, layer)``."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.found: set[tuple[str, str]] = set()

    def emit(self, record: logging.LogRecord) -> None:
        if match := re.fullmatch(r"(\w+)\[(.+)\]=\S+", record.getMessage()):
            self.found.add((match[1], match[2]))


@dataclass(frozen=True)
class Told:
    """What one tool gave: measures by layer (``outputs`` is none) and data set, degraded layers, layers by trouble."""

    measured: Mapping[tuple[str, str], Mapping[str, float]]
    flags: set[tuple[str, str]]
    troubles: Mapping[str, set[str]]


def tell(
    original: bool, net: nn.Module, quantized: nn.Module, sets: tuple[Data, Data], folder: Path, ratio: float = math.inf
) -> Told:
    """One tool's results; each tool gets models of its own, on which the original leaves its hooks.

    Where this share of the layers is degraded, the original judges nothing.
    """
    report, config = tool(original)
    settings = config(
        str(folder / ("original" if original else "quantmedic")),
        custom_similarity_metrics={"mae": lambda x, y: float((x - y).abs().mean())},
        threshold_quantize_error=dict(LIMITS),
        is_detect_under_threshold_quantize_error=dict(BELOW),
        threshold_degrade_layer_ratio=ratio,
    )
    arguments = (batches(sets[0], labelled=False), batches(sets[1], labelled=True), settings)
    flags, logger = Flags(), logging.getLogger(LOGGER)
    logger.addHandler(flags)
    level = logger.level
    logger.setLevel(logging.INFO)
    try:
        with quiet():
            results, troubles = report(copy.deepcopy(net), copy.deepcopy(quantized), *arguments)
    finally:
        logger.removeHandler(flags)
        logger.setLevel(level)
    measured = {(suffix, OUTPUTS): results[f"output_similarity_metrics_{suffix}"] for suffix in SUFFIXES}
    for suffix in SUFFIXES:
        layers = results[f"intermediate_similarity_metrics_{suffix}"]
        measured |= {(suffix, layer): values for layer, values in layers.items()}
    return Told(measured, flags.found, {key: listed(troubles[key]) for key in TROUBLES if key in troubles})


def listed(entries: list[Any]) -> set[str]:
    """The layers of one kind of trouble: names, or names with an image or a scale."""
    return {entry if isinstance(entry, str) else entry[0] for entry in entries}


def difference(x: float, y: float) -> float:
    """Relative to the larger of both; what only one could measure differs wholly."""
    if x == y:
        return 0.0
    return abs(x - y) / max(abs(x), abs(y)) if math.isfinite(x) and math.isfinite(y) else 1.0


def worst(theirs: Told, ours: Told, *, of_outputs: bool) -> tuple[float, str]:
    """The largest difference of a measure at the outputs, or of a layer, and where it is."""
    found = [
        (difference(values[metric], ours.measured.get(place, {}).get(metric, math.nan)), f"{metric} {place[1]}".strip())
        for place, values in theirs.measured.items()
        for metric in METRICS
        if (place[1] == OUTPUTS) == of_outputs and any(values.values())  # of several outputs it says 0.0
    ]
    return max(found, default=(0.0, "none"))


def compare(name: str, folder: Path) -> tuple[bool, bool, bool | None]:
    """Prints a network's line.

    Returns:
        Whether measures, degraded layers and troubles are equal; no troubles where judging them raises an error.
    """
    network = NETWORKS[name]
    sets = samples(network, SEED + 1), samples(network, SEED + 2)
    net = built(network, sets[0])
    with quiet():
        toolkit().set_log_folder(str(folder / "log"), logging.ERROR)
        quantized = quantize(network, net, sets[0])
    models = net, quantized
    ours = tell(False, *models, sets, folder)
    raised = None
    try:
        theirs = tell(True, *models, sets, folder)
    except Exception as error:  # what a user would see
        raised, theirs = type(error).__name__, tell(True, *models, sets, folder, ratio=0.0)
    layers = {layer for _, layer in theirs.measured} - {OUTPUTS}
    shared = layers & {layer for _, layer in ours.measured}
    (outputs, at_output), (inside, at_layer) = (worst(theirs, ours, of_outputs=side) for side in (True, False))
    flags = {flag for flag in ours.flags if flag[1] in layers}
    apart = len(flags ^ theirs.flags)
    print(
        f"{name:24} {len(shared):3} of {len(layers):3} {outputs:8.3%} {at_output:5} {inside:8.3%} {at_layer:24.24} "
        f"{len(theirs.flags):3} flags {f'{apart} differ' if apart else 'same':10} "
        f"{f'the original raises {raised}' if raised else spoken(theirs, ours)}",
        flush=True,
    )
    same = None if raised else theirs.troubles == ours.troubles
    return max(outputs, inside) <= EQUAL, not apart, same


def spoken(theirs: Told, ours: Told) -> str:
    """The troubles: the same, or how many layers each tool lists, the original first."""
    keys = [key for key in TROUBLES if theirs.troubles.get(key) != ours.troubles.get(key)]
    counts = (f"{key} {len(theirs.troubles.get(key, ()))}:{len(ours.troubles.get(key, ()))}" for key in keys)
    return ", ".join(counts) or f"{len(theirs.troubles)} troubles same"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", help="names; all by default")
    torch.set_num_threads(1)
    found = []
    for name in parser.parse_args().networks or NETWORKS:
        with tempfile.TemporaryDirectory() as folder:
            found.append(compare(name, Path(folder)))
    measures, flags, troubles = zip(*found, strict=True)
    count, raised = len(found), troubles.count(None)
    print(
        f"measures equal within {EQUAL:.0%} on {sum(measures)} of {count}, degraded layers on {sum(flags)} of {count}, "
        f"troubles on {troubles.count(True)} of {count - raised}; the original raises an error on {raised}"
    )


if __name__ == "__main__":
    main()
