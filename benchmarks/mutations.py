"""Do the tests notice? A fixed sample of mutations, planted in a copy of the checkout, and the tests that reach each.

How to run, beside a checkout::

    git clone CHECKOUT COPY && cd COPY && export PYTHONPATH=.:benchmarks
    python benchmarks/mutations.py plant                            # 150, drawn by seed 45; none is active yet
    REACHED=reached.tsv COSTS=costs.jsonl python -m pytest -p mutations -m "not nightly"
    python benchmarks/mutations.py try                              # one after the other; a line each in tried.jsonl

Only code inside functions is changed: one comparison, constant, returned value or call. Folders take turns, and in each
the kinds of change. Code that numba compiles is left out. A mutation counts as killed where a test fails that passed
before. Tests of the mirrored folder are run first, then all others, the cheapest first, for ``--seconds`` at most.
"""

import argparse
import ast
import itertools
import json
import os
import random
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

FOLDERS = ("engine", "collectors", "trials", "reports", "quantmedic")
OPPOSITES: dict[type[ast.cmpop], str] = {
    **{ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "=="},
    **{ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is"},
}
PLANTED, SWITCH = Path("mutations.json"), Path("quantmedic/_mutations.py")
#: Part of the copy: whether a mutation is active, and which test came by.
SWITCH_CODE = """\
import os

ACTIVE, SEEN = int(os.environ.get("MUTATION", -1)), set()


def mutated(number):
    seen = number, os.environ.get("PYTEST_CURRENT_TEST", "")
    if seen not in SEEN and "REACHED" in os.environ:
        SEEN.add(seen)
        with open(os.environ["REACHED"], "a") as file:
            file.write(f"{number}\\t{seen[1]}\\n")
    return number == ACTIVE
"""


@dataclass(frozen=True)
class Mutation:
    """One change: bytes of a file, and the expression in their place."""

    file: str
    start: int
    end: int
    line: int
    kind: str
    before: str
    after: str


def find_mutations(path: Path) -> Iterator[Mutation]:
    """All that can be changed in the functions of a file."""
    source = path.read_bytes()
    starts = [0, *itertools.accumulate(len(line) for line in source.splitlines(keepends=True))]

    def place(node: Any) -> tuple[int, int]:
        return starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset

    def text(node: Any) -> str:
        start, end = place(node)
        return source[start:end].decode()

    def changed(node: ast.AST) -> tuple[Any, str, str] | None:
        """The expression to replace, the kind, and what replaces it."""
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            return (
                node,
                "comparison",
                f"({text(node.left)}) {OPPOSITES[type(node.ops[0])]} ({text(node.comparators[0])})",
            )
        if isinstance(node, ast.Constant) and isinstance(node.value, bool):
            return node, "constant", str(not node.value)
        if isinstance(node, ast.Constant) and isinstance(node.value, int | float):
            return node, "constant", repr(node.value + 1 if isinstance(node.value, int) else node.value * 2 or 1.0)
        if isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
            return node.value, "return", "None"
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            return node.value, "call", "None"
        if isinstance(node, ast.Call) and node.args and not isinstance(node.args[0], ast.Starred | ast.GeneratorExp):
            return node, "call", text(node.args[0])
        return None

    def visit(node: ast.AST, inside: bool) -> Iterator[Mutation]:
        if isinstance(node, ast.JoinedStr | ast.pattern) or (
            isinstance(node, ast.If) and "TYPE_CHECKING" in text(node.test)
        ):
            return
        if isinstance(node, ast.FunctionDef):
            if not any("jit" in text(each) for each in node.decorator_list):
                yield from itertools.chain.from_iterable(visit(part, True) for part in node.body)
            return
        if inside and (found := changed(node)) is not None:
            (start, end), (target, kind, after) = place(found[0]), found
            yield Mutation(path.as_posix(), start, end, target.lineno, kind, text(target), after)
        parts = [node.value] if isinstance(node, ast.AnnAssign) and node.value else ast.iter_child_nodes(node)
        yield from itertools.chain.from_iterable(visit(part, inside) for part in parts)

    return visit(ast.parse(source), False)


def draw(seed: int, count: int) -> list[Mutation]:
    """Folders in turn; in each of them, kinds in turn."""
    rng, folders = random.Random(seed), defaultdict(list)
    for path in (path for folder in FOLDERS for path in sorted(Path(folder).rglob("*.py"))):
        if not any(each.is_symlink() for each in (path, *path.parents)) and b"numba" not in path.read_bytes():
            folders[path.parent.as_posix()].extend(find_mutations(path))
    queues = {folder: iter(_by_kind(found, rng)) for folder, found in folders.items()}
    order = sorted(queues)
    rng.shuffle(order)
    drawn: list[Mutation] = []
    while len(drawn) < count:
        for folder in order[: count - len(drawn)]:
            drawn += next(([each] for each in queues[folder] if not any(_overlap(each, old) for old in drawn)), [])
    return drawn


def _by_kind(found: list[Mutation], rng: random.Random) -> list[Mutation]:
    rng.shuffle(found)
    kinds = defaultdict(list)
    for each in found:
        kinds[each.kind].append(each)
    turns = list(kinds)
    rng.shuffle(turns)
    return [each for row in itertools.zip_longest(*(kinds[kind] for kind in turns)) for each in row if each]


def _overlap(one: Mutation, other: Mutation) -> bool:
    return one.file == other.file and one.start < other.end and other.start < one.end


def plant(seed: int, count: int) -> None:
    """Write all mutations into the files of this copy, each behind a switch."""
    drawn = draw(seed, count)
    PLANTED.write_text(json.dumps([asdict(each) for each in drawn], indent=1))
    SWITCH.write_text(SWITCH_CODE)
    for file in {each.file for each in drawn}:
        source = Path(file).read_bytes()
        own = [(each, number) for number, each in enumerate(drawn) if each.file == file]
        for each, number in sorted(own, key=lambda pair: -pair[0].start):
            switched = f"(({each.after}) if __mutated__({number}) else ({each.before}))"
            source = source[: each.start] + switched.encode() + source[each.end :]
        lines = source.decode().split("\n")
        lines.insert(_first_import(source), "from quantmedic._mutations import mutated as __mutated__")
        Path(file).write_text("\n".join(lines))


def _first_import(source: bytes) -> int:
    """The line behind the docstring and imports from the future."""
    last = 0
    for node in ast.parse(source).body:
        is_future = isinstance(node, ast.ImportFrom) and node.module == "__future__"
        if not is_future and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            break
        last = node.end_lineno or 0
    return last


# --- as a plugin of pytest: what each test costs ---------------------------------------------------------------------

_reports: dict[str, list[Any]] = {}


def pytest_runtest_logreport(report: Any) -> None:
    """Set-up, call and end of each test; workers hand them to the process that started them."""
    _reports.setdefault(report.nodeid, []).append(report)


def pytest_sessionfinish(session: Any) -> None:
    if "COSTS" in os.environ and not hasattr(session.config, "workerinput"):
        rows = (
            {"test": name, "seconds": sum(each.duration for each in own), "passed": all(each.passed for each in own)}
            for name, own in _reports.items()
        )
        Path(os.environ["COSTS"]).write_text("".join(f"{json.dumps(row)}\n" for row in rows))


# --- which are noticed -----------------------------------------------------------------------------------------------


def tests_that_reach() -> tuple[dict[int, set[str]], dict[str, float]]:
    """Tests by the number of each mutation, and seconds of all that pass.

    What a fixture reaches, all tests of the file may depend on.
    """
    rows = [json.loads(line) for line in Path("costs.jsonl").read_text().splitlines()]
    costs = {row["test"]: row["seconds"] for row in rows if row["passed"]}
    reached: dict[int, set[str]] = defaultdict(set)
    for line in Path("reached.tsv").read_text().splitlines():
        number, test = line.split("\t")
        name, _, phase = test.rpartition(" (")
        is_fixture = phase.startswith("setup")
        file = name.partition("::")[0]
        reached[int(number)] |= {t for t in costs if t.startswith(f"{file}::")} if is_fixture else {name} & costs.keys()
    return reached, costs


def mirror_of(file: str) -> str:
    folder = Path("tests") / Path(file).parent
    while not folder.is_dir():
        folder = folder.parent
    return f"{folder.as_posix()}/"


def try_all(seconds: float, part: int, parts: int) -> None:
    """Activate one mutation after the other, and say which are killed, and by tests of which folder."""
    reached, costs = tests_that_reach()
    result = Path("tried.jsonl")
    done = {json.loads(line)["number"] for line in result.read_text().splitlines()} if result.exists() else set()
    for number, each in enumerate(json.loads(PLANTED.read_text())):
        if number in done or number % parts != part:
            continue
        near = mirror_of(each["file"])
        tests = sorted(reached[number], key=costs.__getitem__)
        outcome = "survived" if tests else "not reached"
        for where, chosen in (
            ("mirrored folder", [test for test in tests if test.startswith(near)]),
            ("another folder", [test for test in tests if not test.startswith(near)]),
        ):
            total = itertools.accumulate(costs[test] for test in chosen)
            chosen = [test for test, sum_ in zip(chosen, total, strict=True) if sum_ < seconds][:400]
            if chosen and is_killed(number, chosen, seconds):
                outcome = f"killed in the {where}" if where == "mirrored folder" else f"killed in {where}"
                break
        with result.open("a") as file:
            file.write(json.dumps({"number": number, "outcome": outcome, "reached_by": len(tests), **each}) + "\n")
        print(number, outcome, f"{each['file']}:{each['line']}", each["kind"], flush=True)
    print(Counter(json.loads(line)["outcome"] for line in result.read_text().splitlines()))


def is_killed(number: int, tests: list[str], seconds: float) -> bool:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "-m", "", *tests]
    try:
        quiet = subprocess.DEVNULL
        environment = os.environ | {"MUTATION": str(number)}
        done = subprocess.run(command, env=environment, stdout=quiet, stderr=quiet, timeout=10 * seconds + 120)
    except subprocess.TimeoutExpired:
        return True
    return done.returncode != 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("plant", "try"))
    parser.add_argument("--seed", type=int, default=45)
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--seconds", type=float, default=45.0, help="of tests that are tried for a mutation")
    parser.add_argument("--part", default="0/1", help="0/2 tries the even ones only")
    given = parser.parse_args()
    if given.step == "plant":
        plant(given.seed, given.count)
        return
    part, parts = map(int, given.part.split("/"))
    try_all(given.seconds, part, parts)


if __name__ == "__main__":
    main()
