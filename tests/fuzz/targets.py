"""The table of what is tried: for each format its input, which file of that is changed and how, and what reads it."""

from collections.abc import Iterator

import mutate_files as files
import mutate_models as models
import plant
from mutate_language import mutate_config, mutate_tokenizer
from mutate_options import write_module
from mutate_text import Mutator, mutate_bytes, mutate_lines
from mutate_torch import write_torch
from mutate_trees import mutate_json, mutate_toml, mutate_yaml
from seeds import Seeds
from target import Files, Target

_ONE = "--threads 1"
_BOTH = f"float.onnx int8.onnx {_ONE}"
_COLLECT = f"collect {_BOTH} --no-attribution -o out/x.case -v "
_WHOLE = (f"collect {_BOTH} -r x.npz -v x.npz -o out/x.case",)
_STATIC = (f"check {_BOTH} --static",)
_LITE = (f"collect float.tflite int8.tflite -v x.npz {_ONE} --no-attribution -o out/x.case",)
_IR = (f"collect float.xml int8.xml -v x.npz {_ONE} --no-attribution -o out/x.case",)
_CHECK = ("check x.case",)
_RECORD = f"collect {_BOTH} -v x.npz --outputs-only out/recorded.npz"
_SHOW = ("show x.case", "show x.case --table all", "show x.case --table loss-budget", "compare x.case good.case")
_RULES = ("explain --test-rules rules",)
_JSON = "-o out/r --format json"
#: Searches and repairs: each measures the pair, and then it or copies of it again and again.
_SEARCHES = (
    f"search sensitivity {_BOTH} -v x.npz -o out/r",
    f"search fallback {_BOTH} -v x.npz --min-sqnr 30",
    f"search fallback {_BOTH} -v x.npz --labels labels.npy --max-drop 1",
    f"search debugger {_BOTH} -v x.npz --denylist suspected,first -o out/p",
    f"fix {_BOTH} -r x.npz -v x.npz -o out/fixed.onnx --report out/r",
    f"diagnose {_BOTH} -r x.npz -v x.npz --prove --write-fixed out/fixed.onnx {_JSON}",
    f"check {_BOTH} -r x.npz -v x.npz {_JSON}",
    f"{_COLLECT}x.npz --memory 200MB --step-error",
    _RECORD,
)
_CALIBRATIONS = f"search calibrations float.onnx -r x.npz -v x.npz {_ONE} --methods min-max"
_LITE_SEARCHES = (
    f"search sensitivity float.tflite int8.tflite -v x.npz {_ONE} -o out/r",
    f"search fallback float.tflite int8.tflite -v x.npz --min-sqnr 30 {_ONE}",
    f"search debugger float.tflite int8.tflite -v x.npz {_ONE}",
)
_TORCH = (
    f"collect mine:reference mine:quantized -v mine:data {_ONE} -o out/x.case",
    f"diagnose mine:reference mine:quantized -r mine:data -v mine:data {_ONE} --no-prove {_JSON}",
    f"search sensitivity mine:reference mine:quantized -v mine:data {_ONE} -o out/r",
    f"search fallback mine:reference mine:quantized -v mine:data --min-sqnr 30 {_ONE}",
)
_SPEAK = (f"diagnose lm lm4 --tokens t.jsonl {_ONE} {_JSON}", f"check lm lm4 --tokens t.jsonl {_ONE} {_JSON}")
#: Commands that write reports of several files.
_WRITTEN = (
    f"diagnose x.case {_JSON}",
    "diagnose x.case -o out/r",
    "compare good.case x.case -o out/r",
    f"search sensitivity {_BOTH} -v x.npz -o out/r",
    f"search fallback {_BOTH} -v x.npz --min-sqnr 30 -o out/r",
    f"search debugger {_BOTH} -v x.npz -o out/r",
    f"fix {_BOTH} -r x.npz -v x.npz -o out/fixed.onnx --report out/r",
)
#: Every command, for hostile words.
_WORDS = (
    *(*_WHOLE, *_CHECK, *_SHOW[:1], *_SHOW[3:], *_SEARCHES[:6:2], *_STATIC, _CALIBRATIONS, _RECORD),
    "explain --list rules",
    "explain --list facts conv",
    "explain --test-rules rules",
    "explain --new-rule wide-input-range -o out/n",
    "explain --list thresholds",
    "explain D005",
    "mcp --skill",
    "show --environment",
    "show x.case --anonymous out/a.case",
    "check x.case --write-baseline out/b.json",
    "import inspect_result.pkl -o out/i.case",
    f"diagnose x.case {_JSON}",
    f"diagnose float gptq --weights-only {_ONE} {_JSON}",
    f"diagnose float.onnx --log x.log {_JSON}",
    "demo --samples 8 --no-prove -o out/r",
)
_PAIR = {"float.onnx": "float.onnx", "int8.onnx": "qdq.onnx", "x.npz": "x.npz"}
_SEARCHED = {"float.onnx": "float.onnx", "int8.onnx": "clipped.onnx", "x.npz": "x.npz", "labels.npy": "labels.npy"}
_TFLITE = {"float.tflite": "float.tflite", "int8.tflite": "int8.tflite", "x.npz": "lite.npz"}
_OPENVINO = {"x.npz": "ir.npz", **{name: name for name in ("float.xml", "float.bin", "int8.xml", "int8.bin")}}
_CASE = {"x.case": "x.case", "good.case": "x.case"}
_PARTS = {"1.case": "1.case", "2.case": "2.case"}
_OWN_RULES = {"rules/U001.yaml": "rule.yaml", "rules/U001.md": "rule.md", "x.case": "x.case"}
_BOXES = {"d/a.txt": "yolo.txt", "d/b.txt": "yolo.txt"}
_IMAGES = {"d/a.png": "a.png", "d/b.jpeg": "a.jpeg"}
#: Files for every command.
_EVERYTHING = {
    **(_SEARCHED | _CASE | _OWN_RULES),
    **{"x.log": "ort-no-model.log", "inspect_result.pkl": "settings/inspect_result.pkl"},
    **{f"{kind}/model.safetensors": f"{kind}/model-00001-of-00001.safetensors" for kind in ("float", "gptq")},
    "gptq/config.json": "gptq/config.json",
}
_QUANTIZED = ("qdq.onnx", "wide.onnx", "qop.onnx")
#: Commands, each run in a folder with these files, that write the seeds of quantmedic's own formats.
OWN = (
    _PAIR,
    (
        *(*_WHOLE, "check out/x.case --write-baseline out/b.json"),
        *(f"{_COLLECT}x.npz --batch-size 2 --samples {k} -o out/{k}.case" for k in (1, 2)),
        f"{_COLLECT}x.npz -o out/begun.case",
        f"search sensitivity {_BOTH} -v x.npz -o out",
        _RECORD,
    ),
    ("x.case", "b.json", "1.case", "2.case", "begun.case", "sensitivity.json", "recorded.npz"),
)


