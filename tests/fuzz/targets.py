"""The table of what is tried: for each format its input, which file of that is changed and how, and what reads it."""

import contextlib
import io
import random
import shlex
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import mutate_files as files
import mutate_models as models
from mutate_options import mutate_words, write_module
from mutate_text import Mutator, mutate_bytes, mutate_lines
from mutate_trees import mutate_json, mutate_toml, mutate_yaml
from seeds import Seeds

from quantmedic.cli.main import main

Files = Mapping[str, str]


@dataclass(frozen=True)
class Target:
    """``files``: name in the folder of the case and the seed that it is; ``changed``: the one that is hostile.

    ``weight``: how often it is tried. Without ``changed`` the words of the command are hostile.
    """

    format: str
    weight: float
    files: Files
    changed: str
    mutate: Mutator
    commands: Sequence[str]


_COLLECT = "collect float.onnx int8.onnx --threads 1 --no-attribution -o out/x.case -v "
_WHOLE = ("collect float.onnx int8.onnx -r x.npz -v x.npz --threads 1 -o out/x.case",)
_STATIC = ("check float.onnx int8.onnx --static --threads 1",)
_LITE = ("collect float.tflite int8.tflite -v x.npz --threads 1 --no-attribution -o out/x.case",)
_CHECK = ("check x.case",)
_SHOW = ("show x.case", "show x.case --table all", "show x.case --loss-budget", "compare x.case good.case")
_RULES = ("rules lint rules", "rules test rules")
_WORDS = (*_WHOLE, *_CHECK, *_SHOW[:1], *_SHOW[3:], "rules", "explain D005", "baseline write x.case -o out/b.json")
_PAIR = {"float.onnx": "float.onnx", "int8.onnx": "qdq.onnx", "x.npz": "x.npz"}
_TFLITE = {"float.tflite": "float.tflite", "int8.tflite": "int8.tflite", "x.npz": "lite.npz"}
_CASE = {"x.case": "x.case", "good.case": "x.case"}
_OWN_RULES = {"rules/U001.yaml": "rule.yaml", "rules/U001.md": "rule.md", "x.case": "x.case"}
_HISTORY = {"out/h.db": "h.db", "x.case": "x.case"}
_IMAGES = {"d/a.png": "a.png", "d/b.jpeg": "a.jpeg"}


def make_targets(seeds: Seeds) -> list[Target]:
    """All rows; importers, logs and checkpoints have one for each of their seeds."""
    policy = (*_CHECK, "check x.case --strict", "baseline write x.case -o out/b.json")
    outputs = tuple(f"{_COLLECT}x.npz --{side}-outputs o.npz" for side in ("reference", "device"))
    pictures = (f"{_COLLECT}d --scale 255", f"{_COLLECT}d --resize 4,4 --scale 255")
    functions = (f"{_COLLECT}mine:data --metric mae", f"{_COLLECT}x.npz --labels labels.npy --metric mine:metric")
    onnx, zips = models.mutate_onnx, files.mutate_zip
    return [
        *(Target("ONNX", 2.5, _PAIR | {"int8.onnx": q}, "int8.onnx", onnx, _WHOLE) for q in _QUANTIZED),
        *(Target("ONNX", 1, _PAIR | {"int8.onnx": q}, "int8.onnx", onnx, _STATIC) for q in _QUANTIZED),
        Target("ONNX", 2.5, _PAIR, "float.onnx", onnx, _WHOLE),
        *(Target("LiteRT", 2, _TFLITE, name, models.mutate_litert, _LITE) for name in list(_TFLITE)[:2]),
        Target("npz", 5, _PAIR, "x.npz", zips, (f"{_COLLECT}x.npz", f"{_COLLECT}x.npz -r x.npz --layout NHWC")),
        Target("npz", 1, _PAIR | {"o.npz": "outputs.npz"}, "o.npz", zips, outputs),
        *_labels(),
        Target("images", 1, _PAIR | _IMAGES, "d/a.png", files.mutate_png, pictures),
        Target("images", 1, _PAIR | _IMAGES, "d/b.jpeg", mutate_bytes, pictures),
        Target("case", 9, _CASE, "x.case", zips, (*_SHOW, *_CHECK)),
        Target("case", 0.7, _CASE, "x.case", zips, ("report x.case -o out/r --format json",)),
        Target("rules", 1.5, _OWN_RULES, "rules/U001.yaml", mutate_yaml, (*_RULES, "show x.case --rules rules")),
        Target("rules", 0.4, _OWN_RULES, "rules/U001.md", mutate_lines, _RULES),
        Target(
            "thresholds",
            4,
            _CASE | {"t.yaml": "thresholds.yaml"},
            "t.yaml",
            mutate_yaml,
            ("show x.case --thresholds t.yaml",),
        ),
        Target("policy", 5, _CASE | {"quantmedic.toml": "policy.toml"}, "quantmedic.toml", mutate_toml, policy),
        Target("policy", 2, _CASE | {"pyproject.toml": "project.toml"}, "pyproject.toml", mutate_toml, policy),
        Target("baseline", 5, _CASE | {"b.json": "b.json"}, "b.json", mutate_json, ("check x.case --baseline b.json",)),
        Target(
            "history", 5, _HISTORY, "out/h.db", files.mutate_sqlite, ("trend out/h.db", "trend out/h.db --format json")
        ),
        Target("history", 1, _HISTORY, "out/h.db", files.mutate_sqlite, ("check x.case --record out/h.db",)),
        *_checkpoints(seeds),
        *_importers(seeds),
        *_logs(seeds),
        Target(
            "module:function",
            4,
            _PAIR | {"mine.py": "x.npz", "labels.npy": "labels.npy"},
            "mine.py",
            write_module,
            functions,
        ),
        Target("options", 8, _PAIR | _CASE, "", mutate_bytes, _WORDS),
    ]


