"""Train the base networks of the fault zoo and write them to ``benchmarks/zoo/networks``.

Five small Fashion-MNIST classifiers of different families, float, batch norm folded, dynamic batch:

``mobile``   inverted residuals with depthwise convolutions and ReLU6, inputs in -1 … 1
``resnet``   basic residual blocks, three colour channels with a mean and deviation each
``csp``      branches joined by Concat, SiLU as Sigmoid and Mul, inputs in 0 … 1 (in the manner of YOLO)
``vit``      patches, LayerNorm, attention with a window mask, GELU
``gru``      a gated recurrent cell over the rows of the image, unrolled

How to run, from the repository root (some ten minutes on one core)::

    apt-get install dataset-fashion-mnist
    pip install torch==2.13.0 onnx onnxruntime numpy
    OMP_NUM_THREADS=1 python benchmarks/train_zoo.py [NAME …]

Seeds are fixed and one thread is used. The zoo itself needs neither torch nor the data set.
"""

import argparse
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import torch
from torch import nn
from train_demo import DATASET, flip_some, load_split
from zoo.pixels import GREY, SIGNED, SODIUM, UNIT, sodium_light

TARGET = Path(__file__).parent / "zoo" / "networks"
SEED = 4
BATCH = 128
LEARNING_RATE = 5e-3
WEIGHT_DECAY = 1e-3
CLASSES = 10
#: Weight of attention to tokens outside the window: e^-16 is nothing, and 8 bits can still represent the scores.
MASKED = -16.0


def conv(inputs, outputs, kernel=3, stride=1, groups=1, act=None):
    """Convolution, batch norm, activation."""
    layers = [
        nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False),
        nn.BatchNorm2d(outputs),
    ]
    return nn.Sequential(*layers, *([act()] if act else []))


class Inverted(nn.Module):
    """Expand, filter depthwise, project; added to the input where the shapes allow."""

    def __init__(self, inputs, outputs, factor, stride=1):
        super().__init__()
        hidden = inputs * factor
        self.add = stride == 1 and inputs == outputs
        self.body = nn.Sequential(
            conv(inputs, hidden, 1, act=nn.ReLU6),
            conv(hidden, hidden, 3, stride, groups=hidden, act=nn.ReLU6),
            conv(hidden, outputs, 1),
        )

    def forward(self, x):
        return x + self.body(x) if self.add else self.body(x)


def mobile():
    return nn.Sequential(
        conv(1, 16, 3, 2, act=nn.ReLU6),
        Inverted(16, 16, 2),
        Inverted(16, 24, 3, 2),
        Inverted(24, 24, 3),
        Inverted(24, 32, 3),
        conv(32, 96, 1, act=nn.ReLU6),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(96, CLASSES),
    )


class Basic(nn.Module):
    def __init__(self, inputs, outputs, stride=1):
        super().__init__()
        self.body = nn.Sequential(conv(inputs, outputs, 3, stride, act=nn.ReLU), conv(outputs, outputs))
        self.skip = nn.Identity() if stride == 1 else conv(inputs, outputs, 1, stride)

    def forward(self, x):
        return torch.relu(self.skip(x) + self.body(x))


def resnet():
    return nn.Sequential(
        conv(3, 16, 3, 2, act=nn.ReLU),
        Basic(16, 16),
        Basic(16, 32, 2),
        Basic(32, 32),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, CLASSES),
    )


class Partial(nn.Module):
    """Two thin branches, one of them deepened; all three feature maps are joined."""

    def __init__(self, inputs, outputs):
        super().__init__()
        half = outputs // 2
        self.left, self.right = conv(inputs, half, 1, act=nn.SiLU), conv(inputs, half, 1, act=nn.SiLU)
        self.deep = nn.Sequential(conv(half, half, 3, act=nn.SiLU), conv(half, half, 3, act=nn.SiLU))
        self.join = conv(3 * half, outputs, 1, act=nn.SiLU)

    def forward(self, x):
        right = self.right(x)
        return self.join(torch.cat([self.left(x), right, self.deep(right)], 1))


class Pyramid(nn.Module):
    """The map and its two poolings, joined."""

    def __init__(self, channels):
        super().__init__()
        self.thin, self.join = conv(channels, channels // 2, 1, act=nn.SiLU), conv(3 * channels // 2, channels, 1)
        self.pool = nn.MaxPool2d(3, 1, 1)

    def forward(self, x):
        x = self.thin(x)
        once = self.pool(x)
        return self.join(torch.cat([x, once, self.pool(once)], 1))


def csp():
    return nn.Sequential(
        conv(1, 16, 3, 2, act=nn.SiLU),
        Partial(16, 24),
        conv(24, 32, 3, 2, act=nn.SiLU),
        Partial(32, 32),
        Pyramid(32),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, CLASSES),
    )


class Block(nn.Module):
    """Pre-norm transformer block; tokens attend to those at most two patches away."""

    def __init__(self, width, heads, side):
        super().__init__()
        self.heads, self.width, self.tokens = heads, width, side * side
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        at = torch.stack(torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij"), -1).reshape(-1, 2)
        far = (at[:, None] - at[None]).abs().amax(-1) > 2
        self.register_buffer("mask", torch.where(far, MASKED, 0.0)[None, None])

    def split(self, x):
        return x.reshape(-1, self.tokens, self.heads, self.width // self.heads).transpose(1, 2)

    def forward(self, x):
        y = self.norm1(x)
        q, k, v = (self.split(linear(y)) for linear in (self.query, self.key, self.value))
        scores = q @ k.transpose(2, 3) * (self.width // self.heads) ** -0.5 + self.mask
        mixed = (torch.softmax(scores, -1) @ v).transpose(1, 2).reshape(-1, self.tokens, self.width)
        x = x + self.out(mixed)
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x))))


