"""Cases that ``quantmedic.fix`` repairs: what is given, what is held back, and how it is counted."""

import json
from dataclasses import replace
from pathlib import Path

import fault_zoo
import numpy as np
import pytest
from zoo.asking import Answer
from zoo.cases import RECIPE_VERSION, Built, Spec, build
from zoo.fixing import repair
from zoo.paste import Pasted, Shown
from zoo.paste_table import is_healed, reason, render
from zoo.protocol.entries import figures_of, row_of
from zoo.protocol.ledger import Begun, LedgerError, begin
from zoo.protocol.row import Cause, Said
from zoo.quantizing import Standing


@pytest.mark.nightly
def test_a_model_is_repaired_that_scores_as_before(tmp_path: Path) -> None:
    """Noise at the output that changes few answers; codes that no float output can be held against."""
    for kind in ("one-scene", "codes-as-output"):
        built = build(Spec("demo", (kind,), seed=2), tmp_path)
        repaired = repair(built, 60.0)
        assert repaired.outcome == "ran" and is_healed(built, repaired), kind
        assert repaired.after is not None and repaired.after.sqnr_db > 20, kind


def standing(sqnr: float, score: float) -> Standing:
    return Standing(sqnr, sqnr - 3, 0.9, 0.9, score, True)


def case(kind: str = "wide-ranges", control: str = "") -> Built:
    if control:
        return Built(Spec("demo", control=control), Path(), "control")
    return Built(Spec("demo", (kind,)), Path(), "fault", before=standing(0, 0.5), healed=standing(20, 0.9))


def written(sqnr: float, score: float, **values: object) -> Pasted:
    return Pasted("ran", ("r",), "", 128, standing(0, 0.5), standing(sqnr, score), Shown("executed", sqnr), **values)


def test_a_refusal_is_a_miss_where_the_report_holds_a_configuration() -> None:
    answer = Answer(Said(""))
    found = [
        (case(), answer, written(20.0, 0.9, gain_db=20.0)),
        (case(), answer, Pasted("refused", ("r",), "the repaired model is unchanged")),
        (case(), answer, Pasted("no configuration", reason="nothing was tried")),
        (case(control="per-channel"), answer, Pasted("refused", reason="no remedy recovers anything for sure")),
        (case(control="per-tensor"), answer, written(-1.0, 0.5, worse="noise -1.0 dB")),
    ]
    text = render("fix", found)
    assert "healed by fix: 1 of 2 (50 %) of those with a configuration, 1 of 3 (33 %) of all faults" in text
    assert reason(*found[1][::2]) == "refused: the repaired model is unchanged"
    assert "1 models are worse than before" in text
    assert "1 of 2 healthy controls get a prescription or another model" in text


def test_a_case_that_cannot_be_repaired_is_a_miss(tmp_path: Path) -> None:
    built = replace(case(), folder=tmp_path)
    np.savez(tmp_path / "validation.npz", image=np.zeros((4, 1), np.float32), labels=np.zeros(4, np.int64))
    found = repair(built, 1.0)
    assert found.outcome == "failed" and found.reason
    assert not is_healed(built, found)


def test_a_record_is_shown_with_what_was_repaired(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = Said("degraded", (Cause("stale-calibration", "high", 0.9),))
    answer = Answer(said, (19.0,))
    found = [(case(), replace(answer, fixed=written(20.0, 0.9, gain_db=20.0))), (case(), answer)]
    rows = [row_of(*each) for each in found]
    entry = begin(tmp_path, Begun("all", 906, RECIPE_VERSION, "2026-01-01", "a" * 40, {}))
    entry.finish(figures_of(rows, fault_zoo.summary(found, [])), rows)
    fault_zoo.show([entry.path])
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split("  ")[0] == "right cause first" and "100 % of 2" in line for line in lines)
    assert "fix heals, of all faults: 1 of 1 (100 %)" in lines
    assert not any("pasted" in line for line in lines)
    (tmp_path / "zoo.json").write_text(json.dumps(fault_zoo.summary([], [])))
    with pytest.raises(LedgerError):
        fault_zoo.show([tmp_path / "zoo.json"])
