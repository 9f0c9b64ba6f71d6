"""A LiteRT model as its file holds it: tensors, operators and constants, checked before anything runs it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quantmedic.collectors.onnx_quantizer import Quantizer

Array = NDArray[np.generic]


@dataclass(frozen=True)
class LiteTensor:
    """One tensor of the main graph.

    Attributes:
        index: Its place, by which the interpreter knows it.
        name: Its name, made unique where the file's is empty or taken.
        kind: Type by the schema's name: FLOAT32, FLOAT16, INT8, INT16, INT4, INT32, INT64, BOOL …
        shape: Sides; None for one that depends on the data.
        quantizer: Its grid; None for one without.
        data: What a constant holds, of fewer than 8 bits unpacked to int8; None for what is computed.
    """

    index: int
    name: str
    kind: str
    shape: tuple[int | None, ...]
    quantizer: Quantizer | None = None
    data: Array | None = None


@dataclass(frozen=True)
class LiteOperator:
    """One operator: ``kind`` by the schema's name, such as CONV_2D, or the name of a custom operator.

    ``inputs`` are places of tensors, -1 for one that is left out. ``options`` are the schema's, names in its spelling
    (strideH, fusedActivationFunction), enumerations as numbers.
    """

    index: int
    kind: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    is_custom: bool = False


@dataclass(frozen=True)
class LiteModel:
    """The main graph of a file, its operators in the order of execution."""

    path: Path
    content: bytes = field(repr=False)
    tensors: tuple[LiteTensor, ...]
    operators: tuple[LiteOperator, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    description: str = ""
    notices: tuple[str, ...] = ()


def read_litert(path: Path) -> LiteModel:
    """Read and check a file.

    Raises:
        ModelError: It cannot be read, is no LiteRT model or a damaged one, or ai-edge-litert is not installed.
    """
    raise NotImplementedError
