"""The ledger of cases: what quantmedic says of a fixed choice of them, beside what it said before a change.

From the repository root::

    python benchmarks/case_ledger.py run /tmp/after.jsonl --jobs 2 --keep DIR
    python benchmarks/case_ledger.py compare benchmarks/case_ledger.jsonl /tmp/after.jsonl

The cases are those whose names stand in ``case_ledger.jsonl``: of every part of the fault zoo, drawn once with a seed
for tuning, of the real networks that are installed (``fault_zoo.py`` says how to get them), and of the zoo of language
models, whose network is trained once into ``DIR``. A line that holds a name alone adds a case; ``--cases FILE`` asks
others. Each is diagnosed with the defaults of ``quantmedic diagnose``; its prescription is pasted, run and measured on
samples that no remedy was fitted to. ``--patients DIR`` adds patients, folders with a ``build.py`` and the truth in
``expected.json``, of which nothing is pasted. ``--quick`` judges what any older code measured into ``DIR``, measures
only what is not there, pastes nothing, and leaves language models out: hold its lines against those of another quick
run.
``compare`` prints each case whose line differs in anything but seconds, then the sums of both, and exits with 1 where a
line differs. Some gains differ in the fourth digit between processors, and so does the network of language models,
which is trained anew: hold a change against a run of the commit before it on the same machine.
"""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("QUANTMEDIC_EXACT_KERNELS", "1")  # The same figures on every host.

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from zoo.asking import Answer, Asked, ask_all
from zoo.cases import Built, Spec
from zoo.protocol.entries import row_of
from zoo.protocol.scores import alarms, names_first, names_place, place

SEED = 9
#: Cases that are asked.
LEDGER = Path(__file__).with_suffix(".jsonl")
#: The part of the zoo of language models.
LANGUAGE = "language"
Line = dict[str, Any]


