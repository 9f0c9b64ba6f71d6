"""The drop-in for MCT's XQuant Extension Tool beside the original: what each says of known faults, time and memory.

    pip install torch torchvision model-compression-toolkit==2.6.1
    python benchmarks/xquant.py                     all three tables
    python benchmarks/xquant.py cases               healthy networks and known faults
    python benchmarks/xquant.py time memory

A small network with batch norm, a concatenation and a residual addition is trained on Fashion-MNIST
(``apt-get install dataset-fashion-mnist``) and quantized by MCT with its defaults. The faults leave the float network's
function as it is, or are faults of the representative images. Time is processor time of one report over that of both
networks alone on the same data; memory is what a report adds to a process in which models and toolkit are loaded, at
5120 and at 192 representative images with all layers judged.
"""

import argparse
import contextlib
import copy
import gzip
import io
import json
import logging
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

DATASET = Path("/usr/share/datasets/fashion-mnist")
SEED, CLASSES, SIDE, BATCH = 11, 10, 28, 64
TRAINING, EPOCHS, REPRESENTATIVE, VALIDATION = 12_800, 6, 192, 2048
FEW, MANY = 192, 5120
MEAN, DEVIATION = 0.2860, 0.3530
GREY, CONTRAST = 120.0, 0.05
CHANNEL, CHANNEL_GAIN, BRANCH_GAIN = 5, 200.0, 64.0
LOGGER = "Model Compression Toolkit"


@cache
def archive(part: str) -> tuple[Any, Any]:
    """Images [N, 28, 28] and classes [N] of Fashion-MNIST: ``train`` or ``t10k``."""
    pixels = np.frombuffer(
        gzip.decompress((DATASET / f"{part}-images-idx3-ubyte.gz").read_bytes()), np.uint8, offset=16
    )
    classes = np.frombuffer(
        gzip.decompress((DATASET / f"{part}-labels-idx1-ubyte.gz").read_bytes()), np.uint8, offset=8
    )
    return pixels.reshape(-1, SIDE, SIDE), classes


