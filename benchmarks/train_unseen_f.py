"""Train the networks of the sixth unseen set and write them to ``benchmarks/zoo/unseen_f/networks``.

``webs``     nodes and their links to the kind of the web: what each node tells is added up at its neighbours
``mazes``    a plan with start and goal to whether a way leads there: one convolution, repeated six times
``dials``    a wave and the dials beside it to what one tone does: the dials set gain and offset of each channel
``groves``   a row of a table to its yield: soft trees, whose leaves are products of gates
``fabrics``  a colour picture to its cloth: products of all pairs of channels, their roots, made equally long

How to run, from the repository root (a minute or two each on one core)::

    pip install torch==2.13.0 onnx onnxruntime numpy
    OMP_NUM_THREADS=1 python benchmarks/train_unseen_f.py [NAME …]

Seeds are fixed and one thread is used. The zoo itself needs no torch.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn
from train_unseen_c import Plan, run_plans
from zoo.pixels import SIGNED, UNIT
from zoo.unseen_f.samples import (
    CHOICES,
    COURSES,
    DIALS,
    FABRICS,
    MARKS,
    NODES,
    NUMBERS,
    OPTIONS,
    SHAPES,
    TURNS,
    WAVE,
    YIELDS,
    dials,
    fabrics,
    grove_units,
    groves,
    mazes,
    webs,
)

TARGET = Path(__file__).parent / "zoo" / "unseen_f" / "networks"


class Telling(nn.Module):
    """What nodes know, and the mean of what their neighbours know."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.own, self.heard = nn.Linear(inputs, outputs), nn.Linear(inputs, outputs, bias=False)

    def forward(self, x, links, degree):
        return torch.relu(self.own(x) + self.heard((links @ x) / degree))


class Webs(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.first = nn.Linear(MARKS, width)
        self.rounds = nn.ModuleList(Telling(width, width) for _ in range(3))
        self.head = nn.Sequential(nn.Linear(2 * width, width), nn.ReLU(), nn.Linear(width, SHAPES))

    def forward(self, web):
        links, x = web[..., :NODES], web[..., NODES:]
        there = x[..., :1]
        degree = torch.sqrt(links.sum(2, keepdim=True) + 1)
        x = torch.relu(self.first(x)) * there
        for telling in self.rounds:
            x = telling(x, links, degree) * there
        return self.head(torch.cat([x.mean(1), x.amax(1)], 1))


class Mazes(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, 1, 1)
        self.turn = nn.Conv2d(width + 3, width, 3, 1, 1)
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))

    def forward(self, plan):
        free, goal = 1 - plan[:, :1], plan[:, 2:]
        x = torch.relu(self.first(plan)) * free
        for _ in range(TURNS):
            x = torch.relu(self.turn(torch.cat([x, plan], 1))) * free
            if self.training:  # lest what is small at one turn decide some turns later
                x = x + 0.05 * torch.randn_like(x)
        return self.head((x * goal).sum((2, 3)))


