"""Try hostile inputs of every format that is read, and tell what came out.

    python tests/fuzz/campaign.py --cases 100000 --seed 1 --log fuzz.jsonl --jobs 2

Case N of a seed is always the same input. The log has a line for each case; the same command goes on where it was
stopped. Inputs that show a defect are kept beside the log, in LOG.defects. ``--each`` tries each reader once instead,
and nothing sound before. ``--only N`` repeats one case, ``--kept FOLDER`` an input that was kept, and ``--table``
prints the table of a log and tries nothing.

Inputs are drawn at random. Changing those further that reach new branches was tried, with the tracer of coverage: over
90 s of the processor it tried 520 inputs instead of 910, and reached 2 048 branches beyond the sound seeds instead of
2 348.

Exit codes: 0 no defect, 1 defects, 2 a job of the campaign itself failed, or what should be sound is refused.
"""

import argparse
import ast
import gc
import json
import os
import random
import shutil
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple, NoReturn

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1] / "support")]
for library in ("OPENBLAS", "OMP", "MKL", "NUMBA"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")
# Compiled code is kept for all cases in one folder, which is not among what a case must leave alone.
os.environ["XDG_CACHE_HOME"] = str(Path(tempfile.gettempdir(), f"quantmedic-fuzz-{os.getuid()}"))
# torch is imported before a case gets a temporary directory of its own, and would use the one that it saw then.
os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(os.environ["XDG_CACHE_HOME"], "torchinductor"))
os.environ |= {"QUANTMEDIC_NO_PROVE": "1", "QUANTMEDIC_EXACT_KERNELS": "1", "COLUMNS": "100"}
#: What these limits allow otherwise takes longer than a case may.
os.environ |= {"QUANTMEDIC_MAX_SAMPLES": "50000", "QUANTMEDIC_MAX_LOG_SECONDS": "5"}
os.environ["QUANTMEDIC_MAX_TOKENIZER_SECONDS"] = "10"

from case import Outcome, run_case, warm_up  # noqa: E402
from seeds import Seeds, make_seeds  # noqa: E402
from target import Target, own_seeds, prepare, refused_seeds  # noqa: E402
from targets import OWN, make_targets  # noqa: E402

KINDS = ("ok", "refused", "verdict", "defect")
#: Inputs that are kept of one and the same defect.
KEPT = 3
_SHARED_MEMORY = Path("/dev/shm")
Line = Mapping[str, object]


class Campaign(NamedTuple):
    rows: Sequence[Target]
    seeds: Seeds
    seed: int
    log: Path
    each: bool = False

    def draw(self, number: int) -> tuple[Target, random.Random]:
        """The target of a case, and the generator that its input comes from."""
        rng = random.Random(f"{self.seed}:{number}")
        if self.each:
            return self.rows[number % len(self.rows)], rng
        return rng.choices(self.rows, [row.weight for row in self.rows])[0], rng

    def warm_up(self, numbers: Iterable[int]) -> list[str]:
        """Run the commands of these cases on what is sound, for their forks; returns which of them are refused."""
        rows = {} if self.each else {row.commands: row for row, _ in map(self.draw, numbers)}
        refused = refused_seeds(list(rows.values()), self.seeds)
        gc.collect()
        gc.freeze()
        return refused

    def run(self, number: int, folder: Path) -> Outcome:
        target, rng = self.draw(number)
        return run_case(lambda: prepare(target, self.seeds, rng), folder, anywhere=not (target.changed or target.plant))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log", type=Path, default=Path("fuzz.jsonl"))
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--each", action="store_true", help="one case for each reader, in their order")
    parser.add_argument("--format", nargs="+", help="only cases of formats that begin so, such as LM")
    parser.add_argument("--only", type=int, metavar="N", help="repeat this case and show what it says")
    parser.add_argument("--kept", type=Path, nargs="+", metavar="FOLDER", help="run inputs that were kept")
    parser.add_argument("--table", action="store_true", help="print the table of the log")
    given = parser.parse_args(arguments)
    if given.table:
        print(closing_table(read_log(given.log)))
        return 0
    if given.kept:
        warm_up()
        kept = [path.resolve() for path in given.kept]
        return max(_show(lambda folder, path=path: run_case(lambda: _kept_input(path), folder)) for path in kept)
    campaign = open_campaign(given.seed, given.log, each=given.each)
    if given.only is not None:
        campaign.warm_up([given.only])
        return _show(lambda folder: campaign.run(given.only, folder))
    done = {line["number"] for line in read_log(given.log) if line["seed"] == given.seed}
    count = len(campaign.rows) if given.each else given.cases
    numbers = [number for number in range(count) if number not in done]
    wanted = tuple(given.format or ())
    numbers = [n for n in numbers if not wanted or campaign.draw(n)[0].format.startswith(wanted)]
    complaints = campaign.warm_up(numbers)
    for complaint in complaints:
        print(f"a sound seed is refused: {complaint}")
    workers = [_start(campaign, numbers[k :: given.jobs]) for k in range(given.jobs)]
    failed = [pid for pid in workers if os.waitpid(pid, 0)[1]]
    lines = read_log(given.log)
    print(closing_table(lines))
    if sum(bool(line["deep"]) for line in lines) < len(lines) / 2:
        complaints.append("most cases end at the first check: the mutators are too rough")
        print(complaints[-1])
    return 2 if failed or complaints else int(any(line["kind"] == "defect" for line in lines))


