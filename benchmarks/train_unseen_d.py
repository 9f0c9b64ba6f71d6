"""Train the networks of the fourth unseen set and write them to ``benchmarks/zoo/unseen_d/networks``.

``beads``     a colour picture to its class: wide depthwise convolutions, layer norms, GELU, scaled branches
``weaves``    a picture of cloth to its class: dense blocks, norms behind concatenations
``machines``  readings of sensors to the state of a machine: dilated convolutions that see only the past
``prints``    a small picture to a large one: learned slopes, depth to space, added to the enlarged input
``bags``      a bag of measured things to its kind: pooled with weights that gates decide

How to run, from the repository root (a minute or two each on one core)::

    pip install torch==2.13.0 onnx onnxruntime numpy
    OMP_NUM_THREADS=1 python benchmarks/train_unseen_d.py [NAME …]

Seeds are fixed and one thread is used. The zoo itself needs no torch.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn
from train_unseen_c import Plan, run_plans
from zoo.pixels import SIGNED, UNIT
from zoo.unseen_d.networks import PHOTOGRAPHS
from zoo.unseen_d.samples import (
    BEADS,
    MEASURES,
    SENSORS,
    SORTS,
    STATES,
    WEAVES,
    bags,
    beads,
    machines,
    prints,
    weaves,
)

TARGET = Path(__file__).parent / "zoo" / "unseen_d" / "networks"


class PlaneNorm(nn.LayerNorm):
    """A layer norm over the channels of planes."""

    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Wide(nn.Module):
    """A wide depthwise convolution and two dense layers, on a branch that starts out faint."""

    def __init__(self, width):
        super().__init__()
        self.branch = nn.Sequential(
            nn.Conv2d(width, width, 7, 1, 3, groups=width),
            PlaneNorm(width),
            nn.Conv2d(width, 3 * width, 1),
            nn.GELU(),
            nn.Conv2d(3 * width, width, 1),
        )
        self.gain = nn.Parameter(torch.full((1, width, 1, 1), 0.1))

    def forward(self, x):
        return x + self.gain * self.branch(x)


class Beads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 20, 4, 4),
            PlaneNorm(20),
            Wide(20),
            Wide(20),
            PlaneNorm(20),
            nn.Conv2d(20, 36, 2, 2),
            Wide(36),
            Wide(36),
        )
        self.norm, self.head = nn.LayerNorm(36), nn.Linear(36, BEADS)

    def forward(self, picture):
        return self.head(self.norm(self.body(picture).mean((2, 3))))


class Joining(nn.Module):
    """Each layer reads what all before it wrote."""

    def __init__(self, inputs, growth, depth):
        super().__init__()
        widths = [inputs + i * growth for i in range(depth)]
        self.layers = nn.ModuleList(normed(width, growth, 3) for width in widths)

    def forward(self, x):
        for layer in self.layers:
            x = torch.cat([x, layer(x)], 1)
        return x


def normed(inputs, outputs, kernel):
    """Batch norm, rectifier, convolution."""
    layers = nn.BatchNorm2d(inputs), nn.ReLU(), nn.Conv2d(inputs, outputs, kernel, 1, kernel // 2, bias=False)
    return nn.Sequential(*layers)


def cloth_reader():
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, 2, 1),
        Joining(16, 8, 5),
        normed(56, 28, 1),
        nn.AvgPool2d(2),
        Joining(28, 10, 5),
        nn.BatchNorm2d(78),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(78, WEAVES),
    )


class Past(nn.Module):
    """Two dilated convolutions that see only the past, added to their input."""

    def __init__(self, inputs, width, rate):
        super().__init__()
        self.wait = nn.ZeroPad2d((2 * rate, 0, 0, 0))
        self.first, self.second = (
            nn.Conv2d(inputs, width, (1, 3), dilation=rate),
            nn.Conv2d(width, width, (1, 3), dilation=rate),
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(2))
        self.skip = nn.Conv2d(inputs, width, 1) if inputs != width else nn.Identity()

    def forward(self, x):
        branch = torch.relu(self.norms[0](self.first(self.wait(x))))
        branch = torch.relu(self.norms[1](self.second(self.wait(branch))))
        return torch.relu(branch + self.skip(x))


class Machines(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.body = nn.Sequential(
            Past(SENSORS, width, 1), Past(width, width, 2), Past(width, width, 4), Past(width, width, 8)
        )
        self.head = nn.Linear(2 * width, STATES)

    def forward(self, readings):
        x = self.body(readings.transpose(1, 2).unsqueeze(2)).squeeze(2)
        return self.head(torch.cat([x[..., -1], x.mean(2)], 1))


class Sloped(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(width, width, 3, 1, 1), nn.PReLU(width), nn.Conv2d(width, width, 3, 1, 1))

    def forward(self, x):
        return x + self.body(x)


class Prints(nn.Module):
    def __init__(self, width=20):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, width, 5, 1, 2), nn.PReLU(width), Sloped(width), Sloped(width), nn.Conv2d(width, 4, 3, 1, 1)
        )

    def forward(self, picture):
        wide = nn.functional.interpolate(picture, scale_factor=2, mode="bilinear", align_corners=False)
        return wide + nn.functional.pixel_shuffle(self.body(picture), 2)


class Bags(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.first, self.second = nn.Linear(MEASURES, width), nn.Linear(width, width)
        self.value, self.gate, self.weight = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, 2)
        self.narrow, self.head = nn.Linear(2 * width, 24), nn.Linear(24, SORTS)

    def forward(self, bag):
        things = torch.relu(self.second(torch.relu(self.first(bag))))
        asked = torch.tanh(self.value(things)) * torch.sigmoid(self.gate(things))
        weights = torch.softmax(self.weight(asked).transpose(1, 2), 2)
        return self.head(torch.relu(self.narrow((weights @ things).flatten(1))))


entropy = nn.functional.cross_entropy
PLANS = {
    "beads": Plan(Beads, beads, PHOTOGRAPHS.apply, entropy, 6, "picture", "logits", 8000),
    "weaves": Plan(cloth_reader, weaves, SIGNED.apply, entropy, 4, "cloth", "logits", 5000),
    "machines": Plan(Machines, machines, np.asarray, entropy, 5, "readings", "logits", 8000),
    "prints": Plan(Prints, prints, UNIT.apply, nn.functional.mse_loss, 5, "picture", "enlarged", 4000),
    "bags": Plan(Bags, bags, np.asarray, entropy, 8, "bag", "logits", 20000),
}


if __name__ == "__main__":
    sys.exit(run_plans(PLANS, TARGET, "Train the networks of the fourth unseen set."))