def make_targets(seeds: Seeds) -> list[Target]:
    """All rows; importers, logs and checkpoints have one for each of their seeds."""
    own = (_folders(seeds), _models(), _data(), _cases(), _policies(), _checkpoints(seeds), _language_models(seeds))
    return [row for rows in (*own, _importers(seeds), _logs(seeds)) for row in rows]


def _models() -> Iterator[Target]:
    onnx = models.mutate_onnx
    for name in _QUANTIZED:
        yield Target("ONNX", 2.5, _PAIR | {"int8.onnx": name}, "int8.onnx", onnx, _WHOLE)
        yield Target("ONNX", 1, _PAIR | {"int8.onnx": name}, "int8.onnx", onnx, _STATIC)
    for kind in ("fp8", "int4_awq"):
        own = {"float.onnx": "modelopt-float.onnx", "int8.onnx": f"modelopt-{kind}.onnx"}
        yield Target("ONNX", 0.5, own, "int8.onnx", onnx, _STATIC)
    yield Target("ONNX", 2.5, _PAIR, "float.onnx", onnx, _WHOLE)
    staged = (f"{_COLLECT}x.npz --stage mid=mid.onnx --stage last=int8.onnx",)
    yield Target("ONNX", 0.5, _PAIR | {"mid.onnx": "float.onnx"}, "mid.onnx", onnx, staged)
    for name in list(_TFLITE)[:2]:
        yield Target("LiteRT", 2, _TFLITE, name, models.mutate_litert, _LITE)
        yield Target("searches", 0.5, _TFLITE, name, models.mutate_litert, _LITE_SEARCHES)
    for name, mutate in (("float.xml", models.mutate_ir), ("int8.xml", models.mutate_ir), ("int8.bin", mutate_bytes)):
        yield Target("OpenVINO", 1, _OPENVINO, name, mutate, _IR)
    yield Target("searches", 2, _SEARCHED, "int8.onnx", onnx, _SEARCHES)
    yield Target("searches", 2, _SEARCHED, "float.onnx", onnx, (*_SEARCHES, _CALIBRATIONS))
    yield Target("searches", 1, _SEARCHED, "x.npz", files.mutate_zip, (*_SEARCHES, _CALIBRATIONS))
    yield Target("torch", 4, {"mine.py": "pair.py"}, "mine.py", write_torch, _TORCH)


