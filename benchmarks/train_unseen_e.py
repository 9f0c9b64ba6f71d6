"""Train the networks of the fifth unseen set and write them to ``benchmarks/zoo/unseen_e/networks``.

``swirls``      the vorticity of a flow to its velocity: halved and doubled again, joined with what was before
``solids``      a cloud of points to its shape: the same layers for each point, the largest of all points
``orders``      a row of a table to what becomes of it: four experts with gates, mixed by a fifth network
``signatures``  two signatures to whether one hand wrote both: the same weights for both, Mish
``talks``       words to the next word: a decoder with rotary places, root mean squares and gates

How to run, from the repository root (a minute or two each on one core)::

    pip install torch==2.13.0 onnx onnxruntime numpy
    OMP_NUM_THREADS=1 python benchmarks/train_unseen_e.py [NAME …]

Seeds are fixed and one thread is used. The zoo itself needs no torch.
"""

import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import nn
from train_unseen_c import Plan, run_plans
from zoo.pixels import SIGNED
from zoo.unseen_e.samples import (
    COLUMNS,
    FATES,
    SOLIDS,
    TALK,
    TRADES,
    WORDS,
    orders,
    signatures,
    solids,
    swirls,
    talks,
)

TARGET = Path(__file__).parent / "zoo" / "unseen_e" / "networks"


def twice(inputs, outputs):
    """Two convolutions with rectifiers."""
    layers = [nn.Conv2d(inputs, outputs, 3, 1, 1), nn.ReLU(), nn.Conv2d(outputs, outputs, 3, 1, 1), nn.ReLU()]
    return nn.Sequential(*layers)


class Swirls(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.fine, self.middle, self.coarse = twice(1, width), twice(width, 2 * width), twice(2 * width, 2 * width)
        self.deep = twice(2 * width, 3 * width)
        self.ups = nn.ModuleList((twice(5 * width, 2 * width), twice(4 * width, 2 * width), twice(3 * width, width)))
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, vorticity):
        found = [self.fine(vorticity)]
        for layers in (self.middle, self.coarse, self.deep):
            found.append(layers(nn.functional.avg_pool2d(found[-1], 2)))
        x = found.pop()
        for layers in self.ups:
            x = layers(torch.cat([nn.functional.interpolate(x, scale_factor=2.0, mode="nearest"), found.pop()], 1))
        return self.head(x)


class Solids(nn.Module):
    def __init__(self, width=32):
        super().__init__()
        self.near = nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.far = nn.Sequential(nn.Linear(2 * width, 2 * width), nn.ReLU(), nn.Linear(2 * width, 3 * width), nn.ReLU())
        self.head = nn.Sequential(nn.Linear(3 * width, 40), nn.ReLU(), nn.Linear(40, SOLIDS))

    def forward(self, cloud):
        points = self.near(cloud)
        whole = points.amax(1, keepdim=True).expand_as(points)
        return self.head(self.far(torch.cat([points, whole], 2)).amax(1))


class Expert(nn.Module):
    """What one layer finds, let through as far as another says."""

    def __init__(self, inputs, width, outputs):
        super().__init__()
        self.found, self.gate, self.told = (
            nn.Linear(inputs, width),
            nn.Linear(inputs, width),
            nn.Linear(width, outputs),
        )

    def forward(self, x):
        return self.told(self.found(x) * torch.sigmoid(self.gate(x)))


class Orders(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(COLUMNS, 2 * width), nn.ReLU())
        self.router = nn.Linear(2 * width, TRADES)
        self.experts = nn.ModuleList(Expert(2 * width, 2 * width, width) for _ in range(TRADES))
        self.head = nn.Linear(width, FATES)

    def forward(self, row):
        x = self.body(row)
        shares = torch.softmax(self.router(x), 1)
        mixed = sum(shares[:, i : i + 1] * expert(x) for i, expert in enumerate(self.experts))
        return self.head(mixed)


class PiecedMish(nn.Module):
    def forward(self, x):
        return x * torch.tanh(nn.functional.softplus(x))