def images(part: str, start: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Normalized images [count, 1, 28, 28] and their classes."""
    pixels, classes = (values[start : start + count] for values in archive(part))
    normalized = (pixels[:, None].astype(np.float32) / 255 - MEAN) / DEVIATION
    return torch.from_numpy(normalized), torch.from_numpy(classes.astype(np.int64))


class Net(nn.Module):
    """Two branches, concatenated; a residual block; a classifier."""

    def __init__(self, act: type[nn.Module]):
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.fine, self.bn_fine = nn.Conv2d(16, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16)
        self.wide, self.bn_wide = nn.Conv2d(16, 16, 5, padding=2, bias=False), nn.BatchNorm2d(16)
        self.conv2, self.bn2 = nn.Conv2d(32, 32, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(32)
        self.conv3, self.bn3 = nn.Conv2d(32, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32)
        self.act1, self.act2, self.act3, self.act4, self.act5 = (act() for _ in range(5))
        self.fc = nn.Linear(32, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.act1(self.bn1(self.conv1(x)))
        fine, wide = self.act2(self.bn_fine(self.fine(x))), self.act3(self.bn_wide(self.wide(x)))
        x = self.act4(self.bn2(self.conv2(torch.cat([fine, wide], 1))))
        x = x + self.act5(self.bn3(self.conv3(x)))
        return self.fc(x.mean((2, 3)))


def trained(act: type[nn.Module], folder: Path) -> Net:
    """The network, trained once per folder."""
    torch.manual_seed(SEED)
    net, file = Net(act), folder / f"{act.__name__}.pt"
    if file.exists():
        net.load_state_dict(torch.load(file, weights_only=True))
        return net.eval()
    data, classes = images("train", 0, TRAINING)
    steps = EPOCHS * TRAINING // BATCH
    optimizer = torch.optim.AdamW(net.parameters(), 4e-3, weight_decay=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=steps)
    for _ in range(EPOCHS):
        for rows in torch.randperm(TRAINING).split(BATCH):
            loss = nn.functional.cross_entropy(net(data[rows]), classes[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    torch.save(net.state_dict(), file)
    return net.eval()


@torch.no_grad()
def with_wide_channel(net: Net) -> Net:
    """One channel of the first ReLU 200 times as large, the weights that read it as much smaller."""
    net = copy.deepcopy(net)
    for values in (net.bn1.weight, net.bn1.bias):
        values[CHANNEL].mul_(CHANNEL_GAIN)
    for reader in (net.fine, net.wide):
        reader.weight[:, CHANNEL].div_(CHANNEL_GAIN)
    return net


@torch.no_grad()
def with_wide_branch(net: Net) -> Net:
    """One operand of the concatenation 64 times as large, the weights that read it as much smaller."""
    net = copy.deepcopy(net)
    for values in (net.bn_wide.weight, net.bn_wide.bias):
        values.mul_(BRANCH_GAIN)
    net.conv2.weight[:, 16:].div_(BRANCH_GAIN)
    return net


@dataclass(frozen=True)
class Variant:
    """A network, its representative images, and what is right to say of it: any of the causes, none if healthy."""

    name: str
    net: Net
    data: torch.Tensor
    right: tuple[str, ...] = ()
    last_bits: int | None = None


def variants(folder: Path) -> list[Variant]:
    """The healthy networks and the faults."""
    net, swish = trained(nn.ReLU, folder), trained(nn.SiLU, folder)
    data = images("train", TRAINING, REPRESENTATIVE)[0]
    raw = (data * DEVIATION + MEAN) * 255
    flat = (((GREY + CONTRAST * (raw[:1] - GREY)).round() / 255) - MEAN) / DEVIATION
    outliers = ("channel-outliers", "massive-activations", "activation-outliers")
    samples = ("too-few-samples", "low-diversity", "blank-samples", "preprocessing-mismatch", "stale-calibration")
    return [
        Variant("healthy", net, data),
        Variant("SiLU, harmless", swish, data),
        Variant("ReLU channel x 200", with_wide_channel(net), data, outliers),
        Variant("cat branch x 64", with_wide_branch(net), data, ("unbalanced-concatenation",)),
        Variant("last layer 2 bits", net, data, ("last-layer-bitwidth",), last_bits=2),
        Variant("1 low-contrast sample", net, flat, samples),
        Variant("representative x 255", net, raw, ("preprocessing-mismatch",)),
    ]


def toolkit() -> Any:
    """MCT; torchvision's wheel may lack its C++ operators, of which only the names are needed."""
    if not hasattr(torch.ops.torchvision, "nms"):
        toolkit.library = torch.library.Library("torchvision", "DEF")  # type: ignore[attr-defined]
        for name in ("nms", "qnms"):
            toolkit.library.define(f"{name}(Tensor a, Tensor b, float c) -> Tensor")  # type: ignore[attr-defined]
    import model_compression_toolkit as mct

    return mct


def batches(data: torch.Tensor, labels: torch.Tensor | None = None) -> Callable[[], Iterator[Any]]:
    """A data set as XQuant takes it."""

    def generate() -> Iterator[Any]:
        for start in range(0, len(data), BATCH):
            rows = slice(start, start + BATCH)
            yield [data[rows]] if labels is None else (data[rows], labels[rows])

    return generate


def quantized(variant: Variant, folder: Path) -> nn.Module:
    """The variant as MCT quantizes it, with a log folder."""
    mct = toolkit()
    bits = mct.core.BitWidthConfig()
    if variant.last_bits is not None:
        chosen = mct.core.common.network_editors.NodeNameFilter("fc")
        bits.set_manual_weights_bit_width(chosen, variant.last_bits, "weight")
    with quiet():
        mct.set_log_folder(str(folder / "log"))
        return mct.ptq.pytorch_post_training_quantization(
            variant.net, batches(variant.data), core_config=mct.core.CoreConfig(bit_width_config=bits)
        )[0]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        yield


def tool(original: bool) -> tuple[Any, Any]:
    """Report function and configuration of one of the two tools."""
    if original:
        toolkit()
        from model_compression_toolkit import xquant
    else:
        from quantmedic import xquant  # type: ignore[no-redef]
    return xquant.xquant_report_troubleshoot_pytorch_experimental, xquant.XQuantConfig


@torch.no_grad()
def accuracy(net: nn.Module, data: torch.Tensor, labels: torch.Tensor) -> float:
    right = sum(
        int((net(rows).argmax(1) == truth).sum())
        for rows, truth in zip(data.split(BATCH), labels.split(BATCH), strict=True)
    )
    return right / len(data)


class Lines(logging.Handler):
    """Keeps warnings."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno < logging.WARNING or "DepthwiseConv2D" in record.msg:  # MCT lowers handlers' levels
            return
        self.texts.append(record.getMessage())


def cases(folder: Path) -> None:
    """What both tools say of every variant."""
    data, labels = images("t10k", 0, VALIDATION)
    lines = Lines()
    logging.getLogger(LOGGER).addHandler(lines)
    for variant in variants(folder):
        place = folder / variant.name.replace(" ", "-").replace(",", "")
        network = quantized(variant, place)
        drop = accuracy(variant.net, data, labels) - accuracy(network, data, labels)
        print(f"\n{variant.name}: top-1 {accuracy(variant.net, data, labels):.1%}, drop {100 * drop:.1f} points")
        for original in (True, False):
            lines.texts.clear()
            said = say(original, variant, network, place, batches(data, labels))
            print(f"  {'original' if original else 'quantmedic'}: {said}")
            for text in lines.texts:
                print(f"    {text.replace(str(place), '…')}")


def say(original: bool, variant: Variant, network: nn.Module, place: Path, validation: Callable[[], Any]) -> str:
    report, config = tool(original)
    settings = config(str(place / ("original" if original else "quantmedic")))
    try:
        with quiet():
            _, found = report(variant.net, copy.deepcopy(network), batches(variant.data), validation, settings)
    except Exception as error:  # what a user would see
        return f"{type(error).__name__}: {error}"
    if original:
        return json.dumps(found) if found else "nothing"
    causes = [f"{cause['rules'][0]} {cause['cause']} {cause['subjects'][:2]}" for cause in found.get("causes", ())]
    first = found["causes"][0]["cause"] if causes else None
    right = first in variant.right if variant.right else first is None
    return f"{'; '.join(causes) or 'nothing'} → {'right' if right else 'WRONG'}"


def child(folder: Path, count: int, original: bool, everything: bool) -> None:
    """One report in a process of its own; prints processor seconds of report and plain runs, and peak memory in MiB."""
    torch.set_num_threads(1)
    net = trained(nn.ReLU, folder)
    network = quantized(Variant("", net, images("train", TRAINING, REPRESENTATIVE)[0]), folder / "child")
    report, config = tool(original)

    def many(labelled: bool) -> Callable[[], Iterator[Any]]:
        def generate() -> Iterator[Any]:
            for start in range(0, count if not labelled else FEW, BATCH):
                data, labels = images("train", start, BATCH)
                yield (data, labels) if labelled else [data]

        return generate

    with torch.no_grad():
        (first,) = next(many(False)())
        net(first), network(first)
        began = time.process_time()
        made = sum(1 for dataset in (many(False), many(True)) for _ in dataset())
        making = time.process_time() - began
        began = time.process_time()
        for dataset in (many(False), many(True)):
            for first, *_ in dataset():
                net(first)
                network(first)
        plain = time.process_time() - began - making
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of what came before
    before = memory("VmRSS")
    began = time.process_time()
    with tempfile.TemporaryDirectory() as place, quiet():
        limits = {
            "threshold_quantize_error": {"mse": 0.0, "cs": 0.1, "sqnr": 0.1},
            "threshold_degrade_layer_ratio": 2.0,
        }
        report(net, network, many(False), many(True), config(place, **(limits if everything else {})))
    took = time.process_time() - began
    print(json.dumps({"batches": made, "plain": plain, "report": took, "before": before, "peak": memory("VmHWM")}))


def memory(key: str) -> float:
    """Memory of this process in MiB: ``VmRSS`` now, ``VmHWM`` at its peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(key)).split()[1]) / 1024


