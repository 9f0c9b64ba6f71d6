"""What must hold of a folder whenever the command that wrote to it ended, and however."""

import re
import zipfile
from collections.abc import Mapping
from pathlib import Path

import onnx

import quantmedic
from faults.scenes import OUT, Scene
from faults.strike import HANGS, SIGNALS, Ended
from quantmedic.engine.file_sets import READY, settle_files

#: Name of the file with which Python's ``tempfile`` tries a folder.
PROBE = re.compile(r"[a-z0-9_]{8}")
#: How the folder ends in which work on language models goes on; a run that goes on leaves none.
UNFINISHED = ".unfinished.run"
Files = Mapping[str, bytes]
#: Exit codes of a command that did what it was asked for; `check` has verdicts.
DONE = (0, 1, 3, 4)


def broken(scene: Scene, folder: Path, ended: Ended, blow: str, old: Files, new: Files) -> list[str]:
    """The invariants that do not hold, in words."""
    found = [*_of_end(ended, blow), *_of_places(folder, ended)]
    if scene.case is not None and (folder / scene.case).exists():
        found += _of_case(folder / scene.case)
    if scene.report is not None:
        found += _of_report(folder / scene.report, scene.steady, old, new)
    if scene.model is not None and (folder / scene.model).exists():
        found += _of_model(folder / scene.model)
    return found


def _of_end(ended: Ended, blow: str) -> list[str]:
    """It ends by the signal, or as if nothing had been, or with a sentence."""
    if ended.status == HANGS:
        return [f"it hangs after {blow}"]
    allowed = {*DONE}
    if ended.struck and blow in SIGNALS:
        allowed |= {-9} if blow == "kill" else {128 + SIGNALS[blow]}
    if blow in ("full", "vanish", "short"):
        allowed |= {2}
    words = [] if ended.status in allowed else [f"exit status {ended.status}: {ended.said[-300:]}"]
    if "Traceback" in ended.said or "internal error" in ended.said:
        words.append(f"not one sentence: {ended.said[-600:]}")
    if ended.status == 2 and "error:" not in ended.said:
        words.append(f"exit 2 without a word: {ended.said[-300:]}")
    return words + [f"process {number} is left" for number in ended.left]


def _of_places(folder: Path, ended: Ended) -> list[str]:
    """Nothing is written outside the output folder but a case that is named; temporary files only a kill leaves."""
    names = {path.name for path in folder.iterdir() if not path.is_symlink()}
    words = [f"{name} was written" for name in sorted(names - {OUT, "tmp", "said", "val.npz", "demo-val.npz"})]
    if ended.status == -9:
        return words
    kept = [path for path in (folder / "tmp").glob("*.case") if str(path) in ended.said]
    words += [word for path in kept for word in _of_case(path)]
    scraps = [*(folder / "tmp").iterdir(), *(folder / OUT).rglob(".quantmedic-*")]
    scraps = [path for path in scraps if path not in kept and not is_of_others(path)]
    return words + [f"the scrap {path.relative_to(folder)} was left" for path in scraps]


def is_of_others(path: Path) -> bool:
    """Python tries a temporary folder with a file that a blow can leave; torch makes an empty folder there."""
    if path.name.startswith("torchinductor_"):
        return path.is_dir() and not any(path.iterdir())
    return bool(PROBE.fullmatch(path.name)) and path.is_file() and path.read_bytes() in (b"", b"blat")


def _of_case(path: Path) -> list[str]:
    try:
        quantmedic.judge(quantmedic.load_case(path))
    except Exception as error:
        return [f"the case cannot be judged: {error}"]
    return []


def _of_report(report: Path, steady: bool, old: Files, new: Files) -> list[str]:
    """All old or all new, once what was declared is in its place."""
    if not report.exists():
        return ["the old report is gone"] if old else []
    settle_files(report)
    found = report_files(report)
    if found == old or (steady and found == new):
        return []
    if not found and not old:
        return []
    differing = [name for name in {*found, *old, *new} if found.get(name) not in (old.get(name), new.get(name))]
    if steady:
        return [f"the report is mixed: {differing[:3] or 'files of both'}"]
    if found.get("report.json") == old.get("report.json"):
        return ["the report is mixed: report.json is old, other files are new"]
    return []


def report_files(report: Path) -> dict[str, bytes]:
    """The files of a report, without the case."""
    return {
        str(path.relative_to(report)): path.read_bytes()
        for path in report.rglob("*")
        if path.is_file() and path.name != "quantmedic.case" and not _is_temporary(path.relative_to(report))
    }


def is_mixed(report: Path) -> bool:
    """Files wait to be moved into their places: until the next command, old and new stand side by side."""
    return (report / READY).exists()


def _is_temporary(path: Path) -> bool:
    return any(part.startswith(".quantmedic-") or part.endswith(UNFINISHED) for part in path.parts)


def _of_model(path: Path) -> list[str]:
    try:
        onnx.checker.check_model(str(path))
    except Exception as error:
        return [f"the model is damaged: {error}"]
    return []


def case_content(path: Path) -> dict[str, bytes]:
    """Everything in a case file: its record and every bit of its arrays."""
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}
