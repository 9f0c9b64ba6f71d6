"""Models of llama.cpp in GGUF files: plain float tensors, and weights in blocks, read a slice at a time.

Whatever the header counts is held against the bytes that are left of the file before anything is made of it; no tensor
is read. Arrays of the metadata, such as tokens, are passed over. Models that are split lie in files
``…-00001-of-00003.gguf``.

Beside a checkpoint with the names of Hugging Face, tensors get these names, and what the converter changed is undone:
rows of q and k are put back, and 1 is taken from norms that it was added to. Experts of one tensor are layers each.
"""

import mmap
import re
import struct
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import prod
from pathlib import Path

import numpy as np

from quantmedic.collectors.data.arrays import Array
from quantmedic.collectors.from_checkpoint.gguf.blocks import (
    BLOCK_TYPES,
    BLOCKS,
    FLOAT_TYPES,
    INTEGER_TYPES,
    TYPES,
    BlockType,
)
from quantmedic.collectors.from_checkpoint.layers.weight_fields import Integers
from quantmedic.collectors.from_checkpoint.packed.packed_layer import (
    Block,
    PackedLayer,
    Reading,
    UnreadableLayerError,
    even_groups,
    require,
)
from quantmedic.collectors.from_checkpoint.safetensors_file import Rows, Stored
from quantmedic.collectors.from_checkpoint.weight_values import Opened
from quantmedic.engine.errors import ModelError
from quantmedic.engine.reading_limits import TEXT_BYTES

_MAX_EXPERTS = 4096
#: Prefixes of the names of Hugging Face.
_PREFIXES = ("model.", "", "language_model.model.", "model.language_model.", "transformer.", "language_model.")
_BLOCK = re.compile(r"blk\.(\d+)\.(.+)\.(weight|bias)")
_EXPERT = re.compile(r"(.+_exps)\.(\d+)")
_OUTSIDE: Mapping[str, tuple[str, ...]] = {
    "token_embd": ("embed_tokens",),
    "output": ("lm_head",),
    "output_norm": ("norm", "final_layernorm"),
}
#: Names within a block; the first that the float checkpoint has is taken. ``{}`` is the number of an expert.
_INSIDE: Mapping[str, tuple[str, ...]] = {
    "attn_norm": ("input_layernorm",),
    "attn_q": ("self_attn.q_proj",),
    "attn_k": ("self_attn.k_proj",),
    "attn_v": ("self_attn.v_proj",),
    "attn_qkv": ("self_attn.qkv_proj",),
    "attn_output": ("self_attn.o_proj", "self_attn.dense"),
    "attn_q_norm": ("self_attn.q_norm", "self_attn.q_layernorm"),
    "attn_k_norm": ("self_attn.k_norm", "self_attn.k_layernorm"),
    "ffn_norm": ("pre_feedforward_layernorm", "post_attention_layernorm"),
    "post_attention_norm": ("post_attention_layernorm",),
    "post_ffw_norm": ("post_feedforward_layernorm",),
    "ffn_gate": ("mlp.gate_proj",),
    "ffn_up": ("mlp.up_proj", "mlp.gate_up_proj", "mlp.fc1"),
    "ffn_down": ("mlp.down_proj", "mlp.fc2"),
    "ffn_gate_inp": ("mlp.gate", "block_sparse_moe.gate"),
    "ffn_gate_exps": ("mlp.experts.{}.gate_proj", "block_sparse_moe.experts.{}.w1"),
    "ffn_up_exps": ("mlp.experts.{}.up_proj", "block_sparse_moe.experts.{}.w3"),
    "ffn_down_exps": ("mlp.experts.{}.down_proj", "block_sparse_moe.experts.{}.w2"),
    "ffn_gate_shexp": ("mlp.shared_expert.gate_proj", "mlp.shared_experts.gate_proj"),
    "ffn_up_shexp": ("mlp.shared_expert.up_proj", "mlp.shared_experts.up_proj"),
    "ffn_down_shexp": ("mlp.shared_expert.down_proj", "mlp.shared_experts.down_proj"),
    "ffn_gate_inp_shexp": ("mlp.shared_expert_gate",),
}
#: Architectures whose rows of q and k the converter reorders (``LlamaModel.permute``).
_REORDERED = frozenset(
    ("llama", "mistral3", "granite", "granitemoe", "olmo", "smollm3", "arcee", "minicpm", "nanbeige")
)
#: Keys of their numbers of heads, behind that of the architecture.
_HEADS = {"attn_q": "attention.head_count", "attn_k": "attention.head_count_kv"}
#: Architectures whose norms the converter adds 1 to; norms of state-space layers are left as they are.
_SHIFTED = frozenset(("gemma", "gemma2", "gemma3", "nemotron", "qwen3next", "qwen35", "qwen35moe"))
SUFFIX = ".gguf"
_MAGIC, _VERSIONS = b"GGUF", (2, 3)
_SPLIT = re.compile(r"(.*)-(\d{5})-of-(\d{5})\.gguf", re.DOTALL)
_AGAIN = "download or copy the file again, or convert the model again with llama.cpp"
#: The least bytes that an entry of the metadata and the description of a tensor take.
_LEAST_ENTRY, _LEAST_TENSOR = 13, 32
_MAX_DIMENSIONS = 4
#: Longer names are no names.
_NAME_BYTES = 1 << 16
_STRING, _ARRAY = 8, 9
#: Plain values of the metadata by their number.
_PLAIN: Mapping[int, str] = {
    0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d",
}  # fmt: skip
Value = int | float | bool | str


