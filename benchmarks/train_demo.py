"""Train and quantize the demo patient that ships with quantmedic.

The demo is a small Fashion-MNIST classifier with three ONNX files:

``float.onnx``
    the trained network (input ``image`` [N, 1, 28, 28], output ``logits`` [N, 10]);
``int8.onnx``
    the patient: calibrated on images that were *not* normalised the way the
    network expects, so the activation ranges are wrong;
``int8_healthy.onnx``
    the control: the same quantizer settings, calibrated on normalised images.

Both int8 models are calibrated from the ``.npz`` files written here, read back
from disk, so those arrays are exactly the pixels ``quantize_static`` saw after
the preprocessing recorded in ``demo.json``.

How to run, from the repository root (a few minutes on one core)::

    apt-get install dataset-fashion-mnist
    pip install torch==2.13.0 onnx onnxruntime numpy
    python benchmarks/train_demo.py --output quantmedic/demo

One thread and fixed seeds are used throughout: on the same machine and library
versions the script writes the same bytes again. The script is only needed to
rebuild the demo; quantmedic itself does not import torch.
"""

import argparse
import gzip
import hashlib
import json
import shutil
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import torch
from onnxruntime.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantType,
    quantize_static,
)
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from quantmedic.engine.decibels import sqnr_db

DATASET = Path("/usr/share/datasets/fashion-mnist")
LICENCE_TEXT = Path("/usr/share/doc/dataset-fashion-mnist/copyright")

SEED = 20240
EPOCHS = 4
BATCH = 128
LABEL_SMOOTHING = 0.05
RANGE_LIMIT = 3.0
RANGE_WEIGHT = 1.0
PEAK_LEARNING_RATE = 5e-3
WEIGHT_DECAY = 5e-4
OPSET = 17

REPRESENTATIVE_COUNT = 160
HEALTHY_COUNT = 500
VALIDATION_COUNT = 512
CLASSES = 10

MODELS = ["float.onnx", "int8.onnx", "int8_healthy.onnx"]
ARRAYS = ["representative.npz", "representative_healthy.npz", "validation.npz"]

# The quantizer settings both int8 models share, as recorded in demo.json.
RECIPE = {
    "tool": "onnxruntime.quantization.quantize_static",
    "quant_format": "QDQ",
    "per_channel": True,
    "activation_type": "QInt8",
    "weight_type": "QInt8",
    "calibrate_method": "MinMax",
}

# Preprocessing is always (pixel / scale - mean) / std, pixels being 0..255.
NORMALISED = {"scale": 255, "mean": [0.2860], "std": [0.3530]}
FORGOTTEN = {"scale": 255, "mean": [0.0], "std": [1.0]}


# ---------------------------------------------------------------- data


def read_idx(path):
    """Return the array held in a gzipped IDX file of unsigned bytes."""
    raw = gzip.decompress(path.read_bytes())
    dims = raw[3]
    shape = np.frombuffer(raw, ">u4", count=dims, offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * dims).reshape(shape)


def load_split(folder, prefix):
    """Return (images uint8 [N, 1, 28, 28], labels uint8 [N]) of one split."""
    images = read_idx(folder / f"{prefix}-images-idx3-ubyte.gz")
    labels = read_idx(folder / f"{prefix}-labels-idx1-ubyte.gz")
    return images[:, None].copy(), labels.copy()


def preprocess(images, spec):
    """Turn uint8 pixels into the float32 array a model is fed."""
    shape = (1, -1, 1, 1)
    mean = np.asarray(spec["mean"], np.float32).reshape(shape)
    std = np.asarray(spec["std"], np.float32).reshape(shape)
    return (images.astype(np.float32) / np.float32(spec["scale"]) - mean) / std


def balanced_indices(labels, count, rng, excluded=()):
    """Draw `count` shuffled indices, as evenly over the classes as possible."""
    allowed = np.ones(len(labels), bool)
    allowed[list(excluded)] = False
    chosen = []
    for label in range(CLASSES):
        share = count // CLASSES + (label < count % CLASSES)
        candidates = np.flatnonzero(allowed & (labels == label))
        chosen.append(rng.choice(candidates, share, replace=False))
    return rng.permutation(np.concatenate(chosen))


