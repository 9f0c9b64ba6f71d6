"""Train the networks of the third unseen set and write them to ``benchmarks/zoo/unseen_c/networks``.

``keypoints``  a picture of an arm to three heatmaps: leaky rectifiers, transposed convolutions, sigmoids
``segmenter``  a picture to the class of every second pixel: ELU, dilated branches and a global one, bilinear resizing
``keywords``   levels in bands over time to a word: convolutions in time, an LSTM
``mixer``      rows of a table to a group: every column a token, layer norms and GELU exported in pieces

How to run, from the repository root (a minute or two each on one core)::

    pip install torch==2.13.0 onnx onnxruntime numpy
    OMP_NUM_THREADS=1 python benchmarks/train_unseen_c.py [NAME …]

Seeds are fixed and one thread is used. The zoo itself needs no torch.
"""

import argparse
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn
from train_tasks import LEARNING_RATE, export, fit
from train_zoo import conv
from zoo.pixels import SIGNED, UNIT
from zoo.unseen_c.samples import (
    BANDS,
    CELLS,
    COLUMNS,
    GROUPS,
    JOINTS,
    KINDS,
    MAP,
    VOCABULARY,
    arms,
    plots,
    tables,
    words,
)

TARGET = Path(__file__).parent / "zoo" / "unseen_c" / "networks"
SEED = 6


class Leaky(nn.LeakyReLU):
    def __init__(self):
        super().__init__(0.1)


def up(inputs, outputs):
    """Twice the resolution."""
    layers = [nn.ConvTranspose2d(inputs, outputs, 4, 2, 1), nn.BatchNorm2d(outputs), Leaky()]
    return nn.Sequential(*layers)


class Keypoints(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            conv(1, 12, 3, 2, act=Leaky), conv(12, 24, 3, 2, act=Leaky), conv(24, 40, 3, 2, act=Leaky)
        )
        self.deep = conv(40, 40, 3, act=Leaky)
        self.ups = nn.Sequential(up(40, 24), up(24, 16))
        self.heat = nn.Conv2d(16, JOINTS, 1)

    def forward(self, picture):
        return torch.sigmoid(self.heat(self.ups(self.deep(self.body(picture)))))


def heat_loss(heat, joints):
    """Cross entropy with bells around the joints."""
    y, x = torch.meshgrid(torch.arange(CELLS) + 0.5, torch.arange(CELLS) + 0.5, indexing="ij")
    squares = (x - joints[..., 0, None, None]) ** 2 + (y - joints[..., 1, None, None]) ** 2
    wanted = torch.exp(-squares / 2)
    weight = 1 + 20 * wanted
    return (weight * nn.functional.binary_cross_entropy(heat, wanted.float(), reduction="none")).mean()


class Atrous(nn.Module):
    """Views of several widths and one of everything, joined."""

    def __init__(self, inputs, width):
        super().__init__()
        self.views = nn.ModuleList(self.view(inputs, width, rate) for rate in (1, 2, 4))
        self.whole = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(inputs, width, 1), nn.ELU())
        self.join = conv(4 * width, 2 * width, 1, act=nn.ELU)

    @staticmethod
    def view(inputs, width, rate):
        layers = nn.Conv2d(inputs, width, 3, 1, rate, rate, bias=False), nn.BatchNorm2d(width), nn.ELU()
        return nn.Sequential(*layers)

    def forward(self, x):
        views = [view(x) for view in self.views]
        return self.join(torch.cat([*views, self.whole(x).expand_as(views[0])], 1))


class Segmenter(nn.Module):
    def __init__(self):
        super().__init__()
        self.fine = conv(1, 12, 3, 2, act=nn.ELU)
        self.coarse = nn.Sequential(conv(12, 24, 3, 2, act=nn.ELU), conv(24, 24, 3, act=nn.ELU))
        self.views = Atrous(24, 12)
        self.meet = conv(36, 24, 3, act=nn.ELU)
        self.kinds = nn.Conv2d(24, KINDS, 1)

    def forward(self, picture):
        fine = self.fine(picture)
        wide = nn.functional.interpolate(
            self.views(self.coarse(fine)), size=(MAP, MAP), mode="bilinear", align_corners=False
        )
        return self.kinds(self.meet(torch.cat([wide, fine], 1)))


