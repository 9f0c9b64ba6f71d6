"""What a configuration says of activations and of the K and V cache: grids of layers, and what is not known of them.

Known are compressed-tensors (``input_activations``, ``kv_cache_scheme``), ModelOpt (``quant_algo``,
``kv_cache_quant_algo``) and float8 of transformers and AutoFP8 (``activation_scheme``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from quantmedic.collectors.from_checkpoint.declared.declared_layers import NamedModules, exact_or_regex, read_declared
from quantmedic.collectors.from_checkpoint.declared.stored_scales import cache_statement
from quantmedic.collectors.from_checkpoint.packed.packed_layer import config_groups
from quantmedic.collectors.from_language_model.running_grids import Grid, Strategy

Settings = Mapping[str, object]
#: Methods that quantize weights alone.
_WEIGHTS_ALONE = frozenset(("gptq", "awq", "gptqmodel", "auto-round", "mxfp4"))
_FLOAT8 = Grid(8, is_float=True, strategy="tensor", is_dynamic=False)
_FLOAT8_TOKENS = Grid(8, is_float=True, strategy="token", is_dynamic=True)
_NVFP4 = Grid(4, is_float=True, strategy="group", is_dynamic=False, size=16, scales="e4m3")
_MXFP8 = Grid(8, is_float=True, strategy="group", is_dynamic=True, size=32, scales="power-up")
_MXFP4 = replace(_MXFP8, bits=4)
_INT8 = Grid(8, is_float=False, strategy="tensor", is_dynamic=False)
#: Grids of inputs by ModelOpt's names of algorithms; None where inputs stay in float.
_MODELOPT: Mapping[str, Grid | None] = {
    "FP8": _FLOAT8,
    "FP8_PER_CHANNEL_PER_TOKEN": _FLOAT8_TOKENS,
    "NVFP4": _NVFP4,
    "W4A8_AWQ": _FLOAT8,
    "W4A8_NVFP4_FP8": _FLOAT8,
    "W4A8_MXFP4_FP8": _FLOAT8,
    "MXFP8": _MXFP8,
    "MXFP4": _MXFP4,
    "W8A8_SQ_PER_CHANNEL": _INT8,
    "W4A16_AWQ": None,
    "W4A16": None,
    "W8A16": None,
    "NVFP4_W4A16": None,
    "W4A16_NVFP4": None,
}
_MODELOPT_CACHES: Mapping[str, Grid] = {"FP8": _FLOAT8, "INT8": _INT8, "NVFP4": _NVFP4}
#: Values of a group of NVFP4, and of MX formats.
_GROUP, _MX_GROUP = 16, 32
#: How compressed-tensors writes that scales are powers of two.
_POWERS = ("torch.uint8", "uint8")


class UnknownSchemeError(Exception):
    """How values are quantized is said in a way that is not known here."""


@dataclass(frozen=True)
class InputSchemes:
    """Grids of the inputs of layers, without their scales.

    Attributes:
        grids: By pattern of layers, ``""`` for those that no other means: a grid; None where inputs stay in float; or
            what is said in a way that is not known.
        ignored: Layers whose inputs stay in float unless a pattern means them.
        named: The patterns.
    """

    grids: Mapping[str, Grid | str | None]
    ignored: NamedModules
    named: NamedModules

    def grid_of(self, layer: str) -> Grid | None:
        """The grid of a quantized layer; None where its inputs stay in float.

        Raises:
            UnknownSchemeError: Its scheme is not known.
        """
        pattern = self.named.first(layer)
        if pattern is None and self.ignored.first(layer) is not None:
            return None
        found = self.grids.get("" if pattern is None else pattern.text)
        if isinstance(found, str):
            raise UnknownSchemeError(found)
        return found


def input_schemes(settings: Settings) -> InputSchemes:
    """How the inputs of layers are quantized."""
    grids: dict[str, Grid | str | None] = {}
    for text, grid in _schemes(settings):
        if text not in grids or (isinstance(grid, str) and not isinstance(grids[text], str)):
            grids[text] = grid
    patterns = [exact_or_regex(text) for text in grids if text]
    # Names before expressions, and of these what is not known last.
    ordered = sorted(patterns, key=lambda pattern: (not pattern.is_name, isinstance(grids[pattern.text], str)))
    return InputSchemes(grids, NamedModules(read_declared(settings).ignores), NamedModules(ordered))


def cache_grid(settings: Settings) -> Grid | None:
    """How keys and values are kept; None where they stay in float.

    Raises:
        UnknownSchemeError: It is said in a way that is not known.
    """
    said = cache_statement(settings)
    if isinstance(said, str):
        if said.upper() not in _MODELOPT_CACHES:
            raise UnknownSchemeError(f"K/V cache of {said}")
        return _MODELOPT_CACHES[said.upper()]
    if said is None:
        return None
    grid = _grid(said, ("tensor", "attn_head"))
    if not grid.is_symmetric or (grid.is_dynamic and grid.strategy != "tensor"):
        raise UnknownSchemeError(f"K/V cache of {grid}")
    return grid


def _schemes(settings: Settings) -> Sequence[tuple[str, Grid | str | None]]:
    """Patterns of layers, and the grids of their inputs; see ``InputSchemes``."""
    algorithm = settings.get("quant_algo")
    if isinstance(algorithm, str):
        return _modelopt_schemes(settings, algorithm.upper())
    groups = config_groups(settings)
    if groups is not None:
        return [entry for group in groups.values() for entry in _group_schemes(group)]
    method = str(settings.get("quant_method") or "").lower()
    if method == "fp8":
        return [("", _float8_scheme(settings))]
    is_known = method in _WEIGHTS_ALONE or not settings or (method == "bitsandbytes" and settings.get("load_in_4bit"))
    if is_known or (method == "torchao" and _names_weights_alone(settings.get("quant_type"))):
        return [("", None)]
    return [("", f"scheme of {method or 'a tool that is not named'}")]


def _names_weights_alone(kind: object) -> bool:
    """What transformers writes of torchao: ``int8_weight_only``, or a configuration ``Int8WeightOnlyConfig``."""
    inner = kind.get("default", kind) if isinstance(kind, Mapping) else kind
    name = inner.get("_type") if isinstance(inner, Mapping) else inner
    return isinstance(name, str) and "weightonly" in name.replace("_", "").lower()


def _group_schemes(group: Settings) -> list[tuple[str, Grid | str | None]]:
    inputs, targets = group.get("input_activations"), group.get("targets")
    grid: Grid | str | None
    try:
        grid = _grid(inputs, ("tensor", "token", "tensor_group", "group")) if isinstance(inputs, Mapping) else None
    except UnknownSchemeError as why:
        grid = str(why)
    texts = [text for text in targets if isinstance(text, str)] if isinstance(targets, list) else ["Linear"]
    # Classes are not told by names: all that have codes and that nothing else means are of the class Linear.
    return [("" if exact_or_regex(text).matches is None and text[:3] != "re:" else text, grid) for text in texts]


def _modelopt_schemes(settings: Settings, algorithm: str) -> list[tuple[str, Grid | str | None]]:
    layers = settings.get("quantized_layers")
    if algorithm != "MIXED_PRECISION" or not isinstance(layers, Mapping):
        return [("", _modelopt_grid(algorithm))]
    own = {str(name): value.get("quant_algo") for name, value in layers.items() if isinstance(value, Mapping)}
    return [(name, _modelopt_grid(str(value).upper())) for name, value in own.items()]


def _modelopt_grid(algorithm: str) -> Grid | str | None:
    return _MODELOPT.get(algorithm, f"scheme {algorithm}")


def _float8_scheme(settings: Settings) -> Grid | str:
    block = settings.get("weight_block_size")
    if settings.get("activation_scheme") == "static":
        return _FLOAT8
    if settings.get("activation_scheme") != "dynamic":
        return f"activation_scheme {settings.get('activation_scheme')}"
    if isinstance(block, list) and len(block) == 2 and isinstance(block[1], int) and block[1] > 0:
        return Grid(8, is_float=True, strategy="group", is_dynamic=True, size=block[1])
    return _FLOAT8_TOKENS


def _grid(scheme: Settings, strategies: Sequence[str]) -> Grid:
    """A grid of compressed-tensors."""
    bits, is_float = scheme.get("num_bits"), scheme.get("type", "int") == "float"
    is_dynamic, is_symmetric = scheme.get("dynamic") in (True, "local"), scheme.get("symmetric") is not False
    size = scheme.get("group_size")
    strategy = scheme.get("strategy") or ("tensor_group" if is_float and bits == 4 else "tensor")
    said = f"{strategy} of {bits} bits, {scheme.get('type', 'int')}"
    if strategy not in strategies or not isinstance(bits, int) or isinstance(bits, bool):
        raise UnknownSchemeError(said)
    if is_float and (not is_symmetric or bits not in (4, 8)):
        raise UnknownSchemeError(said)
    if "group" not in str(strategy):
        if (is_float and bits != 8) or not 2 <= bits <= 16:
            raise UnknownSchemeError(said)
        own: Strategy = "head" if strategy == "attn_head" else "token" if strategy == "token" else "tensor"
        return Grid(bits, is_float, own, is_dynamic, is_symmetric)
    if not is_float:
        raise UnknownSchemeError(f"{said}, in groups")
    return _group_grid(said, bits, size, is_scaled=strategy == "tensor_group", kept=scheme.get("scale_dtype"))


def _group_grid(said: str, bits: int, size: object, *, is_scaled: bool, kept: object) -> Grid:
    """Groups of floats: with scales in E4M3 (NVFP4), as powers of two (MX formats), or as they are.

    E2M1 in groups of 32 is MXFP4 also where ``scale_dtype`` is not said, which older releases of compressed-tensors did
    not write; E4M3 in such groups then has scales as they are, as that library reads it.
    """
    length = size if isinstance(size, int) and not isinstance(size, bool) else _GROUP
    if is_scaled and bits == 4 and length == _GROUP:
        return _NVFP4
    if not is_scaled and length == _MX_GROUP and (kept in _POWERS or (bits == 4 and kept is None)):
        return replace(_MXFP4 if bits == 4 else _MXFP8, scales="power")
    if not is_scaled and bits == 8 and length > 0 and kept not in _POWERS:
        return Grid(8, is_float=True, strategy="group", is_dynamic=True, size=length)
    raise UnknownSchemeError(f"{said}, in groups of {length}")