# ---------------------------------------------------------------- network


class ConvBlock(nn.Module):
    """Convolution, batch norm and an optional activation."""

    def __init__(self, inputs, outputs, kernel, stride=1, groups=1, act=None):
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(outputs)
        self.act = act() if act else nn.Identity()

    def forward(self, x):
        return self.act(self.norm(self.conv(x)))

    def fold(self):
        """Merge the batch norm into the convolution (inference only)."""
        self.conv = fuse_conv_bn_eval(self.conv, self.norm)
        self.norm = nn.Identity()


class Separable(nn.Module):
    """Depthwise convolution (any activation), then a pointwise one with ReLU."""

    def __init__(self, inputs, outputs, kernel=3, stride=1, act=nn.ReLU):
        super().__init__()
        self.depthwise = ConvBlock(inputs, inputs, kernel, stride, groups=inputs, act=act)
        self.pointwise = ConvBlock(inputs, outputs, 1, act=nn.ReLU)

    def forward(self, x):
        return self.pointwise(self.depthwise(x))


class InvertedResidual(nn.Module):
    """Expand, filter depthwise, project, and add the input back."""

    def __init__(self, channels, expanded):
        super().__init__()
        self.expand = ConvBlock(channels, expanded, 1, act=nn.SiLU)
        self.depthwise = ConvBlock(expanded, expanded, 3, groups=expanded, act=nn.SiLU)
        self.project = ConvBlock(expanded, channels, 1)

    def forward(self, x):
        return x + self.project(self.depthwise(self.expand(x)))


class TwoBranches(nn.Module):
    """A fine and a coarse separable branch, concatenated."""

    def __init__(self, inputs, each):
        super().__init__()
        self.fine = Separable(inputs, each, kernel=3, stride=2, act=nn.ReLU)
        self.coarse = Separable(inputs, each, kernel=5, stride=2, act=nn.SiLU)

    def forward(self, x):
        return torch.cat([self.fine(x), self.coarse(x)], dim=1)


class DemoNet(nn.Module):
    """28x28 grey image in, ten logits out."""

    def __init__(self):
        super().__init__()
        self.stem = ConvBlock(1, 16, 3, act=nn.ReLU)
        self.reduce = Separable(16, 32, stride=2, act=nn.SiLU)
        self.residual = InvertedResidual(32, 64)
        self.branches = TwoBranches(32, 40)
        self.head = Separable(80, 96, act=nn.SiLU)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Linear(96, CLASSES)

    def forward(self, image):
        x = self.residual(self.reduce(self.stem(image)))
        x = self.head(self.branches(x))
        return self.classifier(torch.flatten(self.pool(x), 1))


# ---------------------------------------------------------------- training


def flip_some(batch, generator):
    """Mirror a random half of the batch left to right."""
    mirrored = torch.rand(len(batch), generator=generator) < 0.5
    return torch.where(mirrored[:, None, None, None], batch.flip(3), batch)


def watch_overshoot(network):
    """Hook the batch norms; return the list they add their overshoot to.

    Overshoot is how far outputs leave +-RANGE_LIMIT (mean square). Penalising
    it spares the network the rare huge activations that would make the int8
    steps of a whole tensor coarse. The hooks are removed with the norms when
    they are folded.
    """
    overshoot = []

    def hook(module, inputs, output):
        shrunk = nn.functional.softshrink(output, RANGE_LIMIT)
        overshoot.append(shrunk.square().mean())

    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.register_forward_hook(hook)
    return overshoot


def train(images, labels, epochs):
    """Return a trained DemoNet in evaluation mode."""
    torch.manual_seed(SEED)
    generator = torch.Generator().manual_seed(SEED)
    network = DemoNet().to(memory_format=torch.channels_last)
    pixels = torch.from_numpy(preprocess(images, NORMALISED))
    targets = torch.from_numpy(labels.astype(np.int64))
    steps = len(pixels) // BATCH
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK_LEARNING_RATE, total_steps=epochs * steps)
    overshoot = watch_overshoot(network)
    loss_function = nn.CrossEntropyLoss(label_smoothing=LABEL_SMOOTHING)
    for epoch in range(epochs):
        started, total = time.monotonic(), 0.0
        order = torch.randperm(len(pixels), generator=generator)
        for step in range(steps):
            index = order[step * BATCH : (step + 1) * BATCH]
            overshoot.clear()
            logits = network(flip_some(pixels[index], generator))
            loss = loss_function(logits, targets[index])
            loss = loss + RANGE_WEIGHT * sum(overshoot)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item()
        seconds = time.monotonic() - started
        line = f"epoch {epoch + 1}: loss {total / steps:.4f}, {seconds:.0f} s"
        print(line, flush=True)
    return network.to(memory_format=torch.contiguous_format).eval()