def main() -> int:
    """Ask, or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True, dest="command")
    run = commands.add_parser("run", help="ask every case")
    run.add_argument("ledger", type=Path, help="a line for each case goes here; goes on where it ends")
    run.add_argument("--cases", type=Path, default=LEDGER, help="a ledger, or names alone, of the cases to ask")
    run.add_argument("--quick", action="store_true", help="judge kept measurements of older code, and paste nothing")
    run.add_argument("--patients", type=Path, metavar="DIR", help="ask patients and their healthy twins, too")
    run.add_argument("--jobs", type=int, default=1)
    run.add_argument("--keep", type=Path, metavar="DIR", help="keep cases and trained networks here")
    compare = commands.add_parser("compare", help="hold two ledgers against each other")
    compare.add_argument("before", type=Path)
    compare.add_argument("after", type=Path)
    asked = parser.parse_args()
    if asked.command == "compare":
        text, differs = compared(read(asked.before), read(asked.after))
        print(text)
        return int(differs)
    with tempfile.TemporaryDirectory() as temporary:
        keep = asked.keep or Path(temporary)
        fill(asked.ledger, read(asked.cases), keep, asked.jobs, quick=asked.quick)
        if asked.patients is not None:
            append(asked.ledger, patient_lines(asked.patients, keep / "patients", read(asked.ledger)))
    print(sums(read(asked.ledger).values()))
    return 0


def fill(ledger: Path, cases: Iterable[str], keep: Path, jobs: int, *, quick: bool = False) -> None:
    """Write the lines that a ledger lacks of some cases."""
    known = read(ledger) if ledger.exists() else {}
    append(ledger, lines_of([name for name in cases if name not in known], keep, jobs, quick=quick))


def append(ledger: Path, lines: Iterable[Line]) -> None:
    """Write lines as they come, so that a run goes on where it ended."""
    with ledger.open("a", encoding="utf-8") as file:
        for line in lines:
            file.write(f"{json.dumps(line)}\n")
            file.flush()


def lines_of(cases: Iterable[str], keep: Path, jobs: int, *, quick: bool = False) -> Iterator[Line]:
    """Lines of cases by their names, a part and what the part calls it; a case that can no longer be built has none."""
    parts = {name: part for part, _, name in (case.partition(" ") for case in cases)}
    specs = [Spec.by_name(name, SEED) for name, part in parts.items() if part != LANGUAGE]
    for built, answer in ask_all(specs, keep, jobs, Asked(quick, prove="first", follow=not quick)):
        if answer is not None:
            yield line_of(parts[built.spec.name], built, answer)
    if LANGUAGE in parts.values() and not quick:
        yield from language_lines({name for name, part in parts.items() if part == LANGUAGE}, keep)


def line_of(part: str, built: Built, answer: Answer) -> Line:
    """What is held of a case; numbers have four digits."""
    row = row_of(built, answer)
    said, budget = row.said, row.said.budget
    return {
        "case": f"{part} {row.name}",
        "kind": "control" if row.is_control else "harmless" if row.is_harmless else "fault",
        "verdict": said.verdict or first_line(said.error),
        "right first": None if row.is_control else names_first(row, said),
        "named": None if row.is_control else place(row.right, said.names),
        "place": names_place(row, said) if row.places else None,
        "alarm": alarms(row, said),
        "causes": row.as_json()["said"].get("causes", ()),
        "path": [[words, round(share, 4)] for words, share in said.path],
        "trials": [[kind, gain if gain is None else round(gain, 4)] for kind, gain in said.trials],
        "pasted": row.pasted,
        "runs": budget.runs if budget else 0,
        "seconds": round(answer.seconds, 1),
    }


def first_line(error: str) -> str:
    """Of an error, what does not name temporary files."""
    return error.partition("\n")[0]


def language_lines(names: Container[str], keep: Path) -> Iterator[Line]:
    """Lines of the zoo of language models, which runs with torch: with texts, and no prescription is pasted."""
    from language_zoo import results
    from zoo_language.asking import Asker
    from zoo_language.cases import specs

    for result in results([spec for spec in specs("tune") if spec.name in names], keep / "language", Asker()):
        if not result.counts:
            continue
        found = result.place(result.told)
        yield {
            "case": f"{LANGUAGE} {result.spec.name}",
            "kind": "control" if result.spec.is_control else "fault",
            "verdict": result.told.verdict or first_line(result.told.error),
            "right first": None if result.spec.is_control else found == 1,
            "named": found,
            "alarm": bool(result.told.serious),
            "causes": [(cause.name, cause.severity) for cause in result.told.causes],
        }


def patient_lines(patients: Path, keep: Path, known: Container[str]) -> Iterator[Line]:
    """Lines of patients and twins that are not known, asked as their ``expected.json`` says; nothing is pasted."""
    for folder in sorted(path.parent.resolve() for path in patients.glob("*/build.py")):
        built, truth = keep / folder.name, json.loads((folder / "expected.json").read_text(encoding="utf-8"))
        if not built.exists():
            shutil.copytree(folder, built)
            subprocess.run([sys.executable, str(folder / "build.py"), str(built.resolve())], cwd=built, check=True)
        for kind, command in (("fault", truth["command"]), ("control", truth["twin"].partition(" (")[0])):
            name = f"patient {folder.name}{'' if kind == 'fault' else ' twin'}"
            if name in known:
                continue
            report = (built / f"report-{kind}").resolve()
            ask = [sys.executable, "-m", "quantmedic", *command.split(), "-o", str(report)]
            done = subprocess.run(ask, cwd=built, capture_output=True, text=True)
            said = json.loads((report / "report.json").read_text(encoding="utf-8")) if done.returncode < 2 else {}
            causes = said.get("causes", ())
            names = [cause["cause"] for cause in causes]
            found = next((place for place, name in enumerate(names, 1) if name in truth["cause"]), None)
            yield {
                "case": name,
                "kind": kind,
                "verdict": said.get("verdict") or first_line(done.stderr),
                "right first": found == 1 if kind == "fault" else None,
                "named": found if kind == "fault" else None,
                "alarm": any(cause["severity"] in ("high", "medium") for cause in causes),
                "causes": [{"name": cause["cause"], "severity": cause["severity"]} for cause in causes],
                "path": [[step["words"], step["share"]] for step in (said.get("loss_path") or {}).get("steps", ())],
            }


def read(path: Path) -> dict[str, Line]:
    """Lines by the name of their case."""
    return {line["case"]: line for line in map(json.loads, path.read_text(encoding="utf-8").splitlines())}


def compared(before: Mapping[str, Line], after: Mapping[str, Line]) -> tuple[str, bool]:
    """What differs, case by case, and the sums of both."""
    text = []
    for name in sorted({*before, *after}):
        old, new = before.get(name), after.get(name)
        if old is None or new is None:
            text.append(f"{name}: only {'before' if new is None else 'after'}")
            continue
        text += [
            f"{name}: {key}: {old.get(key)} -> {new.get(key)}"
            for key in old | new
            if key != "seconds" and old.get(key) != new.get(key)
        ]
    return "\n".join([*text, "before:", sums(before.values()), "after:", sums(after.values())]), bool(text)


def sums(lines: Iterable[Line]) -> str:
    """The ledger in six figures."""
    found = [line for line in lines if "kind" in line]
    faults = [line for line in found if line["kind"] == "fault"]
    placed = [line for line in faults if line.get("place") is not None]
    pasted = [line for line in faults if "pasted" in line]
    sound = [line for line in found if line["kind"] != "fault"]
    rows = (
        (sum(line["right first"] for line in faults), faults, "faults are named first"),
        (sum(line["named"] is not None for line in faults), faults, "faults are named anywhere"),
        (sum(line["place"] for line in placed), placed, "faults are found in their place"),
        (sum(line["pasted"].startswith("healed") for line in pasted), pasted, "faults heal as is printed"),
        (sum(line["alarm"] for line in sound), sound, "sound or harmless cases raise an alarm"),
    )
    text = [f"  {part} of {len(whole)} {words}" for part, whole, words in rows]
    runs, seconds = (sum(line.get(key, 0) for line in found) for key in ("runs", "seconds"))
    return "\n".join([*text, f"  {runs} runs, {seconds:.0f} s of processor time"])


if __name__ == "__main__":
    sys.exit(main())
