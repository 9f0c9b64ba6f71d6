"""Language models on a device: no tensor is left behind, figures are those of the processor, and settings are put back.

Where there is no GPU, a device stands in for it that is none (``builders.elsewhere``).
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("transformers")

import torch
import transformers
from builders import activation_schemes as acts
from builders import language_models as lm

import quantmedic
from quantmedic.collectors.from_language_model.checkpoint_case import run_language_models
from quantmedic.collectors.from_torch.devices import devices_here
from quantmedic.collectors.measure.checkpoints import TextRun
from quantmedic.engine.errors import QuantmedicError

pytestmark = pytest.mark.thorough
NVFP4 = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16, "dynamic": "local"}
MXFP8 = {**NVFP4, "num_bits": 8, "strategy": "group", "group_size": 32, "dynamic": True, "scale_dtype": "torch.uint8"}
INT8_BOTH = acts.Asked(acts.INT8_TENSOR, acts.INT8_TENSOR, 0.1, (0.02, 0.02))
#: What runs beside the float model, by architecture: rounded weights, or weights, activations and a cache.
PAIRS: dict[str, tuple[str, acts.Asked | None]] = {
    "one coarse block": ("Llama", None),
    "static activations and cache": ("Llama, tied", INT8_BOTH),
    "experts with groups of 4-bit floats": ("Mixtral", acts.Asked(NVFP4, acts.INT8_TENSOR, 0.01, (0.02, 0.02))),
    "sliding windows, MXFP8": ("Gemma2", acts.Asked(MXFP8)),
    "no rotary embedding, zero points by token": (
        "GPT-2",
        acts.Asked({**acts.INT8_TOKENS, "symmetric": False}, acts.INT8_TENSOR, None, (0.02, 0.02)),
    ),
}
BEGIN = """
import copy, json, sys
from pathlib import Path
import torch
from builders import elsewhere, language_models as lm
import quantmedic
from quantmedic.collectors.from_language_model.checkpoint_case import run_language_models
from quantmedic.collectors.measure.checkpoints import TextRun
from quantmedic.collectors.from_torch import devices
torch.set_num_threads(1)
def run(device, floats, quantized, ids):
    found = run_language_models((floats, quantized), TextRun(ids, device=str(device)))
    return [facts.model_dump(mode="json") for facts in found]
folders = [Path(folder) for folder in sys.argv[1:]]
groups = [(folder / "float", folder / "quantized", folder / "ids.npz") for folder in folders]
"""
#: Pairs on both devices, and on a device without float64, too. Tensors of two devices do not mix.
COMPARE = """
found = [[run(device, *group) for device in (devices.PROCESSOR, elsewhere.PLACE)] for group in groups]
devices.SINGLE = frozenset({elsewhere.NAME})
for several, group in zip(found, groups):
    several.append(run(elsewhere.PLACE, *group))
here = torch.ones(2)
for mix in (lambda there: there + here, lambda there: here[there.long()], lambda there: there.numpy()):
    try:
        mix(here.to(elsewhere.PLACE))
    except (RuntimeError, TypeError):
        continue
    raise AssertionError("what is left behind would not be noticed")
print(json.dumps(found))
"""
MEMORY = """
memory = elsewhere.MEMORY
memory.most = memory.now
begin = memory.now
run(elsewhere.PLACE, *groups.pop(0))
print(json.dumps([memory.most - begin, memory.now - begin]))
"""


def made(title: str, folder: Path, blocks: int = 4, texts: int = 5, length: int = 24) -> tuple[Path, Path, Path]:
    """A float and a quantized folder, and token ids."""
    architecture, asked = PAIRS[title]
    model = lm.random_model(architecture)
    if blocks < 4:
        del (model.transformer.h if architecture == "GPT-2" else model.model.layers)[blocks:]
        model.config.num_hidden_layers = blocks
        if getattr(model.config, "layer_types", None):
            model.config.layer_types = model.config.layer_types[:blocks]
    floats = lm.saved(model, folder / "float")
    np.savez(folder / "ids.npz", ids=np.random.default_rng(1).integers(3, lm.VOCABULARY, (texts, length)))
    if asked is not None:
        return floats, acts.write_quantized(floats, folder / "quantized", asked), folder / "ids.npz"
    coarse = lm.rounded(lm.opened(floats), lambda name: 2 if "layers.1." in name else 4)
    return floats, lm.saved(coarse, folder / "quantized"), folder / "ids.npz"


def answers_of(script: str, *folders: Path) -> list[Any]:
    """What a process says, line by line, that has the device which is none."""
    pytest.importorskip("torch", minversion="2.10", reason="torch has no devices written in Python")
    command = [sys.executable, "-c", BEGIN + script, *map(str, folders)]
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(command, capture_output=True, text=True, env=paths, check=False)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


EXPERTS = "experts with groups of 4-bit floats"
WIDE = 256


def write_wide(folder: Path) -> None:
    """Three blocks of which one is more than all else."""
    sizes: dict[str, Any] = {**lm.SIZES, "hidden_size": WIDE, "intermediate_size": 4 * WIDE, "num_hidden_layers": 3}
    model = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**sizes)).eval()
    floats = lm.saved(model, folder / "float")
    lm.saved(lm.rounded(lm.opened(floats), lambda name: 2 if "layers.1." in name else 8), folder / "quantized")
    np.savez(folder / "ids.npz", ids=np.random.default_rng(1).integers(3, lm.VOCABULARY, (2, 12)))


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Memory and figures, by one process, since to begin one takes longer than to run them."""
    top = tmp_path_factory.mktemp("models")
    write_wide(top / "wide")
    made(EXPERTS, top / "experts", blocks=1, texts=2, length=20)
    return answers_of(MEMORY + COMPARE, top / "wide", top / "experts")