class Keywords(nn.Module):
    def __init__(self, width=40):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(BANDS, 32, 5, 2, 2, bias=False),
            nn.BatchNorm1d(32),
            nn.ReLU(),
            nn.Conv1d(32, 32, 3, 2, 1, bias=False),
            nn.BatchNorm1d(32),
            nn.ReLU(),
        )
        self.reader = nn.LSTM(32, width)
        self.narrow, self.head = nn.Linear(width, 24), nn.Linear(24, len(VOCABULARY))

    def forward(self, levels):
        steps = self.body(levels.transpose(1, 2)).permute(2, 0, 1)
        last = self.reader(steps)[0][-1]
        return self.head(torch.relu(self.narrow(last)))


class PiecedNorm(nn.Module):
    """A layer norm as older exporters write it."""

    def __init__(self, width):
        super().__init__()
        self.gain, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x):
        centred = x - x.mean(-1, keepdim=True)
        return centred / torch.sqrt((centred**2).mean(-1, keepdim=True) + 1e-5) * self.gain + self.shift


class PiecedGelu(nn.Module):
    def forward(self, x):
        return x * (torch.erf(x / math.sqrt(2)) + 1) * 0.5


class Mixing(nn.Module):
    """First the tokens are mixed, then the features of each."""

    def __init__(self, tokens, width):
        super().__init__()
        self.norm1, self.norm2 = PiecedNorm(width), PiecedNorm(width)
        self.across = nn.Sequential(nn.Linear(tokens, 2 * tokens), PiecedGelu(), nn.Linear(2 * tokens, tokens))
        self.within = nn.Sequential(nn.Linear(width, 2 * width), PiecedGelu(), nn.Linear(2 * width, width))

    def forward(self, x):
        x = x + self.across(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.within(self.norm2(x))


class Mixer(nn.Module):
    def __init__(self, width=20, depth=2):
        super().__init__()
        self.word, self.place = (nn.Parameter(torch.randn(COLUMNS, width) * 0.5) for _ in range(2))
        self.blocks = nn.Sequential(*(Mixing(COLUMNS, width) for _ in range(depth)))
        self.norm, self.head = PiecedNorm(width), nn.Linear(width, GROUPS)

    def forward(self, row):
        x = row[:, :, None] * self.word + self.place
        return self.head(self.norm(self.blocks(x)).mean(1))


def map_loss(scores, classes):
    return nn.functional.cross_entropy(scores, classes)


@dataclass(frozen=True)
class Plan:
    """How a network is trained.

    Attributes:
        build: The network.
        samples: Inputs and targets from random numbers.
        prepare: From samples to inputs.
        loss: Of outputs and targets.
        input: Its name.
        output: Its name.
    """

    build: Callable
    samples: Callable
    prepare: Callable
    loss: Callable
    epochs: int
    input: str
    output: str
    count: int = 10000


PLANS = {
    "keypoints": Plan(Keypoints, arms, SIGNED.apply, heat_loss, 8, "picture", "heat"),
    "segmenter": Plan(Segmenter, plots, UNIT.apply, map_loss, 8, "picture", "kinds"),
    "keywords": Plan(Keywords, words, np.asarray, nn.functional.cross_entropy, 6, "levels", "logits"),
    "mixer": Plan(Mixer, tables, np.asarray, nn.functional.cross_entropy, 6, "row", "logits", 20000),
}


def train(plan, epochs):
    torch.manual_seed(SEED)
    network = plan.build()
    found, truth = plan.samples(np.random.default_rng(SEED), plan.count)
    inputs, targets = torch.from_numpy(plan.prepare(found)), torch.from_numpy(truth)
    return fit(network, plan, inputs, targets, epochs=epochs, rate=LEARNING_RATE, seed=SEED), inputs[:2]


def run_plans(plans, target, description):
    """The command line of a trainer: train the networks that it names, or all, and write them."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("names", nargs="*", metavar="NAME", help="some of " + ", ".join(plans))
    parser.add_argument("--output", type=Path, default=target)
    parser.add_argument("--epochs", type=int, help="instead of each network's own number")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    for name in arguments.names or plans:
        print(name, flush=True)
        plan, path = plans[name], arguments.output / f"{name}.onnx"
        network, example = train(plan, arguments.epochs or plan.epochs)
        export(network, plan, example, path)
        weights = sum(p.numel() for p in network.parameters())
        print(f"  {path.stat().st_size / 1000:.0f} kB, {weights} parameters", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(run_plans(PLANS, TARGET, "Train the networks of the third unseen set."))
