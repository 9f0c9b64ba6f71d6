"""What workers of a cluster lose beside one process: efficiency on samples and on trials, and that of 64 workers.

Workers are processes of one thread each. Fewer processors than workers share their time, so processor seconds of a unit
are compared, not the clock: alone in one process, in as many plain processes at once (what the machine itself loses
when all of its processors work), and with all workers at work. Of more workers than there are here, efficiency follows
from the measured time of every unit and of opening the models: units go to whichever worker is free first, and the time
of one process for all of them is divided by that of the last worker times their number.

``samples``
    slices of a validation set, measured (``collect``).
``trials``
    runs of the network with other quantizers (``sensitivity``), on 64 samples each, some in a unit.
``proofs``
    edits of copies and runs of printed prescriptions (``--prove``), one fold or one text each. Which trial is next
    depends on those before it, so it is also printed how long a proof takes with more workers: from the time of every
    unit, of what this machine does between two of them, and of what could begin ahead. Units that nobody waited for
    count with the mean of their kind.

How to run, from the repository root::

    python benchmarks/cluster.py --workers 4 --slices 16
    python benchmarks/cluster.py --workers 4 --slices 8 --float float.onnx --quantized int8.onnx --validation val.npz
    python benchmarks/cluster.py --only proofs --float float.onnx --quantized int8.onnx --validation val.npz \\
        --representative rep.npz
"""

import argparse
import heapq
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from uuid import uuid4

import numpy as np

import quantmedic
from quantmedic.api.collect import open_measurement
from quantmedic.api.options import DEFAULT_BUDGET, FIRST_SECONDS, CollectOptions, DataOptions, MeasuringOptions
from quantmedic.api.remedies import prove_remedies
from quantmedic.cluster.answers import describe_worker, load_stored, run_errand, store_case
from quantmedic.cluster.connection import connect
from quantmedic.cluster.experiments import runs_of_unit
from quantmedic.cluster.jobs import Job, describe_job, read_job
from quantmedic.cluster.tasks import read_outcome, task_as_plain
from quantmedic.cluster.workplaces import forget, open_job_trials
from quantmedic.demo import patient
from quantmedic.engine.case.records import Case
from quantmedic.trials.allowance import CountedAllowance
from quantmedic.trials.fallback import Elsewhere as SimulateElsewhere
from quantmedic.trials.split import Pool
from quantmedic.trials.tasks import EditTask, Outcome, Task, TextTask

#: Samples of one slice: see ``quantmedic.collectors.measure.slices``.
SLICE = 64
MANY = 64
KINDS = ("samples", "trials", "proofs")


def processor_seconds() -> float:
    """Of this process, to the nanosecond, and of the toolchains that it has run, to 10 ms: units may take as long."""
    return time.process_time() + sum(os.times()[2:4])


def timed(errand: str, *arguments: object) -> tuple[float, int]:
    """Processor seconds of a unit, and the process that did it."""
    begun = processor_seconds()
    answer = run_errand(errand, *arguments)
    assert "done" in answer, answer
    return processor_seconds() - begun, os.getpid()


def units_of(what: str, job: Job, count: int, workers: int) -> list[tuple[object, ...]]:
    """The arguments of every unit."""
    versions = describe_worker()
    if what == "samples":
        return [("measure_slice", job, versions, "validation", number, None) for number in range(count)]
    runs = [("one", number) for number in range(count)]
    size = runs_of_unit(count, workers)
    return [("run_experiments", job, versions, runs[k : k + size]) for k in range(0, count, size)]


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


def in_workers(units: Sequence[tuple[object, ...]], workers: int) -> list[tuple[float, int]]:
    """Processor seconds and process of each unit."""
    with connect(f"local:{workers}") as client:
        client.gather([client.submit(os.getpid, pure=False) for _ in range(workers)])
        found: list[tuple[float, int]] = client.gather([client.submit(timed, *unit, pure=False) for unit in units])
    return found


