"""Modules of Python that return pairs of torch modules: float, and what a toolchain made of it; most are odd."""

import random
import re
from collections.abc import Iterable, Mapping

from mutate_text import times


def lines_of(text: str) -> tuple[str, ...]:
    return tuple(text.strip().split("\n"))


_MODULE = '''\
import copy
import sys

import torch
import torch.nn.functional as F
from torch import nn


_X86 = torch.ao.quantization.get_default_qconfig_mapping('x86')


COUNT = iter(range(10**6))


def calls():
    return next(COUNT)


class Odd(Exception):
    def __str__(self):
        raise ValueError("no text")


class Rounded(nn.Linear):
    """Weights and results on grids of 8 bits."""

    scale, zero, low, high = 0.02, 0, -128, 127

    def forward(self, x):
        weight = torch.fake_quantize_per_tensor_affine(self.weight, self.scale, 0, -128, 127)
        y = F.linear(x, weight, self.bias)
        return torch.fake_quantize_per_tensor_affine(y, self.scale, self.zero, self.low, self.high)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm, self.relu = nn.BatchNorm2d(4), nn.ReLU()
        self.first, self.fc = nn.Linear(4, 8), nn.Linear(8, 3)
        $built

    def forward(self, x):
        $before
        y = self.relu(self.norm(self.conv(x))).mean((2, 3))
        $between
        z = self.fc(F.relu(self.first(y)))
        $after
        return z


def data():
    x = torch.linspace(-1, 1, 192).reshape(4, 3, 4, 4)
    $given


def reference():
    torch.manual_seed(0)
    net = Net().eval()
    $reference
    return net


def quantized():
    torch.manual_seed(0)
    net, x = Net().eval(), torch.linspace(-1, 1, 192).reshape(4, 3, 4, 4)
    $made
    $quantized
    return net
'''
_ROUND = """for name in ("first", "fc"):
        old = getattr(net, name)
        new = Rounded(old.in_features, old.out_features)
        new.load_state_dict(old.state_dict())
        setattr(net, name, new)"""
#: Toolchains: one's own, and those of torch.
_MADE = (
    _ROUND,
    *lines_of(r"""
from torch.ao import quantization as q; net.qconfig = q.get_default_qat_qconfig('x86'); q.prepare_qat(net.train())(x)
from torch.ao.quantization import quantize_fx as q; net = q.prepare_fx(net, _X86, (x,)); net(x); net = q.convert_fx(net)
net = torch.ao.quantization.quantize_dynamic(net, {nn.Linear})
net = net.to(torch.bfloat16).float()
net = net.half().float()
"""),
)
_BUILT = lines_of(r"""
self.register_buffer('table', torch.full((2,), float('nan')))
self.add_module('a\x1b[31m\nb', nn.Linear(8, 3))
self.fc.weight = nn.Parameter(torch.zeros(3, 8))
self.fc = nn.Linear(8, 3, device='meta')
self.first = self.fc
self.fc.weight = self.first.weight
self.drop = nn.Dropout(0.5).train()
self.unused = nn.Linear(1000, 1000)
self.more = nn.ModuleList([nn.Linear(8, 8) for _ in range(60)])
self.me = [self]
self.norm = nn.BatchNorm2d(3)
self.lstm = nn.LSTM(4, 4)
self.conv = nn.Conv2d(3, 4, 3, padding=1, padding_mode='circular')
self.fc = nn.LazyLinear(3)
self.fc = nn.utils.parametrizations.weight_norm(nn.Linear(8, 3))
self.fc = torch.jit.script(nn.Linear(8, 3))
self.double()
self.requires_grad_(False)
self.to(torch.complex64)
""")
_BODY = lines_of(r"""
raise {raised}
y = x * float('nan')
x = x.double()
x = x.half()
x.mul_(0)
x = x[:1]
x = x.repeat(2, 1, 1, 1)
if calls() > 6: raise {raised}
if calls() % 2: x = x + 1
x = torch.rand_like(x)
x = x.detach().numpy()
if float(x.sum()) > 0: x = self.relu(x)
return {value}
if calls() > 6: return {value}
x.resize_(1)
x = x.to_sparse()
x = x.to(torch.complex64)
x = torch.nested.nested_tensor(list(x))
self.conv = nn.Identity()
x = x.expand(-1, -1, -1, -1) + self.conv.weight.sum()
sys.exit(3)
x = x.to('meta')
torch.set_num_threads(3)
with torch.no_grad(): x = x.clone()
for _ in range(40): x = self.relu(x)
x = x.clone().requires_grad_()
x = torch.vmap(torch.sin)(x)
x = torch.zeros(0, 3, 4, 4)
torch.manual_seed(1)
del self.fc
x = x.as_strided((4, 3, 4, 4), (0, 0, 0, 0))
""")


