"""Offline means offline: OpenVINO and the libraries of language models under a guard that refuses every socket."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from builders import checkpoints as made
from builders.guard import guard_variables

from quantmedic.api.rulebase import load_rulebase
from quantmedic.engine.offline import offline

#: Variables that switch telemetry off, or lead elsewhere than to the home.
_SET = ("CI", "TF_BUILD", "JENKINS_URL", "DO_NOT_TRACK", "HF_HOME", "XDG_CACHE_HOME", "NUMBA_CACHE_DIR")
#: What a hostile config.json names; the packages of none of these are installed.
_NAMED = {
    "attn_implementation": "kernels-community/flash-attn3",
    "_attn_implementation": "kernels-community/flash-attn3",
    "experts_implementation": "org/experts",
    "quantization_config": {"quant_method": "fbgemm_fp8", "kernels": "org/kernels"},
    "device_map": {"": "disk"},
    "tokenizer_class": "mine.Tokenizer",
    "name_or_path": "org/name",
    "rope_file": "/etc/passwd",
}


def ask(folder: Path, *words: object) -> tuple["subprocess.CompletedProcess[str]", Sequence[str]]:
    """Run Python in a fresh home without sockets; returns what came, and every socket and file that it should not."""
    home, notes = folder / "home", folder / "notes"
    home.mkdir(parents=True)
    notes.touch()
    kept = {name: value for name, value in os.environ.items() if name not in _SET}
    own = {"HOME": str(home), "QUANTMEDIC_NO_PROVE": "1", **guard_variables(notes, Path("/"))}
    done = subprocess.run(
        [sys.executable, *map(str, words)], cwd=folder, env=kept | own, capture_output=True, text=True, check=False
    )
    stray = [str(file) for file in home.rglob("*") if file.is_file() and ".cache/quantmedic" not in str(file)]
    return done, [*stray, *notes.read_text().splitlines()]


@pytest.mark.nightly
def test_openvino_sends_and_keeps_nothing(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    pytest.importorskip("openvino_telemetry")
    from builders.openvino_models import images, save_openvino_pair  # slow to import

    _, seen = ask(tmp_path / "itself", "-c", "import openvino, time; time.sleep(3)")
    assert seen, "the guard sees what OpenVINO does by itself"
    pair = save_openvino_pair(tmp_path)
    np.savez(tmp_path / "x.npz", image=images(2))
    words = (
        "-m",
        "quantmedic",
        "collect",
        *pair,
        "-v",
        tmp_path / "x.npz",
        "-o",
        tmp_path / "x.case",
        "--threads",
        "1",
    )
    done, seen = ask(tmp_path / "ours", *words)
    assert done.returncode == 0, done.stderr
    assert not seen


@pytest.mark.nightly
def test_what_a_configuration_names_is_neither_asked_for_nor_used(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    tensors = made.language_model(layers=1)
    sizes = {"hidden_size": made.HIDDEN, "intermediate_size": made.INNER, "vocab_size": made.VOCABULARY}
    sizes |= {"num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 4}
    quantized = made.quantized_model(tensors, "gptq")
    made.write_folder(tmp_path / "int4", quantized, sizes | made.configuration("gptq"), shards=1)
    np.save(tmp_path / "ids.npy", np.arange(5, 45).reshape(2, 20))
    found = []
    for name, config in (("plain", sizes), ("naming", sizes | _NAMED)):
        made.write_folder(tmp_path / name, tensors, config, shards=1)
        words = ("-m", "quantmedic", "diagnose", tmp_path / name, tmp_path / "int4", "--tokens", tmp_path / "ids.npy")
        done, seen = ask(tmp_path / f"{name}-run", *words, "-o", tmp_path / f"{name}-out", "--format", "json")
        assert done.returncode == 0, done.stderr
        assert not seen
        found.append(json.loads((tmp_path / f"{name}-out/report.json").read_text())["model"]["language"])
    assert found[0] == found[1]


def test_printed_scripts_load_folders_alone() -> None:
    """A folder that is missing is else taken for a repository of that name."""
    texts = json.dumps([toolchain.model_dump() for toolchain in load_rulebase().toolchains], default=str)
    loads = re.findall(r"[A-Z]\w+\.(?:from_pretrained|load)\(.*?\\n", texts)
    assert len(loads) > 2
    assert not [line for line in loads if "local_files_only=True" not in line and "resolve(strict=True)" not in line]


def test_what_the_user_has_set_holds_again() -> None:
    constants = pytest.importorskip("huggingface_hub.constants")
    before = constants.HF_HUB_OFFLINE
    with offline(), offline():
        assert constants.is_offline_mode() and constants.HF_HUB_DISABLE_TELEMETRY
    assert before == constants.HF_HUB_OFFLINE
