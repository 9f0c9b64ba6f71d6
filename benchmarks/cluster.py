"""What workers of a cluster lose beside one process: efficiency on samples and on trials, and that of 64 workers.

Workers are processes of one thread each. Fewer processors than workers share their time, so processor seconds of a unit
are compared, not the clock: alone in one process, in as many plain processes at once (what the machine itself loses
when all of its processors work), and with all workers at work. Of more workers than there are here, efficiency follows
from the measured time of every unit and of opening the models: units go to whichever worker is free first, and the time
of one process for all of them is divided by that of the last worker times their number.

``samples``
    slices of a validation set, measured (``collect``).
``trials``
    runs of the network with other quantizers (``sensitivity``), on 64 samples each.

How to run, from the repository root::

    python benchmarks/cluster.py --workers 4 --slices 16
    python benchmarks/cluster.py --workers 4 --slices 8 --float float.onnx --quantized int8.onnx --validation val.npz
"""

import argparse
import heapq
import os
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np

import quantmedic
from quantmedic.api.options import CollectOptions, DataOptions, MeasuringOptions
from quantmedic.cluster.answers import describe_worker, load_stored, run_errand
from quantmedic.cluster.connection import connect
from quantmedic.cluster.jobs import Job, describe_job
from quantmedic.cluster.workplaces import forget
from quantmedic.demo import patient

#: Samples of one slice: see ``quantmedic.collectors.measure.slices``.
SLICE = 64
MANY = 64


def timed(errand: str, *arguments: object) -> tuple[float, int]:
    """Processor seconds of a unit, and the process that did it."""
    begun = time.process_time()
    answer = run_errand(errand, *arguments)
    assert "done" in answer, answer
    return time.process_time() - begun, os.getpid()


def units_of(what: str, job: Job, count: int) -> list[tuple[object, ...]]:
    """The arguments of every unit."""
    versions = describe_worker()
    if what == "samples":
        return [("measure_slice", job, versions, "validation", number, None) for number in range(count)]
    return [("run_experiment", job, versions, "one", number) for number in range(count)]


def timed_all(units: Sequence[tuple[object, ...]]) -> list[float]:
    """Processor seconds of each unit, in this process."""
    return [timed(*unit)[0] for unit in units]  # type: ignore[arg-type]  # the name of an errand


def in_plain_processes(units: Sequence[tuple[object, ...]], workers: int) -> float:
    """Processor seconds of a unit where as many processes work at once, without what opening the models took."""
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        shares = [pool.submit(timed_all, units[place::workers]) for place in range(workers)]
        return float(np.mean([seconds for share in shares for seconds in share.result()[1:]]))


def simulated(units: Sequence[float], opening: float, workers: int) -> float:
    """Efficiency of workers that open the models once and take a unit whenever they are free."""
    free = [opening] * workers
    for seconds in units:
        heapq.heappush(free, heapq.heappop(free) + seconds)
    return (sum(units) + opening) / (workers * max(free))


def repeated(units: Sequence[float], rounds: int) -> list[float]:
    """The units of a set so many times as large, at the times that were measured."""
    return list(units) * rounds


def measure(what: str, job: Job, count: int, workers: int) -> None:
    """Print the efficiency of the units of one kind."""
    units = units_of(what, job, count)
    forget()
    first, alone = timed_all(units[:1])[0], timed_all(units)
    opening = max(first - alone[0], 0.0)
    plain = in_plain_processes(units, workers)
    with connect(f"local:{workers}") as client:
        client.gather([client.submit(os.getpid, pure=False) for _ in range(workers)])
        futures = [client.submit(timed, *unit, pure=False) for unit in units]
        found = client.gather(futures)
    used = len({process for _, process in found})
    warm = [seconds for k, (seconds, process) in enumerate(found) if process in {p for _, p in found[:k]}]
    print(f"{what}: {count} units, {np.mean(alone):.3f} s each alone, opening the models {opening:.2f} s")
    print(f"  {workers} workers ({used} took part): {np.mean(warm):.3f} s each once the models are open")
    print(
        f"  efficiency of a unit {np.mean(alone) / np.mean(warm):.2f}, of plain processes {np.mean(alone) / plain:.2f}"
    )
    for size in (workers, MANY):
        rounds = -(-16 * size // count)
        many = repeated(alone, rounds)
        print(
            f"  simulated for {size} workers: {simulated(many, opening, size):.2f} "
            f"({len(many)} units; {simulated(repeated(alone, 4 * rounds), opening, size):.2f} at {4 * len(many)})"
        )


def repeated_data(source: Path, folder: Path, samples: int, *, scaled: bool) -> Path:
    """Inputs of a file, as often as it takes; those of the demo become floats."""
    with np.load(source) as stored:
        inputs = {name: stored[name] for name in stored.files if name != "labels"}
    times = -(-samples // len(next(iter(inputs.values()))))
    found = {name: np.concatenate([array] * times)[:samples] for name, array in inputs.items()}
    if scaled:
        found = {name: array.astype(np.float32) / 255 for name, array in found.items()}
    np.savez(folder / "val.npz", **found)
    return folder / "val.npz"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--slices", type=int, default=16)
    parser.add_argument("--float", type=Path)
    parser.add_argument("--quantized", type=Path)
    parser.add_argument("--validation", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        # Samples of a file are repeated until there are enough slices.
        models = (arguments.float, arguments.quantized) if arguments.float is not None else patient()[0]
        source = arguments.validation or patient()[1]["validation"]
        data = repeated_data(source, Path(folder), arguments.slices * SLICE, scaled=arguments.validation is None)
        options = CollectOptions(data=DataOptions(validation=str(data)), measuring=MeasuringOptions(threads=1))
        job = describe_job(*models, options)
        case = quantmedic.collect(*models, validation=data, threads=1, samples=8, attribution=False)
        first = load_stored(run_errand("measure_slice", job, describe_worker(), "validation", 0, None)["done"])
        measure("samples", job, first.record.datasets["validation"].slices, arguments.workers)
        layers = sum(operator.weight.quantizer.bits is not None for operator in case.record.operators)
        measure("trials", {**job, "modes": ["one"]}, layers, arguments.workers)


if __name__ == "__main__":
    main()
