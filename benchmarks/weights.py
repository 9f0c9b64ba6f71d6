"""What comparing the weights of two checkpoints costs, beside reading both files once and dequantizing them.

``reference``
    every tensor of both files read once with ``safetensors`` or ``gguf``, the quantized ones dequantized by the library
    of their format, both as float32 numbers, which are thrown away; nothing is compared.
``quantmedic``
    the comparison behind ``quantmedic weights``: everything that it measures of every layer, one thread or all.

Weights are random, in bfloat16, with the shapes of an 8-billion-parameter Llama: embedding, output layer, and some of
its 32 blocks. Each contender runs in a process of its own, one behind the other, and the least of all rounds counts.

How to run, from the repository root, where ``compressed-tensors`` and ``gguf`` are installed::

    python benchmarks/weights.py --blocks 4
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import measure

KINDS = ("pack-quantized", "float-quantized", "Q4_K")
CONTENDERS = ("reference", "quantmedic")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=4)
    parser.add_argument("--vocabulary", type=int, default=128256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=KINDS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--child", nargs=3, metavar=("CONTENDER", "KIND", "FOLDER"), help=argparse.SUPPRESS)
    parser.add_argument("--build", nargs=2, metavar=("KIND", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.build:
        build(arguments.build[0], Path(arguments.build[1]), arguments.blocks, arguments.vocabulary)
    elif arguments.child:
        run(*arguments.child, threads=arguments.threads)
    else:
        print("| format | contender | processor | clock | memory beyond the imports | processor, ratio |")
        print("|---|---|--:|--:|--:|--:|")
        for kind in [arguments.only] if arguments.only else KINDS:
            compare(kind, arguments)


def compare(kind: str, arguments: argparse.Namespace) -> None:
    """Print a row for each contender."""
    with tempfile.TemporaryDirectory(prefix="quantmedic-") as made:
        sizes = ["--blocks", str(arguments.blocks), "--vocabulary", str(arguments.vocabulary)]
        subprocess.run([sys.executable, __file__, "--build", kind, made, *sizes], check=True)
        threads = ["--threads", str(arguments.threads)]
        children = {name: ["--child", name, kind, made, *threads] for name in CONTENDERS}
        found = measure.rounds(Path(__file__), children, arguments.rounds)
    least = {name: {key: min(row[key] for row in rows) for key in rows[0]} for name, rows in found.items()}
    for name, cost in least.items():
        ratio = cost["cpu"] / least[CONTENDERS[0]]["cpu"]
        memory = cost["memory"] - cost["base_memory"]
        print(f"| {kind} | {name} | {cost['cpu']:.1f} s | {cost['wall']:.1f} s | {memory:.0f} MB | {ratio:.2f} |")


def shapes(blocks: int, vocabulary: int) -> dict[str, tuple[int, int]]:
    """Of the matrices."""
    found = {"model.embed_tokens.weight": (vocabulary, 4096), "lm_head.weight": (vocabulary, 4096)}
    for block in range(blocks):
        own = {"self_attn.q_proj": (4096, 4096), "self_attn.k_proj": (1024, 4096), "self_attn.v_proj": (1024, 4096)}
        own |= {"self_attn.o_proj": (4096, 4096), "mlp.gate_proj": (14336, 4096), "mlp.up_proj": (14336, 4096)}
        own |= {"mlp.down_proj": (4096, 14336)}
        found |= {f"model.layers.{block}.{name}.weight": shape for name, shape in own.items()}
    return found


def build(kind: str, folder: Path, blocks: int, vocabulary: int) -> None:
    """Write a shard per block and side; embedding and output layer stay in float."""
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(0)
    parts: dict[str, dict[str, tuple[int, int]]] = {}
    for name, shape in shapes(blocks, vocabulary).items():
        parts.setdefault(name.split(".")[2] if "layers" in name else "ends", {})[name] = shape
    write = {"pack-quantized": _pack, "float-quantized": _eight_bits, "Q4_K": _k_blocks}[kind]
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": blocks}
    ours, theirs = folder / "float", folder / "quantized"
    ours.mkdir()
    theirs.mkdir()
    single: dict[str, Any] = {}
    for part, own in parts.items():
        made = {name: torch.randn(shape, dtype=torch.bfloat16) * 0.02 for name, shape in own.items()}
        is_kept = part == "ends"
        quantized = made if is_kept else {k: v for name, value in made.items() for k, v in write(name, value).items()}
        save_file(made, ours / f"model-{part}.safetensors")
        if kind == "Q4_K":
            single |= quantized
        else:
            save_file(quantized, theirs / f"model-{part}.safetensors")
    (ours / "config.json").write_text(json.dumps(config))
    if kind == "Q4_K":
        _write_gguf(theirs / "model.gguf", single, blocks)
    else:
        config["quantization_config"] = _settings(kind)  # type: ignore[assignment]
        (theirs / "config.json").write_text(json.dumps(config))


def _settings(kind: str) -> dict[str, Any]:
    four = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 128, "symmetric": True}
    eight = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
    weights = four if kind == "pack-quantized" else eight
    group = {"targets": ["Linear"], "weights": weights}
    return {
        "quant_method": "compressed-tensors",
        "format": kind,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


def _pack(name: str, value: Any) -> dict[str, Any]:
    import torch

    groups = value.float().unflatten(1, (-1, 128))
    scale = groups.abs().amax(-1) / 7.5
    codes = (groups / scale[..., None]).round().clamp(-8, 7).flatten(1).int() + 8
    words = codes.unflatten(1, (-1, 8))
    packed = torch.zeros(words.shape[:2], dtype=torch.int32)
    for place in range(8):
        packed |= words[..., place] << (4 * place)
    shape = torch.tensor(value.shape)
    return {f"{name}_packed": packed, f"{name}_scale": scale.bfloat16(), f"{name}_shape": shape}


def _eight_bits(name: str, value: Any) -> dict[str, Any]:
    import torch

    scale = value.float().abs().amax(1, keepdim=True) / 448
    return {name: (value.float() / scale).to(torch.float8_e4m3fn), f"{name}_scale": scale.bfloat16()}


def _k_blocks(name: str, value: Any) -> dict[str, Any]:
    """Blocks of random codes, and the float weights put beside them."""
    import gguf
    import numpy as np
    import torch

    random = np.random.default_rng(len(name) + int(value.shape[1]))
    blocks = random.integers(0, 256, (value.numel() // 256, 144), np.uint8)
    blocks[:, 4:8] &= 63  # scales and offsets of runs of 6 bits, without the upper two of the others
    blocks[:, 8:16] &= 15
    blocks[:, :4] = np.array([2e-5, 1.5e-4], np.float16).view(np.uint8)
    rows = blocks.reshape(value.shape[0], -1)
    numbers = gguf.quants.dequantize(rows, gguf.GGMLQuantizationType.Q4_K)
    step = np.abs(numbers).mean() / 8
    value.copy_(torch.from_numpy(numbers + random.uniform(-step, step, numbers.shape).astype(np.float32)))
    return {name: rows}


def _write_gguf(path: Path, tensors: dict[str, Any], blocks: int) -> None:
    import gguf
    import numpy as np
    import torch

    writer = gguf.GGUFWriter(path, "qwen2")  # rows of q and k stay in their order
    writer.add_block_count(blocks)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, blocks)
    for name, value in tensors.items():
        own = f"{names.get_name(name.removesuffix('.weight'))}.weight"
        if isinstance(value, torch.Tensor):
            writer.add_tensor(own, value.half().numpy())
        else:
            writer.add_tensor(own, np.ascontiguousarray(value), raw_dtype=gguf.GGMLQuantizationType.Q4_K)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def run(contender: str, kind: str, folder: str, threads: int) -> None:
    """Compare both, or read and dequantize them, and print what it cost behind the imports."""
    ours, theirs = Path(folder) / "float", Path(folder) / "quantized"
    if contender == "quantmedic":
        from quantmedic.collectors.from_checkpoint.compare_checkpoints import collect_checkpoints

        other = theirs / "model.gguf" if kind == "Q4_K" else theirs
        measure.report(
            (0.0, 0.0), lambda: _none(collect_checkpoints(ours, other, version="benchmark", threads=threads))
        )
    else:
        import torch

        torch.set_num_threads(threads)
        (_read_gguf if kind == "Q4_K" else _read_safetensors)(ours, theirs, kind)


def _none(_: object) -> None:
    """Nothing is told beside the costs."""


def _read_safetensors(ours: Path, theirs: Path, kind: str) -> None:
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from safetensors import safe_open

    compressor = BaseCompressor.get_value_from_registry(kind)
    weights = QuantizationArgs(**_settings(kind)["config_groups"]["group_0"]["weights"])
    scheme = QuantizationScheme(targets=["Linear"], weights=weights)

    def read() -> None:
        _read_floats(ours)
        for path in sorted(theirs.glob("*.safetensors")):
            with safe_open(path, "pt") as file:
                names = list(file.keys())
                for base in sorted({name.rpartition(".weight")[0] for name in names}):
                    own = [name for name in names if name.startswith(f"{base}.")]
                    state = {name.removeprefix(f"{base}."): file.get_tensor(name) for name in own}
                    is_packed = len(state) > 1
                    (compressor.decompress(state, scheme) if is_packed else state)["weight"].float()

    measure.report((0.0, 0.0), read)


def _read_gguf(ours: Path, theirs: Path, _kind: str) -> None:
    import gguf

    def read() -> None:
        _read_floats(ours)
        for tensor in gguf.GGUFReader(theirs / "model.gguf").tensors:
            gguf.quants.dequantize(tensor.data, tensor.tensor_type)

    measure.report((0.0, 0.0), read)


def _read_floats(ours: Path) -> None:
    from safetensors import safe_open

    for path in sorted(ours.glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            for name in file.keys():  # noqa: SIM118  # not a mapping
                file.get_tensor(name).float()


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", str(Path(__file__).parents[1]))
    main()
