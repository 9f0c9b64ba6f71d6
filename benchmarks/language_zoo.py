"""The zoo of language models: known faults put into small ones, to measure how often quantmedic names the right one.

Byte-level networks of transformers' own classes (Llama, Gemma 2, Mixtral, Qwen 2, Phi 3, Qwen 3 with experts; 4 blocks,
width 128) are trained here, a minute or two each, on licences and on sources of Python's standard library. Each case
quantizes one of them with a fault, or soundly. ``diagnose`` is asked with ``--weights-only`` and with ``--tokens``; 16
texts of 96 bytes that no network learned from are what it runs on.

A fault counts where it raises the perplexity by 2 % or more, or where it is one of the file or of a runtime, which
does not show while it runs here; a control counts where it raises the perplexity by 1 % at most. The causes that are
right stand beside each fault and follow from what was done (``zoo_language/faults_*.py``).

``--part tune`` holds networks on which rules may be tuned. ``--part untouched`` holds trainings with other seeds, other
draws, and two architectures that tuning never sees. Its figures are worth what its seed is: one whose misses were
looked at, and mended, is spent, and ``--seed`` takes a fresh one.

How to run, from the repository root::

    python benchmarks/language_zoo.py --networks FOLDER                   # train, build, ask, print: the untouched part
    python benchmarks/language_zoo.py --networks FOLDER --part tune --misses --keep DIR
    python benchmarks/language_zoo.py --networks FOLDER --part tune --misses --keep DIR --quick   # judge again
    python benchmarks/language_zoo.py --networks FOLDER --part tune --only 'llama-*/*-2-bits'

Networks are kept in the folder that is given, and trained where it lacks them. With ``--keep`` measurements are kept as
cases; with ``--quick`` they are judged again instead of measured, which is right as long as only rules have changed.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import argparse
import fnmatch
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
from zoo_language.asking import Asker, Result
from zoo_language.cases import PARTS, Spec, specs
from zoo_language.networks import Network, trained
from zoo_language.surgery import Inapplicable
from zoo_language.tables import render, render_misses


def main() -> None:
    arguments = parsed()
    torch.set_num_threads(1)
    chosen = [spec for spec in specs(arguments.part, arguments.seed) if fnmatch.fnmatch(spec.name, arguments.only)]
    if arguments.list:
        print("\n".join(f"{spec.family:10s} {spec.name}" for spec in chosen))
        return
    started = time.perf_counter()
    found = list(results(chosen, arguments.networks, Asker(arguments.keep, arguments.quick), arguments.verbose))
    print(f"part {arguments.part}: {len(found)} cases in {time.perf_counter() - started:.0f} s\n")
    print(render(found))
    if arguments.misses:
        print(f"\n{render_misses(found)}")


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--networks", type=Path, required=True, metavar="FOLDER", help="where trained networks are kept"
    )
    parser.add_argument("--part", choices=PARTS, default="untouched")
    parser.add_argument("--seed", type=int, help="of the trainings and of what is drawn, instead of the part's own")
    parser.add_argument("--only", default="*", metavar="PATTERN", help="names like llama-1/kind")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep measurements here")
    parser.add_argument("--quick", action="store_true", help="judge kept measurements again")
    parser.add_argument("--misses", action="store_true", help="one line for each case that was not named rightly")
    parser.add_argument("--verbose", action="store_true", help="one line per case while it runs")
    parser.add_argument("--list", action="store_true", help="list the cases and stop")
    return parser.parse_args()


def results(chosen: list[Spec], networks: Path, asker: Asker, verbose: bool = False) -> Iterator[Result]:
    """Answers to cases, network by network; cases that a network has no place for are left out."""
    network: Network | None = None
    for spec in chosen:
        if network is None or network.name != f"{spec.architecture.name}-{spec.seed}":
            network = trained(spec.architecture, spec.seed, networks)
        try:
            result = asker.ask(spec, network)
        except Inapplicable:
            continue
        if verbose:
            said = " | ".join(
                answer.error.partition("\n")[0] or ", ".join(answer.names[:3]) for answer in result.answers
            )
            print(f"{spec.name:40s} {result.growth} | {said}", flush=True)
        yield result


if __name__ == "__main__":
    main()
