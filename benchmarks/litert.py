"""What collecting costs for LiteRT models, beside ai-edge-quantizer's own comparison of two models.

Contenders run in turn, each in a process of its own, on the same samples:

``plain``
    both models by interpreters as deployed, sample by sample, nothing else: the floor.
``collect``
    ``quantmedic.collect``: all statistics, ``rounding`` and ``accumulated`` error of every tensor.
``compare``
    ``ai_edge_quantizer.model_validator.compare_model``, which ``Quantizer.validate`` calls: the mean squared error of
    every tensor.

How to run, from the repository root::

    python benchmarks/litert.py float.tflite int8.tflite --samples 64
"""

import argparse
import os
import time
from pathlib import Path
from typing import Any

import measure

CONTENDERS = ("plain", "collect", "compare")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("float", type=Path)
    parser.add_argument("quantized", type=Path)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--contender", choices=CONTENDERS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.contender:
        child(arguments)
        return
    common = [str(arguments.float), str(arguments.quantized)]
    common += ["--samples", str(arguments.samples), "--threads", str(arguments.threads)]
    contenders = {name: [*common, "--contender", name] for name in CONTENDERS}
    found = measure.rounds(Path(__file__), contenders, arguments.rounds)
    print(f"{arguments.float.name}, {arguments.samples} samples, {arguments.threads} threads")
    for name, costs in found.items():
        parts = {
            "s": measure.spread([cost["wall"] for cost in costs]),
            "MB": measure.spread([cost["memory"] for cost in costs]),
            "MB above imports": measure.spread([cost["memory"] - cost["base_memory"] for cost in costs]),
        }
        print(name.ljust(8), ", ".join(f"{value} {unit}" for unit, value in parts.items()))
    for key in ("wall", "cpu", "memory"):
        if {"compare", "collect"} <= found.keys():
            print(f"compare / collect, {key}: {measure.ratio(found, 'compare', 'collect', key)}")


def child(arguments: argparse.Namespace) -> None:
    begun, cpu = time.perf_counter(), time.process_time()
    work = globals()[f"work_{arguments.contender}"](arguments)
    measure.report((time.perf_counter() - begun, time.process_time() - cpu), work)


def samples_of(arguments: argparse.Namespace) -> Any:
    """Noise for the float model's only input, the same for all contenders."""
    import numpy as np
    from ai_edge_litert.interpreter import Interpreter

    details = Interpreter(str(arguments.float)).get_input_details()[0]
    sides = [int(side) for side in details["shape"][1:]]
    return np.random.default_rng(0).normal(size=(arguments.samples, *sides)).astype(np.float32)


def work_plain(arguments: argparse.Namespace) -> Any:
    import numpy as np
    from ai_edge_litert.interpreter import Interpreter

    x = samples_of(arguments)

    def work() -> None:
        for path in (arguments.float, arguments.quantized):
            interpreter = Interpreter(str(path), num_threads=arguments.threads)
            interpreter.allocate_tensors()
            fed, given = interpreter.get_input_details()[0], interpreter.get_output_details()[0]
            scale, zero = fed["quantization"]
            for row in x:
                codes = np.clip(np.rint(row / scale) + zero, -128, 127) if scale and fed["dtype"] == np.int8 else row
                interpreter.set_tensor(fed["index"], codes[np.newaxis].astype(fed["dtype"]))
                interpreter.invoke()
                interpreter.get_tensor(given["index"])

    return work


def work_collect(arguments: argparse.Namespace) -> Any:
    import quantmedic.api.collect
    import quantmedic.collectors.from_litert.models
    import quantmedic.collectors.from_litert.view
    import quantmedic.collectors.measure.collect

    x = samples_of(arguments)

    def work() -> None:
        quantmedic.collect(arguments.float, arguments.quantized, validation=x, threads=arguments.threads)

    return work


def work_compare(arguments: argparse.Namespace) -> Any:
    import numpy as np
    from ai_edge_litert.interpreter import Interpreter
    from ai_edge_quantizer import model_validator

    x = samples_of(arguments)
    key, signature = next(iter(Interpreter(str(arguments.float)).get_signature_list().items()))
    data = {key: [{signature["inputs"][0]: row[np.newaxis]} for row in x]}

    def work() -> None:
        contents = [path.read_bytes() for path in (arguments.float, arguments.quantized)]
        model_validator.compare_model(*contents, data, num_threads=arguments.threads)

    return work


if __name__ == "__main__":
    main()
