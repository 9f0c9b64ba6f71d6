"""How far stored scales of activations and caches reach, against what normed inputs and the weights make of them.

Nothing is run. What a norm of the root mean square writes is g · u with a mean square of u of 1, in every token. So a
layer behind it with the row w writes at most the root of the width times the norm of w · g, and as much as that norm on
average over all directions of u. Inputs of down are products of two such layers. That is known from the weights alone,
and says whether a stored scale can be of this network at all.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import isfinite

import numpy as np

from quantmedic.collectors.from_checkpoint.checkpoint_pair import Pair
from quantmedic.collectors.from_checkpoint.declared.stored_scales import asked_cache, cache_scale, code_type
from quantmedic.collectors.from_checkpoint.layers.norms import has_offset_norms
from quantmedic.collectors.from_checkpoint.layers.weight_slices import slices
from quantmedic.collectors.from_checkpoint.packed.packed_layer import config_groups
from quantmedic.collectors.from_checkpoint.safetensors_file import Values
from quantmedic.collectors.from_checkpoint.weight_values import WeightValues
from quantmedic.engine.errors import ModelError

#: Largest code by the type of codes.
LARGEST: Mapping[str, float] = {"float8": 448.0, "fp8": 448.0, "int8": 127.0}
_ATTENTION, _MLP = "self_attn", "mlp"
_READ_BY_ATTENTION = ("q_proj", "k_proj", "v_proj", "qkv_proj")
_READ_BY_MLP = ("gate_proj", "up_proj", "gate_up_proj")
#: Of the rows of gate and up so many are read, evenly spaced: the loudest of all is a little louder.
_READ = 512
#: Values of products spread wider than normal ones: of two independent normal factors, 0.6 % lie beyond this many times
#: the product of their deviations (computed).
_OF_PRODUCTS = 4.0
#: A rotation turns two channels into one at most.
_ROTATED = 2**0.5


@dataclass(frozen=True)
class Size:
    """What values are expected to be.

    Attributes:
        usual: Their deviation in the loudest channel, where inputs point anywhere.
        most: What none can exceed; infinite where that is not known.
        middle: Their deviation in the median channel.
    """

    usual: float
    most: float = np.inf
    middle: float = np.nan


def reach_facts(pair: Pair) -> dict[str, object]:
    """Fields of ``CheckpointFacts``; none where the configuration asks for no stored scales, or weights tell nothing.

    A reach is the largest value with a code over the usual size, and an excess the same over what no value exceeds. Of
    integers, whose steps widen with the reach, steps are the deviation of the median channel in steps of the code.
    """
    blocks = [*_blocks_with_norms(pair)]
    asked = asked_cache(pair.quantized.settings) or ""
    code = LARGEST.get(asked, 0.0)
    reach: dict[str, float] = {}
    excess: dict[str, float] = {}
    steps: dict[str, float] = {}
    for block in blocks if code else ():
        for kind, size in block.caches():
            stored = cache_scale(block.own_name(_ATTENTION), kind, pair.quantized.tensors)
            if stored is None or not size.usual > 0:
                continue
            name = f"{block.own_name(_ATTENTION)}{kind}_scale"
            reach[name] = float(stored.max()) * code / size.usual
            if asked.startswith("int"):
                excess[name] = float(stored.max()) * code / size.most
                steps[name] = size.middle / float(stored.max())
    return {
        **_extreme("cache_reach", reach, -1),
        **_extreme("cache_excess", excess, 1),
        **_extreme("cache_steps", steps, -1),
        **_extreme("input_reach", _input_reaches(blocks, pair), -1),
    }


def _extreme(name: str, found: Mapping[str, float], sign: int) -> dict[str, object]:
    """The largest figure, or with a sign of -1 the smallest, and which scale has it."""
    known = [scale for scale in found if isfinite(found[scale])]
    if not known:
        return {}
    worst = max(known, key=lambda scale: sign * found[scale])
    return {name: found[worst], f"{name}_scale": worst}


def _input_reaches(blocks: Iterable["_Block"], pair: Pair) -> dict[str, float]:
    """Of the scales of the inputs of layers, by their names."""
    code, found = LARGEST.get(asked_inputs(pair.quantized.settings) or "", 0.0), {}
    for block in blocks if code else ():
        for layer, size in block.inputs():
            stored = pair.quantized.tensors.get(f"{layer}.input_scale")
            if stored is not None and stored.is_float and stored.size == 1 and size.usual > 0:
                found[f"{layer}.input_scale"] = float(stored.floats().ravel()[0]) * code / size.usual
    return found


def asked_inputs(settings: Mapping[str, object]) -> str | None:
    """Type of the codes of inputs that a configuration asks for, with one stored scale each; None where it does not."""
    groups = config_groups(settings)
    if groups is not None:
        found = {_static_type(group.get("input_activations")) for group in groups.values()}
        return found.pop() if len(found) == 1 else None
    is_float8 = settings.get("quant_method") == "fp8" and settings.get("activation_scheme") == "static"
    return "float8" if is_float8 or settings.get("quant_algo") == "FP8" else None


def _static_type(scheme: object) -> str | None:
    if not isinstance(scheme, Mapping) or scheme.get("dynamic") in (True, "local"):
        return None
    is_plain = scheme.get("strategy") in (None, "tensor") and scheme.get("symmetric") is not False
    return code_type(scheme) if is_plain else None


def _blocks_with_norms(pair: Pair) -> Iterator["_Block"]:
    """Blocks whose norms stand in front of attention and MLP, in order."""
    offset = has_offset_norms(pair.floats.config)
    if offset is None:
        return
    weights = WeightValues(pair.quantized, pair.names)
    ending = ".input_layernorm.weight"
    for name in pair.floats.tensors:
        if name.endswith(ending) and name in pair.names:
            yield _Block(pair, weights, name.removesuffix(ending), float(offset))


@dataclass(frozen=True)
class _Block:
    """One block of the quantized network; weights have the names of the float one.

    Attributes:
        offset: What norms add to their gains.
    """

    pair: Pair
    weights: WeightValues
    prefix: str
    offset: float

    def own_name(self, part: str) -> str:
        """What the quantized checkpoint calls a part of the block, with a dot behind it."""
        norm = self.pair.names[f"{self.prefix}.input_layernorm.weight"]
        return f"{norm.removesuffix('input_layernorm.weight')}{part}."

    def caches(self) -> Iterator[tuple[str, Size]]:
        """Sizes of keys, behind the rotary embedding, and of values."""
        gains = self._gains("input_layernorm")
        for kind, rows in (("k", self._rows_of_heads(1)), ("v", self._rows_of_heads(2))):
            normed = self._gains(f"{_ATTENTION}.{kind}_norm")
            if normed is not None:
                yield kind, _size_of(np.abs(normed), len(normed) ** 0.5)
            elif gains is not None:
                found = self._written_sizes(f"{_ATTENTION}.{kind}_proj", gains)
                found = self._written_sizes(f"{_ATTENTION}.qkv_proj", gains, rows) if found is None else found
                if found is not None and len(found):
                    turned = _ROTATED if kind == "k" else 1.0
                    yield kind, _size_of(found, turned * len(gains) ** 0.5)

    def inputs(self) -> Iterator[tuple[str, Size]]:
        """Sizes of the inputs of layers, by the names that the quantized checkpoint has for them."""
        attention, mlp = self._gains("input_layernorm"), self._gains(self._second_norm)
        for part, gains, names in ((_ATTENTION, attention, _READ_BY_ATTENTION), (_MLP, mlp, _READ_BY_MLP)):
            if gains is not None:
                size = Size(float(np.sqrt(np.mean(np.square(gains)))))
                yield from ((f"{self.own_name(part)}{name}", size) for name in names)
        product = None if mlp is None else self._product(mlp)
        if product is not None:
            yield f"{self.own_name(_MLP)}down_proj", Size(_OF_PRODUCTS * product)

    @property
    def _second_norm(self) -> str:
        own = "pre_feedforward_layernorm"
        return own if f"{self.prefix}.{own}.weight" in self.pair.names else "post_attention_layernorm"

    def _product(self, gains: Values) -> float | None:
        """The largest product of the deviations of gate and up over the channels that are read."""
        gate, up = (self._written_sizes(f"{_MLP}.{name}", gains, most=_READ) for name in ("gate_proj", "up_proj"))
        shape = self._shape(f"{_MLP}.gate_up_proj")
        if shape is not None:
            half = shape[0] // 2
            spans = slice(0, half), slice(half, shape[0])
            gate, up = (self._written_sizes(f"{_MLP}.gate_up_proj", gains, rows, _READ) for rows in spans)
        return None if gate is None or up is None or len(gate) != len(up) else float((gate * up).max())

    def _gains(self, name: str) -> Values | None:
        shape = self._shape(name)
        found = None if shape is None or len(shape) != 1 else self._load(f"{name}.weight", shape)
        return None if found is None else found + self.offset

    def _shape(self, name: str) -> tuple[int, ...] | None:
        tensor = self.pair.floats.tensors.get(f"{self.prefix}.{name}.weight")
        return None if tensor is None or tensor.name not in self.pair.names else tensor.shape

    def _rows_of_heads(self, part: int) -> slice:
        """Rows of k (1) or v (2) where one layer makes q, k and v."""
        text = self.pair.floats.config.get("text_config")
        config = text if isinstance(text, Mapping) else self.pair.floats.config
        heads = _whole(config, "num_attention_heads") or 1
        own = _whole(config, "num_key_value_heads") or heads
        size = _whole(config, "head_dim") or _whole(config, "hidden_size") // heads
        first = (heads + (part - 1) * own) * size
        return slice(first, first + own * size)

    def _written_sizes(
        self, name: str, gains: Values, rows: slice | None = None, most: int | None = None
    ) -> Values | None:
        """Deviation of what rows write where inputs point anywhere, and the size of their bias beside it.

        Args:
            gains: Of the norm in front of it.
            rows: Those that count; all by default.
            most: So many evenly spaced runs of rows are read at most.
        """
        shape = self._shape(name)
        if shape is None or len(shape) != 2 or shape[1] != len(gains):
            return None
        span = rows or slice(0, shape[0])
        bias = self._load(f"{name}.bias", shape[:1])
        found = []
        for part in _runs_of_rows(span, shape[1], most):
            values = self._load(f"{name}.weight", shape, part)
            if values is None:
                return None
            own = np.sqrt(np.square(values * gains).sum(axis=1))
            found.append(own if bias is None else own + np.abs(bias[part]))
        return np.concatenate(found) if found else None

    def _load(self, name: str, shape: tuple[int, ...], rows: slice | None = None) -> Values | None:
        """Numbers of a tensor; None where there is none, or none that can be read, which other findings say."""
        try:
            return self.weights.load(f"{self.prefix}.{name}", shape, rows)
        except ModelError:
            return None


def _whole(config: Mapping[str, object], name: str) -> int:
    """A number of a configuration; 0 where it says none."""
    found = config.get(name)
    return found if isinstance(found, int) else 0


def _size_of(deviations: Values, most: float) -> Size:
    loudest = float(deviations.max())
    return Size(loudest, loudest * most, float(np.median(deviations)))


def _runs_of_rows(rows: slice, columns: int, most: int | None) -> Iterator[slice]:
    """Runs of rows that together are all of them, or at most so many, evenly spaced."""
    count = rows.stop - rows.start
    if most is None or count <= most:
        for part in slices(count, columns, 1):
            yield slice(rows.start + part.start, rows.start + part.stop)
        return
    run = 32
    for first in np.linspace(0, count - run, most // run).astype(int):
        yield slice(rows.start + int(first), rows.start + int(first) + run)
