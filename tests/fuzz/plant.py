"""What others put into folders that are read and written: rests of earlier runs, unfinished work, links."""

import json
import os
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from mutate_text import STRINGS, times
from mutate_trees import mutate_json

#: Changes the current folder, in which the words of a command will be run.
Plant = Callable[[Sequence[str], random.Random], None]
_VICTIMS = Path("victims")
_READY = ".quantmedic-ready"
#: What commands write into the folder of a report, and beside it.
_OF_REPORTS = (
    *(
        "index.html",
        "report.json",
        "graphs",
        "graphs/mse-validation.svg",
        "manual",
        "manual/W001.html",
        "manual/general",
    ),
    *("quantmedic.case", "quantmedic.unfinished.case", "quantmedic.unfinished.run", "before", "before/index.html"),
    *("after", "after/quantmedic.case", "try", "try/float.onnx", "prescription.py", "check.md", "sensitivity.json"),
    *(_READY, f"{_READY}/new", f"{_READY}/stale.json", "comparison.html"),
)
_OF_WORK = (
    "done.json",
    "float-0.f32",
    "float-1.f32",
    "quantized-0.f32",
    "noisiest.f32",
    "trial-0.f32",
    "routes.f32",
)


def plant_links(words: Sequence[str], rng: random.Random) -> None:
    """Links in place of what a command reads, of what it writes, and of folders on the way there."""
    _make_victims()
    read = [path for path in sorted(Path().rglob("*")) if path.parts[0] not in ("out", "victims")]
    for _ in times(rng):
        _link(rng.choice(_written(words) if rng.random() < 0.6 or not read else read), rng)
    for path in map(Path, words):
        if path.is_symlink() and path.is_dir() and path.parts[0] == "out":
            path.unlink()  # where the folder that the user names leads is the user's own business


def plant_rest(words: Sequence[str], rng: random.Random) -> None:
    """Files that an earlier run seems to have declared, in one of the folders that are written to."""
    _make_victims()
    ready = rng.choice(_folders(words)) / _READY
    (ready / "new").mkdir(parents=True)
    names = [
        *_OF_REPORTS,
        "../victims/file",
        "../../victims/inner/file",
        str(Path("victims/file").absolute()),
        *(text for text in STRINGS if "/" not in text),  # where this fails, only what is planted may be lost
    ]
    for name in rng.sample(_OF_REPORTS[:7], rng.randrange(3)):
        path = ready / "new" / name
        if not os.path.lexists(path.parent) or path.parent.is_dir():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("planted") if not path.exists() else None
    stale = json.dumps(rng.sample(names, rng.randrange(4))).encode()
    if rng.random() < 0.8:
        (ready / "stale.json").write_bytes(mutate_json(stale, rng) if rng.random() < 0.5 else stale)
    ready.chmod(rng.choice((0o700, 0o700, 0o755, 0o777)))
    if rng.random() < 0.4:
        _link(
            rng.choice([ready, ready / "stale.json", *(ready / "new" / name for name in ("", *_OF_REPORTS[:7]))]), rng
        )


def plant_work(words: Sequence[str], rng: random.Random) -> None:
    """A folder of unfinished work that no run has left, or one that links lead out of."""
    _make_victims()
    folder = rng.choice(_folders(words)[:1]) / "quantmedic.unfinished.run"
    folder.mkdir(parents=True)
    for name in rng.sample(_OF_WORK, rng.randrange(5)):
        (folder / name).write_bytes(rng.randbytes(rng.choice((0, 3, 6 * 64 * 4))))
    done = b'{"plan": {"files": {}, "texts": "", "devices": "cpu"}, "done": {"blocks": [1], "scores": {}}}'
    if rng.random() < 0.7:
        (folder / "done.json").write_bytes(mutate_json(done, rng) if rng.random() < 0.7 else done)
    if rng.random() < 0.2:
        (folder / "thesis.txt").write_text("mine")
    folder.chmod(rng.choice((0o700, 0o700, 0o700, 0o755, 0o775)))
    if rng.random() < 0.5:
        _link(folder / rng.choice(("", *_OF_WORK)), rng)


def _make_victims() -> None:
    """Files that no command has been told of; the judge looks at what becomes of them."""
    for name in ("file", "done.json", "inner/file", "inner/report.json", "inner/index.html"):
        (_VICTIMS / name).parent.mkdir(parents=True, exist_ok=True)
        (_VICTIMS / name).write_text("mine")


def _folders(words: Sequence[str]) -> list[Path]:
    """Folders that are written to: that of the option first."""
    named = [Path(word) for word in words if word.startswith("out/")]
    return list(dict.fromkeys([*(path if not path.suffix else path.parent for path in named), Path("out")]))


def _written(words: Sequence[str]) -> list[Path]:
    files = [Path(word) for word in words if word.startswith("out/")]
    beside = [path.with_suffix(ending) for path in files for ending in (".unfinished.case", ".unfinished.run", ".bin")]
    inside = [folder / name for folder in _folders(words) for name in _OF_REPORTS]
    return [*files, *files, *files, *beside, *(Path(f"{path}-journal") for path in files), *inside]


def _link(path: Path, rng: random.Random) -> None:
    """Put a link, or what is no regular file, in the place of what is there; a sound link leads to that."""
    if any(place.is_symlink() for place in path.parents) or not all(p.is_dir() for p in path.parents if p.exists()):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    before = _VICTIMS / f"before-{rng.randrange(10**9)}"
    if os.path.lexists(path):
        shutil.move(path, before)
    inner = _VICTIMS.absolute()
    sort = rng.randrange(10)
    if sort == 0 and before.is_file():
        os.link(before, path)
    elif sort == 1:
        os.mkfifo(path)
    elif sort == 2 and before.exists():
        path.mkdir()
    else:
        targets = [inner / "file", inner, inner / "inner", inner / "nothing", path.absolute(), Path(path.name)]
        targets += [before.absolute()] * 3 if before.exists() else []
        targets += [
            Path(os.path.relpath(inner / "file", path.parent)),
            Path("/dev/zero"),
            Path("/dev/full"),
            Path(".."),
        ]
        path.symlink_to(rng.choice(targets))
