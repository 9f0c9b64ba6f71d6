"""What running two language models block by block costs, beside running both whole: time and memory, in one run.

``plain``
    both models one after the other with ``transformers``, all weights in memory as float32; logits of each text are
    made and thrown away.
``blocks``
    ``quantmedic``'s run of both models on the same texts: everything that it measures, without comparing weights.

Weights are random, in bfloat16, with the shapes of a block of an 8-billion-parameter Llama by default; of its 32 blocks
a few are enough, for all cost the same. Each contender runs in a process of its own.

How to run, from the repository root::

    python benchmarks/language.py --blocks 2 --texts 16 --length 512

On a machine with other work, the processor time tells more than the clock.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

CONTENDERS = ("plain", "blocks")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--inner", type=int, default=14336)
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--texts", type=int, default=4)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--child", nargs=2, metavar=("CONTENDER", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        contender, folder = arguments.child
        {"plain": run_plain, "blocks": run_by_blocks}[contender](Path(folder))
        return
    with tempfile.TemporaryDirectory(prefix="quantmedic-") as made:
        subprocess.run([sys.executable, "-c", BUILD, made, *map(str, sizes_of(arguments))], check=True)
        print("| contender | processor | clock | memory beyond the imports |\n|---|--:|--:|--:|")
        for contender in CONTENDERS:
            subprocess.run([sys.executable, __file__, "--child", contender, made], check=True)


def sizes_of(arguments: argparse.Namespace) -> list[int]:
    return [getattr(arguments, name) for name in ("blocks", "width", "inner", "vocabulary", "texts", "length")]


#: A process of its own, so that what it takes is not counted.
BUILD = """
import sys
import numpy as np, torch, transformers
folder, blocks, width, inner, vocabulary, texts, length = sys.argv[1], *map(int, sys.argv[2:])
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()
config = transformers.LlamaConfig(
    vocab_size=vocabulary, hidden_size=width, intermediate_size=inner, num_hidden_layers=blocks,
    num_attention_heads=width // 128, num_key_value_heads=max(width // 512, 1), dtype="bfloat16",
)
torch.manual_seed(0)
torch.set_default_dtype(torch.bfloat16)
model = transformers.AutoModelForCausalLM.from_config(config)
model.save_pretrained(f"{folder}/float")
with torch.no_grad():
    for name, value in model.named_parameters():
        if value.ndim > 1 and "layers" in name:
            groups = value.view(len(value), -1, 128).float()
            step = groups.abs().amax(-1, keepdim=True) / 7
            value.copy_(((groups / step).round() * step).view_as(value).to(torch.bfloat16))
model.save_pretrained(f"{folder}/int4")
np.savez(f"{folder}/ids.npz", ids=np.random.default_rng(0).integers(3, vocabulary, (texts, length)))
"""


def run_plain(folder: Path) -> None:
    import numpy as np
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    ids = torch.from_numpy(np.load(folder / "ids.npz")["ids"])
    before = Used()
    for name in ("float", "int4"):
        model = transformers.AutoModelForCausalLM.from_pretrained(folder / name, dtype=torch.float32)
        with torch.inference_mode():
            for text in ids:
                model(text[None], use_cache=False)
        del model
    before.tell("plain")


def run_by_blocks(folder: Path) -> None:
    import transformers  # noqa: F401  # its import is not counted

    from quantmedic.collectors.from_language_model.collect import run_language_models

    before = Used()
    run_language_models(folder / "float", folder / "int4", folder / "ids.npz")
    before.tell("blocks")


class Used:
    """Time and memory from here on."""

    def __init__(self) -> None:
        self.clock = time.perf_counter()
        self.processor = time.process_time()
        self.memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def tell(self, contender: str) -> None:
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        spent = time.process_time() - self.processor, time.perf_counter() - self.clock
        memory = f"{(peak - self.memory) / 1024:.0f} MB"
        print(f"| {contender} | {spent[0]:.1f} s | {spent[1]:.1f} s | {memory} |", flush=True)


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", str(Path(__file__).parents[1]))
    main()
