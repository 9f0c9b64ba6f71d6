"""What running two language models block by block costs, beside running both whole: time and memory, in one run.

``plain``
    both models one after the other with ``transformers``, all weights in memory as float32; logits of each text are
    made and thrown away.
``blocks``
    ``quantmedic``'s run of both models on the same texts: everything that it measures, without comparing weights.

Weights are random, in bfloat16, with the shapes of a block of an 8-billion-parameter Llama by default; of its 32 blocks
a few are enough, for all cost the same. Each contender runs in a process of its own. With ``--device``, both compute
there, with float32 numbers multiplied with all their bits: ``plain`` moves each model there whole, ``blocks`` one block
at a time. What ``blocks`` reads is read once before, so that neither waits for the disk.

How to run, from the repository root::

    python benchmarks/language.py --blocks 2 --texts 16 --length 512
    python benchmarks/language.py --blocks 8 --texts 64 --length 512 --device cuda

On a machine with other work, the processor time tells more than the clock; of a device, the clock counts. ``read`` is
the part of the clock in which the processor reads and converts weights and they are moved to the device: all of
``plain``, those of blocks and norms of ``blocks``.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CONTENDERS = ("plain", "blocks")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=2)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--inner", type=int, default=14336)
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--texts", type=int, default=4)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--device", default="cpu", help="cpu, cuda, cuda:1, mps or xpu")
    parser.add_argument("--child", nargs=2, metavar=("CONTENDER", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        contender, folder = arguments.child
        {"plain": run_plain, "blocks": run_by_blocks}[contender](Path(folder), arguments.device)
        return
    with tempfile.TemporaryDirectory(prefix="quantmedic-") as made:
        subprocess.run([sys.executable, "-c", BUILD, made, *map(str, sizes_of(arguments))], check=True)
        print("| contender | processor | clock | read | memory beyond the imports | memory of the device |")
        print("|---|--:|--:|--:|--:|--:|", flush=True)
        for contender in CONTENDERS:
            child = ["--device", arguments.device, "--child", contender, made]
            subprocess.run([sys.executable, __file__, *child], check=True)


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


def run_plain(folder: Path, device: str) -> None:
    import numpy as np
    import torch
    import transformers

    from quantmedic.collectors.from_torch.devices import exact_products, usable_device

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    place = usable_device(device)
    ids = torch.from_numpy(np.load(folder / "ids.npz")["ids"]).to(place)
    get_ready(folder)
    before = Used(place)
    with exact_products(), torch.inference_mode():
        for name in ("float", "int4"):
            with before.reading():
                model = transformers.AutoModelForCausalLM.from_pretrained(folder / name, dtype=torch.float32).to(place)
            for text in ids:
                model(text[None], use_cache=False)
            del model
    before.tell("plain")


def run_by_blocks(folder: Path, device: str) -> None:
    from quantmedic.collectors.from_language_model import skeleton
    from quantmedic.collectors.from_language_model.checkpoint_case import run_language_models
    from quantmedic.collectors.from_torch.devices import usable_device

    place = usable_device(device)
    get_ready(folder)
    before = Used(place)
    parameter = skeleton._parameter

    def timed(*given: Any) -> Any:
        with before.reading():
            return parameter(*given).to(place)

    skeleton._parameter = timed
    run_language_models(folder / "float", folder / "int4", folder / "ids.npz", device=place)
    before.tell("blocks")


def get_ready(folder: Path) -> None:
    """Import what both need, and leave the files where the system keeps what was read."""
    import transformers.models.llama.modeling_llama  # noqa: F401

    for path in folder.glob("*/*.safetensors"):
        with path.open("rb") as file:
            while file.read(1 << 24):
                pass


class Used:
    """Time and memory from here on."""

    def __init__(self, device: Any) -> None:
        """``device``: of torch, whose work is waited for."""
        self.device = device
        self.wait()
        self.read = 0.0
        self.clock = time.perf_counter()
        self.processor = time.process_time()
        self.memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    @contextmanager
    def reading(self) -> Iterator[None]:
        """What is done in it counts as reading weights."""
        self.wait()
        start = time.perf_counter()
        yield
        self.wait()
        self.read += time.perf_counter() - start

    def wait(self) -> None:
        """A device works on while the program goes on."""
        import torch

        kind = getattr(torch, self.device.type, None)
        if self.device.type != "cpu" and kind is not None:
            kind.synchronize()

    def tell(self, contender: str) -> None:
        self.wait()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        spent = time.process_time() - self.processor, time.perf_counter() - self.clock, self.read
        memory = f"{(peak - self.memory) / 1024:.0f} MB"
        times = " | ".join(f"{own:.1f} s" for own in spent)
        print(f"| {contender} | {times} | {memory} | {self.memory_of_device()} |", flush=True)

    def memory_of_device(self) -> str:
        """The most that tensors took there at a time; torch tells it of some kinds."""
        import torch

        kind = getattr(torch, self.device.type, None)
        if self.device.type == "cpu" or not hasattr(kind, "max_memory_allocated"):
            return "-"
        return f"{kind.max_memory_allocated() / (1 << 20):.0f} MB"


if __name__ == "__main__":
    os.environ.setdefault("PYTHONPATH", str(Path(__file__).parents[1]))
    main()