class Dialled(nn.Module):
    """A convolution whose channels get the gain and the offset that the dials ask for."""

    def __init__(self, inputs, outputs, size, knobs):
        super().__init__()
        self.outputs = outputs
        self.conv = nn.Conv2d(inputs, outputs, (1, size), (1, 2), (0, size // 2))
        self.norm = nn.BatchNorm2d(outputs)
        self.asked = nn.Linear(knobs, 2 * outputs)

    def forward(self, x, knobs):
        asked = self.asked(knobs).view(-1, 2 * self.outputs, 1, 1)
        x = self.norm(self.conv(x)) * (1 + asked[:, : self.outputs]) + asked[:, self.outputs :]
        return nn.functional.leaky_relu(x, 0.1)


class Dials(nn.Module):
    def __init__(self, width=16, knobs=16):
        super().__init__()
        self.knobs = nn.Sequential(nn.Linear(DIALS, knobs), nn.ReLU(), nn.Linear(knobs, knobs), nn.ReLU())
        sizes = ((1, width, 15), (width, 24, 5), (24, 24, 5))
        self.layers = nn.ModuleList(Dialled(inputs, outputs, size, knobs) for inputs, outputs, size in sizes)
        self.places = nn.Parameter(torch.randn(1, 24, 1, WAVE // 8) * 0.3)
        self.last = nn.Conv2d(24, 32, (1, 3), (1, 1), (0, 1))
        self.head = nn.Linear(64, COURSES)

    def forward(self, wave):
        knobs, x = self.knobs(wave[:, WAVE:]), wave[:, :WAVE].view(-1, 1, 1, WAVE)
        for layer in self.layers:
            x = layer(x, knobs)
        x = nn.functional.leaky_relu(self.last(x + self.places), 0.1)
        return self.head(torch.cat([x.mean((2, 3)), nn.functional.max_pool2d(x, (1, WAVE // 8)).flatten(1)], 1))


class Groves(nn.Module):
    """Trees whose nodes decide by degrees: a leaf counts as the product of what leads to it."""

    def __init__(self, trees=16, width=32, columns=NUMBERS + CHOICES * OPTIONS):
        super().__init__()
        self.trees = trees
        means, spreads = grove_units()
        share, rest = 1 / OPTIONS, CHOICES * OPTIONS
        centre = np.concatenate([means, np.full(rest, share)])
        size = np.concatenate([spreads, np.full(rest, np.sqrt(share * (1 - share)))])
        self.register_buffer("centre", torch.tensor(centre, dtype=torch.float32))
        self.register_buffer("size", torch.tensor(1 / size, dtype=torch.float32))
        self.body = nn.Linear(columns, width)
        self.splits = nn.Linear(width, 3 * trees)
        self.leaves = nn.Linear(8 * trees, YIELDS)

    def forward(self, row):
        x = torch.relu(self.body((row - self.centre) * self.size))
        gates = torch.sigmoid(self.splits(x)).view(-1, 3, self.trees, 1)
        sides = torch.cat([gates, 1 - gates], 3)
        first, second, third = (sides[:, i] for i in range(3))
        pairs = (first.unsqueeze(3) * second.unsqueeze(2)).reshape(-1, self.trees, 4)
        leaves = (pairs.unsqueeze(3) * third.unsqueeze(2)).reshape(-1, 8 * self.trees)
        return self.leaves(leaves)


class Fabrics(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.width = width
        self.fine = nn.Sequential(nn.Conv2d(3, width, 5, 1, 2), nn.BatchNorm2d(width), nn.ReLU())
        self.smooth = nn.AvgPool2d(3, 2, 1, count_include_pad=False)
        self.coarse = nn.Sequential(nn.Conv2d(width, 24, 3, 2, 1), nn.BatchNorm2d(24), nn.Hardswish())
        self.narrow = nn.Conv2d(24, width, 1)
        self.head = nn.Linear(width * width, FABRICS)

    def forward(self, picture):
        x = self.narrow(self.coarse(self.smooth(self.fine(picture)))).reshape(-1, self.width, 36)
        x = x - x.mean(2, keepdim=True)
        pairs = (x @ x.transpose(1, 2) / 36).flatten(1)
        roots = pairs / torch.sqrt(torch.abs(pairs) + 0.01)
        return self.head(roots / torch.sqrt((roots * roots).mean(1, keepdim=True) + 0.01))


entropy = nn.functional.cross_entropy
PLANS = {
    "webs": Plan(Webs, webs, np.asarray, entropy, 8, "web", "logits", 12000),
    "mazes": Plan(Mazes, mazes, UNIT.apply, entropy, 12, "plan", "logits", 12000),
    "dials": Plan(Dials, dials, np.asarray, entropy, 7, "wave", "logits", 12000),
    "groves": Plan(Groves, groves, np.asarray, entropy, 20, "row", "logits", 16000),
    "fabrics": Plan(Fabrics, fabrics, SIGNED.apply, entropy, 5, "picture", "logits", 6000),
}


if __name__ == "__main__":
    sys.exit(run_plans(PLANS, TARGET, "Train the networks of the sixth unseen set."))
