"""Two ledgers of cases, held against each other."""

import json
from pathlib import Path

import case_ledger

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
