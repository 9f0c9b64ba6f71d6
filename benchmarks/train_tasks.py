"""Train the fault zoo's networks that do more than classify an image, and write them to ``benchmarks/zoo/networks``.

``detector``  boxes, objectness and class scores of a grid of cells in one dense output, of scenes of several things
``ocr``       strips of digits to a score per step and class: convolutions, a bidirectional GRU, connectionist decoding
``sentence``  token numbers to an embedding of length 1: Gather, attention with a computed mask, mean over the words
``sounds``    a wave to its class: spectrogram, mel bands and logarithm in the graph, then convolutions
``squeeze``   a Fashion-MNIST classifier of depthwise convolutions, squeeze-and-excitation and hard swish
``denoiser``  a grainy image to a clean one: halved and doubled resolutions, joined by Concat

How to run, from the repository root (a minute or two each on one core)::

    apt-get install dataset-fashion-mnist
    pip install torch==2.13.0 onnx onnxruntime numpy
    OMP_NUM_THREADS=1 python benchmarks/train_tasks.py [NAME …]

Seeds are fixed and one thread is used. The zoo itself needs neither torch nor the data set.
"""

import argparse
import math
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn
from train_demo import DATASET, load_split
from train_zoo import TARGET, conv, tidy
from zoo import synthetic
from zoo.pixels import GREY, SIGNED, UNIT
from zoo.synthetic import CELL, CLASSES_OF_STRIPS, RATE, SCENE, SOUNDS, TOKENS, TOPICS, WORDS

SEED, BATCH = 4, 128
LEARNING_RATE, WEIGHT_DECAY = 5e-3, 1e-3
CLASSES = 10
#: Weight of attention to places after the end of a sentence: e^-16 is nothing, and 8 bits can still represent it.
MASKED = -16.0


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.body = nn.Sequential(conv(channels, channels, act=nn.ReLU), conv(channels, channels))

    def forward(self, x):
        return torch.relu(x + self.body(x))