def _data() -> Iterator[Target]:
    zips = files.mutate_zip
    yield Target("npz", 5, _PAIR, "x.npz", zips, (f"{_COLLECT}x.npz", f"{_COLLECT}x.npz -r x.npz -p layout=NHWC"))
    outputs = tuple(f"{_COLLECT}x.npz --{side}-outputs o.npz" for side in ("reference", "device"))
    yield Target("npz", 1, _PAIR | {"o.npz": "outputs.npz"}, "o.npz", zips, outputs)
    yield Target("npz", 0.5, _PAIR | {"o.npz": "recorded.npz"}, "o.npz", zips, outputs[1:])
    dump = f"{_COLLECT}x.npz --device-tensors"
    yield Target("dumps", 1, _PAIR | {"o.npz": "dump.npz"}, "o.npz", zips, (f"{dump} o.npz",))
    yield Target("dumps", 0.5, _PAIR | {"o.json": "dump.json"}, "o.json", mutate_json, (f"{dump} o.json",))
    samples = _PAIR | {f"d/Result_{k}/{name}": name for k in range(4) for name in ("relu.raw", "pool.npy")}
    yield Target("dumps", 1, samples, "d/Result_1/pool.npy", files.mutate_npy, (f"{dump} d",))
    yield Target("dumps", 0.5, samples, "d/Result_0/relu.raw", mutate_bytes, (f"{dump} d",))
    named = _PAIR | {"o.npz": "dump.npz", "names.json": "names.json"}
    yield Target("dumps", 0.5, named, "names.json", mutate_json, (f"{dump} o.npz --device-names names.json",))
    for name, mutate in (("labels.npy", files.mutate_npy), ("labels.txt", mutate_lines), ("labels.csv", mutate_lines)):
        yield Target("labels", 1, _PAIR | {name: name}, name, mutate, (f"{_COLLECT}x.npz --labels {name}",))
    pictures = (f"{_COLLECT}d -p scale=255", f"{_COLLECT}d -p resize=4,4 -p scale=255")
    yield Target("images", 1, _PAIR | _IMAGES, "d/a.png", files.mutate_png, pictures)
    yield Target("images", 1, _PAIR | _IMAGES, "d/b.jpeg", mutate_bytes, pictures)
    for name in ("d/a.txt", "d/b.txt"):
        yield Target("images", 1, _PAIR | _IMAGES | _BOXES, name, mutate_lines, pictures)
    functions = (
        f"{_COLLECT}mine:data --metric mae",
        f"{_COLLECT}x.npz --labels labels.npy --metric mine:metric --metric-option direction=higher",
        *(f"search debugger {_BOTH} -v x.npz --{of}-metric m=mine:number" for of in ("layer", "pair", "output")),
    )
    called = _PAIR | {"mine.py": "mine.py", "labels.npy": "labels.npy"}
    yield Target("module:function", 4, called, "mine.py", write_module, functions)
    denied = _PAIR | {"names.txt": "names.txt"}
    yield Target(
        "options", 0.5, denied, "names.txt", mutate_lines, (f"search debugger {_BOTH} -v x.npz --denylist @names.txt",)
    )
    yield Target("options", 8, _EVERYTHING, "", mutate_bytes, _WORDS)


def _cases() -> Iterator[Target]:
    zips = files.mutate_zip
    yield Target("case", 9, _CASE, "x.case", zips, (*_SHOW, *_CHECK, "compare good.case x.case"))
    written = (
        "check x.case --write-baseline out/b.json",
        f"diagnose x.case {_JSON}",
        f"compare good.case x.case {_JSON}",
    )
    yield Target("case", 1, _CASE, "x.case", zips, written)
    yield Target("case", 1, _CASE, "x.case", zips, ("show x.case --anonymous out/a.case",))
    before = (f"diagnose good.case --previous x.case {_JSON}", "check good.case --baseline x.case")
    yield Target("case", 1, _CASE, "x.case", zips, before)
    unfinished = _PAIR | {"out/x.case": "begun.case"}
    yield Target("case", 1, unfinished, "out/x.case", zips, (f"{_COLLECT}x.npz --resume",))
    yield Target("case", 1, _PARTS, "2.case", zips, (f"diagnose 1.case 2.case {_JSON}",))


