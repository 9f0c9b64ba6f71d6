"""Inputs that are sound: small, from builders and recordings of the tests and from the examples."""

import base64
import io
import json
import logging
import runpy
import tempfile
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from builders import checkpoints
from builders.onnx_models import Net, Recipe, qdq, random, static
from builders.recordings import RECORDINGS
from builders.toml_styles import Writer
from mutate_torch import sound_pair

Seeds = dict[str, bytes]
ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"

RULE = """\
id: U001
name: wide-x
cause: wide-x
scope: tensor
severity: medium
confidence: 0.7
when:
  all:
    - {fact: data.rounding.sqnr_db, lt: 25}
    - any: [{fact: producer, in: [Conv, Gemm]}, {not: {fact: model.harmed, is: true}}]
message: "its own grid leaves {data.rounding.sqnr_db:.1f} dB"
remedies: [keep-layers-float]
---
- fires: {data: {rounding: {sqnr_db: 12.5}}, producer: Conv, model: {harmed: true}}
- about: A close miss
  silent: {data: {rounding: {sqnr_db: 25.5}}, model: {harmed: true}}
"""
FUNCTIONS = """\
import numpy as np

def data():
    yield np.zeros((2, 3, 4, 4), np.float32)

def metric(*given):
    return np.zeros(4)

def number(*given):
    return 1.0
"""
PAGE = """\
# wide-x (U001)

Text with a [link](https://example.org) and `code`.
"""
THRESHOLDS = """\
activation_zscore: 16
degrade_layer_ratio: 0.3
dominant_share: 0.5
threshold_quantize_error: {mse: 0.1, cs: 0.1, sqnr: 0.1}
threshold_zscore_outlier_removal: 5.0
"""


def make_seeds() -> Seeds:
    """All seeds by name; commands of quantmedic write those of its own formats."""
    logging.disable(logging.WARNING)  # onnxruntime's advice on quantizing
    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder)
        return (
            _onnx(own)
            | _arrays()
            | _litert()
            | _openvino(own)
            | _texts()
            | _settings(own)
            | _weights(own)
            | _language(own)
        )


def _net() -> onnx.ModelProto:
    """3 x 4 x 4 images to 3 scores."""
    net = Net()
    x = net.conv(net.input("x", ["n", 3, 4, 4]), random(1, 4, 3, 3, 3), random(2, 4), out="conv", pads=[1, 1, 1, 1])
    x = net.add("GlobalAveragePool", net.add("Relu", x, out="relu"), out="pool")
    x = net.add("Gemm", net.add("Flatten", x, out="flat"), net.const("w", random(3, 4, 3)), out="scores")
    net.output(x, shape=["n", 3])
    return net.model()


def _onnx(folder: Path) -> Seeds:
    from onnxruntime.quantization import QuantFormat  # slow to import

    net, feed = _net(), {"x": random(5, 4, 3, 4, 4)}
    operators = static(net, feed, folder, quant_format=QuantFormat.QOperator)
    wide = Recipe(np.int8, np.int8, per_channel=True, weights="float")
    models = {"float.onnx": net, "qdq.onnx": qdq(net, feed), "wide.onnx": qdq(net, feed, wide), "qop.onnx": operators}
    models["clipped.onnx"] = qdq(net, {"x": feed["x"] * np.float32(0.1)})
    return {name: model.SerializeToString(deterministic=True) for name, model in models.items()} | {
        "inc-float.onnx": (RECORDINGS / "inc/float.onnx").read_bytes(),
        "inc-int8.onnx": (RECORDINGS / "inc/int8.onnx").read_bytes(),
        **{f"modelopt-{path.name}": path.read_bytes() for path in sorted((RECORDINGS / "modelopt").glob("*.onnx"))},
    }


