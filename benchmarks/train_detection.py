"""Train and quantize the detector of ``quantmedic demo --detection``.

A small detector of discs, squares and triangles, exported as people export detectors: boxes in pixels of the camera's
picture and scores between 0 and 1 in one Concat.

``detection_float.onnx``
    the trained network (input ``image`` [N, 1, 64, 64], output ``detections`` [N, 64, 7]: centre, width and height of a
    box in pixels of a picture of 640 x 640, and the scores of three classes);
``detection_int8.onnx``
    the patient: the Concat gives boxes and scores one range, so that every score rounds to 0;
``detection_int8_healthy.onnx``
    the control: the same settings, the Concat left in float.

How to run, from the repository root (some minutes on one core)::

    pip install torch==2.13.0 onnx onnxruntime numpy
    OMP_NUM_THREADS=1 python benchmarks/train_detection.py --output quantmedic/demo

The images are drawn from a seed, and one thread is used: on the same machine and library versions the script writes the
same bytes again. quantmedic itself does not import torch.
"""

import argparse
import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import torch
from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static
from torch import nn
from train_demo import RECIPE, ArrayReader, ConvBlock, export, preprocess

sys.path.insert(0, str(Path(__file__).parents[1]))
from quantmedic.demo.metric import objects_found

SEED = 31
SIDE, GRID, PICTURE = 64, 8, 640.0
CLASSES = ["disc", "square", "triangle"]
MOST_OBJECTS = 3
STEPS, BATCH, PEAK_LEARNING_RATE = 1600, 48, 4e-3
BOX_WEIGHT = 60.0
OPSET = 17
REPRESENTATIVE_COUNT, VALIDATION_COUNT = 96, 192
PIXELS = {"scale": 255, "mean": [0.5], "std": [0.5]}
FLOAT, PATIENT, HEALTHY = "detection_float.onnx", "detection_int8.onnx", "detection_int8_healthy.onnx"
REPRESENTATIVE, VALIDATION = "detection_representative.npz", "detection_validation.npz"


# ---------------------------------------------------------------- data


def draw(count, rng):
    """Images [count, 1, 64, 64] and labels [count, 3, 5]: left, top, right, bottom in picture pixels, class or -1."""
    rows, columns = np.mgrid[:SIDE, :SIDE]
    images = np.zeros((count, 1, SIDE, SIDE), np.uint8)
    labels = np.full((count, MOST_OBJECTS, 5), -1.0, np.float32)
    for i in range(count):
        slope = rng.uniform(-0.5, 0.5, 2)
        image = rng.uniform(60, 120) + slope[0] * (rows - SIDE / 2) + slope[1] * (columns - SIDE / 2)
        for k in range(rng.integers(1, MOST_OBJECTS + 1)):
            box = _free_place(labels[i, :k], rng)
            if box is None:
                break
            kind = int(rng.integers(len(CLASSES)))
            image = np.where(
                _inside(kind, box, rows, columns), image + rng.choice([-1, 1]) * rng.uniform(45, 110), image
            )
            labels[i, k] = (*(box * PICTURE / SIDE), kind)
        images[i, 0] = np.clip(np.round(image / 4) * 4, 0, 255)
    return images, labels


def _free_place(others, rng):
    """A box that touches no other and has a cell of its own; None where none is found."""
    for _ in range(40):
        width, height = rng.uniform(11, 26, 2)
        left, top = rng.uniform(1, SIDE - 1 - width), rng.uniform(1, SIDE - 1 - height)
        box = np.array([left, top, left + width, top + height], np.float32)
        known = others[:, :4] * SIDE / PICTURE
        if not ((known[:, :2] < box[2:] + 2).all(1) & (known[:, 2:] > box[:2] - 2).all(1)).any():
            return box
    return None


def _inside(kind, box, rows, columns):
    left, top, right, bottom = box
    x, y = (columns + 0.5 - left) / (right - left), (rows + 0.5 - top) / (bottom - top)
    within = (x >= 0) & (x <= 1) & (y >= 0) & (y <= 1)
    if kind == 0:
        return (x - 0.5) ** 2 + (y - 0.5) ** 2 <= 0.25
    return within if kind == 1 else within & (np.abs(x - 0.5) <= y / 2)


def targets_of(labels):
    """Boxes [n, 64, 4], scores [n, 64, 3] and which cells hold an object."""
    count = len(labels)
    boxes, scores = np.zeros((count, GRID**2, 4), np.float32), np.zeros((count, GRID**2, len(CLASSES)), np.float32)
    there = np.zeros((count, GRID**2), bool)
    for i, objects in enumerate(labels):
        for left, top, right, bottom, kind in objects[objects[:, 4] >= 0]:
            x, y = (left + right) / 2, (top + bottom) / 2
            cell = int(y * GRID / PICTURE) * GRID + int(x * GRID / PICTURE)
            boxes[i, cell] = x, y, right - left, bottom - top
            scores[i, cell, int(kind)] = 1.0
            there[i, cell] = True
    return map(torch.from_numpy, (boxes, scores, there))


# ---------------------------------------------------------------- network