@dataclass(frozen=True)
class _Moved(Stored):
    """A tensor whose rows stand in another order, or with a number added.

    Attributes:
        order: Row of the file by row of the tensor; None where they are the same.
        shift: What was added.
    """

    order: Integers | None = None
    shift: float = 0.0

    def view(self, rows: Rows | None, columns: slice | None) -> Array:
        """Some rows and columns, in the order of the tensor."""
        if self.order is None:
            found = super().view(rows, columns)
        else:
            wanted = self.order if rows is None else self.order[rows]
            first = int(wanted.min())
            found = super().view(slice(first, int(wanted.max()) + 1), columns)[wanted - first]
        return found - found.dtype.type(self.shift) if self.shift else found


def is_gguf(path: Path) -> bool:
    """The path is a GGUF file by its name."""
    return path.suffix == SUFFIX


def open_gguf(path: Path, floats: Collection[str] | None = None) -> Opened:
    """Weights of a model.

    Args:
        path: The file, or one of those that the model is split into.
        floats: Names of the float tensors that it is compared with, where these are Hugging Face's.

    Raises:
        ModelError: A file is missing or damaged, or two tensors have one name.
    """
    metadata, described = open_gguf_files(path)
    tensors: dict[str, Stored] = {}
    layers: dict[str, PackedLayer] = {}
    refused: dict[str, str] = {}
    for tensor, own in ((part, whole.name) for whole in described for part in _experts(whole)):
        name = _own_name(tensor.name, floats, tensors)
        base = name.removesuffix("weight").removesuffix(".")
        try:
            order = _row_order(tensor, metadata) if name != tensor.name else None
            if tensor.dtype in (*FLOAT_TYPES, *INTEGER_TYPES):
                tensors[name] = _plain_tensor(name, tensor, order, metadata)
            else:
                tensors[f"{base}.weight"] = Stored(
                    name, tensor.path, "U8", (stored_bytes(tensor.dtype, tensor.shape),), tensor.offset
                )
                layers[base] = _layer(own.removesuffix(".weight"), tensor, order)
        except UnreadableLayerError as why:
            refused[base] = str(why)
    if not tensors and not refused:
        raise ModelError("the file holds no tensors", where=str(path), help="give the file with the weights")
    return Opened(path, tensors, layers=layers, refused=refused)