def are_the_same(found: Any) -> None:
    """Both devices say what the processor says, since their kernels are the same."""
    processor, *devices = found
    assert devices == [processor] * 2 and processor[0]["kl_mean"] > 0


@pytest.mark.nightly
def test_nothing_is_left_behind(answers: list[Any]) -> None:
    (found,) = answers[1]
    are_the_same(found)


@pytest.mark.nightly
def test_nothing_of_any_network_is_left_behind(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for title in PAIRS:
        made(title, tmp_path / title, blocks=2, texts=2, length=20)
    (found,) = answers_of(COMPARE, *(tmp_path / title for title in PAIRS))
    for title, own in zip(PAIRS, found, strict=True):
        with subtests.test(title):
            are_the_same(own)


@pytest.mark.nightly
def test_one_block_is_there_at_a_time(answers: list[Any]) -> None:
    """Of three of each model, one that is loaded while another one leaves would be two."""
    # Two whole and two half matrices of the attention, three of the MLP, and two norms.
    block, heads = 4 * (3 * WIDE**2 + 3 * 4 * WIDE**2 + 2 * WIDE), 2 * 4 * lm.VOCABULARY * WIDE
    most, left = answers[0]
    assert block < most < 1.2 * block + heads and left < 0.01 * block


def test_devices_that_cannot_be_used_are_refused_before_weights_are_read(tmp_path: Path) -> None:
    for name in ("none", "nor"):
        (tmp_path / name).mkdir()
    for device in ("cuda:77", "nonsense", "meta"):
        with pytest.raises(QuantmedicError, match="torch cannot use this device") as caught:
            quantmedic.diagnose(tmp_path / "none", tmp_path / "nor", tokens=[[1, 2]], device=device)
        assert device in str(caught.value) and f"it sees {', '.join(devices_here())}" in str(caught.value)
    with pytest.raises(QuantmedicError, match="a device runs language models"):
        quantmedic.diagnose(tmp_path, tmp_path, device="cpu", weights_only=True)


def test_the_processor_by_name_is_the_processor(tmp_path: Path) -> None:
    floats, quantized, ids = made("one coarse block", tmp_path, blocks=2)
    plain, named = (quantmedic.collect(floats, quantized, tokens=ids, device=device).record for device in (None, "cpu"))
    assert named.model == plain.model and named.notices == plain.notices
    assert (plain.run.get("device"), named.run["device"]) == (None, "cpu")


def test_memory_that_does_not_suffice_is_said_and_work_is_kept(tmp_path: Path) -> None:
    floats, quantized, ids = made("one coarse block", tmp_path)

    def run_out(what: str, done: int, total: int) -> None:
        if done == 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    with pytest.raises(QuantmedicError, match="the memory of the device does not suffice") as caught:
        run_language_models((floats, quantized), TextRun(ids, unfinished=tmp_path / "work", progress=run_out))
    assert "Tried to allocate 2.00 GiB" in str(caught.value)
    assert len(json.loads((tmp_path / "work" / "done.json").read_text())["done"]["blocks"]) == 2


#: Settings of the products of float32 numbers, as users make them: by the older functions and by the newer ones.
SETTINGS = """
import torch
from quantmedic.collectors.from_torch import devices

def told(read):
    try:
        return read()
    except RuntimeError:
        return None

def state():
    newer = [part.fp32_precision for part in devices._multipliers()]
    return newer, told(torch.get_float32_matmul_precision), told(lambda: torch.backends.cudnn.allow_tf32)

def stays():
    before = state()
    with devices.exact_products():
        newer, matmul, convolutions = state()
        assert set(newer) <= {"ieee"} and matmul == "highest" and convolutions is False, state()
    assert state()[:2] == before[:2], (before, state())

stays()
for precision in ("medium", "high", "highest"):
    torch.set_float32_matmul_precision(precision)
    stays()
if devices._multipliers():
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    stays()
"""


@pytest.mark.nightly
def test_float32_numbers_are_multiplied_with_all_bits_and_settings_put_back() -> None:
    done = subprocess.run([sys.executable, "-c", SETTINGS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_setting_of_fewer_bits_changes_no_result(tmp_path: Path) -> None:
    floats, quantized, ids = made("one coarse block", tmp_path, blocks=2)
    wanted = run_language_models((floats, quantized), TextRun(ids))
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")  # bfloat16 in between, where the processor has it
        assert run_language_models((floats, quantized), TextRun(ids)) == wanted
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA here")
def test_cuda_says_what_the_processor_says(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for title, (_, asked) in PAIRS.items():
        with subtests.test(title):
            floats, quantized, ids = made(title, tmp_path / title, length=64)
            plain, found = (
                quantmedic.collect(floats, quantized, tokens=ids, device=device).record for device in ("cpu", "cuda")
            )
            # Activations that lie between two codes may fall on either side, by the last digit.
            assert_near(plain, found, 0.02 if asked is not None else 1e-3)
            assert any("both models were run on cuda" in notice for notice in found.notices)


def assert_near(plain: Any, found: Any, loose: float) -> None:
    for name in ("float_value", "quantized_value"):
        assert getattr(found.model.metric, name) == pytest.approx(getattr(plain.model.metric, name), rel=1e-4), name
    for name in ("kl_mean", "kl_tail", "delta_p", "worst_block_gain", "kl_float_activations", "kl_float_cache"):
        wanted = getattr(plain.model.language, name)
        if wanted is not None:
            assert getattr(found.model.language, name) == pytest.approx(wanted, rel=loose), name
    for own, other in zip(found.model.language.blocks, plain.model.language.blocks, strict=True):
        assert own.noise == pytest.approx(other.noise, rel=loose)