class Detector(nn.Module):
    """64x64 grey image in; for each of 8x8 cells a box in pixels and a score per class, joined."""

    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(
            ConvBlock(1, 12, 3, stride=2, act=nn.ReLU),
            ConvBlock(12, 20, 3, stride=2, act=nn.ReLU),
            ConvBlock(20, 28, 3, stride=2, act=nn.ReLU),
            ConvBlock(28, 28, 3, act=nn.ReLU),
            ConvBlock(28, 28, 3, act=nn.ReLU),
        )
        self.boxes, self.classes = nn.Conv2d(28, 4, 1), nn.Conv2d(28, len(CLASSES), 1)
        nn.init.constant_(self.classes.bias, -3.0)
        places = torch.arange(GRID, dtype=torch.float32)
        rows, columns = torch.meshgrid(places, places, indexing="ij")
        stride = PICTURE / GRID
        corner = torch.stack([columns.flatten() - 0.5, rows.flatten() - 0.5], 1) * stride
        self.register_buffer("corner", torch.cat([corner, torch.zeros(GRID**2, 2)], 1))
        self.register_buffer("reach", torch.tensor([2 * stride, 2 * stride, PICTURE / 2, PICTURE / 2]))

    def forward(self, image):
        features = self.backbone(image)
        boxes = self.boxes(features).flatten(2).transpose(1, 2).sigmoid() * self.reach + self.corner
        scores = self.classes(features).flatten(2).transpose(1, 2).sigmoid()
        return torch.cat([boxes, scores], dim=2)


def train(steps):
    """A trained detector in evaluation mode."""
    torch.manual_seed(SEED)
    rng = np.random.default_rng(SEED)
    network = Detector()
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK_LEARNING_RATE, total_steps=steps)
    images, labels = draw(6000, rng)
    pixels = torch.from_numpy(preprocess(images, PIXELS))
    boxes, scores, there = targets_of(labels)
    for step in range(steps):
        chosen = torch.from_numpy(rng.integers(0, len(pixels), BATCH))
        found, at = network(pixels[chosen]), there[chosen]
        wrong = nn.functional.binary_cross_entropy(found[..., 4:], scores[chosen], reduction="sum") / BATCH
        distance = (found[..., :4][at] - boxes[chosen][at]).abs().mean() / PICTURE
        loss = wrong + BOX_WEIGHT * distance
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 200 == 199:
            print(f"step {step + 1}: loss {loss.item():.3f}", flush=True)
    return network.eval()


# ---------------------------------------------------------------- quantization and evaluation


def quantize(source, target, array, excluded):
    """Quantize with the settings of the other demo."""
    quantize_static(
        str(source),
        str(target),
        ArrayReader(array, PIXELS),
        quant_format=QuantFormat[RECIPE["quant_format"]],
        per_channel=RECIPE["per_channel"],
        activation_type=QuantType[RECIPE["activation_type"]],
        weight_type=QuantType[RECIPE["weight_type"]],
        calibrate_method=CalibrationMethod[RECIPE["calibrate_method"]],
        nodes_to_exclude=excluded,
    )


def score(path, images, labels):
    """Share of the objects that a model finds."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    found = session.run(None, {"image": preprocess(images, PIXELS)})[0]
    return round(float(objects_found({"detections": found}, labels).mean()), 4)


def describe(output, scores, steps):
    """Content of detection.json."""
    entry = {
        "float": FLOAT,
        "representative": {"file": REPRESENTATIVE, "preprocessing": PIXELS},
        "validation": {"file": VALIDATION, "preprocessing": PIXELS},
        "recipe": RECIPE,
    }
    patient = {"quantized": PATIENT, "note": "Boxes and scores share the range of one Concat."}
    healthy = {"quantized": HEALTHY, "note": "The Concat is left in float.", "nodes_to_exclude": "every Concat"}
    files = [FLOAT, PATIENT, HEALTHY, REPRESENTATIVE, VALIDATION]
    return {
        "preprocessing_formula": "(pixel / scale - mean) / std, float32",
        "metric": "quantmedic.demo.metric:objects_found",
        "models": {"patient": entry | patient, "healthy": entry | healthy},
        "objects_found": scores,
        "classes": CLASSES,
        "dataset": "discs, squares and triangles drawn from a seed; labels: left, top, right, bottom, class or -1",
        "training": {"script": "benchmarks/train_detection.py", "seed": SEED, "steps": steps, "batch": BATCH},
        "versions": {"torch": torch.__version__, "onnx": onnx.__version__, "onnxruntime": ort.__version__},
        "sha256": {name: hashlib.sha256((output / name).read_bytes()).hexdigest() for name in files},
    }


def main(argv=None):
    """Build every file of the demo."""
    parser = argparse.ArgumentParser(description="Build the detector of quantmedic demo --detection.")
    parser.add_argument("--output", type=Path, required=True, help="folder to fill")
    parser.add_argument("--steps", type=int, default=STEPS)
    arguments = parser.parse_args(argv)
    output = arguments.output
    output.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)

    rng = np.random.default_rng(SEED + 1)
    np.savez_compressed(output / REPRESENTATIVE, image=draw(REPRESENTATIVE_COUNT, rng)[0])
    images, labels = draw(VALIDATION_COUNT, rng)
    np.savez_compressed(output / VALIDATION, image=images, labels=labels)

    export(train(arguments.steps), output / FLOAT, side=SIDE, names=("image", "detections"))
    joints = [node.name for node in onnx.load(str(output / FLOAT)).graph.node if node.op_type == "Concat"]
    quantize(output / FLOAT, output / PATIENT, output / REPRESENTATIVE, [])
    quantize(output / FLOAT, output / HEALTHY, output / REPRESENTATIVE, joints)
    scores = {name: score(output / name, images, labels) for name in (FLOAT, PATIENT, HEALTHY)}
    print(scores)
    content = describe(output, scores, arguments.steps)
    (output / "detection.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