def _arrays() -> Seeds:
    from PIL import Image  # an optional package

    picture = Image.fromarray(np.random.default_rng(1).integers(0, 256, (4, 4, 3), np.uint8))
    x = random(5, 4, 3, 4, 4)
    return {
        "x.npz": _written(lambda file: np.savez_compressed(file, x=x)),
        "labels.npy": _written(lambda file: np.save(file, np.array([0, 1, 2, 0]))),
        "outputs.npz": _written(lambda file: np.savez(file, scores=random(6, 4, 3))),
        "dump.npz": _written(lambda file: np.savez(file, relu=random(7, 4, 4, 4, 4), out=random(6, 4, 3))),
        "dump.json": json.dumps(
            {"lst": [["trt", [{"outputs": {"scores": {"values": _encoded(random(6, 4, 3))}}}]]]}
        ).encode(),
        "relu.raw": random(7, 4, 4, 4).tobytes(),
        "pool.npy": _written(lambda file: np.save(file, random(8, 4, 1, 1))),
        "names.json": b'{"out": "scores"}',
        "names.txt": b"relu\n",
        "labels.txt": b"0\n1\n2\n0\n",
        "labels.csv": b"0\n1\n2\n0\n",
        "yolo.txt": b"0 0.5 0.5 0.2 0.3\n2 0.3 0.3 0.1 0.1\n1 0.1 0.2 0.5 0.2 0.3 0.8\n",
        "a.png": _written(lambda file: picture.save(file, "png")),
        "a.jpeg": _written(lambda file: picture.save(file, "jpeg")),
    }


def _encoded(values: Any) -> dict[str, str]:
    """An array as Polygraphy writes it."""
    return {"array": base64.b64encode(_written(lambda file: np.save(file, values))).decode()}


def _written(write: Callable[[Any], object]) -> bytes:
    file = io.BytesIO()
    write(file)
    return file.getvalue()


def _litert() -> Seeds:
    folder = RECORDINGS / "debugger"
    return {name: (folder / name).read_bytes() for name in ("float.tflite", "int8.tflite", "layers.csv")} | {
        "lite.npz": _written(lambda file: np.savez(file, **_two_samples(folder / "data.npz")))
    }


def _openvino(folder: Path) -> Seeds:
    from builders.openvino_models import images, save_openvino_pair  # slow to import, and asks for an optional package

    paths = [part for path in save_openvino_pair(folder) for part in (path, path.with_suffix(".bin"))]
    return {path.name: path.read_bytes() for path in paths} | {
        "ir.npz": _written(lambda file: np.savez(file, image=images(2)))
    }


def _two_samples(path: Path) -> dict[str, Any]:
    with np.load(path) as data:
        return {name: data[name][:2] for name in data.files}


def _texts() -> Seeds:
    policy = (ROOT / "examples/ci/quantmedic.toml").read_text().replace("baseline =", "# baseline =")
    project = Writer(0).write(tomllib.loads(policy), ("tool", "quantmedic"))
    texts = {
        "pair.py": sound_pair().decode(),
        "mine.py": FUNCTIONS,
        "rule.yaml": RULE,
        "rule.md": PAGE,
        "thresholds.yaml": THRESHOLDS,
        "policy.toml": policy,
        "project.toml": project,
    }
    logs = {path.name: path.read_bytes() for path in sorted((RECORDINGS / "logs").glob("*.log"))}
    return {name: text.encode() for name, text in texts.items()} | logs


