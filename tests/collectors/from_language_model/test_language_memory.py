"""Memory of a run of language models, which does not grow with the number of texts or with their lengths."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")

import transformers
from builders import language_models as lm

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of the process from /proc"),
]
WIDTH, VOCABULARY, LONGEST = 512, 512, 96
#: What the run takes beyond what is resident behind one on 24 texts, in MB. What is kept up to some bound is kept up to
#: a smaller one here, so that few texts fill it.
RUN = """
import sys
from pathlib import Path
import torch
from quantmedic.collectors.from_language_model import blocks, network
from quantmedic.collectors.from_language_model.checkpoint_case import run_language_models
from quantmedic.collectors.measure.checkpoints import TextRun
from quantmedic.engine.metrics import paired

def resident(key):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(key)) // 1024

network._KEPT, network._TOKENS_OF_EMBEDDING, blocks._TOKENS = 1 << 18, 512, 512
paired._BLOCK = 24 * paired._RESAMPLES
folder = Path(sys.argv[1])
torch.set_num_threads(1)
run_language_models((folder / "float", folder / "int4"), TextRun(folder / "24.jsonl"))
Path("/proc/self/clear_refs").write_text("5")
before = resident("VmRSS")
language, _ = run_language_models((folder / "float", folder / "int4"), TextRun(folder / "240.jsonl"))
assert language.worst_block_gain is not None and language.texts == 240
print(resident("VmHWM") - before)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two blocks, and texts of every length up to 96 tokens: their hidden states take 27 MB per place."""
    top = tmp_path_factory.mktemp("models")
    sizes: dict[str, Any] = {**lm.SIZES, "vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": 2}
    model = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**sizes)).eval()
    floats = lm.saved(model, top / "float")
    lm.saved(lm.rounded(lm.opened(floats), lambda name: 3 if ".layers.0." in name else 8), top / "int4")
    random = np.random.default_rng(0)
    for count in (24, 240):
        lengths = np.linspace(LONGEST, 16, count).astype(int)
        lines = [json.dumps(random.integers(3, VOCABULARY, length).tolist()) for length in lengths]
        (top / f"{count}.jsonl").write_text("\n".join(lines))
    return top


def growth(folder: Path) -> int:
    done = subprocess.run([sys.executable, "-c", RUN, str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


@pytest.mark.nightly
def test_memory_does_not_grow_with_texts(folder: Path) -> None:
    """Ten times as many: one place of hidden states that stays in memory would be 25 MB, and there are five."""
    assert growth(folder) < 24
