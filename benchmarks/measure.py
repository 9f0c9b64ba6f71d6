"""Running contenders in processes of their own, in turn, and comparing what they cost."""

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any


def report(start_up: tuple[float, float], work: Callable[[], Any]) -> None:
    """In the child: do the work and print what it cost beside the start-up (wall and CPU seconds so far)."""
    base = peak_memory()
    wall, cpu = time.perf_counter(), time.process_time()
    extra = work() or {}
    cost = {
        "wall": time.perf_counter() - wall,
        "cpu": time.process_time() - cpu,
        "start_up": start_up[0],
        "start_up_cpu": start_up[1],
        "memory": peak_memory(),
        "base_memory": base,
    }
    print(json.dumps(cost | extra))


def peak_memory() -> float:
    """Largest resident memory of this process so far in MB, as Linux counts it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def cost_of(command: Sequence[str]) -> tuple[float, float] | None:
    """In a parent that is small itself: processor seconds of a process and its children, and the largest memory in MB.

    None where the process fails.
    What the parent holds counts as memory of the child until that runs its own program.
    """
    done = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(done.pid, 0)
    done.returncode = os.waitstatus_to_exitcode(status)
    return None if done.returncode else (usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


class Failed(Exception):
    """A contender could not do its job; says why."""


def run(script: Path, arguments: Sequence[str]) -> dict[str, float]:
    """In the parent: one contender in a process of its own.

    Raises:
        Failed: It ended with an error.
    """
    done = subprocess.run(
        [sys.executable, str(script), *arguments], capture_output=True, text=True, env=os.environ, check=False
    )
    if done.returncode:
        raise Failed(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit {done.returncode}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def rounds(script: Path, contenders: Mapping[str, Sequence[str]], count: int) -> dict[str, list[dict[str, float]]]:
    """All contenders in turn, ``count`` times, starting with another one each time; one that fails has no figures."""
    names = list(contenders)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for i in range(count):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            print(f"round {i + 1} of {count}: {name}", end="\x1b[K\r", file=sys.stderr, flush=True)
            if name not in found:
                continue
            try:
                found[name].append(run(script, contenders[name]))
            except Failed as failure:
                print(f"{name} failed: {failure}")
                del found[name]
    print(end="\x1b[K", file=sys.stderr)
    return found


def ratio(found: Mapping[str, Sequence[Mapping[str, float]]], name: str, to: str, key: str) -> str:
    """Median and range over the rounds of one contender's cost divided by another's in the same round."""
    values = sorted(a[key] / b[key] for a, b in zip(found[name], found[to], strict=True))
    return spread(values)


def spread(values: Sequence[float], unit: str = "") -> str:
    """``median (lowest … highest)``."""
    digits = 0 if min(values) >= 100 else 1 if min(values) >= 10 else 2
    low, middle, high = (f"{v:.{digits}f}" for v in (min(values), statistics.median(values), max(values)))
    return f"{middle}{unit} ({low} … {high})" if len(values) > 1 else f"{middle}{unit}"
