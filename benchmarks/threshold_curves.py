"""Curves of thresholds: what quantmedic says of the kept cases of the ledger at half and at double of each.

From the repository root, after ``python benchmarks/case_ledger.py run LEDGER --keep DIR``::

    python benchmarks/threshold_curves.py judge CURVES --keep DIR
    python benchmarks/threshold_curves.py write CURVES

``judge`` goes on where CURVES ends, with a line for each case, and judges again only where a comparison with the
threshold has another outcome and, if rules alone read it, so have their findings. ``write`` puts the curves into
``rules/thresholds.yaml`` in place of first guesses, and names those that no case moves; other sources stay.
"""

import argparse
import json
import operator
import re
from collections.abc import Callable, Container, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from case_ledger import LANGUAGE, LEDGER, SEED, read
from zoo.asking import KEPT, Answer
from zoo.cases import Built, Spec, build
from zoo.protocol.entries import row_of
from zoo.protocol.layers import layer_names, said_of
from zoo.protocol.scores import alarms, place

import quantmedic
from quantmedic.engine.case.facts import CaseFacts
from quantmedic.engine.case.records import Case
from quantmedic.engine.diagnosis.harm import as_if_harmed
from quantmedic.engine.formulas.derive import derive
from quantmedic.engine.rules.evaluate import evaluate
from quantmedic.engine.rules.rulebase import RuleBase

ROOT = Path(__file__).parents[1]
FACTORS = {"half": 0.5, "double": 2.0}
UNPROVEN = "own first guess|measured on the ledger"
Line = dict[str, Any]


class Probe(float):
    """A threshold that notes at which factors something that is made of it would differ."""

    __array_ufunc__ = None  # Arrays and their scalars leave comparisons to it.


def _noting(function: Callable[..., Any]) -> Callable[..., Any]:
    def ask(probe: Probe, other: Any) -> Any:
        now = function(float(probe), other)
        differ = (at for at, factor in FACTORS.items() if np.any(function(float(probe) * factor, other) != now))
        probe.noted.update((probe.name, at) for at in differ)
        return now

    return ask


for _name in ("lt", "le", "gt", "ge", "eq", "ne", "add", "sub", "mul", "truediv"):
    setattr(Probe, f"__{_name}__", _noting(getattr(operator, _name)))


def main() -> None:
    """Judge, or write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["judge", "write"])
    parser.add_argument("curves", type=Path, help="a line for each case")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="what the ledger kept")
    parser.add_argument("--cases", type=Path, default=LEDGER, help="a ledger of the cases to judge")
    asked = parser.parse_args()
    known = read(asked.curves) if asked.curves.exists() else {}
    if asked.command == "write":
        return write_sources([*known.values()])
    with asked.curves.open("a", encoding="utf-8") as file:
        for name in read(asked.cases):
            if not (name in known or name.startswith(LANGUAGE)) and (line := judge_case(name, asked.keep)):
                print(json.dumps(line), file=file, flush=True)


@cache
def built_in_rules() -> RuleBase:
    """The rules as they are now, read once."""
    return quantmedic.load_rulebase()


@cache
def engine_text() -> str:
    """The source of the engine, which names the thresholds that it reads itself."""
    return "".join(path.read_text(encoding="utf-8") for path in (ROOT / "engine").rglob("*.py"))


def judge_case(name: str, keep: Path) -> Line | None:
    """The line of a case; None where nothing was kept of it."""
    built = build(Spec.by_name(name.partition(" ")[2], SEED), keep)
    kept = sorted(built.folder.glob("*.proof")) or sorted(built.folder.glob("*.case"))
    if not built.usable or not kept:
        return None
    base, case, noted = built_in_rules(), quantmedic.load_case(kept[0]), set[tuple[str, str]]()
    probes = {key: each.model_copy(update={"value": Probe(each.value)}) for key, each in base.thresholds.items()}
    for key, each in probes.items():
        each.value.name, each.value.noted = key, noted
    now = judge_at(base.model_copy(update={"thresholds": probes}), case, built)
    moved: dict[str, Line] = {}
    for threshold, at, changed in may_move(base, derive(case, base), noted):
        if (outcome := judge_at(changed, case, built)) != now:
            moved.setdefault(threshold, {})[at] = outcome
    kind = "control" if built.spec.control else "harmless" if built.is_harmless else "fault"
    return {"case": name, "kind": kind, "now": now, "moved": moved}


def may_move(base: RuleBase, facts: CaseFacts, noted: Container[object]) -> Iterator[tuple[str, str, RuleBase]]:
    """Thresholds whose half or double may change what is said, with the rules at it."""
    texts = [(rule, rule.model_dump_json()) for rule in base.rules]
    code = engine_text()
    asked = [name for name, threshold in base.thresholds.items() if re.search(UNPROVEN, threshold.source)]
    for name, at in ((name, at) for name in asked for at in FACTORS if (name, at) in noted):
        changed = base.with_thresholds({name: base.threshold(name) * FACTORS[at]}, at)
        few = {"rules": tuple(rule for rule, text in texts if f'"${name}"' in text)}
        before, after = (findings(each.model_copy(update=few), facts) for each in (base, changed))
        if before != after or not few["rules"] or f'("{name}")' in code:
            yield name, at, changed


def findings(base: RuleBase, facts: CaseFacts) -> set[tuple[str, str]]:
    """What the rules find in the facts, and where harm is taken for granted."""
    results = (result for world in (facts, as_if_harmed(facts)) for result in evaluate(base, world))
    return {finding.key for result in results for finding in result.findings}


def judge_at(base: RuleBase, case: Case, built: Built) -> dict[str, bool]:
    """What is said of a case: a right cause first, one anywhere, a cause of medium or high severity."""
    report = quantmedic.judge(case, base).model_dump(mode="json", include=KEPT)
    row = row_of(built, Answer(said_of(report, layer_names(built))))
    found = None if built.spec.control else place(row.right, row.said.names)
    return {"first": found == 1, "named": found is not None, "alarm": alarms(row, row.said)}


def write_sources(lines: list[Line]) -> None:
    """Put curves in place of first guesses."""
    text = (path := ROOT / "rules" / "thresholds.yaml").read_text(encoding="utf-8")
    for name in {name for line in lines for name in line["moved"]}:
        source = rf'(?m)^({name}:\n(?:  .*\n)*?  source: )"?(?:{UNPROVEN})[^;"\n]*([^"\n]*)"?$'
        text = re.sub(source, lambda found, name=name: f'{found[1]}"{curve_of(name, lines)}{found[2]}"', text)
    path.write_text(text, encoding="utf-8")
    print("no case moves:", *re.findall(r"(?m)^(\w+):\n(?:  .*\n)*?  source: .*first guess", text), sep="\n  ")


def curve_of(name: str, lines: list[Line]) -> str:
    """What the cases say of a threshold, in words."""

    def count(key: str, faulty: bool) -> list[int]:
        asked = [line for line in lines if (line["kind"] == "fault") == faulty]
        said = ([line["moved"].get(name, {}).get(at, line["now"]) for line in asked] for at in ("now", *FACTORS))
        return [sum(each[key] for each in found) for found in said]

    (right, half, double), alarmed = count("first", True), ", ".join(map(str, count("alarm", False)))
    of = f"{right} of {sum(line['kind'] == 'fault' for line in lines)}"
    return f"measured on the ledger: {of} right first, at half {half}, at double {double}, alarms {alarmed}"


if __name__ == "__main__":
    main()
