"""Prescriptions that are pasted and run: the runner, and how it is scored."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from zoo.asking import Answer, Asked, ask
from zoo.cases import Built, Spec
from zoo.paste import Pasted, Shown, metric_share, noise_share, run_script
from zoo.paste_table import counts, is_healed, reason, render, rows
from zoo.protocol.row import Cause, Said
from zoo.quantizing import Standing


@pytest.mark.thorough
def test_a_script_has_a_reader_and_nothing_else(tmp_path: Path) -> None:
    samples = [{"image": np.full((1, 1, 28, 28), i, np.float32)} for i in range(3)]
    for script, said in (
        (
            "assert [int(feed['image'].max()) for feed in reader] == [0, 1, 2]\nimages",
            "NameError: name 'images' is not defined",
        ),
        ("pass", "it writes no model"),
    ):
        folder = tmp_path / said.partition(":")[0]
        folder.mkdir()
        (folder / "prescription.py").write_text(script)
        assert run_script(folder, samples) == said


def standing(sqnr: float, score: float) -> Standing:
    return Standing(sqnr, sqnr - 3, 0.9, 0.9, score, True)


def fault(network: str = "demo", kind: str = "wide-ranges") -> Built:
    return Built(Spec(network, (kind,)), Path(), "fault", before=standing(0, 0.5), healed=standing(20, 0.9))


def pasted(sqnr: float, score: float, **values: object) -> Pasted:
    shown = Shown("edited", 10.0, 9.0, 11.0)
    return Pasted("ran", ("r",), "", 256, standing(0, 0.5), standing(sqnr, score), shown, sqnr, sqnr, **values)


def test_a_case_heals_where_noise_and_metric_are_back() -> None:
    for found, said in (
        (pasted(20.0, 0.9), ""),
        (pasted(3.0, 0.9), "too little noise is gone"),
        (pasted(20.0, 0.6), "the metric is not back"),
        (pasted(-1.0, 0.5, worse="noise -1.0 dB"), "worse than before: noise -1.0 dB"),
        (Pasted("failed", reason="NameError"), "script failed: NameError"),
        (Pasted("no prescription", reason="verdict healthy"), "no prescription (verdict healthy)"),
    ):
        assert is_healed(fault(), found) == (said == "")
        assert not said or reason(fault(), found) == said


def test_shares_are_of_what_the_fault_took() -> None:
    assert noise_share(fault(), pasted(10.0, 0.7)) == pytest.approx(0.9 / 0.99)
    assert metric_share(fault(), pasted(10.0, 0.7)) == pytest.approx(0.5)
    assert metric_share(fault(), Pasted("failed")) == 0.0


def test_a_number_is_held_against_its_interval_and_against_1_db() -> None:
    assert pasted(10.9, 0.9).is_near(10.9) and pasted(10.9, 0.9).is_within
    assert not pasted(11.5, 0.9).is_near(11.5) and not pasted(11.5, 0.9).is_within
    assert Pasted("failed", shown=Shown("edited", 3.0)).is_near(None) is None


def test_faults_that_no_quantizer_undoes_do_not_count() -> None:
    assert counts(fault())
    assert not counts(fault(kind="other-float-model"))
    assert not counts(fault(kind="not-quantized"))
    assert not counts(Built(Spec("demo", control="per-channel"), Path(), "control"))


def test_a_case_that_cannot_be_diagnosed_is_a_miss(tmp_path: Path) -> None:
    built = replace(fault(), folder=tmp_path)
    answer = ask(built, Asked(follow=True))
    assert answer.said.error and answer.pasted is not None
    assert not is_healed(built, answer.pasted)
    assert "0 of 1 (0 %) of all faults" in render("the pasted prescription", rows([(built, answer)]))


def test_the_table_names_every_miss_with_its_reason() -> None:
    answer = Answer(Said("degraded", (Cause("stale-calibration"),)))
    found = [
        (fault(), answer, pasted(20.0, 0.9)),
        (fault("vit"), answer, Pasted("failed", ("r",), "NameError: x", shown=Shown("edited", 3.0, 2.0, 4.0))),
        (fault("mobile"), answer, Pasted("no configuration", ("r",), shown=Shown("edited", 3.0, 2.0, 4.0))),
    ]
    text = render("the pasted prescription", found)
    assert "1 of 2 (50 %) of those with a configuration, 1 of 3 (33 %) of all faults" in text
    assert "vit/wide-ranges: script failed: NameError: x" in text
    assert "mobile/wide-ranges: no configuration" in text
    assert "3 of 3 proven ones show another number" in text
