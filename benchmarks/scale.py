"""How time and memory of a diagnosis grow: with samples, layers, nodes, channels, and columns of the output.

Every point is a process of its own. Collecting is measured on the MobileNetV2-like network (samples) and on networks
built for the purpose: chains of convolutions (layers, channels), residual blocks with so many nodes in the quantized
model (nodes), a matrix multiplication with so many columns (columns), and the same with one input and two columns
(rows: so many samples). Times are without imports; ``cpu`` is processor time, with all that is measured.

How to run, from the repository root::

    python benchmarks/scale.py                       # samples 64 … 4096, layers 50 … 2000, channels 16 … 2048, …
    python benchmarks/scale.py nodes --no-attribution
    python benchmarks/scale.py samples --mode fast
    python benchmarks/scale.py layers --sizes 50 500
"""

import argparse
import math
import os
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

import measure

SIZES = {
    "samples": (64, 256, 1024, 4096),
    "layers": (50, 500, 2000),
    "channels": (16, 128, 1024, 2048),
    "nodes": (2500, 5000, 10_000, 20_000),
    "columns": (1000, 10_000, 100_000),
    "rows": (10_000, 100_000, 1_000_000),
}
#: Nodes of the quantized residual blocks by node of the float ones.
QUANTIZED = 3.8
#: Chains are this wide and high, on so many samples.
CHAIN_CHANNELS, CHAIN_SIDE, CHAIN_SAMPLES = 8, 8, 16
NODE_SAMPLES, COLUMN_SAMPLES, WIDTH = 8, 64, 16


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("axis", nargs="?", choices=SIZES, help="all of them by default")
    parser.add_argument("--sizes", type=int, nargs="+")
    parser.add_argument("--no-attribution", action="store_true", help="measure only, simulate nothing")
    parser.add_argument("--mode", choices=("exact", "fast"), default="exact")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--folder", type=Path, default=Path("/tmp/quantmedic-benchmarks"), help="for built networks")
    parser.add_argument("--size", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.size is not None:
        child(arguments)
        return
    for axis in [arguments.axis] if arguments.axis else SIZES:
        sweep(axis, arguments.sizes or SIZES[axis], arguments)


def sweep(axis: str, sizes: tuple[int, ...], arguments: argparse.Namespace) -> None:
    arguments.folder.mkdir(parents=True, exist_ok=True)
    parts = ("collect", "judge", "report", "cpu")
    print(f"\n{axis}, {arguments.mode}, {arguments.threads} threads")
    heads = (axis, *(f"{part} s" for part in parts), "exponent", "memory MB", "/ first", "above imports MB")
    print("  ".join(head.rjust(16) for head in heads))
    first: dict[str, float] = {}
    before: tuple[int, float] | None = None
    for size in sizes:
        build = ["--size", str(size), "--folder", str(arguments.folder)]
        subprocess.run([sys.executable, __file__, f"{axis}", *build, "--threads", "0"], check=True)
        options = [*build, "--mode", arguments.mode, "--threads", str(arguments.threads)]
        options += ["--no-attribution"] if arguments.no_attribution else []
        try:
            cost = measure.run(Path(__file__), [axis, *options])
        except measure.Failed as failure:
            raise SystemExit(f"{axis} {size}: {failure}") from failure
        first = first or cost
        growth = "" if before is None else f"{math.log(cost['wall'] / before[1], size / before[0]):.2f}"
        before = (size, cost["wall"])
        cells = [str(size), *(f"{cost[part]:.2f}" for part in parts), growth, f"{cost['memory']:.0f}"]
        cells += [f"{cost['memory'] / first['memory']:.3f}", f"{cost['memory'] - cost['base_memory']:.0f}"]
        print("  ".join(cell.rjust(16) for cell in cells), flush=True)


def child(arguments: argparse.Namespace) -> None:
    """Build what is missing (without threads), or measure one point."""
    if not arguments.threads:
        files(arguments)
        return
    begun, cpu = time.perf_counter(), time.process_time()
    import collect

    data = files(arguments)[2]
    collect.collected(argparse.Namespace(), arguments.mode)
    import quantmedic

    rules = quantmedic.load_rulebase()

    def work() -> dict[str, float]:
        marks = [time.perf_counter()]
        case = quantmedic.collect(
            *files(arguments)[:2],
            validation=data,
            mode=arguments.mode,
            threads=arguments.threads,
            attribution=not arguments.no_attribution,
        )
        marks.append(time.perf_counter())
        diagnosis = quantmedic.judge(case, rules)
        marks.append(time.perf_counter())
        with tempfile.TemporaryDirectory() as folder:
            quantmedic.write_report(diagnosis, folder, rules=rules, case=case)
        marks.append(time.perf_counter())
        return dict(zip(("collect", "judge", "report"), (b - a for a, b in pairwise(marks)), strict=True))

    measure.report((time.perf_counter() - begun, time.process_time() - cpu), work)


def files(arguments: argparse.Namespace) -> tuple[Path, Path, Path]:
    """Float model, quantized model and data of one point, made once."""
    folder: Path = arguments.folder
    if arguments.axis == "samples":
        network = "mobilenet_v2"
        paths = folder / f"{network}.onnx", folder / f"{network}.int8.onnx", folder / f"{network}.{arguments.size}.npy"
        if not all(path.exists() for path in paths):
            import networks

            networks.build(network, folder)
            networks.data_file(network, arguments.size, folder)
        return paths
    stem = f"{arguments.axis}.{arguments.size}"
    paths = folder / f"{stem}.onnx", folder / f"{stem}.int8.onnx", folder / f"{stem}.npy"
    if not all(path.exists() for path in paths):
        write_point(arguments.axis, arguments.size, *paths)
    return paths


def write_point(axis: str, size: int, float_path: Path, quantized_path: Path, data_path: Path) -> None:
    """A network and its data, quantized node by node: the toolchain itself is not measured here."""
    import networks
    import numpy as np
    import onnx

    width, image = CHAIN_CHANNELS, (CHAIN_SIDE, CHAIN_SIDE)
    if axis == "nodes":
        model, shape = networks.branches(int(size / QUANTIZED), width, CHAIN_SIDE), (NODE_SAMPLES, width, *image)
    elif axis == "columns":
        model, shape = networks.product(WIDTH, size), (COLUMN_SAMPLES, WIDTH)
    elif axis == "rows":
        model, shape = networks.product(1, 2), (size, 1)
    else:
        layers, width = (size, width) if axis == "layers" else (10, size)
        model, shape = networks.chain(layers, width, CHAIN_SIDE), (CHAIN_SAMPLES, width, *image)
    onnx.save(model, str(float_path))
    onnx.save(networks.with_qdq(model), str(quantized_path))
    np.save(data_path, np.random.default_rng(networks.SEED).standard_normal(shape, dtype=np.float32))


if __name__ == "__main__":
    main()