def _policies() -> Iterator[Target]:
    read = "show x.case --rules rules", "explain --list rules --rules rules", "explain U001 --rules rules"
    yield Target("rules", 1.5, _OWN_RULES, "rules/U001.yaml", mutate_yaml, (*_RULES, *read))
    yield Target("rules", 0.4, _OWN_RULES, "rules/U001.md", mutate_lines, (*_RULES, *read[2:]))
    limits = ("show x.case --threshold t.yaml", "explain --list thresholds --threshold t.yaml")
    suspicion = (f"search debugger {_BOTH} -v x.npz --threshold t.yaml",)
    yield Target("thresholds", 4, _CASE | {"t.yaml": "thresholds.yaml"}, "t.yaml", mutate_yaml, limits)
    yield Target("thresholds", 0.2, _PAIR | {"t.yaml": "thresholds.yaml"}, "t.yaml", mutate_yaml, suspicion)
    policy = (*_CHECK, "check x.case --strict", "check x.case --write-baseline out/b.json")
    yield Target("policy", 5, _CASE | {"quantmedic.toml": "policy.toml"}, "quantmedic.toml", mutate_toml, policy)
    yield Target("policy", 2, _CASE | {"pyproject.toml": "project.toml"}, "pyproject.toml", mutate_toml, policy)
    named = ("check x.case --config p.toml",)
    yield Target("policy", 0.5, _CASE | {"p.toml": "policy.toml"}, "p.toml", mutate_toml, named)
    place = ("check x.case --location p.toml --format sarif",)
    yield Target("policy", 0.2, _CASE | {"p.toml": "policy.toml"}, "p.toml", mutate_lines, place)
    yield Target(
        "baseline", 5, _CASE | {"b.json": "b.json"}, "b.json", mutate_json, ("check x.case --baseline b.json",)
    )
    kept = _CASE | {"out/b.json": "b.json"}
    yield Target(
        "baseline", 0.5, kept, "out/b.json", mutate_json, ("check x.case --prune-baseline --baseline out/b.json",)
    )
    yield Target(
        "baseline", 0.5, kept, "x.case", files.mutate_zip, ("check x.case --prune-baseline --baseline out/b.json",)
    )


def _folders(seeds: Seeds) -> Iterator[Target]:
    """What others left where a command reads or writes; only the words say what that is."""
    own = _EVERYTHING | {"sensitivity.json": "sensitivity.json"}
    spoken = _spoken(seeds)
    written = (*_WRITTEN, f"{_STATIC[0]} --format sarif -o out/r")
    yield Target("planted rests", 6, own, "", mutate_bytes, written, plant.plant_rest)
    yield Target("links", 12, own, "", mutate_bytes, (*_WORDS, *written), plant.plant_links)
    dumped = own | {f"d/Result_{k}/{name}": name for k in range(2) for name in ("relu.raw", "pool.npy")}
    yield Target("links", 3, dumped, "", mutate_bytes, (f"{_COLLECT}x.npz --device-tensors d",), plant.plant_links)
    yield Target("links", 1, _TFLITE, "", mutate_bytes, _LITE, plant.plant_links)
    yield Target("links", 1, _OPENVINO, "", mutate_bytes, _IR, plant.plant_links)
    yield Target("links", 2, spoken, "", mutate_bytes, _SPEAK, plant.plant_links)
    yield Target("planted work", 6, spoken, "", mutate_bytes, _SPEAK, plant.plant_work)


def sound_commands(seeds: Seeds) -> list[tuple[Files, str]]:
    """Every command, front end and kind of report once, each with the files that it reads."""
    rows = [
        (_EVERYTHING | {"sensitivity.json": "sensitivity.json"}, (*_WORDS, *_WRITTEN)),
        (_TFLITE, (*_LITE, *_LITE_SEARCHES[:1])),
        (_OPENVINO, _IR),
        ({"mine.py": "pair.py"}, _TORCH[:1]),
        (_spoken(seeds), _SPEAK),
        (
            {name: name for name in seeds if name.endswith(".gguf")},
            (f"diagnose f16.gguf q4_0.gguf --weights-only {_ONE} {_JSON}",),
        ),
    ]
    found = {command: files for files, commands in rows for command in commands}
    return [(files, command) for command, files in found.items()]