def _experts(tensor: Stored) -> Iterator[Stored]:
    """One tensor for each expert, where the first axis counts them."""
    base, _, ending = tensor.name.rpartition(".")
    if not base.endswith("_exps") or len(tensor.shape) != 3 or tensor.shape[0] > _MAX_EXPERTS:
        yield tensor
        return
    shape = tensor.shape[1:]
    for number in range(tensor.shape[0]):
        offset = tensor.offset + number * stored_bytes(tensor.dtype, shape)
        yield replace(tensor, name=f"{base}.{number}.{ending}", shape=shape, offset=offset)


def _own_name(name: str, floats: Collection[str] | None, taken: Mapping[str, Stored]) -> str:
    """That of the float tensor it was made from, where there is one of a known name."""
    found = next((full for full in _possible_names(name) if full in (floats or ())), None)
    return name if found is None or found in taken else found


def _row_order(tensor: Stored, metadata: Mapping[str, Value]) -> Integers | None:
    """Row of the file by row of Hugging Face: the halves of a head stand there in pairs.

    Raises:
        UnreadableLayerError: The number of heads is not stated, or does not fit.
    """
    architecture, block = metadata.get("general.architecture"), _BLOCK.fullmatch(tensor.name)
    key = _HEADS.get(block.group(2)) if block is not None and architecture in _REORDERED else None
    if key is None:
        return None
    both = metadata.get(f"{architecture}.attention.head_count")
    heads, rows = metadata.get(f"{architecture}.{key}", both), tensor.shape[0]
    if not isinstance(heads, int) or heads <= 0 or rows % (2 * heads):
        raise UnreadableLayerError(f"rows of q and k are reordered by heads, and {rows} rows do not fit {heads} heads")
    return np.arange(rows).reshape(heads, -1, 2).swapaxes(1, 2).ravel()


def _plain_tensor(name: str, tensor: Stored, order: Integers | None, metadata: Mapping[str, Value]) -> Stored:
    is_norm = tensor.name.endswith("norm.weight") and "ssm_" not in tensor.name
    is_shifted = name != tensor.name and is_norm and metadata.get("general.architecture") in _SHIFTED
    shift = 1.0 if is_shifted else 0.0
    return _Moved(name, tensor.path, tensor.dtype, tensor.shape, tensor.offset, order, shift)


def _layer(name: str, tensor: Stored, order: Integers | None) -> PackedLayer:
    """A layer whose rows are those of the first axis.

    Raises:
        UnreadableLayerError: Its type is not read, or it has one axis.
    """
    kind = BLOCK_TYPES.get(tensor.dtype)
    if kind is None:
        raise UnreadableLayerError(f"its type {tensor.dtype} is not read, only {', '.join(BLOCK_TYPES)}")
    require(len(tensor.shape) > 1, f"{tensor.dtype} of one axis, which is no layer")
    outputs, inputs = tensor.shape[0], prod(tensor.shape[1:])
    row_bytes = stored_bytes(tensor.dtype, (inputs,))
    stored = _Moved(name, tensor.path, "U8", (outputs, row_bytes), tensor.offset, order)
    groups = inputs // kind.group
    starts = even_groups(inputs, groups)
    return PackedLayer(
        own_name=f"{name}.weight",
        format=f"gguf {tensor.dtype.lower()}",
        shape=(outputs, inputs),
        bits=kind.bits,
        groups=groups,
        signed=kind.signed,
        even=kind.even,
        read=partial(_read_blocks, stored, kind, BLOCKS[tensor.dtype][1], starts),
    )


def _read_blocks(stored: Stored, kind: BlockType, size: int, starts: Integers, rows: slice, reading: Reading) -> Block:
    """Some rows of a layer; ``size`` is the bytes of a block."""
    count = rows.stop - rows.start
    with np.errstate(invalid="ignore", over="ignore"):  # a damaged file has scales that are not finite
        unpacked = kind.unpack(stored.load(rows).reshape(-1, size))
    codes, scale = unpacked.codes.reshape(count, -1), unpacked.scale.reshape(count, -1)
    if unpacked.offset is None:
        return Block(codes, scale, np.zeros_like(scale), starts, zero_is_no_step=True)
    offset = unpacked.offset.reshape(count, -1)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        code = -offset / scale
    zero = np.where(np.isfinite(code), code, np.float32(0))
    return Block(codes, scale, zero, starts, offset=offset, zero_is_no_step=True)