class Detector(nn.Module):
    """One scale, no anchors: every cell tells the thing whose middle lies in it."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            conv(1, 16, 3, 2, act=nn.ReLU),
            conv(16, 32, 3, 2, act=nn.ReLU),
            conv(32, 48, 3, 2, act=nn.ReLU),
            Residual(48),
        )
        self.box, self.there, self.kind = nn.Conv2d(48, 4, 1), nn.Conv2d(48, 1, 1), nn.Conv2d(48, CLASSES, 1)
        cells = SCENE // CELL
        y, x = torch.meshgrid(torch.arange(cells), torch.arange(cells), indexing="ij")
        self.register_buffer("cells", torch.stack([x, y])[None].float())

    def forward(self, scene):
        x = self.body(scene)
        box = torch.sigmoid(self.box(x))
        middle, half = (self.cells + box[:, :2]) * (CELL / SCENE), box[:, 2:] * 0.5
        dense = torch.cat([middle - half, middle + half, torch.sigmoid(self.there(x)), torch.sigmoid(self.kind(x))], 1)
        return dense.flatten(2).transpose(1, 2)


def detector_loss(dense, truth):
    """Binary cross entropy of objectness and classes, distance of the corners."""
    cells = SCENE // CELL
    there, kinds = torch.zeros(dense.shape[:2]), torch.zeros(*dense.shape[:2], CLASSES)
    boxes = torch.zeros(*dense.shape[:2], 4)
    scene, row = torch.nonzero(truth[..., 0] >= 0, as_tuple=True)
    own = truth[scene, row]
    middle = (own[:, 1:3] + own[:, 3:5]) / 2 * cells
    place = middle[:, 1].long() * cells + middle[:, 0].long()
    there[scene, place], boxes[scene, place] = 1.0, own[:, 1:]
    kinds[scene, place, own[:, 0].long()] = 1.0
    held = there > 0
    entropy = nn.functional.binary_cross_entropy
    loss = 4 * entropy(dense[..., 4], there) + entropy(dense[..., 5:][held], kinds[held])
    return loss + 4 * (dense[..., :4][held] - boxes[held]).abs().mean()


class Recognizer(nn.Module):
    """A column of features per step, read in both directions."""

    def __init__(self, width=32):
        super().__init__()
        self.body = nn.Sequential(
            conv(1, 16, 3, 2, act=nn.ReLU),
            conv(16, 24, 3, 2, act=nn.ReLU),
            conv(24, 32, 3, act=nn.ReLU),
            nn.Conv2d(32, 48, (7, 1)),
            nn.ReLU(),
        )
        self.reader = nn.GRU(48, width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, CLASSES_OF_STRIPS)

    def forward(self, strip):
        steps = self.body(strip).squeeze(2).transpose(1, 2)
        return torch.softmax(self.head(self.reader(steps)[0]), 2)


def recognizer_loss(scores, digits):
    steps = torch.log(scores + 1e-7).transpose(0, 1)
    lengths = (digits >= 0).sum(1)
    sizes = torch.full((len(digits),), len(steps))
    return nn.functional.ctc_loss(steps, digits.clamp(min=0), sizes, lengths, blank=CLASSES_OF_STRIPS - 1)


class Words(nn.Module):
    """Post-norm transformer layer over the words that there are."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.width = heads, width
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def split(self, x):
        return x.reshape(-1, WORDS, self.heads, self.width // self.heads).transpose(1, 2)

    def forward(self, x, mask):
        q, k, v = (self.split(linear(x)) for linear in (self.query, self.key, self.value))
        scores = q @ k.transpose(2, 3) * (self.width // self.heads) ** -0.5 + mask
        mixed = (torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(-1, WORDS, self.width)
        x = self.norm1(x + self.out(mixed))
        return self.norm2(x + self.down(nn.functional.gelu(self.up(x))))


class Sentence(nn.Module):
    def __init__(self, width=48, embedding=32):
        super().__init__()
        self.words, self.place = nn.Embedding(TOKENS, width), nn.Parameter(torch.randn(1, WORDS, width) * 0.1)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(Words(width, 4) for _ in range(2))
        self.project = nn.Linear(width, embedding)

    def forward(self, ids):
        there = (ids != 0).float()
        mask = ((1 - there) * MASKED)[:, None, None]
        x = self.norm(self.words(ids) + self.place)
        for layer in self.layers:
            x = layer(x, mask)
        weight = there[..., None]
        mean = (x * weight).sum(1) / weight.sum(1)
        found = self.project(mean)
        return found / torch.sqrt((found * found).sum(1, keepdim=True) + 1e-6)


def sentence_loss(embeddings, topics):
    known = torch.from_numpy(synthetic.directions(embeddings.shape[1])[:TOPICS].astype(np.float32))
    return nn.functional.cross_entropy(12 * embeddings @ known.T, topics)


class Sounds(nn.Module):
    """Frames of two hops, Fourier transform as a product, mel bands, logarithm; convolutions in time."""

    def __init__(self, window=128, bands=24):
        super().__init__()
        at = torch.arange(window) * 2 * math.pi / window
        turns = torch.arange(window // 2 + 1)[:, None] * at
        taper = torch.hann_window(window)
        self.register_buffer("waves", torch.cat([torch.cos(turns), torch.sin(turns)]) * taper)
        self.hop, self.half = window // 2, window // 2 + 1
        self.register_buffer("bands", mel_bands(window, bands))
        self.body = nn.Sequential(
            conv1d(bands, 48, 5), conv1d(48, 48, 3, 2), conv1d(48, 64, 3, 2), nn.AdaptiveAvgPool1d(1), nn.Flatten()
        )
        self.head = nn.Linear(64, len(SOUNDS))

    def forward(self, wave):
        hops = wave.reshape(-1, wave.shape[1] // self.hop, self.hop)
        parts = self.waves @ torch.cat([hops[:, :-1], hops[:, 1:]], 2).transpose(1, 2)
        power = parts[:, : self.half] ** 2 + parts[:, self.half :] ** 2
        level = torch.log(self.bands @ power + 1e-4)
        return self.head(self.body((level + 4) * 0.25))


def conv1d(inputs, outputs, kernel, stride=1):
    return nn.Sequential(
        nn.Conv1d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm1d(outputs), nn.ReLU()
    )


def mel_bands(window, count):
    """Triangles as wide as the ear's bands."""
    top = 2595 * math.log10(1 + RATE / 2 / 700)
    edges = 700 * (10 ** (torch.linspace(0, top, count + 2) / 2595) - 1)
    bins = torch.arange(window // 2 + 1) * RATE / window
    left, middle, right = (edges[i : count + i, None] for i in range(3))
    spread = RATE / window
    rise, fall = (bins - left) / (middle - left).clamp(min=spread), (right - bins) / (right - middle).clamp(min=spread)
    return torch.minimum(rise, fall).clamp(min=0)


class Excited(nn.Module):
    """Expand, filter depthwise, weigh the channels by what the whole map shows, project."""

    def __init__(self, inputs, outputs, factor, stride=1):
        super().__init__()
        hidden = inputs * factor
        self.add = stride == 1 and inputs == outputs
        self.expand = conv(inputs, hidden, 1, act=nn.Hardswish)
        self.filter = conv(hidden, hidden, 3, stride, groups=hidden, act=nn.Hardswish)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.weigh = nn.Sequential(
            nn.Conv2d(hidden, hidden // 4, 1), nn.ReLU(), nn.Conv2d(hidden // 4, hidden, 1), nn.Hardsigmoid()
        )
        self.project = conv(hidden, outputs, 1)

    def forward(self, x):
        y = self.filter(self.expand(x))
        y = self.project(y * self.weigh(self.pool(y)))
        return x + y if self.add else y


def squeeze():
    return nn.Sequential(
        conv(1, 12, 3, 2, act=nn.Hardswish),
        Excited(12, 16, 3, 2),
        Excited(16, 16, 3),
        Excited(16, 24, 3, 2),
        Excited(24, 24, 3),
        conv(24, 72, 1, act=nn.Hardswish),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(72, CLASSES),
    )


class Denoiser(nn.Module):
    """Two resolutions down, two up, the maps of each resolution joined; what it finds is taken off the image."""

    def __init__(self, width=10):
        super().__init__()
        self.fine = conv(1, width, act=nn.ReLU)
        self.middle = conv(width, 2 * width, 3, 2, act=nn.ReLU)
        self.coarse = nn.Sequential(conv(2 * width, 3 * width, 3, 2, act=nn.ReLU), Residual(3 * width))
        self.up_middle, self.up_fine = conv(5 * width, 2 * width, act=nn.ReLU), conv(3 * width, width, act=nn.ReLU)
        self.grain = nn.Conv2d(width, 1, 3, 1, 1)

    def forward(self, image):
        fine = self.fine(image)
        middle = self.middle(fine)
        coarse = self.coarse(middle)
        middle = self.up_middle(torch.cat([nn.functional.interpolate(coarse, scale_factor=2), middle], 1))
        fine = self.up_fine(torch.cat([nn.functional.interpolate(middle, scale_factor=2), fine], 1))
        return image - self.grain(fine)


def scene_set(rng, images, labels):
    found, truth = synthetic.scenes(rng, images, labels, 16000)
    return SIGNED.apply(found), truth


def noisy_set(rng, images, labels):
    chosen = rng.permutation(len(images))[:8000]
    return UNIT.apply(synthetic.noisy(rng, images[chosen])), UNIT.apply(images[chosen])


def strip_set(rng, images, labels):
    found, truth = synthetic.strips(rng, 16000)
    return GREY.apply(found), truth


@dataclass(frozen=True)
class Plan:
    """How a network is trained.

    Attributes:
        build: The network.
        samples: Inputs and targets from random numbers, images and labels.
        loss: Of outputs and targets.
        input: Its name.
        output: Its name.
    """

    build: Callable
    samples: Callable
    loss: Callable
    epochs: int
    input: str
    output: str
    rate: float = LEARNING_RATE


PLANS = {
    "detector": Plan(Detector, scene_set, detector_loss, 12, "scene", "found"),
    "ocr": Plan(Recognizer, strip_set, recognizer_loss, 7, "strip", "scores"),
    "sentence": Plan(
        Sentence, lambda r, i, n: synthetic.sentences(r, 80000), sentence_loss, 5, "ids", "embedding", 2e-3
    ),
    "sounds": Plan(Sounds, lambda r, i, n: synthetic.sounds(r, 8000), nn.functional.cross_entropy, 6, "wave", "logits"),
    "squeeze": Plan(
        squeeze, lambda r, i, n: (GREY.apply(i), n.astype(np.int64)), nn.functional.cross_entropy, 4, "image", "logits"
    ),
    "denoiser": Plan(Denoiser, noisy_set, nn.functional.mse_loss, 5, "image", "clean"),
}


def train(plan, images, labels, epochs):
    torch.manual_seed(SEED)
    network = plan.build()
    inputs, targets = (torch.from_numpy(x) for x in plan.samples(np.random.default_rng(SEED), images, labels))
    return fit(network, plan, inputs, targets, epochs=epochs, rate=plan.rate, seed=SEED), inputs[:2]


def fit(network, plan, inputs, targets, *, epochs, rate, seed):
    """The network, trained by its plan's loss; the order of the samples follows from the seed."""
    generator, steps = torch.Generator().manual_seed(seed), len(inputs) // BATCH
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=epochs * steps)
    for epoch in range(epochs):
        started, total = time.monotonic(), 0.0
        order = torch.randperm(len(inputs), generator=generator)
        for step in range(steps):
            index = order[step * BATCH : (step + 1) * BATCH]
            loss = plan.loss(network(inputs[index]), targets[index])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 5.0)
            optimizer.step()
            schedule.step()
            total += loss.item()
        print(f"  epoch {epoch + 1}: loss {total / steps:.4f}, {time.monotonic() - started:.0f} s", flush=True)
    return network.eval()


def export(network, plan, example, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network,
            (example,),
            str(path),
            input_names=[plan.input],
            output_names=[plan.output],
            dynamic_axes={plan.input: {0: "batch"}, plan.output: {0: "batch"}},
            opset_version=20,
            dynamo=False,
        )
    tidy(path)


def main():
    parser = argparse.ArgumentParser(description="Train the networks of the fault zoo that do more than classify.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="some of " + ", ".join(PLANS))
    parser.add_argument("--output", type=Path, default=TARGET)
    parser.add_argument("--dataset", type=Path, default=DATASET)
    parser.add_argument("--epochs", type=int, help="instead of each network's own number")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    images, labels = load_split(arguments.dataset, "train")
    for name in arguments.names or PLANS:
        print(name, flush=True)
        plan, path = PLANS[name], arguments.output / f"{name}.onnx"
        network, example = train(plan, images, labels, arguments.epochs or plan.epochs)
        export(network, plan, example, path)
        weights = sum(p.numel() for p in network.parameters())
        print(f"  {path.stat().st_size / 1000:.0f} kB, {weights} parameters", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