_QUANTIZED = ("qdq.onnx", "wide.onnx", "qop.onnx")


def _labels() -> Iterator[Target]:
    for name, mutate in (("labels.npy", files.mutate_npy), ("labels.txt", mutate_lines), ("labels.csv", mutate_lines)):
        yield Target("labels", 1, _PAIR | {name: name}, name, mutate, (f"{_COLLECT}x.npz --labels {name}",))


def _logs(seeds: Seeds) -> Iterator[Target]:
    commands = ("diagnose float.onnx --log x.log -o out/r --format json", f"{_COLLECT}x.npz --log x.log")
    for name in (name for name in seeds if name.endswith(".log") and "/" not in name):
        yield Target("logs", 0.1, _PAIR | {"x.log": name}, "x.log", mutate_lines, commands)


def _checkpoints(seeds: Seeds) -> Iterator[Target]:
    for kind in ("gptq", "awq", "compressed"):
        own = {name: name for name in seeds if name.startswith((f"{kind}/", "float/"))}
        for changed in (name for name in own if name.startswith(kind) or kind == "gptq"):
            mutate = mutate_json if changed.endswith("json") else files.mutate_safetensors
            command = f"weights float {kind} --threads 1 -o out/r --format json"
            yield Target("safetensors", 0.5, own, changed, mutate, (command,))


def _importers(seeds: Seeds) -> Iterator[Target]:
    for name in (name for name in seeds if name.startswith("settings/")):
        last = name.rpartition("/")[2]
        mutate = _mutator_of(last, seeds[name])
        yield Target("importers", 0.8, {last: name}, last, mutate, (f"import {last} -o out/x.case",))


def _mutator_of(name: str, content: bytes) -> Mutator:
    if name.endswith(".pkl"):
        return files.mutate_pickle
    if name.endswith(".yaml"):
        return mutate_yaml
    if content.lstrip()[:1] in (b"{", b"["):
        return mutate_json
    return mutate_bytes if b"\x00" in content else mutate_lines


def prepare(target: Target, seeds: Seeds, rng: random.Random) -> list[str]:
    """Write the input of a case into the current folder; returns the command's words."""
    _write_all(target.files, seeds)
    words = shlex.split(rng.choice(target.commands))
    if not target.changed:
        return mutate_words(words, rng)
    Path(target.changed).write_bytes(target.mutate(seeds[target.files[target.changed]], rng))
    return words


def refused_seeds(rows: Sequence[Target], seeds: Seeds) -> list[str]:
    """Run every command on what is sound. What it loads and compiles, every fork has then; what it refuses is told."""
    found = []
    for target in (row for row in rows if row.mutate is not write_module):
        for command in target.commands:
            with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
                _write_all(target.files, seeds)
                code, said = _call(command)
            if code == 2:
                found.append(f"{command}, {dict(target.files)}\n{said}")
    return found


def own_seeds(seeds: Seeds) -> Seeds:
    """A case, a baseline and a history, as quantmedic writes them."""
    commands = (*_WHOLE, "baseline write out/x.case -o out/b.json", *["check out/x.case --record out/h.db"] * 3)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        _write_all(_PAIR, seeds)
        for command in commands:
            _call(command)
        return {name: Path("out", name).read_bytes() for name in ("x.case", "b.json", "h.db")}


def _call(command: str) -> tuple[object, str]:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(out):
        try:
            main(shlex.split(command))
        except SystemExit as end:
            return end.code, out.getvalue()


def _write_all(own: Files, seeds: Seeds) -> None:
    Path("out").mkdir()
    for name, seed in own.items():
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(seeds[seed])
