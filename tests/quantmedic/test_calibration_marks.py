"""Where a setting of a search stands: marks, order, legend, counts and JSON say the same."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from builders.properties import examples
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from quantmedic.api.rulebase import load_rulebase
from quantmedic.engine.case.tallies import Tally
from quantmedic.engine.contract.searches import CalibrationsRecord
from quantmedic.engine.errors import ModelError
from quantmedic.engine.rules.toolchain import find_toolchain
from quantmedic.engine.rules.toolchain_options import Options
from quantmedic.reports.search_formats import render_search, search_markdown
from quantmedic.trials.calibration_search import CalibrationSearch, Figures, rank_settings, settings_of
from quantmedic.trials.racing import part_sizes

Floats = NDArray[np.float64]
MARKS = {"best": "*", "as-good": "=", "behind": "-", "dropped": "x", "same": "~", "failed": "!"}


@dataclass
class Made:
    """A model that is known by its number alone."""

    number: int

    def runner(self, threads: int) -> int:
        return self.number


class Bench:
    """Makes and judges settings whose SQNR is given, sample by sample; some are twins, some fail."""

    metric = float_value = None
    passes = 0

    def __init__(self, scores: Floats, twins: Sequence[int] = (), failing: Sequence[int] = ()) -> None:
        self.scores, self.twins, self.failing = scores, twins, failing
        self.sizes = part_sizes(scores.shape[1], 16)
        self.made = 0

    def identities(self, rows: Sequence[Options]) -> list[object | None]:
        self.order = [id(row) for row in rows]
        return ["twins" if number in self.twins else None for number in range(len(rows))]

    def make(self, options: Options) -> Made:
        number = self.order.index(id(options))
        if number in self.failing:
            raise ModelError("it fails")
        return Made(number)

    def judge(self, run: int, part: int) -> Figures:
        start = sum(self.sizes[:part])
        return Figures(self.scores[run, start : start + self.sizes[part]], None, cast("Tally | None", None))


def record_of(bench: Bench) -> CalibrationsRecord:
    settings = settings_of(find_toolchain("ort", load_rulebase().toolchains), ())[: len(bench.scores)]
    search = CalibrationSearch(settings, cast("Any", bench), cast("Any", bench), 1, 0)
    race = search.search()
    winner = search.winner()
    assert winner is not None
    return CalibrationsRecord(
        quantmedic_version="0",
        float_model="float.onnx",
        toolchain="ONNX Runtime",
        toolchain_version=None,
        representative="rep.npz",
        representative_samples=32,
        validation="val.npz",
        validation_samples=bench.scores.shape[1],
        labelled_by=None,
        seed=0,
        negligible=0.1,
        stopped=race.ending,
        raced_samples=search.raced_samples,
        settings=rank_settings(search, winner),
        configuration=None,
    )


def table_of(text: str) -> list[list[str]]:
    """Number and mark of each row of the printed table."""
    rows = [line.split()[:2] for line in text.split("\n\n")[1].splitlines()[1:]]
    return [row for row in rows if row[0].isdigit() and row[1] in MARKS.values()]


def assert_all_agree(record: CalibrationsRecord) -> None:
    best, rows = record.best, record.settings
    assert best is not None and rows[0] == best and best.behind is None
    for row in rows:
        assert (row.dropped is not None) == (row.standing == "dropped")
        if row.standing == "as-good":
            assert row.behind is not None and row.behind.low <= 0
        if row.standing == "behind":
            assert row.behind is not None and row.behind.low > 0
        if row.dropped is not None:
            assert row.dropped.behind.low > 0 and row.samples < best.samples
    steps = list(MARKS)
    own = [row for row in rows if row.standing != "same"]
    shown = [row.dropped.behind if row.dropped else row.behind for row in own]
    keys = [
        (steps.index(row.standing), -row.samples, found.value if found else 0.0)
        for row, found in zip(own, shown, strict=True)
    ]
    assert keys == sorted(keys)
    text = render_search(record)
    marks = [MARKS[row.standing] for row in rows]
    assert table_of(text) == [[str(n), mark] for n, mark in enumerate(marks, 1)]
    legend = {line[1] for line in text.splitlines() if line[:1] == " " and line[2:3] == " " and line[1] in marks}
    assert legend == set(marks)
    if "=" in marks:
        assert f"{marks.count('=')} setting" in text.partition("marked = cannot be told")[0].splitlines()[-1]


@examples(12)
@given(st.integers(0, 2**32))
def test_marks_order_legend_and_counts_agree(seed: int) -> None:
    rng = np.random.default_rng(seed)
    scores = 30 + rng.normal(0, 3, (10, 1)) + rng.normal(0, 4, (10, 64))
    assert_all_agree(record_of(Bench(scores, twins=(2, 7, 8), failing=(4,))))


def overtaken() -> Floats:
    """The first leads on 16 samples, proves the second worse there, and is overtaken by the third."""
    scores = np.full((3, 64), 40.0)
    scores[1] = 39.0
    scores[2, :8], scores[2, 8:16], scores[2, 16:] = 10.0, 60.0, 70.0
    return scores


def test_what_dropped_out_shows_the_proof_of_that_time() -> None:
    """Against the winner the second is not proven worse on the 16 samples that it was judged on."""
    record = record_of(Bench(overtaken()))
    assert_all_agree(record)
    dropped = next(row for row in record.settings if row.dropped is not None)
    choices = [tuple(row.choices.values()) for row in record.settings]
    assert choices[0] == ("min-max", "per-tensor", "asymmetric")
    leader = choices.index(("min-max", "per-channel", "asymmetric"))
    assert dropped.behind is not None and dropped.behind.low < 0
    assert dropped.dropped is not None and dropped.dropped.behind.value == 1.0 and dropped.dropped.leader == leader
    text = render_search(record)
    assert f"1.0 [1.0, 1.0] to {leader + 1}" in text
    assert "a 99.9 % interval against the winner, or against the setting named there" in " ".join(text.split())


def test_what_left_with_the_last_samples_was_judged_on_all_of_them() -> None:
    scores = np.full((2, 64), 40.0)
    scores[1, :32], scores[1, 32:] = np.tile([45.0, 34.0], 16), 30.0
    record = record_of(Bench(scores))
    assert_all_agree(record)
    assert [row.standing for row in record.settings] == ["best", "behind"]
    assert record.settings[1].samples == 64


def test_a_tie_names_what_was_judged_on_all_and_where_the_winner_stood_before() -> None:
    races = (record_of(Bench(np.random.default_rng(seed).normal(30, 5, (5, 512)))) for seed in range(20))
    record = next(found for found in races if found.stopped == "tied")
    assert_all_agree(record)
    assert record.raced_samples < 512
    words = " ".join(render_search(record).split())
    final = [str(n) for n, row in enumerate(record.settings, 1) if row.samples == 512]
    assert len(final) == 3
    assert f"after {record.raced_samples} of 512 samples" in words
    assert f"({', '.join(final)}) were judged on all" in words
    there = {row.winner_there for row in record.settings if row.samples == record.raced_samples}
    assert len(there) == 1
    assert f"the winner reached {there.pop():.1f} dB on the first {record.raced_samples}" in words
    assert "- = not proven worse than the winner" in search_markdown(record)