def open_campaign(seed: int, log: Path, *, each: bool) -> Campaign:
    """Make the seeds and the rows; every case is a fork of this process."""
    warm_up()
    seeds = make_seeds()
    seeds |= own_seeds(seeds, OWN)
    rows = make_targets(seeds)
    if each:  # Searches read what others read, and logs are read alike.
        logs = [row for row in rows if row.format == "logs"]
        rows = [row for row in rows if row.format not in ("searches", "logs")] + logs[::10]
    return Campaign(rows, seeds, seed, log, each)


def _start(campaign: Campaign, numbers: Iterable[int]) -> int:
    """A job of its own that runs these cases; returns its process id."""
    if pid := os.fork():
        return pid
    with tempfile.TemporaryDirectory(dir=_SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None) as folder:
        _run_all(campaign, numbers, Path(folder, "own"))


def _run_all(campaign: Campaign, numbers: Iterable[int], folder: Path) -> NoReturn:
    code = 1
    try:
        for number in numbers:
            outcome = campaign.run(number, folder)
            line = {
                "number": number,
                "seed": campaign.seed,
                "format": campaign.draw(number)[0].format,
                **asdict(outcome),
            }
            # One write to a file that is opened to append: lines of several jobs do not mix.
            with campaign.log.open("ab", buffering=0) as file:
                file.write(json.dumps(line).encode() + b"\n")
            if outcome.kind == "defect":
                _keep(campaign, number, outcome, folder)
        code = 0
    finally:
        shutil.rmtree(folder.parent, ignore_errors=True)
        sys.stdout.flush()
        os._exit(code)


def _keep(campaign: Campaign, number: int, outcome: Outcome, folder: Path) -> None:
    name = "".join(letter if letter.isalnum() else "-" for letter in outcome.what)[:80].strip("-")
    kept = Path(f"{campaign.log}.defects", name, f"{campaign.seed}-{number}")
    kept.parent.mkdir(parents=True, exist_ok=True)
    if len(list(kept.parent.iterdir())) < KEPT:
        shutil.copytree(folder, kept, dirs_exist_ok=True, symlinks=True, ignore=_pipes)
        print(f"defect: {outcome.what[:150]}")
        each = " --each" if campaign.each else ""
        print(f"  repeat it: python tests/fuzz/campaign.py{each} --seed {campaign.seed} --only {number}")
        print(f"  or what is kept: python tests/fuzz/campaign.py --kept {kept}", flush=True)


def _pipes(folder: str, names: list[str]) -> list[str]:
    """What cannot be copied."""
    return [name for name in names if Path(folder, name).is_fifo()]


def _kept_input(kept: Path) -> list[str]:
    """Copy a kept input into the current folder; returns the command's words."""
    shutil.copytree(kept / "case", ".", dirs_exist_ok=True, symlinks=True)
    return list(ast.literal_eval((kept / "aside/note").read_text(encoding="utf-8").split("\n")[0]))


def _show(run: Callable[[Path], Outcome]) -> int:
    """Run one case; what it said is shown with its control characters escaped."""
    folder = Path(tempfile.mkdtemp(prefix="quantmedic-fuzz-"), "own")
    outcome = run(folder)
    for name in ("out", "err"):
        said = folder / "aside" / name
        for line in said.read_text(errors="replace").splitlines()[-40:] if said.exists() else ():
            print(line.encode("unicode_escape").decode())
    print(f"input: {folder / 'case'}")
    print(json.dumps(asdict(outcome)))
    return int(outcome.kind == "defect")


def read_log(log: Path) -> list[Line]:
    """Lines of a log; a last one that was cut off is left out."""
    if not log.exists():
        return []
    return [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines() if line.endswith("}")]


def closing_table(lines: Iterable[Line]) -> str:
    """Outcomes by format, the share past the first check, places that refused; then every defect, how often it came."""
    found: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        found[str(line["format"])].append(line)
        found["all"].append(line)
    text = [
        f"{'format':16}{'cases':>8}"
        + "".join(f"{kind:>9}" for kind in KINDS)
        + f"{'deep':>7}{'places':>8}{'s/case':>8}"
    ]
    for name in sorted(found, key=lambda name: (name == "all", name)):
        own = found[name]
        counts = Counter(str(line["kind"]) for line in own)
        places = len({line["what"] for line in own if line["kind"] == "refused"})
        deep = sum(bool(line["deep"]) for line in own) / len(own)
        seconds = sum(float(str(line["seconds"])) for line in own) / len(own)
        text.append(
            f"{name:16}{len(own):8}"
            + "".join(f"{counts[kind]:9}" for kind in KINDS)
            + f"{deep:7.0%}{places:8}{seconds:8.3f}"
        )
    defects = Counter(
        (str(line["format"]), str(line["what"])[:150]) for line in found["all"] if line["kind"] == "defect"
    )
    return "\n".join([*text, *(f"{count:6} x {name}: {what}" for (name, what), count in defects.most_common())])


if __name__ == "__main__":
    sys.exit(main())