def export(network, path, *, side, names):
    """Fold the batch norms and write the float ONNX model; ``names`` are those of its input and its output."""
    for module in network.modules():
        if isinstance(module, ConvBlock):
            module.fold()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.onnx.export(
            network,
            (torch.zeros(1, 1, side, side),),
            str(path),
            input_names=[names[0]],
            output_names=[names[1]],
            dynamic_axes={name: {0: "batch"} for name in names},
            opset_version=OPSET,
            dynamo=False,
        )
    onnx.checker.check_model(str(path), full_check=True)


# ---------------------------------------------------------------- quantization


class ArrayReader(CalibrationDataReader):
    """Feed a saved representative array to the calibrator, image by image."""

    def __init__(self, path, spec):
        with np.load(path) as archive:
            self.images = preprocess(archive["image"], spec)
        self.position = 0

    def get_next(self):
        if self.position >= len(self.images):
            return None
        self.position += 1
        return {"image": self.images[self.position - 1 : self.position]}


def quantize(source, target, array, spec):
    """Quantize with the settings in RECIPE."""
    quantize_static(
        str(source),
        str(target),
        ArrayReader(array, spec),
        quant_format=QuantFormat[RECIPE["quant_format"]],
        per_channel=RECIPE["per_channel"],
        activation_type=QuantType[RECIPE["activation_type"]],
        weight_type=QuantType[RECIPE["weight_type"]],
        calibrate_method=CalibrationMethod[RECIPE["calibrate_method"]],
    )


# ---------------------------------------------------------------- evaluation


