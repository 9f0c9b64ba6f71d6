"""What ``config.json`` says of a quantization, as the tools write it."""

from collections.abc import Collection, Mapping
from typing import Any

from .schemes import Scheme

Plan = Mapping[str, Scheme]
_FORMATS = {
    "packed": "pack-quantized",
    "int8": "int-quantized",
    "float8": "float-quantized",
    "nvfp4": "nvfp4-pack-quantized",
    "mxfp4": "mxfp4-pack-quantized",
}


def quantization_config(plan: Plan, left: Collection[str]) -> dict[str, Any]:
    """The configuration; empty for real numbers.

    Args:
        plan: Scheme of each quantized layer.
        left: Linear layers that stay in float, the head among them.
    """
    if not plan:
        return {}
    main = _most_common(plan)
    if main.kind == "rounded":
        return {}
    makers = {"gptq": _gptq, "awq": _awq, "nf4": _bitsandbytes, "torchao": _torchao}
    return {"quantization_config": makers.get(main.kind, _compressed)(plan, main, left)}


def _most_common(plan: Plan) -> Scheme:
    schemes = list(plan.values())
    return max(dict.fromkeys(schemes), key=schemes.count)


def _others(plan: Plan, main: Scheme) -> dict[Scheme, list[str]]:
    """Layers with another grid than most."""
    found: dict[Scheme, list[str]] = {}
    for name, scheme in plan.items():
        if (scheme.bits, scheme.size, scheme.kind) != (main.bits, main.size, main.kind):
            found.setdefault(scheme, []).append(name)
    return found


def _gptq(plan: Plan, main: Scheme, left: Collection[str]) -> dict[str, Any]:
    dynamic: dict[str, Any] = {
        f"+:^{name}$".replace(".", "\\."): {"bits": scheme.bits, "group_size": scheme.size or -1}
        for scheme, names in _others(plan, main).items()
        for name in names
    }
    dynamic |= {f"-:^{name}$".replace(".", "\\."): {} for name in left if name != "lm_head"}
    return {
        "quant_method": "gptq",
        "bits": main.bits,
        "group_size": main.size or -1,
        "sym": main.symmetric,
        "desc_act": False,
        **({"dynamic": dynamic} if dynamic else {}),
    }


def _awq(plan: Plan, main: Scheme, left: Collection[str]) -> dict[str, Any]:
    return {
        "quant_method": "awq",
        "bits": main.bits,
        "group_size": main.size,
        "zero_point": True,
        "version": "gemm",
        "modules_to_not_convert": sorted(left) or None,
    }


def _bitsandbytes(plan: Plan, main: Scheme, left: Collection[str]) -> dict[str, Any]:
    return {
        "quant_method": "bitsandbytes",
        "load_in_4bit": True,
        "bnb_4bit_quant_type": "nf4",
        "llm_int8_skip_modules": sorted(left),
    }


def _torchao(plan: Plan, main: Scheme, left: Collection[str]) -> dict[str, Any]:
    return {"quant_method": "torchao", "quant_type": {"default": {"_type": "Int8WeightOnlyConfig", "_data": {}}}}


def _compressed(plan: Plan, main: Scheme, left: Collection[str]) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights_settings(main)}}
    for number, (scheme, names) in enumerate(_others(plan, main).items(), 1):
        groups[f"group_{number}"] = {"targets": names, "weights": weights_settings(scheme)}
    return {
        "quant_method": "compressed-tensors",
        "format": _FORMATS[main.kind],
        "config_groups": groups,
        "ignore": sorted(left),
    }


def weights_settings(scheme: Scheme) -> dict[str, Any]:
    """What compressed-tensors says of the weights of layers."""
    is_float = scheme.kind in ("float8", "nvfp4", "mxfp4")
    strategy = "group" if scheme.size else "tensor" if scheme.is_per_tensor else "channel"
    return {
        "num_bits": scheme.bits,
        "type": "float" if is_float else "int",
        "symmetric": scheme.symmetric,
        "strategy": strategy,
        "group_size": scheme.size or None,
    }
