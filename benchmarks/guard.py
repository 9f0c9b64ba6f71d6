"""The guard: what quantmedic costs beside plain inference is recorded, and must not grow unnoticed.

``benchmarks/figures/costs.json`` holds, for networks that are made here without downloads, the processor time of each
contender as a multiple of ``plain`` (both models on both data sets, sample by sample) and its largest memory, with the
commit. Contenders run in turn, each in a process of its own on one processor core with one thread; of three rounds the
least counts, so that neither a busy machine nor the first compilation decides.

How to run, from the repository root::

    python benchmarks/guard.py                                 # measures again; exit 1 where costs grew
    python benchmarks/guard.py --record                        # writes the record and the table of the manual
    python benchmarks/guard.py --record --published /tmp/pip   # with published networks: see cost_networks.py
    python benchmarks/guard.py --page                          # writes the table of the manual only
"""

import argparse
import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

ROOT = Path(__file__).parents[1]
RECORD = ROOT / "benchmarks" / "figures" / "costs.json"
CONTENDERS = ("plain", "collect", "diagnose")
PLAIN = """
import sys, numpy as np, onnxruntime as ort
sessions = [ort.InferenceSession(f"{sys.argv[1]}/{name}.onnx") for name in ("float", "int8")]
for part in ("rep", "val"):
    with np.load(f"{sys.argv[1]}/{part}.npz") as stored:
        data = dict(stored)
    for i in range(len(next(iter(data.values())))):
        for session in sessions:
            session.run(None, {name: array[i : i + 1] for name, array in data.items()})
"""
ROUNDS = 3
#: How many times the recorded figure a measured one may be.
MAX_RATIO, MAX_MEMORY = 1.5, 1.25
#: One thread everywhere, and as few heaps as on one core, whatever the machine has.
ALONE = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
#: The page that shows the record.
PAGE = ROOT / "manuals" / "general" / "costs.md"


@dataclass(frozen=True)
class Cost:
    """What one contender took.

    Attributes:
        ratio: Processor time as a multiple of that of plain inference in the same run.
        memory: Largest resident memory of one of its processes, in MB.
    """

    ratio: float
    memory: float


@dataclass(frozen=True)
class Costs:
    """What all contenders took on one network.

    Attributes:
        samples: Of both data sets together.
        seconds: Processor seconds of plain inference.
        contenders: The others.
        guarded: It is measured again by every run of the guard.
    """

    samples: int
    seconds: float
    contenders: Mapping[str, Cost]
    guarded: bool = True


