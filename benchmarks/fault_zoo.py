"""The fault zoo: known faults put into known networks, to measure how often quantmedic names the right one.

Each case is a small network (see ``train_zoo.py``) that is quantized with one fault, with two, or with none. A fault is
used only if it hurts (a proven drop of accuracy, or fewer than nine answers in ten the same) and heals when undone;
what does not is counted and left out. The cases fall into two fixed parts: ``tuning``, on which thresholds of the rules
may be tuned, and ``reporting``, which holds networks or kinds of fault that tuning never saw.

How to run, from the repository root::

    python benchmarks/fault_zoo.py                      # build and score the reporting part
    python benchmarks/fault_zoo.py --part all --jobs 2 --keep /tmp/zoo --json zoo.json
    python benchmarks/fault_zoo.py --only 'csp/*' --part all
    python benchmarks/fault_zoo.py --prove 20 --only '*'  # carry out remedies, and score what they bring back
    python benchmarks/fault_zoo.py --paste 10 --json a.json  # follow the prescriptions, and measure what comes out
    python benchmarks/fault_zoo.py --paste --old        # the same with prescriptions without any trial
    python benchmarks/fault_zoo.py --fix --only single  # repair with quantmedic.fix, and measure on other samples
    python benchmarks/fault_zoo.py --paste --seed 101 --sample 100 --only single --part all
    python benchmarks/fault_zoo.py --readme zoo.json real.json  # the README's table, from what --json wrote
    python benchmarks/fault_zoo.py --list

With ``--seed N`` every case draws its place, its strength from harmless to fatal, its random numbers, the settings of
the quantizer and the number of labelled samples from the seed. Seeds 1 to 9 are for tuning; figures that are reported
come from seeds from 100 on, which tuning must not see. Without ``--seed`` the cases are the same every time.

``--part real`` puts the faults into networks that others trained: ResNet8 where it lies beside the project, magika and
swift-f0 where they are installed.

With ``--keep`` the built cases and their measurements are kept; measurements are used again while quantmedic is the
same, and with ``--quick`` also after rules have changed.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import fnmatch
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from zoo import paste_table
from zoo.cases import Built, Spec, all_specs, build, real_specs
from zoo.paste_table import fixed_rows, render_fixed, render_pasted, rows
from zoo.proof import render_proofs
from zoo.readme_table import render_readme
from zoo.score import both_named, brier, false_alarms, gain_errors, line, render
from zoo.verdict import Answer, ask

#: Time for trials per case, unless it is given.
PASTE_SECONDS = 10.0
#: What ``quantmedic fix`` takes where nothing is said.
FIX_SECONDS = 60.0
PARTS = ("tuning", "reporting", "all", "real")


def chosen(part: str, pattern: str, seed: int | None = None, sample: int | None = None) -> list[Spec]:
    """Specs of a part whose name matches one of some patterns, separated by commas; with ``sample`` so many of them."""
    patterns = pattern.split(",")
    found = [
        spec
        for spec in (real_specs(seed) if part == "real" else all_specs(seed))
        if (part in ("all", "real") or spec.tuning == (part == "tuning"))
        and any(fnmatch.fnmatch(spec.name, p) or fnmatch.fnmatch(spec.group, p) for p in patterns)
    ]
    if sample is None or sample >= len(found):
        return found
    drawn = np.random.default_rng(seed or 0).permutation(len(found))[:sample]
    return [found[i] for i in sorted(drawn)]


@dataclass(frozen=True)
class Task:
    """One case, and what is to be asked of it; see ``ask``."""

    spec: Spec
    root: Path
    quick: bool = False
    prove: float | None = None
    follow: bool = False
    fix: float | None = None


def work(task: Task) -> tuple[Built, Answer | None]:
    """Build one case and have it diagnosed."""
    built = build(task.spec, task.root)
    if not built.usable:
        return built, None
    asked = {"quick": task.quick, "prove": task.prove, "follow": task.follow, "fix": task.fix}
    return built, ask(built, _rules(), **asked)


_RULES: list[Any] = []


def _rules() -> Any:
    if not _RULES:
        import quantmedic

        _RULES.append(quantmedic.load_rulebase())
    return _RULES[0]


def results(
    specs: list[Spec],
    root: Path,
    jobs: int,
    quick: bool = False,
    prove: float | None = None,
    follow: bool = False,
    fix: float | None = None,
) -> Iterator[tuple[Built, Answer | None]]:
    """All cases, built and answered; cases of one network stay in one process."""
    tasks = [Task(spec, root, quick, prove, follow, fix) for spec in specs]
    if jobs == 1:
        yield from map(work, tasks)
        return
    # Doubles need the singles they are made of: build those first, so that no two processes make the same case.
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        singles = [task for task in tasks if task.spec.group != "double"]
        doubles = [task for task in tasks if task.spec.group == "double"]
        parts = {replace(d.spec, kinds=(kind,)) for d in doubles for kind in d.spec.kinds}
        missing = [(spec, root) for spec in sorted(parts - {t.spec for t in singles}, key=lambda s: s.name)]
        yield from pool.map(work, singles, chunksize=4)
        list(pool.map(_build_only, missing))
        yield from pool.map(work, doubles, chunksize=2)


def _build_only(task: tuple[Spec, Path]) -> None:
    build(*task)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, default="reporting")
    parser.add_argument(
        "--only", default="*", metavar="PATTERN", help="names like network/kind, or single, double, control"
    )
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write all answers here")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the built cases here")
    parser.add_argument("--quick", action="store_true", help="keep measurements although rules have changed")
    parser.add_argument("--prove", type=float, metavar="SECONDS", help="time for trials of remedies, per case")
    parser.add_argument(
        "--paste",
        type=float,
        nargs="?",
        const=PASTE_SECONDS,
        metavar="SECONDS",
        help=f"follow the prescriptions, after so many seconds of trials per case ({PASTE_SECONDS:.0f})",
    )
    parser.add_argument(
        "--fix",
        type=float,
        nargs="?",
        const=FIX_SECONDS,
        metavar="SECONDS",
        help=f"repair with quantmedic.fix, so many seconds of trials per case ({FIX_SECONDS:.0f}); half of the labels "
        "are held back to measure what it writes",
    )
    parser.add_argument("--old", action="store_true", help="with --paste: prescriptions without any trial")
    parser.add_argument(
        "--seed", type=int, help="draw places, strengths, settings and samples: 1-9 tuning, 100- reporting"
    )
    parser.add_argument("--sample", type=int, metavar="N", help="only N of the cases, drawn by chance")
    parser.add_argument("--list", action="store_true", help="list the cases and stop")
    parser.add_argument(
        "--readme",
        type=Path,
        nargs="+",
        metavar="JSON",
        help="print the README's table from what --json wrote, and stop",
    )
    parser.add_argument("--verbose", action="store_true", help="one line per case")
    arguments = parser.parse_args()
    if arguments.readme:
        print(render_readme(arguments.readme))
        return 0
    specs = chosen(arguments.part, arguments.only, arguments.seed, arguments.sample)
    if arguments.list:
        for spec in specs:
            print(f"{'tuning   ' if spec.tuning else 'reporting'}  {spec.family:11s}  {spec.name}")
        return 0
    with tempfile.TemporaryDirectory() as temporary:
        return report(specs, arguments.keep or Path(temporary), arguments)


def report(specs: list[Spec], root: Path, arguments: argparse.Namespace) -> int:
    started = time.perf_counter()
    found: list[tuple[Built, Answer]] = []
    left_out: list[Built] = []
    follow = arguments.paste is not None or arguments.old
    prove = None if arguments.old else arguments.prove if arguments.paste is None else arguments.paste
    for built, answer in results(specs, root, arguments.jobs, arguments.quick, prove, follow, arguments.fix):
        if arguments.verbose:
            print(_progress(built, answer), flush=True)
        if answer is None:
            left_out.append(built)
        else:
            found.append((built, answer))
    print(f"part {arguments.part}: {len(found)} cases in {time.perf_counter() - started:.0f} s\n")
    print(render(found))
    proofs = [(built, answer.proof) for built, answer in found if answer.proof is not None]
    if proofs:
        print(render_proofs(proofs))
    if pasted := rows(found):
        print(render_pasted(pasted))
    if fixed := fixed_rows(found):
        print(render_fixed(fixed))
    print_left_out(left_out)
    if arguments.json:
        arguments.json.write_text(json.dumps(summary(found, left_out), indent=1, default=str))
    return 0


def _progress(built: Built, answer: Answer | None) -> str:
    """One line of a case."""
    said = f"  {', '.join(answer.names[:3])} {answer.error}" if answer else ""
    if answer and answer.pasted:
        said += f"; pasted: {paste_table.outcome(built, answer.pasted)}"
    if answer and answer.fixed:
        said += f"; fixed: {paste_table.outcome(built, answer.fixed)}"
    return f"{built.status:12s} {built.spec.name:40s} {built.reason}{said}"


def print_left_out(left_out: list[Built]) -> None:
    counts = Counter(built.status for built in left_out)
    print(f"\nleft out: {', '.join(f'{n} {status}' for status, n in counts.items()) or 'nothing'}")
    for built in left_out:
        if built.status != "inapplicable":
            print(f"  {built.status:9s} {built.spec.name}: {built.reason}")


def summary(found: list[tuple[Built, Answer]], left_out: list[Built]) -> dict[str, Any]:
    singles = [r for r in found if r[0].spec.group == "single"]
    score, count, stated, right = brier(found)
    alarms, peer_alarms, controls = false_alarms(found)
    missed, doubles = both_named(found)
    return {
        "single": asdict(line("all", singles)),
        "controls": {"count": controls, "false_alarms": alarms, "peer_false_alarms": peer_alarms},
        "doubles": {"count": doubles, "missed": missed},
        "confidence": {"brier": score, "count": count, "stated": stated, "right": right},
        "gains": gain_errors(found),
        "pasted": paste_table.summary(rows(found)),
        "fixed": paste_table.summary(fixed_rows(found)),
        "cases": [
            {
                "name": built.spec.name,
                "part": "tuning" if built.spec.tuning else "reporting",
                "family": built.spec.family,
                "seed": built.spec.seed,
                "strength": built.strength,
                "recipe": built.recipe,
                "expected": built.spec.expected,
                "recovery_db": built.recovery_db,
                "recovery_worst_column_db": built.recovery_worst_db,
                "before": asdict(built.before) if built.before else None,
                "healed": asdict(built.healed) if built.healed else None,
                **asdict(answer),
            }
            for built, answer in found
        ],
        "left_out": [{"name": b.spec.name, "status": b.status, "reason": b.reason} for b in left_out],
    }


if __name__ == "__main__":
    sys.exit(main())
