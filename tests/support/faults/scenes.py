"""The commands that are struck, and the folders that they begin with."""

import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from builders import checkpoints
from builders.onnx_models import conv_net, images, qdq, save_pair
from numpy.typing import NDArray

from quantmedic.cli.main import cli
from quantmedic.collectors.data.preprocessing import Preprocessing
from quantmedic.collectors.measure import collect_pair
from quantmedic.demo import patient

#: Where a command writes, within its folder; everything else there is read.
OUT = "out"
CASE, REPORT = f"{OUT}/c.case", f"{OUT}/report"


@dataclass(frozen=True)
class Scene:
    """One command.

    Attributes:
        words: Its arguments, run in the folder of the scene.
        begins: Makes what stands in ``out`` before.
        case: The case that it writes.
        goes_on: With these arguments more, the same command goes on where a blow ended it; None where it begins anew.
        report: The report that it writes; ``steady`` ones are the same after every run.
        steady: See there.
        model: The model that it writes.
    """

    words: Sequence[str]
    begins: Callable[[Path], None] = lambda folder: None
    case: str | None = None
    goes_on: Sequence[str] | None = None
    report: str | None = None
    steady: bool = True
    model: str | None = None


PAIR = ("float.onnx", "int8.onnx", "-v", "val.npz", "--batch-size", "4", "--threads", "1")
RESUME = ("--resume",)
WELL = ("--no-attribution", "--no-prove")
DEMO = ("demo-float.onnx", "demo-int8.onnx", "-r", "demo-rep.npz", "-v", "demo-val.npz", "--samples", "48")


def _old_report(folder: Path) -> None:
    shutil.copytree(folder / "old", folder / REPORT, ignore=shutil.ignore_patterns("*.case"))  # of other options


SCENES = {
    "collect": Scene(("collect", *PAIR, "--no-attribution", "-o", CASE), case=CASE, goes_on=RESUME),
    "collect fast": Scene(("collect", *PAIR, "--mode", "fast", "-o", CASE), case=CASE, goes_on=RESUME),
    "diagnose": Scene(
        ("diagnose", *PAIR, *WELL, "-o", REPORT),
        _old_report,
        case=f"{REPORT}/quantmedic.case",
        goes_on=RESUME,
        report=REPORT,
    ),
    "language model": Scene(
        ("diagnose", "lm", "lm4", "--tokens", "t.jsonl", "--threads", "1", "-o", REPORT),
        _old_report,
        case=f"{REPORT}/quantmedic.case",
        goes_on=(),
        report=REPORT,
    ),
    "report": Scene(("diagnose", "new.case", "-o", REPORT), _old_report, report=REPORT),
    "check": Scene(("check", "new.case", "-o", REPORT), _old_report, report=REPORT),
    "prove": Scene(
        ("diagnose", *DEMO, "--budget", "3", "-o", REPORT),
        _old_report,
        case=f"{REPORT}/quantmedic.case",
        report=REPORT,
        steady=False,
    ),
    "fix": Scene(
        ("fix", *DEMO, "--budget", "3", "-o", f"{OUT}/fixed.onnx", "--report", f"{OUT}/both"),
        model=f"{OUT}/fixed.onnx",
        report=f"{OUT}/both/before",
        steady=False,
    ),
}


def prepare(folder: Path) -> None:
    """Make what all scenes read, in this process: forks of it find everything loaded and compiled."""
    collect_pair.CHECKPOINT_SECONDS = 0.0
    folder.mkdir(parents=True, exist_ok=True)
    x = images(48)
    model = conv_net()
    for path, name in zip(save_pair(folder, model, qdq(model, {"image": x * np.float32(0.8)})), PAIR, strict=False):
        path.rename(folder / name)
    np.savez(folder / "val.npz", image=x, labels=np.arange(48) % 5)
    (paths, data) = patient()
    for path, name in zip(paths, ("demo-float.onnx", "demo-int8.onnx"), strict=True):
        shutil.copy(path, folder / name)
    for role, name in (("representative", "demo-rep.npz"), ("validation", "demo-val.npz")):
        np.savez(folder / name, **_prepared(data[role], data["preprocessing"][role]))
    _write_language_models(folder)
    before = Path.cwd()
    os.chdir(folder)
    try:
        run(("collect", *PAIR, "--samples", "20", "-o", "old.case"))
        run(("collect", *PAIR, "-o", "new.case"))
        run(("diagnose", "old.case", "-o", "old"))
    finally:
        os.chdir(before)


def _write_language_models(folder: Path) -> None:
    tensors = checkpoints.language_model()
    sizes = {"hidden_size": checkpoints.HIDDEN, "intermediate_size": checkpoints.INNER, "num_attention_heads": 4}
    sizes |= {"vocab_size": checkpoints.VOCABULARY, "num_hidden_layers": 3, "num_key_value_heads": 4}
    checkpoints.write_folder(folder / "lm", tensors, sizes)
    quantized = checkpoints.quantized_model(tensors, "gptq")
    checkpoints.write_folder(folder / "lm4", quantized, sizes | checkpoints.configuration("gptq"))
    texts = np.random.default_rng(4).integers(0, checkpoints.VOCABULARY, (12, 48))
    (folder / "t.jsonl").write_text("".join(f"{text.tolist()}\n" for text in texts))


def _prepared(path: Path, declared: Preprocessing) -> dict[str, NDArray[np.generic]]:
    """The stored samples of the demonstration as its network wants them."""
    with np.load(path) as stored:
        found = {name: stored[name] for name in stored.files}
    scaled = found["image"].astype(np.float32) / np.float32(declared.scale or 1)
    found["image"] = (scaled - np.float32((declared.mean or (0,))[0])) / np.float32((declared.std or (1,))[0])
    return found


def run(words: Sequence[str]) -> None:
    """Run a command in this process."""
    with open(os.devnull, "w") as void, redirect_stdout(void), redirect_stderr(void), suppress(SystemExit):
        cli.main(args=list(words), prog_name="quantmedic", standalone_mode=False)


def begin(scene: Scene, shared: Path, folder: Path) -> None:
    """A folder with links to what is read, and ``out`` as it is before the command."""
    shutil.rmtree(folder, ignore_errors=True)
    (folder / OUT).mkdir(parents=True)
    (folder / "tmp").mkdir()
    for path in shared.iterdir():
        (folder / path.name).symlink_to(path)
    scene.begins(folder)
