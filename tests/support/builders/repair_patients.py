"""Networks that one scale for a tensor does not suit: channels of weights, or of an activation, that differ widely."""

import numpy as np
import onnx

from builders.onnx_models import Net, random


def mobile_net(activation: str) -> onnx.ModelProto:
    """An expansion, a depthwise layer and a projection whose channels differ by a factor of up to a thousand."""
    rng = np.random.default_rng(4)
    gains = np.exp(rng.uniform(-3.5, 3.5, 16)).astype(np.float32).reshape(-1, 1, 1, 1)
    net = Net()
    x = net.conv(net.input("image", ["n", 3, 8, 8]), random(1, 16, 3, 1, 1) * gains, out="expand")
    x = net.add(activation, x, out="act1")
    x = net.conv(x, random(2, 16, 1, 3, 3) / gains, out="depthwise", group=16, pads=[1, 1, 1, 1])
    x = net.add(activation, x, out="act2")
    x = net.conv(x, random(3, 8, 16, 1, 1), out="project")
    x = net.add("Flatten", net.add("GlobalAveragePool", x, out="pool"), out="flat")
    net.output(net.add("Gemm", x, net.const("fc.weight", random(5, 8, 5)), out="scores"), shape=["n", 5])
    return net.model()


def token_model() -> onnx.ModelProto:
    """A normalization with a few huge gains, and two products that read it."""
    rng = np.random.default_rng(0)
    gain = rng.random(32).astype(np.float32) + 0.5
    gain[[3, 17]] *= 200
    up = random(1, 32, 48)
    up[[3, 17]] /= 200
    gate = random(2, 32, 48)
    gate[[3, 17]] /= 200
    net = Net()
    x = net.input("image", ["n", 6, 32])
    norm = net.add("LayerNormalization", x, net.const("gain", gain), net.const("shift", random(3, 32)), out="norm")
    a = net.add(
        "Add", net.add("MatMul", norm, net.const("up", up), out="upper"), net.const("bias", random(4, 48)), out="a"
    )
    b = net.add("Sigmoid", net.add("MatMul", norm, net.const("gate", gate), out="gated"), out="b")
    x = net.add("MatMul", net.add("Mul", a, b, out="c"), net.const("down", random(5, 48, 10)), out="scores")
    net.output(x, shape=["n", 6, 10])
    return net.model()