def _possible_names(name: str) -> list[str]:
    block = _BLOCK.fullmatch(name)
    if block is None:
        base, _, ending = name.rpartition(".")
        own = [f"{one}.{ending}" for one in _OUTSIDE.get(base, ())]
    else:
        number, part, ending = block.groups()
        expert = _EXPERT.fullmatch(part)
        key, index = expert.groups() if expert else (part, "")
        own = [f"layers.{number}.{one.format(index)}.{ending}" for one in _INSIDE.get(key, ())]
    return [prefix + one for one in own for prefix in _PREFIXES]


def open_gguf_files(path: Path) -> tuple[Mapping[str, Value], tuple[Stored, ...]]:
    """Describe a file, and those beside it that the same model is split into.

    Returns:
        Plain values and strings of the metadata of the first file, by key, and the tensors of all; the type of a tensor
        is as llama.cpp calls it, such as Q4_K.

    Raises:
        ModelError: A file is missing or damaged, of an unknown version, or holds a tensor of an unknown type; or two
            tensors have one name.
        LimitError: A header is larger than what is read whole.
    """
    files = _split_files(path)
    opened = [_read_file(file) for file in files]
    tensors: dict[str, Stored] = {}
    for _, found in opened:
        for tensor in found:
            if tensor.name in tensors:
                raise ModelError(
                    "two tensors have one name",
                    where=[f"tensor  {tensor.name}", str(tensors[tensor.name].path), str(tensor.path)],
                    help=_AGAIN,
                )
            tensors[tensor.name] = tensor
    metadata = opened[0][0]
    _check_split(path, metadata, len(files), len(tensors))
    return metadata, tuple(tensors.values())


def _split_files(path: Path) -> tuple[Path, ...]:
    if not path.is_file():
        raise ModelError("no such file", where=str(path), help="give a .gguf file, of split ones the first")
    split = _SPLIT.fullmatch(path.name)
    if split is None:
        return (path,)
    base, _, count = split.groups()
    files = []
    for number in range(1, int(count) + 1):
        files.append(path.with_name(f"{base}-{number:05}-of-{count}{SUFFIX}"))
        if not files[-1].is_file():
            raise ModelError(
                "a file of a split model is missing",
                where=[str(path), f"file  {files[-1].name}"],
                help="download it, too: all files of the model lie in one folder",
            )
    if not files:
        raise ModelError("the name counts 0 files", where=str(path), help="give the file the name that it had")
    return tuple(files)


def _check_split(path: Path, metadata: Mapping[str, Value], files: int, tensors: int) -> None:
    """Refuse files that are not all of one model."""
    counts = {"split.count": files, "split.tensors.count": tensors}
    for key, found in counts.items():
        stated = metadata.get(key)
        if isinstance(stated, int) and stated not in (0, found):
            raise ModelError(
                "the files are not those that the model was split into",
                where=[str(path), f"{key}  {stated}, found {found}"],
                help="give the files the names that llama.cpp wrote, such as model-00001-of-00003.gguf, side by side",
            )


def _read_file(path: Path) -> tuple[dict[str, Value], list[Stored]]:
    try:
        size = path.stat().st_size
        if not size:
            raise ValueError("the file is empty")
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            return _Header(path, mapped, size).describe()
    except (OSError, ValueError) as error:
        raise ModelError("not a readable GGUF file", where=[str(path), f"cause  {error}"], help=_AGAIN) from error


