"""Two ledgers of cases, held against each other."""

import json
from pathlib import Path

import case_ledger
from zoo.cases import Spec
from zoo.fault import CONTROLS, FAULTS

FAULT = {"case": "all a/b", "kind": "fault", "right first": True, "named": 1, "place": None, "alarm": True}
FAULT |= {"pasted": "healed; x; 3 dB", "runs": 9, "seconds": 2.0}
SOUND = {"case": "all a/c", "kind": "control", "right first": None, "named": None, "alarm": False}


def ledger(folder: Path, *lines: dict[str, object]) -> dict[str, case_ledger.Line]:
    path = folder / "ledger.jsonl"
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return case_ledger.read(path)


def test_seconds_alone_are_no_difference(tmp_path: Path) -> None:
    before, after = ledger(tmp_path, FAULT, SOUND), ledger(tmp_path, FAULT | {"seconds": 9.0}, SOUND)
    text, differs = case_ledger.compared(before, after)
    assert not differs and "1 of 1 faults are named first" in text and "0 of 1 sound" in text


def test_every_other_difference_is_named_with_its_case(tmp_path: Path) -> None:
    before, after = ledger(tmp_path, FAULT, SOUND), ledger(tmp_path, FAULT | {"named": None, "right first": False})
    text, differs = case_ledger.compared(before, after)
    assert differs
    assert text.splitlines()[:3] == [
        "all a/b: right first: True -> False",
        "all a/b: named: 1 -> None",
        "all a/c: only before",
    ]


def test_a_case_that_was_only_named_is_asked_and_not_summed(tmp_path: Path) -> None:
    before, after = ledger(tmp_path, {"case": "all a/b"}), ledger(tmp_path, FAULT)
    text, differs = case_ledger.compared(before, after)
    assert differs and "0 of 0 faults are named first" in text and "1 of 1 faults are named first" in text


def test_what_the_ledger_names_is_in_the_zoo() -> None:
    names = [
        name
        for part, _, name in (case.partition(" ") for case in case_ledger.read(case_ledger.LEDGER))
        if part != "language"
    ]
    specs = [Spec.by_name(name, case_ledger.SEED) for name in names]
    assert len(set(names)) == len(names) > 100 and [spec.name for spec in specs] == names
    assert all(spec.base for spec in specs)
    assert {kind for spec in specs for kind in spec.kinds} <= set(FAULTS)
    assert {spec.control for spec in specs} <= {*CONTROLS, ""}