def measured(folder: Path, count: int, original: bool, *, everything: bool = False) -> dict[str, float]:
    """What one report costs; ``everything`` calls all layers degraded and has them judged."""
    flags = [*(["--original"] if original else []), *(["--everything"] if everything else [])]
    command = [sys.executable, __file__, "--folder", str(folder), "--child", str(count), *flags]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", help="cases, time, memory; all by default")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "quantmedic-xquant")
    parser.add_argument("--only", choices=("original", "quantmedic"), help="one of the two, for time and memory")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--original", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--everything", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if arguments.child:
        child(arguments.folder, arguments.child, arguments.original, arguments.everything)
        return
    tables = arguments.tables or ["cases", "time", "memory"]
    if "cases" in tables:
        cases(arguments.folder)
    for original in (True, False):
        name = "original" if original else "quantmedic"
        if arguments.only not in (None, name):
            continue
        if "time" in tables:
            found = measured(arguments.folder, MANY, original)
            ratio = found["report"] / found["plain"]
            print(
                f"{name}: {found['report']:.1f} s, {ratio:.2f} times the {found['plain']:.1f} s of the networks alone"
            )
        if "memory" in tables:
            few, many = (measured(arguments.folder, count, original, everything=True) for count in (FEW, MANY))
            added = [found["peak"] - found["before"] for found in (few, many)]
            growth = f"{FEW} images, {added[1]:.0f} MiB at {MANY}: {added[1] / added[0]:.2f}"
            print(f"{name}: {added[0]:.0f} MiB more at {growth}")


if __name__ == "__main__":
    main()