class _Header:
    """Reads a header from its start to its end; what reaches beyond the file raises a ValueError."""

    def __init__(self, path: Path, data: mmap.mmap, size: int) -> None:
        self._path, self._data, self._size, self._place = path, data, size, 0

    def describe(self) -> tuple[dict[str, Value], list[Stored]]:
        """Metadata and tensors."""
        if self._take(len(_MAGIC)) != _MAGIC:
            raise ValueError("it does not start with GGUF")
        version = self._number("I")
        if version not in _VERSIONS:
            is_turned = version and not version & 0xFFFF
            raise ValueError(
                "it is written for big-endian machines" if is_turned else f"its version is {version}, read are 2 and 3"
            )
        tensors, entries = self._number("Q"), self._number("Q")
        self._check_count(entries, _LEAST_ENTRY, "entries of metadata")
        self._check_count(tensors, _LEAST_TENSOR, "tensors")
        metadata: dict[str, Value] = {}
        for _ in range(entries):
            key = self._string(_NAME_BYTES)
            value = self._value(self._number("I"))
            if value is not None:
                metadata[key] = value
        described = [self._tensor() for _ in range(tensors)]
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
            raise ValueError(f"general.alignment is {alignment}, not a power of two")
        start = -(-self._place // alignment) * alignment
        return metadata, [self._with_place(tensor, start) for tensor in described]

    def _take(self, count: int) -> bytes:
        start = self._place
        self._skip(count)
        TEXT_BYTES.check(self._place, f"{self._path}  header")
        return self._data[start : self._place]

    def _skip(self, count: int) -> None:
        if self._place + count > self._size:
            raise ValueError(f"it ends at byte {self._size}, {count} more are announced at byte {self._place}")
        self._place += count

    def _number(self, kind: str) -> int:
        found = struct.unpack(f"<{kind}", self._take(struct.calcsize(f"<{kind}")))[0]
        return int(found)

    def _check_count(self, count: int, least: int, what: str) -> None:
        if count * least > self._size - self._place:
            raise ValueError(f"{count} {what} are announced at byte {self._place} of {self._size}")

    def _string(self, most: int | None = None) -> str:
        length = self._number("Q")
        if most is not None and length > most:
            raise ValueError(f"a name of {length} bytes at byte {self._place}")
        return self._take(length).decode(errors="replace")

    def _value(self, kind: int) -> Value | None:
        """One value of the metadata; None where it is an array."""
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            self._skip_array()
            return None
        if kind not in _PLAIN:
            raise ValueError(f"a value of the unknown kind {kind} at byte {self._place}")
        layout = f"<{_PLAIN[kind]}"
        found: Value = struct.unpack(layout, self._take(struct.calcsize(layout)))[0]
        return found

    def _skip_array(self) -> None:
        kind, count = self._number("I"), self._number("Q")
        if kind in _PLAIN:
            self._skip(count * struct.calcsize(f"<{_PLAIN[kind]}"))
            return
        if kind != _STRING:
            raise ValueError(f"an array of the unknown kind {kind} at byte {self._place}")
        self._check_count(count, 8, "strings")
        for _ in range(count):
            self._skip(self._number("Q"))

    def _tensor(self) -> Stored:
        name = self._string(_NAME_BYTES)
        dimensions = self._number("I")
        if not 0 < dimensions <= _MAX_DIMENSIONS:
            raise ValueError(f"tensor {name} has {dimensions} dimensions")
        shape = tuple(self._number("Q") for _ in range(dimensions))[::-1]
        number, offset = self._number("I"), self._number("Q")
        if number not in TYPES:
            raise ValueError(f"tensor {name} is of the unknown type {number}")
        return Stored(name, self._path, TYPES[number][0], shape, offset)

    def _with_place(self, tensor: Stored, start: int) -> Stored:
        """The tensor with its place in the file, which holds all of it."""
        size = stored_bytes(tensor.dtype, tensor.shape)
        if not size:
            raise ValueError(f"tensor {tensor.name} has no elements")
        offset = start + tensor.offset
        if offset + size > self._size:
            raise ValueError(f"tensor {tensor.name} takes bytes {offset} to {offset + size}, the file has {self._size}")
        return replace(tensor, offset=offset)


def stored_bytes(kind: str, shape: tuple[int, ...]) -> int:
    """Bytes of a tensor.

    Raises:
        ValueError: Its rows are no whole blocks.
    """
    length, size = BLOCKS[kind]
    if shape[-1] % length:
        raise ValueError(f"rows of {shape[-1]} are no whole blocks of {length} ({kind})")
    return prod(shape) // length * size