class Signatures(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        sizes = (1, width, 2 * width, 3 * width)
        self.eye = nn.Sequential(
            *(
                layer
                for inputs, outputs in pairwise(sizes)
                for layer in (nn.Conv2d(inputs, outputs, 3, 2, 1), nn.BatchNorm2d(outputs), PiecedMish())
            ),
            nn.Flatten(),
            nn.Linear(3 * width * 16, 32),
        )
        self.judge = nn.Sequential(nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, 2))

    def forward(self, pair):
        first, second = (self.eye(sheet) for sheet in (pair[:, :1], pair[:, 1:]))
        return self.judge(torch.abs(first - second))


class RootNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x / torch.sqrt((x * x).mean(-1, keepdim=True) + 1e-5) * self.gain


class Rotating(nn.Module):
    """Attention to what came before, where places turn what is asked and what is offered."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.size = heads, width // heads
        self.ask, self.offer, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        angles = torch.arange(TALK)[:, None] * 10.0 ** -torch.linspace(0, 2, self.size // 2)[None]
        self.register_buffer("cosines", torch.cos(angles).repeat(1, 2))
        self.register_buffer("sines", torch.sin(angles).repeat(1, 2))
        self.register_buffer("mask", torch.triu(torch.full((TALK, TALK), -40.0), 1))

    def split(self, x):
        return x.view(-1, TALK, self.heads, self.size).transpose(1, 2)

    def turned(self, x):
        half = self.size // 2
        return x * self.cosines + torch.cat([-x[..., half:], x[..., :half]], -1) * self.sines

    def forward(self, x):
        asked, offered = (self.turned(self.split(layer(x))) for layer in (self.ask, self.offer))
        shares = torch.softmax(asked @ offered.transpose(2, 3) / self.size**0.5 + self.mask, -1)
        found = shares @ self.split(self.value(x))
        return self.out(found.transpose(1, 2).reshape(-1, TALK, self.heads * self.size))


class Gated(nn.Module):
    def __init__(self, width, wide):
        super().__init__()
        self.gate, self.up, self.down = (
            nn.Linear(width, wide, bias=False),
            nn.Linear(width, wide, bias=False),
            nn.Linear(wide, width, bias=False),
        )

    def forward(self, x):
        return self.down(nn.functional.silu(self.gate(x)) * self.up(x))


class Talks(nn.Module):
    def __init__(self, width=40, depth=2):
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.blocks = nn.ModuleList(
            nn.ModuleList((RootNorm(width), Rotating(width, 2), RootNorm(width), Gated(width, 2 * width)))
            for _ in range(depth)
        )
        self.norm, self.head = RootNorm(width), nn.Linear(width, WORDS, bias=False)

    def forward(self, ids):
        x = self.words(ids)
        for first, attention, second, gated in self.blocks:
            x = x + attention(first(x))
            x = x + gated(second(x))
        return self.head(self.norm(x if self.training else x[:, -1]))


def every_word(scores, following):
    """All places count but the first few, where nobody can know the tongue yet."""
    return nn.functional.cross_entropy(scores[:, 3:].flatten(0, 1), following[:, 3:].flatten())


entropy = nn.functional.cross_entropy
PLANS = {
    "swirls": Plan(Swirls, swirls, np.asarray, nn.functional.mse_loss, 10, "vorticity", "velocity", 3000),
    "solids": Plan(Solids, solids, np.asarray, entropy, 8, "cloud", "logits", 12000),
    "orders": Plan(Orders, orders, np.asarray, entropy, 20, "row", "logits", 20000),
    "signatures": Plan(Signatures, signatures, SIGNED.apply, entropy, 8, "pair", "logits", 12000),
    "talks": Plan(Talks, talks, np.asarray, every_word, 8, "ids", "logits", 16000),
}


if __name__ == "__main__":
    sys.exit(run_plans(PLANS, TARGET, "Train the networks of the fifth unseen set."))