def _about(name: str, lines: Iterable[str]) -> tuple[str, ...]:
    """The same lines about another variable."""
    return tuple(re.sub(r"\bx\b", name, line) for line in lines)


_ENDS = (
    *_about("z", _BODY),
    *lines_of(r"""
return z, z
return {'a': z, 'b': (z, [z])}
return [z] * 50
return z.tolist()
return z.argmax(1)
return z.sum()
return {1: z}
return {'\x1b[31m': z}
return z.bool()
return (z, None)
return iter([z])
return z.T
return z[0]
"""),
)
_VALUES = lines_of(r"""
None
1
'text'
object()
[]
{}
torch.tensor(1)
torch.zeros(3)
torch.zeros(4, 3, dtype=torch.int8)
torch.full((4, 3), float('inf'))
torch.zeros(0, 3)
float('nan')
(None, None)
torch.quantize_per_tensor(torch.zeros(4, 3), 0.1, 0, torch.qint8)
torch.zeros(4, 3).to_sparse()
nn.Linear(1, 1)
torch.zeros(10**9, 3, device='meta')
torch.zeros(4, 3, 1, 1, 1, 1)
""")
_RAISED = lines_of(r"""
ValueError('bad\x1b[31m\x07 value')
SystemExit(1)
KeyboardInterrupt()
MemoryError()
Odd()
RecursionError()
StopIteration()
BaseException('base')
OSError(2, 'none')
NotImplementedError()
RuntimeError('x' * 100_000)
""")
#: What is done to a module that is made.
_CHANGES = lines_of(r"""
net.fc.weight.data[0] = float('nan')
net.first.weight.data *= 1e30
net.fc.bias.data.fill_(float('inf'))
net.train()
net.fc.bias = None
net.fc.weight.data = net.fc.weight.data[:2]
net.fc.scale = 0.0
net.fc.scale = float('nan')
net.fc.zero = 999
net.fc.low = 200
net.fc.scale = 1e38
net.fc = nn.Identity()
net.fc = nn.Linear(8, 5)
del net.conv
net.fc.register_forward_hook(lambda *a: None)
net.fc.register_forward_hook(lambda *a: 'text')
net = nn.DataParallel(net)
net.first.register_forward_pre_hook(lambda *a: (None,))
net.forward = lambda x: x
net = {value}
raise {raised}
net = torch.jit.trace(net, torch.zeros(4, 3, 4, 4))
net = nn.Sequential(net, nn.Softmax(1))
net = nn.Sequential()
net.conv.weight.data = net.conv.weight.data.double()
net.__class__.__repr__ = lambda self: 1 / 0
net.conv = None
net = torch.export.export(net, (torch.zeros(4, 3, 4, 4),)).module()
net.fc = copy.deepcopy(net.first)
net = Net
net.state_dict = lambda *a, **k: {}
net.named_modules = lambda *a, **k: iter([])
net.requires_grad_(False)
net.conv.weight.data = net.conv.weight.data.to_sparse()
net.conv.stride = (0, 0)
net.conv.padding = (9, 9)
""")
_GIVEN = lines_of(r"""
yield x.double()
yield x.numpy()
yield x, torch.arange(4)
yield {'x': x}
yield x[:, :2]
return x
yield {value}
raise {raised}
yield x.requires_grad_()
yield x.to_sparse()
yield x.half()
yield x * float('nan')
yield x, x, x
for _ in range(300): yield x
yield x; yield x[:1]
yield x; raise {raised}
yield x.to('meta')
yield x[:0]
yield x.int()
yield x.to(memory_format=torch.channels_last)
yield x.expand(4, 3, 4, 4).conj()
yield x.T
yield (x,)
""")
_PLACES = (
    *(("built", _BUILT), ("before", _BODY), ("between", _about("y", _BODY))),
    *(("after", _ENDS), ("given", _GIVEN), ("reference", _CHANGES), ("quantized", _CHANGES), ("quantized", _CHANGES)),
)


def write_torch(_sound: bytes, rng: random.Random) -> bytes:
    """A module with functions ``reference``, ``quantized`` and ``data``; mostly one thing is odd in it."""
    chosen = {"made": rng.choice((_ROUND, *_MADE))}
    for _ in times(rng):
        name, lines = rng.choice(_PLACES)
        line = rng.choice(lines).replace("{value}", rng.choice(_VALUES))
        chosen[name] = line.replace("{raised}", rng.choice(_RAISED))
    return _written(chosen)


def sound_pair() -> bytes:
    """The same with nothing odd."""
    return _written({"made": _ROUND})


def _written(chosen: Mapping[str, str]) -> bytes:
    text = _MODULE
    for name, line in ({name: "pass" for name, _ in _PLACES} | {"given": "yield x"} | dict(chosen)).items():
        text = text.replace(f"${name}\n", f"{line}\n")
    return text.encode()
