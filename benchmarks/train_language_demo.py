"""Train and quantize the language model of `quantmedic demo --language-model`.

A Llama of four blocks that reads bytes, trained on the manual pages of this repository. Pages that it never saw give
the texts. Written are, as a quantizer of torchao would:

``float``
    the network in float16, its config, and a tokenizer with a token for each byte;
``quantized``
    the patient: 8 bits in groups of 32, but the third block with 2 bits, as a pattern in a table of layers does that
    matches more than was meant;
``healthy``
    the same with 8 bits throughout;
``texts.jsonl``
    passages of the pages that were held out.

How to run, from the repository root (some minutes on one core)::

    pip install -e '.[language]'
    python benchmarks/train_language_demo.py --output quantmedic/demo/language

One thread and a fixed seed are used throughout: on the same machine, library versions and manual pages the script
writes the same bytes again.
"""

import argparse
import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tokenizers
import torch
import transformers
from numpy.typing import NDArray
from safetensors.numpy import save_file

SEED = 20261
STEPS = 700
BATCH = 32
#: Bytes of a text in training, and of one that both models are run on.
WINDOW = 128
PASSAGE = 256
PASSAGES = 24
PEAK_LEARNING_RATE = 4e-3
#: One page in so many is held out.
HELD_OUT = 12
GROUP = 32
SICK_BLOCK = "model.layers.2."
#: What reports call the model.
NAME = "small-llama"
SIZES: Mapping[str, int] = {
    "vocab_size": 256,
    "hidden_size": 96,
    "intermediate_size": 192,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "max_position_embeddings": PASSAGE,
}
Tensors = dict[str, NDArray[np.generic]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, help="folder that is written anew")
    parser.add_argument("--manuals", type=Path, default=Path("manuals"), help="pages to train on")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    seen, unseen = read_pages(arguments.manuals)
    model = train(seen)
    shutil.rmtree(arguments.output, ignore_errors=True)
    write_float(model, arguments.output / "float")
    weights = {name: value.detach().half().float().numpy() for name, value in model.state_dict().items()}
    write_quantized(weights, arguments.output / "quantized", sick=(SICK_BLOCK,))
    write_quantized(weights, arguments.output / "healthy", sick=())
    write_texts(unseen, arguments.output / "texts.jsonl")


def read_pages(folder: Path) -> tuple[bytes, list[bytes]]:
    """Pages for training, one behind the other, and those that are held out."""
    pages = [path.read_bytes() for path in sorted(folder.rglob("*.md"))]
    seen = [page for place, page in enumerate(pages) if place % HELD_OUT]
    return b"\n\n".join(seen), pages[::HELD_OUT]


def train(text: bytes) -> transformers.LlamaForCausalLM:
    config = transformers.LlamaConfig(**SIZES, tie_word_embeddings=True, bos_token_id=None, eos_token_id=None)
    model = transformers.LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), PEAK_LEARNING_RATE, betas=(0.9, 0.98), weight_decay=0.05)
    codes = torch.from_numpy(np.frombuffer(text, np.uint8).astype(np.int64))
    random = np.random.default_rng(SEED)
    for step in range(STEPS):
        warm = min((step + 1) / 50, 0.5 * (1 + math.cos(math.pi * step / STEPS)))
        for group in optimizer.param_groups:
            group["lr"] = PEAK_LEARNING_RATE * warm
        starts = random.integers(0, len(codes) - WINDOW, BATCH)
        batch = torch.stack([codes[start : start + WINDOW] for start in starts])
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 50 == 0 or step == STEPS - 1:
            print(f"step {step}: {loss.item():.3f} nats per byte", flush=True)
    return model.eval()


def write_float(model: transformers.LlamaForCausalLM, folder: Path) -> None:
    model.half().save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    alphabet = {letter: place for place, letter in enumerate(_letters())}
    reader = tokenizers.Tokenizer(tokenizers.models.BPE(alphabet, []))
    reader.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    reader.decoder = tokenizers.decoders.ByteLevel()
    reader.save(str(folder / "tokenizer.json"), pretty=False)
    model.float()


def _letters() -> list[str]:
    """The letter that stands for each byte in byte-level tokenizers: printable ones for themselves."""
    printable = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = iter(range(256, 512))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def write_quantized(weights: Mapping[str, NDArray[np.float32]], folder: Path, *, sick: tuple[str, ...]) -> None:
    """Linear layers as torchao stores them, int8 codes with a scale per group; blocks that are sick in 2 bits."""
    tensors: Tensors = {}
    for name, value in weights.items():
        if value.ndim != 2 or "embed" in name or "lm_head" in name:
            if "lm_head" not in name:
                tensors[name] = value.astype(np.float16)
            continue
        codes, scales = quantize(value, 2 if name.startswith(sick) else 8)
        base = name.removesuffix("weight")
        tensors |= {f"{base}_weight_qdata": codes, f"{base}_weight_scale": scales}
    folder.mkdir(parents=True)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder.parent / "float" / "config.json").read_text(encoding="utf-8"))
    config["_name_or_path"] = NAME
    # As transformers writes it: what names weights alone leaves inputs in float.
    kind = {"_type": "Int8WeightOnlyConfig", "_version": 2, "_data": {"group_size": GROUP}}
    config["quantization_config"] = {"quant_method": "torchao", "quant_type": {"default": kind}}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def quantize(value: NDArray[np.float32], bits: int) -> tuple[NDArray[np.int8], NDArray[np.float16]]:
    """Symmetric codes and scales of groups, as torchao's `choose_qparams_affine` gives them."""
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    groups = value.reshape(len(value), -1, GROUP)
    scales = (np.abs(groups).max(-1) / ((high - low) / 2)).astype(np.float16)
    codes = np.rint(groups / scales.astype(np.float32)[..., None]).clip(low, high)
    return codes.reshape(value.shape).astype(np.int8), scales


def write_texts(pages: list[bytes], path: Path) -> None:
    """As many passages of each page as of the others, in its order."""
    each = -(-PASSAGES // len(pages))
    found = []
    for page in pages:
        text = page.decode("utf-8")
        starts = np.linspace(0, max(0, len(text) - PASSAGE), each).astype(int)
        found += [text[start : start + PASSAGE].encode()[:PASSAGE].decode(errors="ignore") for start in starts]
    lines = [json.dumps({"text": passage}, ensure_ascii=False) for passage in found[:PASSAGES]]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