@dataclass(frozen=True)
class Record:
    """What was measured on which commit."""

    commit: str
    networks: Mapping[str, Costs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--record", action="store_true", help="write the record and the table of the manual")
    parser.add_argument("--page", action="store_true", help="write the table of the manual from the record")
    parser.add_argument("--published", type=Path, metavar="PACKAGES", help="also record published networks")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--published-rounds", type=int, default=1, help="these take minutes each")
    arguments = parser.parse_args()
    if arguments.page:
        write_table(read_record())
        return
    run_alone()
    from cost_networks import GUARDED, PUBLISHED  # what it loads sees what was set

    measured = measure_networks(GUARDED, arguments.rounds)
    if not arguments.record:
        raise SystemExit(report(measured, read_record()))
    others = kept_published()
    if arguments.published:
        others = measure_networks(PUBLISHED, arguments.published_rounds, arguments.published)
    record = Record(current_commit(), {**measured, **others})
    write_record(record)
    write_table(record)


def measure_networks(names: Mapping[str, Any], rounds: int, packages: Path | None = None) -> dict[str, Costs]:
    """Networks of ``cost_networks.py``; published ones where there are packages."""
    import cost_networks

    logging.disable(logging.WARNING)  # what onnxruntime thinks of models that were not pre-processed
    found = {}
    with tempfile.TemporaryDirectory(prefix="quantmedic-") as made:
        for name, network in names.items():
            folder = cost_networks.built(name, Path(made), packages)
            found[name] = measure_costs(folder, 2 * network.samples, rounds, guarded=packages is None)
    return found


def kept_published() -> dict[str, Costs]:
    """What the record holds of published networks, which is kept where they are not measured again."""
    if not RECORD.exists():
        return {}
    return {name: costs for name, costs in read_record().networks.items() if not costs.guarded}


def run_alone() -> None:
    """Children of this process run on one core with one thread, of code that is compiled once, as what pip installs."""
    os.environ.update(ALONE)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def measure_costs(folder: Path, samples: int, rounds: int, *, guarded: bool) -> Costs:
    """All contenders in turn; of each figure the least of all rounds."""
    found = []
    for i in range(rounds):
        print(f"{folder.name}: round {i + 1} of {rounds}", file=sys.stderr, flush=True)
        found.append({name: measure_cost(command(name, folder)) for name in CONTENDERS})
    seconds, memory = ({name: min(costs[name][k] for costs in found) for name in CONTENDERS} for k in (0, 1))
    contenders = {
        name: Cost(round(seconds[name] / seconds["plain"], 2), round(memory[name])) for name in CONTENDERS[1:]
    }
    # At once: whoever stops a run of many minutes keeps what it has measured.
    told = ", ".join(f"{name} {cost.ratio} ×, {cost.memory} MB" for name, cost in contenders.items())
    print(f"{folder.name}: plain {seconds['plain']:.1f} s, {told}", file=sys.stderr, flush=True)
    return Costs(samples, round(seconds["plain"], 2), contenders, guarded)


def measure_cost(arguments: list[str]) -> tuple[float, float]:
    """Processor seconds of a process and its children, and the largest memory of one of them in MB."""
    cost = cost_of(arguments)
    if cost is None:
        raise SystemExit(f"failed: {' '.join(arguments)}")
    return cost


def cost_of(command: Sequence[str]) -> tuple[float, float] | None:
    """The same; None where the process fails.

    What the parent holds counts as memory of the child until that runs its own program: so the parent has to be small.
    """
    done = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(done.pid, 0)
    done.returncode = os.waitstatus_to_exitcode(status)
    return None if done.returncode else (usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def command(contender: str, folder: Path) -> list[str]:
    """What to run."""
    if contender == "plain":
        return [sys.executable, "-c", PLAIN, str(folder)]
    models = [str(folder / "float.onnx"), str(folder / "int8.onnx")]
    data = ["--representative", str(folder / "rep.npz"), "--validation", str(folder / "val.npz")]
    (folder / "collected.case").unlink(missing_ok=True)
    more = ["--no-attribution", "-o", str(folder / "collected.case")]
    if contender == "diagnose":
        more = ["-o", str(folder / "report")]
    return [sys.executable, "-m", "quantmedic", contender, *models, *data, *more]


def compare(measured: Mapping[str, Costs], recorded: Mapping[str, Costs]) -> list[str]:
    """What costs more than recorded, one sentence each.

    Raises:
        LookupError: A guarded network or contender of the record was not measured, or one that was is not recorded.
    """
    guarded = {name: costs for name, costs in recorded.items() if costs.guarded}
    places = [{(name, each) for name, c in table.items() for each in c.contenders} for table in (measured, guarded)]
    if apart := sorted(places[0] ^ places[1]):
        raise LookupError("; ".join(f"{name}: {each} stands on one side only" for name, each in apart))
    found = []
    for name, each in sorted(places[1]):
        now, then = (table[name].contenders[each] for table in (measured, guarded))
        if now.ratio > MAX_RATIO * then.ratio:
            found.append(
                f"{name}: {each} takes {now.ratio:.2f} times plain inference, {then.ratio:.2f} recorded (at most "
                f"{MAX_RATIO} times that)"
            )
        if now.memory > MAX_MEMORY * then.memory:
            found.append(
                f"{name}: {each} takes {now.memory:.0f} MB, {then.memory:.0f} MB recorded (at most {MAX_MEMORY} times "
                "that)"
            )
    return found


def report(measured: Mapping[str, Costs], record: Record) -> int:
    """Print what was measured beside the record; the exit status."""
    for name, costs in measured.items():
        for each, cost in costs.contenders.items():
            then = record.networks[name].contenders.get(each) if name in record.networks else None
            known = f"{then.ratio:.2f} ×, {then.memory:.0f} MB" if then is not None else "nothing"
            print(f"{name}: {each} {cost.ratio:.2f} ×, {cost.memory:.0f} MB; recorded {known}", flush=True)
    try:
        grown = compare(measured, record.networks)
    except LookupError as error:
        print(f"the record does not fit: {error.args[0]}; run: python benchmarks/guard.py --record", file=sys.stderr)
        return 2
    for line in grown:
        print(line, file=sys.stderr)
    if grown:
        print(
            f"costs have grown since {record.commit}: find the commit (git bisect run python benchmarks/guard.py) and "
            "mend it; where the growth is wanted, say why in CHANGELOG.md and run: python benchmarks/guard.py --record",
            file=sys.stderr,
        )
    return 1 if grown else 0


def read_record() -> Record:
    """The record in the repository."""
    return TypeAdapter(Record).validate_json(RECORD.read_text(encoding="utf-8"))


def write_record(record: Record) -> None:
    unfinished = RECORD.with_suffix(".unfinished")
    unfinished.write_text(json.dumps(asdict(record), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    unfinished.rename(RECORD)


def current_commit() -> str:
    """The commit that is measured, marked where the checkout differs from it."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def table_of(record: Record) -> list[str]:
    """Lines of the table of the manual."""
    heads = [cell for name in CONTENDERS[1:] for cell in (name, f"memory of {name}")]
    lines = [f"| network, samples | plain | {' | '.join(heads)} |", f"|---|--:|{'--:|' * len(heads)}"]
    for name, costs in record.networks.items():
        cells = [cell for each in CONTENDERS[1:] for cell in show_cost(costs.contenders[each])]
        lines.append(f"| {name}, {costs.samples} | {costs.seconds:.1f} s | {' | '.join(cells)} |")
    return lines


def show_cost(cost: Cost) -> tuple[str, str]:
    return f"{cost.ratio:.1f}", f"{cost.memory / 1000:.1f} GB" if cost.memory >= 1000 else f"{cost.memory:.0f} MB"


def with_table(text: str, lines: Sequence[str]) -> str:
    """The page with its table as it should be: it is known by its head, for a page of the manual holds no comments."""
    before, head, after = text.partition(f"{lines[0]}\n")
    assert head, "the head of the table of costs is missing"
    return before + "\n".join(lines) + "\n\n" + after.partition("\n\n")[2]


def write_table(record: Record) -> None:
    PAGE.write_text(with_table(PAGE.read_text(encoding="utf-8"), table_of(record)), encoding="utf-8")


if __name__ == "__main__":
    main()
