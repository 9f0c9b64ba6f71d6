"""What each repair that quantmedic carries out itself brings, on samples that it did not read.

ONNX networks of the fault zoo are quantized by ONNX Runtime, LiteRT files by ai-edge-quantizer, in plain int8 and with
weights of four bits, one scale per channel. Printed is the SQNR of the outputs in dB, before and after.

How to run, from the repository root::

    python benchmarks/repairs.py --seed 401
"""

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnxruntime.quantization import QuantType, quantize_static
from zoo.feeds import Feeds
from zoo.networks import NETWORKS
from zoo.quantizing import pooled_sqnr

import quantmedic
from quantmedic.collectors.data.batches import Batch
from quantmedic.collectors.from_litert.litert_models import open_models
from quantmedic.engine.errors import ModelError

RECORDINGS = Path(__file__).parents[1] / "tests" / "recordings" / "litert"
CODES = {"int8": QuantType.QInt8, "int4": QuantType.QInt4}
ONNX, LITERT = ("mobile", "resnet", "csp"), ("image_example1", "autoencoder_example")
COLUMNS = ("plain", "biases", "rounding", "rounding + biases")
READ, JUDGED = 128, 256


def onnx_row(name: str, bits: str, seed: int, folder: Path) -> Iterator[float | None]:
    """One network of the zoo, its images in an order of their own."""
    network = replace(NETWORKS[name], seed=seed)
    read, judged = network.calibration()[:READ], network.validation()[0][:JUDGED]
    key = onnx.load(str(network.path)).graph.input[0].name
    exact = onnxruntime.InferenceSession(str(network.path)).run(None, {key: judged})
    opset21 = folder / "float.onnx"
    onnx.save(onnx.version_converter.convert_version(network.model(), 21), str(opset21))

    def quantized(source: Path) -> Path:
        target = folder / f"{source.stem}.{bits}.onnx"
        feeds = Feeds({key: read[i : i + 16]} for i in range(0, len(read), 16))
        quantize_static(source, target, feeds, weight_type=CODES[bits], per_channel=True)
        return target

    def judge(path: Path) -> float:
        found = onnxruntime.InferenceSession(str(path)).run(None, {key: judged})
        return pooled_sqnr(exact, found)

    plain, other = quantized(opset21), folder / "other.onnx"
    yield judge(plain)
    yield from learned(opset21, plain, {key: read}, other, judge)


def litert_row(name: str, bits: str, seed: int, folder: Path) -> Iterator[float | None]:
    """One of the recorded files, with drawn signals or images."""
    from ai_edge_litert.interpreter import Interpreter
    from ai_edge_quantizer import qtyping, quantizer

    path = RECORDINGS / f"{name}.float32.tflite"
    read, judged = (drawn(name, count, [seed, count]) for count in (READ, JUDGED))
    ((signature, ends),) = Interpreter(str(path)).get_signature_list().items()
    maker = quantizer.Quantizer(path.read_bytes())
    every = ".*", qtyping.TFLOperationName.ALL_SUPPORTED
    maker.add_static_config(*every, 8, int(bits[3:]), qtyping.QuantGranularity.CHANNELWISE)
    ranges = maker.calibrate({signature: [{ends["inputs"][0]: read}]}, num_threads=1)
    plain, other = folder / "plain.tflite", folder / "other.tflite"
    plain.write_bytes(maker.quantize(ranges, enable_progress_report=False).quantized_model)

    def judge(made: Path) -> float:
        models = open_models(path, made)
        models.probe()
        batch = Batch({models.float_graph.inputs[0]: judged})
        return pooled_sqnr(models.float_runner(1)(batch), models.quantized_runner(1)(batch))

    yield judge(plain)
    yield from learned(path, plain, read, other, judge)


def learned(path: Path, plain: Path, read: Any, other: Path, judge: Callable[[Path], float]) -> Iterator[float | None]:
    """What is learned on the quantized model."""
    yield attempt(lambda: quantmedic.correct_biases(path, plain, read, other) and judge(other))
    yield attempt(lambda: quantmedic.learn_rounding(path, plain, read, other) and judge(other))
    yield attempt(lambda: quantmedic.correct_biases(path, other, read, other) and judge(other))


def attempt(repair: Callable[[], float]) -> float | None:
    """None where the network has nothing that could be repaired so."""
    try:
        return repair()
    except ModelError as error:
        print(error.message, file=sys.stderr)
        return None


def drawn(name: str, count: int, seed: list[int]) -> np.ndarray:
    """Signals, or images of one channel from 0 to 1, that change every tenth or eighth value."""
    rng = np.random.default_rng(seed)
    if name == "autoencoder_example":
        return rng.normal(size=(count, 14)).astype(np.float32).repeat(10, axis=1)
    return rng.random((count, 12, 12, 1), np.float32).repeat(8, axis=1).repeat(8, axis=2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, required=True)
    arguments = parser.parse_args()
    print("| network | weights | " + " | ".join(COLUMNS) + " |")
    print("|---|---|" + "--:|" * len(COLUMNS))
    rows = [(name, onnx_row, "ONNX") for name in ONNX] + [(name, litert_row, "LiteRT") for name in LITERT]
    for name, row, kind in rows:
        for bits in CODES:
            with tempfile.TemporaryDirectory() as folder:
                found = row(name, bits, arguments.seed, Path(folder))
                cells = ["–" if each is None else f"{each:.1f}" for each in found]
            print(f"| {name} ({kind}) | {bits} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
