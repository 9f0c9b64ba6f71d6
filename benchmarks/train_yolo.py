"""Train the detector that the tests quantize: the head of YOLOv8, as Ultralytics exports it, on drawn shapes.

``yolo_float.onnx``
    input ``images`` [N, 1, 64, 64], output ``output0`` [N, 4 + 3, 80]: centre, width and height of a box in pixels of
    the input, then the scores of discs, squares and triangles, for the cells of two maps. Each side of a box is the
    expectation over eight bins (DFL), and several cells find each object: suppression is left to the application.

Images and labels are those of the detector of ``quantmedic demo --detection``, drawn by ``train_detection.py``.

How to run, from the repository root (some minutes on one core)::

    pip install torch==2.13.0 onnx onnxruntime numpy
    OMP_NUM_THREADS=1 python benchmarks/train_yolo.py --output tests/recordings/yolo

quantmedic itself does not import torch.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn
from train_demo import ConvBlock, export, preprocess
from train_detection import CLASSES, PICTURE, PIXELS, SIDE, draw

SEED = 47
STRIDES, BINS = (8, 16), 8
STEPS, BATCH, PEAK_LEARNING_RATE = 1400, 32, 4e-3
#: Cells whose centre lies this near to that of a box, in strides, learn to find it.
REACH = 1.0
BOX_WEIGHT, BINS_WEIGHT = 6.0, 1.0


class Head(nn.Module):
    """The distances to the four sides, as shares of bins, and the classes, of the cells of one map."""

    def __init__(self, channels):
        super().__init__()
        self.boxes = nn.Sequential(ConvBlock(channels, 24, 3, act=nn.SiLU), nn.Conv2d(24, 4 * BINS, 1))
        self.classes = nn.Sequential(ConvBlock(channels, 24, 3, act=nn.SiLU), nn.Conv2d(24, len(CLASSES), 1))
        nn.init.constant_(self.boxes[-1].bias, 1.0)
        nn.init.constant_(self.classes[-1].bias, -4.0)

    def forward(self, x):
        return torch.cat([self.boxes(x), self.classes(x)], 1).flatten(2)


class Yolo(nn.Module):
    """64x64 grey image in; boxes in pixels and scores, channels first."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            ConvBlock(1, 12, 3, stride=2, act=nn.SiLU),
            ConvBlock(12, 20, 3, stride=2, act=nn.SiLU),
            ConvBlock(20, 32, 3, stride=2, act=nn.SiLU),
            ConvBlock(32, 32, 3, act=nn.SiLU),
        )
        self.deep = nn.Sequential(ConvBlock(32, 40, 3, stride=2, act=nn.SiLU), ConvBlock(40, 40, 3, act=nn.SiLU))
        self.heads = nn.ModuleList([Head(32), Head(40)])
        self.bins = nn.Conv2d(BINS, 1, 1, bias=False).requires_grad_(False)
        self.bins.weight.data[:] = torch.arange(BINS, dtype=torch.float32).view(1, BINS, 1, 1)
        cells = [self._cells(SIDE // stride) for stride in STRIDES]
        self.register_buffer("anchors", torch.cat(cells, 1))
        counts = torch.tensor([(SIDE // stride) ** 2 for stride in STRIDES])
        self.register_buffer("strides", torch.tensor(STRIDES, dtype=torch.float32).repeat_interleave(counts))

    @staticmethod
    def _cells(count):
        places = torch.arange(count, dtype=torch.float32) + 0.5
        rows, columns = torch.meshgrid(places, places, indexing="ij")
        return torch.stack([columns.flatten(), rows.flatten()])

    def raw(self, image):
        """Shares of the bins before the softmax, and classes before the sigmoid."""
        fine = self.stem(image)
        found = torch.cat([head(x) for head, x in zip(self.heads, (fine, self.deep(fine)), strict=True)], 2)
        return found.split((4 * BINS, len(CLASSES)), 1)

    def corners(self, distances):
        """Both corners of the boxes in cells."""
        shares = distances.view(-1, 4, BINS, distances.shape[-1]).transpose(2, 1).softmax(1)
        near, far = self.bins(shares).view(-1, 4, distances.shape[-1]).chunk(2, 1)
        return self.anchors.unsqueeze(0) - near, self.anchors.unsqueeze(0) + far

    def forward(self, image):
        distances, classes = self.raw(image)
        low, high = self.corners(distances)
        boxes = torch.cat([(low + high) / 2, high - low], 1) * self.strides
        return torch.cat([boxes, classes.sigmoid()], 1)


def targets_of(labels, network):
    """Which box each cell learns, or -1, ``[n, cells]``: the smallest of those whose centre is near."""
    centres = (network.anchors * network.strides).T.numpy()
    strides = network.strides.numpy()
    found = np.full((len(labels), len(strides)), -1)
    for i, objects in enumerate(labels):
        for k, (left, top, right, bottom, kind) in enumerate(objects):
            if kind < 0:
                continue
            middle = np.array([(left + right) / 2, (top + bottom) / 2])
            near = (np.abs(centres - middle) < REACH * strides[:, None]).all(1)
            near &= ((centres > [left, top]) & (centres < [right, bottom])).all(1)
            wanted = 16 if max(right - left, bottom - top) > 19 else 8
            found[i, near & (strides == wanted)] = k
    return found


def losses(network, image, labels, owners):
    """Cross entropy of the classes, GIoU of the boxes and cross entropy of the bins."""
    distances, classes = network.raw(image)
    low, high = network.corners(distances)
    there = owners >= 0
    own = torch.gather(labels, 1, owners.clamp(min=0).unsqueeze(2).expand(-1, -1, 5))
    wanted = torch.zeros_like(classes)
    place = own[..., 4].long().clamp(min=0)
    wanted.scatter_(1, place.unsqueeze(1), there.float().unsqueeze(1))
    wrong = nn.functional.binary_cross_entropy_with_logits(classes, wanted, reduction="sum") / there.sum()
    box = own[..., :4] / network.strides.unsqueeze(1)
    boxes = torch.cat([low, high], 1).transpose(1, 2)[there]
    goal = box[there]
    sides = torch.cat([network.anchors.T - box[..., :2], box[..., 2:] - network.anchors.T], 2)[there]
    sides = sides.clamp(0, BINS - 1.01)
    bins = distances.view(len(image), 4, BINS, -1).permute(0, 3, 1, 2)[there].log_softmax(-1)
    lower = sides.floor().long()
    share = sides - lower
    entropy = -(bins.gather(2, lower.unsqueeze(2)).squeeze(2) * (1 - share))
    entropy = entropy - bins.gather(2, lower.unsqueeze(2) + 1).squeeze(2) * share
    return wrong + BOX_WEIGHT * (1 - giou(boxes, goal)).mean() + BINS_WEIGHT * entropy.mean()


def giou(a, b):
    """Generalized intersection over union of corners."""
    shared = (torch.minimum(a[:, 2:], b[:, 2:]) - torch.maximum(a[:, :2], b[:, :2])).clamp(min=0).prod(1)
    union = (a[:, 2:] - a[:, :2]).prod(1) + (b[:, 2:] - b[:, :2]).prod(1) - shared
    hull = (torch.maximum(a[:, 2:], b[:, 2:]) - torch.minimum(a[:, :2], b[:, :2])).prod(1)
    return shared / union - (hull - union) / hull


def train(steps):
    """A trained detector in evaluation mode."""
    torch.manual_seed(SEED)
    rng = np.random.default_rng(SEED)
    network = Yolo()
    optimizer = torch.optim.AdamW([p for p in network.parameters() if p.requires_grad], weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, PEAK_LEARNING_RATE, total_steps=steps)
    images, labels = draw(6000, rng)
    labels[..., :4] *= np.where(labels[..., 4:] >= 0, SIDE / PICTURE, 1)
    pixels = torch.from_numpy(preprocess(images, PIXELS))
    owners, labels = torch.from_numpy(targets_of(labels, network)), torch.from_numpy(labels)
    for step in range(steps):
        chosen = torch.from_numpy(rng.integers(0, len(pixels), BATCH))
        loss = losses(network, pixels[chosen], labels[chosen], owners[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 100 == 99:
            print(f"step {step + 1}: loss {loss.item():.3f}", flush=True)
    return network.eval()


def main(argv=None):
    """Train and write the float model."""
    parser = argparse.ArgumentParser(description="Build the detector that the tests quantize.")
    parser.add_argument("--output", type=Path, required=True, help="folder to fill")
    parser.add_argument("--steps", type=int, default=STEPS)
    arguments = parser.parse_args(argv)
    arguments.output.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    export(train(arguments.steps), arguments.output / "yolo_float.onnx", side=SIDE, names=("images", "output0"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
