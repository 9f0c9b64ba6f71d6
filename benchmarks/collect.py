"""What collecting costs beside plain inference, in ratios within one run.

For each network, contenders run in turn, each in a process of its own:

``plain``
    float and int8 model on all samples, nothing else: the floor.
``expose``
    the same with all tensors that quantmedic measures as outputs, which are thrown away.
``exact``, ``fast``
    ``quantmedic.collect`` in its two modes, without attribution (``--no-attribution`` of the command): all statistics,
    ``rounding`` and ``accumulated`` error.
``attributed``
    ``exact`` with attribution: the noise is divided among its sources, and remedies are simulated.

Times are without start-up (imports, loading of compiled code), which is listed beside them; sessions are built within
the time. Ratios are formed within a round; the table shows their median and range. Memory is the largest resident
memory of the whole process, and what of it came after the imports.

How to run, from the repository root::

    python benchmarks/collect.py                          # all networks, 64 samples, 3 rounds
    python benchmarks/collect.py --network mobilenet_v2 --samples 1024 --contenders plain exact fast
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import measure

CONTENDERS = ("plain", "expose", "exact", "fast", "attributed")
NETWORKS = ("resnet50", "mobilenet_v2")
BATCH = 8


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--folder", type=Path, default=Path("/tmp/quantmedic-benchmarks"), help="for built networks")
    parser.add_argument("--contender", choices=CONTENDERS, help=argparse.SUPPRESS)
    for name in ("--float", "--quantized", "--data"):
        parser.add_argument(name, type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.contender:
        child(arguments)
        return
    for network in arguments.network:
        compare(network, prepared(network, arguments), arguments)


def prepared(network: str, arguments: argparse.Namespace) -> tuple[Path, ...]:
    """Both models and the data of a network, made by another process so that this one stays small."""
    import subprocess

    folder = Path(__file__).parent
    code = (
        f"import sys; sys.path.insert(0, {str(folder)!r}); import networks; from pathlib import Path; "
        f"f = Path({str(arguments.folder)!r}); f.mkdir(parents=True, exist_ok=True); "
        f"print(*networks.build({network!r}, f), networks.data_file({network!r}, {arguments.samples}, f), sep='\\n')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    return tuple(Path(line) for line in done.stdout.splitlines()[-3:])


def compare(title: str, files: tuple[Path, ...], arguments: argparse.Namespace) -> None:
    common = ["--float", str(files[0]), "--quantized", str(files[1]), "--data", str(files[2])]
    common += ["--samples", str(arguments.samples), "--threads", str(arguments.threads)]
    chosen = [name for name in CONTENDERS if name in arguments.contenders or name == "plain"]
    contenders = {name: [*common, "--contender", name] for name in chosen}
    found = measure.rounds(Path(__file__), contenders, arguments.rounds)
    print(f"\n{title}, {arguments.samples} samples, {arguments.threads} threads, {arguments.rounds} rounds")
    floor = measure.spread([cost["wall"] for cost in found["plain"]], " s")
    print(f"plain inference: {floor}\n")
    columns = ("contender", "time / plain", "CPU / plain", "start-up s", "memory MB", "above imports MB")
    print("  ".join(name.ljust(22) for name in columns))
    for name, costs in found.items():
        cells = (
            name,
            measure.ratio(found, name, "plain", "wall"),
            measure.ratio(found, name, "plain", "cpu"),
            measure.spread([cost["start_up"] for cost in costs]),
            measure.spread([cost["memory"] for cost in costs]),
            measure.spread([cost["memory"] - cost["base_memory"] for cost in costs]),
        )
        print("  ".join(cell.ljust(22) for cell in cells))


def child(arguments: argparse.Namespace) -> None:
    begun, cpu = time.perf_counter(), time.process_time()
    work = globals()[f"work_{arguments.contender}"](arguments)
    measure.report((time.perf_counter() - begun, time.process_time() - cpu), work)


def feeds(arguments: argparse.Namespace, name: str, size: int = BATCH) -> Iterator[dict[str, Any]]:
    """Batches read from the file one by one."""
    import numpy as np

    for start in range(0, arguments.samples, size):
        data = np.load(arguments.data, mmap_mode="r")
        yield {name: np.array(data[start : min(start + size, arguments.samples)])}


def work_plain(arguments: argparse.Namespace) -> Any:
    import onnxruntime as ort

    def work() -> None:
        options = ort.SessionOptions()
        options.intra_op_num_threads = arguments.threads
        # Threads that spin in one session take the cores from the other: without it the floor is lower.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        sessions = [ort.InferenceSession(str(path), options) for path in (arguments.float, arguments.quantized)]
        for feed in feeds(arguments, sessions[0].get_inputs()[0].name):
            for session in sessions:
                session.run(None, feed)

    return work


def exposed(arguments: argparse.Namespace) -> list[Any]:
    """Sessions of both models with the tensors exposed that quantmedic measures."""
    from quantmedic.collectors.from_onnx.onnx_models import open_models
    from quantmedic.collectors.from_onnx.onnx_session import make_session
    from quantmedic.collectors.from_onnx.unsigned import with_unsigned_pairs

    models = open_models(arguments.float, arguments.quantized)
    twins = [pair.twin for pair in models.pairs]
    codes = [pair.tap.tensor for pair in models.pairs]
    unsigned, _ = with_unsigned_pairs(models.quantized.model)
    return [
        make_session(models.float_graph.model, arguments.float, arguments.threads, exposed=twins),
        make_session(unsigned, arguments.quantized, arguments.threads, exposed=codes),
    ]


def work_expose(arguments: argparse.Namespace) -> Any:
    import onnxruntime  # noqa: F401

    import quantmedic.collectors.from_onnx.onnx_view  # noqa: F401

    def work() -> None:
        sessions = exposed(arguments)
        for feed in feeds(arguments, sessions[0].get_inputs()[0].name):
            for session in sessions:
                session.run(None, feed)

    return work


def collected(arguments: argparse.Namespace, mode: str, *, attribution: bool = False) -> Any:
    import numpy as np

    import quantmedic
    import quantmedic.api.collect
    from quantmedic.collectors.measure import collect_pair  # noqa: F401
    from quantmedic.collectors.statistics.kernel_choice import kernels
    from quantmedic.engine.case.statistics import SetStatistics

    one = np.zeros(1, np.float32)
    kernels.observe(one.reshape(1, 1, 1), SetStatistics.empty([1]).tensor(0), np.zeros(1, np.int64))

    def work() -> dict[str, float]:
        quantmedic.collect(
            arguments.float,
            arguments.quantized,
            validation=arguments.data,
            samples=arguments.samples,
            threads=arguments.threads,
            mode=mode,  # type: ignore[arg-type]
            attribution=attribution,
        )
        return {}

    return work


def work_exact(arguments: argparse.Namespace) -> Any:
    return collected(arguments, "exact")


def work_fast(arguments: argparse.Namespace) -> Any:
    return collected(arguments, "fast")


def work_attributed(arguments: argparse.Namespace) -> Any:
    return collected(arguments, "exact", attribution=True)


if __name__ == "__main__":
    main()