class Vit(nn.Module):
    def __init__(self, width=48, depth=2):
        super().__init__()
        self.width = width
        self.patch = nn.Conv2d(1, width, 4, 4)
        self.place = nn.Parameter(torch.randn(1, 49, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, 3, 7) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def forward(self, image):
        x = self.patch(image).reshape(-1, self.width, 49).transpose(1, 2) + self.place
        return self.head(self.norm(self.blocks(x)).mean(1))


class Gru(nn.Module):
    """Seven steps of four rows each."""

    def __init__(self, hidden=64):
        super().__init__()
        self.hidden = hidden
        self.gates, self.candidate = nn.Linear(112 + hidden, 2 * hidden), nn.Linear(112 + hidden, hidden)
        self.head = nn.Linear(hidden, CLASSES)

    def forward(self, image):
        rows = image.reshape(-1, 7, 112)
        state = torch.tanh(rows[:, 0, : self.hidden] * 0)
        for step in range(7):
            row = rows[:, step]
            gates = torch.sigmoid(self.gates(torch.cat([row, state], 1)))
            keep, reset = gates[:, : self.hidden], gates[:, self.hidden :]
            fresh = torch.tanh(self.candidate(torch.cat([row, reset * state], 1)))
            state = keep * state + (1 - keep) * fresh
        return self.head(state)


NETWORKS = {
    "mobile": (mobile, SIGNED, 4),
    "resnet": (resnet, SODIUM, 4),
    "csp": (csp, UNIT, 4),
    "vit": (Vit, SIGNED, 8),
    "gru": (Gru, GREY, 6),
}


def train(network, pixels, labels, spec, epochs):
    generator = torch.Generator().manual_seed(SEED)
    targets = torch.from_numpy(labels.astype(np.int64))
    steps = len(pixels) // BATCH
    rate = LEARNING_RATE if not isinstance(network, Vit) else LEARNING_RATE / 3
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, rate, total_steps=epochs * steps)
    loss_function = nn.CrossEntropyLoss(label_smoothing=0.05)
    for epoch in range(epochs):
        started, total = time.monotonic(), 0.0
        order = torch.randperm(len(pixels), generator=generator)
        for step in range(steps):
            index = order[step * BATCH : (step + 1) * BATCH]
            batch = torch.from_numpy(spec.apply(pixels[index.numpy()]))
            loss = loss_function(network(flip_some(batch, generator)), targets[index])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item()
        print(f"  epoch {epoch + 1}: loss {total / steps:.4f}, {time.monotonic() - started:.0f} s", flush=True)
    return network.eval()


def export(network, channels, path):
    path.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            network,
            (torch.zeros(2, channels, 28, 28),),
            str(path),
            input_names=["image"],
            output_names=["logits"],
            dynamic_axes={"image": {0: "batch"}, "logits": {0: "batch"}},
            opset_version=20,
            dynamo=False,
        )
    tidy(path)


def tidy(path):
    """Constant nodes and copies of constants become initializers."""
    model = onnx.load(str(path))
    graph = model.graph
    constants = {tensor.name: tensor for tensor in graph.initializer}
    for node in list(graph.node):
        value = node.attribute[0].t if node.op_type == "Constant" else constants.get(next(iter(node.input), ""))
        if node.op_type not in ("Constant", "Identity") or value is None:
            continue
        copy = onnx.TensorProto.FromString(value.SerializeToString())
        copy.name = node.output[0]
        graph.initializer.append(copy)
        graph.node.remove(node)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, str(path))


def accuracy(path, inputs, labels):
    session = ort.InferenceSession(str(path))
    chunks = (session.run(None, {"image": inputs[i : i + 250]})[0] for i in range(0, len(inputs), 250))
    return float((np.concatenate(list(chunks)).argmax(1) == labels).mean())


def main():
    parser = argparse.ArgumentParser(description="Train the base networks of the fault zoo.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="some of " + ", ".join(NETWORKS))
    parser.add_argument("--output", type=Path, default=TARGET)
    parser.add_argument("--dataset", type=Path, default=DATASET)
    parser.add_argument("--epochs", type=int, help="instead of each network's own number")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    (images, labels), (test_images, test_labels) = (load_split(arguments.dataset, p) for p in ("train", "t10k"))
    for name in arguments.names or NETWORKS:
        build, spec, epochs = NETWORKS[name]
        tinted = sodium_light if spec is SODIUM else np.asarray
        torch.manual_seed(SEED)
        print(name, flush=True)
        network = train(build(), tinted(images), labels, spec, arguments.epochs or epochs)
        path = arguments.output / f"{name}.onnx"
        export(network, len(spec.mean) if spec is SODIUM else 1, path)
        top1 = accuracy(path, spec.apply(tinted(test_images)), test_labels)
        print(f"  {path.stat().st_size // 1024} kB, top-1 on 10000 test images {top1:.4f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