def run_model(path, images, batch=250):
    """Return the logits of uint8 images, normalised as the network expects."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    starts = range(0, len(images), batch)
    feeds = (preprocess(images[s : s + batch], NORMALISED) for s in starts)
    return np.concatenate([session.run(None, {"image": feed})[0] for feed in feeds])


def score(logits, reference, labels):
    """Return top-1, agreement with the float model and logits SQNR in dB."""
    top, float_top = logits.argmax(1), reference.argmax(1)
    noise = float(np.square(logits - reference, dtype=np.float64).sum())
    signal = float(np.square(reference, dtype=np.float64).sum())
    return {
        "top1": round(float((top == labels).mean()), 4),
        "agreement": round(float((top == float_top).mean()), 4),
        "sqnr_db": round(sqnr_db(signal, noise), 2) if noise else None,
    }


def score_models(output, images, labels):
    """Score every model file against the first one, the float model."""
    logits = {name: run_model(output / name, images) for name in MODELS}
    reference = logits[MODELS[0]]
    return {name: score(logits[name], reference, labels) for name in MODELS}


# ---------------------------------------------------------------- assembly


def save_arrays(output, train_split, test_split):
    """Write the three .npz files; every draw is class-balanced and disjoint."""
    rng = np.random.default_rng(SEED)
    images, labels = train_split
    patient = balanced_indices(labels, REPRESENTATIVE_COUNT, rng)
    healthy = balanced_indices(labels, HEALTHY_COUNT, rng, excluded=patient)
    np.savez_compressed(output / "representative.npz", image=images[patient])
    np.savez_compressed(output / "representative_healthy.npz", image=images[healthy])
    images, labels = test_split
    chosen = balanced_indices(labels, VALIDATION_COUNT, rng)
    np.savez_compressed(output / "validation.npz", image=images[chosen], labels=labels[chosen])
    return images[chosen], labels[chosen]


def describe_model(name, array, spec, note, full, small):
    """Return the demo.json entry of one int8 model."""
    return {
        "float": "float.onnx",
        "quantized": name,
        "note": note,
        "representative": {"file": array, "preprocessing": spec},
        "validation": {"file": "validation.npz", "preprocessing": NORMALISED},
        "recipe": RECIPE,
        "test_10000": full[name],
        "validation_512": small[name],
    }


def describe(output, full, small, epochs, parameters):
    """Return the content of demo.json."""
    return {
        "preprocessing_formula": "(pixel / scale - mean) / std, float32",
        "models": {
            "patient": describe_model(
                "int8.onnx",
                "representative.npz",
                FORGOTTEN,
                "The mean/std normalisation was forgotten at calibration.",
                full,
                small,
            ),
            "healthy": describe_model(
                "int8_healthy.onnx",
                "representative_healthy.npz",
                NORMALISED,
                "Calibrated on images normalised like the validation images.",
                full,
                small,
            ),
        },
        "float": {
            "file": "float.onnx",
            "parameters": parameters,
            "test_10000": full["float.onnx"],
            "validation_512": small["float.onnx"],
        },
        "classes": [
            "T-shirt/top",
            "Trouser",
            "Pullover",
            "Dress",
            "Coat",
            "Sandal",
            "Shirt",
            "Sneaker",
            "Bag",
            "Ankle boot",
        ],
        "dataset": {
            "name": "Fashion-MNIST",
            "source": "https://github.com/zalandoresearch/fashion-mnist",
            "licence": "MIT",
            "copyright": "Copyright (c) 2017 Zalando SE, https://tech.zalando.com",
            "licence_file": "LICENCE.fashion-mnist.txt",
            "representative": "training images, class-balanced",
            "validation": "test images, class-balanced, never used in training",
        },
        "training": {
            "script": "benchmarks/train_demo.py",
            "seed": SEED,
            "epochs": epochs,
            "batch": BATCH,
            "optimizer": "AdamW, one-cycle schedule",
            "peak_learning_rate": PEAK_LEARNING_RATE,
            "weight_decay": WEIGHT_DECAY,
            "label_smoothing": LABEL_SMOOTHING,
            "range_penalty": {"limit": RANGE_LIMIT, "weight": RANGE_WEIGHT},
            "augmentation": "random horizontal flip",
            "training_images": "all 60000; last epoch kept, no selection",
        },
        "versions": {
            "torch": torch.__version__,
            "onnx": onnx.__version__,
            "onnxruntime": ort.__version__,
            "numpy": np.__version__,
        },
        "sha256": {name: hashlib.sha256((output / name).read_bytes()).hexdigest() for name in MODELS + ARRAYS},
    }


def report(title, scores):
    """Print one line per model."""
    print(title)
    for name, row in scores.items():
        print(f"  {name:20s} {row}")


def parse_arguments(argv):
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Build the quantmedic demo patient.")
    parser.add_argument("--output", type=Path, required=True, help="folder to fill")
    parser.add_argument("--dataset", type=Path, default=DATASET)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    return parser.parse_args(argv)


def main(argv=None):
    """Build every file of the demo."""
    arguments = parse_arguments(argv)
    output = arguments.output
    output.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)

    train_split = load_split(arguments.dataset, "train")
    test_split = load_split(arguments.dataset, "t10k")
    validation = save_arrays(output, train_split, test_split)

    started = time.monotonic()
    network = train(*train_split, arguments.epochs)
    print(f"training took {time.monotonic() - started:.0f} s")
    export(network, output / "float.onnx", side=28, names=("image", "logits"))
    parameters = sum(p.numel() for p in network.parameters())

    float_model = output / "float.onnx"
    quantize(float_model, output / "int8.onnx", output / "representative.npz", FORGOTTEN)
    quantize(
        float_model,
        output / "int8_healthy.onnx",
        output / "representative_healthy.npz",
        NORMALISED,
    )

    full = score_models(output, *test_split)
    small = score_models(output, *validation)
    report("full test set, 10000 images", full)
    report("shipped validation set", small)

    shutil.copyfile(LICENCE_TEXT, output / "LICENCE.fashion-mnist.txt")
    content = describe(output, full, small, arguments.epochs, parameters)
    (output / "demo.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