def _settings(folder: Path) -> Seeds:
    """What the tests of importers read, under ``settings/``."""
    formats = runpy.run_path(str(TESTS / "collectors/from_settings/test_formats.py"))
    horizon = runpy.run_path(str(TESTS / "collectors/from_settings/test_horizon.py"))
    found = {name: make(folder).read_bytes() for name, make in formats["GOOD"].items()}
    found |= {f"aimet-{version}": json.dumps(formats["aimet"](version)).encode() for version in ("0.5.0", "1.0.0")}
    texts = {"horizon.yaml": "CONFIG", "horizon.log": "LOG", "earlier.log": "EARLIER", "compiled.log": "COMPILED"}
    texts["quant.json"] = "QUANT"
    found |= {name: horizon[key].encode() for name, key in texts.items()}
    inc = ("activations_table.csv", "diagnosis_2.6.log", "weights_table.csv")
    found |= {name: (RECORDINGS / "inc" / name).read_bytes() for name in inc}
    found["inspect_result.pkl"] = (RECORDINGS / "inc/inspect_saved/fp32/inspect_result.pkl").read_bytes()
    return {f"settings/{name}": content for name, content in found.items()}


def _language(folder: Path) -> Seeds:
    """A language model of one block, in float and in 4 bits, token ids, texts and a tokenizer."""
    tensors = checkpoints.language_model(layers=1)
    sizes = {"hidden_size": checkpoints.HIDDEN, "intermediate_size": checkpoints.INNER, "num_attention_heads": 4}
    sizes |= {"vocab_size": checkpoints.VOCABULARY, "num_hidden_layers": 1, "num_key_value_heads": 4}
    found: Seeds = {"t.jsonl": b'[5, 6, 7]\n{"input_ids": [8, 9, 10]}\n', "t.txt": b"abcab abba\n\ncab cabaab\n"}
    ids = np.arange(5, 17).reshape(3, 4)
    found |= {"t.npy": _written(lambda file: np.save(file, ids))}
    found |= {"t.npz": _written(lambda file: np.savez_compressed(file, ids=ids, more=ids[0]))}
    found["tokenizer.json"] = json.dumps(_tokenizer()).encode()
    for name, own in (("lm", tensors), ("lm4", checkpoints.quantized_model(tensors, "gptq"))):
        config = sizes if name == "lm" else sizes | checkpoints.configuration("gptq")
        written = checkpoints.write_folder(folder / name, own, config, shards=1)
        found |= {f"{name}/{path.name}": path.read_bytes() for path in sorted(written.iterdir())}
    return found


def _tokenizer() -> dict[str, Any]:
    """Pairs of bytes, with a part of each kind."""
    plain = {"add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    words = ["<unk>", "<s>", "a", "b", "c", "Ġ", "ab", "ca", "abc"]
    begin = {"id": "<s>", "ids": [1], "tokens": ["<s>"]}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": number, "content": words[number], **flags, "special": True} for number in (0, 1)],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Lowercase"}]},
        "pre_tokenizer": {"type": "ByteLevel", **plain},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": begin},
        },
        "decoder": {"type": "ByteLevel", **plain},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {word: number for number, word in enumerate(words)},
            "merges": [["a", "b"], ["c", "a"], ["ab", "c"]],
        },
    }


def _weights(folder: Path) -> Seeds:
    """A layer of 64 x 64 weights as two safetensors folders, and GGUF files."""
    name = "model.layers.0.mlp.up_proj"
    values = random(9, 64, 64)
    codes, scale, zero = checkpoints.quantize(values, 4, 32, symmetric=False)
    floats: checkpoints.Tensors = {f"{name}.weight": ("BF16", checkpoints.bfloat16(values))}
    found: Seeds = {}
    for kind in ("float", *checkpoints.WRITERS):
        tensors = floats if kind == "float" else checkpoints.WRITERS[kind](name, codes, scale, zero)
        config = {} if kind == "float" else checkpoints.configuration(kind)
        text = json.dumps(config).replace(f'"group_size": {checkpoints.GROUP}', '"group_size": 32')
        written = checkpoints.write_folder(folder / kind, tensors, json.loads(text), shards=1)
        found |= {f"{kind}/{path.name}": path.read_bytes() for path in sorted(written.iterdir())}
    found |= {f"{kind}.gguf": (RECORDINGS / f"gguf/{kind}.gguf").read_bytes() for kind in ("f16", "q4_0")}
    return found