def measure(what: str, units: Sequence[tuple[object, ...]], workers: int) -> None:
    """Print the efficiency of the units of one kind."""
    count = len(units)
    forget()
    first, alone = timed_all(units[:1])[0], timed_all(units)
    opening = max(first - alone[0], 0.0)
    plain = in_plain_processes(units, workers)
    one, found = (in_workers(units, number) for number in (1, workers))
    used = len({process for _, process in found})
    warm = [seconds for k, (seconds, process) in enumerate(found) if process in {p for _, p in found[:k]}]
    print(f"{what}: {count} units, {np.mean(alone):.3f} s each alone, opening the models {opening:.2f} s")
    print(f"  {workers} workers ({used} took part): {np.mean(warm):.3f} s each once the models are open")
    print(
        f"  efficiency of a unit {np.mean(alone) / np.mean(warm):.2f}, of plain processes {np.mean(alone) / plain:.2f}"
    )
    sums = [sum(seconds for seconds, _ in each) for each in (one, found)]
    print(
        f"  all units, opening included: {sums[0]:.1f} s with 1 worker, {sums[1]:.1f} s with {workers}: "
        f"{sums[0] / sums[1]:.2f}"
    )
    for size in (workers, MANY):
        rounds = -(-16 * size // count)
        many = repeated(alone, rounds)
        print(
            f"  simulated for {size} workers: {simulated(many, opening, size):.2f} "
            f"({len(many)} units; {simulated(repeated(alone, 4 * rounds), opening, size):.2f} at {4 * len(many)})"
        )


@dataclass(frozen=True)
class Call:
    """One trial of a proof, as numbers of its units.

    Attributes:
        serial: Processor seconds of this machine since the trial before.
        needed: What it waits for.
        ahead: What workers could begin meanwhile, in this order.
    """

    serial: float
    needed: list[int]
    ahead: list[int]


class Recorder:
    """Carries tasks out in this process and notes their times; see ``quantmedic.trials.tasks.Elsewhere``."""

    def __init__(self, job: Job, case: Case, folder: Path) -> None:
        self.job, self.stored, self.tasks = job, store_case(case, str(folder / "tried.case")), list[Task]()
        self.seconds: dict[int, float] = {}
        self.calls: list[Call] = []
        self._place = open_job_trials(job, self.stored)
        self._since = processor_seconds()

    def number(self, task: Task) -> int:
        """The place of a task among all that were named."""
        if task not in self.tasks:
            self.tasks.append(task)
        return self.tasks.index(task)

    def unit(self, number: int) -> tuple[object, ...]:
        """What a worker is told."""
        return ("carry_out", self.job, describe_worker(), self.stored, task_as_plain(self.tasks[number]), None)

    def results(self, tasks: Sequence[Task], ahead: Iterator[Task], seconds: float | None) -> list[Outcome]:
        """Carry them out one after the other."""
        needed, later = [self.number(task) for task in tasks], [self.number(task) for task in ahead]
        self.calls.append(Call(processor_seconds() - self._since, needed, later))
        outcomes = []
        for number in needed:
            begun = processor_seconds()
            errand, *arguments = self.unit(number)
            outcomes.append(read_outcome(run_errand(str(errand), *arguments)["done"]))
            self.seconds.setdefault(number, processor_seconds() - begun)
        self._since = processor_seconds()
        return outcomes

    def simulation(self, least_db: float) -> SimulateElsewhere:
        """Of the search for layers in float, which counts as what this machine does."""
        return self._place.bench.search(least_db).simulate_batches

    def seconds_of(self, number: int) -> float:
        """What a unit took, or the mean of its kind."""
        kind = type(self.tasks[number])
        alike = [seconds for k, seconds in self.seconds.items() if isinstance(self.tasks[k], kind)]
        return self.seconds.get(number, float(np.mean(alike or list(self.seconds.values()))))

    def elapsed(self, workers: int, *, alone: bool = False) -> float:
        """Seconds of a proof with so many workers, the models being open; ``alone``: nothing begins ahead."""
        clock, free, done = 0.0, [0.0] * workers, dict[int, float]()

        def begin(number: int) -> None:
            done[number] = max(clock, heapq.heappop(free)) + self.seconds_of(number)
            heapq.heappush(free, done[number])

        for call in self.calls:
            clock += call.serial
            for number in call.needed:
                if number not in done:
                    begin(number)
            end = max([clock, *(done[number] for number in call.needed)])
            for number in [] if alone else call.ahead:
                if number not in done and free[0] < end:
                    begin(number)
            clock = end
        return clock


def measure_proof(job: Job, case: Case, workers: int, folder: Path, *, first: bool) -> None:
    """Print how a whole proof is divided, and the efficiency of its units."""
    opened, _ = open_measurement(job["float_model"], job["quantized_model"], read_job(job), quantmedic.load_rulebase())
    recorders: list[Recorder] = []

    def record(case: Case, pool: Pool, by_metric: bool) -> Recorder:
        own = {**job, "pool": vars(pool), "by_metric": by_metric, "case": uuid4().hex}
        recorders.append(Recorder(own, case, folder))
        return recorders[-1]

    allowance = CountedAllowance.like_measuring(case, FIRST_SECONDS) if first else CountedAllowance(DEFAULT_BUDGET)
    proof = prove_remedies(case, opened, allowance, first=first, elsewhere=record).case.record.proof
    assert proof is not None, "nothing was tried"
    found = recorders[0]
    edits = sum(isinstance(found.tasks[k], EditTask) for k in found.seconds)
    serial = sum(call.serial for call in found.calls)
    print(
        f"a proof, {proof.stopped}: {len(found.calls)} trials of {edits} edits and {len(found.seconds) - edits} texts, "
        f"{sum(found.seconds.values()):.1f} s, and {serial:.1f} s on this machine"
    )
    whole = found.elapsed(1)
    for size in (2, workers, 2 * workers, MANY):
        ahead, alone = whole / found.elapsed(size), whole / found.elapsed(size, alone=True)
        print(f"  {size} workers: {ahead:.2f} times as fast, {alone:.2f} if nothing began ahead")
    for what, kind in (("edits", EditTask), ("texts", TextTask)):
        units = [found.unit(number) for number in found.seconds if isinstance(found.tasks[number], kind)]
        if len(units) > workers:
            measure(what, units, workers)


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
    parser.add_argument("--representative", type=Path, help="what texts are calibrated on; none are run without")
    parser.add_argument("--case", type=Path, help="what was measured of these models and data, for proofs")
    parser.add_argument("--first", action="store_true", help="proofs of what leads alone")
    parser.add_argument("--only", choices=KINDS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        # Samples of a file are repeated until there are enough slices.
        models = (arguments.float, arguments.quantized) if arguments.float is not None else patient()[0]
        source = arguments.validation or patient()[1]["validation"]
        if arguments.only != "proofs":
            scaled = arguments.validation is None
            data = repeated_data(source, Path(folder), arguments.slices * SLICE, scaled=scaled)
            measure_divided(models, data, arguments.only, arguments.workers)
        if arguments.only in (None, "proofs"):
            given = {"validation": arguments.validation, "representative": arguments.representative}
            data_options = patient()[1] if arguments.float is None else given
            options = CollectOptions(data=DataOptions(**data_options), measuring=MeasuringOptions(threads=1))
            known = None if arguments.case is None else quantmedic.load_case(arguments.case)
            case = known or quantmedic.collect(*models, threads=1, **data_options)
            job = describe_job(*models, options)
            measure_proof(job, case, arguments.workers, Path(folder), first=arguments.first)


def measure_divided(models: Sequence[Path], data: Path, only: str | None, workers: int) -> None:
    """Print the efficiency of slices and of runs of ``sensitivity``."""
    options = CollectOptions(data=DataOptions(validation=str(data)), measuring=MeasuringOptions(threads=1))
    job = describe_job(*models, options)
    if only in (None, "samples"):
        first = load_stored(run_errand("measure_slice", job, describe_worker(), "validation", 0, None)["done"])
        slices = first.record.datasets["validation"].slices
        measure("samples", units_of("samples", job, slices, workers), workers)
    if only in (None, "trials"):
        case = quantmedic.collect(*models, validation=data, threads=1, samples=8, attribution=False)
        layers = sum(operator.weight.quantizer.bits is not None for operator in case.record.operators)
        measure("trials", units_of("trials", {**job, "modes": ["one"]}, layers, workers), workers)


if __name__ == "__main__":
    main()
