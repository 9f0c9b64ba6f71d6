"""Grids that tensors carry: of quantized tensors, of classes that hold codes and scales, of packed weights."""

import re
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from quantmedic.collectors.from_torch.operators import Operand, operator_of_call
from quantmedic.collectors.from_torch.quantizers import block_grid, grid_of, of_tensor
from quantmedic.collectors.from_torch.recorder import Call
from quantmedic.collectors.pair.quantizer import Quantizer

_BITS_IN_NAME = re.compile(r"int(\d+)$")


def unpacked_weights(call: Call) -> list[Operand] | None:
    """Weights and bias of an integer kernel, which gets them as one object."""
    for argument in call.args:
        unpack = getattr(argument, "unpack", None) if not isinstance(argument, torch.Tensor) else None
        if unpack is None:
            continue
        weight, bias = unpack()[:2]
        return [weight, bias]
    return None


def stored_grid(tensor: torch.Tensor) -> tuple[Quantizer | None, torch.Tensor | None]:
    """Grid and codes of a tensor that carries them: quantized, or of a class that holds codes and scales."""
    if tensor.is_quantized:
        return of_tensor(tensor), tensor
    codes, scale = (getattr(tensor, name, None) for name in ("qdata", "scale"))
    block = getattr(tensor, "block_size", None)
    if not isinstance(codes, torch.Tensor) or not isinstance(scale, torch.Tensor) or block is None:
        return None, None
    if codes.dtype not in (torch.int8, torch.uint8) or codes.shape != tensor.shape:
        return None, None
    # Codes of few bits lie in bytes.
    few = _BITS_IN_NAME.search(str(getattr(tensor, "target_dtype", codes.dtype)))
    bits = int(few[1]) if few is not None else 8
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if codes.dtype == torch.int8 else (0, 2**bits - 1)
    zero = getattr(tensor, "zero_point", None)
    return block_grid(scale, zero, low, high, tensor.shape, list(block)), codes


def quantizes_activation(tensor: torch.Tensor) -> bool:
    """The kernel of these weights quantizes the activation too, on a grid that it computes at run time."""
    asked = any(getattr(tensor, name, None) is not None for name in ("act_quant_kwargs", "activation_quantization"))
    return asked and getattr(tensor, "act_quant_scale", None) is None


def activation_grid(tensor: torch.Tensor) -> Quantizer | None:
    """The grid that weights prescribe for the activation; None where there is none, or more than one step."""
    scale = getattr(tensor, "act_quant_scale", None)
    if not isinstance(scale, torch.Tensor) or scale.numel() != 1:
        return None
    zero = getattr(tensor, "act_quant_zero_point", None)
    return grid_of(scale, torch.zeros(1) if zero is None else zero, -128, 127)


def moved_grid(quantizer: Quantizer | None, call: Call) -> Quantizer | None:
    """The grid of a constant behind a call that may turn it."""
    if quantizer is None or quantizer.axis is None:
        return quantizer
    found = operator_of_call(call.name, call.args, call.kwargs, call.result)
    order = found.attributes.get("perm") if found.op_type == "Transpose" else None
    if not isinstance(order, list) or quantizer.block_size:
        return None
    return replace(quantizer, axis=order.index(quantizer.axis % len(order)))


def encode_in_bytes(values: NDArray[np.float32], quantizer: Quantizer) -> NDArray[np.generic]:
    """Codes of values, in the smallest type of whole bytes."""
    kind = np.int8 if quantizer.signed else np.uint8
    return quantizer.encode(values).astype(kind if quantizer.bits <= 8 else np.int32)