def _spoken(seeds: Seeds) -> dict[str, str]:
    return {name: name for name in seeds if name.startswith(("lm/", "lm4/"))} | {"t.jsonl": "t.jsonl"}


def _logs(seeds: Seeds) -> Iterator[Target]:
    commands = ("diagnose float.onnx --log x.log -o out/r --format json", f"{_COLLECT}x.npz --log x.log")
    for name in (name for name in seeds if name.endswith(".log") and "/" not in name):
        yield Target("logs", 0.1, _PAIR | {"x.log": name}, "x.log", mutate_lines, commands)


def _checkpoints(seeds: Seeds) -> Iterator[Target]:
    for kind in ("gptq", "awq", "compressed"):
        own = {name: name for name in seeds if name.startswith((f"{kind}/", "float/"))}
        for changed in (name for name in own if name.startswith(kind) or kind == "gptq"):
            mutate = mutate_json if changed.endswith("json") else files.mutate_safetensors
            command = f"diagnose float {kind} --weights-only --threads 1 -o out/r --format json"
            yield Target("safetensors", 0.5, own, changed, mutate, (command,))
    gguf = {name: name for name in ("f16.gguf", "q4_0.gguf")}
    compare = (f"diagnose f16.gguf q4_0.gguf --weights-only {_ONE} {_JSON}",)
    for changed in gguf:
        yield Target("GGUF", 1, gguf, changed, files.mutate_gguf, compare)


def _language_models(seeds: Seeds) -> Iterator[Target]:
    """What lies beside the weights of a language model, and the texts that it is run on."""
    folders = {name: name for name in seeds if name.startswith(("lm/", "lm4/"))}
    named = {kind: f"lm lm4 --tokens t.{kind} {_ONE} {_JSON}" for kind in ("jsonl", "txt", "npy", "npz")}
    run = (f"diagnose {named['jsonl']}", f"check {named['jsonl']}")
    ids = folders | {"t.jsonl": "t.jsonl"}
    yield Target("LM config", 3, ids, "lm/config.json", mutate_config, run)
    yield Target("LM config", 1, ids, "lm4/config.json", mutate_config, run)
    for folder in ("lm", "lm4"):
        yield Target("LM index", 0.5, ids, f"{folder}/model.safetensors.index.json", mutate_json, run)
    yield Target("LM tokens", 0.5, ids, "t.jsonl", mutate_lines, run)
    for kind, seed, mutate in (
        ("npz", "t.npz", files.mutate_zip),
        ("npy", "t.npy", files.mutate_npy),
        ("npy", "t.npz", files.mutate_zip),
    ):
        own = folders | {f"t.{kind}": seed}
        yield Target("LM tokens", 0.5, own, f"t.{kind}", mutate, (f"diagnose {named[kind]}",))
    words = folders | {"lm/tokenizer.json": "tokenizer.json", "t.txt": "t.txt"}
    yield Target("LM tokenizer", 2, words, "lm/tokenizer.json", mutate_tokenizer, (f"diagnose {named['txt']}",))
    yield Target("LM tokenizer", 0.5, words, "t.txt", mutate_lines, (f"diagnose {named['txt']}",))


def _importers(seeds: Seeds) -> Iterator[Target]:
    for name in (name for name in seeds if name.startswith("settings/")):
        last = name.rpartition("/")[2]
        mutate = _mutator_of(last, seeds[name])
        yield Target("importers", 0.8, {last: name}, last, mutate, (f"import {last} -o out/x.case",))
        beside = (f"{_COLLECT}x.npz --settings {last}", f"check {_BOTH} --static --settings {last}")
        yield Target("importers", 0.1, _PAIR | {last: name}, last, mutate, beside)


def _mutator_of(name: str, content: bytes) -> Mutator:
    if name.endswith(".pkl"):
        return files.mutate_pickle
    if name.endswith(".yaml"):
        return mutate_yaml
    if content.lstrip()[:1] in (b"{", b"["):
        return mutate_json
    return mutate_bytes if b"\x00" in content else mutate_lines
